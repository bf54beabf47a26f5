"""Unsigned integers that remember what they would be had they not wrapped: how the emulator finds overflow in the arithmetic of indices.

A `u32` or `u64` that wraps is no fault by itself: ``(x - 1) & 7`` and ``x - y + y`` are right in arithmetic modulo 2^32. It is one when what
wrapped is used as an address. So inside `watching` an operation that wraps gives a number that also holds its exact value, without bounds;
what is computed from it is computed exactly too, and as soon as both agree again it is an ordinary number. Whoever turns such a number into an
address sees it by `exact_of`, or hears of it through `used` when it calls ``int`` on it.

Outside `watching` nothing here costs anything: the operators of the two types are those of `integers`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import index
from typing import Any

from .integers import _Unsigned, u32, u64

EXACT: dict[str, Callable[[int, int], int]] = {
    name: getattr(operator, f"__{name}__") for name in ("add", "sub", "mul", "floordiv", "mod", "and", "or", "xor", "lshift", "rshift")
}
"""Operator -> what it is on integers without bounds, of which Python's `&`, `|` and `^` are those of two's complement."""

WRAPPING = ("add", "sub", "mul", "lshift")
"""The operators that can wrap numbers that have not."""


class _Watch:
    """Who is told; one at a time."""

    origin: Callable[[str], Any] | None = None
    used: Callable[[Any, bool], None] | None = None


def exact_of(value: Any) -> int | None:
    """What `value` would be had nothing wrapped, if it is a number for which that differs; else None."""
    return value.exact if isinstance(value, _Wrapped) else None


def tell_used(value: Any) -> Any:
    """`value`, a number or a tuple of them, after whoever watches has heard of those that wrapped: what arrays do with their index."""
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, _Wrapped) and _Watch.used is not None:
            _Watch.used(number, True)
    return value


class _Wrapped(_Unsigned):
    """What `_Wrapped32` and `_Wrapped64` add to their types."""

    exact: int
    origin: Any  # what the watcher said when it wrapped

    def __int__(self) -> int:
        if _Watch.used is not None:
            _Watch.used(self, False)
        return index(self)

    def __neg__(self) -> Any:
        return _combine("sub", 0, self)

    def __invert__(self) -> Any:
        return _combine("xor", self, -1)


class _Wrapped32(_Wrapped, u32):
    __hash__ = int.__hash__


class _Wrapped64(_Wrapped, u64):
    __hash__ = int.__hash__


_OF: dict[Any, Any] = {u32: _Wrapped32, u64: _Wrapped64}
_PLAIN: dict[Any, Any] = {u32: u32, u64: u64, _Wrapped32: u32, _Wrapped64: u64}


def _wrapped(cls: type[_Unsigned], exact: int, name: str) -> Any:
    origin = None if _Watch.origin is None else _Watch.origin(name)
    return _made(cls, exact & cls.mask, exact, origin)


def _made(cls: type[_Unsigned], value: int, exact: int, origin: Any) -> Any:
    if value == exact:
        return cls.made[value]
    number: Any = int.__new__(_OF[cls], value)
    number.exact, number.origin = exact, origin
    return number


def _combine(name: str, x: Any, y: Any) -> Any:
    """x `name` y, of which at least one has wrapped before."""
    cls = max((_PLAIN[type(v)] for v in (x, y) if isinstance(v, _Unsigned)), key=lambda kind: kind.bits)
    value = index(_original[cls, name](cls.made[index(x) & cls.mask], cls.made[index(y) & cls.mask]))
    wide_x, wide_y = (v.exact if isinstance(v, _Wrapped) else index(v) for v in (x, y))
    if name in ("lshift", "rshift") and not 0 <= wide_y < cls.bits:
        return cls.made[value]
    origin = x.origin if isinstance(x, _Wrapped) else y.origin
    return _made(cls, value, EXACT[name](wide_x, wide_y), origin)


def _of_wrapped(name: str, reflected: bool) -> Callable[[Any, Any], Any]:
    def operate(self: Any, other: Any) -> Any:
        try:
            index(other)
        except TypeError:  # a float, say: what a number that has not wrapped does with it
            return getattr(_PLAIN[type(self)].made[index(self)], f"__{'r' * reflected}{name}__")(other)
        return _combine(name, other, self) if reflected else _combine(name, self, other)

    return operate


def _of_plain(name: str) -> Callable[[Any, Any], Any]:
    """What comparisons are, and powers: those of the numbers as they wrapped."""

    def operate(self: Any, other: Any) -> Any:
        x = _PLAIN[type(self)].made[index(self)]
        y = _PLAIN[type(other)].made[index(other)] if isinstance(other, _Wrapped) else other
        return getattr(x, name)(y)

    return operate


_PLAINLY = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__pow__", "__rpow__")

for _cls in (_Wrapped32, _Wrapped64):
    for _name in _PLAINLY:
        setattr(_cls, _name, _of_plain(_name))
    _cls.__name__ = _PLAIN[_cls].__name__  # in messages it is what it is in the kernel
    for _name in EXACT:
        setattr(_cls, f"__{_name}__", _of_wrapped(_name, reflected=False))
        setattr(_cls, f"__r{_name}__", _of_wrapped(_name, reflected=True))

# What the operators are outside `watching`.
_original = {(cls, name): getattr(cls, f"__{name}__") for cls in (u32, u64) for name in EXACT}
_METHODS = {(cls, f"__{r}{name}__") for cls in (u32, u64) for name in WRAPPING for r in ("", "r")}
_METHODS |= {(cls, name) for cls in (u32, u64) for name in ("__neg__", "__invert__")}

# NOTE: as in `integers`, written out for each operator: the emulator spends its time in these.
_TEXT = """
def operate(self, other):
    kind = other.__class__
    if kind is cls or kind is int:
        {x}, {y} = index(self), index(other)
        number = {number}
        return made[number] if 0 <= number <= mask else wrapped(cls, number, name)
    if isinstance(other, base):
        return combine(name, {x_is}, {y_is})
    return usual(self, other)
"""
_NUMBER = {"add": "x + y", "sub": "x - y", "mul": "x * y", "lshift": "x << y if 0 <= y < bits else 0"}


def _watched(cls: type[_Unsigned], name: str, reflected: bool) -> Callable[[Any, Any], Any]:
    x, y = ("other", "self") if reflected else ("self", "other")
    names: dict[str, Any] = {
        "cls": cls, "mask": cls.mask, "bits": cls.bits, "made": cls.made, "index": index, "name": name, "wrapped": _wrapped,
        "base": _Wrapped, "combine": _combine, "usual": getattr(cls, f"__{'r' * reflected}{name}__"),
    }  # fmt: skip
    text = _TEXT.format(x="y" if reflected else "x", y="x" if reflected else "y", number=_NUMBER[name], x_is=x, y_is=y)
    exec(text, names)
    operate: Callable[[Any, Any], Any] = names["operate"]
    return operate


def _negated(cls: type[_Unsigned]) -> Callable[[Any], Any]:
    return lambda self: _wrapped(cls, -index(self), "neg") if self else self


def _inverted(cls: type[_Unsigned]) -> Callable[[Any], Any]:
    return lambda self: _wrapped(cls, ~index(self), "invert")


_usual_new = _Unsigned.__new__


def _watched_new(cls: Any, value: Any = 0) -> Any:
    if isinstance(value, _Wrapped):
        cls = _PLAIN[cls]
        return _made(cls, index(value) & cls.mask, value.exact, value.origin)
    return _usual_new(_PLAIN[cls], value)


@contextmanager
def watching(origin: Callable[[str], Any], used: Callable[[Any, bool], None]) -> Iterator[None]:
    """Let unsigned integers of this process remember their exact values.

    origin  called with the operator ("add", "sub", "mul", "lshift", "neg", "invert") when numbers that have not wrapped do; what it gives is kept as
            `.origin` in all that is computed from the result
    used    called with a number that has wrapped when ``int`` is asked of it (and False), or an array is indexed by it (and True)
    """
    if _Watch.origin is not None:
        raise RuntimeError("watching: integers are watched already")
    before = [(cls, name, getattr(cls, name)) for cls, name in _METHODS]
    _Watch.origin, _Watch.used = origin, used
    try:
        for cls in (u32, u64):
            watched = {f"__{'r' * r}{name}__": _watched(cls, name, r) for name in WRAPPING for r in (False, True)}
            for name, method in (watched | {"__neg__": _negated(cls), "__invert__": _inverted(cls)}).items():
                setattr(cls, name, method)
        _Unsigned.__new__ = _watched_new  # type: ignore[method-assign]
        yield
    finally:
        for cls, name, method in before:
            setattr(cls, name, method)
        _Unsigned.__new__ = _usual_new  # type: ignore[method-assign]
        _Watch.origin = _Watch.used = None
