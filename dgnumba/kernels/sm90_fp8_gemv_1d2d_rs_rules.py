"""What plans `sm90_fp8_gemv_1d2d_rs` has: which problems it takes, how many warps share a tile's K, its shared memory, its launch."""

from __future__ import annotations

from itertools import product
from typing import Any

from ..device import Device
from ..integers import u32, u64
from ..layouts.smem import SmemMap
from ..problem import GemmProblem
from ..xp import address
from .sm90_fp8_gemm_1d2d_rules import supports as _supports
from .sm90_fp8_gemv_1d2d_rules import of_sums
from .spec import Built, GemmPlan, Rule, first_broken, one_cta, own_stages

NAME = "sm90_fp8_gemv_1d2d_rs"

BLOCK_MS, BLOCK_NS, BLOCK_KS = (8, 16, 24, 32), (16, 32, 64), (128,)
DEPTHS, WARPGROUPS, SPLITS = (1, 2, 3), (1, 2, 4), (1, 2, 4, 8)
MOST_TOKENS = BLOCK_MS[-1]
OFFERED_NS, OFFERED_TOKENS = (32, 64), 4
"""BLOCK_N of the plans that are offered, and for how many tokens at most; any other is built for who asks for it."""


def supports(problem: GemmProblem, device: Device) -> str | None:
    """None when this kernel takes the problem on the device, else the reason why not."""
    reason = _supports(problem, device)
    if reason is None and problem.m > MOST_TOKENS:
        return f"is for M up to {MOST_TOKENS}, got {problem.m}"
    if reason is None and problem.k % 128:
        return f"takes K of a multiple of 128, got {problem.k}"
    return reason


ROW_SCALES = True
WAITS = True
LAUNCHES_DEPENDENTS = True
WEIGHTS_FIRST = True
RESIDENT = False
first_stages = own_stages
min_ctas = one_cta


def is_batch_invariant(plan: GemmPlan) -> bool:
    """As `KernelSpec` has it: warps sum every so many-th block of K, as many as suit M; an instruction's 32 products are of 64 neighbours."""
    return False


def slices(plan: GemmPlan) -> int:
    """Blocks of K that a warpgroup multiplies at once: one for each of its warps that have the same rows."""
    return 64 // plan.block_n


def columns(plan: GemmPlan) -> int:
    """N of a wgmma: the tokens, once for each of these blocks."""
    return plan.block_m * slices(plan)


def warpgroups(plan: GemmPlan) -> int:
    """Of a CTA."""
    return threads(plan) // 128


def registers(plan: GemmPlan) -> int:
    """Of a thread, about: what is on its way, the weights that are multiplied, products, scales, sums, addresses."""
    on_their_way = plan.num_stages * (16 + columns(plan) // 4 + 2)
    return on_their_way + 16 + columns(plan) // 2 + plan.block_m // 4 + plan.block_m // 2 + 18


RULES: tuple[Rule, ...] = (
    (f"BLOCK_M of {BLOCK_MS}", lambda plan, _: plan.block_m in BLOCK_MS),
    (f"BLOCK_N of {BLOCK_NS}", lambda plan, _: plan.block_n in BLOCK_NS),
    (
        "BLOCK_M of BLOCK_N at most, and whole pieces of 16 bytes of tokens for each of 128 threads",
        lambda plan, _: columns(plan) <= 64 and columns(plan) % 16 == 0,
    ),
    (
        f"{WARPGROUPS} warpgroups: warps * BLOCK_N / 64",
        lambda plan, _: threads(plan) % 128 == 0 and warpgroups(plan) in WARPGROUPS,
    ),
    (f"{DEPTHS} stages", lambda plan, _: plan.num_stages in DEPTHS),
    (f"a split over {SPLITS} CTAs that share no operand", lambda plan, _: plan.cluster in SPLITS and plan.multicast is None),
    ("the registers epilogue", lambda plan, _: plan.epilogue == "registers"),
    ("FP8 tensor cores, which need no widening", lambda plan, _: not plan.widen),
    ("a loop over K that is not rotated", lambda plan, _: not plan.rotate and not plan.overlap),
    ("registers for the steps on their way", lambda plan, _: registers(plan) * threads(plan) <= 1 << 16),
    ("BLOCK_M of M at least, got {problem.m}", lambda plan, problem: problem is None or plan.block_m >= problem.m),
    (
        "K of whole steps of a warpgroup, 8192 / BLOCK_N, got {problem.k}",
        lambda plan, problem: problem is None or problem.k % (128 * slices(plan)) == 0,
    ),
    ("operands of less than 4 GiB", lambda plan, problem: problem is None or max(problem.m, problem.n) * problem.k < 1 << 32),
)
"""The single statement of the rules, the broadest first."""


def candidates(problem: GemmProblem, device: Device) -> list[GemmPlan]:
    """Of the plans that can be built, the sorts that measurements speak for.

    Tiles of 16 weights, splits, and products of more than `OFFERED_TOKENS` tokens are the fastest nowhere, or by 1 to 2 % (H200, 2026-11-30,
    bench/NOTES.md).
    """
    return _plans(problem, device, OFFERED_NS, (1,)) if problem.m <= OFFERED_TOKENS else []


def buildable(problem: GemmProblem, device: Device) -> list[GemmPlan]:
    """Every plan whose tile just takes all tokens, whose warpgroups all have a step of K, and whose clusters all run at one time."""
    return _plans(problem, device, BLOCK_NS, SPLITS)


def _plans(problem: GemmProblem, device: Device, block_ns: tuple[int, ...], splits: tuple[int, ...]) -> list[GemmPlan]:
    fixed = {"epilogue": "registers", "with_c": problem.with_c, "row_scales": problem.row_scales}
    dtypes = problem.a_dtype.name, problem.b_dtype.name, problem.d_dtype.name
    plans = []
    for block_n, groups, depth, split in product(block_ns, WARPGROUPS, DEPTHS, splits):
        if split > 1 and -(-problem.n // block_n) > device.clusters_at_once(split):
            continue
        block_m = next((m for m in BLOCK_MS if m >= problem.m and m * 64 // block_n % 16 == 0), BLOCK_MS[-1])
        plan = GemmPlan(NAME, block_m, block_n, depth, *dtypes, cluster=split, warps=groups * 64 // block_n, **fixed)  # type: ignore[arg-type]
        if problem.k >= 128 * plan.warps * depth * split and refusal(plan, problem) is None:
            plans.append(plan)
    return plans


def refusal(plan: GemmPlan, problem: GemmProblem | None) -> str | None:
    """Why a plan cannot be built, or cannot take the problem, or None."""
    return first_broken(RULES, plan, problem)


def threads(plan: GemmPlan) -> int:
    """Of a CTA: `warps` warps for each 16 rows."""
    return 32 * plan.warps * (plan.block_n // 16)


def smem(plan: GemmPlan) -> SmemMap:
    """Each warpgroup's tokens, of two steps, and each warp's scales of a step, then the sums of all warps."""
    return SmemMap.of(
        ("tokens", columns(plan) * 128, 2 * warpgroups(plan), 1024),
        ("scales", 128, plan.warps * (plan.block_n // 16), 16),
        *of_sums(plan),
    )


def mapped_arrays(plan: GemmPlan) -> tuple[str, ...]:
    """As `KernelSpec` has it."""
    return ()


def pointers(plan: GemmPlan) -> tuple[str, ...]:
    """As `KernelSpec` has it."""
    return ("a", "b", "sfa", "sfb", "d", "addend")


def bind(plan: GemmPlan, laid: Any) -> tuple[Any, ...]:
    """The kernel's arguments, in order, for operands laid out by `layouts.operands`."""
    problem = laid.problem
    return (
        *(u64(address(getattr(laid, name))) for name in pointers(plan)),
        u32(laid.a.strides[0]),
        u32(laid.b.strides[0]),
        u32(laid.sfa.strides[0]),
        u64(laid.sfa.strides[1]),
        u64(laid.sfb.strides[0]),
        u64(laid.d.strides[0]),
        u64(laid.addend.strides[0]),
        u32(problem.m),
        u32(problem.n),
        u32(problem.k),
    )


def grid(plan: GemmPlan, problem: GemmProblem, device: Device) -> int:
    """CTAs: one a tile, or a cluster; the hardware deals them out, several to a multiprocessor."""
    return count_tiles(plan, problem) * plan.cluster


def count_tiles(plan: GemmPlan, problem: GemmProblem) -> int:
    """Tiles of the output."""
    return -(-problem.n // plan.block_n)


def build(plan: GemmPlan) -> Built:
    """The kernel of a plan. Imports its file, and Numba with it."""
    from . import sm90_fp8_gemv_1d2d_rs

    return sm90_fp8_gemv_1d2d_rs.build(plan)
