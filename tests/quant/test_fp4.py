"""per_token_cast_to_fp4: DeepGEMM's numbers, element by element, and its packing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dgnumba.dtypes import DTYPES
from dgnumba.errors import DTypeError, ProblemError
from dgnumba.quant import cast as engine
from dgnumba.quant import cast_back_from_fp4, per_token_cast_to_fp4, quantize

E2M1 = DTYPES["float4_e2m1fn"]
LEVELS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
both_scales = pytest.mark.parametrize("use_ue8m0", [False, True])


def by_hand(x, gran, use_ue8m0):
    """Codes and scales by the words of deepgemm.md 2.2, scalar by scalar."""
    x = np.asarray(x).astype(np.float32)
    codes = np.zeros(x.shape, np.uint8)
    scales = np.zeros((x.shape[0], -(-x.shape[1] // gran)), np.float32)
    for r, g in np.ndindex(scales.shape):
        group = np.s_[r, g * gran : (g + 1) * gran]
        scale = np.float32(max(np.float32(1e-4), np.abs(x[group]).max()) / np.float32(6))
        if use_ue8m0:
            fraction, exponent = np.frexp(scale)
            scale = np.float32(np.ldexp(1.0, exponent - (fraction == 0.5)))
        scales[r, g] = scale
        for c, y in enumerate(x[group] * (np.float32(1) / scale), g * gran):
            code = sum(abs(y) > (low + high) / 2 for low, high in zip(LEVELS, LEVELS[1:]))
            codes[r, c] = code | (8 if y < 0 and code else 0)
    return codes, scales


def assert_same(q, codes, scales):
    assert np.array_equal(codes, q.codes)
    assert np.array_equal(codes[:, ::2] | codes[:, 1::2] << 4, q.data.view(np.uint8))
    assert np.array_equal(scales.view(np.uint32), q.scales.view(np.uint32))


@both_scales
@pytest.mark.parametrize("shape, gran", [((4, 256), 128), ((3, 200), 128), ((5, 70), 32), ((2, 6), 3), ((1, 2), 128)])
def test_equals_the_definition(shape, gran, use_ue8m0):
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-20, 20, (shape[0], 1)))
    x[0] = rng.integers(-24, 25, shape[1]) * 0.25  # ties
    q = per_token_cast_to_fp4(x.astype(np.float32), use_ue8m0, gran)
    assert_same(q, *by_hand(x, gran, use_ue8m0))
    assert (q.data.dtype, q.shape, q.granularity, q.dtype) == (np.int8, shape, (1, gran), E2M1)


@given(
    arrays.arrays(
        np.float32,
        st.tuples(st.integers(1, 4), st.integers(1, 6).map(lambda n: 2 * n)),
        elements=st.floats(-(2.0**100), 2.0**100, width=32),
    ),
    st.sampled_from([1, 2, 5, 32]),
    st.booleans(),
)
def test_any_matrix(x, gran, use_ue8m0):
    assert_same(per_token_cast_to_fp4(x, use_ue8m0, gran), *by_hand(x, gran, use_ue8m0))


def test_ties_go_toward_zero_and_minus_zero_becomes_zero():
    ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -0.25, -0.75, -5.0, -0.0, 6.0]
    q = per_token_cast_to_fp4(np.float32([ties]))
    assert q.dequantize()[0].tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 0, -0.5, -4, 0, 6]
    assert q.codes[0, [7, 10]].tolist() == [0, 0]
    assert quantize(np.float32([ties]), "mxfp4").dequantize()[0].tolist() == [0, 1, 1, 2, 2, 4, 4, 0, -1, -4, 0, 6]


def test_packed_scales():
    x = np.ones((2, 6 * 32), np.float32)
    q = per_token_cast_to_fp4(x, use_ue8m0=True, gran_k=32, use_packed_ue8m0=True)
    assert q.scale.view(np.uint8).tolist() == [[125] * 6 + [127] * 2] * 2  # 2^-2 >= 1/6
    assert np.array_equal(q.dequantize(), x) and q.packing == "low_first"
    with pytest.raises(ProblemError, match="use_packed_ue8m0: expected use_ue8m0 with it"):
        per_token_cast_to_fp4(x, use_packed_ue8m0=True)


@both_scales
def test_casts_back(use_ue8m0):
    x = np.random.default_rng(0).standard_normal((3, 100)).astype(np.float32)
    q = per_token_cast_to_fp4(x, use_ue8m0, 32)
    assert np.array_equal(cast_back_from_fp4(q.data, q.scale, 32), q.dequantize())
    assert np.array_equal(cast_back_from_fp4(q.data.view(np.uint8), q.scale, 32), q.dequantize())
    packed = per_token_cast_to_fp4(x, True, 32, True)
    assert np.array_equal(cast_back_from_fp4(*packed, 32), per_token_cast_to_fp4(x, True, 32).dequantize())


@pytest.mark.filterwarnings("error")
def test_F07_what_is_not_finite_poisons_its_own_block_alone():
    x = np.ones((1, 64), np.float32)
    clean = per_token_cast_to_fp4(x, gran_k=32)
    for bad in (np.nan, np.inf, -np.inf):
        x[0, 5] = bad
        q = per_token_cast_to_fp4(x, gran_k=32)
        assert np.isnan(q.dequantize()[0, :32]).all()
        assert np.array_equal(q.dequantize()[0, 32:], clean.dequantize()[0, 32:])


def test_F01_zeros_and_no_rows():
    q = per_token_cast_to_fp4(np.zeros((2, 64), np.float32))
    assert not q.codes.any() and q.scale.tolist() == [[np.float32(1e-4) / np.float32(6)]] * 2
    assert per_token_cast_to_fp4(np.zeros((0, 64), np.float32)).data.shape == (0, 32)


def test_refusals():
    with pytest.raises(ProblemError, match="x: expected an even number of columns, two to a byte, got 63"):
        per_token_cast_to_fp4(np.ones((2, 63), np.float32))
    with pytest.raises(ProblemError, match=r"x: expected rank 2, \[m, n\], got \[64\]"):
        per_token_cast_to_fp4(np.ones(64, np.float32))
    with pytest.raises(DTypeError, match="x: expected float16"):
        per_token_cast_to_fp4(np.ones((2, 64), int))
    with pytest.raises(ProblemError, match="gran_k: expected 1 or more, got 0"):
        per_token_cast_to_fp4(np.ones((2, 64), np.float32), gran_k=0)
    with pytest.raises(DTypeError, match=r"packed: expected int8 or uint8 \[m, n / 2\], got int32 \[2, 2\]"):
        cast_back_from_fp4(np.ones((2, 2), np.int32), np.ones((2, 1), np.float32))


@both_scales
def test_the_compiled_form_gives_the_same_bits(use_ue8m0, monkeypatch):
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((300, 200)) * np.exp2(rng.integers(-30, 30, (300, 1)))).astype(np.float32)
    x[0] = rng.integers(-24, 25, 200) * 0.25  # ties
    x[1, 7], x[2, 9], x[3, 150], x[4] = np.nan, np.inf, -np.inf, -0.0
    monkeypatch.setattr(engine, "_COMPILED", 1)
    compiled = per_token_cast_to_fp4(x, use_ue8m0, 48)
    monkeypatch.setattr(engine, "_COMPILED", x.size + 1)
    assert_same(compiled, per_token_cast_to_fp4(x, use_ue8m0, 48).codes, per_token_cast_to_fp4(x, use_ue8m0, 48).scales)
