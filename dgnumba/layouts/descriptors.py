"""What tells the hardware how a tile lies: the tensor map of TMA, and the matrix descriptor of wgmma."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .._numba import device_function
from ..dtypes import DTYPES
from ..errors import DTypeError, ProblemError
from ..integers import u32
from .swizzle import SWIZZLES

MAX_BOX = 256
"""A box has at most this many elements along each dimension (CUDA driver API, cuTensorMapEncodeTiled)."""

L2_PROMOTIONS = (0, 64, 128, 256)
"""To how many bytes L2 widens what it fetches from memory; 0: it does not (CUDA driver API, CUtensorMapL2promotion)."""

ONE_LINE, TWO_LINES = L2_PROMOTIONS[2:]
"""Of them a line of L2, and two."""


def _is_one_of(value: object, taken: tuple[int, ...]) -> bool:
    """Whether it is an integer, and one of these: 128.0 and True are neither."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and value in taken


@dataclass(frozen=True)
class TensorMap:
    """A tensor in global memory and the box that one TMA operation moves; innermost dimension first.

    dtype    element type, a name in `DTYPES`
    dims     elements
    strides  bytes from one element to the next along dims[1:]; multiples of 16
    box      elements; the innermost row is a multiple of 16 bytes, and not longer than the swizzle
    swizzle  0, 32, 64 or 128: bytes of a swizzled row (`layouts.swizzle`)
    array    the array itself: its memory must outlive the map
    l2_promotion  to how many bytes L2 widens what it fetches from memory: `L2_PROMOTIONS`. No result depends on it
    """

    is_tensor_map: ClassVar[bool] = True

    dtype: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    array: Any = None
    l2_promotion: int = TWO_LINES

    def __post_init__(self) -> None:
        size = DTYPES[self.dtype].itemsize
        row = self.box[0] * size if self.box else 0
        has_swizzle = _is_one_of(self.swizzle, SWIZZLES)
        rules = {
            f"1 to 5 dimensions, with a box entry each and a stride for all but the first, got dims {self.dims} (innermost first), "
            f"box {self.box} and strides {self.strides}": 1 <= len(self.dims) <= 5
            and len(self.dims) == len(self.box) == len(self.strides) + 1,
            f"extents from 1 to 2^32, got {self.dims}": all(1 <= d <= 2**32 for d in self.dims),
            f"box entries from 1 to {MAX_BOX}, got {self.box}": all(1 <= b <= MAX_BOX for b in self.box),
            f"strides that are multiples of 16 bytes, got {self.strides}": all(s % 16 == 0 and 0 <= s < 2**40 for s in self.strides),
            f"a swizzle of {SWIZZLES}, got {self.swizzle!r}": has_swizzle,
            f"an l2_promotion of {L2_PROMOTIONS}, got {self.l2_promotion!r}": _is_one_of(self.l2_promotion, L2_PROMOTIONS),
            f"box rows of a multiple of 16 bytes, got {row}": row % 16 == 0,
            f"box rows not longer than the swizzle, got {row} bytes for swizzle {self.swizzle}": not has_swizzle
            or self.swizzle == 0
            or row <= self.swizzle,
        }
        for rule, holds in rules.items():
            if not holds:
                raise ProblemError(f"tensor map: expected {rule}")

    @property
    def box_bytes(self) -> int:
        """Bytes that one load brings, whether the box overhangs the tensor or not."""
        total = DTYPES[self.dtype].itemsize
        for entry in self.box:
            total *= entry
        return total

    @classmethod
    def of(
        cls, array: Any, box: tuple[int, ...], *, swizzle: int = 0, dtype: str | None = None, l2_promotion: int = TWO_LINES
    ) -> TensorMap:
        """The map of a whole array (NumPy, or CuPy) whose last axis is contiguous; `box` innermost first."""
        name = dtype or str(array.dtype)
        size = DTYPES[name].itemsize
        if array.itemsize != size:
            raise DTypeError(f"tensor map: expected elements of {size} bytes for {name}, got {array.dtype}")
        if array.shape and array.shape[-1] > 1 and array.strides[-1] != size:
            raise ProblemError(f"tensor map: expected a contiguous last axis (stride {size} bytes), got byte strides {list(array.strides)}")
        dims, strides = tuple(int(s) for s in array.shape[::-1]), tuple(int(s) for s in array.strides[-2::-1])
        return cls(name, dims, strides, tuple(box), swizzle, array, l2_promotion)


_LAYOUT_TYPE = {128: 1, 64: 2, 32: 3}


@dataclass(frozen=True)
class SmemDescriptor:
    """How a K-major operand tile of wgmma lies in shared memory: rows of `swizzle` bytes, eight rows `stride` bytes apart.

        63..62 layout type | 51..49 base offset | 45..32 stride / 16 | 29..16 leading / 16 | 13..0 address / 16

    Only the low word depends on the address, so a kernel keeps 32 bits and the high word is a constant of the instruction. K advances inside the
    swizzled row by adding the plain byte offset: 32 bytes are 2 units. Source: PTX ISA 9.0, "Matrix descriptor".
    """

    swizzle: int = 128

    def __post_init__(self) -> None:
        if self.swizzle not in (32, 64, 128):
            raise ProblemError(f"matrix descriptor: expected a swizzle of 32, 64 or 128, got {self.swizzle}")

    @property
    def stride(self) -> int:
        """Bytes between groups of eight rows."""
        return 8 * self.swizzle

    @property
    def high(self) -> int:
        """Bits 63..32."""
        return _LAYOUT_TYPE[self.swizzle] << 30 | self.stride >> 4

    @staticmethod
    def decode(descriptor: int) -> tuple[int, int, int]:
        """(address, stride in bytes, swizzle) of a 64-bit descriptor."""
        swizzle = {kind: mode for mode, kind in _LAYOUT_TYPE.items()}[descriptor >> 62]
        return (descriptor & 0x3FFF) << 4, (descriptor >> 32 & 0x3FFF) << 4, swizzle


@device_function
def low_word(address: u32) -> Any:
    """Bits 31..0 of the descriptor of the tile at shared `address` (leading dimension 16 bytes: without meaning when swizzled)."""
    # NOTE: in a cluster a shared address carries the CTA's rank in its high bits; only the low 18 are the tile's place.
    return u32((address & 0x3FFFF) >> 4 | 0x10000)
