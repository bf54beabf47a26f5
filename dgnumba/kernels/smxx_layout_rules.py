"""What plans `smxx_layout` has, and their launch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from ..integers import u32, u64
from .smxx_cast_rules import BuiltCast

TILE, THREADS, PIECE = 64, 256, 4
PACK_WORDS = TILE // PIECE
UNPACK_ROWS = PIECE * THREADS
ARGTYPES = (u64, u64, u64, u64, u64, u64, u32, u32)
"""(in, its row pitch, its column pitch, out, its row pitch, its column pitch or the flag's address, rows, columns of the float32 side)."""


@dataclass(frozen=True)
class LayoutPlan:
    """Every choice that is frozen into a move.

    move           "turn", "pack" or "unpack"
    is_vector      the input is read by 16 bytes (turn, pack: along its rows; unpack: along M)
    is_vector_out  the output is written by 16 bytes, along M
    """

    move: str
    is_vector: bool = True
    is_vector_out: bool = True


def grid(plan: LayoutPlan, rows: int, columns: int) -> tuple[int, int]:
    """CTAs: tiles along the columns and along the rows; of unpack rows first."""
    if plan.move == "unpack":
        return -(-rows // UNPACK_ROWS), -(-columns // PIECE)
    return -(-columns // TILE), -(-rows // TILE)


def threads(plan: LayoutPlan) -> int:
    """Threads of a CTA."""
    return THREADS


def min_ctas(plan: LayoutPlan) -> int:
    """CTAs that a multiprocessor is to have registers for."""
    return 1


@cache
def build(plan: LayoutPlan) -> BuiltCast:
    """The kernel of a plan. Imports its file, and Numba with it."""
    from . import smxx_layout

    return smxx_layout.build(plan)
