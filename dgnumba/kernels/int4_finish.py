"""What a warpgroup does with finished sums: scale, gate, add, store. The seam for epilogues: `finish` takes two sums of one token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..dtypes import DTYPES
from ..integers import u32, u64
from ..layouts.int4.stream import ROWS
from ..ptx import Registers, activation, convert, memory, thread, unrolled
from .int4_spec import Int4Plan
from .int4_stage import decode_pair_for

STORES = {
    "bfloat16": memory.store_global_bf16_if,
    "float16": memory.store_global_f16_if,
    "float32": memory.store_global_f32_if,
}


class Finish:
    """The steps of an epilogue: Python that runs once, at compile time, or in the emulator."""

    def __init__(self, plan: Int4Plan) -> None:
        self.plan, self.record = plan, plan.record
        self.size = DTYPES[plan.d_dtype].itemsize

    def addend(self, condition: Any, at: Any) -> Any:
        """An element of C."""
        if self.plan.d_dtype == "float32":
            return convert.bits_to_f32(memory.load_global_u32_if(condition, at))
        bits = memory.load_global_u16_if(condition, at)
        return (convert.bf16x2_to_f32x2 if self.plan.d_dtype == "bfloat16" else convert.f16x2_to_f32x2)(bits)[0]

    def row_scales(self, condition: Any, w_ptr: Any, records: Any, row: Any) -> tuple[Any, Any]:
        """The scales of rows `row` and `row` + 8, from the first record of their tile."""
        size, in_tile = self.record.scale_bytes, row % ROWS
        first = u64(row // ROWS) * records * self.record.nbytes + (self.record.scales_at + (in_tile // 16 * 8 + in_tile % 8) * (2 * size))
        if size == 4:
            low, high = (memory.load_global_u32_if(condition, w_ptr + first + 4 * i) for i in (0, 1))
            return convert.bits_to_f32(low), convert.bits_to_f32(high)
        load = memory.load_global_u32_if if size == 2 else memory.load_global_u16_if
        return decode_pair_for(self.plan.scale_dtype)(load(condition, w_ptr + first))

    def sums(self, bits: list[Any], scales: tuple[Any, Any] | None) -> list[Any]:
        """Two finished sums as float32: of integers, their rows' scales times them."""
        if scales is None:
            return [convert.bits_to_f32(x) for x in bits]
        return [convert.s32_to_f32(x) * scale for x, scale in zip(bits, scales)]

    def finish(self, pairs: list[tuple[Any, Any]], tokens: list[Any], row: Any, more: tuple[Any, ...]) -> None:
        """`finish_for` for several tokens: what is loaded for any of them is loaded before the first is stored, as nobody waits for a store.

        What they share, of rows, is loaded where it is needed for the first, as the others come behind it.
        """
        size, d_ptr, d_pitch, m, n = self.size, more[2], more[3], more[-2], more[-1]
        columns = self.columns(row)
        inside = [[(token < m) & (column < n) for column in columns] for token in tokens]
        at = [[u64(token) * d_pitch + u64(column) * size for column in columns] for token in tokens]
        if self.plan.d_dtype == "int32":
            for bits, are_inside, places in zip(pairs, inside, at):
                for one, is_inside, place in zip(bits, are_inside, places):
                    memory.store_global_u32_if(is_inside, d_ptr + place, one)
            return
        for values, are_inside, places in zip(self.values(pairs, tokens, inside, row, more), inside, at):
            for value, is_inside, place in zip(values, are_inside, places):
                STORES[self.plan.d_dtype](is_inside, d_ptr + place, value)

    def columns(self, row: Any) -> list[Any]:
        """The columns of D that rows `row` and `row` + 8 of the weights are: of a gate one."""
        return [row // 16 * 8 + row % 16] if self.plan.has_gate else [row, row + 8]

    def values(
        self, pairs: list[tuple[Any, Any]], tokens: list[Any], inside: list[list[Any]], row: Any, more: tuple[Any, ...]
    ) -> Iterator[list[Any]]:
        """What is to be stored of each token, in float32; all that is loaded is loaded before the first."""
        plan, size = self.plan, self.size
        w_ptr, records, _, _, bias_ptr, c_ptr, c_pitch, token_ptr, alpha, m, _ = more
        columns = self.columns(row)
        of_rows = self.row_scales(inside[0][0], w_ptr, records, row) if plan.is_whole else None
        of_tokens, biases, addends = [], [], []
        if plan.has_token_scales:
            loaded = [memory.load_global_u32_if(token < m, token_ptr + u64(token) * 4) for token in tokens]
            of_tokens = [convert.bits_to_f32(x) for x in loaded]
        if plan.with_bias:
            loaded = [memory.load_global_u32_if(here, bias_ptr + u64(column) * 4) for here, column in zip(inside[0], columns)]
            biases = [convert.bits_to_f32(x) for x in loaded]
        if plan.with_c:
            at_c = [[c_ptr + (u64(token) * c_pitch + u64(column) * size) for column in columns] for token in tokens]
            addends = [[self.addend(*one) for one in zip(*both)] for both in zip(inside, at_c)]
        for i, pair in enumerate(pairs):
            values = self.sums(list(pair), of_rows)
            if plan.with_alpha:
                values = [v * convert.bits_to_f32(alpha) for v in values]
            if plan.has_token_scales:
                values = [v * of_tokens[i] for v in values]
            if plan.has_gate:
                values = [activation.silu(values[0]) * values[1]]
            for j, value in enumerate(values):
                if plan.with_bias:
                    value = convert.add(value, biases[j])
                if plan.with_c:
                    value = convert.add(value, addends[i][j])
                values[j] = value
            yield values

    def of_ranks(self, partial: Any, places: list[Any]) -> list[Any]:
        """Bits of the sums of all CTAs of the cluster, added in rank order, that lie `places` bytes behind shared address `partial` in each.

        All are loaded before the first is added to: they come from other multiprocessors, some hundred cycles away.
        """
        load = memory.load_cluster_u32 if self.plan.is_whole else memory.load_cluster_f32
        bases = [thread.mapa(partial, u32(rank)) for rank in range(self.plan.cluster)]
        loaded = [[load(base + place) for base in bases] for place in places]
        sums = []
        for total, *others in loaded:
            for other in others:
                total = total + other
            sums.append(total if self.plan.is_whole else convert.f32_to_bits(total))
        return sums


def finish_for(plan: Int4Plan) -> Callable[..., Any]:
    """The operation `finish(low, high, token, row, ...)`: two sums of one token, of rows `row` and `row` + 8, scaled, added to and stored."""
    steps = Finish(plan)

    @unrolled
    def finish(low: u32, high: u32, token: u32, row: u32, w_ptr: u64, records: u32, d_ptr: u64, d_pitch: u64, bias_ptr: u64, c_ptr: u64,
               c_pitch: u64, token_ptr: u64, alpha: u32, m: u32, n: u32) -> None:  # fmt: skip
        """st.global - the end of two sums of one token.

        PTX:       ISA 9.0, "st"
        Scope:     thread
        Args:      low, high        u32  bits of the sums of rows `row` and `row` + 8 of the tile's weights: float32, or int32
                   token, row       u32
                   w_ptr, records   u64, u32  address of the weights' stream, and its records along K
                   d_ptr, d_pitch   u64  address of D, and bytes of a row of it
                   bias_ptr         u64  address of the bias, float32
                   c_ptr, c_pitch   u64  of what is added, of D's type
                   token_ptr        u64  address of the scales of A's rows, float32
                   alpha            u32  bits of the float32 that everything is multiplied by
                   m, n             u32  extents of D
        Returns:   nothing
        Emulates:  exactly, but for silu
        """
        steps.finish([(low, high)], [token], row, (w_ptr, records, d_ptr, d_pitch, bias_ptr, c_ptr, c_pitch, token_ptr, alpha, m, n))

    return finish


AT_ONCE = 8
"""Tokens whose scales, and what is added to whose sums, are loaded together."""


def store_tile_for(plan: Int4Plan) -> Callable[..., Any]:
    """The operation `store_tile(total, token, row, ...)`: `finish` for all of a thread's sums."""
    steps = Finish(plan)

    @unrolled
    def store_tile(total: Registers, token: u32, row: u32, w_ptr: u64, records: u32, d_ptr: u64, d_pitch: u64, bias_ptr: u64, c_ptr: u64,
                   c_pitch: u64, token_ptr: u64, alpha: u32, m: u32, n: u32) -> None:  # fmt: skip
        """st.global - a finished fragment, token by token.

        PTX:       ISA 9.0, "st"
        Scope:     thread
        Args:      total            u32  bits of 64 x block_m sums
                   token, row       u32  this lane's first token and row
                   w_ptr, records, d_ptr, d_pitch, bias_ptr, c_ptr, c_pitch, token_ptr, alpha, m, n  as of `finish`
        Returns:   nothing
        Lanes:     layouts.lanes.wgmma_accumulator
        Emulates:  as `finish`
        """
        more = (w_ptr, records, d_ptr, d_pitch, bias_ptr, c_ptr, c_pitch, token_ptr, alpha, m, n)
        count = len(total) // 2
        for first in range(0, count, AT_ONCE):
            some = range(first, min(first + AT_ONCE, count))
            pairs = [(total[4 * (i // 2) + i % 2], total[4 * (i // 2) + i % 2 + 2]) for i in some]
            steps.finish(pairs, [token + (8 * (i // 2) + i % 2) for i in some], row, more)

    return store_tile


def sums_at_once(plan: Int4Plan) -> int:
    """Tokens of a lane that a CTA of a cluster adds up together: so many, or a part of it, that all CTAs' shares are made of such."""
    return next(count for count in (AT_ONCE, 4, 2, 1) if count == 1 or plan.block_m // 4 % (count * plan.cluster) == 0)


def add_some_for(plan: Int4Plan, pitch: int) -> Callable[..., Any]:
    """The operation `add_some(partial, first, token, row, ...)`: `finish` for `sums_at_once` tokens, whose sums a cluster's CTAs share.

    `pitch` bytes lie between a thread's partial sums.
    """
    steps, count, sharers = Finish(plan), sums_at_once(plan), plan.cluster

    @unrolled
    def add_some(partial: u32, first: u32, token: u32, row: u32, w_ptr: u64, records: u32, d_ptr: u64, d_pitch: u64, bias_ptr: u64, c_ptr: u64,
                 c_pitch: u64, token_ptr: u64, alpha: u32, m: u32, n: u32) -> None:  # fmt: skip
        """ld.shared::cluster - partial sums of all CTAs of the cluster, added in rank order, finished and stored.

        PTX:       ISA 9.0, "ld", ".shared::cluster"; sm_90+
        Scope:     thread
        Args:      partial          u32  shared address of this thread's first partial sum
                   first            u32  the first of the lane's tokens, which others follow at the distance of the cluster's CTAs
                   token, row       u32  this lane's first token and row
                   w_ptr, records, d_ptr, d_pitch, bias_ptr, c_ptr, c_pitch, token_ptr, alpha, m, n  as of `finish`
        Returns:   nothing
        Lanes:     layouts.lanes.wgmma_accumulator
        Emulates:  as `finish`
        """
        which = [first + i * sharers for i in range(count)]
        sums = steps.of_ranks(partial, [(i // 2 * 4 + i % 2 + 2 * half) * pitch for i in which for half in (0, 1)])
        more = (w_ptr, records, d_ptr, d_pitch, bias_ptr, c_ptr, c_pitch, token_ptr, alpha, m, n)
        steps.finish(list(zip(sums[::2], sums[1::2])), [token + (i // 2 * 8 + i % 2) for i in which], row, more)

    return add_some


@unrolled
def store_partial(total: Registers, address: u32, pitch: u32) -> None:
    """st.shared.b32 - register i to `address` + i * `pitch`.

    PTX:       ISA 9.0, "st"
    Scope:     thread
    Args:      total    u32 registers
               address  u32  shared address of this thread's first
               pitch    u32  bytes
    Returns:   nothing
    Emulates:  exactly
    """
    for i in range(len(total)):
        memory.store_shared_u32(address + pitch * i, total[i])
