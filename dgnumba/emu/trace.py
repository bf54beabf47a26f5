"""Looking on: every operation, wait and asynchronous completion of a run as a record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .source import threads_text

if TYPE_CHECKING:
    from .threads import Thread


@dataclass(frozen=True)
class Note:
    """Something that happened: `kind` is "op", "block", "wake", "issue" (asynchronous), "land" or "done"."""

    step: int
    kind: str
    op: str
    block: tuple[int, int, int] | None
    threads: tuple[int, ...]
    line: int
    detail: str

    @classmethod
    def of(cls, step: int, kind: str, op: str, threads: Sequence[Thread], detail: str) -> Note:
        """The record of what `threads` (none: an asynchronous unit) do now."""
        if not threads:
            return cls(step, kind, op, None, (), 0, detail)
        machine = threads[0].machine
        site = machine.sites[machine.sites.here(op)]
        return cls(step, kind, op, threads[0].cta.block_idx, tuple(t.index for t in threads), site.line, detail)

    def __str__(self) -> str:
        who = f"{threads_text(list(self.threads))} of block {self.block}" if self.threads else "asynchronous"
        return f"{self.step:6d} {self.kind:5s} {self.op} [{who}]{' line ' + str(self.line) if self.line else ''} {self.detail}".rstrip()


@dataclass
class Trace:
    """All notes of a run: ``trace = Trace(); emu.run(..., observe=trace)``."""

    notes: list[Note] = field(default_factory=list)

    def __call__(self, note: Note) -> None:
        """Take one note."""
        self.notes.append(note)

    def count(self, kind: str = "op") -> Counter[str]:
        """How often each operation occurs among the notes of this kind."""
        return Counter(n.op for n in self.notes if n.kind == kind)

    def of(self, thread: int, block: tuple[int, int, int] = (0, 0, 0)) -> list[Note]:
        """What one thread took part in."""
        return [n for n in self.notes if n.block == block and thread in n.threads]

    def __str__(self) -> str:
        return "\n".join(map(str, self.notes))
