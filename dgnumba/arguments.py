"""A kernel's arguments, read once: the parameters that they pass, their types, their GPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from . import xp
from .device import current_index, index_of
from .driver import EncodedMap, MapEncoder
from .dtypes import as_dtype
from .errors import DTypeError, ProblemError
from .integers import u32, u64
from .layouts.descriptors import TWO_LINES, TensorMap

_MASK = 2**64 - 1
_KEPT = 1024
_encoders: dict[Any, MapEncoder] = {}

SCALARS: dict[type, Callable[[Any], Any]] = {
    u32: int,
    u64: int,
    int: lambda value: value & _MASK,
    bool: int,
    float: float,
}
"""What a scalar of each Python type passes: an unsigned integer of its width, or a float."""


class Arguments:
    """The arguments of one launch on a GPU.

    signature    what decides the compiled kernel; hashable
    scalars      values of all parameters but tensor maps, in order; an array passes several
    tensor_maps  the tensor maps, in order
    typed        the arguments in the form that `_numba.argtype` takes
    owners       the arrays as the caller gave them, which know their stream
    device       ordinal of the GPU that holds all of them
    """

    def __init__(self, args: Sequence[Any]) -> None:
        self.signature: list[Any] = []
        self.scalars: list[Any] = []
        self.tensor_maps: list[TensorMap] = []
        self.typed: list[Any] = list(args)
        self.owners: list[Any] = []
        devices: dict[int, int] = {}
        for i, arg in enumerate(args):
            read = SCALARS.get(type(arg))
            if read is not None:
                self.signature.append(type(arg))
                self.scalars.append(read(arg))
            elif isinstance(arg, np.generic):
                self._numpy_scalar(i, arg)
            elif isinstance(arg, TensorMap):
                devices.setdefault(self._tensor_map(i, arg), i)
            else:
                devices.setdefault(self._array(i, arg), i)
        if len(devices) > 1:
            where = ", ".join(f"args[{i}] on GPU {d}" for d, i in devices.items())
            raise ProblemError(f"args: expected all arrays on one GPU, got {where}")
        self.device: int = next(iter(devices)) if devices else current_index() or 0

    def _numpy_scalar(self, i: int, arg: np.generic) -> None:
        if arg.dtype.kind not in "biuf" or arg.dtype.itemsize > 8:
            raise DTypeError(f"args[{i}]: expected an integer or a float, got {arg.dtype}")
        self.signature.append(arg.dtype)
        if arg.dtype == np.float16:  # passed as 16 bits without a type
            self.scalars.append(int(arg.view(np.uint16)))
        else:
            value = arg.item()
            mask = (1 << 8 * arg.dtype.itemsize) - 1
            self.scalars.append(value if arg.dtype.kind == "f" else int(value) & mask)

    def _tensor_map(self, i: int, arg: TensorMap) -> int:
        device = index_of(arg.array)
        if device is None:
            raise ProblemError(f"args[{i}]: expected a tensor map of an array on a GPU")
        offset = arg.array.data.ptr % 16
        if offset:
            raise ProblemError(
                f"args[{i}]: expected a tensor map of memory at a multiple of 16 bytes, got "
                f"{offset} bytes beyond one: pass the map of a copy"
            )
        self.signature.append(TensorMap)
        self.tensor_maps.append(arg)
        self.owners.append(arg.array)
        return device

    def _array(self, i: int, arg: Any) -> int:
        if is_cupy(arg):
            array, device = arg, int(arg.device.id)
        else:
            view = xp.as_array(arg, f"args[{i}]")
            if view.device is None:
                raise ProblemError(
                    f"args[{i}]: expected an array on a GPU, got {type(arg).__name__} in host memory; cupy.asarray copies it to one"
                )
            array, device = view.array, view.device
        flags, data = array.flags, array.data
        layout = "C" if flags.c_contiguous else "F" if flags.f_contiguous else "A"
        self.signature.append((array.dtype, array.ndim, layout))
        self.typed[i] = array
        self.owners.append(arg)
        # How Numba passes an array: two pointers that a kernel has no use for, elements, bytes of an
        # element, address, shape, strides.
        self.scalars += (0, 0, array.size, array.itemsize, data.ptr, *array.shape)
        self.scalars += [stride & _MASK for stride in array.strides]
        return device


def is_cupy(x: Any) -> bool:
    """Whether `x` is a CuPy array; CuPy is not imported for that."""
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(x, cupy.ndarray)


def is_on_gpu(arg: Any) -> bool:
    """Whether an argument lies in the memory of a GPU, or is the tensor map of an array that does."""
    if type(arg) in SCALARS:
        return False
    if is_cupy(arg):
        return True
    return xp.is_device_array(arg.array if isinstance(arg, TensorMap) else arg)


def tensor_map(array: Any, box: Sequence[int], *, swizzle: int = 0, dtype: str | None = None, l2_promotion: int = TWO_LINES) -> TensorMap:
    """A tensor map of an array whose last axis is contiguous, to pass to a kernel.

    Args:
        array: a NumPy, CuPy, torch or JAX array, which the map keeps alive.
        box: elements that one operation moves, innermost dimension first.
        swizzle: 0, 32, 64 or 128: bytes of a swizzled row in shared memory.
        dtype: what the elements are, where the array can only say that they are bytes.
        l2_promotion: 0, 64, 128 or 256: to how many bytes L2 widens what it fetches from memory (0: not at all). 256 suits rows of which the
            next box asks for more; 128 a long matrix that is read once (on an H200 7168x16384 is read in 6 % less time, 4096x7168 in the same).
    """
    view = xp.as_array(array, "array")
    name = as_dtype(dtype or view.dtype or view.own_dtype).name
    return TensorMap.of(
        view.array, tuple(box) if isinstance(box, Sequence) else (box,), swizzle=swizzle, dtype=name, l2_promotion=l2_promotion
    )


def encoder(description: TensorMap) -> MapEncoder:
    """What encodes tensor maps of this description at any address; made once, and kept."""
    d = description
    key = (d.dtype, d.dims, d.strides, d.box, d.swizzle, d.l2_promotion)
    found = _encoders.get(key)
    if found is None:
        if len(_encoders) >= _KEPT:
            _encoders.clear()
        # Without its array, which would otherwise live as long as the encoder.
        found = _encoders.setdefault(key, MapEncoder(replace(d, array=None)))
    return found


def encoded(bound: TensorMap) -> EncodedMap:
    """A tensor map of an array on a GPU, in the form that the hardware reads."""
    return encoder(bound)(bound.array.data.ptr)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_encoders.clear)
