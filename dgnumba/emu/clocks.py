"""What happens before what: vector clocks over the threads and the asynchronous agents of one cluster.

Every thread has an *epoch*, a number that grows whenever it publishes what it did (arrives at a barrier, meets its warp, ...). A
thread's *row* says, for every other agent, the last epoch whose accesses are ordered before whatever that thread does next. An access
by agent `a` at epoch `c` happens before thread `t`'s next one exactly when ``row[a] >= c``.

A row has three parts. Columns 0 .. T-1: epochs of the T threads. Columns T .. 2T-1: of those epochs, the last that the asynchronous proxy
(TMA, wgmma) can see too, which takes fence.proxy.async by the thread that wrote. From 2T on: asynchronous agents, one for each queue
that completes in order (the copies of one mbarrier, the wgmmas of one warpgroup, the bulk stores of one thread).

Rows are shared and never changed in place: after a barrier all threads hold the same row, and joining equal rows costs nothing. A
thread's own columns are therefore kept beside it, in `now` and `fenced`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

Row = np.ndarray


class Event(NamedTuple):
    """One access, or many at one place in one epoch: who, when, where in the kernel, and whether it was an atomic."""

    agent: int
    epoch: int
    site: int
    thread: int
    atomic: bool = False


class Clocks:
    """The clocks of one cluster of `num_threads` threads."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self.now = [1] * num_threads
        self.fenced = [0] * num_threads
        self._columns = 2 * num_threads
        zero = np.zeros(self._columns + 32, np.int32)
        self.rows: list[Row] = [zero] * num_threads
        self._events: list[Event] = []
        self._event_numbers: dict[Event, int] = {}
        self._last_join: tuple[Row, Row, Row] = (zero, zero, zero)

    def new_agent(self) -> int:
        """A column for an asynchronous agent."""
        self._columns += 1
        return self._columns - 1

    def is_async(self, agent: int) -> bool:
        """Whether `agent` is asynchronous, not a thread."""
        return agent >= self.num_threads

    def event(self, event: Event) -> int:
        """The number of `event`; 0 and 1 are kept for the caller's own use."""
        number = self._event_numbers.get(event)
        if number is None:
            number = self._event_numbers[event] = len(self._events) + 2
            self._events.append(event)
        return number

    def event_of(self, number: int) -> Event:
        """The event with this number."""
        return self._events[number - 2]

    def fit(self, row: Row) -> Row:
        """`row`, long enough for every agent there is now."""
        if len(row) >= self._columns:
            return row
        longer = np.zeros(2 * self._columns, np.int32)
        longer[: len(row)] = row
        return longer

    def join(self, a: Row, b: Row) -> Row:
        """The row that knows what `a` and `b` know."""
        if a is b:
            return a
        last = self._last_join
        if last[0] is a and last[1] is b:
            return last[2]
        out: Row = np.maximum(*_of_one_length(a, b))
        self._last_join = (a, b, out)
        return out

    def common(self, a: Row, b: Row) -> Row:
        """The row that knows what both `a` and `b` know."""
        out: Row = np.minimum(*_of_one_length(a, b))
        return out

    def knows(self, thread: int, agent: int, epoch: int) -> bool:
        """Whether what `agent` did at `epoch` is ordered before what `thread` does now."""
        row = self.rows[thread]
        return agent == thread or (agent < len(row) and bool(row[agent] >= epoch))

    def acquire(self, thread: int, row: Row) -> None:
        """`thread` learns what `row` knows."""
        self.rows[thread] = self.join(self.rows[thread], row)

    def learn(self, threads: Iterable[int], agent: int, epoch: int) -> None:
        """`threads` learn that `agent` is done with everything up to `epoch`."""
        fresh: dict[int, Row] = {}
        for t in threads:
            old = self.rows[t]
            if id(old) not in fresh:
                row = self.fit(old)
                row = row.copy() if row is old else row
                row[agent] = max(int(row[agent]), epoch)
                fresh[id(old)] = row
            self.rows[t] = fresh[id(old)]

    def full_row(self, threads: list[int]) -> Row:
        """A fresh row: what `threads` know together, their own doings included."""
        distinct = {id(self.rows[t]): self.rows[t] for t in threads}
        out: Row | None = None
        for row in distinct.values():
            out = row if out is None else self.join(out, row)
        assert out is not None
        fitted = self.fit(out)
        out = fitted.copy() if fitted is out else fitted
        out[threads] = [self.now[t] for t in threads]
        out[[t + self.num_threads for t in threads]] = [self.fenced[t] for t in threads]
        return out

    def meet(self, threads: list[int]) -> None:
        """A barrier among `threads`: afterwards each knows what all knew, and each begins a new epoch."""
        row = self.full_row(threads)
        for t in threads:
            self.rows[t] = row
            self.now[t] += 1

    def fence_proxy_async(self, thread: int) -> None:
        """What `thread` wrote so far becomes visible to the asynchronous proxy, for those who are ordered after this."""
        self.fenced[thread] = self.now[thread]
        self.now[thread] += 1


def _of_one_length(a: Row, b: Row) -> tuple[Row, Row]:
    longest = max(len(a), len(b))
    return (a, b) if len(a) == len(b) else (np.pad(a, (0, longest - len(a))), np.pad(b, (0, longest - len(b))))


class Knowledge:
    """What has been published into a barrier: a row that grows."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._row = clocks.fit(np.zeros(1, np.int32))
        self._last: Row | None = None

    def add(self, thread: int) -> None:
        """`thread` publishes what it knows and did, and begins a new epoch."""
        clocks = self._clocks
        row = clocks.rows[thread]
        self._row = clocks.fit(self._row)
        if row is not self._last:
            into = self._row[: len(row)]
            np.maximum(into, row[: len(into)], out=into)
            self._last = row
        self._row[thread] = clocks.now[thread]
        self._row[thread + clocks.num_threads] = clocks.fenced[thread]
        clocks.now[thread] += 1

    def add_agent(self, agent: int, epoch: int) -> None:
        """Asynchronous `agent` publishes that it is done up to `epoch`."""
        self._row = self._clocks.fit(self._row)
        self._row[agent] = max(int(self._row[agent]), epoch)

    def snapshot(self) -> Row:
        """What is known now."""
        return self._row.copy()

    def add_row(self, row: Row) -> None:
        """Publish what `row` knows."""
        self._row = self._clocks.join(self._row, row).copy()
