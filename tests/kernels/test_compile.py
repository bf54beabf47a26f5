"""Plan -> PTX -> ptxas on a machine without a GPU: no spill, no local memory, no warning, the expected wgmmas, registers within the CTA's share."""

import dataclasses
import re

import pytest
from cases import (
    DENSE,
    DENSE_BLOCK_MS,
    DENSE_EPILOGUES,
    KERNEL_OF,
    RESIDENT,
    SKINNY,
    SKINNY_RS,
    SWAPPED,
    plan,
    refusal,
    resident,
    skinny,
    skinny_rs,
    swapped,
    with_all_stages,
)
from compiled_plans import (
    Compiled,
    candidate_plans,
    chosen_plans,
    compile_plan,
    expected_wgmma,
    few_rows_plans,
    most_registers,
    problems_with,
)

from dgnumba import _numba
from dgnumba.assemble import find_ptxas, find_tool, ptxas
from dgnumba.kernels import GemmPlan
from dgnumba.profile.sass import disassemble

pytestmark = pytest.mark.skipif(not _numba.HAVE_NUMBA_CUDA or find_ptxas() is None, reason="needs numba-cuda and ptxas")

SPREAD = [
    plan(16, 16),  # smallest
    plan(16, 176, share="B", epilogue="direct"),
    plan(32, 144, share="A"),  # three blocks of B's scales
    plan(64, 128, epilogue="direct"),
    plan(64, 192, epilogue="warp"),
    plan(128, 128),
    plan(128, 144, band=1),
    plan(128, 128, d_dtype="float32", with_c=True, row_scales=True),  # two accumulators
    plan(64, 144, d_dtype="float32", with_c=True, row_scales=True),  # most registers of two accumulators
    plan(128, 176),  # panels of 32 bytes
    plan(128, 192, share="B", epilogue="warp"),  # most registers of one wave
    plan(128, 192, share="A", epilogue="direct"),
    plan(256, 128),  # most registers of two waves
    plan(256, 128, share="A", epilogue="warp"),  # DeepGEMM-sized shapes take this
    plan(256, 128, share="B", epilogue="direct"),
    plan(256, 112),
    plan(256, 128, share="A", epilogue="warp", rotate=True, overlap=True),
    plan(128, 192, rotate=True),
    plan(16, 32, rotate=True, overlap=True),
    swapped(8, 128, split=4),
    swapped(32, 64, block_k=512),
    swapped(64, 128, d_dtype="float32"),
    plan(256, 128, share="A", epilogue="warp", rotate=True, with_c=True),
    plan(256, 128, share="B", epilogue="direct", with_c=True),  # most registers of an addend
    plan(128, 192, d_dtype="float16", with_c=True),
    swapped(64, 128, d_dtype="float16", with_c=True, row_scales=True),
    swapped(32, 64, split=2, block_k=256, with_c=True, row_scales=True),
    plan(256, 128, share="A", epilogue="warp", rotate=True, with_c=True, row_scales=True),
    plan(128, 192, share="B", d_dtype="float16", row_scales=True),
    plan(64, 64, d_dtype="float32", row_scales=True),
    resident(8, 4),
    resident(24, 3),
    resident(64),  # most registers of two warpgroups
    resident(48, 3, with_c=True),  # and of three
    resident(32, 4, held=8, d_dtype="float16"),
    resident(32, 2, block_k=512),
]
SPREAD = [
    *map(with_all_stages, SPREAD),
    skinny(8, 1, 2),
    skinny(8, 2, 16),
    skinny(16, 3, 4, d_dtype="float32"),
    skinny(8, 1, 4, block_n=64),
    # splits, whose registers are bounded by the CTAs that run together
    skinny(8, 1, 8, split=2, d_dtype="float32"),
    skinny(8, 2, 4, block_n=32, split=8),
    skinny(16, 1, 8, split=4),
    skinny_rs(8, 1, 4),
    skinny_rs(16, 3, 2, row_scales=True),  # most registers on their way
    skinny_rs(16, 2, 4, block_n=64, d_dtype="float16", with_c=True),
    skinny_rs(24, 1, 1, block_n=32),
    skinny_rs(8, 1, 2, block_n=32, split=8),
    skinny_rs(32, 2, 2, block_n=64, d_dtype="float32"),
    # built to begin before the grid before has ended
    with_all_stages(swapped(64, 128, d_dtype="float16", with_c=True, row_scales=True, pdl=True)),
    with_all_stages(swapped(8, 128, split=2, block_k=256, pdl=True)),
    with_all_stages(resident(32, held=12, pdl=True)),
    skinny_rs(16, 3, 2, row_scales=True, pdl=True),
    skinny_rs(8, 1, 2, block_n=32, split=8, pdl=True),
    # and to ask for its first weights before it waits
    with_all_stages(swapped(64, 128, d_dtype="float16", with_c=True, row_scales=True, pdl=True, weights_first=True)),
    with_all_stages(swapped(16, 64, block_k=512, pdl=True, weights_first=True)),
    with_all_stages(resident(24, held=12, pdl=True, weights_first=True)),
    skinny(8, 2, 16, pdl=True, weights_first=True),
    skinny(16, 2, 4, block_n=32, split=8, pdl=True, weights_first=True),
    skinny_rs(16, 3, 2, row_scales=True, pdl=True, weights_first=True),
]


def name_of(chosen):
    if not isinstance(chosen, GemmPlan):
        return None
    more = f"-{chosen.d_dtype}" + "-c" * chosen.with_c + "-rows" * chosen.row_scales + "-pdl" * chosen.pdl
    return f"{chosen.kernel}-{chosen.name}{more}".replace("sm90_fp8_gemm_", "").replace(" ", "-")


def check(chosen):
    assert refusal(chosen, m=min(128, chosen.block_m)) is None
    got = compile_plan(chosen)
    assert problems_with(chosen, got) == []


@pytest.mark.parametrize("chosen", SPREAD, ids=name_of)
def test_a_spread_of_plans_compiles(chosen):
    check(chosen)


@pytest.mark.parametrize("chosen", [swapped(16, 64), plan(64, 64), skinny(16, 1, 8, split=8), skinny(8, 1, 1, split=2)], ids=name_of)
def test_a_call_and_an_explanation_compile_for_the_same_bounds(chosen):
    """Calls ask the rules, which need no Numba; explanations and benchmarks ask what was built: both go into the cache's key."""
    rules = KERNEL_OF[chosen.kernel]
    bounds = rules.build(chosen).bounds
    assert bounds == {"threads": rules.threads(chosen), "min_ctas": rules.min_ctas(chosen)}
    assert bounds["min_ctas"] <= 32, "a multiprocessor has no more, and ptxas ignores what asks for more"


@pytest.mark.skipif(find_tool("nvdisasm") is None, reason="needs nvdisasm")
@pytest.mark.parametrize(
    "chosen, first",
    [
        (swapped(16, 64, 4, block_k=512, pdl=True), 0),
        (resident(16, 2, pdl=True), 0),
        (skinny(8, 2, 16, pdl=True), 10),
        (skinny_rs(8, 2, 2, block_n=32, pdl=True), 10),
        (skinny_rs(16, 2, 4, block_n=64, row_scales=True, pdl=True), 10),
    ],
    ids=name_of,
)
def test_machine_code_waits_where_the_source_does(chosen, first):
    """Loads stay on their side of griddepcontrol.wait: all behind it, or, of the first weights, before it. ptxas may move .nc's."""
    is_tma = chosen.kernel in (SWAPPED.NAME, RESIDENT.NAME)
    for is_first in (False, True):
        plan_of_it = dataclasses.replace(chosen, weights_first=is_first)
        built = KERNEL_OF[chosen.kernel].build(plan_of_it)
        text, _ = _numba.compile_ptx(built.kernel, built.argtypes, arch="sm_90a", **built.bounds)
        names = re.findall(r"\b(UTMALDG|LDG|ACQBULK)\b", disassemble(ptxas(text)))
        if is_tma:  # the consumers, and the producer, wait each
            loads = names[names.index("UTMALDG") : len(names) - names[::-1].index("UTMALDG")]
            assert ("ACQBULK" in loads) == is_first
        else:
            assert names.count("ACQBULK") == 1 and names.index("ACQBULK") == first * is_first


def test_the_spread_is_one():
    dense = [p for p in SPREAD if p.kernel == DENSE.NAME]
    assert {p.block_m for p in dense} == set(DENSE_BLOCK_MS)
    assert {(p.multicast, p.epilogue) for p in dense} >= {(s, e) for s in (None, "A", "B") for e in DENSE_EPILOGUES} - {("B", "tma")}
    assert {p.d_dtype for p in SPREAD if p.kernel == SWAPPED.NAME} == {"bfloat16", "float16", "float32"}
    assert all(p.num_stages >= 2 for p in SPREAD if not p.warps)
    assert {p.num_stages for p in SPREAD if p.kernel == SKINNY_RS.NAME} == set(SKINNY_RS.DEPTHS)


def test_the_check_is_no_rubber_stamp():
    """Each rule fires."""
    chosen = SPREAD[0]
    body = "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 .f64 div.u64 call .local griddepcontrol.launch_dependents"
    bad = Compiled(256, 8, 16, 4, ("warning",), 256, 3, body)
    assert len(problems_with(chosen, bad)) == 16
    assert expected_wgmma(plan(256, 128)) == 8 and expected_wgmma(plan(64, 160)) == 4 and expected_wgmma(plan(64, 64)) == 16


CHOSEN = chosen_plans()


@pytest.mark.full
@pytest.mark.parametrize("chosen", CHOSEN, ids=name_of)
def test_every_chosen_plan_compiles(chosen):
    """All that the heuristic picks for the dense shapes of DeepGEMM's tests."""
    check(chosen)


@pytest.mark.full
@pytest.mark.parametrize("chosen", [p for p in candidate_plans() if p not in CHOSEN], ids=name_of)
def test_every_candidate_compiles(chosen):
    check(chosen)


FEW_ROWS = [p for p in few_rows_plans() if p not in CHOSEN]


@pytest.mark.full
@pytest.mark.parametrize("chosen", FEW_ROWS, ids=name_of)
def test_every_plan_for_very_few_rows_compiles(chosen):
    check(chosen)


def test_registers_are_bounded_by_the_ctas_that_are_to_run_together():
    assert [most_registers(*x) for x in ((128, 1), (384, 1), (256, 4), (512, 2), (64, 18), (224, 2))] == [255, 168, 64, 64, 56, 144]
    splits = [p for p in FEW_ROWS if p.cluster > 1]
    assert {(p.block_m, p.num_stages) for p in splits} == {(8, 1), (8, 2), (16, 1), (16, 2)} and len(splits) > 200
    for chosen in splits:
        assert SKINNY.min_ctas(chosen) >= 1 and SKINNY.registers(chosen) <= most_registers(SKINNY.threads(chosen), SKINNY.min_ctas(chosen))
    one = skinny(8, 1, 8, split=4)
    bad = Compiled(80, 0, 0, 0, (), 256, 0, ".maxntid 256 .minnctapersm 1 .target sm_90a griddepcontrol.wait")
    assert SKINNY.min_ctas(one) == 4
    assert problems_with(one, bad) == ["80 registers for 4 x 256 threads", "registers are not bounded for 4 CTAs"]


def test_the_chosen_plans_are_those_of_an_h200():
    assert all(p.num_stages >= 2 or p.warps for p in CHOSEN)
    assert len(CHOSEN) >= 8, "the heuristic tells shapes apart"
