"""Scales and zero points against compressed-tensors' calculation, and its e2m1 cast."""

import warnings

import numpy as np
import pytest
from quant.oracles.oracle import away_from_ties, oracle, points

from dgnumba.dtypes import DTYPES
from dgnumba.quant import int4_format, mx_format, quantize, uint4_format

torch = oracle("torch")
args = oracle("compressed_tensors.quantization")
helpers = oracle("compressed_tensors.quantization.utils.helpers")
mxfp = oracle("compressed_tensors.quantization.utils.mxfp_utils")
E2M1 = DTYPES["float4_e2m1fn"]


def sample(columns=256):
    rng = np.random.default_rng(0)
    return (rng.standard_normal((32, columns)) * np.exp2(rng.integers(-10, 10, (32, 1)))).astype(np.float32)


def qparams(x, group, **settings):
    blocks = torch.from_numpy(x.reshape(x.shape[0], -1, group))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scheme = args.QuantizationArgs(strategy="group", group_size=group, **settings)
        return [t.float().numpy() for t in helpers.calculate_qparams(blocks.amin(-1), blocks.amax(-1), scheme)]


@pytest.mark.parametrize("group", [32, 128])
def test_int4_symmetric(group):
    x = sample()
    scale, zero = qparams(x, group, num_bits=4, symmetric=True)
    assert np.array_equal(quantize(x, int4_format(group, "amax/7.5")).scale, scale) and not zero.any()


def test_int4_with_zero_points():
    x = sample()
    scale, zero = qparams(x, 32, num_bits=4, symmetric=False)
    q = quantize(x, uint4_format(32))
    assert np.allclose(q.scale, scale, rtol=2.0**-22, atol=0)  # the order of two roundings
    # Theirs is signed: -8 lower. It is rounded from a quotient, so beside a tie it may be the other.
    far = np.abs((zero + 8) - q.zero_point) <= 1
    assert far.all() and (zero + 8 == q.zero_point).mean() > 0.99


def test_e2m1_cast():
    fp4 = oracle("compressed_tensors.quantization.utils.fp4_utils")
    x = points(E2M1, 5000)
    theirs = fp4.cast_to_fp4(torch.from_numpy(x).reshape(1, -1)).numpy()[0]
    assert np.array_equal(E2M1.decode(E2M1.encode(x)), theirs)


def test_mxfp4_scales_by_the_even_rule():
    x = sample()
    amax = np.abs(x).reshape(32, -1, 32).max(-1)
    theirs = mxfp.generate_mx_scales(torch.from_numpy(amax), num_bits=4).numpy()
    assert np.array_equal(quantize(x, mx_format(E2M1, "even")).scale.view(np.uint8), theirs.astype(np.uint8))


def test_away_from_ties_knows_a_tie():
    assert away_from_ties(np.float32([2.5, 2.6, -5.0]), E2M1).tolist() == [False, True, False]
