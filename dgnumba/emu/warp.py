"""Shuffles, votes and matches of a warp, by Numba's names. Lanes that have exited are not waited for.

Only `syncwarp` orders memory: the others bring lanes together, but promise nothing about what these wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .machine import thread
from .threads import Thread

FULL = 0xFFFFFFFF


def _meet(name: str, mask: Any, body: Callable[..., Sequence[Any] | None], *args: Any) -> Any:
    t = thread()
    t.op = f"cuda.{name}"
    return t.cta.warps[t.warp].meet(t, t.op, body, args, int(mask) & FULL, is_aligned=False)


def _lanes() -> list[int]:
    return [t.lane for t in thread().lanes]


def _shuffle(name: str, source: Callable[[int, int], int]) -> Callable[..., Any]:
    def shuffle(mask: Any, value: Any, operand: Any) -> Any:
        def body(values: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
            lanes = _lanes()
            held = dict(zip(lanes, values))
            return [held.get(source(lane, int(o)), own) for lane, own, o in zip(lanes, values, operands)]

        return _meet(name, mask, body, value, operand)

    return shuffle


def _vote(name: str, decide: Callable[[list[Any]], Any]) -> Callable[..., Any]:
    def vote(mask: Any, predicate: Any) -> Any:
        def body(values: Sequence[Any]) -> list[Any]:
            return [decide(list(zip(_lanes(), values)))] * len(values)

        return _meet(name, mask, body, predicate)

    return vote


def _match_any(mask: Any, value: Any) -> Any:
    def body(values: Sequence[Any]) -> list[int]:
        lanes = _lanes()
        return [sum(1 << lane for lane, other in zip(lanes, values) if other == own) for own in values]

    return _meet("match_any_sync", mask, body, value)


def _match_all(mask: Any, value: Any) -> Any:
    def body(values: Sequence[Any]) -> list[tuple[int, bool]]:
        same = all(v == values[0] for v in values)
        return [(sum(1 << lane for lane in _lanes()) if same else 0, same)] * len(values)

    return _meet("match_all_sync", mask, body, value)


def _syncwarp(mask: Any = FULL) -> None:
    _meet("syncwarp", mask, lambda: thread().order_lanes())


def _live(t: Thread) -> int:
    return sum(1 << other.lane for other in t.cta.warps[t.warp].threads if not other.exited)


WARP_OPS: dict[str, Any] = {
    "syncwarp": _syncwarp,
    "shfl_sync": _shuffle("shfl_sync", lambda lane, source: source % 32),
    "shfl_up_sync": _shuffle("shfl_up_sync", lambda lane, delta: lane - delta),
    "shfl_down_sync": _shuffle("shfl_down_sync", lambda lane, delta: lane + delta),
    "shfl_xor_sync": _shuffle("shfl_xor_sync", lambda lane, mask: lane ^ mask),
    "ballot_sync": _vote("ballot_sync", lambda votes: sum(1 << lane for lane, vote in votes if vote)),
    "all_sync": _vote("all_sync", lambda votes: all(vote for _, vote in votes)),
    "any_sync": _vote("any_sync", lambda votes: any(vote for _, vote in votes)),
    "eq_sync": _vote("eq_sync", lambda votes: len({bool(vote) for _, vote in votes}) == 1),
    "match_any_sync": _match_any,
    "match_all_sync": _match_all,
    "activemask": lambda: _live(thread()),
    "lanemask_lt": lambda: (1 << thread().lane) - 1,
}
