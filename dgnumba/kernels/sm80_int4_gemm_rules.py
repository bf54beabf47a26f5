"""Which problems and plans `sm80_int4_gemm` takes, what they need of shared memory, their launch, and what they should cost."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

from ..device import Device
from ..dtypes import DTYPES
from ..int4_problem import Int4Problem
from ..integers import u32, u64
from ..layouts.smem import SmemMap
from ..xp import address
from . import sm80_cost
from .int4_spec import Int4Plan, address_or_0
from .sm80_gemm_rules import needs_widening
from .sm90_int4_gemm_rules import accumulators, refused_types
from .spec import Built, Rule, first_broken, most_stages, one_cta

NAME = "sm80_int4_gemm"

BLOCK_MS, BLOCK_NS, RECORD_COUNTS = (8, 16, 32, 64), (64, 128), (1, 2)
MIN_STAGES, MAX_STAGES = 2, 8


def supports(problem: Int4Problem, device: Device) -> str | None:
    """None when this kernel takes the problem on the device, else the reason why not."""
    cc = device.cc
    if cc < (8, 0):
        return f"needs sm_80 or later, {device.name} is sm_{cc[0]}{cc[1]}"
    if problem.a_dtype.name == "float8_e4m3fn" and problem.zeros != "none" and cc < (8, 9):
        return f"needs sm_89 for zero points beside {problem.a_dtype}, {device.name} is sm_{cc[0]}{cc[1]}"
    return refused_types(problem)


RULES: tuple[Rule, ...] = (
    (f"BLOCK_M of {BLOCK_MS}", lambda plan, _: plan.block_m in BLOCK_MS),
    (f"BLOCK_N of {BLOCK_NS}", lambda plan, _: plan.block_n in BLOCK_NS),
    (f"{RECORD_COUNTS} records a stage", lambda plan, _: plan.records in RECORD_COUNTS),
    ("no split and no tail", lambda plan, _: plan.cluster == 1),
    (f"{MIN_STAGES} to {MAX_STAGES} stages", lambda plan, _: MIN_STAGES <= plan.num_stages <= MAX_STAGES),
    ("no scales folded into weights", lambda plan, _: not plan.fold),
    ("no sums in float16", lambda plan, _: not plan.f16_sums),
    ("no stores of four columns", lambda plan, _: not plan.quads),
    ("FP8 operands, to widen them", lambda plan, _: plan.a_dtype == "float8_e4m3fn" or not plan.widen),
    (
        "accumulators of all groups of a record in the registers",
        lambda plan, _: accumulators(plan) + plan.block_m // 2 <= 96,
    ),
    ("whole stages, got {problem.records} records along K", lambda plan, problem: problem.records % plan.records == 0),
)
"""The single statement of the rules, the broadest first."""


def refusal(plan: Int4Plan, problem: Int4Problem) -> str | None:
    """Why a plan cannot be built, or cannot take the problem, or None."""
    return plan.differs_from(problem) or first_broken(RULES, plan, problem)


def threads(plan: Int4Plan) -> int:
    """Threads of a CTA: four warps for each 64 rows of weights."""
    return 2 * plan.block_n


def is_batch_invariant(plan: Int4Plan) -> bool:
    """As `Int4Kernel` has it: a CTA sums all of K of its tile, record after record."""
    return plan.cluster == 1


def smem(plan: Int4Plan) -> SmemMap:
    """The ring of A, W and token scales, then the tables of zero points."""
    size = DTYPES[plan.a_dtype].itemsize
    has_sfa = plan.has_block_scales
    return SmemMap.of(
        ("a", plan.block_m * 128 * size * plan.records, plan.num_stages, 1024),
        ("w", plan.block_n // 64 * plan.records * plan.record.nbytes, plan.num_stages, 128),
        ("sfa", -(-plan.block_m * 4 * plan.records // 128) * 128 if has_sfa else 0, plan.num_stages, 128),
        ("tables", 4 * plan.table_words, 1, 16),
    )


def candidates(problem: Int4Problem, device: Device) -> list[Int4Plan]:
    """Plans that fit the device: tiles of no more tokens than there are, as many stages as fit."""
    plans = []
    widen = problem.a_dtype.name == "float8_e4m3fn" and needs_widening(device)
    # many groups of a record leave registers for few tokens only
    block_ms = [b for b in BLOCK_MS if b < 2 * problem.m or b == BLOCK_MS[0]]
    for block_m, block_n, records in product(block_ms, BLOCK_NS, RECORD_COUNTS):
        plan = Int4Plan.of(problem, NAME, block_m=block_m, block_n=block_n, num_stages=MIN_STAGES, records=records, widen=widen)
        if refusal(plan, problem) is None:
            stages = min(MAX_STAGES, most_stages(smem, plan, device))
            if stages >= MIN_STAGES:
                plans.append(replace(plan, num_stages=stages))
    return plans


def count_tiles(plan: Int4Plan, problem: Int4Problem) -> int:
    """Tiles of the output."""
    return -(-problem.m // plan.block_m) * -(-problem.tiles // (plan.block_n // 64))


def grid(plan: Int4Plan, problem: Int4Problem, device: Device) -> int:
    """CTAs: one a tile."""
    return count_tiles(plan, problem)


UNPACK_COST, RECORD_COST = 150.0, 250.0
"""Cycles: in which a multiprocessor unpacks a record, all its schedulers busy; a record of four warps that are alone. From instruction counts."""


def estimate(plan: Int4Plan, problem: Int4Problem, device: Device) -> float:
    """What a plan should cost, in microseconds: a launch, then memory, or the slowest pipe of a multiprocessor; not fitted to any measurement."""
    size, warpgroups = problem.a_dtype.itemsize, plan.block_n // 64
    together = max(1, min((device.smem_per_block + 1024) // (smem(plan).launch_bytes + 1024), 512 // threads(plan)))
    rounds, rest = divmod(count_tiles(plan, problem), device.num_sms * together)
    last = -(-rest // device.num_sms)
    per_record = plan.record.nbytes * warpgroups + plan.block_m * 128 * size
    macs = plan.block_m * plan.block_n * 128 * (2 if plan.zeros == "float" else 1)
    tensor = macs / sm80_cost.macs_per_cycle(device, 16 if plan.widen else 8 * size)
    busy = max(tensor, warpgroups * (UNPACK_COST + accumulators(plan) * 1.2), per_record / sm80_cost.L2_RATE)

    def pace(ctas: int) -> float:
        return max(busy * ctas, RECORD_COST / plan.records**0.5) if ctas else 0.0

    cycles = problem.records * (rounds * pace(together) + pace(last)) + sm80_cost.TILE * (rounds * together + last)
    memory = problem.bytes / (0.85 * device.memory_bandwidth * 1e-6)
    return sm80_cost.LAUNCH + max(cycles / sm80_cost.CLOCK, memory)


FALLBACK = True
ANY_SCALES = False
WAITS = False
LAUNCHES_DEPENDENTS = False
min_ctas = one_cta
MAPPED_ARRAYS: tuple[str, ...] = ()
"""It needs no tensor map."""

SCALARS = ("a", "sfa", "w", "d", "d_pitch", "bias", "c", "c_pitch", "token_scales", "alpha", "a_pitch", "sfa_pitch", "row_bytes", "m", "n", "tiles",
           "records")  # fmt: skip
"""What its arguments are, in order: addresses of arrays of `Int4LaidOut`, and numbers."""


def bind(plan: Int4Plan, laid: Any) -> tuple[Any, ...]:
    """The kernel's arguments, in order, for operands laid out by `int4_operands.lay_out`."""
    problem = laid.problem
    return (
        u64(address(laid.a)), u64(address_or_0(laid.sfa)), u64(address(laid.w)), u64(address(laid.d)), u64(laid.d.strides[0]),
        u64(address_or_0(laid.bias)), u64(address_or_0(laid.c)), u64(0 if laid.c is None else laid.c.strides[0]),
        u64(address_or_0(laid.token_scales)), u32(laid.alpha_bits), u32(laid.a.strides[0]), u32(0 if laid.sfa is None else laid.sfa.strides[1]),
        u32(laid.a.shape[1] * laid.a.itemsize), u32(problem.m), u32(problem.n), u32(problem.tiles), u32(problem.records),
    )  # fmt: skip


def build(plan: Int4Plan) -> Built:
    """The kernel of a plan. Imports its file, and Numba with it."""
    from . import sm80_int4_gemm

    return sm80_int4_gemm.build(plan)
