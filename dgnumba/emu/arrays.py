"""Arrays as a kernel sees them: NumPy's indexing, with every element access checked.

Elements come out as Numba has them in a kernel, up to width: integers as Python integers, float32 and float16 as NumPy scalars, float64 as
float.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import OutOfBoundsError, UninitializedError, UnknownNameError
from ..wrapping import tell_used
from .memory import SharedMemory
from .observe import Access


def dtype_of(dtype: Any) -> np.dtype[Any]:
    """The NumPy dtype of a NumPy or Numba type."""
    name = getattr(dtype, "name", None)
    if isinstance(name, str) and not isinstance(dtype, np.dtype):
        dtype = "bool" if name == "boolean" else name  # a Numba type
    found: np.dtype[Any] = np.dtype(dtype)
    return found


def scalar(value: Any) -> Any:
    """A NumPy scalar as the value that a kernel computes with."""
    kind = value.dtype.kind
    if kind in "iu":
        return int(value)
    if kind == "b":
        return bool(value)
    return float(value) if value.dtype == np.float64 else value


def _store_into(array: np.ndarray, index: Any, value: Any) -> None:
    """``array[index] = value`` with integers wrapping and floats truncated, as on the device."""
    if array.dtype.kind in "iu" and isinstance(value, (int, float, np.generic)):
        bits = array.dtype.itemsize * 8
        value = int(value) & (1 << bits) - 1
        value = np.array(value, f"u{array.dtype.itemsize}").view(array.dtype)
    elif isinstance(value, CheckedArray):
        value = value.read()
    array[index] = value


class CheckedArray:
    """What the arrays of a kernel have in common."""

    dtype: np.dtype[Any]
    name: str

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], strides: tuple[int, ...], name: str) -> None:
        self.shape, self.dtype, self.strides, self.name = shape, dtype, strides, name
        self.ndim, self.itemsize = len(shape), dtype.itemsize
        self.size = int(np.prod(shape, dtype=np.int64))

    def __len__(self) -> int:
        return self.shape[0]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise UnknownNameError(
            f"{self.name}.{name}: not emulated. Arrays in a kernel have indexing, len, shape, ndim, size, dtype, strides, itemsize and T"
        )

    def read(self) -> np.ndarray:
        """All elements, read by the running thread."""
        raise NotImplementedError

    def peek(self) -> np.ndarray:
        """A copy of all elements, looked at from outside: no access of the kernel."""
        raise NotImplementedError

    def _out_of_bounds(self, index: Any) -> OutOfBoundsError:
        tell_used(index)
        return OutOfBoundsError(f"{self.name}[{index}]: out of bounds for shape {self.shape} of {self.dtype}")


class GlobalArray(CheckedArray):
    """A NumPy array in global memory."""

    def __init__(self, array: np.ndarray, name: str, tell_access: Callable[[Access], None] | None = None) -> None:
        super().__init__(array.shape, array.dtype, array.strides, name)
        self._array, self._tell_access = array, tell_access

    @property
    def address(self) -> int:
        """Of its first element."""
        return int(self._array.__array_interface__["data"][0])

    @property
    def T(self) -> GlobalArray:
        """Transposed."""
        return GlobalArray(self._array.T, self.name, self._tell_access)

    def read(self) -> np.ndarray:
        """All elements."""
        return self._array

    def peek(self) -> np.ndarray:
        """A copy of all elements."""
        return self._array.copy()

    def __getitem__(self, index: Any) -> Any:
        try:
            value = self._array[index]
        except IndexError:
            raise self._out_of_bounds(index) from None
        if isinstance(value, np.ndarray):
            return GlobalArray(value, self.name, self._tell_access)
        if self._tell_access is not None:
            self._tell(index, "read")
        return scalar(value)

    def __setitem__(self, index: Any, value: Any) -> None:
        if not self._array.flags.writeable:
            raise OutOfBoundsError(f"{self.name}[{index}]: write to a read-only array")
        try:
            _store_into(self._array, index, value)
        except IndexError:
            raise self._out_of_bounds(index) from None
        if self._tell_access is not None:
            self._tell(index, "write")

    def atomic(self, index: Any, change: Callable[[Any], Any]) -> Any:
        """Replace an element by ``change(element)``, and return the old one."""
        tell, self._tell_access = self._tell_access, None  # one access, not a read and a write
        try:
            old = self[index]
            self[index] = change(old)
        finally:
            self._tell_access = tell
        if tell is not None:
            self._tell(index, "atomic")
        return old

    def _tell(self, index: Any, kind: str) -> None:
        """Tell who looks on which bytes an access of elements touches, one by one."""
        tell_used(index)
        assert self._tell_access is not None
        touched = self._array[(*(index if isinstance(index, tuple) else (index,)), np.newaxis)]
        first = touched.__array_interface__["data"][0]
        offsets = np.zeros(1, np.int64)
        for extent, stride in zip(touched.shape, touched.strides):
            offsets = (offsets[:, None] + np.arange(extent) * stride).ravel()
        for offset in offsets.tolist():
            self._tell_access(Access.of_global(kind, first + offset, self.itemsize))


class LocalArray(GlobalArray):
    """An array of one thread: reads of what it has not written are errors."""

    def __init__(self, array: np.ndarray, written: np.ndarray | None = None) -> None:
        super().__init__(array, "local array")
        self._written = np.zeros(array.shape, bool) if written is None else written

    def __getitem__(self, index: Any) -> Any:
        try:
            written = self._written[index]
        except IndexError:
            raise self._out_of_bounds(index) from None
        if isinstance(written, np.ndarray):
            return LocalArray(self._array[index], written)
        if not written:
            raise UninitializedError(f"{self.name}[{index}]: read, but this thread has not written it")
        return scalar(self._array[index])

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(index, value)
        self._written[index] = True

    def read(self) -> np.ndarray:
        """All elements; the thread must have written them."""
        if not self._written.all():
            raise UninitializedError(f"{self.name}: read, but this thread has not written all of it")
        return self._array


class SharedArray(CheckedArray):
    """An array in a CTA's shared memory; `offsets` are its elements' bytes from `address`."""

    def __init__(self, smem: SharedMemory, address: int, offsets: np.ndarray, dtype: np.dtype[Any]) -> None:
        super().__init__(offsets.shape, dtype, tuple(s // 8 * dtype.itemsize for s in offsets.strides), "shared array")
        self._smem, self._base, self._offsets = smem, address, offsets

    @classmethod
    def at(cls, smem: SharedMemory, address: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> SharedArray:
        """A C-contiguous array at `address`."""
        count = int(np.prod(shape, dtype=np.int64))
        return cls(smem, address, (np.arange(count) * dtype.itemsize).reshape(shape), dtype)

    @property
    def address(self) -> int:
        """Of its first element; of an empty array, where it would be."""
        return self._base + (int(self._offsets.flat[0]) if self._offsets.size else 0)

    def _place(self, index: Any) -> Any:
        if self._smem.is_heard:
            tell_used(index)
        try:
            return self._offsets[index]
        except IndexError:
            raise self._out_of_bounds(index) from None

    def __getitem__(self, index: Any) -> Any:
        offset = self._place(index)
        if isinstance(offset, np.ndarray):
            return SharedArray(self._smem, self._base, offset, self.dtype)
        return self._element(int(offset))

    def _element(self, offset: int) -> Any:
        return scalar(np.frombuffer(self._smem.load(self._base + offset, self.itemsize), self.dtype)[0])

    def __setitem__(self, index: Any, value: Any) -> None:
        offsets = np.asarray(self._place(index))
        values = np.empty(offsets.shape, self.dtype)
        _store_into(values, ..., value)
        for offset, element in zip(offsets.ravel().tolist(), values.ravel()):
            self._smem.store(self._base + offset, element.tobytes())

    def peek(self) -> np.ndarray:
        """A copy of all elements; what nothing wrote is poison."""
        places = self._base + self._offsets.ravel()[:, None] + np.arange(self.itemsize)
        elements: np.ndarray = self._smem.bytes[places].view(self.dtype).reshape(self.shape)
        return elements

    def read(self) -> np.ndarray:
        """All elements, each a read by the running thread."""
        flat = [self._element(o) for o in self._offsets.ravel().tolist()]
        return np.array(flat, self.dtype).reshape(self.shape)

    def atomic(self, index: Any, change: Callable[[Any], Any]) -> Any:
        """Replace an element by ``change(element)`` in one atomic access, and return the old one."""

        def change_bytes(old: bytes) -> bytes:
            new = np.empty(1, self.dtype)
            _store_into(new, 0, change(scalar(np.frombuffer(old, self.dtype)[0])))
            return new.tobytes()

        old = self._smem.atomic(self._base + int(self._place(index)), self.itemsize, change_bytes)
        return scalar(np.frombuffer(old, self.dtype)[0])
