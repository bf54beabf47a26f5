"""Lay out: a call's arrays in the form that the kernels' TMA reads, by view where they are so already, else by a copy that is named.

TMA takes rows whose elements are neighbours in memory, 16-byte-aligned bases, and row pitches that are multiples of 16 bytes. A store
writes whole pieces of 16 bytes: where the last piece of a row reaches past the tensor it writes what lies there too (H200, 2026-11-29; a load
zero-fills by the element). So D's rows must be whole pieces as well. What does not comply goes through a padded copy: `LaidOut.copies` says
which, and `explain` prints it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..problem import GemmProblem, Operands
from ..xp import address, device_of, namespace
from .scales import TMA_ALIGNMENT, get_mn_major_tma_aligned_tensor


@dataclass(frozen=True, eq=False)
class LaidOut:
    """Arrays that a kernel can be bound to.

    a, b    uint8 [M, K], [N, K], K contiguous
    sfa     float32 [M, K/128], M contiguous (MN-major), or K (row-major) if `problem.row_scales`
    sfb     float32 [N/128, K/128], K contiguous
    d       [M, N or a little more], N contiguous; `target` is the caller's, to which the first N columns are copied when it is another
    c       None, or what is added to the product before the one rounding: [M, N or a little more], N contiguous; it may be `d`
    copies  what had to be copied, in words: the array's name, a colon, and how
    """

    problem: GemmProblem
    a: Any
    sfa: Any
    b: Any
    sfb: Any
    d: Any
    target: Any
    c: Any
    copies: tuple[str, ...]

    @property
    def addend(self) -> Any:
        """C, or D where the kernel adds none: it is given an address all the same."""
        return self.c if self.problem.with_c else self.d

    @property
    def has_callers_weights(self) -> bool:
        """Whether B and its scales are read where the caller has them: nothing of them was made for this call."""
        return not any(copy.startswith(("b:", "sfb:")) for copy in self.copies)


def lay_out(operands: Operands) -> LaidOut:
    """Lay out the operands of one call; on their device, in the current stream."""
    copies: list[str] = []
    a = _rows("a", operands.a, copies)
    b = _rows("b", operands.b, copies)
    sfb = _rows("sfb", operands.sfb, copies)
    sfa = operands.sfa
    if not operands.problem.row_scales:
        sfa = get_mn_major_tma_aligned_tensor(sfa)
        if address(sfa) != address(operands.sfa):
            copies.append(f"sfa: row-major {list(sfa.shape)} turned to MN-major, rows of 16-byte multiples")
    d, c = operands.d, operands.c
    if not _has_whole_pieces(d):
        d = _whole_pieces(d)
        copies.append(f"d: byte strides {list(operands.d.strides)}; computed in a padded buffer of {list(d.strides)}, then copied")
    if c is not None and not _has_whole_pieces(c):
        c = _whole_pieces(c)
        with device_of(c):
            c[:, : operands.c.shape[1]] = operands.c
        copies.append(f"c: byte strides {list(operands.c.strides)}; copied to a padded buffer of {list(c.strides)}")
    return LaidOut(operands.problem, a, sfa, b, sfb, d, operands.d, c, tuple(copies))


def _has_whole_pieces(x: Any) -> bool:
    """Whether every row begins at a multiple of 16 bytes and has whole ones: what stores write, and what reads C."""
    return complies(x) and x.shape[1] * x.itemsize % TMA_ALIGNMENT == 0


def _whole_pieces(x: Any) -> Any:
    per_piece = TMA_ALIGNMENT // x.itemsize
    return _padded((x.shape[0], -(-x.shape[1] // per_piece) * per_piece), x.dtype, x)


def complies(x: Any) -> bool:
    """Whether TMA can address the rows of a 2D array."""
    pitch, step = x.strides
    is_tight = step == x.itemsize or x.shape[1] == 1
    return is_tight and pitch % TMA_ALIGNMENT == 0 and pitch >= x.shape[1] * x.itemsize and address(x) % TMA_ALIGNMENT == 0


def has_readable_rows(sfa: Any) -> bool:
    """Whether TMA can read A's scales row by row as they lie: float32, K contiguous, rows of whole 16 bytes."""
    return bool(sfa.dtype == np.float32) and sfa.shape[1] > 1 and complies(sfa)


def _rows(name: str, x: Any, copies: list[str]) -> Any:
    if complies(x):
        return x
    out = _padded(x.shape, x.dtype, x)
    with device_of(x):
        out[...] = x
    copies.append(f"{name}: byte strides {list(x.strides)} (TMA: 1 element, a multiple of 16) copied to {list(out.strides)}")
    return out


def _padded(shape: tuple[int, ...], dtype: Any, like: Any) -> Any:
    """A new array of `shape` whose row pitch is a multiple of 16 bytes; 16-byte aligned."""
    rows, columns = shape
    per_row = TMA_ALIGNMENT // dtype.itemsize
    pitch = max(1, -(-columns // per_row)) * per_row
    with device_of(like):
        # NumPy promises 16-byte alignment nowhere: ask for a row more, and begin where it is
        flat = namespace(like).empty(rows * pitch + per_row, dtype)
        skip = -address(flat) % TMA_ALIGNMENT // dtype.itemsize
        return flat[skip : skip + rows * pitch].reshape(rows, pitch)[:, :columns]
