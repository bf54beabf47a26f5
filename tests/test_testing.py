"""The comparisons find what they must find and say where; the generators keep their promises."""

import ml_dtypes
import numpy as np
import pytest

from dgnumba.problem import GemmProblem, check_fp8_gemm_nt
from dgnumba.quant import exact_integer_reference
from dgnumba.testing import (
    assert_bits_equal,
    assert_within,
    calc_diff,
    exact_problem,
    finite_codes,
    random_problem,
)

BF16 = ml_dtypes.bfloat16


def test_calc_diff():
    x = np.random.default_rng(0).standard_normal((50, 60))
    assert calc_diff(x, x) == pytest.approx(0, abs=1e-15)
    assert calc_diff(x, -x) == pytest.approx(2)
    assert calc_diff(np.zeros(3), np.zeros(3)) == 0
    noise = x + 1e-3 * np.random.default_rng(1).standard_normal(x.shape)
    assert calc_diff(noise, x) == pytest.approx(0.5e-6, rel=0.1)  # half the squared relative error
    assert calc_diff(np.float32([1, 2]).astype(BF16), np.float32([1, 2])) == 0
    with pytest.raises(AssertionError, match="shape"):
        calc_diff(x, x[:1])


def test_bits_equal_passes_on_equal_bits_and_any_nan():
    x = np.float32([[1, -0.0, np.inf], [np.nan, 2, 3]])
    assert_bits_equal(x, x.copy())
    other = x.copy()
    other.view(np.uint32)[1, 0] = 0xFFC00001  # another NaN
    assert_bits_equal(other, x)
    assert_bits_equal(x.astype(BF16), x.astype(BF16))
    assert_bits_equal(x[:0], x[:0])
    assert_bits_equal(np.arange(3), np.arange(3))


def test_bits_equal_names_the_first_and_the_outline():
    expected = np.ones((100, 200), BF16)
    actual = expected.copy()
    actual[64:80, 128:136] = 1.0078125
    with pytest.raises(AssertionError) as caught:
        assert_bits_equal(actual, expected, "D")
    assert str(caught.value) == (
        "D: 128 of 20000 elements differ, first at [64, 128]: expected 1.0 (0x3f80), "
        "got 1.0078125 (0x3f81); rows 64 to 79, columns 128 to 135"
    )


@pytest.mark.parametrize(
    "actual, expected",
    [
        (np.float32([0.0]), np.float32([-0.0])),
        (np.float32([np.nan]), np.float32([1.0])),
        (np.float32([1.0]), np.float32([np.nan])),
        (np.float32([1.0]), np.float64([1.0])),
        (np.float32([1.0]), np.float32([[1.0]])),
        (np.int8([1]), np.int8([2])),
    ],
)
def test_bits_equal_tells_apart(actual, expected):
    with pytest.raises(AssertionError):
        assert_bits_equal(actual, expected)


def test_within():
    bound = np.array([0.5, 0.5, np.inf, np.nan])
    expected = np.array([1.0, 2.0, 3.0, np.nan])
    assert assert_within(np.array([1.25, 2.0, np.nan, np.nan]), expected, bound) == 0.5
    assert assert_within(np.array([1.5, 2.0, np.inf, np.nan]), expected, bound) == 1.0
    for bad in ([1.6, 2, 3, np.nan], [np.nan, 2, 3, np.nan], [1, np.inf, 3, np.nan], [1, 2, 3, 4]):
        with pytest.raises(AssertionError, match="1 of 4 elements out of bound, first at"):
            assert_within(np.array(bad), expected, bound)
    with pytest.raises(AssertionError, match="shape"):
        assert_within(np.zeros(3), expected, bound)


def test_random_problems_are_legal_varied_and_repeatable():
    cases = [random_problem(np.random.default_rng(seed), largest=200) for seed in range(300)]
    for case in cases:
        operands = check_fp8_gemm_nt(case.a, case.b, out_dtype=case.problem.d_dtype)
        assert operands.problem == case.problem
        assert not np.isnan(case.a.data.astype(np.float32)).any()
    extents = [x for case in cases for x in (case.problem.m, case.problem.n, case.problem.k)]
    assert {0, 1, 63, 64, 65, 191, 193} <= set(extents) and max(extents) <= 200
    assert sum(x % 2 for x in extents) > 200
    assert {case.problem.d_dtype.name for case in cases} == {"bfloat16", "float32"}
    again = random_problem(np.random.default_rng(7), largest=200)
    assert again.problem == cases[7].problem
    assert_bits_equal(again.b.scale, cases[7].b.scale)


def test_finite_codes_cover_all_but_nan():
    codes = finite_codes(np.random.default_rng(0), (100_000,)).view(np.uint8)
    assert set(range(256)) - set(codes.tolist()) == {0x7F, 0xFF}


def test_exact_problems_are_in_the_exact_zone_and_scales_differ():
    case = exact_problem(np.random.default_rng(0), 40, 300, 700, "float32")
    assert case.problem == GemmProblem(40, 300, 700, d_dtype="float32")
    exact_integer_reference(*case.a, *case.b)  # raises outside the zone
    assert set(case.a.scale.ravel()) == {0.5, 1.0, 2.0}
    assert len(set(case.b.scale.ravel())) > 1
