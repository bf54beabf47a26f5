"""Kernels that begin early: their prefetches run, and weights that the kernel before still writes are read as it leaves them."""

import numpy as np
import pytest
from cases import skinny, skinny_rs, swapped
from gpu.test_operations import both, same
from numba import cuda

import dgnumba
from dgnumba import api, config
from dgnumba.integers import u32, u64
from dgnumba.ptx import memory, prefetch, thread
from dgnumba.testing import assert_bits_equal

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def cupy():
    return pytest.importorskip("cupy")


@pytest.fixture(autouse=True)
def settings():
    yield
    config.set_pdl(False)


def prefetching(flat, box, source, out):
    """Ask for boxes inside, over the edge of and outside their tensors, for a span and a line; then read, as if nothing had been asked for."""
    i = u32(cuda.threadIdx.x)
    if i == 0:
        for step in range(4):
            prefetch.tensor_2d(flat, u32(64) * step, u32(3) * step)
            prefetch.tensor_3d(box, u32(64) * step, u32(3) * step, u32(step))
        prefetch.tensor_2d(flat, u32(0) - 16, u32(0) - 1)
        prefetch.bulk(memory.global_address(source), u32(1024))
    prefetch.line(memory.global_address(source) + u64(i) * 32)
    thread.syncwarp()
    out[i] = memory.load_global_f32(memory.global_address(source) + u64(i) * 4)


def test_prefetches_change_nothing(cupy, rng):
    flat, box = (rng.integers(0, 256, shape, dtype=np.uint8) for shape in ((8, 160), (2, 8, 160)))
    source = rng.standard_normal(256).astype(np.float32)
    args, maps = (flat, box, source, np.zeros(32, np.float32)), ((0, (64, 4), 0), (1, (64, 4, 2), 0))
    pairs = both(cupy, prefetching, 1, 32, args, maps=maps)
    same(pairs)
    assert (pairs[-1][1] == source[:32]).all()


N, K, ROUNDS = 512, 1024, 30
PLANS = [
    swapped(8, 64, 4, d_dtype="bfloat16"),
    swapped(8, 64, 3, block_k=512),
    swapped(8, 128, 4, split=2),
    skinny(8, 2, 4),
    skinny_rs(8, 2, 2),
    skinny_rs(16, 1, 1, block_n=64, split=2),
]


@pytest.mark.parametrize("chosen", PLANS, ids=lambda p: f"{p.kernel}-{p.name}".replace(" ", "-"))
def test_weights_that_the_kernel_before_writes(cupy, rng, chosen):
    """A product whose D is the next one's weights, with other weights each time: its bytes in bfloat16 are codes, none of them NaN.

    The first writes [8, N * K / 16] elements, small integers; the second takes the same bytes as [N, K]. What L2 brought too early would be the round
    before's.
    """
    tokens = 8
    width = N * K // (2 * tokens)
    a = cupy.zeros((tokens, 128), cupy.uint8)
    a[:, 0] = 0x38  # 1.0: so D is the first column of the weights, times its scale
    one = cupy.ones((1, tokens), cupy.float32).T
    columns = cupy.asarray(rng.integers(0, 6, (ROUNDS, width)) * 8 + 0x30, cupy.uint8)  # powers of two from 0.5 on, as codes
    writers = cupy.zeros((ROUNDS, width, 128), cupy.uint8)
    writers[:, :, 0] = columns
    ones = cupy.ones((-(-width // 128), 4), cupy.float32)[:, :1]
    x = cupy.asarray(rng.integers(0, 3, (tokens, K)) * 8 + 0x30, cupy.uint8)
    sfx = dgnumba.get_mn_major_tma_aligned_tensor(cupy.ones((tokens, K // 128), cupy.float32))
    sfw = cupy.ones((N // 128, K // 128), cupy.float32)
    weights = cupy.zeros((tokens, width), cupy.uint16)
    as_codes = weights.view(cupy.uint8).reshape(N, K)

    def chain():
        outs = cupy.zeros((ROUNDS, tokens, N), cupy.uint16)
        # nothing else between them: behind a kernel of another kind none begins early
        for writer, out in zip(writers, outs):
            api.fp8_gemm_nt((a, one), (writer, ones), weights)
            api.fp8_gemm_nt((x, sfx), (as_codes, sfw), out, plan=chosen)
        return outs.get()

    expected = chain()
    assert len({out.tobytes() for out in expected}) == ROUNDS, "weights differ from round to round"
    config.set_pdl(True)
    for _ in range(3):
        assert_bits_equal(chain(), expected)
