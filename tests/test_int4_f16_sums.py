"""Which products may sum in float16, and which plans do: ratios of scales that keep all in range, refusals, settings, names."""

import dataclasses
import math

import int4_cases as cases
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dgnumba
from dgnumba import Int4Plan, explain_int4, prepare_int4_weights
from dgnumba.device import Device
from dgnumba.dtypes import DTYPES
from dgnumba.errors import PlanError
from dgnumba.int4_operands import check_int4_gemm_nt, lay_out
from dgnumba.int4_plan import choose_int4, validate_int4
from dgnumba.int4_problem import Int4Problem
from dgnumba.kernels import sm90_int4_gemm_rules as rules
from dgnumba.kernels.int4_f16_sums import RECORDS_OF_A_SUM
from dgnumba.quant import QTensor
from dgnumba.quant.int4_weights import LARGEST_F16_SUMS, LONGEST_F16_SUMS, f16_ratio

H200 = Device.named("h200")
E4M3, F16 = DTYPES["float8_e4m3fn"], DTYPES["float16"]
MANY = Int4Problem(4096, 28672, 8192, "float8_e4m3fn", a_by_row=True, may_sum_f16=True)
LARGEST_SUM = 128 * 448 * 8 / 2**8  # of a record
positive = st.floats(2.0**-30, 2.0**30, width=32)


@settings(max_examples=200)
@given(positive, positive, st.integers(1, LONGEST_F16_SUMS))
def test_a_ratio_is_the_largest_power_of_two_that_leaves_room(one, other, k):
    least, most = sorted((one, other))
    records, ratio = -(-k // 128), f16_ratio((least, most), k)
    room = 1 / 32 if records <= 32 else 1 / 2 ** math.ceil(math.log2(records))
    if ratio is None:  # the least scale would not be a normal number
        assert least * 2.0 ** -math.ceil(math.log2(most)) * 32 * room < 2.0**-13
        return
    assert math.frexp(ratio)[0] == 0.5 and least * ratio >= F16.min_normal
    largest = most * ratio * records * LARGEST_SUM
    assert largest <= 2**16 * 7 / 8, "an eighth is left for roundings"
    assert 2 * most * ratio >= 32 * room, "and twice the ratio leaves none, or scales are larger than 1"


@pytest.mark.parametrize(
    "least, most, k, expected",
    [
        (0.25, 0.75, 4096, 1.0),
        (0.25, 0.75, 4097, 0.5),
        (0.25, 1.0, 4096, 0.5),
        (0.25, 0.75, 2**17, 2.0**-5),
        (0.25, 0.75, 2**17 + 1, None),  # roundings of so many sums might take the room
        (0.0, 0.0, 128, None),  # all scales are 0, or nobody looked
        (0.0, math.inf, 128, None),
        (2.0**-14, 0.75, 4096, 1.0),
        (2.0**-15, 0.75, 4096, None),
        (2.0**-14, 0.75, 8192, None),
        (2.0**99, 2.0**99, 128, 2.0**-100),
        (2.0**100, 2.0**100, 128, None),
        (2.0**-100, 2.0**-100, 128, 2.0**99),
        (2.0**-101, 2.0**-101, 128, None),
    ],
)
def test_known_ratios(least, most, k, expected):
    assert f16_ratio((least, most), k) == expected
    assert LARGEST_F16_SUMS == 2.0**100


@pytest.mark.parametrize("group", [128, 32, 16])
@pytest.mark.parametrize("scale", [np.nextafter(np.float32(1), np.float32(0)), np.float32(0.8371), np.float32(0.5)])
def test_the_largest_numbers_stay_finite_at_every_k(group, scale):
    """Every activation 448, every code -8: sums in float16, record by record, of all K from 128 to 2^17, for each ratio that any of these has."""
    groups = 128 // group
    assert RECORDS_OF_A_SUM == 8 and np.float32(448 * 8) / 2**8 * group <= 2048, "sums of a group are exact"
    of_group = -group * 448 * 8 / 2**8
    for room in range(6):
        last = 2 ** (room + 5)  # records
        ratio = f16_ratio((float(scale),) * 2, 128 * last)
        assert ratio == f16_ratio((float(scale),) * 2, 128 * (last // 2 + 1)) or room == 0
        factor = float(np.float16(scale * np.float32(ratio)))
        total, sums = np.float16(0), np.float16(0)
        for record in range(last):
            for _ in range(groups):
                sums = np.float16(of_group * factor + float(sums))
            if record % RECORDS_OF_A_SUM == RECORDS_OF_A_SUM - 1:
                total, sums = np.float16(float(total) + float(sums)), np.float16(0)
            found = np.float16(float(total) + float(sums))
            exact = of_group * groups * float(scale) * ratio * (record + 1)
            share = (1 + 2.0**-11) ** (1 + RECORDS_OF_A_SUM * groups + record // RECORDS_OF_A_SUM + 1) - 1
            assert np.isfinite(found) and abs(float(found) - exact) <= share * abs(exact) + 2.0**-20
        assert abs(float(found)) > 2**16 * 3 / 16, "what was tried is large"


def weights_of(scale, w_dtype="int4", group=128, k=256, **more):
    return QTensor(np.full((1, k), 9, np.uint8), np.asarray(scale, np.float32), w_dtype, (1, group), **more)


def test_of_weights_their_scales_and_form_decide():
    plain = prepare_int4_weights(weights_of([[0.25, 0.75]]), "float8_e4m3fn")
    assert plain.f16_ratio(E4M3) == 1.0
    assert plain.f16_ratio(DTYPES["bfloat16"]) is plain.f16_ratio(F16) is None
    for kind in ("bfloat16", "float16", "int8"):
        assert prepare_int4_weights(weights_of([[0.25, 0.75]]), kind).f16_ratio(E4M3) is None, "codes in another order"
    for other in (
        weights_of([[0.25, 0.75]], "uint4"),
        weights_of([[0.25, 0.75]], zero_point=np.full((1, 2), 3)),
        weights_of([[0.5] * 8], "float4_e2m1fn", 32),
        weights_of([[2.0**-16, 0.75]]),
        weights_of([[0.0, 0.0]]),
    ):
        assert prepare_int4_weights(other, "float8_e4m3fn").f16_ratio(E4M3) is None
    assert prepare_int4_weights(weights_of([[0.0, 0.75]]), "float8_e4m3fn").f16_ratio(E4M3) == 1.0, "0 loses no bits"
    assert prepare_int4_weights(weights_of([[-0.75, 0.25]]), "float8_e4m3fn").f16_ratio(E4M3) == 1.0
    gate = weights_of([[0.25, 6.0]])
    assert prepare_int4_weights(weights_of([[0.25, 0.75]]), "float8_e4m3fn", gate=gate).f16_ratio(E4M3) == 2.0**-3
    kept = {field.name: getattr(plain, field.name) for field in dataclasses.fields(plain) if field.name != "scale_range"}
    assert dgnumba.Int4Weights(**kept).f16_ratio(E4M3) is None, "nobody looked at their range"


@pytest.mark.parametrize("kind, variant, may", [
    ("float8_e4m3fn_row", "int4_g128", True),
    ("float8_e4m3fn_row", "int4_g32", True),
    ("float8_e4m3fn_row", "uint4_g64", False),
    ("float8_e4m3fn_row", "nvfp4", False),
    ("float8_e4m3fn", "int4_g128", False),
    ("bfloat16", "int4_g128", False),
    ("int8", "int4_g128", False),
])  # fmt: skip
def test_of_products_those_of_e4m3_by_rows_beside_int4(kind, variant, may, rng):
    a, q = cases.exact_problem(rng, kind, variant, 200, 70, 256)
    operands = check_int4_gemm_nt(a, prepare_int4_weights(q, cases.prepared_for(kind)))
    assert operands.problem.may_sum_f16 == may
    assert any(plan.f16_sums for plan in rules.candidates(operands.problem, H200)) == may
    bits = lay_out(operands).ratio_bits
    assert np.uint32(bits).view(np.float32) == (operands.weights.f16_ratio(operands.problem.a_dtype) or 0.0)
    assert bool(bits) or not may


def plan_of(problem, **choices):
    return Int4Plan.of(problem, rules.NAME, **{"block_m": 128, "block_n": 128, "num_stages": 3, "f16_sums": True, **choices})


def test_names_and_differences():
    plan = plan_of(MANY)
    assert " f16sums " in plan.name and plan != dataclasses.replace(plan, f16_sums=False)
    assert plan.name.replace(" f16sums", "") == dataclasses.replace(plan, f16_sums=False).name
    assert plan.differs_from(MANY) is None and plan.differs_from(dataclasses.replace(MANY, may_sum_f16=False)) is None
    assert plan.differs_from(dataclasses.replace(MANY, a_by_row=False)) == "is for a_by_row True, got False"
    assert not rules.is_batch_invariant(plan) and rules.is_batch_invariant(dataclasses.replace(plan, f16_sums=False))
    assert plan.turns == dataclasses.replace(plan, block_m=256).turns == 1


@pytest.mark.parametrize(
    "change, choices, match",
    [
        ({"may_sum_f16": False}, {}, "float16 that scales and K leave in its range"),
        ({}, {"block_n": 256, "block_m": 32}, "of 64 or 128 rows"),
        ({"may_fold": True}, {"fold": True}, "A of 16 bits and scales that may be folded"),
        ({"group": 32}, {"block_m": 256}, "accumulators of all groups"),
    ],
)
def test_what_may_not_is_refused(change, choices, match):
    problem = dataclasses.replace(MANY, **change)
    with pytest.raises(PlanError, match=match):
        validate_int4(plan_of(problem, **choices), problem, H200)


def test_they_are_offered_for_many_tokens_and_bfloat16():
    for m, d_dtype, is_offered in ((4096, "bfloat16", True), (33, "bfloat16", True), (32, "bfloat16", False), (4096, "float16", False),
                                   (4096, "float32", False)):  # fmt: skip
        problem = dataclasses.replace(MANY, m=m, d_dtype=d_dtype)
        plans = rules.candidates(problem, H200)
        assert plans and any(plan.f16_sums for plan in plans) == is_offered
        assert all(rules.refusal(plan, problem) is None and plan.block_n <= 128 for plan in plans if plan.f16_sums)
    assert {plan.block_m for plan in rules.candidates(MANY, H200) if plan.f16_sums} == {64, 96, 128, 192, 256}
    assert not any(plan.f16_sums for plan in rules.candidates(dataclasses.replace(MANY, may_sum_f16=False), H200))


def test_many_tokens_take_them_unless_that_is_forbidden():
    free = choose_int4(MANY, H200)
    assert free.plan.f16_sums
    for way in ({"batch_invariant": True}, {"float32_sums": True}):
        assert not choose_int4(MANY, H200, **way).plan.f16_sums
        with pytest.raises(PlanError, match="invariance" if "batch_invariant" in way else "set_float32_sums"):
            validate_int4(free.plan, MANY, H200, **way)
    assert choose_int4(MANY, H200, exact_weights=True).plan == free.plan, "no weight is rounded"


def test_the_setting_reaches_the_call(rng):
    a, q = cases.exact_problem(rng, "float8_e4m3fn_row", "int4_g128", 8, 16, 256)
    w = prepare_int4_weights(q, "float8_e4m3fn")
    problem = check_int4_gemm_nt(a, w).problem
    plan = plan_of(problem, block_m=8, block_n=64, num_stages=2)
    assert not dgnumba.get_float32_sums()
    try:
        dgnumba.set_float32_sums(True)
        assert dgnumba.get_float32_sums()
        with pytest.raises(PlanError, match="set_float32_sums"):
            dgnumba.int4_gemm_nt(a, w, on="emulator", plan=plan)
    finally:
        dgnumba.set_float32_sums(False)
    assert "float16 sums" in str(explain_int4(a, w, plan=plan))
    assert "float32 sums" in str(explain_int4(a, w, plan=dataclasses.replace(plan, f16_sums=False)))
