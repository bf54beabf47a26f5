"""From the largest magnitude of a block to its scale and the inverse that the elements are multiplied by, on the device; as `quant.rules`."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda

from .._numba import device_function
from ..integers import u32
from ..ptx import Registers, convert, f32, unrolled
from .quantize_registers import ELEMENTS
from .smxx_quantize_rules import UE8M0_RULES

NAN, INFINITY = 0x7FC00000, 0x7F800000
SMALL_BITS = 0x0D800000
"""Bits of 2^-100: from there on no remainder of a division by a constant underflows."""

LEAST_GIVEN, MOST_GIVEN = 0x05800000, 0x7B124924
"""Bits of 2^-116 and of the last float32 below 2^128 / 448: of a tensor's scale that is given (`quant.scale`)."""

TWICE_1, INVERSE_OF_2_TO_127 = 254 << 23, 0x00400000
"""Twice the bits of 1: less the bits of a power of two up to 2^126 they are those of its inverse; and the bits of 2^-127."""

LEAST_SCALE, AMAX_FLOOR = np.float32(2.0**-126), np.float32(1e-4)
LEAST_E4M3, FROM_E4M3, TO_E4M3, NORMAL_BITS = np.float32(2.0**-9), np.float32(2.0**-120), np.float32(2.0**120), 1 << 23
FAR_BEYOND, CODE_OF_NAN, LARGEST_E4M3, LARGEST_UE8M0 = np.float32(2.0**20), 0x7F, 0x7E, 254 << 23
"""The last two: stored scales from which on an element may lie beyond the range, or be not finite."""


@unrolled
def largest_of(first: Registers, second: Registers) -> f32:
    """max.NaN.f32 - the largest magnitude of some float32 in registers; NaN if one is.

    PTX:       ISA 9.0, "max"; sm_80+
    Scope:     thread
    Args:      first, second  u32 registers, the bits of float32
    Returns:   float32
    Emulates:  exactly
    """
    largest: Any = f32(0)
    for word in (*first, *second):
        largest = convert.max_magnitude(largest, convert.bits_to_f32(word))
    return largest


def quotient_for(divisor: Any) -> Callable[..., Any]:
    """The device function ``quotient(x)``, x / divisor to nearest, of x >= 0; of infinity too, or NaN.

    As `normal_quotient_for`; what is so small that the remainder may underflow is divided in full.
    """
    DIVISOR, normal_quotient = np.float32(divisor), normal_quotient_for(divisor)

    @device_function
    def quotient(x):  # type: ignore[no-untyped-def]
        bits = convert.f32_to_bits(x)
        if (bits < SMALL_BITS) | (bits >= INFINITY):
            return convert.divide(x, DIVISOR)
        return normal_quotient(x)

    return quotient  # type: ignore[no-any-return]


def normal_quotient_for(divisor: Any) -> Callable[..., Any]:
    """The device function ``quotient(x)``, x / divisor to nearest, of x >= 0 and x / divisor >= 2^-126; of less 2^-126 or less.

    Of infinity or NaN it is NaN. One product with the inverse, and what is left over divided again: a third of the instructions of
    `convert.divide`. Tests hold every mantissa of every divisor that is used here to the true quotient, down to the last binade. The divisor
    is a whole number: of 7.5 what is left over, in that binade, may be half of the least float32.
    """
    MINUS, INVERSE = np.float32(-divisor), np.float32(1) / np.float32(divisor)

    @device_function
    def quotient(x):  # type: ignore[no-untyped-def]
        about = x * INVERSE
        return convert.fma(convert.fma(about, MINUS, x), INVERSE, about)

    return quotient  # type: ignore[no-any-return]


def scale_for(rule: str, element: str, is_given: bool = False) -> Callable[..., Any]:
    """The device function ``scale_of(amax, scale of the tensor) -> (the scale as it is stored, its inverse)`` of a rule.

    Stored is u32: the bits of a float32, a UE8M0 byte or an e4m3 byte. The inverse is NaN where all codes are 0 (e4m3: NaN).
    """
    if rule in UE8M0_RULES:
        return _microscaling(rule, element)
    if rule == "nvfp4":
        return _below_a_tensors(ELEMENTS[element].max, is_given)
    if rule.startswith("deepgemm"):
        return _deepgemm(ELEMENTS[element].max, rule == "deepgemm_ue8m0")
    if rule == "amax/7.5":
        quotient = quotient_for(7.5)
    else:
        quotient = normal_quotient_for(7.0 if rule == "amax/7" else ELEMENTS[element].max)

    @device_function
    def scale_of(largest, whole):  # type: ignore[no-untyped-def]
        bits = convert.f32_to_bits(convert.max_magnitude(LEAST_SCALE, quotient(largest)))
        bits = cuda.selp(convert.f32_to_bits(largest) < INFINITY, bits, u32(NAN))
        return bits, convert.reciprocal_of_normal(convert.bits_to_f32(bits))

    return scale_of  # type: ignore[no-any-return]


def _deepgemm(largest_element: Any, use_ue8m0: bool) -> Any:
    UE8M0, quotient = use_ue8m0, normal_quotient_for(largest_element)

    @device_function
    def scale_of(largest, whole):  # type: ignore[no-untyped-def]
        largest = convert.max_magnitude(AMAX_FLOOR, largest)
        is_finite = convert.f32_to_bits(largest) < INFINITY
        bits = cuda.selp(is_finite, convert.f32_to_bits(quotient(largest)), convert.f32_to_bits(largest))
        if UE8M0:
            exponent = ((bits & 0x7FFFFFFF) >> 23) + u32((bits & 0x7FFFFF) != 0)
            bits = min(max(exponent, 1) << 23, LARGEST_UE8M0)
            return bits, convert.bits_to_f32(max(TWICE_1 - bits, INVERSE_OF_2_TO_127))
        # of an infinite scale 0, which times infinity is NaN: all codes are 0 either way
        return bits, convert.reciprocal_of_normal(convert.bits_to_f32(bits))

    return scale_of


def _microscaling(rule: str, element: str) -> Any:
    DIVIDES, ROUNDS_UP, quotient = rule == "rceil", rule in ("rceil", "ceil"), quotient_for(ELEMENTS[element].max)
    BINADES, HALF_STEP = int(np.floor(np.log2(ELEMENTS[element].max))), 1 << (22 - ELEMENTS[element].mantissa) if rule == "even" else 0

    @device_function
    def scale_of(largest, whole):  # type: ignore[no-untyped-def]
        word = convert.f32_to_bits(largest) + HALF_STEP
        if DIVIDES:
            word = convert.f32_to_bits(quotient(largest))
        exponent = word >> 23
        if ROUNDS_UP:
            exponent = exponent + u32((word & 0x7FFFFF) != 0)
        if DIVIDES:
            exponent = cuda.selp(word <= 0x400000, u32(0), exponent)  # up to 2^-127 itself
        else:
            exponent = max(exponent, BINADES) - BINADES
        is_finite = convert.f32_to_bits(largest) < INFINITY
        # NOTE: no finite amax has 254, whose inverse would be subnormal: an element's largest is 4 or more.
        return cuda.selp(is_finite, exponent, u32(255)), convert.bits_to_f32(cuda.selp(is_finite, (254 - exponent) << 23, u32(NAN)))

    return scale_of


def _below_a_tensors(largest_element: Any, is_given: bool) -> Any:
    """Of a tensor's scale between 2^-116 and 2^119, as the host asks of one that is given; with others no block has a scale."""
    GIVEN, quotient = is_given, normal_quotient_for(largest_element)

    @device_function
    def below(x, whole):  # type: ignore[no-untyped-def]
        """x / 6 / whole, each to nearest, where that is 2^-9 to 2^10; else something on the same side of those."""
        # NOTE: both are brought to where whole is from 1 to 2, so that no remainder underflows.
        factor = convert.bits_to_f32(TWICE_1 - (convert.f32_to_bits(whole) & INFINITY))
        x, whole = x * factor, whole * factor
        if GIVEN:
            x = convert.smaller(x, FAR_BEYOND)
        x, inverse = quotient(x), convert.reciprocal_of_normal(whole)
        about = x * inverse
        about = convert.fma(convert.fma(-about, whole, x), inverse, about)
        return convert.fma(convert.fma(-about, whole, x), inverse, about)

    @device_function
    def scale_of(largest, whole):  # type: ignore[no-untyped-def]
        size = convert.max_magnitude(LEAST_E4M3, below(largest, whole))
        # the bits of 2^-120 times as much, above the lowest 20, are the code; of subnormals too
        bits = convert.f32_to_bits(convert.fma_up(size, FROM_E4M3, np.float32(0)))
        # in e4m3's normal range to nearest even, at most 448; below it up to a whole step
        step = cuda.selp(bits < NORMAL_BITS, u32(0xFFFFF), (bits >> 20 & 1) + 0x7FFFF)
        bits = min((bits + step) & 0xFFF00000, LARGEST_E4M3 << 20)
        product = convert.bits_to_f32(bits) * TO_E4M3 * whole
        if GIVEN:
            inverse = convert.f32_to_bits(convert.reciprocal(product))  # which may be subnormal
        else:
            inverse = convert.f32_to_bits(convert.reciprocal_of_normal(product))
        is_finite = convert.f32_to_bits(largest) < INFINITY
        if GIVEN:
            of_tensor = convert.f32_to_bits(whole)
            is_finite = is_finite & (of_tensor >= LEAST_GIVEN) & (of_tensor <= MOST_GIVEN)
        inverse = cuda.selp(is_finite, inverse, u32(NAN))
        return cuda.selp(is_finite, bits >> 20, u32(CODE_OF_NAN)), convert.bits_to_f32(inverse)

    return scale_of
