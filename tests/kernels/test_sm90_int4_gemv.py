"""`sm90_int4_gemv`, stepped in the emulator: the host's bits on exact problems; its plans, and what ptxas makes of them."""

import dataclasses
import json
from pathlib import Path

import int4_cases as cases
import numpy as np
import pytest
from kernels.int4_products import H200, INT4_GEMV, Int4Product

import dgnumba
from dgnumba import _numba
from dgnumba.assemble import find_ptxas, ptxas
from dgnumba.device import Device
from dgnumba.errors import PlanError
from dgnumba.int4_operands import check_int4_gemm_nt
from dgnumba.int4_plan import choose_int4, validate_int4
from dgnumba.int4_problem import Int4Problem
from dgnumba.kernels import sm90_int4_gemv_rules as rules

with_compiler = pytest.mark.skipif(not _numba.HAVE_NUMBA_CUDA or find_ptxas() is None, reason="needs numba-cuda and ptxas")

BF16, F16 = "bfloat16", "float16"


def product(kind, variant, m, n, k, tile, **more):
    """tile: rows, warps, depth."""
    block_n, warps, depth = tile
    return Int4Product(kind, variant, m, n, k, (8, block_n, warps, depth, 1), kernel=rules.NAME, **more)


CASES = [
    product(BF16, "int4_g128", 1, 1, 1, (16, 4, 1)),  # one element; three warps have nothing
    product(BF16, "int4_g128", 8, 70, 1500, (32, 4, 2)),  # slots are filled again; the last strips are past N
    product(F16, "uint4_g64", 5, 130, 700, (64, 4, 1)),  # integer zero points, a K tail
    product(BF16, "uint4_g16", 7, 40, 576, (16, 4, 2)),  # eight groups; half a record at the end of a row
    product(F16, "int4_g32", 8, 64, 1100, (16, 4, 3)),
    product(F16, "act_order_g32", 3, 60, 256, (64, 4, 1)),
    product(BF16, "int4_row", 6, 65, 2100, (32, 4, 4)),  # depth 4, of which the first comes round
    product(BF16, "mxfp4", 4, 64, 520, (16, 4, 2)),
    product(F16, "nvfp4", 2, 33, 130, (32, 4, 1)),  # e4m3 scales and one for all
    product(BF16, "int4_g256", 8, 20, 1100, (16, 8, 2), out=BF16, with_bias=True, with_c=True),
    product(F16, "int4_g64", 8, 21, 300, (32, 4, 2), out=F16, with_c=True, has_gate=True),
    product(F16, "uint4_g128", 8, 50, 2200, (32, 16, 1), pdl=True),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_awkward_products(case):
    """Under one policy each, by turns: the full run takes all under both."""
    case.run(INT4_GEMV, ("eager", "late")[CASES.index(case) % 2])


@pytest.mark.full
@pytest.mark.parametrize("case", CASES, ids=str)
def test_awkward_products_under_both_policies(case, policy, rng):
    case.run(INT4_GEMV, policy, int(rng.integers(2**31)))


def test_the_cases_are_a_spread():
    assert {c.variant for c in CASES} == set(cases.VARIANTS) - {"float_zeros_g64"}
    assert {c.tile[1] for c in CASES} == set(rules.BLOCK_NS) and {c.tile[2] for c in CASES} == set(rules.WARPS)
    assert {c.tile[3] for c in CASES} == set(rules.DEPTHS)


@pytest.mark.parametrize("kind", [BF16, F16])
def test_normal_data_within_the_bound(kind, policy, rng, monkeypatch):
    monkeypatch.setattr(Device, "current", classmethod(lambda cls: H200))
    a, q = cases.activations(rng, kind, 3, 650), cases.weights(rng, "uint4_g64", 40, 650)
    w = dgnumba.prepare_int4_weights(q, kind)
    problem = check_int4_gemm_nt(a, w, out_dtype="float32").problem
    plan = rules.candidates(problem, H200)[0]
    got = dgnumba.int4_gemm_nt(a, w, out_dtype="float32", on="emulator", policy=policy, plan=plan)
    bound = dgnumba.int4_error_bound(a, q, "float32")
    assert np.all(np.abs(got.astype(np.float64) - dgnumba.int4_gemm_reference(a, q)[0]) <= bound)


@pytest.mark.full
def test_random_products(policy, rng):
    """Random plans on random problems."""
    done = 0
    while done < 30:
        kind, variant = (BF16, F16)[rng.integers(2)], cases.VARIANTS[rng.integers(len(cases.VARIANTS))]
        m, n, k = int(rng.integers(1, 9)), int(rng.integers(1, 150)), int(rng.integers(1, 60)) * 32
        case = product(kind, variant, m, n, k, (16, 4, 1))
        problem = case.operands(np.random.default_rng(0))[0].problem
        if rules.supports(problem, H200) is not None:
            continue
        plans = rules.candidates(problem, H200)
        chosen = plans[rng.integers(len(plans))]
        tile = chosen.block_n, chosen.records, chosen.num_stages
        product(kind, variant, m, n, k, tile).run(INT4_GEMV, policy, int(rng.integers(2**31)))
        done += 1


# Plans

FORMS = [
    {},
    {"a_dtype": F16, "group": 32, "zeros": "integer"},
    {"group": 16, "zeros": "integer", "scale_dtype": "float32"},
    {"a_dtype": F16, "group": 64, "scale_dtype": "bfloat16", "with_bias": True, "with_c": True},
    {"w_dtype": "float4_e2m1fn", "group": 32, "scale_dtype": "float8_e8m0fnu"},
    {"a_dtype": F16, "w_dtype": "float4_e2m1fn", "group": 16, "scale_dtype": "float8_e4m3fn", "with_alpha": True},
    {"has_gate": True},
]


def all_plans():
    """Every candidate of every form for a long and a short product."""
    out = {}
    for form in FORMS:
        for n, k in ((4096, 4096), (70, 130)):
            out.update(dict.fromkeys(rules.candidates(Int4Problem(8, n, k, **form), H200)))
    return list(out)


def check(chosen):
    built = INT4_GEMV.build(chosen)
    ptx, _ = _numba.compile_ptx(built.kernel, built.argtypes, arch="sm_90a", threads=built.threads)
    cubin = ptxas(ptx)
    assert not (cubin.spill_stores or cubin.spill_loads or cubin.local_bytes or cubin.warnings), (chosen.name, cubin.log)
    steps = ptx.count("mma.sync.aligned.m16n8k16")
    assert steps and steps % (8 * chosen.block_n // 16) == 0


@with_compiler
@pytest.mark.parametrize("chosen", all_plans()[::20], ids=lambda p: p.name.replace(" ", "-"))
def test_a_spread_of_plans_compiles(chosen):
    check(chosen)


@with_compiler
@pytest.mark.full
@pytest.mark.parametrize("chosen", all_plans(), ids=lambda p: p.name.replace(" ", "-"))
def test_every_plan_compiles(chosen):
    check(chosen)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_every_problem_that_it_takes_has_a_plan_that_fits(form):
    for n, k in ((1, 1), (70, 130), (4096, 4096), (28672, 8192), (7168, 16384)):
        problem = Int4Problem(8, n, k, **form)
        plans = rules.candidates(problem, H200)
        assert rules.supports(problem, H200) is None and plans
        for plan in plans:
            assert validate_int4(plan, problem, H200).estimate > 0 and rules.threads(plan) <= 512
            assert rules.smem(plan).launch_bytes <= H200.smem_per_block and rules.count_tiles(plan, problem) * plan.block_n >= problem.rows


def test_what_it_does_not_take():
    for words, form in (
        ("for M up to 8", {"m": 9}),
        ("takes A of", {"a_dtype": "int8"}),
        ("got floats", {"zeros": "float"}),
        ("adds a bias", {"has_gate": True, "with_bias": True}),
    ):
        problem = Int4Problem(**{"m": 8, "n": 64, "k": 512} | form)
        assert words in rules.supports(problem, H200)
    assert "is for sm_90a" in rules.supports(Int4Problem(8, 64, 512), Device.named("a100"))
    problem = Int4Problem(8, 64, 512, may_fold=True)
    plan = rules.candidates(problem, H200)[0]
    for bad in ({"block_n": 128}, {"records": 2}, {"num_stages": 5}, {"split": 2}, {"block_m": 16}, {"group": 32}, {"fold": True}):
        with pytest.raises(PlanError, match="cannot be used"):
            validate_int4(dataclasses.replace(plan, **bad), problem, H200)
    with pytest.raises(PlanError, match="cannot be used"):
        validate_int4(plan, problem, H200, batch_invariant=True)


def test_the_planner_chooses_near_the_best_of_what_was_measured():
    """Of both kernels' plans, each problem's; measured on an H200 (bench/results)."""
    path = Path(__file__).parents[2] / "bench" / "results" / "tune_int4_gemv_h200.json"
    times: dict[Int4Problem, dict[tuple[str, str], float]] = {}
    for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
        times.setdefault(Int4Problem(row["m"], row["n"], row["k"]), {})[row["kernel"], row["plan"]] = row["us"]
    found, kernels = [], set()
    for problem, measured in times.items():
        choice = choose_int4(problem, H200)
        kernels.add(choice.kernel.NAME)
        found.append(measured[choice.plan.kernel, choice.plan.name] / min(measured.values()))
    assert len(found) == 15 and kernels == {"sm90_int4_gemv", "sm90_int4_gemm"}
    assert np.mean(found) < 1.03 and max(found) < 1.1, "the fit has 1.024 and 1.084"
    one_order = choose_int4(Int4Problem(1, 4096, 4096), H200, batch_invariant=True)
    assert one_order.kernel is not INT4_GEMV, "its warps' shares of K go by M"
