"""D[M,N] = A[M,K] @ W[N,K].T for weights of 4 bits: unpacked in registers, which are the 64-row operand of wgmma; tokens on its other side.

Shapes:    W a stream of records, 64 rows by 128 of K (`layouts.int4.stream`); A bf16, f16, e4m3 or int8 [M,K] row-major; with e4m3 by blocks SFA f32
           [K/128, M] (MN-major); a tile is BLOCK_N rows of W by BLOCK_M tokens, BLOCK_M a multiple of 8
Roles:     one thread of the last warp: producer (bulk copies of records, TMA of tokens); the warpgroups before it: consumers, 64 rows each
Barriers:  full[stage]   1 arrival + bytes of W, A, SFA            producer -> consumers
           empty[stage]  1 arrival per consumer warp               consumers -> producer
           named 1       everyone, once: the barriers are initialised; the producer does not wait
           named 2       the consumers, once, where codes become e4m3 by tables: these are written
Tile:      for each stage, for each record: fence -> wgmmas of all groups -> unpack the next record meanwhile -> wait -> total += scales * acc;
           with `fold` the weights are scaled as they are unpacked, and total is what the wgmmas add to
Split:     SPLIT CTAs of a cluster share a tile, each a range of K; their sums meet in distributed shared memory and are added in rank
           order, so that a result has the same bits every run
Exactness: codes less an integer zero point are exact in every operand type, and scales meet sums, not weights: what is rounded is float32.
           With `fold` scales meet weights, which are rounded to A's type
Budget:    smem = layouts.smem of plan; what counts is bytes in flight
"""

from __future__ import annotations

import numpy as np
from numba import cuda

from .._numba import device_function
from ..dtypes import DTYPES
from ..integers import u32, u64
from ..layouts.descriptors import TensorMap, low_word
from ..ptx import barrier, convert, fragment, mbarrier, memory, thread, tma
from .int4_finish import finish_for, store_partial, store_tile_for
from .int4_fold import folded_stage_for
from .int4_spec import Int4Plan
from .int4_stage import stage_for, table_word_for
from .pipeline import FULL_ARRIVALS, Slot, empty_arrivals, next_slot
from .sm90_int4_gemm_rules import PRODUCER_REGISTERS, consumer_registers, producer_threads, smem, threads
from .spec import Built


def build(plan: Int4Plan) -> Built:
    """The kernel of a plan; its arguments are those of `sm90_int4_gemm_rules.bind`."""
    BLOCK_M, BLOCK_N, NUM_STAGES, RECORDS, SPLIT = plan.block_m, plan.block_n, plan.num_stages, plan.records, plan.split
    TILES = BLOCK_N // 64
    CONSUMERS = 2 * BLOCK_N
    CONSUMER_WARPS, PRODUCERS, EVERYONE = CONSUMERS // 32, producer_threads(plan), CONSUMERS + 32
    REGISTERS = consumer_registers(plan)
    MAPPED = smem(plan)
    W, A, SFA, TABLES, PARTIAL, FULL, EMPTY = (MAPPED[name].offset for name in ("w", "a", "sfa", "tables", "partial", "full", "empty"))
    W_BYTES, A_BYTES, SFA_BYTES = (MAPPED[name].nbytes for name in ("w", "a", "sfa"))
    RECORD_BYTES = plan.record.nbytes
    ROW_BYTES = RECORD_BYTES * RECORDS
    BLOCKS = RECORDS * DTYPES[plan.a_dtype].itemsize
    HAS_SFA, TABLE_WORDS, PDL = plan.has_block_scales, plan.table_words, plan.pdl
    STAGE_BYTES = W_BYTES + A_BYTES + (BLOCK_M * 4 * RECORDS if HAS_SFA else 0)
    EMPTY_ARRIVALS = empty_arrivals(CONSUMER_WARPS, 1)
    ACC = BLOCK_M // 2
    stage_product, table_word = (folded_stage_for if plan.fold else stage_for)(plan), table_word_for(plan)
    finish = finish_for(plan)
    store_tile = store_tile_for(finish)
    zeros, bits_of = (fragment.zero_s32, convert.forget) if plan.is_whole else (fragment.zero, fragment.bits)

    @device_function
    def work(m, tiles, records):  # type: ignore[no-untyped-def]
        """Tiles along M and N, and this CTA's range of stages."""
        stages = records // RECORDS
        first, last = u32(0), stages
        if SPLIT > 1:
            rank = thread.cluster_ctarank()
            first, last = stages * rank // SPLIT, stages * (rank + 1) // SPLIT
        return (m + (BLOCK_M - 1)) // BLOCK_M, (tiles + (TILES - 1)) // TILES, first, last

    @device_function
    def producer(tmap_a, tmap_sfa, w_ptr, smem, m, tiles, records):  # type: ignore[no-untyped-def]
        m_blocks, n_blocks, first, last = work(m, tiles, records)
        slot = Slot(u32(0), u32(0))
        tile = u32(cuda.blockIdx.x) // SPLIT
        while tile < m_blocks * n_blocks:
            m_idx, n_idx = tile % m_blocks * BLOCK_M, tile // m_blocks * TILES
            stage = first
            while stage < last:
                full = smem + FULL + slot.stage * 8
                mbarrier.wait(smem + EMPTY + slot.stage * 8, slot.phase ^ 1)
                mbarrier.arrive_expect_tx(full, STAGE_BYTES)
                for t in range(TILES):
                    # past the last tile of the stream it is loaded again: its products are not stored
                    row = u64(min(n_idx + t, tiles - 1)) * records + stage * RECORDS
                    tma.load_bytes(smem + W + slot.stage * W_BYTES + t * ROW_BYTES, w_ptr + row * RECORD_BYTES, u32(ROW_BYTES), full)
                tma.load_3d(smem + A + slot.stage * A_BYTES, tmap_a, full, u32(0), m_idx, stage * BLOCKS)
                if HAS_SFA:
                    tma.load_2d(smem + SFA + slot.stage * SFA_BYTES, tmap_sfa, full, m_idx, stage * RECORDS)
                slot = next_slot(slot, NUM_STAGES)
                stage += 1
            tile += u32(cuda.gridDim.x) // SPLIT

    @device_function
    def place(tile, m_blocks, tid):  # type: ignore[no-untyped-def]
        """The first token and the first row that this lane holds of a tile."""
        return tile % m_blocks * BLOCK_M + tid % 4 * 2, tile // m_blocks * BLOCK_N + tid // 32 * 16 + tid % 32 // 4

    @device_function
    def write_tables(smem, tid):  # type: ignore[no-untyped-def]
        """The tables by which codes become e4m3."""
        if tid < TABLE_WORDS:
            memory.store_shared_u32(smem + TABLES + tid * 4, table_word(tid))
        barrier.sync(2, CONSUMERS)

    @device_function
    def consumer(w_ptr, d_ptr, d_pitch, bias_ptr, c_ptr, c_pitch, token_ptr, alpha, smem, m, n, tiles, records):  # type: ignore[no-untyped-def]
        tid = u32(cuda.threadIdx.x)
        group_idx = thread.uniform(tid // 128)
        lane_idx = thread.lane_idx()
        m_blocks, n_blocks, first, last = work(m, tiles, records)
        if TABLE_WORDS > 0:
            write_tables(smem, tid)
        first_w = smem + W + group_idx * ROW_BYTES
        first_a = low_word(smem + A)
        slot = Slot(u32(0), u32(0))
        tile = u32(cuda.blockIdx.x) // SPLIT
        while tile < m_blocks * n_blocks:
            total = zeros(ACC)
            stage = first
            while stage < last:
                mbarrier.wait(smem + FULL + slot.stage * 8, slot.phase)
                tokens = smem + SFA + slot.stage * SFA_BYTES + lane_idx % 4 * 8
                desc = first_a + slot.stage * (A_BYTES // 16)
                total = stage_product(total, first_w + slot.stage * W_BYTES, tid % 128, desc, tokens, smem + TABLES)
                mbarrier.arrive_if(lane_idx == 0, smem + EMPTY + slot.stage * 8)
                slot = next_slot(slot, NUM_STAGES)
                stage += 1
            bits = bits_of(total)
            if SPLIT > 1:
                store_partial(bits, smem + PARTIAL + tid * 4, CONSUMERS * 4)
            else:
                token, row = place(tile, m_blocks, tid)
                store_tile(bits, token, row, w_ptr, records, d_ptr, d_pitch, bias_ptr, c_ptr, c_pitch, token_ptr, alpha, m, n)
            tile += u32(cuda.gridDim.x) // SPLIT

    @device_function
    def sum_of(partial, register):  # type: ignore[no-untyped-def]
        """One register of all CTAs of the cluster, in rank order; its bits."""
        at = partial + register * (CONSUMERS * 4)
        total = memory.load_cluster_f32(thread.mapa(at, u32(0)))
        for rank in range(1, SPLIT):
            total = total + memory.load_cluster_f32(thread.mapa(at, u32(rank)))
        return convert.f32_to_bits(total)

    @device_function
    def whole_sum_of(partial, register):  # type: ignore[no-untyped-def]
        """The same of integers."""
        at = partial + register * (CONSUMERS * 4)
        total = memory.load_cluster_u32(thread.mapa(at, u32(0)))
        for rank in range(1, SPLIT):
            total = total + memory.load_cluster_u32(thread.mapa(at, u32(rank)))
        return total

    summed = whole_sum_of if plan.is_whole else sum_of

    @device_function
    def add_up(w_ptr, d_ptr, d_pitch, bias_ptr, c_ptr, c_pitch, token_ptr, alpha, smem, m, n, records):  # type: ignore[no-untyped-def]
        """Add the partial sums of all CTAs of the cluster: each takes every SPLIT-th token."""
        tid = u32(cuda.threadIdx.x)
        token, row = place(u32(cuda.blockIdx.x) // SPLIT, (m + (BLOCK_M - 1)) // BLOCK_M, tid)
        partial = smem + PARTIAL + tid * 4
        i = thread.cluster_ctarank()
        while i < ACC // 2:
            at = i // 2 * 4 + i % 2
            low, high = summed(partial, at), summed(partial, at + 2)
            to = token + i // 2 * 8 + i % 2
            finish(low, high, to, row, w_ptr, records, d_ptr, d_pitch, bias_ptr, c_ptr, c_pitch, token_ptr, alpha, m, n)
            i += SPLIT

    @device_function
    def produce(tmap_a, tmap_sfa, w_ptr, smem, warp_idx, m, tiles, records):  # type: ignore[no-untyped-def]
        if warp_idx == CONSUMER_WARPS:
            if thread.lane_idx() == 0:
                for stage in range(NUM_STAGES):
                    mbarrier.init(smem + FULL + stage * 8, FULL_ARRIVALS)
                    mbarrier.init(smem + EMPTY + stage * 8, EMPTY_ARRIVALS)
                barrier.fence_mbarrier_init()
            thread.syncwarp()
            # the producer tells that the barriers stand, and does not wait for anyone: its loads start at once
            barrier.arrive(1, EVERYONE)
            thread.griddepcontrol_wait()
            if thread.lane_idx() == 0:
                producer(tmap_a, tmap_sfa, w_ptr, smem, m, tiles, records)
            if PDL:
                # NOTE: behind the wait, so that only one grid before the next still runs; and behind the loads, as it was measured (bench/NOTES.md).
                thread.griddepcontrol_launch_dependents()

    def kernel(tmap_a, tmap_sfa, w_ptr, d_ptr, d_pitch, bias_ptr, c_ptr, c_pitch, token_ptr, alpha, m, n, tiles, records):  # type: ignore[no-untyped-def]
        smem = (memory.shared_address(cuda.shared.array(0, np.uint8)) + 1023) // 1024 * 1024
        warp_idx = thread.uniform(u32(cuda.threadIdx.x) // 32)
        if warp_idx >= CONSUMER_WARPS:
            if PRODUCERS == 128:
                thread.setmaxnreg_dec(PRODUCER_REGISTERS)
            # NOTE: who has exited is not waited for by the barriers of the cluster (PTX ISA 9.0, "barrier.cluster").
            produce(tmap_a, tmap_sfa, w_ptr, smem, warp_idx, m, tiles, records)
        else:
            if PRODUCERS == 128:
                thread.setmaxnreg_inc(REGISTERS)
            barrier.sync(1, EVERYONE)
            thread.griddepcontrol_wait()
            consumer(w_ptr, d_ptr, d_pitch, bias_ptr, c_ptr, c_pitch, token_ptr, alpha, smem, m, n, tiles, records)
            if SPLIT > 1:
                barrier.cluster_arrive()
                barrier.cluster_wait()
                add_up(w_ptr, d_ptr, d_pitch, bias_ptr, c_ptr, c_pitch, token_ptr, alpha, smem, m, n, records)
                # NOTE: a CTA may not exit while a peer reads its partial sums (PTX ISA 9.0, shared::cluster lifetime).
                barrier.cluster_arrive()
                barrier.cluster_wait()

    argtypes = (TensorMap,) * 2 + (u64,) * 7 + (u32,) * 5
    return Built(kernel, argtypes, threads(plan), MAPPED, SPLIT)
