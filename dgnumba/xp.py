"""NumPy or CuPy: which of them an array belongs to, and views of arrays from elsewhere as one of the two.

Arrays may come from NumPy, CuPy, torch, JAX, or anything with ``__cuda_array_interface__`` or
DLPack. `as_array` turns each into a NumPy array (host memory) or a CuPy array (device memory) over
the same bytes, without a copy. torch and JAX are never imported: an array of theirs can only come
from a process that already has.

CuPy has no float8, and bfloat16 only from version 14 on. What it lacks travels as unsigned integers
of the same width, and the `DType` that the bytes mean is kept beside them in `ArrayView`.
"""

from __future__ import annotations

import math
import sys
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from .dtypes import DTYPES, DType
from .errors import DTypeError, UnsupportedError

_CUDA, _CUDA_MANAGED = 2, 13  # DLPack's device types
_ROW_OF = {row.numpy: row for row in DTYPES.values()}


class ArrayView(NamedTuple):
    """A NumPy or CuPy array over an array's own bytes, and what the array said of itself."""

    array: Any
    dtype: DType | None
    """What the elements mean, though `array` may hold just their bytes; None: no such row."""
    device: int | None
    """Ordinal of the GPU that holds it; None for host memory."""
    writable: bool
    own_dtype: Any
    """The element type as the array's own library has it."""

    @property
    def dtype_name(self) -> str:
        """The element type's own name for itself, for messages."""
        return str(self.own_dtype).removeprefix("torch.")


def is_device_array(x: Any) -> bool:
    """Whether the memory of `x` is on a GPU."""
    if type(x) is np.ndarray:
        return False
    if hasattr(type(x), "__dlpack_device__"):
        return int(x.__dlpack_device__()[0]) in (_CUDA, _CUDA_MANAGED)
    return hasattr(type(x), "__cuda_array_interface__")


def namespace(x: Any) -> ModuleType:
    """The array module that works on `x`: numpy for host memory, cupy for device memory.

    Raises:
        UnsupportedError: `x` is on a GPU, and CuPy cannot be imported.
    """
    return cupy_for() if is_device_array(x) else np


def view_bytes(x: Any) -> Any:
    """The bytes of a NumPy or CuPy array of one-byte elements as uint8: same shape, same memory."""
    if x.dtype.itemsize != 1:
        raise DTypeError(f"view_bytes: expected elements of one byte, got {x.dtype}")
    return x if x.dtype == np.uint8 else x.view(np.uint8)


def device_of(x: Any) -> AbstractContextManager[Any]:
    """Make the GPU of a CuPy array the current one, for ``with``; for a NumPy array nothing."""
    return x.device if is_device_array(x) else nullcontext()


def empty(shape: tuple[int, ...], dtype: DType, like: Any) -> Any:
    """A new array beside `like`, of `dtype` or of what `carrier` says stands for it there."""
    with device_of(like):
        return namespace(like).empty(shape, carrier(dtype, like))


def carrier(dtype: DType, like: Any) -> np.dtype[Any]:
    """The NumPy dtype in which `like`'s array module holds elements of `dtype`."""
    return _cupy_type(dtype, dtype.itemsize) if is_device_array(like) else dtype.numpy


def address(array: Any) -> int:
    """Address of the first element of a NumPy or CuPy array."""
    return int(array.ctypes.data) if isinstance(array, np.ndarray) else int(array.data.ptr)


def same_place(x: Any, y: Any) -> bool:
    """Whether two arrays of one shape and type have every element at the same address; of an axis of one element the stride says nothing."""
    axes = zip(x.shape, x.strides, y.strides, strict=True)
    return address(x) == address(y) and all(n < 2 or step == other for n, step, other in axes)


def overlaps_itself(array: Any) -> bool:
    """Whether elements may share memory: by rising stride, does each axis step over those below?"""
    if array.size == 0:
        return False
    extent = array.dtype.itemsize
    axes = zip(array.strides, array.shape, strict=True)
    for stride, count in sorted((abs(s), n) for s, n in axes if n > 1):
        if stride < extent:
            return True
        extent = stride * (count - 1) + extent
    return False


def share_memory(x: Any, y: Any) -> bool:
    """Whether two arrays share a byte, exactly: columns of one buffer, side by side, do not."""
    if not isinstance(x, np.ndarray):
        (x_low, x_high), (y_low, y_high) = _span(x), _span(y)
        if x_high <= y_low or y_high <= x_low:
            return False
        x, y = np.asarray(_Addresses(x)), np.asarray(_Addresses(y))
    if not np.may_share_memory(x, y):
        return False
    try:
        return np.shares_memory(x, y, max_work=10_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _span(array: Any) -> tuple[int, int]:
    """Addresses from the first byte of an array to behind the last; empty for an empty one."""
    low = high = address(array)
    if array.size == 0:
        return low, low
    for stride, count in zip(array.strides, array.shape, strict=True):
        reach = stride * (count - 1)
        low, high = (low + reach, high) if reach < 0 else (low, high + reach)
    return low, high + array.dtype.itemsize


class _Addresses:
    """A device array's addresses in NumPy's clothes, to reckon with; nothing reads through it."""

    def __init__(self, array: Any) -> None:
        self.__array_interface__ = {
            "data": (address(array), True),
            "shape": array.shape,
            "strides": array.strides,
            "typestr": f"|V{array.dtype.itemsize}",
            "version": 3,
        }


def as_array(x: Any, argument: str = "x") -> ArrayView:
    """See `x` as a NumPy or CuPy array, sharing its memory.

    Args:
        x: a NumPy, CuPy, torch or JAX array, or one with ``__cuda_array_interface__`` or DLPack.
        argument: what the caller calls it, for messages.

    Raises:
        DTypeError: `x` is no array.
        UnsupportedError: `x` is on a GPU, and CuPy cannot be imported.
    """
    if isinstance(x, np.ndarray):
        return _view(x, x.dtype, None, x.flags.writeable)
    if _is_instance(x, "cupy", "ndarray"):
        return _view(x, x.dtype, x.device.id, True)
    if _is_instance(x, "torch", "Tensor"):
        return _from_torch(x, argument)
    if _is_instance(x, "jax", "Array"):
        return _from_jax(x, argument)
    if hasattr(type(x), "__dlpack_device__") or hasattr(type(x), "__cuda_array_interface__"):
        if not is_device_array(x):
            array = np.from_dlpack(x)
            return _view(array, array.dtype, None, array.flags.writeable)
        return _from_interface(x, argument)
    raise DTypeError(
        f"{argument}: expected an array (NumPy, CuPy, torch, JAX, or with __cuda_array_interface__ or DLPack), got {type(x).__name__}"
    )


def _from_interface(x: Any, argument: str) -> ArrayView:
    cupy = cupy_for(argument)
    interface = getattr(x, "__cuda_array_interface__", None)
    if interface is None:
        array = cupy.from_dlpack(x)
        return _view(array, array.dtype, array.device.id, True)
    pointer, is_read_only = interface["data"]
    # NOTE: cupy.asarray copies memory of another GPU to the current one, and a `d` would be written in the copy.
    device = cupy.cuda.runtime.pointerGetAttributes(pointer).device if pointer else cupy.cuda.Device().id
    with cupy.cuda.Device(device):
        array = cupy.asarray(x)
    return _view(array, array.dtype, array.device.id, not is_read_only)


def _view(array: Any, dtype: np.dtype[Any], device: int | None, writable: bool) -> ArrayView:
    return ArrayView(array, _ROW_OF.get(dtype), device, writable, dtype)


def _is_instance(x: Any, module: str, name: str) -> bool:
    loaded = sys.modules.get(module)
    kind = getattr(loaded, name, None)
    return kind is not None and isinstance(x, kind)


def _from_torch(tensor: Any, argument: str) -> ArrayView:
    torch = sys.modules["torch"]
    dtype = DTYPES.get(str(tensor.dtype).removeprefix("torch."))
    if tensor.layout != torch.strided or tensor.device.type not in ("cpu", "cuda"):
        raise DTypeError(f"{argument}: expected a dense torch tensor on cpu or cuda, got {tensor.layout} on {tensor.device}")
    tensor = tensor.detach()
    if tensor.device.type == "cpu":
        if dtype is not None and not dtype.is_native:
            # torch hands NumPy no float8 and no bfloat16, but the bytes it does.
            bits = tensor.view(torch.uint8 if dtype.itemsize == 1 else torch.int16)
            array = bits.numpy().view(dtype.numpy)
        else:
            array = tensor.numpy()
        return ArrayView(array, dtype, None, True, tensor.dtype)
    held = _cupy_type(dtype, tensor.element_size())
    strides = tuple(s * tensor.element_size() for s in tensor.stride())
    shape, device = tuple(tensor.shape), tensor.device.index
    array = _cupy_view(tensor, tensor.data_ptr(), shape, held, strides, device, argument)
    return ArrayView(array, dtype, device, True, tensor.dtype)


def _from_jax(x: Any, argument: str) -> ArrayView:
    dtype = DTYPES.get(x.dtype.name)
    if not is_device_array(x):
        return ArrayView(np.asarray(x), dtype, None, False, x.dtype)
    # NOTE: the pointer bypasses JAX's own ordering, so what computes `x` must have finished.
    x.block_until_ready()
    held = _cupy_type(dtype, x.dtype.itemsize)
    device = int(x.__dlpack_device__()[1])
    array = _cupy_view(x, x.unsafe_buffer_pointer(), tuple(x.shape), held, None, device, argument)
    return ArrayView(array, dtype, device, False, x.dtype)


def _cupy_view(
    owner: Any,
    address: int,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    strides: tuple[int, ...] | None,
    device: int,
    argument: str,
) -> Any:
    """A CuPy array over memory of `owner`, which it keeps alive; it waits for no stream."""
    cupy = cupy_for(argument)
    if strides is None or 0 in shape:
        strides, extent = None, math.prod(shape) * dtype.itemsize
    else:
        extent = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + dtype.itemsize
    memory = cupy.cuda.UnownedMemory(address, extent, owner, device)
    return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0), strides)


def cupy_for(argument: str = "array") -> ModuleType:
    """CuPy, for an argument that is on a GPU. Raises `UnsupportedError` where it cannot be imported."""
    try:
        import cupy
    except ImportError as error:
        raise UnsupportedError(
            f"{argument}: is on a GPU, which needs CuPy, and CuPy cannot be imported ({error}); "
            "install it with: python -m pip install 'dgnumba[cuda13]'"
        ) from error
    return cupy  # type: ignore[no-any-return]


def _cupy_type(dtype: DType | None, itemsize: int) -> np.dtype[Any]:
    """What CuPy holds elements in: their own type if it has it, else unsigned integers."""
    if dtype is not None and (dtype.is_native or _cupy_holds(dtype)):
        return dtype.numpy
    return np.dtype(f"u{itemsize}")


@cache
def _cupy_holds(dtype: DType) -> bool:
    """Whether this CuPy has a dtype that NumPy knows only through ml_dtypes."""
    try:
        cupy_for().empty(0, dtype.numpy)
    except (TypeError, ValueError, NotImplementedError):
        return False
    # NOTE: CuPy 14 makes empty arrays of structured and unknown types that no operation takes;
    # bfloat16 it computes with.
    return dtype.name == "bfloat16"
