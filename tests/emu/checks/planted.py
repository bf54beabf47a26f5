"""What a planted fault is: a small kernel beside its right twin; the line that the report must name ends in ``# here``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numba import cuda
from one_barrier import BAR, TILE

from dgnumba import emu
from dgnumba.integers import u32
from dgnumba.layouts.descriptors import TensorMap
from dgnumba.ptx import mbarrier, tma

DATA = np.arange(8 * 16, dtype=np.float32).reshape(8, 16)
BOX = 512  # bytes of it
A, B = (np.ones((rows, 128), np.float32).astype(ml_dtypes.float8_e4m3fn) for rows in (64, 8))


@dataclass(frozen=True)
class Fault:
    """A kernel `make(is_right)` of one CTA, and what the report must say of the wrong one.

    kind     of the finding
    says     words of its message
    who      a thread that it names; None if that depends on the policy
    address  that it gives; None: any or none
    """

    make: Callable[[bool], Callable[..., None]]
    kind: str
    says: str
    who: int | None = 0
    address: int | None = None
    threads: int = 32
    grid: int = 1
    cluster: int = 1
    policies: tuple[str, ...] = ("eager", "late")

    def check(self, is_right: bool) -> Any:
        """The report of one of the twins."""
        args = (TensorMap.of(DATA, (16, 8)), TensorMap.of(np.zeros((8, 16), np.float32), (16, 8)), np.zeros(256, np.float32))
        return emu.check(
            self.make(is_right), self.grid, self.threads, args, smem=32768, cluster=self.cluster, labels={0: "bar", 1024: "tile"},
            arrays=[A, B], policies=self.policies,
        )  # fmt: skip


FAULTS: dict[str, Fault] = {}


def plant(kind, says, **more):
    """Make a fault of the decorated ``make(is_right)``."""

    def add(make):
        FAULTS[make.__name__] = Fault(make, kind, says, **more)
        return make

    return add


def load(tmap, nbytes=BOX, bar=BAR, to=TILE):
    """Thread 0 loads the box."""
    if cuda.threadIdx.x == 0:
        mbarrier.arrive_expect_tx(bar, u32(nbytes))
        tma.load_2d(to, tmap, bar, u32(0), u32(0))
