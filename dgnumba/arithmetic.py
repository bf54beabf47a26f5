"""Float32 arithmetic as the device does it, in NumPy: x * y + z with one rounding, as `fma.rn.f32`."""

from __future__ import annotations

from typing import Any

import numpy as np

_TINY = float(np.finfo(np.float32).tiny)
_LEAST = np.iinfo(np.int64).min


def fma(x: Any, y: Any, z: Any, out: Any = None, work: tuple[Any, Any, Any] | None = None) -> Any:
    """``x * y + z`` of float32 arrays, rounded once to float32.

    The product of two float32 is exact in float64. The float64 sum is rounded, and the cast to
    float32 rounds again; that differs from one rounding only where the first rounding fell on a
    tie of the second. Ties can be seen: in the normal range the 29 bits that float32 lacks read
    100...0. Those elements, and subnormal results, are done over with the sum rounded to odd,
    which no second rounding can mistake.

    Args:
        x, y: float32 arrays that broadcast; float64 arrays of float32 values save a conversion.
        z: float32 array of the result's shape.
        out: float32 array for the result; `z` itself may be it.
        work: three float64 arrays of the result's shape to compute in.
    """
    product, total, spare = work if work is not None else (np.empty(z.shape) for _ in range(3))
    with np.errstate(over="ignore", invalid="ignore"):
        np.multiply(x, y, out=product, dtype=np.float64)
        np.add(product, z, out=total, dtype=np.float64)
        doubtful = _doubtful(total, spare)
        if doubtful is not None:
            total[doubtful] = _sum_to_odd(product[doubtful], z[doubtful].astype(np.float64))
        if out is None:
            return total.astype(np.float32)
        np.copyto(out, total, casting="unsafe")
        return out


def two_sum(x: Any, y: Any) -> tuple[Any, Any]:
    """x + y of float64 arrays as it is rounded, and what the rounding lost, exactly."""
    total = x + y
    shadow = total - x
    return total, (x - (total - shadow)) + (y - shadow)


def add32(x: Any, y: Any) -> Any:
    """``x + y`` of finite float64 arrays, rounded once to float32: doubtful sums as `fma` has them."""
    total = x + y
    doubtful = _doubtful(total, np.empty(total.shape))
    if doubtful is not None:
        total[doubtful] = _sum_to_odd(x[doubtful], y[doubtful])
    return total.astype(np.float32)


def _doubtful(total: Any, spare: Any) -> Any:
    """Where rounding `total` to float32 may not round the exact sum; None if nowhere."""
    if total.size == 0:
        return None
    below_float32 = np.left_shift(total.view(np.int64), 35, out=spare.view(np.int64))
    has_tie = below_float32.min() == _LEAST
    mask = (below_float32 == _LEAST) if has_tie else None
    magnitude = np.abs(total, out=spare)
    if not magnitude.min() >= _TINY:  # a NaN must not hide what stands beside it
        small = (magnitude < _TINY) & (total != 0)
        mask = small if mask is None else mask | small
    return mask if mask is not None and mask.any() else None


def _sum_to_odd(p: Any, q: Any) -> Any:
    """p + q in float64, rounded to odd: an inexact sum becomes its neighbour that ends in a 1."""
    total, lost = two_sum(p, q)
    is_even = (total.view(np.int64) & 1) == 0
    toward = np.copysign(np.inf, lost)
    return np.where((lost != 0) & is_even, np.nextafter(total, toward), total)


def fma32(a: Any, b: Any, c: Any) -> Any:
    """`fma` of numbers or arrays of any type that float32 takes; a float32 number for numbers."""
    addend = np.asarray(c, np.float32)
    return fma(np.asarray(a, np.float32), np.asarray(b, np.float32), addend)[()]
