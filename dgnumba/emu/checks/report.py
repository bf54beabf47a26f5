"""What the checks of a kernel found, as data and as a table.

Kinds of errors: "race" (between threads), "missing-wait" (with asynchronous work), "proxy" (no fence.proxy.async), "global-race",
"uninitialized", "mbarrier", "named-barrier", "async" (work left behind, or never committed), "in-flight" (registers of a wgmma), "bounds",
"misaligned", "deadlock", "divergence", "overflow" (an index wrapped), "swizzle" (writer and descriptor differ), "peer" (of the cluster, gone),
"policy" (the result depends on when asynchronous work completes), "unknown" (something the emulator does not know), "misuse", "exception"
(Python's own, in the kernel). Kind of warnings: "box-outside" (a TMA box of which nothing lies in its tensor).
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from typing import Any

from ...errors import EmulationError
from ..source import ranges
from ..threads import IN_KERNEL

ERROR, WARNING = "error", "warning"


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or looks so.

    kind      in a word: see the module
    severity  "error" or "warning"
    policy    under which completion policy it was found
    threads, block      numbers of the threads in their block, and its index; () and None if no thread is to blame
    op, file, line, source   where in the kernel
    address   in shared or global memory, or None
    error     the exception, if it is one
    """

    kind: str
    severity: str
    message: str
    policy: str = ""
    threads: tuple[int, ...] = ()
    block: tuple[int, int, int] | None = None
    op: str = ""
    file: str = ""
    line: int = 0
    source: str = ""
    address: int | None = None
    error: BaseException | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of_error(cls, error: EmulationError, policy: str) -> Finding:
        """The finding that an error of the emulator is."""
        at = (error.threads, error.block, error.op, error.file, error.line, error.source, error.address)
        return cls(error.kind, ERROR, error.problem, policy, *at, error)

    @property
    def place(self) -> str:
        """``gemm.py:120``, or ""."""
        return f"{os.path.basename(self.file)}:{self.line}" if self.line else ""

    def __str__(self) -> str:
        text = f"{self.severity} {self.kind}: {self.message}"
        if self.threads:
            text += f"\n  at thread{'s' if len(self.threads) > 1 else ''} {ranges(list(self.threads))} of block {self.block}"
        if self.op or self.line:
            text += f"\n  in {self.op}{f' at {self.place}: {self.source}' if self.line else ''}"
        return text + (f"\n  under the {self.policy} policy" if self.policy else "")


@dataclass(frozen=True)
class Place:
    """A place of the kernel's source, and what is done there."""

    op: str
    file: str
    line: int
    source: str
    is_store: bool

    @property
    def text(self) -> str:
        """``gemm.py:120 memory.store_shared_u32``."""
        op = self.op if self.op != IN_KERNEL else "a[i] = " if self.is_store else "a[i]"
        return f"{os.path.basename(self.file)}:{self.line} {op}"


@dataclass(frozen=True)
class SharedAccess(Place):
    """Bank conflicts of the accesses of shared memory at one place.

    A request is what the lanes of a warp access together. The hardware serves it in wavefronts, each of one word of four bytes from every bank.

    requests    accesses by a warp
    wavefronts  of all of them
    ideal       wavefronts if no two words of one bank were asked for at a time
    worst       the ways of the worst request
    address, lanes   its lowest address, and its lanes
    """

    requests: int
    wavefronts: int
    ideal: int
    worst: float
    address: int
    lanes: tuple[int, ...]

    @property
    def ways(self) -> float:
        """How many ways the banks conflict, on average: 1 is none."""
        return self.wavefronts / self.ideal


@dataclass(frozen=True)
class GlobalAccess(Place):
    """Sectors of 32 bytes that the accesses of global memory at one place touch.

    requests  accesses by a warp
    sectors   that all of them touch
    ideal     sectors that hold as many bytes
    nbytes    bytes asked for, each counted once in a request
    worst     sectors of the worst request over its ideal
    address, lanes   its lowest address, and its lanes
    """

    requests: int
    sectors: int
    ideal: int
    nbytes: int
    worst: float
    address: int
    lanes: tuple[int, ...]

    @property
    def per_request(self) -> float:
        """Sectors of a request, on average."""
        return self.sectors / self.requests

    @property
    def excess(self) -> float:
        """Sectors over those that the bytes need: 1 is coalesced."""
        return self.sectors / self.ideal


@dataclass(frozen=True)
class BoxUse(Place):
    """How much of the boxes that asynchronous copies move at one place lies outside their tensors.

    boxes           moved
    nbytes          of all of them
    outside         bytes beyond the tensors: zeros on a load, dropped on a store
    wholly_outside  boxes of which nothing lies inside
    coordinates     of the last of those, as signed integers; () if there is none
    """

    boxes: int
    nbytes: int
    outside: int
    wholly_outside: int
    coordinates: tuple[int, ...]


@dataclass(frozen=True)
class Report:
    """What `emu.check` found.

    findings       errors and warnings; the kernel stops at its first error under each policy
    shared         bank conflicts, a row for each place, the worst first
    global_memory  sectors, a row for each place, the worst first
    boxes          boxes of TMA, a row for each place
    """

    kernel: str
    policies: tuple[str, ...]
    findings: tuple[Finding, ...]
    shared: tuple[SharedAccess, ...]
    global_memory: tuple[GlobalAccess, ...]
    boxes: tuple[BoxUse, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Findings that make the kernel wrong."""
        return tuple(f for f in self.findings if f.severity == ERROR)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """Findings that are legal, and most likely not meant."""
        return tuple(f for f in self.findings if f.severity == WARNING)

    @property
    def is_clean(self) -> bool:
        """Whether there is no error."""
        return not self.errors

    def raise_if_wrong(self) -> None:
        """Raise the first error, if there is one."""
        for finding in self.errors:
            raise finding.error or EmulationError(finding.message, kind=finding.kind)

    def expect(self, bank_ways: float | None = None, sectors: float | None = None) -> Report:
        """Give this report if it has no error, else raise an AssertionError with its text.

        bank_ways  refuse a place of which a request has bank conflicts of more ways
        sectors    refuse a place whose accesses of global memory touch more than so many times the sectors that their bytes need
        """
        too_many = [f"{a.text}: bank conflicts of {a.worst:g} ways" for a in self.shared if bank_ways is not None and a.worst > bank_ways]
        too_many += [
            f"{a.text}: {a.excess:.2g} times the sectors needed" for a in self.global_memory if sectors is not None and a.excess > sectors
        ]
        if self.errors or too_many:
            raise AssertionError("\n".join([str(self), *too_many]))
        return self

    def as_dict(self) -> dict[str, Any]:
        """The same as plain data, of which JSON can be made."""
        findings = [{k: v for k, v in vars(f).items() if k != "error"} for f in self.findings]
        tables = {name: [dataclasses.asdict(row) for row in getattr(self, name)] for name in ("shared", "global_memory", "boxes")}
        return {"kernel": self.kernel, "policies": list(self.policies), "is_clean": self.is_clean, "findings": findings, **tables}

    def __str__(self) -> str:
        under = " and ".join(self.policies)
        head = f"{self.kernel}: {'clean' if self.is_clean else f'{len(self.errors)} error(s)'}, checked under {under}"
        parts = [head, *map(str, self.findings)]
        if self.shared:
            rows = [[a.text, str(a.requests), f"{a.ways:.2f}", f"{a.worst:g}", a.source] for a in self.shared]
            parts.append(_table(["shared memory", "requests", "ways", "worst", "source"], rows))
        if self.global_memory:
            columns = ["global memory", "requests", "sectors each", "needed", "source"]
            rows = [[a.text, str(a.requests), f"{a.per_request:.1f}", f"{a.ideal / a.requests:.1f}", a.source] for a in self.global_memory]
            parts.append(_table(columns, rows))
        if self.boxes:
            rows = [[b.text, str(b.boxes), f"{100 * b.outside / b.nbytes:.0f} %", str(b.wholly_outside), b.source] for b in self.boxes]
            parts.append(_table(["TMA boxes", "boxes", "outside", "wholly", "source"], rows))
        return "\n".join(parts)


def _table(head: list[str], rows: list[list[str]]) -> str:
    """Columns, all but the first and the last flush right; the last is cut to 60 characters."""
    cells = [head, *([*row[:-1], row[-1][:60]] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = []
    for row in cells:
        middle = [cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:-1])]
        lines.append("  ".join([row[0].ljust(widths[0]), *middle, row[-1]]).rstrip())
    return "\n".join(lines)
