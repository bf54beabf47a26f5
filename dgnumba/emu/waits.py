"""Who waits for whom, when nothing can run any more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .cluster import Cluster
    from .threads import Thread


@dataclass(frozen=True)
class Stuck:
    """Threads of one block that stand at one place, or have exited.

    threads    their numbers in the block
    place      where in the kernel's source; "" if they have exited
    waits_for  what for, in words; "" if they have exited
    """

    threads: tuple[int, ...]
    block: tuple[int, int, int]
    place: str
    waits_for: str
    text: str

    @property
    def has_exited(self) -> bool:
        """Whether they are gone."""
        return not self.waits_for

    def __str__(self) -> str:
        return f"{self.text} exited" if self.has_exited else f"{self.text} in {self.waits_for} at {self.place}"


@dataclass(frozen=True)
class WaitGraph:
    """The groups of threads in a deadlock, and which of them could let which go.

    nodes  the groups
    edges  (i, j, why): nodes[i] waits for something that threads of nodes[j] would have to do, as they have done before or as only they can
    """

    nodes: tuple[Stuck, ...]
    edges: tuple[tuple[int, int, str], ...]

    @property
    def cycle(self) -> tuple[Stuck, ...]:
        """Groups that wait for one another in a circle; () if there is none, as when somebody waits for what nobody will do."""
        after: dict[int, list[int]] = {}
        for i, j, _ in self.edges:
            after.setdefault(i, []).append(j)
        for start in after:
            path = _way(after, start, start)
            if path:
                return tuple(self.nodes[i] for i in path)
        return ()

    def __str__(self) -> str:
        lines = []
        for i, node in enumerate(self.nodes):
            lines.append(f"[{i}] {node}")
            lines += [f"      waits for [{j}]: {why}" for k, j, why in self.edges if k == i]
            if not node.has_exited and not any(k == i for k, _, _ in self.edges):
                lines.append("      waits for what none of these threads has ever done")
        numbers = [self.nodes.index(node) for node in self.cycle]
        if numbers:
            lines.append("cycle: " + " -> ".join(f"[{n}]" for n in (*numbers, numbers[0])))
        return "\n".join(lines)


def _way(after: dict[int, list[int]], start: int, goal: int) -> list[int]:
    """The shortest way from `start` back to `goal`, [] if there is none."""
    paths, seen = [[start]], set()
    for path in paths:
        for j in after.get(path[-1], ()):
            if j == goal:
                return path
            if j not in seen:
                seen.add(j)
                paths.append([*path, j])
    return []


def wait_graph(cluster: Cluster) -> WaitGraph:
    """Of a cluster in which nothing can run."""
    groups: dict[tuple[str, str, int], list[Thread]] = {}
    for t in cluster.threads:
        key = ("", "", t.cta.rank) if t.exited else (t.blocked_text(), t.place(), t.cta.rank)
        groups.setdefault(key, []).append(t)
    nodes = [
        Stuck(tuple(t.index for t in threads), threads[0].cta.block_idx, place, why, cluster.thread_text([t.uid for t in threads]))
        for (why, place, _), threads in groups.items()
    ]
    number_of = {t.uid: i for i, threads in enumerate(groups.values()) for t in threads}
    edges = []
    for i, threads in enumerate(groups.values()):
        owed = _owed(threads)
        by_group: dict[int, list[int]] = {}
        for uid in sorted(owed - {t.uid for t in threads}):
            by_group.setdefault(number_of[uid], []).append(uid)
        edges += [(i, j, f"{cluster.thread_text(uids)} would have to come") for j, uids in by_group.items()]
    return WaitGraph(tuple(nodes), tuple(edges))


def _owed(threads: Sequence[Thread]) -> set[int]:
    """Who could let these threads go."""
    first = threads[0]
    if first.exited:
        return set()
    wait = first.waiting or (first.meeting.runner.waiting if first.meeting is not None and first.meeting.runner is not None else None)
    if wait is not None:
        return set(wait.owed())
    return {t.uid for t in first.meeting.missing()} if first.meeting is not None else set()


def nobody() -> Iterable[int]:
    """Of a wait of which nothing is known."""
    return ()
