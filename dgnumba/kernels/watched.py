"""First and last lines of a kernel that is watched from inside (`ptx.clock`, `lab.instrument`)."""

from __future__ import annotations

from numba import cuda

from .._numba import device_function
from ..integers import u32, u64
from ..ptx import clock

START, TIME, END = 1, 2, 3
"""Numbers of records: a warp's first and last moment, whose value is the multiprocessor, and the global timer at both."""


@device_function
def begin_records(records, room):  # type: ignore[no-untyped-def]
    """Begin this warp's records: those of all warps of the grid lie one after another from `records` (u64), `room` (u32) for each."""
    threads = u32(cuda.blockDim.x) * u32(cuda.blockDim.y) * u32(cuda.blockDim.z)
    thread = (u32(cuda.threadIdx.z) * u32(cuda.blockDim.y) + u32(cuda.threadIdx.y)) * u32(cuda.blockDim.x) + u32(cuda.threadIdx.x)
    block = (u32(cuda.blockIdx.z) * u32(cuda.gridDim.y) + u32(cuda.blockIdx.y)) * u32(cuda.gridDim.x) + u32(cuda.blockIdx.x)
    warp = block * ((threads + 31) // 32) + thread // 32
    clock.begin(records + u64(warp) * (u64(room) * clock.RECORD_BYTES), room)
    clock.record_time(TIME, u32(0))
    clock.record(START, clock.smid())


@device_function
def end_records():  # type: ignore[no-untyped-def]
    """The last records of this warp."""
    clock.record(END, clock.smid())
    clock.record_time(TIME, u32(1))
