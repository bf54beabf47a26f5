"""What plans know of the epilogues (`kernels.epilogue`): which there are, their shared memory, their tensor map of D."""

from __future__ import annotations

from typing import Any

from ..layouts import swizzle

HALVES = ("bfloat16", "float16")
EPILOGUES = {"tma": HALVES, "warp": HALVES, "direct": ("float32",)}
"""Name -> the output dtypes it writes."""

WARP_STAGING_BYTES = 16 * 128


def panel_columns(block_n: int) -> int:
    """Columns (of 2 bytes) of a panel: rows of 128, 64 or 32 bytes, the widest that divides the tile."""
    return swizzle.largest(2 * block_n) // 2


def panel_box(plan: Any) -> tuple[tuple[int, int], int]:
    """Box and swizzle of D's tensor map: one panel; for an epilogue without TMA any box that is legal."""
    if plan.epilogue != "tma":
        return (16, 16), 0
    columns = panel_columns(plan.block_n)
    return (columns, min(64, plan.block_m)), 2 * columns


def staging_bytes(plan: Any) -> int:
    """Shared memory that the plan's epilogue needs."""
    if plan.epilogue == "tma":
        return plan.block_m * plan.block_n * 2
    return WARP_STAGING_BYTES * 4 * max(1, min(2, plan.block_m // 64)) if plan.epilogue == "warp" else 0
