"""From the largest magnitude of a block to its scale and the inverse that the elements are multiplied by, on the device; as `quant.rules`."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda

from .._numba import device_function
from ..integers import u32
from ..ptx import Registers, convert, f32, unrolled
from .quantize_registers import ELEMENTS, ROUND_BITS
from .smxx_quantize_rules import UE8M0_RULES

NAN, INFINITY = 0x7FC00000, 0x7F800000
SMALL_BITS, SMALL_WHOLE = 0x0D800000, np.float32(2.0**-60)
"""Bits of 2^-100, and a scale of a tensor: from there on no remainder of a division underflows."""

LEAST_SCALE, AMAX_FLOOR = np.float32(2.0**-126), np.float32(1e-4)
LEAST_E4M3, NORMAL_E4M3, STEPS_E4M3 = np.float32(2.0**-9), np.float32(2.0**-6), np.float32(2.0**9)
ROUND, CODE_OF_NAN, LARGEST_E4M3_BITS = np.float32(2.0**23), 0x7F, 0x43E00000


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

    One product with the inverse, and what is left over divided again: a third of the instructions of `convert.divide`. A test holds every
    mantissa of every divisor that is used here to the true quotient. What is so small that the remainder may underflow is divided in full.
    """
    DIVISOR, MINUS, INVERSE = np.float32(divisor), np.float32(-divisor), np.float32(1) / np.float32(divisor)

    @device_function
    def quotient(x):  # type: ignore[no-untyped-def]
        bits = convert.f32_to_bits(x)
        if (bits < SMALL_BITS) | (bits >= INFINITY):
            return convert.divide(x, DIVISOR)
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
    quotient = quotient_for({"amax/7": 7.0, "amax/7.5": 7.5}.get(rule, ELEMENTS[element].max))

    @device_function
    def scale_of(largest, whole):  # type: ignore[no-untyped-def]
        bits = convert.f32_to_bits(convert.max_magnitude(LEAST_SCALE, quotient(largest)))
        bits = cuda.selp(convert.f32_to_bits(largest) < INFINITY, bits, u32(NAN))
        return bits, convert.reciprocal(convert.bits_to_f32(bits))

    return scale_of  # type: ignore[no-any-return]


def _deepgemm(largest_element: Any, use_ue8m0: bool) -> Any:
    UE8M0, quotient = use_ue8m0, quotient_for(largest_element)

    @device_function
    def scale_of(largest, whole):  # type: ignore[no-untyped-def]
        bits = convert.f32_to_bits(quotient(convert.max_magnitude(AMAX_FLOOR, largest)))
        if UE8M0:
            exponent = ((bits & 0x7FFFFFFF) >> 23) + u32((bits & 0x7FFFFF) != 0)
            bits = min(max(exponent, 1), 254) << 23
            return bits, convert.reciprocal(convert.bits_to_f32(bits))
        inverse = convert.f32_to_bits(convert.reciprocal(convert.bits_to_f32(bits)))
        # of an infinite scale 0, which times infinity is NaN: all codes are 0 either way
        return bits, convert.bits_to_f32(cuda.selp(bits < INFINITY, inverse, u32(NAN)))

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
    GIVEN, quotient = is_given, quotient_for(largest_element)

    @device_function
    def below(x, whole):  # type: ignore[no-untyped-def]
        """x / whole; of a scale that is the tensor's own it is 449 or less."""
        if GIVEN:
            return convert.divide(x, whole)
        if whole < SMALL_WHOLE:
            return convert.divide(x, whole)
        inverse = convert.reciprocal(whole)
        about = x * inverse
        about = convert.fma(convert.fma(-about, whole, x), inverse, about)
        return convert.fma(convert.fma(-about, whole, x), inverse, about)

    @device_function
    def scale_of(largest, whole):  # type: ignore[no-untyped-def]
        size = convert.max_magnitude(LEAST_E4M3, below(quotient(largest), whole))
        # in e4m3's normal range to nearest even, at most 448; below it up to a whole step
        word = convert.f32_to_bits(size)
        word = min((word + 0x7FFFF + (word >> 20 & 1)) & 0xFFF00000, LARGEST_E4M3_BITS)
        steps = convert.fma_up(size, STEPS_E4M3, ROUND)
        is_small, is_finite = size < NORMAL_E4M3, convert.f32_to_bits(largest) < INFINITY
        value = convert.bits_to_f32(cuda.selp(is_small, convert.f32_to_bits((steps - ROUND) * LEAST_E4M3), word))
        code = cuda.selp(is_small, convert.f32_to_bits(steps) - ROUND_BITS, (word >> 20) - (120 << 3))
        inverse = convert.f32_to_bits(convert.reciprocal(value * whole))
        inverse = cuda.selp(is_finite, inverse, u32(NAN))
        return cuda.selp(is_finite, code, u32(CODE_OF_NAN)), convert.bits_to_f32(inverse)

    return scale_of
