"""Shared memory of one CTA: its bytes, and for every byte who touched it last, so that each access can be checked.

Checked at every access: bounds, alignment, that something wrote what is read, that conflicting accesses are ordered (`clocks`), and that the
generic and the asynchronous proxy meet only across fence.proxy.async. Asynchronous work is entered when it is *issued*: from then on until
somebody has waited for it, every access that conflicts with it is unordered, and so an error, whether or not its bytes have moved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from ..errors import BarrierError, OutOfBoundsError, ProxyError, RaceError, UninitializedError
from .clocks import Event, Row
from .observe import Access, Transfer
from .region import CHUNK, WINDOW, Region

if TYPE_CHECKING:
    from .cta import Cta
    from .threads import Thread

CAPACITY = 232_448  # bytes of shared memory that a CTA can have on sm_90
UNWRITTEN, BARRIER, FIRST_EVENT = 0, 1, 2  # stamps: two that are no event, and the first that is
POISON = 0xCB


class SharedMemory:
    """The shared memory of `cta`: a dynamic block of `nbytes` at address `base`, static arrays behind it."""

    def __init__(self, cta: Cta, nbytes: int, base: int) -> None:
        if nbytes > CAPACITY:
            raise OutOfBoundsError(f"smem: a CTA has at most {CAPACITY} bytes of shared memory, got {nbytes}")
        self._cta = cta
        self._clocks, self._machine = cta.cluster.clocks, cta.cluster.machine
        self._tell_access, self._tell_transfer = self._machine.hearers.access, self._machine.hearers.transfer
        self.base, self.dynamic_end = base, base + nbytes
        self._static = self._static_end = -(-self.dynamic_end // 128) * 128
        room = -(-(self._static + CAPACITY - nbytes) // CHUNK) * CHUNK
        self.bytes = np.full(room, POISON, np.uint8)
        self._raw = self.bytes.data
        self._stamps = np.zeros(room, np.int32)  # for each byte: the event that wrote it
        self._reads: dict[int, dict[tuple[int, int], int]] = {}  # granule -> (thread, byte mask) -> event
        self._was_read = np.zeros(room // CHUNK, bool)
        self._bulk_reads: dict[int, np.ndarray] = {}  # asynchronous agent -> for each granule its last read

    @property
    def is_heard(self) -> bool:
        """Whether anybody hears of its accesses."""
        return self._tell_access is not None

    # Layout

    def allocate(self, nbytes: int, align: int = CHUNK) -> int:
        """The address of a new static array."""
        address = -(-self._static_end // align) * align
        self._static_end = -(-(address + nbytes) // CHUNK) * CHUNK
        used = self._static_end - self._static + self.dynamic_end - self.base
        if used > CAPACITY:
            raise OutOfBoundsError(f"shared arrays: {used} bytes in this CTA, at most {CAPACITY} fit")
        return address

    def check_bounds(self, address: int, nbytes: int, align: int) -> None:
        """Raise unless the bytes exist and the address is aligned."""
        end = address + nbytes
        inside = self.base <= address and end <= self.dynamic_end or self._static <= address and end <= self._static_end
        if not inside:
            static = f", static arrays [{self._static:#x}, {self._static_end:#x})" if self._static_end > self._static else ""
            raise OutOfBoundsError(
                f"shared address {self.text(address)}: {nbytes} bytes from there are not in this CTA's shared memory "
                f"(dynamic [{self.base:#x}, {self.dynamic_end:#x}){static})",
                address=address,
            )
        if address % align:
            raise OutOfBoundsError(
                f"shared address {self.text(address)}: expected a multiple of {align} for {nbytes} bytes",
                kind="misaligned",
                address=address,
            )

    def text(self, address: int) -> str:
        """`address` with the label it has in this run, if any."""
        return self._machine.address_text(address, self.base)

    # One thread, generic proxy

    def load(self, address: int, nbytes: int, align: int | None = None) -> bytes:
        """What the running thread reads at `address`: 1 to 16 bytes, or more in a loop of these."""
        thread, address = self._machine.thread(), int(address)
        if address >= WINDOW:
            memory, address = self._cta.cluster.resolve(address, thread)
            return memory._load(thread, address, nbytes, align or nbytes)
        return self._load(thread, address, nbytes, align or nbytes)

    def store(self, address: int, data: bytes, align: int | None = None) -> None:
        """The running thread writes `data` at `address`."""
        thread, memory, address = self._machine.thread(), self, int(address)
        if address >= WINDOW:
            memory, address = self._cta.cluster.resolve(address, thread)
        memory._store(thread, address, data, align or len(data))

    def load_rows(self, addresses: Sequence[int], nbytes: int = CHUNK) -> np.ndarray:
        """Row i is what lane i of the meeting reads at ``addresses[i]``."""
        lanes = self._machine.lanes()
        rows = [self._load(lane, int(address), nbytes, nbytes) for lane, address in zip(lanes, addresses)]
        return np.frombuffer(b"".join(rows), np.uint8).reshape(-1, nbytes)

    def store_rows(self, addresses: Sequence[int], data: np.ndarray) -> None:
        """Lane i of the meeting writes ``data[i]`` at ``addresses[i]``."""
        for lane, address, row in zip(self._machine.lanes(), addresses, data):
            self._store(lane, int(address), row.tobytes(), row.nbytes)

    def atomic(self, address: int, nbytes: int, change: Callable[[bytes], bytes]) -> bytes:
        """Replace the bytes at `address` by ``change(bytes)`` as one atomic access of the running thread; return the old ones."""
        thread = self._machine.thread()
        old = self._load(thread, address, nbytes, nbytes, atomic=True)
        self._store(thread, address, change(old), nbytes, atomic=True)
        return old

    def _load(self, thread: Thread, address: int, nbytes: int, align: int, atomic: bool = False) -> bytes:
        self.check_bounds(address, nbytes, align)
        for stamp in set(self._stamps[address : address + nbytes].tolist()):
            if stamp < FIRST_EVENT:
                self._check_written(stamp, Region(address, nbytes), "read")
            event = self._clocks.event_of(stamp)
            if not self._clocks.knows(thread.uid, event.agent, event.epoch) and not (atomic and event.atomic):
                self._race("read", address, nbytes, event, "write")
        event_number = self._note(thread, atomic)
        for granule, mask in _masks(address, nbytes):
            self._was_read[granule] = True
            self._reads.setdefault(granule, {})[thread.uid, mask] = event_number
        if self._tell_access is not None:
            place = self._clocks.event_of(event_number).site
            self._tell_access(Access("shared", "atomic" if atomic else "read", address, nbytes, thread, self, place))
        return bytes(self._raw[address : address + nbytes])

    def _store(self, thread: Thread, address: int, data: bytes, align: int, atomic: bool = False) -> None:
        nbytes = len(data)
        self.check_bounds(address, nbytes, align)
        stamps = self._stamps[address : address + nbytes]
        clocks = self._clocks
        for stamp in set(stamps.tolist()):
            if stamp == UNWRITTEN:
                continue
            if stamp == BARRIER:
                self._check_written(stamp, Region(address, nbytes), "write")
            event = clocks.event_of(stamp)
            if not clocks.knows(thread.uid, event.agent, event.epoch) and not (atomic and event.atomic):
                self._race("write", address, nbytes, event, "write")
        self._check_thread_reads(address, nbytes, lambda agent, epoch: clocks.knows(thread.uid, agent, epoch), atomic)
        first, last = address // CHUNK, (address + nbytes - 1) // CHUNK
        for by_granule in self._bulk_reads.values():
            for granule in range(first, last + 1):
                number = int(by_granule[granule])
                if number:
                    event = clocks.event_of(number)
                    if not clocks.knows(thread.uid, event.agent, event.epoch):
                        self._race("write", address, nbytes, event, "read")
        event_number = self._note(thread, atomic)
        stamps[:] = event_number
        self._raw[address : address + nbytes] = data
        if self._tell_access is not None and not atomic:
            self._tell_access(Access("shared", "write", address, nbytes, thread, self, clocks.event_of(event_number).site))

    def _note(self, thread: Thread, atomic: bool = False) -> int:
        machine = self._machine
        site = machine.sites.here(machine.thread().op)
        return self._clocks.event(Event(thread.uid, self._clocks.now[thread.uid], site, thread.uid, atomic))

    def _check_thread_reads(self, address: int, nbytes: int, knows: Callable[[int, int], bool], atomic: bool = False) -> None:
        """Raise if a thread's read of these bytes is not ordered before a write of them now; forget the reads that are overwritten."""
        for granule, mask in _masks(address, nbytes):
            reads = self._reads.get(granule)
            if not reads:
                continue
            for (uid, read_mask), number in list(reads.items()):
                if not read_mask & mask:
                    continue
                event = self._clocks.event_of(number)
                if not knows(uid, event.epoch) and not (atomic and event.atomic):
                    self._race("write", address, nbytes, event, "read")
                if not read_mask & ~mask:
                    del reads[uid, read_mask]

    # Asynchronous agents

    def async_read(self, region: Region, agent: int, row: Row, event: int) -> None:
        """Enter that `agent` reads `region`, knowing `row`; `event` is that access."""
        self.check_bounds(region.address, region.nbytes, CHUNK)
        for stamp in _distinct(region.of_bytes(self._stamps)):
            self._check_written(stamp, region, "read")
            self._check_async(stamp, region, row, "read")
        if agent not in self._bulk_reads:
            self._bulk_reads[agent] = np.zeros(len(self._was_read), np.int32)
        self._bulk_reads[agent][region.granules] = event

    def async_write(self, region: Region, row: Row, event: int) -> None:
        """Enter that an asynchronous agent that knows `row` writes `region`; the bytes are poison until they land."""
        self.check_bounds(region.address, region.nbytes, min(CHUNK, region.nbytes))
        clocks = self._clocks
        for stamp in _distinct(region.of_bytes(self._stamps)):
            if stamp != UNWRITTEN:
                self._check_written(stamp, region, "write")
                self._check_async(stamp, region, row, "write")
        granules = np.arange(len(self._was_read))[region.granules]
        whole = min(CHUNK, region.nbytes)  # of a granule, or the part that is written
        for granule in granules[self._was_read[granules]].tolist():
            at = granule * CHUNK if whole == CHUNK else region.address
            self._check_thread_reads(at, whole, lambda agent, epoch: bool(row[agent] >= epoch))
        self._was_read[granules] = whole < CHUNK and self._was_read[granules]
        for by_granule in self._bulk_reads.values():
            number = int(by_granule[granules].max(initial=0))
            if number:
                last = clocks.event_of(number)
                if row[last.agent] < last.epoch:
                    self._race("write", region.address, region.nbytes, last, "read")
        region.set_bytes(self._stamps, event)
        region.set_bytes(self.bytes, POISON)

    def _check_async(self, stamp: int, region: Region, row: Row, access: str) -> None:
        event, clocks = self._clocks.event_of(stamp), self._clocks
        if row[event.agent] < event.epoch:
            self._race(access, region.address, region.nbytes, event, "write")
        if not clocks.is_async(event.agent) and row[event.agent + clocks.num_threads] < event.epoch:
            address = region.address_of(int(np.argmax(region.of_bytes(self._stamps).ravel() == stamp)))
            is_late = clocks.fenced[event.agent] >= event.epoch
            why = "but no barrier after its fence.proxy.async orders the two" if is_late else "without fence.proxy.async by the writer"
            raise ProxyError(
                f"shared memory at {self.text(address)}: the async proxy {access}s what {self.describe(event)} wrote, {why}",
                address=address,
            )

    def tell_transfer(self, op: str, kind: str, region: Region) -> None:
        """Tell who looks on that an asynchronous operation issued now reads or writes `region`."""
        if self._tell_transfer is not None:
            self._tell_transfer(Transfer(op, kind, region, self, self._machine.thread()))

    def peek(self, region: Region) -> np.ndarray:
        """The bytes of `region`, unchecked: [nbytes], or the shape of its chunks and 16."""
        return region.of_bytes(self.bytes).copy()

    def poke(self, region: Region, data: np.ndarray) -> None:
        """Put bytes into `region`, unchecked."""
        shape = (region.nbytes,) if region.chunks is None else (*region.chunks.shape, CHUNK)
        region.set_bytes(self.bytes, np.ascontiguousarray(data).view(np.uint8).reshape(shape))

    # mbarriers lie in shared memory, and nothing else may touch their bytes

    def place_barrier(self, address: int) -> None:
        """The running thread puts an mbarrier at `address`."""
        self._store(self._machine.thread(), address, bytes(8), 8)
        self._stamps[address : address + 8] = BARRIER

    def remove_barrier(self, address: int) -> None:
        """The 8 bytes are free again, and hold nothing."""
        self._stamps[address : address + 8] = UNWRITTEN

    # Reports

    def describe(self, event: Event) -> str:
        """Who made an access, and where: ``thread 5 (st.shared at k.py:12: ...)``."""
        cluster = self._cta.cluster
        site, who = cluster.machine.sites[event.site], cluster.thread_text([event.thread])
        return f"the asynchronous {site.op} that {who} issued ({site})" if self._clocks.is_async(event.agent) else f"{who} ({site})"

    def _check_written(self, stamp: int, region: Region, access: str) -> None:
        if stamp >= FIRST_EVENT:
            return
        address = region.address_of(int(np.argmax(region.of_bytes(self._stamps).ravel() == stamp)))
        if stamp == BARRIER:
            raise BarrierError(
                f"shared memory at {self.text(address)}: {access} of {region.nbytes} bytes in which an mbarrier lies", address=address
            )
        raise UninitializedError(
            f"shared memory at {self.text(address)}: read of {region.nbytes} bytes, of which nothing wrote this one", address=address
        )

    def _race(self, access: str, address: int, nbytes: int, event: Event, other: str) -> NoReturn:
        is_async = self._clocks.is_async(event.agent)
        why = "this is not ordered after a wait for it to finish" if is_async else "no barrier orders the two"
        raise RaceError(
            f"shared memory at {self.text(address)}: {access} of {nbytes} bytes races with the {other} by {self.describe(event)}: {why}",
            kind="missing-wait" if is_async else "",
            address=address,
        )


def _masks(address: int, nbytes: int) -> list[tuple[int, int]]:
    """The granules of [address, address + nbytes), each with the mask of its bytes that are inside."""
    granule, offset = divmod(address, CHUNK)
    if offset + nbytes <= CHUNK:
        return [(granule, ((1 << nbytes) - 1) << offset)]
    out = []
    while nbytes > 0:
        part = min(CHUNK - offset, nbytes)
        out.append((granule, ((1 << part) - 1) << offset))
        granule, offset, nbytes = granule + 1, 0, nbytes - part
    return out


def _distinct(stamps: np.ndarray) -> set[int]:
    """The stamps that occur; long runs are cheap."""
    flat = stamps.ravel()
    starts = np.flatnonzero(flat[1:] != flat[:-1])
    return {int(flat[0]), *flat[starts].tolist(), *flat[starts + 1].tolist()} if len(flat) else set()
