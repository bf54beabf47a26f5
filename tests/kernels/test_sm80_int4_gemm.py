"""`sm80_int4_gemm`, stepped in the emulator: the host's bits on exact problems, every activation and format, as different GPUs would run it."""

import dataclasses
import re

import int4_cases as cases
import numpy as np
import pytest
from kernels.int4_products import Int4Product

import dgnumba
from dgnumba import _numba
from dgnumba.assemble import find_ptxas, ptxas
from dgnumba.device import KNOWN, Device
from dgnumba.errors import PlanError, UnsupportedError
from dgnumba.int4_operands import check_int4_gemm_nt
from dgnumba.int4_plan import choose_int4, validate_int4
from dgnumba.int4_problem import Int4Problem
from dgnumba.kernels import sm80_int4_gemm_rules as rules
from dgnumba.testing import assert_bits_equal

with_compiler = pytest.mark.skipif(not _numba.HAVE_NUMBA_CUDA or find_ptxas() is None, reason="needs numba-cuda and ptxas")

ARCHS = {"sm_80": "a100", "sm_86": "rtx-3090", "sm_89": "l40s", "sm_90": "h200", "sm_120": "rtx-5090"}

PAIRS = [(kind, variant) for kind in cases.ACTIVATIONS for variant in cases.VARIANTS if cases.goes(kind, variant)]

# (activations, weights, m, n, k, GPU, policy): extents that are no multiples of anything, K of several stages
CASES = [
    ("bfloat16", "int4_g128", 5, 20, 1100, "a100", "late"),  # the ring goes round
    ("bfloat16", "int4_g32", 17, 40, 160, "rtx-3090", "eager"),  # tokens of two columns of tiles
    ("bfloat16", "uint4_g16", 9, 20, 150, "l40s", "late"),
    ("bfloat16", "mxfp4", 3, 65, 40, "a100", "eager"),
    ("float16", "float_zeros_g64", 2, 30, 200, "rtx-5090", "late"),  # sums of the tokens
    ("float16", "act_order_g32", 33, 10, 256, "a100", "eager"),
    ("float16", "nvfp4", 1, 1, 1, "a100", "late"),  # e4m3 scales where the GPU has no FP8
    ("float8_e4m3fn", "int4_g64", 6, 33, 300, "a100", "eager"),  # widened
    ("float8_e4m3fn", "int4_row", 19, 70, 129, "rtx-5090", "late"),
    ("float8_e4m3fn", "uint4_g128", 4, 20, 200, "l40s", "eager"),  # tables of zero points
    ("float8_e4m3fn", "nvfp4", 7, 12, 130, "rtx-3090", "late"),
    ("float8_e4m3fn_row", "int4_g64", 5, 20, 200, "a100", "late"),  # a scale a token, at the end
    ("int8", "int4_row", 12, 66, 300, "rtx-5090", "late"),  # integers over all of K
    ("int8", "int4_g256", 8, 129, 257, "l40s", "eager"),
    ("int8", "float_zeros_g64", 40, 9, 70, "a100", "late"),
    ("int4", "uint4_g64", 11, 50, 270, "rtx-3090", "eager"),
]


def problem_of(rng, kind, variant, m, n, k):
    a, q = cases.exact_problem(rng, kind, variant, m, n, k)
    return a, dgnumba.prepare_int4_weights(q, cases.prepared_for(kind))


def check(rng, monkeypatch, kind, variant, m, n, k, gpu, policy, **more):
    monkeypatch.setattr(Device, "current", classmethod(lambda cls: KNOWN[gpu]))
    a, w = problem_of(rng, kind, variant, m, n, k)
    expected = dgnumba.int4_gemm_nt(a, w, on="host", **more)
    got = dgnumba.int4_gemm_nt(a, w, on="emulator", policy=policy, **more)
    assert_bits_equal(got, expected, f"{kind} {variant} {m}x{n}x{k} on {gpu}")


@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, c)))
def test_awkward_problems(case, rng, monkeypatch):
    check(rng, monkeypatch, *case)


def test_the_cases_are_a_spread():
    assert {c[0] for c in CASES} == set(cases.ACTIVATIONS)
    assert {c[6] for c in CASES} == {"eager", "late"}
    assert {KNOWN[c[5]].cc for c in CASES} == {KNOWN[gpu].cc for arch, gpu in ARCHS.items() if arch != "sm_90"}


def test_raw_sums(rng, monkeypatch):
    check(rng, monkeypatch, "int4", "int4_row", 9, 70, 200, "a100", "late", out_dtype="int32")


def test_what_is_added_on_the_way_out(rng, monkeypatch):
    m, n = 10, 21
    c, bias = rng.integers(-8, 9, (m, n)).astype(np.float32), rng.integers(-8, 9, n).astype(np.float32)
    for out in ("float32", "float16"):
        check(rng, monkeypatch, "float16", "int4_g64", m, n, 100, "l40s", "late", c=c.astype(out), bias=bias, out_dtype=out)


@pytest.mark.parametrize("widen", [False, True])
def test_a_gated_product(widen, policy):
    Int4Product(
        "float8_e4m3fn", "int4_g128", 9, 21, 200, (16, 64, 1, 2, 1), with_c=True, has_gate=True, kernel=rules.NAME, widen=widen
    ).run(rules, policy)


@pytest.mark.full
@pytest.mark.parametrize("gpu", sorted(set(ARCHS.values()) - {"h200"}))
@pytest.mark.parametrize("kind, variant", PAIRS)
def test_every_pair_on_every_gpu(kind, variant, gpu, policy, rng, monkeypatch):
    if kind.startswith("float8") and "uint4" in variant + ("uint4" if "zeros" in variant else "") and KNOWN[gpu].cc < (8, 9):
        pytest.skip("FP8 beside zero points needs sm_89")
    k = 32 * int(rng.integers(1, 12)) + (0 if variant.startswith("act") else int(rng.integers(0, 32)))
    check(rng, monkeypatch, kind, variant, int(rng.integers(1, 70)), int(rng.integers(1, 140)), k, gpu, policy)


# Plans


@pytest.mark.parametrize("gpu", sorted(KNOWN))
@pytest.mark.parametrize("m", [1, 8, 40, 300])
@pytest.mark.parametrize("types", [{}, {"group": 32}, {"group": 16, "zeros": "float"}, {"a_dtype": "float8_e4m3fn"}, {"a_dtype": "int8"}])
def test_every_problem_gets_a_plan_that_fits(types, m, gpu):
    problem, device = Int4Problem(m, 4096, 4096, **types), KNOWN[gpu]
    found = rules.candidates(problem, device)
    assert found and len(set(found)) == len(found)
    for plan in found:
        assert rules.refusal(plan, problem) is None
        assert rules.smem(plan).launch_bytes <= device.smem_per_block
        assert validate_int4(plan, problem, device).plan == plan
        assert rules.estimate(plan, problem, device) * 1e-6 >= problem.bytes / device.memory_bandwidth
        for region in rules.smem(plan):
            assert region.name != "a" or region.nbytes % 1024 == 0 == region.offset % 1024, "the swizzle's rows stay together"
            assert region.name not in ("w", "sfa") or region.nbytes % 16 == 0 == region.offset % 16, "whole chunks"
    if device.cc != (9, 0):
        assert choose_int4(problem, device).plan.kernel == rules.NAME


@pytest.mark.parametrize(
    "types, gpu, words",
    [
        ({"a_dtype": "float8_e4m3fn", "zeros": "integer", "w_dtype": "uint4"}, "a100", "needs sm_89 for zero points"),
        ({"a_dtype": "int8", "w_dtype": "float4_e2m1fn"}, "l40s", "beside floats only"),
        ({"d_dtype": "int32"}, "l40s", "gives int32 of int8 beside weights with one scale a row"),
    ],
)
def test_what_it_refuses(types, gpu, words):
    with pytest.raises(UnsupportedError) as caught:
        choose_int4(Int4Problem(8, 64, 128, **types), KNOWN[gpu])
    assert words in caught.value.reasons[rules.NAME]


def test_it_sums_nothing_in_float16():
    """A plan says what is done: one of sums in float16 would be taken, and sum in float32."""
    problem = Int4Problem(64, 256, 512, "float8_e4m3fn", a_by_row=True, may_sum_f16=True)
    plan = rules.candidates(problem, KNOWN["h200"])[0]
    assert not plan.f16_sums and rules.refusal(plan, problem) is None
    assert rules.refusal(dataclasses.replace(plan, f16_sums=True), problem) == "needs no sums in float16"
    assert rules.refusal(dataclasses.replace(plan, quads=True), problem) == "needs no stores of four columns"


def test_a_gpu_before_sm_80_is_refused():
    turing = dataclasses.replace(KNOWN["a100"], name="NVIDIA T4", cc=(7, 5))
    with pytest.raises(UnsupportedError, match="needs sm_80 or later, NVIDIA T4 is sm_75"):
        choose_int4(Int4Problem(8, 64, 128), turing)


@pytest.mark.parametrize("change, words", [({"split": 2}, "no split"), ({"block_m": 24}, "BLOCK_M"), ({"records": 4}, "records a stage"),
                                           ({"num_stages": 1}, "2 to 8 stages"), ({"widen": True}, "FP8 operands")])  # fmt: skip
def test_plans_that_cannot_be(change, words):
    problem = Int4Problem(8, 64, 1024)
    good = rules.candidates(problem, KNOWN["l40s"])[0]
    with pytest.raises(PlanError, match=words):
        validate_int4(dataclasses.replace(good, **change), problem, KNOWN["l40s"])


# Compiled


def compiled_problems(plan, arch):
    """What is wrong with a compiled plan; empty when nothing is."""
    built = rules.build(plan)
    ptx, _ = _numba.compile_ptx(built.kernel, built.argtypes, arch=arch, **built.bounds)
    body, cubin = re.sub(r"//.*", "", ptx), ptxas(ptx, arch)
    checks = {
        f"{cubin.spill_stores + cubin.spill_loads} bytes spilled": cubin.spill_stores + cubin.spill_loads == 0,
        f"{cubin.local_bytes} bytes of local memory": cubin.local_bytes == 0,
        f"ptxas warns: {cubin.warnings}": not cubin.warnings,
        f"{built.threads} threads, not {rules.threads(plan)}": built.threads == rules.threads(plan),
        "no mma.sync": "mma.sync.aligned" in body and "ldmatrix.sync.aligned" in body and "cp.async.cg" in body,
        "wgmma, or TMA": "wgmma" not in body and "cp.async.bulk" not in body,
        "waits for the grids before it, or its rules say so": ("griddepcontrol.wait" in body) == rules.WAITS,
        "float64 in the PTX": ".f64" not in body,
        "a 64-bit division in the PTX": not re.search(r"\b(?:div|rem)\.[su]64\b", body),
        "a call in the PTX": not re.search(r"\bcall\b", body),
    }
    return [fault for fault, holds in checks.items() if not holds]


def compiled_plans(rng, kind, variant, arch):
    """All plans for many tokens, or none where the kernel leaves the pair to others."""
    a, w = problem_of(rng, kind, variant, 3, 20, 256)
    problem = dataclasses.replace(check_int4_gemm_nt(a, w).problem, m=300, n=512)
    device = KNOWN[ARCHS[arch]]
    return rules.candidates(problem, device) if rules.supports(problem, device) is None else []


SPREAD = [("bfloat16", "int4_g128"), ("float8_e4m3fn", "nvfp4"), ("int8", "int4_row")]


@with_compiler
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("kind, variant", SPREAD)
def test_the_largest_tile_compiles_for_every_architecture(kind, variant, arch, rng):
    plan = max(compiled_plans(rng, kind, variant, arch), key=lambda p: (p.block_m, p.block_n, p.records))
    assert plan.widen == (kind == "float8_e4m3fn" and arch in ("sm_80", "sm_86", "sm_90"))
    assert compiled_problems(plan, arch) == []


@with_compiler
@pytest.mark.full
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("kind, variant", PAIRS)
def test_every_plan_compiles_for_every_architecture(kind, variant, arch, rng):
    for plan in compiled_plans(rng, kind, variant, arch):
        assert compiled_problems(plan, arch) == [], plan.name
