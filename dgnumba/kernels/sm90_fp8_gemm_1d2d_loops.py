"""The loops over K of `sm90_fp8_gemm_1d2d`: from a tile's first stage to the float32 sums of a warpgroup's rows.

plain_loop        one accumulator: a block's products, the wait, the promotion
rotated_loop      the same, begun before the tile: each pass ends by issuing the next block's products
alternating_loop  two accumulators in turns (`alternates`): the next block's products are issued as soon as this one's have come, and this one is
                  promoted under them
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .._numba import device_function
from ..integers import u32
from ..ptx import fragment, wgmma
from .pipeline import next_slot
from .sm90_fp8_gemm_1d2d_rules import alternates
from .spec import GemmPlan


class Parts(NamedTuple):
    """What a loop is made of: the kernel's functions of these names."""

    await_stage: Callable[..., Any]
    load_scales: Callable[..., Any]
    first_wave: Callable[..., Any]
    second_wave: Callable[..., Any]
    release: Callable[..., Any]


def loop_for(plan: GemmPlan, parts: Parts) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The plan's loop, and `begin(smem, slot, quarter, row)`, which awaits a tile's first stage and gives the loop its scales.

    `loop(acc, scales, slot, smem, first_a, first_b, row, lane_idx, column, k_blocks)` returns acc, the sums of both waves, and the next slot.
    """
    await_stage, load_scales, *_ = parts

    @device_function
    def await_scales(smem, slot, quarter, row):  # type: ignore[no-untyped-def]
        await_stage(smem, slot)
        return load_scales(smem, slot.stage, quarter, row)

    @device_function
    def await_alone(smem, slot, quarter, row):  # type: ignore[no-untyped-def]
        # a block that is promoted in its turn has its scales loaded then
        await_stage(smem, slot)
        return ()

    if alternates(plan):
        return _in_turns(plan, parts), await_alone
    return (_rotated if plan.rotate else _plain)(plan, parts, await_scales), await_scales


def _plain(plan: GemmPlan, parts: Parts, await_scales: Callable[..., Any]) -> Callable[..., Any]:
    NUM_STAGES, ACC, WAVES = plan.num_stages, plan.block_n // 2, 2 if plan.block_m == 256 else 1
    _, _, first_wave, second_wave, release = parts
    segment_scales = fragment.segment_scales_for(plan.block_n)

    @device_function
    def plain_loop(acc, scales, slot, smem, first_a, first_b, row, lane_idx, column, k_blocks):  # type: ignore[no-untyped-def]
        """All blocks of K of a tile; nothing is in flight at its ends. Its first stage has been awaited."""
        total0, total1 = fragment.zero(ACC), fragment.zero(ACC)
        left, quarter = k_blocks, u32(0)
        while left != 0:
            sa0, sa8, sa64, sa72, sb = scales
            acc = first_wave(acc, first_a, first_b, slot)
            products = segment_scales(sa0, sa8, sb, column)
            if WAVES == 2:
                acc = wgmma.wait(acc, 0)
                total0 = fragment.promote(total0, acc, products)
                acc = second_wave(acc, first_a, first_b, slot)
                products = segment_scales(sa64, sa72, sb, column)
            used = slot.stage
            slot = next_slot(slot, NUM_STAGES)
            left -= 1
            # NOTE: the next stage is awaited while the tensor core works on this one (+2.5 % at K = 16384, H200, 2026-11-29).
            if left != 0:
                quarter = (quarter + 4) % 16
                scales = await_scales(smem, slot, quarter, row)
            acc = wgmma.wait(acc, 0)
            release(smem, used, lane_idx)
            if WAVES == 2:
                total1 = fragment.promote(total1, acc, products)
            else:
                total0 = fragment.promote(total0, acc, products)
        return acc, total0, total1, slot

    return plain_loop


def _rotated(plan: GemmPlan, parts: Parts, await_scales: Callable[..., Any]) -> Callable[..., Any]:
    NUM_STAGES, ACC, WAVES = plan.num_stages, plan.block_n // 2, 2 if plan.block_m == 256 else 1
    _, _, first_wave, second_wave, release = parts
    segment_scales = fragment.segment_scales_for(plan.block_n)

    @device_function
    def rotated_loop(acc, scales, slot, smem, first_a, first_b, row, lane_idx, column, k_blocks):  # type: ignore[no-untyped-def]
        """The same, begun with the first wave in flight: each pass ends by issuing the next block's, so that the loop's own work is hidden."""
        total0, total1 = fragment.zero(ACC), fragment.zero(ACC)
        sa0, sa8, sa64, sa72, sb = scales
        products = segment_scales(sa0, sa8, sb, column)
        later = segment_scales(sa64, sa72, sb, column)
        left, quarter = k_blocks - 1, u32(0)
        while left != 0:
            if WAVES == 2:
                acc = wgmma.wait(acc, 0)
                total0 = fragment.promote(total0, acc, products)
                acc = second_wave(acc, first_a, first_b, slot)
            used = slot.stage
            slot = next_slot(slot, NUM_STAGES)
            quarter = (quarter + 4) % 16
            scales = await_scales(smem, slot, quarter, row)
            acc = wgmma.wait(acc, 0)
            release(smem, used, lane_idx)
            if WAVES == 2:
                total1 = fragment.promote(total1, acc, later)
            else:
                total0 = fragment.promote(total0, acc, products)
            acc = first_wave(acc, first_a, first_b, slot)
            sa0, sa8, sa64, sa72, sb = scales
            products = segment_scales(sa0, sa8, sb, column)
            later = segment_scales(sa64, sa72, sb, column)
            left -= 1
        if WAVES == 2:
            acc = wgmma.wait(acc, 0)
            total0 = fragment.promote(total0, acc, products)
            acc = second_wave(acc, first_a, first_b, slot)
        used = slot.stage
        slot = next_slot(slot, NUM_STAGES)
        acc = wgmma.wait(acc, 0)
        release(smem, used, lane_idx)
        if WAVES == 2:
            total1 = fragment.promote(total1, acc, later)
        else:
            total0 = fragment.promote(total0, acc, products)
        return acc, total0, total1, slot

    return rotated_loop


def _in_turns(plan: GemmPlan, parts: Parts) -> Callable[..., Any]:
    NUM_STAGES, ACC = plan.num_stages, plan.block_n // 2
    await_stage, load_scales, first_wave, _, release = parts
    segment_scales = fragment.segment_scales_for(plan.block_n)

    @device_function
    def turn(total, acc, other, slot, quarter, smem, first_a, first_b, row, lane_idx, column):  # type: ignore[no-untyped-def]
        """A block of K, its products on their way into `acc`: await them, send the next block's into `other`, then promote these.

        NOTE: with the next ones sent before the wait, two groups on their way, most tiles take longer, 64x64 by 7 %, 128x144 by 4 (H200,
        2026-11-30). Scales are loaded and multiplied for their own block alone: with 144 columns there are registers for nothing more.
        """
        used = slot.stage
        slot = next_slot(slot, NUM_STAGES)
        await_stage(smem, slot)
        sa0, sa8, _, _, sb = load_scales(smem, used, quarter, row)
        acc = wgmma.wait(acc, 0)
        other = first_wave(other, first_a, first_b, slot)
        release(smem, used, lane_idx)
        total = fragment.promote(total, acc, segment_scales(sa0, sa8, sb, column))
        return total, acc, other, slot, (quarter + 4) % 16

    @device_function
    def last_turn(total, acc, slot, quarter, smem, row, lane_idx, column):  # type: ignore[no-untyped-def]
        """The last block of K, its products on their way into `acc`."""
        sa0, sa8, _, _, sb = load_scales(smem, slot.stage, quarter, row)
        acc = wgmma.wait(acc, 0)
        release(smem, slot.stage, lane_idx)
        total = fragment.promote(total, acc, segment_scales(sa0, sa8, sb, column))
        return total, acc, next_slot(slot, NUM_STAGES)

    @device_function
    def alternating_loop(acc, scales, slot, smem, first_a, first_b, row, lane_idx, column, k_blocks):  # type: ignore[no-untyped-def]
        """Blocks of K in turns.

        NOTE: two turns a pass, so that each accumulator is a variable of its own: two that changed places would be copied in flight.
        """
        total, other = fragment.zero(ACC), fragment.undefined(ACC)
        acc = first_wave(acc, first_a, first_b, slot)
        left, quarter = k_blocks - 1, u32(0)
        while left > 1:
            total, acc, other, slot, quarter = turn(total, acc, other, slot, quarter, smem, first_a, first_b, row, lane_idx, column)
            total, other, acc, slot, quarter = turn(total, other, acc, slot, quarter, smem, first_a, first_b, row, lane_idx, column)
            left -= 2
        if left == 0:
            total, acc, slot = last_turn(total, acc, slot, quarter, smem, row, lane_idx, column)
        else:
            total, acc, other, slot, quarter = turn(total, acc, other, slot, quarter, smem, first_a, first_b, row, lane_idx, column)
            total, other, slot = last_turn(total, other, slot, quarter, smem, row, lane_idx, column)
        return acc, total, total, slot

    return alternating_loop
