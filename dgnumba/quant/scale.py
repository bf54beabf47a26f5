"""From the largest magnitude of a block to its scale, by every rule in use.

A rule fixes the scale *before* the data is divided by it, and the scale that is stored is the one
that the data is divided by. What the rules give for e4m3 (largest value 448 = 1.75 * 2^8), as the
UE8M0 byte b that means 2^(b - 127)::

    amax            6   448   449   480   560   672
    rceil         121   127   128   128   128   128     least power of two >= amax / 448: never clips
    floor         121   127   127   127   128   128     2^(floor(log2 amax) - 8): clips up to 512 / 448
    ceil          122   128   128   128   129   129     2^(ceil(log2 amax) - 8): never clips
    even          121   127   127   127   128   128     floor, of amax rounded to 3 bits of mantissa
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..dtypes import DTYPES, DType
from ..errors import DTypeError, ProblemError
from ..xp import carrier, namespace

F32, E8M0, E4M3 = DTYPES["float32"], DTYPES["float8_e8m0fnu"], DTYPES["float8_e4m3fn"]

AMAX_FLOOR = np.float32(1e-4)
"""DeepGEMM's: a smaller block is scaled as if it were this large, so that no scale is zero."""

LEAST_SCALE = np.float32(2.0**-126)
"""Of the other rules, in float32: the least whose inverse is finite. A block of zeros has it."""

LEAST_GLOBAL = np.float32(2.0**-100)
"""Of a tensor's one scale above its block scales: times the least of those it still has a finite inverse."""

LEAST_GIVEN, MOST_GIVEN = np.float32(2.0**-116), np.nextafter(np.float32(2.0**128 / 448), np.float32(0))
"""Of a tensor's scale that the caller gives: with it the least scale of a block is ten binades from subnormal, and the largest finite."""

Statistic = Literal["amax", "extrema"]


@dataclass(frozen=True)
class Rule:
    """How a block's scale follows from its data.

    statistic  what of the block is looked at: its largest magnitude, or its least and largest value
    divisor    what amax is divided by; None: the largest value of the element type
    """

    statistic: Statistic = "amax"
    divisor: float | None = None


UE8M0_RULES = ("rceil", "floor", "ceil", "even")

RULES: dict[str, Rule] = {
    "amax": Rule(),
    "amax/7": Rule(divisor=7.0),
    "amax/7.5": Rule(divisor=7.5),
    "extremum/-8": Rule("extrema", -8.0),
    "minmax": Rule("extrema", 15.0),
    **dict.fromkeys(UE8M0_RULES, Rule()),
    "deepgemm": Rule(),
    "deepgemm_ue8m0": Rule(),
}
"""Every rule by its name; `Format` says which element and scale types take which."""


def scale_from_amax(amax: Any, dtype: DType, use_ue8m0: bool = False) -> Any:
    """The float32 scale that puts a block of largest magnitude `amax` on the whole range of `dtype`.

    ``max(amax, 1e-4) / dtype.max`` in float32, as DeepGEMM; with `use_ue8m0` then rounded up to a
    power of two. NaN stays NaN and infinity infinity, unless `use_ue8m0`: there both become 2^127.

    Args:
        amax: float32 array, NumPy or CuPy.
    """
    xp = namespace(amax)
    scale = xp.maximum(amax, AMAX_FLOOR) / np.float32(dtype.max)
    return ceil_to_ue8m0(scale) if use_ue8m0 else scale


def ceil_to_ue8m0(x: Any) -> Any:
    """The least power of two that is at least ``|x|``, as float32: the values of UE8M0 bytes 1 to 254.

    As DeepGEMM's: zero and subnormals become 2^-126 (byte 1, not 0), infinity and NaN 2^127. To say
    it with the bits: one is added to the exponent if any bit of the mantissa is set.

    >>> ceil_to_ue8m0(np.float32([1.0, 1.125, 5.0, 0.0])).tolist()
    [1.0, 2.0, 8.0, 1.1754943508222875e-38]
    """
    xp = namespace(x)
    word = _bits(xp.abs(x), xp)
    exponent = (word >> 23) + ((word & 0x7FFFFF) != 0).astype(xp.int32)
    return (xp.clip(exponent, 1, 254) << 23).astype(xp.int32).view(xp.float32)


def ue8m0_codes(amax: Any, dtype: DType, rule: str = "rceil") -> Any:
    """The UE8M0 byte of blocks of these largest magnitudes, by one of `UE8M0_RULES`, as uint8.

    Bytes 0 (2^-127) to 254, clamped; 255, NaN, where `amax` is not finite. DIFFERS from
    `ceil_to_ue8m0`, which stays at 1 and above and knows no NaN.

    Args:
        amax: float32 array of 0 or more, NumPy or CuPy.
        dtype: of the elements.

    >>> ue8m0_codes(np.float32([448, 449, 0, np.nan]), DTYPES["float8_e4m3fn"]).tolist()
    [127, 128, 0, 255]
    """
    if rule not in UE8M0_RULES:
        raise ProblemError(f"rule: expected one of {', '.join(UE8M0_RULES)}, got {rule}")
    xp = namespace(amax)
    with np.errstate(invalid="ignore"):
        is_finite = amax <= F32.max
        word = _bits(amax / np.float32(dtype.max) if rule == "rceil" else amax, xp)
    if rule == "even":
        word = word + (1 << (22 - dtype.mantissa))
    exponent = word >> 23
    if rule in ("rceil", "ceil"):
        exponent = exponent + ((word & 0x7FFFFF) != 0).astype(xp.int32)
    if rule == "rceil":
        exponent = xp.where(word <= 0x400000, 0, exponent)  # up to 2^-127 itself
    else:
        exponent = exponent - int(np.floor(np.log2(dtype.max)))
    return xp.where(is_finite, xp.clip(exponent, 0, 254), 255).astype(xp.uint8)


def global_scale_from_amax(amax: Any, dtype: DType = DTYPES["float4_e2m1fn"]) -> Any:
    """NVFP4's one float32 scale of a tensor of largest magnitude `amax`: ``amax / (448 * 6)``, at least 2^-100.

    A multiplier. compressed-tensors and vLLM store its inverse, ``448 * 6 / amax``.
    """
    xp = namespace(amax)
    return xp.maximum(xp.asarray(amax, xp.float32) / np.float32(E4M3.max * dtype.max), LEAST_GLOBAL)


def round_scale(scale: Any, dtype: DType) -> Any:
    """float32 scales rounded to what `dtype` holds, as float32.

    To nearest, ties to even; below the type's normal range up in magnitude, so that coarse steps
    there never clip; at least its smallest positive number, or `LEAST_SCALE`, and at most its
    largest. NaN stays.
    """
    xp = namespace(scale)
    size = xp.maximum(xp.abs(scale), np.float32(max(dtype.min_subnormal, float(LEAST_SCALE))))
    if dtype is not F32:
        step, normal = np.float32(dtype.min_subnormal), np.float32(dtype.min_normal)
        size = xp.where(size < normal, xp.ceil(xp.minimum(size, normal) / step) * step, _nearest(size, dtype))
    return xp.where(scale < 0, -size, size)


def encode_scales(scale: Any, dtype: DType, argument: str = "scale") -> Any:
    """float32 scales as an array of `dtype` (its codes, where the array module lacks it), exactly.

    Raises:
        ProblemError: a scale that `dtype` does not hold, as 1.5 or 0 in UE8M0; one that is negative
            there.
    """
    xp = namespace(scale)
    if dtype is F32:
        return scale
    if dtype is E8M0:
        codes = (_bits(scale, xp) >> 23).astype(xp.uint8)
    elif xp is np:
        codes = _cast(scale, dtype).view(f"u{dtype.itemsize}")
    else:
        codes = dtype.encode(scale, xp, saturate_inf=False)
    held = dtype.decode(codes, xp)
    bad = (held != scale) & (scale == scale)
    if bool(bad.any()):
        where = tuple(int(axis[0]) for axis in xp.nonzero(bad))
        raise ProblemError(
            f"{argument}: expected scales that {dtype} holds exactly, got {float(scale[where]):g} at {list(where)} "
            f"({int(bad.sum())} such of {scale.size}); round them before the data is divided by them"
        )
    return codes.view(dtype.numpy) if carrier(dtype, scale) == dtype.numpy else codes


def decode_scales(scale: Any, dtype: DType) -> Any:
    """float32 values of scales of `dtype`, or of their codes; a float32 array as it is."""
    xp = namespace(scale)
    if dtype is F32:
        return scale
    if dtype.is_native and scale.dtype == dtype.numpy:
        return scale.astype(xp.float32)
    if dtype.bits > 16 or not dtype.is_float:
        raise DTypeError(f"scale: expected float32 or a float type of 16 bits or fewer, got {dtype}")
    return dtype.decode(scale if scale.dtype.kind == "u" else scale.view(f"u{dtype.itemsize}"), xp)


def _nearest(scale: Any, dtype: DType) -> Any:
    """float32 scales of 0 or more to nearest in `dtype`, at most its largest, as float32."""
    xp = namespace(scale)
    if xp is np:
        return _cast(scale, dtype).astype(np.float32)
    return dtype.decode(dtype.encode(scale, xp), xp)


def _cast(scale: Any, dtype: DType) -> Any:
    """NumPy's or ml_dtypes' own cast, quicker than `encode`, which saturates."""
    return np.clip(scale, np.float32(-dtype.max), np.float32(dtype.max)).astype(dtype.numpy)


def _bits(x: Any, xp: Any) -> Any:
    """float32 as int32, the same bits."""
    return xp.ascontiguousarray(x, dtype=xp.float32).view(xp.int32).reshape(x.shape)
