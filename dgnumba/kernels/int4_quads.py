"""What a warpgroup does with finished sums where D lies so that four of its elements leave by one store: rows are turned within each warp.

Of D, whose rows are tokens, a lane's elements lie far apart: a store of 2 bytes by a warp touches four tokens, 16 bytes of each, and it is the places
touched that take the time. Turned (`ptx.transpose`) a warp stores 32 bytes of eight tokens. The values are those of `int4_finish`, rounded as there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..dtypes import DTYPES
from ..integers import u32, u64
from ..layouts.lanes import quad_row
from ..ptx import Registers, convert, thread, transpose, unrolled
from .int4_finish import Finish, add_some_for, store_tile_for, sums_at_once
from .int4_spec import Int4Plan

PAIRS = {"bfloat16": convert.f32x2_to_bf16x2, "float16": convert.f32x2_to_f16x2}
"""How two elements of D come into a register."""


class Quads(Finish):
    """The steps of such an epilogue: Python that runs once, at compile time, or in the emulator."""

    def __init__(self, plan: Int4Plan) -> None:
        super().__init__(plan)
        self.pair, self.nbytes = PAIRS[plan.d_dtype], DTYPES[plan.d_dtype].itemsize

    def store(self, groups: Sequence[Any], sums: list[tuple[Any, Any]], token: Any, row: Any, more: tuple[Any, ...]) -> None:
        """Store groups of eight tokens, of which this lane has the first two pairs of sums each: of tokens `token` + 8 * group and the next.

        What is loaded for any of them is loaded before the first is stored.
        """
        d_ptr, d_pitch, m, n = more[2], more[3], more[-2], more[-1]
        lane = thread.lane_idx()
        is_odd = lane % 2 == 1
        tokens = [token + group * 8 + i for group in groups for i in (0, 1)]
        inside = [[column < n for column in self.columns(row)]] * len(tokens)  # for what is loaded of columns
        values: Iterator[list[Any]] = self.values(sums, tokens, inside, row, more)
        first, column = token - lane % 4 * 2 + lane // 4, row - lane // 4 + quad_row(lane)
        for group in groups:
            (low, high), (next_low, next_high) = next(values), next(values)
            words = transpose.quads(self.pair(low, next_low), self.pair(high, next_high), is_odd)
            here = first + group * 8
            at = d_ptr + (u64(here) * d_pitch + u64(column) * self.nbytes)
            transpose.store_global_v2_if((here < m) & (column < n), at, words)


def store_quads_for(plan: Int4Plan) -> Callable[..., Any]:
    """The operation `store_quads(total, token, row, ...)`: `int4_finish.store_tile_for` by fours of rows."""
    steps = Quads(plan)

    @unrolled
    def store_quads(total: Registers, token: u32, row: u32, w_ptr: u64, records: u32, d_ptr: u64, d_pitch: u64, bias_ptr: u64, c_ptr: u64,
                    c_pitch: u64, token_ptr: u64, alpha: u32, m: u32, n: u32) -> None:  # fmt: skip
        """movmatrix, shfl, st.global.v2 - a finished fragment, eight tokens at a time.

        PTX:       ISA 9.0, "movmatrix", "st"
        Scope:     warp
        Args:      total            u32  bits of 64 x block_m sums
                   token, row       u32  this lane's first token and row
                   w_ptr, records, d_ptr, d_pitch, bias_ptr, c_ptr, c_pitch, token_ptr, alpha, m, n  as of `finish`; d_ptr and d_pitch multiples of 8
                                    bytes, n of 4
        Returns:   nothing
        Lanes:     layouts.lanes.wgmma_accumulator, layouts.lanes.token_quads
        Emulates:  as `finish`
        """
        sums = [(total[4 * (i // 2) + i % 2], total[4 * (i // 2) + i % 2 + 2]) for i in range(len(total) // 2)]
        steps.store(
            range(len(sums) // 2), sums, token, row, (w_ptr, records, d_ptr, d_pitch, bias_ptr, c_ptr, c_pitch, token_ptr, alpha, m, n)
        )

    return store_quads


def groups_at_once(plan: Int4Plan) -> int:
    """Groups of eight tokens that a CTA of a cluster adds up together: so many that all CTAs' shares are made of such, or one."""
    return next(count for count in (4, 2, 1) if count == 1 or plan.block_m // 8 % (count * plan.cluster) == 0)


def add_quads_for(plan: Int4Plan, pitch: int) -> Callable[..., Any]:
    """The operation `add_quads(partial, first, token, row, ...)`: `int4_finish.add_some_for` by fours of rows, for `groups_at_once` groups of tokens.

    `pitch` bytes lie between a thread's partial sums.
    """
    steps, count, sharers = Quads(plan), groups_at_once(plan), plan.cluster

    @unrolled
    def add_quads(partial: u32, first: u32, token: u32, row: u32, w_ptr: u64, records: u32, d_ptr: u64, d_pitch: u64, bias_ptr: u64, c_ptr: u64,
                  c_pitch: u64, token_ptr: u64, alpha: u32, m: u32, n: u32) -> None:  # fmt: skip
        """ld.shared::cluster, movmatrix, shfl, st.global.v2 - partial sums of all CTAs of the cluster, added in rank order, finished and stored.

        PTX:       ISA 9.0, "ld", ".shared::cluster", "movmatrix", "st"; sm_90+
        Scope:     warp
        Args:      partial          u32  shared address of this thread's first partial sum
                   first            u32  the first of the groups of eight tokens, which others follow at the distance of the cluster's CTAs
                   token, row       u32  this lane's first token and row
                   w_ptr, records, d_ptr, d_pitch, bias_ptr, c_ptr, c_pitch, token_ptr, alpha, m, n  as of `store_quads`
        Returns:   nothing
        Lanes:     layouts.lanes.wgmma_accumulator, layouts.lanes.token_quads
        Emulates:  as `finish`
        """
        groups = [first + i * sharers for i in range(count)]
        added = steps.of_ranks(partial, [(group * 4 + i) * pitch for group in groups for i in range(4)])
        sums = [(added[4 * (i // 2) + i % 2], added[4 * (i // 2) + i % 2 + 2]) for i in range(2 * count)]
        steps.store(groups, sums, token, row, (w_ptr, records, d_ptr, d_pitch, bias_ptr, c_ptr, c_pitch, token_ptr, alpha, m, n))

    return add_quads


def ends_for(plan: Int4Plan, pitch: int) -> tuple[Callable[..., Any], Callable[..., Any], int, int]:
    """How a plan's tiles are stored; how a part of one is added up of a cluster's sums; how many parts there are, and how many are added at a time.

    Arguments as of `add_quads_for`. A part is one of a lane's tokens, or a group of eight.
    """
    if plan.quads:
        return store_quads_for(plan), add_quads_for(plan, pitch), plan.block_m // 8, groups_at_once(plan) * plan.cluster
    return store_tile_for(plan), add_some_for(plan, pitch), plan.block_m // 4, sums_at_once(plan) * plan.cluster
