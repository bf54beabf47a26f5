"""Conversions between number formats, packed two or four to a register."""

import functools
from fractions import Fraction

import ml_dtypes
import numpy as np

from ..arithmetic import fma32
from ..dtypes import DTYPES
from ._declare import Fragment, Imm, Registers, f32, op, u32


@op("cvt.rn.bf16x2.f32 {out}, {high}, {low};", pure=True)
def f32x2_to_bf16x2(low: f32, high: f32) -> u32:
    """cvt.rn.bf16x2.f32 - two float32 to two bfloat16, nearest even; `low` in bits 0-15.

    PTX:       ISA 9.0, "cvt"; sm_80+
    Scope:     thread
    Args:      low, high  float32
    Returns:   u32
    Emulates:  exactly; a NaN becomes the canonical one
    """
    pair = np.array([low, high], np.float32).astype(ml_dtypes.bfloat16)
    return u32(pair.view(np.uint32)[0])


@op("cvt.rn.f16x2.f32 {out}, {high}, {low};", pure=True)
def f32x2_to_f16x2(low: f32, high: f32) -> u32:
    """cvt.rn.f16x2.f32 - two float32 to two float16, nearest even; `low` in bits 0-15; overflow gives infinity.

    PTX:       ISA 9.0, "cvt"; sm_80+
    Scope:     thread
    Args:      low, high  float32
    Returns:   u32
    Emulates:  exactly; a NaN becomes the canonical one
    """
    with np.errstate(over="ignore", under="ignore"):
        pair = np.array([low, high], np.float32).astype(np.float16)
    return u32(pair.view(np.uint32)[0])


@op("cvt.rz.f16x2.f32 {out}, {high}, {low};", pure=True)
def f32x2_to_f16x2_to_zero(low: f32, high: f32) -> u32:
    """cvt.rz.f16x2.f32 - two float32 to two float16, cut off toward zero, subnormals and signs kept; `low` in bits 0-15.

    PTX:       ISA 9.0, "cvt"; sm_80+
    Scope:     thread
    Args:      low, high  float32; what is finite and beyond the range becomes 65504
    Returns:   u32
    Emulates:  exactly; a NaN becomes the canonical one, 0x7fff
    """
    out = 0
    for shift, x in ((0, f32(low)), (16, f32(high))):
        with np.errstate(over="ignore"):
            near = np.float16(x)
        if abs(f32(near)) > abs(x):
            near = np.nextafter(near, np.float16(0))
        out |= (0x7FFF if near != near else int(near.view(np.uint16))) << shift
    return u32(out)


@functools.cache
def _e4m3_as_f16() -> list[int]:
    """The bits of each code as float16."""
    values = DTYPES["float8_e4m3fn"].decode(np.arange(256))
    return [int(v.view(np.uint16)) if v == v else 0x7F80 | (code & 0x80) << 8 for code, v in enumerate(values.astype(np.float16))]


_WIDEN = (  # a code's bits below the sign, 7 up, are a float16 2^8 too small; 0x3f80, the NaN code's, is the only one to which 0x80 carries
    "prmt.b32 t, {{codes}}, 0, {pick}; and.b32 sign, t, 0x80008000; and.b32 t, t, 0x7f007f00; shr.u32 t, t, 1; add.u32 nan, t, 0x00800080; "
    "and.b32 nan, nan, 0x40004000; shr.u32 nan, nan, 1; or.b32 t, t, sign; mul.rn.f16x2 t, t, scale; or.b32 {{out[{i}]}}, t, nan;"
)


@op(
    "{{ .reg .b32 t, sign, nan, scale; mov.b32 scale, 0x5c005c00; "
    + " ".join(_WIDEN.format(pick=pick, i=i) for i, pick in enumerate(("0x1404", "0x3424")))
    + " }}",
    pure=True,
)
def e4m3x4_to_f16x4(codes: u32) -> Registers(2):
    """mul.rn.f16x2 - four e4m3 to four float16, exactly, on GPUs that have no instruction for it; NaN becomes a NaN.

    PTX:       ISA 9.0, "prmt", "mul"; sm_80+
    Scope:     thread
    Args:      codes  u32  four e4m3
    Returns:   two u32: the numbers of bits 0-7 and 8-15, and those of bits 16-23 and 24-31, the lower one in the lower half
    Emulates:  exactly; a NaN is 0x7f80 with the code's sign
    """
    halves, (x0, x1, x2, x3) = _e4m3_as_f16(), int(codes).to_bytes(4, "little")
    return u32(halves[x0] | halves[x1] << 16), u32(halves[x2] | halves[x3] << 16)


@op(
    "{{ .reg .b16 low, high; mov.b32 {{low, high}}, {codes}; cvt.rn.f16x2.e4m3x2 {out[0]}, low; cvt.rn.f16x2.e4m3x2 {out[1]}, high; }}",
    pure=True,
)
def cvt_e4m3x4_to_f16x4(codes: u32) -> Registers(2):
    """cvt.rn.f16x2.e4m3x2 - four e4m3 to four float16, exactly; NaN becomes a NaN.

    PTX:       ISA 9.0, "cvt"; sm_89+
    Scope:     thread
    Args:      codes  u32  four e4m3
    Returns:   two u32, as of `e4m3x4_to_f16x4`
    Emulates:  exactly; a NaN is 0x7fff, whatever its sign
    """
    halves = [0x7FFF if code & 0x7F == 0x7F else _e4m3_as_f16()[code] for code in int(codes).to_bytes(4, "little")]
    return u32(halves[0] | halves[1] << 16), u32(halves[2] | halves[3] << 16)


@op("fma.rn.f32 {out}, {a}, {b}, {c};", pure=True)
def fma(a: f32, b: f32, c: f32) -> f32:
    """fma.rn.f32 - a * b + c, rounded once.

    PTX:       ISA 9.0, "fma"
    Scope:     thread
    Args:      a, b, c  float32
    Returns:   float32
    Emulates:  exactly
    """
    return f32(fma32(a, b, c))


@op("fma.rp.f32 {out}, {a}, {b}, {c};", pure=True)
def fma_up(a: f32, b: f32, c: f32) -> f32:
    """fma.rp.f32 - a * b + c, rounded once, toward plus infinity.

    PTX:       ISA 9.0, "fma"; sm_20+
    Scope:     thread
    Args:      a, b, c  float32
    Returns:   float32
    Emulates:  exactly
    """
    nearest = f32(fma32(a, b, c))
    if not all(np.isfinite(x) for x in (a, b, c)):
        return nearest
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    is_below = nearest == -np.inf or (np.isfinite(nearest) and Fraction(float(nearest)) < exact)
    return np.nextafter(nearest, f32(np.inf)) if is_below else nearest


@op("mul.rz.f32 {out}, {x}, {y};", pure=True)
def multiply_to_zero(x: f32, y: f32) -> f32:
    """mul.rz.f32 - x * y, rounded toward zero, subnormals and signs kept.

    PTX:       ISA 9.0, "mul"; sm_20+
    Scope:     thread
    Args:      x, y  float32
    Returns:   float32
    Emulates:  exactly
    """
    with np.errstate(all="ignore"):
        exact = np.float64(x) * np.float64(y)
        near = f32(exact)
    return np.nextafter(near, f32(0)) if abs(np.float64(near)) > abs(exact) else near


@op("abs.f32 {out}, {x};", pure=True)
def magnitude(x: f32) -> f32:
    """abs.f32 - |x|; as the source of a product or a sum it costs nothing.

    PTX:       ISA 9.0, "abs"
    Scope:     thread
    Args:      x  float32
    Returns:   float32
    Emulates:  exactly
    """
    return np.abs(f32(x))


@op("min.f32 {out}, {x}, {y};", pure=True)
def smaller(x: f32, y: f32) -> f32:
    """min.f32 - the smaller of two, -0 below 0; of a NaN and a number the number.

    PTX:       ISA 9.0, "min"
    Scope:     thread
    Args:      x, y  float32
    Returns:   float32
    Emulates:  exactly
    """
    if x == y:
        return f32(x) if np.signbit(x) else f32(y)
    return np.fmin(f32(x), f32(y))


@op("add.rn.f32 {out}, {x}, {y};", pure=True)
def add(x: f32, y: f32) -> f32:
    """add.rn.f32 - x + y, which no compiler fuses with a product.

    PTX:       ISA 9.0, "add"
    Scope:     thread
    Args:      x, y  float32
    Returns:   float32
    Emulates:  exactly
    """
    return f32(x) + f32(y)


@op("div.rn.f32 {out}, {x}, {y};", pure=True)
def divide(x: f32, y: f32) -> f32:
    """div.rn.f32 - x / y, correctly rounded, subnormals kept.

    PTX:       ISA 9.0, "div"; sm_20+
    Scope:     thread
    Args:      x, y  float32
    Returns:   float32
    Emulates:  exactly; by zero gives infinity, or NaN
    """
    with np.errstate(all="ignore"):
        return f32(x) / f32(y)


@op("rcp.rn.f32 {out}, {x};", pure=True)
def reciprocal(x: f32) -> f32:
    """rcp.rn.f32 - 1 / x, correctly rounded, subnormals kept; half the instructions of `divide`.

    PTX:       ISA 9.0, "rcp"; sm_20+
    Scope:     thread
    Args:      x  float32
    Returns:   float32
    Emulates:  exactly; of zero gives infinity
    """
    with np.errstate(all="ignore"):
        return f32(1) / f32(x)


@op(
    "{{ .reg .f32 about, left; rcp.approx.ftz.f32 about, {x}; neg.f32 left, {x}; fma.rn.f32 left, left, about, 0f3F800000; "
    "fma.rn.f32 {out}, about, left, about; }}",
    pure=True,
)
def reciprocal_of_normal(x: f32) -> f32:
    """rcp.approx.ftz.f32, fma.rn.f32 - 1 / x, correctly rounded, of 2^-126 <= |x| < 2^126; of infinity and NaN: NaN.

    What ptxas makes of `reciprocal` for an x of that range, without the branch that asks whether it is.

    PTX:       ISA 9.0, "rcp", "fma"; sm_20+
    Scope:     thread
    Args:      x  float32
    Returns:   float32
    Emulates:  exactly in that range; elsewhere, where nobody may use it, NaN
    """
    return f32(1) / f32(x) if 2.0**-126 <= abs(x) < 2.0**126 else f32(np.nan)


@op("{{ .reg .f32 t; abs.f32 t, {x}; max.NaN.f32 {out}, {largest}, t; }}", pure=True)
def max_magnitude(largest: f32, x: f32) -> f32:
    """max.NaN.f32 - the larger of `largest` and |x|; NaN if either is.

    PTX:       ISA 9.0, "max"; sm_80+
    Scope:     thread
    Args:      largest, x  float32
    Returns:   float32
    Emulates:  exactly
    """
    return np.maximum(f32(largest), np.abs(f32(x)))


@op("mov.b32 {out}, {x};", pure=True)
def f32_to_bits(x: f32) -> u32:
    """mov.b32 - the bits of a float32.

    PTX:       ISA 9.0, "mov"
    Scope:     thread
    Args:      x  float32
    Returns:   u32
    Emulates:  exactly
    """
    return u32(f32(x).view(np.uint32))


@op("mov.b32 {out}, {bits};", pure=True)
def bits_to_f32(bits: u32) -> f32:
    """mov.b32 - the float32 of these bits.

    PTX:       ISA 9.0, "mov"
    Scope:     thread
    Args:      bits  u32
    Returns:   float32
    Emulates:  exactly
    """
    return np.uint32(bits).view(np.float32)


@op("{{ .reg .b32 t; shl.b32 t, {pair}, 16; mov.b32 {out[0]}, t; and.b32 t, {pair}, 0xffff0000; mov.b32 {out[1]}, t; }}", pure=True)
def bf16x2_to_f32x2(pair: u32) -> Fragment(2):
    """shl.b32, and.b32 - two bfloat16 as float32, the one in bits 0-15 first.

    PTX:       ISA 9.0, "shl", "and"
    Scope:     thread
    Args:      pair  u32
    Returns:   two float32
    Emulates:  exactly
    """
    return np.array([int(pair) << 16 & 0xFFFFFFFF, int(pair) & 0xFFFF0000], np.uint32).view(np.float32)


@op("{{ .reg .b16 low, high; mov.b32 {{low, high}}, {pair}; cvt.f32.f16 {out[0]}, low; cvt.f32.f16 {out[1]}, high; }}", pure=True)
def f16x2_to_f32x2(pair: u32) -> Fragment(2):
    """cvt.f32.f16 - two float16 as float32, the one in bits 0-15 first.

    PTX:       ISA 9.0, "cvt"; sm_53+
    Scope:     thread
    Args:      pair  u32
    Returns:   two float32
    Emulates:  exactly
    """
    return np.array([int(pair)], np.uint32).view(np.float16).astype(np.float32)


@op(
    "{{ .reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, {x1}, {x0}; cvt.rn.satfinite.e4m3x2.f32 high, {x3}, {x2}; "
    "mov.b32 {out}, {{low, high}}; }}",
    pure=True,
)
def f32x4_to_e4m3x4(x0: f32, x1: f32, x2: f32, x3: f32) -> u32:
    """cvt.rn.satfinite.e4m3x2.f32 - four float32 to four e4m3, nearest even; `x0` in bits 0-7.

    What lies beyond the range, infinity too, becomes the largest e4m3, 448, with its sign; NaN becomes 0x7f. (PTX puts the first source of
    a pair in the upper half.)

    PTX:       ISA 9.0, "cvt"; sm_89+
    Scope:     thread
    Args:      x0, x1, x2, x3  float32
    Returns:   u32
    Emulates:  exactly
    """
    codes = DTYPES["float8_e4m3fn"].encode(np.array([x0, x1, x2, x3], np.float32))
    return u32(codes.view(np.uint32)[0])


@op("cvt.rn.f32.s32 {out}, {bits};", pure=True)
def s32_to_f32(bits: u32) -> f32:
    """cvt.rn.f32.s32 - an int32 as float32, nearest even.

    PTX:       ISA 9.0, "cvt"
    Scope:     thread
    Args:      bits  u32  of the int32
    Returns:   float32
    Emulates:  exactly
    """
    return np.float32(np.uint32(bits).view(np.int32))


@op("shr.s32 {out}, {bits}, {count};", pure=True)
def shr_s32(bits: u32, count: Imm) -> u32:
    """shr.s32 - an int32 over 2^count, rounded down.

    PTX:       ISA 9.0, "shr"
    Scope:     thread
    Args:      bits   u32 that holds an int32
               count  constant, 0 to 31
    Returns:   u32 that holds an int32
    Emulates:  exactly
    """
    return u32((int(bits) ^ 1 << 31) - (1 << 31) >> int(count) & 0xFFFFFFFF)


@op("// forget", tied="registers")
def forget(registers: Registers) -> Registers:
    """forget - the same registers, as if the compiler saw them for the first time: no instruction.

    What was computed from them before is computed anew where it is needed again, in the place of being kept in registers.

    PTX:       none
    Scope:     thread
    Args:      registers  u32 registers
    Returns:   registers
    Emulates:  exactly
    """
    return registers
