"""The raster covers every tile once, keeps a cluster's tiles beside one another, and is the same in the emulator."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import cuda

from dgnumba import emu
from dgnumba.integers import u32
from dgnumba.layouts.tiles import band_tile

plain = getattr(band_tile, "py_func", band_tile)
extent = st.integers(1, 60)


def order(primary, secondary, band):
    return [tuple(int(x) for x in plain(u32(i), u32(primary), u32(secondary), band)) for i in range(primary * secondary)]


@given(extent, extent, st.integers(1, 33))
def test_every_tile_comes_once(primary, secondary, band):
    tiles = order(primary, secondary, band)
    assert sorted(tiles) == [(p, s) for p in range(primary) for s in range(secondary)]


@given(st.integers(1, 30), extent, st.sampled_from([2, 4, 8, 16]))
def test_a_cluster_of_two_shares_its_secondary_tile(half, secondary, band):
    tiles = order(2 * half, secondary, band)
    for (p0, s0), (p1, s1) in zip(tiles[::2], tiles[1::2]):
        assert (p1, s1) == (p0 + 1, s0)


@given(extent, extent, st.integers(1, 33))
def test_what_is_in_flight_together_is_near(primary, secondary, band):
    """Any run of tiles spans few bands: the primary positions of `band` successive tiles lie within two bands."""
    tiles = order(primary, secondary, band)
    for start in range(len(tiles)):
        positions = [p for p, _ in tiles[start : start + band]]
        assert max(positions) // band - min(positions) // band <= 1 or secondary == 1


def test_it_is_the_picture_in_the_docstring():
    index = {tile: i for i, tile in enumerate(order(5, 3, 2))}
    assert [[index[p, s] for p in range(5)] for s in range(3)] == [[0, 1, 6, 7, 12], [2, 3, 8, 9, 13], [4, 5, 10, 11, 14]]


@pytest.mark.parametrize("primary, secondary, band", [(7, 5, 4), (1, 9, 16), (16, 1, 16), (33, 3, 16)])
def test_the_device_function_says_the_same_in_the_emulator(primary, secondary, band):
    out = np.zeros((primary * secondary, 2), np.uint32)

    def kernel(out):
        for i in range(cuda.threadIdx.x, out.shape[0], 32):
            first, second = band_tile(u32(i), u32(primary), u32(secondary), band)
            out[i, 0] = first
            out[i, 1] = second

    emu.run(kernel, 1, 32, (out,))
    assert order(primary, secondary, band) == [tuple(row) for row in out.tolist()]


def test_F21_large_counts_do_not_wrap():
    primary, secondary = 2**16, 2**15
    last = plain(u32(primary * secondary - 1), u32(primary), u32(secondary), 16)
    assert tuple(map(int, last)) == (primary - 1, secondary - 1)
