"""What `convert` and `quantize` make new layers with: for each checkpoint format a quantizer, and the scheme of what it gives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import ProblemError
from ..quant import Format, QTensor, as_format, global_scale_from_amax, quantize
from .fp4 import MX_SCHEME, NV_SCHEME, Nvfp4
from .layer import LayerFormat, Scheme

FLOATS = ("float32", "bfloat16", "float16")
"""What layers can be converted to that are then quantized no more."""

_OF_INT4 = ("group", "zero_points", "search", "scale_dtype", "rule")
_TAKES: dict[str, tuple[str, ...]] = {"fp8-block": ("search", "use_ue8m0"), "mxfp4": ("search", "rule"), "mxfp4-stack": ("search", "rule")}
_TAKES |= {"nvfp4": ("search",), "nvfp4-modelopt": ("search",), **dict.fromkeys(FLOATS, ())}
"""Format -> the options that say something about it, beside `measure`; of the formats of int4 all but one."""

DEFAULT_GROUP = 128


@dataclass(frozen=True)
class Options:
    """How layers are quantized anew.

    Attributes:
        group: columns that share a scale, of AWQ, GPTQ and compressed-tensors; -1 for all of K.
            None: 128, or as the layer has it already.
        zero_points: whether each group has one, of the same; None: AWQ yes, GPTQ and
            compressed-tensors no, or as the layer has it already.
        search: look for the scales of the least squared error (quant.quantize).
        use_ue8m0: scales of FP8 blocks are powers of two.
        scale_dtype: of int4 formats: float16 or bfloat16; None: float16 for AWQ and GPTQ, for
            compressed-tensors that of the weight it is made of, if it is one of them.
        rule: of int4 without zero points: "amax/7", "amax/7.5" or "extremum/-8"; of MXFP4 "rceil",
            "floor", "ceil" or "even". None: the first.
        measure: compare every element with what it was, for the report; takes most of the time.

    What says nothing about the format that is made is refused.
    """

    group: int | None = None
    zero_points: bool | None = None
    search: bool = False
    use_ue8m0: bool = False
    scale_dtype: str | None = None
    rule: str | None = None
    measure: bool = True

    def __post_init__(self) -> None:
        if self.group is not None and self.group != -1 and self.group < 1:
            raise ProblemError(f"group: expected 1 or more, or -1 for all of K, got {self.group}")
        if self.scale_dtype not in (None, "float16", "bfloat16"):
            raise ProblemError(f"scale_dtype: expected float16 or bfloat16, got {self.scale_dtype}")


def check_options(options: Options, to: str) -> None:
    """Refuse options that a format does not take.

    Raises:
        ProblemError: such an option, or a rule that does not go with the rest; says what is taken.
    """
    taken = _TAKES.get(to, _OF_INT4)
    given = given_options(options)
    for name, value in given.items():
        if name not in taken:
            raise ProblemError(f"{name}: expected none for {to}, which takes {', '.join(taken) or 'no options'}, got {value}")
    if options.rule is None:
        return
    if to in _TAKES:
        as_format("mxfp4").with_rule(options.rule)
    elif has_zero_points(options, to):
        hint = f"; {to} has them unless zero_points (--no-zero-points) says otherwise" if options.zero_points is None else ""
        raise ProblemError(f"rule: expected none with zero points, got {options.rule}{hint}")
    else:
        as_format("int4_g128").with_rule(options.rule)


def given_options(options: Options) -> dict[str, Any]:
    """The options that are not as they are by default, `measure` apart."""
    return {
        name: value
        for name, value in vars(options).items()
        if name != "measure" and value is not None and value is not False or name == "zero_points" and value is False
    }


def has_zero_points(options: Options, to: str) -> bool:
    """Whether new int4 layers of this format get zero points."""
    return to == "awq" if options.zero_points is None else options.zero_points


@dataclass(frozen=True)
class Recipe:
    """A quantizer for one layer.

    scheme    of what comes out
    quant     the format in `quant`'s terms
    """

    scheme: Scheme
    quant: Format
    form: LayerFormat
    search: bool = False

    @property
    def is_symmetric(self) -> bool:
        """Whether every zero point of integers is the middle."""
        return self.quant.dtype.name == "int4"

    def __call__(self, x: Any, global_scale: Any = None) -> QTensor:
        """Rows of a layer, float32."""
        q = quantize(x, self.quant, search=self.search, global_scale=global_scale)
        if self.scheme.dtype == "uint4" and q.zero_point is None:
            zero = np.full(q.scale.shape, 8, np.uint8)
            q = QTensor(q.codes ^ 8, q.scale, "uint4", q.granularity, zero_point=zero)  # type: ignore[arg-type]
        return q

    def global_scale(self, amax: float) -> Any:
        """Of a tensor of this largest magnitude: what the format gives back when it is read."""
        if not self.scheme.has_global_scale:
            return None
        assert isinstance(self.form, Nvfp4)
        return np.asarray(self.form.multiplier(self.form.stored(global_scale_from_amax(np.float32(amax)))))


def recipe(form: LayerFormat, shape: tuple[int, ...], source: str, options: Options) -> Recipe:
    """How a float layer of `shape` and type `source` is quantized for a checkpoint format.

    Raises:
        ProblemError: options that the format does not take.
    """
    if form.name == "fp8-block":
        quant = as_format("fp8_128x128")
        quant = quant.with_rule("deepgemm_ue8m0" if options.use_ue8m0 else quant.rule)
        return Recipe(Scheme("float8_e4m3fn", (128, 128), "float32"), quant, form, options.search)
    if form.name.startswith("mxfp4"):
        quant = as_format("mxfp4")
        return Recipe(MX_SCHEME, quant.with_rule(options.rule) if options.rule else quant, form, options.search)
    if form.name.startswith("nvfp4"):
        return Recipe(NV_SCHEME, as_format("nvfp4"), form, options.search)
    return _int4_recipe(form, shape, source, options)


def _int4_recipe(form: LayerFormat, shape: tuple[int, ...], source: str, options: Options) -> Recipe:
    k = max(shape[-1], 1)
    group = k if options.group == -1 else min(options.group or DEFAULT_GROUP, k)
    has_zero = has_zero_points(options, form.name)
    default = source if form.name == "compressed-tensors" and source in ("float16", "bfloat16") else "float16"
    scale_dtype = options.scale_dtype or default
    name = f"{'uint4' if has_zero else 'int4'}_g{group}"
    quant = replace(as_format(name), scale_dtype=scale_dtype)  # type: ignore[arg-type]
    if options.rule:
        quant = quant.with_rule(options.rule)
    made = Scheme("uint4" if has_zero else "int4", (1, group), scale_dtype, has_zero)
    stored = form.as_stored(made)
    assert stored is not None
    form.check_written(shape, stored)
    return Recipe(stored, quant, form, options.search)


def keeps(options: Options, scheme: Scheme, k: int) -> bool:
    """Whether a layer is as the options ask for, where they ask: groups, zero points and scale type of int4."""
    if scheme.dtype not in ("int4", "uint4"):
        return True
    group = None if options.group is None else k if options.group == -1 else min(options.group, k)
    asked = ((group, scheme.granularity[1]), (options.zero_points, scheme.has_zero_point), (options.scale_dtype, scheme.scale_dtype))
    return all(wanted in (None, found) for wanted, found in asked)
