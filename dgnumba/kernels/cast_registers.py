"""What a cast does with the elements that a thread holds: rows of sixteen neighbours, from memory to e4m3 codes and back to memory.

Sixteen elements are one 16-byte store of codes, and two loads of 16 bytes (bfloat16, float16) or four (float32). They are held as they were
loaded, `ITEMSIZE` words to four, row by row, and become float32 each time they are looked at: that saves registers, of which the loads in
flight need many. The vector forms need rows that begin at multiples of 16 bytes and whose length is a multiple of sixteen; the scalar forms
take any address, any strides and any length, element by element.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..dtypes import DTYPES
from ..ptx import Fragment, Registers, convert, f32, memory, select, u32, u64, unrolled
from .smxx_cast_rules import ITEMSIZE, WIDTH

E4M3 = DTYPES["float8_e4m3fn"]

POISONED = 0x00400000
"""float32 bits of 2^-127: the inverse of the UE8M0 scale of a block that holds what is not finite, and of no other."""


def _floats(words: Any, dtype: str) -> tuple[Any, ...]:
    """Registers as they were loaded -> float32."""
    if dtype == "float32":
        return tuple(convert.bits_to_f32(w) for w in words)
    widen = convert.bf16x2_to_f32x2 if dtype == "bfloat16" else convert.f16x2_to_f32x2
    return tuple(x for w in words for x in widen(w))


def _decoded(words: Any, dtype: str) -> np.ndarray:
    """The same on numbers, at once."""
    return np.array(words, np.uint32).view(DTYPES[dtype].numpy).astype(np.float32)


def load_for(dtype: str, is_vector: bool, rows: int, row_step: int) -> Callable[..., Any]:
    """The operation that loads `rows` rows, `row_step` apart, of sixteen elements each; zeros outside of [m, k]."""
    size = ITEMSIZE[dtype]

    @unrolled
    def load(address: u64, row_pitch: u64, col_pitch: u64, row: u32, m: u32, col: u32, k: u32) -> Registers(4 * size * rows):
        """ld.global - elements of some rows; zeros beyond the last row or column.

        PTX:       ISA 9.0, "ld"
        Scope:     thread
        Args:      address               u64  of the first row's first element
                   row_pitch, col_pitch  u64  bytes between rows, and between elements of one
                   row, m                u32  the first row, and the rows there are
                   col, k                u32  the first column, and the columns there are
        Returns:   words as in memory, row by row
        Emulates:  exactly
        """
        out: list[Any] = []
        for r in range(rows):
            begin = address + row_pitch * (r * row_step)
            in_m = row + r * row_step < m
            if is_vector:
                for piece in range(size):
                    out += memory.load_global_v4_if(in_m & (col < k), begin + 16 * piece)
            elif size == 4:
                out += [memory.load_global_u32_if(in_m & (col + j < k), begin + col_pitch * j) for j in range(WIDTH)]
            else:
                halves = [memory.load_global_u16_if(in_m & (col + j < k), begin + col_pitch * j) for j in range(WIDTH)]
                out += [low | high << 16 for low, high in zip(halves[::2], halves[1::2])]
        return tuple(out)

    return load


def store_for(is_vector: bool, rows: int, row_step: int) -> Callable[..., Any]:
    """The operation that stores the codes of `rows` rows, `row_step` apart."""

    @unrolled
    def store(address: u64, pitch: u64, row: u32, m: u32, col: u32, k: u32, codes: Registers(4 * rows)) -> None:
        """st.global - codes of some rows, those inside [m, k].

        PTX:       ISA 9.0, "st"
        Scope:     thread
        Args:      address  u64  of the first row's first code
                   pitch    u64  bytes between rows
                   row, m   u32  the first row, and the rows there are
                   col, k   u32  the first column, and the columns there are
                   codes    u32 registers, four codes in each, row by row
        Returns:   nothing
        Emulates:  exactly
        """
        for r in range(rows):
            begin = address + pitch * (r * row_step)
            in_m = row + r * row_step < m
            if is_vector:
                memory.store_global_v4_if(in_m & (col < k), begin, codes[4 * r : 4 * r + 4])
            else:
                for j in range(WIDTH):
                    memory.store_global_u8_if(in_m & (col + j < k), begin + j, codes[4 * r + j // 4] >> (8 * (j % 4)))

    return store


def amax_for(dtype: str) -> Callable[..., Any]:
    """The operation that gives the largest magnitude of what a thread holds."""

    def emulate(words: Any) -> Any:
        return np.max(np.abs(_decoded(words, dtype)))

    @unrolled(emulate=emulate)
    def amax(words: Registers) -> f32:
        """max.NaN.f32 - the largest magnitude of some elements; NaN if one is.

        PTX:       ISA 9.0, "max"; sm_80+
        Scope:     thread
        Args:      words  u32 registers, as loaded
        Returns:   float32
        Emulates:  exactly
        """
        chains = [0.0, 0.0, 0.0, 0.0]  # four, since each step of one waits for the one before
        for i, value in enumerate(_floats(words, dtype)):
            chains[i % 4] = convert.max_magnitude(chains[i % 4], value)
        return convert.max_magnitude(convert.max_magnitude(chains[0], chains[1]), convert.max_magnitude(chains[2], chains[3]))

    return amax


def column_amax_for(dtype: str) -> Callable[..., Any]:
    """The operation that gives the largest magnitude of each of the sixteen columns that a thread holds."""

    def emulate(words: Any) -> Any:
        return np.max(np.abs(_decoded(words, dtype).reshape(-1, WIDTH)), axis=0)

    @unrolled(emulate=emulate)
    def column_amax(words: Registers) -> Fragment(WIDTH):
        """max.NaN.f32 - the largest magnitude of each of sixteen columns; NaN where one holds it.

        PTX:       ISA 9.0, "max"; sm_80+
        Scope:     thread
        Args:      words  u32 registers, as loaded: rows of sixteen
        Returns:   sixteen float32
        Emulates:  exactly
        """
        out: list[Any] = [0.0] * WIDTH
        for i, value in enumerate(_floats(words, dtype)):
            out[i % WIDTH] = convert.max_magnitude(out[i % WIDTH], value)
        return tuple(out)

    return column_amax


def _code(y: Any) -> Any:
    """The e4m3 code of a float32 by integer arithmetic: to nearest even; infinity becomes NaN and keeps its sign."""
    bits = convert.f32_to_bits(y)
    magnitude = bits & 0x7FFFFFFF
    # from 2^-6 on: 20 bits of mantissa go, and the exponent is counted from 120
    normal = ((magnitude + 0x7FFFF + (magnitude >> 20 & 1)) >> 20) - (120 << 3)
    # below: beside 2^14 a float32 has the spacing 2^-9 of e4m3's subnormals
    small = convert.f32_to_bits(convert.add(convert.bits_to_f32(magnitude), 16384.0)) - 0x46800000
    code = select(magnitude < 0x3C800000, small, normal)
    code = select(code > E4M3.max_code, u32(E4M3.max_code), code)
    code = select(magnitude < 0x7F800000, code, u32(E4M3.nan_code)) | (bits >> 24 & 0x80)
    return select(magnitude > 0x7F800000, u32(E4M3.nan_code), code)


def encode_for(dtype: str, is_native: bool) -> Callable[..., Any]:
    """The operation that makes codes: by the instruction of sm_89, or by arithmetic. They differ in infinity: 448, and NaN."""

    def emulate(words: Any, inverses: Any) -> Any:
        with np.errstate(all="ignore"):
            y = _decoded(words, dtype).reshape(-1, len(inverses)) * np.array(inverses, np.float32)
        codes = E4M3.encode(y.reshape(-1), saturate_inf=is_native)
        return tuple(u32(w) for w in codes.view(np.uint32))

    @unrolled(emulate=emulate)
    def encode(words: Registers, inverses: Fragment) -> Registers(lambda sizes: sizes["words"] // ITEMSIZE[dtype]):
        """cvt.rn.satfinite.e4m3x2.f32 - the e4m3 codes of elements times inverse scales, each product rounded to float32 first.

        PTX:       ISA 9.0, "cvt"
        Scope:     thread
        Args:      words     u32 registers, as loaded
                   inverses  one for all, or one for each of sixteen columns
        Returns:   u32 registers, four codes in each
        Emulates:  exactly
        """
        scaled = [value * inverses[i % len(inverses)] for i, value in enumerate(_floats(convert.forget(words), dtype))]
        fours = [scaled[i : i + 4] for i in range(0, len(scaled), 4)]
        if is_native:
            return tuple(convert.f32x4_to_e4m3x4(*four) for four in fours)
        coded = [[_code(y) for y in four] for four in fours]
        return tuple(c[0] | c[1] << 8 | c[2] << 16 | c[3] << 24 for c in coded)

    return encode


@unrolled
def is_any_poisoned(inverses: Fragment) -> bool:
    """setp - whether one of the inverse scales is 2^-127, as only a block that is not finite has it under UE8M0.

    PTX:       ISA 9.0, "setp"
    Scope:     thread
    Args:      inverses  fragment
    Returns:   bool
    Emulates:  exactly
    """
    found = convert.f32_to_bits(inverses[0]) == POISONED
    for inverse in inverses[1:]:
        found = found | (convert.f32_to_bits(inverse) == POISONED)
    return found
