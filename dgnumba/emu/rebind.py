"""A kernel, and every helper that it calls, as plain Python functions that see the emulated `cuda`.

Nothing is patched: a new function is made from the same code, with other globals and other closure cells. Numba's dispatchers give their
Python function; helpers reached through globals, closures, tuples and modules are rebound in turn; `min` and `max` become those of
`dgnumba.integers`, `breakpoint` opens the debugger in the emulated thread; operations of `dgnumba.ptx`, NumPy, the rest of the standard
library, classes and numbers stay what they are.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

from ..errors import UnknownNameError
from ..integers import maximum, minimum
from .fake_cuda import FakeCuda
from .machine import kernel_breakpoint
from .source import Sites

CUDA_MODULES = ("numba.cuda", "numba_cuda.numba.cuda")
BUILTINS: dict[Any, Any] = {min: minimum, max: maximum, breakpoint: kernel_breakpoint}
_FOREIGN = {"numpy", "math", "operator", "builtins", "functools", "itertools", "ml_dtypes", "numba", "llvmlite", "dataclasses", "typing"}


class Rebinder:
    """Makes, and remembers, the rebound form of functions; `sites` is told what counts as the kernel's own code."""

    def __init__(self, sites: Sites) -> None:
        self._sites = sites
        # id -> original (kept alive) and rebound
        self._done: dict[int, tuple[Any, Any]] = {id(b): (b, ours) for b, ours in BUILTINS.items()}
        self._cuda = FakeCuda()
        self._cuda_names = {id(getattr(m, n)): n for m in _cuda_modules() for n in FakeCuda.names() if hasattr(m, n)}

    def function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, a dispatcher or a plain function, rebound."""
        rebound: Callable[..., Any] = self._value(function)
        return rebound

    def _value(self, value: Any) -> Any:
        found = self._done.get(id(value))
        if found is not None:
            return found[1]
        if _is_operation(value):
            return value
        if hasattr(value, "py_func"):
            return self._remember(value, self._value(value.py_func))
        if isinstance(value, FunctionType) and (value.__module__ or "").startswith(CUDA_MODULES) and id(value) not in self._cuda_names:
            return self._remember(value, _without_meaning(f"{value.__module__}.{value.__name__}"))
        if isinstance(value, FunctionType) and id(value) not in self._cuda_names:
            return value if is_foreign(value.__module__) else self._rebuild(value)
        if isinstance(value, ModuleType):
            return self._remember(value, self._module(value))
        if type(value) is tuple or isinstance(value, tuple) and hasattr(value, "_fields"):
            items = [self._value(v) for v in value]
            if all(a is b for a, b in zip(items, value)):
                return value
            return self._remember(value, tuple(items) if type(value) is tuple else type(value)(*items))
        if id(value) in self._cuda_names:
            return getattr(self._cuda, self._cuda_names[id(value)])
        if type(value).__module__.startswith("numba") and type(value).__name__ in ("_Intrinsic", "ExternFunction"):
            name = str(getattr(value, "__name__", None) or getattr(value, "name", repr(value)))
            return self._remember(value, _without_meaning(name))
        return value

    def _remember(self, value: Any, rebound: Any) -> Any:
        self._done[id(value)] = (value, rebound)
        return rebound

    def _module(self, module: ModuleType) -> Any:
        if module.__name__ in CUDA_MODULES:
            return self._cuda
        if module.__name__ == "numba":
            return _Module(self, module, cuda=self._cuda)
        if module.__name__.startswith(CUDA_MODULES):
            return _Module(self, module)
        return module if is_foreign(module.__name__) else _Module(self, module)

    def _rebuild(self, function: FunctionType) -> FunctionType:
        code = function.__code__
        namespace: dict[str, Any] = {
            "__builtins__": function.__globals__.get("__builtins__", __builtins__),
            "__name__": function.__module__,
        }
        cells = tuple(CellType() for _ in function.__closure__ or ())
        rebound = FunctionType(code, namespace, function.__name__, function.__defaults__, cells)
        rebound.__kwdefaults__ = function.__kwdefaults__
        rebound.__qualname__, rebound.__doc__ = function.__qualname__, function.__doc__
        self._remember(function, rebound)  # before its globals: helpers may call one another in a circle
        for own in _codes(code):
            self._sites.add_code(own)
        for name in names_of(code):
            if name in function.__globals__:
                namespace[name] = self._value(function.__globals__[name])
            elif getattr(builtins, name, None) in BUILTINS:
                namespace[name] = self._value(getattr(builtins, name))
        for cell, original in zip(cells, function.__closure__ or ()):
            try:
                cell.cell_contents = self._value(original.cell_contents)
            except ValueError:  # an empty cell stays empty
                pass
        return rebound


class _Module:
    """A user's module, whose functions are rebound as they are reached."""

    def __init__(self, rebinder: Rebinder, module: ModuleType, **known: Any) -> None:
        self._rebinder, self._module = rebinder, module
        self.__dict__.update(known)

    def __getattr__(self, name: str) -> Any:
        value = self._rebinder._value(getattr(self._module, name))
        self.__dict__[name] = value
        return value


def _cuda_modules() -> list[ModuleType]:
    return [sys.modules[name] for name in CUDA_MODULES if name in sys.modules]


def _is_operation(value: Any) -> bool:
    return hasattr(value, "__emu_op__")


def is_foreign(module: str | None) -> bool:
    """Whether a module is none of a kernel's author: Numba, NumPy, the standard library."""
    root = (module or "").split(".")[0]
    return root in _FOREIGN or root in sys.stdlib_module_names


def _codes(code: CodeType) -> Iterator[CodeType]:
    """`code`, and that of the functions defined inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def names_of(code: CodeType) -> set[str]:
    """The global names that `code`, and the functions defined inside it, use."""
    return {name for c in _codes(code) for name in c.co_names}


def _without_meaning(name: str) -> Callable[..., Any]:
    def refuse(*args: Any) -> Any:
        raise UnknownNameError(
            f"{name}: what only Numba compiles has no meaning in Python; declare it with dgnumba.ptx.op, whose body says what it does"
        )

    return refuse
