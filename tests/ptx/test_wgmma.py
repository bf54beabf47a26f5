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


SIXTEEN = ("bfloat16", "float16")


def narrow_kernel(n, dtype, is_integer):
    """A kernel `(tmap_b, registers, out)`: one product with A in registers, of 16-bit floats or int8."""
    from numba import cuda

    from dgnumba.integers import u32, u64
    from dgnumba.layouts.descriptors import SmemDescriptor, low_word
    from dgnumba.ptx import barrier, fragment, mbarrier, memory, tma, wgmma

    operand = SmemDescriptor(swizzle=128)
    mma = wgmma.mma_rs_s8_for(b=operand) if is_integer else wgmma.mma_rs_for(dtype, dtype, b=operand)
    wait = wgmma.wait_s32 if is_integer else wgmma.wait
    fresh = fragment.undefined_s32 if is_integer else fragment.undefined
    bits_of = wait if is_integer else fragment.bits
    COUNT, BYTES = n // 2, n * 128

    def kernel(tmap_b, registers, out):
        smem = (memory.shared_address(cuda.shared.array(0, np.uint8)) + 1023) // 1024 * 1024
        tid = u32(cuda.threadIdx.x)
        if tid == 0:
            mbarrier.init(smem + BYTES, 1)
            barrier.fence_mbarrier_init()
        cuda.syncthreads()
        if tid == 0:
            mbarrier.arrive_expect_tx(smem + BYTES, BYTES)
            tma.load_2d(smem, tmap_b, smem + BYTES, u32(0), u32(0))
        frag = memory.load_global_v4_if(True, memory.global_address(registers) + u64(tid) * 16)
        mbarrier.wait(smem + BYTES, 0)
        desc = low_word(smem)
        acc = fresh(COUNT)
        wgmma.fence()
        acc = mma(acc, frag, desc, 0)
        acc = mma(acc, frag, desc, 1)
        wgmma.commit()
        acc = wait(acc, 0)
        bits = acc
        if not is_integer:
            bits = bits_of(acc)
        row = memory.global_address(out) + u64(tid) * (4 * COUNT)
        for i in range(4):
            memory.store_global_u32_if(True, row + 4 * u64(i), bits[i])

    return kernel


@pytest.mark.parametrize("dtype", [*SIXTEEN, "int8"])
def test_other_types_with_a_in_registers(dtype, policy, rng):
    """Twice A @ B.T, exact: small integers in 16 bits, any in int8, whose sums are integers."""
    from dgnumba.layouts import lanes

    n, size, is_integer = 8, DTYPES[dtype].itemsize, dtype == "int8"
    columns = 32 // size
    low, high = (-128, 128) if is_integer else (-8, 9)
    a, b = (rng.integers(low, high, (rows, 128 // size)) for rows in (64, n))
    kind = np.int8 if is_integer else DTYPES[dtype].numpy
    tile = a[:, :columns].astype(kind)
    held = lanes.wgmma_a_fp8().gather(tile.view(np.uint8)) if is_integer else lanes.wgmma_a_bits16().gather(tile)
    registers = np.ascontiguousarray(held).view(np.uint32)
    b_codes = np.ascontiguousarray(b.astype(kind)).view(np.uint8)
    out = np.zeros((128, n // 2), np.uint32)
    emu.run(narrow_kernel(n, dtype, is_integer), 1, 128, (TensorMap.of(b_codes, (128, n), swizzle=128), registers, out),
            smem=1024 + n * 128 + 8, policy=policy)  # fmt: skip
    found = tile_of(out if is_integer else out.view(np.float32), n)
    expected = 2 * a[:, :columns].astype(np.int64) @ b[:, :columns].astype(np.int64).T
    assert (found.view(np.int32) == expected if is_integer else found == expected).all()
