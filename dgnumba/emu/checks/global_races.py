"""Races in global memory: between threads of one cluster by their clocks, between clusters because nothing orders them but atomics behind a fence.

For every byte of the launch's arrays the last write is kept, and the last read since. Two clusters are ordered when one, after
``cuda.threadfence()``, executes an atomic on an element on which the other executes one later. What a TMA store
writes is there for the threads of its cluster once its thread has waited for it (not only for its reads); what TMA loads is compared between
clusters only.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import numpy as np

from ...errors import RaceError
from ..async_ops import BULK_STORES
from ..clocks import Row
from ..machine import thread
from ..observe import Access, Move, Note, Observer
from ..threads import Thread


class _Event(NamedTuple):
    cluster: int
    uid: int  # of the thread
    epoch: int
    site: int
    is_atomic: bool
    thread: str
    copy: str = ""  # "load" or "store"
    serial: int = 0  # of the store


class _Stores:
    """The TMA stores of one thread: of the group that is open, of those committed, and when they were waited for."""

    def __init__(self) -> None:
        self.open: list[_Event] = []
        self.groups: deque[list[_Event]] = deque()


class _Range(NamedTuple):
    first: int
    end: int
    name: str
    writes: np.ndarray  # for each byte the number of the event, 0 if there is none
    reads: np.ndarray


class GlobalRaces(Observer):
    """Hears of accesses of global memory."""

    def __init__(self) -> None:
        self._ranges: list[_Range] = []
        self._events: list[_Event] = []
        self._numbers: dict[_Event, int] = {}
        self._cluster: Any = None
        self._number = self._serial = 0
        self._known: set[int] = set()  # clusters that are ordered before what this one does now
        self._released: dict[int, set[int]] = {}  # address of an atomic -> clusters ordered before who executes one there
        self._rows: dict[int, Row] = {}  # the same among the threads of this cluster
        self._learnt: dict[int, list[Row]] = {}
        self._stores: dict[int, _Stores] = {}
        self._done: dict[_Event, int] = {}  # a store that has been waited for -> the epoch of its thread then

    def note(self, note: Note) -> None:
        """Groups of TMA stores are closed, and waited for."""
        if note.op != BULK_STORES or note.kind not in ("commit", "done"):
            return
        t = thread()
        stores = self._stores.get(t.uid)
        if stores is None or t.cta.cluster is not self._cluster:
            return
        if note.kind == "commit":
            stores.groups.append(stores.open)
            stores.open = []
        elif note.detail != "read":
            for event in stores.groups.popleft():
                self._done[event] = self._cluster.clocks.now[t.uid]

    def access(self, access: Access) -> None:
        """A thread reads, writes, or does both as an atomic."""
        if access.space != "global":
            return
        t = access.thread
        self._begin(t)
        clocks = t.cta.cluster.clocks
        is_atomic = access.kind == "atomic"
        if is_atomic:
            self._acquire(t, access.address)
        found = self._range(access.address)
        if found is None:
            return
        at = slice(access.address - found.first, access.address + access.nbytes - found.first)
        event = _Event(self._number, t.uid, clocks.now[t.uid], access.place, is_atomic, _who(t))
        self._enter(event, t, found, at, access.kind != "read", access.address)
        if is_atomic and t.released is not None:
            self._release(t, access.address)

    def move(self, move: Move) -> None:
        """A copy of TMA."""
        t, view = move.thread, move.in_tensor
        if not view.size:
            return
        self._begin(t)
        first = view.__array_interface__["data"][0]
        found = self._range(first)
        if found is not None:
            at = (first - found.first, view.shape, view.strides)
            self._serial += move.is_store
            kind, serial = ("store", self._serial) if move.is_store else ("load", 0)
            event = _Event(self._number, t.uid, 0, t.machine.sites.here(move.op), False, _who(t), kind, serial)
            if move.is_store:
                self._stores.setdefault(t.uid, _Stores()).open.append(event)
            self._enter(event, t, found, at, move.is_store, first)

    # The books

    def _begin(self, t: Thread) -> None:
        cluster = t.cta.cluster
        if cluster is not self._cluster:
            self._cluster, self._number = cluster, self._number + 1
            self._known, self._rows, self._learnt, self._stores, self._done = set(), {}, {}, {}, {}
            if not self._ranges:
                self._ranges = [_Range(f, e, n, np.zeros(e - f, np.int32), np.zeros(e - f, np.int32)) for f, e, n in t.cta.gmem.extents()]

    def _range(self, address: int) -> _Range | None:
        return next((r for r in self._ranges if r.first <= address < r.end), None)

    def _enter(self, event: _Event, t: Thread, found: _Range, at: Any, is_write: bool, address: int) -> None:
        writes, reads = _view(found.writes, at), _view(found.reads, at)
        for number in _distinct(writes):
            self._check(event, number, t, "write" if is_write else "read", "write", writes, address, found.name)
        if is_write:
            for number in _distinct(reads):
                self._check(event, number, t, "write", "read", reads, address, found.name)
        own = self._numbers.get(event)
        if own is None:
            self._events.append(event)
            own = self._numbers[event] = len(self._events)
        if is_write:
            writes[...] = own
            reads[...] = 0
        else:
            reads[...] = own

    def _check(self, event: _Event, number: int, t: Thread, access: str, other: str, book: np.ndarray, address: int, name: str) -> None:
        before = self._events[number - 1] if number else None
        if before is None or event.is_atomic and before.is_atomic or self._is_ordered(before, event, t):
            return
        where = address + (int(np.argmax(book == number)) if book.ndim == 1 else 0)
        why = "no barrier orders the two" if before.cluster == event.cluster else "nothing orders blocks but atomics behind a fence"
        is_copy = before.cluster == event.cluster and before.copy == "store"
        if is_copy:
            why = "this is not ordered after a wait for it to finish"
        raise RaceError(
            f"global memory at {where:#x} in {name}: {access} races with the {other} by {before.thread} "
            f"({t.machine.sites[before.site]}): {why}",
            kind="missing-wait" if is_copy else "global-race",
            address=where,
        )

    def _is_ordered(self, before: _Event, event: _Event, t: Thread) -> bool:
        if before.cluster != event.cluster:
            return before.cluster in self._known
        if event.copy or before.copy == "load":
            return True
        epoch = self._done.get(before) if before.copy else before.epoch
        if epoch is None:
            return False
        if self._cluster.clocks.knows(t.uid, before.uid, epoch):
            return True
        return any(row[before.uid] >= epoch for row in self._learnt.get(t.uid, ()))

    # Atomics behind a fence

    def _acquire(self, t: Thread, address: int) -> None:
        self._known |= self._released.get(address, set())
        if address in self._rows:
            self._learnt.setdefault(t.uid, []).append(self._rows[address])

    def _release(self, t: Thread, address: int) -> None:
        self._released.setdefault(address, set()).update(self._known, {self._number})
        clocks = self._cluster.clocks
        row = clocks.full_row([t.uid])
        for learnt in self._learnt.get(t.uid, ()):
            row = clocks.join(row, learnt)
        self._rows[address] = clocks.join(self._rows[address], row) if address in self._rows else row
        clocks.now[t.uid] += 1


def _who(t: Thread) -> str:
    return f"thread {t.index} of {t.cta.text}"


def _view(book: np.ndarray, at: Any) -> np.ndarray:
    if isinstance(at, slice):
        return book[at]
    offset, shape, strides = at
    return np.lib.stride_tricks.as_strided(book[offset:], shape, [4 * s for s in strides])


def _distinct(book: np.ndarray) -> set[int]:
    flat = book.ravel()
    starts = np.flatnonzero(flat[1:] != flat[:-1])
    return {int(flat[0]), *flat[starts].tolist(), *flat[starts + 1].tolist()}
