"""A stand-in for CuPy: its arrays are on no GPU, but as strict as CuPy's about what they take.

It shows that code written through `dgnumba.xp.namespace` stays within CuPy: no type of ml_dtypes,
no NumPy function on a device array, no NumPy array in an operation, no silent copy to the host.
Only the functions listed here exist; whoever adds one looks it up in CuPy's manual first.
"""

from __future__ import annotations

import ctypes
import sys
import types
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

OPERATORS = "add sub mul truediv floordiv mod and or xor lshift rshift eq ne lt le gt ge".split()
UNARY = ("neg", "invert", "abs")


class Device:
    current = 0

    def __init__(self, id: int) -> None:
        self.id = id

    def __enter__(self) -> Device:
        self.before, Device.current = Device.current, self.id
        return self

    def __exit__(self, *error: object) -> None:
        Device.current = self.before


class ndarray:
    def __init__(self, shape: Any, dtype: Any = float, memptr: Any = None, strides: Any = None):
        self._adopt(np.empty(shape, dtype), Device.current)
        if memptr is not None and self.size:
            pool = (ctypes.c_uint8 * memptr.mem.size).from_address(memptr.mem.address)
            self._held = np.ndarray(shape, dtype, pool, 0, strides)
            self.owner, self.device = memptr.mem.owner, Device(memptr.mem.device_id)

    def _adopt(self, held: Any, device: int) -> ndarray:
        if held.dtype.isbuiltin != 1:
            raise TypeError(f"Unsupported dtype {held.dtype}")
        self._held, self.device = held, Device(device)
        return self

    @classmethod
    def of(cls, held: Any, device: int | None = None) -> ndarray:
        """A device array that holds a NumPy array's memory."""
        return cls.__new__(cls)._adopt(held, Device.current if device is None else device)

    dtype = property(lambda self: self._held.dtype)
    itemsize = property(lambda self: self._held.itemsize)
    shape = property(lambda self: self._held.shape)
    strides = property(lambda self: self._held.strides)
    ndim = property(lambda self: self._held.ndim)
    size = property(lambda self: self._held.size)
    flags = property(lambda self: self._held.flags)
    data = property(lambda self: types.SimpleNamespace(ptr=self._held.ctypes.data))
    T = property(lambda self: self._wrap(self._held.T))
    __hash__ = None  # type: ignore[assignment]

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self._held.__array_interface__, "version": 3}

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device.id

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed")

    __array_ufunc__ = None

    def get(self) -> Any:
        return self._held.copy()

    def tolist(self) -> Any:
        return self._held.tolist()

    def _wrap(self, result: Any) -> ndarray:
        return ndarray.of(np.asarray(result), self.device.id)

    def __getitem__(self, key: Any) -> ndarray:
        return self._wrap(self._held[_key(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        self._held[_key(key)] = _operand(value)

    def __float__(self) -> float:
        return float(self._held)

    def __int__(self) -> int:
        return int(self._held)

    def __bool__(self) -> bool:
        return bool(self._held)

    def __len__(self) -> int:
        return len(self._held)


def _operand(x: Any) -> Any:
    if isinstance(x, ndarray):
        if x.device.id != Device.current:
            raise ValueError(f"array of device {x.device.id} used with device {Device.current} current")
        return x._held
    if isinstance(x, np.ndarray):
        raise TypeError("Unsupported type <class 'numpy.ndarray'>")
    return x


def _key(key: Any) -> Any:
    return tuple(_operand(k) for k in key) if isinstance(key, tuple) else _operand(key)


def _wrap_all(result: Any) -> Any:
    if isinstance(result, tuple):
        return tuple(_wrap_all(r) for r in result)
    return ndarray.of(np.asarray(result))


def _operator(name: str) -> Any:
    def operate(self: ndarray, *others: Any) -> Any:
        result = getattr(_operand(self), f"__{name}__")(*(_operand(x) for x in others))
        return NotImplemented if result is NotImplemented else self._wrap(result)

    return operate


for _name in OPERATORS:
    for _form in (_name, f"r{_name}", f"i{_name}"):
        if hasattr(np.ndarray, f"__{_form}__"):
            setattr(ndarray, f"__{_form}__", _operator(_form))
for _name in UNARY:
    setattr(ndarray, f"__{_name}__", _operator(_name))
for _name in "view astype reshape swapaxes transpose all any sum max min copy".split():
    setattr(
        ndarray,
        _name,
        lambda self, *a, _name=_name, **k: self._wrap(getattr(_operand(self), _name)(*a, **k)),
    )


def _function(name: str) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        return _wrap_all(getattr(np, name)(*(_operand(x) for x in args), **kwargs))

    return call


def _asarray(x: Any, dtype: Any = None) -> ndarray:
    """From host memory too: the one way in that CuPy has."""
    return ndarray.of(np.array(x._held if isinstance(x, ndarray) else x, dtype=dtype, copy=None))


def _with_builtin_type(make: Any) -> Any:
    def call(shape: Any, dtype: Any = float) -> ndarray:
        return ndarray.of(make(shape, dtype))

    return call


def _as_strided(x: ndarray, shape: Any, strides: Any) -> ndarray:
    return x._wrap(np.lib.stride_tricks.as_strided(_operand(x), shape, strides))


class UnownedMemory:
    def __init__(self, address: int, size: int, owner: Any, device_id: int) -> None:
        self.address, self.size, self.owner, self.device_id = address, size, owner, device_id


class MemoryPointer:
    def __init__(self, mem: UnownedMemory, offset: int) -> None:
        assert offset == 0
        self.mem = mem


def build() -> types.ModuleType:
    """The module, complete."""
    cupy = types.ModuleType("cupy")
    cupy.ndarray = ndarray  # type: ignore[attr-defined]
    for name in "uint8 uint16 int32 uint32 int64 uint64 float16 float32 float64".split():
        setattr(cupy, name, getattr(np, name))
    for (
        name
    ) in "ascontiguousarray abs maximum minimum where take clip nonzero broadcast_to rint floor ceil argwhere argsort empty_like".split():
        setattr(cupy, name, _function(name))
    cupy.asarray = _asarray  # type: ignore[attr-defined]
    cupy.arange = lambda *a, **k: ndarray.of(np.arange(*a, **k))  # type: ignore[attr-defined]
    cupy.concatenate = lambda parts, axis=0: ndarray.of(np.concatenate([_operand(x) for x in parts], axis))  # type: ignore[attr-defined]
    cupy.empty, cupy.zeros, cupy.ones = map(_with_builtin_type, (np.empty, np.zeros, np.ones))  # type: ignore[attr-defined]
    cupy.lib = types.SimpleNamespace(  # type: ignore[attr-defined]
        stride_tricks=types.SimpleNamespace(as_strided=_as_strided)
    )
    cupy.cuda = types.SimpleNamespace(  # type: ignore[attr-defined]
        UnownedMemory=UnownedMemory, MemoryPointer=MemoryPointer
    )
    return cupy


@contextmanager
def installed() -> Any:
    """``import cupy`` gives the stand-in, within."""
    from dgnumba import xp

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cupy", cupy := build())
        xp._cupy_holds.cache_clear()
        yield cupy
    xp._cupy_holds.cache_clear()
