"""A kernel to PTX, on any machine: no GPU, no driver, only NVIDIA's NVVM."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
from numba import cuda
from numba.cuda import dispatcher, types
from numba.cuda.typing.typeof import typeof

from ..errors import CompileError
from ..integers import u32, u64
from .integers import NUMBA_TYPE, UnsignedType
from .tensor_map import TOKEN, TensorMapType

_SCALAR: dict[Any, Any] = {int: types.int64, float: types.float64, bool: types.boolean, **NUMBA_TYPE}
_lock = threading.RLock()


def argtype(value: Any, index: int = 0) -> Any:
    """The Numba type of launch argument `index`, from a value or from its Python type.

    `u32`, `u64`, NumPy scalars, int, float, bool, NumPy arrays (also a stand-in with `dtype`, `ndim` and `flags` for an array on the
    device), and tensor maps (`layouts.descriptors.TensorMap`).
    """
    if isinstance(value, types.Type):
        return value
    if getattr(value, "is_tensor_map", False):
        return TensorMapType(index)
    if isinstance(value, type):
        if value in _SCALAR:
            return _SCALAR[value]
        return types.unliteral(typeof(value()))
    if type(value) in _SCALAR:
        return _SCALAR[type(value)]
    if hasattr(value, "dtype") and hasattr(value, "ndim") and not isinstance(value, np.generic):
        layout = "C" if value.flags.c_contiguous else "F" if value.flags.f_contiguous else "A"
        readonly = not getattr(value.flags, "writeable", True)
        dtype = typeof(np.zeros(1, value.dtype)).dtype
        return types.Array(dtype, value.ndim, layout, readonly=readonly)
    return types.unliteral(typeof(value))


@contextmanager
def _compute_capability(cc: tuple[int, int]) -> Iterator[None]:
    """Numba compiles a device function for the *current device*, also offline: give it one of the capability asked for."""
    stand_in = SimpleNamespace(compute_capability=cc)
    real = dispatcher.get_current_device
    dispatcher.get_current_device = lambda: stand_in
    try:
        yield
    finally:
        dispatcher.get_current_device = real


def _parameters(argtypes: tuple[Any, ...]) -> list[int]:
    """The PTX parameter at which each argument begins: an array is several."""
    first, out = 0, []
    for ty in argtypes:
        out.append(first)
        first += 5 + 2 * ty.ndim if isinstance(ty, types.Array) else 1
    return out


def compile_ptx(
    kernel: Any, argtypes: tuple[Any, ...], *, arch: str = "sm_90a", threads: int | None = None, min_ctas: int = 1
) -> tuple[str, str]:
    """Compile a kernel.

    kernel    a Python function, or what `@cuda.jit` made of one
    argtypes  one Numba type (or what `argtype` takes) an argument
    arch      "sm_90a", "sm_80", ...
    threads   threads a CTA: becomes `.maxntid`, which `setmaxnreg` and ptxas' register choice need
    min_ctas  with `threads`: CTAs that a multiprocessor is to have room for; becomes `.minnctapersm`, which bounds the registers

    Returns (PTX text, entry name). Raises `CompileError` with Numba's message, or with the line that installs what it lacks.
    """
    function = getattr(kernel, "py_func", kernel)
    signature = types.void(*(argtype(a, i) for i, a in enumerate(argtypes)))
    digits, suffix = re.fullmatch(r"sm_(\d+)([af]?)", arch).groups()  # type: ignore[union-attr]
    cc = (int(digits[:-1]), int(digits[-1]))
    bounds = {} if threads is None else {"launch_bounds": (threads, min_ctas)}
    with _lock, _compute_capability(cc):
        try:
            ptx, _ = cuda.compile(
                function, signature, device=False, abi="numba", cc=(*cc, suffix) if suffix else cc, output="ptx", opt=True, **bounds
            )
        except Exception as error:
            if type(error).__name__ == "DynamicLibNotFoundError":  # cuda.pathfinder's, of a library that no extra of ours brought
                name = (re.findall(r"(nvvm|nvrtc)", str(error)) or ["compiler"])[0].upper()
                raise CompileError(f"NVIDIA's {name} is not found: python -m pip install 'dgnumba[cuda13]'", str(error)) from error
            raise CompileError(f"Numba could not compile {function.__qualname__}: {error}") from error
    return _bind_tensor_maps(ptx, signature.args)


def _bind_tensor_maps(ptx: str, argtypes: tuple[Any, ...]) -> tuple[str, str]:
    """Put the parameters' names where the tokens stand, and give them the 64-byte alignment that TMA asks for."""
    entry = re.search(r"\.entry\s+(\S+?)\(", ptx).group(1)  # type: ignore[union-attr]
    for index, (ty, first) in enumerate(zip(argtypes, _parameters(argtypes))):
        if isinstance(ty, TensorMapType):
            name = f"{entry}_param_{first}"
            ptx = ptx.replace(TOKEN.format(index=index), name)
            ptx = re.sub(rf"\.param \.align 8 \.b8 {re.escape(name)}\[128\]", f".param .align 64 .b8 {name}[128]", ptx)
    return ptx, entry


__all__ = ["TensorMapType", "UnsignedType", "argtype", "compile_ptx", "u32", "u64"]
