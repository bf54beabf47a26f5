"""Registers inside an unrolled operation follow the rules of u32 and u64."""

import itertools

import numpy as np
import pytest
from edges import EDGES

from dgnumba.integers import ADVICE, u32, u64

pytest.importorskip("numba_cuda")  # the compiled side

import on_cpu  # noqa: E402

from dgnumba import _numba  # noqa: E402
from dgnumba.errors import CompileError  # noqa: E402
from dgnumba.ptx import f32, op, select, unrolled  # noqa: E402

REGISTER_EXPRESSIONS = (
    lambda x, y: x + y,
    lambda x, y: x - y,
    lambda x, y: 5 - x,
    lambda x, y: x * y,
    lambda x, y: x // 13,
    lambda x, y: x % 13,
    lambda x, y: 1000 // (x | 1),
    lambda x, y: (x & y) | (x ^ 7),
    lambda x, y: x << 31,
    lambda x, y: x << 32,
    lambda x, y: x >> 33,
    lambda x, y: x << y,
    lambda x, y: x >> y,
    lambda x, y: ~x,
    lambda x, y: -x,
    lambda x, y: -4 & x,
    lambda x, y: +x + abs(y),
    lambda x, y: x << 64,
    lambda x, y: x << -1,
    lambda x, y: x >> 32,
    lambda x, y: x >> -1,
    lambda x, y: 1 << x,
    lambda x, y: 1000 >> y,
    lambda x, y: x >> (y & 31) << (y >> 27),
    lambda x, y: x + 2**40 + 2**32,
    lambda x, y: x * -(2**31),
    lambda x, y: x**5 + x**0,
    lambda x, y: x ** (y & 15),
    lambda x, y: 3**x,
    lambda x, y: divmod(x, y | 1)[0] ^ divmod(77, y | 1)[1],
    lambda x, y: np.uint32(7) - x,
    lambda x, y: x + np.int64(-1),
    lambda x, y: u32(7) - x + u32(y),
    lambda x, y: x + True,
    lambda x, y: x + (x > y),
    lambda x, y: x << (x > y),
    lambda x, y: select(x > y, x, y),
    lambda x, y: select((x < 7) | (y >= x) & (y != 3), u32(5), x),
    lambda x, y: select((x == -1) ^ (x > -5), x, y),
    lambda x, y: u32(u64(x) * u64(y) >> 32),
    lambda x, y: u32(u64(x) << y),
    lambda x, y: u32(x + u64(y) >> 1),
    lambda x, y: u32(x < y) + u32(True),
)


@pytest.mark.parametrize("index", range(len(REGISTER_EXPRESSIONS)))
def test_registers_of_an_unrolled_operation_mean_the_same(index):
    expression = REGISTER_EXPRESSIONS[index]

    @unrolled
    def probe(x: u32, y: u32) -> u32:
        return expression(x, y)

    def kernel(out, x, y):
        out[0] = u64(~probe(x, y))

    run = on_cpu.compiled(kernel, u32, u32)
    for x, y in itertools.product(EDGES, EDGES):
        out = np.zeros(1, np.uint64)
        run(out, u32(x), u32(y))
        expected = u64(~u32(expression(u32(x), u32(y))))
        assert int(expected) == int(out[0]), f"x = {x % 2**32}, y = {y % 2**32}"


REFUSED = {
    "a float": (lambda x, y: x * 1.5, ADVICE),
    "a NumPy float": (lambda x, y: np.float32(0.5) + x, ADVICE),
    "a float to compare with": (lambda x, y: select(x < 2.5, x, y), ADVICE),
    "a bool on the left": (lambda x, y: (x < y) * x, "a bool makes a plain integer"),
    "two bools": (lambda x, y: x + ((x < y) + (y < x)), "a bool makes a plain integer"),
    "a bool inverted": (lambda x, y: select(~(x < y), x, y), "~ of a register of kind bool"),
    "a bool with a sign": (lambda x, y: x + -(x < y), "- of a register of kind bool"),
    "a division": (lambda x, y: x / 2, "unsupported operand"),
    "a choice between two types": (lambda x, y: select(x < y, x, 3), "select between u32 and a plain integer"),
    "a choice between two widths": (lambda x, y: select(x < y, x, u64(y)), "select between u32 and u64"),
    "a choice between plain integers": (lambda x, y: x + select(x < y, 1, 2), "select between a plain integer"),
    "a choice by a number": (lambda x, y: select(x, x, y), "expected a bool for the condition"),
    "a u64 for a u32": (lambda x, y: inner(u64(x)), "write u32.x."),
    "a branch": (lambda x, y: x if x < y else y, "cannot steer"),
}


@unrolled
def inner(x: u32) -> u32:
    return instruction(x)


@op("mov.b32 {out}, {x};", pure=True)
def instruction(x: u32) -> u32:
    return x


@pytest.mark.parametrize("what", REFUSED)
def test_registers_refuse_what_python_would_take_for_something_else(what):
    expression, message = REFUSED[what]

    @unrolled
    def probe(x: u32, y: u32) -> u32:
        return expression(x, y)

    def kernel(out, x):
        out[0] = probe(x, x)

    with pytest.raises((CompileError, TypeError), match=message.replace("(", ".").replace(")", ".")):
        _numba.compile_ptx(kernel, (np.zeros(1, np.uint64), u32))


def test_a_register_that_is_no_number_differs_from_itself():
    @unrolled
    def is_number(f: f32) -> u32:
        return select(f == f, u32(1), u32(0)) + select(f != f, u32(2), u32(0))

    def kernel(out, x):
        f = np.float32(x)
        out[0] = is_number(f * np.float32(np.inf))

    run = on_cpu.compiled(kernel, u32)
    for x in (0, 3):  # 0 * inf is no number
        out = np.zeros(1, np.uint64)
        run(out, u32(x))
        with np.errstate(invalid="ignore"):
            assert int(out[0]) == is_number(np.float32(x) * np.float32(np.inf)) == (1 if x else 2)
