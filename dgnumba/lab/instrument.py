"""The same kernel with its operations watched: a variant that writes down when each began and ended, made of the kernel's own code.

No kernel is written twice for this. A new function is made from the same code, as the emulator makes its own (`emu.rebind`), in which the operations
to be watched are others: record the clock, do the operation, record the clock. It compiles, and it can be emulated.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from fnmatch import fnmatchcase
from types import CellType, FunctionType, ModuleType
from typing import Any

from .._numba import device_function
from ..emu.rebind import is_foreign, names_of
from ..integers import u32
from ..kernels.watched import END, begin_records, end_records
from ..ptx import clock
from ..ptx._declare import unrolled
from .costs import kind_of

FIRST = END + 1
"""The first number of an operation's records: its begin, and with one more its end."""

WATCHED = (
    "mbarrier.wait", "barrier.sync", "barrier.cluster_wait", "wgmma.mma*", "wgmma.wait", "tma.load*", "tma.store*", "tma.wait*", "fragment.promote*",
    "cp_async.*", "mma.*", "thread.griddepcontrol_wait",
)  # fmt: skip
"""Operations that are watched, by pattern."""


class Instrument:
    """Makes watched kernels; `names` are the operations that they record, `event` says what a record's number means."""

    def __init__(self, watched: tuple[str, ...] = WATCHED) -> None:
        self.names: list[str] = []
        self._watched = watched
        self._done: dict[int, tuple[Any, Any]] = {}

    def kernel(self, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """`kernel` with two more parameters: the records' address (u64) and how many each warp has room for (u32)."""
        function: Any = getattr(kernel, "py_func", kernel)
        parameters = ", ".join(inspect.signature(function).parameters)
        source = f"def {function.__name__}({parameters}, records, room):\n    begin(records, room)\n    inner({parameters})\n    end()\n"
        names = {"begin": begin_records, "end": end_records, "inner": device_function(self._rebuild(function)), "__name__": __name__}
        exec(compile(source, f"<watched {function.__name__}>", "exec"), names)
        return names[function.__name__]  # type: ignore[no-any-return]

    def event(self, number: int) -> tuple[str, bool]:
        """The operation of a record, and whether it is its end."""
        at, is_end = divmod(number - FIRST, 2)
        return self.names[at], bool(is_end)

    def _value(self, value: Any) -> Any:
        found = self._done.get(id(value))
        if found is not None:
            return found[1]
        if hasattr(value, "operation"):
            return self._remember(value, self._operation(value))
        if hasattr(value, "py_func"):
            return value if is_foreign(value.__module__) else self._remember(value, device_function(self._rebuild(value.py_func)))
        if isinstance(value, FunctionType) and not is_foreign(value.__module__):
            return self._rebuild(value)
        if isinstance(value, ModuleType) and not is_foreign(value.__name__):
            return self._module(value)
        return value

    def _remember(self, value: Any, made: Any) -> Any:
        self._done[id(value)] = (value, made)
        return made

    def _module(self, module: ModuleType) -> ModuleType:
        copy: ModuleType = self._remember(module, ModuleType(module.__name__))
        for name, member in list(vars(module).items()):
            if not name.startswith("__"):
                setattr(copy, name, self._value(member) if hasattr(member, "operation") else member)
        return copy

    def _rebuild(self, function: FunctionType) -> FunctionType:
        namespace: dict[str, Any] = {
            "__builtins__": function.__globals__.get("__builtins__", __builtins__),
            "__name__": function.__module__,
        }
        cells = tuple(CellType() for _ in function.__closure__ or ())
        rebuilt = FunctionType(function.__code__, namespace, function.__name__, function.__defaults__, cells)
        rebuilt.__kwdefaults__, rebuilt.__qualname__ = function.__kwdefaults__, function.__qualname__
        self._remember(function, rebuilt)
        for name in names_of(function.__code__):
            if name in function.__globals__:
                namespace[name] = self._value(function.__globals__[name])
        for cell, original in zip(cells, function.__closure__ or ()):
            cell.cell_contents = self._value(original.cell_contents)
        return rebuilt

    def _operation(self, function: Callable[..., Any]) -> Callable[..., Any]:
        operation = function.operation  # type: ignore[attr-defined]
        if not any(fnmatchcase(operation.name, pattern) for pattern in self._watched):
            return function
        if operation.name not in self.names:
            self.names.append(operation.name)
        begin = FIRST + 2 * self.names.index(operation.name)
        signature = inspect.signature(operation.body, eval_str=True)
        bar = next((i for i, (name, _) in enumerate(operation.params) if name in ("bar", "number")), None)
        # a promotion is arithmetic, which a compiler moves: its records hold on to the registers that go in and come out
        frag = list(signature.parameters).index("acc") if kind_of(operation.name) == "promote" else None

        def body(*args: Any) -> Any:
            value = u32(0) if bar is None else args[bar]
            if frag is None:
                clock.record(begin, value)
            else:
                args = (*args[:frag], clock.record_of(args[frag], begin, value), *args[frag + 1 :])
            result = function(*args)
            if frag is not None:
                return clock.record_of(result, begin + 1, value)
            clock.record(begin + 1, value)
            return result

        body.__signature__ = signature  # type: ignore[attr-defined]
        tied = None if operation.tied_index is None else operation.params[operation.tied_index][0]
        return unrolled(body, tied=tied, name=f"watched.{operation.name}")
