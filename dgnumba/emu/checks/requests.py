"""Bank conflicts and sectors: the accesses of single threads put together to what their warp asks for at a time.

The emulator runs the lanes of a warp one after another. What they do at their k-th coming to one place in the source, counted since the warp last met
as a whole, is taken for one request: exact while the lanes go the same way, and a fair guess where they part. A predicated operation counts as a
coming also for the lanes that it leaves out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..machine import thread
from ..observe import Access, Note, Observer
from ..source import Site
from ..threads import WARP_SIZE
from .report import GlobalAccess, SharedAccess

BANKS, WORD, SECTOR = 32, 4, 32
WIDEST = 16  # bytes of one lane's access


class One(NamedTuple):
    """One lane's part of a request."""

    lane: int
    address: int
    nbytes: int


def wavefronts(request: Iterable[One]) -> tuple[int, int]:
    """How many wavefronts the banks need for a request of shared memory, and how many they would without conflicts.

    Accesses of 8 bytes are served by half warps, of 16 by quarters; lanes that ask for one word are served together.
    """
    parts = served_together(request)
    return sum(max(Counter(word % BANKS for word in words).values()) for words in parts), len(parts)


def served_together(request: Iterable[One]) -> list[set[int]]:
    """The words of a request of shared memory, by the lanes that are served at one time."""
    request = list(request)
    widest = max(one.nbytes for one in request)
    at_once = WARP_SIZE * WORD // max(WORD, min(widest, WIDEST))
    parts: dict[int, set[int]] = defaultdict(set)
    for one in request:
        parts[one.lane // at_once].update(range(one.address // WORD, (one.address + one.nbytes - 1) // WORD + 1))
    return list(parts.values())


def sectors(request: Iterable[One]) -> tuple[int, int, int]:
    """Of a request of global memory: its sectors, those that its bytes would fill, and its bytes, each counted once."""
    touched: set[int] = set()
    nbytes, end = 0, 0
    for one in sorted(request, key=lambda one: one.address):
        touched.update(range(one.address // SECTOR, (one.address + one.nbytes - 1) // SECTOR + 1))
        nbytes += max(0, one.address + one.nbytes - max(end, one.address))
        end = max(end, one.address + one.nbytes)
    return len(touched), -(-nbytes // SECTOR), nbytes


@dataclass
class _Row:
    """A place: what its requests add up to."""

    requests: int = 0
    used: int = 0
    ideal: int = 0
    nbytes: int = 0
    worst: float = 0.0
    address: int = 0
    lanes: tuple[int, ...] = ()

    def add(self, request: Sequence[One], used: int, ideal: int, nbytes: int) -> None:
        self.requests += 1
        self.used, self.ideal, self.nbytes = self.used + used, self.ideal + ideal, self.nbytes + nbytes
        if used / ideal > self.worst:
            self.worst = used / ideal
            self.address, self.lanes = min(one.address for one in request), tuple(sorted(one.lane for one in request))


class Requests(Observer):
    """Hears of accesses, and makes requests of them."""

    def __init__(self) -> None:
        self._rows: dict[Any, _Row] = defaultdict(_Row)  # (space, is store, number of the site)
        self._open: dict[Any, list[One]] = {}
        self._comings: dict[int, Counter[Any]] = defaultdict(Counter)  # thread -> place -> how often since its warp met
        self._within: Counter[int] = Counter()  # thread -> accesses of the operation that it is in
        self._noted: dict[int, str] = {}  # thread -> that operation
        self._meetings = 0
        self._eras: Counter[tuple[int, int]] = Counter()  # CTA, warp -> how often it met
        self._first_of: dict[int, int] = {}
        self._firsts: dict[tuple[str, int, int], int] = {}
        self._cluster: Any = None
        self._sites: Any = None

    def note(self, note: Note) -> None:
        """Operations begin, and warps meet."""
        if note.kind != "op":
            return
        t = thread()
        self._begin(t.cta.cluster)
        for lane in t.lanes:
            self._noted[lane.uid] = note.op
            self._within[lane.uid] = 0
        if len(t.lanes) == 1:
            self._comings[t.uid][self._line_of(note.place)] += 1
            return
        self._meetings += 1
        met = Counter((lane.cta.rank, lane.warp) for lane in t.lanes)
        for lane in t.lanes:
            self._comings[lane.uid].clear()
        self._eras.update(list(met))

    def access(self, access: Access) -> None:
        """One access by one thread."""
        running, t = thread(), access.thread
        self._begin(t.cta.cluster)
        site = self._line_of(access.place)
        if len(running.lanes) > 1:
            coming: Any = ("meeting", self._meetings)
        elif self._noted.get(t.uid) == running.op:
            coming = self._comings[t.uid][site]
        else:  # an array is indexed, which nobody announces
            self._comings[t.uid][site] += 1
            coming, self._within[t.uid] = self._comings[t.uid][site], 0
        place = access.space, access.kind != "read", site
        for first in range(0, access.nbytes, WIDEST):
            key = (t.cta.rank, t.warp, self._eras[t.cta.rank, t.warp], place, coming, self._within[t.uid])
            self._within[t.uid] += 1
            request = self._open.setdefault(key, [])
            request.append(One(t.lane, access.address + first, min(WIDEST, access.nbytes - first)))
            if len(request) == WARP_SIZE:
                self.close(place, self._open.pop(key))

    def _begin(self, cluster: Any) -> None:
        if cluster is self._cluster:
            return
        self.finish()
        self._cluster, self._sites = cluster, cluster.machine.sites
        for book in (self._comings, self._within, self._noted, self._eras):
            book.clear()

    def _line_of(self, place: int) -> int:
        """The first place of the same operation and line: one line may be met at two instructions, as Python adapts its code while it runs."""
        found = self._first_of.get(place)
        if found is None:
            site = self._sites[place]
            found = self._first_of[place] = self._firsts.setdefault((site.op, id(site.code), site.line), place)
        return found

    def site(self, number: int) -> Site:
        """The place of this number."""
        found: Site = self._sites[number]
        return found

    def close(self, place: Any, request: list[One]) -> None:
        """A request is complete: `place` is (space, whether it is a store, number of the site)."""
        if place[0] == "shared":
            self._rows[place].add(request, *wavefronts(request), 0)
        else:
            self._rows[place].add(request, *sectors(request))

    def finish(self) -> None:
        """What has been asked for by part of a warp is a request too."""
        for key, request in self._open.items():
            self.close(key[3], request)
        self._open.clear()

    def shared(self) -> tuple[SharedAccess, ...]:
        """The rows of shared memory, the worst first."""
        self.finish()
        rows = [SharedAccess(*place, r.requests, r.used, r.ideal, r.worst, r.address, r.lanes) for place, r in self._by_line("shared")]
        return tuple(sorted(rows, key=lambda row: -row.ways))

    def global_memory(self) -> tuple[GlobalAccess, ...]:
        """The rows of global memory, the worst first."""
        self.finish()
        rows = [
            GlobalAccess(*place, r.requests, r.used, r.ideal, r.nbytes, r.worst, r.address, r.lanes) for place, r in self._by_line("global")
        ]
        return tuple(sorted(rows, key=lambda row: -row.excess))

    def _by_line(self, space: str) -> list[tuple[tuple[str, str, int, str, bool], _Row]]:
        """The rows, those of one operation and line as one."""
        out: dict[Any, _Row] = {}
        for (where, is_store, number), row in self._rows.items():
            if where != space:
                continue
            site = self._sites[number]
            place = (site.op, site.file, site.line, site.source, is_store)
            into = out.setdefault(place, _Row())
            into.requests, into.used = into.requests + row.requests, into.used + row.used
            into.ideal, into.nbytes = into.ideal + row.ideal, into.nbytes + row.nbytes
            if row.worst > into.worst:
                into.worst, into.address, into.lanes = row.worst, row.address, row.lanes
        return list(out.items())
