"""One kernel over arrays that are reached by address: where it runs, on which stream, and what it writes to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, Protocol

import numpy as np

from . import launching
from .device import Device
from .errors import ProblemError
from .layouts.scales import get_tma_aligned_size
from .xp import device_of, is_device_array, namespace

On = Literal["cuda", "emulator"]


class OnePass(Protocol):
    """The rules of such a kernel: `kernels.smxx_cast_rules`. Only `build` needs Numba."""

    ARGTYPES: tuple[Any, ...]

    def threads(self, plan: Any) -> int:
        """Threads of a CTA."""

    def min_ctas(self, plan: Any) -> int:
        """CTAs that a multiprocessor is to have registers for."""

    def build(self, plan: Any) -> Any:
        """The kernel of a plan, as `BuiltCast`."""


def machine(array: Any, on: On | None, argument: str = "x") -> Device | None:
    """The GPU whose kernel runs: the array's, or the one that the emulator stands for; None: host memory, where no kernel does.

    Raises:
        ProblemError: `on` does not fit to where the array is.
    """
    is_host = not is_device_array(array)
    if on not in (None, "cuda", "emulator") or on is not None and (on == "emulator") != is_host:
        place = "host memory" if is_host else f"GPU {array.device.id}"
        raise ProblemError(f"on: expected 'cuda' for arrays on a GPU or 'emulator' for host memory, got {on!r} for {argument} in {place}")
    if is_host:
        return Device.named("h200") if on == "emulator" else None
    return Device.numbered(int(array.device.id))


@contextmanager
def queued(array: Any, owner: Any, stream: Any) -> Iterator[int | None]:
    """The stream of a GPU's array, with what is allocated inside ordered on it; None for host memory."""
    if not is_device_array(array):
        yield None
        return
    device = int(array.device.id)
    handle = launching.stream_of([owner], device, stream)
    with launching.ordered(device, handle):
        yield handle
    if stream is None:
        launching.joined(device, handle)


def new_scales(shape: tuple[int, ...], packed: bool, mn_major: bool, like: Any) -> tuple[Any, Any]:
    """New scales ``[mn, k_blocks]`` beside `like` (float32, or int32 words; row-major, or MN-major and TMA-aligned), and their memory."""
    xp, (mn, k_blocks) = namespace(like), shape
    dtype, columns = (np.int32, -(-k_blocks // 4)) if packed else (np.float32, k_blocks)
    with device_of(like):
        if not mn_major:
            memory = xp.empty((mn, columns), dtype)
            return memory, memory
        memory = xp.empty((columns, get_tma_aligned_size(mn, 4)), dtype)
        if memory.shape[1] > mn:
            memory[:, mn:] = 0
        return memory[:, :mn].T, memory


def launch(
    plan: Any,
    rules: OnePass,
    grid: tuple[int, int],
    args: list[int],
    arrays: tuple[Any, ...],
    device: Device,
    stream: int | None,
    policy: str,
) -> None:
    """Run the kernel of a plan, on the GPU or, without a stream, in the emulator. No argument is an array: `arrays` are what it reaches."""
    threads, kinds = rules.threads(plan), rules.ARGTYPES
    if stream is None:
        from . import emu

        values = [kind(value) for kind, value in zip(kinds, args)]
        emu.run(rules.build(plan).kernel, grid, threads, values, policy=policy, arrays=arrays)
        return
    assert device.index is not None
    program = launching.program(
        plan, lambda: (rules.build(plan).kernel, kinds), arch=device.arch, threads=threads, min_ctas=rules.min_ctas(plan)
    )
    launcher = program.launcher(device.index, launching.LaunchShape((*grid, 1), (threads, 1, 1)))
    launcher([value & kind.mask for kind, value in zip(kinds, args)], (), stream)
