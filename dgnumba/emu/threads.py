"""One emulated thread, and the meetings of a warp, a warpgroup or more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from greenlet import greenlet

from ..errors import AsyncError, DivergenceError, EmulationError, UninitializedError
from .async_ops import BULK_STORES, GroupQueue
from .clocks import Row
from .source import Site, threads_text
from .waits import nobody

if TYPE_CHECKING:
    from .barriers import MBarrier
    from .cta import Cta
    from .machine import Machine

WARP_SIZE = 32
IN_KERNEL = "the kernel"  # what a thread is in between operations
Body = Callable[..., Sequence[Any] | None]


@dataclass
class Wait:
    """What a blocked thread waits for."""

    ready: Callable[[], bool]
    why: Callable[[], str]
    on: MBarrier | None = None
    is_pause: bool = False
    is_barrier: bool = False  # a barrier of threads: others must come, not an event
    owed: Callable[[], Iterable[int]] = nobody  # who could end it, as far as is known


class Thread(greenlet):  # type: ignore[misc]
    """A thread of a CTA: a greenlet that runs the kernel until it blocks."""

    machine: Machine
    cta: Cta
    index: int
    position: tuple[int, int, int]
    warp: int
    lane: int

    def __init__(self, cta: Cta, index: int, position: tuple[int, int, int]) -> None:
        self.machine = cta.cluster.machine
        super().__init__(self._run, parent=self.machine.scheduler)
        self.cta, self.index, self.position = cta, index, position
        self.uid = cta.rank * cta.num_threads + index  # in the cluster
        self.warp, self.lane = divmod(index, WARP_SIZE)
        self.op = IN_KERNEL
        self.lanes: Sequence[Thread] = (self,)  # for whom it acts now: more than itself in the body of a collective
        self.waiting: Wait | None = None
        self.meeting: Meeting | None = None
        self.tested: MBarrier | None = None
        self.released: Row | None = None  # what its last fence.mbarrier_init released
        self.fences = 1  # wgmma.fences executed
        self.exited = False
        self.records = [0, 0]  # where its next record of a clock goes, and how many fit
        self._bulk: GroupQueue | None = None
        self._cp_async: GroupQueue | None = None

    def _run(self) -> None:
        machine = self.machine
        try:
            with np.errstate(all="ignore"):  # the device's floats overflow in silence; a greenlet has an errstate of its own
                machine.kernel(*machine.args)
            self._check_exit()
        except EmulationError as error:
            machine.blame(error, self)
            raise
        except Exception as error:
            if isinstance(error, UnboundLocalError) and machine.sites.is_kernel(_innermost(error).tb_frame):
                unset = UninitializedError(f"{error}: no path to here has set it, and the GPU reads whatever its register holds")
                machine.blame(unset.with_traceback(error.__traceback__), self)
                raise unset from error
            blame = EmulationError(f"{type(error).__name__}: {error}", kind="exception").with_traceback(error.__traceback__)
            machine.blame(blame, self)
            error.add_note(f"raised by emulated {blame.where}")
            error.emulated = blame  # type: ignore[attr-defined]  # the same as data
            raise

    # Time

    def until(
        self, ready: Callable[[], bool], why: Callable[[], str], on: MBarrier | None = None, is_barrier: bool = False,
        owed: Callable[[], Iterable[int]] = nobody,
    ) -> None:  # fmt: skip
        """Block until `ready()`; `why()` says what for, `owed()` who could end it; `on` is the mbarrier that is waited on, if any."""
        if ready():
            return
        self.waiting = Wait(ready, why, on, is_barrier=is_barrier, owed=owed)
        self.machine.note("block", self.op, self.lanes)
        self.parent.switch()
        self.machine.note("wake", self.op, self.lanes)

    def pause(self) -> None:
        """Let the other threads run first: what a spin loop must call."""
        self.waiting = Wait(lambda: True, lambda: f"a loop that polls in {self.op}", self.tested, is_pause=True)
        self.parent.switch()

    def order_lanes(self) -> None:
        """The lanes for which it acts see, warp by warp, each other's accesses so far."""
        warps: dict[tuple[int, int], list[int]] = {}
        for t in self.lanes:
            warps.setdefault((t.cta.rank, t.warp), []).append(t.uid)
        for uids in warps.values():
            self.cta.cluster.clocks.meet(uids)

    # Asynchronous work of its own

    @property
    def bulk(self) -> GroupQueue:
        """Its bulk stores (cp.async.bulk groups)."""
        if self._bulk is None:
            self._bulk = GroupQueue(self.cta.cluster, [self], BULK_STORES)
        return self._bulk

    @property
    def cp_async(self) -> GroupQueue:
        """Its cp.async groups."""
        if self._cp_async is None:
            self._cp_async = GroupQueue(self.cta.cluster, [self], "cp.async", is_generic=True)
        return self._cp_async

    def fence_proxy_async(self) -> None:
        """What this thread wrote to shared memory becomes visible to the asynchronous proxy."""
        self.cta.fence_barriers(self)
        self.cta.cluster.clocks.fence_proxy_async(self.uid)

    def fence_mbarrier_init(self) -> None:
        """The inits of mbarriers by this thread become visible to the cluster and to the asynchronous proxy."""
        clocks = self.cta.cluster.clocks
        self.cta.fence_barriers(self)
        self.released = clocks.full_row([self.uid])
        clocks.now[self.uid] += 1

    # Its end

    def _check_exit(self) -> None:
        self.op = "exit"
        for queue in (self._bulk, self._cp_async):
            left = queue.left() if queue else None
            if left:
                raise AsyncError(f"the thread exits with {left}")

    def blocked_text(self) -> str:
        """What it waits for, without its number and place."""
        if self.waiting is not None:
            return self.waiting.why()
        return self.meeting.why() if self.meeting is not None else "nothing"

    def place(self) -> str:
        """Where in the kernel's source it stands: ``gemm.py:120: mbarrier.wait(full, phase)``."""
        return self.site().place

    def site(self) -> Site:
        """The operation that it is in, and the line of the kernel."""
        sites = self.machine.sites
        return sites[sites.number(self.op, self.gr_frame)]


@dataclass
class Meeting:
    """A collective operation under way: who is needed, who is there, with which arguments."""

    name: str
    mask: int | None
    members: tuple[Thread, ...]
    site: int | None  # where all of them must be, if the operation is aligned
    args: dict[Thread, tuple[Any, ...]] = field(default_factory=dict)
    runner: Thread | None = None  # in whose greenlet the body runs
    results: dict[Thread, Any] | None = None
    is_over: bool = False

    def missing(self) -> list[Thread]:
        """Members who are not there, and have not exited."""
        return [t for t in self.members if t not in self.args and not t.exited]

    def why(self) -> str:
        """What its threads wait for."""
        if self.runner is not None and self.runner.waiting is not None:
            return self.runner.waiting.why()
        return f"{self.name} [waits for {threads_text([t.index for t in self.missing()])}]"


class Group:
    """Threads that can meet: a warp, a warpgroup, a CTA, a cluster; aligned operations need at least `least` of them."""

    def __init__(self, kind: str, threads: Sequence[Thread], least: int = 1) -> None:
        self.kind, self.threads, self._least = kind, tuple(threads), least
        self.meetings: list[Meeting] = []
        self._exits = 0

    def meet(self, thread: Thread, name: str, body: Body, args: tuple[Any, ...], mask: int | None = None, is_aligned: bool = True) -> Any:
        """`thread` comes to the collective `name`; when all are there, `body` runs once on columns, and each takes its result.

        `mask` picks members by their place in the group. `is_aligned`: members must be at one place in the source, and none may
        have exited; else threads that exited are not waited for.
        """
        site = thread.machine.sites.here(name) if is_aligned else None
        meeting = self._find(thread, name, mask, site)
        meeting.args[thread] = args
        thread.meeting = meeting
        if is_aligned and (self._exits or len(self.threads) < self._least):
            self._refuse_missing(meeting)
        while not meeting.is_over:
            if len(meeting.args) < len(meeting.members) and (is_aligned or not self._exits or meeting.missing()):
                thread.parent.switch()
            else:
                self._hold(meeting, thread, body)
        thread.meeting, thread.op = None, IN_KERNEL
        return None if meeting.results is None else meeting.results[thread]

    def _find(self, thread: Thread, name: str, mask: int | None, site: int | None) -> Meeting:
        sites = thread.machine.sites
        for meeting in self.meetings:
            if (meeting.name, meeting.mask) == (name, mask) and sites.are_one_line(meeting.site, site):
                return meeting
            if thread in meeting.members:
                there = [t.index for t in meeting.args]
                place = next(iter(meeting.args)).place()
                raise DivergenceError(
                    f"{name}: expected the whole {self.kind} here, but {threads_text(there)} {_are(there)} in {meeting.name} at {place}"
                )
        members = self.threads if mask is None else tuple(t for i, t in enumerate(self.threads) if mask >> i & 1)
        if thread not in members:
            raise DivergenceError(f"{name}: expected a mask that names the caller's own lane {thread.lane}, got {mask:#x}")
        meeting = Meeting(name, mask, members, site)
        self.meetings.append(meeting)
        return meeting

    def _refuse_missing(self, meeting: Meeting) -> None:
        exited = [t.index for t in meeting.members if t.exited]
        if exited:
            raise DivergenceError(f"{meeting.name}: expected the whole {self.kind}, but {threads_text(exited)} {_have(exited)} exited")
        if len(self.threads) < self._least:
            raise DivergenceError(f"{meeting.name}: expected a {self.kind} of {self._least} threads, this one has {len(self.threads)}")

    def _hold(self, meeting: Meeting, thread: Thread, body: Body) -> None:
        """All are there: run the body, let them go."""
        self.meetings.remove(meeting)
        members = [t for t in meeting.members if t in meeting.args]
        cluster = thread.cta.cluster
        meeting.runner, thread.lanes = thread, tuple(members)
        cluster.machine.note("op", meeting.name, members)
        try:
            results = body(*zip(*(meeting.args[t] for t in members)))
        finally:
            thread.lanes = (thread,)
        if results is not None:
            meeting.results = dict(zip(members, results))
        meeting.is_over = True
        cluster.schedule.wake(t for t in members if t is not thread)

    def on_exit(self, thread: Thread) -> None:
        """`thread` exits: a meeting that needs it cannot take place any more, or is complete without it."""
        self._exits += 1
        for meeting in self.meetings:
            if thread in meeting.members:
                if meeting.site is not None:
                    self._refuse_missing(meeting)
                elif not meeting.missing():
                    thread.cta.cluster.schedule.wake([next(iter(meeting.args))])


def _innermost(error: Exception) -> TracebackType:
    traceback = error.__traceback__
    assert traceback is not None
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback


def _are(numbers: list[int]) -> str:
    return "is" if len(numbers) == 1 else "are"


def _have(numbers: list[int]) -> str:
    return "has" if len(numbers) == 1 else "have"
