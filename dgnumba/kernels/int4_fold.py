"""What a warpgroup does with one stage of 4-bit weights where scales are folded into them: unpack, scale, multiply. Nothing is promoted.

A weight is rounded to the activations' type, 16 bits, and all of K is added up in the tensor core's own accumulators: no instruction touches
these, and no second set of them is needed beside a total: two warpgroups have room for 256 tokens, which is what it gains by, 13 to 17 % (H200,
2026-11-30, bench/NOTES.md). Within a stage a record's products queue behind those of the record before, so that the tensor core
goes from the one to the other; the fragments of two records are alive meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..dtypes import DTYPES
from ..integers import u32
from ..ptx import Fragment, convert, memory, packed, unpack, unrolled, wgmma
from .int4_spec import Int4Plan
from .int4_stage import Multiply, Unpack

MULTIPLY = {"bfloat16": packed.multiply_bf16x2, "float16": packed.multiply_f16x2}
ROUND = {"bfloat16": convert.f32x2_to_bf16x2, "float16": convert.f32x2_to_f16x2}


class Fold:
    """Weights times their scales, as fragments: Python that runs once, at compile time, or in the emulator."""

    def __init__(self, plan: Int4Plan, take: Unpack) -> None:
        self.plan, self.take = plan, take
        self.multiply = MULTIPLY[plan.a_dtype]
        # twice the power of two by which scales are those of the operands (`Int4Plan.operand_power`): it rounds nothing
        factor = np.array([2.0**plan.operand_power] * 2, np.float32).astype(DTYPES[plan.a_dtype].numpy)
        self.factor = int(factor.view(np.uint32)[0]) if plan.operand_power else None

    def scales(self, base: Any, pair: Any) -> list[tuple[Any, Any]]:
        """The scale of row q twice in a register, and that of row q + 8, a group each."""
        record = self.plan.record
        first = base + record.scales_at + pair * (2 * record.scale_bytes)
        pairs = [self._twice(first + group * (64 * record.scale_bytes)) for group in range(record.groups)]
        return [(self._of_operands(low), self._of_operands(high)) for low, high in pairs]

    def _of_operands(self, pair: Any) -> Any:
        return pair if self.factor is None else self.multiply(pair, u32(self.factor))

    def _twice(self, at: Any) -> tuple[Any, Any]:
        if self.plan.scale_dtype == self.plan.a_dtype:
            both = memory.load_shared_u32(at)
            return packed.permute_bytes(both, both, 0x1010), packed.permute_bytes(both, both, 0x3232)
        if (self.plan.scale_dtype, self.plan.a_dtype) == ("float8_e8m0fnu", "bfloat16"):
            # the byte is the exponent of a bfloat16; 0, which would be a subnormal number, is not folded (`Int4Weights.folds_into`)
            both = memory.load_shared_u16(at)
            return (both & 255) * 0x00800080, (both >> 8) * 0x00800080
        low, high = self.take.load_pair(at)
        return ROUND[self.plan.a_dtype](low, low), ROUND[self.plan.a_dtype](high, high)

    def fragments(self, base: Any, tid: Any, tables: Any) -> list[Any]:
        """Four registers for each step of K: even ones are of row q, odd ones of row q + 8."""
        frags, scales = self.take.fragments(base, tid, tables), self.scales(base, tid // 4)
        return [
            tuple(self.multiply(register, scales[self.take.group_of(step)][r % 2]) for r, register in enumerate(frag))
            for step, frag in enumerate(frags)
        ]


def folded_stage_for(plan: Int4Plan) -> Callable[..., Any]:
    """`int4_stage.stage_for` with scales folded into the weights."""
    multiply = Multiply(plan)
    fold, nbytes = Fold(plan, multiply.take), plan.record.nbytes

    @unrolled(tied="total")
    def stage_folded(total: Fragment, base: u32, tid: u32, desc: u32, tokens: u32, tables: u32) -> Fragment:
        """wgmma.mma_async - total += (W * scales) @ A.T over a stage's records, W unpacked, scaled and rounded in registers.

        PTX:       ISA 9.0, "wgmma"; sm_90a
        Scope:     thread
        Args:      total   float32 fragment of 64 x block_m
                   base    u32  shared address of the stage's first record of this warpgroup's 64 rows
                   tid     u32  thread of the warpgroup
                   desc    u32  low word of the descriptor of the stage's tokens
                   tokens, tables  u32  not used
        Returns:   total
        Lanes:     layouts.lanes.wgmma_accumulator
        Emulates:  exactly
        """
        behind: list[Any] = []
        for record in range(plan.records):
            frags = fold.fragments(base + record * nbytes, tid, tables)
            total = multiply.issue_into(total, record, frags, desc)
            if record:
                # these products wait behind those of the record before: only its registers are waited for, not the sums
                total = wgmma.wait(total, 1)
                unpack.hold([register for frag in behind for register in frag])
            behind = frags
        total = wgmma.wait(total, 0)
        unpack.hold([register for frag in behind for register in frag])
        return total

    return stage_folded
