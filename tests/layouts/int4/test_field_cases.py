"""Field cases F25, F26 and F27: literals, not round trips."""

import ml_dtypes
import numpy as np
import pytest

from dgnumba.errors import DTypeError, ProblemError
from dgnumba.layouts import int4
from dgnumba.layouts.int4 import groups


def word(codes, layout):
    return hex(int(layout.pack(codes).view(np.uint32).ravel()[0]))


def test_F25_low_nibble_first_and_high_nibble_first():
    codes = np.array([[1, 2]])
    assert int4.LOW_FIRST.pack(codes).tolist() == [[0x21]]
    assert int4.HIGH_FIRST.pack(codes).tolist() == [[0x12]]
    assert int4.ONNX.pack(codes).tolist() == [0x21]
    assert int4.TORCHAO.pack(codes).tolist() == [[0x21]]
    assert int4.BITSANDBYTES.pack(codes).tolist() == [[0x12]]


def test_F25_linear_and_awq_words():
    ramp = np.arange(8)
    assert word(ramp[None], int4.GPTQ_V2) == "0x76543210"
    assert word(ramp[:, None], int4.AWQ) == "0x75316420"
    # zero points of AWQ are interleaved too, those of GPTQ are not
    assert hex(int4.AWQ.pack_zeros(ramp[:, None])[0, 0]) == "0x75316420"
    assert hex(int4.GPTQ_V2.pack_zeros(ramp[:, None])[0, 0]) == "0x76543210"


def test_F25_each_word_unpacks_under_its_own_order_only():
    linear, awq = np.int32([[0x76543210]]), np.int32([[0x75316420]])
    assert int4.GPTQ_V2.unpack(linear).ravel().tolist() == list(range(8))
    assert int4.AWQ.unpack(awq).ravel().tolist() == list(range(8))
    assert int4.AWQ.unpack(linear).ravel().tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
    assert int4.GPTQ_V2.unpack(awq).ravel().tolist() == [0, 2, 4, 6, 1, 3, 5, 7]


def test_F25_compressed_tensors_words():
    assert word(np.arange(-8, 0)[None], int4.COMPRESSED_TENSORS) == "0x76543210"
    assert word(np.arange(8)[None], int4.COMPRESSED_TENSORS) == "0xfedcba98"


def test_F25_hqq_split_halves_over_rows():
    assert int4.HQQ.pack(np.arange(8)[:, None]).ravel().tolist() == [0x04, 0x15, 0x26, 0x37]


def test_F25_onnx_int4_ramp():
    ramp = np.arange(-8, 8).astype(ml_dtypes.int4)
    assert int4.ONNX.pack(ramp).tolist() == [0x98, 0xBA, 0xDC, 0xFE, 0x10, 0x32, 0x54, 0x76]


def test_F25_gguf_split_halves():
    block = np.arange(32)[None] % 16
    block[0, 16:] = block[0, 16:][::-1]
    assert int4.SPLIT_HALVES.pack(block).ravel().tolist() == [16 * (15 - j) + j for j in range(16)]


def test_F25_fp4_pair_of_compressed_tensors():
    pair = np.array([[0.5, 1.0]]).astype(ml_dtypes.float4_e2m1fn)
    assert int4.LOW_FIRST.pack(pair).tolist() == [[0x21]]


def test_F26_negatives_are_masked_and_come_back():
    assert int4.LOW_FIRST.pack(np.array([[-8, -1]])).tolist() == [[0xF8]]
    assert int4.LOW_FIRST.unpack(np.uint8([[0xF8]]), signed=True).tolist() == [[-8, -1]]
    assert int4.LOW_FIRST.pack(np.int8([[-1, 1]])).tolist() == [[0x1F]]
    assert int4.LOW_FIRST.pack(np.array([[-8, -1]]).astype(ml_dtypes.int4)).tolist() == [[0xF8]]


def test_F26_the_top_nibble_of_a_negative_word_is_not_smeared():
    held = np.int32([[-162254320]])
    assert held.view(np.uint32)[0, 0] == 0xF6543210
    assert int4.GPTQ_V2.unpack(held).ravel().tolist() == [0, 1, 2, 3, 4, 5, 6, 15]
    assert int4.GPTQ_V2.unpack(held, signed=True).ravel().tolist() == [0, 1, 2, 3, 4, 5, 6, -1]


@pytest.mark.parametrize("codes", [[8, -9, 300], [16], [-9], [-1, 8]])
def test_F26_out_of_range_integers_are_refused_and_do_not_wrap(codes):
    with pytest.raises(ProblemError, match=f"codes: expected codes all from -8 to 7 or all from 0 to 15, got {min(codes)} to {max(codes)}"):
        int4.LOW_FIRST.pack(np.array([codes]))


@pytest.mark.parametrize("dtype", [np.float32, bool, ml_dtypes.float8_e4m3fn])
def test_F26_what_is_no_integer_is_refused(dtype):
    with pytest.raises(DTypeError, match="codes: expected integer codes"):
        int4.LOW_FIRST.pack(np.ones((1, 2), dtype))


def test_F27_odd_k():
    packed = int4.LOW_FIRST.pack(np.array([1, 2, 3]))
    assert packed.tolist() == [0x21, 0x03]
    assert int4.LOW_FIRST.unpack(packed, (3,)).tolist() == [1, 2, 3]
    assert int4.LOW_FIRST.unpack(packed).tolist() == [1, 2, 3, 0]


def test_F27_the_last_group_may_be_short():
    assert groups.count(192, 128) == 2
    assert groups.count(192, -1) == 1 and groups.in_order(4, -1).tolist() == [0, 0, 0, 0]
    index = groups.in_order(192, 128)
    weights = np.array([1.0, 3.0])[index]
    assert weights.sum() == 320


def test_F27_act_order():
    g_idx = np.int32([0, 1, 0, 1])
    assert not groups.is_in_order(g_idx, 2) and groups.is_in_order(np.int32([0, 0, 1, 1]), 2)
    assert np.float32([1, 10])[groups.checked(g_idx, 4, 2)].tolist() == [1, 10, 1, 10]
    order = groups.by_group(g_idx)
    assert order.tolist() == [0, 2, 1, 3] and g_idx[order].tolist() == [0, 0, 1, 1]
    assert np.arange(4)[order][groups.inverse(order)].tolist() == [0, 1, 2, 3]


def test_F27_a_g_idx_that_does_not_fit_is_refused():
    with pytest.raises(ProblemError, match=r"g_idx: expected \[4\] \(one for each of K\), got \[3\]"):
        groups.checked(np.int32([0, 0, 1]), 4, 2)
    for wrong in ([0, 1, 2, 0], [0, -1, 0, 0]):  # NOTE: -1 would mean the last group to NumPy
        with pytest.raises(ProblemError, match="g_idx: expected groups from 0 to 1, got"):
            groups.checked(np.int32(wrong), 4, 2)
    with pytest.raises(DTypeError, match="g_idx: expected int32, got float32"):
        groups.checked(np.zeros(4, np.float32), 4, 2)
    with pytest.raises(ProblemError, match="group: expected 1 or more, or -1 for all of K, got 0"):
        groups.count(4, 0)
