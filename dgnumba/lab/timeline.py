"""A kernel's timeline: who did what when, as data, as a picture, and in the form that Chrome's and Perfetto's trace viewers read.

It comes from the emulator with estimated times (`lab.simulate`), or from a GPU's clock (`lab.clocks`); both have the same rows and kinds, so that
they can be laid side by side.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..errors import ProblemError
from .figures import axes_of, color_of, new_figure

KINDS = ("load", "mma", "wait", "promote", "store", "barrier", "other")
"""What a span is: a copy by TMA or cp.async, a product of the tensor core, a wait, promotion to float32, the way of D to memory, barriers' other
operations, and the rest."""

ASYNC_ROWS = ("TMA", "cp.async", "tensor core")


@dataclass(frozen=True)
class Span:
    """Something that took from `start` to `end`.

    row     of the timeline: "block 0 warp 4", "block 0 TMA"
    kind    one of `KINDS`
    name    the operation: "mbarrier.wait full[2]"
    stage   of the ring, if it is known; -1
    line    of the kernel's file; 0
    amount  bytes or multiply-adds; 0
    """

    row: str
    start: float
    end: float
    kind: str
    name: str
    stage: int = -1
    line: int = 0
    amount: int = 0

    @property
    def length(self) -> float:
        """How long it took."""
        return self.end - self.start


@dataclass(frozen=True)
class Timeline:
    """Spans by row, in order of their starts. `unit` is "cycles" of a multiprocessor or "ns"; `source` says where the times come from."""

    spans: tuple[Span, ...]
    unit: str = "cycles"
    source: str = ""
    rows: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "spans", tuple(sorted(self.spans, key=lambda s: (s.start, s.end))))
        if not self.rows:
            object.__setattr__(self, "rows", tuple(sorted({s.row for s in self.spans}, key=_row_order)))

    @property
    def length(self) -> float:
        """From the first start to the last end."""
        return max((s.end for s in self.spans), default=0.0) - min((s.start for s in self.spans), default=0.0)

    def of(self, row: str | None = None, kind: str | None = None) -> list[Span]:
        """The spans of a row, of a kind, or both."""
        return [s for s in self.spans if row in (None, s.row) and kind in (None, s.kind)]

    def busy(self, row: str, kind: str | None = None) -> float:
        """How long a row had a span (of a kind): overlaps counted once."""
        total, until = 0.0, float("-inf")
        for s in self.of(row, kind):
            if s.end > until:
                total += s.end - max(s.start, until)
                until = s.end
        return total

    def only(self, rows: Iterable[str]) -> Timeline:
        """The same with these rows alone."""
        kept = tuple(rows)
        unknown = [r for r in kept if r not in self.rows]
        if unknown:
            raise ProblemError(f"rows: expected some of {', '.join(self.rows)}, got {', '.join(unknown)}")
        return replace(self, spans=tuple(s for s in self.spans if s.row in kept), rows=kept)

    def __str__(self) -> str:
        width = max([len(r) for r in self.rows] + [3])
        head = f"{'row':{width}s} {'busy':>8s}" + "".join(f" {k:>8s}" for k in KINDS)
        lines = [f"{self.length:.0f} {self.unit}, {self.source}", head]
        for row in self.rows:
            shares = "".join(f" {_percent(self.busy(row, k), self.length)}" for k in KINDS)
            lines.append(f"{row:{width}s} {_percent(self.busy(row), self.length)}{shares}")
        return "\n".join(lines)

    def chrome(self) -> dict[str, Any]:
        """The JSON object of Chrome's trace format: blocks are processes, rows threads; times in microseconds, a cycle shown as one nanosecond."""
        events: list[dict[str, Any]] = []
        processes: dict[str, int] = {}
        for number, row in enumerate(self.rows):
            block, thread = _split(row)
            pid = processes.setdefault(block, len(processes))
            events.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": block}})
            events.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": number, "args": {"name": thread}})
            events.append({"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": number, "args": {"sort_index": number}})
            for s in self.of(row):
                args = {"line": s.line, "stage": s.stage, "amount": s.amount}
                event = {"ph": "X", "name": s.name, "cat": s.kind, "pid": pid, "tid": number, "ts": s.start / 1000, "dur": s.length / 1000}
                events.append({**event, "args": {k: v for k, v in args.items() if v not in (0, -1)}})
        return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"unit": self.unit, "source": self.source}}

    def save(self, path: str | Path) -> Path:
        """Write the trace (.json, or .json.gz) or the picture (any other ending that matplotlib knows)."""
        path = Path(path)
        if path.suffix == ".json":
            path.write_text(json.dumps(self.chrome()))
        elif path.suffixes[-2:] == [".json", ".gz"]:
            path.write_bytes(gzip.compress(json.dumps(self.chrome()).encode()))
        else:
            self.draw().savefig(path, dpi=150)
        return path

    def draw(self, ax: Any = None) -> Any:
        """One row a warp and asynchronous unit, time to the right; stages in colour, waits pale, promotion hatched. Returns matplotlib's Figure."""
        figure, ax = axes_of(ax, (14, 0.28 * len(self.rows) + 1.6))
        place = {row: i for i, row in enumerate(self.rows)}
        stages = sorted({s.stage for s in self.spans if s.stage >= 0 and s.kind in STAGED})
        alike: dict[tuple[str, str, int], list[tuple[float, float]]] = {}
        for s in self.spans:
            alike.setdefault((s.row, s.kind, s.stage if s.kind in STAGED else -1), []).append((s.start, s.length))
        for (row, kind, stage), extents in alike.items():
            color = color_of(stages.index(stage)) if stage >= 0 else NEUTRAL[kind]
            alpha, hatch = (0.25 if kind == "wait" else 1.0), ("////" if kind == "promote" else None)
            ax.broken_barh(extents, (place[row] - 0.4, 0.8), facecolor=color, alpha=alpha, hatch=hatch, edgecolor="white", linewidth=0)
        for s in self.spans:
            if s.length > self.length / 30 and s.kind != "wait":
                ax.text(s.start + s.length / 2, place[s.row], s.kind, ha="center", va="center", fontsize=6, color="white", clip_on=True)
        ax.set_yticks(range(len(self.rows)), self.rows, fontsize=7)
        ax.invert_yaxis()
        ax.set(xlabel=f"{self.unit} ({self.source})", xlim=(min((s.start for s in self.spans), default=0), None))
        handles = [_patch(color_of(i), f"stage {stage}") for i, stage in enumerate(stages)]
        handles += [_patch(NEUTRAL[k], k) for k in KINDS if any(s.kind == k and (s.stage < 0 or k not in STAGED) for s in self.spans)]
        if handles:
            for old in figure.legends:
                old.remove()
            figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 10), fontsize=7, frameon=False)
        return figure


def beside(*timelines: Timeline) -> Any:
    """Timelines one above another with the rows that all of them have, as of the emulator and of a GPU; each has its own axis of time. A Figure."""
    common = [row for row in timelines[0].rows if all(row in t.rows for t in timelines)]
    if not common:
        raise ProblemError("beside: expected timelines with rows in common, got none: " + "; ".join(", ".join(t.rows) for t in timelines))
    figure = new_figure((14, len(timelines) * (0.28 * len(common) + 1.6)))
    for ax, timeline in zip(figure.subplots(len(timelines), 1, squeeze=False).ravel(), timelines):
        timeline.only(common).draw(ax)
    return figure


STAGED = ("load", "mma", "wait", "promote")
NEUTRAL = {
    "load": "#4878a8", "mma": "#2e8b57", "wait": "#b0b0b0", "promote": "#c58b1d", "store": "#8a4fa3", "barrier": "#a33b3b", "other": "#888888",
}  # fmt: skip


def _patch(color: Any, label: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(color=color, label=label)


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:7.1f}%" if whole else f"{0:7.1f}%"


def _split(row: str) -> tuple[str, str]:
    """``block 0 warp 4`` as (``block 0``, ``warp 4``)."""
    words = row.split(" ")
    return (" ".join(words[:2]), " ".join(words[2:])) if row.startswith("block ") else ("", row)


def _row_order(row: str) -> tuple[Any, ...]:
    block, name = _split(row)
    numbers = [int(w) for w in name.split() if w.isdigit()]
    unit = ASYNC_ROWS.index(name) if name in ASYNC_ROWS else len(ASYNC_ROWS)
    return tuple(int(x) for x in block[6:].split(".")) if block else (), unit, name.rstrip("0123456789"), numbers
