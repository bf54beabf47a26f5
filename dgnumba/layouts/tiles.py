"""Which output tile a block index means: bands of neighbouring tiles, so that what is in flight at one time shares operands in L2.

Tiles are taken in bands of `band` along the primary axis, all of the secondary axis inside a band, the primary index fastest:

    primary ->   0 1 | 2 3 | 4        band 2: order of the tiles
    secondary 0  0 1 | 6 7 | 12
              1  2 3 | 8 9 | 13
              2  4 5 |10 11| 14

CTAs of a cluster have neighbouring indices, hence neighbouring primary tiles; for that the primary count and the band are even.
"""

from __future__ import annotations

from math import gcd

from .._numba import device_function
from ..integers import u32


@device_function
def band_tile(index: u32, primary: u32, secondary: u32, band: int):  # type: ignore[no-untyped-def]
    """(primary, secondary) position of tile `index` among `primary` x `secondary` tiles, taken in bands of `band`."""
    per_band = secondary * band
    number = index // per_band
    first = number * band
    width = min(u32(band), primary - first)
    inside = index - number * per_band
    return first + inside % width, inside // width


def column_scales(block_n: int) -> int:
    """How many 128-column blocks of B's scales a tile of `block_n` columns can touch."""
    return 1 if 128 % block_n == 0 else (block_n + 128 - gcd(block_n, 128) + 127) // 128
