"""The casts of `dgnumba.casts` to few bits: the GPU's kernels, interpreted, give the codes and scales of the host's functions, bit for bit."""

import fake_cupy
import ml_dtypes
import numpy as np
import pytest
from test_casts import VIEWS, awkward, stand_in_gpu

import dgnumba
from dgnumba import casts, quant
from dgnumba.errors import ProblemError
from dgnumba.kernels import smxx_quantize_rules

BF16 = ml_dtypes.bfloat16


def bits(array):
    return None if array is None else np.ascontiguousarray(array).view(np.uint8)


def same(expected, actual):
    """Two QTensors with the same bits, types and forms; of a NaN too."""
    assert repr(expected) == repr(actual) and expected.granularity == actual.granularity
    for part in ("data", "scale", "global_scale"):
        x, y = getattr(expected, part), getattr(actual, part)
        assert (x is None) == (y is None)
        assert x is None or (x.dtype == y.dtype and x.shape == y.shape and np.array_equal(bits(x), bits(y))), part


def both(x, form, **options):
    with np.errstate(all="ignore"):
        same(casts.quantize(x, form, **options), casts.quantize(x, form, on="emulator", **options))


def form_of(name, rule=None):
    form = quant.as_format(name)
    return form.with_rule(rule) if rule else form


CASES = {
    "mxfp8": [{}],
    "mxfp4": [{}, {"packing": "low_first"}],
    "nvfp4": [{}, {"packing": "low_first"}],
    "int4_g128": [{"packing": "low_first"}],
    "int4_g32": [{}],
    "fp8_1x128": [{}],
    "fp8_tensor": [{}],
    "int8_row": [{}],
    "int4_row": [{}, {"packing": "low_first"}],
    "fp8_row": [{}],
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [BF16, np.float16, np.float32])
def test_formats(name, dtype, rng):
    shapes = [(2, 38)]  # no multiple of 16
    if dtype is BF16 or name not in ("nvfp4", "fp8_tensor"):
        shapes.append((2, 544))  # a warp more
    for shape in shapes:
        for options in CASES[name]:
            both(awkward(rng, shape, dtype), name, **options)


def test_two_ctas_of_packed_codes(rng):
    both(awkward(rng, (2, 1056), BF16), "mxfp4", packing="low_first")


@pytest.mark.parametrize("name, columns, options", [("int8_row", 1100, {}), ("int4_row", 2100, {"packing": "low_first"})])
def test_rows_of_three_warps(name, columns, options, policy, rng):
    x = awkward(rng, (2, columns), BF16)
    x[1, -1] = 1e30  # in the last warp
    with np.errstate(all="ignore"):
        same(casts.quantize(x, name, **options), casts.quantize(x, name, on="emulator", policy=policy, **options))


def test_two_passes_end_where_they_begin(policy, rng):
    """Rows of several CTAs, the last of them not full: each is cast once, by the scale of all."""
    x = rng.standard_normal((21, 64)).astype(BF16)
    x[20, 63] = 50
    for name in ("nvfp4", "fp8_tensor"):
        same(quant.quantize(x, name), casts.quantize(x, name, on="emulator", policy=policy))


@pytest.mark.parametrize("name, rule", [("mxfp4", r) for r in ("floor", "ceil", "even")] + [("mxfp8", "even"), ("int4_g16", "amax/7.5")])
def test_rules(name, rule, policy, rng):
    x = awkward(rng, (3, 96), np.float32)
    x[2] = np.ldexp(rng.uniform(1, 2, 96), rng.integers(-148, 127)).astype(np.float32)
    with np.errstate(all="ignore"):
        same(quant.quantize(x, form_of(name, rule)), casts.quantize(x, form_of(name, rule), on="emulator", policy=policy))


FP4 = {
    "float32": {},
    "ue8m0": {"use_ue8m0": True},
    "packed": {"use_ue8m0": True, "use_packed_ue8m0": True},
    "packed mx": {"use_ue8m0": True, "use_packed_ue8m0": True, "gran_k": 32},
}


@pytest.mark.parametrize("options", FP4.values(), ids=FP4)
@pytest.mark.parametrize("dtype", [BF16, np.float16, np.float32])
def test_per_token_cast_to_fp4(dtype, options, rng):
    for shape in ((3, 544), (2, 38)):
        x = awkward(rng, shape, dtype)
        x[1, 2::3] = np.resize(quant.chunk.E2M1_THRESHOLDS, x[1, 2::3].shape)  # ties, where the scale is a power of two
        x[1, 0] = 6
        with np.errstate(all="ignore"):
            same(quant.per_token_cast_to_fp4(x, **options), casts.per_token_cast_to_fp4(x, on="emulator", **options))


def test_random_bit_patterns(rng):
    """Bit patterns of float16 in blocks of sixteen, shuffled; on a GPU all of them (tests/gpu)."""
    x = rng.permutation(np.arange(1 << 16, dtype=np.uint16)).view(np.float16).reshape(128, 512)
    for name in ("mxfp4_g16", "int4_g16"):
        both(x[:8], name)
    both(x[:2], "nvfp4")


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "int4_g128", "int8_row"])
@pytest.mark.parametrize("exponent", [-149, -130, -126, -100, 126])
def test_the_ends_of_float32(name, exponent, rng):
    """Blocks whose scales, and their inverses, are subnormal or would be."""
    x = np.ldexp(rng.uniform(-2, 2, (2, 128)), exponent).astype(np.float32)
    x[1, :32] *= np.float32(2.0**-24)
    both(x, name)


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_any_strides(view, rng):
    x = view(awkward(rng, (3, 160), BF16))
    both(x, "mxfp4", packing="low_first")
    both(x, "int8_row")


@pytest.mark.parametrize("factor", [1.0, 0.01, 30.0])
def test_a_given_scale_of_the_tensor(factor, rng):
    """As when a tensor is quantized in parts: too small a scale clips at 448 times 6."""
    x = rng.standard_normal((3, 64)).astype(np.float32)
    whole = np.float32(quant.quantize(x, "nvfp4").global_scale * np.float32(factor))
    for given in (np.asarray(whole), float(whole)):  # float64 takes the way of the host
        both(x, "nvfp4", global_scale=given)


@pytest.mark.parametrize("whole", [0, -1, 2.0**-117, 7.6e35, np.inf, np.nan])
@pytest.mark.parametrize("on", [None, "emulator"])
def test_a_given_scale_beyond_its_range_is_refused(on, whole):
    for given in (np.asarray(whole, np.float32), float(whole)):
        with pytest.raises(ProblemError, match=r"global_scale: expected 2\^-116 to 2\^119, got "):
            casts.quantize(np.ones((3, 64), np.float32), "nvfp4", global_scale=given, on=on)


def test_larger_than_a_tile_of_the_look_for_the_maximum(rng):
    x = rng.standard_normal((34, 48)).astype(BF16)
    x[33, 40] = 77
    q = casts.quantize(x, "nvfp4", on="emulator")
    assert float(q.global_scale) == float(np.float32(77) / np.float32(2688))
    same(quant.quantize(x, "nvfp4"), q)


def test_what_no_kernel_takes_goes_the_host_way(rng):
    x = rng.standard_normal((4, 64)).astype(np.float32)
    cases = [("uint4_g32", {}), ("int4_g48", {}), ("mxfp6_e2m3", {}), ("mxfp4", {"search": True}), ("fp8_128x128", {})]
    cases += [("int4_g32", {"rounding": "stochastic", "seed": 3}), ("mxfp4", {"scale": 1.0})]
    for name, options in cases:
        both(x, name, **options)
    both(x.astype(np.float64), "mxfp4")
    both(x.reshape(2, 2, 64), "nvfp4", packing="low_first")
    both(x[:0], "nvfp4")
    both(x, form_of("int4_g32", "extremum/-8"))


def test_packing_is_checked():
    x = np.ones((2, 31), np.float32)
    with pytest.raises(
        ProblemError, match=r"packing: expected None or 'low_first', which takes an even number of columns, for int4_g32 of"
    ):
        casts.quantize(x, "int4_g32", packing="low_first")
    with pytest.raises(ProblemError, match="packing: expected None for mxfp8 of"):
        casts.quantize(x, "mxfp8", packing="low_first")
    with pytest.raises(ProblemError, match="packing: .* got 'awq'"):
        casts.quantize(x[:, :30], "mxfp4", packing="awq")


def test_the_public_names_are_these():
    assert dgnumba.quantize is casts.quantize and dgnumba.per_token_cast_to_fp4 is casts.per_token_cast_to_fp4


def test_rows_that_no_cta_holds():
    assert smxx_quantize_rules.row_shape(32768, False) == (512, 4) and smxx_quantize_rules.row_shape(32769, False) is None
    assert smxx_quantize_rules.row_shape(1, False) == (32, 1) and smxx_quantize_rules.row_shape(1, True) == (32, 2)
    assert smxx_quantize_rules.row_shape(7168, False) == (224, 2) and smxx_quantize_rules.row_shape(8200, True) == (160, 4)


def test_arrays_of_a_gpu(monkeypatch, rng):
    """All that the casts do around their kernels stays within CuPy."""
    x = rng.standard_normal((5, 288)).astype(np.float32)
    with fake_cupy.installed():
        launches = stand_in_gpu(monkeypatch, casts)
        held = fake_cupy.ndarray.of(x)
        for name in ("mxfp4", "nvfp4", "int4_g32", "int8_row", "fp8_tensor"):
            q, expected = casts.quantize(held, name), quant.quantize(x, name)
            assert q.data.dtype == (np.int8 if name == "int8_row" else np.uint8)
            assert np.array_equal(bits(q.data.get()), bits(expected.data)) and np.array_equal(bits(q.scale.get()), bits(expected.scale))
            assert q.scale_dtype is expected.scale_dtype
        q, expected = casts.per_token_cast_to_fp4(held), quant.per_token_cast_to_fp4(x)
        assert np.array_equal(q.data.get(), expected.data) and np.array_equal(q.scale.get(), expected.scale)
        assert len(launches) == 8  # of "nvfp4" and "fp8_tensor" two
