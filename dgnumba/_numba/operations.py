"""Numba's side of a `dgnumba.ptx` declaration: its typing, and its lowering to inline PTX or to an unrolled body.

A declaration is neutral data (`dgnumba.ptx._declare.Operation`): PTX text with named holes, the kind of each argument and of the result.
Only this file knows that Numba and LLVM materialise it.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.core.errors import TypingError
from numba.cuda.cudadecl import registry as typing_registry
from numba.cuda.cudaimpl import lower
from numba.cuda.typing.templates import AbstractTemplate, signature

from . import tracer
from .integers import U32, U64, UnsignedType
from .tensor_map import TensorMapType, address
from .tracer import LLVM_TYPE, Reg

SCALAR = {"u32": U32, "u64": U64, "f32": types.float32, "bool": types.boolean}
LETTER = {"u32": "r", "u64": "l", "f32": "f", "bool": "r", "tensor_map": "l", "array": "l"}
ELEMENT = {"fragment": "f32", "registers": "u32"}


def _accept(kind: str, ty: Any) -> Any:
    """The Numba type as which an argument of type `ty` is passed for `kind`, or None."""
    if kind == "imm":
        return ty if isinstance(ty, (types.IntegerLiteral, types.BooleanLiteral)) else None
    ty = types.unliteral(ty)
    if kind in ("u32", "u64"):
        fits = isinstance(ty, types.Integer) or (isinstance(ty, UnsignedType) and ty.bits <= SCALAR[kind].bits)
        return SCALAR[kind] if fits else None
    if kind == "f32":
        return types.float32 if isinstance(ty, types.Float) else None
    if kind == "bool":
        return types.boolean if isinstance(ty, types.Boolean) else None
    if kind == "tensor_map":
        return ty if isinstance(ty, TensorMapType) else None
    if kind == "array":
        return ty if isinstance(ty, types.Array) else None
    element = SCALAR[ELEMENT[kind]]
    return ty if isinstance(ty, types.UniTuple) and ty.dtype == element else None


def _result_type(operation: Any, sig_args: list[Any]) -> Any:
    result = operation.result
    if result is None:
        return types.void
    if result == "same":
        return sig_args[operation.tied_index]
    if isinstance(result, str):
        return SCALAR[result]
    counts = {name: len(t) for (name, kind), t in zip(operation.params, sig_args) if kind in ELEMENT}
    counts.update({name: t.literal_value for (name, kind), t in zip(operation.params, sig_args) if kind == "imm"})
    kind, count = result
    return types.UniTuple(SCALAR[ELEMENT[kind]], count(counts) if callable(count) else count)


def register(operation: Any) -> None:
    """Type and lower `operation.function` in Numba."""

    class Template(AbstractTemplate):
        key = operation.function
        prefer_literal = True

        def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
            if kws or len(args) != len(operation.params):
                raise TypingError(f"{operation.name} takes ({operation.parameters_text}) by position, got {len(args) + len(kws)} arguments")
            taken = []
            for (name, kind), ty in zip(operation.params, args):
                accepted = _accept(kind, ty)
                if accepted is None or name in operation.counts and len(accepted) != operation.counts[name]:
                    raise TypingError(f"{operation.name}: argument {name} must be {operation.kind_text(name)}, got {ty}")
                taken.append(accepted)
            return signature(_result_type(operation, taken), *taken)

    typing_registry.register_global(operation.function, types.Function(Template))

    @lower(operation.function, types.VarArg(types.Any))
    def implementation(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        values = [_unpack(context, builder, kind, ty, value) for (_, kind), ty, value in zip(operation.params, sig.args, args)]
        with tracer.lowering(context, builder):
            result = operation.function(*values)
        return _pack(context, builder, sig.return_type, result)


def _unpack(context: Any, builder: Any, kind: str, ty: Any, value: Any) -> Any:
    if kind == "imm":
        return ty.literal_value
    if kind == "tensor_map":
        return ty
    if kind == "array":
        data = context.make_array(ty)(context, builder, value).data
        return Reg(builder.ptrtoint(data, LLVM_TYPE["u64"]), "u64")
    if kind in ELEMENT:
        return tuple(Reg(builder.extract_value(value, i), ELEMENT[kind]) for i in range(len(ty)))
    if kind == "bool" and value.type.width != 1:
        value = builder.trunc(value, ir.IntType(1))
    return Reg(value, kind)


def _pack(context: Any, builder: Any, ty: Any, result: Any) -> Any:
    if ty == types.void:
        return context.get_dummy_value()
    if not isinstance(ty, types.UniTuple):
        return result.value
    out = ir.Constant(context.get_value_type(ty), ir.Undefined)
    element = next(k for k, t in SCALAR.items() if t == ty.dtype)
    for i, reg in enumerate(result):
        out = builder.insert_value(out, tracer.lift(reg, element).value, i)
    return out


class _Hole(str):
    """The text of one operand in PTX: `$3`, or `{$0, $1, ...}` for a list; `{acc[2]}`, `{acc.count}`, `{acc.columns}` and, where a register holds
    two elements, `{acc.columns_f16}` in the text work.
    """

    items: tuple[str, ...] = ()

    def __getitem__(self, index: Any) -> str:
        return str(self.items[index])

    @property
    def count(self) -> int:  # type: ignore[override]
        return len(self.items)

    @property
    def columns(self) -> int:
        return 2 * len(self.items)

    @property
    def columns_f16(self) -> int:
        return 4 * len(self.items)


def _hole(first: int, count: int | None) -> _Hole:
    if count is None:
        return _Hole(f"${first}")
    hole = _Hole("{" + ", ".join(f"${first + i}" for i in range(count)) + "}")
    hole.items = tuple(f"${first + i}" for i in range(count))
    return hole


def emit(operation: Any, args: tuple[Any, ...]) -> Any:
    """Emit the PTX of `operation` at the lowering's place; `args` are `Reg`s, tuples of them, numbers, or tensor-map types."""
    context, builder = tracer.site()  # type: ignore[misc]
    holes: dict[str, Any] = {}
    outputs, element = _outputs(operation, args, holes)
    letters, values = [f"={LETTER[k]}" for k in outputs], []
    position = len(outputs)
    for index, ((name, kind), arg) in enumerate(zip(operation.params, args)):
        if kind == "imm":
            holes[name] = int(arg)
            continue
        regs = _operands(builder, kind, arg)
        tied = operation.result == "same" and index == operation.tied_index
        letters += [str(i) for i in range(len(regs))] if tied else [LETTER[r.kind] for r in regs]
        holes[name] = _hole(0 if tied else position, len(regs) if kind in ELEMENT else None)
        position += len(regs)
        values += [r.value for r in regs]
    text = operation.text.format(**holes)
    return _call(operation, builder, text, letters, outputs, values, element)


def _outputs(operation: Any, args: tuple[Any, ...], holes: dict[str, Any]) -> tuple[list[str], str | None]:
    """The kinds of the output registers, and the kind of the list they form (None for a scalar or nothing)."""
    result = operation.result
    if result is None:
        return [], None
    if result == "same":
        kind = ELEMENT[operation.params[operation.tied_index][1]]
        return [kind] * len(args[operation.tied_index]), kind
    if isinstance(result, str):
        holes["out"] = _hole(0, None)
        return [result], None
    kind, count = result
    if callable(count):
        sizes = {n: len(a) for (n, k), a in zip(operation.params, args) if k in ELEMENT}
        count = count({**sizes, **{n: int(a) for (n, k), a in zip(operation.params, args) if k == "imm"}})
    holes["out"] = _hole(0, count)
    return [ELEMENT[kind]] * count, ELEMENT[kind]


def _operands(builder: Any, kind: str, arg: Any) -> list[Reg]:
    if kind == "tensor_map":
        return [Reg(address(builder, arg), "u64")]
    if kind in ELEMENT:
        return [tracer.lift(a, ELEMENT[kind]) for a in arg]
    if kind == "bool":
        return [tracer.lift(arg, "u32")]
    if kind == "array":
        return [arg]
    return [tracer.lift(arg, kind)]


def _call(operation: Any, builder: Any, text: str, letters: list[str], outputs: list[str], values: list[Any], element: str | None) -> Any:
    constraints = ",".join(letters + ([] if operation.pure else ["~{memory}"]))
    types_out = [LLVM_TYPE[k] for k in outputs]
    returns = ir.VoidType() if not outputs else types_out[0] if len(outputs) == 1 else ir.LiteralStructType(types_out)
    asm = ir.InlineAsm(ir.FunctionType(returns, [v.type for v in values]), text, constraints, side_effect=not operation.pure)
    called = builder.call(asm, values)
    if not outputs:
        return None
    regs = tuple(Reg(builder.extract_value(called, i) if len(outputs) > 1 else called, k) for i, k in enumerate(outputs))
    return regs if element is not None else regs[0]
