"""Results with weights of 4 bits stored by fours of rows: the host's bits, wherever D lies, in the emulator; and which plans are built with it."""

import dataclasses

import numpy as np
import pytest
from kernels.int4_products import H200, INT4, Int4Product
from kernels.test_int4_compile import check, pytestmark  # noqa: F401

import dgnumba
from dgnumba import emu
from dgnumba.int4_operands import ARRAYS, check_int4_gemm_nt, lay_out
from dgnumba.int4_problem import Int4Problem
from dgnumba.kernels.int4_quads import groups_at_once
from dgnumba.kernels.int4_spec import Int4Plan
from dgnumba.kernels.sm90_int4_cost import work_of
from dgnumba.testing import assert_bits_equal

BF16, F16, E4M3, BY_ROW, INT8 = "bfloat16", "float16", "float8_e4m3fn", "float8_e4m3fn_row", "int8"

CASES = [
    Int4Product(
        BY_ROW, "int4_g128", 13, 72, 256, (8, 64, 1, 2, 1), 1, BF16, f16_sums=True, quads=True
    ),  # four tiles of one CTA, past the last of both
    Int4Product(BF16, "int4_g128", 61, 68, 256, (64, 64, 1, 2, 2), 132, F16, True, quads=True),  # two CTAs add up, and a bias
    Int4Product(
        INT8, "int4_row", 29, 140, 256, (24, 128, 1, 2, 1), 2, BF16, tail=2, quads=True
    ),  # two warpgroups; a tile shared at the end
    Int4Product(E4M3, "int4_g128", 129, 64, 128, (192, 64, 1, 2, 1), 132, F16, quads=True),  # by halves of the tokens
    Int4Product(F16, "int4_g128", 21, 100, 512, (24, 64, 1, 2, 4), 132, F16, quads=True),  # three groups of tokens for four CTAs
    Int4Product(F16, "nvfp4", 16, 4, 128, (16, 64, 1, 2, 1), 132, BF16, fold=True, quads=True),  # a global scale; four columns in all
    Int4Product(BY_ROW, "int4_g128", 33, 64, 384, (128, 64, 1, 3, 1), 132, BF16, f16_sums=True, quads=True),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_hosts_bits(case):
    case.run(INT4, ("eager", "late")[CASES.index(case) % 2])


@pytest.mark.full
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_hosts_bits_under_both_policies(case, policy, rng):
    case.run(INT4, policy, int(rng.integers(2**31)))


def wider(case, shift, margin):
    """Operands whose D is a part of a wider array, `shift` elements from a multiple of 16 bytes on; that array, and what the host makes of them."""
    operands, expected = case.operands(np.random.default_rng(0))
    m, n = expected.shape
    flat = np.zeros(m * (n + margin) + shift + 8, expected.dtype)
    begin = -flat.ctypes.data % 16 // flat.itemsize + shift
    around = flat[begin : begin + m * (n + margin)].reshape(m, n + margin)
    around[...] = -7
    return check_int4_gemm_nt(operands.a, operands.weights, around[:, :n]), around, expected


@pytest.mark.parametrize("shift, margin", [(0, 0), (4, 8)])
def test_a_part_of_a_wider_array(shift, margin):
    """Rows at multiples of 8 bytes, and nothing written behind them."""
    case = Int4Product(BF16, "int4_g128", 11, 68, 128, (16, 64, 1, 2, 1), out=BF16, quads=True)
    operands, around, expected = wider(case, shift, margin)
    plan, laid = case.plan(operands.problem), lay_out(operands)
    assert INT4.refusal(plan, operands.problem) is None and np.shares_memory(laid.d, around)
    built, trace = INT4.build(plan), emu.Trace()
    arrays = [x for x in (getattr(laid, name) for name in ARRAYS) if x is not None]
    emu.run(built.kernel, INT4.grid(plan, operands.problem, H200), built.threads, INT4.bind(plan, laid), smem=built.smem.launch_bytes,
            policy="late", labels=built.smem.labels, arrays=arrays, observe=trace)  # fmt: skip
    assert_bits_equal(np.ascontiguousarray(laid.d), expected, str(case))
    assert (around[:, 68:] == -7).all(), "columns behind D were written"
    stores = {note.op for note in trace.notes if note.op.startswith(("memory.store_global", "transpose.store_global"))}
    assert stores == {"transpose.store_global_v2_if"}


@pytest.mark.parametrize(
    "shift, margin, n, has_quads",
    [(0, 0, 68, True), (4, 8, 68, True), (2, 0, 68, False), (0, 2, 68, False), (1, 4, 68, False), (0, 2, 66, False), (0, 0, 70, False)],
)
def test_where_d_lies_decides(shift, margin, n, has_quads):
    """8 bytes at multiples of 8, in every row, and no columns left over."""
    case = Int4Product(BF16, "int4_g128", 200, n, 128, (128, 64, 1, 2, 1), out=BF16, quads=True)
    problem = wider(case, shift, margin)[0].problem
    assert (INT4.refusal(case.plan(problem), problem) is None) == has_quads
    assert {x.quads for x in INT4.candidates(problem, H200) if x.block_m >= 128 and x.block_n <= 128} == {has_quads}
    assert problem.d_has_quads or n % 4 == 0, "nothing else tells problems apart whose columns are no fours"


def test_d_of_our_own_is_stored_so():
    operands, _ = Int4Product(BF16, "int4_g128", 200, 68, 128, (128, 64, 1, 2, 1), out=BF16).operands(np.random.default_rng(0))
    assert check_int4_gemm_nt(operands.a, operands.weights).problem.d_has_quads


@pytest.mark.parametrize(
    "form, block_m, block_n, expected",
    [
        ({}, 128, 128, True),
        ({"d_dtype": F16}, 256, 64, True),
        ({"with_bias": True}, 128, 64, True),
        ({}, 64, 128, False),
        ({"d_dtype": "float32"}, 128, 128, False),
        ({"has_gate": True}, 128, 128, False),
        ({"with_c": True}, 128, 128, False),
        ({"n": 4098}, 128, 128, False),
        ({"d_has_quads": False}, 128, 128, False),
    ],
)
def test_which_plans_are_offered_so(form, block_m, block_n, expected):
    problem = Int4Problem(**{"m": 512, "n": 4096, "k": 4096, **form})
    found = [x for x in INT4.candidates(problem, H200) if (x.block_m, x.block_n) == (block_m, block_n)]
    assert found and {x.quads for x in found} == {expected} == {"quads" in x.name.split() for x in found}
    if not expected and block_m >= 128:
        assert "for stores of four columns" in INT4.refusal(dataclasses.replace(found[0], quads=True), problem)


def test_four_warpgroups_have_no_registers_for_it():
    problem = Int4Problem(64, 4096, 4096)
    assert "for stores of four columns" in INT4.refusal(
        Int4Plan.of(problem, INT4.NAME, block_m=32, block_n=256, num_stages=3, quads=True), problem
    )


def plan(block_m, block_n=64, split=1, **more):
    return Int4Plan(INT4.NAME, block_m, block_n, 3, 1, split, quads=True, **more)


@pytest.mark.parametrize(
    "block_m, cluster, expected", [(64, 1, 4), (64, 2, 4), (64, 4, 2), (64, 8, 1), (96, 2, 2), (96, 8, 1), (192, 2, 4)]
)
def test_groups_of_tokens_that_are_added_up_together(block_m, cluster, expected):
    """Each CTA takes the same number, a multiple of that; else one at a time."""
    assert groups_at_once(plan(block_m, split=cluster)) == expected


def test_explained():
    """Of D of its own, and of one whose rows are no multiples of 8 bytes."""
    a, w = (
        np.ones((256, 128), np.float16),
        dgnumba.prepare_int4_weights(dgnumba.quantize(np.ones((8192, 128), np.float32), "int4_g128"), "float16"),
    )
    for d, expected in ((None, True), (np.zeros((256, 8193), np.float16)[:, :8192], False)):
        assert ("four columns of d stored at a time" in str(dgnumba.explain_int4(a, w, d))) == expected


def test_its_stores_cost_half():
    problem = Int4Problem(256, 28672, 8192)
    for block_m, tail in ((128, 1), (128, 2), (256, 1)):
        wide = Int4Plan.of(problem, INT4.NAME, block_m=block_m, block_n=128, num_stages=3, tail=tail, quads=True)
        one, two = (work_of(x, problem, H200, INT4.count_tiles(x, problem), 64) for x in (wide, dataclasses.replace(wide, quads=False)))
        assert two.stored == 2 * one.stored > 0 and two._replace(stored=0) == one._replace(stored=0)


@pytest.mark.parametrize(
    "chosen",
    [plan(128, 64, 8), plan(256, 128, with_bias=True, a_dtype="float8_e4m3fn", a_by_row=True, f16_sums=True)],
    ids=lambda p: p.name,
)
def test_they_compile(chosen):
    check(chosen)
