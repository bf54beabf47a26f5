"""Swizzles: bijections, equal to the pictures of the PTX ISA, and to one another in every form that the kernels use."""

import numpy as np
import pytest

from dgnumba.integers import u32
from dgnumba.layouts import swizzle as s


@pytest.mark.parametrize("mode", s.SWIZZLES)
def test_it_is_a_bijection_and_its_own_inverse(mode):
    address = np.arange(8192)
    swizzled = s.swizzle(address, mode)
    assert sorted(swizzled.tolist()) == address.tolist()
    assert (s.swizzle(swizzled, mode) == address).all()
    assert (swizzled % s.CHUNK == address % s.CHUNK).all(), "chunks of 16 bytes stay whole"
    if mode:
        assert (swizzled // mode == address // mode).all(), "a row stays a row"
        repeat = s.ALIGNMENT[mode]
        assert (s.swizzle(address + repeat, mode) == swizzled + repeat).all()
    else:
        assert (swizzled == address).all()


# CUDA driver API / PTX ISA: chunk of 16 bytes found at each place, row by row
PICTURES = {
    128: [[0, 1, 2, 3, 4, 5, 6, 7], [1, 0, 3, 2, 5, 4, 7, 6], [2, 3, 0, 1, 6, 7, 4, 5], [3, 2, 1, 0, 7, 6, 5, 4],
          [4, 5, 6, 7, 0, 1, 2, 3], [5, 4, 7, 6, 1, 0, 3, 2], [6, 7, 4, 5, 2, 3, 0, 1], [7, 6, 5, 4, 3, 2, 1, 0]],
    64: [[0, 1, 2, 3], [0, 1, 2, 3], [1, 0, 3, 2], [1, 0, 3, 2], [2, 3, 0, 1], [2, 3, 0, 1], [3, 2, 1, 0], [3, 2, 1, 0]],
    32: [[0, 1], [0, 1], [0, 1], [0, 1], [1, 0], [1, 0], [1, 0], [1, 0]],
}  # fmt: skip


@pytest.mark.parametrize("mode", PICTURES)
def test_it_is_the_picture(mode):
    per_row = mode // s.CHUNK
    for row, chunks in enumerate(PICTURES[mode]):
        for place, chunk in enumerate(chunks):
            assert s.swizzle(row * mode + chunk * s.CHUNK, mode) == row * mode + place * s.CHUNK
            assert s.chunk_address(row, chunk, mode) == row * mode + place * s.CHUNK
    assert len(PICTURES[mode]) * per_row * s.CHUNK == s.ALIGNMENT[mode]


@pytest.mark.parametrize("mode", s.SWIZZLES)
def test_every_form_says_the_same(mode):
    rows, chunks = np.divmod(np.arange(64 * max(mode, 16) // 16), max(mode, 16) // 16)
    if mode:
        assert (s.chunk_address(rows, chunks, mode) == s.swizzle(rows * mode + chunks * 16, mode)).all()
        assert (s.row_phase(rows, mode) == (rows * mode >> 7) & s.phase_mask(mode)).all()
        assert s.row_phase(u32(5), mode) == s.row_phase(5, mode)


def test_the_widest_swizzle_that_divides_a_row():
    expected = {32: 32, 64: 64, 96: 32, 128: 128, 160: 32, 192: 64, 256: 128, 288: 32, 352: 32, 384: 128, 16: 0, 48: 0, 0: 128}
    assert {n: s.largest(n) for n in expected} == expected


@pytest.mark.parametrize("mode", [32, 64, 128])
def test_a_column_of_chunks_meets_every_bank(mode):
    """Eight rows of one chunk column, read together, lie in eight different 16-byte banks of a 128-byte line."""
    for chunk in range(mode // 16):
        banks = {s.chunk_address(row, chunk, mode) % 128 // 16 for row in range(8)}
        assert len(banks) == 8
