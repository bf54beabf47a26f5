"""Scales: from amax, and up to a power of two."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgnumba.dtypes import DTYPES
from dgnumba.errors import ProblemError
from dgnumba.quant.scale import (
    UE8M0_RULES,
    ceil_to_ue8m0,
    decode_scales,
    encode_scales,
    global_scale_from_amax,
    round_scale,
    scale_from_amax,
    ue8m0_codes,
)

E4M3, E2M1, E8M0 = DTYPES["float8_e4m3fn"], DTYPES["float4_e2m1fn"], DTYPES["float8_e8m0fnu"]


def exponent_byte(x):
    return (np.asarray(x, np.float32).view(np.uint32) >> 23).tolist()


def test_F06_up_to_a_power_of_two():
    x = [1.0, np.nextafter(np.float32(1), np.float32(2)), 1.125, 1.25, 1.5, 1.75, 5.0, 3.0, 0.75]
    expected = [127, 128, 128, 128, 128, 128, 130, 129, 127]
    assert expected == exponent_byte(ceil_to_ue8m0(np.float32(x)))


def test_F06_edges_are_as_in_deepgemm():
    x = np.float32([2.0**-127, 0.0, 2.0**-126, np.inf, np.nan, -3.0, 3e38])
    assert exponent_byte(ceil_to_ue8m0(x)) == [1, 1, 1, 254, 254, 129, 254]


@given(st.floats(min_value=2.0**-126, max_value=2.0**127, width=32))
def test_least_power_of_two_at_or_above(x):
    up = float(ceil_to_ue8m0(np.float32(x)))
    assert np.frexp(up)[0] == 0.5
    assert x <= up < 2 * x


def test_F07_every_power_of_two_scale_has_an_exact_inverse():
    scales = np.exp2(np.arange(-126.0, 128.0)).astype(np.float32)
    assert np.array_equal(scales, ceil_to_ue8m0(scales))
    assert (scales * (np.float32(1) / scales) == 1).all()


def test_scale_is_amax_over_the_largest_code():
    amax = np.float32([448, 1, 1e-4, 1e-5, 0, 3e38])
    expected = np.maximum(amax, np.float32(1e-4)) / np.float32(448)
    assert np.array_equal(expected, scale_from_amax(amax, E4M3))
    assert (scale_from_amax(amax, E4M3) > 0).all()
    assert scale_from_amax(amax, E4M3).dtype == np.float32


@pytest.mark.filterwarnings("error")
def test_F07_what_is_not_finite_stays_so_or_becomes_the_largest_power():
    amax = np.float32([np.nan, np.inf])
    assert str(scale_from_amax(amax, E4M3)) == "[nan inf]"
    assert (scale_from_amax(amax, E4M3, use_ue8m0=True) == 2.0**127).all()


@pytest.mark.parametrize(
    "rule, expected",
    [  # peers-formats-bounds.md 2.2, and 560 of F06
        ("floor", [121, 127, 127, 127, 128, 128]),
        ("rceil", [121, 127, 128, 128, 128, 128]),
        ("ceil", [122, 128, 128, 128, 129, 129]),
        ("even", [121, 127, 127, 127, 128, 128]),
    ],
)
def test_the_four_rules(rule, expected):
    amax = np.float32([6, 448, 449, 480, 672, 560])
    expected = [*expected[:5], {"floor": 128, "rceil": 128, "ceil": 129, "even": 128}[rule]]
    expected[1] = 128 if rule == "ceil" else 127
    assert ue8m0_codes(amax, E4M3, rule).tolist() == expected
    assert ue8m0_codes(amax, E4M3, rule).dtype == np.uint8


def test_F06_general_rule_goes_down_to_byte_0():
    x = [1.0, np.nextafter(np.float32(1), np.float32(2)), 1.125, 1.25, 1.5, 1.75, 5.0, 3.0, 0.75, 2.0**-127]
    unit = np.float32(x) * np.float32(E4M3.max)  # exact, so that amax / 448 is x again
    assert ue8m0_codes(unit, E4M3).tolist() == [127, 128, 128, 128, 128, 128, 130, 129, 127, 0]


@pytest.mark.filterwarnings("error")
def test_ends_of_the_rules():
    amax = np.float32([0, 2.0**-149, 2.0**-120, 3.4028235e38, np.inf, np.nan])
    assert ue8m0_codes(amax, E4M3).tolist() == [0, 0, 0, 247, 255, 255]  # F07: never above 247
    assert ue8m0_codes(amax, E2M1).tolist() == [0, 0, 5, 253, 255, 255]  # nor 253
    for rule in UE8M0_RULES:
        assert ue8m0_codes(amax, E2M1, rule).tolist()[-2:] == [255, 255]
    with pytest.raises(ProblemError, match="rule: expected one of rceil, floor, ceil, even, got nearest"):
        ue8m0_codes(amax, E4M3, "nearest")


@given(st.floats(min_value=2.0**-100, max_value=2.0**100, width=32), st.sampled_from([E4M3, E2M1, DTYPES["float8_e5m2"]]))
def test_rules_by_their_definition(amax, dtype):
    """In exact rational arithmetic, from the words of peers-formats-bounds.md 2.2."""
    emax, top = int(np.floor(np.log2(dtype.max))), Fraction(dtype.max)
    scale = {rule: Fraction(float(E8M0.decode(ue8m0_codes(np.float32([amax]), dtype, rule))[0])) for rule in UE8M0_RULES}
    exact = Fraction(amax)
    assert scale["rceil"] >= exact / top > scale["rceil"] / 2
    assert scale["floor"] * 2**emax <= exact < scale["floor"] * 2 ** (emax + 1)
    assert scale["ceil"] * 2**emax >= exact > scale["ceil"] * 2 ** (emax - 1)
    fraction, exponent = np.frexp(np.float64(amax))
    steps = 2.0 ** (dtype.mantissa + 1)
    rounded = np.ldexp(np.floor(fraction * steps + 0.5) / steps, exponent)  # half up, as torchao
    assert scale["even"] == Fraction(2) ** (int(np.frexp(rounded)[1]) - 1 - emax)


@pytest.mark.filterwarnings("error")
def test_F07_every_ue8m0_byte_has_an_exact_inverse():
    values = E8M0.decode(np.arange(255))
    assert (values * (np.float32(1) / values) == 1).all()
    assert (np.float32(1) / values[254:]).view(np.uint32).tolist() == [0x00400000]


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3fn"])
def test_rounded_scales_are_held_and_never_far_below(name):
    row = DTYPES[name]
    exact = np.exp2(np.random.default_rng(0).uniform(-140, 128, 20_000)).astype(np.float32)
    stored = round_scale(exact, row)
    assert np.array_equal(decode_scales(encode_scales(stored, row), row), stored)
    least = max(row.min_subnormal, 2.0**-126)
    assert (stored >= least).all() and (stored <= row.max).all()
    inside = (exact >= row.min_normal) & (exact <= row.max)
    nearest = exact[inside].astype(row.numpy).astype(np.float32)
    assert np.array_equal(nearest, stored[inside])
    below = exact < row.min_normal
    assert (stored[below] >= exact[below]).all()
    assert (stored[below] < exact[below] + row.min_subnormal)[exact[below] >= least].all()
    assert np.array_equal(round_scale(-exact, row), -stored)


@pytest.mark.filterwarnings("error")
def test_rounded_scales_at_the_ends():
    x = np.float32([0, np.nan, 1e38])
    for name, least, most in (("float32", 2.0**-126, 1e38), ("float16", 2.0**-24, 65504), ("float8_e4m3fn", 2.0**-9, 448)):
        low, nan, high = round_scale(x, DTYPES[name]).tolist()
        assert (low, high) == (least, np.float32(most)) and np.isnan(nan)


@pytest.mark.parametrize("bad", [1.5, 0.0, -1.0, np.inf])
def test_F04_a_scale_that_ue8m0_does_not_hold_is_refused(bad):
    with pytest.raises(ProblemError, match=r"sfa: expected scales that float8_e8m0fnu holds exactly, got .* at \[0, 1\]"):
        encode_scales(np.float32([[1, bad]]), E8M0, "sfa")
    assert encode_scales(np.float32([[1, 2, 0.5]]), E8M0).view(np.uint8).tolist() == [[127, 128, 126]]


def test_global_scale():
    assert float(global_scale_from_amax(np.float32(2688))) == 1.0
    assert float(global_scale_from_amax(np.float32(0))) == 2.0**-100
