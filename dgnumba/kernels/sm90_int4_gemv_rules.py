"""Which problems and plans `sm90_int4_gemv` takes, what they need of shared memory, their launch, and what they should cost."""

from __future__ import annotations

from itertools import product
from math import log2
from typing import Any, NamedTuple

from ..device import Device
from ..dtypes import DTYPES
from ..int4_problem import Int4Problem
from ..integers import u32, u64
from ..layouts.smem import SmemMap
from ..xp import address
from .int4_spec import Int4Plan, address_or_0
from .sm90_int4_gemm_rules import refused_types
from .spec import Built, Rule, ctas_at_once, first_broken, one_cta

NAME = "sm90_int4_gemv"

BLOCK_M, BLOCK_NS = 8, (16, 32, 64)
WARPS, DEPTHS = (4, 8, 16), (1, 2, 3, 4)
MOST_SIXTEENFOLD = 1023
"""Records that a warp may sum in int32 where sums are sixteen times as large: of 128 products of at most 128 * 8 each."""

IN_FLIGHT = 64 << 10
"""Bytes of weights that a plan may have on their way to a multiprocessor: FP8's kernel of this kind did best with 64 KB (bench/NOTES.md)."""


def supports(problem: Int4Problem, device: Device) -> str | None:
    """None when this kernel takes the problem on the device, else the reason why not."""
    # NOTE: the instructions are those of sm_80; tried and priced for sm_90a alone.
    if device.arch != "sm_90a":
        return f"is for sm_90a, {device.name} is {device.arch}"
    if problem.m > BLOCK_M:
        return f"is for M up to {BLOCK_M}, got {problem.m}"
    if problem.zeros == "float":
        return "takes zero points that are integers, got floats"
    return refused_types(problem)


RULES: tuple[Rule, ...] = (
    (f"BLOCK_M of {BLOCK_M}", lambda plan, _: plan.block_m == BLOCK_M),
    (f"BLOCK_N of {BLOCK_NS}", lambda plan, _: plan.block_n in BLOCK_NS),
    (f"{WARPS} records a stage, one for each warp", lambda plan, _: plan.records in WARPS),
    (f"{DEPTHS} stages", lambda plan, _: plan.num_stages in DEPTHS),
    ("no scales folded into weights", lambda plan, _: not plan.fold),
    ("no sums in float16", lambda plan, _: not plan.f16_sums),
    ("no stores of four columns", lambda plan, _: not plan.quads),
    ("no split, no tail, and nothing to widen", lambda plan, _: plan.cluster == 1 and not plan.widen),
    (
        f"{MOST_SIXTEENFOLD} records a warp at most, whose sums are sixteen times as large, got {{problem.records}} for all",
        lambda plan, problem: not (plan.is_whole and plan.is_sixteenfold) or problem.records <= MOST_SIXTEENFOLD * plan.records,
    ),
    ("registers for the records on their way", lambda plan, _: registers(plan) <= min(232, 65536 // threads(plan))),
    ("M up to {problem.m}", lambda plan, problem: problem.m <= plan.block_m),
)
"""The single statement of the rules, the broadest first."""


def refusal(plan: Int4Plan, problem: Int4Problem) -> str | None:
    """Why a plan cannot be built, or cannot take the problem, or None."""
    return plan.differs_from(problem) or first_broken(RULES, plan, problem)


def held_of_strip(plan: Int4Plan) -> int:
    """Registers of a thread that 16 rows of a record take on their way: eight words of codes, then scales and zero points of each group."""
    scales = 0 if plan.is_whole else 2 if plan.record.scale_bytes == 4 else 1
    return 8 + plan.record.groups * (scales + (plan.zeros != "none"))


def held(plan: Int4Plan) -> int:
    """Registers of a thread that all of a tile's rows of a record take on their way, and the scales of two tokens, where records have these."""
    return plan.block_n // 16 * held_of_strip(plan) + 2 * plan.has_block_scales


def registers(plan: Int4Plan) -> int:
    """Of a thread, about: what is on its way, fragments of two steps and their tokens, sums and products, addresses."""
    strips = plan.block_n // 16
    return 44 + plan.num_stages * held(plan) + strips * (8 + 8 + 2) + 6 * plan.has_block_scales


def token_bytes(plan: Int4Plan) -> int:
    """Of a record's tokens in shared memory: one or two blocks of eight rows of 128 bytes."""
    return BLOCK_M * 128 * DTYPES[plan.a_dtype].itemsize


def threads(plan: Int4Plan) -> int:
    """Of a CTA: its warps share the tile's rows, and each has its own records of K."""
    return 32 * plan.records


def smem(plan: Int4Plan) -> SmemMap:
    """The tokens that each warp has on their way, its tables of e4m3, and the sums of all warps."""
    return SmemMap.of(
        ("a", token_bytes(plan) * plan.num_stages, plan.records, 128),
        ("tables", 4 * plan.table_words, plan.records, 16),
        ("partial", plan.block_m * plan.block_n * 4, plan.records, 16),
    )


def is_batch_invariant(plan: Int4Plan) -> bool:
    """As `Int4Kernel` has it: warps sum every so many-th record, which the kernels for more tokens do not."""
    return False


def candidates(problem: Int4Problem, device: Device) -> list[Int4Plan]:
    """Plans that fit the device, have work for each warp, and no more on their way than memory can use."""
    plans = []
    for block_n, warps, depth in product(BLOCK_NS, WARPS, DEPTHS):
        plan = Int4Plan.of(problem, NAME, block_m=BLOCK_M, block_n=block_n, num_stages=depth, records=warps)
        if refusal(plan, problem) is not None or smem(plan).launch_bytes > device.smem_per_block:
            continue
        stages = -(-problem.records // warps)
        if (depth > stages and depth > 1) or (warps > WARPS[0] and warps > problem.records) or block_n * 64 * warps * depth > IN_FLIGHT:
            continue
        plans.append(plan)
    return plans


def count_tiles(plan: Int4Plan, problem: Int4Problem) -> int:
    """Tiles of the output."""
    return -(-problem.rows // plan.block_n)


def grid(plan: Int4Plan, problem: Int4Problem, device: Device) -> int:
    """CTAs: one a tile; the hardware deals them out, several to a multiprocessor."""
    return count_tiles(plan, problem)


LAUNCH, TOKEN, ARRIVAL, MEMORY_SHARE, CLOCK = 2.68, 0.02, 0.282, 1.487, 1750.0
"""us from launch to end, us a token, us until records that were asked for are there, the data sheet's bandwidth as it counts beside the others
(more than 1: three parts that hide one another meet in a norm), cycles a us.

Fitted to 399 times of 15 products with bfloat16 (H200, 2026-11-30), as are the constants below but the paces.
"""


class Pace(NamedTuple):
    """How long a record takes that is there.

    step    us  of a warp, for the root of its strips
    strip   cycles of a multiprocessor's schedulers for 16 rows of it
    tokens  the same for its tokens
    """

    step: float
    strip: float
    tokens: float


PACES = {
    "bits16": Pace(0.129, 44.3, 5.09), "signs": Pace(0.168, 61.2, 2.51), "table": Pace(0.194, 81.5, 1.7), "bytes": Pace(0.0648, 35.0, 1.22)
}  # fmt: skip
"""By the order of the codes: fitted to 480 times in 40 products (`bench/results/tune_int4_gemv_h200.json`); "table" to those of int4 beside
e4m3 before it had an order of its own.
"""

WARP = 0.008
"""us for a warp of a tile, whose sums meet at its end: too little to be told from noise, enough to prefer fewer warps where all else is equal."""

FLIGHT, OVER = 32.0, 0.113
"""KB of weights on their way to a multiprocessor beyond which memory is slower, and by how much with each doubling."""


def estimate(plan: Int4Plan, problem: Int4Problem, device: Device) -> float:
    """What a plan should cost, in microseconds: a launch, then memory, a warp's waits or the schedulers."""
    strips, ctas, pace = plan.block_n // 16, count_tiles(plan, problem), PACES[plan.record.order]
    at_once = ctas_at_once(threads(plan), registers(plan), smem(plan).launch_bytes)
    rounds = max(1.0, ctas / (device.num_sms * at_once))
    records = -(-problem.records // plan.records)
    latency = rounds * (ARRIVAL * -(-records // plan.num_stages) + pace.step * strips**0.5 * records)
    most = -(-ctas // device.num_sms)  # tiles of the multiprocessor that has most
    busy = most * problem.records * (strips * pace.strip * max(1, plan.record.groups / 2) + pace.tokens) / CLOCK
    flight = min(at_once, ctas / device.num_sms) * plan.block_n * 64 * plan.records * plan.num_stages / 1024
    memory = problem.bytes / (MEMORY_SHARE * device.memory_bandwidth * 1e-6) * (1 + OVER * max(0.0, log2(flight / FLIGHT)))
    return LAUNCH + TOKEN * problem.m + WARP * plan.records + (latency**2 + busy**2 + memory**2) ** 0.5


FALLBACK = False
ANY_SCALES = True
WAITS = True
LAUNCHES_DEPENDENTS = True
min_ctas = one_cta
MAPPED_ARRAYS: tuple[str, ...] = ()
"""It needs no tensor map."""

SCALARS = ("a", "w", "d", "d_pitch", "bias", "c", "c_pitch", "token_scales", "alpha", "a_pitch", "row_bytes", "m", "n", "records",
           "sfa", "sfa_row", "sfa_pitch")  # fmt: skip
"""What its arguments are, in order: addresses of arrays of `Int4LaidOut`, and numbers."""


def bind(plan: Int4Plan, laid: Any) -> tuple[Any, ...]:
    """The kernel's arguments, in order, for operands laid out by `int4_operands.lay_out`."""
    problem = laid.problem
    strides = (0, 0) if laid.sfa is None else laid.sfa.strides
    return (
        u64(address(laid.a)), u64(address(laid.w)), u64(address(laid.d)), u64(laid.d.strides[0]), u64(address_or_0(laid.bias)),
        u64(address_or_0(laid.c)), u64(0 if laid.c is None else laid.c.strides[0]), u64(address_or_0(laid.token_scales)),
        u32(laid.alpha_bits), u32(laid.a.strides[0]), u32(laid.a.shape[1] * laid.a.itemsize), u32(problem.m), u32(problem.n),
        u32(problem.records), u64(address_or_0(laid.sfa)), *(u32(x) for x in strides),
    )  # fmt: skip


def build(plan: Int4Plan) -> Built:
    """The kernel of a plan. Imports its file, and Numba with it."""
    from . import sm90_int4_gemv

    return sm90_int4_gemv.build(plan)
