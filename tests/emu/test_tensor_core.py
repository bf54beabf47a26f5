"""The model of the tensor core's sums, against the rule in exact integers, and its known values."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgnumba.dtypes import DTYPES
from dgnumba.emu.tensor_core import multiply_add, multiply_add_f16
from dgnumba.quant.reference import as_aligned

E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
SMALLEST = {E4M3: -6, E5M2: -14}


def step(a: np.ndarray, b: np.ndarray, acc: np.ndarray | None = None, dtypes: tuple = (E4M3, E4M3)) -> np.ndarray:
    values = (x.astype(d).astype(np.float32) for x, d in zip((a, b), dtypes))
    return multiply_add(acc, *values, SMALLEST[dtypes[0]], SMALLEST[dtypes[1]])


def chain(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """All of K in steps of 32."""
    acc = None
    for k in range(0, a.shape[1], 32):
        acc = step(a[:, k : k + 32], b[:, k : k + 32], acc)
    assert acc is not None
    return acc


def exponent_of(x: Fraction, least: int) -> int | None:
    """As the format stores it, at least `least`; None of 0."""
    if x == 0:
        return None
    e = 0
    while abs(x) >= Fraction(2) ** (e + 1):
        e += 1
    while abs(x) < Fraction(2) ** e:
        e -= 1
    return max(e, least)


def truncate(x: Fraction, unit: Fraction) -> Fraction:
    return int(x / unit) * unit


def truncated_terms(a: list[float], b: list[float], start: float, smallest: tuple[int, int]) -> Fraction:
    """The exact sum of one step's terms, each aligned to the largest exponent and truncated to 13 bits below it."""
    terms = [
        (Fraction(x) * Fraction(y), exponent_of(Fraction(x), smallest[0]), exponent_of(Fraction(y), smallest[1])) for x, y in zip(a, b)
    ]
    exponents = [ea + eb for _, ea, eb in terms if ea is not None and eb is not None]
    start_exponent = exponent_of(Fraction(start), -126)
    exponents += [start_exponent] if start_exponent is not None else []
    if not exponents:
        return Fraction(0)
    unit = Fraction(2) ** (max(exponents) - 13)
    return sum((truncate(p, unit) for p, _, _ in terms), truncate(Fraction(start), unit))


def by_the_rule(a: list[float], b: list[float], start: float, smallest: tuple[int, int]) -> Fraction:
    """One output in exact arithmetic: the sum of truncated terms, truncated to 14 bits."""
    total = truncated_terms(a, b, start, smallest)
    own = exponent_of(total, -10_000)
    return Fraction(0) if own is None else truncate(total, Fraction(2) ** (own - 13))


def nearest_f16(x: Fraction) -> float:
    """The float16 nearest to a number, ties to even; infinite from half a unit above the largest on."""
    own = exponent_of(x, -14)
    if own is None:
        return 0.0
    unit = Fraction(2) ** (own - 10)
    rounded = round(x / unit) * unit  # Python's round of a Fraction: ties to even
    return float(rounded) if abs(rounded) < 2**16 else math.copysign(math.inf, x)


CODES = st.lists(st.integers(0, 255), min_size=32, max_size=32)


@settings(max_examples=200)
@given(CODES, CODES, st.sampled_from([(E4M3, E4M3), (E4M3, E5M2), (E5M2, E5M2)]), st.one_of(st.none(), st.floats(-1e6, 1e6, width=32)))
def test_equals_the_rule_bit_for_bit(a_codes: list, b_codes: list, dtypes: tuple, start: float | None) -> None:
    a, b = (np.array(c, np.uint8).view(d).astype(np.float32) for c, d in zip((a_codes, b_codes), dtypes))
    a, b = (np.where(np.isfinite(x), x, np.float32(1)) for x in (a, b))
    acc = None if start is None else np.full((1, 1), start, np.float32)
    actual = step(a[None], b[None], acc, dtypes)[0, 0]
    expected = by_the_rule(a.tolist(), b.tolist(), start or 0.0, (SMALLEST[dtypes[0]], SMALLEST[dtypes[1]]))
    assert Fraction(float(actual)) == expected


def test_small_integers_are_exact() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.integers(-4, 5, (64, 128)).astype(np.float32), rng.integers(-4, 5, (24, 128)).astype(np.float32)
    np.testing.assert_array_equal(chain(a, b), a @ b.T)


def test_F24_small_terms_are_lost_beside_a_large_one() -> None:
    a, b = np.full((1, 128), 2.0**-9, np.float32), np.ones((1, 128), np.float32)
    a[0, 0] = 448
    assert chain(a, b)[0, 0] == 448


@pytest.mark.parametrize(("position", "right"), [(0, 200944.0), (31, 200944.0), (127, 202384.0)])
def test_position_of_a_large_product_matters(position: int, right: float) -> None:
    # 448 * 448 among 127 products of 15: exactly 202609 (peers-formats-bounds, section 3.3)
    a, b = np.full((1, 128), 5, np.float32), np.full((1, 128), 3, np.float32)
    a[0, position] = b[0, position] = 448
    assert chain(a, b)[0, 0] == right


@settings(max_examples=100)
@given(st.integers(0, 2**32 - 1), st.floats(0.01, 6))
def test_error_stays_in_its_bound(seed: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    a, b = ((rng.standard_normal((4, 128)) * np.exp2(rng.uniform(-spread, spread, (4, 128)))).clip(-448, 448) for _ in range(2))
    a, b = (x.astype(E4M3).astype(np.float64) for x in (a, b))
    error = np.abs(chain(a.astype(np.float32), b.astype(np.float32)) - a @ b.T)
    assert np.all(error <= 136 * 2.0**-13 * (as_aligned(a, 2.0**-6) @ as_aligned(b, 2.0**-6).T))


def test_nan_and_infinity() -> None:
    a, b = np.ones((4, 32), np.float32), np.ones((1, 32), np.float32)
    a[1, 3] = np.nan
    a[2, 5] = np.inf
    a[3, 5], a[3, 6] = np.inf, -np.inf
    out = step(a, b, dtypes=(E5M2, E5M2))[:, 0]
    assert out[0] == 32 and out[2] == np.inf
    assert out[[1, 3]].view(np.uint32).tolist() == [0x7FFFFFFF] * 2


def test_zeros_and_the_smallest_values() -> None:
    zero, tiny = np.zeros((1, 32), np.float32), np.full((1, 32), 2.0**-9, np.float32)
    assert step(zero, tiny).view(np.uint32)[0, 0] == 0
    assert step(tiny, tiny)[0, 0] == 32 * 2.0**-18
    assert step(zero, zero, np.full((1, 1), 2.0**-120, np.float32))[0, 0] == 2.0**-120


def test_smallest_exponents_are_those_of_the_dtypes() -> None:
    for dtype, smallest in SMALLEST.items():
        assert 1 - DTYPES[np.dtype(dtype).name].bias == smallest == int(np.log2(float(ml_dtypes.finfo(dtype).smallest_normal)))


def step_f16(a: np.ndarray, b: np.ndarray, acc: np.ndarray | None = None) -> np.ndarray:
    values = (x.astype(E4M3).astype(np.float32) for x in (a, b))
    return multiply_add_f16(acc, *values, SMALLEST[E4M3], SMALLEST[E4M3])


SUBNORMAL = st.lists(st.sampled_from([*range(1, 8), *range(129, 136), 0, 0x08, 0x88]), min_size=32, max_size=32)
"""Codes of subnormal e4m3 numbers of both signs, of 0, and of the smallest normal ones."""


@settings(max_examples=200)
@given(
    st.one_of(CODES, SUBNORMAL), st.one_of(CODES, SUBNORMAL), st.one_of(st.none(), st.floats(-65504, 65504, width=16)), st.integers(0, 12)
)
def test_float16_is_rounded_once_to_the_nearest(a_codes: list, b_codes: list, start: float | None, power: int) -> None:
    """Bit for bit, with an addend and without one; A over powers of two, so that most sums are in float16's range."""
    a, b = (np.array(c, np.uint8).view(E4M3).astype(np.float32) for c in (a_codes, b_codes))
    a, b = (np.where(np.isfinite(x), x, np.float32(1)) for x in (a, b))
    a = (a * np.float32(2.0**-power)).astype(E4M3).astype(np.float32)
    acc = None if start is None else np.full((1, 1), start, np.float16)
    found = step_f16(a[None], b[None], acc)
    expected = nearest_f16(truncated_terms(a.tolist(), b.tolist(), start or 0.0, (SMALLEST[E4M3],) * 2))
    assert found.dtype == np.float16 and float(found[0, 0]) == expected


def one_row(*values: float) -> np.ndarray:
    return np.array([values + (0.0,) * (32 - len(values))], np.float32)


@pytest.mark.parametrize(
    ("products", "start", "right"),
    [
        (((1, 1),), 2048.0, 2048.0),  # a tie, to even
        (((1, 1),), 2050.0, 2052.0),  # and up to it
        (((1, 1), (0.25, 0.25)), 2048.0, 2048.0),  # 1/16 lies below 2^(11 - 13): cut before the sum, not seen by the rounding
        (((1, 1), (0.5, 0.5)), 2048.0, 2050.0),  # 1/4 does not
        (((240, 256), (15, 256), (15, 16)), None, np.inf),  # 65520 exactly: a tie with 2^16, which is no number
        (((240, 256), (15, 256), (14, 16)), None, 65504.0),
        (((-240, 256), (-15, 256), (-15, 16)), None, -np.inf),
        (((448, 448),), None, np.inf),
        (((448, 448), (-448, 416)), None, 448 * 32.0),  # terms may leave the range, the sum does not
        (((2.0**-9, 2.0**-9),), None, 2.0**-18),  # a subnormal float16 of subnormal factors
        (((2.0**-9, 2.0**-9), (2.0**-9, 2.0**-9)), 2.0**-24, 2.0**-17 + 2.0**-24),  # an addend of one bit
        (((448, 2.0**-9),), 2.0**-24, 0.875),  # 2^-24 lies below 2^(-1 - 13)
        (((0.0, 448),), 2.0**-24, 2.0**-24),
    ],
)
def test_known_float16_sums(products: tuple, start: float | None, right: float) -> None:
    a, b = one_row(*(p[0] for p in products)), one_row(*(p[1] for p in products))
    found = step_f16(a, b, None if start is None else np.full((1, 1), start, np.float16))
    with np.errstate(over="ignore"):
        assert found.view(np.uint16)[0, 0] == np.array(right, np.float32).astype(np.float16).view(np.uint16)


def test_float16_is_not_truncated_before_it_is_rounded() -> None:
    """31 * 64 + 65.125, of which float32 accumulators keep 14 bits: a tie, which would go down."""
    a, b, start = np.full((1, 32), 8, np.float32), np.full((1, 32), 8, np.float32), np.full((1, 1), 65.125, np.float16)
    a[0, 31] = 0
    assert step(a, b, start.astype(np.float32))[0, 0] == 2049 and step_f16(a, b, start)[0, 0] == 2050


def test_float16_nan_and_infinity() -> None:
    a, b = np.ones((4, 32), np.float32), np.ones((1, 32), np.float32)
    a[1, 3] = np.nan
    start = np.array([[1], [1], [np.inf], [np.nan]], np.float16)
    found = step_f16(a, b, start)[:, 0]
    assert found[0] == 33 and found[2] == np.inf
    assert found[[1, 3]].view(np.uint16).tolist() == [0x7FFF] * 2
    assert step_f16(np.zeros((1, 32)), b).view(np.uint16)[0, 0] == 0
