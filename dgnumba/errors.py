"""The exceptions of dgnumba, one tree.

::

    DGNumbaError
    ├── ProblemError        bad argument; also a ValueError
    │   └── DTypeError      bad dtype; also a TypeError
    ├── UnsupportedError    no kernel for this problem on this device; .reasons: kernel -> why not
    ├── PlanError           no candidate left; .reasons: what cut them
    ├── CompileError        Numba, PTX or ptxas; .log: what the tool said
    ├── LaunchError         the driver refused; .code: its name and number
    └── EmulationError      the interpreted kernel did what the hardware forbids
        ├── DeadlockError       nothing can run, and something has not finished
        ├── DivergenceError     a collective met by part of its threads
        ├── RaceError           two accesses that nothing orders
        │   └── ProxyError          ordered, but without fence.proxy.async between the proxies
        ├── UninitializedError  a read of memory or registers that nothing wrote
        ├── BarrierError        an mbarrier or named barrier used against its rules
        ├── AsyncError          asynchronous work used, or left behind, before it was waited for
        ├── OutOfBoundsError    an address outside the memory it names
        ├── LayoutError         shared memory read in another swizzle than it was written in
        ├── IndexOverflowError  an address or an index made from integers that wrapped
        └── UnknownNameError    a kernel asks for what the emulator does not know; also an AttributeError

A message names the argument, what was expected and what came.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar


class DGNumbaError(Exception):
    """What every exception of this package is."""


class ProblemError(DGNumbaError, ValueError):
    """An argument that cannot be worked on; raised before anything is written."""


class DTypeError(ProblemError, TypeError):
    """An argument of a dtype that is not taken."""


class _ReasonedError(DGNumbaError):
    def __init__(self, message: str, reasons: Mapping[str, str] | None = None) -> None:
        self.reasons: dict[str, str] = dict(reasons or {})
        lines = [message, *(f"  {name}: {why}" for name, why in self.reasons.items())]
        super().__init__("\n".join(lines))


class UnsupportedError(_ReasonedError):
    """No kernel takes this problem on this device; `reasons` says, kernel by kernel, why."""


class PlanError(_ReasonedError):
    """No candidate is left for a kernel that takes the problem; `reasons` says what cut them."""


class CompileError(DGNumbaError):
    """A kernel did not compile or assemble; `log` holds what the tool said."""

    def __init__(self, message: str, log: str = "") -> None:
        self.log = log
        super().__init__(f"{message}\n{log}" if log else message)


class LaunchError(DGNumbaError):
    """The driver refused a load, a tensor map or a launch; `code` is its own name for why."""

    def __init__(self, message: str, code: str = "") -> None:
        self.code = code
        super().__init__(f"{message} ({code})" if code else message)


class EmulationError(DGNumbaError):
    """The interpreted kernel did something that the hardware forbids or leaves undefined.

    `problem` is the message alone; `where` says which thread, operation and source line (empty outside a kernel). The same as data:

    kind           what is wrong, in a word: "race", "missing-wait", "bounds", ... (`emu.checks.report` lists them)
    address        in shared or global memory, or None
    threads, block numbers of the threads in their block, and its index; () and None outside a kernel
    op             the operation
    file, line, source   of the kernel; "", 0 and "" when no line of it is to blame
    """

    usual_kind: ClassVar[str] = "misuse"

    def __init__(self, problem: str, where: str = "", *, kind: str = "", address: int | None = None) -> None:
        self.problem, self.where = problem, where
        self.kind, self.address = kind or self.usual_kind, None if address is None else int(address)
        self.threads: tuple[int, ...] = ()
        self.block: tuple[int, int, int] | None = None
        self.op, self.file, self.line, self.source = "", "", 0, ""
        super().__init__(problem)

    def __str__(self) -> str:
        return f"{self.problem}\n  at {self.where}" if self.where else self.problem


class DeadlockError(EmulationError):
    """Nothing can run, and something has not finished; `graph` says who waits for whom (`emu.checks.waits.WaitGraph`)."""

    usual_kind = "deadlock"
    graph: Any = None


class DivergenceError(EmulationError):
    """A collective operation was met by only part of the threads that it needs."""

    usual_kind = "divergence"


class RaceError(EmulationError):
    """Two accesses conflict, and nothing orders one before the other."""

    usual_kind = "race"


class ProxyError(RaceError):
    """The generic and the asynchronous proxy meet at one address without fence.proxy.async between them."""

    usual_kind = "proxy"


class UninitializedError(EmulationError):
    """A read of shared memory, local memory or registers that nothing wrote."""

    usual_kind = "uninitialized"


class BarrierError(EmulationError):
    """An mbarrier, or a named barrier, used against its rules."""

    usual_kind = "mbarrier"


class AsyncError(EmulationError):
    """Asynchronous work used, or left behind, before it was waited for."""

    usual_kind = "async"


class OutOfBoundsError(EmulationError):
    """An access outside the memory that it names, or misaligned for its size."""

    usual_kind = "bounds"


class LayoutError(EmulationError):
    """Shared memory read in another swizzle than it was written in."""

    usual_kind = "swizzle"


class IndexOverflowError(EmulationError):
    """An address or an index made from integers that wrapped."""

    usual_kind = "overflow"


class UnknownNameError(EmulationError, AttributeError):
    """A kernel asks for something that the emulator does not know; the message says how to declare it."""

    usual_kind = "unknown"


def guess(given: object, known: Iterable[str]) -> str:
    """The end of a message about a name that is not known: the one that was meant, if there is one like it.

    >>> guess("nvpf4", ["mxfp4", "nvfp4"])
    '; did you mean nvfp4?'
    """
    import difflib

    close = difflib.get_close_matches(str(given).lower().replace("_", "-"), list(known), 1)
    close = close or difflib.get_close_matches(str(given).lower(), list(known), 1)
    return f"; did you mean {close[0]}?" if close else ""
