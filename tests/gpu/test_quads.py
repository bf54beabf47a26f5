"""Four columns of D stored together, on a GPU: its operations against their emulation, products against the host's bits, and D wherever it lies."""

import int4_cases as cases
import numpy as np
import pytest
from gpu.test_int4 import to_gpu
from gpu.test_operations import both, same
from numba import cuda

import dgnumba
from dgnumba.int4_operands import check_int4_gemm_nt
from dgnumba.int4_plan import choose_int4
from dgnumba.integers import u32
from dgnumba.kernels.int4_spec import Int4Plan
from dgnumba.ptx import thread, transpose
from dgnumba.testing import assert_bits_equal

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def cupy():
    return pytest.importorskip("cupy")


def turned(words, out):
    i, lane = cuda.grid(1), thread.lane_idx()
    low, high = u32(words[i, 0]), u32(words[i, 1])
    out[i, 0], out[i, 1] = transpose.movmatrix(low), transpose.shfl_bfly(high, 5)
    out[i, 2], out[i, 3] = transpose.quads(low, high, lane % 2 == 1)


def test_lanes_exchange(cupy, rng):
    words = rng.integers(0, 2**32, (256, 2), dtype=np.uint64).astype(np.uint32)
    same(both(cupy, turned, 2, 128, [words, np.zeros((256, 4), np.uint32)]))


@pytest.mark.parametrize(
    "kind, out, m, n, choices",
    [
        ("bfloat16", "bfloat16", 300, 1100, {"block_m": 128, "records": 2, "num_stages": 2}),
        ("int8", "float16", 250, 1000, {"block_m": 128, "split": 2, "records": 2}),
        ("float8_e4m3fn", "bfloat16", 70, 132 * 128 + 900, {"block_m": 128, "tail": 2}),
        ("float16", "float16", 129, 332, {"block_m": 128, "block_n": 64, "split": 4}),
        ("bfloat16", "float16", 250, 1100, {"block_m": 256, "split": 2}),
        ("float8_e4m3fn_row", "float16", 190, 1100, {"block_m": 192}),
        ("float8_e4m3fn_row", "bfloat16", 300, 1100, {"block_m": 128, "records": 2, "f16_sums": True}),
        ("float8_e4m3fn_row", "bfloat16", 250, 132 * 128 + 900, {"block_m": 128, "tail": 2, "records": 2, "f16_sums": True}),
        ("float8_e4m3fn_row", "bfloat16", 250, 1100, {"block_m": 256, "split": 2, "f16_sums": True}),
    ],
)
def test_products_have_the_hosts_bits(cupy, rng, kind, out, m, n, choices):
    """Exact sums, rounded once to 16 bits."""
    a, q = cases.exact_problem(rng, kind, "int4_g128", m, n, 1024)
    a = cases.few(rng, a) if "f16_sums" in choices else a
    w, there = (dgnumba.prepare_int4_weights(x, cases.prepared_for(kind)) for x in (q, to_gpu(cupy, q)))
    problem = check_int4_gemm_nt(a, w, out_dtype=out).problem
    plan = Int4Plan.of(problem, "sm90_int4_gemm", **{"block_n": 128, "num_stages": 3, **choices}, quads=True)
    expected = dgnumba.int4_gemm_nt(a, w, out_dtype=out, on="host")
    got = cupy.asnumpy(dgnumba.int4_gemm_nt(to_gpu(cupy, a), there, out_dtype=out, plan=plan)).view(expected.dtype)
    assert_bits_equal(got, expected, f"{kind} {plan.name}")


def test_d_wherever_it_lies(cupy, rng):
    """Calls of one form, whose D lies at multiples of 8 bytes, or not: each takes a kernel that may store there, and writes nothing else."""
    from dgnumba import int4_prepared

    m, n, k, kind = 1000, 4096, 512, "int8"
    a, q = cases.exact_problem(rng, kind, "int4_g128", m, n, k)
    w, x = dgnumba.prepare_int4_weights(to_gpu(cupy, q), kind), to_gpu(cupy, a)
    expected = dgnumba.int4_gemm_nt(a, dgnumba.prepare_int4_weights(q, kind), out_dtype="float16", on="host")
    device = dgnumba.Device.current()
    for begin, has_quads, is_quick in (
        (0, True, False),
        (8, True, True),
        (2, False, False),
        (1, False, True),
        (4, True, None),
        (3, False, None),
    ):
        around = cupy.full((m, n + 24), -7, cupy.float16)
        d = around[:, begin : begin + n]
        problem = check_int4_gemm_nt(x, w, d).problem
        assert problem.d_has_quads == has_quads and choose_int4(problem, device).plan.quads == has_quads
        if is_quick is not None:
            assert int4_prepared.quick(x, w, d, None) == is_quick, begin
        dgnumba.int4_gemm_nt(x, w, d)
        assert_bits_equal(cupy.asnumpy(d), expected, f"D {begin} columns from a multiple of 16 bytes")
        assert bool((around[:, :begin] == -7).all()) and bool((around[:, begin + n :] == -7).all())
