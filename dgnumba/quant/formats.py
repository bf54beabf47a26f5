"""The quantization formats by name: element type, granularity, scale type and rule of each.

=====================  ==========  ===========  ===========  ==============================================
name                   element     one scale    scale        rule
=====================  ==========  ===========  ===========  ==============================================
fp8_1x128              e4m3        1x128        float32      amax / 448
fp8_128x1, _128x128    e4m3        128x1, ...   float32      amax / 448
fp8_row, fp8_tensor    e4m3        row, tensor  float32      amax / 448
mxfp8, mxfp8_e5m2      e4m3, e5m2  1x32         UE8M0        rceil (or floor, ceil, even)
mxfp6_e2m3, _e3m2      e2m3, e3m2  1x32         UE8M0        rceil (...)
mxfp4                  e2m1        1x32         UE8M0        rceil (...)
nvfp4                  e2m1        1x16         e4m3         amax / 6 / global; global = amax / 2688
int4_g128, _row, ...   int4        1x128, row   float32, 16  amax / 7 (or amax / 7.5, extremum / -8)
uint4_g128, ...        uint4       1x128, ...   float32, 16  (max - min) / 15, with a zero point
int8_row               int8        row          float32      amax / 127
=====================  ==========  ===========  ===========  ==============================================

DIFFERS: OCP MX v1.0 names the rule floor, which clips; the default here is rceil, which does not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ..dtypes import DTYPES, DType, as_dtype
from ..errors import DTypeError, ProblemError, guess
from .scale import E4M3, E8M0, F32, RULES, UE8M0_RULES

WHOLE = 0
"""In a granularity: the whole extent, all rows or all columns."""

E2M1 = DTYPES["float4_e2m1fn"]
_INTEGER_RULES = {"int4": ("amax/7", "amax/7.5", "extremum/-8"), "uint4": ("minmax",), "int8": ("amax",)}


@dataclass(frozen=True)
class Format:
    """What a quantizer makes of an array: which elements, how many share a scale, and how it is found.

    Attributes:
        name: for messages and reports.
        dtype: of the elements: a float of 4 to 8 bits, int4, uint4 or int8; or its name.
        granularity: rows and columns that share a scale; 0 for all of them.
        scale_dtype: float32, float16 or bfloat16, UE8M0, or, for NVFP4, e4m3 with a global scale.
        rule: one of `quant.scale.RULES` that element and scale types take.

    Raises:
        DTypeError: an element or scale type that no quantizer takes. ProblemError: a rule that does
            not go with them, or a negative granularity.

    >>> Format("mine", "float8_e5m2", (1, 64))
    Format(mine: float8_e5m2, float32 scale by amax, one per 1x64)
    """

    name: str
    dtype: DType
    granularity: tuple[int, int]
    scale_dtype: DType = F32
    rule: str = "amax"

    def __post_init__(self) -> None:
        for field in ("dtype", "scale_dtype"):
            object.__setattr__(self, field, as_dtype(getattr(self, field)))
        if len(self.granularity) != 2 or min(self.granularity) < 0:
            raise ProblemError(f"granularity: expected (rows, columns), each 1 or more or 0 for all, got {self.granularity}")
        rules = self.rules
        if self.rule not in rules:
            raise ProblemError(f"rule: expected one of {', '.join(rules)} for {self.dtype} with {self.scale_dtype} scales, got {self.rule}")

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules that the element and scale types take."""
        element, scale = self.dtype, self.scale_dtype
        if element.is_float and not (4 <= element.bits <= 8 and element.is_signed):
            raise DTypeError(f"dtype: expected a signed float of 4 to 8 bits, int4, uint4 or int8, got {element}")
        if not element.is_float and element.name not in _INTEGER_RULES:
            raise DTypeError(f"dtype: expected a signed float of 4 to 8 bits, int4, uint4 or int8, got {element}")
        if scale is E8M0 and element.is_float:
            return UE8M0_RULES
        if scale not in (F32, DTYPES["float16"], DTYPES["bfloat16"]) and not (scale is E4M3 and element.is_float):
            raise DTypeError(f"scale_dtype: expected float32, float16 or bfloat16 (floats: {E8M0} or {E4M3} too), got {scale}")
        if not element.is_float:
            return _INTEGER_RULES[element.name]
        return ("amax", "deepgemm", "deepgemm_ue8m0") if scale is F32 else ("amax",)

    @property
    def has_zero_point(self) -> bool:
        """Whether each block has a zero point too."""
        return self.rule == "minmax"

    @property
    def has_global_scale(self) -> bool:
        """Whether the tensor has a float32 scale above its block scales."""
        return self.scale_dtype is E4M3

    @property
    def never_clips(self) -> bool:
        """Whether the rule, with its scales not rounded, puts every element within half a step of the range."""
        return self.rule not in ("floor", "even", "extremum/-8") and not self.has_global_scale

    @property
    def largest(self) -> float:
        """What a rule puts a block's amax on at most: the largest element, or as an integer rule says."""
        return abs(RULES[self.rule].divisor or self.dtype.max)

    def with_rule(self, rule: str) -> Format:
        """The same format under another rule."""
        return replace(self, rule=rule)

    def blocks(self, rows: int, columns: int) -> tuple[int, int]:
        """Rows and columns of a block in a matrix of these extents: what of it is there, at least 1."""
        gm, gk = self.granularity
        return gm or max(rows, 1), gk or max(columns, 1)

    def __repr__(self) -> str:
        gm, gk = ("all" if g == WHOLE else str(g) for g in self.granularity)
        return f"Format({self.name}: {self.dtype}, {self.scale_dtype} scale by {self.rule}, one per {gm}x{gk})"


def fp8_format(rows: int = 1, columns: int = 128, dtype: DType | str = E4M3) -> Format:
    """FP8 with one float32 scale for each block of rows by columns; 0 for all of them."""
    shape = {(1, 0): "row", (0, 0): "tensor"}.get((rows, columns), f"{rows or 'all'}x{columns or 'all'}")
    kind = as_dtype(dtype)
    suffix = "" if kind is E4M3 else f"_{kind.name.removeprefix('float8_')}"
    return Format(f"fp8{suffix}_{shape}", kind, (rows, columns))


def mx_format(dtype: DType | str, rule: str = "rceil", group: int = 32) -> Format:
    """An OCP microscaling format: a float of 4 to 8 bits with one UE8M0 scale for 32 columns."""
    kind = as_dtype(dtype)
    name = {"float8_e4m3fn": "mxfp8", "float4_e2m1fn": "mxfp4"}.get(kind.name)
    name = name or f"mxfp{kind.bits}_{kind.name.split('_')[1].removesuffix('fn')}"
    return Format(name if group == 32 else f"{name}_g{group}", kind, (1, group), E8M0, rule)


def int4_format(group: int = 128, rule: str = "amax/7", scale_dtype: DType | str = F32) -> Format:
    """int4 with one scale for `group` columns (0 or -1: the whole row), symmetric.

    Args:
        group: columns that share a scale.
        rule: "amax/7" (never clips, -8 unused), "amax/7.5" (torchao, compressed-tensors: what lies
            at +7.5 clips by half a step), or "extremum/-8" (gguf: the element of largest magnitude
            is exact, its negative clips by a step, the scale is negative where it is positive).
        scale_dtype: float32, float16 or bfloat16.
    """
    return Format(_integer_name("int4", group), DTYPES["int4"], (1, max(group, 0)), as_dtype(scale_dtype), rule)


def uint4_format(group: int = 128, scale_dtype: DType | str = F32) -> Format:
    """uint4 with one scale and one zero point for `group` columns (0 or -1: the whole row)."""
    return Format(_integer_name("uint4", group), DTYPES["uint4"], (1, max(group, 0)), as_dtype(scale_dtype), "minmax")


def _integer_name(kind: str, group: int) -> str:
    return f"{kind}_row" if group <= 0 else f"{kind}_g{group}"


MXFP8, MXFP8_E5M2 = mx_format("float8_e4m3fn"), mx_format("float8_e5m2")
MXFP6_E2M3, MXFP6_E3M2 = mx_format("float6_e2m3fn"), mx_format("float6_e3m2fn")
MXFP4 = mx_format("float4_e2m1fn")
NVFP4 = Format("nvfp4", E2M1, (1, 16), E4M3)
INT8 = Format("int8_row", DTYPES["int8"], (1, WHOLE))
INT4, UINT4 = int4_format(), uint4_format()

FORMATS: dict[str, Format] = {
    form.name: form
    for form in (
        *(fp8_format(rows, columns) for rows, columns in ((1, 128), (128, 128), (128, 1), (1, 0), (0, 0))),
        *(MXFP8, MXFP8_E5M2, MXFP6_E2M3, MXFP6_E3M2, MXFP4, NVFP4, INT8),
        *(make(group) for make in (int4_format, uint4_format) for group in (16, 32, 64, 128, -1)),
    )
}
"""The formats by name; any other group of columns is taken in a name too (`as_format`)."""


def as_format(x: Format | str) -> Format:
    """A format by its name, in whatever case: one of `FORMATS`, or with another group, as in ``int4_g48`` or ``fp8_1x64``.

    Raises:
        ProblemError: no such format.

    >>> as_format("int4_g48").granularity
    (1, 48)
    """
    if isinstance(x, Format):
        return x
    name = x.lower() if isinstance(x, str) else ""
    if name in FORMATS:
        return FORMATS[name]
    group = re.fullmatch(r"(int4|uint4|mxfp4|mxfp8)_g([1-9]\d*)", name)
    if group is not None:
        columns = int(group[2])
        if group[1].startswith("mx"):
            return mx_format(E2M1 if group[1] == "mxfp4" else E4M3, group=columns)
        return (int4_format if group[1] == "int4" else uint4_format)(columns)
    block = re.fullmatch(r"fp8_([1-9]\d*)x([1-9]\d*)", name)
    if block is not None:
        return fp8_format(int(block[1]), int(block[2]))
    raise ProblemError(f"format: expected one of {', '.join(FORMATS)}, or a Format, got {x!r}{guess(x, FORMATS)}")
