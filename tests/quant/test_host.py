"""The host path: bit-equal to the integer reference on any codes; the product's field cases."""

import time

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgnumba.dtypes import DTYPES
from dgnumba.quant import error_bound, exact_integer_reference, fp8_gemm_nt_host, gemm_reference
from dgnumba.quant import host as host_module
from dgnumba.quant.reference import TAU_FLOAT32
from dgnumba.testing import assert_bits_equal, assert_within, exact_problem, random_problem

pytestmark = pytest.mark.filterwarnings("error")
BF16 = ml_dtypes.bfloat16


def codes(values, shape=None):
    x = np.asarray(values, np.float32).astype(ml_dtypes.float8_e4m3fn)
    return x if shape is None else np.broadcast_to(x, shape)


def gemm(a, sfa, b, sfb, out=np.float32, c=None, fill=-7):
    d = np.full((a.shape[0], b.shape[0]), fill, out)
    fp8_gemm_nt_host(a, np.asarray(sfa, np.float32), b, np.asarray(sfb, np.float32), d, c)
    return d


def ones(rows, k):
    return codes(1.0, (rows, k))


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32))
def test_any_codes_equal_the_integer_reference(seed):
    """Not only in the exact zone: the host sums each block exactly and rounds it once."""
    case = random_problem(np.random.default_rng(seed), largest=300)
    d = gemm(*case.a, *case.b, case.problem.d_dtype.numpy)
    expected = exact_integer_reference(*case.a, *case.b, case.problem.d_dtype, bits=None)
    assert_bits_equal(d, expected)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32))
def test_any_codes_lie_within_the_bound_of_float32_sums(seed):
    case = random_problem(np.random.default_rng(seed), largest=300)
    out = case.problem.d_dtype
    oracle = gemm_reference(*case.a, *case.b)
    bound = error_bound(*case.a, *case.b, out, tau=TAU_FLOAT32)
    assert_within(gemm(*case.a, *case.b, out.numpy), oracle, bound)


@pytest.mark.parametrize("out", [BF16, np.float32])
@pytest.mark.parametrize(
    "m, n, k",
    [
        (1, 1, 1),
        (3, 129, 257),  # one beyond a block each way
        (520, 640, 384),  # more than one tile of the host's own
        (5, 1030, 16400),  # K so large that tiles shrink
    ],
)
def test_exact_zone(m, n, k, out):
    case = exact_problem(np.random.default_rng(k), m, n, k)
    expected = gemm_reference(*case.a, *case.b).astype(out)
    assert_bits_equal(gemm(*case.a, *case.b, out), expected)


def test_rows_do_not_depend_on_the_batch_or_on_tiles(monkeypatch):
    rng = np.random.default_rng(0)
    a = rng.integers(0, 0x7F, (70, 700), dtype=np.uint8)
    b = rng.integers(0, 0x7F, (300, 700), dtype=np.uint8)
    sfa, sfb = rng.random((70, 6), np.float32), rng.random((3, 6), np.float32)
    whole = gemm(a, sfa, b, sfb)
    for row in (0, 33, 69):
        assert_bits_equal(gemm(a[row : row + 1], sfa[row : row + 1], b, sfb), whole[row : row + 1])
    monkeypatch.setattr(host_module, "_TILE_M", 7)
    monkeypatch.setattr(host_module, "_TILE_N", 128)
    assert_bits_equal(gemm(a, sfa, b, sfb), whole)


def rounded(n, exponent):
    """n * 2^exponent as float32, rounded once: of a long integer 26 bits and whether anything is below them."""
    more = max(0, abs(n).bit_length() - 26)
    kept = abs(n) >> more | (abs(n) & (1 << more) - 1 != 0)
    return np.float32(np.ldexp(float(kept), more + exponent) * (-1 if n < 0 else 1))


UNIT = {"float8_e4m3fn": -9, "float8_e5m2": -16}
E5M2_PAIRS = [("float8_e5m2", "float8_e5m2"), ("float8_e5m2", "float8_e4m3fn"), ("float8_e4m3fn", "float8_e5m2")]


@pytest.mark.parametrize("kinds", E5M2_PAIRS, ids="-".join)
def test_blocks_of_e5m2_are_summed_exactly_too(kinds, rng):
    """A block's products may span 71 bits, more than float64 has: large ones that cancel leave small ones, whatever stands beside them."""
    m, n = 9, 12
    a, b = (rng.integers(0, 256, (rows, 128), np.uint8).view(DTYPES[kind].numpy) for rows, kind in zip((m, n), kinds))
    a[~np.isfinite(a.astype(np.float32))], b[~np.isfinite(b.astype(np.float32))] = 1, 1
    a[:, 64:] = (-a[:, :64].astype(np.float32)).astype(a.dtype)
    b[:, 64:] = b[:, :64]
    a[:, 0], a[:, 70] = 2.0**-9, 2.0**-8
    units = [np.ldexp(x.astype(np.float64), -UNIT[kind]).astype(np.int64).astype(object) for x, kind in zip((a, b), kinds)]
    exponent = UNIT[kinds[0]] + UNIT[kinds[1]]
    expected = np.array([[rounded(int(total), exponent) for total in row] for row in units[0] @ units[1].T])
    options = {"a_dtype": DTYPES[kinds[0]], "b_dtype": DTYPES[kinds[1]]}
    d = np.empty((m, n), np.float32)
    fp8_gemm_nt_host(a, np.ones((m, 1), np.float32), b, np.ones((1, 1), np.float32), d, **options)
    assert_bits_equal(d, expected)
    alone = np.empty((1, n), np.float32)
    fp8_gemm_nt_host(a[3:4], np.ones((1, 1), np.float32), b, np.ones((1, 1), np.float32), alone, **options)
    assert_bits_equal(alone, expected[3:4])


def test_infinities_and_nans_of_e5m2_spoil_their_products_alone():
    a, b = np.ones((4, 128), ml_dtypes.float8_e5m2), np.full((3, 128), 2, ml_dtypes.float8_e5m2)
    a[0, 5], a[1, 6], b[2, 7] = np.inf, np.nan, 0.25
    a[2, 7] = -np.inf
    d = np.empty((4, 3), np.float32)
    fp8_gemm_nt_host(a, np.ones((4, 1), np.float32), b, np.ones((1, 1), np.float32), d, a_dtype=DTYPES["float8_e5m2"],
                     b_dtype=DTYPES["float8_e5m2"])  # fmt: skip
    assert (d[0] == np.inf).all() and np.isnan(d[1]).all() and (d[2] == -np.inf).all()
    assert d[3].tolist() == [256, 256, 254.25]


def test_takes_any_strides_and_either_form_of_codes_and_output():
    case = exact_problem(np.random.default_rng(0), 6, 200, 260)
    (a, sfa), (b, sfb) = case.a, case.b
    expected = gemm(a, sfa, b, sfb, BF16)
    frame = np.zeros((12, 520), np.uint8)
    frame[::2, ::2] = a.view(np.uint8)
    got = gemm(frame[::2, ::2], np.asfortranarray(sfa), np.asfortranarray(b), sfb[::-1][::-1], BF16)
    assert_bits_equal(got, expected)
    bits = np.zeros((200, 6), np.uint16).T
    fp8_gemm_nt_host(a, sfa, b, sfb, bits)
    assert_bits_equal(np.ascontiguousarray(bits).view(BF16), expected)


def test_F12_k_tail_and_n_tail():
    assert gemm(ones(1, 192), [[1, 10]], ones(128, 192), [[1, 1]])[0, 0] == 768
    frame = np.full((3, 64), -7, np.float32)
    one = np.ones((3, 1), np.float32), np.ones((1, 1), np.float32)
    fp8_gemm_nt_host(ones(3, 128), one[0], ones(40, 128), one[1], frame[:, :40])
    assert (frame[:, :40] == 128).all() and (frame[:, 40:] == -7).all()
    for n in (1, 8, 63, 64, 65, 72, 127, 129, 576, 768):
        for m in (1, 31, 32, 33):
            sfb = np.ones((-(-n // 128), 1))
            assert (gemm(ones(m, 128), np.ones((m, 1)), ones(n, 128), sfb) == 128).all()


@pytest.mark.parametrize("order", ["C", "F", "padded"])
def test_F14_scales_mean_the_same_in_any_layout(order):
    sfa = np.float32([[1, 2], [4, 8]])
    if order == "F":
        sfa = np.asfortranarray(sfa)
    elif order == "padded":
        frame = np.full((2, 4), np.nan, np.float32)
        frame[:, :2] = sfa.T
        sfa = frame[:, :2].T
    d = gemm(ones(2, 256), sfa, ones(8, 256), [[1, 1]])
    assert (d[0] == 384).all() and (d[1] == 1536).all()


@pytest.mark.parametrize("m, n, k", [(0, 8, 128), (8, 0, 128), (0, 0, 0), (3, 5, 0)])
def test_F17_empty_extents(m, n, k):
    kb = -(-k // 128)
    d = gemm(ones(m, k), np.ones((m, kb)), ones(n, k), np.ones((-(-n // 128), kb)))
    assert d.tolist() == np.zeros((m, n)).tolist()


def test_F22_stale_output_is_not_read_and_c_is_added_once():
    a, b = ones(3, 256), ones(200, 256)
    sf = np.ones((3, 2), np.float32), np.ones((2, 2), np.float32)
    assert (gemm(a, sf[0], b, sf[1], fill=np.nan) == 256).all()
    c = np.full((3, 200), 3, np.float32)
    assert (gemm(a, sf[0], b, sf[1], c=c) == 259).all()
    fp8_gemm_nt_host(a, sf[0], b, sf[1], c, c)
    assert (c == 259).all()
    # bfloat16: C is added before the one rounding, 256 + 3 = 259 -> 260.
    assert (gemm(a, sf[0], b, sf[1], BF16, np.full((3, 200), 3, BF16)) == 260).all()


def test_F22_c_in_place_over_many_tiles(monkeypatch):
    monkeypatch.setattr(host_module, "_TILE_M", 2)
    monkeypatch.setattr(host_module, "_TILE_N", 128)
    c = np.full((7, 300), 3, np.float32)
    fp8_gemm_nt_host(ones(7, 256), np.ones((7, 2), np.float32), ones(300, 256), np.ones((3, 2), np.float32), c, c)
    assert (c == 259).all()


def test_F23_output_rounding():
    top = codes(448.0, (1, 128))
    tiny = [[2.0**-10]]
    assert gemm(top, tiny, top, tiny, BF16)[0, 0] == gemm(top, tiny, top, tiny)[0, 0] == 24.5
    assert gemm(top, [[1]], top, [[1]], BF16)[0, 0] == 25690112
    for last, in_bf16 in ((3.0, 256.0), (5.0, 260.0)):  # 257 and 259: ties to even
        a = codes([[2.0] * 127 + [last]])
        assert gemm(a, [[1]], ones(1, 128), [[1]])[0, 0] == 254 + last
        assert gemm(a, [[1]], ones(1, 128), [[1]], BF16)[0, 0] == in_bf16
    huge = gemm(top, [[3e38]], top, [[1]], BF16)
    assert np.isinf(huge[0, 0].astype(np.float32))


def test_F24_small_terms_beside_a_large_one():
    a = codes([[448.0] + [2.0**-9] * 127])
    assert gemm(a, [[1]], ones(1, 128), [[1]])[0, 0] == 448.248046875


def test_promotion_has_one_rounding_a_block():
    """total = fma(scale, acc, total): scale * acc rounded by itself would be a tie, and be lost."""
    a = np.array(ones(1, 256))
    a[0, 131:] = 0  # acc of the second block is 3
    third = (2**25 + 1) // 3 * 2.0**-49  # times 3: 2^-24 * (1 + 2^-25), just over half a unit of 1
    d = gemm(a, [[2.0**-7, third]], ones(1, 256), [[1, 1]])
    assert d[0, 0] == 1 + 2.0**-23
    assert np.float32(np.float32(third) * np.float32(3)) == 2.0**-24


def test_zero_scale_drops_its_block_and_nan_codes_show():
    a, b = ones(2, 256), ones(3, 256)
    d = gemm(a, [[1, 0], [0, 0]], b, [[1, 1]])
    assert (d[0] == 128).all() and (d[1] == 0).all()
    a = np.array(a)
    a[1, 200] = np.nan
    d = gemm(a, np.ones((2, 2)), b, [[1, 1]])
    assert (d[0] == 256).all() and np.isnan(d[1]).all()


@pytest.mark.full
def test_speed_of_a_real_layer():
    """256 tokens through an 8192-wide layer: seconds of processor time."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 0x7F, (rows, 8192), dtype=np.uint8) for rows in (256, 8192))
    sfa, sfb = np.ones((256, 64), np.float32), np.ones((64, 64), np.float32)
    start = time.process_time()
    gemm(a, sfa, b, sfb, BF16)
    assert time.process_time() - start < 20
