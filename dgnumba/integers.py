"""What an unsigned integer means in a kernel: `u32` and `u64`, the same arithmetic compiled and interpreted.

Numba widens ``uint32 + uint32`` to 64 bits, NumPy wraps with a warning, and Python does not wrap at all: three meanings
for one line of a kernel. These two value types have one.

* Every operator wraps at the width. Beside a plain integer (Python's, NumPy's, or a bool) they stay what they are (``u32 + 1``
  is a `u32`, and so is ``np.uint64(1) + u32``); `u32` beside `u64` widens to `u64`. Signs too: ``-u32(1)`` is ``u32(0xffffffff)``.
  Only a bool on the left gives a plain integer, ``(x < y) * z``: write ``z * (x < y)``, or ``u32(x < y)``.
* Division, right shift and comparisons are unsigned: the other side is taken modulo the width first. A shift by the width or
  more gives zero, as PTX's does. A division by zero is an error in the emulator, and undefined on the GPU.
* ``min(x, 3)`` and ``max``, also of more than two, give the unsigned type. In ``if``, ``while``, ``not`` and ``bool(x)`` zero is false.
* Beside a float they refuse: write ``np.float32(x)`` (or ``float(x)``) for the number as a float, and ``u32(int(f))`` for the way
  back. Python cannot refuse ``1.5 * x``, with its own float on the left, and must not refuse ``/``; neither compiles.
* ``int(x)``, ``range(x)`` and a slice make plain integers: 64 bits with a sign on the GPU (``int`` of a `u64` does not compile: say
  ``np.int64(x)`` or ``np.uint64(x)``). Arrays and tuples are indexed by both types. ``np.uint8(x)`` and its like compile to a cut, and are
  an error in the emulator if the number does not fit, as everywhere in NumPy. An element of an array takes a number as C does: cut,
  or rounded to its float.
* `cuda.popc`, `clz`, `brev`, `ffs`, `selp` and the shuffles give a `u32` or `u64` for one.
* One variable has one type on the GPU. Where Python would leave now a `u32` and now something else in it, as ``x if c else 3``,
  ``x or 3`` and ``total = 0`` before a loop over ``total += x`` do, the kernel does not compile: write ``u32(3)``, ``u32(0)``.
* In the body of an unrolled operation registers follow the same rules, and `select` that of a variable.

Here stands the Python side, which the emulator runs; `dgnumba._numba.integers` gives the compiled side, and
`tests/test_integers.py` holds the two to the same table.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache
from operator import index
from types import CodeType
from typing import Any, ClassVar

import numpy as np

_KEPT = 1 << 16


class _Made(dict[int, Any]):
    """The values of a type that have been met, an object each: to look one up takes a third of the time of making it."""

    def __init__(self, cls: type[_Unsigned]) -> None:
        super().__init__()
        self._cls = cls

    def __missing__(self, number: int) -> _Unsigned:
        if len(self) >= _KEPT:
            self.clear()
        made: _Unsigned = int.__new__(self._cls, number)
        self[number] = made
        return made


class _Unsigned(int):
    bits: ClassVar[int]
    mask: ClassVar[int]
    made: ClassVar[_Made]

    __array_ufunc__ = None  # NumPy's scalars and arrays on the left leave an operator to us

    def __new__(cls, value: Any = 0) -> Any:
        try:
            return cls.made[index(value) & cls.mask]
        except TypeError:
            return _convert(cls, value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({int(self)})"

    def __neg__(self) -> Any:
        return self.made[-index(self) & self.mask]

    def __invert__(self) -> Any:
        return self.made[~index(self) & self.mask]

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return self

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    __str__ = int.__repr__
    __hash__ = int.__hash__


class u32(_Unsigned):
    """A 32-bit unsigned integer: the type of indices, counts, shared addresses and packed registers in a kernel."""

    bits = 32
    mask = 0xFFFFFFFF


class u64(_Unsigned):
    """A 64-bit unsigned integer: the type of global addresses in a kernel."""

    bits = 64
    mask = 0xFFFFFFFFFFFFFFFF


def _convert(cls: type[_Unsigned], value: Any) -> Any:
    """``cls(value)`` of what Python does not take for an integer."""
    if isinstance(value, np.bool_):
        return cls.made[int(value)]
    if hasattr(value, "as_unsigned"):  # a register, where the compiler lowers an unrolled operation
        return value.as_unsigned(cls.__name__)
    hint = "; int(x) cuts a float" if isinstance(value, (float, np.floating)) else ""
    raise TypeError(f"{cls.__name__}: expected an integer, got {type(value).__name__}{hint}")


def alike(*values: Any) -> tuple[Any, ...]:
    """Integers as the widest unsigned type among them; as they are when there is none."""
    kinds = [type(v) for v in values if isinstance(v, _Unsigned)]
    if not kinds:
        return values
    widest = max(kinds, key=lambda kind: kind.bits)
    return tuple(map(widest, values))


def _extreme(plain: Callable[..., Any]) -> Callable[..., Any]:
    def extreme(*values: Any, **options: Any) -> Any:
        if options or len(values) == 1 and not isinstance(values[0], tuple):
            return plain(*values, **options)
        return plain(alike(*(values[0] if len(values) == 1 else values)))

    extreme.__doc__ = f"Python's `{plain.__name__}`; of an unsigned integer among other integers it gives the unsigned type, as compiled."
    return extreme


minimum, maximum = _extreme(min), _extreme(max)


# What an operator makes of plain integers x and y that are below the width already; `mask` and `bits` are the type's.
OPERATORS = {
    "add": "x + y & mask",
    "sub": "x - y & mask",
    "mul": "x * y & mask",
    "floordiv": "x // y",
    "mod": "x % y",
    "pow": "pow(x, y, mask + 1)",
    "and": "x & y",
    "or": "x | y",
    "xor": "x ^ y",
    "lshift": "x << y & mask if y < bits else 0",
    "rshift": "x >> y",
}
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}

# NOTE: the emulator spends its time in these, so they are written out for each operator and type, without a call between.
_OPERATOR = """
def operate(self, other):
    {x} = index(self)
    kind = other.__class__
    if kind is cls:
        {y} = index(other)
    elif kind is int:
        {y} = other & mask
    else:
        return rest(self, other)
    return made[{number}]
"""
_COMPARISON = """
def operate(self, other):
    kind = other.__class__
    if kind is cls:
        return index(self) {symbol} index(other)
    if kind is int:
        return index(self) {symbol} (other & mask)
    return rest(self, other)
"""

_FLOATS = (float, complex, np.inexact)


ADVICE = "write np.float32(x) for the number as a float, u32(int(f)) for a float cut to an integer"
"""For whoever brings an unsigned integer and a float together, in either world."""


def _refuse(name: str, x: Any, y: Any) -> TypeError:
    return TypeError(f"{name} of {type(x).__name__} and {type(y).__name__}: {ADVICE}")


def _rest(name: str, cls: type[_Unsigned], function: Callable[[Any, Any], Any], reflected: bool) -> Callable[[Any, Any], Any]:
    """The operator beside what is neither of its own type nor a plain int."""
    is_equality = name in ("eq", "ne")

    def operate(self: Any, other: Any) -> Any:
        x: Any
        y: Any
        if isinstance(other, _Unsigned) and other.bits > cls.bits:
            x, y = other.made[index(self)], other
        elif reflected and isinstance(other, np.bool_):  # as Python does with a bool there, which it does not ask us
            x, y = int(self), int(other)
        elif isinstance(other, (int, np.integer, np.bool_)):
            x, y = self, cls(other)
        elif isinstance(other, np.ndarray) or is_equality and isinstance(other, np.generic):
            x, y = int(self), other
        elif isinstance(other, _FLOATS) and not is_equality:
            raise _refuse(name, other, self) if reflected else _refuse(name, self, other)
        else:
            return NotImplemented
        return function(y, x) if reflected else function(x, y)

    return operate


@cache
def _compiled(text: str) -> CodeType:
    """One for both types: it takes half the time of importing this module."""
    return compile(text, __name__, "exec")


def _written_out(text: str, name: str, cls: type[_Unsigned], rest: Any) -> Any:
    names = {"cls": cls, "mask": cls.mask, "bits": cls.bits, "made": cls.made, "index": index, "rest": rest}
    exec(_compiled(text), names)
    operate: Any = names["operate"]
    operate.__name__, operate.__qualname__, operate.__module__ = f"__{name}__", f"{cls.__name__}.__{name}__", __name__
    return operate


def _give_operators(cls: type[_Unsigned]) -> None:
    for name, number in OPERATORS.items():
        function = pow if name == "pow" else getattr(operator, f"__{name}__")
        for reflected, (x, y) in ((False, "xy"), (True, "yx")):
            method, text = "r" * reflected + name, _OPERATOR.format(x=x, y=y, number=number)
            setattr(cls, f"__{method}__", _written_out(text, method, cls, _rest(name, cls, function, reflected)))
    for name, symbol in COMPARISONS.items():
        rest = _rest(name, cls, getattr(operator, name), reflected=False)
        setattr(cls, f"__{name}__", _written_out(_COMPARISON.format(symbol=symbol), name, cls, rest))


for _cls in (u32, u64):
    _cls.made = _Made(_cls)
    _give_operators(_cls)
