"""D[M,N] = sum over kb of (A[:,kb] @ B[:,kb].T) * SFA[:,kb] * SFB[n//128,kb], for few rows of A: wgmma takes the weights from the registers.

Shapes:    as sm90_fp8_gemm_1d2d, K a multiple of 128; a tile is BLOCK_N rows of B (the weights) by BLOCK_M rows of A (the tokens)
Roles:     every warp the same: it has 16 of the tile's rows, and each WARPS-th block of K. The four warps of a warpgroup are BLOCK_N / 16 times
           SLICES = 64 / BLOCK_N: rows by blocks of K. Its wgmma multiplies all its rows with the tokens of all its blocks, SLICES times as many
           columns as tokens; a warp keeps those of its own block
Barriers:  named 1 + group  a warpgroup's threads, each step: its tokens are written
           one of the CTA, before the warps' sums are added; of a cluster also bar, as sm90_fp8_gemv_1d2d
Tile:      NUM_STAGES steps are asked for; then, step by step: tokens to shared memory -> ask for another -> 4 wgmma -> wait ->
           total += acc * (SFA of the column * SFB)
Split:     SPLIT CTAs of a cluster share a tile, each every so many-th step; their sums go to who adds them (`gemv_parts.add_up_for`)
Grid:      as sm90_fp8_gemv_1d2d
Budget:    registers on their way, as in sm90_fp8_gemv_1d2d; the tensor cores have three times what SLICES = 4 and 16 tokens ask of them
Order:     K is permuted within 64 (`gemv_parts.load_rows_for`): a lane's 16 bytes are words of two instructions, and tokens are written to
           shared memory in the same order. A block's sum is therefore cut at other places than where K is in order, and may differ from
           DeepGEMM's in its last bits; a tile's sums are added in the order of the warps, so that a result has the same bits every run
Follows:   nobody; wgmma with A from registers ("RS" in CUTLASS) is what mixed-precision products are made of, here for its loads' sake
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from .._numba import device_function
from ..integers import u32, u64
from ..layouts.descriptors import SmemDescriptor, low_word
from ..ptx import Fragment, Registers, barrier, fragment, memory, select, thread, unpack, unrolled, wgmma
from ..ptx.fragment import Held
from .epilogue import Output
from .gemv_parts import add_up_for, begin_for, fetch_first_for, load_rows_for, row_offsets_for, store_partial
from .sm90_fp8_gemv_1d2d_rs_rules import columns, slices, smem, threads, warpgroups
from .spec import Built, GemmPlan


def token_offsets_for(plan: GemmPlan) -> Callable[..., Any]:
    """The operation `offsets(warp, row, last, pitch, chunk)`: which tokens a thread brings, 16 bytes of each."""
    groups = plan.block_m // 8
    count = columns(plan) // 16

    def offset(unit: Any, half: Any, row: Any, last: Any, pitch: Any, chunk: Any) -> Any:
        token = unit % groups * 8 + row
        return select(token < last, token, last) * pitch + (unit // groups * 128 + half * 64 + chunk)

    @unrolled
    def offsets(warp: u32, row: u32, last: u32, pitch: u32, chunk: u32) -> Registers(count):  # type: ignore[valid-type]
        """min.u32, mad.lo.u32 - bytes from A's begin to this lane's pieces of the first step's tokens; a token past the last counts as the last.

        Eight tokens by 64 bytes of one block are a warp's: even warps have the first half of a block's 128, odd ones the second.

        PTX:       ISA 9.0, "min", "mad"
        Scope:     thread
        Args:      warp   u32  of the warpgroup
                   row    u32  of eight
                   last   u32  token
                   pitch  u32  bytes of a row of A
                   chunk  u32  byte of the 64
        Returns:   u32 registers
        Emulates:  exactly
        """
        return tuple(offset(2 * i + warp // 2, warp % 2, row, last, pitch, chunk) for i in range(count))

    return offsets


@unrolled
def store_tokens(tokens: Registers, address: u32) -> None:
    """st.shared.b32 - this thread's pieces of the tokens, word w of each 16 bytes to where lane t's word w is looked for: chunk w of the 64 bytes.

    A step of wgmma is two chunks; lane t of four holds, of the weights, words t of both. So here words and chunks change places: a 4 by 4
    transposition of what four lanes store, which meets every bank once.

    PTX:       ISA 9.0, "st"
    Scope:     thread
    Args:      tokens   u32 registers of `load_rows_for`, one piece each
               address  u32  shared address of the first word of the first piece, swizzled
    Returns:   nothing
    Emulates:  exactly
    """
    for i in range(len(tokens)):
        memory.store_shared_u32((address ^ i % 4 * 16) + i // 4 * 2048, tokens[i])


@unrolled
def arrange(weights: Registers(16), zero: u32) -> Registers(16):  # type: ignore[valid-type]
    """add.u32 - a block's weights as they come, in the order of wgmma's operand A: four registers for each of four steps.

    NOTE: a copy that ptxas sees as one it makes where the registers are loaded, and so waits there for the loads to arrive; it cannot know `zero`.

    PTX:       ISA 9.0, "add"
    Scope:     thread
    Args:      weights  u32 registers of `load_rows_for`: rows g and g + 8
               zero     u32  0, of which the compiler knows nothing
    Returns:   u32 registers
    Lanes:     layouts.lanes.WGMMA_A_FP8
    Emulates:  exactly
    """
    order = (row * 8 + 2 * step + part for step in range(4) for part in range(2) for row in range(2))
    return tuple(weights[i] + zero for i in order)


def multiply_for(plan: GemmPlan) -> Callable[..., Any]:
    """The operation `multiply(weights, desc, slice_idx)`: the products of a step, of which each warp gets those of its own block."""
    width = plan.block_m // 2
    mma = wgmma.mma_rs_for(plan.b_dtype, plan.a_dtype, b=SmemDescriptor(swizzle=128))

    def products(weights: Any, desc: Any) -> Any:
        acc = fragment.undefined(columns(plan) // 2)
        wgmma.fence()
        for i in range(4):
            acc = mma(acc, tuple(weights[4 * i : 4 * i + 4]), desc + 2 * i, min(i, 1))
        wgmma.commit()
        acc = wgmma.wait(acc, 0)
        # NOTE: the weights' registers are the tensor core's until here (PTX ISA 9.0, "wgmma.mma_async")
        unpack.hold(weights)
        return acc

    def own(acc: Any, slice_idx: Any) -> tuple[Any, ...]:
        out = tuple(acc[i] for i in range(width))
        for s in range(1, slices(plan)):
            out = tuple(select(slice_idx == s, acc[s * width + i], out[i]) for i in range(width))
        return out

    def emulated(weights: Any, desc: Any, slice_idx: Any) -> Held:
        return Held(np.array(own(products(weights, desc), slice_idx), np.float32))

    @unrolled(emulate=emulated)
    def multiply(weights: Registers(16), desc: u32, slice_idx: u32) -> Fragment(width):  # type: ignore[valid-type]
        """wgmma.mma_async, selp - acc[16, tokens] = W[16, 128] @ A[tokens, 128].T of each warp's rows and block.

        PTX:       ISA 9.0, "wgmma.mma_async"; sm_90a
        Scope:     warpgroup
        Args:      weights    u32 registers of `arrange`
                   desc       u32  low word of the descriptor of the step's tokens, block after block
                   slice_idx  u32  which of the blocks is the warp's
        Returns:   a fragment of tokens / 2
        Lanes:     layouts.lanes.WGMMA_A_FP8; MMA_ACCUMULATOR of each eight tokens
        Emulates:  exactly
        """
        return own(products(weights, desc), slice_idx)

    return multiply


class Operands(NamedTuple):
    """Where a thread reads and writes: addresses, and bytes from there; the warp's block of a step, and its warpgroup."""

    a: Any
    b: Any
    sfa: Any
    sfa_block: Any
    sfb: Any
    of_weights: Any
    of_tokens: Any
    to_tokens: Any
    to_scales: Any
    scales: Any
    desc: Any
    slice_idx: Any
    group: Any
    zero: Any


def build(plan: GemmPlan) -> Built:
    """The kernel of a plan: `kernel(a_ptr, b_ptr, sfa_ptr, sfb_ptr, d_ptr, c_ptr, a_pitch, b_pitch, sfa_pitch, sfa_block, sfb_pitch, ...)`.

    Pitches are bytes of a row, `sfa_block` bytes from a token's scale of one block of K to that of the next.
    """
    BLOCK_N, WARPS, DEPTH, SPLIT = plan.block_n, plan.warps, plan.num_stages, plan.cluster
    THREADS, GROUPS, SLICES, ROW_WARPS = threads(plan), warpgroups(plan), slices(plan), plan.block_n // 16
    STRIDE, SUMS, SUMS_BYTES, WORDS = GROUPS * SPLIT, plan.block_m // 2, 64 * plan.block_m, columns(plan) // 4
    MAPPED, PDL, WEIGHTS_FIRST = smem(plan), plan.pdl, plan.weights_first
    TOKENS, SCALES, PARTIAL, TOKENS_BYTES = (*(MAPPED[name].offset for name in ("tokens", "scales", "partial")), MAPPED["tokens"].nbytes)

    load_weights, load_tokens = load_rows_for(2, is_once=True), load_rows_for(WORDS // 4, is_once=False, pieces=1)
    weight_offsets, token_offsets = row_offsets_for(2), token_offsets_for(plan)
    load_scales, multiply = fragment.load_token_scales_for(plan.block_m), multiply_for(plan)
    load_first_weights = load_rows_for(2, is_once=True, is_first=True)
    promote, begin, add_up = fragment.promote_columns, begin_for(plan, MAPPED), add_up_for(plan, THREADS, MAPPED)

    @device_function
    def fetch_weights(step, at):  # type: ignore[no-untyped-def]
        return load_first_weights(at.b, at.of_weights, step * (128 * SLICES)), memory.load_global_f32(at.sfb + u64(step) * (4 * SLICES))

    @device_function
    def fetch_tokens(step, at):  # type: ignore[no-untyped-def]
        tokens = load_tokens(at.a, at.of_tokens, step * (128 * SLICES))
        return tokens, memory.load_global_f32(at.sfa + u64(step * SLICES) * at.sfa_block)

    @device_function
    def fetch(step, at):  # type: ignore[no-untyped-def]
        """Ask for all that a warp needs of step `step`: SLICES blocks of K."""
        weights = load_weights(at.b, at.of_weights, step * (128 * SLICES))
        tokens, scale = fetch_tokens(step, at)
        return weights, tokens, scale, memory.load_global_f32(at.sfb + u64(step) * (4 * SLICES))

    fetch_first = fetch_first_for(fetch, fetch_tokens, WEIGHTS_FIRST)

    @device_function
    def turn(total, step, steps, weights, tokens, scale, row_scale, at):  # type: ignore[no-untyped-def]
        """Multiply one step, and ask for another in its place as soon as its registers are free."""
        # NOTE: PTX does not say that who has waited for a wgmma knows it read for the three other warps too. It has once they are at the
        # next step's barrier: hence two slots.
        slot = step // STRIDE % 2 * TOKENS_BYTES
        store_tokens(tokens, at.to_tokens + slot)
        memory.store_shared_f32(at.to_scales, scale * row_scale)
        # NOTE: the fence stands before the loads, for which it might wait.
        barrier.fence_proxy_async()
        weights_now = arrange(weights, at.zero)
        # NOTE: else the compiler moves this behind the loads, which then need registers of their own, and copies that wait for them.
        unpack.hold(weights_now)
        if step + DEPTH * STRIDE < steps:
            weights, tokens, scale, row_scale = fetch(step + DEPTH * STRIDE, at)
        # NOTE: a number that ptxas knows where there is one warpgroup: of one that it does not know it reserves all sixteen barriers for each CTA.
        barrier.sync(1 + at.group % GROUPS, 128)
        scales = load_scales(at.scales)
        acc = multiply(weights_now, at.desc + slot // 16, at.slice_idx)
        return promote(total, acc, scales, np.float32(1)), weights, tokens, scale, row_scale

    @device_function
    def sums(step, steps, at):  # type: ignore[no-untyped-def]
        """A warp's sum: steps step, step + STRIDE, ... of K, of which DEPTH are on their way."""
        total = fragment.zero(SUMS)
        w0, t0, c0, r0 = fragment.zero_u32(16), fragment.zero_u32(WORDS), np.float32(0), np.float32(0)
        w1, t1, c1, r1, w2, t2, c2, r2 = w0, t0, c0, r0, w0, t0, c0, r0
        # NOTE: only of weights that nobody writes: what the grid before writes such a load need not see (`GemmPlan`).
        if WEIGHTS_FIRST and step < steps:
            w0, r0 = fetch_weights(step, at)
        if WEIGHTS_FIRST and DEPTH >= 2 and step + STRIDE < steps:
            w1, r1 = fetch_weights(step + STRIDE, at)
        if WEIGHTS_FIRST and DEPTH >= 3 and step + 2 * STRIDE < steps:
            w2, r2 = fetch_weights(step + 2 * STRIDE, at)
        if WEIGHTS_FIRST:
            thread.griddepcontrol_wait()
        if step < steps:
            w0, t0, c0, r0 = fetch_first(step, at, w0, r0)
        if DEPTH >= 2 and step + STRIDE < steps:
            w1, t1, c1, r1 = fetch_first(step + STRIDE, at, w1, r1)
        if DEPTH >= 3 and step + 2 * STRIDE < steps:
            w2, t2, c2, r2 = fetch_first(step + 2 * STRIDE, at, w2, r2)
        while step < steps:
            total, w0, t0, c0, r0 = turn(total, step, steps, w0, t0, c0, r0, at)
            step += STRIDE
            if DEPTH >= 2 and step < steps:
                total, w1, t1, c1, r1 = turn(total, step, steps, w1, t1, c1, r1, at)
                step += STRIDE
            if DEPTH >= 3 and step < steps:
                total, w2, t2, c2, r2 = turn(total, step, steps, w2, t2, c2, r2, at)
                step += STRIDE
        return total

    def kernel(a_ptr, b_ptr, sfa_ptr, sfb_ptr, d_ptr, c_ptr, a_pitch, b_pitch, sfa_pitch, sfa_block, sfb_pitch, d_pitch, c_pitch, m, n, k):  # type: ignore[no-untyped-def]
        smem = (memory.shared_address(cuda.shared.array(0, np.uint8)) + 1023) // 1024 * 1024
        warp_idx = thread.uniform(u32(cuda.threadIdx.x) // 32)
        group, warp, lane_idx = warp_idx // 4, warp_idx % 4, thread.lane_idx()
        rows, slice_idx = warp % ROW_WARPS, warp // ROW_WARPS
        n_idx, rank = u32(cuda.blockIdx.x) // SPLIT * BLOCK_N, u32(0)
        if SPLIT > 1:
            rank = thread.cluster_ctarank()
        begin(smem)
        row, word = lane_idx // 4, lane_idx % 4
        smem_tokens = smem + TOKENS + group * (2 * TOKENS_BYTES)
        smem_scales = smem + SCALES + warp_idx * 128
        token, zero = min(lane_idx, m - 1), thread.uniform(u32(cuda.blockIdx.y))
        at = Operands(
            a_ptr, b_ptr + u64(n_idx) * b_pitch, sfa_ptr + u64(slice_idx) * sfa_block + u64(token) * sfa_pitch, sfa_block,
            sfb_ptr + u64(n_idx // 128) * sfb_pitch + u64(slice_idx) * 4,
            # rows past the end are read as the last one; nothing of them is stored
            weight_offsets(rows * 16 + row, n - 1 - n_idx, b_pitch, slice_idx * 128 + word * 16),
            token_offsets(warp, row, m - 1, a_pitch, word * 16),
            smem_tokens + warp // 2 * 1024 + row * 128 + ((warp % 2 * 4) ^ row) * 16 + word * 4,
            smem_scales + lane_idx * 4, smem_scales + word * 8, low_word(smem_tokens), slice_idx, group, zero,
        )  # fmt: skip
        if not WEIGHTS_FIRST:
            thread.griddepcontrol_wait()
        total = sums(rank * GROUPS + group, k // (128 * SLICES), at)
        if PDL:
            # NOTE: behind the wait, so that only one grid before the next still runs; and behind the loads, as it was measured (bench/NOTES.md).
            thread.griddepcontrol_launch_dependents()
        partial = smem + PARTIAL
        store_partial(total, partial + (rows * WARPS + group * SLICES + slice_idx) * SUMS_BYTES + lane_idx * 4)
        cuda.syncthreads()
        add_up(smem, Output(d_ptr, c_ptr, d_pitch, c_pitch), rank, m, n, n_idx)

    argtypes = (u64,) * 6 + (u32,) * 3 + (u64,) * 4 + (u32,) * 3
    return Built(kernel, argtypes, THREADS, MAPPED, SPLIT)
