"""Which problems and plans `sm90_int4_gemm` takes, what they need of shared memory, and what they should cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from ..device import Device
from ..dtypes import DTYPES
from ..int4_problem import Int4Problem
from ..integers import u32, u64
from ..layouts.descriptors import TensorMap
from ..layouts.smem import SmemMap
from ..xp import address
from .int4_spec import MOST_AT_ONCE, Int4Plan, address_or_0
from .sm90_int4_cost import price
from .spec import Built, Rule, first_broken, most_stages, one_cta

NAME = "sm90_int4_gemm"

BLOCK_MS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
BLOCK_NS, RECORD_COUNTS, SPLITS, TAILS = (64, 128, 256), (1, 2, 4), (1, 2, 4, 8), (1, 2)
MIN_STAGES, MAX_STAGES = 2, 12

A_DTYPES = ("bfloat16", "float16", "float8_e4m3fn", "int8")
D_DTYPES = ("bfloat16", "float16", "float32", "int32")


QUADS_FROM = 128
"""Tokens of a tile from which four columns are stored together: of fewer it was no faster, or slower (H200, 2026-11-30, bench/NOTES.md)."""

MOST_WHOLE = 2**20
"""K from which sums of products of int8 and codes less a zero point, at most 128 * 15, might leave int32."""


def supports(problem: Int4Problem, device: Device) -> str | None:
    """None when this kernel takes the problem on the device, else the reason why not."""
    if device.arch != "sm_90a":
        return f"needs wgmma, which {device.name} ({device.arch}) has not"
    return refused_types(problem)


def refused_types(problem: Int4Problem) -> str | None:
    """Why no kernel takes a problem's types and epilogue, whatever the device, or None."""
    if problem.a_dtype.name not in A_DTYPES:
        return f"takes A of {', '.join(A_DTYPES)}, got {problem.a_dtype}"
    if problem.a_dtype.name == "int8" and problem.w_dtype.name == "float4_e2m1fn":
        return "takes float4_e2m1fn beside floats only, got int8"
    if problem.d_dtype.name not in D_DTYPES:
        return f"gives D of {', '.join(D_DTYPES)}, got {problem.d_dtype}"
    if problem.d_dtype.name == "int32" and not problem.is_whole:
        return "gives int32 of int8 beside weights with one scale a row, got others"
    if problem.is_whole and problem.k >= MOST_WHOLE:
        return f"sums int32 over K below {MOST_WHOLE}, got {problem.k}"
    if problem.has_gate and problem.with_bias:
        return "adds a bias to a product, not to a gated one"
    return None


def accumulators(plan: Int4Plan) -> int:
    """Registers a thread that a record's sums take beside the total: none where that is what is added to, by halves of the tokens half as many."""
    if plan.is_whole or plan.fold:
        return 0
    if plan.f16_sums:
        return plan.block_m // 4 * plan.record.groups
    return plan.block_m // 2 // plan.turns * plan.record.groups * (2 if plan.zeros == "float" else 1)


def fragments_fit(plan: Int4Plan) -> bool:
    """Whether the fragments of a stage's records find registers: those of the next record are made while one's are multiplied."""
    if plan.turns > 1 and plan.records > 1:
        has_room = plan.block_m <= 192 and plan.record.groups == 1 and plan.zeros != "float" and plan.block_n == 128
        return has_room and plan.records == 2 and plan.a_dtype == "float8_e4m3fn"
    return plan.turns > 1 or plan.block_m * plan.records <= (64 if plan.block_n == 256 else 256)


def may_store_quads(block_n: int, problem: Int4Problem) -> bool:
    """Whether plans of such tiles may store four columns of D together (`Int4Plan.quads`).

    Four warpgroups have no registers for it. C would be read by the lane that holds a sum, two bytes at a time as before; a gate leaves one column of
    two rows.
    """
    is_plain = problem.d_dtype.name in ("bfloat16", "float16") and not problem.has_gate and not problem.with_c
    return is_plain and block_n <= 128 and problem.n % 4 == 0 and problem.d_has_quads


def sums_fit(plan: Int4Plan) -> bool:
    """Whether ptxas finds registers for a record's sums beside its fragments.

    Beyond it spills or serialises the products: what ptxas 13.0 made of 3,065 candidates of all groups and zero points (2026-11-30).
    """
    if plan.f16_sums:
        # of several groups their scales are held too: what ptxas 13.0 made of 24 candidates and others (2026-11-30)
        held, groups = accumulators(plan) + plan.block_m // 2, plan.record.groups
        return groups == 1 or held <= 96 or plan.records == 1 and (groups == 2 or held <= 160)
    if plan.fold or plan.is_whole:
        return True
    if plan.block_n == 256 and DTYPES[plan.a_dtype].itemsize == 2:
        most = {"none": 32, "integer": 24, "float": 8}[plan.zeros]
        if plan.records == 1 and plan.zeros != "float":
            most = 64 if plan.cluster == 1 else 48  # the end of a shared tile takes a register more
        return plan.block_m * plan.record.groups <= most
    if plan.records == RECORD_COUNTS[-1] and plan.a_dtype != "float8_e4m3fn":
        return accumulators(plan) <= (24 if plan.zeros == "float" else 40)
    return True


def most_sums(plan: Int4Plan) -> int:
    """Registers a thread that a record's sums and the total have room in."""
    if plan.block_n == 256:
        return 64 if plan.records == 1 else 40
    if plan.f16_sums:
        return 192
    if plan.turns > 1:
        return 192 if DTYPES[plan.a_dtype].itemsize == 1 else 3 * plan.block_m // 4
    return 128


RULES: tuple[Rule, ...] = (
    (
        "A of 16 bits and scales that may be folded into the weights",
        lambda plan, problem: not plan.fold or problem.may_fold and DTYPES[plan.a_dtype].itemsize == 2 and plan.zeros != "float",
    ),
    (
        "e4m3 by rows beside int4, of 64 or 128 rows, for sums in float16 that scales and K leave in its range",
        lambda plan, problem: (
            not plan.f16_sums or problem.may_sum_f16 and plan.a_by_row and plan.record.order == "signs" and plan.block_n <= 128
        ),
    ),
    (
        "a tile of at most 128 rows, D of 16 bits without gate or C, N a multiple of 4, got {problem.n}, and D's rows at multiples of 8 bytes, for "
        "stores of four columns",
        lambda plan, problem: not plan.quads or may_store_quads(plan.block_n, problem),
    ),
    (f"BLOCK_M of {BLOCK_MS}", lambda plan, _: plan.block_m in BLOCK_MS),
    (f"BLOCK_N of {BLOCK_NS}", lambda plan, _: plan.block_n in BLOCK_NS),
    (f"{RECORD_COUNTS} records a stage", lambda plan, _: plan.records in RECORD_COUNTS),
    (f"a split over {SPLITS} CTAs", lambda plan, _: plan.split in SPLITS),
    (
        f"a tail of {TAILS}, of 64 or 128 rows and without a split",
        lambda plan, _: plan.tail in TAILS and (plan.tail == 1 or plan.split == 1 and plan.block_n <= 128),
    ),
    ("two stages or more, one to fill while the other is used", lambda plan, _: plan.num_stages >= 2),
    (
        "fragments of all records of a stage in the registers: fewer records for more tokens",
        lambda plan, _: fragments_fit(plan),
    ),
    (
        "accumulators of all groups of a record in the registers",
        lambda plan, _: accumulators(plan) + plan.block_m // 2 <= most_sums(plan),
    ),
    (
        "tables of e4m3 in the registers, beside the accumulators of all groups: fewer tokens, or fewer records a stage",
        lambda plan, _: plan.a_dtype != "float8_e4m3fn" or tables_fit(plan),
    ),
    (
        "sums and fragments of all groups in the registers, at several records a stage or beside 256 rows: fewer tokens",
        lambda plan, _: sums_fit(plan),
    ),
    (
        "one record a stage for float zero points and for folded scales beside 256 rows",
        lambda plan, _: plan.block_n < 256 or plan.records == 1 or (plan.zeros != "float" and not plan.fold),
    ),
    ("whole stages, got {problem.records} records along K", lambda plan, problem: problem.records % plan.records == 0),
    (
        "a stage for each CTA of a split",
        lambda plan, problem: problem.records // plan.records >= plan.cluster,
    ),
)
"""The single statement of the rules, the broadest first."""


def refusal(plan: Int4Plan, problem: Int4Problem) -> str | None:
    """Why a plan cannot be built, or cannot take the problem, or None."""
    return plan.differs_from(problem) or first_broken(RULES, plan, problem)


def producer_threads(plan: Int4Plan) -> int:
    """Threads beside the consumers: one warp; or four, of which three do nothing, so that registers can be moved to the consumers.

    NOTE: registers are given by warps in fours: nine warps leave 168 a thread, as twelve do, and seventeen 96, as twenty do.
    """
    return 128 if plan.block_n >= 128 else 32


def producer_registers(plan: Int4Plan) -> int:
    """What a producer thread keeps where there are four warps of them: no more than it needs, where consumers take all they can get."""
    return 24 if plan.block_m > MOST_AT_ONCE and not plan.fold and not plan.is_whole else 40


def consumer_registers(plan: Int4Plan) -> int:
    """Registers a consumer thread takes where there are four warps of producers.

    NOTE: what all hold after that must have been there at entry, else the kernel waits for ever: 168 for each of 384 threads, 96 of 640.
    """
    return 240 if plan.block_n == 128 and producer_registers(plan) == 24 else {64: 240, 128: 232, 256: 104}[plan.block_n]


def threads(plan: Int4Plan) -> int:
    """Threads of a CTA: a consumer warpgroup for 64 rows of weights, and the producer's warp or warps."""
    return 2 * plan.block_n + producer_threads(plan)


def is_batch_invariant(plan: Int4Plan) -> bool:
    """As `Int4Kernel` has it: a split adds up partial sums, whose number goes by M, as what is the tail does; weights are folded, and sums made
    float16, for some M, and not for others.
    """
    return plan.cluster == 1 and not plan.fold and not plan.f16_sums


def tables_fit(plan: Int4Plan) -> bool:
    """Whether ptxas keeps all of a plan for e4m3 in registers; found by compiling every one, as its own choices are not to be foreseen.

    With zero points each group's two rows have tables of their own, four words each, and a stage of several records holds them while the
    next record is unpacked. Where a token has one scale, nothing is loaded at a promotion, and more is unpacked ahead.
    """
    held = accumulators(plan) + plan.block_m // 2
    if plan.records == 1:
        return held <= 56 or plan.block_n < 256 or plan.zeros != "float"
    is_ahead = plan.a_by_row and plan.records == 4 and (plan.record.groups > 1 or plan.zeros == "float")
    if plan.block_n == 256:
        tables = 8 * plan.record.groups if plan.zeros == "integer" else 0
        return plan.group > 16 and held + tables <= 56 and (held <= 20 or not is_ahead)
    return held <= 56 or not (is_ahead or (plan.group == 16 and plan.zeros != "none"))


def smem(plan: Int4Plan) -> SmemMap:
    """The ring of W, A and token scales, whose place partial sums take when it is done with; the tables of zero points, then the barriers."""
    size = DTYPES[plan.a_dtype].itemsize
    stages, has_sfa = plan.num_stages, plan.has_block_scales
    a, w = plan.block_m * 128 * size * plan.records, plan.block_n // 64 * plan.records * plan.record.nbytes
    sfa = -(-plan.block_m * 4 * plan.records // 128) * 128 if has_sfa else 0
    partial = plan.block_m * plan.block_n * 4 if plan.cluster > 1 else 0
    return SmemMap.of(
        ("a", a, stages, 1024),
        ("w", w, stages, 128),
        ("sfa", sfa, stages, 128),
        ("rest", max(0, partial - (a + w + sfa) * stages), 1, 16),
        ("tables", 4 * plan.table_words, 1, 16),
        ("full", 8, stages, 8),
        ("empty", 8, stages, 8),
    ).over("partial", partial, "a")


def candidates(problem: Int4Problem, device: Device) -> list[Int4Plan]:
    """Plans that fit the device: one tile takes all tokens where it can, and all CTAs of a split run at one time."""
    # NOTE: by halves int8 is up to a quarter slower: its sums are converted, from accumulators that each half must have of its own (H200, 2026-11-30)
    many = [64, 96, 128, 192, 256] if problem.is_whole or problem.a_dtype.is_float else [64, 96, 128]
    block_ms = [b for b in BLOCK_MS if b >= problem.m and (problem.is_whole or b <= 128)][:1] or many
    # many groups of a record leave registers for few tokens only: then several tiles take them
    plans = _plans(problem, device, block_ms) or _plans(problem, device, BLOCK_MS)
    # NOTE: of one group a record, folded scales gain by the larger tiles that they leave registers for, and by nothing else (bench/NOTES.md)
    if problem.may_fold and problem.record.groups > 1 and problem.m > 32:
        plans += _plans(problem, device, block_ms if problem.m <= 64 else many, fold=True)
    elif problem.may_fold and problem.m > 128:
        plans += _plans(problem, device, [b for b in many if b > 128], fold=True)
    # what float16 rounds is less than what D does only where D is bfloat16; for fewer tokens memory is what binds
    if problem.may_sum_f16 and problem.d_dtype.name == "bfloat16" and problem.m > 32:
        plans += _plans(problem, device, block_ms if problem.m <= 128 else many, f16_sums=True)
    return plans


def _plans(problem: Int4Problem, device: Device, block_ms: Sequence[int], **ways: bool) -> list[Int4Plan]:
    plans = []
    shares = [(split, 1) for split in SPLITS] + [(1, tail) for tail in TAILS if tail > 1]
    for block_m, block_n, records, (split, tail) in product(block_ms, BLOCK_NS, RECORD_COUNTS, shares):
        quads = block_m >= QUADS_FROM and may_store_quads(block_n, problem)
        choices = {"block_m": block_m, "block_n": block_n, "records": records, "split": split, "tail": tail, "quads": quads}
        plan = Int4Plan.of(problem, NAME, num_stages=2, **choices, **ways)
        if refusal(plan, problem) is not None:
            continue
        tiles = count_tiles(plan, problem)
        if split > 1 and tiles > device.clusters_at_once(split):
            continue
        if tail > 1 and not has_tail(tiles, tail, device):
            continue
        stages = min(MAX_STAGES, most_stages(smem, replace(plan, split=1, tail=1), device))
        plan = replace(plan, num_stages=stages)
        # partial sums take the ring's place, or more; of two stages, where a split leaves a CTA few to go through, one is waited for too long (up to
        # 16 %, H200, 2026-11-30)
        if stages >= (MIN_STAGES if plan.split == 1 else 3) and smem(plan).launch_bytes <= device.smem_per_block:
            plans.append(plan)
    return plans


def has_tail(tiles: int, tail: int, device: Device) -> bool:
    """Whether clusters of `tail` CTAs can share the tiles of the last round, each at most one, behind one to four rounds of whole ones.

    Of more rounds half a one is a twelfth of the time, or less, before the pairs' meeting is paid.
    """
    clusters = device.clusters_at_once(tail)
    return 0 < clusters * tail < tiles <= 5 * clusters * tail and 0 < tiles % (clusters * tail) <= clusters


def count_tiles(plan: Int4Plan, problem: Int4Problem) -> int:
    """Tiles of the output."""
    return -(-problem.m // plan.block_m) * -(-problem.tiles // (plan.block_n // 64))


def grid(plan: Int4Plan, problem: Int4Problem, device: Device) -> int:
    """CTAs: one a multiprocessor, fewer when there are fewer tiles; a split has one tile a cluster, a tail clusters only."""
    tiles = count_tiles(plan, problem)
    if plan.tail > 1:
        return max(1, device.clusters_at_once(plan.tail)) * plan.tail
    return tiles * plan.split if plan.split > 1 else min(tiles, device.num_sms)


def estimate(plan: Int4Plan, problem: Int4Problem, device: Device) -> float:
    """What a plan should cost, in microseconds (`sm90_int4_cost`)."""
    return price(plan, problem, device, count_tiles(plan, problem), accumulators(plan))


FALLBACK = False
ANY_SCALES = False
WAITS = True
LAUNCHES_DEPENDENTS = True
min_ctas = one_cta
MAPPED_ARRAYS = ("a", "sfa")
"""Whose tensor maps `bind` gives, in order."""

SCALARS = ("w", "d", "d_pitch", "bias", "c", "c_pitch", "token_scales", "alpha", "ratio", "m", "n", "tiles", "records")
"""What its other arguments are, in order: addresses of arrays of `Int4LaidOut`, and numbers."""


def bind(plan: Int4Plan, laid: Any) -> tuple[Any, ...]:
    """The kernel's arguments, in order, for operands laid out by `int4_operands.lay_out`."""
    problem = laid.problem
    size = DTYPES[plan.a_dtype].itemsize
    columns = 128 // size
    a = laid.a
    blocks = TensorMap(
        f"uint{8 * size}", (columns, a.shape[0], -(-a.shape[1] // columns)), (int(a.strides[0]), 128), (columns, plan.block_m, plan.records * size),
        128, a,
    )  # fmt: skip
    sfa = TensorMap.of(laid.sfa.T, (plan.block_m, plan.records)) if plan.has_block_scales else blocks
    return (
        blocks, sfa, u64(address(laid.w)), u64(address(laid.d)), u64(laid.d.strides[0]), u64(address_or_0(laid.bias)), u64(address_or_0(laid.c)),
        u64(0 if laid.c is None else laid.c.strides[0]), u64(address_or_0(laid.token_scales)), u32(laid.alpha_bits), u32(laid.ratio_bits),
        u32(problem.m), u32(problem.n), u32(problem.tiles), u32(problem.records),
    )  # fmt: skip


def build(plan: Int4Plan) -> Built:
    """The kernel of a plan. Imports its file, and Numba with it."""
    from . import sm90_int4_gemm

    return sm90_int4_gemm.build(plan)
