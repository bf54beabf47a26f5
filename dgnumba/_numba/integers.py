"""The compiled side of `u32` and `u64` (`dgnumba.integers` is the Python side): Numba types, operators and casts.

No conversion is implicit. Numba would use one silently: to the first overload of a function that it lists, which takes an int8, or to
cut a float to an integer that stands beside. So each use of an unsigned integer is declared, here and in `builtins`, and
what is not declared does not compile.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.core.errors import TypingError
from numba.cuda.cudadecl import registry as typing_registry
from numba.cuda.cudaimpl import lower
from numba.cuda.cudaimpl import registry as impl_registry
from numba.cuda.extending import models, register_model, typeof_impl
from numba.cuda.typeconv import Conversion
from numba.cuda.typing.templates import AbstractTemplate, signature

from ..integers import ADVICE, COMPARISONS, u32, u64
from .instructions import ARITHMETIC, Emit, compare, constant, extreme, resize


class UnsignedType(types.Type):
    """Numba's type of `u32` or `u64`. Not a `types.Integer`: Numba's own promotion rules must not see it."""

    def __init__(self, python_type: type) -> None:
        self.bits: int = python_type.bits  # type: ignore[attr-defined]
        super().__init__(name=python_type.__name__)

    @property
    def plain(self) -> Any:
        """Numba's integer of the same bits."""
        return types.uint32 if self.bits == 32 else types.uint64

    def unify(self, context: Any, other: Any) -> Any:
        if isinstance(other, (UnsignedType, types.Number, types.Boolean)):
            raise TypingError(
                f"a variable that is now {self} and now {types.unliteral(other)}: Python would keep each as it is, so write "
                f"{self}(...) for the other, as in `x if c else {self}(3)` or `total = {self}(0)`"
            )
        return None

    def can_convert_to(self, context: Any, other: Any) -> Any:
        return Conversion.promote if isinstance(other, UnsignedType) and other.bits > self.bits else None


U32, U64 = UnsignedType(u32), UnsignedType(u64)
NUMBA_TYPE = {u32: U32, u64: U64}
WHOLE = (UnsignedType, types.Integer, types.Boolean)
"""The types that an unsigned integer takes beside it."""


@register_model(UnsignedType)
class _UnsignedModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: UnsignedType) -> None:
        super().__init__(dmm, fe_type, ir.IntType(fe_type.bits))


@typeof_impl.register(u32)
@typeof_impl.register(u64)
def _typeof(value: Any, context: Any) -> UnsignedType:
    return NUMBA_TYPE[type(value)]


class Template(AbstractTemplate):
    """The base of our typings: they are tried before Numba's own."""

    metadata = {"target": "cuda"}


def widest(args: tuple[Any, ...]) -> Any:
    """The widest unsigned type among `args`; None when there is none, or something that is no integer."""
    ours = [a for a in args if isinstance(a, UnsignedType)]
    return max(ours, key=lambda t: t.bits) if ours and all(isinstance(a, WHOLE) for a in args) else None


def refusal(name: str, args: tuple[Any, ...]) -> TypingError:
    """What to say of an unsigned integer beside a float."""
    return TypingError(f"{name} of {' and '.join(map(str, args))}: {ADVICE}")


def _declare(function: Any, emit: Callable[..., Any], operands: int = 2, result: Any = None, name: str = "") -> None:
    """Type and lower `function` on `operands` operands, which become one unsigned type; `emit(builder, *operands)`."""

    class Operator(Template):
        key = function

        def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
            if kws or len(args) != operands or not any(isinstance(a, UnsignedType) for a in args):
                return None
            common = widest(args)
            if common is not None and operands == 2 and result is None and isinstance(args[0], types.Boolean):
                # Python does not ask u32 for ``True + u32``: it is a plain integer
                numbas = self.context.resolve_value_type(function)
                return numbas.get_call_type(self.context, (types.int64, types.int64), {})
            if common is not None:
                return signature(result or common, *[common] * operands)
            if any(isinstance(a, (types.Float, types.Complex)) for a in args):
                raise refusal(name or function.__name__, args)
            return None

    typing_registry.register_global(function, types.Function(Operator))
    lower(function, *[UnsignedType] * operands)(lambda context, builder, sig, args: emit(builder, *args))


def _comparison(symbol: str) -> Emit:
    return lambda builder, x, y: compare(builder, symbol, x, y)


for _name, _emit in ARITHMETIC.items():
    _declare(getattr(operator, f"__{_name}__"), _emit, name=_name)
    _declare(getattr(operator, f"__i{_name}__"), _emit, name=_name)
for _name, _symbol in COMPARISONS.items():
    _declare(getattr(operator, _name), _comparison(_symbol), result=types.boolean)
_declare(pow, ARITHMETIC["pow"])


def _is_nonzero(builder: ir.IRBuilder, x: Any) -> Any:
    return builder.icmp_unsigned("!=", x, constant(x.type, 0))


_declare(operator.invert, lambda b, x: b.not_(x), operands=1)
_declare(operator.neg, lambda b, x: b.neg(x), operands=1)
_declare(operator.pos, lambda b, x: x, operands=1)
_declare(abs, lambda b, x: x, operands=1)
_declare(bool, _is_nonzero, operands=1, result=types.boolean)
_declare(operator.truth, _is_nonzero, operands=1, result=types.boolean)
_declare(operator.not_, lambda b, x: b.not_(_is_nonzero(b, x)), operands=1, result=types.boolean)


def _declare_quotient(function: Any) -> None:
    class Quotient(Template):
        key = function

        def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
            if any(isinstance(a, UnsignedType) for a in args):
                raise TypingError(
                    "an unsigned integer has no /: write // for the whole quotient, np.float32(x) / np.float32(y) for a float"
                )
            return None

    typing_registry.register_global(function, types.Function(Quotient))


_declare_quotient(operator.truediv)
_declare_quotient(operator.itruediv)


class _DivMod(Template):
    key = divmod

    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        common = widest(args)
        if common is None or len(args) != 2 or isinstance(args[0], types.Boolean):
            return None
        return signature(types.UniTuple(common, 2), common, common)


typing_registry.register_global(divmod, types.Function(_DivMod))


@lower(divmod, UnsignedType, UnsignedType)
def _divmod(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    parts = [ARITHMETIC[name](builder, *args) for name in ("floordiv", "mod")]
    return context.make_tuple(builder, sig.return_type, parts)


def _declare_extreme(function: Any, emit: Emit) -> None:
    class Extreme(Template):
        key = function

        def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
            is_tuple = len(args) == 1 and isinstance(args[0], types.BaseTuple)
            among = tuple(args[0]) if is_tuple else args
            common = widest(among)
            if common is not None:
                return signature(common, *([types.UniTuple(common, len(among))] if is_tuple else [common] * len(among)))
            if any(isinstance(a, UnsignedType) for a in among):
                raise refusal(function.__name__, among)
            return None

    typing_registry.register_global(function, types.Function(Extreme))

    @lower(function, types.VarArg(UnsignedType))
    def _of_arguments(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        first, *others = args
        for other in others:
            first = emit(builder, first, other)
        return first


_declare_extreme(min, extreme("<"))
_declare_extreme(max, extreme(">"))


def _declare_constructor(python_type: type, numba_type: UnsignedType) -> None:
    class Constructor(Template):
        key = python_type

        def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
            if kws or len(args) != 1:
                return None
            if isinstance(args[0], types.Float):
                raise TypingError(f"{numba_type}: expected an integer, got {args[0]}; int(x) cuts a float")
            return signature(numba_type, numba_type) if isinstance(args[0], WHOLE) else None

    typing_registry.register_global(python_type, types.Function(Constructor))
    lower(python_type, UnsignedType)(lambda context, builder, sig, args: args[0])


for _python_type, _numba_type in NUMBA_TYPE.items():
    _declare_constructor(_python_type, _numba_type)


@impl_registry.lower_cast(types.Integer, UnsignedType)
@impl_registry.lower_cast(types.Boolean, UnsignedType)
@impl_registry.lower_cast(UnsignedType, UnsignedType)
def _cast_in(context: Any, builder: Any, source: Any, target: Any, value: Any) -> Any:
    return resize(builder, value, target.bits, is_signed=isinstance(source, types.Integer) and source.signed)


@impl_registry.lower_cast(UnsignedType, types.Integer)
def _cast_out(context: Any, builder: Any, source: Any, target: Any, value: Any) -> Any:
    return resize(builder, value, target.bitwidth)


@impl_registry.lower_cast(UnsignedType, types.Float)
def _cast_to_float(context: Any, builder: Any, source: Any, target: Any, value: Any) -> Any:
    """Through float64, as Python does: a `u64` is rounded twice on its way to a float32."""
    if source.bits == 32:
        return context.cast(builder, value, types.uint32, target)
    return context.cast(builder, context.cast(builder, value, types.uint64, types.float64), types.float64, target)


@impl_registry.lower_cast(UnsignedType, types.Boolean)
def _cast_bool(context: Any, builder: Any, source: Any, target: Any, value: Any) -> Any:
    return _is_nonzero(builder, value)


@impl_registry.lower_constant(UnsignedType)
def _constant(context: Any, builder: Any, ty: Any, value: Any) -> Any:
    return constant(ir.IntType(ty.bits), int(value))


from . import builtins as _builtins  # noqa: E402, F401  (what Numba's own functions make of an unsigned integer)
