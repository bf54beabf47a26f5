"""An argument of the wrong kind does not compile, and the message names the operation, the argument and what came."""

import re

import numpy as np
import pytest
from ptx.instructions import ARGTYPES, CALLABLE, kernel_of

from dgnumba import _numba
from dgnumba.errors import CompileError
from dgnumba.integers import u32
from dgnumba.layouts.descriptors import SmemDescriptor
from dgnumba.ptx import fragment, mbarrier, memory, mma, wgmma

pytestmark = pytest.mark.skipif(not _numba.HAVE_NUMBA_CUDA, reason="needs numba-cuda")

WRONG = {  # a kind -> text of another, and what the message calls it
    "u32": ("f0", "a u32"),
    "u64": ("f0", "a u64"),
    "f32": ("a", "a float32"),
    "bool": ("a", "a bool"),
    "imm": ("a", "an integer constant"),
    "fragment": ("regs", "a tuple of float32 registers"),
    "registers": ("frag", "a tuple of u32 registers"),
    "tensor_map": ("q", "a tensor map that is a kernel parameter"),
    "array": ("a", "an array"),
}
CASES = [(name, parameter, kind) for name, operation in CALLABLE.items() for parameter, kind in operation.params]


def refused(kernel, argtypes=ARGTYPES):
    with pytest.raises(CompileError) as caught:
        _numba.compile_ptx(kernel, argtypes)
    return str(caught.value)


@pytest.mark.parametrize("name, parameter, kind", CASES, ids=[f"{n}-{p}" for n, p, _ in CASES])
def test_a_wrong_kind_names_the_argument(name, parameter, kind):
    wrong, expected = WRONG[kind]
    if parameter in CALLABLE[name].counts:
        expected = expected.replace("a tuple of", f"a tuple of {CALLABLE[name].counts[parameter]}")
    message = refused(kernel_of([name], **{parameter: wrong}))
    assert f"{name}: argument {parameter} must be {expected}, got " in message


@pytest.mark.parametrize("call", ["mbarrier.wait(a)", "mbarrier.wait(a, b, a)", "mbarrier.wait(bar=a, parity=b)", "mbarrier.wait()"])
def test_a_wrong_number_or_keywords_show_the_signature(call):
    namespace = {"mbarrier": mbarrier}
    exec(f"def kernel(a, b):\n    {call}", namespace)
    message = refused(namespace["kernel"], (u32, u32))
    count = len(re.findall(r"[ab]\b(?!\w*=)", call.split("(")[1]))
    assert f"mbarrier.wait takes (bar: u32, parity: u32) by position, got {count} arguments" in message


def test_accumulators_and_operands_of_a_made_operation():
    mma = wgmma.mma_for("float8_e4m3fn", "float8_e5m2", a=SmemDescriptor(), b=SmemDescriptor())

    def no_fragment(a, b):
        mma(a, a, b, 0)

    def late_constant(a, b):
        mma(fragment.zero(8), a, b, a)

    def no_registers(a, b):
        memory.store_global_v4_if(a < b, a, (a, b, a, np.float32(0)))

    assert "wgmma.mma: argument acc must be a tuple of float32 registers, got u32" in refused(no_fragment, (u32, u32))
    assert "wgmma.mma: argument accumulate must be an integer constant, got u32" in refused(late_constant, (u32, u32))
    assert "memory.store_global_v4_if: argument values must be a tuple of 4 u32 registers, got" in refused(no_registers, (u32, u32))


def test_a_fragment_of_another_length_is_refused():
    def short(a, b):
        regs = memory.load_shared_v4(a)
        mma.m16n8k16_bf16(fragment.zero(4), regs, regs)

    multiply = mma.tile_for("bfloat16", 1, 2)

    def tile(a, b):
        regs = memory.load_shared_v4(a)
        multiply(fragment.zero(4), regs, regs)

    assert "mma.m16n8k16_bf16: argument b must be a tuple of 2 u32 registers, got UniTuple(u32 x 4)" in refused(short, (u32, u32))
    assert "mma.tile: argument acc must be a tuple of 8 float32 registers, got UniTuple(float32 x 4)" in refused(tile, (u32, u32))


def test_plain_integers_are_taken_where_registers_are():
    """The literals and `cuda.threadIdx.x` of a user's kernel need no casts."""

    def kernel(a, n):
        mbarrier.init(a, 1)
        mbarrier.wait(a + 8, n)
        memory.store_shared_u32(64, n)

    ptx, _ = _numba.compile_ptx(kernel, (u32, np.int32(0)))
    assert "mbarrier.init" in ptx and "st.shared.b32" in ptx
