"""Everything that touches Numba's internals: how `u32`, tensor maps and the operations of `dgnumba.ptx` are typed and lowered,
and how a kernel becomes PTX on a machine without a GPU.

No other room imports `numba.cuda`'s submodules or llvmlite, and this one imports Numba when something is compiled, not before: that
takes a second, and a process that finds its kernels in the cache needs none of it. Where numba-cuda is not installed (it has no wheel
for macOS), the names below still import, and only the emulator can run a kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from .helpers import DeviceFunction, device_function
from .site import is_lowering

HAVE_NUMBA_CUDA = find_spec("numba_cuda") is not None


def register_operation(operation: Any) -> None:
    """Make `operation` (a `dgnumba.ptx` declaration) callable inside `@cuda.jit` kernels."""
    if HAVE_NUMBA_CUDA:
        from . import operations

        operations.register(operation)


def emit(operation: Any, args: tuple[Any, ...]) -> Any:
    """Emit `operation` where the lowering in progress stands."""
    from . import operations

    return operations.emit(operation, args)


def select_register(condition: Any, x: Any, y: Any) -> Any:
    """The register that holds `x` where `condition` does, else `y`; see `dgnumba._numba.tracer.select`."""
    from . import tracer

    return tracer.select(condition, x, y)


def undefined_register(kind: str) -> Any:
    """A register of `kind` that holds nothing yet; see `dgnumba._numba.tracer.undefined`."""
    from . import tracer

    return tracer.undefined(kind)


def compile_ptx(
    kernel: Callable[..., Any], argtypes: tuple[Any, ...], *, arch: str = "sm_90a", threads: int | None = None, min_ctas: int = 1
) -> tuple[str, str]:
    """PTX text and entry name of `kernel`; see `dgnumba._numba.compile.compile_ptx`."""
    from . import compile as compiler

    return compiler.compile_ptx(kernel, argtypes, arch=arch, threads=threads, min_ctas=min_ctas)


def argtype(value: Any, index: int = 0) -> Any:
    """The Numba type of one launch argument; see `dgnumba._numba.compile.argtype`."""
    from . import compile as compiler

    return compiler.argtype(value, index)


__all__ = [
    "HAVE_NUMBA_CUDA",
    "DeviceFunction",
    "argtype",
    "compile_ptx",
    "device_function",
    "emit",
    "is_lowering",
    "register_operation",
    "select_register",
    "undefined_register",
]
