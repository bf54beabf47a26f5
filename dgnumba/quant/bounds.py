"""How far a dequantized element may lie from what it was, by its format and the scale that is stored.

For an element x of a block with scale s and zero point z, an element type with unit roundoff u,
largest value top and smallest spacing tiny::

    float, |x| <= s * top         max(|x| * u / (1 + u), s * tiny / 2)
    integer, x in range           |s| / 2                  range: (least - z) * s to (most - z) * s
    beyond the range              how far beyond: it was clipped

The first two are half a step of the element type, and reached. A whole step, where rounding was
stochastic. On top come the float32 roundings on the way: of the scale's reciprocal, of the product
with it and of scale times global scale, each 2^-24 of x.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from ..errors import ProblemError
from ..xp import namespace
from .qtensor import QTensor

FLOAT32_SLACK = 4 * 2.0**-24
"""Three roundings of 2^-24, and their products."""

FLOAT32_TINY = 2.0**-149
"""Times s: what underflow of ``x / s`` loses."""


def element_bound(x: Any, q: QTensor, rounding: Literal["nearest", "stochastic"] = "nearest") -> Any:
    """The largest error that each element of ``q.dequantize("float64")`` may have, float64 of `x`'s shape.

    Rigorous for a `q` that `quantize` or a cast of this package made of `x`, with or without a
    search, and for any other quantizer that rounds to nearest. NaN where the block's scale or `x`
    is.

    Args:
        x: what was quantized, in host or device memory as `q`.
        q: what it became.
        rounding: how.

    Raises:
        ProblemError: another shape.

    >>> from dgnumba.quant import quantize
    >>> x = np.float32([[1.25, 6.0]])
    >>> q = quantize(x, "mxfp4")
    >>> abs(q.dequantize() - x).tolist(), element_bound(x, q).round(4).tolist()
    ([[0.25, 0.0]], [[0.25, 1.2]])
    """
    bounds = Bounds(x, q, 0.5 if rounding == "nearest" else 1.0)
    return namespace(q.data).maximum(bounds.within, bounds.beyond)


class Bounds:
    """Of each element of `x`, float64: what a `q` of it may lie off.

    within  half a step of the element type (`steps` of it), with slack
    beyond  how far it lies beyond the range, with slack
    """

    def __init__(self, x: Any, q: QTensor, steps: float = 0.5) -> None:
        if tuple(x.shape) != q.shape:
            raise ProblemError(f"x: expected {list(q.shape)} as q, got {list(x.shape)}")
        xp, row = namespace(q.data), q.dtype
        self.dtype = row
        with np.errstate(invalid="ignore", over="ignore"):
            x = x.astype(np.float64, copy=False)
            size, scale = xp.abs(x), q.spread(q.block_scales.astype(np.float64))
            self.step = scale if row.is_float else xp.abs(scale)
            self.slack = size * FLOAT32_SLACK + self.step * FLOAT32_TINY
            if row.is_float:
                u = row.unit_roundoff
                relative = u / (1 + u) if steps == 0.5 else 2 * u
                self.within = xp.maximum(size * relative, scale * (row.min_subnormal * steps)) + self.slack
                beyond = size - scale * row.max
            else:
                zero = 0.0 if q.zero_point is None else q.spread(q.zeros())
                ends = (row.min - zero) * scale, (row.max - zero) * scale
                self.within = self.step * steps + self.slack
                beyond = xp.maximum(xp.minimum(*ends) - x, x - xp.maximum(*ends))
            self.beyond = xp.maximum(beyond, 0) + self.slack

    @property
    def is_clipped(self) -> Any:
        """Where an element lies so far beyond the range that one more code would have been nearer: more than half a step."""
        row = self.dtype
        top = row.unit_roundoff * 2.0 ** math.floor(math.log2(row.max)) if row.is_float else 0.5
        with np.errstate(invalid="ignore"):
            return self.beyond > top * self.step + 3 * self.slack
