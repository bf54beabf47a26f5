"""What the emulator is not let step without being asked twice."""

from ..errors import ProblemError

MULTIPLY, TRACE = 2**28, 2**26
"""Multiply-adds: some ten seconds, of a product and of one whose every operation is told of."""


def expect_small(names: str, m: int, n: int, k: int, most: int, instead: str) -> None:
    """Refuse what would take the emulator long. Raises `ProblemError`."""
    if m * n * k > most:
        raise ProblemError(f"{names}: {m} x {n} x {k} would take the emulator minutes; {instead}, or add --large")
