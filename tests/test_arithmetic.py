"""fma: one rounding, proved against exact fractions."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dgnumba.arithmetic import fma

F32 = np.finfo(np.float32)


def nearest_float32(exact: Fraction) -> np.float32:
    """Round to nearest, ties to even, from the definition; beyond the range, infinity."""
    if exact == 0:
        return np.float32(0)
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    while Fraction(2) ** exponent > size:
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= size:
        exponent += 1
    step = Fraction(2) ** (max(exponent, -126) - 23)
    units, rest = divmod(size, step)
    units += rest * 2 > step or (rest * 2 == step and units % 2 == 1)
    value = units * step
    value = np.float32(np.inf) if value >= Fraction(2) ** 128 else np.float32(float(value))
    return -value if exact < 0 else value


def check(x, y, z):
    x, y, z = (np.atleast_1d(np.float32(v)) for v in (x, y, z))
    actual = fma(x, y, z)
    for xi, yi, zi, got in zip(x, y, z, actual, strict=True):
        expected = nearest_float32(Fraction(float(xi)) * Fraction(float(yi)) + Fraction(float(zi)))
        assert expected == got, [float(v).hex() for v in (xi, yi, zi, expected, got)]


finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


@settings(max_examples=500, deadline=None)
@given(finite, finite, finite)
@example(x=1.0 + 2**-12, y=1.0 + 2**-12, z=2.0**-70)  # a tie of float32, and a bit far below it
def test_any_floats(x, y, z):
    check(x, y, z)


def test_random_floats_of_like_size():
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(20_000).astype(np.float32) for _ in range(2))
    check(x, y, rng.standard_normal(20_000).astype(np.float32))
    check(x, y, -(x * y))  # cancellation: what is left is the product's own rounding error
    check(x, y, (-(x.astype(float) * y) * (1 + 2.0**-20)).astype(np.float32))


def near_half_units(rng, count):
    """x, y, z with x * y within 2^-29 of half a unit of z, above or below, seldom equal to it."""
    x = rng.integers(2**23, 2**24, 200 * count)
    y = (2**47 + x // 2) // x
    rest = x * y - 2**47
    kept = np.flatnonzero((np.abs(rest) < 2**18) & (y < 2**24))[:count]
    assert kept.size == count
    z = rng.integers(2**23, 2**24, count) * 2.0**-23 * rng.choice([-1, 1], count)
    sign = rng.choice([-1, 1], count)
    return np.float32(x[kept] * 2.0**-47), np.float32(y[kept] * 2.0**-24 * sign), np.float32(z)


def test_double_rounding_is_undone():
    """Where float64 makes a tie of what is none: the plain way goes wrong, and fma does not."""
    x, y, z = near_half_units(np.random.default_rng(1), 1000)
    check(x, y, z)
    through_float64 = (x.astype(np.float64) * y + z).astype(np.float32)
    assert (through_float64 != fma(x, y, z)).sum() > 100


def test_subnormal_results():
    rng = np.random.default_rng(2)
    small = np.exp2(rng.uniform(-149, -120, 5000)).astype(np.float32)
    x, y = (np.exp2(rng.uniform(-80, -55, 5000)).astype(np.float32) for _ in range(2))
    check(x, y, small)
    check(x, y, -small)
    # Ties of subnormals that only float64 sees, as above: in another place of the word.
    x, y, z = near_half_units(rng, 1000)
    x, y, z = x * np.float32(2.0**-60), y * np.float32(2.0**-66), z * np.float32(2.0**-126) / 2
    assert (np.abs(z) < 2.0**-126).all()
    check(x, y, z)
    assert ((x.astype(np.float64) * y + z).astype(np.float32) != fma(x, y, z)).any()
    tiny = float(F32.smallest_subnormal)
    # One and a half smallest steps, and a little more or less than that.
    check([2.0**-75, 2.0**-75 * (1 + 2.0**-23)], [2.0**-75, 2.0**-75], [tiny, tiny])


def test_edges_of_the_range():
    top = float(F32.max)
    check([top, top, top, -top], [1.0, 1.0, 2.0, 2.0], [0.0, 2.0**102, 0.0, 0.0])
    check(top, 1.0, 2.0**103)  # exactly half a unit above the largest: goes to infinity
    check(top, 1.0, float(np.nextafter(np.float32(2.0**103), np.float32(0))))


@pytest.mark.filterwarnings("error")
def test_special_values():
    inf, nan = np.inf, np.nan
    x = np.float32([inf, inf, nan, 1, 0, -0.0, 0])
    y = np.float32([1, 0, 1, 1, inf, 1, -1])
    z = np.float32([1, 1, 1, -inf, 0, 0, 0])
    assert fma(x, y, z).astype(str).tolist() == ["inf", "nan", "nan", "-inf", "nan", "0.0", "0.0"]


def test_a_nan_does_not_hide_its_neighbours():
    x, y, z = near_half_units(np.random.default_rng(3), 1000)
    x, y, z = x * np.float32(2.0**-60), y * np.float32(2.0**-66), z * np.float32(2.0**-126) / 2
    alone = fma(x, y, z)
    beside = fma(np.append(x, np.float32(np.nan)), np.append(y, y[:1]), np.append(z, z[:1]))
    assert np.array_equal(alone, beside[:-1]) and np.isnan(beside[-1])


def test_writes_in_place_and_broadcasts():
    total = np.float32([[1, 2, 3], [4, 5, 6]])
    scale = np.array([[2.0], [0.5]])
    work = tuple(np.empty((2, 3)) for _ in range(3))
    assert fma(np.ones((2, 3), np.float32), scale, total, out=total, work=work) is total
    assert total.tolist() == [[3, 4, 5], [4.5, 5.5, 6.5]]
    assert fma(total[:0], scale[:0], total[:0]).shape == (0, 3)
