"""Scales folded into weights of 4 bits: what is rounded, and how often; which weights may be folded; which plans are chosen."""

import dataclasses

import int4_cases as cases
import ml_dtypes
import numpy as np
import pytest
from kernels.int4_products import H200, INT4, PORTABLE_INT4

import dgnumba
from dgnumba import emu
from dgnumba.dtypes import DTYPES
from dgnumba.errors import PlanError
from dgnumba.int4_operands import ARRAYS, check_int4_gemm_nt, lay_out
from dgnumba.int4_plan import FOLDS, ROUNDING, choose_int4, validate_int4
from dgnumba.int4_problem import Int4Problem, fold_error
from dgnumba.integers import u32
from dgnumba.kernels.int4_spec import Int4Plan
from dgnumba.ptx import packed
from dgnumba.quant import QTensor
from dgnumba.testing import assert_bits_equal, assert_within

BF16, F16 = "bfloat16", "float16"
NUMPY = {BF16: np.dtype(ml_dtypes.bfloat16), F16: np.dtype(np.float16)}


def weights(rng, w_dtype, scale_dtype, group, n, k, zeros="none"):
    """Random codes; scales from 0.5 to 1, so that sums of folded weights are exact in float32."""
    codes, blocks = rng.integers(0, 16, (n, k)).astype(np.uint8), (n, k // group)
    if scale_dtype == "float8_e8m0fnu":
        scale = rng.integers(125, 128, blocks).astype(np.uint8)
    else:
        values = rng.uniform(0.5, 1, blocks).astype(np.float32)
        scale = values if scale_dtype == "float32" else DTYPES[scale_dtype].encode(values)
    zero_point = rng.integers(0, 16, blocks).astype(np.uint8) if zeros == "integer" else None
    return QTensor(codes, scale, w_dtype, (1, group), zero_point=zero_point, scale_dtype=scale_dtype)


def rounded_weights(q, kind):
    """Each scale rounded to a type, then its product with a weight: by NumPy and ml_dtypes, in float64 between."""
    scale = np.repeat(q.scales, q.granularity[1], axis=1)[:, : q.shape[1]]
    small = dataclasses.replace(q, scale=np.ones(q.scale.shape, np.float32), scale_dtype=None).dequantize("float64")
    return (small * scale.astype(NUMPY[kind]).astype(np.float64)).astype(NUMPY[kind]).astype(np.float64)


def emulated(plan_of, a, w, policy):
    """D of the folded plan with a tile, in float32."""
    operands = check_int4_gemm_nt(a, w, np.full((a.shape[0], w.n), np.nan, np.float32))
    laid, block_m = lay_out(operands), 8
    plan = Int4Plan.of(operands.problem, INT4.NAME, block_m=block_m, block_n=64, num_stages=2, fold=True, **plan_of)
    assert validate_int4(plan, operands.problem, H200).plan == plan
    built = INT4.build(plan)
    arrays = [x for x in (getattr(laid, name) for name in ARRAYS) if x is not None]
    emu.run(built.kernel, INT4.grid(plan, operands.problem, H200), built.threads, INT4.bind(plan, laid), smem=built.smem.launch_bytes,
            cluster=built.cluster, policy=policy, labels=built.smem.labels, arrays=arrays)  # fmt: skip
    return np.asarray(laid.d)


@pytest.mark.parametrize("kind, multiply", [(BF16, packed.multiply_bf16x2), (F16, packed.multiply_f16x2)])
def test_a_product_of_pairs_is_rounded_once(kind, multiply, rng):
    """Any numbers, subnormal results and zeros of both signs among them."""
    parts = rng.integers(0, 1 << 16, (2, 2, 400)).astype(np.uint16)
    parts[:, 0, :40] &= 0x83FF if kind == F16 else 0x807F
    parts[0, :, 40:44], parts[1, :, 44:48] = 0x8000, 0x7FC0
    with np.errstate(all="ignore"):
        x, y = parts.view(NUMPY[kind]).astype(np.float64)
        expected = (x * y).astype(NUMPY[kind])
    found = [int(multiply(u32(a[0] | a[1] << 16), u32(b[0] | b[1] << 16))) for a, b in zip(*parts.astype(np.int64).transpose(0, 2, 1))]
    found = np.array([[v & 0xFFFF, v >> 16] for v in found], np.uint16).T
    good = ~np.isnan(expected.astype(np.float64))
    assert (found[good] == expected.view(np.uint16)[good]).all() and (found[~good] == 0x7FFF).all() and 700 < good.sum() <= 792


FORMS = [
    (BF16, "int4", "float16", 128, "none"),
    (BF16, "int4", "bfloat16", 64, "none"),
    (BF16, "uint4", "float32", 32, "integer"),
    (BF16, "float4_e2m1fn", "float8_e8m0fnu", 32, "none"),
    (BF16, "float4_e2m1fn", "float8_e4m3fn", 16, "none"),
    (BF16, "int4", "float8_e4m3fn", 16, "none"),
    (F16, "int4", "float16", 128, "none"),
    (F16, "uint4", "float16", 64, "integer"),
    (F16, "int4", "bfloat16", 32, "none"),
    (F16, "int4", "float32", 16, "none"),
    (F16, "float4_e2m1fn", "float8_e8m0fnu", 32, "none"),
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: "-".join(map(str, form)))
def test_a_weight_is_rounded_with_its_scale_once(form, rng):
    """Bit for bit: A of -1, 0 and 1, so that sums of 128 rounded weights are exact."""
    kind, w_dtype, scale_dtype, group, zeros = form
    q = weights(rng, w_dtype, scale_dtype, group, 64, 128, zeros)
    a = rng.integers(-1, 2, (3, 128)).astype(NUMPY[kind])
    found = emulated({}, a, dgnumba.prepare_int4_weights(q, kind), ("eager", "late")[FORMS.index(form) % 2])
    exact = rounded_weights(q, kind)
    assert_bits_equal(found + np.float32(0), (a.astype(np.float64) @ exact.T).astype(np.float32) + np.float32(0))
    off = np.abs(exact - q.dequantize("float64")) / np.maximum(np.abs(q.dequantize("float64")), 1e-30)
    allowed = fold_error(*(DTYPES[name] for name in (kind, w_dtype, scale_dtype)), zeros)
    assert off.max() <= allowed and (off.max() > allowed / 4 if allowed else True), "the bound is held, and of some use"


@pytest.mark.parametrize("kind", [BF16, F16])
def test_the_bound_tells_the_ways_apart(kind, rng):
    """Random numbers: a folded product is within its own bound, and beyond the bound of one that rounds no weight."""
    m, n, k = 8, 64, 256
    a = np.abs(cases.activations(rng, kind, m, k))  # of one sign, with codes of one sign: roundings do not cancel
    q = QTensor(rng.integers(9, 16, (n, k)).astype(np.uint8), np.full((n, k // 64), 0.7077, np.float32), "uint4", (1, 64))
    found = emulated({"split": 2}, a, dgnumba.prepare_int4_weights(q, kind), "eager")
    oracle = dgnumba.int4_gemm_reference(a, q)[0]
    assert_within(found, oracle, dgnumba.int4_error_bound(a, q, "float32", fold=True), "folded")
    error = np.abs(found - oracle)
    assert (error > dgnumba.int4_error_bound(a, q, "float32", fold=False)).any()
    host = dgnumba.int4_gemm_nt(a, dgnumba.prepare_int4_weights(q, kind), out_dtype="float32")
    assert_within(host, oracle, dgnumba.int4_error_bound(a, q, "float32", fold=False), "the host")


def test_what_rounds_nothing_has_the_bound_of_what_is_not_folded(rng):
    a = cases.activations(rng, BF16, 4, 256)
    for variant, is_exact in (("mxfp4", True), ("nvfp4", True), ("int4_g128", False)):
        q = cases.weights(rng, variant, 40, 256)
        ways = [dgnumba.int4_error_bound(a, q, "float32", fold=fold) for fold in (False, True, None)]
        assert (ways[0] == ways[1]).all() == is_exact and (ways[1] == ways[2]).all()


def scaled(least, most, w_dtype="int4", k=256):
    scale = np.array([[least, most]], np.float32)
    return QTensor(np.full((1, k), 9, np.uint8), scale, w_dtype, (1, 128))


@pytest.mark.parametrize(
    "kind, least, most, folds",
    [
        (F16, 2.0**-14, 1.0, False),  # rounding may bring it below the least normal number
        (F16, 2.0**-13, 1.0, True),
        (F16, 1.0, 4300.0, True),
        (F16, 1.0, 4370.0, False),
        (F16, 0.0, 1.0, True),
        (F16, 0.0, 0.0, True),
        (F16, -4370.0, 1.0, False),
        (BF16, 2.0**-14, 1e30, True),
        (BF16, 1e-37, 1.0, True),
        (BF16, 1e-38, 1.0, False),
        (BF16, 1.0, 1e36, True),  # more is refused
    ],
)
def test_weights_are_folded_where_their_products_are_normal(kind, least, most, folds):
    w = dgnumba.prepare_int4_weights(scaled(least, most), kind)
    assert w.folds_into(DTYPES[kind]) == folds
    problem = check_int4_gemm_nt(np.ones((200, 256), NUMPY[kind]), w).problem
    assert problem.may_fold == folds
    assert any(plan.fold for plan in INT4.candidates(problem, H200)) == folds
    assert not w.folds_into(DTYPES["float8_e4m3fn"]) and not w.folds_into(DTYPES["int8"])


def test_e2m1_whose_products_would_overflow_is_not_folded():
    for most, folds in ((2.0**124, True), (2.0**127, False)):
        assert dgnumba.prepare_int4_weights(scaled(1.0, most, "float4_e2m1fn"), BF16).folds_into(DTYPES[BF16]) == folds


def test_weights_whose_range_nobody_looked_at_are_not_folded():
    w = dgnumba.prepare_int4_weights(scaled(0.5, 1.0), BF16)
    kept = {field.name: getattr(w, field.name) for field in dataclasses.fields(w) if field.name != "scale_range"}
    assert w.folds_into(DTYPES[BF16]) and not dgnumba.Int4Weights(**kept).folds_into(DTYPES[BF16])


def test_of_a_gate_both_ranges_count():
    w, gate = scaled(0.5, 1.0), scaled(0.25, 1e6)
    assert dgnumba.prepare_int4_weights(w, F16, gate=gate).scale_range == (0.25, 1e6)
    assert dgnumba.prepare_int4_weights(scaled(-3.0, 0.0), F16).scale_range == (3.0, 3.0)


def test_float_zero_points_are_not_folded(rng):
    w = dgnumba.prepare_int4_weights(cases.weights(rng, "float_zeros_g64", 8, 128), BF16)
    assert not w.folds_into(DTYPES[BF16])
    problem = Int4Problem(64, 4096, 4096, BF16, "uint4", group=64, zeros="float", may_fold=True)
    plans = INT4.candidates(problem, H200)
    assert plans and not any(plan.fold for plan in plans)


MANY = Int4Problem(4096, 28672, 8192, may_fold=True)


def test_many_tokens_are_folded_unless_that_is_forbidden():
    free = choose_int4(MANY, H200)
    assert free.plan.fold and " fold " in free.plan.name
    for way in ({"batch_invariant": True}, {"exact_weights": True}):
        assert not choose_int4(MANY, H200, **way).plan.fold
        with pytest.raises(PlanError, match="invariance" if "batch_invariant" in way else "exact weights"):
            validate_int4(free.plan, MANY, H200, **way)
    with pytest.raises(PlanError, match="may be folded"):
        validate_int4(free.plan, dataclasses.replace(MANY, may_fold=False), H200)
    assert "set_exact_weights" in FOLDS


def test_few_tokens_are_not_folded():
    """Memory binds, and both ways cost the same: within `ROUNDING` no weight is rounded."""
    for m in (1, 8, 16, 32):
        for n, k in ((4096, 4096), (7168, 16384), (28672, 8192)):
            problem = Int4Problem(m, n, k, may_fold=True)
            choice = choose_int4(problem, H200)
            assert not choice.plan.fold
            assert choice.estimate <= ROUNDING * min(INT4.estimate(plan, problem, H200) for plan in INT4.candidates(problem, H200))


def test_exact_folds_are_allowed_where_exact_weights_are_asked_for():
    problem = dataclasses.replace(MANY, w_dtype="float4_e2m1fn", group=32, scale_dtype="float8_e8m0fnu")
    assert problem.fold_error == 0 and choose_int4(problem, H200, exact_weights=True).plan == choose_int4(problem, H200).plan
    assert choose_int4(problem, H200).plan.fold


def test_the_portable_kernel_folds_nothing():
    problem = Int4Problem(64, 4096, 4096, may_fold=True)
    plan = PORTABLE_INT4.candidates(problem, H200)[0]
    assert not plan.fold and "folded" in PORTABLE_INT4.refusal(dataclasses.replace(plan, fold=True), problem)


def test_the_setting_reaches_the_call(rng):
    """In the emulator, by plans of its own choice: the setting forbids what a caller's plan asks for, and `explain_int4` says which way."""
    from dgnumba.int4 import explain_int4

    a, q = cases.activations(rng, BF16, 8, 128), cases.weights(rng, "int4_g64", 16, 128)
    w = dgnumba.prepare_int4_weights(q, BF16)
    problem = check_int4_gemm_nt(a, w, out_dtype="float32").problem
    plan = Int4Plan.of(problem, INT4.NAME, block_m=8, block_n=64, num_stages=2, fold=True)
    try:
        dgnumba.set_exact_weights(True)
        assert dgnumba.get_exact_weights()
        with pytest.raises(PlanError, match="exact weights"):
            dgnumba.int4_gemm_nt(a, w, out_dtype="float32", on="emulator", plan=plan)
    finally:
        dgnumba.set_exact_weights(False)
    d = dgnumba.int4_gemm_nt(a, w, on="emulator", plan=plan, out_dtype="float32")
    assert_within(d, dgnumba.int4_gemm_reference(a, q)[0], dgnumba.int4_error_bound(a, q, "float32", fold=True), "folded")
    assert "multiply the weights, in bfloat16 (fold): each off by 2^-8.0" in str(explain_int4(a, w, out_dtype="float32", plan=plan))
    assert "no weight is rounded" in str(explain_int4(a, w, out_dtype="float32", plan=dataclasses.replace(plan, fold=False)))
