"""u32 and u64 compiled: u32 stays in 32 bits, and what the two worlds could not mean alike does not compile."""

import re

import numpy as np
import pytest

from dgnumba.emu.arrays import GlobalArray
from dgnumba.integers import ADVICE, u32, u64

pytest.importorskip("numba_cuda")  # the compiled side

import on_cpu  # noqa: E402
from numba import cuda  # noqa: E402

from dgnumba import _numba  # noqa: E402
from dgnumba.errors import CompileError  # noqa: E402
from dgnumba.ptx import memory  # noqa: E402

RESULTS = 13


def narrow(base, x, y):
    divisor = y | 1
    memory.store_shared_u32(base, x + y)
    memory.store_shared_u32(base + 4, x - y * 3)
    memory.store_shared_u32(base + 8, x // divisor)
    memory.store_shared_u32(base + 12, x % 13)
    memory.store_shared_u32(base + 16, x // 13)
    memory.store_shared_u32(base + 20, (x << y) ^ (x >> 3))
    memory.store_shared_u32(base + 24, min(x, y))
    memory.store_shared_u32(base + 28, max(x & 3, y | 4))
    memory.store_shared_u32(base + 32, x if x > y else y)
    stage = x
    stage += 1
    if stage == 5:
        stage = u32(0)
    phase = y
    phase ^= 1
    memory.store_shared_u32(base + 36, stage)
    memory.store_shared_u32(base + 40, phase)
    tile = u32(cuda.blockIdx.x)
    while tile < x:
        tile += u32(cuda.gridDim.x)
    memory.store_shared_u32(base + 44, tile)
    memory.store_shared_u32(base + 48, ~tile)


def test_u32_arithmetic_compiles_to_32_bits():
    ptx, _ = _numba.compile_ptx(narrow, (u32, u32, u32))
    body = ptx[ptx.index("{", ptx.index(".entry")) :]
    assert len(re.findall(r"st\.shared\.b32", body)) == RESULTS
    # a division by a constant may take the high half of a 32 x 32 product: mul.wide.u32 and a shift
    assert re.findall(r"^.*\b(?:add|sub|mul|mad|div|rem|min|max|setp)\.(?:\w+\.)*(?:[bsu]64|f64|f32)\b.*$", body, re.MULTILINE) == []
    assert "call" not in body


def compile_error(kernel, *argtypes):
    with pytest.raises(CompileError) as caught:
        _numba.compile_ptx(kernel, (np.zeros(1, np.int64), *argtypes))
    return str(caught.value)


def test_a_float_is_no_u32():
    def kernel(out, x):
        out[0] = u32(2.5)

    message = compile_error(kernel, u32)
    assert re.search("Numba could not compile .*kernel", message) and "int(x) cuts a float" in message
    for value in (2.5, np.float32(2.5)):
        with pytest.raises(TypeError, match="u32: expected an integer, got float.*int.x. cuts a float"):
            u32(value)


def from_text(expression):
    namespace = {"np": np, "u32": u32, "u64": u64}
    # NOTE: in a loop behind it, so that both ways meet: Python 3.12 compiles a short end of a function twice, once for each way.
    exec(f"def kernel(out, x):\n    y = {expression}\n    for i in range(1):\n        out[i] = y", namespace)
    return namespace["kernel"]


@pytest.mark.parametrize("kind", [u32, u64])
@pytest.mark.parametrize("symbol", ["+", "-", "*", "//", "%", "**", "&", "|", "^", "<<", ">>", "<", ">="])
def test_beside_a_float_both_worlds_say_what_to_write(kind, symbol):
    for expression in (f"x {symbol} 1.5", f"x {symbol} np.float32(0.5)", f"np.float32(0.5) {symbol} x", f"np.float64(0.5) {symbol} x"):
        kernel = from_text(expression)
        assert ADVICE in compile_error(kernel, kind), expression
        with pytest.raises(TypeError) as refused:
            kernel([0], kind(3))
        assert ADVICE in str(refused.value), expression


@pytest.mark.parametrize(
    "expression", ["2.5 - x", "x == 2.5", "x != np.float32(2.5)", "min(x, 2.5)", "max(1, x, np.float32(3))", "x / 2", "2 / x", "x / x"]
)
def test_what_python_cannot_refuse_does_not_compile(expression):
    message = compile_error(from_text(expression), u32)
    assert ADVICE in message or "np.float32(x) / np.float32(y)" in message


def test_plain_numbers_keep_numbas_rules():
    """Beside no unsigned integer our typings stand aside."""

    def kernel(out, x, y):
        out[0] = (x + 7) // 2 * 3 - min(x, y, 3)
        out[1] = u64(abs(x) + int(2.5 * x) + int(float(x) / 4))
        out[2] = np.int64(np.float32(x)) + (x < y) + max(x, y)
        out[3] = out[x % 3] + (5 if x else y)

    run = on_cpu.compiled(kernel, int, int)
    for x, y in ((5, 8), (100, 3), (0, 1), (1024, 1024)):
        compiled, plain = np.zeros(4, np.uint64), np.zeros(4, np.uint64)
        run(compiled, x, y)
        kernel(GlobalArray(plain, "out"), x, y)
        assert plain.tolist() == compiled.tolist()


ONE_VARIABLE = ("x if x > 5 else 3", "3 if x > 5 else x", "x or 3", "x and (x > 2)", "x if x > 5 else u64(x)", "x if x > 5 else 2.5")


@pytest.mark.parametrize("expression", ONE_VARIABLE)
def test_a_variable_of_two_types_does_not_compile(expression):
    """Python keeps each as it is, so that `(x if c else 3) - 5` wraps or not by the way it went; the GPU knows one type."""
    assert "Python would keep each as it is, so write" in compile_error(from_text(expression), u32)


def test_a_sum_begins_with_its_type():
    def kernel(out, x):
        total = 0
        for _ in range(x):
            total += x
        out[0] = u64(total)

    message = compile_error(kernel, u32)
    assert "total = u32(0)" in message and "test_integers_compiled.py" in message  # and where


def test_int_of_a_u64_says_what_to_write():
    assert "np.int64(x)" in compile_error(from_text("int(x)"), u64)


def test_an_array_is_indexed_by_u32():
    def kernel(out, x, y):
        out[x % 4] = u64(y)
        out[4 + x % 4] = out[x % 4] + 1

    run = on_cpu.compiled(kernel, u32, u32)
    for x in (0, 3, 2**32 - 1):
        compiled, plain = np.zeros(8, np.uint64), np.zeros(8, np.uint64)
        run(compiled, u32(x), u32(77))
        kernel(plain, u32(x), u32(77))
        assert plain.tolist() == compiled.tolist()
