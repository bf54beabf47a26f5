"""What the commands print with: plain text on stdout, progress on stderr, which shows only on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Step = Callable[[int, int], None]
"""Called with what is done and what there is to do."""


def console() -> Console:
    """Plain text on the present stdout, wrapped by whoever reads it."""
    return Console(highlight=False, markup=False, soft_wrap=True)


@contextmanager
def progress(what: str) -> Iterator[Step]:
    """A bar named `what`, which the function given moves; gone when done."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("left:"), TimeRemainingColumn())
    terminal = Console(stderr=True)
    with Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal) as bars:
        task = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


def size(nbytes: float) -> str:
    """Bytes, for reading.

    >>> size(2112987)
    '2.1 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000 or unit == "GB":
            break
        nbytes /= 1000
    return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"


def duration(seconds: float) -> str:
    """A time, for reading.

    >>> duration(0.0001234)
    '123 us'
    """
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def speed(flops: float, seconds: float) -> str:
    """Operations in a second, for reading.

    >>> speed(2e9, 1e-3)
    '2.0 TFLOP/s'
    >>> speed(3e8, 20)
    '15.0 MFLOP/s'
    """
    rate = flops / max(seconds, 1e-12)
    unit, letter = next((u for u in ((1e12, "T"), (1e9, "G")) if rate >= u[0]), (1e6, "M"))
    return f"{rate / unit:.1f} {letter}FLOP/s"
