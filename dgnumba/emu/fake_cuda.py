"""Numba's `cuda` names, as the emulated threads see them.

`FakeCuda` stands where a kernel says ``cuda``: what Numba documents for kernels is here, and another name is an error that says so.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..arithmetic import fma32
from ..errors import EmulationError, UnknownNameError
from ..integers import alike, u32, u64
from .arrays import CheckedArray, GlobalArray, LocalArray, SharedArray, dtype_of, scalar
from .machine import thread
from .threads import IN_KERNEL, WARP_SIZE, Thread
from .warp import WARP_OPS

DECLARE_IT = "what else a kernel needs is declared with dgnumba.ptx.op, whose body says what it does"


class _Dim3:
    """threadIdx, blockIdx, blockDim or gridDim."""

    def __init__(self, read: Callable[[Thread], tuple[int, int, int]]) -> None:
        self._read = read

    x = property(lambda self: self._read(thread())[0])
    y = property(lambda self: self._read(thread())[1])
    z = property(lambda self: self._read(thread())[2])


def _shape(shape: Any) -> tuple[int, ...]:
    return tuple(int(n) for n in shape) if isinstance(shape, (tuple, list)) else (int(shape),)


class _Namespace:
    """A part of `cuda`; of what it has not, it says so."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        has = ", ".join(n for n in dir(self) if not n.startswith("_"))
        part = type(self).__name__.lstrip("_").lower()
        raise UnknownNameError(f"cuda.{part}.{name}: not emulated. Emulated are {has}; {DECLARE_IT}")


class _Shared(_Namespace):
    """cuda.shared"""

    @staticmethod
    def array(shape: Any, dtype: Any, alignment: int | None = None) -> SharedArray:
        """A static shared array, one a place in the source and CTA; ``shape=0`` is the dynamic block."""
        t, dims, element = thread(), _shape(shape), dtype_of(dtype)
        cta = t.cta
        if dims == (0,):
            place: Any = ("dynamic", element)
        else:
            place = cta.cluster.machine.sites.here("cuda.shared.array")
        found = cta.shared_arrays.get(place)
        if found is None:
            address = cta.smem.base
            if dims == (0,):
                dims = ((cta.smem.dynamic_end - address) // element.itemsize,)
            else:
                address = cta.smem.allocate(int(np.prod(dims)) * element.itemsize, max(alignment or 0, 16))
            found = cta.shared_arrays[place] = SharedArray.at(cta.smem, address, dims, element)
        return found


class _Local(_Namespace):
    """cuda.local"""

    @staticmethod
    def array(shape: Any, dtype: Any, alignment: int | None = None) -> LocalArray:
        """An array of this thread's own."""
        return LocalArray(np.zeros(_shape(shape), dtype_of(dtype)))


class _Const(_Namespace):
    """cuda.const"""

    @staticmethod
    def array_like(array: Any) -> GlobalArray:
        """A constant copy of a host array."""
        copy = np.array(array)
        copy.flags.writeable = False
        return GlobalArray(copy, "constant array")


def _index(array: CheckedArray, index: Any) -> Any:
    return tuple(index) if isinstance(index, (tuple, list)) else index


def _element(array: CheckedArray, value: Any) -> Any:
    """`value` as one of the array's elements, which is what an atomic operation computes with."""
    if array.dtype.kind == "f":
        return scalar(array.dtype.type(value))
    bits = 8 * array.itemsize
    number = int(value) & (1 << bits) - 1
    return number - (1 << bits) if array.dtype.kind == "i" and number >> bits - 1 else number


class _Atomic(_Namespace):
    """cuda.atomic: every operation takes (array, index, value), and returns the old element."""

    @staticmethod
    def _change(name: str, change: Callable[[Any, Any], Any]) -> Callable[..., Any]:
        def atomic(array: Any, index: Any, value: Any) -> Any:
            t = thread()
            t.op = f"cuda.atomic.{name}"
            operand = _element(array, value)
            old = array.atomic(_index(array, index), lambda old: change(old, operand))
            t.op = IN_KERNEL
            return old

        return atomic

    def __init__(self) -> None:
        rules: dict[str, Callable[[Any, Any], Any]] = {
            "add": lambda old, v: old + v,
            "sub": lambda old, v: old - v,
            "and_": lambda old, v: old & v,
            "or_": lambda old, v: old | v,
            "xor": lambda old, v: old ^ v,
            "exch": lambda old, v: v,
            "max": lambda old, v: max(old, v) if old == old and v == v else float("nan"),
            "min": lambda old, v: min(old, v) if old == old and v == v else float("nan"),
            "nanmax": lambda old, v: max(old, v) if old == old and v == v else (v if old != old else old),
            "nanmin": lambda old, v: min(old, v) if old == old and v == v else (v if old != old else old),
            "inc": lambda old, v: 0 if old >= v else old + 1,
            "dec": lambda old, v: v if old == 0 or old > v else old - 1,
        }
        for name, rule in rules.items():
            setattr(self, name, self._change(name, rule))

    @staticmethod
    def cas(array: Any, index: Any, old: Any, value: Any) -> Any:
        """Put `value` where `old` stands."""
        t = thread()
        t.op = "cuda.atomic.cas"
        old, value = _element(array, old), _element(array, value)
        found = array.atomic(_index(array, index), lambda now: value if now == old else now)
        if found != old:
            t.pause()  # who fails to take a lock tries again: let its holder run
        t.op = IN_KERNEL
        return found

    def compare_and_swap(self, array: Any, old: Any, value: Any) -> Any:
        """`cas` at element 0."""
        return self.cas(array, 0, old, value)


def _bits(value: Any) -> int:
    if isinstance(value, (u32, u64)):
        return value.bits
    return value.dtype.itemsize * 8 if isinstance(value, np.generic) else 64


def _unsigned(value: Any) -> int:
    return int(value) & (1 << _bits(value)) - 1


def _counting(count: Callable[[Any], int]) -> Callable[[Any], Any]:
    """A function of a value's bits: of an unsigned integer it gives one of the same type."""
    return lambda value: type(value)(count(value)) if isinstance(value, (u32, u64)) else count(value)


def _ffs(value: Any) -> Any:
    place = (_unsigned(value) & -_unsigned(value)).bit_length()
    return u32(place) if isinstance(value, (u32, u64)) else place


def _syncthreads() -> None:
    t = thread()
    t.op = "cuda.syncthreads"
    t.machine.note("op", t.op, t.lanes)
    t.cta.barrier.sync()
    t.op = IN_KERNEL


def _reduce_over_cta(name: str, reduce: Callable[[Sequence[Any]], int]) -> Callable[[Any], int]:
    def sync(predicate: Any) -> int:
        t = thread()
        t.op = f"cuda.{name}"

        def body(values: Sequence[Any]) -> list[int]:
            t.cta.cluster.clocks.meet([lane.uid for lane in thread().lanes])
            return [reduce([bool(v) for v in values])] * len(values)

        result: int = t.cta.everyone.meet(t, t.op, body, (predicate,), is_aligned=False)
        return result

    return sync


def _fence() -> None:
    t = thread()
    t.released = t.cta.cluster.clocks.full_row([t.uid])


def _nanosleep(nanoseconds: Any) -> None:
    thread().pause()


def _grid(ndim: int, threads_of: Callable[[Thread], list[int]]) -> Any:
    values = threads_of(thread())[:ndim]
    return values[0] if ndim == 1 else tuple(values)


def _grid_position(t: Thread) -> list[int]:
    return [b * d + i for b, d, i in zip(t.cta.block_idx, t.cta.block_dim, t.position)]


def _grid_size(t: Thread) -> list[int]:
    return [g * d for g, d in zip(t.machine.grid_dim, t.cta.block_dim)]


def _selp(condition: Any, a: Any, b: Any) -> Any:
    a, b = alike(a, b)
    return a if condition else b


def _fma(a: Any, b: Any, c: Any) -> Any:
    if isinstance(a, np.float32):
        return np.float32(fma32(a, b, np.float32(c)))
    raise EmulationError(f"cuda.fma: expected float32 values, got {type(a).__name__}")


_MEMBERS: dict[str, Any] = {
    "threadIdx": _Dim3(lambda t: t.position),
    "blockIdx": _Dim3(lambda t: t.cta.block_idx),
    "blockDim": _Dim3(lambda t: t.cta.block_dim),
    "gridDim": _Dim3(lambda t: t.machine.grid_dim),
    "warpsize": WARP_SIZE,
    "shared": _Shared(),
    "local": _Local(),
    "const": _Const(),
    "atomic": _Atomic(),
    "grid": functools.partial(_grid, threads_of=_grid_position),
    "gridsize": functools.partial(_grid, threads_of=_grid_size),
    "syncthreads": _syncthreads,
    "syncthreads_count": _reduce_over_cta("syncthreads_count", sum),
    "syncthreads_and": _reduce_over_cta("syncthreads_and", lambda v: int(all(v))),
    "syncthreads_or": _reduce_over_cta("syncthreads_or", lambda v: int(any(v))),
    "threadfence": _fence,
    "threadfence_block": _fence,
    "threadfence_system": _fence,
    "nanosleep": _nanosleep,
    "popc": _counting(lambda value: _unsigned(value).bit_count()),
    "clz": _counting(lambda value: _bits(value) - _unsigned(value).bit_length()),
    "ffs": _ffs,
    "brev": lambda value: type(value)(int(f"{_unsigned(value):0{_bits(value)}b}"[::-1], 2)),
    "selp": _selp,
    "fma": _fma,
    **WARP_OPS,
}


class FakeCuda:
    """What a kernel sees as ``cuda``."""

    def __init__(self) -> None:
        self.__dict__.update(_MEMBERS)

    @staticmethod
    def names() -> list[str]:
        """What is emulated."""
        return [*_MEMBERS, "laneid"]

    @property
    def laneid(self) -> int:
        """The lane of this thread in its warp."""
        return thread().lane

    def __getattr__(self, name: str) -> Any:
        real = getattr(sys.modules.get("numba.cuda"), name, None)
        if real is not None and type(real).__module__.startswith("numba") and hasattr(real, "bitwidth"):
            return real  # a Numba number type: cuda.float32
        raise UnknownNameError(f"cuda.{name}: not emulated. Emulated are {', '.join(sorted(self.names()))}; {DECLARE_IT}")


__all__ = ["FakeCuda"]
