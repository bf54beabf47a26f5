"""D[M,N] = sum over kb of (A[:,kb] @ B[:,kb].T) * SFA[:,kb] * SFB[n//128,kb], for few rows of A: the weights on wgmma's 64-row side.

Shapes:    as sm90_fp8_gemm_1d2d; a tile is BLOCK_N rows of B (the weights) by BLOCK_M rows of A (the tokens), BLOCK_M a multiple of 8
Roles:     one thread of the last warp: producer (TMA); the warpgroups before it: consumers, 64 weights each
Barriers:  full[stage]   1 arrival + bytes of B, A, SFA, SFB       producer -> consumers
                         with `weights_first` B and SFB of the ring's first round come before the wait for the grid before, A and SFA behind it
           empty[stage]  1 arrival per consumer warp                consumers -> producer
           met           of a split: 1 arrival with the bytes of all sums that are sent here, waited for once. Peers know of it by the cluster's
                         barrier, where everyone arrives at the begin, and consumers wait before they send
           named 1       everyone, once: the barriers are initialised; the producer does not wait
Tile:      for each stage of BLOCK_K / 128 blocks: all its wgmma -> wait -> release -> total += acc * (SFA of the column * SFB) for each block
Split:     SPLIT CTAs of a cluster share a tile, each a range of K. Each owns some registers of the fragments: who has a sum sends it to the owner
           (st.async), who adds in rank order, so that a result has the same bits every run, and nobody has to stay until a peer has read
Budget:    smem = layouts.smem of plan: the ring holds what memory needs to have on its way, more is slower (`spec.stages_in_flight`)
Follows:   the swap of operands that CUTLASS and TensorRT-LLM use for decode; no code of theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda

from .._numba import device_function
from ..integers import u32, u64
from ..layouts.descriptors import SmemDescriptor, TensorMap, low_word
from ..ptx import Fragment, barrier, fragment, mbarrier, memory, st_async, thread, tma, unrolled, wgmma
from ..ptx.addend import add_columns_for, load_element_for
from .epilogue import STORES, Output
from .gemv_parts import sum_in_order_for
from .pipeline import FULL_ARRIVALS, Slot, empty_arrivals, next_slot
from .sm90_fp8_gemm_1d2d_swap_ab_rules import share_of, smem, threads
from .spec import Built, GemmPlan


def _store_for(plan: GemmPlan) -> Callable[..., Any]:
    store_one, size = STORES[plan.d_dtype]

    @unrolled
    def store_columns(total: Fragment, address: u64, pitch: u64, token: u32, m: u32, row: u32, n: u32) -> None:
        """st.global - a transposed fragment, register by register: its rows are columns of D.

        PTX:       ISA 9.0, "st"
        Scope:     thread
        Args:      total     float32 fragment of 64 x block_m
                   address   u64  of this lane's first element: D[token, row]
                   pitch     u64  bytes of a row of D
                   token, m  u32  this lane's first token, and the tokens
                   row, n    u32  this lane's first weight row, and how many there are
        Returns:   nothing
        Lanes:     layouts.lanes.wgmma_accumulator
        Emulates:  exactly
        """
        for i in range(len(total)):
            column, lower = 8 * (i // 4) + i % 2, 8 * (i % 4 // 2)
            store_one((token + column < m) & (row + lower < n), address + (pitch * column + size * lower), total[i])

    return store_columns


def _send_for(count: int, ranks: int) -> Callable[..., Any]:
    share = share_of(count, ranks)

    @unrolled
    def send(total: Fragment, address: u32, pitch: u32, bar: u32) -> None:
        """mapa, st.async.shared::cluster.f32 - each register of a fragment to the CTA that owns it: CTA 0 the first of them, and so on.

        PTX:       ISA 9.0, "st.async", "mapa"; sm_90+
        Scope:     thread
        Args:      total    float32 fragment
                   address  u32  shared address, the same in each CTA, of the first register that a CTA owns
                   pitch    u32  bytes to the next
                   bar      u32  shared address, the same in each CTA, of the barrier that counts what comes
        Returns:   nothing
        Async:     due when the owner waits on its `bar`
        Emulates:  exactly
        """
        owners = range(-(-count // share))
        bases, bars = [thread.mapa(address, u32(owner)) for owner in owners], [thread.mapa(bar, u32(owner)) for owner in owners]
        for i in range(count):
            st_async.store_f32(bases[i // share] + pitch * (i % share), total[i], bars[i // share])

    return send


def build(plan: GemmPlan) -> Built:
    """The kernel `kernel(tmap_a, tmap_b, tmap_sfa, tmap_sfb, d_ptr, c_ptr, d_pitch, c_pitch, m, n, k)` of a plan."""
    BLOCK_M, BLOCK_N, NUM_STAGES, SPLIT = plan.block_m, plan.block_n, plan.num_stages, plan.cluster
    BLOCKS = plan.block_k // 128
    CONSUMERS = 2 * BLOCK_N
    CONSUMER_WARPS, THREADS = CONSUMERS // 32, threads(plan)
    MAPPED = smem(plan)
    B, A, SFA, SFB, PARTIAL, FULL, EMPTY = (MAPPED[name].offset for name in ("b", "a", "sfa", "sfb", "partial", "full", "empty"))
    B_BYTES, A_BYTES, SFA_BYTES, SFB_BYTES = (MAPPED[name].nbytes for name in ("b", "a", "sfa", "sfb"))
    B_BLOCK, A_BLOCK, SFA_BLOCK = BLOCK_N * 128, BLOCK_M * 128, BLOCK_M * 4
    SFA_PAIR, SFA_PITCH = 8, 4  # bytes between lanes' pairs of tokens, and between tokens
    if plan.row_scales:
        SFA_BLOCK, SFA_PAIR, SFA_PITCH = 4, 32, 16
    STAGE_BYTES = B_BYTES + A_BYTES + BLOCK_M * 4 * (4 if plan.row_scales else BLOCKS) + 16
    EMPTY_ARRIVALS = empty_arrivals(CONSUMER_WARPS, 1)
    ACC = BLOCK_M // 2
    SHARE, MET = share_of(ACC, SPLIT), MAPPED["met"].offset
    ELEMENT, WITH_C, ROW_SCALES = STORES[plan.d_dtype][1], plan.with_c, plan.row_scales
    PDL, WEIGHTS_FIRST = plan.pdl, plan.weights_first

    operand = SmemDescriptor(swizzle=128)
    mma = wgmma.mma_for(plan.b_dtype, plan.a_dtype, a=operand, b=operand)
    load_token_scales = fragment.load_token_scales_for(BLOCK_M, SFA_PITCH)
    promote = fragment.promote_columns
    store_columns = _store_for(plan)
    store_one = STORES[plan.d_dtype][0]
    send, sum_of_ranks = _send_for(ACC, SPLIT), sum_in_order_for(SPLIT, SHARE * CONSUMERS * 4)
    add_columns, load_addend = add_columns_for(plan.d_dtype), load_element_for(plan.d_dtype)

    @device_function
    def work(m, n, k):  # type: ignore[no-untyped-def]
        """Tiles along M and N, and this CTA's range of stages."""
        stages = (k + (BLOCKS * 128 - 1)) // (BLOCKS * 128)
        first, last = u32(0), stages
        if SPLIT > 1:
            rank = thread.cluster_ctarank()
            first, last = stages * rank // SPLIT, stages * (rank + 1) // SPLIT
        return (m + (BLOCK_M - 1)) // BLOCK_M, (n + (BLOCK_N - 1)) // BLOCK_N, first, last

    @device_function
    def load_b(tmap_b, smem, full, slot, stage, n_idx):  # type: ignore[no-untyped-def]
        # NOTE: one operation for all blocks of a stage: each costs the TMA unit some 40 ns beside its bytes (H200, 2026-11-29).
        if BLOCKS == 1:
            tma.load_2d(smem + B + slot.stage * B_BYTES, tmap_b, full, stage * 128, n_idx)
        else:
            tma.load_3d(smem + B + slot.stage * B_BYTES, tmap_b, full, u32(0), n_idx, stage * BLOCKS)

    @device_function
    def load_sfb(tmap_sfb, smem, full, slot, stage, n_idx):  # type: ignore[no-untyped-def]
        tma.load_2d(smem + SFB + slot.stage * SFB_BYTES, tmap_sfb, full, stage * BLOCKS // 4 * 4, n_idx // 128)

    @device_function
    def load_tokens(tmap_a, tmap_sfa, smem, full, slot, stage, m_idx):  # type: ignore[no-untyped-def]
        """A and its scales."""
        if BLOCKS == 1:
            tma.load_2d(smem + A + slot.stage * A_BYTES, tmap_a, full, stage * 128, m_idx)
        else:
            tma.load_3d(smem + A + slot.stage * A_BYTES, tmap_a, full, u32(0), m_idx, stage * BLOCKS)
        if ROW_SCALES:
            # NOTE: a box begins at a multiple of 16 bytes, so four blocks' scales of each token come, as of B's.
            tma.load_2d(smem + SFA + slot.stage * SFA_BYTES, tmap_sfa, full, stage * BLOCKS // 4 * 4, m_idx)
        else:
            tma.load_2d(smem + SFA + slot.stage * SFA_BYTES, tmap_sfa, full, m_idx, stage * BLOCKS)

    @device_function
    def first_weights(tmap_b, tmap_sfb, smem, m, n, k):  # type: ignore[no-untyped-def]
        """Ask for B and SFB of the ring's first round, whose stages are empty; returns for how many stages."""
        m_blocks, n_blocks, first, last = work(m, n, k)
        slot, asked = Slot(u32(0), u32(0)), u32(0)
        tile = u32(cuda.blockIdx.x) // SPLIT
        while tile < m_blocks * n_blocks and asked < NUM_STAGES:
            n_idx = tile // m_blocks * BLOCK_N
            stage = first
            while stage < last and asked < NUM_STAGES:
                full = smem + FULL + slot.stage * 8
                mbarrier.arrive_expect_tx(full, STAGE_BYTES)
                load_b(tmap_b, smem, full, slot, stage, n_idx)
                load_sfb(tmap_sfb, smem, full, slot, stage, n_idx)
                slot = next_slot(slot, NUM_STAGES)
                asked += 1
                stage += 1
            tile += u32(cuda.gridDim.x) // SPLIT
        return asked

    @device_function
    def producer(tmap_a, tmap_b, tmap_sfa, tmap_sfb, smem, m, n, k, asked):  # type: ignore[no-untyped-def]
        """Fill stage after stage; of the first `asked` the weights are on their way."""
        m_blocks, n_blocks, first, last = work(m, n, k)
        slot = Slot(u32(0), u32(0))
        tile = u32(cuda.blockIdx.x) // SPLIT
        while tile < m_blocks * n_blocks:
            m_idx, n_idx = tile % m_blocks * BLOCK_M, tile // m_blocks * BLOCK_N
            stage = first
            while stage < last:
                full = smem + FULL + slot.stage * 8
                mbarrier.wait(smem + EMPTY + slot.stage * 8, slot.phase ^ 1)
                if WEIGHTS_FIRST and asked > 0:
                    load_tokens(tmap_a, tmap_sfa, smem, full, slot, stage, m_idx)
                    asked -= 1
                else:
                    mbarrier.arrive_expect_tx(full, STAGE_BYTES)
                    load_b(tmap_b, smem, full, slot, stage, n_idx)
                    load_tokens(tmap_a, tmap_sfa, smem, full, slot, stage, m_idx)
                    load_sfb(tmap_sfb, smem, full, slot, stage, n_idx)
                slot = next_slot(slot, NUM_STAGES)
                stage += 1
            tile += u32(cuda.gridDim.x) // SPLIT

    @device_function
    def issue(acc, desc_b, desc_a):  # type: ignore[no-untyped-def]
        acc = mma(acc, desc_b, desc_a, 0)
        acc = mma(acc, desc_b + 2, desc_a + 2, 1)
        acc = mma(acc, desc_b + 4, desc_a + 4, 1)
        return mma(acc, desc_b + 6, desc_a + 6, 1)

    @device_function
    def multiply(total, acc0, acc1, acc2, acc3, smem, slot, stage, first_b, first_a, lane_idx):  # type: ignore[no-untyped-def]
        """One stage: the products of all its blocks in flight together, then their promotion."""
        mbarrier.wait(smem + FULL + slot.stage * 8, slot.phase)
        desc_b = first_b + slot.stage * (B_BYTES // 16)
        desc_a = first_a + slot.stage * (A_BYTES // 16)
        wgmma.fence()
        acc0 = issue(acc0, desc_b, desc_a)
        if BLOCKS >= 2:
            acc1 = issue(acc1, desc_b + B_BLOCK // 16, desc_a + A_BLOCK // 16)
        if BLOCKS == 4:
            acc2 = issue(acc2, desc_b + 2 * B_BLOCK // 16, desc_a + 2 * A_BLOCK // 16)
            acc3 = issue(acc3, desc_b + 3 * B_BLOCK // 16, desc_a + 3 * A_BLOCK // 16)
        wgmma.commit()
        quarter = stage * BLOCKS % 4 * 4
        sfa = smem + SFA + slot.stage * SFA_BYTES + lane_idx % 4 * SFA_PAIR
        if ROW_SCALES:
            sfa = sfa + quarter
        sfb = smem + SFB + slot.stage * SFB_BYTES + quarter
        tokens0, row0 = load_token_scales(sfa), memory.load_shared_f32(sfb)
        tokens1, row1, tokens2, row2, tokens3, row3 = tokens0, row0, tokens0, row0, tokens0, row0
        if BLOCKS >= 2:
            tokens1, row1 = load_token_scales(sfa + SFA_BLOCK), memory.load_shared_f32(sfb + 4)
        if BLOCKS == 4:
            tokens2, row2 = load_token_scales(sfa + 2 * SFA_BLOCK), memory.load_shared_f32(sfb + 8)
            tokens3, row3 = load_token_scales(sfa + 3 * SFA_BLOCK), memory.load_shared_f32(sfb + 12)
        acc0 = wgmma.wait(acc0, 0)
        if BLOCKS >= 2:
            acc1 = wgmma.wait(acc1, 0)
        if BLOCKS == 4:
            acc2 = wgmma.wait(acc2, 0)
            acc3 = wgmma.wait(acc3, 0)
        mbarrier.arrive_if(lane_idx == 0, smem + EMPTY + slot.stage * 8)
        total = promote(total, acc0, tokens0, row0)
        if BLOCKS >= 2:
            total = promote(total, acc1, tokens1, row1)
        if BLOCKS == 4:
            total = promote(total, acc2, tokens2, row2)
            total = promote(total, acc3, tokens3, row3)
        return total, acc0, acc1, acc2, acc3

    @device_function
    def owned(rank):  # type: ignore[no-untyped-def]
        """Registers of a thread that CTA `rank` of the cluster adds up: SHARE; of the last CTAs fewer, or none (8 tokens over 8 CTAs: 4 to 7)."""
        return min(rank * SHARE + SHARE, u32(ACC)) - min(rank * SHARE, u32(ACC))

    @device_function
    def place(tile, m_blocks, warp_idx, lane_idx):  # type: ignore[no-untyped-def]
        """The first token and the first weight row that this lane holds of a tile."""
        return tile % m_blocks * BLOCK_M + lane_idx % 4 * 2, tile // m_blocks * BLOCK_N + warp_idx * 16 + lane_idx // 4

    @device_function
    def consumer(out, smem, m, n, k):  # type: ignore[no-untyped-def]
        warp_idx = thread.uniform(u32(cuda.threadIdx.x) // 32)
        lane_idx = thread.lane_idx()
        m_blocks, n_blocks, first, last = work(m, n, k)
        first_b = low_word(smem + B + warp_idx // 4 * (64 * 128))
        first_a = low_word(smem + A)
        slot = Slot(u32(0), u32(0))
        acc0, acc1, acc2, acc3 = fragment.zero(ACC), fragment.zero(ACC), fragment.zero(ACC), fragment.zero(ACC)
        tile = u32(cuda.blockIdx.x) // SPLIT
        while tile < m_blocks * n_blocks:
            total = fragment.zero(ACC)
            stage = first
            while stage < last:
                total, acc0, acc1, acc2, acc3 = multiply(total, acc0, acc1, acc2, acc3, smem, slot, stage, first_b, first_a, lane_idx)
                slot = next_slot(slot, NUM_STAGES)
                stage += 1
            if SPLIT > 1:
                barrier.cluster_wait()
                own = smem + PARTIAL + u32(cuda.threadIdx.x) * 4 + thread.cluster_ctarank() * (SHARE * CONSUMERS * 4)
                send(total, own, u32(CONSUMERS * 4), smem + MET)
            else:
                token, row = place(tile, m_blocks, warp_idx, lane_idx)
                if WITH_C:
                    total = add_columns(total, out.c_ptr + u64(token) * out.c_pitch + u64(row) * ELEMENT, out.c_pitch, token, m, row, n)
                store_columns(total, out.d_ptr + u64(token) * out.d_pitch + u64(row) * ELEMENT, out.d_pitch, token, m, row, n)
            tile += u32(cuda.gridDim.x) // SPLIT

    @device_function
    def add_up(out, smem, m, n):  # type: ignore[no-untyped-def]
        """Add the sums of all CTAs of the cluster for the registers that this one owns, in rank order, and store them."""
        tid = u32(cuda.threadIdx.x)
        tile = u32(cuda.blockIdx.x) // SPLIT
        token, row = place(tile, (m + (BLOCK_M - 1)) // BLOCK_M, tid // 32, thread.lane_idx())
        i = thread.cluster_ctarank() * SHARE
        end = i + owned(thread.cluster_ctarank())
        partial = smem + PARTIAL + tid * 4
        if i < end:
            mbarrier.wait(smem + MET, 0)
        while i < end:
            total = sum_of_ranks(partial)
            to = token + i // 4 * 8 + i % 2
            at = row + i % 4 // 2 * 8
            if WITH_C:
                total = total + load_addend(to < m and at < n, out.c_ptr + u64(to) * out.c_pitch + u64(at) * ELEMENT)[0]
            store_one(to < m and at < n, out.d_ptr + u64(to) * out.d_pitch + u64(at) * ELEMENT, total)
            partial += CONSUMERS * 4
            i += 1

    def kernel(tmap_a, tmap_b, tmap_sfa, tmap_sfb, d_ptr, c_ptr, d_pitch, c_pitch, m, n, k):  # type: ignore[no-untyped-def]
        smem = (memory.shared_address(cuda.shared.array(0, np.uint8)) + 1023) // 1024 * 1024
        out = Output(d_ptr, c_ptr, d_pitch, c_pitch)
        warp_idx = thread.uniform(u32(cuda.threadIdx.x) // 32)
        if warp_idx == CONSUMER_WARPS:
            if thread.lane_idx() == 0:
                for stage in range(NUM_STAGES):
                    mbarrier.init(smem + FULL + stage * 8, FULL_ARRIVALS)
                    mbarrier.init(smem + EMPTY + stage * 8, EMPTY_ARRIVALS)
                if SPLIT > 1:
                    mbarrier.init(smem + MET, 1)
                barrier.fence_mbarrier_init()
                if SPLIT > 1:
                    # what peers send for the registers that this CTA owns, itself among them; before the arrival that publishes the barrier
                    mbarrier.arrive_expect_tx(smem + MET, owned(thread.cluster_ctarank()) * (SPLIT * CONSUMERS * 4))
            thread.syncwarp()
            if SPLIT > 1:
                barrier.cluster_arrive()
            # the producer tells that the barriers stand, and does not wait for anyone: its loads start at once
            barrier.arrive(1, THREADS)
            asked = u32(0)
            if WEIGHTS_FIRST:
                # NOTE: a load by TMA before the wait need not see what the grid before writes: only of weights that nobody writes (`GemmPlan`).
                if thread.lane_idx() == 0:
                    asked = first_weights(tmap_b, tmap_sfb, smem, m, n, k)
            thread.griddepcontrol_wait()
            if thread.lane_idx() == 0:
                producer(tmap_a, tmap_b, tmap_sfa, tmap_sfb, smem, m, n, k, asked)
            if PDL:
                # NOTE: behind the wait, so that only one grid before the next still runs; and behind the loads, as it was measured (bench/NOTES.md).
                thread.griddepcontrol_launch_dependents()
        else:
            if SPLIT > 1:
                barrier.cluster_arrive()
            barrier.sync(1, THREADS)
            thread.griddepcontrol_wait()
            consumer(out, smem, m, n, k)
            if SPLIT > 1:
                add_up(out, smem, m, n)

    argtypes = (TensorMap,) * 4 + (u64,) * 4 + (u32,) * 3
    return Built(kernel, argtypes, THREADS, MAPPED, SPLIT)
