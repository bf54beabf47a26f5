"""How a kernel is timed: beside its rivals, in one run, interleaved, on random data, L2 flushed before each call; kernel time by CUPTI.

`kernel_times` takes calls by name and gives microseconds by name. The profiler is torch's (CUPTI's activity records), which a rival needs
anyway; a launch's own cost and the gap before it are not in the figure, as in DeepGEMM's own benchmark.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

FLUSH_BYTES = 8_000_000_000

Call = tuple[Callable[[], Any], tuple[str, ...]]
"""A call, and substrings of the names of the kernels that count for it."""


class Flush:
    """Empties L2 before a call.

    "memset" writes 8 GB, as DeepGEMM's benchmark does; "read" reads them, which leaves no dirty lines to be written back.
    """

    def __init__(self, kind: str) -> None:
        import torch

        self.kind = kind
        self._buffer = torch.zeros(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
        self._torch = torch

    def __call__(self) -> None:
        """Flush."""
        if self.kind == "read":
            self._torch.amax(self._buffer)
        else:
            self._buffer.zero_()


def copy_bandwidth() -> tuple[float, float]:
    """Bytes a microsecond of a device-to-device copy (read and written), and of a reduction (read)."""
    import torch

    x = torch.zeros(1 << 30, dtype=torch.int32, device="cuda")
    y = torch.empty_like(x)
    out = []
    for call, factor in ((lambda: y.copy_(x), 2), (lambda: torch.amax(x), 1)):
        call()
        times = []
        for _ in range(7):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            call()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1e3)
        out.append(x.numel() * 4 * factor / statistics.median(times))
    return out[0], out[1]


def kernels_run(calls: dict[str, Call], flush: Flush, rounds: int) -> list[Any]:
    """The profiler's events of what ran on the GPU, flushes included, while the calls took turns for `rounds` rounds; not of the warm-up."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    for call, _ in calls.values():
        call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(rounds):
            for call, _ in calls.values():
                flush()
                call()
        torch.cuda.synchronize()
    return [event for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA]


def kernel_times(calls: dict[str, Call], flush: Flush, rounds: int) -> dict[str, float]:
    """Median microseconds of each call, the calls taking turns for `rounds` rounds."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for event in kernels_run(calls, flush, rounds):
        for name, (_, kernels) in calls.items():
            if any(part in event.name for part in kernels):
                found[name].append(event.time_range.elapsed_us())
    # a call that launches several kernels counts their sum
    return {name: statistics.median(us) if len(us) == rounds else sum(us) / rounds for name, us in found.items() if us}
