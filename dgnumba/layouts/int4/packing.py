"""What every 4-bit layout is: a bijection from the codes of a weight to the nibbles of words, and its picture.

A layout moves nibbles; what they mean (int4, uint4 with a zero point, e2m1, a code book) is not its
business. int4 nibbles are two's complement: -8 is 8, -1 is 15.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ...errors import DTypeError, ProblemError
from ...xp import as_array, device_of, namespace, view_bytes

_FOUR_BITS = ("int4", "uint4", "float4_e2m1fn")
IN_ORDER = (0, 1, 2, 3, 4, 5, 6, 7)
INTERLEAVED = (0, 2, 4, 6, 1, 3, 5, 7)
"""Nibble i of a word holds element INTERLEAVED[i]: elements 2i and 2i + 1 are then 16 bits apart, so that one `lop3` makes a half2 of them."""


class Packing(ABC):
    """A 4-bit layout by name: `pack` and `unpack` invert each other, `elements` is the map itself, `picture` draws it.

    Codes are ``[..., N, K]``, the rows and columns of a weight, on NumPy or CuPy. Leading axes are
    a stack of weights, each laid out for itself.
    """

    name: ClassVar[str]
    word: ClassVar[np.dtype[Any]]
    flip: ClassVar[int] = 0
    """Xored with every code: 8 where a layout stores int4 as value + 8."""

    def pack(self, codes: Any) -> Any:
        """The words that hold `codes`.

        Args:
            codes: ``[..., N, K]`` integers, all from -8 to 7 or all from 0 to 15, or ml_dtypes int4, uint4 or float4_e2m1fn.

        Raises:
            DTypeError: no integers. ProblemError: a code out of range, or extents that the layout does not take.
        """
        nibs = nibbles(codes)
        self.packed_shape(nibs.shape)
        with device_of(nibs):
            return self._place(nibs ^ self.flip if self.flip else nibs)

    def unpack(self, packed: Any, shape: Sequence[int] | None = None, *, signed: bool = False) -> Any:
        """The codes in `packed`, as uint8 from 0 to 15.

        Args:
            packed: words as `pack` makes them.
            shape: ``[..., N, K]`` of the codes; by default the largest that gives this many words.
            signed: int8 from -8 to 7 instead.

        Raises:
            DTypeError: other words. ProblemError: words that do not fit `shape`.
        """
        words = _words(packed, self.word)
        shape = self._full_shape(words.shape) if shape is None else tuple(int(n) for n in shape)
        expected = self.packed_shape(shape)
        if words.shape != expected:
            raise ProblemError(
                f"packed: expected {self.word} {list(expected)} for {self.name} codes {list(shape)}, got {list(words.shape)}"
            )
        with device_of(words):
            codes = self._take(words, shape)
            if self.flip:
                codes ^= self.flip
            return as_signed(codes) if signed else codes

    def packed_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of the words that hold codes of `shape`; raises where the layout does not take it."""
        return self._packed_shape(tuple(int(n) for n in shape))

    @abstractmethod
    def _packed_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]: ...

    @abstractmethod
    def _full_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The codes' shape when words of `shape` hold no padding."""

    @abstractmethod
    def _place(self, nibs: Any) -> Any:
        """Words of nibbles; an own copy."""

    @abstractmethod
    def _take(self, words: Any, shape: tuple[int, ...]) -> Any:
        """Nibbles of words; an own copy."""

    def elements(self, shape: Sequence[int]) -> Any:
        """The map: ``[*packed_shape, nibbles of a word]``, low nibble first, of the flat index of the code there; -1 is padding."""
        self.packed_shape(shape)
        number = np.arange(1, math.prod(shape) + 1).reshape(shape)
        found = np.zeros((*self.packed_shape(shape), 2 * self.word.itemsize), np.int64)
        # Numbers go through the layout four bits at a time, so that what is drawn is what is done.
        for digit in range(0, max(int(number.size).bit_length(), 1), 4):
            held = np.ascontiguousarray(self._place(((number >> digit) & 15).astype(np.uint8)))
            pairs = held.view(np.uint8).reshape(*held.shape, self.word.itemsize)
            found |= np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(found.shape).astype(np.int64) << digit
        return found - 1

    def picture(self, shape: Sequence[int], words: int = 8) -> str:
        """The first `words` words of codes ``[N, K]``: a line each, with the row n and column k of every nibble, the high bits first."""
        elements = self.elements(shape)
        _, k = shape
        lines: list[str] = []
        for at in np.ndindex(*elements.shape[:-1]):
            if len(lines) == words:
                lines.append("...")
                break
            held = [".".center(4) if e < 0 else f"n{e // k}k{e % k}".ljust(4) for e in elements[at][::-1]]
            lines.append(f"[{', '.join(map(str, at))}]  " + " ".join(held).rstrip())
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<4-bit layout {self.name}>"


def nibbles(codes: Any, argument: str = "codes") -> Any:
    """Codes as uint8 from 0 to 15, whatever integers they come as; nothing out of range gets through, nothing is masked away."""
    view = as_array(codes, argument)
    array = view.array
    if view.dtype_name in _FOUR_BITS:
        return view_bytes(array) & 15
    if array.dtype.kind not in "iu":
        raise DTypeError(f"{argument}: expected integer codes (or ml_dtypes {', '.join(_FOUR_BITS)}), got {view.dtype_name}")
    if array.size:
        low, high = int(array.min()), int(array.max())
        if low < -8 or high > 15 or (low < 0 and high > 7):
            raise ProblemError(f"{argument}: expected codes all from -8 to 7 or all from 0 to 15, got {low} to {high}")
    return array.astype(namespace(array).uint8) & 15


def as_signed(codes: Any) -> Any:
    """Nibbles as the int4 they are: int8 from -8 to 7.

    >>> as_signed(np.uint8([0, 7, 8, 15])).tolist()
    [0, 7, -8, -1]
    """
    return (codes ^ 8).astype(np.int8) - np.int8(8)


def to_words(nibs: Any, order: Sequence[int] = IN_ORDER) -> Any:
    """int32 words of the last axis, a multiple of 8 long: nibble i of a word is element order[i] of its eight."""
    xp = namespace(nibs)
    parts = nibs.reshape(*nibs.shape[:-1], nibs.shape[-1] // 8, 8)
    out = xp.empty((*parts.shape[:-1], 4), xp.uint8)
    for byte in range(4):
        out[..., byte] = parts[..., order[2 * byte]] | parts[..., order[2 * byte + 1]] << 4
    return out.view("<i4")[..., 0]


def from_words(words: Any, order: Sequence[int] = IN_ORDER) -> Any:
    """Inverse of `to_words`: the last axis becomes eight times as long."""
    xp = namespace(words)
    pairs = xp.ascontiguousarray(words).view(xp.uint8).reshape(*words.shape, 4)
    out = xp.empty((*words.shape, 8), xp.uint8)
    for byte in range(4):
        out[..., order[2 * byte]] = pairs[..., byte] & 15
        out[..., order[2 * byte + 1]] = pairs[..., byte] >> 4
    return out.reshape(*words.shape[:-1], words.shape[-1] * 8)


def padded(nibs: Any, multiple: int) -> Any:
    """The last axis filled up with zeros to a multiple of `multiple`."""
    missing = -nibs.shape[-1] % multiple
    if not missing:
        return nibs
    xp = namespace(nibs)
    return xp.concatenate([nibs, xp.zeros((*nibs.shape[:-1], missing), xp.uint8)], axis=-1)


def extents(shape: Sequence[int], name: str, n: int = 1, k: int = 1) -> tuple[tuple[int, ...], int, int]:
    """(leading axes, N, K) of a shape whose N is a multiple of `n` and K of `k`."""
    if len(shape) < 2:
        raise ProblemError(f"codes: expected [..., N, K], got {list(shape)}")
    *lead, rows, columns = (int(x) for x in shape)
    for axis, have, step in (("N", rows, n), ("K", columns, k)):
        if have % step:
            raise ProblemError(f"codes: {name} expects {axis} in multiples of {step}, got {list(shape)} ({axis} = {have})")
    return tuple(lead), rows, columns


def _words(packed: Any, word: np.dtype[Any]) -> Any:
    view = as_array(packed, "packed")
    array = view.array
    if array.dtype.kind not in "iu" or array.dtype.itemsize != word.itemsize:
        raise DTypeError(f"packed: expected {word}, got {view.dtype_name}")
    return array if array.dtype == word else array.view(word)
