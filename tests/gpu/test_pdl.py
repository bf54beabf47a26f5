"""Kernels that begin early, behind kernels that let them: what the kernel before still writes is read as it leaves it."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest
from cases import skinny, skinny_rs, swapped

import dgnumba
from dgnumba import api, config
from dgnumba.testing import assert_bits_equal

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def cupy():
    return pytest.importorskip("cupy")


@pytest.fixture(autouse=True)
def settings():
    yield
    config.set_pdl(False)


N, K, ROUNDS = 512, 1024, 30
PLANS = [
    swapped(8, 64, 4, d_dtype="bfloat16"),
    swapped(8, 64, 3, block_k=512),
    swapped(8, 128, 4, split=2),
    skinny(8, 2, 4),
    skinny_rs(8, 2, 2),
    skinny_rs(16, 1, 1, block_n=64, split=2),
]


@pytest.mark.parametrize("chosen", PLANS, ids=lambda p: f"{p.kernel}-{p.name}".replace(" ", "-"))
def test_weights_that_the_kernel_before_writes(cupy, rng, chosen):
    """A product whose D is the next one's weights, with other weights each time: its bytes in bfloat16 are codes, none of them NaN.

    The first writes [8, N * K / 16] elements, small integers; the second takes the same bytes as [N, K]. What was read too early would be the round
    before's.
    """
    tokens = 8
    width = N * K // (2 * tokens)
    a = cupy.zeros((tokens, 128), cupy.uint8)
    a[:, 0] = 0x38  # 1.0: so D is the first column of the weights, times its scale
    one = cupy.ones((1, tokens), cupy.float32).T
    columns = cupy.asarray(rng.integers(0, 6, (ROUNDS, width)) * 8 + 0x30, cupy.uint8)  # powers of two from 0.5 on, as codes
    writers = cupy.zeros((ROUNDS, width, 128), cupy.uint8)
    writers[:, :, 0] = columns
    ones = cupy.ones((-(-width // 128), 4), cupy.float32)[:, :1]
    x = cupy.asarray(rng.integers(0, 3, (tokens, K)) * 8 + 0x30, cupy.uint8)
    sfx = dgnumba.get_mn_major_tma_aligned_tensor(cupy.ones((tokens, K // 128), cupy.float32))
    sfw = cupy.ones((N // 128, K // 128), cupy.float32)
    weights = cupy.zeros((tokens, width), cupy.uint16)
    as_codes = weights.view(cupy.uint8).reshape(N, K)

    def chain():
        outs = cupy.zeros((ROUNDS, tokens, N), cupy.uint16)
        # nothing else between them: behind a kernel of another kind none begins early
        for writer, out in zip(writers, outs):
            api.fp8_gemm_nt((a, one), (writer, ones), weights)
            api.fp8_gemm_nt((x, sfx), (as_codes, sfw), out, plan=chosen)
        return outs.get()

    expected = chain()
    assert len({out.tobytes() for out in expected}) == ROUNDS, "weights differ from round to round"
    config.set_pdl(True)
    for _ in range(3):
        assert_bits_equal(chain(), expected)


@pytest.mark.parametrize("tokens, width", [(8, 512), (40, 1024)])
def test_tokens_that_the_kernel_before_writes(cupy, rng, tokens, width):
    """A chain of INT4 products, each the next one's tokens: what was read too early would be those of a layer before."""
    q = dgnumba.quantize(rng.standard_normal((width, width)).astype(np.float32) * width**-0.5, "int4_g128")
    w = dgnumba.prepare_int4_weights(q, "bfloat16")
    w = dataclasses.replace(w, stream=cupy.asarray(w.stream))
    first = cupy.asarray(rng.standard_normal((tokens, width)).astype(ml_dtypes.bfloat16).view(np.uint16))

    def chain():
        layers = [first, *(cupy.zeros((tokens, width), cupy.uint16) for _ in range(ROUNDS))]
        for x, d in zip(layers, layers[1:]):
            dgnumba.int4_gemm_nt(x, w, d)
        return cupy.stack(layers).get()

    expected = chain()
    assert len({layer.tobytes() for layer in expected}) == ROUNDS + 1, "layers differ"
    assert np.isfinite(expected.view(ml_dtypes.bfloat16).astype(np.float32)).all()
    config.set_pdl(True)
    for _ in range(3):
        assert_bits_equal(chain(), expected)


CONSTANT = {chosen.kernel + " " + chosen.name: chosen for chosen in (*PLANS, swapped(8, 64, 16), skinny(8, 4, 1), skinny_rs(8, 3, 1))}


@pytest.mark.parametrize("name", CONSTANT, ids=lambda name: name.replace(" ", "-"))
def test_first_weights_do_not_wait_and_tokens_do(cupy, rng, name):
    """Products with weights that stand, each behind one that writes its tokens, or their scales, anew."""
    chosen, tokens, width, k_blocks = CONSTANT[name], 8, K // 2, K // 128
    one = cupy.ones((1, tokens), cupy.float32).T
    a = cupy.zeros((tokens, 128), cupy.uint8)
    a[:, 0] = cupy.arange(tokens, dtype=cupy.uint8) // 2 * 8 + 0x30  # powers of two: D's rows are multiples of the weights' first column
    columns = cupy.asarray(rng.integers(0, 6, (2, ROUNDS, width)) * 8 + 0x30, cupy.uint8)
    writers = cupy.zeros((2, ROUNDS, width, 128), cupy.uint8)
    writers[..., 0] = columns
    ones = cupy.ones((-(-width // 128), 4), cupy.float32)[:, :1]
    w = cupy.asarray(rng.integers(0, 0x70, (N, K)), cupy.uint8)
    sfw = cupy.asarray(rng.integers(1, 5, (N // 128, k_blocks)), cupy.float32)
    x = cupy.zeros((tokens, width), cupy.uint16)  # bfloat16, whose bytes are codes, none of them NaN
    as_codes = x.view(cupy.uint8)
    scales = cupy.zeros((k_blocks, tokens), cupy.float32)
    cupy.cuda.Device().synchronize()

    def chain():
        outs = cupy.zeros((ROUNDS, 2, tokens, N), cupy.uint16)
        scales[...] = 1
        for new_tokens, new_scales, (first, second) in zip(*writers, outs):
            api.fp8_gemm_nt((a, one), (new_tokens, ones), x)
            api.fp8_gemm_nt((as_codes, scales.T), (w, sfw), first, plan=chosen)
            api.fp8_gemm_nt((a[:k_blocks], one[:k_blocks]), (new_scales[:tokens], ones[:1]), scales)
            api.fp8_gemm_nt((as_codes, scales.T), (w, sfw), second, plan=chosen)
        return outs.get()

    expected = chain()
    assert len({out.tobytes() for pair in expected for out in pair}) == 2 * ROUNDS, "tokens and scales differ from round to round"
    config.set_pdl(True, constant_weights=True)
    for _ in range(3):
        assert_bits_equal(chain(), expected)


def test_scales_that_a_call_unpacks_are_waited_for(cupy, rng):
    """Packed scales of B, others each time: a kernel of the call's own writes what the product reads."""
    tokens, words = 8, K // 512
    x, w = (cupy.asarray(rng.integers(0, 0x70, (rows, K)), cupy.uint8) for rows in (tokens, N))
    sfx = dgnumba.get_mn_major_tma_aligned_tensor(cupy.ones((tokens, K // 128), cupy.float32))
    packed = cupy.asarray(rng.integers(120, 135, (ROUNDS, N // 128, words, 4)).astype(np.uint8)).view(cupy.int32)[..., 0]
    cupy.cuda.Device().synchronize()

    def chain():
        outs = cupy.zeros((ROUNDS, tokens, N), cupy.uint16)
        for sfw, out in zip(packed, outs):
            api.fp8_gemm_nt((x, sfx), (w, sfw), out)
        return outs.get()

    expected = chain()
    assert len({out.tobytes() for out in expected}) == ROUNDS, "scales differ from round to round"
    config.set_pdl(True, constant_weights=True)
    for _ in range(3):
        assert_bits_equal(chain(), expected)
