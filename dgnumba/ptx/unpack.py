"""Eight codes of 4 bits in a word to the operand registers of a matrix product, exactly; the orders are `layouts.int4.stream`'s.

A code is moved into the low bits of a number's mantissa (``lop3``), which makes it that number plus the code, and the number is taken off.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ..dtypes import DTYPES
from ._declare import Fragment, Registers, op, u32

_MASKED = 0xEA  # lop3's table of (a & b) | c


@lru_cache(maxsize=256)
def _bits_of_codes(dtype: str, base: int, minus: int) -> list[int]:
    """The bits of base + code + the float that the low half of `minus` is, for each code."""
    kind = DTYPES[dtype].numpy
    offset = np.array([minus & 0xFFFF], np.uint16).view(kind).astype(np.float32) + np.float32(base)
    bits: list[int] = (np.arange(16, dtype=np.float32) + offset).astype(kind).view(np.uint16).tolist()
    return bits


@lru_cache(maxsize=2)
def _bits_of_e2m1(dtype: str) -> list[int]:
    bits: list[int] = DTYPES["float4_e2m1fn"].decode(np.arange(16)).astype(DTYPES[dtype].numpy).view(np.uint16).tolist()
    return bits


def _registers(word: int, tables: Sequence[list[int]]) -> tuple[u32, ...]:
    """Registers r = 0..3 of what `tables` give for codes r (low half) and r + 4 (high half): the first for even r, the last for odd."""
    word = int(word)
    halves = (tables[r % len(tables)] for r in range(4))
    return tuple(u32(t[word >> 4 * r & 15] | t[word >> 16 + 4 * r & 15] << 16) for r, t in enumerate(halves))


_BF16 = " ".join(
    [f"lop3.b32 t{r}, {'{word}' if r == 0 else f's{r}'}, 0x000f000f, 0x43004300, {_MASKED}; "
     f"fma.rn.bf16x2 {{out[{r}]}}, t{r}, one, {'{low}' if r % 2 == 0 else '{high}'};" for r in range(4)]
)  # fmt: skip


@op(
    "{{ .reg .b32 one, s1, s2, s3, t0, t1, t2, t3; mov.b32 one, 0x3f803f80; shr.u32 s1, {word}, 4; shr.u32 s2, {word}, 8; "
    "shr.u32 s3, {word}, 12; " + _BF16 + " }}",
    pure=True,
)
def u4x8_to_bf16x8(word: u32, low: u32, high: u32) -> Registers(4):
    """lop3.b32, fma.rn.bf16x2 - eight codes in the order "bits16" as bfloat16, each less a zero point: the fragment of a step of 16 columns.

    PTX:       ISA 9.0, "lop3", "fma"; sm_80+
    Scope:     thread
    Args:      word  u32  codes of registers 0 to 3, the low halves' in bits 0-15
               low   u32  twice the bfloat16 -(128 + z) of registers 0 and 2: 0xc300c300 | z << 16 | z
               high  u32  likewise of registers 1 and 3
    Returns:   four u32
    Emulates:  exactly
    """
    return _registers(word, [_bits_of_codes("bfloat16", 128, int(minus)) for minus in (low, high)])


_SUBNORMAL = " ".join(
    f"and.b32 t{r}, {'{word}' if r < 2 else 's'}, {('0x000f000f', '0x00f000f0')[r % 2]}; "
    f"fma.rn.bf16x2 {{out[{r}]}}, t{r}, {('low', 'high')[r % 2]}, {'{low}' if r % 2 == 0 else '{high}'};"
    for r in range(4)
)


@op(
    "{{ .reg .b32 s, low, high, t0, t1, t2, t3; mov.b32 low, 0x7f007f00; mov.b32 high, 0x7d007d00; shr.u32 s, {word}, 8; "
    + _SUBNORMAL
    + " }}",
    pure=True,
)
def u4x8_to_bf16x8_over_64(word: u32, low: u32, high: u32) -> Registers(4):
    """and.b32, fma.rn.bf16x2 - eight codes in the order "bits16" as bfloat16, each less a zero point, over 64: the fragment of a step of 16 columns.

    A code in the lowest bits of a bfloat16 is that many 2^-133, a subnormal number; four bits further up that many 2^-129, the lowest bit of the
    exponent among them, which counts on where the mantissa ends. A product with 2^127 or 2^123 makes both the code over 64.

    PTX:       ISA 9.0, "and", "fma"; sm_80+
    Scope:     thread
    Args:      word  u32  codes of registers 0 to 3, the low halves' in bits 0-15
               low   u32  twice the bfloat16 -z / 64 of registers 0 and 2: `bf16x2_of_zero_point`
               high  u32  likewise of registers 1 and 3
    Returns:   four u32
    Emulates:  exactly
    """
    tables = []
    for minus in (low, high):
        offset = np.array([int(minus) & 0xFFFF], np.uint16).view(DTYPES["bfloat16"].numpy).astype(np.float32)
        tables.append((np.arange(16, dtype=np.float32) / 64 + offset).astype(DTYPES["bfloat16"].numpy).view(np.uint16).tolist())
    return _registers(word, tables)


@op(
    "{{ .reg .b32 z, scale, none; mul.lo.u32 z, {code}, 0x10001; mov.b32 scale, 0xff00ff00; mov.b32 none, 0x80008000; "
    "fma.rn.bf16x2 {out}, z, scale, none; }}",
    pure=True,
)
def bf16x2_of_zero_point(code: u32) -> u32:
    """fma.rn.bf16x2 - twice the bfloat16 -code / 64, of a code from 0 to 15: as subnormal numbers, times -2^127.

    PTX:       ISA 9.0, "fma"; sm_80+
    Scope:     thread
    Args:      code  u32
    Returns:   u32
    Emulates:  exactly
    """
    half = int(np.array([-0.0 - int(code) / 64], np.float32).astype(DTYPES["bfloat16"].numpy).view(np.uint16)[0])
    return u32(half * 0x10001)


_F16 = " ".join(
    f"lop3.b32 t{r}, {'{word}' if r < 2 else 's'}, {('0x000f000f, 0x64006400', '0x00f000f0, 0x54005400')[r % 2]}, {_MASKED}; "
    f"add.rn.f16x2 {{out[{r}]}}, t{r}, {('{low}', '{high}')[r % 2]};"
    for r in range(4)
)


@op("{{ .reg .b32 s, t0, t1, t2, t3; shr.u32 s, {word}, 8; " + _F16 + " }}", pure=True)
def u4x8_to_f16x8(word: u32, low: u32, high: u32) -> Registers(4):
    """lop3.b32, add.rn.f16x2 - eight codes in the order "bits16" as float16, each less a zero point: the fragment of a step of 16 columns.

    PTX:       ISA 9.0, "lop3", "add"; sm_53+
    Scope:     thread
    Args:      word  u32  codes of registers 0 to 3, the low halves' in bits 0-15
               low   u32  twice the float16 -(1024 + z) of registers 0 and 2: 0xe400e400 | z << 16 | z
               high  u32  twice the float16 -(64 + z) of registers 1 and 3: 0xd400d400 | z << 20 | z << 4
    Returns:   four u32
    Emulates:  exactly
    """
    return _registers(word, [_bits_of_codes("float16", 1024, int(low)), _bits_of_codes("float16", 64, int(high))])


@op(
    "{{ .reg .b32 a, b; and.b32 a, {word}, 0x0f0f0f0f; add.u32 a, a, {bias}; xor.b32 {out[0]}, a, 0x80808080; "
    "shr.u32 b, {word}, 4; and.b32 b, b, 0x0f0f0f0f; add.u32 b, b, {bias}; xor.b32 {out[1]}, b, 0x80808080; }}",
    pure=True,
)
def u4x8_to_s8x8(word: u32, bias: u32) -> Registers(2):
    """and.b32, add.u32, xor.b32 - eight codes in the order "bytes" as int8, each less a zero point.

    A byte holds code + 128 - z, from 113 to 143: nothing is carried into the next one; the top bit turned over takes the 128 off.

    PTX:       ISA 9.0, "and", "add", "xor"
    Scope:     thread
    Args:      word  u32  codes; the low nibbles become register 0, the high ones register 1
               bias  u32  (128 - z) in each byte
    Returns:   two u32
    Emulates:  exactly
    """
    parts = (int(word) & 0x0F0F0F0F, int(word) >> 4 & 0x0F0F0F0F)
    return tuple(u32((part + int(bias) & 0xFFFFFFFF) ^ 0x80808080) for part in parts)


@op(
    "{{ .reg .b32 w; lop3.b32 {out[1]}, {word}, 0x80808080, 0xf0f0f0f0, 0x28; shl.b32 w, {word}, 4; "
    "lop3.b32 {out[0]}, w, 0x80808080, 0xf0f0f0f0, 0x28; }}",
    pure=True,
)
def u4x8_to_s8x8_times_16(word: u32) -> Registers(2):
    """lop3.b32 - eight codes in the order "bytes" as int8, each less 8, times 16: the upper half of a byte, its top bit turned over.

    PTX:       ISA 9.0, "lop3", "shl"
    Scope:     thread
    Args:      word  u32  codes; the low nibbles become register 0, the high ones register 1
    Returns:   two u32
    Emulates:  exactly
    """
    word = int(word) ^ 0x88888888
    return u32(word << 4 & 0xF0F0F0F0), u32(word & 0xF0F0F0F0)


@op(
    "{{ .reg .b32 h, s, t; and.b32 s, {word}, 0x01010101; and.b32 t, {word}, 0x0f0f0f0f; mad.lo.u32 {out[0]}, s, 129, t; "
    "shr.u32 h, {word}, 4; and.b32 s, h, 0x01010101; and.b32 t, h, 0x0f0f0f0f; mad.lo.u32 {out[1]}, s, 129, t; }}",
    pure=True,
)
def signs4x8_to_e4m3x8(word: u32) -> Registers(2):
    """and.b32, mad.lo.u32 - eight codes in the order "signs" as e4m3, each less 8, over 2^8.

    A nibble 2 m + s becomes a byte 2 m + s + 129 s: the sign, and twice the magnitude, by which e4m3 counts in steps of 2^-9 up to 16, from its
    subnormal numbers on.

    PTX:       ISA 9.0, "and", "mad", "shr"
    Scope:     thread
    Args:      word  u32  codes; the low nibbles become register 0, the high ones register 1
    Returns:   two u32
    Emulates:  exactly
    """
    parts = (int(word) & 0x0F0F0F0F, int(word) >> 4 & 0x0F0F0F0F)
    return tuple(u32(part + 129 * (part & 0x01010101)) for part in parts)


@op(
    "{{ .reg .b32 s, t; shr.u32 t, {word}, 1; and.b32 s, {word}, 0x11111111; mul.lo.u32 s, s, 15; lop3.b32 {out}, t, 0x77777777, s, 0x59; }}",
    pure=True,
)
def signs4x8_to_u4x8(word: u32) -> u32:
    """and.b32, mul.lo.u32, lop3.b32 - eight codes in the order "signs" as those in the order "bytes".

    A nibble 2 m + s holds the lower bits of value and code, or their complement where s says that it is negative; the top bit of a code is not s.

    PTX:       ISA 9.0, "and", "lop3", "mul", "shr"
    Scope:     thread
    Args:      word  u32  codes
    Returns:   u32
    Emulates:  exactly
    """
    return u32((int(word) >> 1 & 0x77777777) ^ 15 * (int(word) & 0x11111111) ^ 0x88888888)


@op(
    "{{ .reg .b32 i, j, w, x, y, m; and.b32 i, {word}, 0x77777777; shr.u32 j, i, 16; shl.b32 w, {word}, 4; "
    "prmt.b32 x, {table[0]}, {table[1]}, i; prmt.b32 y, {table[2]}, {table[3]}, i; prmt.b32 m, {word}, 0, 0xba98; "
    "lop3.b32 {out[0]}, m, y, x, 0xca; "
    "prmt.b32 x, {table[0]}, {table[1]}, j; prmt.b32 y, {table[2]}, {table[3]}, j; prmt.b32 m, w, 0, 0xba98; "
    "lop3.b32 {out[1]}, m, y, x, 0xca; }}",
    pure=True,
)
def u4x8_by_table(word: u32, table: Registers(4)) -> Registers(2):
    """prmt.b32, lop3.b32 - eight codes in the order "table" as the bytes of a table of sixteen.

    PTX:       ISA 9.0, "prmt", "lop3"
    Scope:     thread
    Args:      word   u32  codes
               table  four u32: byte c is what code c stands for
    Returns:   two u32: columns 4p to 4p + 3, and those 16 further on
    Emulates:  exactly
    """
    word, entries = int(word), b"".join(int(t).to_bytes(4, "little") for t in table)
    index = [word >> 4 * i & 7 for i in range(8)]
    flags = [word >> 8 * b + 7 & 1 for b in range(4)] + [word >> 8 * b + 3 & 1 for b in range(4)]
    codes = bytes(entries[i + 8 * f] for i, f in zip(index, flags))
    return tuple(u32(int.from_bytes(codes[first : first + 4], "little")) for first in (0, 4))


def _e2m1_text(shift: int, mask: int, power: int, kind: str) -> str:
    """Sign to bit 15, the other three bits to the ends of exponent and mantissa: the value over 2^`power`'s exponent, which a product brings back."""
    parts = [f"{{{{ .reg .b32 y, t, power, none; mov.b32 power, {power:#x}; mov.b32 none, 0x80008000;"]
    for r in range(4):
        parts.append(f"shl.b32 y, {{word}}, {12 - 4 * r}; shr.u32 t, y, {shift}; and.b32 t, t, {mask:#x};")
        parts.append(f"lop3.b32 t, y, 0x80008000, t, {_MASKED}; fma.rn.{kind}x2 {{out[{r}]}}, t, power, none;")
    return " ".join(parts) + " }}"


@op(_e2m1_text(6, 0x01C001C0, 0x7E807E80, "bf16"), pure=True)
def e2m1x8_to_bf16x8(word: u32) -> Registers(4):
    """lop3.b32, fma.rn.bf16x2 - eight e2m1 in the order "bits16" as bfloat16: the fragment of a step of 16 columns.

    The bits s|eem of an e2m1 at the same places of a bfloat16 mean the value times 2^-126, a subnormal one where e is 0.

    PTX:       ISA 9.0, "lop3", "fma"; sm_80+
    Scope:     thread
    Args:      word  u32  codes of registers 0 to 3, the low halves' in bits 0-15
    Returns:   four u32
    Emulates:  exactly
    """
    return _registers(word, [_bits_of_e2m1("bfloat16")])


@op(_e2m1_text(3, 0x0E000E00, 0x74007400, "f16"), pure=True)
def e2m1x8_to_f16x8(word: u32) -> Registers(4):
    """lop3.b32, fma.rn.f16x2 - eight e2m1 in the order "bits16" as float16: the fragment of a step of 16 columns.

    The bits s|eem of an e2m1 at the same places of a float16 mean the value times 2^-14, a subnormal one where e is 0.

    PTX:       ISA 9.0, "lop3", "fma"; sm_53+
    Scope:     thread
    Args:      word  u32  codes of registers 0 to 3, the low halves' in bits 0-15
    Returns:   four u32
    Emulates:  exactly
    """
    return _registers(word, [_bits_of_e2m1("float16")])


@op("{{ .reg .b16 pair; .reg .b32 wide; cvt.u16.u32 pair, {pair}; cvt.rn.f16x2.e4m3x2 wide, pair; "
    ".reg .b16 low, high; mov.b32 {{low, high}}, wide; cvt.f32.f16 {out[0]}, low; cvt.f32.f16 {out[1]}, high; }}", pure=True)  # fmt: skip
def e4m3x2_to_f32x2(pair: u32) -> Fragment(2):
    """cvt.rn.f16x2.e4m3x2, cvt.f32.f16 - two e4m3 as float32, the one in bits 0-7 first.

    PTX:       ISA 9.0, "cvt"; sm_89+
    Scope:     thread
    Args:      pair  u32  of which bits 0-15 count
    Returns:   two float32
    Emulates:  exactly
    """
    return DTYPES["float8_e4m3fn"].decode(np.array([int(pair) & 0xFF, int(pair) >> 8 & 0xFF]))


@op("{{ .reg .pred p; setp.eq.u32 p, {at}, 0xffffffff; @p st.shared.v4.b32 [{at}], {registers}; }}")
def pin(registers: Registers(4), at: u32) -> None:
    """st.shared.v4.b32 - nothing is stored: the predicate never holds. But four registers must have their values here.

    ptxas moves arithmetic behind a wait that follows, where it does not hide; this it does not see through.

    PTX:       ISA 9.0, "st"
    Scope:     thread
    Args:      registers  four u32 registers
               at         u32  a shared address: none is 0xffffffff
    Returns:   nothing
    Emulates:  exactly
    """


@op("// hold {registers}")
def hold(registers: Registers) -> None:
    """hold - keep registers as they are up to here: no instruction.

    An operand in registers belongs to its wgmma until this has been waited for; the compiler, which does not know, might use them again.

    PTX:       none
    Scope:     thread
    Args:      registers  u32 registers
    Returns:   nothing
    Emulates:  exactly
    """
