"""Shared-memory swizzles: where TMA and wgmma put the 16-byte chunks of a row so that a column of chunks meets all banks.

    swizzle 128: 8 chunks a row, chunk c of row r lies at c ^ (r % 8)        row 0:  0 1 2 3 4 5 6 7
                                                                             row 1:  1 0 3 2 5 4 7 6
                                                                             row 2:  2 3 0 1 6 7 4 5   ...
    swizzle  64: 4 chunks a row, at c ^ (r / 2 % 4)
    swizzle  32: 2 chunks a row, at c ^ (r / 4 % 2)
    swizzle   0: chunks where they are

In all of them bits 4.. of the byte address are xored with bits 7..: the pattern is one of addresses, and repeats every 1024, 512 or 256
bytes, to which the tile must be aligned. Source: PTX ISA 9.0, "Swizzling modes"; CUDA driver API, CUtensorMapSwizzle.
"""

from __future__ import annotations

from typing import Any

CHUNK = 16
SWIZZLES = (0, 32, 64, 128)
ALIGNMENT = {0: 16, 32: 256, 64: 512, 128: 1024}
_MASK = {0: 0, 32: 1, 64: 3, 128: 7}


def swizzle(address: Any, mode: int) -> Any:
    """The byte address in shared memory of what lies at `address` of the unswizzled tile; its own inverse.

    address  bytes from a base aligned to `ALIGNMENT[mode]`; an integer or an integer array
    mode     bytes of a row: 0, 32, 64 or 128
    """
    return address ^ (((address >> 7) & _MASK[mode]) << 4)


def phase_mask(mode: int) -> int:
    """The bits of a row's number that matter: `row_phase` is (row * mode >> 7) & this."""
    return _MASK[mode]


def row_phase(row: Any, mode: int) -> Any:
    """What the chunk index is xored with in row `row` of a tile whose rows are `mode` bytes long."""
    return (row * mode >> 7) & _MASK[mode]


def chunk_address(row: Any, chunk: Any, mode: int) -> Any:
    """Bytes from the tile's base to chunk `chunk` of row `row`; rows are `mode` bytes long."""
    return row * mode + ((chunk ^ row_phase(row, mode)) << 4)


def largest(nbytes: int) -> int:
    """The widest swizzle whose row divides a row of `nbytes`: 128, 64 or 32, else 0."""
    return next((mode for mode in (128, 64, 32) if nbytes % mode == 0), 0)
