"""What plans `sm90_fp8_gemm_1d2d_swap_ab` has: which problems it takes, which tiles can be built, their shared memory, their launch."""

from __future__ import annotations

from itertools import product
from typing import Any

from ..device import Device
from ..integers import u32, u64
from ..layouts.descriptors import ONE_LINE, TWO_LINES, TensorMap
from ..layouts.smem import SmemMap
from ..problem import GemmProblem
from ..xp import address
from .sm90_fp8_gemm_1d2d_rules import supports as _supports
from .spec import RING, Built, GemmPlan, Rule, changed, first_broken, most_stages, one_cta, stages_in_flight

NAME = "sm90_fp8_gemm_1d2d_swap_ab"

BLOCK_MS = (8, 16, 24, 32, 48, 64)
BLOCK_NS, BLOCK_KS, SPLITS = (64, 128), (128, 256, 512), (1, 2, 4, 8)
MIN_STAGES, MAX_STAGES = 2, 16
ROW_SCALES = True
WAITS = True
LAUNCHES_DEPENDENTS = True
WEIGHTS_FIRST = True
RESIDENT = False
min_ctas = one_cta
MOST_TOKENS = 128


def supports(problem: GemmProblem, device: Device) -> str | None:
    """None when this kernel takes the problem on the device, else the reason why not."""
    reason = _supports(problem, device)
    if reason is None and problem.m > MOST_TOKENS:
        reason = f"is for M up to {MOST_TOKENS}, got {problem.m}"
    return reason


RULES: tuple[Rule, ...] = (
    RING,
    ("warps by its roles, none named", lambda plan, _: not plan.warps),
    ("FP8 tensor cores, which need no widening", lambda plan, _: not plan.widen),
    ("a loop over K that is not rotated", lambda plan, _: not plan.rotate and not plan.overlap),
    (f"BLOCK_M of {BLOCK_MS}", lambda plan, _: plan.block_m in BLOCK_MS),
    (f"BLOCK_N of {BLOCK_NS}", lambda plan, _: plan.block_n in BLOCK_NS),
    (f"BLOCK_K of {BLOCK_KS}", lambda plan, _: plan.block_k in BLOCK_KS),
    (f"a split over {SPLITS} CTAs", lambda plan, _: plan.cluster in SPLITS and plan.multicast is None),
    ("accumulators of all blocks of a stage in the registers", lambda plan, _: plan.block_m * plan.block_k <= 32 * 512),
    (
        "a stage for each CTA of a split",
        lambda plan, problem: plan.cluster == 1 or -(-problem.k // plan.block_k) >= plan.cluster,
    ),
    (
        "K of a multiple of 128 for blocks taken together, got {problem.k}",
        lambda plan, problem: plan.block_k == 128 or problem.k % 128 == 0,
    ),
    ("the registers epilogue", lambda plan, _: plan.epilogue == "registers"),
)
"""The single statement of the rules, the broadest first."""


def candidates(problem: GemmProblem, device: Device) -> list[GemmPlan]:
    """Plans that fit the device: one tile takes all tokens where it can, all CTAs of a split run at once, rings are as deep as memory needs."""
    block_m = next(m for m in BLOCK_MS if m >= min(problem.m, BLOCK_MS[-1]))
    dtypes = problem.a_dtype.name, problem.b_dtype.name, problem.d_dtype.name
    plans = []
    for block_n, block_k, split in product(BLOCK_NS, BLOCK_KS, SPLITS):
        plan = GemmPlan(
            NAME, block_m, block_n, MIN_STAGES, *dtypes, block_k=block_k, cluster=split, epilogue="registers",
            with_c=problem.with_c, row_scales=problem.row_scales,
        )  # fmt: skip
        # NOTE: clusters that have to wait for others are ruinous (M = 1, 7168x2048: 13 us in the place of 6; H200, 2026-11-29, bench/NOTES.md).
        if refusal(plan, problem) is None and (split == 1 or count_tiles(plan, problem) <= device.clusters_at_once(split)):
            in_flight = stages_in_flight(block_n * block_k, grid(plan, problem, device), device)
            stages = min(MAX_STAGES, most_stages(smem, plan, device), in_flight)
            if stages >= MIN_STAGES:
                plans.append(changed(plan, num_stages=stages))
    return plans


def refusal(plan: GemmPlan, problem: GemmProblem) -> str | None:
    """Why a plan cannot be built, or cannot take the problem, or None."""
    return first_broken(RULES, plan, problem)


def smem(plan: GemmPlan) -> SmemMap:
    """The ring of B, A and scales; of a split what each CTA sends to the one that adds up; then the barriers."""
    blocks = plan.block_k // 128
    return SmemMap.of(
        ("b", plan.block_n * plan.block_k, plan.num_stages, 1024),
        ("a", plan.block_m * plan.block_k, plan.num_stages, 1024),
        # row-major: four blocks' scales of each token, however many blocks a stage has
        ("sfa", -(-plan.block_m * 4 * (4 if plan.row_scales else blocks) // 128) * 128, plan.num_stages, 128),
        ("sfb", 128, plan.num_stages, 128),
        ("partial", share_of(plan.block_m // 2, plan.cluster) * plan.block_n * 8 if plan.cluster > 1 else 0, plan.cluster, 16),
        ("full", 8, plan.num_stages, 8),
        ("empty", 8, plan.num_stages, 8),
        ("met", 8 if plan.cluster > 1 else 0, 1, 8),
    )


def share_of(count: int, split: int) -> int:
    """Of `count` registers of a fragment, those that a CTA of a split adds up: whole ones, the last CTAs fewer or none."""
    return -(-count // split)


def threads(plan: GemmPlan) -> int:
    """Threads of a CTA: a consumer warpgroup for 64 weights, and the producer's warp."""
    return 2 * plan.block_n + 32


def mapped_arrays(plan: GemmPlan) -> tuple[str, ...]:
    """As `KernelSpec` has it."""
    return ("a", "b", "sfa", "sfb")


def pointers(plan: GemmPlan) -> tuple[str, ...]:
    """As `KernelSpec` has it."""
    return ("d", "addend")


def first_stages(plan: GemmPlan) -> int:
    """As `KernelSpec` has it: all that fit a Hopper GPU, as the grid before keeps memory less and less busy meanwhile.

    NOTE: 1x4096x7168 in a graph of 20 such products: six stages 8.87 us each, four 9.51; 8x24576x1536 with A held: four 8.93, three 9.44
    (H200, 2026-11-30, bench/NOTES.md).
    """
    return min(MAX_STAGES, most_stages(smem, plan, Device.named("h200")))


def is_batch_invariant(plan: GemmPlan) -> bool:
    """As `KernelSpec` has it: a split adds up partial sums, whose number goes by M."""
    return plan.cluster == 1


def bind(plan: GemmPlan, laid: Any) -> tuple[Any, ...]:
    """The kernel's arguments, in order, for operands laid out by `layouts.operands`."""
    problem = laid.problem
    return (
        blocked(laid.a, plan.block_m, plan.block_k // 128),
        blocked(laid.b, plan.block_n, plan.block_k // 128, ONE_LINE),
        TensorMap.of(laid.sfa, (4, plan.block_m)) if plan.row_scales else TensorMap.of(laid.sfa.T, (plan.block_m, plan.block_k // 128)),
        TensorMap.of(laid.sfb, (4, 1)),
        u64(address(laid.d)),
        u64(address(laid.addend)),
        u64(laid.d.strides[0]),
        u64(laid.addend.strides[0]),
        u32(problem.m),
        u32(problem.n),
        u32(problem.k),
    )


def blocked(x: Any, rows: int, blocks: int, l2_promotion: int = TWO_LINES) -> TensorMap:
    """The map of an operand whose box is `rows` rows of `blocks` blocks of 128 of K, block after block: K is two dimensions."""
    if blocks == 1:
        return TensorMap.of(x, (128, rows), swizzle=128, l2_promotion=l2_promotion)
    dims, strides = (128, x.shape[0], x.shape[1] // 128), (int(x.strides[0]), 128)
    return TensorMap("uint8", dims, strides, (128, rows, blocks), 128, x, l2_promotion)


def grid(plan: GemmPlan, problem: GemmProblem, device: Device) -> int:
    """CTAs: one a multiprocessor, fewer when there are fewer tiles; a split has one tile a cluster."""
    tiles = count_tiles(plan, problem)
    return tiles * plan.cluster if plan.cluster > 1 else min(tiles, device.num_sms)


def count_tiles(plan: GemmPlan, problem: GemmProblem) -> int:
    """Tiles of the output."""
    return -(-problem.m // plan.block_m) * -(-problem.n // plan.block_n)


def build(plan: GemmPlan) -> Built:
    """The kernel of a plan. Imports its file, and Numba with it."""
    from . import sm90_fp8_gemm_1d2d_swap_ab

    return sm90_fp8_gemm_1d2d_swap_ab.build(plan)
