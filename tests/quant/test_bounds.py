"""element_bound: what 3.1 and 3.2 of peers-formats-bounds.md say, reached at known points and never passed."""

import ml_dtypes
import numpy as np
import pytest
from quant.every_format import DEEPGEMM, EVERY_FORMAT, name_of

from dgnumba.dtypes import DTYPES
from dgnumba.errors import ProblemError
from dgnumba.quant import QTensor, element_bound, quantize
from dgnumba.quant.bounds import Bounds

SLACK = 2.0**-22
"""Of x: the float32 roundings."""


def with_scale(dtype, values, scale=1.0, zero=None):
    """A row quantized under a given scale, and the row."""
    x = np.float32([values])
    row = DTYPES[dtype]
    codes = row.encode(x / np.float32(scale) + np.float32(zero or 0))
    zero = None if zero is None else np.float32([[zero]])
    return x, QTensor(codes, np.float32([[scale]]), row, (1, x.shape[1]), zero_point=zero)


@pytest.mark.parametrize(
    "dtype, x, expected",
    [  # half a step: reached at a tie of the lowest significand, and in the subnormal range
        ("float8_e4m3fn", 1.0625, 1.0625 / 17),
        ("float8_e4m3fn", 1.9375, 1.9375 / 17),
        ("float8_e4m3fn", 2.0**-10, 2.0**-10),
        ("float8_e4m3fn", 0.0, 2.0**-10),
        ("float8_e5m2", 1.125, 1.125 / 9),
        ("float8_e5m2", 2.0**-17, 2.0**-17),
        ("float4_e2m1fn", 1.25, 0.25),
        ("float4_e2m1fn", 5.0, 1.0),
        ("float4_e2m1fn", 0.25, 0.25),
        ("int4", 3.375, 0.5),
        ("int8", -127.5, 0.5),
        ("float8_e4m3fn", 500.0, 52.0),  # beyond the range: the distance, or half a step if more
        ("float8_e4m3fn", -449.0, 449.0 / 17),
        ("float4_e2m1fn", 100.0, 94.0),
        ("int4", 9.0, 2.0),
        ("int4", -8.25, 0.5),
    ],
)
def test_by_the_table(dtype, x, expected):
    for scale in (1.0, 0.375):
        for sign in (1, -1) if dtype.startswith("float") else (1,):
            exact, q = with_scale(dtype, [sign * x * scale], scale)
            bound = element_bound(exact, q)[0, 0]
            assert expected * scale <= bound <= expected * scale + SLACK * (abs(float(exact[0, 0])) + 1e-30)
            assert abs(q.dequantize("float64") - exact)[0, 0] <= bound


@pytest.mark.parametrize(
    "dtype, tie", [("float8_e4m3fn", 1.0625), ("float8_e5m2", 1.125), ("float4_e2m1fn", 1.25), ("float4_e2m1fn", 0.25), ("int8", 0.5)]
)
def test_bounds_are_reached(dtype, tie):
    x, q = with_scale(dtype, [tie])
    used = np.abs(q.dequantize("float64") - x) / element_bound(x, q)
    assert 1 - 2.0**-17 < used[0, 0] <= 1


def test_zero_points_and_negative_scales_move_the_range():
    x, q = with_scale("uint4", [-3.0, 12.0, 12.25, 14.0], zero=3)
    assert element_bound(x, q).round(4).tolist() == [[0.5, 0.5, 0.5, 2.0]]
    q = QTensor(q.codes, -q.scale, q.dtype, q.granularity, zero_point=q.zero_point)
    assert element_bound(-x, q).round(4).tolist() == [[0.5, 0.5, 0.5, 2.0]]


def test_stochastic_rounding_is_allowed_a_whole_step():
    x, q = with_scale("float8_e4m3fn", [1.99, 2.0**-10])
    assert element_bound(x, q, "stochastic")[0] == pytest.approx([1.99 / 8, 2.0**-9], rel=2.0**-18)


def test_clipped_is_more_than_half_a_step_beyond():
    for dtype, values, expected in (
        ("float8_e4m3fn", [448, 464, 464.1, -1e9], [False, False, True, True]),
        ("float8_e5m2", [57344, 61440, 61441], [False, False, True]),
        ("float4_e2m1fn", [6, 7, 7.01, -8], [False, False, True, True]),
        ("int4", [7.5, 7.51, -8.5, -8.6], [False, True, False, True]),
    ):
        x, q = with_scale(dtype, values)
        assert Bounds(x, q).is_clipped.tolist() == [expected]


def test_nan_where_the_scale_or_the_element_is():
    x = np.float32([[np.nan, 1], [1, 1]])
    bound = element_bound(x, quantize(x, "fp8_row"))
    assert np.isnan(bound[0]).all() and np.isfinite(bound[1]).all()


def test_another_shape_is_refused():
    x, q = with_scale("int4", [1.0, 2.0])
    with pytest.raises(ProblemError, match=r"x: expected \[1, 2\] as q, got \[2, 1\]"):
        element_bound(x.T, q)


@pytest.mark.parametrize("form", EVERY_FORMAT, ids=name_of)
def test_holds_on_every_binade(form):
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((40, 96)) * np.exp2(rng.integers(-126, 126, (40, 1)))).astype(np.float32)
    x[::3] *= np.exp2(rng.integers(-20, 1, x[::3].shape)).astype(np.float32)
    q = quantize(x, form)
    assert (np.abs(q.dequantize("float64") - x) <= element_bound(x, q)).all()


@pytest.mark.parametrize("name", DEEPGEMM)
def test_holds_for_deepgemms_casts(name):
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((256, 256)) * np.exp2(rng.integers(-40, 40, (256, 1)))).astype(np.float32)
    q = DEEPGEMM[name](x)
    assert (np.abs(q.dequantize("float64") - x) <= element_bound(x, q)).all()


def test_a_wrong_cast_is_over_its_bound():
    x = np.random.default_rng(0).standard_normal((4, 128)).astype(np.float32)
    q = quantize(x, "fp8_1x128")
    cut = QTensor((q.codes & 0xFE).view(ml_dtypes.float8_e4m3fn), q.scale, q.dtype, q.granularity)
    assert (np.abs(cut.dequantize("float64") - x) > element_bound(x, cut)).any()
