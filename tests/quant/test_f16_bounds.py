"""What `int4_error_bound` adds where sums are float16: it goes with the scales that finished sums are multiplied by, as what is lost does."""

import dataclasses

import numpy as np
import pytest

from dgnumba import int4_error_bound
from dgnumba.quant import QTensor, quantize

M, N, K = 3, 4, 384


@pytest.fixture
def operands(rng):
    """Activations whose sums, of one unit of e4m3's last place beside others of zero, lose what lies below float16's normal numbers."""
    a = quantize(rng.standard_normal((M, K)).astype(np.float32), "fp8_row")
    codes = np.zeros((M, K), np.uint8)
    codes[:, ::128] = 1
    a = dataclasses.replace(a, data=codes.view(a.data.dtype), scale=np.ones_like(a.scale))
    return a, QTensor(
        rng.integers(0, 16, (N, K), dtype=np.uint8), rng.uniform(0.25, 0.9, (N, K // 128)).astype(np.float32), "int4", (1, 128)
    )


def grown(a, q):
    """What float16 adds to the bound."""
    found = [int4_error_bound(a, q, "float32", f16_sums=way) for way in (True, False)]
    assert np.isfinite(found).all()
    return found[0] - found[1]


@pytest.mark.parametrize("power", [-60, -12, 12])
def test_what_is_lost_goes_with_the_scales_of_tokens(power, operands):
    a, q = operands
    scaled = dataclasses.replace(a, scale=a.scale * np.float32(2.0**power))
    np.testing.assert_allclose(grown(scaled, q), grown(a, q) * 2.0**power, rtol=1e-6)


@pytest.mark.parametrize("alpha", [2.0**-60, 2.0**-12, 2.0**12])
def test_what_is_lost_goes_with_the_global_scale(alpha, operands):
    a, q = operands
    scaled = dataclasses.replace(q, global_scale=np.float32(alpha))
    np.testing.assert_allclose(grown(a, scaled), grown(a, q) * alpha, rtol=1e-6)


def test_a_token_of_scale_0_has_a_bound(operands):
    a, q = operands
    nothing = dataclasses.replace(a, scale=np.zeros_like(a.scale))
    assert (grown(nothing, q) == 0).all()
