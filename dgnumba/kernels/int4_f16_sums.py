"""What a warpgroup does with one stage of 4-bit weights where sums are float16: of a group, in the tensor core, and of groups.

e4m3 beside int4, whose operands are the weights over 2^8. Half as many registers are added to as in float32, by the tensor core and by
promotion, of which an instruction takes two; what else is issued then has room beside the products (H200, 2026-11-30, bench/NOTES.md).

    sums    of `RECORDS_OF_A_SUM` records: += (scales * ratio) * acc, acc the tensor core's sum of a group
    total   of all records: += sums

so that no number is rounded more often than once for each record of a sum, and once for each sum. `ratio` is the power of two that keeps all within
float16 (`Int4Weights.f16_ratio`); it is taken off again, with the operands' 2^-8, in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._numba import device_function
from ..integers import u32
from ..ptx import Registers, convert, f32, fragment, unpack, unrolled
from .int4_spec import Int4Plan
from .int4_stage import Multiply

RECORDS_OF_A_SUM = 8
"""Records whose sums are added up before they are added to the total."""

ONES = u32(0x3C003C00)
"""1 twice, as float16."""


def f16_stage_for(plan: Int4Plan) -> Callable[..., Any]:
    """The operation `stage(sums, base, tid, desc, ratio)`: a stage's products, added to `sums`."""
    multiply = Multiply(plan)
    take, nbytes = multiply.take, plan.record.nbytes

    def twice(scales: tuple[Any, Any], ratio: Any) -> tuple[Any, Any]:
        low, high = (scale * ratio for scale in scales)
        return convert.f32x2_to_f16x2(low, low), convert.f32x2_to_f16x2(high, high)

    @unrolled(tied="sums")
    def stage_f16(sums: Registers, base: u32, tid: u32, desc: u32, ratio: f32) -> Registers:
        """wgmma.mma_async - sums += W @ A.T * scales * ratio over a stage's records, in float16, W unpacked in registers.

        PTX:       ISA 9.0, "wgmma"; sm_90a
        Scope:     thread
        Args:      sums    u32 registers, two float16 each: 64 x block_m
                   base    u32  shared address of the stage's first record of this warpgroup's 64 rows
                   tid     u32  thread of the warpgroup
                   desc    u32  low word of the descriptor of the stage's tokens
                   ratio   float32, a power of two
        Returns:   sums
        Lanes:     layouts.lanes.wgmma_accumulator, two elements a register
        Emulates:  exactly
        """
        frags = take.fragments(base, tid, None)
        for record in range(plan.records):
            accs = multiply.issue(record, frags, desc)
            here = base + record * nbytes
            scales = [twice(pair, ratio) for pair in take.plain_scales(here, tid // 4)]
            following = take.fragments(here + nbytes, tid, None) if record + 1 < plan.records else []
            accs = multiply.wait(accs)
            unpack.hold([register for frag in frags for register in frag])
            for acc, rows in zip(accs, scales):
                sums = fragment.promote_f16x2(sums, acc, rows)
            frags = following
        return sums

    return stage_f16


@device_function
def add_sums(total: Any, sums: Any) -> Any:
    """total += sums, in float16."""
    return fragment.promote_f16x2(total, sums, (ONES, ONES))
