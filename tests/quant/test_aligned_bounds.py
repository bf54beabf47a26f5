"""Bounds against the tensor core's alignment: it cuts terms below the largest exponent as it is stored, and that of a subnormal factor is the
smallest normal number's, so that more is lost than the magnitudes of the products say."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgnumba import error_bound, gemm_reference
from dgnumba.dtypes import DTYPES
from dgnumba.emu.tensor_core import multiply_add
from dgnumba.errors import ProblemError
from dgnumba.quant.reference import TAU_FLOAT32, TAU_WGMMA, exact_integer_reference
from dgnumba.testing import assert_within

E4M3, E5M2 = DTYPES["float8_e4m3fn"], DTYPES["float8_e5m2"]
ONE = np.ones((1, 1), np.float32)
PAIRS = [(E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3), (E5M2, E5M2)]


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
