"""Scale factors in the 128x4 tiles of block-scaled tensor cores (sm_100 and later, cuBLASLt).

A tile holds the scales of 128 rows and 4 K-blocks in 512 bytes. Row ``32 i + j``, K-block ``c`` is
byte ``16 j + 4 i + c``: a 16-byte line j holds rows j, 32 + j, 64 + j, 96 + j::

    byte      0   1   2   3    4 ... 7     8 ... 11    12 ... 15
    line 0   r0c0 c1  c2  c3   r32c0 ...   r64c0 ...   r96c0 ...
    line 1   r1c0 c1  c2  c3   r33c0 ...   r65c0 ...   r97c0 ...
    ...
    line 31  r31c0 ...         r63c0 ...   r95c0 ...   r127c0 ...

Tiles follow each other along K first, then along the rows. What lies beyond the scales is zero.
Source: cuBLAS documentation, "1D block scaling factors layout".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..errors import DTypeError, ProblemError
from ..xp import as_array, device_of, namespace

TILE_ROWS, TILE_COLUMNS = 128, 4


class ScaleTiles128x4:
    """The 128x4 layout of one-byte scales (UE8M0, e4m3): `pack` and `unpack` invert each other; picture: this module.

    >>> import numpy as np
    >>> flat = TILES_128X4.pack(np.arange(128, dtype=np.uint8)[:, None].repeat(4, 1))
    >>> flat[:20].tolist()
    [0, 0, 0, 0, 32, 32, 32, 32, 64, 64, 64, 64, 96, 96, 96, 96, 1, 1, 1, 1]
    """

    name = "128x4"

    def packed_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """``[..., bytes]`` for scales ``[..., rows, k_blocks]``."""
        if len(shape) < 2:
            raise ProblemError(f"sf: expected [..., rows, k_blocks], got {list(shape)}")
        *lead, rows, columns = (int(n) for n in shape)
        return (*lead, -(-rows // TILE_ROWS) * -(-columns // TILE_COLUMNS) * TILE_ROWS * TILE_COLUMNS)

    def pack(self, sf: Any) -> Any:
        """One-byte scales ``[..., rows, k_blocks]`` as ``[..., bytes]`` of the same type, whole tiles."""
        sf = self._one_byte(sf, "sf")
        *lead, length = self.packed_shape(sf.shape)
        rows, columns = sf.shape[-2:]
        xp = namespace(sf)
        row_tiles, column_tiles = -(-rows // TILE_ROWS), -(-columns // TILE_COLUMNS)
        with device_of(sf):
            padded = xp.zeros((*lead, row_tiles * TILE_ROWS, column_tiles * TILE_COLUMNS), xp.uint8)
            padded[..., :rows, :columns] = sf.view(xp.uint8)
            tiles = padded.reshape(math.prod(lead), row_tiles, 4, 32, column_tiles, TILE_COLUMNS).transpose(0, 1, 4, 3, 2, 5)
            return xp.ascontiguousarray(tiles).reshape(*lead, length).view(sf.dtype)

    def unpack(self, packed: Any, shape: Sequence[int]) -> Any:
        """Inverse of `pack`: the scales of `shape`, C-contiguous."""
        packed = self._one_byte(packed, "packed")
        *lead, rows, columns = (int(n) for n in shape)
        expected = self.packed_shape(shape)
        if packed.size != math.prod(expected):
            raise ProblemError(f"packed: expected {list(expected)} bytes for scales {list(shape)}, got {list(packed.shape)}")
        xp = namespace(packed)
        row_tiles, column_tiles = -(-rows // TILE_ROWS), -(-columns // TILE_COLUMNS)
        with device_of(packed):
            tiles = xp.ascontiguousarray(packed).view(xp.uint8).reshape(math.prod(lead), row_tiles, column_tiles, 32, 4, TILE_COLUMNS)
            whole = tiles.transpose(0, 1, 4, 3, 2, 5).reshape(*lead, row_tiles * TILE_ROWS, column_tiles * TILE_COLUMNS)
            return xp.ascontiguousarray(whole[..., :rows, :columns]).view(packed.dtype)

    @staticmethod
    def offset(row: Any, k_block: Any, k_blocks: Any) -> Any:
        """Byte of the scale of `row` and `k_block`; plain integer arithmetic, so that a kernel can ask too."""
        tile = (row // TILE_ROWS) * ((k_blocks + TILE_COLUMNS - 1) // TILE_COLUMNS) + k_block // TILE_COLUMNS
        return tile * (TILE_ROWS * TILE_COLUMNS) + 16 * (row % 32) + 4 * (row % TILE_ROWS // 32) + k_block % TILE_COLUMNS

    @staticmethod
    def _one_byte(sf: Any, argument: str) -> Any:
        view = as_array(sf, argument)
        if view.array.dtype.itemsize != 1:
            raise DTypeError(f"{argument}: expected one-byte scales (float8_e8m0fnu, float8_e4m3fn or their bytes), got {view.dtype_name}")
        return view.array


TILES_128X4 = ScaleTiles128x4()
