"""How Hopper's tensor core adds FP8 products: a model of one wgmma step, 32 products and an accumulator.

All 33 terms are aligned to the largest exponent E among them and truncated toward zero to 13 fraction bits below 2^E; the truncated terms
are added exactly; the sum is truncated toward zero to 13 fraction bits of its own exponent. A product's exponent is the sum of its factors'
exponents, so its significand lies in [1, 4); a subnormal factor has the exponent of the smallest normal number.

This is the model published for Hopper's wgmma. For e4m3 it holds bit for bit on an H200: 10,584 tiles of 64 x 128 x 128, 86.7 million elements, none
different (2026-11-29, bench/probe_tensor_core.py, bench/results/tensor_core_h200.json). e5m2 has not been probed.

With float16 accumulators the sum of the truncated terms is rounded once, to the nearest float16, ties to even, and not truncated before: so all
of 294,912 elements found by the H200 (2026-11-30), of one step, of one added to float16, and of four.
"""

from __future__ import annotations

import numpy as np

FRACTION_BITS = 13
_CANONICAL_NAN = np.array(0x7FFFFFFF, np.uint32).view(np.float32)


def exponents(values: np.ndarray, smallest: int) -> np.ndarray:
    """The exponent of each value as its format stores it: at least `smallest`; zero has the least."""
    _, exponent = np.frexp(values)
    return np.where(values == 0, -(1 << 12), np.maximum(exponent - 1, smallest)).astype(np.int32)


def multiply_add(acc: np.ndarray | None, a: np.ndarray, b: np.ndarray, a_smallest: int, b_smallest: int) -> np.ndarray:
    """``a @ b.T (+ acc)`` as one step of the tensor core.

    acc                     float32 [M, N], or None for a fresh start
    a, b                    float32 [M, 32] and [N, 32], which hold FP8 values
    a_smallest, b_smallest  exponents of the smallest normal numbers of their formats
    """
    total, unit, start = _aligned_sum(acc, a, b, a_smallest, b_smallest)
    with np.errstate(invalid="ignore", over="ignore"):
        result = np.ldexp(_truncate(total), -unit).astype(np.float32)
    return _with_specials(result, start, a, b)


def multiply_add_f16(acc: np.ndarray | None, a: np.ndarray, b: np.ndarray, a_smallest: int, b_smallest: int) -> np.ndarray:
    """`multiply_add` with accumulators, and a result, of float16."""
    total, unit, start = _aligned_sum(None if acc is None else acc.astype(np.float32), a, b, a_smallest, b_smallest)
    with np.errstate(invalid="ignore", over="ignore"):
        result = np.ldexp(total, -unit)
        rounded = _with_specials(result, start, a, b).astype(np.float16)
    rounded.view(np.uint16)[np.isnan(rounded)] = 0x7FFF
    return rounded


def _aligned_sum(
    acc: np.ndarray | None, a: np.ndarray, b: np.ndarray, a_smallest: int, b_smallest: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The sum of the truncated terms in units of their last bit, the power of two by which it is too large, and the addend."""
    products = a[:, None, :] * b[None, :, :]
    exponent = np.max(exponents(a, a_smallest)[:, None, :] + exponents(b, b_smallest)[None, :, :], axis=2)
    start = np.zeros(exponent.shape, np.float32) if acc is None else acc
    exponent = np.maximum(exponent, exponents(start, -126))
    # in units of the last kept bit every truncated term is an integer below 2^15, and their sum one below 2^21: exact in float32
    unit = FRACTION_BITS - np.maximum(exponent, -126)
    with np.errstate(invalid="ignore", over="ignore"):
        products *= np.ldexp(np.float32(1), np.minimum(unit, 126))[:, :, None]
        np.trunc(products, out=products)
        return products.sum(axis=2) + np.trunc(np.ldexp(start, unit)), unit, start


def _truncate(integers: np.ndarray) -> np.ndarray:
    """Keep the leading 1 + FRACTION_BITS bits of each value."""
    mantissa, exponent = np.frexp(integers)
    scale = 1 << (FRACTION_BITS + 1)
    kept: np.ndarray = np.ldexp(np.trunc(mantissa * scale), exponent - FRACTION_BITS - 1)
    return kept


def _with_specials(result: np.ndarray, start: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """`result`, but infinities and NaNs of the inputs as IEEE arithmetic makes them; a NaN is the canonical one."""
    if np.isfinite(a).all() and np.isfinite(b).all() and np.isfinite(start).all():
        return result
    with np.errstate(invalid="ignore", over="ignore"):
        plain = start + (a[:, None, :] * b[None, :, :]).sum(axis=2)
    out = np.where(np.isfinite(plain), result, plain)
    return np.where(np.isnan(out), _CANONICAL_NAN, out).astype(np.float32)
