"""Work that goes on by itself: copies by TMA and cp.async, and the products of wgmma.

When it is issued it enters shared memory's books (`memory`): from then on whoever touches its bytes must have waited for it. What differs
between the two policies is when it takes *effect*. Eager: at once. Late: when a wait makes it due, and not before; until then its
destination holds poison, its source is read late, and its registers are in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .clocks import Event, Row
from .region import Region

if TYPE_CHECKING:
    from .cluster import Cluster
    from .memory import SharedMemory
    from .threads import Thread


BULK_STORES = "bulk stores"  # what the stores of one thread are called, in notes too


@dataclass
class AsyncOp:
    """One asynchronous operation: its name, the shared memory it reads and writes, and what it does when it takes effect."""

    name: str
    act: Callable[[], None]
    reads: Sequence[Region] = ()
    writes: Sequence[Region] = ()
    amount: int = 0  # bytes of a copy, multiply-adds of a product: for who looks on
    is_done: bool = field(default=False, init=False)  # it has taken effect
    is_awaited: bool = field(default=False, init=False)  # its issuers have waited for it

    def enter(self, smem: SharedMemory, agent: int, row: Row, event: int) -> None:
        """Enter its accesses into the books of `smem`."""
        for region in self.reads:
            smem.async_read(region, agent, row, event)
            smem.tell_transfer(self.name, "read", region)
        for region in self.writes:
            smem.async_write(region, row, event)
            smem.tell_transfer(self.name, "write", region)

    def take_effect(self) -> None:
        """Do the work, once."""
        if not self.is_done:
            self.is_done = True
            self.act()


@dataclass
class _Group:
    ops: list[AsyncOp]
    epoch: int
    is_read: bool = False  # its sources have been read, and a wait has said so
    is_tracked: bool = False  # some mbarrier counts its completion


class GroupQueue:
    """Operations that complete in order, in groups: the bulk stores or cp.asyncs of a thread, the wgmmas of a warpgroup."""

    def __init__(self, cluster: Cluster, owners: Sequence[Thread], unit: str, is_generic: bool = False) -> None:
        self._cluster, self._owners, self._unit = cluster, list(owners), unit
        self._uids = [t.uid for t in owners]
        self._agent: int | None = None
        self._epoch = 0
        self._open: list[AsyncOp] = []
        self._tracked: list[AsyncOp] = []  # in flight, of no group yet, and some mbarrier counts their completion
        self._groups: deque[_Group] = deque()
        # cp.async is asynchronous but of the generic proxy, so that the writers it follows need no fence
        self._is_generic = is_generic

    def issue(self, op: AsyncOp) -> None:
        """Issue `op`; it joins the group that the next `commit` closes."""
        cluster, clocks, uids = self._cluster, self._cluster.clocks, self._uids
        if self._agent is None:
            self._agent = clocks.new_agent()
        self._epoch += 1
        event = clocks.event(Event(self._agent, self._epoch, cluster.machine.sites.here(op.name), uids[0]))
        row = self._common_row()
        if self._is_generic:
            half = clocks.num_threads
            row[half : 2 * half] = row[:half]
        op.enter(self._owners[0].cta.smem, self._agent, row, event)
        self._open.append(op)
        cluster.machine.note("issue", op.name, self._owners, self._unit, amount=op.amount)
        if not cluster.machine.late:
            op.take_effect()

    def _common_row(self) -> Row:
        """What every warp of the owners knows: an operation of four warps begins in each of them by itself."""
        clocks, uids = self._cluster.clocks, self._uids
        warps = [clocks.full_row(uids[i : i + 32]) for i in range(0, len(uids), 32)]
        row = warps[0]
        for other in warps[1:]:
            row = clocks.common(row, other)
        return row

    def commit(self) -> None:
        """Close the group of what was issued since the last commit."""
        self._groups.append(_Group(self._tracked + self._open, self._epoch))
        self._open, self._tracked = [], []
        self._cluster.machine.note("commit", self._unit, self._owners)

    def track(self) -> tuple[list[AsyncOp], int, int]:
        """For an mbarrier that counts their completion: all operations issued so far that are in flight, their agent, and the last one's epoch."""
        self._tracked = [op for op in self._tracked if not op.is_done] + self._open
        self._open = []
        grouped = [op for group in self._groups for op in group.ops if not op.is_done]
        for group in self._groups:
            group.is_tracked = True
        if self._agent is None:
            self._agent = self._cluster.clocks.new_agent()
        return [*grouped, *self._tracked], self._agent, self._epoch

    def wait(self, pending: int, read: bool = False) -> None:
        """The owners wait until at most `pending` groups are in flight (`read`: until the others have read their sources)."""
        finished = 0
        for group in list(self._groups)[: max(len(self._groups) - pending, 0)]:
            for op in group.ops:
                op.take_effect()
                op.is_awaited = True
            group.is_read = True
            finished = group.epoch
            if not read:
                self._groups.popleft()
            self._cluster.machine.note("done", self._unit, self._owners, "read" if read else "")
        if finished and self._agent is not None:
            self._cluster.clocks.learn(self._uids, self._agent, finished)

    def left(self) -> str | None:
        """What its owners would leave behind if they exited now, if anything."""
        if self._open:
            return f"{len(self._open)} x {self._open[-1].name} issued and never committed to a group"
        unread = [g for g in self._groups if not g.is_read and not g.is_tracked and g.ops]
        return f"{len(unread)} groups of {self._unit} committed and never waited for" if unread else None
