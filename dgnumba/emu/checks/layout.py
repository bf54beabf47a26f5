"""Swizzle mismatch: shared memory that one asynchronous unit writes in one layout, and another reads in a second one."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...errors import LayoutError
from ..machine import thread
from ..memory import SharedMemory
from ..observe import Access, Observer, Transfer
from ..region import CHUNK
from ..source import Site


class _Write(NamedTuple):
    layout: tuple[int, int]
    site: Site


class Layout(Observer):
    """Remembers, for every 16 bytes, in which layout TMA wrote them; what threads write has none that could be known."""

    def __init__(self) -> None:
        self._writes: list[_Write | None] = [None]
        self._numbers: dict[_Write, int] = {}
        self._written: dict[int, tuple[SharedMemory, np.ndarray]] = {}  # by the memory's id
        self._cluster: Any = None

    def _of(self, memory: SharedMemory) -> np.ndarray:
        """For each granule the number of the write."""
        cluster = thread().cta.cluster
        if cluster is not self._cluster:
            self._cluster = cluster
            self._written.clear()
        found = self._written.get(id(memory))
        if found is None:
            found = self._written[id(memory)] = memory, np.zeros(len(memory.bytes) // CHUNK, np.int32)
        return found[1]

    def access(self, access: Access) -> None:
        """A thread writes."""
        if access.memory is not None and access.kind != "read":
            self._of(access.memory)[access.address // CHUNK : -(-(access.address + access.nbytes) // CHUNK)] = 0

    def transfer(self, transfer: Transfer) -> None:
        """An asynchronous unit writes, or reads."""
        region, written = transfer.region, self._of(transfer.memory)
        if transfer.kind == "write":
            sites = transfer.thread.machine.sites
            write = None if region.layout is None else _Write(region.layout, sites[sites.here(transfer.op)])
            written[region.granules] = 0 if write is None else self._number(write)
            return
        if region.layout is None:
            return
        for number in set(np.asarray(written[region.granules]).tolist()):
            write = self._writes[number]
            if write is not None and write.layout != region.layout:
                which = int(np.argmax(np.asarray(written[region.granules]) == number))
                address = region.address_of(which * CHUNK)
                raise LayoutError(
                    f"shared memory at {transfer.memory.text(address)}: {transfer.op} reads it as {_text(region.layout)}, "
                    f"but it was written as {_text(write.layout)} by {write.site}",
                    address=address,
                )

    def _number(self, write: _Write) -> int:
        number = self._numbers.get(write)
        if number is None:
            number = self._numbers[write] = len(self._writes)
            self._writes.append(write)
        return number


def _text(layout: tuple[int, int]) -> str:
    swizzle, row = layout
    return f"rows of {row} bytes {f'with swizzle {swizzle}' if swizzle else 'without a swizzle'}"
