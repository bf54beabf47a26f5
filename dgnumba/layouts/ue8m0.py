"""UE8M0 scales four to an int32: power-of-two scales as bytes, four K-blocks side by side, MN-major, TMA-aligned.

A UE8M0 byte b means 2^(b - 127): the exponent field of the float32 of the same value. Four of one
row, neighbours along K, make an int32, the first in the low byte; the int32s then lie as float32
scales do (`scales`): rows side by side, each column of words on 16 bytes (5 rows, 6 K-blocks)::

    float32 [5, 6], row-major               int32 [5, 2], strides (1, 8) elements
    s00 s01 s02 s03 s04 s05                 memory:  w00 w10 w20 w30 | w40  .   .   .      K-blocks 0-3
    s10 s11 s12 s13 s14 s15                          w01 w11 w21 w31 | w41  .   .   .      K-blocks 4-7
    ...
    s40 s41 s42 s43 s44 s45                 w00 = b03 b02 b01 b00     w01 =  0   0  b05 b04      bits 31-24 ... 7-0

What is missing (``.``, K-blocks beyond the last) is zero and read by no one.

DIFFERS from DeepGEMM, which packs whatever has no mantissa: 0 and infinity are refused here, since
no byte means them, and 2^-127, a float32 subnormal, is taken: its byte is 0.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from ..errors import DTypeError, ProblemError
from ..xp import as_array, device_of, namespace, view_bytes

E8M0_NAME = "float8_e8m0fnu"
_LOWEST = 0x00400000
"""float32 bits of 2^-127, the one UE8M0 value that is a float32 subnormal."""


def ue8m0_bytes(sf: Any, argument: str = "sf") -> Any:
    """The UE8M0 byte of every scale, as uint8.

    Args:
        sf: float32 powers of two from 2^-127 to 2^127, or ml_dtypes float8_e8m0fnu; NumPy or CuPy.

    Raises:
        DTypeError: another type; int32 scales are packed already.
        ProblemError: a scale that is no such power of two, by value and place.
    """
    view = as_array(sf, argument)
    if view.dtype_name == E8M0_NAME:
        codes = view_bytes(view.array)
        _refuse(codes == 255, view.array, argument)
        return codes
    if view.array.dtype != np.float32:
        packed = "; packed already?" if view.array.dtype in (np.int32, np.uint32) else ""
        raise DTypeError(f"{argument}: expected float32 or {E8M0_NAME} scales, got {view.dtype_name}{packed}")
    xp = namespace(view.array)
    with device_of(view.array):
        word = xp.ascontiguousarray(view.array).view(xp.uint32).reshape(view.array.shape)
        is_lowest = word == _LOWEST
        exponent = word >> 23
        bad = ((word & 0x7FFFFF) != 0) | (exponent == 0) | (exponent >= 255)
        _refuse(bad & ~is_lowest, view.array, argument)
        return exponent.astype(xp.uint8)


def ue8m0_values(codes: Any) -> Any:
    """The float32 value of every UE8M0 byte: byte 0 is 2^-127, byte 255 NaN. Inverse of `ue8m0_bytes`."""
    codes = view_bytes(as_array(codes, "codes").array)
    xp = namespace(codes)
    with device_of(codes):
        word = codes.astype(xp.uint32) << 23
        word = xp.where(codes == 0, xp.uint32(_LOWEST), word)
        word = xp.where(codes == 255, xp.uint32(0x7FC00000), word)
        return word.astype(xp.uint32).view(xp.float32)


def pack_ue8m0_to_int(x: Any) -> Any:
    """Four scales of the last axis to an int32, the first in the low byte; DeepGEMM's.

    Args:
        x: ``[..., 4 n]`` as `ue8m0_bytes` takes it.

    Returns:
        int32 ``[..., n]``, C-contiguous.

    >>> hex(pack_ue8m0_to_int(np.float32([1, 2, 0.5, 1]))[0])
    '0x7f7e807f'
    """
    codes = ue8m0_bytes(x, "x")
    if codes.ndim < 1 or codes.shape[-1] % 4:
        raise ProblemError(f"x: expected the last axis in multiples of 4 scales, got {list(codes.shape)}")
    return words_of(codes)


def unpack_ue8m0_from_int(packed_sf: Any) -> Any:
    """Inverse of `pack_ue8m0_to_int`: float32 ``[..., 4 n]``; DeepGEMM's, which gives 0 for byte 0 and infinity for 255.

    `get_row_major_ue8m0_tensor` gives what these bytes mean by UE8M0's definition, 2^-127 and NaN.
    """
    codes = bytes_of(checked_words(packed_sf, "packed_sf"))
    xp = namespace(codes)
    with device_of(codes):
        return (codes.astype(xp.int32) << 23).view(xp.float32)


def words_of(codes: Any) -> Any:
    """Bytes ``[..., 4 n]`` as int32 ``[..., n]``, the first in the low byte."""
    xp = namespace(codes)
    with device_of(codes):
        return xp.ascontiguousarray(codes).view(xp.int32)


def bytes_of(words: Any) -> Any:
    """Inverse of `words_of`."""
    xp = namespace(words)
    with device_of(words):
        flat = xp.ascontiguousarray(words)
        return flat.view(xp.uint8).reshape(*words.shape[:-1], words.shape[-1] * 4)


def checked_words(packed: Any, argument: str) -> Any:
    """The array, if it is int32."""
    view = as_array(packed, argument)
    if view.array.dtype != np.int32:
        hint = "; pack it first?" if view.array.dtype == np.float32 or view.dtype_name == E8M0_NAME else ""
        raise DTypeError(f"{argument}: expected int32, four UE8M0 scales in each, got {view.dtype_name}{hint}")
    return view.array


def as_e8m0(codes: Any) -> Any:
    """NumPy bytes as ml_dtypes float8_e8m0fnu; CuPy has no such type and keeps uint8."""
    return codes.view(ml_dtypes.float8_e8m0fnu) if namespace(codes) is np else codes


def _refuse(bad: Any, sf: Any, argument: str) -> None:
    if not bool(bad.any()):
        return
    xp = namespace(bad)
    place = [int(i) for i in xp.argwhere(bad)[0]]
    value = float(sf[tuple(place)])
    raise ProblemError(
        f"{argument}: expected powers of two from 2^-127 to 2^127, which UE8M0 can hold, got {value:g} at {place}; "
        "to round scales up, quantize with use_ue8m0=True, which divides the data by the rounded ones"
    )
