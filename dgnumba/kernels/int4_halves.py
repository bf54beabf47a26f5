"""What a warpgroup does with one stage of 4-bit weights for more than 128 tokens: a record is unpacked once, and multiplied by halves of the tokens.

Both halves use one set of accumulators, one after the other, so that these and the totals of 256 tokens find registers. What does not go by the
number of tokens, to unpack, scales, barriers, serves twice as many as with `int4_stage.stage_for`; a sum's registers are promoted in the same
order, and its bits are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..integers import u32
from ..ptx import Fragment, fragment, thread, unpack, unrolled
from .int4_spec import Int4Plan
from .int4_stage import Multiply

STRIP = 32
"""Tokens whose scales are loaded at a time, behind the wait for products: those of a half would find no registers."""


class Halves(Multiply):
    """The products of a record with a half of the tokens, and their promotion: Python that runs once, at compile time, or in the emulator."""

    def __init__(self, plan: Int4Plan) -> None:
        super().__init__(plan)
        self.tokens = plan.block_m // plan.turns
        self.registers = self.tokens // 2
        self.load_tokens = fragment.load_token_scales_for(STRIP)

    def parts(self, total: Any) -> list[Any]:
        """The sums of each half."""
        return [fragment.part(total, half * self.registers, self.registers) for half in range(self.plan.turns)]

    def issue_half(self, record: int, half: int, frags: list[Any], desc: Any, free: list[Any] | None) -> list[Any]:
        """`issue` with the tokens of a half: they lie behind those before them, 128 bytes a token and block.

        NOTE: of integers the registers of `free` are not used again: ptxas 13.0 takes their conversions to float32 before and behind the second
        half's products for one, and drops the first half's products. It finds the same registers for both by itself.
        """
        return self.issue(record, frags, desc + half * (self.tokens * 128 // 16), None if self.is_integer else free)

    def promoted_half(self, total: Any, accs: list[Any], scales: list[Any], rests: list[Any], tokens: Any) -> Any:
        """`promoted`, with the scales of a half's tokens from `tokens` on, where they have scales for each record."""
        if not self.is_scaled:
            return self.promoted(total, accs, scales, rests, None)
        out, count = None, STRIP // 2
        for first in range(0, self.registers, count):
            columns = self.load_tokens(tokens + first * 8)
            some = [fragment.part(acc, first, count) for acc in accs]
            added = self.promoted(fragment.part(total, first, count), some, scales, rests, columns)
            out = fragment.join(out, added) if first else added
        return out


def halved_stage_for(plan: Int4Plan) -> Callable[..., Any]:
    """`int4_stage.stage_for` by halves of the tokens."""
    multiply = Halves(plan)
    take, nbytes = multiply.take, plan.record.nbytes

    @unrolled(tied="total")
    def stage_halved(total: Fragment, base: u32, tid: u32, desc: u32, tokens: u32, tables: u32) -> Fragment:
        """wgmma.mma_async - total += W @ A.T * scales over a stage's records, W unpacked in registers, by halves of the tokens.

        PTX:       ISA 9.0, "wgmma"; sm_90a
        Scope:     thread
        Args:      total   float32 fragment of 64 x block_m
                   base    u32  shared address of the stage's first record of this warpgroup's 64 rows
                   tid     u32  thread of the warpgroup
                   desc    u32  low word of the descriptor of the stage's tokens
                   tokens  u32  shared address of this lane's first pair of token scales
                   tables  u32  shared address of the tables of e4m3 for zero points
        Returns:   total
        Lanes:     layouts.lanes.wgmma_accumulator
        Emulates:  exactly
        """
        pair = tid // 4
        totals = multiply.parts(total)
        frags = take.fragments(base, tid, tables)
        accs = None
        for record in range(plan.records):
            here = base + record * nbytes
            scales = take.scales(here, pair)
            rests = take.rests(here, pair) if multiply.has_sums else []
            following: list[Any] = []
            for half in range(plan.turns):
                is_last = half == plan.turns - 1
                accs = multiply.issue_half(record, half, frags, desc, accs)
                # what comes behind the products stays behind them: ptxas would spread it between them
                thread.syncwarp()
                if is_last and record + 1 < plan.records:
                    following = take.fragments(here + nbytes, tid, tables)
                accs = multiply.wait(accs)
                if is_last:
                    unpack.hold([register for frag in frags for register in frag])
                at = tokens + (record * plan.block_m + half * multiply.tokens) * 4
                totals[half] = multiply.promoted_half(totals[half], accs, scales, rests, at)
            frags = following
        if multiply.is_scaled:
            # the last scales are loaded behind the last wait, and one lane tells for its warp that the stage's bytes have been read
            thread.syncwarp()
        return fragment.join(*totals)

    return stage_halved
