"""What plans `sm90_fp8_gemm_1d2d_resident` has: which problems it takes, which tiles can be built, their shared memory, their launch."""

from __future__ import annotations

from itertools import product
from typing import Any

from ..device import Device
from ..integers import u32, u64
from ..layouts.descriptors import ONE_LINE, TensorMap
from ..layouts.smem import SmemMap
from ..problem import GemmProblem
from ..xp import address
from .epilogue_rules import HALVES
from .sm90_fp8_gemm_1d2d_rules import supports as _supports
from .sm90_fp8_gemm_1d2d_swap_ab_rules import blocked
from .spec import RING, Built, GemmPlan, Rule, changed, first_broken, most_stages, one_cta, stages_in_flight

NAME = "sm90_fp8_gemm_1d2d_resident"

BLOCK_MS = (8, 16, 24, 32, 48, 64)
BLOCK_NS, BLOCK_KS = (128, 192, 256), (256, 512)
MIN_STAGES, MAX_STAGES = 2, 16
MOST_BLOCKS = 64
"""Of K that stay; a tensor map's box has at most 256."""
ROW_SCALES = False
WAITS = True
LAUNCHES_DEPENDENTS = True
WEIGHTS_FIRST = True
RESIDENT = True
min_ctas = one_cta
MOST_TOKENS = BLOCK_MS[-1]


def supports(problem: GemmProblem, device: Device) -> str | None:
    """None when this kernel takes the problem on the device, else the reason why not."""
    reason = _supports(problem, device)
    if reason is None and problem.m > MOST_TOKENS:
        reason = f"is for M up to {MOST_TOKENS}, got {problem.m}"
    if reason is None and problem.d_dtype.name not in HALVES:
        reason = f"writes {' or '.join(HALVES)}, not {problem.d_dtype.name}"
    if reason is None and problem.k % 128:
        reason = f"needs K of a multiple of 128, got {problem.k}"
    return reason


RULES: tuple[Rule, ...] = (
    RING,
    ("warps by its roles, none named", lambda plan, _: not plan.warps),
    ("FP8 tensor cores, which need no widening", lambda plan, _: not plan.widen),
    ("a loop over K that is not rotated", lambda plan, _: not plan.rotate and not plan.overlap),
    (f"BLOCK_M of {BLOCK_MS}", lambda plan, _: plan.block_m in BLOCK_MS),
    (f"BLOCK_N of {BLOCK_NS}", lambda plan, _: plan.block_n in BLOCK_NS),
    (f"BLOCK_K of {BLOCK_KS}", lambda plan, _: plan.block_k in BLOCK_KS),
    # 96 KB, of which two fit, are 2 to 8 % slower than halves of them (8 to 32x32768x512 and 24576x1536; H200, 2026-11-30)
    ("stages of 64 KB at most", lambda plan, _: plan.block_n * plan.block_k <= 64 * 1024),
    ("CTAs by themselves", lambda plan, _: plan.cluster == 1 and plan.multicast is None),
    ("the tma epilogue", lambda plan, _: plan.epilogue == "tma"),
    (
        "registers for sums and accumulators of all blocks of a stage",
        lambda plan, _: _registers(plan) <= min(255, 65536 // (-(-threads(plan) // 128) * 128) // 8 * 8),
    ),
    (
        f"whole stages of A that stay, {MOST_BLOCKS} blocks of K at most, got {{plan.resident}}",
        lambda plan, _: 0 < plan.resident <= MOST_BLOCKS and plan.resident % (plan.block_k // 128) == 0,
    ),
    ("all of K to stay, got {problem.k}", lambda plan, problem: problem.k <= 128 * plan.resident),
    ("one tile for all tokens, got {problem.m}", lambda plan, problem: problem.m <= plan.block_m),
)
"""The single statement of the rules, the broadest first."""


def _registers(plan: GemmPlan) -> int:
    """What a consumer's thread needs at least: the sums, an accumulator a block of the stage, its scales of tokens, and some."""
    blocks = plan.block_k // 128
    return plan.block_m // 2 * (1 + blocks) + plan.block_m // 4 * blocks + 8


def candidates(problem: GemmProblem, device: Device) -> list[GemmPlan]:
    """Plans that fit the device: the smallest tile that takes all tokens, all of A at its place, rings as deep as memory needs."""
    block_m = next(m for m in BLOCK_MS if m >= min(problem.m, BLOCK_MS[-1]))
    dtypes = problem.a_dtype.name, problem.b_dtype.name, problem.d_dtype.name
    plans = []
    for block_n, block_k in product(BLOCK_NS, BLOCK_KS):
        resident = -(-problem.k // block_k) * (block_k // 128)
        plan = GemmPlan(
            NAME, block_m, block_n, MIN_STAGES, *dtypes, block_k=block_k, resident=resident, epilogue="tma", with_c=problem.with_c
        )
        # a CTA with one tile has A's loads once anyhow
        if refusal(plan, problem) is None and count_tiles(plan, problem) > device.num_sms:
            in_flight = stages_in_flight(block_n * block_k, grid(plan, problem, device), device)
            stages = min(MAX_STAGES, most_stages(smem, plan, device), in_flight)
            if stages >= MIN_STAGES:
                plans.append(changed(plan, num_stages=stages))
    return plans


def refusal(plan: GemmPlan, problem: GemmProblem) -> str | None:
    """Why a plan cannot be built, or cannot take the problem, or None."""
    return first_broken(RULES, plan, problem)


def groups(plan: GemmPlan) -> int:
    """Warpgroups that multiply: each has tiles and a ring of its own."""
    return plan.block_n // 64


def smem(plan: GemmPlan) -> SmemMap:
    """All of A and its scales, each warpgroup's ring of B and its scales, a panel of D each, then the barriers."""
    slots = plan.num_stages * groups(plan)
    return SmemMap.of(
        ("b", 64 * plan.block_k, slots, 1024),
        ("a", plan.block_m * plan.block_k, plan.resident * 128 // plan.block_k, 1024),
        ("d", plan.block_m * 128, groups(plan), 1024),
        ("sfa", plan.block_m * 4 * plan.resident, 1, 128),
        ("sfb", 128, slots, 128),
        ("full", 8, slots, 8),
        ("empty", 8, slots, 8),
        ("ready", 8, plan.resident * 128 // plan.block_k, 8),
    )


def threads(plan: GemmPlan) -> int:
    """Threads of a CTA: the consumer warpgroups, and the producer's warp."""
    return 2 * plan.block_n + 32


def mapped_arrays(plan: GemmPlan) -> tuple[str, ...]:
    """As `KernelSpec` has it."""
    return ("a", "b", "sfa", "sfb", "d")


def pointers(plan: GemmPlan) -> tuple[str, ...]:
    """As `KernelSpec` has it."""
    return ("addend",)


def first_stages(plan: GemmPlan) -> int:
    """As `KernelSpec` has it: all that fit a Hopper GPU, as the grid before keeps memory less and less busy meanwhile.

    NOTE: 1x4096x7168 in a graph of 20 such products: six stages 8.87 us each, four 9.51; 8x24576x1536 with A held: four 8.93, three 9.44
    (H200, 2026-11-30, bench/NOTES.md).
    """
    return min(MAX_STAGES, most_stages(smem, plan, Device.named("h200")))


def is_batch_invariant(plan: GemmPlan) -> bool:
    """As `KernelSpec` has it: every plan promotes block after block of K."""
    return True


def bind(plan: GemmPlan, laid: Any) -> tuple[Any, ...]:
    """The kernel's arguments, in order, for operands laid out by `layouts.operands`."""
    problem = laid.problem
    return (
        blocked(laid.a, plan.block_m, plan.block_k // 128),
        blocked(laid.b, 64, plan.block_k // 128, ONE_LINE),
        TensorMap.of(laid.sfa.T, (plan.block_m, plan.resident)),
        TensorMap.of(laid.sfb, (4, 1)),
        TensorMap.of(laid.d, (64, plan.block_m), swizzle=128, dtype=problem.d_dtype.name),
        u64(address(laid.addend)),
        u64(laid.addend.strides[0]),
        u32(problem.m),
        u32(problem.n),
        u32(problem.k),
    )


def grid(plan: GemmPlan, problem: GemmProblem, device: Device) -> int:
    """CTAs: one a multiprocessor, fewer when there are fewer tiles."""
    return min(count_tiles(plan, problem), device.num_sms)


def count_tiles(plan: GemmPlan, problem: GemmProblem) -> int:
    """Tiles of the output: 64 weights each, a warpgroup's."""
    return -(-problem.n // 64)


def build(plan: GemmPlan) -> Built:
    """The kernel of a plan. Imports its file, and Numba with it."""
    from . import sm90_fp8_gemm_1d2d_resident

    return sm90_fp8_gemm_1d2d_resident.build(plan)
