"""The oracle against plain loops; the bound against what uses it up; the exact zone's edge."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgnumba.dtypes import DTYPES
from dgnumba.errors import DTypeError, ProblemError
from dgnumba.layouts.scales import get_mn_major_tma_aligned_packed_ue8m0_tensor
from dgnumba.quant import error_bound, exact_integer_reference, gemm_reference, per_block_cast_to_fp8, per_token_cast_to_fp8, quantize
from dgnumba.quant.formats import Format
from dgnumba.quant.reference import TAU_FLOAT32, TAU_WGMMA
from dgnumba.testing import assert_within, exact_problem, finite_codes, random_scales

E4M3 = DTYPES["float8_e4m3fn"]


def random_operands(rng, m, n, k):
    kb, nb = -(-k // 128), -(-n // 128)
    return (
        finite_codes(rng, (m, k)),
        random_scales(rng, (m, kb)),
        finite_codes(rng, (n, k)),
        random_scales(rng, (nb, kb)),
    )


def exact_element(a, sfa, b, sfb, m, n):
    return sum(
        Fraction(float(a[m, k])) * Fraction(float(sfa[m, k // 128])) * Fraction(float(b[n, k])) * Fraction(float(sfb[n // 128, k // 128]))
        for k in range(a.shape[1])
    )


def test_oracle_is_the_formula():
    a, sfa, b, sfb = random_operands(np.random.default_rng(0), 3, 130, 200)
    oracle = gemm_reference(a, sfa, b, sfb)
    size = gemm_reference(np.abs(a), sfa, np.abs(b), sfb)
    assert oracle.dtype == np.float64
    for m, n in [(0, 0), (1, 127), (2, 128), (2, 129)]:
        expected = exact_element(a, sfa, b, sfb, m, n)
        assert abs(Fraction(oracle[m, n]) - expected) <= Fraction(size[m, n]) * 200 / 2**53


def test_oracle_takes_bytes_and_other_granularities():
    a, _, b, _ = random_operands(np.random.default_rng(0), 4, 6, 8)
    one = np.ones((4, 8), np.float32), np.ones((6, 8), np.float32)
    expected = a.astype(float) @ b.astype(float).T
    actual = gemm_reference(a.view(np.uint8), one[0], b, one[1], gran_a=(1, 1), gran_b=(1, 1))
    assert np.array_equal(expected, actual)


def exponent(x):
    return int(np.frexp(float(x))[1]) - 1


def cut(x, step):
    """Toward zero to a multiple of a power of two."""
    return int(x / step) * step


def hopper_like(x, y):
    """One block of K through an accumulator as Hopper's is modelled: 32 products at a time.

    All terms are cut to 13 bits below the largest exponent; for a product that is the sum of its
    factors' exponents. So is the sum.
    """
    acc = Fraction(0)
    for k in range(0, len(x), 32):
        pairs = [(p, q) for p, q in zip(x[k:][:32], y[k:][:32], strict=True) if p != 0 and q != 0]
        exponents = [exponent(p) + exponent(q) for p, q in pairs] + [exponent(acc)] * (acc != 0)
        step = Fraction(2) ** (max(exponents, default=0) - 13)
        terms = [acc] + [Fraction(float(p)) * Fraction(float(q)) for p, q in pairs]
        acc = sum(cut(t, step) for t in terms)
        acc = cut(acc, Fraction(2) ** (exponent(acc) - 13)) if acc else acc
    return acc


def codes(*values):
    return np.float32(values).astype(E4M3.numpy)


def test_bound_covers_a_truncating_accumulator():
    """Inputs that hurt: one large product among many small ones. The bound holds, and is used."""
    a = codes([448] + [15] * 127, [15] * 127 + [448])
    b = codes([448] + [1] * 127, [1] * 127 + [448])
    sf = np.ones((2, 1), np.float32), np.ones((1, 1), np.float32)
    got = np.array([[float(hopper_like(x, y)) for y in b] for x in a])
    oracle = gemm_reference(a, sf[0], b, sf[1])
    assert (oracle[0, 0], got[0, 0], got[1, 1]) == (202609, 200944, 202384)
    used = assert_within(got, oracle, error_bound(a, sf[0], b, sf[1], "float32"))
    assert used > 0.45
    with pytest.raises(AssertionError, match="out of bound"):
        assert_within(got, oracle, error_bound(a, sf[0], b, sf[1], "float32", tau=TAU_FLOAT32))


@pytest.mark.parametrize("out", ["bfloat16", "float32"])
def test_bound_is_the_formula(out):
    a, sfa, b, sfb = random_operands(np.random.default_rng(1), 5, 7, 300)
    oracle = gemm_reference(a, sfa, b, sfb)
    size = gemm_reference(np.abs(a), sfa, np.abs(b), sfb)
    raised = [np.where(x == 0, 0, np.maximum(np.abs(x.astype(np.float32)), 2.0**-6)).astype(E4M3.numpy) for x in (a, b)]
    aligned = gemm_reference(raised[0], sfa, raised[1], sfb)
    assert (aligned > size).all(), "subnormal numbers are among them"
    error = TAU_WGMMA * aligned + (3 + 3) * 2.0**-24 * size
    expected = error + (2.0**-8 * (np.abs(oracle) + error) if out == "bfloat16" else 0)
    actual = error_bound(a, sfa, b, sfb, out)
    assert (expected <= actual).all() and (actual <= expected * (1 + 1e-12) + 2.0**-120).all()


def test_bound_where_there_is_none():
    a, b = codes([448.0, 0.0], [np.nan, 1.0]), codes([448.0, 1.0])
    huge = np.float32([[1e38], [1.0]])
    bound = error_bound(a, huge, b, np.float32([[1e10]]))
    assert np.isinf(bound[0, 0]) and np.isnan(bound[1, 0])
    # The product of the scales overflows although what they scale is zero.
    assert np.isinf(error_bound(codes([0.0]), huge[:1], codes([0.0]), np.float32([[1e10]]))).all()


def test_bound_of_empty_problems():
    for m, n, k in [(0, 3, 128), (3, 0, 128), (2, 3, 0)]:
        operands = random_operands(np.random.default_rng(0), m, n, k)
        assert gemm_reference(*operands).tolist() == np.zeros((m, n)).tolist()
        assert (error_bound(*operands) < 2.0**-130).all()


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 140), st.integers(1, 400))
def test_exact_zone_equals_the_oracle(seed, m, n, k):
    case = exact_problem(np.random.default_rng(seed), m, n, k)
    oracle = gemm_reference(*case.a, *case.b)
    assert np.array_equal(oracle, exact_integer_reference(*case.a, *case.b, "float32"))
    rounded = exact_integer_reference(*case.a, *case.b, "bfloat16")
    assert rounded.dtype == ml_dtypes.bfloat16
    assert np.array_equal(oracle.astype(ml_dtypes.bfloat16), rounded)


def test_edge_of_the_exact_zone():
    one = np.ones((1, 1), np.float32)
    b = codes([1.0] * 128)
    inside = codes([128.0] * 124 + [1.0, 14.0, 240.0, 256.0])  # 2^14 - 1 units of 1
    assert exact_integer_reference(inside, one, b, one).tolist() == [[16383.0]]
    outside = codes([128.0] * 124 + [1.0, 15.0, 240.0, 256.0])  # 2^14
    with pytest.raises(ProblemError, match=r"14 bits, got .* 16384 units at \[0, 0\], block 0 of K"):
        exact_integer_reference(outside, one, b, one)
    assert exact_integer_reference(outside, one, b, one, bits=None).tolist() == [[16384.0]]
    # What counts is the magnitudes: a small sum of large terms is outside too.
    with pytest.raises(ProblemError, match="16384 units"):
        exact_integer_reference(outside, one, codes([1.0, -1.0] * 64), one)


def test_exact_zone_scales_with_the_unit():
    """The zone is relative: 2^-9 times small integers is as exact as the integers."""
    rng = np.random.default_rng(0)
    a = (rng.integers(-4, 5, (2, 128)) * 2.0**-9).astype(E4M3.numpy)
    one = np.ones((2, 1), np.float32), np.ones((1, 1), np.float32)
    expected = a.astype(float) @ a.astype(float).T
    assert np.array_equal(expected, exact_integer_reference(a, one[0], a, one[1]))


def test_qtensors_stand_for_their_pairs(rng):
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((5, 300), (130, 300)))
    a, b = per_token_cast_to_fp8(x), per_block_cast_to_fp8(w)
    expected, bound = gemm_reference(*a, *b), error_bound(*a, *b, "float32", tau=TAU_FLOAT32)
    for operands in ((a, b), (tuple(a), b), (a, tuple(b)), (tuple(a), tuple(b))):
        assert_within(gemm_reference(*operands), expected, np.abs(expected) * 2.0**-40)
        assert error_bound(*operands, "float32", tau=TAU_FLOAT32).tolist() == bound.tolist()
        assert error_bound(*operands, out_dtype="float32", tau=TAU_FLOAT32).tolist() == bound.tolist()
    packed = per_token_cast_to_fp8(x, True, 128, True)
    assert error_bound(packed, b).tolist() == error_bound(per_token_cast_to_fp8(x, True), b).tolist()
    mx = quantize(x, "mxfp8")
    assert gemm_reference(mx, b).tolist() == (mx.dequantize("float64") @ b.dequantize("float64").T).tolist()
    assert error_bound(mx, b).tolist() == error_bound(mx.codes, mx.scales, *b, gran_a=(1, 32)).tolist()


def test_other_operands_are_refused(rng):
    a = per_token_cast_to_fp8(np.ones((2, 128), np.float32))
    with pytest.raises(ProblemError, match="operands: expected a, b, or codes and scales of both, got 3 arguments"):
        gemm_reference(a, a, a)
    with pytest.raises(ProblemError, match="b: expected a QTensor or a pair of codes and scales, got ndarray"):
        gemm_reference(a, np.ones((3, 2)))
    for other in ("mxfp4", "nvfp4", "uint4_g32"):
        with pytest.raises(
            DTypeError, match="b: expected float8_e4m3fn or float8_e5m2 and scales alone, of which the bound is known, got QTensor"
        ):
            error_bound(a, quantize(np.ones((2, 128), np.float32), other))


@pytest.mark.parametrize("call", [gemm_reference, error_bound])
@pytest.mark.parametrize("four", [False, True])
def test_numbers_that_are_no_codes_are_refused_by_their_name(call, four):
    codes, scales = np.zeros((2, 128), np.uint8), np.ones((2, 1), np.float32)
    numbers = codes.astype(np.float32), np.ones((1, 1), np.float32)
    operands = (codes, scales, *numbers) if four else ((codes, scales), numbers)
    with pytest.raises(
        DTypeError, match="b: expected an array of float8_e4m3fn or float8_e5m2, or of their bytes, got float32; quantize it"
    ):
        call(*operands)


def test_e5m2_has_its_values_and_its_bound(rng):
    """As arrays that say so, and as QTensors; the host's product of all finite codes stays within."""
    from dgnumba import fp8_gemm_nt

    a, b = (
        quantize(rng.standard_normal((5, 300)), Format("e5m2", "float8_e5m2", (1, 128))),
        per_block_cast_to_fp8(rng.standard_normal((9, 300))),
    )
    pair = (a.data, a.scale)
    assert gemm_reference(pair, b).tolist() == gemm_reference(a, b).tolist()
    assert gemm_reference(*pair, *b).tolist() == gemm_reference(a, b).tolist()
    bound = error_bound(a, b, "float32", tau=TAU_FLOAT32)
    assert error_bound(pair, b, "float32", tau=TAU_FLOAT32).tolist() == bound.tolist()
    share = assert_within(fp8_gemm_nt(pair, b, np.zeros((5, 9), np.float32)), gemm_reference(a, b), bound)
    assert share > 0, "a bound that nothing uses proves nothing"


def test_packed_scales_are_read_as_the_float32_that_they_stand_for():
    rng = np.random.default_rng(3)
    a, _, b, _ = random_operands(rng, 5, 130, 900)
    sfa, sfb = (np.ldexp(1.0, rng.integers(-3, 4, shape)).astype(np.float32) for shape in ((5, 8), (2, 8)))
    packed = [get_mn_major_tma_aligned_packed_ue8m0_tensor(sf) for sf in (sfa, sfb)]
    assert (gemm_reference((a, packed[0]), (b, packed[1])) == gemm_reference(a, sfa, b, sfb)).all()
    assert (error_bound(a, packed[0], b, packed[1]) == error_bound(a, sfa, b, sfb)).all()


def test_operands_that_do_not_go_together_are_refused():
    a, sfa, b, sfb = random_operands(np.random.default_rng(4), 5, 7, 300)
    for oracle in (gemm_reference, error_bound):
        with pytest.raises(ProblemError, match=r"b: expected \[N, 300\] \(K as in a\), got \[7, 200\]"):
            oracle(a, sfa, b[:, :200], sfb[:, :2])
        with pytest.raises(ProblemError, match=r"sfa: expected \[5, 3\] for a \[5, 300\], got \[3, 5\]; transposed\?"):
            oracle(a, sfa.T, b, sfb)
        with pytest.raises(ProblemError, match=r"sfb: expected \[1, 3\] for b \[7, 300\], got \[1, 2\]"):
            oracle(a, sfa, b, sfb[:, :2])
        with pytest.raises(ProblemError, match=r"sfb: expected \[1, 3\] for b \[7, 300\], got \[1, 2\]"):
            oracle((a, sfa), (b, sfb[:, :2]))


def test_the_exact_zone_knows_the_small_numbers_of_e5m2():
    """2^-16 is a number of it: beside 1 it needs 16 bits more, which no zone of 14 has."""
    ones = np.ones((1, 1), np.float32)
    a, b = np.zeros((1, 128), ml_dtypes.float8_e5m2), np.ones((1, 128), E4M3.numpy)
    a[0, 0] = 2.0**-16
    assert exact_integer_reference(a, ones, b, ones)[0, 0] == 2.0**-16
    a[0, 1] = 1
    with pytest.raises(ProblemError, match="sum exactly in 14 bits, got magnitudes that sum to 65540 units"):
        exact_integer_reference(a, ones, b, ones)
    with pytest.raises(ProblemError, match="bits: expected a number for float8_e5m2"):
        exact_integer_reference(a, ones, b, ones, bits=None)
