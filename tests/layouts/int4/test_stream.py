"""The stream of records: a bijection for every order, group and kind of zero points; the picture in its docstring is what it does."""

import numpy as np
import pytest

from dgnumba.errors import ProblemError
from dgnumba.layouts.int4.stream import CODES_OF_SIGNS, ORDERS, SIGNS, Record

FORMS = [(128, 2, "none"), (128, 4, "integer"), (64, 2, "float"), (32, 1, "none"), (16, 1, "none"), (16, 4, "float")]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("group, size, zeros", FORMS)
def test_pack_and_unpack_invert_each_other(order, group, size, zeros, rng):
    record, n, k = Record(order, group, size, zeros), 192, 384
    codes = rng.integers(0, 16, (n, k)).astype(np.uint8)
    scales = rng.integers(0, 2 ** (8 * size), (n, k // group)).astype(f"u{size}")
    marks = rng.integers(0, 16, scales.shape).astype(np.uint8) if zeros != "none" else None
    rests = rng.standard_normal(scales.shape).astype(np.float32) if zeros == "float" else None
    stream = record.pack(codes, scales, marks, rests)
    assert stream.shape == (3, 3, record.nbytes) and stream.dtype == np.uint8 and record.nbytes % 16 == 0
    found = record.unpack(stream)
    assert (found[0] == codes).all()
    assert (np.ascontiguousarray(found[1]).view(f"u{size}")[..., 0] == scales).all()
    for given, got in ((marks, found[2]), (rests, found[3])):
        assert (given is None) == (got is None) and (given is None or bool((got == given).all()))


@pytest.mark.parametrize("order", ORDERS)
def test_every_code_has_a_place_of_its_own(order):
    """Each bit of each code (or of what stands for it), alone, turns one bit of the words, and no two the same."""
    record, ones = Record(order, 128, 4), np.ones((64, 1), np.float32)
    places = {}
    stands_for = CODES_OF_SIGNS if order == "signs" else np.arange(16, dtype=np.uint8)
    none = record.pack(np.full((64, 128), stands_for[0]), ones)[0, 0, :4096]
    for row in range(0, 64, 9):
        for column in range(128):
            for bit in range(4):
                codes = np.full((64, 128), stands_for[0])
                codes[row, column] = stands_for[1 << bit]
                changed = np.unpackbits(record.pack(codes, ones)[0, 0, :4096] ^ none)
                assert changed.sum() == 1
                places.setdefault(int(changed.argmax()), []).append((row, column, bit))
    assert all(len(who) == 1 for who in places.values())


def nibble(record, row, column):
    """(half, thread, word, first bit) of the lowest bit of a code."""
    codes = np.zeros((64, 128), np.uint8)
    codes[row, column] = 1
    words = record.pack(codes, np.ones((64, 1), np.float32))[0, 0, :4096].view(np.uint32).reshape(2, 128, 4)
    half, thread, word = (int(i[0]) for i in np.nonzero(words))
    return half, thread, word, int(words[half, thread, word]).bit_length() - 1


def test_the_picture_is_what_is_done():
    """Warp 2, q = 5, p = 3, as in the docstring."""
    row, thread, p = 16 * 2 + 5, 32 * 2 + 4 * 5 + 3, 3
    wide = Record("bits16", 128, 4)
    for i, bits in ((0, (0, 4, 8, 12)), (1, (16, 20, 24, 28))):
        assert [nibble(wide, r, 64 + 16 * 2 + 2 * p + i + c) for c, r in ((0, row), (0, row + 8), (8, row), (8, row + 8))] == [
            (1, thread, 2, bit) for bit in bits
        ]
    plain, table = Record("bytes", 128, 4), Record("table", 128, 4)
    for b in range(4):
        assert nibble(plain, row, 32 + 4 * p + b) == (0, thread, 2, 8 * b)
        assert nibble(plain, row + 8, 32 + 16 + 4 * p + b) == (0, thread, 3, 8 * b + 4)
        assert nibble(table, row, 32 + 4 * p + b) == (0, thread, 2, 4 * b)
        assert nibble(table, row + 8, 32 + 16 + 4 * p + b) == (0, thread, 3, 16 + 4 * b)


def test_signs_stand_for_values():
    """A nibble 2 m + s is m, or -1 - m; in the places of "bytes"."""
    assert sorted(SIGNS) == list(range(16)) and (CODES_OF_SIGNS[SIGNS] == np.arange(16)).all()
    for code, stands in enumerate(SIGNS.tolist()):
        assert code - 8 == (-1 - stands // 2 if stands % 2 else stands // 2)
    codes, ones = np.arange(64 * 128, dtype=np.uint32).reshape(64, 128).astype(np.uint8) % 16, np.ones((64, 1), np.float32)
    assert (Record("signs", 128, 4).pack(codes, ones) == Record("bytes", 128, 4).pack(SIGNS[codes], ones)).all()


def test_scales_of_rows_that_a_thread_holds_are_neighbours():
    record = Record("bits16", 64, 2, "integer")
    scales = np.arange(128, dtype=np.uint16).reshape(64, 2)
    stream = record.pack(np.zeros((64, 128), np.uint8), scales, scales.astype(np.uint8))
    held = stream[0, 0, record.scales_at : record.zeros_at].view(np.uint16).reshape(2, 4, 8, 2)
    for group, warp, q, upper in np.ndindex(held.shape):
        assert held[group, warp, q, upper] == scales[16 * warp + q + 8 * upper, group]
    assert (stream[0, 0, record.zeros_at :] == held.reshape(-1)).all()


@pytest.mark.parametrize(
    "words, match",
    [
        (("nibbles", 128, 2), "expected an order"),
        (("bytes", 48, 2), "expected a group"),
        (("bytes", 64, 3), "scales of 1, 2 or 4"),
        (("bytes", 64, 2, "some"), "zeros none"),
    ],
)
def test_other_records_are_refused(words, match):
    with pytest.raises(ProblemError, match=match):
        Record(*words)


def test_other_extents_are_refused():
    record = Record("bytes", 64, 2)
    with pytest.raises(ProblemError, match="multiples of 64 rows and 128 columns"):
        record.pack(np.zeros((64, 64), np.uint8), np.zeros((64, 1), np.uint16))
    with pytest.raises(ProblemError, match="scales: expected"):
        record.pack(np.zeros((64, 128), np.uint8), np.zeros((2, 64), np.uint16))
    with pytest.raises(ProblemError, match="records of 4352 bytes"):
        record.unpack(np.zeros((1, 1, 4096), np.uint8))
