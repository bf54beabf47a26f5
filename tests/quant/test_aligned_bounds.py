"""Bounds against the tensor core's alignment: it cuts terms below the largest exponent as it is stored, and that of a subnormal factor is the
smallest normal number's, so that more is lost than the magnitudes of the products say."""

import dataclasses
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgnumba import QTensor, error_bound, gemm_reference, int4_error_bound, int4_gemm_reference
from dgnumba.dtypes import DTYPES
from dgnumba.emu.tensor_core import multiply_add
from dgnumba.errors import ProblemError
from dgnumba.quant.reference import TAU_FLOAT32, TAU_WGMMA, exact_integer_reference
from dgnumba.testing import assert_within

E4M3, E5M2 = DTYPES["float8_e4m3fn"], DTYPES["float8_e5m2"]
ONE = np.ones((1, 1), np.float32)
PAIRS = [(E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3), (E5M2, E5M2)]
UNIT = 2.0**-8
"""What the tensor core is given for an int4 of 1 beside e4m3: a subnormal number, as are 2 and 3 of it."""


def summed(a, b, dtypes=(E4M3, E4M3)):
    """A block of K, up to 128, as the tensor core adds it: steps of 32 of float32 ``[M,K]`` and ``[N,K]``."""
    total = None
    for k in range(0, a.shape[1], 32):
        total = multiply_add(total, a[:, k : k + 32], b[:, k : k + 32], *(1 - d.bias for d in dtypes))
    return total


def codes(values, dtype=E4M3):
    """Values that are numbers of a type, as it stores them."""
    out = np.atleast_2d(np.float32(values)).astype(dtype.numpy)
    assert (out.astype(np.float32) == values).all()
    return out


def about(rng, dtype, steps, negative):
    """Four rows of 128 positive codes, each step of 32 near one code, some negative if so wanted: what is cut off them adds up."""
    drawn = np.maximum(np.repeat(steps, 32) - rng.integers(0, 2, (4, 128)), 0).astype(np.uint8)
    return (drawn | (rng.random(drawn.shape) < negative).astype(np.uint8) << 7).view(dtype.numpy)


STEPS, NEGATIVE = st.lists(st.integers(0, 31), min_size=4, max_size=4), st.sampled_from([0.0, 0.1])
"""Codes below 8 are the subnormal ones of e4m3, below 4 those of e5m2."""


def share_of_bound(a, b):
    """Raise where a block is out of its bound; the share of the bound that is used, as it is and with S in place of S~."""
    dtypes = tuple(DTYPES[x.dtype.name] for x in (a, b))
    sums, oracle = summed(a.astype(np.float32), b.astype(np.float32), dtypes), gemm_reference(a, np.ones((len(a), 1)), b, ONE)
    size = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)).T
    used = assert_within(sums, oracle, error_bound(a, np.ones((len(a), 1), np.float32), b, ONE, "float32"))
    with np.errstate(invalid="ignore"):
        return used, float(np.nanmax(np.abs(sums - oracle) / (TAU_WGMMA * size), initial=0.0))


def test_one_subnormal_factor_cuts_all_others():
    """2^-9 * 256 is 0.5, but aligned as 4 is: 31 products just below 2^-11 are nothing beside it."""
    a, b = codes([2.0**-9] + [1.875 * 2.0**-6] * 31), codes([256.0] + [2.0**-6] * 31)
    for used, of_size in (share_of_bound(a, b), share_of_bound(b, a)):
        assert of_size > 1.6 and used > 0.2


def test_a_subnormal_number_of_e5m2_cuts_what_follows_too():
    a = codes([2.0**-16] + [1.75 * 2.0**-7] * 31 + [1.75 * 2.0**-9] * 96, E5M2)
    used, of_size = share_of_bound(a, codes([2.0**15] + [2.0**-6] * 127, E5M2))
    assert of_size > 1.3 and used > 0.3


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(PAIRS), STEPS, STEPS, NEGATIVE, st.integers(0, 2))
def test_no_codes_lead_beyond_the_bound(seed, dtypes, of_a, of_b, negative, large):
    """Up to two products of the smallest number and the largest power of two, among many of small numbers."""
    rng = np.random.default_rng(seed)
    a, b = (about(rng, d, steps, negative) for d, steps in zip(dtypes, (of_a, of_b)))
    for at in rng.integers(0, 128, large):
        a[:, at], b[:, at] = dtypes[0].min_subnormal, 2.0 ** int(np.log2(dtypes[1].max))
    share_of_bound(a, b)
    share_of_bound(b, a)


@pytest.mark.parametrize("units, times", [(1, 8), (4, 2), (7, 8 / 7), (8, 1)])
def test_float32_sums_align_nothing(units, times):
    """The host's tau is a share of the products themselves: subnormal numbers make its bound no larger."""
    a, b, size = codes([units * 2.0**-9] * 32), codes([1.0] * 32), units * 2.0**-4
    bounds = [float(error_bound(a, ONE, b, ONE, "float32", tau=tau)[0, 0]) for tau in (TAU_FLOAT32, TAU_WGMMA)]
    assert bounds[0] == pytest.approx((TAU_FLOAT32 + 4 * 2.0**-24) * size)
    assert bounds[1] == pytest.approx((times * TAU_WGMMA + 4 * 2.0**-24) * size)


def test_zeros_are_aligned_to_nothing_and_nan_stays():
    a, b = np.zeros((3, 32), E4M3.numpy), codes([1.0] * 32)
    a[1, 0], a[2, 0] = np.nan, 2.0**-9
    bound = error_bound(a, np.ones((3, 1), np.float32), b, ONE, "float32")
    assert bound[0, 0] < 2.0**-120 and np.isnan(bound[1, 0])
    assert bound[2, 0] == pytest.approx(TAU_WGMMA * 2.0**-6, rel=1e-4)


def test_the_exact_zone_ends_where_the_alignment_cuts():
    """31 products of one unit, 2^-12, and one of 2^11, which is aligned as 2^14 are: the last kept bit is two units."""
    a, b = codes([2.0**-9] * 32), codes([256.0] + [0.125] * 31)
    assert summed(*(x.astype(np.float32) for x in (a, b)))[0, 0] != gemm_reference(a, ONE, b, ONE)[0, 0]
    for x, y in ((a, b), (b, a)):
        with pytest.raises(ProblemError, match="14 bits, got magnitudes that sum to 16632 units at"):
            exact_integer_reference(x, ONE, y, ONE)
    assert exact_integer_reference(a, ONE, b, ONE, bits=None)[0, 0] == 0.5 + 31 * 2.0**-12


def int4_product(a, values, scale=1.0, group=128):
    """e4m3 of one scale a row by int4 without zero points: operands, and the kernel's answer in float32 for a `scale` that is a power of two."""
    left = QTensor(a, np.ones((len(a), 1), np.float32), "float8_e4m3fn", (1, a.shape[1]))
    scales = np.full((len(values), -(-a.shape[1] // group)), scale, np.float32)
    q = QTensor((values & 15).astype(np.uint8), scales, "int4", (1, group))
    return left, q, summed(a.astype(np.float32), np.float32(values * UNIT)) * np.float32(scale / UNIT)


def test_small_int4_cut_what_is_beside_and_behind_them():
    a = codes([256.0] + [1.875 * 2.0**-4] * 31 + [1.875 * 2.0**-6] * 96)
    left, q, d = int4_product(a, np.ones((1, 128), np.int64), scale=2.0**-3)
    expected, size = int4_gemm_reference(left, q)
    assert (np.abs(d - expected) > 1.4 * TAU_WGMMA * size).all()
    assert assert_within(d, expected, int4_error_bound(left, q, "float32")) > 0.3


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), STEPS, NEGATIVE, st.integers(1, 2), st.integers(0, 2))
def test_no_int4_lead_beyond_the_bound(seed, steps, negative, largest, large):
    """Up to two products of a weight of 1 and a large activation, among many of small numbers."""
    rng = np.random.default_rng(seed)
    a, values = about(rng, E4M3, steps, negative), rng.integers(1, largest + 1, (4, 128))
    for at in rng.integers(0, 32, large):
        a[:, at], values[:, at] = 256, 1
    left, q, d = int4_product(a, values, 2.0 ** rng.integers(-20, 20))
    assert_within(d, int4_gemm_reference(left, q)[0], int4_error_bound(left, q, "float32"))


def test_only_int4_without_zero_points_are_subnormal_operands():
    """Others are normal numbers of e4m3, whose magnitudes are what they are aligned by."""
    a, values = codes([1.0] * 128), np.ones((1, 128), np.int64)
    left, q, _ = int4_product(a, values)
    zeros = np.zeros((1, 1), np.int8)
    plain = int4_error_bound(left, dataclasses.replace(q, zero_point=zeros), "float32")
    gamma = 8 * 2.0**-24
    assert plain == pytest.approx((TAU_WGMMA + gamma) * 128)
    assert int4_error_bound(left, q, "float32") == pytest.approx((4 * TAU_WGMMA + gamma) * 128)
    low = dataclasses.replace(left, data=codes([2.0**-9] * 128))
    assert int4_error_bound(low, dataclasses.replace(q, zero_point=zeros), "float32") == pytest.approx((8 * TAU_WGMMA + gamma) * 0.25)


def test_folded_weights_beside_a_subnormal_float16():
    """A sum of 1.9 * 2^-26, then 2^-24 * 2^12, aligned as 2^-14 * 2^12 is: of 23 bits below that the sum has none."""
    a = np.zeros((1, 64), np.float16)
    a[0, 0], a[0, 32] = 1.875 * 2.0**-12, 2.0**-24
    w = QTensor(np.zeros((1, 64), np.uint8), np.uint8([[127 - 13, 127 + 10]]), "float4_e2m1fn", (1, 32), scale_dtype="float8_e8m0fnu")
    w.data[0, 0], w.data[0, 32] = DTYPES["float4_e2m1fn"].encode(np.float32([0.5, 4.0]))
    expected = int4_gemm_reference(a, w)[0]
    kept = 2.0**-12  # 1.875 * 2^-26 is below 2^-25, the last bit beside 2^-2
    assert abs(Fraction(expected[0, 0]) - Fraction(kept)) == Fraction(1.875 * 2.0**-26)
    assert_within([[kept]], expected, int4_error_bound(a, w, "float32", fold=True))
    with pytest.raises(AssertionError, match="out of bound"):
        assert_within([[kept]], expected, int4_error_bound(a, w, "float32", fold=False))


def test_int8_sums_of_sixteen_times_the_weights():
    """Their scales are a sixteenth: 8 * 2^-149 becomes 0, and all of the sum is lost."""
    left = QTensor(np.full((1, 128), -128, np.int8), np.float32([[2.0**40]]), "int8", (1, 128))
    q = QTensor(np.full((1, 128), 8, np.uint8), np.float32([[2.0**-146]]), "int4", (1, 128))
    assert np.float32(2.0**-146) / np.float32(16) == 0
    assert_within(np.zeros((1, 1)), int4_gemm_reference(left, q)[0], int4_error_bound(left, q, "float32"))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "bfloat16"])
def test_what_rests_of_zero_points_lose_below_normal_numbers(dtype):
    """2^-149 times a rest of 0.375 is 0; the activations it meets are large, or their scales are."""
    a = np.full((1, 128), 2.0**60, ml_dtypes.bfloat16)
    if dtype == "float8_e4m3fn":
        a = QTensor(codes([1.0] * 128), np.float32([[2.0**60]]), dtype, (1, 128))
    q = QTensor(np.full((1, 128), 1, np.uint8), np.float32([[2.0**-149]]), "uint4", (1, 128), np.float32([[0.625]]), np.float64(2.0**20))
    # all codes are rint(0.625), and the rest is lost
    assert_within(np.zeros((1, 1)), int4_gemm_reference(a, q)[0], int4_error_bound(a, q, "float32", fold=False))


def test_products_of_scales_below_normal_numbers_beside_blocks_of_e4m3():
    a = QTensor(codes([448.0] * 128), np.float32([[2.0**-75]]), "float8_e4m3fn", (1, 128))
    q = QTensor(np.full((1, 128), 15, np.uint8), np.float32([[2.0**-75]]), "uint4", (1, 128), zero_point=np.uint8([[0]]))
    assert_within(np.zeros((1, 1)), int4_gemm_reference(a, q)[0], int4_error_bound(a, q, "float32"))


@pytest.mark.parametrize("block, weights", [(2.0**70, 2.0**51), (2.0**121, 2.0**-100), (2.0**-100, 2.0**121)])
def test_the_bound_is_infinite_where_the_product_of_scales_may_overflow(block, weights):
    """Of A's blocks, the weights' groups and the 2^8 of int4 without zero points, in any order: however small what they multiply."""
    a = QTensor(codes([[2.0**-9] * 256] * 2), np.float32([[1.0, block], [1.0, 1.0]]), "float8_e4m3fn", (1, 128))
    q = QTensor(np.full((2, 256), 1, np.uint8), np.float32([[weights, 1.0], [2.0**-120, 2.0**-120]]), "int4", (1, 128))
    bound = int4_error_bound(a, q, "float32")
    assert np.isinf(bound).tolist() == [[True, block > 2.0**120], [weights > 2.0**120, False]]
    assert np.isfinite(int4_error_bound(a, dataclasses.replace(q, zero_point=np.zeros((2, 2), np.int8)), "float32")).all()


def test_a_weights_scale_times_two_to_the_8_must_stay_in_float32_beside_rows():
    a = QTensor(codes([2.0**-9] * 128), np.float32([[1.0]]), "float8_e4m3fn", (1, 256))
    q = QTensor(np.full((1, 128), 1, np.uint8), np.float32([[2.0**120]]), "int4", (1, 128))
    assert np.isinf(int4_error_bound(a, q, "float32")).all()
    zeros = np.zeros((1, 1), np.int8)
    for other in (dataclasses.replace(q, zero_point=zeros), dataclasses.replace(q, scale=np.float32([[2.0**119]]))):
        assert np.isfinite(int4_error_bound(a, other, "float32")).all()
