"""pdb in an emulated thread: it sees the kernel's own source, and none of the emulator's.

A kernel's ``breakpoint()`` opens it where the kernel runs; `Session.pdb` where a stepped run has stopped. Beside pdb's own commands:
``threads`` says who waits where, ``barriers`` what the mbarriers lack.
"""

from __future__ import annotations

import os
import pdb
import sys
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent

from .source import threads_text
from .stops import Stop
from .threads import Thread
from .views import ThreadView, barriers_of

if TYPE_CHECKING:
    from .stepping import Session


class KernelDebugger(pdb.Pdb):
    """pdb for one emulated thread."""

    def __init__(self, thread: Thread) -> None:
        super().__init__(nosigint=True)
        self._thread = thread
        self.prompt = f"(thread {thread.index} of block {thread.cta.block_idx}) "

    def get_stack(self, frame: FrameType | None, traceback: TracebackType | None) -> tuple[list[tuple[FrameType, int]], int]:
        """The kernel's functions alone."""
        stack, _ = super().get_stack(frame, traceback)
        own = [(f, line) for f, line in stack if self._thread.machine.sites.is_kernel(f)]
        return own, max(len(own) - 1, 0)

    def stop_here(self, frame: FrameType) -> bool:
        """Whether to stop in `frame`: never outside the kernel's code, nor in another thread."""
        return self._thread.machine.sites.is_kernel(frame) and bool(super().stop_here(frame))

    def trace_dispatch(self, frame: FrameType, event: str, arg: Any) -> Any:
        """Take one event of Python's tracing."""
        if getcurrent() is not self._thread or not self._thread.machine.sites.is_kernel(frame):
            return None
        return super().trace_dispatch(frame, event, arg)

    def do_threads(self, arg: str) -> None:
        """threads
        The threads of the block: which of them stand where, and what they wait for.
        """
        groups: dict[str, list[int]] = {}
        for t in self._thread.cta.threads:
            if t is not self._thread:
                view = ThreadView(t)
                groups.setdefault(f"{view.state}" + (f", {view.place}" if view.frames else ""), []).append(t.index)
        for state, numbers in groups.items():
            self.message(f"{threads_text(numbers)}: {state}")

    def do_barriers(self, arg: str) -> None:
        """barriers
        The mbarriers of the block: phase, missing arrivals and bytes, and how many threads wait.
        """
        for barrier in barriers_of(self._thread.cta):
            self.message(str(barrier))


def break_here(thread: Thread) -> None:
    """Open pdb at the line of the kernel that the running thread is at."""
    if os.environ.get("PYTHONBREAKPOINT") == "0":
        return
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not thread.machine.sites.is_kernel(frame):
        frame = frame.f_back
    KernelDebugger(thread).set_trace(frame)


class _ConsoleDebugger(KernelDebugger):
    """The same over a stopped run: its commands say how the run is to go on, and touch no tracing."""

    goes_on = ""

    def set_continue(self) -> None:
        """The command ``c``."""
        self.goes_on = "run"

    def set_quit(self) -> None:
        """The command ``q``."""
        self.goes_on = "quit"

    def _set_stopinfo(self, *args: Any, **kwargs: Any) -> None:
        super()._set_stopinfo(*args, **kwargs)  # type: ignore[misc]
        self.goes_on = "line"

    def wants(self, frame: FrameType) -> bool:
        """Whether a command as ``n`` ends at this line: it is where it should, has a breakpoint, or has left the function it was to stay in."""
        return self.stop_here(frame) or self.break_here(frame) or not _is_called_from(self.stopframe, frame)


def _is_called_from(outer: FrameType | None, frame: FrameType | None) -> bool:
    while frame is not None and frame is not outer:
        frame = frame.f_back
    return outer is None or frame is outer


def interact(session: Session) -> None:
    """`Session.pdb`."""
    debuggers: dict[Thread, _ConsoleDebugger] = {}
    while not session.is_over:
        thread = session.stopped
        debugger = debuggers.get(thread) or debuggers.setdefault(thread, _ConsoleDebugger(thread))
        frames = ThreadView(thread).frames
        debugger.goes_on, debugger.botframe = "", frames[0]
        debugger.interaction(frames[-1], None)
        if debugger.goes_on == "quit":
            session.close()
        elif debugger.goes_on == "line":
            session.run_to(Stop(lambda t, frame, own=thread: t is own, at_line=debugger.wants))  # type: ignore[misc]
        elif not session.run_to_asked() or not session.opens_debugger:
            return
