"""quantize: every format by its definition, in scalars; stacks, parts, given scales, seeds; and what is refused."""

import ml_dtypes
import numpy as np
import pytest
from quant.every_format import EVERY_FORMAT, name_of

from dgnumba.dtypes import DTYPES
from dgnumba.errors import DTypeError, ProblemError
from dgnumba.quant import MXFP4, NVFP4, Format, cast, int4_format, quantize, report, uint4_format
from dgnumba.testing.quantizers import assert_same

every_format = pytest.mark.parametrize("form", EVERY_FORMAT, ids=name_of)
F32 = np.float32


def spread_out(shape, seed=0):
    """Rows of magnitudes from 2^-12 to 2^12, with a row of zeros and some elements of one alone."""
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(shape) * np.exp2(rng.integers(-12, 13, (*shape[:-1], 1)))).astype(np.float32)
    x[..., 0, :] = 0
    return x


def stored(scale, dtype):
    """The scale that is kept: to nearest, below the normal range up, never 0 or too large."""
    scale = max(F32(abs(scale)), F32(max(dtype.min_subnormal, 2.0**-126))) * (-1 if scale < 0 else 1)
    if dtype.name == "float32":
        return F32(scale)
    if abs(scale) < dtype.min_normal:
        return F32(np.sign(scale) * np.ceil(abs(scale) / dtype.min_subnormal) * dtype.min_subnormal)
    return F32(F32(np.clip(scale, -dtype.max, dtype.max)).astype(dtype.numpy))


def block_by_hand(block, form, whole):
    """Codes, scale and zero point of one block, one scalar operation after another."""
    row, lowest, highest = form.dtype, min(F32(0), block.min()), max(F32(0), block.max())
    amax = max(-lowest, highest)
    if form.scale_dtype.name == "float8_e8m0fnu":
        exact, emax = amax / F32(row.max), int(np.floor(np.log2(row.max)))
        if form.rule == "even":
            fraction, exponent = np.frexp(np.float64(amax))
            amax = np.ldexp(np.floor(fraction * 2 ** (row.mantissa + 1) + 0.5) / 2 ** (row.mantissa + 1), exponent)
        power = {"rceil": exact, "floor": amax, "ceil": amax, "even": amax}[form.rule]
        if power == 0:
            scale = F32(2.0**-127)
        else:
            log = (np.ceil if form.rule in ("rceil", "ceil") else np.floor)(np.log2(np.float64(power)))
            scale = F32(2.0 ** max(log - (0 if form.rule == "rceil" else emax), -127))
    elif form.rule == "extremum/-8":
        scale = stored((lowest if -lowest >= highest else highest) / F32(-8), form.scale_dtype)
    elif form.rule == "minmax":
        scale = stored(F32(highest - lowest) / F32(15), form.scale_dtype)
    else:
        divisor = {"amax": row.max, "amax/7": 7, "amax/7.5": 7.5}[form.rule]
        scale = amax / F32(divisor) if whole is None else F32(amax / F32(divisor)) / whole
        scale = stored(scale, form.scale_dtype)
    total = scale if whole is None else F32(scale * whole)
    inverse = F32(1) / total
    zero = F32(np.clip(np.rint(-lowest * inverse), 0, 15)) if form.rule == "minmax" else None
    y = (block * inverse).astype(np.float32)
    if row.is_float:
        codes = np.clip(y, F32(-row.max), F32(row.max)).astype(row.numpy).view(np.uint8)
    else:
        codes = (np.clip(np.rint(y) + (zero or 0), row.min, row.max).astype(np.int32) & ((1 << row.bits) - 1)).astype(np.uint8)
    return codes, scale, zero


@every_format
@pytest.mark.parametrize("shape", [(9, 70), (4, 256), (1, 1)])
def test_equals_the_definition(form, shape):
    x = spread_out(shape)
    q = quantize(x, form)
    gm, gk = form.blocks(*shape)
    whole = None
    if form.has_global_scale:
        whole = max(np.abs(x).max() / F32(448 * form.dtype.max), F32(2.0**-100))
        assert q.global_scale == whole and q.global_scale.dtype == np.float32
    for i, j in np.ndindex(*q.scale.shape):
        part = np.s_[i * gm : (i + 1) * gm, j * gk : (j + 1) * gk]
        codes, scale, zero = block_by_hand(x[part], form, whole)
        assert q.scales[i, j] == scale
        assert zero is None or q.zero_point[i, j] == zero
        assert np.array_equal(codes, q.codes[part])
    assert q.granularity == (gm, gk) and q.dtype is form.dtype and q.scale_dtype is form.scale_dtype
    assert q.data.dtype == form.dtype.numpy and q.scale.dtype == form.scale_dtype.numpy


@every_format
def test_the_compiled_form_and_the_size_of_a_chunk_do_not_show(form, monkeypatch):
    x = spread_out((300, 330))
    x[7, 9], x[8, 100], x[200, 300] = np.nan, np.inf, -np.inf
    x.view(np.uint32)[100:110] = np.random.default_rng(1).integers(0, 1 << 32, (10, 330), dtype=np.uint32)
    monkeypatch.setattr(cast, "_COMPILED", x.size + 1)
    expected = quantize(x, form)
    for compiled, chunk in ((x.size + 1, 999), (1, 1 << 18), (1, 999)):
        monkeypatch.setattr(cast, "_COMPILED", compiled)
        monkeypatch.setattr(cast, "_CHUNK_HOST", chunk)
        assert_same(quantize(x, form), expected, f"compiled from {compiled}, chunks of {chunk}")


@every_format
def test_a_stack_is_its_matrices(form):
    x = spread_out((2, 3, 5, 40))
    q = quantize(x, form)
    assert q.shape == x.shape
    for i in np.ndindex(2, 3):
        assert_same(q.matrix(i), quantize(x[i], form), str(i))


@every_format
def test_F17_no_rows_no_columns_no_matrices(form):
    for shape in ((0, 256), (4, 0), (0, 0), (0, 3, 5), (2, 0, 5)):
        q = quantize(np.zeros(shape, np.float32), form)
        assert q.shape == shape and q.dequantize().shape == shape
        assert q.data.dtype == form.dtype.numpy


@pytest.mark.parametrize("name", ["mxfp8", "nvfp4", "int4_g128", "uint4_g32", "int8_row"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_float_types_are_taken_as_float32(name, dtype):
    x = spread_out((5, 200)).astype(DTYPES[dtype].numpy)
    assert_same(quantize(x, name), quantize(x.astype(np.float32), name), dtype)


@every_format
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_F07_what_is_not_finite_poisons_its_own_block_alone(form, bad):
    x = np.random.default_rng(0).standard_normal((12, 140)).astype(np.float32)
    clean = quantize(x, form)
    x[11, 139] = bad
    q = quantize(x, form, global_scale=clean.global_scale) if form.has_global_scale else quantize(x, form)
    own = np.zeros(q.scale.shape, bool)
    own[-1, -1] = True
    own = q.spread(own.astype(float)) > 0
    assert np.isnan(q.dequantize()[own]).all()
    assert np.array_equal(q.dequantize()[~own], clean.dequantize()[~own])
    assert np.isnan(q.scales[-1, -1]) and np.isfinite(q.scales.ravel()[:-1]).all()


def test_F07_a_poisoned_block_leaves_the_global_scale_to_the_others():
    x = np.ones((2, 32), np.float32)
    x[1, 20] = np.inf
    q = quantize(x, NVFP4)
    assert q.global_scale == F32(1) / F32(2688)
    assert np.isnan(q.dequantize()).sum() == 16


@every_format
def test_F01_zeros_stay_zeros_with_a_finite_scale(form):
    q = quantize(np.zeros((6, 150), np.float32), form)
    assert not q.dequantize().any() and (q.block_scales > 0).all() and np.isfinite(q.block_scales).all()


@pytest.mark.parametrize("x, byte, code", [(2.0**-120, 0, 0x70), (2.0**-140, 0, 0x00)])
def test_F02_the_general_rule_goes_down_to_2_to_the_minus_127(x, byte, code):
    q = quantize(np.full((1, 32), x, np.float32), "mxfp8")
    assert (q.scale.view(np.uint8)[0, 0], *set(q.codes.ravel().tolist())) == (byte, code)
    assert q.dequantize()[0, 0] == (x if code else 0)


def test_F02_half_precision_input_is_scaled_in_float32():
    row = np.zeros((1, 128), np.float16)
    row[0, 2:4] = 0.001
    q = quantize(row, "fp8_1x128")
    assert q.scale.tolist() == [[2.233045506727649e-06]] and q.codes[0, :5].tolist() == [0, 0, 0x7E, 0x7E, 0]


@pytest.mark.parametrize("form", ["fp8_row", "mxfp8", "mxfp4", "nvfp4", "int4_row", "uint4_row", "int8_row"])
@pytest.mark.parametrize("x", [2.0**-149, 1e-40, 2.0**-126, 1e38, 3.4028235e38])
def test_F02_the_smallest_and_the_largest_stay_finite(form, x):
    row = np.full((2, 32), x, np.float32)
    row[1] *= -1
    values = quantize(row, form).dequantize("float64")
    assert np.isfinite(values).all()
    error = np.abs(values - row).max()
    assert error <= (0.2 * x if x > 1e-30 else 2.0**-100)


def test_F03_a_given_scale_saturates():
    x = F32([[447, 448, 449, 464, 465, 1000, 1e30, -1000]])
    q = quantize(x, "fp8_row", scale=F32([[1.0]]))
    assert q.codes.tolist() == [[0x7E] * 7 + [0xFE]] and q.scale.tolist() == [[1.0]]
    assert quantize(x, "int8_row", scale=1.0).dequantize()[0].tolist() == [127.0] * 7 + [-128.0]


def test_given_scales():
    x = spread_out((4, 64))
    for form in ("fp8_1x32", "mxfp4", "int4_g32", "uint4_g32"):
        q = quantize(x, form)
        assert_same(quantize(x, form, scale=q.scale), q, str(form))
        assert_same(quantize(x, form, scale=q.scales), q, str(form))
    q = quantize(x, NVFP4)
    assert_same(quantize(x, NVFP4, scale=q.scale, global_scale=q.global_scale), q, "nvfp4")
    x[1, 1] = np.nan
    assert np.isnan(quantize(x, "fp8_row", scale=np.ones((4, 1), np.float32)).scale[1, 0])


@pytest.mark.parametrize(
    "form, scale, error, message",
    [
        ("mxfp4", 1.5, ProblemError, "scale: expected scales that float8_e8m0fnu holds exactly, got 1.5"),
        ("fp8_row", np.ones((2, 2)), ProblemError, r"scale: expected \[4, 1\], one for each block, or a single one, got \[2, 2\]"),
        ("fp8_row", 0.0, ProblemError, r"scale: expected finite scales of 2\^-127 or more, got 0 at \[0, 0\]"),
        ("fp8_row", F32([[1], [1], [-3.4028235e38], [1]]), ProblemError, r"got -3.40282e\+38 at \[2, 0\]"),
        ("fp8_row", np.nan, ProblemError, "got nan"),
        ("fp8_row", np.full((4, 1), np.inf), ProblemError, "got inf"),
        ("fp8_row", np.array(["a"]), DTypeError, "scale: expected floats, got <U1"),
    ],
)
def test_F10_scales_that_are_none_are_refused(form, scale, error, message):
    with pytest.raises(error, match=message):
        quantize(np.ones((4, 32), np.float32), form, scale=scale)


def test_F06_a_block_of_560_is_not_clipped():
    q = quantize(np.full((1, 32), 560, np.float32), "mxfp8")
    assert (float(q.scales[0, 0]), q.codes[0, 0], q.dequantize()[0, 0]) == (2.0, 0x79, 576.0)
    assert quantize(np.full((1, 32), 560, np.float32), MXFP4.with_rule("floor")).dequantize()[0, 0] == 512.0


def test_F05_data_is_divided_by_the_scale_that_is_stored():
    x = np.full((1, 32), 0.5, np.float32)
    x[0, 0] = 1.0
    assert np.array_equal(quantize(x, "mxfp8").dequantize(), x)
    q = quantize(np.full((1, 128), 1.003, np.float32), int4_format(128, scale_dtype="float16"))
    assert q.dequantize()[0, 0] == 7 * np.float16(F32(1.003) / F32(7)).astype(np.float32)


def test_F09_multiplies_by_the_reciprocal():
    x = np.zeros((1, 128), np.float32)
    x[0, :2] = 1.0, float.fromhex("0x1.092494p-1")
    assert quantize(x, "fp8_row").codes[0, 1] == 0x76  # a division gives 0x77


@every_format
def test_F13_any_strides(form):
    i, j = np.ogrid[:128, :256]
    base = ((3 * i + 5 * j) % 17 - 8).astype(np.float32)
    fixed = base.copy()
    fixed.flags.writeable = False
    before = base.copy()
    for view in (base[:, ::2], base.T, base[::-1], np.broadcast_to(base[0], (4, 256)), np.asfortranarray(base), fixed):
        assert_same(quantize(view, form), quantize(np.ascontiguousarray(view), form), str(view.strides))
    assert np.array_equal(before, base)


def test_F27_groups_that_do_not_divide_the_columns():
    x = np.repeat(F32([7, 21]), [128, 64])[None]
    q = quantize(x, "int4_g128")
    assert q.scale.tolist() == [[1, 3]] and np.array_equal(q.dequantize(), x)
    assert quantize(x, "int4_row").scale.tolist() == [[3]]
    assert quantize(np.ones((2, 3), np.float32), "int4_g16").scale.shape == (2, 1)


def test_F38_subnormals_beside_larger_ones_are_zero():
    x = np.full((1, 128), 1e-40, np.float32)
    x[0, ::32] = 1.0
    for form in ("fp8_row", "mxfp8", "mxfp4", "int4_g128", "int8_row"):
        assert set(np.flatnonzero(quantize(x, form).codes)) == {0, 32, 64, 96}


def test_nvfp4_in_parts_with_the_global_scale_of_the_whole():
    x = spread_out((40, 64))
    whole = quantize(x, NVFP4)
    for scale in (whole.global_scale, np.float64(whole.global_scale), float(whole.global_scale)):
        parts = [quantize(x[r : r + 8], NVFP4, global_scale=scale) for r in range(0, 40, 8)]
        assert np.array_equal(np.concatenate([part.codes for part in parts]), whole.codes)
        assert np.array_equal(np.concatenate([part.scales for part in parts]), whole.scales)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf, 1e-38])
def test_global_scales_that_are_none_are_refused(bad):
    with pytest.raises(ProblemError, match="global_scale: expected 2"):
        quantize(np.ones((1, 16), np.float32), NVFP4, global_scale=bad)


def test_other_refusals():
    x = np.ones((4, 32), np.float32)
    for bad, message in ((x.tolist(), "x: expected an array"), (x.astype(int), "x: expected float16, .* got int64"), (x > 0, "got bool")):
        with pytest.raises(DTypeError, match=message):
            quantize(bad, "mxfp4")
    with pytest.raises(ProblemError, match=r"x: expected rank 2 or more, \[..., rows, columns\], got \[32\]"):
        quantize(x[0], "mxfp4")
    with pytest.raises(ProblemError, match="format: expected one of"):
        quantize(x, "fp5")
    with pytest.raises(ProblemError, match="global_scale: expected None, mxfp4 has none"):
        quantize(x, "mxfp4", global_scale=1.0)
    with pytest.raises(ProblemError, match=r"global_scale: expected float32 or float64, one or \[\], got float16"):
        quantize(x, "nvfp4", global_scale=np.float16(1))
    with pytest.raises(ProblemError, match="rounding: expected nearest or stochastic, got ties_to_zero"):
        quantize(x, "mxfp4", rounding="ties_to_zero")
    for options, message in (
        ({"rounding": "stochastic"}, "seed: expected an integer for stochastic rounding, got None"),
        ({"seed": 1}, "seed: expected None for rounding to nearest, got 1"),
        ({"search": True, "scale": 1.0}, "search: expected no scale of your own"),
        ({"search": True, "rounding": "stochastic", "seed": 1}, "search: expected .* rounding to nearest"),
    ):
        with pytest.raises(ProblemError, match=message):
            quantize(x, "mxfp4", **options)


STOCHASTIC = ["fp8_1x128", "mxfp8", "mxfp4", "nvfp4", "int4_g32", "uint4_g32", "int8_row"]


@pytest.mark.parametrize("form", STOCHASTIC)
def test_stochastic_rounding_is_right_in_the_mean(form):
    x = np.tile(np.random.default_rng(0).uniform(-1, 1, (1, 128)), (4000, 1)).astype(np.float32)
    x[:, 0] = 1.5  # the same amax, so that the same scale, and inside the range
    q = quantize(x, form, rounding="stochastic", seed=5)
    nearest = quantize(x[:1], form)
    error = q.dequantize("float64") - x
    low, high = error.min(axis=0), error.max(axis=0)
    within = (low <= 0) & (high >= 0)  # the others lie beyond the range: they clip
    assert within.mean() > 0.9  # NVFP4 rounds its scales: the largest of some blocks clips
    # Five standard deviations of the mean of 4000 draws, one at most half the gap wide.
    assert (np.abs(error.mean(axis=0)) <= 5 * (high - low) / 2 / np.sqrt(4000) + 2.0**-20)[within].all()
    assert (nearest.dequantize("float64") - x[:1]).any() and len(np.unique(q.codes[:, 1])) <= 2
    assert np.array_equal(q.scales, np.broadcast_to(nearest.scales, q.scales.shape))


@pytest.mark.parametrize("form", STOCHASTIC)
def test_stochastic_rounding_takes_a_neighbour_and_keeps_what_is_exact(form):
    x = np.random.default_rng(0).standard_normal((50, 128)).astype(np.float32)
    q = quantize(x, form, rounding="stochastic", seed=1)
    from dgnumba.quant import element_bound

    assert (np.abs(q.dequantize("float64") - x) <= element_bound(x, q, "stochastic")).all()
    if form in ("mxfp8", "mxfp4"):
        values = q.dequantize()
        again = quantize(values, form, scale=q.scale, rounding="stochastic", seed=2)
        assert np.array_equal(again.dequantize(), values)


def test_a_seed_gives_the_same_codes_whole_or_in_chunks(monkeypatch):
    x = np.random.default_rng(0).standard_normal((3, 64, 96)).astype(np.float32)
    q = quantize(x, "int4_g32", rounding="stochastic", seed=-3)
    monkeypatch.setattr(cast, "_CHUNK_HOST", 100)
    assert_same(quantize(x, "int4_g32", rounding="stochastic", seed=-3), q, "in chunks")
    other = quantize(x, "int4_g32", rounding="stochastic", seed=4)
    assert 0.2 < (other.codes != q.codes).mean() < 0.5
    assert not np.array_equal(q.codes[0] == 0, q.codes[1] == 0)


@pytest.mark.full
@pytest.mark.parametrize("form", ["fp8_128x128", "fp8_1x128", "int4_g128"])
def test_8192x8192_is_no_slower_than_the_cast_of_ml_dtypes_and_a_pass_for_amax(form):
    import time

    x = np.random.default_rng(0).standard_normal((8192, 8192), dtype=np.float32)
    kind = ml_dtypes.float8_e4m3fn if form.startswith("fp8") else ml_dtypes.int4

    def least(do):
        times = []
        for _ in range(3):
            start = time.perf_counter()
            do()
            times.append(time.perf_counter() - start)
        return min(times)

    quantize(x[:256], form)  # compiles
    theirs = least(lambda: x.astype(kind)) + least(lambda: np.abs(x).reshape(8192, 64, 128).max(axis=-1))
    assert least(lambda: quantize(x, form)) <= theirs


def test_the_default_formats_of_the_report(capsys):
    """What a user sees first: each format's price on one array."""
    x = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
    sqnr = {name: report(x, quantize(x, name)).total.sqnr_db for name in ("int8_row", "fp8_1x128", "mxfp8", "nvfp4", "mxfp4", "int4_g32")}
    assert sqnr["int8_row"] > sqnr["fp8_1x128"] > 30 > sqnr["nvfp4"] > sqnr["mxfp4"] > 17
    assert uint4_format(32).has_zero_point and not Format("a", "int8", (1, 0)).has_zero_point
