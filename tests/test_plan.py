"""Planning: any problem gets a plan that fits, or a reasoned refusal; nothing but problem and device decides."""

import dataclasses
import math

import pytest
from cases import DENSE, H200, KERNEL_OF, dense_problems, plan, skinny, swapped, with_all_stages
from hypothesis import given, settings
from hypothesis import strategies as st

from dgnumba.cost import TURN
from dgnumba.device import KNOWN, Device
from dgnumba.dtypes import DTYPES
from dgnumba.errors import PlanError, UnsupportedError
from dgnumba.kernels import KERNELS, GemmPlan
from dgnumba.kernels.int4_spec import Int4Plan
from dgnumba.kernels.spec import stages_in_flight
from dgnumba.plan import choose, estimate, kernel_named, measured_for, named, validate, waves
from dgnumba.problem import GemmProblem

extent = st.one_of(st.integers(1, 300), st.integers(1, 2**20), st.sampled_from([1, 16, 64, 128, 4096, 65536 * 128]))
problems = st.builds(
    GemmProblem,
    extent,
    extent,
    extent,
    d_dtype=st.sampled_from(["bfloat16", "float16", "float32"]),
    row_scales=st.booleans(),
)
devices = st.sampled_from(sorted(KNOWN)).map(KNOWN.__getitem__)


def check_fits(chosen, problem, device):
    kernel = kernel_named(chosen.kernel)
    assert kernel.refusal(chosen, problem) is None
    assert kernel.smem(chosen).launch_bytes <= device.smem_per_block
    assert (chosen.a_dtype, chosen.b_dtype, chosen.d_dtype) == (problem.a_dtype.name, problem.b_dtype.name, problem.d_dtype.name)
    assert chosen.with_c == problem.with_c and (problem.row_scales or not chosen.row_scales)
    tiles, grid = kernel.count_tiles(chosen, problem), kernel.grid(chosen, problem, device)
    assert tiles * chosen.block_m * chosen.block_n >= problem.m * problem.n
    assert grid >= 1 and grid % chosen.cluster == 0
    if kernel.NAME == "sm80_gemm" or chosen.warps:
        assert grid == tiles * chosen.cluster, "a CTA a tile, or a cluster"
    else:
        assert grid <= device.num_sms, "persistent: one CTA a multiprocessor"
    for region in kernel.smem(chosen):
        if region.name in ("a", "b"):
            assert region.offset % 1024 == 0 and region.nbytes % 1024 == 0, "the swizzle's eight rows stay together, stage after stage"
        if region.name in ("full", "empty"):
            assert region.offset % 8 == 0 and region.stages == chosen.num_stages
    ends = [(r.offset, r.end) for r in kernel.smem(chosen)]
    assert all(end <= begin for (_, end), (begin, _) in zip(ends, ends[1:]))


@settings(max_examples=60)
@given(problems, devices)
def test_any_problem_gets_a_plan_that_fits(problem, device):
    choice = choose(problem, device)
    check_fits(choice.plan, problem, device)
    assert choice.considered >= 1 and choice.kernel in KERNELS
    assert all(math.isfinite(e.total) and e.total > 0 for e in (choice.estimate, *(e for _, e in choice.runners_up)))
    totals = [choice.estimate.total, *(e.total for _, e in choice.runners_up)]
    assert totals == sorted(totals), "the cheapest wins"


@settings(max_examples=25)
@given(problems)
def test_every_candidate_fits(problem):
    for kernel in KERNELS:
        if kernel.supports(problem, H200) is None:
            candidates = kernel.candidates(problem, H200)
            assert len(set(candidates)) == len(candidates)
            for candidate in candidates:
                check_fits(candidate, problem, H200)
                assert validate(candidate, problem, H200).plan == candidate


@settings(max_examples=20)
@given(problems, devices)
def test_planning_is_pure(problem, device):
    """Asked again, of equal objects made anew and past the cache, it says the same; and it asks no driver."""
    again, twin = dataclasses.replace(problem), dataclasses.replace(device, index=3)
    choose.cache_clear()
    first = choose(problem, device)
    choose.cache_clear()
    second = choose(again, twin)
    assert (first.plan, first.estimate, first.considered, first.runners_up) == (
        second.plan,
        second.estimate,
        second.considered,
        second.runners_up,
    )
    assert problem == again


def test_planning_asks_no_driver(monkeypatch):
    from dgnumba import driver

    def refuse(*args):
        raise AssertionError("planning asked the driver")

    for name in ("device_count", "current_device", "attribute", "device_name", "device_of"):
        monkeypatch.setattr(driver, name, refuse)
    choose.cache_clear()
    choose(GemmProblem(100, 200, 300), H200)


@pytest.mark.parametrize("name", list(dense_problems()))
@pytest.mark.full
def test_the_dense_shapes_get_plans(name):
    problem = dense_problems()[name]
    check_fits(choose(problem, H200).plan, problem, H200)


# What is frozen into a kernel


def test_F37_a_plan_holds_no_extent():
    names = {field.name for field in dataclasses.fields(GemmPlan)}
    assert names & {"m", "n", "k", "problem", "grid", "num_sms"} == set()
    assert all(
        isinstance(value, (int, str, bool, type(None))) for value in dataclasses.asdict(choose(GemmProblem(5, 6, 7), H200).plan).values()
    )


@pytest.mark.parametrize("n, k", [(576, 7168), (24576, 1536), (2112, 7168)])
def test_F37_kernels_do_not_grow_with_m(n, k):
    """Forty token counts share a handful of kernels, and so do four hundred."""
    few = {choose(GemmProblem(m, n, k), H200).plan for m in range(1, 41)}
    more = few | {choose(GemmProblem(m, n, k), H200).plan for m in range(41, 4097, 97)}
    assert len(few) <= 8
    assert len(more) <= 24


def test_the_arguments_of_a_kernel_do_not_depend_on_the_problem():
    for chosen in (plan(16, 16), swapped(8, 64)):
        kernel = KERNEL_OF[chosen.kernel]
        one, two = kernel.build(chosen), kernel.build(chosen)
        assert (one.argtypes, one.threads, one.smem, one.cluster) == (two.argtypes, two.threads, two.smem, two.cluster)


# Refusals


def test_an_architecture_without_a_kernel_lists_each_ones_reason():
    turing = Device("NVIDIA T4", cc=(7, 5), num_sms=40, smem_per_block=65536)
    with pytest.raises(UnsupportedError, match="NVIDIA T4") as caught:
        choose(GemmProblem(8, 8, 128), turing)
    for kernel in KERNELS:
        reason = caught.value.reasons[kernel.NAME]
        assert ("sm_80 or later" if kernel.NAME == "sm80_gemm" else "sm_90a") in reason and "sm_75" in reason
        assert kernel.NAME in str(caught.value)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "int4"])
@pytest.mark.parametrize("name", sorted(KNOWN))
def test_what_has_no_scales_takes_the_portable_kernel(dtype, name):
    device, d_dtype = KNOWN[name], "int32" if dtype.startswith("int") else dtype
    problem = GemmProblem(1000, 3000, 4096, dtype, dtype, d_dtype, None, None)
    if dtype == "int4" and device.cc >= (9, 0):
        with pytest.raises(UnsupportedError, match="needs INT4 tensor cores"):
            choose(problem, device)
        return
    choice = choose(problem, device)
    check_fits(choice.plan, problem, device)
    assert choice.plan.kernel == "sm80_gemm" and choice.plan.block_k * DTYPES[dtype].bits == 1024
    assert choice.estimate.total * 1e-6 >= problem.bytes / device.memory_bandwidth
    few = choose(dataclasses.replace(problem, m=4), device).plan
    assert few.block_m < choice.plan.block_m, "few rows take a low tile"


@pytest.mark.parametrize(
    "change, words",
    [
        ({"b_dtype": "float16"}, "a and b of one type"),
        ({"d_dtype": "int32"}, "takes d of bfloat16 or float32"),
        ({"gran_a": (1, 128)}, "scales of None on A"),
        ({"groups": 2}, "one group"),
        ({"a_dtype": "int4", "b_dtype": "int4", "d_dtype": "int32", "k": 129}, "whole bytes"),
    ],
)
def test_what_the_portable_kernel_refuses(change, words):
    problem = GemmProblem(
        **{"m": 8, "n": 8, "k": 128, "a_dtype": "bfloat16", "b_dtype": "bfloat16", "gran_a": None, "gran_b": None, **change}
    )
    with pytest.raises(UnsupportedError) as caught:
        choose(problem, KNOWN["a100"])
    assert words in caught.value.reasons["sm80_gemm"]


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"gran_b": (1, 128)}, "scales"),
        ({"a_dtype": "bfloat16"}, "bfloat16"),
        ({"d_dtype": "float64"}, "float64"),
        ({"groups": 4}, "group"),
    ],
)
def test_a_problem_without_a_kernel_says_why(change, reason):
    with pytest.raises(UnsupportedError) as caught:
        choose(GemmProblem(**{"m": 8, "n": 8, "k": 128, **change}), H200)
    assert set(caught.value.reasons) == {k.NAME for k in KERNELS}
    assert reason in str(caught.value)


def test_a_device_on_which_nothing_fits():
    with pytest.raises(PlanError, match="9000 bytes of shared memory") as caught:
        choose(GemmProblem(200, 8, 128), dataclasses.replace(H200, smem_per_block=9000))
    assert caught.value.reasons, "what cut the candidates"


def test_a_device_of_one_multiprocessor():
    problem, device = GemmProblem(300, 300, 300), dataclasses.replace(H200, num_sms=1)
    check_fits(choose(problem, device).plan, problem, device)


GOOD = plan(64, 64, 4)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"kernel": "sm75_gemm"}, "kernel: expected one of .*sm90_fp8_gemm_1d2d.*, got sm75_gemm"),
        ({"block_m": 48}, "needs BLOCK_M of"),
        ({"block_n": 20}, "needs BLOCK_N of"),
        ({"block_n": 256}, "needs BLOCK_N of"),
        ({"block_m": 256, "block_n": 144}, "128 at most"),
        ({"block_k": 64}, "block_k|BLOCK_K"),
        ({"block_k": 256}, "block_k|BLOCK_K"),
        ({"num_stages": 0}, "stages"),
        ({"num_stages": -1}, "stages"),
        ({"num_stages": 200}, "needs \\d+ bytes of shared memory, NVIDIA H200 has 232448 a block"),
        ({"cluster": 2}, "cluster"),
        ({"cluster": 4, "multicast": "A"}, "cluster"),
        ({"multicast": "A"}, "cluster"),
        ({"epilogue": "direct"}, "epilogue"),
        ({"epilogue": "fast"}, "epilogue"),
        ({"epilogue": "warp", "block_n": 48}, "64 columns"),
        ({"epilogue": "warp", "block_m": 32}, "four warps"),
        ({"overlap": True}, "rotate"),
        ({"d_dtype": "float32", "epilogue": "direct"}, "is for d of float32, got bfloat16"),
        ({"a_dtype": "float8_e5m2"}, "float8_e5m2"),
        ({"b_dtype": "bfloat16"}, "bfloat16"),
        ({"num_stages": 1}, "needs 2 stages or more, one to fill while the other is used, got 1"),
        ({"band": 0}, "band"),
        ({"band": 3, "cluster": 2, "multicast": "A"}, "band"),
        ({"with_c": True}, "is for products with an addend, got none"),
        ({"row_scales": True}, "reads A's scales row by row, which these cannot be"),
    ],
)
def test_a_callers_plan_is_checked(change, message):
    with pytest.raises(PlanError, match=message):
        validate(dataclasses.replace(GOOD, **change), GemmProblem(100, 136, 300), H200)


@pytest.mark.parametrize("bad", [5, ("64x64x128 s4 tma",), Int4Plan("sm90_int4_gemm", 8, 64, 2)], ids=lambda bad: type(bad).__name__)
def test_what_is_no_plan_is_refused(bad):
    with pytest.raises(PlanError, match=f"plan: expected a GemmPlan or the name of one, got {type(bad).__name__}"):
        validate(bad, GemmProblem(100, 136, 300), H200)


def test_a_callers_plan_is_checked_against_the_problem():
    assert validate(GOOD, GemmProblem(100, 136, 300), H200).plan == GOOD
    warp = plan(64, 64, 4, epilogue="warp")
    assert validate(warp, GemmProblem(100, 136, 300), H200).plan == warp
    with pytest.raises(PlanError, match="multiple of 8"):
        validate(warp, GemmProblem(100, 130, 300), H200)
    with pytest.raises(PlanError, match="sm_80"):
        validate(GOOD, GemmProblem(100, 136, 300), Device("NVIDIA A100", cc=(8, 0)))


def test_a_plan_for_an_addend_and_for_rows_of_scales():
    problem = GemmProblem(16, 136, 600, with_c=True, row_scales=True)
    with pytest.raises(PlanError, match="is for products without an addend, got c"):
        validate(GOOD, problem, H200)
    turned = dataclasses.replace(GOOD, with_c=True)
    assert validate(turned, problem, H200).plan == turned, "scales can always be turned"
    with pytest.raises(PlanError, match="needs A's scales MN-major"):
        validate(dataclasses.replace(skinny(8), row_scales=True), GemmProblem(8, 136, 640, row_scales=True), H200)
    assert named("16x64x128 s4 registers", problem, H200).plan == swapped(16, 64, 4, with_c=True, row_scales=True)
    assert named("16x64x128 s4 tma", problem, H200).plan == plan(16, 64, 4, with_c=True, row_scales=True)


def test_rows_of_scales_are_read_as_they_lie_where_that_is_faster():
    """A share of every block of K against a launch: small products gain."""
    for m, n, k in ((64, 2112, 7168), (128, 24576, 1536), (512, 7168, 2048)):
        chosen = choose(GemmProblem(m, n, k, row_scales=True), H200)
        assert chosen.plan.kernel == DENSE.NAME and chosen.plan.row_scales
        without = estimate(dataclasses.replace(chosen.plan, row_scales=False), GemmProblem(m, n, k), H200).total
        assert without < chosen.estimate.total < without + TURN
    chosen, without = (choose(GemmProblem(8192, 7168, 16384, row_scales=rows), H200) for rows in (True, False))
    assert chosen.plan == without.plan and chosen.estimate.total == pytest.approx(without.estimate.total + TURN)


def test_rows_of_scales_that_find_no_room_are_turned():
    """A plan by name, or one that was measured with scales turned before, may leave no room for four blocks' of each row: with swapped operands."""
    problem = GemmProblem(50, 136, 640, row_scales=True)
    full = with_all_stages(swapped(64, 128))
    assert with_all_stages(dataclasses.replace(full, row_scales=True)).num_stages < full.num_stages
    with pytest.raises(PlanError, match="bytes of shared memory"):
        validate(dataclasses.replace(full, row_scales=True), problem, H200)
    assert named(full.name, problem, H200).plan == full == measured_for(full, problem, H200)
    less = dataclasses.replace(full, num_stages=full.num_stages - 1)
    assert named(less.name, problem, H200).plan == dataclasses.replace(less, row_scales=True) == measured_for(less, problem, H200)


def test_rows_of_scales_take_the_dense_kernel_no_stage():
    """They lie in shared memory as MN-major ones do, so that every plan has room for them; of a large product they are turned all the same."""
    for full in map(with_all_stages, (plan(16, 64), plan(64, 64), plan(256, 128, epilogue="warp", rotate=True))):
        by_rows = dataclasses.replace(full, row_scales=True)
        assert with_all_stages(by_rows) == by_rows and DENSE.smem(by_rows) == DENSE.smem(full)
        assert named(full.name, GemmProblem(100, 136, 640, row_scales=True), H200).plan == by_rows
    assert named(full.name, GemmProblem(8192, 7168, 16384, row_scales=True), H200).plan == full


def test_an_addend_costs_what_its_bytes_cost():
    plain, with_c = (estimate(plan(128, 128, 5, with_c=c), GemmProblem(4096, 4096, 512, with_c=c), H200) for c in (False, True))
    assert with_c.memory > plain.memory and with_c.total >= plain.total


# Batch invariance


@pytest.mark.parametrize("n, k", [(576, 7168), (2112, 7168)])
def test_batch_invariant_plans_split_no_sum(n, k):
    """At every M, among kernels that would split K at some."""
    free = [choose(GemmProblem(m, n, k), H200).plan for m in (1, 8, 16, 33, 64, 128, 777, 4096)]
    assert any(not KERNEL_OF[p.kernel].is_batch_invariant(p) for p in free)
    for m in (1, 8, 16, 33, 64, 128, 777, 4096):
        chosen = choose(GemmProblem(m, n, k), H200, batch_invariant=True).plan
        assert KERNEL_OF[chosen.kernel].is_batch_invariant(chosen)


def test_batch_invariance_refuses_a_callers_split():
    split, problem = swapped(8, 64, 4, split=2), GemmProblem(8, 128, 1024)
    assert validate(split, problem, H200).plan == split
    with pytest.raises(PlanError, match="sums K in an order of its own, and batch invariance is on"):
        validate(split, problem, H200, True)
    with pytest.raises(PlanError, match="batch invariance is on"):
        named(split.name, problem, H200, True)


def test_estimates_grow_with_the_work():
    small, large = (estimate(plan(128, 128, 5), GemmProblem(m, 4096, 4096), H200).total for m in (128, 8192))
    assert small < large
    slow = dataclasses.replace(H200, memory_bandwidth=1e11)
    assert estimate(plan(16, 16, 5), GemmProblem(1, 4096, 4096), slow).bound == "memory"


def test_F21_a_huge_m_is_planned():
    problem = GemmProblem(65536 * 128, 4096, 4096)
    choice = choose(problem, H200)
    assert choice.kernel.count_tiles(choice.plan, problem) * choice.plan.block_m * choice.plan.block_n >= problem.m * problem.n
    assert choice.kernel.grid(choice.plan, problem, H200) <= H200.num_sms
    assert DTYPES["bfloat16"] is problem.d_dtype


def test_a_kernel_for_few_rows_has_a_cta_for_each_tile_on_a_smaller_gpu_too():
    """Of 115 tiles on 114 multiprocessors: the hardware deals them out."""
    problem, device = GemmProblem(1, 1825, 512), KNOWN["h100-pcie"]
    check_fits(choose(problem, device).plan, problem, device)


@pytest.mark.parametrize(
    "weights, ctas, share, expected",
    [
        (64 * 512, 112, 1.0, 3),  # 9.1 MB on an H200: 81 KB each
        (64 * 256, 112, 1.0, 5),
        (64 * 512, 64, 1.0, 4),  # 112 KB a CTA at most
        (64 * 128, 1, 1.0, 14),
        (64 * 1024, 132, 1.0, 3),  # three at least
        (64 * 256, 112, 0.5, 3),  # half the bandwidth needs half as much
        (64 * 512, 0, 1.0, 4),  # nothing to do: planned as any
    ],
)
def test_a_ring_holds_what_memory_needs(weights, ctas, share, expected):
    slower = dataclasses.replace(H200, memory_bandwidth=H200.memory_bandwidth * share)
    assert stages_in_flight(weights, ctas, slower) == expected


@pytest.mark.parametrize(
    "shape, name, rounds",
    [
        ((4096, 7168, 2048), "256x128x128 s3 tma", 896 / 132),
        ((4096, 7168, 16384), "256x128x128 s4 c2A warp rotate", 896 / 132),
        ((16, 576, 7168), "sm90_fp8_gemm_1d2d_swap_ab 16x64x512 s5 c8K registers", 9 * 8 / 104),  # H200: 13 clusters of 8 run at one time
        ((1, 7168, 16384), "sm90_fp8_gemv_1d2d 8x16x128 s1 registers w8", 1.0),  # 448 CTAs, of which a multiprocessor runs 4
        ((1, 32768, 16384), "sm90_fp8_gemv_1d2d 8x16x128 s1 registers w8", 2048 / 528),
        ((1, 576, 7168), "sm90_fp8_gemv_1d2d 8x16x128 s1 registers w16", 36 / 132),
    ],
)
def test_waves_are_of_the_ctas_that_run_at_one_time(shape, name, rounds):
    problem = GemmProblem(*shape)
    assert waves(named(name, problem, H200).plan, problem, H200) == pytest.approx(rounds)
