"""Everything that touches Numba's internals: how `u32`, tensor maps and the operations of `dgnumba.ptx` are typed and lowered,
and how a kernel becomes PTX on a machine without a GPU.

No other room imports `numba.cuda`'s submodules or llvmlite. Where numba-cuda is not installed (it has no wheel for macOS),
the names below still import: `device_function` leaves a function as it is, and only the emulator can run a kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

HAVE_NUMBA_CUDA = find_spec("numba_cuda") is not None

if HAVE_NUMBA_CUDA:
    from .tracer import select as select_register
    from .tracer import site as _site
else:
    _site = None  # type: ignore[assignment]


def register_operation(operation: Any) -> None:
    """Make `operation` (a `dgnumba.ptx` declaration) callable inside `@cuda.jit` kernels."""
    if HAVE_NUMBA_CUDA:
        from . import operations

        operations.register(operation)


def is_lowering() -> bool:
    """Whether an operation called now is to be emitted, because the compiler is lowering one that is made of it."""
    return _site is not None and _site() is not None


def emit(operation: Any, args: tuple[Any, ...]) -> Any:
    """Emit `operation` where the lowering in progress stands."""
    from . import operations

    return operations.emit(operation, args)


def device_function(function: Callable[..., Any]) -> Any:
    """Decorate a helper that kernels call: inlined whole on the GPU, an ordinary function in the emulator."""
    if not HAVE_NUMBA_CUDA:
        return function
    from numba import cuda

    from . import compile  # noqa: F401  (registers the types a helper may use)

    return cuda.jit(device=True, forceinline=True)(function)


def compile_ptx(kernel: Any, argtypes: tuple[Any, ...], *, arch: str = "sm_90a", threads: int | None = None) -> tuple[str, str]:
    """PTX text and entry name of `kernel`; see `dgnumba._numba.compile.compile_ptx`."""
    from . import compile as compiler

    return compiler.compile_ptx(kernel, argtypes, arch=arch, threads=threads)


def argtype(value: Any, index: int = 0) -> Any:
    """The Numba type of one launch argument; see `dgnumba._numba.compile.argtype`."""
    from . import compile as compiler

    return compiler.argtype(value, index)


__all__ = ["HAVE_NUMBA_CUDA", "argtype", "compile_ptx", "device_function", "emit", "is_lowering", "register_operation", "select_register"]
