"""One row for each element type: its bit fields, its range, and what NumPy, PTX and TMA call it.

Everything that depends on an element type asks its row; adding a type is adding a row to `DTYPES`.
A floating-point number of a type with `exponent` E, `mantissa` M and `bias` is stored as sign, E
bits, M bits::

    code = s eeee mmm                       e4m3: E = 4, M = 3, bias = 7
    value = (-1)^s * 2^(e - bias) * 1.mmm   (e > 0)
    value = (-1)^s * 2^(1 - bias) * 0.mmm   (e = 0)

`float8_e8m0fnu`, the type of scales, is all exponent: 2^(e - 127), no sign, no zero.

`encode` and `decode` follow from the fields alone, in integer operations on whole arrays, so that
they run on any array module, also on one that has no such type (CuPy has no float8). A code of
fewer than 8 bits stands in the low bits of a byte, the others zero; an int4 code is its two's
complement nibble.

What `encode` does where a type has no right answer, for every type alike:

    too large      the largest value of its sign, as PTX ``cvt.rn.satfinite``
    infinity       the same; or, without `saturate_inf`, infinity, or else NaN, where the type has one
    NaN            NaN, always the same; 0 where the type has none (e2m1, e2m3, e3m2 and the integers)
    -0             -0; 0 where the type has none (the fnuz types and the integers)

DIFFERS from ml_dtypes' casts, which give NaN above 464 in e4m3 and above 61440 infinity in e5m2, cut
a fraction off on the way to an integer, and wrap an integer that is out of range.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, Literal

import ml_dtypes
import numpy as np

from .errors import DTypeError

# NOTE: "fn" types spend only the all-ones code on NaN and have no infinity (OCP FP8, e4m3); "fnuz"
# types spend on it the code that would be -0.
Specials = Literal["ieee", "fn", "fnuz", "none"]


@dataclass(frozen=True)
class DType:
    """An element type. For integers `exponent` is 0, and `mantissa` all bits but the sign."""

    name: str
    bits: int
    exponent: int
    mantissa: int
    bias: int
    max: float
    numpy: np.dtype[Any]
    ptx: str
    """Type suffix of PTX instructions: ``e4m3``, ``bf16``, ``u32``; empty where PTX has none."""
    tma: str
    """Tail of the driver's ``CU_TENSOR_MAP_DATA_TYPE_`` name; FP8 and packed nibbles travel as bytes."""
    specials: Specials = "none"

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        # There is one of each type, in another process and after a copy too: `is` tells types apart.
        return as_dtype, (self.name,)

    @property
    def itemsize(self) -> int:
        """Bytes of one element, unpacked: a type of 4 bits takes one."""
        return self.numpy.itemsize

    @property
    def is_float(self) -> bool:
        """Whether the type has an exponent."""
        return self.exponent > 0

    @property
    def is_signed(self) -> bool:
        """Whether the type has negative values."""
        return self.bits > self.exponent + self.mantissa

    @property
    def is_native(self) -> bool:
        """Whether NumPy itself, so every array module, has the type; ml_dtypes has the rest."""
        return self.numpy.isbuiltin == 1

    @property
    def unit_roundoff(self) -> float:
        """Largest relative error of rounding to nearest, for normal numbers; 0 for integers."""
        return 2.0 ** -(self.mantissa + 1) if self.is_float else 0.0

    @property
    def min(self) -> float:
        """Least value: ``-max``, one further for signed integers, 0 for unsigned."""
        if not self.is_signed:
            return self.min_normal if self.is_float else 0.0
        return -self.max if self.is_float else -self.max - 1

    @property
    def min_normal(self) -> float:
        """Smallest positive normal number."""
        return 2.0 ** (1 - self.bias) if self.mantissa else 2.0**-self.bias

    @property
    def min_subnormal(self) -> float:
        """Smallest positive number: the spacing of everything below `min_normal`; 1 for integers."""
        if not self.is_float:
            return 1.0
        return 2.0 ** (1 - self.bias - self.mantissa) if self.mantissa else self.min_normal

    @property
    def has_nan(self) -> bool:
        """Whether the type has a NaN."""
        return self.specials != "none"

    @property
    def max_code(self) -> int:
        """Code of `max`, sign bit 0."""
        ones = (1 << (self.exponent + self.mantissa)) - 1
        taken = {"ieee": 1 << self.mantissa, "fn": 1, "fnuz": 0, "none": 0}[self.specials]
        return ones - taken

    @property
    def nan_code(self) -> int:
        """The NaN that `encode` writes: all ones below the sign bit; -0's code for fnuz, 0 for none."""
        if not self.has_nan:
            return 0
        return 1 << (self.bits - 1) if self.specials == "fnuz" else (1 << (self.exponent + self.mantissa)) - 1

    def encode(self, values: Any, xp: ModuleType = np, saturate_inf: bool = True, random: Any = None) -> Any:
        """Codes of float32 `values`: to nearest, ties to even, by the rules of the module's head.

        For floats of 16 bits or fewer but `float8_e8m0fnu` (whose rounding is a rule of its own,
        `quant.scale`) and integers of 8 or fewer; the codes come as uint8, or uint16 for 16 bits.

        Args:
            values: array of `xp`, its array module.
            saturate_inf: whether infinity becomes ±`max`.
            random: uint32 of `values`' shape, for stochastic rounding: what lies between two
                neighbours goes up with the probability of its distance from the lower one, in
                steps of 2^-32 (integers: 2^-24). What is representable stays.

        >>> DTYPES["float4_e2m1fn"].encode(np.float32([2.5, -100.0])).tolist()
        [4, 15]
        """
        if self.bits > (16 if self.is_float else 8) or (self.is_float and not self.is_signed):
            raise DTypeError(f"encode: expected a float type of 16 bits or fewer with a sign, or an integer of 8 or fewer, got {self}")
        values = xp.asarray(values, dtype=xp.float32)
        if not self.is_float:
            return self._encode_integer(values, xp, random)
        word = xp.ascontiguousarray(values).view(xp.int32).reshape(values.shape)
        magnitude = word & 0x7FFFFFFF
        exponent = xp.maximum(magnitude >> 23, 1)
        significand = (magnitude & 0x7FFFFF) | ((magnitude >= 0x800000).astype(xp.int32) << 23)
        # Below its lowest binade the target keeps its spacing: a bit more goes with each binade.
        lowest = 127 - self.bias + 1
        shift = 23 - self.mantissa + xp.maximum(lowest - exponent, 0)
        rounded = _nearest(significand, shift, xp) if random is None else _stochastic(significand, shift, random, xp)
        code = xp.minimum((xp.maximum(exponent - lowest, 0) << self.mantissa) + rounded, self.max_code)
        if not saturate_inf and self.has_nan:
            code = xp.where(magnitude == 0x7F800000, self.max_code + 1 if self.specials == "ieee" else self.nan_code, code)
        sign = ((word >> 31) & 1) << (self.bits - 1)
        code = xp.where(code == 0, 0, code | sign) if self.specials == "fnuz" else code | sign
        code = xp.where(magnitude > 0x7F800000, self.nan_code, code)
        return code.astype(xp.uint8 if self.bits <= 8 else xp.uint16)

    def _encode_integer(self, values: Any, xp: ModuleType, random: Any) -> Any:
        if random is None:
            whole = xp.rint(values)
        else:
            below = xp.floor(values)
            whole = below + ((random >> 8).astype(xp.float32) * np.float32(2.0**-24) < values - below)
        whole = xp.where(values == values, xp.clip(whole, np.float32(self.min), np.float32(self.max)), np.float32(0))
        return (whole.astype(xp.int32) & ((1 << self.bits) - 1)).astype(xp.uint8)

    def decode(self, codes: Any, xp: ModuleType = np) -> Any:
        """The float32 value of each code of an integer array, exactly; `xp` is its array module."""
        return xp.take(xp.asarray(_values(self)), codes)


def _nearest(significand: Any, shift: Any, xp: ModuleType) -> Any:
    shift = xp.minimum(shift, 25)
    half = (1 << (shift - 1)) - 1
    return (significand + half + ((significand >> shift) & 1)) >> shift


def _stochastic(significand: Any, shift: Any, random: Any, xp: ModuleType) -> Any:
    shift = xp.minimum(shift, 63).astype(xp.uint64)
    wide = significand.astype(xp.uint64)
    whole = wide >> shift
    rest = ((wide - (whole << shift)) << xp.uint64(32)) >> shift
    return whole.astype(xp.int32) + (random < rest)


@cache
def _values(dtype: DType) -> np.ndarray[Any, Any]:
    """Value of every code, in code order, written straight from the definition of the fields."""
    if dtype.bits > (16 if dtype.is_float else 8):
        raise DTypeError(f"decode: expected a float type of 16 bits or fewer or an integer of 8 or fewer, got {dtype}")
    code = np.arange(1 << dtype.bits)
    if not dtype.is_float:
        value = np.where(code > dtype.max, code - len(code), code).astype(np.float64)
    else:
        below_sign = code & ((1 << (dtype.exponent + dtype.mantissa)) - 1)
        e, m = below_sign >> dtype.mantissa, below_sign & ((1 << dtype.mantissa) - 1)
        is_normal = (e > 0) | (dtype.mantissa == 0)
        significand = np.where(is_normal, m + (1 << dtype.mantissa), m).astype(np.float64)
        least = 1 if dtype.mantissa else 0
        value = np.ldexp(significand, np.maximum(e, least) - dtype.bias - dtype.mantissa)
        value[below_sign > dtype.max_code] = np.nan
        if dtype.specials == "ieee":
            value[below_sign == dtype.max_code + 1] = np.inf
        value = np.copysign(value, np.where(code > below_sign, -1.0, 1.0))
        if dtype.specials == "fnuz":
            value[dtype.nan_code] = np.nan
    out: np.ndarray[Any, Any] = value.astype(np.float32)
    out.flags.writeable = False
    return out


def _float(name: str, e: int, m: int, top: float, ptx: str, tma: str, specials: Specials, *, bias: int = 0, signed: bool = True) -> DType:
    kind = np.dtype(getattr(ml_dtypes, name) if hasattr(ml_dtypes, name) else name)
    return DType(name, signed + e + m, e, m, bias or (1 << (e - 1)) - 1, top, kind, ptx, tma, specials)


def _integer(name: str, ptx: str, tma: str) -> DType:
    kind = np.dtype(getattr(ml_dtypes, name) if hasattr(ml_dtypes, name) else name)
    info = ml_dtypes.iinfo(kind)  # type: ignore[no-untyped-call]
    bits = int(name.lstrip("uint"))
    return DType(name, bits, 0, bits - (info.min < 0), 0, int(info.max), kind, ptx, tma)


_ROWS = (
    _float("float8_e4m3fn", 4, 3, 448.0, "e4m3", "UINT8", "fn"),
    _float("float8_e4m3fnuz", 4, 3, 240.0, "", "UINT8", "fnuz", bias=8),
    _float("float8_e5m2", 5, 2, 57344.0, "e5m2", "UINT8", "ieee"),
    _float("float8_e5m2fnuz", 5, 2, 57344.0, "", "UINT8", "fnuz", bias=16),
    _float("float8_e8m0fnu", 8, 0, 2.0**127, "ue8m0", "UINT8", "fn", signed=False),
    _float("float6_e2m3fn", 2, 3, 7.5, "e2m3", "UINT8", "none"),
    _float("float6_e3m2fn", 3, 2, 28.0, "e3m2", "UINT8", "none"),
    _float("float4_e2m1fn", 2, 1, 6.0, "e2m1", "UINT8", "none"),
    _float("bfloat16", 8, 7, (2 - 2.0**-7) * 2.0**127, "bf16", "BFLOAT16", "ieee"),
    _float("float16", 5, 10, 65504.0, "f16", "FLOAT16", "ieee"),
    _float("float32", 8, 23, (2 - 2.0**-23) * 2.0**127, "f32", "FLOAT32", "ieee"),
    _float("float64", 11, 52, (2 - 2.0**-52) * 2.0**1023, "f64", "FLOAT64", "ieee"),
    _integer("int4", "s4", "UINT8"),
    _integer("uint4", "u4", "UINT8"),
    _integer("int8", "s8", "UINT8"),
    _integer("uint8", "u8", "UINT8"),
    _integer("uint16", "u16", "UINT16"),
    _integer("int32", "s32", "INT32"),
    _integer("uint32", "u32", "UINT32"),
    _integer("int64", "s64", "INT64"),
    _integer("uint64", "u64", "UINT64"),
)

DTYPES: dict[str, DType] = {row.name: row for row in _ROWS}
"""Every element type, by its name in ml_dtypes or NumPy."""


def as_dtype(x: Any) -> DType:
    """The row for `x`: a `DType`, a name, a NumPy or ml_dtypes dtype or scalar type, or a torch or JAX dtype.

    Raises:
        DTypeError: a type that has no row.

    >>> as_dtype("bfloat16").bits
    16
    """
    if isinstance(x, DType):
        return x
    if x is None or isinstance(x, str):
        name = str(x)
    else:
        try:
            name = np.dtype(x).name
        except TypeError:
            # A torch dtype is no NumPy dtype; its text is "torch.float8_e4m3fn", and its names are
            # these names.
            name = str(x).removeprefix("torch.")
    if name not in DTYPES:
        raise DTypeError(f"dtype: expected one of {', '.join(DTYPES)}; got {name}")
    return DTYPES[name]
