"""From what an emulated run tells its observers to a timeline: each block on a multiprocessor of its own, with estimated times.

The emulator knows order, not time: each thread runs until it blocks. Here its notes are played again with a clock: every operation takes the
warp's time, a wait ends when what it waits for has happened, copies and products queue for the block's one TMA unit and its tensor cores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import emu
from .costs import Costs
from .replay import Replay
from .timeline import Timeline


class Recorder(emu.Observer):
    """Keeps the notes of the first `blocks` blocks of a run (None: of all): ``emu.run(..., observe=recorder)``, then ``recorder.timeline()``."""

    def __init__(self, blocks: int | None = None) -> None:
        self.notes: list[emu.Note] = []
        self._blocks, self._seen = blocks, dict[tuple[int, int, int], bool]()

    def note(self, note: emu.Note) -> None:
        """Take one note."""
        if note.block is not None:
            kept = self._seen.setdefault(note.block, self._blocks is None or len(self._seen) < self._blocks)
            if kept:
                self.notes.append(note)

    def timeline(self, costs: Costs | None = None) -> Timeline:
        """The run with the times that `costs` gives it."""
        spans = Replay(self.notes, costs or Costs()).run()
        return Timeline(tuple(spans), "cycles", "estimated from the emulator's run")


def timeline(
    kernel: Callable[..., Any], grid: Any, block: Any, args: Any, *, costs: Costs | None = None, blocks: int | None = None, **options: Any
) -> Timeline:
    """Run any kernel in the emulator (arguments as of `emu.run`), and give its timeline; of its first `blocks` blocks only, if given.

    >>> import numpy as np
    >>> from numba import cuda
    >>> from dgnumba import lab
    >>> def reverse(x):
    ...     tile = cuda.shared.array(64, np.float32)
    ...     tile[cuda.threadIdx.x] = x[cuda.threadIdx.x]
    ...     cuda.syncthreads()
    ...     x[cuda.threadIdx.x] = tile[63 - cuda.threadIdx.x]
    >>> seen = lab.timeline(reverse, 1, 64, (np.arange(64, dtype=np.float32),))
    >>> seen.rows, seen.of(kind="wait")[0].name
    (('block 0 warp 0', 'block 0 warp 1'), 'cuda.syncthreads')
    """
    recorder = Recorder(blocks)
    emu.run(kernel, grid, block, args, observe=recorder, **options)
    return recorder.timeline(costs)
