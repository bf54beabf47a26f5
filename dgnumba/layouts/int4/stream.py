"""The form in which the kernels read 4-bit weights: a stream of records, each 64 rows by 128 of K, in the order of the tensor core's registers.

A warpgroup's wgmma takes 64 rows as four warps of 16 (`layouts.lanes.wgmma_a_fp8`, `wgmma_a_bits16`), and so does ``mma.sync`` warp by
warp: a record serves both. Thread ``t = 32 warp + 4 q + p`` finds its codes of 64 columns side by side in 16 bytes::

    record   words [2 halves of 64 columns][128 threads][16 bytes]     4096 bytes
             scales [128 / group][4 warps][8 q][rows q and q + 8]      of the scales' type
             zeros  likewise, one byte each                            where there are zero points
             rests  likewise, float32                                  where they are floats: rint(z) - z

    order "bits16" (BF16, FP16 activations): word j is the step of 16 columns from 16 j on
        bits  31-28  27-24  23-20  19-16 | 15-12  11-8   7-4    3-0
        row   q + 8  q      q + 8  q     | q + 8  q      q + 8  q        columns 2p + 1 on the left of the bar, 2p on its right;
        column  +8     +8     +0     +0  |   +8     +8     +0     +0     shifted by 4 r and masked, a word is register r of the fragment

    order "bytes" (INT8 activations): words 2s and 2s + 1 are the step of 32 columns from 32 s on, rows q and q + 8
        bits  31-28  27-24  23-20  19-16  15-12  11-8   7-4    3-0
        column 19+4p  3+4p  18+4p   2+4p  17+4p  1+4p   16+4p  0+4p      the low nibbles of its bytes are one register, the high ones another

    order "signs" (FP8 activations, int4 without zero points): as "bytes", but a nibble is 2 m + s: its value, code - 8, is m, or where s is 1 -1 - m.
        So a byte 2 m + s + 129 s is the sign and twice the magnitude, which as an e4m3 is 2^-8 of the value: up to 16 those go by 2^-9

    order "table" (FP8 activations, other weights): the same words, but the lower three bits of a code are where ``prmt`` looks for an index,
        and its top bit where ``prmt`` looks for a byte's sign:
        bits  30-28  26-24  22-20  18-16  14-12  10-8   6-4    2-0
        column 19+4p 18+4p  17+4p  16+4p   3+4p  2+4p   1+4p   0+4p
        bit      31     27     23     19     15     11      7      3
        column  3+4p  19+4p  2+4p   18+4p  1+4p   17+4p   0+4p   16+4p

Codes are unsigned: int4 as value + 8. What lies past the end of rows or columns holds the code of zero, with scale 1, and is worth nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ...dtypes import DType
from ...errors import ProblemError
from ...xp import namespace

Order = Literal["bits16", "bytes", "signs", "table"]
Zeros = Literal["none", "integer", "float"]

ROWS, COLUMNS = 64, 128
"""Of a record."""

WORD_BYTES = ROWS * COLUMNS // 2
ORDERS: tuple[Order, ...] = ("bits16", "bytes", "signs", "table")
SIGNS = np.array([15 - 2 * code if code < 8 else 2 * code - 16 for code in range(16)], np.uint8)
"""What stands for a code in the order "signs"."""

CODES_OF_SIGNS = np.argsort(SIGNS).astype(np.uint8)
"""Its inverse."""

GROUPS = (16, 32, 64, 128)
"""Columns that may share a scale within a record; larger groups are whole records."""


@dataclass(frozen=True)
class Record:
    """What a record holds, and where.

    Attributes:
        order: of the codes in their words.
        group: columns that share a scale: 16, 32, 64 or 128.
        scale_bytes: of one scale: 1, 2 or 4.
        zeros: "none", "integer" (a byte each), or "float" (a byte and a float32 each).

    >>> Record("bits16", 128, 2).nbytes
    4224
    """

    order: Order
    group: int
    scale_bytes: int
    zeros: Zeros = "none"

    def __post_init__(self) -> None:
        if self.order not in ORDERS or self.zeros not in ("none", "integer", "float"):
            raise ProblemError(f"record: expected an order of {ORDERS} and zeros none, integer or float, got {self.order}, {self.zeros}")
        if self.group not in GROUPS or self.scale_bytes not in (1, 2, 4):
            raise ProblemError(f"record: expected a group of {GROUPS} and scales of 1, 2 or 4 bytes, got {self.group}, {self.scale_bytes}")

    @property
    def groups(self) -> int:
        """Groups of a record."""
        return COLUMNS // self.group

    @property
    def scales_at(self) -> int:
        """Bytes from the record's start to its scales."""
        return WORD_BYTES

    @property
    def zeros_at(self) -> int:
        """Bytes from the record's start to its zero points."""
        return WORD_BYTES + self.groups * ROWS * self.scale_bytes

    @property
    def rests_at(self) -> int:
        """Bytes from the record's start to the rests of its float zero points."""
        return self.zeros_at + (self.groups * ROWS if self.zeros != "none" else 0)

    @property
    def nbytes(self) -> int:
        """Bytes of a record: a multiple of 64."""
        return self.rests_at + (self.groups * ROWS * 4 if self.zeros == "float" else 0)

    def pack(self, codes: Any, scales: Any, zeros: Any = None, rests: Any = None) -> Any:
        """Records of whole ones.

        Args:
            codes: uint8 ``[N, K]`` from 0 to 15, N a multiple of 64 and K of 128.
            scales: ``[N, K / group]`` of `scale_bytes` each.
            zeros: uint8 likewise, if the record has them. rests: float32 likewise.

        Returns:
            uint8 ``[N/64, K/128, nbytes]``.
        """
        xp = namespace(codes)
        n, k = codes.shape
        if n % ROWS or k % COLUMNS:
            raise ProblemError(f"codes: expected multiples of {ROWS} rows and {COLUMNS} columns, got {[n, k]}")
        parts = [self._words(codes).reshape(n // ROWS, k // COLUMNS, WORD_BYTES), self._blocks(scales, n, k)]
        parts += [self._blocks(x, n, k) for x, has in ((zeros, self.zeros != "none"), (rests, self.zeros == "float")) if has]
        return xp.ascontiguousarray(xp.concatenate(parts, axis=2))

    def unpack(self, stream: Any) -> tuple[Any, Any, Any, Any]:
        """Inverse of `pack`: codes, scales (as bytes ``[N, K / group, scale_bytes]``), zeros, rests (None where there are none)."""
        n, k = stream.shape[0] * ROWS, stream.shape[1] * COLUMNS
        if stream.shape[2] != self.nbytes:
            raise ProblemError(f"stream: expected records of {self.nbytes} bytes, got {stream.shape[2]}")
        codes = self._codes(stream[:, :, :WORD_BYTES], n, k)
        scales = self._unblocked(stream[:, :, self.scales_at : self.zeros_at], self.scale_bytes)
        zeros = rests = None
        if self.zeros != "none":
            zeros = self._unblocked(stream[:, :, self.zeros_at : self.rests_at], 1)[..., 0]
        if self.zeros == "float":
            rests = self._unblocked(stream[:, :, self.rests_at :], 4).view(np.float32)[..., 0]
        return codes, scales, zeros, rests

    def _words(self, codes: Any) -> Any:
        """uint8 words ``[N/64, K/128, 2, 4 warps, 8 q, 4 p, 16]`` of codes."""
        xp = namespace(codes)
        n, k = codes.shape
        if self.order == "signs":
            codes = xp.asarray(SIGNS)[codes]
        if self.order == "bits16":
            # row = 16 warp + 8 half + q, column = 64 h + 16 j + 8 c + 2 p + i
            parts = codes.reshape(n // ROWS, 4, 2, 8, k // COLUMNS, 2, 4, 2, 4, 2)
            nibbles = parts.transpose(0, 4, 5, 1, 3, 8, 6, 9, 7, 2)
        else:
            # row = 16 warp + 8 half + q, column = 64 h + 32 s + 16 c + 4 p + b
            parts = codes.reshape(n // ROWS, 4, 2, 8, k // COLUMNS, 2, 2, 2, 4, 4)
            nibbles = parts.transpose(*((0, 4, 5, 1, 3, 8, 6, 2, 7, 9) if self.order == "table" else (0, 4, 5, 1, 3, 8, 6, 2, 9, 7)))
        nibbles = xp.ascontiguousarray(nibbles).reshape(n // ROWS, k // COLUMNS, 2, 4, 8, 4, 4, 8)
        if self.order == "table":
            flags = nibbles >> 3
            nibbles = nibbles & 7
            nibbles[..., 1::2] |= flags[..., :4] << 3
            nibbles[..., 0::2] |= flags[..., 4:] << 3
        return (nibbles[..., 0::2] | nibbles[..., 1::2] << 4).reshape(n // ROWS, k // COLUMNS, 2, 4, 8, 4, 16)

    def _codes(self, words: Any, n: int, k: int) -> Any:
        xp = namespace(words)
        pairs = words.reshape(n // ROWS, k // COLUMNS, 2, 4, 8, 4, 4, 4)
        nibbles = xp.stack([pairs & 15, pairs >> 4], axis=-1).reshape(*pairs.shape[:-1], 8)
        if self.order == "table":
            flags = xp.concatenate([nibbles[..., 1::2], nibbles[..., 0::2]], axis=-1) & 8
            nibbles = nibbles & 7 | flags
        if self.order == "bits16":
            parts = nibbles.reshape(n // ROWS, k // COLUMNS, 2, 4, 8, 4, 4, 2, 2, 2)  # tile, record, h, warp, q, p, j, i, c, half
            parts = parts.transpose(0, 3, 9, 4, 1, 2, 6, 8, 5, 7)
        else:
            inner = (2, 4) if self.order == "table" else (4, 2)
            parts = nibbles.reshape(
                n // ROWS, k // COLUMNS, 2, 4, 8, 4, 2, 2, *inner
            )  # tile, record, h, warp, q, p, s, half, (b, c) or (c, b)
            c, b = (8, 9) if self.order == "table" else (9, 8)
            parts = parts.transpose(0, 3, 7, 4, 1, 2, 6, c, 5, b)
        codes = xp.ascontiguousarray(parts).reshape(n, k)
        return xp.asarray(CODES_OF_SIGNS)[codes] if self.order == "signs" else codes

    def _blocks(self, values: Any, n: int, k: int) -> Any:
        """A value a group ``[N, K / group]`` as bytes ``[N/64, K/128, groups * 64 * size]``."""
        xp = namespace(values)
        if values.shape != (n, k // self.group):
            raise ProblemError(f"scales: expected {[n, k // self.group]}, got {list(values.shape)}")
        parts = values.reshape(n // ROWS, 4, 2, 8, k // COLUMNS, self.groups).transpose(0, 4, 5, 1, 3, 2)
        return xp.ascontiguousarray(parts).reshape(n // ROWS, k // COLUMNS, self.groups * ROWS).view(np.uint8)

    def _unblocked(self, part: Any, size: int) -> Any:
        xp = namespace(part)
        tiles, records = part.shape[:2]
        parts = part.reshape(tiles, records, self.groups, 4, 8, 2, size).transpose(0, 3, 5, 4, 1, 2, 6)
        return xp.ascontiguousarray(parts).reshape(tiles * ROWS, records * self.groups, size)


def order_for(activation: DType, weights: DType, zeros: Zeros) -> Order:
    """The order of the codes of weights for activations of a type."""
    if activation.itemsize == 2:
        return "bits16"
    if not activation.is_float:
        return "bytes"
    return "signs" if weights.name == "int4" and zeros == "none" else "table"
