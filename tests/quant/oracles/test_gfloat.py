"""Elements and MX blocks against gfloat, which is written straight from the definitions."""

import numpy as np
import pytest
from quant.oracles.oracle import oracle, points

from dgnumba.dtypes import DTYPES
from dgnumba.quant import mx_format, quantize

gfloat = oracle("gfloat")
formats = oracle("gfloat.formats")

INFO = {
    "float8_e4m3fn": formats.format_info_ocp_e4m3,
    "float8_e5m2": formats.format_info_ocp_e5m2,
    "float6_e2m3fn": formats.format_info_ocp_e2m3,
    "float6_e3m2fn": formats.format_info_ocp_e3m2,
    "float4_e2m1fn": formats.format_info_ocp_e2m1,
    "float8_e8m0fnu": formats.format_info_ocp_e8m0,
    "bfloat16": formats.format_info_bfloat16,
    "float16": formats.format_info_binary16,
}


@pytest.mark.parametrize("name", [name for name in INFO if name != "float8_e8m0fnu"])
def test_encode(name):
    row, info = DTYPES[name], INFO[name]
    x = points(row, 1000)
    x = np.concatenate([x, np.float32([row.max * 2, -row.max * 1.6])]) if row.bits <= 8 else x
    theirs = [gfloat.encode_float(info, gfloat.round_float(info, float(v), gfloat.RoundMode.TiesToEven, sat=True)) for v in x]
    assert np.array_equal(row.encode(x), theirs)


@pytest.mark.parametrize("name", [name for name in INFO if DTYPES[name].bits <= 8])
def test_decode(name):
    row = DTYPES[name]
    theirs = [gfloat.decode_float(INFO[name], code).fval for code in range(1 << row.bits)]
    assert np.array_equal(row.decode(np.arange(1 << row.bits)), np.float32(theirs), equal_nan=True)


@pytest.mark.parametrize(
    "name, block",
    [("float8_e4m3fn", "mxfp8_e4m3"), ("float8_e5m2", "mxfp8_e5m2"), ("float4_e2m1fn", "mxfp4_e2m1"), ("float6_e2m3fn", "mxfp6_e2m3")],
)
def test_mx_blocks_with_the_floor_rule(name, block):
    info = getattr(formats, f"format_info_{block}")
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((40, 32)) * np.exp2(rng.integers(-30, 30, (40, 1)))).astype(np.float32)
    q = quantize(x, mx_format(name, "floor"))
    theirs = [gfloat.quantize_block(info, row.astype(np.float64), gfloat.compute_scale_amax, gfloat.RoundMode.TiesToEven) for row in x]
    assert np.array_equal(q.dequantize("float64"), theirs)
