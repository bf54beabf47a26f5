"""What plans `sm80_gemm` has: which problems it takes, which tiles can be built, their shared memory, their grid."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..device import Device
from ..dtypes import DTYPES
from ..integers import u32, u64
from ..layouts.smem import SmemMap
from ..problem import GemmProblem
from ..xp import address
from .sm80_cost import Parts, price
from .spec import Built, GemmPlan, Rule, first_broken, most_stages, one_cta, own_stages

NAME = "sm80_gemm"

ROW = 128
"""Bytes of K in a stage."""

TILES: dict[tuple[int, int], tuple[int, int]] = {
    (16, 64): (1, 4),
    (32, 128): (1, 4),
    (64, 64): (2, 2),
    (64, 128): (2, 2),
    (128, 128): (2, 2),
    (128, 256): (2, 4),
    (256, 128): (4, 2),
}
"""(BLOCK_M, BLOCK_N) -> warps along M and along N."""

SCALED_TILES: dict[tuple[int, int], tuple[int, int]] = {
    (16, 64): (1, 4),
    (32, 128): (1, 4),
    (64, 64): (2, 2),
    (64, 128): (2, 4),
    (128, 128): (4, 2),
}
"""The same with scales: a warp holds two sums, so half the tile; and a tile lies in one 128-column block of B's scales."""

BLOCK_KS = (64, 128, 256)
MIN_STAGES, MAX_STAGES = 2, 6
OUTPUTS = {
    "bfloat16": ("bfloat16", "float32"),
    "float16": ("float16", "float32"),
    "float8_e4m3fn": ("bfloat16", "float16", "float32"),
    "int8": ("int32",),
    "int4": ("int32",),
}
"""Type of A and B -> types of D."""


def supports(problem: GemmProblem, device: Device) -> str | None:
    """None when this kernel takes the problem on the device, else the reason why not."""
    a_dtype, cc = problem.a_dtype.name, device.cc
    if cc < (8, 0):
        return f"needs sm_80 or later, {device.name} is sm_{cc[0]}{cc[1]}"
    if problem.b_dtype is not problem.a_dtype or a_dtype not in OUTPUTS:
        return f"takes a and b of one type of {', '.join(OUTPUTS)}, got {a_dtype} and {problem.b_dtype}"
    if problem.d_dtype.name not in OUTPUTS[a_dtype]:
        return f"takes d of {' or '.join(OUTPUTS[a_dtype])} for {a_dtype}, got {problem.d_dtype}"
    expected = ((1, 128), (128, 128)) if a_dtype == "float8_e4m3fn" else (None, None)
    if (problem.gran_a, problem.gran_b) != expected:
        return f"takes scales of {expected[0]} on A and {expected[1]} on B for {a_dtype}, got {problem.gran_a} and {problem.gran_b}"
    if a_dtype == "float8_e4m3fn" and cc[0] == 9:
        return "leaves FP8 on Hopper to wgmma: there mma.sync widens it to float16"
    if a_dtype == "int4" and cc >= (9, 0):
        return f"needs INT4 tensor cores, sm_80 to sm_89; {device.name} is sm_{cc[0]}{cc[1]}"
    if problem.k * problem.a_dtype.bits % 8:
        return f"needs K of whole bytes, got {problem.k} of {a_dtype}"
    if problem.with_c:
        return "adds nothing to its products"
    return "takes one group" if problem.groups != 1 else None


ROW_SCALES = False
WAITS = False
LAUNCHES_DEPENDENTS = False
WEIGHTS_FIRST = False
RESIDENT = False
first_stages = own_stages
min_ctas = one_cta


def is_batch_invariant(plan: GemmPlan) -> bool:
    """As `KernelSpec` has it: every plan promotes block after block of K."""
    return True


def is_scaled(plan: GemmPlan) -> bool:
    """Whether blocks of K are promoted with scales."""
    return plan.a_dtype == "float8_e4m3fn"


def needs_widening(device: Device) -> bool:
    """Whether its mma.sync has no FP8: on Hopper e4m3 is taken, but lowered to float16 by ptxas, with more registers than our own way."""
    return device.cc < (8, 9) or device.cc[0] == 9


def tiles_of(plan: GemmPlan) -> dict[tuple[int, int], tuple[int, int]]:
    """The tiles that a plan can choose from, and their warps."""
    return SCALED_TILES if is_scaled(plan) else TILES


def warps_of(plan: GemmPlan) -> tuple[int, int]:
    """Warps along M and along N."""
    return tiles_of(plan)[plan.block_m, plan.block_n]


RULES: tuple[Rule, ...] = (
    (f"BLOCK_M x BLOCK_N of {list(TILES)}", lambda plan, _: (plan.block_m, plan.block_n) in TILES),
    (f"BLOCK_M x BLOCK_N of {list(SCALED_TILES)} with scales", lambda plan, _: (plan.block_m, plan.block_n) in tiles_of(plan)),
    (f"BLOCK_K of {ROW} bytes", lambda plan, _: plan.block_k * DTYPES[plan.a_dtype].bits == 8 * ROW),
    (f"2 to {MAX_STAGES} stages", lambda plan, _: MIN_STAGES <= plan.num_stages <= MAX_STAGES),
    ("A's scales MN-major", lambda plan, _: not plan.row_scales),
    ("warps by its roles, none named", lambda plan, _: not plan.warps),
    ("no cluster", lambda plan, _: plan.cluster == 1 and plan.multicast is None),
    ("the registers epilogue", lambda plan, _: plan.epilogue == "registers"),
    ("a loop over K that is not rotated", lambda plan, _: not plan.rotate and not plan.overlap),
    ("FP8 operands, to widen them", lambda plan, _: is_scaled(plan) or not plan.widen),
)
"""The single statement of the rules, the broadest first."""


def candidates(problem: GemmProblem, device: Device) -> list[GemmPlan]:
    """Plans that fit the device; the stages are as many as fit, with room for a second CTA where a tile is small."""
    a, b, d = problem.a_dtype.name, problem.b_dtype.name, problem.d_dtype.name
    plans = []
    for block_m, block_n in TILES:
        plan = GemmPlan(NAME, block_m, block_n, MIN_STAGES, a, b, d, 8 * ROW // problem.a_dtype.bits, epilogue="registers")
        plan = replace(plan, widen=is_scaled(plan) and needs_widening(device))
        stages = min(MAX_STAGES, most_stages(smem, plan, device))
        if stages >= MIN_STAGES:
            plan = replace(plan, num_stages=stages)
            if refusal(plan, problem) is None:
                plans.append(plan)
    return plans


def refusal(plan: GemmPlan, problem: GemmProblem) -> str | None:
    """Why a plan cannot be built, or cannot take the problem, or None."""
    return first_broken(RULES, plan, problem)


def smem(plan: GemmPlan) -> SmemMap:
    """The ring of A and B."""
    return SmemMap.of(("a", plan.block_m * ROW, plan.num_stages, 1024), ("b", plan.block_n * ROW, plan.num_stages, 1024))


def threads(plan: GemmPlan) -> int:
    """Threads of a CTA."""
    warps_m, warps_n = warps_of(plan)
    return 32 * warps_m * warps_n


def grid(plan: GemmPlan, problem: GemmProblem, device: Device) -> int:
    """CTAs: one a tile."""
    return count_tiles(plan, problem)


def count_tiles(plan: GemmPlan, problem: GemmProblem) -> int:
    """Tiles of the output."""
    return -(-problem.m // plan.block_m) * -(-problem.n // plan.block_n)


def parts(plan: GemmPlan, problem: GemmProblem, device: Device) -> Parts:
    """What a plan should take (`sm80_cost`)."""
    return price(plan, problem, device, warps_of(plan), smem(plan).launch_bytes)


def mapped_arrays(plan: GemmPlan) -> tuple[str, ...]:
    """As `KernelSpec` has it: it needs no tensor map."""
    return ()


def pointers(plan: GemmPlan) -> tuple[str, ...]:
    """As `KernelSpec` has it."""
    return ("a", "b", "d", "sfa", "sfb")


def bind(plan: GemmPlan, laid: Any) -> tuple[Any, ...]:
    """The kernel's arguments, in order, for operands laid out by `layouts.operands`; without scales `sfa` and `sfb` are None."""
    problem = laid.problem
    arrays = [laid.a, laid.b, laid.d, laid.sfa, laid.sfb]
    pitches = [laid.a.strides[0], laid.b.strides[0], laid.d.strides[0]]
    pitches += [0, 0] if laid.sfa is None else [laid.sfa.strides[1], laid.sfb.strides[0]]
    extents = [problem.m, problem.n, problem.k * problem.a_dtype.bits // 8]
    return (*(u64(0 if x is None else address(x)) for x in arrays), *map(u32, pitches), *map(u32, extents))


def build(plan: GemmPlan) -> Built:
    """The kernel of a plan. Imports its file, and Numba with it."""
    from . import sm80_gemm

    return sm80_gemm.build(plan)
