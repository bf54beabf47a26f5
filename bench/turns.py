"""How calls are timed whose kernels have the same names: in turns, told apart by their order."""

from __future__ import annotations

import statistics
from typing import Any

from measure import Call, Flush, kernels_run


def _is_flush(name: str) -> bool:
    """Whether a kernel is one of torch's reductions; cuBLAS has a splitKreduce_kernel."""
    return "native" in name and "reduce_kernel" in name


def in_turns(calls: dict[str, Call], flush: Flush, rounds: int, seen: dict[str, dict[str, bool]] | None = None) -> dict[str, float]:
    """Median microseconds of each call, the calls taking turns; a kernel belongs to the call that follows the flush before it.

    `flush` must read (a reduction), and no call may begin or end with a reduction of torch's. `seen` is given the names of each call's
    kernels, and whether they count.
    """
    assert flush.kind == "read", f"flush: expected read, got {flush.kind}"
    events = [e for e in kernels_run(calls, flush, rounds) if not e.name.startswith(("Memset", "Memcpy"))]
    events.sort(key=lambda e: e.time_range.start)
    runs: list[list[Any]] = []
    was_flush = False
    for event in events:
        is_flush = _is_flush(event.name)
        if is_flush and not was_flush:
            runs.append([])
        elif runs and not is_flush:
            runs[-1].append(event)
        was_flush = is_flush
    assert len(runs) == rounds * len(calls), f"{len(runs)} calls found between flushes, expected {rounds} rounds of {len(calls)}"
    out = {}
    for i, (name, (_, kernels)) in enumerate(calls.items()):
        times = []
        for run in runs[i :: len(calls)]:
            counted = [e for e in run if any(part in e.name for part in kernels)]
            times.append(sum(e.time_range.elapsed_us() for e in counted))
            if seen is not None:
                seen.setdefault(name, {}).update({e.name[:80]: e in counted for e in run})
        if min(times) > 0:
            out[name] = statistics.median(times)
        else:
            print(f"{name}: no kernel named {kernels} ran", flush=True)
    return out
