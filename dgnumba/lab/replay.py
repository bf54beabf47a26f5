"""Notes of an emulated run played again with a clock."""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..emu import Note
from .costs import Costs, kind_of, stage_of
from .timeline import Span

Dim3 = tuple[int, int, int]
Key = tuple[Dim3 | None, str, int]
Who = tuple[Dim3, int]

WARP = 32


@dataclass
class _Thread:
    """A thread of the run: its notes, how far it is, and its time."""

    who: Who
    notes: list[Note] = field(default_factory=list)
    at: int = 0
    time: float = 0.0
    leads: bool = False  # whether its warp's row shows it, and its operations take the warp's issue slots
    open: _Open | None = None
    stage: int = -1  # of the barrier that it passed last
    drained: int = -1  # of the products that it waited for last
    read: int = 0  # groups that the wait under way has gone through


@dataclass
class _Open:
    op: str
    start: float
    line: int
    detail: str = ""
    stage: int = -1
    amount: int = 0


@dataclass
class _Point:
    """Something that others wait for: contributions that are still to come, and the time of the last."""

    missing: int = 0
    time: float = 0.0
    waiting: list[_Thread] = field(default_factory=list)


@dataclass
class _Group:
    end: float = 0.0
    read_end: float = 0.0
    stage: int = -1


class Replay:
    """One play of `notes` with `costs`."""

    def __init__(self, notes: list[Note], costs: Costs) -> None:
        self._costs = costs
        self._threads: dict[Who, _Thread] = {}
        self._points: dict[Key, _Point] = defaultdict(_Point)
        self._meetings: dict[int, _Point] = {}
        self._free: dict[tuple[Dim3, str], float] = defaultdict(float)
        self._queues: dict[tuple[Who, str], deque[_Group]] = defaultdict(deque)
        self._groups: dict[tuple[Who, str], _Group] = {}
        self._spans: list[Span] = []
        self._ready: list[tuple[float, int, _Thread]] = []
        self._order = 0
        for note in notes:
            self._enter(note)
        leaders: dict[tuple[Dim3, int], _Thread] = {}
        for t in self._threads.values():
            warp = t.who[0], t.who[1] // WARP
            if warp not in leaders or len(t.notes) > len(leaders[warp].notes):
                leaders[warp] = t
        for t in leaders.values():
            t.leads = True

    def _enter(self, note: Note) -> None:
        if note.kind in ("block", "wake", "land") or note.block is None or not note.threads:
            return
        for index in note.threads:
            who = (note.block, index)
            self._threads.setdefault(who, _Thread(who)).notes.append(note)
        if len(note.threads) > 1:
            self._meetings[note.step] = _Point(len(note.threads))
        if note.kind == "arrive" or note.kind == "issue" and note.phase >= 0:
            self._points[note.home, note.detail, note.phase].missing += 1

    def run(self) -> list[Span]:
        """Play everything; the spans of all rows."""
        for thread in self._threads.values():
            self._push(thread)
        while self._ready:
            self._go_on(heapq.heappop(self._ready)[2])
        for thread in self._threads.values():
            self._close(thread)
        return self._spans

    def _push(self, thread: _Thread) -> None:
        self._order += 1
        heapq.heappush(self._ready, (thread.time, self._order, thread))

    def _go_on(self, thread: _Thread) -> None:
        """One note of `thread`; then its turn comes again when its time has come."""
        if thread.at == len(thread.notes):
            return
        note = thread.notes[thread.at]
        if note.step in self._meetings:
            point = self._meetings[note.step]
            if not self._arrive(point, thread.time):
                point.waiting.append(thread)
                return
            members = [*point.waiting, thread]
        elif note.kind == "pass" and self._points[note.home, note.detail, note.phase].missing > 0:
            self._points[note.home, note.detail, note.phase].waiting.append(thread)
            return
        else:
            members = [thread]
        for member in members:
            member.time = max(member.time, *(m.time for m in members)) if len(members) > 1 else member.time
            member.at += 1
        self._play(note, members)
        for member in members:
            self._push(member)

    def _arrive(self, point: _Point, time: float) -> bool:
        """A contribution comes; whether it was the last."""
        point.missing -= 1
        point.time = max(point.time, time)
        return point.missing <= 0

    def _contribute(self, note: Note, time: float) -> None:
        point = self._points[note.home, note.detail, note.phase]
        if self._arrive(point, time):
            for waiting in point.waiting:
                waiting.time = max(waiting.time, point.time)
                self._push(waiting)
            point.waiting = []

    # What a note means

    def _play(self, note: Note, members: list[_Thread]) -> None:
        handler = {
            "op": self._op,
            "arrive": self._arrival,
            "pass": self._passed,
            "issue": self._issue,
            "commit": self._commit,
            "done": self._done,
        }
        handler[note.kind](note, members)

    def _op(self, note: Note, members: list[_Thread]) -> None:
        took = self._costs.op + self._costs.register * note.amount
        for t in members:
            self._close(t)
            t.read = 0
            t.open = _Open(note.op, t.time, note.line, stage=t.stage if kind_of(note.op) in ("load", "mma") else -1)
            if t.leads:  # the four schedulers of a multiprocessor issue for a quarter of the warps each
                slot = (t.who[0], f"scheduler {t.who[1] // WARP % 4}")
                begin = max(t.time, self._free[slot])
                self._free[slot] = begin + took
                t.time = begin + took
            else:
                t.time += took

    def _arrival(self, note: Note, members: list[_Thread]) -> None:
        self._about(note, members)
        self._contribute(note, members[0].time)

    def _passed(self, note: Note, members: list[_Thread]) -> None:
        point = self._points[note.home, note.detail, note.phase]
        for t in members:
            self._about(note, [t])
            t.time = max(t.time, point.time + self._costs.barrier if point.time else t.time)
            if stage_of(note.detail) >= 0:
                t.stage = stage_of(note.detail)

    def _issue(self, note: Note, members: list[_Thread]) -> None:
        first, costs = members[0], self._costs
        block, now = first.who[0], first.time
        if note.phase >= 0:
            end = self._occupy(note, (block, "TMA"), now + costs.load_latency, note.amount / costs.load_bytes, stage_of(note.detail))
            self._about(note, members)
            self._contribute(note, end)
            return
        group = self._groups.setdefault((first.who, note.detail), _Group())
        group.stage = first.stage
        if note.detail == "wgmma":
            group.end = self._occupy(note, (block, "tensor core"), now, note.amount / costs.macs, first.stage)
        else:
            is_load = note.detail == "cp.async"
            latency, rate = (costs.load_latency, costs.load_bytes) if is_load else (costs.store_latency, costs.store_bytes)
            unit = (block, "cp.async" if is_load else "TMA")
            group.end = group.read_end = self._occupy(note, unit, now + latency, note.amount / rate, first.stage)

    def _occupy(self, note: Note, unit: tuple[Dim3, str], earliest: float, took: float, stage: int) -> float:
        """The unit works on it when it is free, from `earliest` on; returns when it is done."""
        begin = max(earliest, self._free[unit])
        end = self._free[unit] = begin + took
        label = note.detail.split(" @")[0] if note.phase >= 0 else ""
        row = f"{_block_text(unit[0])} {unit[1]}"
        kind = kind_of(note.op)
        self._spans.append(Span(row, begin, end, kind, f"{note.op} {label}".strip(), stage, note.line, note.amount))
        return end

    def _commit(self, note: Note, members: list[_Thread]) -> None:
        queue = members[0].who, note.op
        self._queues[queue].append(self._groups.pop(queue, _Group()))

    def _done(self, note: Note, members: list[_Thread]) -> None:
        first = members[0]
        groups = self._queues[first.who, note.op]
        if note.detail == "read":
            end = groups[first.read].read_end
            first.read += 1
        else:
            group = groups.popleft()
            end = group.end + (self._costs.drain if note.op == "wgmma" else 0)
            for t in members:
                t.drained = group.stage
                if t.open is not None:
                    t.open.stage = group.stage
        for t in members:
            t.time = max(t.time, end)

    # Spans of warps

    def _about(self, note: Note, members: Iterable[_Thread]) -> None:
        """The operation under way is about this barrier."""
        for t in members:
            if t.open is not None and not t.open.detail:
                t.open.detail, t.open.stage = note.detail.split(" @")[0], stage_of(note.detail)

    def _close(self, thread: _Thread) -> None:
        span, thread.open = thread.open, None
        if span is None or not thread.leads:
            return
        row = f"{_block_text(thread.who[0])} warp {thread.who[1] // WARP}"
        name = span.op if span.detail in ("", "syncthreads", "barrier.cluster") else f"{span.op} {span.detail}"
        kind = kind_of(span.op)
        stage = span.stage if kind != "promote" else thread.drained
        self._spans.append(Span(row, span.start, thread.time, kind, name, stage, span.line))


def _block_text(block: Dim3) -> str:
    return "block " + ".".join(map(str, block if any(block[1:]) else block[:1]))
