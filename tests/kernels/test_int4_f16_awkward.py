"""Sums in float16 of awkward numbers, stepped in the emulator: every type of scale and those at the ends of what is taken, NaN, rows of zeros."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest
from kernels.test_int4_f16_sums import emulated, sums_by_model

import dgnumba
from dgnumba.quant import QTensor
from dgnumba.testing import assert_bits_equal

M, N = 5, 9
NEXT_TO_1 = np.nextafter(np.float32(1), np.float32(0))
NAN, LARGEST, LEAST = 0x7F, 0x7E, 0x01
"""Codes of e4m3."""


def operands(rng, scale, group, k):
    """Random codes, by these scales of the weights; A's rows by scales of their own."""
    codes = np.where(rng.integers(0, 2, (M, k)), 0x80, 0) | rng.integers(0, LARGEST + 1, (M, k))
    a = QTensor(codes.astype(np.uint8), rng.uniform(0.5, 2, (M, 1)).astype(np.float32), "float8_e4m3fn", (1, k))
    return a, QTensor(rng.integers(0, 16, (N, k), dtype=np.uint8), scale, "int4", (1, group))


def check(a, q):
    """The emulated bits against the model's; NaN where that has it."""
    w, group = dgnumba.prepare_int4_weights(q, "float8_e4m3fn"), q.granularity[1]
    behind = ((0, 0), (0, -a.shape[1] % 128))
    values = np.pad(a.dtype.decode(a.codes).astype(np.float32), behind)
    small = np.pad((q.codes.astype(np.int32) + 8) % 16 - 8, behind).astype(np.float32)
    scales = np.pad(q.scales, ((0, 0), (0, values.shape[1] // group - q.scales.shape[1])), mode="edge")
    with np.errstate(over="ignore", invalid="ignore"):
        (expected,) = sums_by_model(values, small, scales, group, w.f16_ratio(a.dtype), [(0, values.shape[1] // 128)])
        expected = expected * np.asarray(a.scale, np.float32)
    found = emulated(a, w, (8, 64, 1, 2, 1), "eager")
    is_nan = np.isnan(expected)
    assert (np.isnan(found) == is_nan).all()
    assert_bits_equal(np.where(is_nan, np.float32(0), found), np.where(is_nan, np.float32(0), expected))
    return found


SCALES = {
    "float16": lambda rng, shape: rng.uniform(-1, 1, shape).astype(np.float16),
    "float16, subnormal": lambda rng, shape: (rng.integers(-9, 10, shape) * 2.0**-24).astype(np.float16),
    "bfloat16": lambda rng, shape: rng.uniform(-1, 1, shape).astype(ml_dtypes.bfloat16),
    "e4m3": lambda rng, shape: rng.uniform(-448, 448, shape).astype(ml_dtypes.float8_e4m3fn),
    "powers of two": lambda rng, shape: np.exp2(rng.integers(-13, 1, shape)).astype(ml_dtypes.float8_e8m0fnu),
    "the ends": lambda rng, shape: rng.choice(np.float32([NEXT_TO_1, -NEXT_TO_1, 2.0**-14, -(2.0**-14), 0]), shape),
    "near the largest": lambda rng, shape: np.full(shape, NEXT_TO_1 * np.float32(2.0**100)),
    "the least": lambda rng, shape: np.full(shape, 2.0**-100, np.float32),
}


@pytest.mark.parametrize("kind", SCALES)
@pytest.mark.parametrize("group", [128, pytest.param(16, marks=pytest.mark.full)])
def test_scales_of_every_type_have_the_models_bits(kind, group, rng):
    """K of no whole group, so that the last scale serves what lies behind it, too."""
    k = 200
    check(*operands(rng, SCALES[kind](rng, (N, -(-k // group))), group, k))


def test_nan_stays_in_its_row_and_zeros_are_zeros(rng):
    """Nor does what A's rows are multiplied by reach another: 0, the largest, a subnormal."""
    a, q = operands(rng, rng.uniform(0.1, 1, (N, 2)).astype(np.float32), 128, 200)
    codes = a.codes.copy()
    codes[1, 7] = codes[1, 199] = NAN
    codes[2] = 0
    of_rows = np.float32([[1], [1], [1], [0], [1e-45]])
    found = check(dataclasses.replace(a, data=codes, scale=of_rows), q)
    assert np.isnan(found[1]).all() and not np.isnan(found[[0, 2, 3, 4]]).any()
    assert not found[[2, 3]].any() and found[0].all()
    far = check(dataclasses.replace(a, scale=np.full((M, 1), 3e38, np.float32)), q)
    assert np.isinf(far).any(), "what leaves float32 is infinite"


@pytest.mark.parametrize("code", [LEAST, LARGEST])
def test_one_code_everywhere_has_the_models_bits(code, rng):
    """Sums that never cancel, the smallest and the largest: nine records, a sum of eight and one of one."""
    a, q = operands(rng, np.full((N, 9), NEXT_TO_1), 128, 1152)
    found = check(dataclasses.replace(a, data=np.full_like(a.codes, code)), dataclasses.replace(q, data=np.full_like(q.codes, 8)))
    value = float(a.dtype.decode(np.uint8([code]))[0])
    expected = -8 * 1152 * value * np.broadcast_to(np.asarray(a.scale, np.float64), (M, N))
    np.testing.assert_allclose(found, expected, rtol=(8 + 4 + 3) * 2.0**-11)
