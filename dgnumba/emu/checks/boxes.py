"""TMA boxes out of range: legal, as what lies outside reads as zero and is not stored, but work for nothing; and a sign of a wrong coordinate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..machine import thread
from ..observe import Move, Observer
from .report import WARNING, BoxUse, Finding


@dataclass
class _Row:
    boxes: int = 0
    nbytes: int = 0
    outside: int = 0
    wholly: int = 0
    coordinates: tuple[int, ...] = ()
    thread: int = 0
    block: tuple[int, int, int] | None = None


class Boxes(Observer):
    """Adds up what each place of the source moves."""

    def __init__(self) -> None:
        self._rows: dict[Any, _Row] = {}

    def move(self, move: Move) -> None:
        """One box."""
        sites = thread().machine.sites
        site = sites[sites.here(move.op)]
        row = self._rows.setdefault((site.op, site.file, site.line, site.source, move.is_store), _Row())
        row.boxes += 1
        row.nbytes += move.nbytes
        row.outside += max(0, move.nbytes - move.in_tensor.size)  # a store reaches to the end of a chunk
        if not move.in_tensor.size:
            row.wholly += 1
            row.coordinates = tuple(int(c) - (int(c) >> 31 << 32) for c in move.coordinates)
            row.thread, row.block = move.thread.index, move.thread.cta.block_idx

    def rows(self) -> tuple[BoxUse, ...]:
        """One for each place."""
        return tuple(
            BoxUse(op, file, line, source, is_store, r.boxes, r.nbytes, r.outside, r.wholly, r.coordinates)
            for (op, file, line, source, is_store), r in self._rows.items()
        )

    def findings(self, policy: str) -> list[Finding]:
        """A warning for each place that moved a box wholly outside."""
        out = []
        for (op, file, line, source, is_store), row in self._rows.items():
            if row.wholly:
                what = "is dropped" if is_store else "reads as zeros"
                message = (
                    f"{row.wholly} of {row.boxes} boxes lie wholly outside their tensor, the last at {row.coordinates}: all of it {what}"
                )
                out.append(Finding("box-outside", WARNING, message, policy, (row.thread,), row.block, op, file, line, source))
        return out
