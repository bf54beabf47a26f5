"""Scales moved by the GPU's kernels, interpreted: the bits, the memory form and the zero padding of the host's functions."""

import ml_dtypes
import numpy as np
import pytest

import dgnumba
from dgnumba import scale_moves
from dgnumba.errors import ProblemError
from dgnumba.layouts import scales

SHAPES = [(1, 1), (5, 3), (66, 12)]  # one word; a padded column; two tiles, rows of whole 16 bytes


def same(expected, actual):
    assert expected.dtype == actual.dtype and expected.shape == actual.shape
    assert np.array_equal(np.ascontiguousarray(expected).view(np.uint8), np.ascontiguousarray(actual).view(np.uint8))
    if min(expected.shape) > 1:
        assert actual.strides == expected.strides


def powers(rng, shape):
    return np.ldexp(np.float32(1), rng.integers(-127, 128, shape)).astype(np.float32)


@pytest.mark.parametrize("shape", SHAPES)
def test_turn_and_back(shape, rng):
    sf = rng.random(shape, dtype=np.float32)
    for view in (sf, np.repeat(sf, 2, axis=1)[:, ::2]):
        turned = scale_moves.get_mn_major_tma_aligned_tensor(view, on="emulator")
        same(scales.get_mn_major_tma_aligned_tensor(view), turned)
        same(sf, scale_moves.get_row_major_tensor(turned, on="emulator"))
        if view is sf and shape > (1, 1):  # one row conforms as it is
            assert not turned.base[:, shape[0] :].any()


@pytest.mark.parametrize("shape", SHAPES)
def test_pack_and_unpack(shape, rng):
    sf = powers(rng, shape)
    sf[0, 0] = 2.0**-127
    packed = scale_moves.get_mn_major_tma_aligned_packed_ue8m0_tensor(sf, on="emulator")
    same(scales.get_mn_major_tma_aligned_packed_ue8m0_tensor(sf), packed)
    assert not packed.base[:, shape[0] :].any()
    same(sf, scale_moves.get_row_major_ue8m0_tensor(packed, shape[1], on="emulator"))
    turned = scale_moves.unpacked(packed, shape[1], on="emulator")
    same(scales.get_mn_major_tma_aligned_tensor(sf), turned)
    assert not turned.base[:, shape[0] :].any()


def test_words_of_any_bytes_and_strides(rng):
    words = rng.integers(-(2**31), 2**31, (8, 2)).astype(np.int32)
    words[0] = 0x7FFF00FF, -1  # NaN, 2^-127, NaN
    for view in (words, np.asfortranarray(words), scales.mn_major(words)):
        same(scales.get_row_major_ue8m0_tensor(words, 7), scale_moves.get_row_major_ue8m0_tensor(view, 7, on="emulator"))


@pytest.mark.parametrize("bad", [0.0, 1.5, -2.0, np.inf, np.nan])
def test_what_is_no_power_of_two_is_refused(bad):
    sf = np.ones((3, 5), np.float32)
    sf[2, 4] = bad
    with pytest.raises(ProblemError, match=r"sf: expected powers of two from 2\^-127 to 2\^127, .* at \[2, 4\]"):
        scale_moves.get_mn_major_tma_aligned_packed_ue8m0_tensor(sf, on="emulator")
    scale_moves.get_mn_major_tma_aligned_packed_ue8m0_tensor(sf, check=False, on="emulator")


def test_host_arrays_and_stacks_take_the_host_functions(rng):
    sf = powers(rng, (2, 6, 5))
    for on in (None, "emulator"):
        same(scales.get_mn_major_tma_aligned_tensor(sf), scale_moves.get_mn_major_tma_aligned_tensor(sf, on=on))
        same(scales.get_mn_major_tma_aligned_packed_ue8m0_tensor(sf), scale_moves.get_mn_major_tma_aligned_packed_ue8m0_tensor(sf, on=on))
    turned = scales.get_mn_major_tma_aligned_tensor(sf[0])
    assert scale_moves.get_mn_major_tma_aligned_tensor(turned, on="emulator") is turned


@pytest.mark.parametrize("on", ["host", "emulator"])
@pytest.mark.parametrize("k", [128, 640])
def test_the_product_takes_packed_scales(on, k, rng):
    """Of either operand or both: the product is that of the same scales as floats."""
    x, w = rng.standard_normal((5, k)).astype(np.float32), rng.standard_normal((24, k)).astype(np.float32)
    a, b = dgnumba.per_token_cast_to_fp8(x, use_ue8m0=True), dgnumba.per_block_cast_to_fp8(w, use_ue8m0=True)
    expected = dgnumba.fp8_gemm_nt(a, b, on=on)
    packed_a = dgnumba.per_token_cast_to_fp8(x, use_ue8m0=True, use_packed_ue8m0=True, mn_major=True)
    packed_b = (b.data, scales.get_mn_major_tma_aligned_packed_ue8m0_tensor(b.scale))
    for left, right in ((packed_a, packed_b), (packed_a, b), (tuple(a), packed_b)):
        assert np.array_equal(expected.view(np.uint16), dgnumba.fp8_gemm_nt(left, right, on=on).view(np.uint16))


def test_explain_names_what_is_unpacked(rng):
    x = rng.standard_normal((5, 640)).astype(ml_dtypes.bfloat16)
    a = dgnumba.per_token_cast_to_fp8(x, use_ue8m0=True, use_packed_ue8m0=True)
    b = dgnumba.per_block_cast_to_fp8(x, use_ue8m0=True)
    copies = dgnumba.explain(a, (b.data, scales.get_mn_major_tma_aligned_packed_ue8m0_tensor(b.scale))).copies
    assert copies[:2] == (
        "sfa: UE8M0, int32 [5, 2], unpacked to float32 [5, 5]",
        "sfb: UE8M0, int32 [1, 2], unpacked to float32 [1, 5]",
    )
