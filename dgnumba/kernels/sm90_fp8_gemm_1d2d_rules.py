"""What plans `sm90_fp8_gemm_1d2d` has: which problems it takes, which tiles can be built, their shared memory, their launch."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import Any

from ..device import Device
from ..integers import u32, u64
from ..layouts.descriptors import ONE_LINE, TWO_LINES, TensorMap
from ..layouts.smem import SmemMap
from ..layouts.tiles import column_scales
from ..problem import GemmProblem
from ..xp import address
from .epilogue_rules import EPILOGUES, panel_box, staging_bytes
from .spec import RING, Built, GemmPlan, Rule, changed, first_broken, most_stages, one_cta, own_stages

NAME = "sm90_fp8_gemm_1d2d"


BLOCK_MS, BLOCK_NS, BLOCK_KS = (16, 32, 64, 128, 256), tuple(range(16, 193, 16)), (128,)
MIN_STAGES, MAX_STAGES = 3, 16
ROW_SCALES = True
WAITS = True
LAUNCHES_DEPENDENTS = False
WEIGHTS_FIRST = False
RESIDENT = False
first_stages = own_stages
min_ctas = one_cta


def supports(problem: GemmProblem, device: Device) -> str | None:
    """None when this kernel takes the problem on the device, else the reason why not."""
    if device.cc[0] != 9:
        return f"needs Hopper (sm_90a), {device.name} is sm_{device.cc[0]}{device.cc[1]}"
    if (problem.gran_a, problem.gran_b) != ((1, 128), (128, 128)):
        return f"takes scales of 1x128 on A and 128x128 on B, got {problem.gran_a} and {problem.gran_b}"
    for name, dtype, taken in (
        ("a", problem.a_dtype, ("float8_e4m3fn", "float8_e5m2")),
        ("b", problem.b_dtype, ("float8_e4m3fn", "float8_e5m2")),
        ("d", problem.d_dtype, ("bfloat16", "float16", "float32")),
    ):
        if dtype.name not in taken:
            return f"takes {name} of {' or '.join(taken)}, got {dtype.name}"
    return "takes one group" if problem.groups != 1 else None


SHARINGS: tuple[tuple[int, str | None], ...] = ((1, None), (2, "A"), (2, "B"))
"""Clusters, and the operand that their CTAs share."""

RULES: tuple[Rule, ...] = (
    RING,
    ("warps by its roles, none named", lambda plan, _: not plan.warps),
    ("FP8 tensor cores, which need no widening", lambda plan, _: not plan.widen),
    (f"BLOCK_M of {BLOCK_MS}", lambda plan, _: plan.block_m in BLOCK_MS),
    (f"BLOCK_N of {BLOCK_NS}", lambda plan, _: plan.block_n in BLOCK_NS),
    (
        "BLOCK_M or BLOCK_N of 128 at most: two waves of accumulators and their sums must fit the registers",
        lambda plan, _: min(plan.block_m, plan.block_n) <= 128,
    ),
    ("a cluster of 2 with an operand shared, or none", lambda plan, _: (plan.cluster, plan.multicast) in SHARINGS),
    (
        "a share of a multicast operand that keeps the swizzle's eight rows",
        lambda plan, _: {None: 0, "A": plan.block_m, "B": plan.block_n}[plan.multicast] // plan.cluster % 8 == 0,
    ),
    (f"an epilogue of {tuple(EPILOGUES)} that writes {{plan.d_dtype}}", lambda plan, _: plan.d_dtype in EPILOGUES.get(plan.epilogue, ())),
    ("rotate, to overlap a tile's store with the next one's first products", lambda plan, _: plan.rotate or not plan.overlap),
    (
        "whole panels of 64 columns for the warp epilogue, and four warps with rows",
        lambda plan, _: plan.epilogue != "warp" or (plan.block_n % 64 == 0 and plan.block_m >= 64),
    ),
)
"""What a plan needs to be built, the broadest first."""

PROBLEM_RULES: tuple[Rule, ...] = (
    (
        "N of a multiple of 8 for the warp epilogue's 16-byte stores, got {problem.n}",
        lambda plan, problem: plan.epilogue != "warp" or problem.n % 8 == 0,
    ),
)
"""What it needs of the problem. Together with `RULES` the single statement of the rules."""


def candidates(problem: GemmProblem, device: Device) -> list[GemmPlan]:
    """Plans that fit the device; the stages are as many as fit. Row-major scales of A are read as they lie, or turned before."""
    fixed = problem.a_dtype.name, problem.b_dtype.name, problem.d_dtype.name, problem.with_c
    plans = _buildable(*fixed, False, device)
    if problem.row_scales:
        plans = (*_buildable(*fixed, True, device), *plans)
    return [_ordered(plan, problem) for plan in plans if first_broken(PROBLEM_RULES, plan, problem) is None]


def _ordered(plan: GemmPlan, problem: GemmProblem) -> GemmPlan:
    """The plan with the order of tiles that it is fastest in.

    NOTE: with a band of one tile its place costs no division by a width known at run time; of 128x144 ptxas then multiplies the nine runs' scales
    under the wait for the products, else behind it: 26.8 us for 28.4 at 4096x576x7168 (H200, 2026-11-30). Bands are for L2, where N is many tiles.
    """
    is_narrow = (plan.block_m, plan.block_n, plan.cluster) == (128, 144, 1) and problem.n <= 8 * plan.block_n
    return changed(plan, band=1) if is_narrow else plan


@lru_cache(maxsize=64)
def _buildable(a_dtype: str, b_dtype: str, d_dtype: str, with_c: bool, row_scales: bool, device: Device) -> tuple[GemmPlan, ...]:
    epilogues = [name for name, dtypes in EPILOGUES.items() if d_dtype in dtypes]
    sharings = [(cluster, multicast) for cluster, multicast in SHARINGS if device.clusters_at_once(cluster) >= 1]
    plans = []
    for block_m, block_n, epilogue in product(BLOCK_MS, BLOCK_NS, epilogues):
        tile = GemmPlan(
            NAME, block_m, block_n, MIN_STAGES, a_dtype, b_dtype, d_dtype, epilogue=epilogue, with_c=with_c, row_scales=row_scales
        )
        if first_broken(RULES, tile) is None:
            # neither a cluster nor the loop takes shared memory
            stages = min(MAX_STAGES, most_stages(smem, tile, device))
            # NOTE: a rotated loop pays with two waves and the room of the warp epilogue only (H200, 2026-11-29, bench/NOTES.md).
            loops = (False, True) if block_m == 256 and epilogue == "warp" else (False,)
            for (cluster, multicast), rotate in product(sharings if stages >= MIN_STAGES else (), loops):
                plan = changed(tile, num_stages=stages, cluster=cluster, multicast=multicast, rotate=rotate)
                if first_broken(RULES, plan) is None:
                    plans.append(plan)
    return tuple(plans)


def refusal(plan: GemmPlan, problem: GemmProblem) -> str | None:
    """Why a plan cannot be built, or cannot take the problem, or None."""
    return first_broken(RULES + PROBLEM_RULES, plan, problem)


def warpgroups_of(plan: GemmPlan) -> int:
    """Consumer warpgroups: one for up to 64 rows, else two."""
    return 1 if plan.block_m <= 64 else 2


def alternates(plan: GemmPlan) -> bool:
    """Whether two accumulators take turns (`sm90_fp8_gemm_1d2d_loops`): they and the sums must fit a thread's registers, up to 144 columns.

    One warpgroup has nobody else's products to promote under, and gains up to 10 %. Two hide each other's promotion, but for that of tiles of
    128x128, which gain 0 to 5 %; narrower ones lose up to 3, two waves each up to 9 (H200, 2026-11-30, bench/NOTES.md).
    """
    is_useful = (plan.block_m <= 64 and plan.block_n <= 144) or (plan.block_m, plan.block_n) == (128, 128)
    return is_useful and not plan.rotate


def threads(plan: GemmPlan) -> int:
    """Threads of a CTA: the consumers, and the warpgroup of the producer."""
    return 128 * warpgroups_of(plan) + 128


def smem(plan: GemmPlan) -> SmemMap:
    """D's staging, then the ring of A, B and scales, then the barriers."""
    return SmemMap.of(
        ("d", staging_bytes(plan), 1, 1024),
        ("a", plan.block_m * plan.block_k, plan.num_stages, 1024),
        ("b", plan.block_n * plan.block_k, plan.num_stages, 1024),
        # row-major ones are brought by 32 lanes: room for as many rows
        ("sfa", -(-plan.block_m * 4 // 128) * 128, plan.num_stages, 128),
        ("sfb", -(-column_scales(plan.block_n) * 16 // 128) * 128, plan.num_stages, 128),
        ("full", 8, plan.num_stages, 8),
        ("empty", 8, plan.num_stages, 8),
    )


def grid(plan: GemmPlan, problem: GemmProblem, device: Device) -> int:
    """CTAs: one a multiprocessor, fewer when there are fewer tiles; whole clusters."""
    tiles = count_tiles(plan, problem)
    return min(tiles, device.clusters_at_once(plan.cluster) * plan.cluster)


def count_tiles(plan: GemmPlan, problem: GemmProblem) -> int:
    """Tiles, those included that a cluster's even count adds."""
    m_blocks, n_blocks = -(-problem.m // plan.block_m), -(-problem.n // plan.block_n)
    if plan.multicast == "A":
        n_blocks = -(-n_blocks // plan.cluster) * plan.cluster
    if plan.multicast == "B":
        m_blocks = -(-m_blocks // plan.cluster) * plan.cluster
    return m_blocks * n_blocks


def mapped_arrays(plan: GemmPlan) -> tuple[str, ...]:
    """As `KernelSpec` has it."""
    return ("a", "b", "sfb", "d") if plan.row_scales else ("a", "b", "sfa", "sfb", "d")


def pointers(plan: GemmPlan) -> tuple[str, ...]:
    """As `KernelSpec` has it."""
    return ("d", "addend", "sfa") if plan.row_scales else ("d", "addend")


def is_batch_invariant(plan: GemmPlan) -> bool:
    """As `KernelSpec` has it: every plan promotes block after block of K."""
    return True


def is_streamed(block_m: Any, m: Any) -> Any:
    """Whether weights are streamed, so that L2 fetches a line of them at a time: BLOCK_M and M, or arrays of them.

    NOTE: at two lines a line is asked of memory twice, it seems, as the next 128 of K are on their way too: of 64 rows by 7168x16384 32x112 takes
    33.3 us, and 31.1. The kernels for few rows gain as much (8 rows: 30.8 and 28.7). Tiles of 128 rows lose 1 to 3 % by it there; where many
    tiles ask L2 for the same weights it is level, and at K = 512 4 to 7 % slower (H200, 2026-11-30, bench/NOTES.md).
    """
    return (block_m <= 64) & (m <= 128)


def bind(plan: GemmPlan, laid: Any) -> tuple[Any, ...]:
    """The kernel's arguments, in order, for operands laid out by `layouts.operands`."""
    problem = laid.problem
    a_rows = plan.block_m // (plan.cluster if plan.multicast == "A" else 1)
    b_rows = plan.block_n // (plan.cluster if plan.multicast == "B" else 1)
    d_box, d_swizzle = panel_box(plan)
    of_weights = ONE_LINE if is_streamed(plan.block_m, problem.m) else TWO_LINES
    return (
        TensorMap.of(laid.a, (plan.block_k, a_rows), swizzle=128),
        TensorMap.of(laid.b, (plan.block_k, b_rows), swizzle=128, l2_promotion=of_weights),
        *(() if plan.row_scales else (TensorMap.of(laid.sfa.T, (plan.block_m, 1)),)),
        TensorMap.of(laid.sfb, (4, column_scales(plan.block_n))),
        TensorMap.of(laid.d, d_box, swizzle=d_swizzle, dtype=problem.d_dtype.name),
        *(u64(address(getattr(laid, name))) for name in pointers(plan)),
        u64(laid.d.strides[0]),
        u64(laid.addend.strides[0]),
        *((u64(laid.sfa.strides[0]),) if plan.row_scales else ()),
        u32(problem.m),
        u32(problem.n),
        u32(problem.k),
    )


def build(plan: GemmPlan) -> Built:
    """The kernel of a plan. Imports its file, and Numba with it."""
    from . import sm90_fp8_gemm_1d2d

    return sm90_fp8_gemm_1d2d.build(plan)
