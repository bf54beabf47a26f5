"""Global memory: the NumPy arrays of a launch, at their true addresses. Bounds and alignment are checked; races between CTAs are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..errors import OutOfBoundsError
from .observe import Access


class _Range(NamedTuple):
    first: int
    end: int
    name: str
    is_writable: bool
    data: np.ndarray


class GlobalMemory:
    """The arrays that a kernel may reach."""

    def __init__(self, tell_access: Callable[[Access], None] | None = None) -> None:
        self._arrays: list[_Range] = []
        self._tell_access = tell_access

    def register(self, array: np.ndarray, name: str) -> None:
        """Let the kernel reach `array` by address."""
        first, end = np.lib.array_utils.byte_bounds(array)
        if first < end:
            self._arrays.append(_Range(first, end, name, array.flags.writeable, _bytes_of(array, first, end)))

    def extents(self) -> list[tuple[int, int, str]]:
        """Where bytes are that the kernel may reach: (first, end, name), arrays that overlap as one."""
        out: list[tuple[int, int, str]] = []
        for array in sorted(self._arrays, key=lambda a: (a.first, a.end)):
            if out and array.first < out[-1][1]:
                first, end, name = out.pop()
                out.append((first, max(end, array.end), name))
            else:
                out.append((array.first, array.end, array.name))
        return out

    def bytes_at(self, address: int, nbytes: int, align: int, write: bool = False) -> np.ndarray:
        """The `nbytes` bytes at `address`, a view; raise if they are not in one array."""
        address = int(address)
        if address % align:
            raise OutOfBoundsError(
                f"global address {address:#x}: expected a multiple of {align} for {nbytes} bytes", kind="misaligned", address=address
            )
        around = [a for a in self._arrays if a.first <= address and address + nbytes <= a.end]
        if not around:
            raise OutOfBoundsError(
                f"global address {address:#x}: {nbytes} bytes from there are in no array of the launch; {self._nearest(address)}",
                address=address,
            )
        found = next((a for a in around if a.is_writable), None) if write else around[0]
        if found is None:
            raise OutOfBoundsError(f"global address {address:#x}: write to {around[0].name}, which is read-only", address=address)
        return found.data[address - found.first : address - found.first + nbytes]

    def load(self, address: int, nbytes: int, align: int | None = None) -> bytes:
        """What a thread reads at `address`."""
        data = self.bytes_at(address, nbytes, align or nbytes).tobytes()
        if self._tell_access is not None:
            self._tell_access(Access.of_global("read", int(address), nbytes))
        return data

    def store(self, address: int, data: bytes, align: int | None = None) -> None:
        """A thread writes `data` at `address`."""
        self.bytes_at(address, len(data), align or len(data), write=True)[:] = np.frombuffer(data, np.uint8)
        if self._tell_access is not None:
            self._tell_access(Access.of_global("write", int(address), len(data)))

    def _nearest(self, address: int) -> str:
        if not self._arrays:
            return "it has none"
        near = min(self._arrays, key=lambda a: max(a.first - address, address - a.end))
        if address < near.first:
            where = f"{near.first - address} bytes before"
        else:
            where = f"{address - near.first} bytes behind the start of"
        return f"it is {where} {near.name} [{near.first:#x}, {near.end:#x}), {near.end - near.first} bytes"


def _bytes_of(array: np.ndarray, first: int, end: int) -> np.ndarray:
    """All bytes from `first` to `end`, gaps between strided elements included, as a view of the array's memory."""
    forward = array[tuple(slice(None, None, -1 if stride < 0 else 1) for stride in array.strides)]  # begins at `first`
    one = np.lib.stride_tricks.as_strided(forward, (1,), (array.itemsize,)).view(np.uint8)
    return np.lib.stride_tricks.as_strided(one, (end - first,), (1,))
