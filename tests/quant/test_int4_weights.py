"""Weights made ready: lossless from every format, refused where they do not fit, and caught where they were changed."""

import dataclasses

import int4_cases as cases
import ml_dtypes
import numpy as np
import pytest

import dgnumba
from dgnumba import prepare_int4_weights
from dgnumba.errors import DTypeError, ProblemError
from dgnumba.kernels.int4_spec import Int4Plan
from dgnumba.layouts.int4 import PACKINGS
from dgnumba.quant import quantize
from dgnumba.quant.int4_weights import LARGEST_SCALE, code_sum


def values_of(w):
    """What a prepared stream means, dequantized in float64."""
    codes, scale_bytes, zeros, rests = w.unpack()
    bits = np.ascontiguousarray(scale_bytes).view(f"u{w.scale_dtype.itemsize}")[..., 0]
    scales = (bits.view(np.float32) if w.scale_dtype.name == "float32" else w.scale_dtype.decode(bits)).astype(np.float64)
    if w.dtype.name == "float4_e2m1fn":
        value = w.dtype.decode(codes).astype(np.float64)
    else:
        zero = np.float64(w.zero_code) if zeros is None else zeros.astype(np.float64) - (0 if rests is None else rests)
        value = codes - (zero if zeros is None else np.repeat(zero, w.group, axis=1)[:, : w.k])
    value *= np.repeat(scales, w.group, axis=1)[:, : w.k] * (w.global_scale or 1.0)
    if w.order is not None:
        value = value[:, np.argsort(w.order)]
    return value


@pytest.mark.parametrize("kind", ["bfloat16", "float8_e4m3fn", "int8"])
@pytest.mark.parametrize("variant", cases.VARIANTS)
def test_what_is_prepared_means_the_same(kind, variant, rng):
    """Nothing is lost: extents that are no multiples of anything, and every kind of scale and zero point."""
    if not cases.goes(kind, variant):
        pytest.skip("no kernel takes it")
    q = cases.weights(rng, variant, 70, 288)
    w = prepare_int4_weights(q, kind)
    w.verify()
    expected = q.dequantize("float64")
    slack = 1e-7 * np.abs(expected) if "float_zeros" in variant or q.global_scale is not None else 0.0
    assert (np.abs(values_of(w) - expected) <= slack + 1e-9).all()


@pytest.mark.parametrize("packing", PACKINGS)
def test_every_packing_comes_through(packing, rng):
    """A QTensor whose words are packed is unpacked by its own layout: the same stream as that of its codes."""
    codes = rng.integers(0, 16, (64, 128)).astype(np.uint8)
    q = dgnumba.QTensor(codes, np.ones((64, 1), np.float32), "uint4", (1, 128))
    words = PACKINGS[packing].pack(codes)
    packed = dgnumba.QTensor(words, q.scale, "uint4", (1, 128), packing=packing, extents=(64, 128))
    assert (prepare_int4_weights(packed).stream == prepare_int4_weights(q).stream).all()


def test_a_gate_lies_between_the_rows(rng):
    q, g = cases.weights(rng, "int4_g64", 70, 192), cases.weights(rng, "int4_g64", 70, 192)
    w = prepare_int4_weights(q, gate=g)
    codes = w.unpack()[0]
    for row in range(70):
        at = row // 8 * 16 + row % 8
        assert (codes[at] == q.codes[row] ^ 8).all() and (codes[at + 8] == g.codes[row] ^ 8).all()
    assert (w.n, w.rows, w.has_gate) == (70, 144, True)


def test_changed_or_reordered_weights_are_caught(rng):
    w = prepare_int4_weights(cases.weights(rng, "uint4_g64", 128, 256))
    for change in (lambda s: s[::-1], lambda s: np.ascontiguousarray(s.swapaxes(0, 1)), lambda s: s ^ (np.arange(s.shape[2]) == 7)):
        with pytest.raises(ProblemError, match="packed in another order, or changed"):
            dataclasses.replace(w, stream=change(w.stream).astype(np.uint8)).verify()
    nibbles = w.stream.copy()
    nibbles[:, :, :4096] = nibbles[:, :, :4096] >> 4 | nibbles[:, :, :4096] << 4
    with pytest.raises(ProblemError, match="packed in another order"):
        dataclasses.replace(w, stream=nibbles).verify()
    x = np.zeros((2, 256), ml_dtypes.bfloat16)
    with pytest.raises(ProblemError, match="packed in another order"):
        dgnumba.int4_gemm_nt(x, dataclasses.replace(w, stream=nibbles))


def test_the_sum_depends_on_every_place(rng):
    codes = rng.integers(0, 16, (9, 40)).astype(np.uint8)
    sums = {code_sum(codes), code_sum(codes[::-1]), code_sum(codes[:, ::-1]), code_sum(np.roll(codes, 1, axis=1))}
    assert len(sums) == 4 and code_sum(codes) == code_sum(codes.copy())


def bad(q, **changes):
    return dataclasses.replace(q, **changes)


@pytest.mark.parametrize(
    "error, match, make",
    [
        (DTypeError, "w: expected a QTensor", lambda q: (q.data, {})),
        (DTypeError, "a_dtype: expected one of bfloat16, float16", lambda q: (q, {"a_dtype": "float32"})),
        (DTypeError, "w: expected int4, uint4 or float4_e2m1fn", lambda q: (quantize(np.ones((4, 64), np.float32), "int8_row"), {})),
        (ProblemError, "one per 1x48", lambda q: (quantize(np.ones((4, 192), np.float32), "int4_g48"), {})),
        (ProblemError, "w: expected a matrix", lambda q: (quantize(np.ones((2, 4, 64), np.float32), "int4_g64"), {})),
        (ProblemError, "zero points from -8 to 7", lambda q: (bad(q, zero_point=np.full(q.scale.shape, 9)), {})),
        (ProblemError, "finite scales", lambda q: (bad(q, scale=np.full_like(q.scale, np.nan)), {})),
        (ProblemError, r"scales below 2\^120, got 1.32923e\+36", lambda q: (bad(q, scale=np.full_like(q.scale, 2.0**120)), {})),
        (ProblemError, "other counts", lambda q: (bad(q, g_idx=np.zeros(128, np.int32)), {})),
        (DTypeError, "gate: expected a QTensor", lambda q: (q, {"gate": 3})),
        (ProblemError, "gate: expected the form of w", lambda q: (q, {"gate": quantize(np.ones((5, 128), np.float32), "int4_g64")})),
    ],
)
def test_what_does_not_fit_is_refused(error, match, make):
    q, more = make(quantize(np.ones((4, 128), np.float32), "int4_g64"))
    with pytest.raises(error, match=match):
        prepare_int4_weights(q, **more)


def test_act_order_beside_e4m3_is_refused(rng):
    with pytest.raises(ProblemError, match="no act order beside float8_e4m3fn"):
        prepare_int4_weights(cases.weights(rng, "act_order_g32", 8, 128), "float8_e4m3fn")


def test_e2m1_has_no_zero_points():
    q = quantize(np.ones((4, 64), np.float32), "mxfp4")
    with pytest.raises(ProblemError, match="no zero points"):
        prepare_int4_weights(bad(q, zero_point=np.zeros(q.scale.shape, np.uint8)))


def test_gates_share_columns_and_the_global_scale(rng):
    q, g = cases.weights(rng, "act_order_g32", 16, 128), cases.weights(rng, "act_order_g32", 16, 128)
    with pytest.raises(ProblemError, match="gate: expected w's g_idx"):
        prepare_int4_weights(q, gate=g)
    q, g = cases.weights(rng, "nvfp4", 16, 128), cases.weights(rng, "nvfp4", 16, 128)
    with pytest.raises(ProblemError, match="gate: expected w's global scale"):
        prepare_int4_weights(q, gate=g)


def test_scales_that_are_taken_stay_in_float32_times_what_operands_ask_for():
    """`LARGEST_SCALE` is said beside the weights, the powers beside the plans: together they must not leave float32."""
    plans = [
        Int4Plan("any", 8, 64, 2, a_dtype=a, w_dtype=w) for a in ("bfloat16", "float16", "float8_e4m3fn", "int8") for w in ("int4", "uint4")
    ]
    assert {plan.operand_power for plan in plans} == {0, 6, 8, -4}
    assert all(
        np.isfinite(np.float32(np.nextafter(np.float32(LARGEST_SCALE), np.float32(0))) * np.float32(2.0**plan.operand_power))
        for plan in plans
    )
