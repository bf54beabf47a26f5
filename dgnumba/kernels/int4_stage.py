"""What a warpgroup does with one stage of 4-bit weights: unpack in registers, multiply, promote.

Weights are wgmma's operand A, in registers; tokens its operand B, in shared memory. While the tensor core multiplies a record, the next
one is unpacked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .._numba import device_function
from ..dtypes import DTYPES
from ..integers import u32
from ..layouts.descriptors import SmemDescriptor
from ..layouts.int4.stream import ROWS
from ..ptx import Fragment, Registers, convert, fragment, memory, select, thread, unpack, unrolled, wgmma
from .int4_spec import Int4Plan

ONES = {"bfloat16": 0x3F803F80, "float16": 0x3C003C00, "float8_e4m3fn": 0x38383838, "int8": 0x01010101}
"""Registers full of 1: a product with them is the sum of the activations."""


def load_pair_for(scale_dtype: str) -> Callable[[Any], tuple[Any, Any]]:
    """How the scales of rows q and q + 8, side by side in shared memory, become two float32."""
    if scale_dtype == "float32":
        return lambda at: tuple(memory.load_shared_v2_f32(at))  # type: ignore[return-value]
    load = memory.load_shared_u32 if DTYPES[scale_dtype].itemsize == 2 else memory.load_shared_u16
    decode = decode_pair_for(scale_dtype)
    return lambda at: decode(load(at))


def decode_pair_for(scale_dtype: str) -> Callable[[Any], tuple[Any, Any]]:
    """How two scales of 8 or 16 bits in a register become two float32."""
    decode = {
        "bfloat16": convert.bf16x2_to_f32x2,
        "float16": convert.f16x2_to_f32x2,
        "float8_e4m3fn": unpack.e4m3x2_to_f32x2,
        "float8_e8m0fnu": _decode_powers,
    }[scale_dtype]
    return lambda pair: tuple(decode(pair))  # type: ignore[return-value]


def _decode_powers(pair: Any) -> tuple[Any, Any]:
    """UE8M0: byte b is 2^(b - 127), of which b = 0 is subnormal."""
    low, high = pair & 255, pair >> 8
    bits = (select(b == 0, u32(1 << 22), b << 23) for b in (low, high))
    return tuple(convert.bits_to_f32(x) for x in bits)  # type: ignore[return-value]


class Unpack:
    """The fragments of a record, step of K by step of K, and its scales: Python that runs once, at compile time, or in the emulator."""

    def __init__(self, plan: Int4Plan) -> None:
        self.plan, self.record = plan, plan.record
        self.is_wide = plan.record.order == "bits16"
        self.steps = 8 if self.is_wide else 4
        self.load_pair = load_pair_for(plan.scale_dtype)
        self.zero_code, self.power = zero_code(plan), plan.operand_power

    def group_of(self, step: int) -> int:
        """The group of a step's first column."""
        return step * (128 // self.steps) // self.plan.group

    def scales(self, base: Any, pair: Any) -> list[tuple[Any, Any]]:
        """The scales of this thread's two rows, a group each, as those of their operands."""
        return [self.of_operands(scales) for scales in self.plain_scales(base, pair)]

    def plain_scales(self, base: Any, pair: Any) -> list[tuple[Any, Any]]:
        """The scales of this thread's two rows, a group each, as they are in the stream."""
        size = self.record.scale_bytes
        first = base + self.record.scales_at + pair * (2 * size)
        return [self.load_pair(first + group * (ROWS * size)) for group in range(self.record.groups)]

    def of_operands(self, pair: Any) -> tuple[Any, Any]:
        """The scales of two rows of weights as those of their operands."""
        low, high = pair
        return (low * np.float32(2.0**self.power), high * np.float32(2.0**self.power)) if self.power else (low, high)

    def rests(self, base: Any, pair: Any) -> list[tuple[Any, Any]]:
        """The rests of this thread's two float zero points, a group each."""
        first = base + self.record.rests_at + pair * 8
        return [tuple(memory.load_shared_v2_f32(first + group * (ROWS * 4))) for group in range(self.record.groups)]  # type: ignore[misc]

    def zero_points(self, base: Any, pair: Any) -> list[tuple[Any, Any]]:
        """The zero points of this thread's two rows, a group each, as integers of codes."""
        if self.plan.zeros == "none":
            return [(self.zero_code, self.zero_code)] * self.record.groups
        first = base + self.record.zeros_at + pair * 2
        pairs = [memory.load_shared_u16(first + group * ROWS) for group in range(self.record.groups)]
        return [(p & 255, p >> 8) for p in pairs]

    def fragments(self, base: Any, tid: Any, tables: Any) -> list[Any]:
        """Four registers for each step of K."""
        pair = tid // 4
        words = [w for half in (0, 1) for w in memory.load_shared_v4(base + half * 2048 + tid * 16)]
        constants = self.constants(base, pair, tables)
        if self.is_wide:
            return [self._wide(word, *constants[self.group_of(s)]) for s, word in enumerate(words)]
        narrow = [self._narrow(words[2 * s], words[2 * s + 1], *constants[self.group_of(s)]) for s in range(self.steps)]
        if self.plan.group == 16 and self.plan.zeros != "none":
            # registers 2 and 3 are of the next group, which has zero points of its own
            others = [self._narrow(words[2 * s], words[2 * s + 1], *constants[self.group_of(s) + 1]) for s in range(self.steps)]
            narrow = [(*first[:2], *second[2:]) for first, second in zip(narrow, others)]
        return narrow

    def constants(self, base: Any, pair: Any, tables: Any) -> list[tuple[Any, Any]]:
        """What takes the zero points of this thread's two rows off, a group each; of what needs nothing for it, None."""
        if self.power and not self.is_wide:
            return [(None, None)] * self.record.groups
        known = known_table(self.plan)
        if known:
            # NOTE: from memory, though it is known: `prmt` takes one constant, and ptxas would move the others to a register at every use.
            table = memory.load_shared_v4(tables) if self.plan.table_words else known
            return [(table, table)] * self.record.groups
        return [self._constants(low, high, tables) for low, high in self.zero_points(base, pair)]

    def _constants(self, low: Any, high: Any, tables: Any) -> tuple[Any, Any]:
        kind = self.plan.a_dtype
        if kind == "bfloat16" and self.power:
            return unpack.bf16x2_of_zero_point(low), unpack.bf16x2_of_zero_point(high)
        if kind == "bfloat16":
            return low * 0x10001 | 0xC300C300, high * 0x10001 | 0xC300C300
        if kind == "float16":
            return low * 0x10001 | 0xE400E400, high * 0x100010 | 0xD400D400
        if kind == "int8":
            return 0x80808080 - low * 0x01010101, 0x80808080 - high * 0x01010101
        return memory.load_shared_v4(tables + low * 16), memory.load_shared_v4(tables + high * 16)

    def _wide(self, word: Any, low: Any, high: Any) -> Any:
        if self.plan.w_dtype == "float4_e2m1fn":
            return (unpack.e2m1x8_to_bf16x8 if self.plan.a_dtype == "bfloat16" else unpack.e2m1x8_to_f16x8)(word)
        if self.power:
            return unpack.u4x8_to_bf16x8_over_64(word, low, high)
        return (unpack.u4x8_to_bf16x8 if self.plan.a_dtype == "bfloat16" else unpack.u4x8_to_f16x8)(word, low, high)

    def _narrow(self, word_low: Any, word_high: Any, low: Any, high: Any) -> Any:
        """Words of rows q and q + 8; a register holds four columns of one, the next the same of the other."""
        if self.power:
            plain = unpack.u4x8_to_s8x8_times_16 if self.plan.a_dtype == "int8" else unpack.signs4x8_to_e4m3x8
            (r0, r2), (r1, r3) = plain(word_low), plain(word_high)
        else:
            take = unpack.u4x8_to_s8x8 if self.plan.a_dtype == "int8" else unpack.u4x8_by_table
            (r0, r2), (r1, r3) = take(word_low, low), take(word_high, high)
        return r0, r1, r2, r3


def e4m3_table(values: Sequence[float]) -> tuple[int, int, int, int]:
    """The table of `unpack.u4x8_by_table` for what the sixteen codes stand for: as e4m3, in four words."""
    words = DTYPES["float8_e4m3fn"].encode(values).view("<u4").tolist()
    return words[0], words[1], words[2], words[3]


def known_table(plan: Int4Plan) -> tuple[int, int, int, int] | None:
    """The one table by which a plan's codes become e4m3; None where there is one for each zero point, or no such plan."""
    if plan.record.order != "table" or plan.zeros != "none":
        return None
    codes = np.arange(16)
    return e4m3_table(DTYPES["float4_e2m1fn"].decode(codes) if plan.w_dtype == "float4_e2m1fn" else codes - zero_code(plan))


def zero_code(plan: Int4Plan) -> int:
    """The code of 0 where there are no zero points."""
    return 8 if plan.w_dtype == "int4" else 0


def table_word_for(plan: Int4Plan) -> Callable[[Any], Any]:
    """Word i of the tables that a kernel keeps in shared memory for e4m3: `known_table`, or sixteen of codes less a zero point.

    Of these word i has the codes from 4 (i % 4) on, less i / 4.
    """
    FIRST, SECOND, THIRD, FOURTH = (u32(word) for word in known_table(plan) or (0, 0, 0, 0))

    @device_function
    def known_word(i: Any) -> Any:
        if i < 2:
            return FIRST if i == 0 else SECOND
        return THIRD if i == 2 else FOURTH

    @device_function
    def word_of_all(i: Any) -> Any:
        first = np.float32(i % 4) * np.float32(4) - np.float32(i // 4)
        one, two, three = first + np.float32(1), first + np.float32(2), first + np.float32(3)
        return convert.f32x4_to_e4m3x4(first, one, two, three)

    return known_word if known_table(plan) else word_of_all


class Multiply:
    """The products of a record and their promotion: Python that runs once, at compile time, or in the emulator."""

    def __init__(self, plan: Int4Plan) -> None:
        self.plan, self.take = plan, Unpack(plan)
        self.is_integer, self.is_scaled = plan.a_dtype == "int8", plan.has_block_scales
        self.has_sums = plan.zeros == "float"
        self.blocks = 2 if self.take.is_wide else 1
        operand = SmemDescriptor(swizzle=128)
        if self.is_integer:
            self.mma = wgmma.mma_rs_s8_for(b=operand)
        else:
            self.mma = (wgmma.mma_rs_f16_for if plan.f16_sums else wgmma.mma_rs_for)(plan.a_dtype, plan.a_dtype, b=operand)
        self.in_words = self.is_integer or plan.f16_sums
        self.fresh = fragment.undefined_s32 if self.in_words else fragment.undefined
        self.registers = plan.block_m // (4 if plan.f16_sums else 2)
        # groups of 16 in steps of 32: each takes the registers of its half of a step's columns, and zeros for the other
        self.halves = (0, 1) if plan.group == 16 and not self.take.is_wide else (None,)
        self.ones = (ONES[plan.a_dtype],) * 4

    def masked(self, frag: Any, half: int | None) -> Any:
        """The registers of one half of a step's columns, zeros for the other."""
        return frag if half is None else (*frag[:2], 0, 0) if half == 0 else (0, 0, *frag[2:])

    def steps_of(self, group: int) -> list[int]:
        """The steps of K that a group takes part in."""
        return [s for s in range(self.take.steps) if self.take.group_of(s) == group // len(self.halves) * len(self.halves)]

    def issue(self, record: int, frags: list[Any], desc: Any, free: list[Any] | None = None) -> list[Any]:
        """Issue the products of a record: an accumulator for each group, then, with float zero points, one for the sum of the tokens.

        They take the registers of `free`, accumulators that are needed no longer, or others.
        """
        groups, per_block = self.plan.record.groups, self.take.steps // self.blocks
        block_units = self.plan.block_m * 128 // 16
        accs = free or [self.fresh(self.registers) for _ in range(groups * (1 + self.has_sums))]
        wgmma.fence()
        for i in range(len(accs)):
            half = self.halves[i % groups % len(self.halves)]
            for first, step in enumerate(self.steps_of(i % groups)):
                at = desc + ((record * self.blocks + step // per_block) * block_units + step % per_block * 2)
                frag = frags[step] if i < groups else self.ones
                accs[i] = self.mma(accs[i], self.masked(frag, half), at, min(first, 1))
        wgmma.commit()
        return accs

    def issue_into(self, total: Any, record: int, frags: list[Any], desc: Any) -> Any:
        """Issue the products of a record, all added to `total`."""
        per_block, block_units = self.take.steps // self.blocks, self.plan.block_m * 128 // 16
        wgmma.fence()
        for step, frag in enumerate(frags):
            at = (record * self.blocks + step // per_block) * block_units + step % per_block * 2
            total = self.mma(total, frag, desc + at, 1)
        wgmma.commit()
        return total

    def wait(self, accs: list[Any]) -> list[Any]:
        """The accumulators, now readable."""
        if self.in_words:
            return [wgmma.wait_s32(acc, 0) for acc in accs]
        return [wgmma.wait(acc, 0) for acc in accs]

    def promoted(self, total: Any, accs: list[Any], scales: list[Any], rests: list[Any], columns: Any) -> Any:
        """total += scales * accs, group by group."""
        for group, (low, high) in enumerate(scales):
            pairs = [(accs[group], (low, high))]
            if self.has_sums:
                pairs.append((accs[len(scales) + group], (low * rests[group][0], high * rests[group][1])))
            for acc, rows in pairs:
                if self.is_integer:
                    total = fragment.promote_s32(total, acc, rows)
                elif self.is_scaled:
                    total = fragment.promote_both(total, acc, columns, rows)
                else:
                    total = fragment.promote(total, acc, rows)
        return total


def queues_products(plan: Int4Plan) -> bool:
    """Whether a record's products are issued one behind the other, the next record is unpacked behind them, and sums keep their registers.

    Left to itself ptxas spreads the unpacking over the products, and half of it behind the wait for them. Of 16 bits that costs 3 to 7 % from
    64 tokens on; of e4m3, whose products take half as long, up to 14 % are lost by keeping it from that (H200, 2026-11-30, bench/NOTES.md).
    """
    return DTYPES[plan.a_dtype].itemsize == 2 and not plan.fold and plan.block_m >= 64 and plan.block_n <= 128


def stage_for(plan: Int4Plan) -> Callable[..., Any]:
    """The operation `stage(total, base, tid, desc, tokens, tables)`: a stage's products, added to `total`."""
    multiply = Multiply(plan)
    take, nbytes = multiply.take, plan.record.nbytes
    load_tokens = fragment.load_token_scales_for(plan.block_m)
    queues = queues_products(plan)

    if plan.is_whole:
        return _whole_stage_for(plan, multiply)

    @unrolled(tied="total")
    def stage(total: Fragment, base: u32, tid: u32, desc: u32, tokens: u32, tables: u32) -> Fragment:
        """wgmma.mma_async - total += W @ A.T * scales over a stage's records, W unpacked in registers.

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
        frags = take.fragments(base, tid, tables)
        accs = None
        for record in range(plan.records):
            accs = multiply.issue(record, frags, desc, accs if queues else None)
            if queues:
                # what is loaded behind it, and what is made of that, comes behind the products: ptxas would spread it between them
                thread.syncwarp()
            here = base + record * nbytes
            scales = take.scales(here, pair)
            rests = take.rests(here, pair) if multiply.has_sums else []
            columns = load_tokens(tokens + record * (plan.block_m * 4)) if multiply.is_scaled else None
            following = take.fragments(here + nbytes, tid, tables) if record + 1 < plan.records else []
            for frag in following if queues else []:
                unpack.pin(frag, base)
            accs = multiply.wait(accs)
            unpack.hold([register for frag in frags for register in frag])
            total = multiply.promoted(total, accs, scales, rests, columns)
            frags = following
        return total

    return stage


def _whole_stage_for(plan: Int4Plan, multiply: Multiply) -> Callable[..., Any]:
    """`stage` where one scale serves all of K: the sums stay integers, in the tensor core's own accumulators."""
    take, nbytes = multiply.take, plan.record.nbytes

    @unrolled(tied="total")
    def stage_whole(total: Registers, base: u32, tid: u32, desc: u32, tokens: u32, tables: u32) -> Registers:
        """wgmma.mma_async - total += W @ A.T over a stage's records, in int32, W unpacked in registers.

        PTX:       ISA 9.0, "wgmma"; sm_90a
        Scope:     thread
        Args:      total   u32 registers: int32 sums of 64 x block_m
                   base    u32  shared address of the stage's first record of this warpgroup's 64 rows
                   tid     u32  thread of the warpgroup
                   desc    u32  low word of the descriptor of the stage's tokens
                   tokens, tables  u32  not used
        Returns:   total
        Lanes:     layouts.lanes.wgmma_accumulator
        Emulates:  exactly
        """
        frags = take.fragments(base, tid, tables)
        for record in range(plan.records):
            total = multiply.issue_into(total, record, frags, desc)
            following = take.fragments(base + (record + 1) * nbytes, tid, tables) if record + 1 < plan.records else []
            total = wgmma.wait_s32(total, 0)
            unpack.hold([register for frag in frags for register in frag])
            frags = following
        return total

    return stage_whole
