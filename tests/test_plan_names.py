"""A plan by its name: every candidate is found by it, and what is no name, or cannot be had, says why."""

import pytest
from cases import DENSE, H200, RESIDENT, SKINNY, SWAPPED, plan

from dgnumba.device import KNOWN
from dgnumba.errors import PlanError
from dgnumba.kernels import KERNELS
from dgnumba.plan import named
from dgnumba.problem import GemmProblem


def test_a_plans_name_tells_its_choices_apart():
    for kernel in KERNELS:
        candidates = kernel.candidates(GemmProblem(64, 4096, 4096), H200)
        assert len({c.name for c in candidates}) == len(candidates)
    assert plan(128, 192, 4, share="A", epilogue="warp").name == "128x192x128 s4 c2A warp"
    assert plan(64, 16, 9).name == "64x16x128 s9 tma"


def test_a_plan_of_the_portable_kernel_goes_by_its_name():
    problem = GemmProblem(100, 200, 300)
    assert named("64x128x128 s3 registers widen", problem, KNOWN["a100"]).plan.widen
    for name, words in (("64x128x64 s3 registers", "BLOCK_K of 128 bytes"), ("64x128x128 s3 tma", "registers epilogue"),
                        ("128x256x128 s2 registers", "with scales")):  # fmt: skip
        with pytest.raises(PlanError, match=words):
            named(name, problem, KNOWN["l40s"])
    for name in ("64x64x128 s4 tma widen", "8x64x128 s4 registers widen"):
        with pytest.raises(PlanError, match="FP8 tensor cores, which need no widening"):
            named(name, problem, H200)


@pytest.mark.parametrize(
    "name, kernel, words",
    [
        ("8x64x128 s2 registers rotate", "sm90_fp8_gemm_1d2d_swap_ab", "a loop over K that is not rotated"),
        ("8x16x128 s1 registers rotate w2", "sm90_fp8_gemv_1d2d", "a loop over K that is not rotated"),
        ("8x16x128 s1 registers widen w2", "sm90_fp8_gemv_1d2d", "needs no widening"),
        ("8x16x128 s1 registers overlap w4", "sm90_fp8_gemv_1d2d_rs", "a loop over K that is not rotated"),
    ],
)
def test_what_a_kernel_has_not_is_refused_and_not_passed_over(name, kernel, words):
    with pytest.raises(PlanError) as caught:
        named(name, GemmProblem(4, 256, 512), H200)
    assert words in caught.value.reasons[kernel]


def test_what_stays_of_a_is_of_the_kernel_that_holds_it():
    problem = GemmProblem(16, 9000, 512)
    assert named("16x128x256 s4 tma r4", problem, H200).plan.resident == 4
    for name, kernel, words in (
        ("16x128x256 s4 tma", RESIDENT, "whole stages of A that stay, 64 blocks of K at most, got 0"),
        ("16x128x256 s4 tma r3", RESIDENT, "whole stages of A that stay, 64 blocks of K at most, got 3"),
        ("16x128x256 s4 tma r2", RESIDENT, "all of K to stay, got 512"),
        ("8x128x256 s4 tma r4", RESIDENT, "one tile for all tokens, got 16"),
        ("16x192x512 s2 tma r4", RESIDENT, "stages of 64 KB at most"),
        ("64x192x256 s2 tma r4", RESIDENT, "registers for sums and accumulators of all blocks of a stage"),
        ("16x128x256 s4 registers r4", RESIDENT, "the tma epilogue"),
        ("16x64x128 s4 tma r4", DENSE, "keeps nothing of A in shared memory, got 4 blocks of K"),
        ("16x64x256 s4 registers r4", SWAPPED, "keeps nothing of A in shared memory, got 4 blocks of K"),
    ):
        with pytest.raises(PlanError) as caught:
            named(f"{kernel.NAME} {name}", problem, H200)
        assert words in caught.value.reasons[kernel.NAME]


@pytest.mark.parametrize(
    "name, change, words",
    [
        ("16x16x128 s1 c2K registers w4", {"m": 17}, "is for M up to 16, got 17"),
        ("8x16x128 s1 c2K registers w4", {"m": 9}, "needs BLOCK_M of M at least, got 9"),
        ("8x16x128 s1 c2K registers w4", {"with_c": True}, "writes bfloat16 or float32, and adds nothing"),
        ("8x16x128 s1 c2K registers w4", {"d_dtype": "float16"}, "writes bfloat16 or float32, and adds nothing"),
        ("8x16x128 s1 c2K registers w4", {"k": 1000}, "takes K of a multiple of 128, got 1000"),
        ("8x16x128 s1 c3K registers w4", {}, "needs a split over (1, 2, 4, 8) CTAs that share no operand"),
        ("8x16x128 s1 c2A registers w4", {}, "needs a split over (1, 2, 4, 8) CTAs that share no operand"),
        ("8x16x128 s1 c2K registers w15", {}, "needs (1, 2, 4, 7, 8, 14, 16) warps"),
        ("8x32x128 s1 c2K registers w14", {}, "needs at most 16 warps, and registers for the blocks on their way"),
    ],
)
def test_a_split_for_very_few_rows_says_what_it_does_not_take(name, change, words):
    problem = GemmProblem(**({"m": 8, "n": 256, "k": 1024} | change))
    with pytest.raises(PlanError) as caught:
        named(f"{SKINNY.NAME} {name}", problem, H200)
    assert caught.value.reasons == {SKINNY.NAME: words}


@pytest.mark.parametrize("m, n, k", [(1, 576, 7168), (8, 2112, 7168), (9, 4096, 7168), (16, 512, 512), (16, 4224, 7168)])
def test_splits_for_very_few_rows_run_at_one_time(m, n, k):
    found = SKINNY.candidates(GemmProblem(m, n, k), H200)
    splits = [p for p in found if p.cluster > 1]
    assert len(found) - len(splits) == (m <= 4), "without a split, for up to 4 rows where a warp has several blocks in turn"
    assert splits and all(p.block_m == (8 if m <= 8 else 16) for p in splits)
    for p in splits:
        assert named(f"{SKINNY.NAME} {p.name}", GemmProblem(m, n, k), H200).plan == p
        ctas_each = -(-SKINNY.grid(p, GemmProblem(m, n, k), H200) // H200.num_sms)
        assert ctas_each <= SKINNY.min_ctas(p) and SKINNY.count_tiles(p, GemmProblem(m, n, k)) <= 4 * H200.clusters_at_once(p.cluster)
        assert p.warps % 7 or k // 128 % (p.warps * p.cluster) == 0, "7 and 14 warps have as many blocks each"
    assert [p for p in SKINNY.candidates(GemmProblem(m, 2 * 16 * 132 + 1, k), H200) if p.cluster > 1] == [], "too many tiles"


def test_the_kernel_that_holds_a_says_what_it_does_not_take():
    for problem, words in (
        (GemmProblem(65, 9000, 512), "is for M up to 64, got 65"),
        (GemmProblem(8, 9000, 500), "needs K of a multiple of 128, got 500"),
        (GemmProblem(8, 9000, 512, d_dtype="float32"), "writes bfloat16 or float16, not float32"),
    ):
        assert RESIDENT.supports(problem, H200) == words
    assert RESIDENT.candidates(GemmProblem(8, 64 * 132, 512), H200) == [], "each CTA has one tile"
    assert RESIDENT.candidates(GemmProblem(8, 64 * 133, 512), H200) != []
    assert RESIDENT.candidates(GemmProblem(64, 9000, 4096), H200) == [], "no room for a ring"


def test_every_candidate_is_found_by_its_name():
    for d_dtype in ("bfloat16", "float32"):
        for m in (1, 16, 4096):
            problem = GemmProblem(m, 4096, 4096, d_dtype=d_dtype)
            for kernel in KERNELS:
                for candidate in kernel.candidates(problem, H200) if kernel.supports(problem, H200) is None else ():
                    assert named(f"{kernel.NAME} {candidate.name}", problem, H200).plan == candidate
                    assert m == 1 or named(candidate.name, problem, H200).plan == candidate, "the first kernel that has such a plan"


def test_the_order_of_tiles_is_the_candidates():
    """It is in no name: rows of tiles where N is few tiles of 144 columns, bands where it is many."""
    for n, band in ((576, 1), (1152, 1), (4096, 16)):
        assert named("128x144x128 s5 tma", GemmProblem(4096, n, 7168), H200).plan.band == band
    assert named("128x144x128 s5 c2A tma", GemmProblem(4096, 576, 7168), H200).plan.band == 16


@pytest.mark.parametrize(
    "name",
    [
        "",
        "fast",
        "64x64 s4 tma",
        "64x64x128 4 tma",
        "64x64x128 s4",
        "64x64x128 s4 c2 tma",
        "64x64x128 s4 tma spin",
        "64x64x128 s4 tma w",
        "8x16x128 s1 registers w2 w4",
    ],
)
def test_what_is_no_name_of_a_plan_is_refused(name):
    with pytest.raises(
        PlanError,
        match=r"plan: expected BLOCK_MxBLOCK_NxBLOCK_K s<stages>.*overlap, rotate, widen, then w<warps>, r<blocks of K of A that stay>, as .*, got "
        + repr(name),
    ):
        named(name, GemmProblem(64, 64, 128), H200)


def test_a_plan_named_with_its_kernel_is_that_kernels():
    problem = GemmProblem(1, 4096, 4096)
    for name in ("sm90_fp8_gemv_1d2d", "sm90_fp8_gemv_1d2d_rs"):
        assert named(f"{name} 8x16x128 s1 registers w4", problem, H200).plan.kernel == name
    with pytest.raises(PlanError, match="kernel: expected one of sm90_fp8_gemm_1d2d, .*, got sm90_none"):
        named("sm90_none 8x16x128 s1 registers w4", problem, H200)
    for kernel in (DENSE, SWAPPED):
        with pytest.raises(PlanError) as caught:
            named(f"{kernel.NAME} 16x64x128 s4 registers w4", problem, H200)
        assert caught.value.reasons == {kernel.NAME: "needs warps by its roles, none named"}


def test_a_named_plan_that_is_impossible_says_why_by_kernel():
    with pytest.raises(PlanError, match="plan: 256x192x128 s4 tma cannot be used for .* on NVIDIA H200") as caught:
        named("256x192x128 s4 tma", GemmProblem(4096, 4096, 4096), H200)
    assert "two waves of accumulators" in caught.value.reasons[DENSE.NAME]
    assert "M up to 128, got 4096" in caught.value.reasons[SWAPPED.NAME]
    with pytest.raises(PlanError, match="bytes of shared memory"):
        named("128x128x128 s9 tma", GemmProblem(4096, 4096, 4096), H200)
