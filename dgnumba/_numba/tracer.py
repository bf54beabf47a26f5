"""Values that stand for registers while an `@unrolled` operation is lowered.

The body of an unrolled operation is ordinary Python over registers: in the emulator it runs on numbers, and here it runs once,
at compile time, on `Reg` values whose operators emit LLVM instructions. A Python loop in it is thereby unrolled, and an index
into a fragment is always a constant, so that fragments stay in registers.

An operator means what `dgnumba.integers` says, or is refused: where Python would make a plain integer of a register (of two bools,
say), there is no register to hold it.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import index
from typing import Any

import numpy as np
from llvmlite import ir

from ..integers import ADVICE, COMPARISONS, u32, u64
from .instructions import ARITHMETIC, compare, constant, resize
from .site import lowering, site

F32 = ir.FloatType()
LLVM_TYPE = {"u32": ir.IntType(32), "u64": ir.IntType(64), "f32": F32, "bool": ir.IntType(1)}
_UNSIGNED = ("u32", "u64")
_WHOLE = ("bool", "u32", "u64")  # from narrow to wide


def _builder() -> ir.IRBuilder:
    current = site()
    assert current is not None, "a Reg outside of a lowering"
    return current[1]


class Reg:
    """One register of kind u32, u64, f32 or bool."""

    __slots__ = ("kind", "value")
    __array_ufunc__ = None  # NumPy's scalars on the left leave an operator to us

    def __init__(self, value: Any, kind: str) -> None:
        self.value, self.kind = value, kind

    def as_unsigned(self, kind: str) -> Reg:
        """``u32(self)`` or ``u64(self)``."""
        if self.kind not in _WHOLE:
            raise TypeError(f"{kind}: expected an integer, got a register of kind {self.kind}")
        return Reg(resize(_builder(), self.value, LLVM_TYPE[kind].width), kind)

    def __bool__(self) -> bool:
        raise TypeError("a run-time value cannot steer Python inside an unrolled operation; use select() or a predicated operation")

    def _unsigned(self, what: str) -> Any:
        if self.kind not in _UNSIGNED:
            raise TypeError(f"{what} of a register of kind {self.kind}: expected u32 or u64")
        return self.value

    def __invert__(self) -> Reg:
        return Reg(_builder().not_(self._unsigned("~")), self.kind)

    def __neg__(self) -> Reg:
        return Reg(_builder().fneg(self.value) if self.kind == "f32" else _builder().neg(self._unsigned("-")), self.kind)

    def __pos__(self) -> Reg:
        return self if self.kind == "f32" else Reg(self._unsigned("+"), self.kind)

    def __abs__(self) -> Reg:
        return Reg(self._unsigned("abs"), self.kind)

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Any, Any]:
        return other // self, other % self


def lift(value: Any, kind: str) -> Reg:
    """`value` (a register or a number) as a register of `kind`; never cut to a narrower one."""
    if isinstance(value, Reg):
        if value.kind == kind:
            return value
        if value.kind in _WHOLE and kind in _WHOLE and _WHOLE.index(value.kind) < _WHOLE.index(kind):
            return value.as_unsigned(kind)
        raise TypeError(f"expected a {kind} register, got {value.kind}" + (f": write {kind}(x)" if value.kind in _WHOLE else ""))
    if kind == "f32":
        if isinstance(value, (u32, u64)):
            raise TypeError(f"expected a f32 register, got {value!r}: {ADVICE}")
        return Reg(ir.Constant(F32, float(value)), kind)
    if isinstance(value, (float, np.floating)):
        raise TypeError(f"expected a {kind} register, got {value!r}: {ADVICE}")
    return Reg(constant(LLVM_TYPE[kind], int(value) if isinstance(value, np.bool_) else index(value)), kind)


def undefined(kind: str) -> Reg:
    """A register of `kind` that holds nothing yet."""
    return Reg(ir.Constant(LLVM_TYPE[kind], ir.Undefined), kind)


def _kind(value: Any) -> str | None:
    """The kind of register that a value is or wants to be; None for a plain integer, which takes the other side's."""
    if isinstance(value, Reg):
        return value.kind
    for types, kind in (((u64,), "u64"), ((u32,), "u32"), ((bool, np.bool_), "bool"), ((float, np.floating), "f32")):
        if isinstance(value, types):
            return kind
    return None


def _common(what: str, x: Any, y: Any) -> str:
    """The kind of ``x what y``."""
    kinds = {_kind(x), _kind(y)}
    if kinds <= {"f32", None}:
        return "f32"
    if "f32" in kinds:
        raise TypeError(f"{what} of {' and '.join(sorted(filter(None, kinds)))}: {ADVICE}")
    if kinds == {"bool"} and (what in ("and", "or", "xor") or what in COMPARISONS):
        return "bool"
    if _kind(x) == "bool" and what not in COMPARISONS or not kinds & set(_UNSIGNED):
        raise TypeError(f"{what} of a bool makes a plain integer in Python: write u32(x) for it")
    return "u64" if "u64" in kinds else "u32"


_FLOAT = {"add": "fadd", "sub": "fsub", "mul": "fmul", "truediv": "fdiv"}
_NUMBERS = (Reg, int, float, np.integer, np.floating, np.bool_)


def _operator(name: str, reflected: bool) -> Callable[[Any, Any], Any]:
    def operate(self: Reg, other: Any) -> Any:
        if not isinstance(other, _NUMBERS):
            return NotImplemented
        x, y = (other, self) if reflected else (self, other)
        kind = _common(name, x, y)
        if name not in (_FLOAT if kind == "f32" else ARITHMETIC):
            return NotImplemented
        x, y = lift(x, kind).value, lift(y, kind).value
        return Reg(getattr(_builder(), _FLOAT[name])(x, y) if kind == "f32" else ARITHMETIC[name](_builder(), x, y), kind)

    return operate


def _comparison(name: str) -> Callable[[Any, Any], Any]:
    symbol = COMPARISONS[name]

    def operate(self: Reg, other: Any) -> Any:
        if not isinstance(other, _NUMBERS):
            return NotImplemented
        kind = _common(name, self, other)
        x, y = lift(self, kind).value, lift(other, kind).value
        if kind != "f32":
            return Reg(compare(_builder(), symbol, x, y), "bool")
        # NaN differs from everything, itself too
        return Reg((_builder().fcmp_unordered if name == "ne" else _builder().fcmp_ordered)(symbol, x, y), "bool")

    return operate


for _name in {**ARITHMETIC, **_FLOAT}:
    setattr(Reg, f"__{_name}__", _operator(_name, reflected=False))
    setattr(Reg, f"__r{_name}__", _operator(_name, reflected=True))
for _name in COMPARISONS:
    setattr(Reg, f"__{_name}__", _comparison(_name))


def select(condition: Any, x: Any, y: Any) -> Reg:
    """`x` where `condition` holds, else `y`; both of one kind, since Python keeps each as it is."""
    kinds = {_kind(x), _kind(y)}
    kind = "f32" if "f32" in kinds and kinds <= {"f32", None} else kinds.pop() if len(kinds) == 1 else None
    if kind is None:
        between = " and ".join(_kind(v) or "a plain integer" for v in (x, y))
        raise TypeError(f"select between {between}: write u32(...) for what is none")
    if not isinstance(condition, Reg):
        return lift(x if condition else y, kind)
    if condition.kind != "bool":
        raise TypeError(f"select: expected a bool for the condition, got {condition.kind}: write x != 0")
    return Reg(_builder().select(condition.value, lift(x, kind).value, lift(y, kind).value), kind)


__all__ = ["F32", "LLVM_TYPE", "Reg", "lift", "lowering", "select", "site", "undefined"]
