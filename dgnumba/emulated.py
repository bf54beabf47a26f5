"""A call made ready for the emulator: the kernel that a GPU would run, its arguments, and the names of what lies in shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from . import emu
from .device import Device
from .kernels import Built
from .layouts.operands import LaidOut
from .plan import Choice
from .prepared import built as built_kernel

SMS = 2
"""Multiprocessors of the GPU that the emulator stands for, or as many as a cluster of the caller's plan has CTAs. Planned for few, tiles are large,
and so the threads to step few."""


@dataclass(frozen=True, eq=False)
class Emulated:
    """One product, laid out. ``emu.run(*e.launch, **e.options)`` and ``emu.step(*e.launch, **e.options, ...)`` take it.

    choice  the kernel and its plan
    laid    the arrays, and the product
    built   the kernel's function, threads and shared memory
    device  what it was planned for
    """

    choice: Choice
    laid: LaidOut
    built: Built
    device: Device

    @classmethod
    def of(cls, choice: Choice, laid: LaidOut, device: Device) -> Emulated:
        """A laid-out product by a plan."""
        return cls(choice, laid, built_kernel(choice), device)

    @property
    def launch(self) -> tuple[Any, int, int, tuple[Any, ...]]:
        """Kernel, grid, threads of a block, arguments."""
        grid = self.choice.kernel.grid(self.choice.plan, self.laid.problem, self.device)
        return self.built.kernel, grid, self.built.threads, self.choice.kernel.bind(self.choice.plan, self.laid)

    @property
    def options(self) -> dict[str, Any]:
        """What else `emu.run` takes: shared memory, cluster, labels, the arrays that are reached by address."""
        arrays = tuple(getattr(self.laid, name) for name in self.choice.kernel.pointers(self.choice.plan))
        return {"smem": self.built.smem.launch_bytes, "cluster": self.built.cluster, "labels": self.built.smem.labels, "arrays": arrays}

    @property
    def d(self) -> np.ndarray:
        """The product as the kernel wrote it."""
        written: np.ndarray = self.laid.d[:, : self.laid.problem.n]
        return written

    def run(self, policy: str = "eager", observe: emu.observe.Observe | None = None) -> np.ndarray:
        """Run it; returns `d`."""
        emu.run(*self.launch, **self.options, policy=policy, observe=observe)
        return self.d
