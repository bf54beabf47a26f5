"""How an oracle is met: a package that is skipped where it is not installed, and whose own warnings are its own affair."""

import warnings

import numpy as np
import pytest


def oracle(name):
    """The module, or a skip of the whole file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name, exc_type=ImportError)


def points(row, count, seed=0):
    """float32 that show a rounding: every value of a small type, half-way points, their neighbours, and random ones of its range."""
    rng = np.random.default_rng(seed)
    if row.bits <= 8:
        values = row.decode(np.arange(row.max_code + 1)).astype(np.float64)
        half = (values[:-1] + values[1:]) / 2
    else:
        values, half = np.float64([0, row.min_subnormal, row.min_normal, row.max]), np.float64([row.min_subnormal / 2])
    fixed = np.concatenate([values, half]).astype(np.float32)
    fixed = np.concatenate([fixed, np.nextafter(fixed, np.float32(np.inf)), np.nextafter(fixed, np.float32(0))])
    top = min(np.log2(row.max), 127)
    spread = np.exp2(rng.uniform(np.log2(row.min_subnormal) - 3, top, count)).astype(np.float32)
    x = np.concatenate([fixed, np.minimum(spread, np.float32(row.max))])
    return np.concatenate([x, -x])[np.abs(np.concatenate([x, x])) <= row.max]


def away_from_ties(x, row, scale=1.0):
    """Where x / scale lies within 2^-18 of no half-way point: two ways of dividing cannot differ there."""
    values = np.unique(row.decode(np.arange(1 << row.bits)).astype(np.float64))
    values = values[np.isfinite(values)]
    half = (values[:-1] + values[1:]) / 2
    y = np.asarray(x, np.float64) / scale
    at = np.clip(np.searchsorted(half, y), 1, len(half) - 1)
    near = np.minimum(np.abs(y - half[at]), np.abs(y - half[at - 1]))
    return near > np.abs(y) * 2.0**-18 + 1e-30
