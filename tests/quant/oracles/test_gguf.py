"""Q4_0 (extremum / -8 in float16) and MXFP4 against gguf's NumPy quantizers."""

import numpy as np
from quant.oracles.oracle import away_from_ties, oracle

from dgnumba.dtypes import DTYPES
from dgnumba.quant import int4_format, mx_format, quantize

gguf = oracle("gguf")


def test_q4_0():
    """Blocks whose extremum / -8 is a float16 number, since gguf divides by the scale before it rounds it to one."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-0.9, 0.9, (40, 32)).astype(np.float32)
    extremum = np.exp2(rng.integers(-6, 7, 40)) * rng.choice([-1, 1, 1.25, -1.75], 40)
    x[np.arange(40), rng.integers(0, 32, 40)] = 1
    x = np.where(x == 1, 1, x).astype(np.float32) * extremum[:, None].astype(np.float32)
    theirs = gguf.quantize(x, gguf.GGMLQuantizationType.Q4_0)
    q = quantize(x, int4_format(32, "extremum/-8", "float16"))
    assert np.array_equal(q.scale.view(np.uint16), np.ascontiguousarray(theirs[:, :2]).view(np.uint16))
    values = gguf.dequantize(theirs, gguf.GGMLQuantizationType.Q4_0)
    sure = away_from_ties(x, DTYPES["int4"], q.spread(q.scales).astype(np.float64))
    assert sure.mean() > 0.99 and (q.scales < 0).any() and (q.scales > 0).any()
    assert np.array_equal(q.dequantize()[sure], values[sure])


def test_mxfp4():
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((40, 32)) * np.exp2(rng.integers(-20, 20, (40, 1)))).astype(np.float32)
    theirs = gguf.dequantize(gguf.quantize(x, gguf.GGMLQuantizationType.MXFP4), gguf.GGMLQuantizationType.MXFP4)
    assert np.array_equal(quantize(x, mx_format("float4_e2m1fn", "floor")).dequantize(), theirs)
