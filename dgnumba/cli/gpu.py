"""What the commands ask of a GPU: is there one, arrays there and back, time. They use CuPy as any caller of this package does."""

from __future__ import annotations

import functools
import math
import re
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import driver
from ..dtypes import DType
from ..errors import LaunchError
from ..quant import QTensor

CURE = "python -m pip install 'dgnumba[cuda13]'"
"""The line that brings all that a GPU needs beside its driver."""

_FLUSH_BYTES = 1 << 28  # several times the L2 of any Hopper GPU


@functools.cache
def missing() -> str | None:
    """Why nothing can run on a GPU here, in words; None when it can."""
    try:
        driver.api()
    except LaunchError as error:
        return str(error) if error.code else re.sub(r" \(.*\)|; NumPy arrays need none", "", str(error))  # the cause alone
    if driver.device_count() == 0:
        return "the CUDA driver finds no GPU"
    try:
        import cupy  # noqa: F401
    except ImportError as error:
        return f"{error.name or error} is not installed; {CURE}"
    return None


def to_gpu(q: QTensor) -> QTensor:
    """The same tensor on the current GPU."""
    import cupy

    return QTensor(cupy.asarray(np.ascontiguousarray(q.codes)), cupy.asarray(np.ascontiguousarray(q.scale)), q.dtype, q.granularity)


def to_host(x: Any, dtype: DType) -> Any:
    """A CuPy array, or the bits of one, as a NumPy array of `dtype`."""
    import cupy

    return cupy.asnumpy(x).view(dtype.numpy)


def seconds(call: Callable[[], Any], runs: int = 20, *, flush: bool = True) -> float:
    """Time of a call's work on the current stream: median of `runs`, each after L2 was flushed by reading, the first not counted.

    The reading also keeps the GPU busy while the host prepares the call, however long that takes: what is timed is the work alone. Without
    flush it is the call, host and all, where that is longer.
    """
    import cupy

    read: Callable[[], Any] = cupy.zeros(_FLUSH_BYTES // 4 if flush else 0, cupy.float32).sum
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    reads = _reads_that_cover(call, read) if flush else 0
    times = []
    for _ in range(runs + 1):
        for _ in range(reads):
            read()
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(cupy.cuda.get_elapsed_time(begin, end) * 1e-3)
    return float(statistics.median(times[1:]))


def _reads_that_cover(call: Callable[[], Any], read: Callable[[], Any]) -> int:
    """How often the flush is read so that the GPU is still at it when the call is queued: for twice the time that the host takes, and once more."""
    import cupy

    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    read()  # compiles it
    read()  # keeps the GPU busy until the next is queued
    begin.record()
    read()
    end.record()
    call()
    cupy.cuda.get_current_stream().synchronize()
    began = time.perf_counter()
    call()
    on_the_host = time.perf_counter() - began
    cupy.cuda.get_current_stream().synchronize()
    a_read = float(cupy.cuda.get_elapsed_time(begin, end)) * 1e-3
    return 1 + math.ceil(2 * on_the_host / a_read)
