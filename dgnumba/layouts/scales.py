"""Scale factors as the kernel's TMA wants them: MN-major, every K-block's column on 16 bytes.

A quantizer gives one row of scales to each row (or block of rows) of the matrix, ``sf[mn,
k_block]``, K-blocks side by side. The kernel needs, for one K-block, the scales of a whole tile of
rows at once, so it wants the rows side by side. The array keeps its shape ``[mn, k_blocks]``; only
the memory is turned, and each K-block's run is padded to whole 16 bytes (5 rows, 3 K-blocks,
float32)::

    row-major, as quantized             MN-major, TMA-aligned
    memory:  s00 s01 s02                s00 s10 s20 s30 | s40  .   .   .      K-block 0
             s10 s11 s12                s01 s11 s21 s31 | s41  .   .   .      K-block 1
             s20 s21 s22                s02 s12 s22 s32 | s42  .   .   .      K-block 2
             s30 s31 s32                 16 bytes         16 bytes, 3 floats of padding
             s40 s41 s42
    strides: (3, 1) elements            (1, 8) elements

"MN-major" says that the M (or N) index is the one whose neighbours are neighbours in memory: stride
1 along ``mn``. The padding is zero, and no one reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import DTypeError, ProblemError
from ..xp import address, as_array, device_of, namespace
from .ue8m0 import bytes_of, checked_words, pack_ue8m0_to_int, ue8m0_bytes, ue8m0_values, unpack_ue8m0_from_int, words_of

__all__ = [
    "TMA_ALIGNMENT",
    "get_mn_major_tma_aligned_packed_ue8m0_tensor",
    "get_mn_major_tma_aligned_tensor",
    "get_row_major_tensor",
    "get_row_major_ue8m0_tensor",
    "get_tma_aligned_size",
    "pack_ue8m0_to_int",
    "scale_offset",
    "unpack_ue8m0_from_int",
]

TMA_ALIGNMENT = 16
"""Bytes: TMA takes global addresses and row pitches that are multiples of this."""


def get_tma_aligned_size(x: int, element_size: int) -> int:
    """`x` elements of `element_size` bytes, rounded up to whole 16 bytes; in elements.

    >>> get_tma_aligned_size(5, 4)
    8
    """
    if element_size <= 0 or TMA_ALIGNMENT % element_size:
        raise ProblemError(f"element_size: expected a divisor of {TMA_ALIGNMENT} bytes, got {element_size}")
    step = TMA_ALIGNMENT // element_size
    return -(-x // step) * step


def scale_offset(mn: Any, k_block: Any, mn_aligned: Any) -> Any:
    """Where in memory the scale of row `mn` and `k_block` is: in elements, from the start of its group.

    Plain integer arithmetic, so that host code, a kernel and the emulator ask the same map.
    """
    return k_block * mn_aligned + mn


def get_mn_major_tma_aligned_tensor(sf: Any) -> Any:
    """Turn float32 scales to MN-major, TMA-aligned memory; the values and the shape stay.

    Args:
        sf: float32 ``[mn, k_blocks]`` or ``[groups, mn, k_blocks]``, NumPy or CuPy (or anything
            seen as one), any strides.

    Returns:
        An array of the same shape with element strides ``(1, aligned mn)``, groups one after
        another. An array that conforms already shares its memory with the result.

    Raises:
        DTypeError: not float32. ProblemError: not of rank 2 or 3.

    >>> sf = np.arange(15, dtype=np.float32).reshape(5, 3)
    >>> [s // 4 for s in get_mn_major_tma_aligned_tensor(sf).strides]
    [1, 8]
    """
    return mn_major(_checked(sf))


def mn_major(sf: Any) -> Any:
    """`get_mn_major_tma_aligned_tensor` of any four-byte elements, float32 scales or int32 words of four."""
    xp = namespace(sf)
    *groups, mn, k_blocks = sf.shape
    aligned = get_tma_aligned_size(mn, sf.dtype.itemsize)
    strides = _strides(sf.shape)
    if _conforms(sf, strides):
        if sf.strides == strides:
            return sf
        return xp.lib.stride_tricks.as_strided(sf, sf.shape, strides)
    with device_of(sf):
        memory = xp.empty((*groups, k_blocks, aligned), sf.dtype)
        memory[..., mn:] = 0
        out = memory[..., :mn].swapaxes(-1, -2)
        out[...] = sf
    return out


def get_row_major_tensor(sf: Any) -> Any:
    """Inverse of `get_mn_major_tma_aligned_tensor`: the same scales, C-contiguous, no padding."""
    sf = _checked(sf)
    with device_of(sf):
        return namespace(sf).ascontiguousarray(sf)


def get_mn_major_tma_aligned_packed_ue8m0_tensor(sf: Any, psum_layout: Any = None, *, m_alignment: int = 128) -> Any:
    """Pack power-of-two scales four to an int32 and turn them to MN-major, TMA-aligned memory (picture: `ue8m0`).

    Args:
        sf: float32 or float8_e8m0fnu ``[mn, k_blocks]`` or ``[groups, mn, k_blocks]``, any strides.
        psum_layout: int32 ``[groups]``, the row after each group's last; a group begins at the end
            before it rounded up to `m_alignment`. Rows in the gaps become 0, whatever they hold.
        m_alignment: rows; DeepGEMM's alignment for contiguous layouts.

    Returns:
        int32 ``[..., mn, ceil(k_blocks / 4)]``, element strides ``(1, aligned mn)``.

    Raises:
        DTypeError: another type. ProblemError: a scale that is no power of two; another rank.

    >>> hex(get_mn_major_tma_aligned_packed_ue8m0_tensor(np.float32([[1, 2]]))[0, 0])
    '0x807f'
    """
    sf = as_array(sf, "sf").array
    _check_rank(sf)
    xp = namespace(sf)
    *groups, mn, k_blocks = sf.shape
    with device_of(sf):
        padded = xp.zeros((*groups, mn, -(-k_blocks // 4) * 4), xp.uint8)
        if psum_layout is None:
            padded[..., :k_blocks] = ue8m0_bytes(sf)
        else:
            if groups:
                raise ProblemError(f"sf: expected [mn, k_blocks] with a psum_layout, got {list(sf.shape)}")
            for first, end in psum_ranges(psum_layout, mn, m_alignment, "psum_layout"):
                padded[first:end, :k_blocks] = ue8m0_bytes(sf[first:end])
        return mn_major(words_of(padded))


def get_row_major_ue8m0_tensor(packed: Any, k_blocks: int | None = None) -> Any:
    """Inverse of `get_mn_major_tma_aligned_packed_ue8m0_tensor`: float32 ``[..., mn, k_blocks]``, C-contiguous.

    Args:
        packed: int32 ``[..., mn, words]``, any strides.
        k_blocks: how many of the ``4 words`` there are; by default all.
    """
    packed = checked_words(packed, "packed")
    _check_rank(packed, "packed")
    words = packed.shape[-1]
    k_blocks = 4 * words if k_blocks is None else k_blocks
    if -(-k_blocks // 4) != words:
        raise ProblemError(f"packed: expected {-(-k_blocks // 4)} words a row for {k_blocks} K-blocks, got {words}")
    return ue8m0_values(bytes_of(packed)[..., :k_blocks])


def psum_ranges(layout: Any, rows: int, alignment: int, argument: str) -> list[tuple[int, int]]:
    """(first row, row after the last) of each group of a prefix-sum layout, in host integers."""
    ends = host_integers(layout, argument)
    ranges, first = [], 0
    for end in ends:
        if not first <= end <= rows:
            raise ProblemError(f"{argument}: expected ends that rise, each group from a multiple of {alignment}, up to {rows}; got {ends}")
        ranges.append((first, end))
        first = -(-end // alignment) * alignment
    return ranges


def host_integers(x: Any, argument: str) -> list[int]:
    """A list or an integer array of rank 1, also one on a GPU, as Python integers."""
    if isinstance(x, Sequence):
        return [int(n) for n in x]
    view = as_array(x, argument)
    if view.array.dtype.kind not in "iu" or view.array.ndim != 1:
        raise DTypeError(f"{argument}: expected int32 [groups], got {view.dtype_name} {list(view.array.shape)}")
    return [int(n) for n in view.array.tolist()]


def _check_rank(sf: Any, argument: str = "sf") -> None:
    if sf.ndim not in (2, 3):
        raise ProblemError(f"{argument}: expected [mn, k_blocks] or [groups, mn, k_blocks], got {list(sf.shape)}")


def _checked(sf: Any) -> Any:
    view = as_array(sf, "sf")
    if view.array.dtype != np.float32:
        raise DTypeError(f"sf: expected float32 scales, got {view.dtype_name}")
    _check_rank(view.array)
    return view.array


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Byte strides of the aligned form of float32 scales of this shape."""
    *_, mn, k_blocks = shape
    aligned = get_tma_aligned_size(mn, 4)
    return (aligned * k_blocks * 4, 4, aligned * 4)[-len(shape) :]


def _conforms(sf: Any, strides: tuple[int, ...]) -> bool:
    """Whether `sf` lies in the aligned form; the stride of an axis of extent 1 means nothing."""
    if sf.size == 0 or address(sf) % TMA_ALIGNMENT:
        return False
    return all(n == 1 or have == want for n, have, want in zip(sf.shape, sf.strides, strides, strict=True))
