"""Comparisons that say where they failed."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dtypes import DTYPES


def calc_diff(x: Any, y: Any) -> float:
    """``1 - 2 * sum(x*y) / sum(x*x + y*y)`` in float64: DeepGEMM's measure, 0 for equal arrays.

    About half the squared relative error of the whole array. It is blind to much: one 128x128 tile
    left at zero in a result of 4096x7168 adds 2.8e-4. For comparing with peers; assert with
    `assert_within` and `assert_bits_equal`.
    """
    x, y = np.asarray(x).astype(np.float64), np.asarray(y).astype(np.float64)
    if x.shape != y.shape:
        raise AssertionError(f"expected shape {y.shape}, got {x.shape}")
    size = float((x * x + y * y).sum())
    return 0.0 if size == 0 else 1.0 - 2.0 * float((x * y).sum()) / size


def assert_bits_equal(actual: Any, expected: Any, what: str = "result") -> None:
    """Raise AssertionError unless two arrays hold the same bits; any NaN equals any NaN.

    The message names the first element that differs, both values and their codes, how many differ
    and in what rows and columns, so that a wrong tile shows its outline.
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        raise AssertionError(f"{what}: expected {expected.dtype} {list(expected.shape)}, got {actual.dtype} {list(actual.shape)}")
    got, want = _codes(actual), _codes(expected)
    bad = got != want
    row = DTYPES.get(actual.dtype.name)
    if row is not None and row.is_float and bad.any():
        bad &= ~(np.isnan(actual.astype(np.float64)) & np.isnan(expected.astype(np.float64)))
    if not bad.any():
        return
    where = np.argwhere(bad)
    first = tuple(int(i) for i in where[0])
    digits = 2 * actual.dtype.itemsize
    raise AssertionError(
        f"{what}: {len(where)} of {actual.size} elements differ, first at {list(first)}: "
        f"expected {expected[first]} (0x{int(want[first]):0{digits}x}), "
        f"got {actual[first]} (0x{int(got[first]):0{digits}x}); {_outline(where)}"
    )


def assert_within(actual: Any, expected: Any, bound: Any, what: str = "result") -> float:
    """Raise AssertionError unless ``|actual - expected| <= bound`` for every element.

    Where `expected` is NaN the result must be; where `bound` is infinite anything goes.

    Returns:
        The largest share of its bound that any element used.
    """
    actual = np.asarray(actual).astype(np.float64)
    if actual.shape != np.shape(expected):
        raise AssertionError(f"{what}: expected shape {np.shape(expected)}, got {actual.shape}")
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.abs(actual - expected)
        good = np.where(np.isnan(expected), np.isnan(actual), np.isinf(bound) | (error <= bound))
        share = np.where(np.isfinite(bound) & np.isfinite(error) & (error > 0), error / bound, 0.0)
    if not good.all():
        where = np.argwhere(~good)
        first = tuple(int(i) for i in where[0])
        raise AssertionError(
            f"{what}: {len(where)} of {actual.size} elements out of bound, first at {list(first)}: "
            f"expected {expected[first]!r} within {np.broadcast_to(bound, actual.shape)[first]!r}, "
            f"got {actual[first]!r}; {_outline(where)}"
        )
    return float(share.max(initial=0.0))


def _codes(x: Any) -> Any:
    unsigned = np.dtype(f"u{x.dtype.itemsize}")
    return np.ascontiguousarray(x).view(unsigned).reshape(x.shape)


def _outline(where: Any) -> str:
    low, high = where.min(axis=0), where.max(axis=0)
    axes = ("rows", "columns") if where.shape[1] == 2 else [f"axis {i}" for i in range(where.shape[1])]
    return ", ".join(f"{name} {a} to {b}" for name, a, b in zip(axes, low, high, strict=True))
