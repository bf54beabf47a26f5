"""Where in the kernel's source a thread is: cheap to note at every access, put into words only for a message."""

from __future__ import annotations

import functools
import linecache
import os
import sys
from dataclasses import dataclass
from types import CodeType, FrameType


@dataclass(frozen=True, eq=False)
class Site:
    """One place in a kernel: the operation under way and the instruction of the Python code that called it."""

    op: str
    code: CodeType | None
    instruction: int

    @functools.cached_property
    def line(self) -> int:
        """The line in the kernel's file, or 0."""
        if self.code is None:
            return 0
        for start, end, line in self.code.co_lines():
            if start <= self.instruction < end:
                return line or self.code.co_firstlineno
        return self.code.co_firstlineno

    @property
    def file(self) -> str:
        """The path of the kernel's file, or ""."""
        return "" if self.code is None else self.code.co_filename

    @property
    def source(self) -> str:
        """The text of the line."""
        return linecache.getline(self.file, self.line).strip() if self.code else ""

    @property
    def place(self) -> str:
        """``gemm.py:120: tma.load_2d(smem_a, tmap_a, bar, k, m)``."""
        if self.code is None:
            return "no line of the kernel"
        return f"{os.path.basename(self.file)}:{self.line}" + (f": {self.source}" if self.source else "")

    def __str__(self) -> str:
        """``tma.load_2d at gemm.py:120: tma.load_2d(smem_a, tmap_a, bar, k, m)``."""
        return self.op if self.code is None else f"{self.op} at {self.place}"


class Sites:
    """The places seen in one run, numbered, and the code that counts as the kernel's."""

    def __init__(self) -> None:
        self.known: list[Site] = [Site("the start", None, 0)]
        self._codes: dict[int, CodeType] = {}  # by id: a code object's own hash goes over all its constants
        self._numbers: dict[tuple[str, int, int], int] = {}

    def add_code(self, code: CodeType) -> None:
        """Let `code` count as the kernel's."""
        self._codes[id(code)] = code

    @property
    def codes(self) -> list[CodeType]:
        """The kernel's own code: of the kernel, then of the functions that it calls."""
        return list(self._codes.values())

    def is_kernel(self, frame: FrameType) -> bool:
        """Whether `frame` runs the kernel's own code."""
        return id(frame.f_code) in self._codes

    def number(self, op: str, frame: FrameType | None) -> int:
        """The number of the innermost place in the kernel's own code, seen from `frame`."""
        codes = self._codes
        while frame is not None and id(frame.f_code) not in codes:
            frame = frame.f_back
        key = (op, 0, 0) if frame is None else (op, id(frame.f_code), frame.f_lasti)
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.known)
            self.known.append(Site(op, None if frame is None else frame.f_code, key[2]))
        return found

    def are_one_line(self, a: int | None, b: int | None) -> bool:
        """Whether two places are on one line: Python may put the call of a loop's head at two instructions."""
        if a == b or a is None or b is None:
            return a == b
        one, other = self.known[a], self.known[b]
        return one.code is other.code and one.line == other.line

    def here(self, op: str) -> int:
        """The number of the place that the running thread is at."""
        return self.number(op, sys._getframe(1))

    def __getitem__(self, number: int) -> Site:
        return self.known[number]


def ranges(numbers: list[int]) -> str:
    """``[0, 1, 2, 7]`` as ``0-2, 7``."""
    parts: list[list[int]] = []
    for n in sorted(numbers):
        if parts and n == parts[-1][1] + 1:
            parts[-1][1] = n
        else:
            parts.append([n, n])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in parts)


def threads_text(numbers: list[int]) -> str:
    """``thread 128`` or ``threads 0-127, 130``."""
    return f"thread{'s' if len(numbers) > 1 else ''} {ranges(numbers)}"
