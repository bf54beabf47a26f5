"""The mma.sync kernel, stepped in the emulator: the bits of exact integers, in every type, on awkward shapes, under both completion policies."""

import dataclasses
import re

import ml_dtypes
import numpy as np
import pytest
from cases import H200, PORTABLE, emulate, portable, refusal
from numba import cuda
from ptx.mma_kernel import codes

from dgnumba import _numba, emu
from dgnumba.assemble import find_ptxas, ptxas
from dgnumba.device import KNOWN
from dgnumba.dtypes import DTYPES
from dgnumba.kernels.sm80_gemm_rules import OUTPUTS, SCALED_TILES, TILES, is_scaled, needs_widening, tiles_of, warps_of
from dgnumba.kernels.sm80_parts import multiply_for
from dgnumba.kernels.spec import most_stages
from dgnumba.layouts.operands import LaidOut
from dgnumba.problem import GemmProblem
from dgnumba.ptx import convert
from dgnumba.quant.reference import exact_integer_reference
from dgnumba.testing import assert_bits_equal

with_compiler = pytest.mark.skipif(not _numba.HAVE_NUMBA_CUDA or find_ptxas() is None, reason="needs numba-cuda and ptxas")
E4M3 = "float8_e4m3fn"
RANGES = {"int8": (-128, 128), "int4": (-8, 8)}

DENSE_CASES = [
    (portable("bfloat16", 16, 64), 1, 1, 1),  # one element
    (portable("bfloat16", 16, 64, d_dtype="float32"), 17, 70, 200),  # four tiles, ring used again, K tail of 8 bytes
    (portable("float16", 64, 64, 2), 60, 71, 64),  # fewest stages, nothing ragged along K, odd N
    (portable("float16", 32, 128, 4, d_dtype="float32"), 33, 100, 33),  # more stages than blocks of K
    (portable("int8", 16, 64), 10, 70, 301),  # a K tail of one byte beyond 16-byte chunks
    (portable("int4", 16, 64), 10, 70, 602),  # two elements a byte
    (portable("int8", 64, 128), 64, 128, 128),  # one tile, one block
]
SCALED_CASES = [
    (portable(E4M3, 16, 64), 17, 70, 300),
    (portable(E4M3, 32, 128, d_dtype="float32"), 5, 130, 1),  # two blocks of B's scales
    (portable(E4M3, 64, 128, 4, widen=True), 60, 40, 520),
    (portable(E4M3, 16, 64, 2, widen=True, d_dtype="float32"), 3, 65, 129),
]


def name_of(case):
    chosen, m, n, k = case
    return f"{chosen.a_dtype}-{chosen.name.replace(' ', '-')}-{m}x{n}x{k}"


def check_dense(case, policy, rng):
    chosen, m, n, k = case
    assert refusal(chosen, m, n, k) is None
    low, high = RANGES.get(chosen.a_dtype, (-8, 9))
    a, b = rng.integers(low, high, (m, k)), rng.integers(low, high, (n, k))
    kind = getattr(ml_dtypes, chosen.d_dtype, None) or np.dtype(chosen.d_dtype)
    d = np.full((m, -(-n // 8) * 8), -7, kind)
    held = [codes(x, chosen.a_dtype) for x in (a, b)]
    held = [np.pad(x, ((0, 0), (0, -x.shape[1] % 16)), constant_values=99) for x in held]  # what lies behind a row is not taken
    problem = GemmProblem(m, n, k, chosen.a_dtype, chosen.a_dtype, chosen.d_dtype, None, None)
    laid = LaidOut(problem, aligned(held[0]), None, aligned(held[1]), None, d, d, None, ())
    built = PORTABLE.build(chosen)
    grid = PORTABLE.grid(chosen, problem, H200)
    emu.run(built.kernel, grid, built.threads, PORTABLE.bind(chosen, laid), smem=built.smem.launch_bytes, policy=policy,
            arrays=[laid.a, laid.b, d])  # fmt: skip
    assert_bits_equal(d[:, :n], (a @ b.T).astype(kind), chosen.name)
    assert (d[:, n + n % 2 :] == -7).all(), "only the column that makes a pair is written behind N"


def aligned(x):
    """The same, beginning at a multiple of 16 bytes."""
    flat = np.empty(x.size + 16, np.uint8)
    skip = -flat.ctypes.data % 16
    out = flat[skip : skip + x.size].reshape(x.shape)
    out[...] = x
    return out


@pytest.mark.parametrize("case", DENSE_CASES, ids=map(name_of, DENSE_CASES))
def test_products_without_scales(case, policy, rng):
    check_dense(case, policy, rng)


def check_scaled(case, policy, rng):
    chosen, m, n, k = case
    assert refusal(chosen, m, n, k) is None
    d, operands = emulate(chosen, m, n, k, policy=policy, seed=int(rng.integers(2**32)))
    assert_bits_equal(d, exact_integer_reference(*operands.a, *operands.b, chosen.d_dtype), chosen.name)


@pytest.mark.parametrize("case", SCALED_CASES, ids=map(name_of, SCALED_CASES))
def test_fp8_with_block_scales(case, policy, rng):
    check_scaled(case, policy, rng)


def test_the_cases_are_a_spread():
    plans = [c[0] for c in DENSE_CASES + SCALED_CASES]
    assert {p.a_dtype for p in plans} == set(OUTPUTS)
    assert {p.num_stages for p in plans} >= {2, 3, 4}
    assert {(p.a_dtype, p.widen) for p in plans} >= {(E4M3, False), (E4M3, True)}


@pytest.mark.full
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("dtype", OUTPUTS)
def test_every_tile(dtype, tile, policy, rng):
    """Two tiles along each axis, both ragged, three blocks of K."""
    for widen in (False, True) if dtype == E4M3 else (False,):
        chosen = portable(dtype, *tile, widen=widen)
        if tile in tiles_of(chosen):
            case = (chosen, tile[0] + 3, tile[1] + 6, 2 * chosen.block_k + 2)
            (check_scaled if is_scaled(chosen) else check_dense)(case, policy, rng)


# Widening


@pytest.mark.parametrize("widen", [convert.e4m3x4_to_f16x4, convert.cvt_e4m3x4_to_f16x4], ids=lambda f: f.__name__)
def test_every_e4m3_becomes_its_float16(widen):
    values = DTYPES[E4M3].decode(np.arange(256))
    for first in range(0, 256, 4):
        words = widen(int.from_bytes(bytes(range(first, first + 4)), "little"))
        halves = np.array([int(w) for w in words], np.uint32).view(np.float16)
        np.testing.assert_array_equal(halves.astype(np.float32), values[first : first + 4])


def test_the_integer_way_to_float16_is_right():
    """The instructions of `e4m3x4_to_f16x4`, written out in Python for one code: shift, carry, scale."""
    for code, value in enumerate(DTYPES[E4M3].decode(np.arange(256))):
        t = (code << 8 & 0x7F00) >> 1
        nan = (t + 0x80 & 0x4000) >> 1
        scaled = np.uint16(t | code << 8 & 0x8000).view(np.float16) * np.float16(256)
        got = np.uint16(int(scaled.view(np.uint16)) | nan).view(np.float16)
        assert got == value or (np.isnan(got) and np.isnan(value)), code


def test_widened_products_are_products(rng):
    """Columns of K pair off another way; the sum does not care."""
    out, kinds = np.zeros((2, 32, 8), np.float32), [multiply_for(E4M3, 1, 2, widen=w) for w in (False, True)]
    a, b = (rng.integers(-15, 16, (32, n * 4)).astype(ml_dtypes.float8_e4m3fn).view(np.uint32) for n in (4, 4))

    def kernel():
        lane = cuda.threadIdx.x
        for i, multiply in enumerate(kinds):
            out[i, lane] = list(multiply(emu.Fragment(np.ones(8)), tuple(a[lane]), tuple(b[lane])))

    emu.run(kernel, 1, 32, ())
    assert out[0].tolist() == out[1].tolist() and (out != 1).any()


# Compiled

ARCHS = {"sm_80": "a100", "sm_86": "rtx-3090", "sm_89": "l40s", "sm_90": "h200", "sm_120": "rtx-5090"}


def compiled_problems(chosen, arch):
    """What is wrong with a compiled plan; empty when nothing is."""
    built = PORTABLE.build(chosen)
    ptx, _ = _numba.compile_ptx(built.kernel, built.argtypes, arch=arch, **built.bounds)
    body, cubin = re.sub(r"//.*", "", ptx), ptxas(ptx, arch)
    warps = warps_of(chosen)
    tiles = chosen.block_m // (16 * warps[0]) * (chosen.block_n // (8 * warps[1]))
    products, loads = body.count("mma.sync.aligned"), body.count("ldmatrix.sync.aligned")
    per_stage = 4 * tiles * (2 if chosen.widen else 1)
    rules = {
        f"{cubin.spill_stores + cubin.spill_loads} bytes spilled": cubin.spill_stores + cubin.spill_loads == 0,
        f"{cubin.local_bytes} bytes of local memory": cubin.local_bytes == 0,
        f"ptxas warns: {cubin.warnings}": not cubin.warnings,
        f"{cubin.registers} registers for {built.threads} threads": 0 < cubin.registers <= min(255, 65536 // built.threads),
        # the loop over K may be unrolled
        f"{products} products, expected multiples of {per_stage}": products > 0 and products % per_stage == 0,
        f"{loads} loads of fragments": loads > 0,
        "waits for the grids before it, or its rules say so": ("griddepcontrol.wait" in body) == PORTABLE.WAITS,
        "float64 in the PTX": ".f64" not in body,
        "a 64-bit division in the PTX": not re.search(r"\b(?:div|rem)\.[su]64\b", body),
        "a call in the PTX": not re.search(r"\bcall\b", body),
        f"target is not {arch}": f".target {arch}" in body,
    }
    return [fault for fault, holds in rules.items() if not holds]


def plans_for(arch, tiles=None):
    """Every tile in every type, as the planner offers it for a GPU of this architecture; INT4 and FP8 also where it leaves them to others."""
    device = KNOWN[ARCHS[arch]]
    for dtype in OUTPUTS:
        for tile in tiles or TILES:
            chosen = portable(dtype, *tile, widen=dtype == E4M3 and needs_widening(device))
            if tile in tiles_of(chosen):
                stages = min(6, most_stages(PORTABLE.smem, chosen, device))
                if stages >= 2:
                    yield dataclasses.replace(chosen, num_stages=stages)


SPREAD = [(arch, p) for arch in ARCHS for p in plans_for(arch, [(128, 256), (128, 128)]) if (p.block_n == 256) != is_scaled(p)]


def id_of(x):
    return x if isinstance(x, str) else f"{x.a_dtype}-{x.name.replace(' ', '-')}"


@with_compiler
@pytest.mark.parametrize("arch, chosen", SPREAD, ids=id_of)
def test_the_largest_tile_compiles_for_every_architecture(arch, chosen):
    assert compiled_problems(chosen, arch) == []


@with_compiler
@pytest.mark.full
@pytest.mark.parametrize("arch, chosen", [(arch, p) for arch in ARCHS for p in plans_for(arch)], ids=id_of)
def test_every_plan_compiles_for_every_architecture(arch, chosen):
    assert compiled_problems(chosen, arch) == []


def test_the_spread_is_one():
    assert {(arch, p.a_dtype) for arch, p in SPREAD} == {(arch, dtype) for arch in ARCHS for dtype in OUTPUTS}
    assert set(SCALED_TILES) <= set(TILES)
