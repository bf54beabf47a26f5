"""Helpers that kernels call, which Numba gets to see only when it compiles a kernel that uses one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class DeviceFunction:
    """A helper that kernels call: a plain function to Python and the emulator, inlined whole where a kernel is compiled.

    py_func  the function, as of Numba's own dispatchers
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.py_func = function
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any) -> Any:
        return self.py_func(*args)

    def __repr__(self) -> str:
        return f"device_function({self.py_func.__module__}.{self.py_func.__qualname__})"

    @functools.cached_property
    def _dispatcher(self) -> Any:
        """Numba's own form of it."""
        from numba import cuda

        from . import compile  # noqa: F401  (registers the types a helper may use)

        return cuda.jit(device=True, forceinline=True)(self.py_func)

    @property
    def _numba_type_(self) -> Any:
        """What Numba asks an object that it does not know for: here it meets a dispatcher, made when it first asks."""
        return self._dispatcher._numba_type_


def device_function(function: Callable[..., Any]) -> Any:
    """Decorate a helper that kernels call: inlined whole on the GPU, an ordinary function in the emulator."""
    return DeviceFunction(function)
