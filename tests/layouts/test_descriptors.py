"""The matrix descriptor's bits, and what a tensor map refuses."""

import re

import ml_dtypes
import numpy as np
import pytest

from dgnumba.errors import ProblemError
from dgnumba.integers import u32
from dgnumba.layouts.descriptors import SmemDescriptor, TensorMap, low_word

low = getattr(low_word, "py_func", low_word)


def whole(descriptor, address):
    return descriptor.high << 32 | int(low(u32(address)))


@pytest.mark.parametrize("mode", [32, 64, 128])
@pytest.mark.parametrize("address", [0, 16, 1024, 1040, 0x8400, 227 * 1024, 0x3FFF0])
def test_decode_of_encode(mode, address):
    descriptor = whole(SmemDescriptor(mode), address)
    assert SmemDescriptor.decode(descriptor) == (address, 8 * mode, mode)
    assert 0 <= descriptor < 2**64


def test_the_bits_are_the_isas():
    """PTX ISA, "Matrix descriptor": 13-0 address / 16, 29-16 leading / 16, 45-32 stride / 16, 63-62 swizzle (1: 128, 2: 64, 3: 32 bytes)."""
    assert whole(SmemDescriptor(128), 0x12340) == 1 << 62 | (1024 >> 4) << 32 | 1 << 16 | 0x1234
    assert whole(SmemDescriptor(64), 0x400) == 2 << 62 | (512 >> 4) << 32 | 1 << 16 | 0x40
    assert whole(SmemDescriptor(32), 0x100) == 3 << 62 | (256 >> 4) << 32 | 1 << 16 | 0x10


def test_k_advances_by_plain_bytes():
    for step in range(4):
        assert int(low(u32(0x2000))) + 2 * step == int(low(u32(0x2000 + 32 * step)))


def test_a_clusters_rank_is_no_part_of_the_address():
    for rank in range(1, 16):
        assert low(u32(rank << 24 | 0x8400)) == low(u32(0x8400))


def test_a_descriptor_of_an_unknown_swizzle_is_refused():
    with pytest.raises((ProblemError, KeyError)):
        SmemDescriptor(16).high  # noqa: B018


GOOD = {"dtype": "uint8", "dims": (256, 64), "strides": (256,), "box": (128, 8), "swizzle": 128}


def test_what_is_taken():
    assert TensorMap(**GOOD).box_bytes == 1024
    assert TensorMap("float32", (100, 3), (400,), (64, 1)).box_bytes == 256
    assert TensorMap("bfloat16", (8,), (), (8,)).box_bytes == 16
    assert TensorMap("uint8", (1, 2, 3, 4, 5), (16, 32, 96, 384), (16, 1, 1, 1, 2)).box_bytes == 32
    assert TensorMap("uint8", (256, 64), (256,), (256, 256)).box_bytes == 65536


@pytest.mark.parametrize(
    "change, message",
    [
        ({"box": (128,)}, "a box entry each"),
        ({"strides": ()}, "a stride for all but the first"),
        ({"dims": (), "strides": (), "box": ()}, "1 to 5 dimensions"),
        ({"dims": (16,) * 6, "strides": (16,) * 5, "box": (16,) + (1,) * 5}, "1 to 5 dimensions"),
        ({"box": (128, 0)}, "box entries from 1 to 256, got (128, 0)"),
        ({"box": (128, 257)}, "box entries from 1 to 256, got (128, 257)"),
        ({"strides": (250,)}, "strides that are multiples of 16 bytes, got (250,)"),
        ({"strides": (-256,)}, "strides that are multiples of 16 bytes, got (-256,)"),
        ({"strides": (2**40,)}, "strides that are multiples of 16 bytes"),
        ({"swizzle": 16}, "a swizzle of (0, 32, 64, 128), got 16"),
        ({"swizzle": 128.0}, "a swizzle of (0, 32, 64, 128), got 128.0"),
        ({"swizzle": "128"}, "a swizzle of (0, 32, 64, 128), got '128'"),
        ({"swizzle": None}, "a swizzle of (0, 32, 64, 128), got None"),
        ({"l2_promotion": 512}, "an l2_promotion of (0, 64, 128, 256), got 512"),
        ({"l2_promotion": 128.0}, "an l2_promotion of (0, 64, 128, 256), got 128.0"),
        ({"l2_promotion": False}, "an l2_promotion of (0, 64, 128, 256), got False"),
        ({"l2_promotion": "128"}, "an l2_promotion of (0, 64, 128, 256), got '128'"),
        ({"l2_promotion": np.array([128, 64])}, "an l2_promotion of (0, 64, 128, 256), got array([128,  64])"),
        ({"box": (120, 8), "swizzle": 0}, "box rows of a multiple of 16 bytes, got 120"),
        ({"box": (144, 8)}, "box rows not longer than the swizzle, got 144 bytes for swizzle 128"),
        ({"dtype": "float32", "box": (64, 8)}, "box rows not longer than the swizzle, got 256 bytes"),
        ({"dims": (0, 64)}, "extents from 1 to 2^32, got (0, 64)"),
        ({"dims": (256, 0)}, "extents from 1 to 2^32"),
        ({"dims": (256, 2**32 + 1)}, "extents from 1 to 2^32"),
    ],
)
def test_what_is_refused(change, message):
    with pytest.raises(ProblemError, match="tensor map: expected .*" + re.escape(message)):
        TensorMap(**{**GOOD, **change})


def test_of_reads_shape_and_strides_innermost_first():
    array = np.zeros((3, 5, 64), np.float32)
    whole_map = TensorMap.of(array, (4, 2, 1))
    assert (whole_map.dtype, whole_map.dims, whole_map.strides) == ("float32", (64, 5, 3), (256, 1280))
    assert whole_map.array is array
    part = TensorMap.of(array[:, 1:3, 16:48], (4, 2, 1))
    assert (part.dims, part.strides) == ((32, 2, 3), (256, 1280))
    assert TensorMap.of(np.zeros((4, 64), ml_dtypes.bfloat16), (16, 1)).dtype == "bfloat16"
    assert TensorMap.of(np.zeros((4, 64), np.uint16), (16, 1), dtype="bfloat16").box_bytes == 32
    assert TensorMap.of(np.zeros(64, np.uint8), (16,)).strides == ()


@pytest.mark.parametrize("view", [lambda x: x.T, lambda x: x[:, ::2], lambda x: x[:, ::-1]], ids=["transposed", "every second", "reversed"])
def test_F13_of_refuses_an_array_whose_last_axis_is_not_contiguous(view):
    """TMA knows no stride along the innermost dimension: other elements would be moved, in silence."""
    with pytest.raises(ProblemError, match="contiguous|last axis|stride"):
        TensorMap.of(view(np.zeros((64, 64), np.uint8)), (16, 1))


def test_of_refuses_a_type_of_another_size():
    with pytest.raises(ProblemError, match="uint8|bytes"):
        TensorMap.of(np.zeros((4, 64), np.uint16), (16, 1), dtype="uint8")
