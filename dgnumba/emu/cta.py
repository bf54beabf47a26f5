"""A CTA: its threads in warps and warpgroups, its shared memory and barriers, and what must be in order when it ends."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..errors import AsyncError, BarrierError, OutOfBoundsError, RaceError
from .async_ops import GroupQueue
from .barriers import MBarrier, NamedBarrier
from .clocks import Row
from .memory import SharedMemory
from .region import WINDOW
from .threads import WARP_SIZE, Body, Group, Meeting, Thread

if TYPE_CHECKING:
    from .arrays import SharedArray
    from .cluster import Cluster

WARPGROUP_SIZE = 128
Dim3 = tuple[int, int, int]


class Warpgroup(Group):
    """Four warps that issue wgmmas together.

    Its operations order memory among the lanes of each warp, which execute them as one, but not among the four warps. PTX promises less; but
    lanes that read a stage, wait for the wgmma together, and let one of them release the stage are what Hopper kernels are made of.
    """

    def __init__(self, cluster: Cluster, threads: list[Thread]) -> None:
        super().__init__("warpgroup", threads, WARPGROUP_SIZE)
        self._cluster = cluster
        self._mma: GroupQueue | None = None

    def _hold(self, meeting: Meeting, thread: Thread, body: Body) -> None:
        thread.lanes = self.threads
        thread.order_lanes()
        super()._hold(meeting, thread, body)

    @property
    def mma(self) -> GroupQueue:
        """Its wgmmas."""
        if self._mma is None:
            self._mma = GroupQueue(self._cluster, self.threads, "wgmma")
        return self._mma

    def fence(self) -> None:
        """wgmma.fence: registers touched so far may be used by the wgmmas that follow."""
        for thread in self.threads:
            thread.fences += 1

    def left(self) -> str | None:
        """What it would leave behind if it exited now, if anything."""
        return self._mma.left() if self._mma else None


class Cta:
    """One CTA of a cluster."""

    def __init__(self, cluster: Cluster, rank: int, block_idx: Dim3, block_dim: Dim3, smem: int, smem_base: int) -> None:
        self.cluster, self.rank, self.block_idx, self.block_dim = cluster, rank, block_idx, block_dim
        self.num_threads = math.prod(block_dim)
        self.smem = SharedMemory(self, smem, smem_base)
        self.gmem = cluster.machine.gmem
        x, y, _ = block_dim
        self.threads = [cluster.machine.thread_type(self, i, (i % x, i // x % y, i // (x * y))) for i in range(self.num_threads)]
        self.warps = [Group("warp", w) for w in _parts(self.threads, WARP_SIZE)]
        self.warpgroups = [Warpgroup(cluster, g) for g in _parts(self.threads, WARPGROUP_SIZE)]
        self.everyone = Group("CTA", self.threads)
        self.live = self.num_threads
        self._named: dict[int, NamedBarrier] = {}
        self.mbarriers: dict[int, MBarrier] = {}
        self._unfenced: dict[int, list[MBarrier]] = {}
        self.shared_arrays: dict[object, SharedArray] = {}  # by the place in the source that asked for them
        self._touched: dict[int, tuple[int, str]] = {}  # thread of a peer -> the last epoch in which it touched this CTA, and how

    @property
    def exited(self) -> bool:
        """Whether all its threads have."""
        return self.live == 0

    def rows(self) -> list[Row]:
        """What its threads know."""
        return [self.cluster.clocks.rows[t.uid] for t in self.threads]

    # Barriers

    def named_barrier(self, number: int) -> NamedBarrier:
        """Named barrier `number`, 0 to 15."""
        number = int(number)
        if not 0 <= number < 16:
            raise BarrierError(f"named barrier: expected a number from 0 to 15, got {number}", kind="named-barrier")
        return self._named.setdefault(number, NamedBarrier(self, number))

    @property
    def barrier(self) -> NamedBarrier:
        """The barrier of `cuda.syncthreads`."""
        return self.named_barrier(0)

    def mbarrier_init(self, address: int, count: int) -> None:
        """The running thread makes an mbarrier at `address`."""
        thread, address, count = self.cluster.machine.thread(), int(address), int(count)
        if address in self.mbarriers:
            raise BarrierError(
                f"mbarrier {self.mbarriers[address].name}: initialised again while in use; mbarrier.inval comes first", address=address
            )
        barrier = MBarrier(self, address, count, thread)
        self.smem.place_barrier(address)
        self.mbarriers[address] = barrier
        self._unfenced.setdefault(thread.uid, []).append(barrier)

    def mbarrier(self, address: int) -> MBarrier:
        """The mbarrier at `address` here, or at a shared::cluster address; the running thread must be ordered after its init."""
        thread, cta, address = self.cluster.machine.thread(), self, int(address)
        if address >= WINDOW:
            cta, address = self.cluster.locate(address)
        barrier = cta.mbarriers.get(address)
        if barrier is None:
            if address % 8:
                raise OutOfBoundsError(
                    f"mbarrier at {cta.smem.text(address)}: expected an address that is a multiple of 8", kind="misaligned", address=address
                )
            raise BarrierError(f"mbarrier at {cta.smem.text(address)}: used, but no mbarrier.init has been executed there", address=address)
        barrier.check_visible(thread)
        return barrier

    def mbarrier_inval(self, address: int) -> None:
        """The running thread ends the mbarrier at `address`."""
        address = int(address)
        self.mbarrier(address)
        del self.mbarriers[address]
        self.smem.remove_barrier(address)

    def fence_barriers(self, thread: Thread) -> None:
        """`thread` executes a fence that makes its inits visible beyond the generic proxy of this CTA."""
        for barrier in self._unfenced.pop(thread.uid, []):
            barrier.fenced_at = self.cluster.clocks.now[thread.uid]

    # Peers and the end

    def touched_by_peer(self, thread: Thread, how: str) -> None:
        """A thread of another CTA touches this one's memory: it must be there, and must not end before it knows."""
        if self.exited:
            raise RaceError(f"{how}: the peer, CTA {self.rank} of the cluster, has exited; nothing kept it alive", kind="peer")
        self._touched[thread.uid] = (self.cluster.clocks.now[thread.uid], f"{how} by {self.cluster.thread_text([thread.uid])}")

    def on_exit(self, thread: Thread) -> None:
        """`thread` has run to its end."""
        thread.exited = True
        self.live -= 1
        for group in (self.warps[thread.warp], self.warpgroups[thread.index // WARPGROUP_SIZE], self.everyone, self.cluster.everyone):
            group.on_exit(thread)
        left = self.warpgroups[thread.index // WARPGROUP_SIZE].left()
        if left:
            raise AsyncError(f"the thread exits with {left}")
        for named in self._named.values():
            named.complete_if_due()
        self.cluster.live.discard(thread.uid)
        self.cluster.barrier.complete_if_due()
        if self.exited:
            self._check_end()

    def _check_end(self) -> None:
        for barrier in self.mbarriers.values():
            problem = barrier.check_at_exit()
            if problem:
                raise AsyncError(f"{self.text} exits, but {problem}")
        rows = self.rows()
        for uid, (epoch, how) in self._touched.items():
            if all(row[uid] < epoch for row in rows):
                raise RaceError(f"{self.text} may exit before {how}: none of its threads waits for that", kind="peer")

    @property
    def text(self) -> str:
        """``block (1, 0, 0)``."""
        return f"block {self.block_idx}"


def _parts(threads: list[Thread], size: int) -> list[list[Thread]]:
    return [threads[i : i + size] for i in range(0, len(threads), size)]
