"""Where a stepped run stops: the words of `emu.step` for who and where, as predicates."""

from __future__ import annotations

import linecache
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import CodeType, FrameType
from typing import Any

from ..errors import EmulationError
from .threads import WARP_SIZE, Thread
from .views import ThreadView

BARRIERS = ("mbarrier.*", "barrier.*", "cuda.sync*", "thread.syncwarp")
GROUPS = {None: 1, "thread": 1, "warp": WARP_SIZE, "warpgroup": 4 * WARP_SIZE, "block": 1024}
Who = int | str | Callable[[ThreadView], bool] | None
At = int | str | None


@dataclass(frozen=True)
class Stop:
    """A place to stop at: what a thread must be, and the operation or the line at which it stops. Both None: any line."""

    is_one: Callable[[Thread, FrameType], bool]
    at_op: Callable[[str], bool] | None = None
    at_line: Callable[[FrameType], bool] | None = None
    together: int = 1  # threads that stop once, when all of them have come: 32 of a warp, 128 of a warpgroup, or a whole block's

    @classmethod
    def of(cls, who: Who, at: At, block: tuple[int, ...] | int | None, together: str | None, codes: list[CodeType]) -> Stop:
        """What the arguments of `emu.step` of these names (and `cta`) ask for; `codes` is the kernel's own code, the kernel first."""
        is_one = _who(who, _block(block), codes)
        if together not in GROUPS:
            raise EmulationError(f"together: expected None, 'warp', 'warpgroup' or 'block', got {together!r}")
        size = GROUPS[together]
        if at is None:
            return cls(is_one, at_line=lambda frame: True, together=size)
        if isinstance(at, str) and _is_operation(at):
            return cls(is_one, at_op=_op(at), together=size)
        return cls(is_one, at_line=_line(at, codes), together=size)


def _block(block: tuple[int, ...] | int | None) -> tuple[int, ...] | None:
    if block is None:
        return None
    given = (block,) if isinstance(block, int) else tuple(block)
    return (*given, 0, 0, 0)[:3]


def _who(who: Who, block: tuple[int, ...] | None, codes: list[CodeType]) -> Callable[[Thread, FrameType], bool]:
    matches = _thread_test(who, codes)
    return lambda thread, frame: (block is None or thread.cta.block_idx == block) and matches(thread, frame)


def _thread_test(who: Who, codes: list[CodeType]) -> Callable[[Thread, FrameType], bool]:
    if who is None:
        return lambda thread, frame: True
    if isinstance(who, int):
        return lambda thread, frame: thread.index == who
    if callable(who):
        return lambda thread, frame: bool(who(ThreadView(thread)))
    group = re.fullmatch(r"(thread|warp|warpgroup) (\d+)", who)
    if group:
        size = {"thread": 1, "warp": WARP_SIZE, "warpgroup": 4 * WARP_SIZE}[group[1]]
        number = int(group[2])
        return lambda thread, frame: thread.index // size == number
    roles = {id(code) for code in codes if code.co_name == who}
    if not roles:
        names = ", ".join(dict.fromkeys(code.co_name for code in codes if code.co_name.isidentifier()))
        raise EmulationError(
            f"who: expected a thread's number, 'warp 4', 'warpgroup 1', one of the kernel's functions ({names}), a function of a thread, or None, "
            f"got {who!r}"
        )
    return lambda thread, frame: _is_inside(frame, roles)


def _is_inside(frame: FrameType | None, codes: set[int]) -> bool:
    while frame is not None:
        if id(frame.f_code) in codes:
            return True
        frame = frame.f_back
    return False


def _is_operation(at: str) -> bool:
    return at in ("barrier", "op") or re.fullmatch(r"[\w*?\[\]]+\.[\w*?.\[\]]+", at) is not None and not re.search(r"\.py$", at)


def _op(at: str) -> Callable[[str], bool]:
    patterns = BARRIERS if at == "barrier" else ("*",) if at == "op" else (at,)
    return lambda name: any(fnmatchcase(name, pattern) for pattern in patterns)


def _line(at: int | str, codes: list[CodeType]) -> Callable[[FrameType], bool]:
    """A line by its number, by file and number, or by a part of its text."""
    files = list(dict.fromkeys(code.co_filename for code in codes))
    number, file = (at, files[0]) if isinstance(at, int) else (None, None)
    named = isinstance(at, str) and re.fullmatch(r"(.*\.py):(\d+)", at)
    if named:
        number = int(named[2])
        file = next((f for f in files if os.path.basename(f) == os.path.basename(named[1])), None)
        if file is None:
            raise EmulationError(f"at: the kernel has code in {', '.join(map(os.path.basename, files))}, none in {named[1]}")
    if number is not None:
        lines = {(file, number)}
    else:
        lines = {(code.co_filename, n) for code in codes for n in _lines(code) if str(at) in linecache.getline(code.co_filename, n)}
    reached = {(code.co_filename, n) for code in codes for n in _lines(code)}
    if not lines & reached:
        raise EmulationError(
            f"at: expected an operation as 'mbarrier.wait' or 'tma.*', or a line of the kernel that holds code, got {at!r}"
        )
    return lambda frame: (frame.f_code.co_filename, frame.f_lineno) in lines


def _lines(code: Any) -> set[int]:
    return {line for _, _, line in code.co_lines() if line and line != code.co_firstlineno}
