"""Results turned between lanes: an 8x8 matrix, the lanes that exchange, and four neighbouring rows of a token in each lane."""

import numpy as np
import pytest
from numba import cuda

from dgnumba import emu
from dgnumba.errors import DivergenceError, OutOfBoundsError
from dgnumba.integers import u32, u64
from dgnumba.layouts.lanes import matrix_8x8, token_quads
from dgnumba.ptx import thread, transpose


def pairs_of(held):
    """Registers of two elements of 16 bits each: [lanes, 2] -> [lanes]."""
    return np.ascontiguousarray(held.astype(np.uint16)).view(np.uint32).ravel()


def test_a_matrix_is_transposed(rng):
    def kernel(words, out):
        lane = cuda.threadIdx.x
        out[lane] = transpose.movmatrix(u32(words[lane]))

    matrix, out = rng.permutation(1 << 16)[:64].reshape(8, 8), np.zeros(32, np.uint32)
    emu.run(kernel, 1, 32, (pairs_of(matrix_8x8().gather(matrix)), out))
    assert (out == pairs_of(matrix_8x8().gather(matrix.T))).all()


@pytest.mark.parametrize("mask", [1, 2, 16, 31])
def test_lanes_exchange(mask):
    def kernel(out):
        out[cuda.threadIdx.x] = transpose.shfl_bfly(u32(cuda.threadIdx.x) + 100, mask)

    out = np.zeros(64, np.uint32)
    emu.run(kernel, 1, 64, (out,))
    assert out.tolist() == [100 + (lane ^ mask) for lane in range(64)]


def test_quads_are_four_rows_of_a_token(rng):
    """Rows of sixteen by eight tokens, as a wgmma's accumulator has them, and as they are stored."""

    def kernel(low, high, out):
        lane = u32(cuda.threadIdx.x)
        first, second = transpose.quads(u32(low[lane]), u32(high[lane]), lane % 2 == 1)
        out[lane, 0], out[lane, 1] = first, second

    tile, out = rng.permutation(1 << 16)[:128].reshape(16, 8), np.zeros((32, 2), np.uint32)
    emu.run(kernel, 1, 32, (*(pairs_of(matrix_8x8().gather(half)) for half in (tile[:8], tile[8:])), out))
    assert (out.view(np.uint16) == token_quads().gather(tile.T)).all()


def test_eight_bytes_are_stored_where_they_are_wanted():
    def kernel(at):
        lane = u32(cuda.threadIdx.x)
        transpose.store_global_v2_if(lane % 2 == 0, at + u64(lane) * 8, (lane, lane + 100))

    out = np.zeros((32, 2), np.uint32)
    emu.run(kernel, 1, 32, (u64(out.ctypes.data),), arrays=[out])
    assert out.tolist() == [[lane, lane + 100] if lane % 2 == 0 else [0, 0] for lane in range(32)]
    with pytest.raises(OutOfBoundsError, match="multiple of 8"):
        emu.run(kernel, 1, 32, (u64(out.ctypes.data) + 4,), arrays=[out])


def test_less_than_a_warp_is_refused():
    def alone(out):
        if cuda.threadIdx.x == 0:
            out[0] = transpose.movmatrix(u32(0))
        else:
            thread.syncwarp()

    def few(out):
        out[cuda.threadIdx.x] = transpose.shfl_bfly(u32(0), 1)

    with pytest.raises(DivergenceError):
        emu.run(alone, 1, 32, (np.zeros(32, np.uint32),))
    with pytest.raises(DivergenceError, match="expected a warp of 32 lanes, got 16"):
        emu.run(few, 1, 16, (np.zeros(32, np.uint32),))
