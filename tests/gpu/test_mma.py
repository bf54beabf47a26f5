"""cp.async, ldmatrix and mma.sync on a GPU against their emulation: the same kernel, run in both worlds."""

import ml_dtypes
import numpy as np
import pytest
from gpu.test_operations import both, same
from numba import cuda
from ptx.mma_kernel import FLOATS, SINGLE, make, operands, run_arguments

from dgnumba.integers import u32, u64
from dgnumba.ptx import matrix, memory

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def cupy():
    return pytest.importorskip("cupy")


@pytest.mark.parametrize("dtype", SINGLE)
def test_products_of_small_integers(cupy, rng, dtype):
    """Sums that are exact: equal bits, whatever the tensor core does with others."""
    for _ in range(20):
        same(both(cupy, make(dtype), 1, 32, run_arguments(*operands(rng, dtype), dtype), smem=1024))


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_rounded_product_is_within_its_truncation(cupy, rng, dtype):
    """One step adds 33 terms at most; each, and the sum, may be cut below bit 2^-13 (FP8) or 2^-23 of the largest."""
    kind = getattr(ml_dtypes, dtype, None) or np.dtype(dtype)
    worst = 0.0
    for _ in range(20):
        a, b, _ = operands(rng, dtype)
        a, b = rng.standard_normal(a.shape).astype(kind).astype(np.float64), rng.standard_normal(b.shape).astype(kind).astype(np.float64)
        c = rng.standard_normal((16, 8)).astype(np.float32)
        args = (*run_arguments(a, b, np.zeros((16, 8)), dtype)[:2], c, np.zeros((16, 8), np.float32))
        emulated, real = both(cupy, make(dtype), 1, 32, args, smem=1024)[3]
        largest = np.maximum(np.abs(a[:, None] * b[None]).max(axis=2), np.abs(c))
        unit = 2.0 ** -(13 if dtype == "float8_e4m3fn" else 23)
        worst = max(worst, float((np.abs(emulated - real.astype(np.float64)) / largest / unit).max()))
    assert worst <= a.shape[1] + 2
    print(f"{dtype}: {worst:.2f} units of the largest term")


def transposed(words, out):
    smem = (memory.shared_address(cuda.shared.array(0, np.uint8)) + 127) // 128 * 128
    lane = cuda.threadIdx.x
    for word in range(4):
        memory.store_shared_u32(smem + u32(lane) * 16 + 4 * u32(word), words[lane, word])
    cuda.syncwarp()
    x2, x4 = matrix.ldmatrix_x2_trans(smem + u32(lane) * 16), matrix.ldmatrix_x4_trans(smem + u32(lane) * 16)
    out[lane, 0], out[lane, 1] = u64(x2[0]), u64(x2[1])
    out[lane, 2], out[lane, 3], out[lane, 4], out[lane, 5] = u64(x4[0]), u64(x4[1]), u64(x4[2]), u64(x4[3])


def test_ldmatrix_transposed(cupy, rng):
    words = rng.integers(0, 2**32, (32, 4), dtype=np.uint64).astype(np.uint32)
    same(both(cupy, transposed, 1, 32, (words, np.zeros((32, 6), np.uint64)), smem=1024))
