"""What Numba's own functions make of a `u32` or `u64`: each is declared, and passed on as one of Numba's plain integers.

Our typing of a function is tried first. It finds Numba's for plain integers in the place of unsigned ones; Numba casts the arguments to
those and lowers the call as its own, and the result may be ours again, which has the same bits.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

from numba import cuda
from numba.cuda import cudadecl, types
from numba.cuda.core.errors import TypingError
from numba.cuda.cudadecl import registry as typing_registry
from numba.cuda.printimpl import print_item
from numba.cuda.typing.builtins import NumberClassAttribute
from numba.cuda.typing.templates import AttributeTemplate, signature

from .instructions import resize
from .integers import U32, U64, Template, UnsignedType, refusal, widest

As = Callable[[UnsignedType], Any]


def _unsigned(ty: UnsignedType) -> Any:
    return ty.plain


def _signed(ty: UnsignedType) -> Any:
    return types.int32 if ty.bits == 32 else types.int64


def _index(ty: UnsignedType) -> Any:
    return types.uint64


def _flag(ty: UnsignedType) -> Any:
    return types.boolean


def _float(ty: UnsignedType) -> Any:
    return types.float64


def _count(ty: UnsignedType) -> Any:
    return types.int64


def _number(ty: UnsignedType) -> Any:
    if ty == U64:
        raise TypingError("int of a u64: a plain integer has 64 bits with a sign here, none in Python: write np.int64(x) or np.uint64(x)")
    return types.int64


def _predicate(ty: UnsignedType) -> Any:
    if ty == U64:
        raise TypingError("a u64 as a predicate of 32 bits: write u32(x != 0)")
    return types.int32


def _has_ours(ty: Any) -> bool:
    return any(map(_has_ours, ty)) if isinstance(ty, types.BaseTuple) else isinstance(ty, UnsignedType)


def _replace(ty: Any, as_: As) -> Any:
    """`ty` with every unsigned type in it as Numba's own."""
    if isinstance(ty, UnsignedType):
        return as_(ty)
    if _has_ours(ty) and not isinstance(ty, types.BaseNamedTuple):
        return types.BaseTuple.from_types([_replace(t, as_) for t in ty])
    return ty


Result = Callable[[tuple[Any, ...], Any], Any]
"""(argument types, Numba's result type) -> the result type."""


def _passed_on(function: Any, numbas: Callable[[Any], Any], as_: Callable[[tuple[Any, ...]], list[Any]], result: Result) -> type[Template]:
    """A typing of `function` by that of Numba's `numbas(context)`, for the argument types that `as_` makes of the real ones."""

    class PassedOn(Template):
        key = function

        def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
            if kws or not any(map(_has_ours, args)):
                return None
            plain = tuple(as_(args))
            if plain == tuple(args):
                return None
            callee = numbas(self.context)
            found = callee.get_call_type(self.context, plain, {})
            if found is None:
                return None
            self._impl_key = callee.get_impl_key(found)
            return signature(result(args, found.return_type), *found.args)

        def get_impl_key(self, sig: Any) -> Any:
            return self._impl_key

    return PassedOn


def _each(*rules: As) -> Callable[[tuple[Any, ...]], list[Any]]:
    """A rule for each argument; the last one for those that follow too."""
    return lambda args: [_replace(ty, rules[min(i, len(rules) - 1)]) for i, ty in enumerate(args)]


def _numbas(args: tuple[Any, ...], result: Any) -> Any:
    return result


def _declare(function: Any, *rules: As, result: Result = _numbas, as_: Any = None) -> None:
    """Type a function that Numba knows by the function itself."""
    template = _passed_on(function, lambda context: context.resolve_value_type(function), as_ or _each(*rules), result)
    typing_registry.register_global(function, types.Function(template))


_declare(int, _number)
_declare(float, _float)
_declare(range, _count)
_declare(slice, _count)


# Arrays and tuples


def _element(args: tuple[Any, ...]) -> list[Any]:
    container, index, value = args
    is_float = isinstance(getattr(container, "dtype", None), types.Float)
    # a u64 becomes a float by way of float64, see `integers`
    return [container, _replace(index, _index), _replace(value, lambda ty: types.float64 if is_float and ty == U64 else ty.plain)]


_declare(operator.getitem, lambda ty: ty, _index, as_=lambda args: [args[0], _replace(args[1], _index)])
_declare(operator.setitem, as_=_element)


# Constructors of Numba's numbers: np.float32(x), cuda.int32(x)


@functools.cache
def _constructor(ty: Any) -> type[Template]:
    class Constructor(Template):
        key = ty

        def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
            return signature(ty, *args) if len(args) == 1 and isinstance(args[0], UnsignedType) and not kws else None

    return Constructor


@typing_registry.register_attr
class _NumberClass(NumberClassAttribute):
    metadata = {"target": "cuda"}

    def resolve___call__(self, classty: Any) -> Any:
        numbas = super().resolve___call__(classty)
        return types.Function((_constructor(classty.instance_type), *numbas.templates))


# Functions of numba.cuda


def _same(args: tuple[Any, ...], result: Any) -> Any:
    return args[0]


class _Selp(Template):
    key = cudadecl.Cuda_selp.key

    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        if kws or len(args) != 3 or not any(isinstance(a, UnsignedType) for a in args):
            return None
        condition, *values = args
        if not any(isinstance(v, UnsignedType) for v in values):
            return signature(values[0], types.boolean, *values) if values[0] == values[1] else None
        common = widest(tuple(values))
        if common is None:
            raise refusal("selp", tuple(values))
        return signature(common, types.boolean, common, common)


def _of_cuda(numbas: Any, *rules: As, result: Result = _numbas) -> Any:
    """Our typing and Numba's, of a function that is an attribute of `cuda`."""
    ours = _passed_on(numbas.key, lambda context: types.Function(numbas), _each(*rules), result)
    return types.Function((ours, numbas))


_CUDA = {
    "popc": _of_cuda(cudadecl.Cuda_popc, _unsigned, result=_same),
    "clz": _of_cuda(cudadecl.Cuda_clz, _unsigned, result=_same),
    "brev": _of_cuda(cudadecl.Cuda_brev, _unsigned, result=_same),
    "ffs": _of_cuda(cudadecl.Cuda_ffs, _unsigned, result=lambda args, numbas: U32),
    "match_any_sync": _of_cuda(cudadecl.Cuda_match_any_sync, _signed),
    "match_all_sync": _of_cuda(cudadecl.Cuda_match_all_sync, _signed),
    "syncwarp": _of_cuda(cudadecl.Cuda_syncwarp, _signed),
    "nanosleep": _of_cuda(cudadecl.Cuda_nanosleep, _unsigned),
    "selp": types.Function((_Selp, cudadecl.Cuda_selp)),
}


@typing_registry.register_attr
class _CudaModule(AttributeTemplate):
    key = types.Module(cuda)
    metadata = {"target": "cuda"}

    def generic_resolve(self, module: Any, attribute: str) -> Any:
        return _CUDA.get(attribute)


def _shuffled(args: tuple[Any, ...], result: Any) -> Any:
    return args[1] if isinstance(args[1], UnsignedType) else result


for _function in (cuda.shfl_sync, cuda.shfl_up_sync, cuda.shfl_down_sync, cuda.shfl_xor_sync):
    _declare(_function, _signed, result=_shuffled)
for _function in (cuda.all_sync, cuda.any_sync, cuda.eq_sync, cuda.ballot_sync):
    _declare(_function, _signed, _flag)
for _function in (cuda.syncthreads_count, cuda.syncthreads_and, cuda.syncthreads_or):
    _declare(_function, _predicate)


@print_item.register(UnsignedType)
def _print(ty: UnsignedType, context: Any, builder: Any, value: Any) -> Any:
    return "%llu", [resize(builder, value, 64)]
