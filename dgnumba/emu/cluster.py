"""A cluster: CTAs that run together, reach one another's shared memory, and share one set of clocks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..errors import OutOfBoundsError
from .barriers import ClusterBarrier
from .clocks import Clocks
from .cta import Cta, Dim3
from .memory import SharedMemory
from .region import WINDOW
from .schedule import Schedule
from .source import threads_text
from .threads import Group, Thread

if TYPE_CHECKING:
    from .machine import Machine


class Cluster:
    """CTAs that run together; a grid without clusters has one CTA in each."""

    def __init__(self, machine: Machine, indices: list[Dim3], block_dim: Dim3, smem: int, smem_base: int) -> None:
        self.machine = machine
        self.size = len(indices)
        per_cta = math.prod(block_dim)
        self.clocks = Clocks(per_cta * self.size)
        self.live = set(range(per_cta * self.size))
        self.ctas = [Cta(self, rank, index, block_dim, smem, smem_base) for rank, index in enumerate(indices)]
        self.threads = [t for cta in self.ctas for t in cta.threads]
        self.everyone = Group("cluster", self.threads)
        self.barrier = ClusterBarrier(self)
        self.schedule = Schedule(self)

    # Addresses

    def map(self, address: int, rank: int) -> int:
        """The shared::cluster address of `address` in CTA `rank` (mapa)."""
        address, rank = int(address), int(rank)
        if not 0 <= rank < self.size:
            raise OutOfBoundsError(f"mapa: expected a rank below the cluster's {self.size} CTAs, got {rank}")
        return (rank + 1) * WINDOW + address % WINDOW

    def locate(self, address: int) -> tuple[Cta, int]:
        """The CTA of a shared::cluster address, and the address in it."""
        rank, local = divmod(address, WINDOW)
        if not 0 < rank <= self.size:
            raise OutOfBoundsError(f"shared::cluster address {address:#x}: no CTA of this cluster of {self.size} is there", address=address)
        return self.ctas[rank - 1], local

    def resolve(self, address: int, thread: Thread) -> tuple[SharedMemory, int]:
        """The same for an access by `thread`."""
        cta, local = self.locate(address)
        if cta is not thread.cta:
            cta.touched_by_peer(thread, f"access to shared address {cta.smem.text(local)}")
        return cta.smem, local

    def thread_text(self, uids: list[int]) -> str:
        """``threads 0-3 of block (0, 0, 0)``, by their numbers in the cluster."""
        parts = []
        for cta in self.ctas:
            own = [self.threads[u].index for u in uids if self.threads[u].cta is cta]
            if own:
                parts.append(threads_text(own) + f" of {cta.text}")
        return ", ".join(parts)
