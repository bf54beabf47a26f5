"""mbarriers, named barriers, and the barrier of a cluster."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..errors import BarrierError, DivergenceError, EmulationError, OutOfBoundsError
from .async_ops import AsyncOp, GroupQueue
from .clocks import Event, Knowledge, Row

if TYPE_CHECKING:
    from .cluster import Cluster
    from .cta import Cta
    from .threads import Thread

MAX_COUNT = (1 << 20) - 1  # of arrivals, and of transaction bytes
CLUSTER_BARRIER = "barrier.cluster"


class _Coming(NamedTuple):
    """In flight on an mbarrier: what, the bytes and the arrivals that it counts there, and what completes it: an agent, at an epoch."""

    op: AsyncOp
    nbytes: int
    arrivals: int
    agent: int
    epoch: int


class MBarrier:
    """An mbarrier: a phase ends when its pending arrivals and its pending transaction bytes are both zero."""

    def __init__(self, cta: Cta, address: int, count: int, thread: Thread) -> None:
        if address % 8:
            raise OutOfBoundsError(
                f"mbarrier at {cta.smem.text(address)}: expected an address that is a multiple of 8", kind="misaligned", address=address
            )
        if not 1 <= count <= MAX_COUNT:
            raise BarrierError(
                f"mbarrier at {cta.smem.text(address)}: expected a count from 1 to {MAX_COUNT}, got {count}", address=address
            )
        self.cta, self.address, self.count = cta, address, count
        self.pending, self.tx, self.phase = count, 0, 0
        self.name = cta.smem.text(address)
        clocks = cta.cluster.clocks
        self._clocks = clocks
        self._published = Knowledge(clocks)
        self._done: Row | None = None  # what a thread learns that waits for the phase completed last
        self._initialised = (thread.uid, clocks.now[thread.uid])
        self.fenced_at: int | None = None  # the epoch of the fence that made the init visible beyond the CTA's threads
        self._agent: int | None = None
        self._issued = 0
        self.loads: deque[_Coming] = deque()
        self._last_loads: dict[int, tuple[int, str]] = {}  # by agent: the epoch of its last copy counted here, and which that was
        self._arrived: list[int] = []
        self._arrivers: set[int] = set()  # of all phases, and who issued its copies: who may be waited for
        self._loaders: set[int] = set()

    # Who may use it

    def check_visible(self, thread: Thread) -> None:
        """Raise unless the init is ordered before what `thread` does now."""
        uid, epoch = self._initialised
        if not self._clocks.knows(thread.uid, uid, epoch):
            raise BarrierError(
                f"mbarrier {self.name}: no barrier orders its init, by {self._who([uid])}, before this use of it", address=self.address
            )

    def _check_fenced(self, thread: Thread) -> None:
        uid, _ = self._initialised
        if self.fenced_at is None or not self._clocks.knows(thread.uid, uid, self.fenced_at):
            raise BarrierError(
                f"mbarrier {self.name}: an asynchronous copy completes on it, but {self._who([uid])} has not executed fence.mbarrier_init "
                "between its init and the barrier that follows",
                address=self.address,
            )

    def _who(self, uids: list[int]) -> str:
        return self.cta.cluster.thread_text(uids)

    # Arriving

    def arrive(self, count: int = 1) -> None:
        """The running thread arrives `count` times."""
        thread, count = self.cta.cluster.machine.thread(), int(count)
        self._check_count(count)
        if thread.cta is not self.cta:
            self.cta.touched_by_peer(thread, f"mbarrier.arrive at {self.name}")
        self._published.add(thread.uid)
        self._arrived.append(thread.uid)
        self._arrivers.add(thread.uid)
        self.cta.cluster.machine.note("arrive", thread.op, [thread], self.name, self.phase, cta=self.cta)
        self.pending -= count
        self._complete_if_due()

    def _check_count(self, count: int) -> None:
        if count > self.pending - sum(coming.arrivals for coming in self.loads):
            raise BarrierError(
                f"mbarrier {self.name}: arrival beyond its count of {self.count} in phase {self.phase}; "
                f"before it arrived {self._who(self._arrived)}" + (f"; {self.tx} transaction bytes are still to come" if self.tx else ""),
                address=self.address,
            )

    def expect_tx(self, nbytes: int) -> None:
        """Expect `nbytes` more transaction bytes in this phase."""
        self.tx += int(nbytes)
        if self.tx > MAX_COUNT:
            raise BarrierError(
                f"mbarrier {self.name}: {self.tx} transaction bytes expected in one phase, at most {MAX_COUNT} can be", address=self.address
            )

    def arrive_expect_tx(self, nbytes: int) -> None:
        """Expect bytes, then arrive."""
        self.expect_tx(nbytes)
        self.arrive()

    def _complete_if_due(self) -> None:
        if self.pending == 0 and self.tx == 0:
            self.phase += 1
            self.pending = self.count
            self._done = self._published.snapshot()
            self._arrived = []

    # Waiting

    def test(self, parity: int) -> bool:
        """Whether the phase of this parity is complete; if so, the running thread learns what was published into it."""
        thread = self.cta.cluster.machine.thread()
        if not self._is_complete(parity):
            thread.tested = self
            return False
        if self._done is not None:
            self._clocks.acquire(thread.uid, self._done)
        thread.machine.note("pass", thread.op, [thread], self.name, self.phase - 1)
        return True

    def wait(self, parity: int) -> None:
        """The running thread waits for the phase of this parity."""
        if self.cta.cluster.machine.thread().cta is not self.cta:
            raise BarrierError(
                f"mbarrier {self.name}: waited on from another CTA; only arrivals and copies may come from there", address=self.address
            )
        if not self._is_complete(parity):
            before = self.phase
            thread = self.cta.cluster.machine.thread()
            thread.until(lambda: self._is_complete(parity), lambda: self._why(parity), on=self, owed=self._owed)
            if self.phase > before + 1:
                raise BarrierError(
                    f"mbarrier {self.name}: phases {before} and {before + 1} both completed while this thread waited for parity {int(parity)}: on "
                    "the GPU it may miss both; a barrier may not run ahead of those who wait on it",
                    address=self.address,
                )
        self.test(parity)

    def _is_complete(self, parity: int) -> bool:
        if parity not in (0, 1):
            raise BarrierError(f"mbarrier {self.name}: expected parity 0 or 1, got {int(parity)}", address=self.address)
        return self.phase & 1 != parity

    def _why(self, parity: int) -> str:
        missing = f"{self.pending} of {self.count} arrivals missing" if self.pending else "all arrivals there"
        if self.tx > 0:
            missing += f", {self.tx} transaction bytes expected and not come"
        if self.tx < 0:
            missing += f", {-self.tx} transaction bytes more than were expected"
        return f"mbarrier.wait({self.name}, parity {int(parity)}) [phase {self.phase}: {missing}]"

    def _owed(self) -> set[int]:
        arrivals = self._arrivers - set(self._arrived) if self.pending else set()
        return arrivals | (self._loaders or self._arrivers if self.tx else set())

    # Copies that complete here

    def load(self, op: AsyncOp, nbytes: int) -> None:
        """Issue `op`, an asynchronous copy into this CTA, whose `nbytes` bytes are counted here when it lands."""
        cluster = self.cta.cluster
        thread = cluster.machine.thread()
        self._check_fenced(thread)
        if thread.cta is not self.cta and self.cta.exited:
            raise EmulationError(f"{op.name}: the peer, CTA {self.cta.rank} of the cluster, has exited", kind="peer", address=self.address)
        if self._agent is None:
            self._agent = self._clocks.new_agent()
        self._issued += 1
        self._loaders.add(thread.uid)
        event = self._clocks.event(Event(self._agent, self._issued, cluster.machine.sites.here(op.name), thread.uid))
        op.enter(self.cta.smem, self._agent, self._clocks.full_row([thread.uid]), event)
        self.loads.append(_Coming(op, int(nbytes), 0, self._agent, self._issued))
        self._last_loads[self._agent] = self._issued, self.cta.smem.describe(self._clocks.event_of(event))
        cluster.machine.note("issue", op.name, [thread], self.name, self.phase, nbytes, cta=self.cta)
        if not cluster.machine.late:
            self.land()

    def land(self) -> None:
        """The oldest copy in flight lands."""
        op, nbytes, arrivals, agent, epoch = self.loads.popleft()
        op.act()
        self._published.add_agent(agent, epoch)
        self.tx -= nbytes
        self.pending -= arrivals
        self.cta.cluster.machine.note("land", op.name, [], self.name, self.phase, nbytes, cta=self.cta)
        self._complete_if_due()

    def arrive_behind(self, queue: GroupQueue) -> None:
        """An arrival that comes when all copies that `queue` has issued so far have landed. It publishes them, and nothing else of their issuer."""
        thread = self.cta.cluster.machine.thread()
        self._check_count(1)
        ops, agent, epoch = queue.track()

        def act() -> None:
            for op in ops:
                op.take_effect()

        self._arrived.append(thread.uid)
        self._arrivers.add(thread.uid)
        if epoch:
            self._last_loads[agent] = epoch, f"{thread.op} by {self._who([thread.uid])}"
        self.loads.append(_Coming(AsyncOp(thread.op, act), 0, 1, agent, epoch))
        self.cta.cluster.machine.note("issue", thread.op, [thread], self.name, self.phase, cta=self.cta)
        if not self.cta.cluster.machine.late:
            self.land()

    def check_at_exit(self) -> str | None:
        """What is wrong with leaving the CTA now, if anything."""
        rows = self.cta.rows() if self._last_loads else []
        for agent, (epoch, what) in self._last_loads.items():
            if max((int(r[agent]) for r in rows if len(r) > agent), default=0) < epoch:
                return f"{what} into shared memory, counted by mbarrier {self.name}, was never waited for"
        return None


class NamedBarrier:
    """One of a CTA's 16 barriers; number 0 with no thread count is `cuda.syncthreads`."""

    def __init__(self, cta: Cta, number: int) -> None:
        self._cta, self._number = cta, number
        self._generation = 0
        self._expected: int | None = None  # threads of the generation under way; None: all that have not exited
        self._waiting: list[Thread] = []
        self._arrived: list[Thread] = []
        self._published: Knowledge | None = None
        self._warps: dict[int, int] = {}  # warp -> the place in the source where its lanes came
        self._comers: set[int] = set()  # of all generations

    def sync(self, nthreads: int | None = None) -> None:
        """The running thread, or meeting, arrives and waits until `nthreads` have (None: all of the CTA that have not exited)."""
        self._waiting += self._enter(nthreads)
        generation = self._generation
        self.complete_if_due()
        thread = self._cta.cluster.machine.thread()
        thread.until(lambda: self._generation != generation, self._why, is_barrier=True, owed=self._owed)
        thread.machine.note("pass", thread.op, thread.lanes, self._name, generation)

    def arrive(self, nthreads: int) -> None:
        """The running thread, or meeting, arrives without waiting."""
        threads = self._enter(nthreads)
        if self._published is None:
            self._published = Knowledge(self._cta.cluster.clocks)
        for thread in threads:
            self._published.add(thread.uid)
        self._arrived += threads
        self.complete_if_due()

    def _enter(self, nthreads: int | None) -> Sequence[Thread]:
        nthreads, total = None if nthreads is None else int(nthreads), len(self._cta.threads)
        if nthreads is not None and (nthreads < 1 or nthreads % 32 or nthreads > total):
            raise BarrierError(
                f"named barrier {self._number}: expected a multiple of 32 threads, at most the CTA's {total}, got {nthreads}",
                kind="named-barrier",
            )
        if self._present and self._expected != nthreads:
            raise BarrierError(
                f"named barrier {self._number}: {nthreads} threads said here, {self._expected} by those who came before",
                kind="named-barrier",
            )
        self._expected = nthreads
        machine = self._cta.cluster.machine
        here = machine.sites.here(machine.thread().op)
        for thread in machine.lanes():
            self._comers.add(thread.uid)
            there = self._warps.setdefault(thread.warp, here)
            if not machine.sites.are_one_line(there, here):
                raise DivergenceError(
                    f"named barrier {self._number}: the lanes of warp {thread.warp} come from two places, "
                    f"here and {machine.sites[there].place}"
                )
        machine.note("arrive", machine.thread().op, machine.lanes(), self._name, self._generation)
        return machine.lanes()

    @property
    def _present(self) -> int:
        return len(self._waiting) + len(self._arrived)

    def complete_if_due(self) -> None:
        """Let the waiting threads go if all are there."""
        expected = self._cta.live if self._expected is None else self._expected
        if not self._waiting or self._present < expected:
            return
        clocks = self._cta.cluster.clocks
        uids = [t.uid for t in self._waiting]
        if self._published is not None:
            clocks.acquire(uids[0], self._published.snapshot())
        clocks.meet(uids)
        self._generation += 1
        self._waiting, self._arrived, self._published, self._warps = [], [], None, {}

    def _owed(self) -> set[int]:
        there = {t.uid for t in (*self._waiting, *self._arrived)}
        if self._expected is None:
            return {t.uid for t in self._cta.threads if not t.exited} - there
        return (self._comers - there) or {t.uid for t in self._cta.threads} - there

    def _why(self) -> str:
        expected = self._cta.live if self._expected is None else self._expected
        return f"{self._name} [{self._present} of {expected} threads there]"

    @property
    def _name(self) -> str:
        return "syncthreads" if self._number == 0 and self._expected is None else f"named barrier {self._number}"


class ClusterBarrier:
    """barrier.cluster: arrive and wait of every thread of the cluster that has not exited."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._generation = 0
        self._arrived: set[int] = set()
        self._waits: dict[int, int] = {}  # thread -> generation it has arrived in and not yet waited for
        self._published = Knowledge(cluster.clocks)
        self._done: Row | None = None

    def arrive(self, relaxed: bool = False) -> None:
        """The running thread, or meeting, arrives; `relaxed`: publishing only what its last fence.mbarrier_init released."""
        for thread in self._cluster.machine.lanes():
            if thread.uid in self._waits:
                raise BarrierError("barrier.cluster.arrive: again without barrier.cluster.wait between", kind="named-barrier")
            if not relaxed:
                self._published.add(thread.uid)
            elif thread.released is not None:
                self._published.add_row(thread.released)
            self._waits[thread.uid] = self._generation
            self._arrived.add(thread.uid)
        machine = self._cluster.machine
        machine.note("arrive", machine.thread().op, machine.lanes(), CLUSTER_BARRIER, self._generation, cta=self._cluster.ctas[0])
        self.complete_if_due()

    def complete_if_due(self) -> None:
        """Begin the next generation if all that have not exited are there."""
        if self._arrived and self._cluster.live <= self._arrived:
            self._generation += 1
            self._done = self._published.snapshot()
            self._arrived = set()

    def wait(self) -> None:
        """The running thread, or meeting, waits for the generation that it has arrived in."""
        machine = self._cluster.machine
        lanes = machine.lanes()
        if any(thread.uid not in self._waits for thread in lanes):
            raise BarrierError("barrier.cluster.wait: without barrier.cluster.arrive before", kind="named-barrier")
        generation = max(self._waits.pop(thread.uid) for thread in lanes)
        machine.thread().until(lambda: self._generation > generation, self._why, is_barrier=True, owed=self._owed)
        assert self._done is not None
        for thread in lanes:
            self._cluster.clocks.acquire(thread.uid, self._done)
        machine.note("pass", machine.thread().op, lanes, CLUSTER_BARRIER, generation, cta=self._cluster.ctas[0])

    def _owed(self) -> set[int]:
        return self._cluster.live - self._arrived

    def _why(self) -> str:
        return f"barrier.cluster.wait [{len(self._arrived)} of {len(self._cluster.live)} threads arrived]"
