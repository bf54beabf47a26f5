"""For each block the scale of the least squared error, among those beside the rule's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..xp import namespace
from .chunk import Chunk
from .formats import Format
from .rules import total_scale
from .scale import E8M0, round_scale

RATIOS = tuple(i / 16 for i in range(8, 25) if i != 16)
"""Tried first, times the rule's scale; more than 1 serves e2m1, whose steps are coarse at the top."""

REFINED = tuple(1 + sign / step for step in (32, 64, 128) for sign in (-1, 1))
"""Tried then, one after the other, times the best so far."""

BINADES = (0.5, 0.25, 2.0)
"""Tried for UE8M0, which has nothing between."""


def search_scales(chunks: Sequence[Chunk], statistic: Any, form: Format, whole: Any, scale: Any, zero: Any) -> tuple[Any, Any]:
    """Scales and zero points of no larger a squared error than the `scale` and `zero` given, block by block.

    About 20 candidates (3 for UE8M0), each rounded to the scale type before it is tried; with zero
    points three times as many: both ends of the range drawn in, the upper alone, the lower alone.

    Args:
        chunks: parts of one row of blocks, or whole rows of blocks as a single one.
        statistic: of the blocks, as the rule took it.
        form, whole: the format, and the global scale or None.
        scale, zero: what the rule gave.
    """
    xp = namespace(scale)

    def error(scale: Any, zero: Any) -> Any:
        total = total_scale(scale, whole)
        return sum(chunk.squared_error(total, zero, form.dtype) for chunk in chunks)

    first, least = scale, error(scale, zero)
    for ratio in BINADES if form.scale_dtype is E8M0 else RATIOS + REFINED:
        base = scale if ratio in REFINED else first
        tried = _rounded(base * np.float32(ratio), form)
        for shift in _zero_points(statistic, first, tried, form):
            found = error(tried, zero if ratio in REFINED else shift)
            better = found < least
            least, scale = xp.where(better, found, least), xp.where(better, tried, scale)
            if zero is not None and ratio not in REFINED:
                zero = xp.where(better, shift, zero)
    return scale, zero


def _rounded(scale: Any, form: Format) -> Any:
    if form.scale_dtype is E8M0:
        return namespace(scale).clip(scale, np.float32(2.0**-127), np.float32(2.0**127))
    return round_scale(scale, form.scale_dtype)


def _zero_points(statistic: Any, first: Any, tried: Any, form: Format) -> Iterator[Any]:
    """Zero points to try with a scale: what clips evenly, above alone, below alone."""
    if not form.has_zero_point:
        yield None
        return
    xp, (low, high) = namespace(tried), statistic
    top = np.float32(form.dtype.max)
    with np.errstate(invalid="ignore"):
        for zero in (-low / first, -low / tried, top - high / tried):
            zero = xp.clip(xp.rint(zero), np.float32(0), top)
            yield xp.where(zero == zero, zero, np.float32(0))
