"""What plans `smxx_cast` has: which there are, and their launch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from ..integers import u32, u64

WIDTH = 16
"""Elements of a row that a thread holds."""

ITEMSIZE = {"bfloat16": 2, "float16": 2, "float32": 4}
"""Types that are cast -> bytes of an element."""

WARP_COLUMNS = 32 * WIDTH
TOKEN_ROWS, BLOCK, LINES = 8, 128, 32
TOKEN_GROUPS, CHANNEL_GROUPS = (16, 32, 64, 128, 256, 512), (32, 64, 128)
ARGTYPES = (u64, u64, u64, u64, u64, u64, u64, u32, u32)
"""(x, its row pitch, its column pitch, q, scales, their row pitch, their column pitch, m, k): addresses and bytes; elements."""


@dataclass(frozen=True)
class CastPlan:
    """Every choice that is frozen into a cast.

    blocks     "token" (1 x group), "block" (128 x 128) or "channel" (group x 1)
    x_dtype    type of the input
    group      elements that share a scale
    use_ue8m0  scales are powers of two
    packed     ... and stored four to an int32 (token alone), filled up with 1.0
    is_vector  the input has rows in pieces of 16 bytes
    is_native  the GPU converts to e4m3 (sm_89)
    """

    blocks: str
    x_dtype: str
    group: int = 128
    use_ue8m0: bool = False
    packed: bool = False
    is_vector: bool = True
    is_native: bool = True


@dataclass(frozen=True)
class BuiltCast:
    """A kernel `kernel(*ARGTYPES)` with every choice frozen in, and its launch."""

    kernel: Any
    threads: int
    argtypes: tuple[Any, ...] = ARGTYPES


def refusal(plan: CastPlan) -> str | None:
    """Why there is no kernel for a plan, or None."""
    groups = {"token": TOKEN_GROUPS, "block": (BLOCK,), "channel": CHANNEL_GROUPS}[plan.blocks]
    if plan.x_dtype not in ITEMSIZE:
        return f"takes x of {', '.join(ITEMSIZE)}, got {plan.x_dtype}"
    if plan.group not in groups:
        return f"takes groups of {', '.join(map(str, groups))}, got {plan.group}"
    if plan.packed and (plan.blocks != "token" or not plan.use_ue8m0 or plan.group > BLOCK):
        return f"packs UE8M0 scales of 1 x 16 to 1 x {BLOCK}, got {plan}"
    return None


def grid(plan: CastPlan, m: int, k: int) -> tuple[int, int]:
    """CTAs along K and along M; the kernel of tokens goes on below what fits."""
    if plan.blocks == "token":
        return -(-k // WARP_COLUMNS), min(-(-m // TOKEN_ROWS), 65535)
    return -(-k // BLOCK), -(-m // (BLOCK if plan.blocks == "block" else plan.group))


def threads(plan: CastPlan) -> int:
    """Threads of a CTA."""
    return {"token": 32 * TOKEN_ROWS, "block": 512, "channel": LINES * BLOCK // WIDTH}[plan.blocks]


def min_ctas(plan: CastPlan) -> int:
    """CTAs that a multiprocessor is to have registers for."""
    return 1


@cache
def build(plan: CastPlan) -> BuiltCast:
    """The kernel of a plan. Imports its file, and Numba with it."""
    from . import smxx_cast

    return smxx_cast.build(plan)
