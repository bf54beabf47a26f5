"""D[M,N] = sum over kb of (A[:,kb] @ B[:,kb].T) * SFA[:,kb] * SFB[n//128,kb], for very few rows of A: the weights go from memory to the registers.

Shapes:    as sm90_fp8_gemm_1d2d, K a multiple of 128; a tile is BLOCK_N rows of B (the weights) by BLOCK_M rows of A (the tokens)
Roles:     every warp the same: it has 16 of the tile's rows, and of K each so many-th block: the warps of all CTAs of a cluster share a tile's K.
           Warps side by side along N read the same tokens at the same time, from L1 all but the first
Barriers:  one __syncthreads, before the warps' sums are added
           bar  of a cluster: 1 arrival with the bytes of all sums that are sent here, waited for once. Peers know of it by the cluster's barrier,
                where everyone arrives at the begin, and waits before anything is sent
Tile:      NUM_STAGES blocks of K are asked for; then, one by one: mma.sync -> total += acc * (SFA of the column * SFB) -> ask for another
Grid:      behind the wait for the grid before; with `weights_first` the weights and scales of the first blocks are asked for before it
Budget:    registers on their way: what counts is bytes, and nothing that stands before the first of them: no tensor map, no ring, no wait (a
           split's barrier is made before, and waited for behind the products)
Order:     a tile's sums are added in the order of the warps, those of the CTAs of a cluster by rank, so that a result has the same bits every run
Follows:   nobody; the lanes' layout is that of mma.sync (PTX ISA 9.0, "mma.m16n8k32") with K permuted, see `gemv_parts.load_rows_for`

A kernel that only reads needs 27.0 us for the 117 MB of 7168x16384 and 2.5 us for the 4 MB of 576x7168; rings filled by TMA stay 1 to 2 us above that
(H200, 2026-11-29, bench/NOTES.md).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from .._numba import device_function
from ..integers import u32, u64
from ..ptx import Fragment, Imm, Registers, fragment, memory, mma, thread, unrolled
from .epilogue import Output
from .gemv_parts import (
    add_up_for,
    begin_for,
    fetch_first_for,
    load_rows_for,
    load_scales_for,
    row_offsets_for,
    scale_offsets_for,
    store_partial,
)
from .sm90_fp8_gemv_1d2d_rules import min_ctas, smem, threads
from .spec import Built, GemmPlan


def multiply_for(tokens: int, dtype: str) -> Callable[..., Any]:
    """The operation `multiply(acc, weights, tokens, half)`: half the products of a block of K."""
    groups = tokens // 8
    tile = mma.tile_for(dtype, 1, groups)

    @unrolled(tied="acc")
    def multiply(acc: Fragment(tokens // 2), weights: Registers(16), of_tokens: Registers(tokens), half: Imm) -> Fragment:  # type: ignore[valid-type]
        """mma.sync - acc[16, tokens] += W[16, 64] @ A[tokens, 64].T.

        PTX:       ISA 9.0, "mma"
        Scope:     warp
        Args:      acc        a fragment of tokens / 2
                   weights    u32 registers of `load_rows_for`: rows g and g + 8
                   of_tokens  u32 registers of the same: row g of every eight
                   half       constant: 0 or 1
        Returns:   acc
        Lanes:     layouts.lanes.MMA_A, MMA_B, MMA_ACCUMULATOR
        Emulates:  as mma.tile_for
        """
        for i in (2 * int(half), 2 * int(half) + 1):
            a = (weights[2 * i], weights[8 + 2 * i], weights[2 * i + 1], weights[9 + 2 * i])
            b = tuple(of_tokens[8 * j + 2 * i + part] for j in range(groups) for part in range(2))
            acc = tile(acc, a, b)
        return acc

    return multiply


class Operands(NamedTuple):
    """Where a warp reads: addresses, and a lane's bytes from there."""

    a: Any
    b: Any
    sfa: Any
    sfa_pitch: Any
    sfb: Any
    of_weights: Any
    of_tokens: Any
    of_scales: Any


def build(plan: GemmPlan) -> Built:
    """The kernel `kernel(a_ptr, b_ptr, sfa_ptr, sfb_ptr, d_ptr, a_pitch, b_pitch, sfa_pitch, sfb_pitch, d_pitch, m, n, k)`; pitches are bytes."""
    BLOCK_M, BLOCK_N, WARPS, DEPTH, SPLIT = plan.block_m, plan.block_n, plan.warps, plan.num_stages, plan.cluster
    MAPPED, STRIDE = smem(plan), plan.warps * plan.cluster
    GROUPS, SCALES, SUMS, SUMS_BYTES = BLOCK_M // 8, BLOCK_M // 4, BLOCK_M // 2, 64 * BLOCK_M
    THREADS, PDL, WEIGHTS_FIRST, PARTIAL = threads(plan), plan.pdl, plan.weights_first, MAPPED["partial"].offset

    load_weights, load_tokens, load_scales = load_rows_for(2, is_once=True), load_rows_for(GROUPS, is_once=False), load_scales_for(SCALES)
    weight_offsets, token_offsets, scale_offsets = row_offsets_for(2), row_offsets_for(GROUPS), scale_offsets_for(SCALES)
    multiply, promote = multiply_for(BLOCK_M, plan.a_dtype), fragment.promote_columns
    load_first_weights = load_rows_for(2, is_once=True, is_first=True)
    begin, add_up = begin_for(plan, MAPPED), add_up_for(plan, THREADS, MAPPED)

    @device_function
    def fetch_weights(block, at):  # type: ignore[no-untyped-def]
        return load_first_weights(at.b, at.of_weights, block * 128), memory.load_global_f32(at.sfb + u64(block) * 4)

    @device_function
    def fetch_tokens(block, at):  # type: ignore[no-untyped-def]
        return load_tokens(at.a, at.of_tokens, block * 128), load_scales(at.sfa + u64(block) * at.sfa_pitch, at.of_scales)

    @device_function
    def fetch(block, at):  # type: ignore[no-untyped-def]
        """Ask for all that block `block` of K needs."""
        weights = load_weights(at.b, at.of_weights, block * 128)
        tokens, scales = fetch_tokens(block, at)
        return weights, tokens, scales, memory.load_global_f32(at.sfb + u64(block) * 4)

    fetch_first = fetch_first_for(fetch, fetch_tokens, WEIGHTS_FIRST)

    @device_function
    def use(total, weights, tokens, scales, row_scale):  # type: ignore[no-untyped-def]
        """total += a block's products; two sums, so that an instruction waits for half as many others."""
        total = promote(total, multiply(fragment.zero(SUMS), weights, tokens, 0), scales, row_scale)
        return promote(total, multiply(fragment.zero(SUMS), weights, tokens, 1), scales, row_scale)

    @device_function
    def sums(first, blocks, at):  # type: ignore[no-untyped-def]
        """A warp's sum: blocks first, first + STRIDE, ... of K, of which DEPTH are on their way."""
        total, block = fragment.zero(SUMS), first
        w0, t0, c0, r0 = fragment.zero_u32(16), fragment.zero_u32(BLOCK_M), fragment.zero(SCALES), np.float32(0)
        w1, t1, c1, r1, w2, t2, c2, r2, w3, t3, c3, r3 = w0, t0, c0, r0, w0, t0, c0, r0, w0, t0, c0, r0
        # NOTE: only of weights that nobody writes: what the grid before writes such a load need not see (`GemmPlan`).
        if WEIGHTS_FIRST and block < blocks:
            w0, r0 = fetch_weights(block, at)
        if WEIGHTS_FIRST and DEPTH >= 2 and block + STRIDE < blocks:
            w1, r1 = fetch_weights(block + STRIDE, at)
        if WEIGHTS_FIRST and DEPTH >= 3 and block + 2 * STRIDE < blocks:
            w2, r2 = fetch_weights(block + 2 * STRIDE, at)
        if WEIGHTS_FIRST and DEPTH >= 4 and block + 3 * STRIDE < blocks:
            w3, r3 = fetch_weights(block + 3 * STRIDE, at)
        if WEIGHTS_FIRST:
            thread.griddepcontrol_wait()
        if block < blocks:
            w0, t0, c0, r0 = fetch_first(block, at, w0, r0)
        if DEPTH >= 2 and block + STRIDE < blocks:
            w1, t1, c1, r1 = fetch_first(block + STRIDE, at, w1, r1)
        if DEPTH >= 3 and block + 2 * STRIDE < blocks:
            w2, t2, c2, r2 = fetch_first(block + 2 * STRIDE, at, w2, r2)
        if DEPTH >= 4 and block + 3 * STRIDE < blocks:
            w3, t3, c3, r3 = fetch_first(block + 3 * STRIDE, at, w3, r3)
        while block < blocks:
            total = use(total, w0, t0, c0, r0)
            if block + DEPTH * STRIDE < blocks:
                w0, t0, c0, r0 = fetch(block + DEPTH * STRIDE, at)
            block += STRIDE
            if DEPTH >= 2 and block < blocks:
                total = use(total, w1, t1, c1, r1)
                if block + DEPTH * STRIDE < blocks:
                    w1, t1, c1, r1 = fetch(block + DEPTH * STRIDE, at)
                block += STRIDE
            if DEPTH >= 3 and block < blocks:
                total = use(total, w2, t2, c2, r2)
                if block + DEPTH * STRIDE < blocks:
                    w2, t2, c2, r2 = fetch(block + DEPTH * STRIDE, at)
                block += STRIDE
            if DEPTH >= 4 and block < blocks:
                total = use(total, w3, t3, c3, r3)
                if block + DEPTH * STRIDE < blocks:
                    w3, t3, c3, r3 = fetch(block + DEPTH * STRIDE, at)
                block += STRIDE
        return total

    def kernel(a_ptr, b_ptr, sfa_ptr, sfb_ptr, d_ptr, a_pitch, b_pitch, sfa_pitch, sfb_pitch, d_pitch, m, n, k):  # type: ignore[no-untyped-def]
        smem = memory.shared_address(cuda.shared.array(0, np.uint8, alignment=16))
        rank = u32(0)
        if SPLIT > 1:
            rank = thread.cluster_ctarank()
        begin(smem)
        warp_idx = thread.uniform(u32(cuda.threadIdx.x) // 32)
        lane_idx = thread.lane_idx()
        n_idx = u32(cuda.blockIdx.x) // SPLIT * BLOCK_N
        row, chunk = lane_idx // 4, lane_idx % 4 * 16
        # rows past the end are read as the last one; nothing of them is stored
        of_weights = weight_offsets(warp_idx // WARPS * 16 + row, n - 1 - n_idx, b_pitch, chunk)
        of_tokens = token_offsets(row, m - 1, a_pitch, chunk)
        of_scales = scale_offsets(lane_idx % 4 * 2, m - 1)
        at = Operands(
            a_ptr,
            b_ptr + u64(n_idx) * b_pitch,
            sfa_ptr,
            sfa_pitch,
            sfb_ptr + u64(n_idx // 128) * sfb_pitch,
            of_weights,
            of_tokens,
            of_scales,
        )
        if not WEIGHTS_FIRST:
            thread.griddepcontrol_wait()
        total = sums(rank * WARPS + warp_idx % WARPS, k // 128, at)
        if PDL:
            # NOTE: behind the wait, so that only one grid before the next still runs; and behind the loads, as it was measured (bench/NOTES.md).
            thread.griddepcontrol_launch_dependents()
        store_partial(total, smem + PARTIAL + warp_idx * SUMS_BYTES + lane_idx * 4)
        cuda.syncthreads()
        add_up(smem, Output(d_ptr, d_ptr, d_pitch, d_pitch), rank, m, n, n_idx)

    argtypes = (u64,) * 5 + (u32, u32, u64, u64, u64) + (u32, u32, u32)
    return Built(kernel, argtypes, THREADS, MAPPED, SPLIT, min_ctas(plan))
