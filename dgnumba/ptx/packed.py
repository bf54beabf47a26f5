"""Arithmetic on two 16-bit floats in a register at once, and bytes picked from two registers."""

import math
from fractions import Fraction

import numpy as np

from ._declare import Imm, f32, op, u32
from .convert import smaller


@op("{{ .reg .b32 t; abs.bf16x2 t, {pair}; max.NaN.bf16x2 {out}, {largest}, t; }}", pure=True)
def max_magnitude_bf16x2(largest: u32, pair: u32) -> u32:
    """max.NaN.bf16x2 - of each half the larger of `largest` and |`pair`|, as bfloat16; NaN if either is.

    PTX:       ISA 9.0, "max"; sm_80+
    Scope:     thread
    Args:      largest, pair  u32  two bfloat16 each
    Returns:   u32
    Emulates:  exactly; a NaN is the canonical one, 0x7fff
    """
    return _max_magnitude_x2(largest, pair, 0x7F80, 0x7FFF)


@op("{{ .reg .b32 t; abs.f16x2 t, {pair}; max.NaN.f16x2 {out}, {largest}, t; }}", pure=True)
def max_magnitude_f16x2(largest: u32, pair: u32) -> u32:
    """max.NaN.f16x2 - of each half the larger of `largest` and |`pair`|, as float16; NaN if either is.

    PTX:       ISA 9.0, "max"; sm_80+
    Scope:     thread
    Args:      largest, pair  u32  two float16 each
    Returns:   u32
    Emulates:  exactly; a NaN is the canonical one, 0x7fff
    """
    return _max_magnitude_x2(largest, pair, 0x7C00, 0x7FFF)


@op("fma.rn.bf16x2 {out}, {a}, {b}, {c};", pure=True)
def fma_bf16x2(a: u32, b: u32, c: u32) -> u32:
    """fma.rn.bf16x2 - of each half a * b + c, rounded once to bfloat16, subnormals kept.

    PTX:       ISA 9.0, "fma"; sm_80+
    Scope:     thread
    Args:      a, b, c  u32  two bfloat16 each
    Returns:   u32
    Emulates:  exactly, of finite numbers; else NaN is the canonical one, 0x7fff
    """
    halves = [[_bf16(int(x) >> shift & 0xFFFF) for x in (a, b, c)] for shift in (0, 16)]
    low, high = (_bf16_bits(x * y, z) for x, y, z in halves)
    return u32(low | high << 16)


@op("mul.rn.bf16x2 {out}, {a}, {b};", pure=True)
def multiply_bf16x2(a: u32, b: u32) -> u32:
    """mul.rn.bf16x2 - of each half a * b, rounded once to bfloat16, subnormals kept.

    PTX:       ISA 9.0, "mul"; sm_90+
    Scope:     thread
    Args:      a, b  u32  two bfloat16 each
    Returns:   u32
    Emulates:  exactly, of finite numbers; else NaN is the canonical one, 0x7fff
    """
    low, high = (_bf16_bits(_bf16(int(a) >> shift & 0xFFFF) * _bf16(int(b) >> shift & 0xFFFF), -0.0) for shift in (0, 16))
    return u32(low | high << 16)


@op("mul.rn.f16x2 {out}, {a}, {b};", pure=True)
def multiply_f16x2(a: u32, b: u32) -> u32:
    """mul.rn.f16x2 - of each half a * b, rounded once to float16, subnormals kept.

    PTX:       ISA 9.0, "mul"; sm_53+
    Scope:     thread
    Args:      a, b  u32  two float16 each
    Returns:   u32
    Emulates:  exactly, of finite numbers; else NaN is the canonical one, 0x7fff
    """
    x, y = (np.array([int(v) & 0xFFFF, int(v) >> 16], np.uint16).view(np.float16).astype(np.float64) for v in (a, b))
    with np.errstate(over="ignore", invalid="ignore"):
        product = (x * y).astype(np.float16)  # exact in float64, then rounded once
    low, high = np.where(np.isnan(product), 0x7FFF, product.view(np.uint16)).tolist()
    return u32(low | high << 16)


@op("fma.rn.f16x2 {out}, {a}, {b}, {c};", pure=True)
def fma_f16x2(a: u32, b: u32, c: u32) -> u32:
    """fma.rn.f16x2 - of each half a * b + c, rounded once to float16, subnormals kept.

    PTX:       ISA 9.0, "fma"; sm_53+
    Scope:     thread
    Args:      a, b, c  u32  two float16 each
    Returns:   u32
    Emulates:  exactly, of finite numbers; else NaN is the canonical one, 0x7fff
    """
    return u32(int(fma_pairs(*(np.array([int(x)], np.uint32) for x in (a, b, c)))[0]))


def fma_pairs(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """`fma_f16x2` of arrays of registers.

    float64 holds what float16 rounds: a sum needs more than its 53 bits only where the product is less than 2^-31 of the addend, a float16
    itself, which is then the result.
    """
    x, y, z = (np.ascontiguousarray(v).view(np.float16).astype(np.float64) for v in (a, b, c))
    with np.errstate(over="ignore", invalid="ignore"):
        total = (x * y + z).astype(np.float16)
    bits = total.view(np.uint16)
    bits[np.isnan(total)] = 0x7FFF
    return bits.view(np.uint32)


def _bf16(bits: int) -> float:
    return float(np.uint32(bits << 16).view(np.float32))


def _bf16_bits(product: float, addend: float) -> int:
    """Bits of the bfloat16 next to a sum, ties to even; the product of two bfloat16 is exact in float64."""
    about = product + addend
    if not np.isfinite(about) or about == 0:
        return 0x7FFF if about != about else int(np.float32(about).view(np.uint32)) >> 16
    exact = Fraction(product) + Fraction(addend)
    step = Fraction(2) ** max(math.frexp(about)[1] - 8, -133)  # the spacing of bfloat16 there
    rounded = math.copysign(float(round(exact / step) * step), about)  # what is rounded to 0 keeps its sign
    with np.errstate(over="ignore"):
        return int(np.float32(rounded).view(np.uint32)) >> 16


@op("min.bf16x2 {out}, {x}, {y};", pure=True)
def smaller_bf16x2(x: u32, y: u32) -> u32:
    """min.bf16x2 - of each half the smaller of two bfloat16; of a NaN and a number the number.

    PTX:       ISA 9.0, "min"; sm_80+
    Scope:     thread
    Args:      x, y  u32  two bfloat16 each
    Returns:   u32
    Emulates:  exactly; a NaN is the canonical one, 0x7fff
    """
    out = 0
    for shift in (0, 16):
        least = smaller(*(f32(_bf16(int(v) >> shift & 0xFFFF)) for v in (x, y)))
        out |= (0x7FFF if least != least else int(f32(least).view(np.uint32)) >> 16) << shift
    return u32(out)


def _max_magnitude_x2(largest: u32, pair: u32, infinity: int, nan: int) -> u32:
    """Of two float16, or two bfloat16, in each: magnitudes are in the order of their bits, up to infinity."""
    out = 0
    for shift in (0, 16):
        x, y = int(largest) >> shift & 0xFFFF, int(pair) >> shift & 0x7FFF
        is_nan = x & 0x7FFF > infinity or y > infinity
        out |= (nan if is_nan else y if x & 0x8000 else max(x, y)) << shift
    return u32(out)


@op("prmt.b32 {out}, {x}, {y}, {selector};", pure=True)
def permute_bytes(x: u32, y: u32, selector: Imm) -> u32:
    """prmt.b32 - four of the eight bytes of `x` (0 to 3) and `y` (4 to 7), or eight times the sign of one each.

    PTX:       ISA 9.0, "prmt"; sm_20+
    Scope:     thread
    Args:      x, y      u32
               selector  constant: a digit (of 16) for each byte of the result, the lowest first: which byte; plus 8: its sign in all bits
    Returns:   u32
    Emulates:  exactly
    """
    pool = int(x) | int(y) << 32
    out = 0
    for i in range(4):
        digit = selector >> 4 * i & 15
        byte = pool >> 8 * (digit & 7) & 0xFF
        out |= (0xFF * (byte >> 7) if digit & 8 else byte) << 8 * i
    return u32(out)


@op("lop3.b32 {out}, {x}, {y}, {mask}, 0xe4;", pure=True)
def merge_bits(x: u32, y: u32, mask: Imm) -> u32:
    """lop3.b32 - the bits of `x` where `mask` has a 1, else those of `y`: one instruction, where two masks, of ptxas's choice, take two.

    PTX:       ISA 9.0, "lop3"; sm_50+
    Scope:     thread
    Args:      x, y  u32
               mask  constant
    Returns:   u32
    Emulates:  exactly
    """
    return u32(int(x) & mask | int(y) & ~mask)
