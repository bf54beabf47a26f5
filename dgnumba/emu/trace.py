"""A run kept as a list: every operation, wait and asynchronous completion as a record."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from .observe import Note


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
