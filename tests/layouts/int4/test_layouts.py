"""Every 4-bit layout: the map covers its tile exactly once, pack and unpack invert each other, and the pictures are what is done."""

import doctest
import inspect
import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgnumba.errors import DTypeError, ProblemError
from dgnumba.layouts import int4
from dgnumba.layouts.int4 import byte_orders, fragments, gguf, groups, packing, words
from dgnumba.layouts.int4.packing import from_words, to_words

PACKINGS = sorted(int4.PACKINGS.values(), key=lambda p: p.name)
STEP = {
    "awq": (8, 1), "gptq_v1": (1, 8), "gptq_v2": (1, 8), "hqq": (2, 1), "marlin": (64, 16), "split_halves": (1, 32), "tinygemm": (8, 128),
    "torchao": (1, 2),
}  # fmt: skip
"""Multiples in which N and K must come; of the rest any."""

by_name = pytest.mark.parametrize("layout", PACKINGS, ids=lambda p: p.name)


def drawn(data, layout):
    n, k = STEP.get(layout.name, (1, 1))
    shape = (n * data.draw(st.integers(1, 3)), k * data.draw(st.integers(1, 3)))
    raw = data.draw(st.binary(min_size=math.prod(shape), max_size=math.prod(shape)))
    return np.frombuffer(raw, np.uint8).reshape(shape) & 15


@by_name
@given(data=st.data())
def test_unpack_inverts_pack(layout, data):
    codes = drawn(data, layout)
    packed = layout.pack(codes)
    assert packed.dtype == layout.word and packed.shape == layout.packed_shape(codes.shape)
    back = layout.unpack(packed, codes.shape)
    assert back.dtype == np.uint8 and np.array_equal(codes, back)
    assert np.array_equal(int4.as_signed(codes), layout.unpack(packed, codes.shape, signed=True))
    # Words without padding hold any bits: then the other way round is the identity too.
    if codes.size == packed.size * 2 * layout.word.itemsize:
        bits = data.draw(st.binary(min_size=packed.nbytes, max_size=packed.nbytes))
        anything = np.frombuffer(bits, layout.word).reshape(packed.shape)
        assert np.array_equal(anything, layout.pack(layout.unpack(anything, codes.shape)))


@by_name
@given(data=st.data())
def test_the_map_covers_its_codes_exactly_once(layout, data):
    codes = drawn(data, layout)
    elements = layout.elements(codes.shape)
    held = elements[elements >= 0]
    assert np.array_equal(np.arange(codes.size), np.sort(held))
    # and what the map says is what pack does
    packed = np.ascontiguousarray(layout.pack(codes))
    pairs = packed.view(np.uint8)
    found = np.stack([pairs & 15, pairs >> 4], -1).reshape(elements.shape)
    assert np.array_equal(codes.ravel()[elements[elements >= 0]] ^ layout.flip, found[elements >= 0])
    assert not found[elements < 0].any()


FLAT = ("onnx", "bitsandbytes")
"""Layouts that run on from row to row, and from slice to slice."""


@pytest.mark.parametrize("layout", [layout for name, layout in int4.PACKINGS.items() if name not in FLAT], ids=lambda layout: layout.name)
def test_F27_a_stack_of_weights_is_packed_slice_by_slice(layout, rng):
    n, k = STEP.get(layout.name, (2, 3))
    codes = rng.integers(0, 16, (2, n, k), dtype=np.uint8)
    packed = layout.pack(codes)
    assert np.array_equal(np.stack([layout.pack(part) for part in codes]), packed)
    assert np.array_equal(codes, layout.unpack(packed, codes.shape))


@by_name
def test_the_picture_in_the_docstring_is_what_is_done(layout):
    shape = {
        "awq": (8, 2), "bitsandbytes": (2, 3), "compressed_tensors": (1, 9), "gptq_v1": (2, 8), "gptq_v2": (2, 8), "hqq": (4, 2),
        "marlin": (64, 16), "onnx": (2, 3), "split_halves": (1, 32), "tinygemm": (8, 32), "torchao": (2, 4),
    }.get(layout.name, (1, 3))  # fmt: skip
    words = {"marlin": 5, "tinygemm": 5, "split_halves": 3}.get(layout.name, 8)
    drawing = (int4.Tinygemm(2) if layout.name == "tinygemm" else layout).picture(shape, words)
    assert drawing in inspect.getdoc(layout).replace("\n    ", "\n")


@by_name
def test_the_default_shape_is_the_one_without_padding(layout):
    n, k = STEP.get(layout.name, (2, 8))
    codes = np.zeros((n, k), np.uint8)
    unpacked = layout.unpack(layout.pack(codes))
    assert unpacked.size == codes.size
    if layout.name not in ("onnx", "bitsandbytes"):
        assert unpacked.shape == codes.shape


@by_name
def test_empty_weights(layout):
    n, k = STEP.get(layout.name, (1, 1))
    for shape in ((0, k), (n, 0)):
        packed = layout.pack(np.zeros(shape, np.uint8))
        assert packed.size == 0
        assert layout.unpack(packed, shape).shape == shape


@by_name
def test_any_strides_and_read_only_memory(layout, rng):
    n, k = (2 * x for x in STEP.get(layout.name, (3, 5)))
    base = rng.integers(0, 16, (2 * n, k), dtype=np.uint8)
    base.flags.writeable = False
    plain = np.ascontiguousarray(base[::2])
    for codes in (base[::2], np.asfortranarray(plain), np.ascontiguousarray(plain.T).T, plain[::-1, ::-1][::-1, ::-1]):
        packed = layout.pack(codes)
        assert np.array_equal(layout.pack(plain), packed)
        assert np.array_equal(plain, layout.unpack(np.asfortranarray(packed), plain.shape))


@by_name
def test_wrong_words_are_refused(layout):
    n, k = STEP.get(layout.name, (2, 8))
    packed = layout.pack(np.zeros((n, k), np.uint8))
    with pytest.raises(DTypeError, match=f"packed: expected {layout.word}, got float32"):
        layout.unpack(packed.astype(np.float32))
    with pytest.raises(ProblemError, match="packed: expected|expects"):
        layout.unpack(packed, (n + 64, k + 128))


@pytest.mark.parametrize("name", sorted(STEP))
def test_extents_that_do_not_fit_are_refused_by_name(name):
    n, k = STEP[name]
    for wrong in {(n, k + 1) if k > 1 else (n, k), (n + 1, k) if n > 1 else (n, k)} - {(n, k)}:
        axis = "N" if wrong[0] != n else "K"
        with pytest.raises(ProblemError, match=f"{name} expects {axis} in multiples of"):
            int4.PACKINGS[name].pack(np.zeros(wrong, np.uint8))


@pytest.mark.parametrize("inner", [2, 4, 8])
def test_tinygemm_against_its_definition(inner, rng):
    """One code at a time, from the fragment of mma.m16n8k16: lane 4q + p, register pairs 2p and 2p + 8, two tiles to a word."""
    n, k = 16, 32 * inner
    codes = rng.integers(0, 16, (n, k), dtype=np.uint8)
    packed = int4.Tinygemm(inner).pack(codes).view(np.uint32)
    for index in np.ndindex(packed.shape):
        tile, outer, lane, pair = index
        word = 0
        for element in range(8):
            t, half, low = element // 4, element // 2 % 2, element % 2
            column = (outer * inner + 2 * pair + t) * 16 + lane % 4 * 2 + half * 8 + low
            nibble = element // 2 + 4 * (element % 2)
            word |= int(codes[tile * 8 + lane // 4, column]) << 4 * nibble
        assert word == packed[index]


def test_tinygemm_refuses_other_tilings():
    with pytest.raises(ProblemError, match="inner_k_tiles: expected 2, 4 or 8, got 3"):
        int4.Tinygemm(3)
    with pytest.raises(ProblemError, match=r"packed: expected \[..., N/8, K/128, 32, 4\]"):
        int4.TINYGEMM.unpack(np.zeros((2, 2), np.int32))


def test_marlin_against_its_definition(rng):
    """One code at a time: 16 of K and 64 of N a run, a lane's four words, eight codes each."""
    n, k = 128, 32
    codes = rng.integers(0, 16, (n, k), dtype=np.uint8)
    packed = int4.MARLIN.pack(codes).view(np.uint32)
    assert packed.shape == (k // 16, n * 2)
    for tile, at in np.ndindex(packed.shape):
        block, lane, j = at // 128, at % 128 // 4, at % 4
        word = 0
        for nibble in range(8):
            element = (0, 2, 4, 6, 1, 3, 5, 7)[nibble]
            row = lane % 4 * 2 + element % 2 + 8 * (element % 4 // 2)
            column = 64 * block + 16 * j + 8 * (element // 4) + lane // 4
            word |= int(codes[column, tile * 16 + row]) << 4 * nibble
        assert word == packed[tile, at]


def test_marlin_scales_are_the_orders_of_its_docstring():
    several = int4.MARLIN.pack_scales(np.arange(128.0)[:, None] + np.float32([0, 1000]))
    assert several.shape == (2, 128)
    assert several[0, :10].tolist() == [0, 8, 16, 24, 32, 40, 48, 56, 1, 9]
    assert several[1, 63:66].tolist() == [1063, 1064, 1072]
    single = int4.MARLIN.pack_scales(np.arange(64.0)[:, None])
    assert single[0, :12].tolist() == [0, 1, 8, 9, 16, 17, 24, 25, 2, 3, 10, 11]
    assert single[0, 31:34].tolist() == [31, 32, 33]


@given(st.integers(1, 3), st.integers(1, 4))
def test_marlin_scales_invert(runs, group_count):
    scales = np.random.default_rng(runs).random((64 * runs, group_count), np.float32).astype(np.float16)
    assert np.array_equal(scales, int4.MARLIN.unpack_scales(int4.MARLIN.pack_scales(scales)))


def test_marlin_scales_refuse_other_extents():
    with pytest.raises(ProblemError, match="marlin expects N in multiples of 64, got N = 32"):
        int4.MARLIN.pack_scales(np.ones((32, 2), np.float16))


@pytest.mark.parametrize("layout", [int4.AWQ, int4.GPTQ_V1, int4.GPTQ_V2, int4.COMPRESSED_TENSORS], ids=lambda p: p.name)
@given(data=st.data())
def test_zero_points_invert(layout, data):
    n = 8 * data.draw(st.integers(1, 3))
    zeros = np.frombuffer(data.draw(st.binary(min_size=3 * n, max_size=3 * n)), np.uint8).reshape(n, 3) & 15
    packed = layout.pack_zeros(zeros)
    assert packed.dtype == np.int32
    assert packed.shape == ((n // 8, 3) if layout is int4.COMPRESSED_TENSORS else (3, n // 8))
    assert np.array_equal(zeros, layout.unpack_zeros(packed, n))


def test_compressed_tensors_zero_points_of_rows_that_fill_no_word():
    zeros = np.arange(10).reshape(5, 2) % 8
    packed = int4.COMPRESSED_TENSORS.pack_zeros(zeros)
    assert packed.shape == (1, 2)
    assert np.array_equal(zeros, int4.COMPRESSED_TENSORS.unpack_zeros(packed, 5))
    with pytest.raises(ProblemError, match="packed: expected words for 9 rows, got words for 8"):
        int4.COMPRESSED_TENSORS.unpack_zeros(packed, 9)


def test_gptq_zero_points_lose_one_in_v1_without_a_borrow():
    zeros = np.array([[0, 1, 8, 15, 0, 0, 7, 0]]).T
    assert hex(int4.GPTQ_V1.pack_zeros(zeros).view(np.uint32)[0, 0]) == "0xf6ffe70f"
    assert hex(int4.GPTQ_V2.pack_zeros(zeros).view(np.uint32)[0, 0]) == "0x700f810"
    for word, other in ((0x77777777, 0x88888888), (0xFFFFFFFF, 0x00000000), (0x0F0F0F0F, 0x10101010)):
        v1 = np.uint32([[word]]).view(np.int32)
        v2 = int4.gptq_v1_to_v2(v1)
        assert v2.view(np.uint32)[0, 0] == other
        assert np.array_equal(v1, int4.gptq_v2_to_v1(v2))


@given(st.binary(min_size=8, max_size=64).filter(lambda b: len(b) % 8 == 0), st.permutations(range(8)))
def test_words_are_little_endian_bytes_in_any_order(raw, order):
    nibs = np.frombuffer(raw, np.uint8) & 15
    found = to_words(nibs, order)
    expected = [sum(int(nibs[8 * w + order[i]]) << 4 * i for i in range(8)) for w in range(len(nibs) // 8)]
    assert expected == found.view(np.uint32).tolist()
    assert np.array_equal(nibs, from_words(found, order))


def test_gguf_records_hold_scale_and_halves(rng):
    codes = rng.integers(-8, 8, (2, 64))
    scale = np.float16([[1, 2], [-3, 0.5]])
    records = int4.Q4_0.pack(codes, scale)
    assert records.shape == (2, 36) and records.dtype == np.uint8
    assert records[0, :2].tobytes() == np.float16(1).tobytes() and records[1, 18:20].tobytes() == np.float16(0.5).tobytes()
    assert records[0, 2] == (codes[0, 0] + 8) | (codes[0, 16] + 8) << 4
    back, scales = int4.Q4_0.unpack(records, signed=True)
    assert back.dtype == np.int8 and np.array_equal(codes, back) and np.array_equal(scale, scales)
    mx = int4.MXFP4.pack(codes, np.uint8([[127, 128], [1, 254]]))
    assert mx.shape == (2, 34) and mx[0, 0] == 127 and mx[0, 17] == 128
    assert mx[0, 1] == (codes[0, 0] & 15) | (codes[0, 16] & 15) << 4
    nibs, bytes_ = int4.MXFP4.unpack(mx)
    assert np.array_equal(codes & 15, nibs) and bytes_.dtype == ml_dtypes.float8_e8m0fnu
    assert bytes_.view(np.uint8).tolist() == [[127, 128], [1, 254]]


def test_gguf_records_refuse_what_does_not_fit():
    with pytest.raises(DTypeError, match="scale: expected float16, got float32"):
        int4.Q4_0.pack(np.zeros((1, 32), np.int8), np.float32([[1]]))
    with pytest.raises(ProblemError, match=r"scale: expected \[1, 2\] \(one per 1x32\)"):
        int4.Q4_0.pack(np.zeros((1, 64), np.int8), np.float16([[1]]))
    with pytest.raises(ProblemError, match="whole 17-byte MXFP4 blocks, got rows of 18 bytes"):
        int4.MXFP4.unpack(np.zeros((1, 18), np.uint8))
    with pytest.raises(ProblemError, match="Q4_0 expects K in multiples of 32"):
        int4.Q4_0.pack(np.zeros((1, 33), np.int8), np.float16([[1, 1]]))
    empty, scales = int4.Q4_0.unpack(np.zeros((3, 0), np.uint8))
    assert empty.shape == (3, 0) and scales.shape == (3, 0)


@pytest.mark.parametrize("module", [byte_orders, fragments, gguf, groups, packing, words], ids=lambda m: m.__name__.rpartition(".")[2])
def test_examples_in_docstrings(module):
    assert doctest.testmod(module).failed == 0


def test_every_layout_is_documented_with_a_picture():
    assert [p.name for p in PACKINGS if "n0k0" not in (inspect.getdoc(p) or "")] == []
    assert repr(int4.AWQ) == "<4-bit layout awq>"
