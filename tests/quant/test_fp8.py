"""The FP8 casts: DeepGEMM's numbers, element by element, and the field cases about them."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dgnumba.dtypes import DTYPES
from dgnumba.errors import DTypeError, ProblemError
from dgnumba.quant import cast as engine
from dgnumba.quant import per_block_cast_to_fp8, per_channel_cast_to_fp8, per_custom_dims_cast_to_fp8, per_token_cast_to_fp8

E4M3 = DTYPES["float8_e4m3fn"]
CASTS = {
    "per_token": (per_token_cast_to_fp8, lambda g: (1, g)),
    "per_channel": (per_channel_cast_to_fp8, lambda g: (g, 1)),
    "per_block": (per_block_cast_to_fp8, lambda g: (g, g)),
}
every_cast = pytest.mark.parametrize("name", CASTS)
both_scales = pytest.mark.parametrize("use_ue8m0", [False, True])


def by_hand(x, granularity, use_ue8m0=False):
    """The definition, block by block and scalar by scalar, with ml_dtypes for the last step."""
    x = np.asarray(x).astype(np.float32)
    (m, n), (gm, gk) = x.shape, granularity
    codes = np.zeros((m, n), np.uint8)
    scales = np.zeros((-(-m // gm), -(-n // gk)), np.float32)
    for i, j in np.ndindex(scales.shape):
        block = np.s_[i * gm : (i + 1) * gm, j * gk : (j + 1) * gk]
        amax = max(np.float32(1e-4), np.abs(x[block]).max())
        scale = np.float32(amax / np.float32(448.0))
        if use_ue8m0:
            fraction, exponent = np.frexp(scale)
            scale = np.float32(np.ldexp(1.0, exponent - (fraction == 0.5)))
        inverse = np.float32(np.float32(1.0) / scale)
        scales[i, j] = scale
        codes[block] = (x[block] * inverse).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    return codes, scales


def assert_same(q, codes, scales):
    assert np.array_equal(codes, q.codes)
    assert np.array_equal(scales.view(np.uint32), q.scale.view(np.uint32))


@both_scales
@every_cast
@pytest.mark.parametrize(
    "shape, gran",
    [
        ((256, 384), 128),  # whole blocks
        ((128, 200), 128),  # ragged columns
        ((300, 130), 128),  # ragged rows too
        ((64, 96), 32),
        ((1, 1), 128),  # smaller than a block
        ((6, 7), 1),  # a scale for each element
    ],
)
def test_equals_the_definition(name, shape, gran, use_ue8m0):
    cast, granularity = CASTS[name]
    if name == "per_channel":
        shape = (-(-shape[0] // gran) * gran, shape[1])
    rng = np.random.default_rng(shape[1])
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-20, 20, (shape[0], 1)))
    x = x.astype(np.float32)
    q = cast(x, use_ue8m0, gran)
    assert_same(q, *by_hand(x, granularity(gran), use_ue8m0))
    assert q.data.dtype == ml_dtypes.float8_e4m3fn
    assert (q.dtype, q.granularity) == (E4M3, granularity(gran))
    assert q.data.flags.c_contiguous and q.scale.flags.c_contiguous


def test_chunks_do_not_show(monkeypatch):
    x = np.random.default_rng(0).standard_normal((300, 200)).astype(np.float32)
    whole = per_block_cast_to_fp8(x)
    monkeypatch.setattr(engine, "_CHUNK_HOST", 1)
    assert_same(per_block_cast_to_fp8(x), whole.codes, whole.scale)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_float_types_are_taken_as_float32(dtype):
    x = np.random.default_rng(0).standard_normal((5, 200)).astype(DTYPES[dtype].numpy)
    expected = per_token_cast_to_fp8(x.astype(np.float32))
    assert_same(per_token_cast_to_fp8(x), expected.codes, expected.scale)


@both_scales
def test_F01_zero_blocks_have_zero_codes_and_a_finite_scale(use_ue8m0):
    w = np.zeros((256, 256), np.float32)
    w[0, 0] = 1
    q = per_block_cast_to_fp8(w, use_ue8m0)
    assert np.flatnonzero(q.codes).tolist() == [0]
    assert q.codes[0, 0] == (0x78 if use_ue8m0 else 0x7E)
    assert q.scale[0, 0] == (2.0**-8 if use_ue8m0 else np.float32(1 / 448))
    assert ((q.scale > 0) & np.isfinite(q.scale)).all()
    assert not q.dequantize()[128:].any() and not q.dequantize()[:, 128:].any()
    for zero in (np.zeros((1, 128), np.float32), np.zeros((256, 256), np.float32)):
        q = per_token_cast_to_fp8(zero, use_ue8m0)
        assert not q.codes.any() and not q.dequantize().any() and (q.scale > 0).all()


@pytest.mark.parametrize("x", [2.0**-120, 2.0**-140])
def test_F02_below_the_amax_floor_everything_is_zero(x):
    row = np.full((1, 128), x, np.float32)
    assert not per_token_cast_to_fp8(row).codes.any()
    q = per_token_cast_to_fp8(row, use_ue8m0=True)
    assert not q.codes.any() and q.scale.tolist() == [[2.0**-22]]


def test_F02_half_precision_input_is_scaled_in_float32():
    row = np.zeros((1, 128), np.float16)
    row[0, 2:4] = 0.001
    q = per_token_cast_to_fp8(row)
    assert q.scale.tolist() == [[2.233045506727649e-06]]
    assert q.codes[0, :5].tolist() == [0, 0, 0x7E, 0x7E, 0]


def test_F05_data_is_divided_by_the_rounded_scale():
    x = np.full((1, 128), 0.5, np.float32)
    x[0, 0] = 1.0
    q = per_token_cast_to_fp8(x, use_ue8m0=True)
    assert q.scale.tolist() == [[2.0**-8]]
    assert q.codes[0, :2].tolist() == [0x78, 0x70]
    assert np.array_equal(x, q.dequantize())


def test_F06_power_of_two_scale_does_not_clip():
    q = per_token_cast_to_fp8(np.full((1, 128), 560, np.float32), use_ue8m0=True)
    assert (q.scale[0, 0], q.codes[0, 0], q.dequantize()[0, 0]) == (2.0, 0x79, 576.0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_F07_what_is_not_finite_poisons_its_own_block_alone(bad):
    x = np.concatenate([np.ones(128), np.full(128, 2.0)]).astype(np.float32)[None]
    clean = per_token_cast_to_fp8(x)
    x[0, 5] = bad
    q = per_token_cast_to_fp8(x)
    assert np.isnan(q.dequantize()[0, :128]).all()
    assert_same(per_token_cast_to_fp8(x[:, 128:]), clean.codes[:, 128:], clean.scale[:, 1:])
    assert np.array_equal(clean.codes[:, 128:], q.codes[:, 128:])
    assert q.scale[0, 1] == clean.scale[0, 1]
    # With a power-of-two scale, as DeepGEMM: the scale is 2^127, the culprit NaN, the others zero.
    q = per_token_cast_to_fp8(x, use_ue8m0=True)
    assert q.scale[0, 0] == 2.0**127
    assert np.flatnonzero(np.isnan(q.data.astype(np.float32))[0]).tolist() == [5]
    assert np.flatnonzero(q.codes[0, :128]).tolist() == [5]


def test_F09_multiplies_by_the_reciprocal():
    x = np.zeros((1, 128), np.float32)
    x[0, :2] = 1.0, float.fromhex("0x1.092494p-1")
    assert per_token_cast_to_fp8(x).codes[0, 1] == 0x76  # a division gives 0x77


@every_cast
def test_F13_any_strides(name):
    cast, _ = CASTS[name]
    i, j = np.ogrid[:128, :256]
    base = ((3 * i + 5 * j) % 17 - 8).astype(np.float32)
    fixed = base.copy()
    fixed.flags.writeable = False
    views = [
        base[:, ::2],
        base.T,
        base[::-1],
        np.broadcast_to(base[0], (128, 256)),
        np.asfortranarray(base),
        fixed,
    ]
    before = base.copy()
    for view in views:
        expected = cast(np.ascontiguousarray(view))
        assert_same(cast(view), expected.codes, expected.scale)
    assert np.array_equal(before, base)


@every_cast
def test_F17_no_rows_or_no_columns(name):
    cast, granularity = CASTS[name]
    gm, gk = granularity(128)
    for shape in ((0, 256), (128, 0), (0, 0)):
        q = cast(np.zeros(shape, np.float32))
        assert q.shape == shape
        assert q.scale.shape == (-(-shape[0] // gm), -(-shape[1] // gk))
        assert q.data.dtype == ml_dtypes.float8_e4m3fn and q.scale.dtype == np.float32


def test_F38_subnormals_and_the_floating_point_mode():
    x = np.full((1, 128), 1e-40, np.float32)
    assert x[0, 0] != 0
    x[0, 0] = 1.0
    assert per_token_cast_to_fp8(x).codes[0].tolist() == [0x7E] + [0] * 127
    assert not per_token_cast_to_fp8(np.full((1, 128), 1e-40, np.float32)).codes.any()
    assert np.float32(2.0**-126) / np.float32(2) != 0


values = st.floats(width=32, allow_nan=False, allow_infinity=False)
matrices = arrays.arrays(np.float32, arrays.array_shapes(min_dims=2, max_dims=2, max_side=12), elements=values)


@settings(deadline=None)
@given(matrices, st.sampled_from([1, 2, 5, 128]), st.booleans())
def test_any_matrix(x, gran, use_ue8m0):
    q = per_block_cast_to_fp8(x, use_ue8m0, gran)
    assert_same(q, *by_hand(x, (gran, gran), use_ue8m0))


@settings(deadline=None)
@given(matrices, st.booleans())
def test_error_of_each_element_is_within_the_bound(x, use_ue8m0):
    x = np.clip(x, -1e30, 1e30)
    q = per_token_cast_to_fp8(x, use_ue8m0)
    scale = np.repeat(q.scale.astype(np.float64), 128, axis=1)[:, : x.shape[1]]
    error = np.abs(q.dequantize("float64") - x)
    # Half a step of a normal or of a subnormal; and the float32 roundings before the cast.
    u = E4M3.unit_roundoff
    bound = np.maximum(np.abs(x) * (u / (1 + u)), E4M3.min_subnormal / 2 * scale)
    assert (error <= bound + np.abs(x) * 2.0**-23).all()


@settings(deadline=None)
@given(matrices, st.integers(-20, 20))
def test_symmetries(x, power):
    x = np.clip(x, -1e20, 1e20)
    x[:, 0] = 1.0  # holds amax off the floor
    q = per_token_cast_to_fp8(x)
    assert_same(per_token_cast_to_fp8(-x), q.codes ^ 0x80, q.scale)
    up = per_token_cast_to_fp8(np.ldexp(x, 20), use_ue8m0=True)
    q = per_token_cast_to_fp8(x, use_ue8m0=True)
    assert_same(up, q.codes, np.ldexp(q.scale, 20))
    again = per_token_cast_to_fp8(q.dequantize(), use_ue8m0=True)
    assert np.array_equal(q.dequantize(), again.dequantize())
    order = np.argsort(x, axis=1)
    assert (np.diff(np.take_along_axis(q.dequantize(), order, axis=1), axis=1) >= 0).all()


@every_cast
def test_refuses(name):
    cast, _ = CASTS[name]
    ok = np.ones((128, 128), np.float32)
    with pytest.raises(DTypeError, match=r"x: expected an array .*, got list"):
        cast(ok.tolist())
    with pytest.raises(DTypeError, match=r"x: expected float16, bfloat16, .*, got int64"):
        cast(ok.astype(np.int64))
    with pytest.raises(DTypeError, match="got float8_e4m3fn"):
        cast(ok.astype(ml_dtypes.float8_e4m3fn))
    with pytest.raises(ProblemError, match=r"x: expected rank 2, \[m, n\], got \[128\]"):
        cast(ok[0])
    with pytest.raises(ProblemError, match=r"x: expected rank 2, \[m, n\], got \[1, 128, 128\]"):
        cast(ok[None])
    with pytest.raises(ProblemError, match="gran_k: expected 1 or more, got 0"):
        cast(ok, gran_k=0)


def test_per_channel_refuses_ragged_rows():
    with pytest.raises(ProblemError, match="expected rows in multiples of gran_k = 128, got 130"):
        per_channel_cast_to_fp8(np.ones((130, 4), np.float32))


@pytest.mark.parametrize("shape", [(300, 1000), (1024, 512)])  # ragged, and whole blocks
@pytest.mark.parametrize("name", CASTS)
def test_the_compiled_form_gives_the_same_bits(name, shape, monkeypatch):
    cast, _ = CASTS[name]
    rng = np.random.default_rng(1)
    gran = 100 if name == "per_channel" and shape[0] % 128 else 128
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-30, 30, (shape[0], 1)))
    x = x.astype(np.float32)
    x[5, 7], x[250, 300], x[260, 3] = np.nan, np.inf, -0.0
    for use_ue8m0 in (False, True):
        monkeypatch.setattr(engine, "_COMPILED", 1)
        compiled = cast(x, use_ue8m0, gran)
        monkeypatch.setattr(engine, "_COMPILED", x.size + 1)
        assert_same(cast(x, use_ue8m0, gran), compiled.codes, compiled.scale)


@pytest.mark.parametrize("dims", [(0,), (1,), (2,), (0, 2), (2, 0), (0, 1, 2), ()])
@both_scales
def test_custom_dims(dims, use_ue8m0):
    x = np.random.default_rng(0).standard_normal((3, 40, 1)).astype(np.float32) * np.float32([1, 100, 1e-6])[:, None, None]
    data, scale = per_custom_dims_cast_to_fp8(x, dims, use_ue8m0)
    others = tuple(axis for axis in range(3) if axis not in dims)
    amax = np.maximum(np.abs(x).max(axis=others, keepdims=True), np.float32(1e-4))
    expected = amax / np.float32(448)
    if use_ue8m0:
        expected = np.exp2(np.ceil(np.log2(expected.astype(np.float64)))).astype(np.float32)
    assert np.array_equal(expected.squeeze(), scale) and scale.shape == expected.squeeze().shape
    codes = (x * (np.float32(1) / expected)).astype(ml_dtypes.float8_e4m3fn)
    assert np.array_equal(codes.view(np.uint8), data.view(np.uint8))
    assert data.shape == x.shape and data.flags.c_contiguous


def test_custom_dims_of_other_ranks_and_of_nothing():
    data, scale = per_custom_dims_cast_to_fp8(np.array(448.0, np.float32), ())
    assert (data.shape, scale.shape, float(scale)) == ((), (), 1.0)
    data, scale = per_custom_dims_cast_to_fp8(np.zeros((3, 0), np.float32), (0,))
    assert data.shape == (3, 0) and scale.tolist() == [np.float32(1e-4) / np.float32(448)] * 3
    for dims in ((2,), (-1,), (0, 0)):
        with pytest.raises(ProblemError, match="dims: expected axes from 0 to 1, each once"):
            per_custom_dims_cast_to_fp8(np.zeros((3, 4), np.float32), dims)


def test_packed_scales_are_four_to_an_int32_filled_up_with_one():
    x = np.ones((2, 5 * 128), np.float32) * np.repeat(np.float32([1, 2, 4, 8, 448]), 128)
    q = per_token_cast_to_fp8(x, use_ue8m0=True, use_packed_ue8m0=True)
    exponents = [119, 120, 121, 122, 127, 127, 127, 127]  # 2^-8, 2^-7, ... and 1 for 448; 1.0 behind
    assert q.scale.view(np.uint8).reshape(2, 8).tolist() == [exponents] * 2
    plain = per_token_cast_to_fp8(x, use_ue8m0=True)
    assert np.array_equal(plain.codes, q.codes) and np.array_equal(plain.scale, q.scales)
    assert np.array_equal(x, q.dequantize())
    assert repr(q) == "QTensor(float8_e4m3fn [2, 640], scale float8_e8m0fnu [2, 2], one per 1x128, four to an int32)"
    with pytest.raises(ProblemError, match="use_packed_ue8m0: expected use_ue8m0 with it"):
        per_token_cast_to_fp8(x, use_packed_ue8m0=True)
