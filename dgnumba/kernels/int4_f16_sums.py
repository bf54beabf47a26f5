"""What a warpgroup does with one stage of 4-bit weights where sums are float16: of a group, in the tensor core, and of groups.

e4m3 beside int4, whose operands are the weights over 2^8. Half as many registers are added to as in float32, by the tensor core and by
promotion, of which an instruction takes two; what else is issued then has room beside the products (H200, 2026-11-30, bench/NOTES.md).

    sums    of `RECORDS_OF_A_SUM` records: += (scales * ratio) * acc, acc the tensor core's sum of a group
    total   of all records: += sums

so that no number is rounded more often than once for each group of a sum's records, and once for each sum. `ratio` is the power of two that
keeps all within float16 (`Int4Weights.f16_ratio`); it is taken off again, with the operands' 2^-8, in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._numba import device_function
from ..integers import u32
from ..ptx import Registers, convert, f32, fragment, mbarrier, thread, unpack, unrolled
from .int4_spec import Int4Plan
from .int4_stage import ONES, Multiply, Unpack

RECORDS_OF_A_SUM = 8
"""Records whose sums are added up before they are added to the total."""

ONES_F16 = u32(ONES["float16"])

FRAGMENTS = 16
"""Registers of a record's fragments."""


def first_fragments_for(plan: Int4Plan) -> Callable[..., Any]:
    """The operation `first(base, tid)`: the fragments of a stage's first record."""
    take = Unpack(plan)

    @unrolled
    def first_fragments(base: u32, tid: u32) -> Registers(FRAGMENTS):
        """ld.shared.v4, lop3.b32 - a record's fragments, unpacked.

        PTX:       ISA 9.0, "ld", "lop3"
        Scope:     thread
        Args:      base  u32  shared address of the record
                   tid   u32  thread of the warpgroup
        Returns:   four registers for each step of K
        Lanes:     layouts.lanes.wgmma_a_fp8, step by step
        Emulates:  exactly
        """
        return _flat(take.fragments(base, tid, None))

    return first_fragments


def f16_stage_for(plan: Int4Plan) -> Callable[..., Any]:
    """The operation `stage(held, base, tid, desc, ratio, then, full, phase)`: a stage's products, added to sums.

    While the tensor core multiplies a stage's last record, the next stage is awaited and its first record is unpacked.
    """
    multiply = Multiply(plan)
    take, nbytes, pairs = multiply.take, plan.record.nbytes, plan.block_m // 4

    def twice(scales: tuple[Any, Any], ratio: Any) -> tuple[Any, Any]:
        low, high = (scale * ratio for scale in scales)
        return convert.f32x2_to_f16x2(low, low), convert.f32x2_to_f16x2(high, high)

    @unrolled(tied="held")
    def stage_f16(held: Registers, base: u32, tid: u32, desc: u32, ratio: f32, then: u32, full: u32, phase: u32) -> Registers:
        """wgmma.mma_async - sums += W @ A.T * scales * ratio over a stage's records, in float16, W unpacked in registers.

        PTX:       ISA 9.0, "wgmma"; sm_90a
        Scope:     thread
        Args:      held    u32 registers: sums, two float16 each, of 64 x block_m; then the fragments of the stage's first record
                   base    u32  shared address of the stage's first record of this warpgroup's 64 rows
                   tid     u32  thread of the warpgroup
                   desc    u32  low word of the descriptor of the stage's tokens
                   ratio   float32, a power of two
                   then    u32  as `base`, of the next stage
                   full    u32  shared address of the barrier that says that the next stage is there
                   phase   u32  its phase
        Returns:   held, with the fragments of the next stage's first record
        Lanes:     layouts.lanes.wgmma_accumulator, two elements a register; layouts.lanes.wgmma_a_fp8
        Emulates:  exactly
        """
        sums, flat = held[:pairs], held[pairs:]
        frags = [tuple(flat[i : i + 4]) for i in range(0, FRAGMENTS, 4)]
        for record in range(plan.records):
            accs = multiply.issue(record, frags, desc)
            # what is loaded behind it comes behind the products, which ptxas would spread it between: 3 to 7 % (H200, 2026-11-30)
            thread.syncwarp()
            here = base + record * nbytes
            scales = [twice(pair, ratio) for pair in take.plain_scales(here, tid // 4)]
            if record + 1 == plan.records:
                mbarrier.wait(full, phase)
            following = take.fragments(then if record + 1 == plan.records else here + nbytes, tid, None)
            for frag in following:  # left to itself ptxas unpacks behind the wait
                unpack.pin(frag, base)
            accs = multiply.wait(accs)
            unpack.hold(_flat(frags))
            for acc, rows in zip(accs, scales):
                sums = fragment.promote_f16x2(sums, acc, rows)
            frags = following
        return (*sums, *_flat(frags))

    return stage_f16


def _flat(frags: Any) -> tuple[Any, ...]:
    return tuple(register for frag in frags for register in frag)


@device_function
def add_sums(total: Any, sums: Any) -> Any:
    """total += sums, in float16."""
    return fragment.promote_f16x2(total, sums, (ONES_F16, ONES_F16))
