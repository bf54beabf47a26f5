"""What a stopped run looks like: its threads, their variables, shared memory and barriers. Looking is no access: no check hears of it."""

from __future__ import annotations

import linecache
import sys
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np
from greenlet import getcurrent

from ..errors import EmulationError
from ..layouts.lanes import LaneMap, wgmma_accumulator
from ..layouts.swizzle import ALIGNMENT, SWIZZLES, swizzle
from .arrays import dtype_of
from .cta import WARPGROUP_SIZE, Cta
from .fragment import Fragment
from .memory import FIRST_EVENT
from .threads import Thread


class ThreadView:
    """One emulated thread."""

    def __init__(self, thread: Thread) -> None:
        self._thread = thread
        self.index, self.warp, self.lane, self.block = thread.index, thread.warp, thread.lane, thread.cta.block_idx

    @property
    def frames(self) -> list[FrameType]:
        """The kernel's functions that it is in, the innermost last."""
        frame = sys._getframe(1) if getcurrent() is self._thread else self._thread.gr_frame
        sites, found = self._thread.machine.sites, []
        while frame is not None:
            if sites.is_kernel(frame):
                found.append(frame)
            frame = frame.f_back
        return found[::-1]

    @property
    def frame(self) -> FrameType | None:
        """The innermost of them; None before it begins, and after it has ended."""
        frames = self.frames
        return frames[-1] if frames else None

    @property
    def locals(self) -> dict[str, Any]:
        """The variables of the function that it is in; without those of the functions around it."""
        frame = self.frame
        return {} if frame is None else {name: value for name, value in frame.f_locals.items() if name not in frame.f_code.co_freevars}

    def variable(self, name: str) -> Any:
        """The variable of this name in the innermost function that has one, or None."""
        return next((f.f_locals[name] for f in reversed(self.frames) if name in f.f_locals), None)

    @property
    def function(self) -> str:
        """The function that it is in: ``consumer``."""
        frame = self.frame
        return "" if frame is None else frame.f_code.co_name

    @property
    def line(self) -> int:
        """The line in that function's file; 0 if it is in none."""
        frame = self.frame
        return 0 if frame is None else frame.f_lineno

    @property
    def place(self) -> str:
        """``gemm.py:120: mbarrier.wait(full, phase)``."""
        return self._thread.place()

    @property
    def op(self) -> str:
        """The operation it has come to, or "the kernel" between two."""
        return self._thread.op

    @property
    def state(self) -> str:
        """``exited``, ``not begun``, ``can run``, or what it waits for."""
        if self._thread.exited:
            return "exited"
        if not self._thread:
            return "not begun"
        meeting = self._thread.meeting
        waits = self._thread.waiting is not None or meeting is not None and not meeting.is_over
        return self._thread.blocked_text() if waits else "can run"

    def source(self, around: int = 3) -> str:
        """The lines about the one it is at, which is marked."""
        frame = self.frame
        if frame is None:
            return ""
        name, here = frame.f_code.co_filename, frame.f_lineno
        numbers = range(max(1, here - around), here + around + 1)
        lines = [(n, linecache.getline(name, n)) for n in numbers]
        return "\n".join(f"{'->' if n == here else '  '} {n:4d}  {text.rstrip()}" for n, text in lines if text)

    def __repr__(self) -> str:
        return f"thread {self.index} of block {self.block} in {self.function or 'no function'}, {self.place}: {self.state}"


class SmemView:
    """The shared memory of a CTA; offsets count from the base of the dynamic block."""

    def __init__(self, cta: Cta) -> None:
        self._cta, self._smem = cta, cta.smem

    @property
    def nbytes(self) -> int:
        """Bytes of the dynamic block."""
        return self._smem.dynamic_end - self._smem.base

    @property
    def written(self) -> np.ndarray:
        """For each byte of the dynamic block whether something wrote it (an asynchronous copy counts from its issue on)."""
        written: np.ndarray = self._smem._stamps[self._smem.base : self._smem.dynamic_end] >= FIRST_EVENT
        return written

    def offset(self, at: int | str) -> int:
        """`at`, or the offset that has this label."""
        return self._cta.cluster.machine.offset_of(at) if isinstance(at, str) else int(at)

    def view(self, dtype: Any, shape: int | tuple[int, ...], at: int | str = 0, swizzle: int = 0) -> np.ndarray:
        """A copy of what lies at `at` as an array.

        dtype    NumPy's, Numba's, or the name of one of ml_dtypes
        at       offset in the dynamic block, or a label as "a[1]"
        swizzle  0, 32, 64 or 128: with which the tile was written, and which is undone; its rows are that many bytes long

        Raises:
            EmulationError: no such label or swizzle, bytes beyond the block, a base that is not aligned to the swizzle's pattern
        """
        element, first = dtype_of(dtype), self.offset(at)
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        nbytes = int(np.prod(shape, dtype=np.int64)) * element.itemsize
        if swizzle not in SWIZZLES:
            raise EmulationError(f"swizzle: expected one of {SWIZZLES}, got {swizzle}")
        if first < 0 or first + nbytes > self.nbytes:
            raise EmulationError(f"view: bytes {first} to {first + nbytes} are not in the {self.nbytes} bytes of dynamic shared memory")
        address = self._smem.base + first
        if address % ALIGNMENT[swizzle] and swizzle:
            raise EmulationError(f"view: swizzle {swizzle} needs a multiple of {ALIGNMENT[swizzle]}, got address {address:#x}")
        places = _swizzled(address + np.arange(nbytes), swizzle)
        array: np.ndarray = self._smem.bytes[places].view(element).reshape(shape)
        return array

    def writer(self, at: int | str) -> str:
        """Who wrote the byte at `at` last, and on which line of the kernel."""
        stamp = int(self._smem._stamps[self._smem.base + self.offset(at)])
        if stamp < FIRST_EVENT:
            return "nothing" if stamp == 0 else "mbarrier.init"
        return self._smem.describe(self._cta.cluster.clocks.event_of(stamp))


_swizzled = swizzle  # `view` has an argument of this name


@dataclass(frozen=True)
class BarrierView:
    """An mbarrier: arrivals and bytes that its phase still lacks, and the threads that wait on it."""

    name: str
    address: int
    count: int
    pending: int
    tx: int
    phase: int
    waiting: tuple[int, ...]

    def __str__(self) -> str:
        bytes_text = f", {self.tx} bytes to come" if self.tx else ""
        who = f"; {len(self.waiting)} threads wait" if self.waiting else ""
        return f"{self.name}: phase {self.phase}, {self.pending} of {self.count} arrivals missing{bytes_text}{who}"


def barriers_of(cta: Cta) -> list[BarrierView]:
    """The mbarriers of `cta`, by address."""
    out = []
    for address, bar in sorted(cta.mbarriers.items()):
        waiting = tuple(t.index for t in cta.threads if t.waiting is not None and t.waiting.on is bar)
        out.append(BarrierView(bar.name, address, bar.count, bar.pending, bar.tx, bar.phase, waiting))
    return out


def fragment_of(thread: Thread, name: str, layout: LaneMap | None) -> np.ndarray:
    """Local variable `name` of the threads of `thread`'s warpgroup (or warp, as `layout` has it), put back into the matrix that it is.

    `layout` is one of `layouts.lanes`; by default the accumulator of wgmma of as many registers. Elements whose lane has no such variable, or
    whose registers are in flight, are NaN.
    """
    size = WARPGROUP_SIZE if layout is None else layout.lanes
    first = thread.index // size * size
    lanes = thread.cta.threads[first : first + size]
    held = [_registers(lane, name) for lane in lanes]
    found = [h for h in held if h is not None]
    if not found:
        raise EmulationError(f"fragment: no thread of {first} to {first + size - 1} has a variable {name!r} of registers")
    count = layout.row.shape[1] if layout is not None else len(found[0])
    lane_map = layout or wgmma_accumulator(2 * count)
    if any(len(h) != count for h in found):
        raise EmulationError(f"fragment: expected {count} registers in {name!r} for {lane_map.name}, got {sorted({len(h) for h in found})}")
    filled = np.full((size, count), np.nan, np.result_type(found[0].dtype, np.float32))
    for row, values in zip(filled, held):
        if values is not None:
            row[:] = values
    matrix: np.ndarray = lane_map.scatter(filled)
    return matrix


def _registers(thread: Thread, name: str) -> np.ndarray | None:
    for frame in reversed(ThreadView(thread).frames):
        if name in frame.f_locals:
            value = frame.f_locals[name]
            if isinstance(value, Fragment):
                return value.peek()
            array = np.asarray(value)
            return array if array.ndim == 1 else None
    return None
