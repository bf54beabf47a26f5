"""What a cast to few bits does with the elements that a thread holds: pieces of sixteen neighbours, from memory to codes and back to memory.

A piece is held as it was loaded, as in `cast_registers`. A thread has one or more, `step` columns apart, of one row.

Whole numbers come from one rounding: a float32 of 2^23 or more holds whole numbers alone, so that adding 2^23 to a value rounds it, ties to
even, and leaves the whole number in the lowest bits.

Codes of e2m1 come from the likeness of all floats with subnormals: counted from 0 on, their bits go along with the value, in steps that double
from one binade to the next. A float16 of 2^-14 y has nine bits more than the e2m1 of y, and begins its binades at the same places::

    y          0      0.5      1      1.5      2       3       4       6
    e2m1       0       1       2       3       4       5       6       7
    float16    0   1 << 9  2 << 9  3 << 9  4 << 9  5 << 9  6 << 9  7 << 9

So the code is those bits plus half a step, cut off; and two elements become float16 by one instruction, which cuts off too. What that would lose
is whether y lies above a half-way point, or on it. So y, a float32, is first moved by its last bit where it must be:

* toward zero at a tie (DeepGEMM's e2m1): y times 1 - 2^-24, cut off to float32, is the float32 just below y. What was a tie lies below it now,
  and nothing else crosses one.
* to even: of the half-way points 0.25, 1.25, 2.5 and 5 are to be rounded down; 0.75, 1.75 and 3.5 up. In binary the first have a mantissa of 1 or
  1.25, the others of 1.5 or 1.75. y + 0.75 * 2^-24 y, to nearest, is the float32 just above y where the mantissa is above 4/3, else y: then the
  step down leaves the others where they are.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..dtypes import DTYPES
from ..ptx import Fragment, Registers, convert, f32, memory, packed, select, u32, u64, unrolled
from .cast_registers import E4M3, _code, _decoded, _floats
from .smxx_cast_rules import ITEMSIZE, WIDTH

E2M1, INT4, INT8 = DTYPES["float4_e2m1fn"], DTYPES["int4"], DTYPES["int8"]
ELEMENTS = {"float8_e4m3fn": E4M3, "float4_e2m1fn": E2M1, "int4": INT4, "int8": INT8}
"""Types that are cast to."""

ROUND, ROUND_BITS = 8388608.0, 0x4B000000
"""2^23, and its bits."""

F16_OF_1 = float(np.ldexp(1 - 2.0**-24, -14))
"""2^-14, from which on a float16 is normal as e2m1 is from 1 on; less a last bit, so that what is cut off becomes less by one."""

TIE_STEP = 0.75 * 2.0**-24
"""Of y, to the next float32 above where its mantissa is 4/3 or more."""

E2M1_HALFWAY = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], np.float32)


def load_for(dtype: str, is_vector: bool, pieces: int, step: int) -> Callable[..., Any]:
    """The operation that loads `pieces` pieces of a row, `step` columns apart; zeros outside of [m, k]."""
    size = ITEMSIZE[dtype]

    @unrolled
    def load(address: u64, pitch: u64, is_in_m: bool, col: u32, k: u32) -> Registers(4 * size * pieces):
        """ld.global - elements of a row; zeros beyond its end.

        PTX:       ISA 9.0, "ld"
        Scope:     thread
        Args:      address  u64   of the first piece's first element
                   pitch    u64   bytes between elements
                   is_in_m  bool  whether there is such a row
                   col, k   u32   the first column, and the columns there are
        Returns:   words as in memory, piece by piece
        Emulates:  exactly
        """
        out: list[Any] = []
        for p in range(pieces):
            begin, first = address + (size if is_vector else pitch) * (p * step), col + p * step
            if is_vector:
                for word in range(size):
                    out += memory.load_global_v4_if(is_in_m & (first < k), begin + 16 * word)
            elif size == 4:
                out += [memory.load_global_u32_if(is_in_m & (first + j < k), begin + pitch * j) for j in range(WIDTH)]
            else:
                halves = [memory.load_global_u16_if(is_in_m & (first + j < k), begin + pitch * j) for j in range(WIDTH)]
                out += [low | high << 16 for low, high in zip(halves[::2], halves[1::2])]
        return tuple(out)

    return load


def store_for(is_vector: bool, pieces: int, step: int) -> Callable[..., Any]:
    """The operation that stores `pieces` times sixteen bytes of a row, `step` bytes apart."""

    @unrolled
    def store(address: u64, is_in_m: bool, col: u32, end: u32, codes: Registers) -> None:
        """st.global - bytes of a row, those before its end.

        PTX:       ISA 9.0, "st"
        Scope:     thread
        Args:      address   u64   of the first byte
                   is_in_m   bool  whether there is such a row
                   col, end  u32   the first byte's place in its row, and the bytes there are
                   codes     u32 registers, four bytes in each, piece by piece
        Returns:   nothing
        Emulates:  exactly
        """
        for p in range(pieces):
            begin, first, words = address + p * step, col + p * step, codes[4 * p : 4 * p + 4]
            if is_vector:
                memory.store_global_v4_if(is_in_m & (first < end), begin, words)
            else:
                for j in range(16):
                    memory.store_global_u8_if(is_in_m & (first + j < end), begin + j, words[j // 4] >> (8 * (j % 4)))

    return store


def amax_for(dtype: str, pieces: int) -> Callable[..., Any]:
    """The operation that gives the largest magnitude of each piece."""

    def emulate(words: Any) -> Any:
        return np.max(np.abs(_decoded(words, dtype).reshape(pieces, -1)), axis=1)

    @unrolled(emulate=emulate)
    def amax(words: Registers) -> Fragment(pieces):
        """max.NaN - the largest magnitude of each of some pieces; NaN where one holds it.

        PTX:       ISA 9.0, "max"; sm_80+
        Scope:     thread
        Args:      words  u32 registers, as loaded
        Returns:   a float32 for each piece
        Emulates:  exactly
        """
        count = len(words) // pieces
        return tuple(_largest(words[p * count : (p + 1) * count], dtype) for p in range(pieces))

    return amax


def _largest(words: Any, dtype: str) -> Any:
    """Two chains, since each step of one waits for the one before; 16-bit elements two at once."""
    if dtype == "float32":
        chains: list[Any] = [0.0, 0.0]
        for i, word in enumerate(words):
            chains[i % 2] = convert.max_magnitude(chains[i % 2], convert.bits_to_f32(word))
        return convert.max_magnitude(chains[0], chains[1])
    larger = packed.max_magnitude_bf16x2 if dtype == "bfloat16" else packed.max_magnitude_f16x2
    chains = [u32(0), u32(0)]
    for i, word in enumerate(words):
        chains[i % 2] = larger(chains[i % 2], word)
    low, high = _floats((larger(chains[0], chains[1]),), dtype)
    return convert.max_magnitude(low, high)


def encode_for(
    dtype: str,
    element: str,
    *,
    packed: bool = False,
    ties_to_zero: bool = False,
    clips: bool = False,
    is_native: bool = True,
    by_powers: bool = False,
) -> Callable[..., Any]:
    """The operation that makes the codes of some pieces.

    packed        two codes of 4 bits a byte, the first in the low half
    ties_to_zero  DeepGEMM's e2m1, which has no -0 either
    clips         what lies beyond the range becomes the largest element (and NaN 0 with `ties_to_zero`); without, nothing may lie there. Of
                  integers half a step may, by amax / 7.5
    is_native     e4m3 by the instruction of sm_89
    by_powers     inverses are powers of two: bfloat16 to e2m1 is then done two elements at once, as nothing of a product is rounded
    """
    kind, bits = ELEMENTS[element], 4 if packed else 8
    count = 32 // bits

    def emulate(words: Any, inverses: Any) -> Any:
        return _encoded(_decoded(words, dtype), np.array(inverses, np.float32)[:, None], kind, packed, ties_to_zero, clips)

    def word_of(values: list[Any], inverse: Any, source: Any) -> Any:
        if kind is E4M3:
            return _e4m3_word([v * inverse for v in values], is_native)
        if kind is E2M1 and not (by_powers and dtype == "bfloat16"):
            return _e2m1_word(values, inverse, bits, ties_to_zero, clips)
        if kind is E2M1:
            word = _e2m1_word_of_pairs(source, inverse, bits, clips)
        else:
            word = _integer_word([v * inverse for v in values], kind, bits, clips)
        return select(inverse == inverse, word, u32(0))

    @unrolled(emulate=emulate)
    def encode(words: Registers, inverses: Fragment) -> Registers(lambda sizes: sizes["words"] * bits // (8 * ITEMSIZE[dtype])):
        """add.rn.f32 - the codes of elements times inverse scales, each product rounded to float32 first.

        PTX:       ISA 9.0, "add", "cvt"
        Scope:     thread
        Args:      words     u32 registers, as loaded
                   inverses  one for each piece, or for all; of a NaN all codes are 0 (e4m3: NaN)
        Returns:   u32 registers, as many codes in each as it holds
        Emulates:  exactly
        """
        words, out = convert.forget(words), []
        size = len(words) // len(inverses)
        for p, inverse in enumerate(inverses):
            held = words[p * size : (p + 1) * size]
            values = _floats(held, dtype)
            per_word = count * size // len(values)
            for i in range(len(values) // count):
                part, source = values[i * count : (i + 1) * count], held[i * per_word : (i + 1) * per_word]
                out.append(word_of(part, inverse, source))
        return tuple(out)

    return encode


def _encoded(x: Any, inverses: Any, kind: Any, packed: bool, ties_to_zero: bool, clips: bool) -> tuple[Any, ...]:
    """What an `encode` gives, on numbers at once."""
    with np.errstate(all="ignore"):
        y = x.reshape(len(inverses), -1) * inverses
    assert clips or kind is E4M3 or not np.any(np.abs(y) >= kind.max + (1 if kind is E2M1 else 0.5)), (
        "beyond the range, where nothing clips"
    )
    codes = _with_ties_to_zero(y) if ties_to_zero else kind.encode(y, saturate_inf=False)
    codes = np.where(np.isnan(inverses) & (kind is not E4M3), 0, codes).astype(np.uint8).reshape(-1)
    if packed:
        codes = codes[::2] | codes[1::2] << 4
    return tuple(u32(w) for w in codes.view(np.uint32))


def _with_ties_to_zero(y: Any) -> Any:
    code = np.sum(np.abs(y)[..., None] > E2M1_HALFWAY, axis=-1)
    return code | ((y < 0) & (code > 0)) << 3


def _e4m3_word(y: list[Any], is_native: bool) -> Any:
    if is_native:
        return convert.f32x4_to_e4m3x4(*y)
    c = [_code(v) for v in y]
    return c[0] | c[1] << 8 | c[2] << 16 | c[3] << 24


def _joined(rounded: list[Any], bits: int) -> Any:
    """The whole numbers in some sums with 2^23, each at its place in a word."""
    word = convert.f32_to_bits(rounded[-1])
    for r in reversed(rounded[:-1]):
        word = (word << bits) + convert.f32_to_bits(r)
    return word - sum(ROUND_BITS << bits * i for i in range(len(rounded))) % (1 << 32)


def _each(value: int, bits: int) -> int:
    """A number at every place of a word."""
    return sum(value << i for i in range(0, 32, bits))


def _integer_word(y: list[Any], kind: Any, bits: int, clips: bool) -> Any:
    """Codes in two's complement, by way of codes from 0 on: to flip the highest bit takes the offset off again."""
    offset = 1 << kind.bits - 1
    if clips:
        y = [convert.smaller(v, float(kind.max)) for v in y]
    return _joined([convert.add(v, ROUND + offset) for v in y], bits) ^ _each(offset, bits)


def _e2m1_word(values: Any, inverse: Any, bits: int, ties_to_zero: bool, clips: bool) -> Any:
    """By way of float16, two at once: byte 1 of each is its sign, three zeros, the code and the first bit behind it, to round by.

    Of a NaN the float16 is 0x7fff: with half a step more its code, and the sign, are 0.
    """
    halves = [_scaled_to_f16(v * inverse, ties_to_zero, clips) for v in values]
    if bits == 4:
        halves = halves[::2] + halves[1::2]  # what comes in the low half of a byte, then what comes in the high half
    pairs = [convert.f32x2_to_f16x2_to_zero(low, high) for low, high in zip(halves[::2], halves[1::2])]
    fours = [packed.permute_bytes(x, y, 0x7531) for x, y in zip(pairs[::2], pairs[1::2])]
    if bits == 8:
        found, signs = fours[0] & 0x0F0F0F0F, fours[0] >> 4 & 0x08080808
    else:
        even, odd = fours
        # NOTE: beside the sign of a NaN are ones of its mantissa; to mask them is no instruction more, as lop3 has three operands.
        found, signs = packed.merge_bits(even, odd << 4, 0x0F0F0F0F), packed.merge_bits(even >> 4, odd, 0x0F0F0F0F) & 0x88888888
    codes = found + _each(1, bits) >> 1 & _each(7, bits)
    if ties_to_zero:
        signs = signs & codes + _each(7, bits)  # with 7 more, bit 3 is set of all but 0
    return codes | signs


def _scaled_to_f16(y: Any, ties_to_zero: bool, clips: bool) -> Any:
    """2^-14 y, moved by a last bit or none: at or above a half-way point if and only if y is to be rounded up there."""
    if clips:
        bits = convert.f32_to_bits(convert.smaller(convert.magnitude(y), float(E2M1.max))) | convert.f32_to_bits(y) & 0x80000000
        y = select(y == y, convert.bits_to_f32(bits), f32(0))
    if not ties_to_zero:
        y = convert.fma(y, TIE_STEP, y)
    return convert.multiply_to_zero(y, F16_OF_1)


def _twice(number: int) -> int:
    return number << 16 | number


def _e2m1_word_of_pairs(words: Any, inverse: Any, bits: int, clips: bool) -> Any:
    """As `_e2m1_word`, in bfloat16: 128 and more hold whole numbers alone, and 128 plus a code has the code in its lower byte."""
    factor = packed.permute_bytes(convert.f32_to_bits(inverse), u32(0), 0x3232)
    codes = []
    for word in words:
        y = packed.fma_bf16x2(word & 0x7FFF7FFF, factor, u32(_twice(0x8000)))  # the product as it is: -0 is added
        lines = [
            packed.fma_bf16x2(y, u32(_twice(slope)), u32(_twice(start)))
            for slope, start in ((0x4000, 0x4300), (0x3F80, 0x4302), (0x3F00, 0x4304))  # 2 y + 128, y + 130, y / 2 + 132
        ]
        code = packed.smaller_bf16x2(packed.smaller_bf16x2(lines[0], lines[1]), lines[2])
        codes.append(packed.smaller_bf16x2(code, u32(_twice(0x4307))) if clips else code)
    fours = [packed.permute_bytes(x, y, 0x6420) for x, y in zip(codes[::2], codes[1::2])]
    if bits == 8:
        return fours[0] | _signs(words, bits)
    nibbles = [four | four >> 4 for four in fours]  # in every second byte two codes
    return packed.permute_bytes(*nibbles, 0x6420) | _signs(words, bits)


def _signs(words: Any, bits: int) -> Any:
    """The signs of the elements in some words, each in bit 3 of its place in a word of codes."""
    if 32 // bits == len(words):
        halves = [packed.permute_bytes(x, y, 0xFB) for x, y in zip(words[::2], words[1::2])]  # float32: a word an element
        fours = [packed.permute_bytes(x, y, 0x5410) for x, y in zip(halves[::2], halves[1::2])]
    else:
        fours = [packed.permute_bytes(x, y, 0xFDB9) for x, y in zip(words[::2], words[1::2])]
    if bits == 8:
        return fours[0] & 0x08080808
    even, odd = packed.permute_bytes(*fours, 0x6420), packed.permute_bytes(*fours, 0x7531)
    return even & 0x08080808 | odd & 0x80808080
