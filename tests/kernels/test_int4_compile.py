"""The kernel for weights of 4 bits -> PTX -> ptxas: no spill, no local memory, no warning, the expected wgmmas, registers within the CTA's share."""

import re

import pytest
from kernels.int4_products import H200, INT4, INT4_GEMV

from dgnumba import _numba
from dgnumba.assemble import find_ptxas, find_tool, ptxas
from dgnumba.dtypes import DTYPES
from dgnumba.int4_plan import choose_int4
from dgnumba.int4_problem import Int4Problem
from dgnumba.kernels.int4_spec import Int4Plan
from dgnumba.kernels.sm90_int4_gemm_rules import consumer_registers, producer_registers
from dgnumba.profile import disassemble

pytestmark = pytest.mark.skipif(not _numba.HAVE_NUMBA_CUDA or find_ptxas() is None, reason="needs numba-cuda and ptxas")

REGISTERS = {160: 255, 384: 168, 640: 96}
"""Threads a CTA -> registers a thread at entry; beside warps of producers consumers take more (`consumer_registers`)."""


def plan(block_m, block_n, records=1, split=1, **more):
    return Int4Plan(INT4.NAME, block_m, block_n, 3, records, split, **more)


F16_SUMS = {"a_dtype": "float8_e4m3fn", "a_by_row": True, "f16_sums": True}

SPREAD = [
    plan(8, 64, 4),
    plan(16, 256, 4, 4),  # four warpgroups share the registers
    plan(48, 256, 1, 4, a_dtype="float16"),
    plan(128, 128, 2, 2),  # most accumulators of two warpgroups
    plan(128, 64, 2, zeros="integer"),
    plan(24, 64, 4, group=32, zeros="float", scale_dtype="float32"),
    plan(48, 128, 4, group=32, zeros="integer", scale_dtype="bfloat16"),
    plan(8, 128, 2, w_dtype="float4_e2m1fn", group=16, scale_dtype="float8_e4m3fn", with_alpha=True),
    plan(16, 128, 2, a_dtype="float8_e4m3fn", zeros="integer"),
    plan(128, 128, 2, a_dtype="float8_e4m3fn"),
    plan(8, 64, 1, a_dtype="float8_e4m3fn", w_dtype="float4_e2m1fn", group=16, scale_dtype="float8_e4m3fn", with_alpha=True),
    plan(64, 128, 4, a_dtype="float8_e4m3fn", w_dtype="float4_e2m1fn", group=32, scale_dtype="float8_e8m0fnu"),
    plan(16, 256, 2, 2, a_dtype="int8", d_dtype="float32", with_bias=True, with_c=True),
    plan(128, 128, 2, a_dtype="int8", zeros="integer"),
    plan(32, 128, 2, a_dtype="int8", group=32, scale_dtype="float32"),
    plan(256, 128, 1, a_dtype="int8", is_whole=True, scale_dtype="float32"),  # integers: no other accumulators
    plan(256, 128, 1, 2, a_dtype="int8", is_whole=True, d_dtype="int32"),
    plan(16, 128, 2, 4, has_gate=True, with_c=True, d_dtype="float16"),
    plan(16, 256, 4, 4, pdl=True),  # built to begin before the grid before has ended
    plan(256, 128, 1, fold=True),  # scales folded into the weights: no other accumulators
    plan(128, 128, 2, 2, fold=True, a_dtype="float16", zeros="integer", group=32),
    plan(64, 256, 1, fold=True, w_dtype="float4_e2m1fn", group=16, scale_dtype="float8_e4m3fn", with_alpha=True),
    plan(128, 128, 2, a_dtype="float8_e4m3fn", a_by_row=True),  # no scales of tokens beside the accumulators
    plan(24, 128, 2, 2, a_dtype="float8_e4m3fn", a_by_row=True, zeros="float", group=64),
    plan(128, 128, 2, tail=2),  # two loops over stages
    plan(128, 128, 1, tail=2, a_dtype="int8", with_bias=True),
    plan(16, 256, 2, a_dtype="float8_e4m3fn", zeros="integer", group=64),  # the most that is held beside tables of e4m3
    plan(256, 128, 1, a_dtype="float8_e4m3fn"),  # by halves of the tokens, with scales of each
    plan(256, 128, 1, 2, a_dtype="float8_e4m3fn", a_by_row=True, zeros="integer"),
    plan(256, 128, 1, a_dtype="int8", tail=2, with_bias=True, with_c=True),
    plan(256, 128, 1),
    plan(192, 128, 2, a_dtype="float8_e4m3fn"),
    plan(256, 128, 1, quads=True, **F16_SUMS),  # sums of all tokens at once, half as many registers; four columns stored together
    plan(128, 128, 2, tail=2, quads=True, **F16_SUMS),
    plan(64, 64, 4, 2, scale_dtype="float32", with_bias=True, with_c=True, **F16_SUMS),
    plan(96, 128, 1, group=32, scale_dtype="float32", **F16_SUMS),  # four accumulators a record
]


def expected_wgmma(chosen):
    """Steps of 32 bytes of K, for each half of more than 128 tokens; twice as many where a step holds two groups, or tokens are summed too."""
    steps = 4 * DTYPES[chosen.a_dtype].itemsize * chosen.turns
    halves = 2 if chosen.group == 16 and steps == 4 else 1
    passes = 2 if chosen.tail > 1 else 1  # whole tiles, then a share of one
    return chosen.records * steps * halves * (2 if chosen.zeros == "float" else 1) * passes


def products_in(cubin):
    """wgmmas of a plan's machine code; None where nothing here reads it. ptxas may drop what it takes for unused, as it once did (`int4_halves`)."""
    return len(re.findall(r"\b[QHI]GMMA\.", disassemble(cubin))) if find_tool("nvdisasm") or find_tool("cuobjdump") else None


def problems_with(chosen, ptx, cubin):
    """What is wrong with a compiled plan; empty when nothing is."""
    body, threads = re.sub(r"//.*", "", ptx), INT4.threads(chosen)
    found = re.findall(r"wgmma\.mma_async\.sync\.aligned\.(m64n\d+k\d+)\.(\w+)\.", body)
    shape = (
        f"m64n{chosen.block_m // chosen.turns}k{32 // DTYPES[chosen.a_dtype].itemsize}",
        ("f16" if chosen.f16_sums else "s32" if chosen.a_dtype == "int8" else "f32"),
    )
    rules = {
        f"{cubin.spill_stores + cubin.spill_loads} bytes spilled": cubin.spill_stores + cubin.spill_loads == 0,
        f"{cubin.local_bytes} bytes of local memory": cubin.local_bytes == 0,
        f"ptxas warns: {cubin.warnings}": not cubin.warnings,
        f"{cubin.registers} registers for {threads} threads": (
            cubin.registers <= 255 if threads == 160 else cubin.registers == REGISTERS[threads]
        ),
        f"{len(found)} wgmmas, expected {expected_wgmma(chosen)}": len(found) == expected_wgmma(chosen),
        f"shapes {set(found)}, expected {shape}": set(found) == {shape},
        f"{products_in(cubin)} products left by ptxas of {len(found)}": products_in(cubin) in (None, len(found)),
        "waits for the grids before it, or its rules say so": ("griddepcontrol.wait" in body) == INT4.WAITS,
        f"its plan says pdl={chosen.pdl}, the PTX otherwise": ("griddepcontrol.launch_dependents" in body) == chosen.pdl,
        "float64 in the PTX": not re.search(r"\.f64\b", body),
        "a 64-bit division in the PTX": not re.search(r"\b(?:div|rem)\.[su]64\b", body),
        "a call in the PTX": not re.search(r"\bcall\b", body),
        "a local array in the PTX": not re.search(r"\.local\b", body),
    }
    return [fault for fault, holds in rules.items() if not holds]


def test_registers_that_move_were_there():
    """A consumer that asks for more than the producers gave waits for ever."""
    for block_m, block_n in ((8, 128), (8, 256), (256, 128)):
        chosen = plan(block_m, block_n)
        held = 2 * block_n * consumer_registers(chosen) + 128 * producer_registers(chosen)
        assert INT4.threads(chosen) == 2 * block_n + 128 and held <= INT4.threads(chosen) * REGISTERS[INT4.threads(chosen)]


def check(chosen):
    built = INT4.build(chosen)
    assert built.threads == INT4.threads(chosen)
    ptx, _ = _numba.compile_ptx(built.kernel, built.argtypes, arch="sm_90a", **built.bounds)
    assert problems_with(chosen, ptx, ptxas(ptx)) == []


@pytest.mark.parametrize("chosen", [*SPREAD[1:18:6], SPREAD[18], *SPREAD[19:]], ids=lambda p: p.name.replace(" ", "-"))
def test_a_spread_of_plans_compiles(chosen):
    check(chosen)


@pytest.mark.full
@pytest.mark.parametrize("chosen", SPREAD, ids=lambda p: p.name.replace(" ", "-"))
def test_a_wider_spread_compiles(chosen):
    check(chosen)


FORMS = [
    {},
    {"group": 32, "zeros": "integer"},
    {"group": 64, "zeros": "float", "scale_dtype": "bfloat16"},
    {"w_dtype": "float4_e2m1fn", "group": 32, "scale_dtype": "float8_e8m0fnu"},
    {"w_dtype": "float4_e2m1fn", "group": 16, "scale_dtype": "float8_e4m3fn", "with_alpha": True},
]


def all_plans():
    """Every candidate of every form for a few problems that between them allow all tiles."""
    out = {}
    for kind in ("bfloat16", "float16", "float8_e4m3fn", "float8_e4m3fn_row", "int8"):
        by_row = kind.endswith("_row")
        for form in FORMS:
            for m in (8, 16, 24, 32, 48, 64, 96, 128, 512):
                kinds = {"a_dtype": kind.removesuffix("_row"), "a_by_row": by_row, "may_fold": kind in ("bfloat16", "float16")}
                problem = Int4Problem(m, 4096, 4096, **kinds, **form)
                if INT4.supports(problem, H200) is None:
                    out.update(dict.fromkeys(INT4.candidates(problem, H200)))
    return list(out)


@pytest.mark.full
@pytest.mark.parametrize("chosen", all_plans()[::9], ids=lambda p: p.name.replace(" ", "-"))
def test_every_ninth_candidate_compiles(chosen):
    check(chosen)


def plans_with_f16_sums():
    """Every candidate of few groups a record and of many, for the numbers of tokens that between them allow all tiles."""
    out = {}
    for form in ({}, {"group": 64}, {"group": 32, "scale_dtype": "float32"}, {"group": 16}):
        for m in (48, 64, 96, 128, 192, 256, 4096):
            problem = Int4Problem(m, 4096, 8192, "float8_e4m3fn", a_by_row=True, may_sum_f16=True, **form)
            out.update(dict.fromkeys(x for x in INT4.candidates(problem, H200) if x.f16_sums))
    return list(out)


@pytest.mark.full
@pytest.mark.parametrize("chosen", plans_with_f16_sums(), ids=lambda p: p.name.replace(" ", "-"))
def test_every_candidate_with_f16_sums_compiles(chosen):
    check(chosen)


@pytest.mark.parametrize("n, k", [(4096, 4096), (7168, 16384), (28672, 8192), (70, 130)])
@pytest.mark.parametrize("m", [1, 16, 33, 128, 777])
def test_what_is_chosen_fits(m, n, k):
    for kind in ("bfloat16", "float8_e4m3fn", "int8"):
        choice = choose_int4(Int4Problem(m, n, k, kind), H200)
        kernel, plan, problem = choice.kernel, choice.plan, Int4Problem(m, n, k, kind)
        assert kernel.smem(plan).launch_bytes <= H200.smem_per_block and kernel.refusal(plan, problem) is None
        if kernel is INT4:  # the other has a CTA a tile, and no ring
            grid = kernel.grid(plan, problem, H200)
            assert plan.num_stages >= 2 and grid <= H200.num_sms and grid % plan.cluster == 0
        else:
            assert kernel is INT4_GEMV and m <= 8
