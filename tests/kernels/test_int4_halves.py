"""Weights of 4 bits by halves of more than 128 tokens: which plans, what they cost, that every one compiles, and that no bit changes."""

import dataclasses

import int4_cases as cases
import numpy as np
import pytest
from kernels.int4_products import H200, INT4
from kernels.test_int4_compile import check, pytestmark  # noqa: F401

import dgnumba
from dgnumba import emu
from dgnumba.errors import PlanError
from dgnumba.int4_operands import ARRAYS, check_int4_gemm_nt, lay_out
from dgnumba.int4_plan import choose_int4, validate_int4
from dgnumba.int4_problem import Int4Problem
from dgnumba.kernels import sm90_int4_gemm_rules as rules
from dgnumba.kernels.int4_finish import sums_at_once
from dgnumba.kernels.int4_spec import Int4Plan
from dgnumba.kernels.sm90_int4_cost import CONSTANTS, microseconds, work_of
from dgnumba.testing import assert_bits_equal

KINDS = {
    "bfloat16": {},
    "float16": {"a_dtype": "float16"},
    "e4m3": {"a_dtype": "float8_e4m3fn"},
    "e4m3 by rows": {"a_dtype": "float8_e4m3fn", "a_by_row": True},
    "int8": {"a_dtype": "int8"},
}
FORMS = [{}, {"w_dtype": "uint4", "zeros": "integer"}, {"group": 64}, {"w_dtype": "uint4", "zeros": "float"}, {"scale_dtype": "float32"}]


def problem_of(kind, m=256, n=28672, k=8192, **form):
    return Int4Problem(m, n, k, **KINDS[kind], **form)


def halved(problem):
    return [plan for plan in INT4.candidates(problem, H200) if plan.turns == 2]


def test_tokens_take_turns_where_their_sums_find_no_registers():
    plan = Int4Plan(INT4.NAME, 256, 128, 3)
    assert (plan.turns, rules.accumulators(plan), rules.consumer_registers(plan), rules.producer_registers(plan)) == (2, 64, 240, 24)
    at_once = dataclasses.replace(plan, block_m=128)
    assert (at_once.turns, rules.accumulators(at_once), rules.consumer_registers(at_once), rules.producer_registers(at_once)) == (
        1,
        64,
        232,
        40,
    )
    for other in ({"fold": True}, {"is_whole": True, "a_dtype": "int8"}):
        plain = dataclasses.replace(plan, **other)
        assert (plain.turns, rules.accumulators(plain)) == (1, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_they_are_offered_beyond_128_tokens(kind):
    found = halved(problem_of(kind))
    if kind == "int8":
        assert not found, "slower: a plan that is named is taken, but none is offered"
        return
    assert {(plan.block_m, plan.block_n) for plan in found} == {(256, 128), (192, 128), (256, 64), (192, 64)}
    assert {"256x128x128", "192x128x128"} <= {plan.name.split()[0] for plan in found}
    assert not halved(problem_of(kind, m=128))
    assert all(rules.is_batch_invariant(plan) == (plan.cluster == 1) for plan in found), "no sum's order changes"
    assert any(plan.split > 1 for plan in halved(problem_of(kind, n=8192)))


def test_partial_sums_take_the_place_of_the_ring():
    """Of a ring that is smaller the rest lies behind it, before the barriers."""
    plan = Int4Plan(INT4.NAME, 256, 128, 5, a_dtype="int8")
    for shared in ({"split": 2}, {"tail": 2}):
        assert rules.smem(dataclasses.replace(plan, **shared)).launch_bytes == rules.smem(plan).launch_bytes
        for block_m in (128, 256):
            small = rules.smem(dataclasses.replace(plan, block_m=block_m, num_stages=2, **shared))
            assert small["a"].offset == small["partial"].offset == 0
            assert small["partial"].end == block_m * 128 * 4 <= small["full"].offset
    for split in (1, 2):
        assert {x.num_stages for x in halved(problem_of("e4m3", n=8192)) if x.block_m == 256 and x.block_n == 128 and x.split == split} == {
            5
        }


@pytest.mark.parametrize(
    "block_m, cluster, expected", [(256, 2, 8), (256, 8, 8), (192, 2, 8), (192, 4, 4), (96, 2, 4), (24, 2, 1), (8, 1, 2), (8, 8, 1)]
)
def test_a_clusters_sums_are_added_some_at_a_time(block_m, cluster, expected):
    """Of a lane's tokens each CTA takes the same number, a multiple of that; else one at a time."""
    plan = Int4Plan(INT4.NAME, block_m, 64, 2, split=cluster)
    assert sums_at_once(plan) == expected
    assert expected == 1 or block_m // 4 % (expected * cluster) == 0


@pytest.mark.parametrize(
    "change, form, match",
    [
        ({"records": 2}, {}, "fewer records for more tokens"),
        ({"block_n": 256}, {}, "accumulators of all groups"),
        ({}, {"group": 64}, "accumulators of all groups"),
        ({}, {"w_dtype": "uint4", "zeros": "float"}, "accumulators of all groups"),
    ],
)
def test_what_finds_no_registers_is_refused(change, form, match):
    problem = problem_of("int8", **form)
    plan = Int4Plan.of(problem, INT4.NAME, **{"block_m": 256, "block_n": 128, "num_stages": 2, **change})
    with pytest.raises(PlanError, match=match):
        validate_int4(plan, problem, H200)


def test_a_record_is_unpacked_once():
    """Twice the unpacking costs a tile of 256 tokens what it costs one of 128; twice the promotion, twice as much."""
    problem = problem_of("e4m3 by rows", m=4096)

    def more(block_m, **slower):
        plan = Int4Plan.of(problem, INT4.NAME, block_m=block_m, block_n=128, num_stages=3)
        work = work_of(plan, problem, H200, rules.count_tiles(plan, problem), rules.accumulators(plan))
        times = [microseconds(work, dataclasses.replace(CONSTANTS, **{"pipes": 1, "sharing": 1, **change})) for change in ({}, slower)]
        return times[1] - times[0]

    turns_of_128 = more(128, unpack_e4m3=2 * CONSTANTS.unpack_e4m3)
    assert 0.95 < 2 * more(256, unpack_e4m3=2 * CONSTANTS.unpack_e4m3) / turns_of_128 < 1.05
    promoted = {block_m: more(block_m, promotion_rows=2 * CONSTANTS.promotion_rows) for block_m in (128, 256)}
    assert 0.95 < promoted[256] / promoted[128] < 1.05


def test_many_tokens_take_them():
    for kind in ("e4m3", "e4m3 by rows"):
        assert choose_int4(problem_of(kind, m=4096), H200).plan.turns == 2
    problem = problem_of("bfloat16", m=4096)
    assert choose_int4(problem, H200, exact_weights=True).plan.turns == 2


def test_explain_says_so(rng):
    a, w = cases.activations(rng, "bfloat16", 200, 128), dgnumba.prepare_int4_weights(cases.weights(rng, "int4_g128", 64, 128), "bfloat16")
    problem = check_int4_gemm_nt(a, w).problem
    for block_m, says in ((128, "tile 128x64, 1 records"), (256, "tile 256x64, by halves of its tokens, 1 records")):
        plan = Int4Plan.of(problem, INT4.NAME, block_m=block_m, block_n=64, num_stages=2)
        assert says in str(dgnumba.explain_int4(a, w, plan=plan))


EVERY = [plan for kind in KINDS for form in FORMS for m in (256, 192) for plan in halved(problem_of(kind, m, 8192, **form))]


@pytest.mark.full
@pytest.mark.parametrize("chosen", dict.fromkeys(EVERY), ids=lambda plan: plan.name.replace(" ", "-"))
def test_every_one_compiles(chosen):
    check(chosen)


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "bfloat16"])
def test_no_bit_changes(kind, rng):
    """Random numbers, whose sums are rounded: tiles of 64, 192 and 256 tokens give the same bits."""
    m, n, k = 137, 40, 300
    a, w = cases.activations(rng, kind, m, k), dgnumba.prepare_int4_weights(cases.weights(rng, "int4_g128", n, k), kind)
    found = []
    for block_m in (64, 192, 256):
        operands = check_int4_gemm_nt(a, w, np.full((m, n), np.nan, np.float32))
        laid, plan = lay_out(operands), Int4Plan.of(operands.problem, INT4.NAME, block_m=block_m, block_n=64, num_stages=2)
        built = INT4.build(validate_int4(plan, operands.problem, H200).plan)
        arrays = [x for x in (getattr(laid, name) for name in ARRAYS) if x is not None]
        emu.run(built.kernel, INT4.grid(plan, operands.problem, H200), built.threads, INT4.bind(plan, laid), smem=built.smem.launch_bytes,
                cluster=built.cluster, policy="eager", labels=built.smem.labels, arrays=arrays)  # fmt: skip
        found.append(np.asarray(laid.d))
    assert_bits_equal(found[1], found[0])
    assert_bits_equal(found[2], found[0])
