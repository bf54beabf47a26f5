"""What plans `sm90_fp8_gemv_1d2d` has: which problems it takes, how many warps share a tile's K, its shared memory, its launch."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

from ..device import Device
from ..integers import u32, u64
from ..layouts.smem import SmemMap
from ..problem import GemmProblem
from ..xp import address
from .sm90_fp8_gemm_1d2d_rules import supports as _supports
from .spec import Built, GemmPlan, Rule, ctas_at_once, first_broken, own_stages

NAME = "sm90_fp8_gemv_1d2d"

BLOCK_MS, BLOCK_NS, BLOCK_KS = (8, 16, 24, 32), (16, 32, 64), (128,)
WARPS, DEPTHS, SPLITS = (1, 2, 4, 7, 8, 14, 16), (1, 2, 3, 4), (1, 2, 4, 8)
MOST_TOKENS, MOST_TOKENS_WHOLE = 16, 8
"""Taken at most; and by plans without a split: with more, the conversions to float16, which is what mma.sync multiplies, take longer than memory
where all multiprocessors are busy (M = 16: 36 us in the place of 31 for 7168x16384; H200, 2026-11-29, bench/NOTES.md)."""

MOST_TOKENS_IN_TURNS = 4
"""Tokens at most of a plan without a split whose warps ask for their blocks of K in several turns: with more, conversions between the turns make
other kernels faster (7168x2048 at M = 8 6.1 us for 5.8, 7168x16384 30.5 for 29.9; H200, 2026-11-30, bench/NOTES.md)."""

MOST_BLOCKS, MOST_CTAS, MOST_TILES = 7, 4, 2
"""Of a split that is offered: blocks of K of a warp, CTAs and tiles of 16 rows of a multiprocessor. To launch more clusters takes longer than they
save: 4096x7168 in 1024 CTAs 11.7 us, in 512 9.4; 7168x2048 in 1792 7.7, without a split 5.7 (H200, 2026-11-30, bench/NOTES.md)."""

IN_FLIGHT = 32
"""Blocks of weights, 2 KB each, that a multiprocessor should have on their way: more gains nothing, and costs (H200, 2026-11-29, bench/NOTES.md)."""


def supports(problem: GemmProblem, device: Device) -> str | None:
    """None when this kernel takes the problem on the device, else the reason why not."""
    reason = _supports(problem, device)
    if reason is None and (problem.with_c or problem.d_dtype.name == "float16"):
        return "writes bfloat16 or float32, and adds nothing"
    if reason is None and problem.m > MOST_TOKENS:
        return f"is for M up to {MOST_TOKENS}, got {problem.m}"
    if reason is None and problem.k % 128:
        return f"takes K of a multiple of 128, got {problem.k}"
    if reason is None and {problem.a_dtype.name, problem.b_dtype.name} != {"float8_e4m3fn"}:
        return f"takes a and b of float8_e4m3fn, got {problem.a_dtype.name} and {problem.b_dtype.name}"
    return reason


ROW_SCALES = False
WAITS = True
LAUNCHES_DEPENDENTS = True
WEIGHTS_FIRST = True
RESIDENT = False
first_stages = own_stages


def is_batch_invariant(plan: GemmPlan) -> bool:
    """As `KernelSpec` has it: warps sum every so many-th block of K, of products of float16."""
    return False


RULES: tuple[Rule, ...] = (
    (f"BLOCK_M of {BLOCK_MS}", lambda plan, _: plan.block_m in BLOCK_MS),
    (f"BLOCK_N of {BLOCK_NS}", lambda plan, _: plan.block_n in BLOCK_NS),
    (f"{WARPS} warps", lambda plan, _: plan.warps in WARPS),
    (f"{DEPTHS} stages", lambda plan, _: plan.num_stages in DEPTHS),
    ("products of float16, where FP8 needs no widening", lambda plan, _: not plan.widen),
    ("a loop over K that is not rotated", lambda plan, _: not plan.rotate and not plan.overlap),
    ("A's scales MN-major", lambda plan, _: not plan.row_scales),
    (f"a split over {SPLITS} CTAs that share no operand", lambda plan, _: plan.cluster in SPLITS and plan.multicast is None),
    ("the registers epilogue", lambda plan, _: plan.epilogue == "registers"),
    (
        "at most 16 warps, and registers for the blocks on their way",
        lambda plan, _: registers(plan) * threads(plan) <= 1 << 16 and threads(plan) <= 512,
    ),
    ("BLOCK_M of M at least, got {problem.m}", lambda plan, problem: problem is None or plan.block_m >= problem.m),
    ("operands of less than 4 GiB", lambda plan, problem: problem is None or max(problem.m, problem.n) * problem.k < 1 << 32),
)
"""The single statement of the rules, the broadest first."""


LEAST_REGISTERS = {(8, 1): 56, (8, 2): 104, (16, 1): 80, (16, 2): 128}
"""Of a thread of CTAs of BLOCK_M tokens with so many stages: with fewer ptxas 13.0 spills. Left alone it takes up to 16 more."""


def registers(plan: GemmPlan) -> int:
    """Of a thread, about: what is on its way, sums and products, addresses."""
    least = LEAST_REGISTERS.get((plan.block_m, plan.num_stages))
    return least or 20 + plan.num_stages * (17 + plan.block_m + plan.block_m // 4) + 2 * plan.block_m + 16 * (plan.num_stages > 1)


def candidates(problem: GemmProblem, device: Device) -> list[GemmPlan]:
    """A CTA a tile, with `IN_FLIGHT` blocks on their way; and splits whose CTAs all run at one time."""
    return [*_whole(problem, device), *_splits(problem, device)]


def _plan(problem: GemmProblem, block_n: int, depth: int, warps: int, split: int = 1) -> GemmPlan:
    block_m = next((m for m in BLOCK_MS if m >= problem.m), BLOCK_MS[-1])
    dtypes = problem.a_dtype.name, problem.b_dtype.name, problem.d_dtype.name
    return GemmPlan(NAME, block_m, block_n, depth, *dtypes, cluster=split, epilogue="registers", warps=warps)


def _whole(problem: GemmProblem, device: Device) -> list[GemmPlan]:
    """The one plan that measurements speak for: blocks on their way by warps as far as there are blocks and registers, else by depth."""
    if problem.m > MOST_TOKENS_WHOLE:
        return []
    tiles_each = max(1.0, -(-problem.n // BLOCK_NS[0]) / device.num_sms)
    wanted, blocks = 1 << round(math.log2(max(IN_FLIGHT / tiles_each, 2))), problem.k // 128
    # a warp for each block of K, where two blocks would be all that it has: 32768x512 at M = 8 5.96 us for 6.34
    wanted = blocks if blocks == 2 * wanted <= 8 else wanted
    warps = min(wanted, 16, 1 << (max(blocks, 1).bit_length() - 1))
    plan = _plan(problem, BLOCK_NS[0], max(1, min(wanted // warps, 2, blocks // warps)), warps)
    if problem.m > MOST_TOKENS_IN_TURNS and blocks > warps * plan.num_stages:
        return []
    return [plan] if refusal(plan, problem) is None else []


def _splits(problem: GemmProblem, device: Device) -> list[GemmPlan]:
    """Where tiles are few: splits that have enough blocks on their way, a block for nearly every warp, and no more CTAs than run at one time."""
    if problem.n > MOST_TILES * BLOCK_NS[0] * device.num_sms:
        return []
    plans, blocks = [], problem.k // 128
    for block_n, split, warps in product(BLOCK_NS[:2], SPLITS[1:], WARPS[1:]):
        each, clusters = -(-blocks // (split * warps)), -(-problem.n // block_n)
        # NOTE: 7 and 14 warps only where all have as many blocks: K = 7168 is 56
        if each > MOST_BLOCKS or 4 * each * split * warps > 5 * blocks or (warps % 7 == 0 and blocks % (split * warps)):
            continue
        on_their_way = -(-clusters * split // device.num_sms) * warps * (block_n // 16)
        for depth in DEPTHS[: min(each, 2)]:
            plan = _plan(problem, block_n, depth, warps, split)
            is_enough = depth * on_their_way >= min(IN_FLIGHT, blocks) // 2
            at_once = device.clusters_at_once(split) * min(min_ctas(plan), MOST_CTAS)
            if is_enough and clusters <= at_once and refusal(plan, problem) is None:
                plans.append(plan)
    return plans


def refusal(plan: GemmPlan, problem: GemmProblem | None) -> str | None:
    """Why a plan cannot be built, or cannot take the problem, or None."""
    return first_broken(RULES, plan, problem)


def threads(plan: GemmPlan) -> int:
    """Of a CTA: `warps` warps for each 16 rows."""
    return 32 * plan.warps * (plan.block_n // 16)


def min_ctas(plan: GemmPlan) -> int:
    """CTAs that a multiprocessor is to have registers for: as many as can be, where it is known how few registers will do.

    More than a multiprocessor runs ptxas would ignore.
    """
    if plan.cluster == 1 or (plan.block_m, plan.num_stages) not in LEAST_REGISTERS:
        return 1
    return ctas_at_once(threads(plan), registers(plan))


def smem(plan: GemmPlan) -> SmemMap:
    """The sums of all warps, and what peers send."""
    return SmemMap.of(*of_sums(plan))


def of_sums(plan: GemmPlan) -> tuple[tuple[str, int, int, int], ...]:
    """The last parts of a map: the sums of a CTA's warps; of a cluster also what each CTA has of the part that this one owns, and their barrier."""
    nbytes = plan.block_m * plan.block_n * 4
    here = ("partial", nbytes, plan.warps, 16)
    return (here,) if plan.cluster == 1 else (here, ("sums", nbytes // plan.cluster, plan.cluster, 16), ("bar", 8, 1, 8))


def mapped_arrays(plan: GemmPlan) -> tuple[str, ...]:
    """As `KernelSpec` has it."""
    return ()


def pointers(plan: GemmPlan) -> tuple[str, ...]:
    """As `KernelSpec` has it."""
    return ("a", "b", "sfa", "sfb", "d")


def bind(plan: GemmPlan, laid: Any) -> tuple[Any, ...]:
    """The kernel's arguments, in order, for operands laid out by `layouts.operands`."""
    problem = laid.problem
    return (
        *(u64(address(getattr(laid, name))) for name in pointers(plan)),
        u32(laid.a.strides[0]),
        u32(laid.b.strides[0]),
        u64(laid.sfa.strides[1]),
        u64(laid.sfb.strides[0]),
        u64(laid.d.strides[0]),
        u32(problem.m),
        u32(problem.n),
        u32(problem.k),
    )


def grid(plan: GemmPlan, problem: GemmProblem, device: Device) -> int:
    """CTAs: one a tile; the hardware deals them out, several to a multiprocessor."""
    return count_tiles(plan, problem) * plan.cluster


def count_tiles(plan: GemmPlan, problem: GemmProblem) -> int:
    """Tiles of the output."""
    return -(-problem.n // plan.block_n)


def build(plan: GemmPlan) -> Built:
    """The kernel of a plan. Imports its file, and Numba with it."""
    from . import sm90_fp8_gemv_1d2d

    return sm90_fp8_gemv_1d2d.build(plan)
