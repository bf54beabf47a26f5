"""The mma.sync kernels on the GPU at hand, whatever it is: exact products of integers, and every activation by every format of 4-bit weights."""

import dataclasses
import os

import int4_cases as cases
import ml_dtypes
import numpy as np
import pytest
from cases import portable
from gpu.test_int4 import to_gpu
from ptx.mma_kernel import codes

import dgnumba
from dgnumba import launching
from dgnumba.device import Device
from dgnumba.int4_operands import check_int4_gemm_nt
from dgnumba.kernels import sm80_gemm_rules as dense
from dgnumba.kernels import sm80_int4_gemm_rules as int4
from dgnumba.kernels.sm80_gemm_rules import OUTPUTS, needs_widening, tiles_of
from dgnumba.layouts.operands import LaidOut, lay_out
from dgnumba.plan import choose
from dgnumba.problem import GemmProblem, check_fp8_gemm_nt
from dgnumba.quant.reference import exact_integer_reference
from dgnumba.testing import assert_bits_equal, exact_problem, random_extent

pytestmark = pytest.mark.gpu

ROUNDS = int(os.environ.get("DGNUMBA_GPU_PORTABLE", "20"))
"""Random problems of each type."""


@pytest.fixture(scope="module")
def cp():
    return pytest.importorskip("cupy")


def run(plan, laid, device):
    built = dense.build(plan)
    made = launching.program(plan, lambda: (built.kernel, built.argtypes), arch=device.arch, **built.bounds)
    shape = launching.LaunchShape((dense.grid(plan, laid.problem, device), 1, 1), (built.threads, 1, 1), built.smem.launch_bytes, (1, 1, 1))
    made.launcher(device.index, shape)([int(x) for x in dense.bind(plan, laid)], (), launching.LEGACY)


def extents(rng, largest=400):
    return tuple(max(1, random_extent(rng, top)) for top in (largest, largest, 3 * largest))


@pytest.mark.parametrize("dtype", [d for d in OUTPUTS if d != "float8_e4m3fn"])
def test_integers_without_scales(cp, rng, device, dtype):
    low, high = {"int8": (-128, 128), "int4": (-8, 8)}.get(dtype, (-8, 9))
    for i in range(ROUNDS):
        m, n, k = extents(rng)
        k += k % 2 if dtype == "int4" else 0
        tile = list(dense.TILES)[i % len(dense.TILES)]
        plan = portable(dtype, *tile, 2, d_dtype=OUTPUTS[dtype][-1])
        a, b = rng.integers(low, high, (m, k)), rng.integers(low, high, (n, k))
        held = [codes(x, dtype) for x in (a, b)]
        held = [cp.asarray(np.pad(x, ((0, 0), (0, -x.shape[1] % 16)))) for x in held]
        d = cp.full((m, -(-n // 8) * 8), -7, plan.d_dtype)
        run(
            plan,
            LaidOut(GemmProblem(m, n, k, dtype, dtype, plan.d_dtype, None, None), held[0], None, held[1], None, d, d, None, ()),
            device,
        )
        assert_bits_equal(d[:, :n].get(), (a @ b.T).astype(plan.d_dtype), f"{plan.name} {m}x{n}x{k}")


@pytest.mark.parametrize("widen", [False, True])
def test_fp8_with_block_scales(cp, rng, device, widen):
    if device.cc < (8, 9) and not widen:
        pytest.skip("needs FP8 tensor cores, sm_89")
    for i in range(ROUNDS):
        m, n, k = extents(rng)
        tile = list(dense.SCALED_TILES)[i % len(dense.SCALED_TILES)]
        plan = portable("float8_e4m3fn", *tile, 2, d_dtype=("bfloat16", "float32")[i % 2], widen=widen)
        assert tile in tiles_of(plan)
        case = exact_problem(rng, m, n, k, plan.d_dtype)
        a, b = ((cp.asarray(np.ascontiguousarray(x.data).view(np.uint8)), cp.asarray(x.scale)) for x in (case.a, case.b))
        d = cp.full((m, n), 7, "uint16" if plan.d_dtype == "bfloat16" else "float32")
        laid = lay_out(check_fp8_gemm_nt(a, b, d))
        run(plan, laid, device)
        got = np.ascontiguousarray(laid.d[:, :n].get())
        got = got.view(ml_dtypes.bfloat16) if plan.d_dtype == "bfloat16" else got
        assert_bits_equal(got, exact_integer_reference(*case.a, *case.b, plan.d_dtype), f"{plan.name} {m}x{n}x{k}")


@pytest.mark.parametrize("variant", cases.VARIANTS)
@pytest.mark.parametrize("kind", cases.ACTIVATIONS)
def test_weights_of_4_bits(cp, rng, device, kind, variant):
    if not cases.goes(kind, variant):
        pytest.skip("no kernel takes these two")
    plan = None
    for _ in range(max(2, ROUNDS // 4)):
        m, n = max(1, random_extent(rng, 100)), max(1, random_extent(rng, 300))
        k = 32 * max(1, random_extent(rng, 30)) - (0 if variant.startswith("act") else int(rng.integers(0, 32)))
        a, q = cases.exact_problem(rng, kind, variant, m, n, k)
        w = dgnumba.prepare_int4_weights(q, cases.prepared_for(kind))
        problem = check_int4_gemm_nt(a, w).problem
        if int4.supports(problem, device) is not None:
            pytest.skip(int4.supports(problem, device))
        plan = plan or [p for p in int4.candidates(problem, device) if p.records == 1][-1]
        expected = dgnumba.int4_gemm_nt(a, w, on="host")
        on_gpu = dgnumba.prepare_int4_weights(to_gpu(cp, q), cases.prepared_for(kind))
        got = dgnumba.int4_gemm_nt(to_gpu(cp, a), on_gpu, plan=dataclasses.replace(plan))
        assert_bits_equal(got.get().view(expected.dtype), expected, f"{plan.name} {m}x{n}x{k}")


def test_the_plan_is_this_gpus(device: Device):
    """What `fp8_gemm_nt` takes here, where it is not Hopper."""
    if device.cc[0] == 9:
        pytest.skip("Hopper has kernels of its own")
    found = choose(GemmProblem(64, 512, 512), device).plan
    assert found.kernel == dense.NAME and found.widen == needs_widening(device)
