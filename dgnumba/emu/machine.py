"""One run of a kernel: what all its clusters share."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from greenlet import getcurrent

from ..errors import EmulationError
from .gmem import GlobalMemory
from .observe import Hearers, Note, Observe
from .source import Site, Sites
from .threads import Thread

if TYPE_CHECKING:
    from .cta import Cta


class Machine:
    """The kernel, its arguments, global memory, the completion policy, and who looks on."""

    thread_type: type[Thread] = Thread

    def __init__(self, policy: str, labels: Mapping[int, str] | None, observe: Observe | None) -> None:
        if policy not in ("eager", "late"):
            raise EmulationError(f"policy: expected 'eager' or 'late', got {policy!r}")
        self.late = policy == "late"
        self.hearers = Hearers.of(observe)
        self.gmem = GlobalMemory(self.hearers.access)
        self.sites = Sites()
        self.scheduler = getcurrent()
        self.kernel: Callable[..., Any] = _no_kernel
        self.args: tuple[Any, ...] = ()
        self.grid_dim = (1, 1, 1)
        named = sorted((labels or {}).items())
        self._label_offsets, self._labels = [offset for offset, _ in named], [name for _, name in named]
        self._step = self._ticks = 0

    def tick(self) -> int:
        """A count that grows with every call: what stands for a clock."""
        self._ticks += 1
        return self._ticks

    def thread(self) -> Thread:
        """The running thread."""
        return cast(Thread, getcurrent())

    def lanes(self) -> Sequence[Thread]:
        """For whom the running thread acts: itself, or the meeting whose body it runs."""
        return self.thread().lanes

    def address_text(self, address: int, base: int) -> str:
        """An address in shared memory, with the label at or before it."""
        offset = int(address) - base
        i = bisect_right(self._label_offsets, offset) - 1
        if i < 0:
            return f"{address:#x}"
        beyond = offset - int(self._label_offsets[i])
        return f"{self._labels[i]}{f' + {beyond}' if beyond else ''} @{address:#x}"

    def breakpoint(self) -> None:
        """The running thread has come to a ``breakpoint()`` of the kernel."""
        from .debugger import break_here

        break_here(self.thread())

    def offset_of(self, label: str) -> int:
        """The offset in the dynamic shared memory that has this label."""
        if label not in self._labels:
            raise EmulationError(
                f"at: expected an offset or one of the labels {', '.join(self._labels) or '(none in this run)'}, got {label!r}"
            )
        return int(self._label_offsets[self._labels.index(label)])

    def site_of(self, thread: Thread, traceback: TracebackType | None) -> Site:
        """The operation and the line of the kernel from which an error came."""
        site = Site(thread.op, None, 0)
        while traceback is not None:
            if self.sites.is_kernel(traceback.tb_frame):
                site = Site(thread.op, traceback.tb_frame.f_code, traceback.tb_lasti)
            traceback = traceback.tb_next
        return site

    def where(self, thread: Thread, site: Site) -> str:
        """Who raised an error, in which operation and on which line of the kernel."""
        return f"{thread.cta.cluster.thread_text([t.uid for t in thread.lanes])}, {site}"

    def blame(self, error: EmulationError, thread: Thread, place: str = "") -> None:
        """Let `error` say who raised it, where; unless it does already. `place` stands in the place of the site's words."""
        if error.where:
            return
        site = self.site_of(thread, error.__traceback__)
        error.where = place or self.where(thread, site)
        error.threads, error.block = tuple(t.index for t in thread.lanes), thread.cta.block_idx
        error.op, error.file, error.line, error.source = site.op, site.file, site.line, site.source

    def note(
        self, kind: str, op: str, threads: Sequence[Thread], detail: str = "", phase: int = -1, amount: int = 0, cta: Cta | None = None
    ) -> None:
        """Tell whoever takes notes."""
        if self.hearers.note is None:
            return
        self._step += 1
        self.hearers.note(Note.of(self._step, kind, op, threads, detail, phase, amount, cta))


def thread() -> Thread:
    """The emulated thread that runs now."""
    current = getcurrent()
    if not isinstance(current, Thread):
        raise EmulationError("this operation has a meaning only inside a kernel: run it with dgnumba.emu.run, or launch the kernel")
    return current


def kernel_breakpoint(*args: Any, **kwargs: Any) -> None:
    """What ``breakpoint()`` is in a kernel."""
    thread().machine.breakpoint()


def _no_kernel() -> None:
    raise EmulationError("no kernel is loaded")
