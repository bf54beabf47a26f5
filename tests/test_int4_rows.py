"""FP8 activations with one scale a row beside weights of 4 bits, as against a scale for each 1x128; and the bound where such scales are extreme."""

import dataclasses

import int4_cases as cases
import numpy as np
import pytest

import dgnumba
from dgnumba import Int4Plan, explain_int4, int4_gemm_nt, prepare_int4_weights
from dgnumba.device import Device
from dgnumba.errors import PlanError, ProblemError
from dgnumba.int4_plan import validate_int4
from dgnumba.int4_problem import Int4Problem
from dgnumba.kernels import sm80_int4_gemm_rules, sm90_int4_gemm_rules
from dgnumba.quant import quantize
from dgnumba.testing import assert_bits_equal, assert_within

H200 = Device.named("h200")
BY_ROWS = Int4Problem(64, 4096, 4096, "float8_e4m3fn", a_by_row=True)
BY_BLOCKS = dataclasses.replace(BY_ROWS, a_by_row=False)


def by_blocks(a):
    """The same activations, each row's scale once for each 1x128."""
    blocks = -(-a.shape[1] // 128)
    return dataclasses.replace(a, scale=np.repeat(a.scale, blocks, axis=1), granularity=(1, 128))


@pytest.mark.parametrize("on", ["host", "emulator"])
@pytest.mark.parametrize("variant", ["int4_g128", "uint4_g64", "nvfp4", "mxfp4"])
def test_prepared_weights_serve_both_sorts_of_scales(variant, on, rng):
    """Sums and scales are exact, so that it makes no difference in bits where a token's scale meets them."""
    a, q = cases.exact_problem(rng, "float8_e4m3fn_row", variant, 5, 70, 300)
    a = dataclasses.replace(a, scale=np.array([[0.5], [1.0], [2.0], [1.0], [0.5]], np.float32))  # five drawn ones may be equal
    assert len(set(a.scale.reshape(-1).tolist())) > 1, "else rows could change places"
    w = prepare_int4_weights(q, "float8_e4m3fn")
    expected = dgnumba.int4_gemm_reference(a, q)[0].astype(np.float32)
    assert_bits_equal(int4_gemm_nt(a, w, out_dtype="float32", on=on), expected, "a scale a row")
    assert_bits_equal(int4_gemm_nt(by_blocks(a), w, out_dtype="float32", on=on), expected, "a scale for each 1x128")


def test_one_block_of_columns_is_of_either_sort(rng):
    """With K up to 128 a scale a row is a scale for each 1x128; either granularity says so."""
    for k in (100, 128):
        a, q = cases.exact_problem(rng, "float8_e4m3fn_row", "int4_g64", 4, 20, k)
        expected = dgnumba.int4_gemm_reference(a, q)[0].astype(np.float32)
        for same in (a, by_blocks(a)):
            assert_bits_equal(int4_gemm_nt(same, q, out_dtype="float32"), expected)


def test_a_plan_is_for_one_sort_of_scales():
    for rules, device in ((sm90_int4_gemm_rules, H200), (sm80_int4_gemm_rules, Device.named("l40s"))):
        plans = rules.candidates(BY_ROWS, device)
        assert plans
        for plan in plans:
            other = dataclasses.replace(plan, a_by_row=False)
            assert plan.has_token_scales and not plan.has_block_scales and other.has_block_scales and not other.has_token_scales
            assert plan.name != other.name and "float8_e4m3fn_row " in plan.name
            assert rules.smem(plan).launch_bytes < rules.smem(other).launch_bytes, "no scales in the ring"
            with pytest.raises(PlanError, match="is for a_by_row True, got False"):
                validate_int4(plan, BY_BLOCKS, device)
            assert validate_int4(plan, BY_ROWS, device).plan == plan


@pytest.mark.parametrize(
    "block_m, block_n, records, types",
    [
        (16, 256, 2, {"group": 32, "zeros": "integer"}),
        (24, 256, 1, {"group": 64, "zeros": "float"}),
        (8, 256, 4, {"group": 16}),
        (16, 256, 4, {"group": 64, "a_by_row": True}),
        (24, 128, 2, {"group": 16, "zeros": "integer"}),
        (64, 64, 4, {"group": 64, "a_by_row": True}),
        (48, 128, 4, {"zeros": "float", "a_by_row": True}),
    ],
)
def test_plans_that_ptxas_spills_are_refused(block_m, block_n, records, types):
    problem = dataclasses.replace(BY_BLOCKS, m=block_m, **types)
    plan = Int4Plan.of(problem, sm90_int4_gemm_rules.NAME, block_m=block_m, block_n=block_n, records=records, num_stages=2)
    with pytest.raises(PlanError, match="tables of e4m3 in the registers"):
        validate_int4(plan, problem, H200)
    assert sm90_int4_gemm_rules.candidates(problem, H200), "others are left"


def test_promotion_by_the_weights_scales_alone_is_priced_lower():
    for m in (1, 64, 4096):
        rows, blocks = (dataclasses.replace(p, m=m) for p in (BY_ROWS, BY_BLOCKS))
        for plan in sm90_int4_gemm_rules.candidates(blocks, H200):
            same = dataclasses.replace(plan, a_by_row=True)
            assert sm90_int4_gemm_rules.estimate(same, rows, H200) < sm90_int4_gemm_rules.estimate(plan, blocks, H200)


def test_only_fp8_is_told_apart():
    with pytest.raises(ProblemError, match="a_by_row: expected False for int8"):
        Int4Problem(4, 64, 128, "int8", a_by_row=True)


def test_a_scale_that_is_not_finite_is_refused(rng):
    a, q = cases.exact_problem(rng, "float8_e4m3fn_row", "int4_g64", 4, 20, 256)
    a.scale[2] = np.inf
    with pytest.raises(ProblemError, match="sfa: expected finite"):
        int4_gemm_nt(a, q)


def test_explain_names_the_sort_of_scales(rng):
    a, q = cases.exact_problem(rng, "float8_e4m3fn_row", "int4_g128", 9, 128, 256)
    text = str(explain_int4(a, prepare_int4_weights(q, "float8_e4m3fn")))
    assert "float8_e4m3fn_row" in text and "nothing to copy" in text, text
    assert "sfa" in str(explain_int4(by_blocks(a), q))


def extreme(rng, form, token, weights, shrink=1.0):
    """A product whose scales are all `token` and `weights`; `shrink` makes FP8 codes small."""
    a, q = quantize(rng.standard_normal((4, 256), np.float32), form), quantize(rng.standard_normal((8, 256), np.float32), "int4_g64")
    data = a.data if shrink == 1.0 else (a.codes.astype(np.float32) * np.float32(shrink)).astype(a.data.dtype)
    a = dataclasses.replace(a, data=data, scale=np.full_like(a.scale, token))
    return a, dataclasses.replace(q, scale=np.full(q.scale.shape, weights, np.float32), scale_dtype=None)


def test_the_bound_counts_what_a_rows_scale_enlarges(rng):
    """Sums below float32's normal numbers lose bits; 2^60 times that is more than any rounding of what they should be."""
    a, q = extreme(rng, "fp8_row", 2.0**60, 2.0**-148, shrink=2.0**-14)
    expected, bound = dgnumba.int4_gemm_reference(a, q)[0], dgnumba.int4_error_bound(a, q, "float32")
    d = int4_gemm_nt(a, q, out_dtype="float32")
    assert np.abs(d - expected).max() > 0.1 * np.abs(expected).max(), "bits are lost"
    assert_within(d, expected, bound, "small sums, large scales")


@pytest.mark.parametrize("form", ["fp8_row", "int8_row"])
def test_the_bound_is_infinite_where_sums_overflow_before_a_rows_scale(form, rng):
    a, q = extreme(rng, form, 2.0**-100, 2.0**119)
    expected, bound = dgnumba.int4_gemm_reference(a, q)[0], dgnumba.int4_error_bound(a, q, "float32")
    d = int4_gemm_nt(a, q, out_dtype="float32")
    assert np.isfinite(expected).all() and not np.isfinite(d).all()
    assert np.isinf(bound[~np.isfinite(d)]).all()
    harmless = extreme(rng, form, 2.0**-100, 2.0**100)
    assert np.isfinite(dgnumba.int4_error_bound(*harmless, "float32")).all()


def test_a_rows_scale_need_not_be_a_power_of_two(rng):
    """Normal data through plans of both kernels, in the emulator, within the bound; a split adds in another order."""
    a, q = cases.activations(rng, "float8_e4m3fn_row", 12, 512), cases.weights(rng, "int4_g128", 70, 512)
    w, expected, bound = (
        prepare_int4_weights(q, "float8_e4m3fn"),
        dgnumba.int4_gemm_reference(a, q)[0],
        dgnumba.int4_error_bound(a, q, "float32"),
    )
    problem = dataclasses.replace(BY_ROWS, m=12, n=70, k=512, d_dtype="float32", scale_dtype=w.scale_dtype)
    for choices in (
        {"block_m": 16, "block_n": 64, "records": 1, "num_stages": 2},
        {"block_m": 16, "block_n": 128, "num_stages": 2, "split": 2},
    ):
        plan = Int4Plan.of(problem, sm90_int4_gemm_rules.NAME, **choices)
        assert_within(int4_gemm_nt(a, w, out_dtype="float32", plan=plan, on="emulator"), expected, bound, plan.name)
