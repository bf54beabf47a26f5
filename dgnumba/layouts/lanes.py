"""Who holds what: the elements of a tile in the registers of a warp or warpgroup.

A `LaneMap` gives row and column for (lane, register element) as integer arrays; it is a bijection onto its tile. The kernels' addresses, the
emulator's instructions and the pictures all ask the same maps. Sources: PTX ISA 9.0, "Register fragments for wgmma", "mma.m16n8k16", "mma.m16n8k32",
"mma.m16n8k64", "ldmatrix", "stmatrix".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class LaneMap:
    """Element `i` of lane `l` is at (row[l, i], col[l, i]) of a tile of `shape`."""

    name: str
    shape: tuple[int, int]
    row: IntArray
    col: IntArray

    def __post_init__(self) -> None:
        for index in (self.row, self.col):
            index.flags.writeable = False

    @property
    def lanes(self) -> int:
        """How many lanes hold the tile: a warp's 32 or a warpgroup's 128."""
        return int(self.row.shape[0])

    def gather(self, tile: NDArray[np.generic]) -> NDArray[np.generic]:
        """[lanes, elements] of what each lane holds of `tile`."""
        return tile[self.row, self.col]

    def scatter(self, held: NDArray[np.generic]) -> NDArray[np.generic]:
        """The tile of which `held` [lanes, elements] is what each lane holds; the inverse of `gather`."""
        tile = np.empty(self.shape, held.dtype)
        tile[self.row, self.col] = held
        return tile


def _grid(lanes: int, elements: int) -> tuple[IntArray, IntArray, IntArray]:
    """Warp, lane in the warp, and element index, as [lanes, elements] arrays."""
    thread, i = np.meshgrid(np.arange(lanes), np.arange(elements), indexing="ij")
    return thread // 32, thread % 32, i


@cache
def wgmma_accumulator(n: int) -> LaneMap:
    """The 64 x n accumulator of wgmma: 128 lanes, n/2 registers.

    Register 4j + {0, 1} is row 16 warp + lane/4, columns 8j + 2(lane%4) + {0, 1}; register 4j + {2, 3} the same columns, 8 rows lower.
    """
    warp, lane, i = _grid(128, n // 2)
    return LaneMap("WGMMA_ACCUMULATOR", (64, n), 16 * warp + lane // 4 + 8 * (i % 4 // 2), 8 * (i // 4) + 2 * (lane % 4) + i % 2)


@cache
def wgmma_a_fp8() -> LaneMap:
    """The 64 x 32 FP8 operand A of wgmma in registers: 128 lanes, four registers of four bytes.

    Byte b of register r is row 16 warp + lane/4 + 8 (r%2), column 16 (r/2) + 4 (lane%4) + b.
    """
    warp, lane, i = _grid(128, 16)
    return LaneMap("WGMMA_A_FP8", (64, 32), 16 * warp + lane // 4 + 8 * (i // 4 % 2), 16 * (i // 8) + 4 * (lane % 4) + i % 4)


@cache
def wgmma_a_bits16() -> LaneMap:
    """The 64 x 16 operand A of wgmma in registers, elements of 16 bits: 128 lanes, four registers of two. A warp's 16 rows are mma.sync's m16n8k16.

    Element i of register r is row 16 warp + lane/4 + 8 (r%2), column 8 (r/2) + 2 (lane%4) + i.
    """
    warp, lane, i = _grid(128, 8)
    return LaneMap("WGMMA_A_BITS16", (64, 16), 16 * warp + lane // 4 + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * (lane % 4) + i % 2)


@cache
def matrix_8x8() -> LaneMap:
    """One 8x8 matrix of 16-bit elements of ldmatrix and stmatrix: 32 lanes, two elements; lane holds row lane/4, columns 2(lane%4) + {0, 1}."""
    _, lane, i = _grid(32, 2)
    return LaneMap("MATRIX_8X8", (8, 8), lane // 4, 2 * (lane % 4) + i)


def quad_row(lane: Any) -> Any:
    """Of sixteen rows of a transposed tile the first of the four that `ptx.transpose.quads` gives a lane: 0, 8, 4, 12 for each four lanes.

    It is of the kind of `lane`: an integer, an array, or a register.
    """
    return lane % 2 * 8 + lane // 2 % 2 * 4


@cache
def token_quads() -> LaneMap:
    """Eight tokens of sixteen rows of a transposed tile, as they are stored: 32 lanes, four elements; token lane/4, rows `quad_row` to that + 3."""
    _, lane, i = _grid(32, 4)
    return LaneMap("TOKEN_QUADS", (8, 16), lane // 4 + 0 * i, quad_row(lane) + i)


@cache
def mma_accumulator() -> LaneMap:
    """The 16 x 8 accumulator of mma.sync: 32 lanes, four registers.

    Registers 0 and 1 are row lane/4, columns 2(lane%4) + {0, 1}; registers 2 and 3 the same columns, 8 rows lower.
    """
    _, lane, i = _grid(32, 4)
    return LaneMap("MMA_ACCUMULATOR", (16, 8), lane // 4 + 8 * (i // 2), 2 * (lane % 4) + i % 2)


@cache
def mma_a(bits: int) -> LaneMap:
    """The operand A of mma.sync, 16 rows of 32 bytes: 32 lanes, four registers of e = 32 / bits elements.

    Element b of register r is row lane/4 + 8 (r%2), column 4e (r/2) + e (lane%4) + b.
    """
    e = 32 // bits
    _, lane, i = _grid(32, 4 * e)
    r = i // e
    return LaneMap("MMA_A", (16, 8 * e), lane // 4 + 8 * (r % 2), 4 * e * (r // 2) + e * (lane % 4) + i % e)


@cache
def mma_b(bits: int) -> LaneMap:
    """The operand B of mma.sync as rows of N, 8 of 32 bytes: 32 lanes, two registers of e = 32 / bits elements.

    Element b of register r is row (of N) lane/4, column (of K) 4e r + e (lane%4) + b.
    """
    e = 32 // bits
    _, lane, i = _grid(32, 2 * e)
    return LaneMap("MMA_B", (8, 8 * e), lane // 4 + 0 * i, 4 * e * (i // e) + e * (lane % 4) + i % e)
