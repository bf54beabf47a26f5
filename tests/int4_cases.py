"""Random problems with weights of 4 bits: activations of every type by weights of every format."""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np

import dgnumba
from dgnumba.quant import QTensor, quantize
from dgnumba.quant.formats import int4_format, uint4_format

ACTIVATIONS = ("bfloat16", "float16", "float8_e4m3fn", "float8_e4m3fn_row", "int8", "int4")
INTEGERS = ("int8", "int4")

FORMATS = {
    "int4_g32": int4_format(32, scale_dtype="float16"),
    "int4_g64": int4_format(64, "amax/7.5", "bfloat16"),
    "int4_g128": int4_format(128, "extremum/-8"),
    "int4_g256": int4_format(256, scale_dtype="float16"),
    "int4_row": int4_format(-1),
    "uint4_g16": uint4_format(16, "bfloat16"),
    "uint4_g64": uint4_format(64, "float16"),
    "uint4_g128": uint4_format(128),
    "mxfp4": "mxfp4",
    "nvfp4": "nvfp4",
}
"""Name -> what `quantize` takes; group, rule, scale type and zero points differ."""

VARIANTS = (*FORMATS, "float_zeros_g64", "act_order_g32")


def weights(rng, variant, n, k):
    """Random weights of a format; "float_zeros" as HQQ has them, "act_order" with a `g_idx` that is no order."""
    x = rng.standard_normal((n, k)).astype(np.float32)
    if variant == "float_zeros_g64":
        q = quantize(x, uint4_format(64, "float16"))
        return dataclasses.replace(
            q, zero_point=np.clip(q.zero_point + rng.uniform(-0.5, 0.5, q.zero_point.shape), 0, 15).astype(np.float32)
        )
    if variant == "act_order_g32":
        q = quantize(x, uint4_format(32, "float16"))
        return dataclasses.replace(q, g_idx=rng.permutation(np.arange(k) // 32).astype(np.int32))
    return quantize(x, FORMATS[variant])


def activations(rng, kind, m, k):
    """Random activations, as `int4_gemm_nt` takes them."""
    x = rng.standard_normal((m, k)).astype(np.float32)
    if kind in ("bfloat16", "float16"):
        return x.astype(ml_dtypes.bfloat16 if kind == "bfloat16" else np.float16)
    if kind == "float8_e4m3fn":
        return dgnumba.per_token_cast_to_fp8(x)
    if kind == "float8_e4m3fn_row":
        return quantize(x, "fp8_row")
    return quantize(x, f"{kind}_row")


def prepared_for(kind):
    """The activations that weights are prepared for: int4 ones are widened to int8; FP8 takes the same by blocks and by rows."""
    return {"int4": "int8", "float8_e4m3fn_row": "float8_e4m3fn"}.get(kind, kind)


def goes(kind, variant):
    """Whether a kernel takes weights of a format beside activations of a type."""
    return not (kind in INTEGERS and variant.endswith("fp4") or kind.startswith("float8") and variant.startswith("act_order"))


def exact(rng, a, q):
    """The same codes with scales of 0.5, 1 and 2, so that every sum in float32 is exact: each right result has the same bits."""
    scale = np.exp2(rng.integers(-1, 2, q.scale.shape)).astype(np.float32)
    if isinstance(a, QTensor):
        a = dataclasses.replace(a, scale=np.exp2(rng.integers(-1, 2, a.scale.shape)).astype(np.float32))
    return a, dataclasses.replace(q, scale=scale, scale_dtype=None)


def exact_problem(rng, kind, variant, m, n, k):
    """Activations and weights whose every sum is exact in float32, for any activation type: integers from -4 to 4, scales of 0.5, 1 and 2."""
    a, q = activations(rng, kind, m, k), weights(rng, variant, n, k)
    small = rng.integers(-4, 5, (m, k))
    if isinstance(a, QTensor):
        data = small.astype(np.float32).astype(a.dtype.numpy) if a.dtype.is_float else small.astype(a.data.dtype)
        a = dataclasses.replace(a, data=data)
    else:
        a = small.astype(a.dtype)
    return exact(rng, a, q)


def few(rng, a):
    """60 elements of each row, 1 or -1, and 0 for the rest: of 8 times 2 each at most, in units of a half, any sum is one of float16's integers."""
    m, k = a.shape
    nonzero = rng.permuted(np.tile(np.arange(k) < 60, (m, 1)), axis=1)
    values = np.where(nonzero, rng.choice([-1, 1], (m, k)), 0).astype(np.float32)
    return dataclasses.replace(a, data=values.astype(a.dtype.numpy))


def large_first(a, q):
    """2048 of the first two records of 128 columns, 1 of each from the ninth on: in float16 these are lost one by one, and kept as a sum of eight."""
    column = np.arange(a.shape[1])
    record, is_first = column // 128, column % 128 == 0
    values = np.where(record < 2, 2, np.where(is_first & (record >= 8), 1, 0)).astype(np.float32)
    codes = np.where(record == 0, 7, 1).astype(np.uint8)
    a = dataclasses.replace(a, data=np.tile(values, (a.shape[0], 1)).astype(a.dtype.numpy))
    return a, dataclasses.replace(q, data=np.tile(codes, (q.shape[0], 1)), scale=np.ones_like(q.scale), packing=None, extents=())


def small(q):
    """The same weights, small enough that a gated product of them is one of float16's numbers."""
    return dataclasses.replace(q, scale=q.scale / np.float32(64))


def gate_pair(rng, variant, n, k):
    """Two weights of one form, for a gate; their sums are exact, and small."""
    return tuple(small(exact(rng, None, weights(rng, variant, n, k))[1]) for _ in range(2))


D_DTYPES = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16), "float32": np.dtype(np.float32)}


def gate_slack(out, expected, c):
    """How far a gated result may lie from the host's: the device's 2^x is 2^-22 of itself off, what follows rounds a few times."""
    unit = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}[out]
    size = np.abs(expected) + (0 if c is None else 2 * np.abs(np.asarray(c).astype(np.float64)))
    return 2.0**-20 * size + 2 * unit * np.abs(expected) + 1e-30
