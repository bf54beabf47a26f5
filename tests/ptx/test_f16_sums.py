"""wgmma with float16 accumulators, and what is done with them: compiled, emulated, and against exact fractions."""

import itertools
import re
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda

from dgnumba import _numba, emu
from dgnumba.assemble import find_ptxas, ptxas
from dgnumba.emu import Fragment as Held
from dgnumba.emu.tensor_core import multiply_add_f16
from dgnumba.errors import AsyncError
from dgnumba.integers import u32, u64
from dgnumba.layouts import lanes
from dgnumba.layouts.descriptors import SmemDescriptor, TensorMap, low_word
from dgnumba.ptx import Imm, Registers, barrier, fragment, mbarrier, memory, packed, tma, unrolled, wgmma
from dgnumba.testing import assert_bits_equal

K, STEPS = 128, 4
SPREAD = (8, 24, 136, 256)
with_ptxas = pytest.mark.skipif(not _numba.HAVE_NUMBA_CUDA or find_ptxas() is None, reason="needs numba-cuda and ptxas")


def make(n, reads_too_early=False):
    """A kernel `(tmap_b, registers, start, out)`: start[64, n] + A @ B.T of 128 columns, in float16.

    tmap_b      uint8 [n, 128], a box of the whole, swizzle 128
    registers   uint32 [128, 16]: A's columns by `lanes.wgmma_a_fp8`, 32 at a time
    start, out  uint32 [128, n / 4]: accumulators by `lanes.wgmma_accumulator`, two a register
    """
    mma = wgmma.mma_rs_f16_for("float8_e4m3fn", "float8_e4m3fn", b=SmemDescriptor(swizzle=128))
    PAIRS, BYTES = n // 4, n * K

    @unrolled
    def load(address: u64, count: Imm) -> Registers(lambda sizes: sizes["count"]):
        return tuple(memory.load_global_u32_if(True, address + 4 * i) for i in range(count))

    @unrolled
    def store(registers: Registers, address: u64) -> None:
        for i in range(len(registers)):
            memory.store_global_u32_if(True, address + 4 * i, registers[i])

    @unrolled(tied="acc")
    def products(acc: Registers, frags: Registers, desc: u32) -> Registers:
        wgmma.fence()
        for step in range(STEPS):
            acc = mma(acc, frags[4 * step : 4 * step + 4], desc + 2 * step, 1)
        wgmma.commit()
        if reads_too_early:
            store(acc, u64(0))
        return wgmma.wait_s32(acc, 0)

    def kernel(tmap_b, registers, start, out):
        smem = (memory.shared_address(cuda.shared.array(0, np.uint8)) + 1023) // 1024 * 1024
        tid = u32(cuda.threadIdx.x)
        if tid == 0:
            mbarrier.init(smem + BYTES, 1)
            barrier.fence_mbarrier_init()
        cuda.syncthreads()
        if tid == 0:
            mbarrier.arrive_expect_tx(smem + BYTES, BYTES)
            tma.load_2d(smem, tmap_b, smem + BYTES, u32(0), u32(0))
        frags = load(memory.global_address(registers) + u64(tid) * 64, 16)
        acc = load(memory.global_address(start) + u64(tid) * (4 * PAIRS), PAIRS)
        mbarrier.wait(smem + BYTES, 0)
        store(products(acc, frags, low_word(smem)), memory.global_address(out) + u64(tid) * (4 * PAIRS))

    return kernel


TMAP = TensorMap.of(np.zeros((8, K), np.uint8), (K, 8), swizzle=128)
ARGTYPES = (TMAP, *(np.zeros((2, 2), np.uint32),) * 3)


def check_compiled(n):
    ptx, _ = _numba.compile_ptx(make(n), ARGTYPES, arch="sm_90a", threads=128)
    cubin = ptxas(ptx)
    found = re.findall(r"(wgmma\.mma_async\S+)\s+\{([^}]*)\}, \{([^}]*)\}, b, p, 1, 1;", ptx)
    assert [(name, len(acc.split(",")), len(a.split(","))) for name, acc, a in found] == [
        (f"wgmma.mma_async.sync.aligned.m64n{n}k32.f16.e4m3.e4m3", n // 4, 4)
    ] * STEPS
    assert (cubin.spill_stores, cubin.spill_loads, cubin.local_bytes, cubin.warnings) == (0, 0, 0, ())


@with_ptxas
@pytest.mark.parametrize("n", SPREAD)
def test_it_compiles(n):
    check_compiled(n)


@with_ptxas
@pytest.mark.full
@pytest.mark.parametrize("n", [n for n in range(8, 257, 8) if n not in SPREAD])
def test_every_width_compiles(n):
    check_compiled(n)


def registers_of(tile):
    """uint32 [128, n / 4] of a tile of float16 [64, n]."""
    return np.ascontiguousarray(lanes.wgmma_accumulator(tile.shape[1]).gather(tile)).view(np.uint32)


def operands_of(a, b, start):
    """The kernel's arguments for e4m3 [64, 128] and [n, 128] and float16 [64, n]: codes of b, registers of a, accumulators, and what they become."""
    codes = [np.ascontiguousarray(a.view(np.uint8)[:, 32 * s : 32 * s + 32]) for s in range(STEPS)]
    registers = np.hstack([np.ascontiguousarray(lanes.wgmma_a_fp8().gather(x)).view(np.uint32) for x in codes])
    out = np.full((128, len(b) // 4), 0xFFFFFFFF, np.uint32)
    return np.ascontiguousarray(b).view(np.uint8), np.ascontiguousarray(registers), registers_of(start), out


def emulate(a, b, start, policy, **more):
    """start + a @ b.T."""
    n = len(b)
    codes, *arrays = operands_of(a, b, start)
    tmap = TensorMap.of(codes, (K, n), swizzle=128)
    emu.run(make(n, **more), 1, 128, (tmap, *arrays), smem=1024 + n * K + 8, policy=policy)
    return lanes.wgmma_accumulator(n).scatter(arrays[-1].view(np.float16))


@pytest.mark.parametrize("n", [8, 40, 256])
def test_small_integers_are_exact(n, policy, rng):
    """Sums of up to 2^11, the largest integers that are all numbers of float16."""
    a, b = (rng.integers(-3, 4, (rows, K)).astype(np.float32) for rows in (64, n))
    start = rng.integers(-800, 801, (64, n)).astype(np.float16)
    assert np.abs(a).sum(axis=1).max() * 3 + 800 < 2**11
    found = emulate(a.astype(ml_dtypes.float8_e4m3fn), b.astype(ml_dtypes.float8_e4m3fn), start, policy)
    assert_bits_equal(found + np.float16(0), (start.astype(np.float64) + a @ b.T + 0.0).astype(np.float16))


def test_other_numbers_are_those_of_the_model(policy, rng):
    """Rounded in each of four steps, subnormal weights and results among them."""
    n = 24
    a = (rng.integers(-8, 8, (64, K)) / 256).astype(ml_dtypes.float8_e4m3fn)
    b = (rng.standard_normal((n, K)) * np.exp2(rng.uniform(-12, 6, (n, 1)))).astype(ml_dtypes.float8_e4m3fn)
    start = np.zeros((64, n), np.float16)
    acc = start
    for k in range(0, K, 32):
        acc = multiply_add_f16(acc, *(x[:, k : k + 32].astype(np.float32) for x in (a, b)), -6, -6)
    assert len(np.unique(acc)) > 500 and (np.abs(acc) < 2.0**-14).any()
    assert_bits_equal(emulate(a, b, start, policy), acc)


def test_accumulators_in_flight_are_not_to_be_read(policy):
    one = np.ones((64, K), ml_dtypes.float8_e4m3fn)
    with pytest.raises(AsyncError, match=r"wgmma\.mma_rs_f16 used while in flight"):
        emulate(one, one[:8], np.zeros((64, 8), np.float16), policy, reads_too_early=True)


# What is done with them


def exact(bits):
    return Fraction(float(np.array(bits, np.uint16).view(np.float16)))


def nearest(x):
    """The bits of the float16 nearest to a number that is not 0, ties to even: found by walking, not by a conversion."""
    sign, x = (0x8000, -x) if x < 0 else (0, x)
    low, high = 0, 0x7C00  # as numbers, low <= x < high; in units of the last bit 0x7c00 stands for 2^16
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if exact(middle) <= x else (low, middle)
    if x >= 2**16:
        return sign | 0x7C00
    above = Fraction(2) ** 16 if high == 0x7C00 else exact(high)
    below = exact(low)
    down, up = x - below, above - x
    return sign | (low if down < up or (down == up and low % 2 == 0) else high)


FINITE = st.integers(0, 0xFFFF).filter(lambda bits: bits & 0x7C00 != 0x7C00)


def fma(a, b, c):
    """Of the low halves; the high ones are others."""
    found = int(packed.fma_f16x2(u32(a | 0x3C000000), u32(b | 0x40000000), u32(c | 0xC0000000)))
    assert found >> 16 == 0, "1 * 2 - 2"
    return found & 0xFFFF


@settings(max_examples=300)
@given(FINITE, FINITE, FINITE)
def test_a_sum_and_product_are_rounded_once(a, b, c):
    sum_ = exact(a) * exact(b) + exact(c)
    found = fma(a, b, c)
    assert found == nearest(sum_) if sum_ else found & 0x7FFF == 0


def test_where_float64_rounds_too():
    """Sums of more than 53 bits; and what lies at a tie of float16, and a last bit of the product beside it: of every exponent of the addend."""
    most = 0
    for exponent, last in itertools.product(range(31), (0, 1, 0x3FE, 0x3FF)):
        c = exponent << 10 | last
        few = itertools.product((0x0001, 0x0002, 0x03FF, 0x1000, 0x3C01, 0x3BFF), (0x0001, 0x8001, 0x3C00, 0xB800, 0x13FF))
        power = max(exponent, 1) - 26  # of half the addend's last bit
        first = 15 if power >= -14 else 2
        tie = first << 10, power + 30 - first << 10
        assert exact(tie[0]) * exact(tie[1]) == Fraction(2) ** power
        for a, b in (*few, *((tie[0], tie[1] + off) for off in (-1, 0, 1))):
            sum_ = exact(a) * exact(b) + exact(c)
            if sum_:
                assert fma(a, b, c) == nearest(sum_), (hex(a), hex(b), hex(c))
                most = max(most, (abs(sum_.numerator)).bit_length())
    assert most > 53


@pytest.mark.parametrize(
    "a, b, c, expected",
    [
        (0x7BFF, 0x3C00, 0x4C00, 0x7C00),  # 65504 + 16, a tie with what is no number
        (0x7BFF, 0x3C00, 0x4BFF, 0x7BFF),  # a little less
        (0x7BFF, 0x7BFF, 0xFBFF, 0x7C00),
        (0xFBFF, 0x7BFF, 0x7BFF, 0xFC00),
        (0x0001, 0x3800, 0x0000, 0x0000),  # half the least number: a tie, to even
        (0x0001, 0x3801, 0x0000, 0x0001),
        (0x0003, 0x3800, 0x0000, 0x0002),
        (0x8001, 0x3800, 0x0000, 0x8000),
        (0x03FF, 0x3C00, 0x0001, 0x0400),  # subnormal numbers, to the least normal one
        (0x8000, 0x3C00, 0x8000, 0x8000),
        (0x8000, 0x3C00, 0x0000, 0x0000),
        (0x7C00, 0x3C00, 0x3C00, 0x7C00),
        (0x7C00, 0x3C00, 0xFC00, 0x7FFF),
        (0x7C00, 0x0000, 0x3C00, 0x7FFF),
        (0x3C00, 0x3C00, 0xFE01, 0x7FFF),
    ],
)
def test_known_sums_and_products(a, b, c, expected):
    assert fma(a, b, c) == expected


def both(operation, *args):
    """The registers that an operation gives in the emulator, and those that its own body gives."""
    found = []

    def kernel():
        for function in (operation, operation.operation.body):
            held = [Held(x) if isinstance(x, np.ndarray) else x for x in args]
            found.append(np.array([int(x) for x in function(*held)], np.uint32))

    emu.run(kernel, 1, 1, ())
    return found


def words(array):
    """A tuple of registers."""
    return tuple(u32(int(x)) for x in array)


@pytest.mark.parametrize("registers", [2, 4, 34, 64])
def test_promotion_in_float16(registers, rng):
    """The twin, the body, and one rounding of each element's row's scale times the sum of a group, added to the total."""
    scales = 0x3555, 0x9E01
    rows = words(np.array(scales, np.uint32) * np.uint32(0x10001))
    is_second = lanes.wgmma_accumulator(max(8, -(-4 * registers // 8) * 8)).row[0] == 8  # of the two rows that a lane's elements are of
    held = rng.integers(0, 2**32, (2, registers), dtype=np.uint64).astype(np.uint32)
    for total, acc in (held, held & 0x83FF03FF):
        twin, body = both(fragment.promote_f16x2, total, acc, rows)
        plain, _ = both(fragment.promote_f16x2, words(total), words(acc), rows)
        assert_bits_equal(twin, body)
        assert_bits_equal(plain, twin)
        for x, c, is_of, found in zip(acc.view(np.uint16), total.view(np.uint16), is_second, twin.view(np.uint16)):
            if max(x & 0x7C00, c & 0x7C00) < 0x7C00:
                sum_ = exact(x) * exact(scales[int(is_of)]) + exact(c)
                assert found == nearest(sum_) if sum_ else found & 0x7FFF == 0


@pytest.mark.parametrize("factor", [256.0, 2.0**-8, 3.1415927, 2.0**120])
def test_float16_as_scaled_float32(factor, rng):
    """The twin, the body, and the float32 product: two for each register, its low half first; subnormal numbers are normal there."""
    pairs = np.concatenate(
        [rng.integers(0, 2**32, 24, dtype=np.uint64).astype(np.uint32), np.array([0x83FF0001, 0x80000000, 0xFBFF7BFF], np.uint32)]
    )
    pairs = np.where(pairs & 0x7C00 == 0x7C00, pairs ^ 0x4000, pairs)
    pairs = np.where(pairs >> 16 & 0x7C00 == 0x7C00, pairs ^ 0x40000000, pairs).astype(np.uint32)
    twin, body = both(fragment.scaled_f16x2_bits, pairs, np.float32(factor))
    plain, _ = both(fragment.scaled_f16x2_bits, words(pairs), np.float32(factor))
    with np.errstate(over="ignore"):
        expected = (pairs.view(np.float16).astype(np.float64) * float(np.float32(factor))).astype(np.float32)
    for found in (twin, body, plain):
        assert_bits_equal(found.view(np.float32), expected)


@with_ptxas
def test_instructions_of_promotion():
    """One fma for two elements, none more; two conversions and two products for each register on the way out."""

    def kernel(x, y):
        at = memory.global_address(x)
        held = memory.load_global_v4(at) + memory.load_global_v4(at + 16)
        total = fragment.promote_f16x2(held, held, (u32(7), u32(9)))
        out = fragment.scaled_f16x2_bits(total, y)
        memory.store_global_v4_if(True, at, out[:4])
        memory.store_global_v4_if(True, at + 16, out[4:8])
        memory.store_global_v4_if(True, at + 32, out[8:12])
        memory.store_global_v4_if(True, at + 48, out[12:])

    ptx, _ = _numba.compile_ptx(kernel, (np.zeros(4, np.uint32), np.float32(0)), arch="sm_90a", threads=128)
    counts = [len(re.findall(text, ptx)) for text in (r"fma\.rn\.f16x2", r"cvt\.f32\.f16", r"mul\.(?:rn\.)?f32", r"fma\.rn\.f32")]
    assert counts == [8, 16, 16, 0]
