"""u32 and u64: one table of expressions, evaluated by Python and by what Numba makes of it, must give the same bits.

The compiled side runs on this machine's processor (`on_cpu`) and, where there is one, on the GPU. NumPy's warnings are errors throughout.
"""

import functools
import itertools
import operator
import pickle

import numpy as np
import pytest
from edges import EDGES, SIGNED
from hypothesis import example, given
from hypothesis import strategies as st

from dgnumba.emu.arrays import GlobalArray
from dgnumba.emu.rebind import Rebinder
from dgnumba.emu.source import Sites
from dgnumba.integers import u32, u64

pytest.importorskip("numba_cuda")  # the compiled side

import on_cpu  # noqa: E402
from numba import cuda  # noqa: E402

from dgnumba.launching import launch  # noqa: E402

# The complement before u64() shows the width of a result as well as its value: ~u32(5) has 32 bits, ~u64(5) 64.


def binary(out, x, y):
    divisor = y | 1
    out[0] = u64(~(x + y))
    out[1] = u64(~(x - y))
    out[2] = u64(~(x * y))
    out[3] = u64(~(x // divisor))
    out[4] = u64(~(x % divisor))
    out[5] = u64(~(x & y))
    out[6] = u64(~(x | y))
    out[7] = u64(~(x ^ y))
    out[8] = u64(~(x << y))
    out[9] = u64(~(x >> y))
    out[10] = x == y
    out[11] = x != y
    out[12] = x < y
    out[13] = x <= y
    out[14] = x > y
    out[15] = x >= y
    out[16] = u64(~(x + y * 3 - (x ^ 7) // divisor))


def min_max(out, x, y):
    out[0] = u64(~min(x, y))
    out[1] = u64(~max(x, y))
    out[2] = u64(~(min(x, y) - 5))


def min_max_of_more(out, x, y):
    out[0] = u64(~(min(x, 3) - 5))
    out[1] = u64(~(max(7, x) + 1))
    out[2] = u64(~min(x, y, 3))
    out[3] = u64(~max(1, y, x, 200))
    out[4] = u64(~min((x, 3, y)))
    out[5] = u64(~max((x, y)))
    out[6] = u64(~max(x, True))
    out[7] = u64(~max(x, -1))
    out[8] = min(7, 3)


def powers(out, x, y):
    out[0] = u64(~(x**y))
    out[1] = u64(~(x**0))
    out[2] = u64(~(x**1))
    out[3] = u64(~(x**2))
    out[4] = u64(~(x**13))
    out[5] = u64(~(2**x))
    out[6] = u64(~(x**-1))
    out[7] = u64(~pow(x, y))
    z = x
    z **= 3
    out[8] = u64(~z)


def quotients(out, x, y):
    quotient, rest = divmod(x, y | 1)
    out[0] = u64(~quotient)
    out[1] = u64(~rest)
    quotient, rest = divmod(x, 10)
    out[2] = u64(~quotient)
    out[3] = u64(~rest)
    quotient, rest = divmod(1000, y | 1)
    out[4] = u64(~quotient)
    out[5] = u64(~rest)


def in_place(out, x, y):
    divisor = y | 1
    z = x
    z += y
    out[0] = u64(~z)
    z = x
    z -= y
    out[1] = u64(~z)
    z = x
    z *= y
    out[2] = u64(~z)
    z = x
    z //= divisor
    out[3] = u64(~z)
    z = x
    z %= divisor
    out[4] = u64(~z)
    z = x
    z &= y
    out[5] = u64(~z)
    z = x
    z |= y
    out[6] = u64(~z)
    z = x
    z ^= y
    out[7] = u64(~z)
    z = x
    z <<= y
    out[8] = u64(~z)
    z = x
    z >>= y
    out[9] = u64(~z)


def constants(out, x, y):
    out[0] = u64(~(x + 1))
    out[1] = u64(~(x - 1))
    out[2] = u64(~(1 - x))
    out[3] = u64(~(x * -3))
    out[4] = u64(~(x // 13))
    out[5] = u64(~(x % 13))
    out[6] = u64(~(100 // (x | 1)))
    out[7] = u64(~(x & -4))
    out[8] = u64(~(x ^ 1))
    out[9] = u64(~(x << 31))
    out[10] = u64(~(x << 32))
    out[11] = u64(~(x << 64))
    out[12] = u64(~(x >> 5))
    out[13] = u64(~(x >> 32))
    out[14] = u64(~(1 << x))
    out[15] = x == -1
    out[16] = -1 < x
    out[17] = x > -5
    out[18] = u64(~(x + 0x123456789A))
    out[19] = u64(~(x + 127) // 128 * 128)
    out[20] = u64(~(x + np.uint32(5)))


def unary(out, x, y):
    out[0] = u64(~x)
    out[1] = u64(u32(x))
    out[2] = u64(~u32(x))
    out[3] = u64(x)
    out[4] = not x
    out[5] = bool(x)
    out[6] = 7 if x else 9
    out[7] = u64(~(x and y))
    out[8] = u64(~(x or y))
    count = u32(0)
    left = x & 7
    while left:
        left -= 1
        count += 2
    out[9] = u64(~count)
    total = u32(0)
    for i in range(x & 15):
        total += i * i
    out[10] = u64(~total)
    out[11] = x
    out[12] = u64(~(x if x > y else y))
    larger = x
    if y > x:
        larger = y
    out[13] = u64(~larger)
    out[14] = u32(True) + u32(False)


def signs(out, x, y):
    out[0] = u64(~(-x))
    out[1] = u64(~(+x))
    out[2] = u64(abs(x))


def booleans(out, x, y):
    out[0] = u64(~(x + (x > y)))
    out[1] = u64(~(x + True))
    out[2] = u64(~((x < y) * x))
    out[3] = u64(~(x - (y == y)))
    out[4] = u64(~(x | True))
    out[5] = u64(~(x << (x > y)))
    out[6] = x == (x > y)
    z = x
    z += x > y
    out[7] = u64(~z)
    out[8] = u64((x > y) + x)
    out[9] = u64((x > y) ^ y)
    out[10] = u64(~(x * np.bool_(x > y)))


def numbers(out, x, y):
    """Explicit conversions, each shown by arithmetic that tells its type and value."""
    scale, small = np.float32(2.0**-10), x & 127
    out[0] = int(np.float32(x) * scale)
    out[1] = int(float(x) * 2.0**-10)
    out[2] = int(np.float64(x) * 2.0**-10)
    out[3] = int(np.float32(small) / np.float32(8))
    out[4] = u64(small) + u64(np.int64(small))
    out[5] = np.int64(small) - 5
    out[6] = np.int32(small) - 5
    out[7] = np.int8(small) - 5
    out[8] = np.uint8(small)
    out[9] = u64(np.uint64(x))
    out[10] = bool(x) + 1
    out[11] = int(np.float32(x >> 8) * np.float32(3)) - int(np.float32(7))


def numbers_of_u32(out, x, y):
    out[0] = int(x) - 5
    out[1] = int(x) * int(y >> 2) // -5
    out[2] = np.int64(x) - np.int64(y)
    out[3] = np.uint32(x)


TYPES = {"u32": u32, "u64": u64, "int": int}
PAIRS = [(a, b) for a in TYPES for b in TYPES if (a, b) != ("int", "int")]
TABLE = [(f, n, pair) for f, n in ((binary, 17), (min_max, 3)) for pair in PAIRS] + [(numbers_of_u32, 4, ("u32", "u32"))]
TABLE += [(f, n, pair) for f, n in ((in_place, 10),) for pair in (("u32", "u32"), ("u64", "u32"), ("u64", "u64"))]
MIXED = [("u32", "u32"), ("u32", "int"), ("u32", "u64"), ("u64", "u64")]
TABLE += [(f, n, pair) for f, n in ((min_max_of_more, 9), (powers, 9), (quotients, 6)) for pair in MIXED]
TABLE += [(f, n, (t, t)) for f, n in ((constants, 21), (unary, 15), (signs, 3), (booleans, 11), (numbers, 12)) for t in ("u32", "u64")]
IDS = [f"{f.__name__}-{a}-{b}" for f, _, (a, b) in TABLE]


@functools.cache
def in_the_emulator(function):
    """`function` as the emulator's threads see it."""
    return Rebinder(Sites()).function(function)


def interpreted(function, count, names, x, y):
    out = np.zeros(count, np.uint64)
    with np.errstate(all="raise"):
        in_the_emulator(function)(GlobalArray(out, "out"), TYPES[names[0]](x), TYPES[names[1]](y))
    return out


def fit(name, value):
    """`value` as a number that an argument of this type can hold."""
    return (value + 2**63) % 2**64 - 2**63 if name == "int" else value % 2**64


def operands(names, rng):
    numbers = EDGES + SIGNED
    pairs = list(itertools.product(numbers, numbers))
    pairs += [(int(x), int(y)) for x, y in rng.integers(-(2**63), 2**63, (400, 2))]
    pairs += [(int(x), int(y)) for x, y in rng.integers(0, 2**32, (400, 2))]
    return [(fit(names[0], x), fit(names[1], y)) for x, y in pairs]


@pytest.mark.parametrize("function, count, names", TABLE, ids=IDS)
def test_compiled_equals_interpreted(function, count, names, rng):
    try:
        run = on_cpu.compiled(function, *(TYPES[n] for n in names))
    except Exception as error:
        pytest.fail(f"{function.__name__} runs in the emulator and does not compile: {str(error)[:400]}")
    for x, y in operands(names, rng):
        out = np.zeros(count, np.uint64)
        run(out, TYPES[names[0]](x), TYPES[names[1]](y))
        expected = interpreted(function, count, names, x, y)
        if (expected != out).any():
            line = int(np.flatnonzero(expected != out)[0])
            raise AssertionError(
                f"{function.__name__} on {names[0]}({x}), {names[1]}({y}): "
                f"out[{line}] is {int(expected[line]):#x} in Python, {int(out[line]):#x} compiled"
            )


MASK = {"u32": 2**32 - 1, "u64": 2**64 - 1}
wide = st.one_of(st.sampled_from(EDGES), st.integers(0, 2**64 - 1))
MEANING = {  # what PTX says, in plain integers of unbounded width
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "floordiv": lambda x, y: x // y,
    "mod": lambda x, y: x % y,
    "and_": lambda x, y: x & y,
    "or_": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
    "lshift": lambda x, y: x << y if y < 64 else 0,
    "rshift": lambda x, y: x >> y if y < 64 else 0,
}


@given(st.sampled_from(sorted(MEANING)), st.sampled_from(PAIRS), wide, wide)
@example("lshift", ("u32", "u64"), 1, 33)
@example("rshift", ("u32", "u32"), 2**32 - 1, 32)
@example("sub", ("int", "u32"), 0, 1)
def test_python_side_wraps_at_its_width(name, names, x, y):
    result = "u64" if "u64" in names else "u32"
    mask = MASK[result]
    x, y = (v & MASK.get(n, mask) for v, n in zip((x, y), names))
    if name in ("floordiv", "mod") and y & mask == 0:
        return
    got = getattr(operator, name)(TYPES[names[0]](x), TYPES[names[1]](y))
    assert type(got) is TYPES[result]
    assert int(got) == MEANING[name](x & mask, y & mask) & mask


@given(wide, wide)
def test_comparisons_take_the_other_side_modulo_the_width(x, y):
    for name in ("lt", "le", "eq", "ne", "gt", "ge"):
        relation = getattr(operator, name)
        for kind, mask in ((u32, MASK["u32"]), (u64, MASK["u64"])):
            wanted = relation(x & mask, y & mask)
            for other in (kind(y), y, y - 2**64):
                assert relation(kind(x), other) is wanted, (name, kind, x, other)
                swapped = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}.get(name, name)
                assert getattr(operator, swapped)(other, kind(x)) is wanted, (name, kind, x, other)


@pytest.mark.parametrize("kind", [u32, u64])
@pytest.mark.parametrize("scalar", [np.int32, np.uint32, np.int64, np.uint64, np.uint8])
def test_numpy_scalars_on_either_side_are_plain_integers(kind, scalar):
    with np.errstate(all="raise"):
        for name, meaning in MEANING.items():
            for x, y in ((9, 7), (7, 9), (100, 3)):
                expected = meaning(x, y) & MASK[kind.__name__]
                for left, right in ((kind(x), scalar(y)), (scalar(x), kind(y))):
                    got = getattr(operator, name)(left, right)
                    assert (type(got), int(got)) == (kind, expected), f"{left!r} {name} {right!r} gave {got!r}"


def test_values_are_plain_integers_elsewhere():
    x = u32(2**32 + 5)
    assert (x, hash(x), repr(x), f"{x:x}", bool(x), bool(u32(2**32))) == (5, hash(5), "u32(5)", "5", True, False)
    assert [10, 20, 30][u32(1)] == 20 and {5: "five"}[x] == "five"
    assert u64(-1) == 2**64 - 1 and u32(np.int32(-1)) == 2**32 - 1 and u32(True) == 1
    for beyond in (None, "5", 2.5, [5]):
        with pytest.raises(TypeError):
            x << beyond
    with pytest.raises(ZeroDivisionError):
        u32(1) // u32(2**32)
    assert str(x) == f"{x}" == "5" and pickle.loads(pickle.dumps(u64(-1))) == 2**64 - 1
    assert u32(7) == 7.0 and u32(7) == np.float32(7) and u32(7) in (1.0, 7.0) and u32(7) not in (None, "7", 7.5)
    assert [0.5] * u32(2) == [0.5, 0.5] and sum([u32(2**32 - 1), u32(2)]) == 1


@given(wide)
def test_signs_wrap(x):
    for kind in (u32, u64):
        mask, plain = MASK[kind.__name__], x & MASK[kind.__name__]
        for got, expected in ((-kind(x), -plain & mask), (+kind(x), plain), (abs(kind(x)), plain), (~kind(x), ~plain & mask)):
            assert (type(got), int(got)) == (kind, expected)


@given(wide, st.one_of(wide, st.integers(-5, 40)))
def test_powers_and_quotients_wrap(x, y):
    for kind in (u32, u64):
        mask = MASK[kind.__name__]
        assert (x & mask) ** (y & 15) & mask == int(kind(x) ** (y & 15))
        assert pow(x & mask, y & mask, mask + 1) == int(kind(x) ** kind(y)) == int(kind(x) ** y) == int(x ** kind(y))
        if y & mask:
            quotient, rest = divmod(kind(x), y)
            assert (type(quotient), type(rest), int(quotient), int(rest)) == (kind, kind, *divmod(x & mask, y & mask))


def test_many_values_do_not_stay_in_memory():
    """Values that were met are kept, to be found again quickly, but not without end."""
    for i in range(200_000):
        assert u32(i) + u32(5) == i + 5
    assert len(u32.made) <= 2**16


def test_arrays_beside_u32_are_numpys_affair():
    a = np.arange(4)
    arithmetic = ((a + u32(3), a + 3), (u32(3) - a, 3 - a), (a * u32(2), 2 * a), (u32(1) << a, 1 << a))
    for got, expected in (*arithmetic, (a == u32(3), a == 3), (u32(2) < a, a > 2)):
        assert got.dtype == expected.dtype and got.tolist() == expected.tolist()
    assert np.array([u32(3), u64(4)]).tolist() == np.arange(u32(3), u32(5)).tolist() == [3, 4]
    with pytest.raises(TypeError):  # not to become another array in silence
        a += u32(1)


@pytest.mark.gpu
def test_the_table_on_the_gpu(rng):
    import cupy

    for function, count, names in TABLE:
        pairs = operands(names, rng)[::7]
        kernel = cuda.jit(function)
        for x, y in pairs[:: max(1, len(pairs) // 60)]:
            out = cupy.zeros(count, cupy.uint64)
            launch(kernel, 1, 1, (out, TYPES[names[0]](x), TYPES[names[1]](y)))
            assert interpreted(function, count, names, x, y).tolist() == out.get().tolist(), (function.__name__, names, x, y)
