"""The LLVM instructions of each operator on unsigned integers: of a `u32` in a kernel, and of a register in an unrolled operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

Emit = Callable[[ir.IRBuilder, Any, Any], Any]


def constant(ty: ir.IntType, number: int) -> ir.Constant:
    """`number` modulo the width of `ty`."""
    return ir.Constant(ty, number & (1 << ty.width) - 1)


def resize(builder: ir.IRBuilder, value: Any, bits: int, is_signed: bool = False) -> Any:
    """An integer as one of `bits`: cut, or extended, by its own sign if it has one."""
    width, ty = value.type.width, ir.IntType(bits)
    if width == bits:
        return value
    if isinstance(value, ir.Constant) and isinstance(value.constant, int) and width > 1:
        number = value.constant & (1 << width) - 1
        return constant(ty, number - (1 << width) if is_signed and number >> width - 1 else number)
    if width > bits:
        return builder.trunc(value, ty)
    return (builder.sext if is_signed else builder.zext)(value, ty)


def _plain(name: str) -> Emit:
    return lambda builder, x, y: getattr(builder, name)(x, y)


def _shift(name: str) -> Emit:
    def emit(builder: ir.IRBuilder, x: Any, count: Any) -> Any:
        """LLVM leaves a shift by the width or more undefined; here it is zero."""
        zero = constant(x.type, 0)
        if isinstance(count, ir.Constant) and isinstance(count.constant, int):
            return getattr(builder, name)(x, count) if 0 <= count.constant < x.type.width else zero
        inside = builder.icmp_unsigned("<", count, constant(x.type, x.type.width))
        return builder.select(inside, getattr(builder, name)(x, builder.select(inside, count, zero)), zero)

    return emit


def _power(builder: ir.IRBuilder, x: Any, count: Any) -> Any:
    """Square and multiply: written out where the exponent is a constant, else a loop over its bits."""
    one, zero = constant(x.type, 1), constant(x.type, 0)
    if isinstance(count, ir.Constant) and isinstance(count.constant, int):
        result, left = None, count.constant & (1 << x.type.width) - 1
        while left:
            if left & 1:
                result = x if result is None else builder.mul(result, x)
            left >>= 1
            x = builder.mul(x, x) if left else x
        return one if result is None else result
    before, loop, after = builder.block, builder.append_basic_block("power"), builder.append_basic_block("power.done")
    builder.branch(loop)
    builder.position_at_end(loop)
    result, square, left = (builder.phi(x.type) for _ in range(3))
    is_odd = builder.icmp_unsigned("!=", builder.and_(left, one), zero)
    steps = builder.select(is_odd, builder.mul(result, square), result), builder.mul(square, square), builder.lshr(left, one)
    for phi, first, step in zip((result, square, left), (one, x, count), steps):
        phi.add_incoming(first, before)
        phi.add_incoming(step, loop)
    builder.cbranch(builder.icmp_unsigned("!=", steps[2], zero), loop, after)
    builder.position_at_end(after)
    return steps[0]


ARITHMETIC: dict[str, Emit] = {
    "add": _plain("add"),
    "sub": _plain("sub"),
    "mul": _plain("mul"),
    "floordiv": _plain("udiv"),
    "mod": _plain("urem"),
    "pow": _power,
    "and": _plain("and_"),
    "or": _plain("or_"),
    "xor": _plain("xor"),
    "lshift": _shift("shl"),
    "rshift": _shift("lshr"),
}
"""By the name of Python's method, as in `dgnumba.integers.OPERATORS`."""


def compare(builder: ir.IRBuilder, symbol: str, x: Any, y: Any) -> Any:
    """Whether ``x symbol y``, unsigned."""
    return builder.icmp_unsigned(symbol, x, y)


def extreme(symbol: str) -> Emit:
    """``min`` with "<", ``max`` with ">"."""
    return lambda builder, x, y: builder.select(builder.icmp_unsigned(symbol, y, x), y, x)
