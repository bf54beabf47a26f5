"""A digest of all that a kernel is made of, so that a compiled one is used again only if nothing changed.

Numba freezes into a kernel what its code refers to: constants, closure cells, globals, helper
functions, and whatever those refer to. `fingerprint` walks the same paths. What belongs to
Python, Numba, NumPy and this package counts by name alone, since the key of a cached kernel also
holds their versions and, for this package, its sources (`cache.environment`). What it cannot
describe makes a kernel unfit for the disk: `fingerprint` then says None.

Not seen: code that reaches a kernel through Numba's registries alone (`numba.extending.overload`
for a function of somebody else's), since nothing in the kernel refers to it.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import struct
import sys
from collections.abc import Iterable
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

import numpy as np

_BY_NAME = {"numba", "numba_cuda", "numpy", "llvmlite", "ml_dtypes", "cuda", "cupy", "dgnumba"}
_PLAIN = (type(None), bool, int, str, bytes, type(Ellipsis), type(NotImplemented))
_NOT_OF_A_CLASS = {
    *("__dict__", "__weakref__", "__doc__", "__module__", "__firstlineno__", "_abc_impl"),
    *("__static_attributes__", "__annotations__", "__annotate__", "__annotate_func__"),
    *("__annotations_cache__", "__dataclass_fields__", "__dataclass_params__"),
}

_BUILT_IN = (
    *(BuiltinFunctionType, MethodWrapperType, WrapperDescriptorType, MethodDescriptorType),
    *(ClassMethodDescriptorType, GetSetDescriptorType, MemberDescriptorType),
)


class _Indescribable(Exception):
    pass


def fingerprint(kernel: Any) -> str | None:
    """The digest of a kernel (a function, or what `@cuda.jit` made of one), or None: unfit for disk.

    Equal digests mean equal code in all that the kernel can reach. The place of the code in its
    file does not count. Any other object takes part as well: a plan, a tuple of settings.
    """
    walk = _Walk()
    try:
        walk.feed(kernel, frozenset())
    except (_Indescribable, RecursionError):
        return None
    return walk.digest.hexdigest()


class _Walk:
    """One walk over a graph of objects; what was met before is fed as its number, so it ends."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self._met: dict[Any, int] = {}
        self._alive: list[Any] = []

    def tell(self, *words: Any) -> None:
        """Feed plain words, each with its type and length: no two different sequences look alike."""
        for word in words:
            data = word if isinstance(word, bytes) else repr(word).encode()
            tag = type(word).__name__.encode()
            self.digest.update(struct.pack("<II", len(tag), len(data)) + tag + data)

    def feed(self, x: Any, names: frozenset[str]) -> None:
        """Feed one object; `names` are those that the code which refers to it uses at all."""
        if type(x) in _PLAIN:
            return self.tell(x)
        # What can refer back to itself is walked once. Not so constants: whether two equal ones are
        # one object depends on how the code was loaded.
        if not isinstance(x, (tuple, CodeType, int, float, complex, np.generic, frozenset)):
            key = (id(x), names) if isinstance(x, ModuleType) else id(x)
            if key in self._met:
                return self.tell("met", self._met[key])
            self._met[key] = len(self._met)
            self._alive.append(x)  # an id stands for its object only as long as that lives
        for kinds, describe in _DESCRIBE:
            if isinstance(x, kinds):
                describe(self, x, names)
                return
        self._other(x, names)

    def _all(self, xs: Iterable[Any], names: frozenset[str]) -> None:
        for x in xs:
            self.feed(x, names)

    def _number(self, x: Any, names: frozenset[str]) -> None:
        # A float's bits, since -0.0 == 0.0 and NaN != NaN; an int's class, since u32 wraps and int does not.
        parts = (x.real, x.imag) if isinstance(x, complex) else (x,)
        bits = [struct.pack("<d", p) if isinstance(p, float) else int(p) for p in parts]
        self.tell("number", type(x).__module__, type(x).__qualname__, *bits)

    def _sequence(self, x: Any, names: frozenset[str]) -> None:
        self.tell("sequence", type(x).__qualname__, len(x), *getattr(x, "_fields", ()))
        self._all(x, names)

    def _set(self, x: Any, names: frozenset[str]) -> None:
        # Its order changes from process to process.
        members = [fingerprint(member) for member in x]
        if None in members:
            raise _Indescribable(x)
        self.tell("set", type(x).__qualname__, *sorted(m for m in members if m))

    def _dict(self, x: dict[Any, Any], names: frozenset[str]) -> None:
        self.tell("dict", len(x))
        self._all(x, names)
        self._all(x.values(), names)

    def _array(self, x: Any, names: frozenset[str]) -> None:
        if x.dtype.hasobject:
            raise _Indescribable(x)
        self.tell("array", str(x.dtype), x.dtype.descr, x.shape, x.tobytes())

    def _code(self, x: CodeType, names: frozenset[str]) -> None:
        self.tell("code", x.co_name, x.co_code, getattr(x, "co_exceptiontable", b""), x.co_flags)
        self.tell(x.co_argcount, x.co_posonlyargcount, x.co_kwonlyargcount)
        self.tell(x.co_names, x.co_varnames, x.co_freevars, x.co_cellvars)
        self._all(x.co_consts, names)

    def _function(self, x: FunctionType, names: frozenset[str]) -> None:
        self.tell("function", x.__module__, x.__qualname__)
        if x.__closure__ is None and _is_by_name(x) and _is_found_by_name(x):
            return
        self.feed(x.__code__, names)
        self.feed(x.__defaults__, names)
        self.feed(x.__kwdefaults__, names)
        used = frozenset(_names(x.__code__))
        for cell in x.__closure__ or ():
            try:
                self.feed(cell.cell_contents, used)
            except ValueError:
                self.tell("empty cell")
        for name in sorted(used & x.__globals__.keys()):
            self.tell("global", name)
            self.feed(x.__globals__[name], used)

    def _module(self, x: ModuleType, names: frozenset[str]) -> None:
        self.tell("module", x.__name__)
        if not _is_by_name_module(x.__name__):
            for name in sorted(names & vars(x).keys()):
                self.tell("attribute", name)
                self.feed(vars(x)[name], names)

    def _class(self, x: type, names: frozenset[str]) -> None:
        self.tell("class", x.__module__, x.__qualname__)
        if issubclass(x, tuple) and hasattr(x, "_fields"):
            self.tell("fields", *x._fields)
            self.feed(getattr(x, "_field_defaults", {}), names)
        elif not _is_by_name(x):
            self._all(x.__bases__, names)
            for name in sorted(vars(x).keys() - _NOT_OF_A_CLASS):
                self.tell("attribute", name)
                self.feed(vars(x)[name], names)

    def _enum(self, x: enum.Enum, names: frozenset[str]) -> None:
        self.tell("enum", type(x).__module__, type(x).__qualname__, x.name)
        self.feed(x.value, names)

    def _method(self, x: MethodType, names: frozenset[str]) -> None:
        self.tell("method")
        self._all((x.__func__, x.__self__), names)

    def _wrapper(self, x: Any, names: frozenset[str]) -> None:
        self.tell(type(x).__qualname__)
        self._all((getattr(x, part, None) for part in ("__func__", "fget", "fset", "fdel")), names)

    def _partial(self, x: functools.partial[Any], names: frozenset[str]) -> None:
        self.tell("partial")
        self._all((x.func, x.args, x.keywords), names)

    def _named(self, x: Any, names: frozenset[str]) -> None:
        owner = getattr(x, "__self__", None) or getattr(x, "__objclass__", None)
        owner_name = getattr(owner, "__name__", type(owner).__qualname__)
        self.tell("named", type(x).__qualname__, getattr(x, "__module__", ""), owner_name)
        self.tell(getattr(x, "__qualname__", None) or x.__name__)

    def _other(self, x: Any, names: frozenset[str]) -> None:
        """An object of some class: a dispatcher, an intrinsic, a Numba type, or one with a state."""
        package = type(x).__module__.partition(".")[0]
        if hasattr(x, "py_func"):  # a dispatcher of Numba
            self.tell("dispatcher")
            self.feed(x.py_func, names)
            return self.feed(getattr(x, "targetoptions", {}), names)
        if package in ("numba", "numba_cuda", "llvmlite"):
            if hasattr(x, "_defn"):  # an intrinsic: its code is written by whoever declared it
                self.tell("intrinsic")
                return self.feed(x._defn, names)
            if hasattr(x, "key") and hasattr(x, "mangling_args"):  # a type of Numba's, by what defines it
                return self.tell("numba type", type(x).__qualname__, str(x), repr(x.key))
        if isinstance(x, np.ufunc):
            return self._named(x, names)
        if _is_by_name_module(type(x).__module__) and package != "dgnumba":
            raise _Indescribable(x)
        state = getattr(x, "__dict__", None)
        slots = {n: getattr(x, n) for n in getattr(type(x), "__slots__", ()) if hasattr(x, n)}
        if state is None and not slots:
            raise _Indescribable(x)
        self.tell("object")
        self._all((type(x), dict(state or {}), slots), names)


_DESCRIBE: tuple[tuple[Any, Any], ...] = (
    (enum.Enum, _Walk._enum),
    (np.generic, _Walk._array),
    ((int, float, complex), _Walk._number),
    ((tuple, list), _Walk._sequence),
    ((set, frozenset), _Walk._set),
    (dict, _Walk._dict),
    ((range, slice), lambda walk, x, names: walk.tell(repr(x))),
    (np.dtype, lambda walk, x, names: walk.tell("dtype", str(x), repr(x.descr))),
    (np.ndarray, _Walk._array),
    (CodeType, _Walk._code),
    (FunctionType, _Walk._function),
    (ModuleType, _Walk._module),
    (type, _Walk._class),
    (MethodType, _Walk._method),
    ((staticmethod, classmethod, property), _Walk._wrapper),
    (functools.partial, _Walk._partial),
    (_BUILT_IN, _Walk._named),
)


def _names(code: CodeType) -> set[str]:
    """Every name that the code, or code nested in it, may look up: names, and strings (`getattr`)."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names(constant)
        elif isinstance(constant, str):
            names.add(constant)
    return names


def _is_by_name_module(name: str | None) -> bool:
    package = (name or "").partition(".")[0]
    return package in _BY_NAME or package in sys.stdlib_module_names


def _is_by_name(x: Any) -> bool:
    return _is_by_name_module(x.__module__)


def _is_found_by_name(function: FunctionType) -> bool:
    """Whether the module's own attribute of that name is the function: the sources say all of it."""
    found: Any = sys.modules.get(function.__module__)
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    return getattr(found, "py_func", found) is function
