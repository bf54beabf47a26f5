"""Codes of 4 bits to operand registers: every code at every place with every zero point, in the order that `layouts.int4.stream` writes."""

import ml_dtypes
import numpy as np
import pytest

from dgnumba.dtypes import DTYPES
from dgnumba.integers import u32
from dgnumba.kernels.int4_stage import e4m3_table
from dgnumba.layouts.int4.stream import SIGNS, Record
from dgnumba.layouts.lanes import wgmma_a_bits16, wgmma_a_fp8
from dgnumba.ptx import unpack

KINDS = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


def words_of(order, codes):
    """uint32 [2 halves, 128 threads, 4] of one record's codes [64, 128]."""
    stream = Record(order, 128, 4).pack(codes, np.ones((64, 1), np.float32))
    return stream[0, 0, :4096].view(np.uint32).reshape(2, 128, 4)


def codes_with(rng):
    """Codes of a record, every code at every place of a word among them."""
    codes = rng.integers(0, 16, (64, 128)).astype(np.uint8)
    codes[:16] = np.arange(128) % 16
    return codes


def constants(kind, low, high):
    if kind == "bfloat16":
        return u32(low * 0x10001 | 0xC300C300), u32(high * 0x10001 | 0xC300C300)
    return u32(low * 0x10001 | 0xE400E400), u32(high * 0x100010 | 0xD400D400)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("low, high", [(0, 0), (8, 8), (15, 3), (7, 15)])
def test_sixteen_bits(kind, low, high, rng):
    """Each thread's registers are what the fragment map wants of the tile: codes less the zero point of their row."""
    codes = codes_with(rng)
    words, take = words_of("bits16", codes), {"bfloat16": unpack.u4x8_to_bf16x8, "float16": unpack.u4x8_to_f16x8}[kind]
    zero = np.where(np.arange(64) // 8 % 2 == 0, low, high)[:, None]
    for half in (0, 1):
        for step in range(4):
            held = [take(u32(int(words[half, t, step])), *constants(kind, low, high)) for t in range(128)]
            elements = np.array(held, np.uint32).view(KINDS[kind]).reshape(128, 8)
            tile = wgmma_a_bits16().scatter(elements).astype(np.float64)
            first = 64 * half + 16 * step
            assert (tile == codes[:, first : first + 16].astype(np.float64) - zero).all()


@pytest.mark.parametrize("low, high", [(0, 0), (8, 8), (15, 3), (7, 15)])
def test_sixteen_bits_over_64(low, high, rng):
    codes = codes_with(rng)
    words, known = words_of("bits16", codes), [unpack.bf16x2_of_zero_point(u32(z)) for z in (low, high)]
    zero = np.where(np.arange(64) // 8 % 2 == 0, low, high)[:, None]
    for half, step in np.ndindex(2, 4):
        held = [unpack.u4x8_to_bf16x8_over_64(u32(int(words[half, t, step])), *known) for t in range(128)]
        tile = wgmma_a_bits16().scatter(np.array(held, np.uint32).view(ml_dtypes.bfloat16).reshape(128, 8)).astype(np.float64)
        first = 64 * half + 16 * step
        assert (64 * tile == codes[:, first : first + 16].astype(np.float64) - zero).all()


@pytest.mark.parametrize("kind", KINDS)
def test_sixteen_bits_of_e2m1(kind, rng):
    codes = codes_with(rng)
    words, take = words_of("bits16", codes), {"bfloat16": unpack.e2m1x8_to_bf16x8, "float16": unpack.e2m1x8_to_f16x8}[kind]
    held = [take(u32(int(words[1, t, 2]))) for t in range(128)]
    tile = wgmma_a_bits16().scatter(np.array(held, np.uint32).view(KINDS[kind]).reshape(128, 8))
    assert (tile.astype(np.float64) == DTYPES["float4_e2m1fn"].decode(codes[:, 96:112])).all()


def eight_bits(words, half, step, take):
    """The bytes [64, 32] of a step, through the fragment map: words 2s and 2s + 1 give registers (0, 2) and (1, 3)."""
    held = []
    for t in range(128):
        (r0, r2), (r1, r3) = (take(u32(int(words[half, t, 2 * step + i]))) for i in (0, 1))
        held.append((r0, r1, r2, r3))
    return wgmma_a_fp8().scatter(np.array(held, np.uint32).view(np.uint8))


@pytest.mark.parametrize("zero", range(16))
def test_bytes(zero, rng):
    codes = codes_with(rng)
    words = words_of("bytes", codes)
    for half in (0, 1):
        for step in (0, 1):
            tile = eight_bits(words, half, step, lambda w: unpack.u4x8_to_s8x8(w, u32(0x80808080 - zero * 0x01010101)))
            first = 64 * half + 32 * step
            assert (tile.view(np.int8) == codes[:, first : first + 32].astype(np.int16) - zero).all()


@pytest.mark.parametrize(
    "order, take, decode",
    [
        ("bytes", unpack.u4x8_to_s8x8_times_16, lambda tile: tile.view(np.int8) / 16),
        ("signs", unpack.signs4x8_to_e4m3x8, lambda tile: DTYPES["float8_e4m3fn"].decode(tile) * 256),
    ],
)
def test_bytes_by_masks(order, take, decode, rng):
    codes = codes_with(rng)
    words = words_of(order, codes)
    for half, step in np.ndindex(2, 2):
        first = 64 * half + 32 * step
        assert (decode(eight_bits(words, half, step, take)) == codes[:, first : first + 32].astype(np.float32) - 8).all()


def test_signs_become_codes(rng):
    """Of every word of a record, and of all nibbles alike: the word that the order "bytes" has."""
    codes = codes_with(rng)
    pairs = [
        *zip(words_of("signs", codes).flat, words_of("bytes", codes).flat),
        *((int(SIGNS[c]) * 0x11111111, c * 0x11111111) for c in range(16)),
    ]
    assert all(unpack.signs4x8_to_u4x8(u32(int(word))) == int(expected) for word, expected in pairs)


@pytest.mark.parametrize("zero", range(16))
def test_tables(zero, rng):
    codes = codes_with(rng)
    words = words_of("table", codes)
    table = tuple(map(u32, e4m3_table(np.arange(16) - zero)))
    for half in (0, 1):
        for step in (0, 1):
            tile = eight_bits(words, half, step, lambda w: unpack.u4x8_by_table(w, table))
            first = 64 * half + 32 * step
            assert (DTYPES["float8_e4m3fn"].decode(tile) == codes[:, first : first + 32].astype(np.float32) - zero).all()


def test_the_table_of_e2m1():
    table = e4m3_table(DTYPES["float4_e2m1fn"].decode(np.arange(16)))
    assert table == (0x3C383000, 0x4C484440, 0xBCB8B080, 0xCCC8C4C0)
    values = DTYPES["float8_e4m3fn"].decode(np.array(table, np.uint32).view(np.uint8))
    assert values.tolist() == DTYPES["float4_e2m1fn"].decode(np.arange(16)).tolist()
