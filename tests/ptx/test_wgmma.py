"""wgmma: every width, both places of A, all four pairs of FP8 types, compiled and emulated."""

import re

import numpy as np
import pytest
from ptx.wgmma_kernel import PAIRS, SOURCES, make, operands, smem_bytes, tile_of

from dgnumba import _numba, emu
from dgnumba.assemble import find_ptxas, ptxas
from dgnumba.dtypes import DTYPES
from dgnumba.errors import AsyncError, BarrierError, EmulationError
from dgnumba.layouts.descriptors import TensorMap

ALL = [(*pair, source) for pair in PAIRS for source in SOURCES]
TMAP = TensorMap.of(np.zeros((64, 128), np.uint8), (128, 64), swizzle=128)
ARGTYPES = (TMAP, TMAP, np.zeros((2, 2), np.uint32), np.zeros((2, 2, 2), np.float32))
WIDTHS = range(8, 257, 8)
SPREAD = (8, 24, 136, 256)  # narrowest, odd multiple of 8, past the widest tile of two waves, widest

with_ptxas = pytest.mark.skipif(not _numba.HAVE_NUMBA_CUDA or find_ptxas() is None, reason="needs numba-cuda and ptxas")


def check_compiled(n):
    ptx, _ = _numba.compile_ptx(make(n, ALL), ARGTYPES, threads=128)
    cubin = ptxas(ptx)
    found = re.findall(r"wgmma\.mma_async\.sync\.aligned\.(m\d+n\d+k\d+)\.f32\.(\w+)\.(\w+)\s+\{([^}]*)\}, (\{?)[^;]*, p, 1, 1;", ptx)
    expected = []
    for a_dtype, b_dtype, source in ALL:
        operand = "" if source == "shared" else "{"
        expected += [(f"m64n{n}k32", DTYPES[a_dtype].ptx, DTYPES[b_dtype].ptx, n // 2, operand)] * (4 if source == "shared" else 1)
    assert expected == [(shape, a, b, len(acc.split(",")), operand) for shape, a, b, acc, operand in found]
    assert (cubin.spill_stores, cubin.spill_loads, cubin.local_bytes, cubin.warnings) == (0, 0, 0, ())
    return cubin.registers


@with_ptxas
@pytest.mark.parametrize("n", SPREAD)
def test_every_kind_compiles(n):
    assert check_compiled(n) <= 255


@with_ptxas
@pytest.mark.full
@pytest.mark.parametrize("n", [n for n in WIDTHS if n not in SPREAD])
def test_every_width_and_kind_compiles(n):
    assert check_compiled(n) <= 255


def emulate(n, choices, policy, rng, largest=4, leave_out=""):
    a_dtype, b_dtype, _ = choices[0]
    a_codes, b_codes, registers, a, b = operands(rng, n, a_dtype, b_dtype, largest)
    out = np.full((len(choices), 128, n // 2), np.nan, np.float32)
    maps = TensorMap.of(a_codes, (128, 64), swizzle=128), TensorMap.of(b_codes, (128, n), swizzle=128)
    emu.run(make(n, choices, leave_out), 1, 128, (*maps, registers, out), smem=smem_bytes(n), policy=policy)
    return out, a, b


@pytest.mark.parametrize("pair", PAIRS, ids=["-".join(p) for p in PAIRS])
def test_products_of_small_integers_are_exact(pair, policy, rng):
    for n in (8, 40, 200):
        out, a, b = emulate(n, [(*pair, "shared"), (*pair, "registers")], policy, rng)
        assert np.array_equal(a @ b.T, tile_of(out[0], n).astype(np.float64)), f"n = {n}, A in shared memory"
        assert np.array_equal(a[:, :32] @ b[:, :32].T, tile_of(out[1], n).astype(np.float64)), f"n = {n}, A in registers"


@pytest.mark.full
def test_products_of_every_width_are_exact(policy, rng):
    for n in WIDTHS:
        out, a, b = emulate(n, [("float8_e4m3fn", "float8_e4m3fn", "shared")], policy, rng)
        assert np.array_equal(a @ b.T, tile_of(out[0], n).astype(np.float64)), f"n = {n}"


def test_F24_small_terms_beside_a_large_one_are_dropped_as_on_the_gpu(rng):
    """The tensor core aligns a step's terms to the largest: 448 + 127 * 2^-9 stays 448."""
    n, choice = 8, ("float8_e4m3fn", "float8_e4m3fn", "shared")
    a_codes = np.full((64, 128), 0x01, np.uint8)
    a_codes[:, 0] = 0x7E
    b_codes = np.full((n, 128), 0x38, np.uint8)
    out = np.zeros((1, 128, n // 2), np.float32)
    maps = TensorMap.of(a_codes, (128, 64), swizzle=128), TensorMap.of(b_codes, (128, n), swizzle=128)
    emu.run(make(n, [choice]), 1, 128, (*maps, np.zeros((128, 4), np.uint32), out), smem=smem_bytes(n))
    # 448 has exponent 8, so bits below 2^-5 go: each 2^-9, and also the sum of any step's
    assert (out == 448).all()


SPOIL = {  # what is left out, and what the emulator calls it
    "wgmma.fence()": AsyncError,
    "wgmma.commit()": AsyncError,
    "acc = wgmma.wait(acc, 0)": AsyncError,
    "mbarrier.wait(smem, 0)": EmulationError,
    "cuda.syncthreads()": BarrierError,
}


@pytest.mark.parametrize("line", SPOIL)
def test_a_missing_step_is_reported(line, policy, rng):
    with pytest.raises(SPOIL[line]):
        emulate(8, [("float8_e4m3fn", "float8_e4m3fn", "shared")], policy, rng, leave_out=line)
