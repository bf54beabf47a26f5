"""Stepping a kernel: a run that stops where it is told to, is looked at, and goes on.

The run has a greenlet of its own, and every thread has one; a stop is a switch back to who called `step`. Lines are seen by Python's own tracing,
which is on while the kernel runs and off while it is stopped, so that a debugger or a coverage tool of the caller's is not disturbed.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType, TracebackType
from typing import Any

import numpy as np
from greenlet import getcurrent, greenlet

from ..errors import EmulationError
from ..layouts.lanes import LaneMap
from .arrays import CheckedArray
from .machine import Machine
from .observe import Observe
from .run import run_on
from .source import threads_text
from .stops import At, Stop, Who
from .threads import IN_KERNEL, Thread, Wait
from .views import BarrierView, SmemView, ThreadView, barriers_of, fragment_of

Block = int | tuple[int, ...] | None


class _GivenUp(BaseException):
    """Thrown through a run that is left before its end; no error, and so not to be caught as one."""


class _SteppedThread(Thread):
    """A thread that tells the session of every operation that it comes to, and of every line."""

    def _run(self) -> None:
        _session(self).set_tracing()
        super()._run()

    @property
    def op(self) -> str:
        """The operation it is in."""
        return self._op

    @op.setter
    def op(self, name: str) -> None:
        self._op = name
        if name not in (IN_KERNEL, "exit") and getcurrent() is self:
            _session(self).at_op(self, name)


def _session(thread: Thread) -> Session:
    assert isinstance(thread.machine, _SteppedMachine)
    return thread.machine.session


class _SteppedMachine(Machine):
    thread_type = _SteppedThread
    session: Session

    def breakpoint(self) -> None:
        """A kernel's ``breakpoint()`` is a stop like any other."""
        thread = self.thread()
        self.session.stop(thread, self.session.kernel_frame(thread))


class Session:
    """A stepped run, stopped. `emu.step` makes it; see there."""

    def __init__(self, kernel: Callable[..., Any], launch: Callable[[Machine], None], machine: Callable[[], _SteppedMachine]) -> None:
        self._kernel, self._launch, self._new_machine = kernel, launch, machine
        self._asked: Stop | None = None
        self._criterion: Stop | None = None
        self._came: dict[tuple[Any, ...], set[int]] = {}
        self._given_up = False
        self._thread: Thread | None = None
        self._frame: FrameType | None = None
        self._driver = greenlet(self._drive)
        self._parked: greenlet = self._driver
        self._caller = getcurrent()
        self.is_over = False
        self.opens_debugger = False

    def _drive(self) -> None:
        self._machine = self._new_machine()
        self._machine.session = self
        self._launch(self._machine)

    # Going on, and stopping

    def _go_on(self) -> bool:
        """Let the run go on until it stops, which is True, or ends."""
        if self.is_over:
            raise EmulationError("step: the kernel has run to its end")
        self._caller = self._driver.parent = getcurrent()
        outer, self._thread, self._frame = sys.gettrace(), None, None
        try:
            self._parked.switch()
        except BaseException:
            self.is_over = True
            raise
        finally:
            sys.settrace(outer)
        self.is_over = self._driver.dead
        return not self.is_over

    def stop(self, thread: Thread, frame: FrameType | None) -> None:
        """Called in an emulated thread: back to the caller until he goes on."""
        self._thread, self._frame, self._parked = thread, frame, thread

        def leave() -> None:
            sys.settrace(None)
            self._caller.switch()
            self.set_tracing()

        sys.call_tracing(leave, ())  # else tracing would stay off, for all greenlets, while this one is in its trace function
        if self._given_up:
            raise _GivenUp

    def _reached(self, thread: Thread, frame: FrameType, together: int) -> None:
        """A thread is where the run is to stop: at once, or when those who stop together with it have come too."""
        if together == 1:
            self.stop(thread, frame)
            return
        first = thread.index // together * together
        place = (thread.cta.rank, thread.cta.block_idx, first, frame.f_code, frame.f_lineno, self._criterion)
        came = self._came.setdefault(place, set())
        came.add(thread.index)
        others = [t for t in thread.cta.threads[first : first + together] if t is not thread]

        def hold() -> None:
            thread.waiting = Wait(lambda: True, lambda: "the stop, for those who stop together", is_pause=True)
            self.set_tracing()  # NOTE: else CPython 3.11 leaves tracing off in the threads that run next
            thread.parent.switch()
            self.set_tracing()

        if not all(t.index in came or t.exited for t in others):
            sys.call_tracing(hold, ())  # comes back when nobody else can run
        if self._came.get(place) is came and self._criterion is place[-1]:
            del self._came[place]
            self.stop(thread, frame)

    def set_tracing(self) -> None:
        """Begin to trace the running greenlet; to run to the end needs none, and is faster without."""
        sys.settrace(None if self._criterion is None else self.trace)

    def trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        """Python's trace function: lines of the kernel's own code."""
        thread = getcurrent()
        if not isinstance(thread, Thread) or not self._machine.sites.is_kernel(frame):
            return None
        if event == "line":
            stop = self._criterion
            if stop is not None and stop.at_line is not None and stop.at_line(frame) and stop.is_one(thread, frame):
                self._reached(thread, frame, stop.together)
        return self.trace

    def at_op(self, thread: Thread, name: str) -> None:
        """An emulated thread has come to operation `name`."""
        stop = self._criterion
        if stop is not None and stop.at_op is not None and stop.at_op(name):
            frame = self.kernel_frame(thread)
            if frame is not None and stop.is_one(thread, frame):
                self._reached(thread, frame, stop.together)

    def kernel_frame(self, thread: Thread) -> FrameType | None:
        """The innermost function of the kernel that the running thread is in."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not thread.machine.sites.is_kernel(frame):
            frame = frame.f_back
        return frame

    def run_to(self, stop: Stop | None) -> bool:
        """Run on to `stop`; whether the run has stopped, and not ended."""
        self._criterion = stop
        return self._go_on()

    def _run_to(self, stop: Stop | None) -> Session:
        if self.run_to(stop) and self.opens_debugger:
            self.pdb()
        return self

    def run_to_asked(self) -> bool:
        """Run on to the next stop that `step` was asked for; whether there was one."""
        return self.run_to(self._asked)

    def run(self, who: Who = None, at: At = None, cta: Block = None, together: str | None = None) -> Session:
        """Run on to the next stop of the session, or, with arguments, to another: words as of `emu.step`."""
        if (who, at, cta, together) == (None, None, None, None):
            return self._run_to(self._asked)
        return self._run_to(self._stop_of(who, at, cta, together))

    def _stop_of(self, who: Who, at: At, cta: Block, together: str | None = None) -> Stop:
        return Stop.of(who, at, cta, together, self._machine.sites.codes)

    def begin(self, who: Who, at: At, cta: Block, together: str | None) -> None:
        """Run to the first stop."""
        self._criterion = Stop(lambda thread, frame: True, at_line=lambda frame: True)
        if self._go_on():  # the kernel's code is known once the run has begun
            first = self._thread
            asked = self._criterion = self._asked = self._stop_of(who, at, cta, together)
            assert first is not None and self._frame is not None
            is_there = asked.at_line is not None and asked.together == 1 and asked.at_line(self._frame) and asked.is_one(first, self._frame)
            if not is_there and not self._go_on():
                raise EmulationError(f"step: the kernel has run to its end and nothing came to who={who!r}, at={at!r}, cta={cta!r}")

    def _same(self, thread: Thread) -> Callable[[Thread, FrameType], bool]:
        return lambda other, frame: other is thread

    def step(self) -> Session:
        """To the next source line of the same thread."""
        return self._run_to(Stop(self._same(self.stopped), at_line=lambda frame: True))

    def to_op(self, name: str = "op") -> Session:
        """To the next operation of the same thread, or the next of this name (``"tma.*"``)."""
        here = self.stopped
        return self._run_to(Stop(self._same(here), at_op=self._stop_of(None, name, None).at_op))

    def to_barrier(self) -> Session:
        """To the next operation of the same thread that arrives at a barrier, waits for it or makes it."""
        return self.to_op("barrier")

    def to_tile(self, variable: str = "tile") -> Session:
        """To the line of the same thread at which its `variable`, or that of a function around, has another value: its next tile."""
        before = self.thread().variable(variable)
        return self.until(lambda t: (now := t.variable(variable)) is not None and bool(now != before))

    def until(self, condition: Callable[[ThreadView], bool]) -> Session:
        """To the first line of the same thread at which `condition` holds."""
        here = self.stopped
        return self._run_to(Stop(self._same(here), at_line=lambda frame: bool(condition(ThreadView(here)))))

    def finish(self) -> Session:
        """Run to the end. Raises what the kernel raises."""
        self._criterion = None
        while not self.is_over:
            self._go_on()
        return self

    def close(self) -> None:
        """Give the run up where it is."""
        if not self.is_over:
            self._given_up = True
            with contextlib.suppress(_GivenUp):
                self._go_on()
            self.is_over = True

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    # Looking

    @property
    def stopped(self) -> Thread:
        """The thread that has stopped."""
        if self._thread is None:
            raise EmulationError("step: the kernel has run to its end; no thread is stopped")
        return self._thread

    @property
    def threads(self) -> list[ThreadView]:
        """The threads of the stopped thread's CTA."""
        return [ThreadView(t) for t in self.stopped.cta.threads]

    def thread(self, index: int | None = None) -> ThreadView:
        """Thread `index` of the stopped thread's CTA, or that thread itself."""
        here = self.stopped
        if index is None:
            return ThreadView(here)
        if not 0 <= index < len(here.cta.threads):
            raise EmulationError(f"thread: expected a number below {len(here.cta.threads)}, got {index}")
        return ThreadView(here.cta.threads[index])

    @property
    def smem(self) -> SmemView:
        """The shared memory of the stopped thread's CTA."""
        return SmemView(self.stopped.cta)

    @property
    def barriers(self) -> list[BarrierView]:
        """The mbarriers of the stopped thread's CTA."""
        return barriers_of(self.stopped.cta)

    def array(self, name: str) -> np.ndarray:
        """A copy of the array that the stopped thread calls `name`: shared (``cuda.shared.array``), local or global."""
        found = self.thread().variable(name)
        if not isinstance(found, CheckedArray):
            arrays = sorted({n for f in self.thread().frames for n, v in f.f_locals.items() if isinstance(v, CheckedArray)})
            raise EmulationError(f"array: expected one of {', '.join(arrays) or '(none here)'}, got {name!r}")
        return found.peek()

    def fragment(self, acc: str = "acc", layout: LaneMap | None = None) -> np.ndarray:
        """Local variable `acc` of the stopped thread's warpgroup as the matrix that it is: `views.fragment_of`."""
        return fragment_of(self.stopped, acc, layout)

    def pdb(self) -> Session:
        """Open pdb at the stop. ``n``, ``s``, ``r``, ``until`` step this thread's lines; ``c`` goes on to the session's next stop; ``q`` gives up."""
        from .debugger import interact

        interact(self)
        return self

    def __str__(self) -> str:
        if self._thread is None:
            return "the kernel has run to its end"
        here = self.thread()
        groups: dict[str, list[int]] = {}
        for t in self.threads:
            if t.index != here.index:
                groups.setdefault(t.state, []).append(t.index)
        others = [f"  {threads_text(numbers)}: {state}" for state, numbers in groups.items()]
        op = "" if here.op == IN_KERNEL else f", about to execute {here.op}"
        head = f"thread {here.index} (warp {here.warp}, lane {here.lane}) of block {here.block} in {here.function}{op}"
        return "\n".join([head, here.source(), "threads of the block", *others])


def step(
    kernel: Callable[..., Any], grid: int | Sequence[int], block: int | Sequence[int], args: Sequence[Any], *, smem: int = 0,
    cluster: int | Sequence[int] = 1, policy: str = "eager", who: Who = None, at: At = None, cta: Block = None, together: str | None = None,
    pdb: bool = False, observe: Observe | None = None, smem_base: int = 1024, arrays: Iterable[np.ndarray] = (),
    labels: Mapping[int, str] | None = None,
) -> Session:  # fmt: skip
    """Run `kernel` as `emu.run` does, and stop where `who` comes to `at`: ``with emu.step(...) as state:``.

    who  a thread's number in its CTA, "warp 4", "warpgroup 1", the name of one of the kernel's functions (a role: only while a thread is inside
         it), a function of a `ThreadView`, or None for whoever comes first
    at   an operation by name or pattern ("wgmma.wait", "tma.*", "cuda.syncthreads", "barrier" for all that concern barriers): it stops before it
         is executed. A line by its number, by "file.py:120", or by a part of its text: it stops before that line. None: the first line
    cta  the block index, or None for any
    together  "warp", "warpgroup" or "block": stop once for all of them, when all have come there (or nobody else can run); so that a
         `fragment`, say, has every lane's registers of the same moment. None: stop for each thread
    pdb  every stop opens pdb, on the terminal or in the notebook's prompt

    The other arguments are those of `emu.run`. The threads run as they do there: each until it blocks. Leaving the `with` block gives the run up,
    unless it is over.

    Raises:
        EmulationError: nothing came to the stop; and whatever the kernel does wrong, from where the run goes on

    >>> import numpy as np
    >>> from numba import cuda
    >>> from dgnumba import emu
    >>> def reverse(x):
    ...     tile = cuda.shared.array(4, np.float32)
    ...     i = cuda.threadIdx.x
    ...     tile[i] = x[i]
    ...     cuda.syncthreads()
    ...     x[i] = tile[3 - i]
    >>> with emu.step(reverse, 1, 4, (np.arange(4, dtype=np.float32),), who=2, at="cuda.syncthreads") as state:
    ...     print(state.thread().locals["i"], state.thread(0).state, "|", state.thread(3).state)
    2 syncthreads [2 of 4 threads there] | not begun
    """

    def launch(machine: Machine) -> None:
        run_on(machine, kernel, grid, block, args, smem=smem, cluster=cluster, smem_base=smem_base, arrays=arrays)

    session = Session(kernel, launch, lambda: _SteppedMachine(policy, labels, observe))
    session.begin(who, at, cta, together)
    session.opens_debugger = pdb
    if pdb and not session.is_over:
        session.pdb()
    return session
