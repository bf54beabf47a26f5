"""How the threads of a cluster take turns: each runs until it blocks, in a fixed order; and what is said when none can run."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..errors import DeadlockError, DivergenceError, EmulationError
from .threads import Thread
from .waits import wait_graph

if TYPE_CHECKING:
    from .cluster import Cluster

POLLS_WITHOUT_PROGRESS = 2000  # sweeps in which only spin loops ran: then it is a deadlock


class Schedule:
    """The turns of the threads of `cluster`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._ready: deque[Thread] = deque()

    def wake(self, threads: Iterable[Thread]) -> None:
        """Let these threads run again when their turn comes."""
        self._ready.extend(threads)

    def run(self) -> None:
        """Run every thread, in order, each until it blocks, until all have exited."""
        blocked: dict[Thread, None] = {}
        self._ready.extend(self._cluster.threads)
        polls = 0
        try:
            while True:
                while self._ready:
                    self._resume(self._ready.popleft(), blocked)
                if not blocked and not self._cluster.live:
                    return
                woken = [t for t in blocked if t.waiting is not None and not t.waiting.is_pause and t.waiting.ready()]
                if woken or self._land(blocked):
                    polls = 0
                else:
                    woken = [t for t in blocked if t.waiting is not None and t.waiting.is_pause]
                    polls += 1
                    if not woken or polls > POLLS_WITHOUT_PROGRESS:
                        self._report_stuck()
                for t in woken:
                    del blocked[t]
                self.wake(woken)
        finally:
            for t in self._cluster.threads:
                if t and not t.dead:
                    t.throw()

    def _resume(self, thread: Thread, blocked: dict[Thread, None]) -> None:
        thread.waiting = None
        thread.switch()
        if thread.waiting is not None:
            blocked[thread] = None
        elif thread.dead:
            try:
                thread.cta.on_exit(thread)
            except EmulationError as error:
                self._cluster.machine.blame(error, thread, f"the end of {self._cluster.thread_text([thread.uid])}")
                raise

    def _land(self, blocked: dict[Thread, None]) -> bool:
        """Late policy: nothing can run, so what is waited for lands, the longest waited for first."""
        for thread in blocked:
            wait = thread.waiting
            if wait is not None and wait.on is not None and wait.on.loads:
                wait.on.land()
                return True
        return False

    def _report_stuck(self) -> None:
        stuck = [t for t in self._cluster.threads if not t.exited]
        self._report_divergence()
        groups: dict[tuple[str, str], list[int]] = {}
        for t in stuck:
            groups.setdefault((t.blocked_text(), t.place()), []).append(t.uid)
        lines = [f"{self._cluster.thread_text(uids)} in {why} at {place}" for (why, place), uids in groups.items()]
        exited = [t.uid for t in self._cluster.threads if t.exited]
        if exited:
            lines.append(f"{self._cluster.thread_text(exited)} exited")
        raise self._deadlock("deadlock: " + ";\n  ".join(lines), stuck[0])

    def _deadlock(self, message: str, first: Thread) -> DeadlockError:
        graph = wait_graph(self._cluster)
        if graph.cycle:
            message += ";\n  a circle: " + " -> ".join(node.text for node in (*graph.cycle, graph.cycle[0]))
        error = DeadlockError(message)
        error.graph = graph
        _blame(
            error, next(node.threads for node in graph.nodes if first.index in node.threads and node.block == first.cta.block_idx), first
        )
        return error

    def _report_divergence(self) -> None:
        """Raise if a meeting waits for threads that are in another meeting or barrier, and not merely for the same event."""
        groups = [g for cta in self._cluster.ctas for g in (*cta.warps, *cta.warpgroups, cta.everyone)] + [self._cluster.everyone]
        for group in groups:
            for meeting in group.meetings:
                away = [t for t in meeting.missing() if _waits_for_threads(t)]
                if away:
                    there = list(meeting.args)
                    error = DivergenceError(
                        f"{meeting.name}: {self._cluster.thread_text([t.uid for t in there])} wait for the whole {group.kind}, but "
                        f"{self._cluster.thread_text([t.uid for t in away])} are in {away[0].blocked_text()} at {away[0].place()}"
                    )
                    _blame(error, tuple(t.index for t in there), there[0])
                    raise error


def _blame(error: EmulationError, threads: tuple[int, ...], first: Thread) -> None:
    """Let an error of the scheduler's say which threads stand where."""
    site = first.site()
    error.threads, error.block, error.op = threads, first.cta.block_idx, site.op
    error.file, error.line, error.source = site.file, site.line, site.source


def _waits_for_threads(thread: Thread) -> bool:
    if thread.waiting is not None:
        return thread.waiting.is_barrier
    return thread.meeting is not None and thread.meeting.runner is None
