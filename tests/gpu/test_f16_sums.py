"""wgmma with float16 accumulators, and what is done with them, on a GPU against its own emulation."""

import ml_dtypes
import numpy as np
import pytest
from gpu.test_operations import both, same
from numba import cuda
from ptx.test_f16_sums import K, make, operands_of

from dgnumba.integers import u32
from dgnumba.ptx import convert, fragment, packed

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def cupy():
    return pytest.importorskip("cupy")


def of_float16(a, b, c, sums, wide):
    i = cuda.grid(1)
    if i < a.size:
        total = fragment.promote_f16x2((u32(c[i]), u32(a[i])), (u32(a[i]), u32(c[i])), (u32(b[i]), u32(b[i])))
        bits = fragment.scaled_f16x2_bits(total, np.float32(3.1415927))
        sums[i, 0], sums[i, 1], sums[i, 2] = packed.fma_f16x2(u32(a[i]), u32(b[i]), u32(c[i])), total[0], total[1]
        for j in range(4):
            wide[i, j] = convert.bits_to_f32(bits[j])


def finite(words):
    """Pairs of float16 with the same bits, but for those of infinities and NaN."""
    for low in (0x7C00, 0x7C000000):
        words = np.where(words & low == low, words ^ (low & 0x40004000), words)
    return words.astype(np.uint32)


def test_sums_and_products(cupy, rng):
    """Of finite numbers: any, near each other, sums that cancel, subnormal ones."""
    n = 40000
    a, b, c = rng.integers(0, 2**32, (3, n), dtype=np.uint64).astype(np.uint32)
    b[::3] = b[::3] & 0x83FF83FF | 0x3C003C00
    c[::6] = a[::6] ^ 0x80008000
    a[1::4] &= 0x83FF83FF
    words = [finite(x) for x in (a, b, c)]
    same(both(cupy, of_float16, -(-n // 256), 256, [*words, np.zeros((n, 3), np.uint32), np.zeros((n, 4), np.float32)]))


@pytest.mark.parametrize("n", [8, 24, 128, 256])
def test_wgmma_with_float16_accumulators(cupy, rng, n):
    """The emulator's bits: four steps, added to random numbers, of weights as the INT4 kernel has them."""
    a = (rng.integers(-8, 8, (64, K)) / 256).astype(ml_dtypes.float8_e4m3fn)
    b = (rng.standard_normal((n, K)) * 50).astype(ml_dtypes.float8_e4m3fn)
    codes, registers, start, out = operands_of(a, b, (rng.standard_normal((64, n)) * 20).astype(np.float16))
    pairs = both(cupy, make(n), 1, 128, [codes, registers, start, out], smem=1024 + n * K + 8, maps=[(0, (K, n), 128)])
    same(pairs)
    assert (pairs[-1][1] != 0xFFFFFFFF).any()
