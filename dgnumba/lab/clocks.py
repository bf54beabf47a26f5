"""A kernel watched from inside: its timeline by the GPU's own clocks, or, in the emulator, the order of the same records."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from .. import _numba, api, emu, launching
from ..arguments import is_on_gpu
from ..assemble import Cubin, assemble
from ..device import Device
from ..driver import LaunchShape
from ..emulated import Emulated
from ..errors import ProblemError
from ..integers import u32, u64
from ..kernels import GemmPlan
from ..kernels.watched import END, START, TIME
from ..plan import kernel_named
from ..problem import check_fp8_gemm_nt
from ..ptx.clock import RECORD_BYTES
from ..xp import address, namespace
from .costs import kind_of, stage_of
from .instrument import FIRST, WATCHED, Instrument
from .timeline import Span, Timeline

On = Literal["cuda", "emulator"]
NOMINAL_GHZ = 1.98
ROOM = 4096


@dataclass(frozen=True, eq=False)
class Watched:
    """The watched variant of a kernel.

    kernel    the kernel, with the records' address and their number per warp as last arguments
    threads   of a block
    labels    offset in shared memory -> what lies there
    argtypes  of a plan's kernel, what `_numba.compile_ptx` takes
    smem      of a plan's kernel, bytes of dynamic shared memory
    """

    instrument: Instrument
    kernel: Any
    threads: int
    labels: Mapping[int, str]
    argtypes: tuple[Any, ...] = ()
    smem: int = 0
    cluster: int = 1

    @classmethod
    def of(cls, plan: GemmPlan, watched: tuple[str, ...] = WATCHED) -> Watched:
        """The variant of the kernel of `plan`; `watched` are patterns of operations."""
        made, instrument = kernel_named(plan.kernel).build(plan), Instrument(watched)
        kernel, argtypes = instrument.kernel(made.kernel), (*made.argtypes, u64, u32)
        return cls(instrument, kernel, made.threads, made.smem.labels, argtypes, made.smem.launch_bytes, made.cluster)

    @property
    def warps(self) -> int:
        """Of a block."""
        return -(-self.threads // 32)

    def compiled(self, arch: str = "sm_90a") -> Cubin:
        """Its machine code; not kept."""
        ptx, _ = _numba.compile_ptx(self.kernel, self.argtypes, arch=arch, threads=self.threads)
        return assemble(ptx, arch)

    def timeline(self, records: np.ndarray, blocks: int | None, unit: str, source: str) -> Timeline:
        """What `records`, uint64 [blocks, warps, room, 2], say; of the first `blocks` blocks."""
        chosen = records[:blocks]
        offsets = _starts(chosen)
        base = self._base(chosen)
        spans: list[Span] = []
        for block, warp in np.ndindex(*chosen.shape[:2]):
            spans += self._spans(chosen[block, warp], f"block {block} warp {warp}", offsets[block], base)
        full = int(np.count_nonzero(chosen[:, :, -1, 1]))
        cut = f"; {full} warps had room for the first {chosen.shape[2]} records only" if full else ""
        return Timeline(tuple(spans), unit, source + cut)

    def _base(self, records: np.ndarray) -> int:
        """Where the kernel's shared memory begins: the multiple of 1024 from which all barriers that it waited at have labels."""
        bars = {int(v) for v in np.unique(records[..., 1] >> np.uint64(32))} - {0}
        addresses = {a for a in bars if a >= 1024}
        for base in range(0, 8192, 1024):
            if addresses and all(a - base in self.labels for a in addresses):
                return base
        return 1024

    def _spans(self, records: np.ndarray, row: str, start: float, base: int) -> list[Span]:
        spans: list[Span] = []
        opened: tuple[str, float, int] | None = None
        stage, issued, drained = -1, -1, -1
        for clock, tag in records.tolist():
            number, value = tag & 0xFFFFFFFF, tag >> 32
            if number == 0:
                break
            if number < FIRST:
                continue
            op, is_end = self.instrument.event(number)
            now = clock - start
            if not is_end:
                opened = op, now, value
                continue
            assert opened is not None and opened[0] == op
            kind, label = kind_of(op), self.labels.get(value - base, "")
            if op.startswith("mbarrier.wait") and label.startswith("full"):
                stage = stage_of(label)
            if kind == "mma" and op != "wgmma.wait":
                issued = stage
            if op == "wgmma.wait":
                drained = issued
            of = {"mma": stage, "promote": drained, "wait": drained if op == "wgmma.wait" else stage_of(label)}.get(kind, stage_of(label))
            spans.append(Span(row, opened[1], now, kind, f"{op} {label}".strip(), of))
        return spans


def _starts(records: np.ndarray) -> list[float]:
    """For each block the reading of its multiprocessor's clock that counts as 0: blocks are set against each other by the global timer."""
    firsts, times, rates = [], [], []
    for block in records:
        clocks, timers = [], []
        for warp in block.tolist():
            tags = [(clock, tag & 0xFFFFFFFF) for clock, tag in warp]
            marks = {n: clock for clock, n in tags if n in (START, END)}
            timer = [clock for clock, n in tags if n == TIME]
            if START in marks:
                clocks.append(marks[START])
                timers.append(timer[0])
            if START in marks and END in marks and timer[-1] - timer[0] > 20_000:
                rates.append((marks[END] - marks[START]) / (timer[-1] - timer[0]))
        if not clocks:
            raise ProblemError("records: expected a start of every block, got none: did the kernel run?")
        firsts.append(min(clocks))
        times.append(min(timers))
    rate = statistics.median(rates) if rates else NOMINAL_GHZ
    return [first - (time - min(times)) * rate for first, time in zip(firsts, times)]


def watch_gemm(
    a: Any, b: Any, d: Any = None, *, plan: GemmPlan | str | None = None, on: On | None = None, blocks: int | None = 1,
    room: int = ROOM, watched: tuple[str, ...] = WATCHED,
) -> Timeline:  # fmt: skip
    """``fp8_gemm_nt(a, b, d)`` by the watched variant of its kernel, and the timeline that this wrote down.

    on       "cuda": cycles of the GPU's clocks, which lane 0 of each warp reads before and after each operation; a reading and its store take some
             ten cycles themselves. "emulator": the order of the same records, a tick each. By default where the arrays are
    blocks   how many of the grid's blocks are shown (None: all)
    room     records that each warp has room for: two for each operation
    watched  patterns of operations

    Raises as `fp8_gemm_nt`; ProblemError if `on` and the arrays do not fit together.
    """
    operands = check_fp8_gemm_nt(a, b, d)
    is_host = operands.device is None
    where = on or ("emulator" if is_host else "cuda")
    if where == "cuda" and is_host or where == "emulator" and not is_host:
        raise ProblemError(f"on: {where!r} needs arrays {'on a GPU' if is_host else 'in host memory'}")
    if where == "emulator":
        call = api.emulated(operands, plan)
        seen = Watched.of(call.choice.plan, watched)
        return seen.timeline(_emulate(seen, call, room), blocks, "ticks", "the emulator's order")
    device = Device.numbered(operands.device or 0)
    choice = api._choose(operands, plan, device)
    seen = Watched.of(choice.plan, watched)
    records, took = _launch(seen, choice, api._lay_out(operands, choice.plan), device, room)
    return seen.timeline(records, blocks, "cycles", f"clocks of {device.name}; the watched kernel took {took:.1f} us")


def watch(
    kernel: Callable[..., Any], grid: int | Sequence[int], block: int | Sequence[int], args: Sequence[Any], *, smem: int = 0,
    cluster: int | Sequence[int] = 1, labels: Mapping[int, str] | None = None, on: On | None = None, blocks: int | None = 1, room: int = ROOM,
    watched: tuple[str, ...] = WATCHED,
) -> Timeline:  # fmt: skip
    """Launch the watched variant of any kernel (arguments as of `dgnumba.launch`), and give the timeline that it wrote down.

    What is watched are operations of `dgnumba.ptx`, not Numba's own ``cuda.syncthreads`` and arrays. The other arguments are those of `watch_gemm`
    and, for names of barriers, `emu.run`'s `labels`.

    >>> import numpy as np
    >>> from dgnumba import lab
    >>> from dgnumba.ptx import thread
    >>> def kernel(x):
    ...     thread.griddepcontrol_wait()
    ...     x[0] = 1
    >>> [span.name for span in lab.watch(kernel, 1, 32, (np.zeros(1, np.float32),)).spans]
    ['thread.griddepcontrol_wait']
    """
    on_gpu = [x for x in args if is_on_gpu(x)]
    where = on or ("cuda" if on_gpu else "emulator")
    if where not in ("cuda", "emulator") or (where == "cuda") != bool(on_gpu):
        raise ProblemError(f"on: expected {'cuda' if on_gpu else 'emulator'} for these arguments, or None, got {on!r}")
    instrument = Instrument(watched)
    seen = Watched(instrument, instrument.kernel(kernel), _product(block), labels or {})
    xp = namespace(on_gpu[0]) if on_gpu else np
    records = xp.zeros((_product(grid), seen.warps, room, RECORD_BYTES // 8), xp.uint64)
    more = (*args, u64(address(records)), u32(room))
    if where == "cuda":
        launching.launch(seen.kernel, grid, block, more, smem=smem, cluster=cluster)
        return seen.timeline(xp.asnumpy(records), blocks, "cycles", "the GPU's clocks")
    emu.run(seen.kernel, grid, block, more, smem=smem, cluster=cluster, labels=labels, arrays=(records,))
    return seen.timeline(records, blocks, "ticks", "the emulator's order")


def _product(extents: int | Sequence[int]) -> int:
    return extents if isinstance(extents, int) else math.prod(extents)


def _emulate(seen: Watched, call: Emulated, room: int) -> np.ndarray:
    _, grid, threads, args = call.launch
    records = np.zeros((grid, seen.warps, room, 2), np.uint64)
    options = {**call.options, "arrays": (*call.options["arrays"], records)}
    emu.run(seen.kernel, grid, threads, (*args, u64(address(records)), u32(room)), **options)
    return records


def _launch(seen: Watched, choice: Any, laid: Any, device: Device, room: int) -> tuple[np.ndarray, float]:
    """Run it twice, so that the second run finds its code and its tensor maps warm; the second one's records, and its time in microseconds."""
    cupy = namespace(laid.a)
    assert device.index is not None
    grid = choice.kernel.grid(choice.plan, laid.problem, device)
    records = cupy.zeros((grid, seen.warps, room, RECORD_BYTES // 8), cupy.uint64)
    args = (*choice.kernel.bind(choice.plan, laid), address(records), room)
    program = launching.Program(seen.compiled(device.arch))
    shape = LaunchShape((grid, 1, 1), (seen.threads, 1, 1), seen.smem, (seen.cluster, 1, 1))
    launcher = program.launcher(device.index, shape)
    maps = tuple(launching.encoded(x) for x in args if getattr(x, "is_tensor_map", False))
    scalars = [int(x) for x in args if not getattr(x, "is_tensor_map", False)]
    handle = cupy.cuda.get_current_stream().ptr
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    for _ in range(2):
        records[...] = 0
        begin.record()
        launcher(scalars, maps, handle)
        end.record()
    end.synchronize()
    return cupy.asnumpy(records), 1e3 * cupy.cuda.get_elapsed_time(begin, end)


__all__ = ["Watched", "watch", "watch_gemm"]
