"""Looking on at a run: who wants to hear of what, and what he is told.

A run asks its observers once, before it begins, which methods they override; of what nobody overrides no record is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from greenlet import getcurrent

from .source import Site, threads_text

if TYPE_CHECKING:
    from .cta import Cta
    from .memory import SharedMemory
    from .region import Region
    from .threads import Thread


@dataclass(frozen=True)
class Note:
    """Something that happened.

    kind     "op" (an operation begins), "block", "wake" (its threads stop, and go on), "arrive" and "pass" (at a barrier, and through a wait for
             it), "issue", "commit", "land" and "done" (asynchronous work: begun, its group closed, arrived, waited for)
    phase    of the barrier it is about, counted from 0; -1 where there is none
    amount   bytes of a copy, multiply-adds of a wgmma, registers of an operation on a fragment, else 0
    home     the block whose barrier it is about: that of a peer, for an arrival or a copy to another CTA of a cluster
    place    number of its place among the run's `Sites`
    """

    step: int
    kind: str
    op: str
    block: tuple[int, int, int] | None
    threads: tuple[int, ...]
    line: int
    detail: str
    phase: int = -1
    amount: int = 0
    home: tuple[int, int, int] | None = None
    place: int = 0

    @classmethod
    def of(cls, step: int, kind: str, op: str, threads: Sequence[Thread], detail: str, phase: int, amount: int, cta: Cta | None) -> Note:
        """The record of what `threads` (none: an asynchronous unit) do now, at a barrier of `cta` (None: their own)."""
        home = cta.block_idx if cta is not None else threads[0].cta.block_idx
        if not threads:
            return cls(step, kind, op, home, (), 0, detail, phase, amount, home)
        machine = threads[0].machine
        place = machine.sites.here(op)
        who = tuple(t.index for t in threads)
        return cls(step, kind, op, threads[0].cta.block_idx, who, machine.sites[place].line, detail, phase, amount, home, place)

    def __str__(self) -> str:
        who = f"{threads_text(list(self.threads)) if self.threads else 'asynchronous work'} of block {self.block}"
        what = self.detail + (f" phase {self.phase}" if self.phase >= 0 else "")
        return f"{self.step:6d} {self.kind:6s} {self.op} [{who}]{' line ' + str(self.line) if self.line else ''} {what}".rstrip()


class Access(NamedTuple):
    """One access of memory by one thread; `memory` is the CTA's whose shared memory it is, None for global memory.

    `kind` is "read", "write" or "atomic"; `address` counts from 0 in that shared memory, or is the array's true address; `place` is the number of
    its place among the run's `Sites`.
    """

    space: str
    kind: str
    address: int
    nbytes: int
    thread: Thread
    memory: SharedMemory | None
    place: int

    @classmethod
    def of_global(cls, kind: str, address: int, nbytes: int) -> Access:
        """An access of global memory by the running thread."""
        thread = cast("Thread", getcurrent())
        return cls("global", kind, address, nbytes, thread, None, thread.machine.sites.here(thread.op))

    @property
    def site(self) -> Site:
        """The operation and the line of the kernel."""
        return self.thread.machine.sites[self.place]


class Transfer(NamedTuple):
    """A region of shared memory that an asynchronous operation reads or writes, told when it is issued by `thread`."""

    op: str
    kind: str
    region: Region
    memory: SharedMemory
    thread: Thread


class Move(NamedTuple):
    """A box that an asynchronous copy moves between global and shared memory, told when it is issued by `thread`.

    coordinates  as the kernel gave them, or the global address of a copy without a tensor
    nbytes       of the box
    in_tensor    the part of it that lies in the tensor: a view of global memory, in bytes
    """

    op: str
    is_store: bool
    coordinates: tuple[Any, ...]
    nbytes: int
    in_tensor: np.ndarray
    thread: Thread


class Observer:
    """Who looks on at a run: a subclass overrides what it wants to hear of.

    >>> import numpy as np
    >>> from numba import cuda
    >>> from dgnumba import emu
    >>> class Bytes(emu.Observer):
    ...     moved = 0
    ...     def access(self, access):
    ...         self.moved += access.nbytes
    >>> def scale(x):
    ...     x[cuda.grid(1)] *= 2
    >>> seen = Bytes()
    >>> emu.run(scale, 1, 32, (np.ones(32, np.float32),), observe=seen)
    >>> seen.moved
    256
    """

    def note(self, note: Note) -> None:
        """Operations, waits, arrivals, asynchronous work."""

    def access(self, access: Access) -> None:
        """Accesses of shared and global memory by threads, after they were checked."""

    def transfer(self, transfer: Transfer) -> None:
        """Accesses of shared memory by asynchronous units."""

    def move(self, move: Move) -> None:
        """Boxes that asynchronous copies move."""


Observe = Observer | Callable[[Note], None] | Iterable["Observer | Callable[[Note], None]"]
"""Who may look on: an observer, a function that takes notes, or several of these."""


class Hearers(NamedTuple):
    """For each method of `Observer`, what is to be called, or None."""

    note: Callable[[Note], None] | None
    access: Callable[[Access], None] | None
    transfer: Callable[[Transfer], None] | None
    move: Callable[[Move], None] | None

    @classmethod
    def of(cls, observe: Observe | None) -> Hearers:
        """The calls that `observe` asks for."""
        some = () if observe is None else (observe,) if isinstance(observe, Observer) or callable(observe) else tuple(observe)
        return cls(*(_together([call for o in some if (call := _overridden(o, name))]) for name in cls._fields))


def _overridden(observer: Any, name: str) -> Any:
    if isinstance(observer, Observer):
        return None if getattr(type(observer), name) is getattr(Observer, name) else getattr(observer, name)
    return observer if name == "note" else None


def _together(calls: list[Callable[[Any], None]]) -> Callable[[Any], None] | None:
    if len(calls) < 2:
        return calls[0] if calls else None

    def tell_all(record: Any) -> None:
        for call in calls:
            call(record)

    return tell_all
