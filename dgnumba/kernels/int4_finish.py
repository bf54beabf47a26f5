"""What a warpgroup does with finished sums: scale, gate, add, store. The seam for epilogues: `finish` takes two sums of one token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..dtypes import DTYPES
from ..integers import u32, u64
from ..layouts.int4.stream import ROWS
from ..ptx import Registers, activation, convert, memory, unrolled
from .int4_spec import Int4Plan
from .int4_stage import decode_pair_for

STORES = {
    "bfloat16": memory.store_global_bf16_if,
    "float16": memory.store_global_f16_if,
    "float32": memory.store_global_f32_if,
}


class _Finish:
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

    def sums(self, bits: list[Any], condition: Any, w_ptr: Any, records: Any, row: Any) -> list[Any]:
        """Two finished sums as float32: of integers, their rows' scales times them."""
        if not self.plan.is_whole:
            return [convert.bits_to_f32(x) for x in bits]
        scales = self.row_scales(condition, w_ptr, records, row)
        return [convert.s32_to_f32(x) * scale for x, scale in zip(bits, scales)]


def finish_for(plan: Int4Plan) -> Callable[..., Any]:
    """The operation `finish(low, high, token, row, ...)`: two sums of one token, of rows `row` and `row` + 8, scaled, added to and stored."""
    steps = _Finish(plan)
    size = steps.size
    is_raw = plan.d_dtype == "int32"

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
        columns = [row // 16 * 8 + row % 16] if plan.has_gate else [row, row + 8]
        inside = [(token < m) & (column < n) for column in columns]
        at = [u64(token) * d_pitch + u64(column) * size for column in columns]
        if is_raw:
            for bits, is_inside, place in zip((low, high), inside, at):
                memory.store_global_u32_if(is_inside, d_ptr + place, bits)
            return
        values = steps.sums([low, high], inside[0], w_ptr, records, row)
        if plan.with_alpha:
            values = [v * convert.bits_to_f32(alpha) for v in values]
        if plan.has_token_scales:
            scale = convert.bits_to_f32(memory.load_global_u32_if(token < m, token_ptr + u64(token) * 4))
            values = [v * scale for v in values]
        if plan.has_gate:
            values = [activation.silu(values[0]) * values[1]]
        for value, column, is_inside, place in zip(values, columns, inside, at):
            if plan.with_bias:
                bias = memory.load_global_u32_if(is_inside, bias_ptr + u64(column) * 4)
                value = convert.add(value, convert.bits_to_f32(bias))
            if plan.with_c:
                value = convert.add(value, steps.addend(is_inside, c_ptr + (u64(token) * c_pitch + u64(column) * size)))
            STORES[plan.d_dtype](is_inside, d_ptr + place, value)

    return finish


def store_tile_for(finish: Callable[..., Any]) -> Callable[..., Any]:
    """The operation `store_tile(total, token, row, ...)`: `finish` for all of a thread's sums."""

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
        for i in range(len(total) // 2):
            at = 4 * (i // 2) + i % 2
            finish(total[at], total[at + 2], token + (8 * (i // 2) + i % 2), row, w_ptr, records, d_ptr, d_pitch, bias_ptr, c_ptr, c_pitch,
                   token_ptr, alpha, m, n)  # fmt: skip

    return store_tile


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
