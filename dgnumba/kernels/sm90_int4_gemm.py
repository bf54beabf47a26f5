"""D[M,N] = A[M,K] @ W[N,K].T for weights of 4 bits: unpacked in registers, which are the 64-row operand of wgmma; tokens on its other side.

Shapes:    W a stream of records, 64 rows by 128 of K (`layouts.int4.stream`); A bf16, f16, e4m3 or int8 [M,K] row-major; with e4m3 by blocks SFA f32
           [K/128, M] (MN-major); a tile is BLOCK_N rows of W by BLOCK_M tokens, BLOCK_M a multiple of 8
Roles:     one thread of the last warp: producer (bulk copies of records, TMA of tokens); the warpgroups before it: consumers, 64 rows each
Barriers:  full[stage]   1 arrival + bytes of W, A, SFA            producer -> consumers
           empty[stage]  1 arrival per consumer warp               consumers -> producer
           named 1       everyone, once: the barriers are initialised; the producer does not wait
           named 2       the consumers, once, where codes become e4m3 by tables: these are written;
                         and where CTAs share a tile: none reads the ring any more, whose place their partial sums take
Tile:      for each stage, for each record: fence -> wgmmas of all groups -> unpack the next record meanwhile -> wait -> total += scales * acc;
           with `fold` the weights are scaled as they are unpacked, and total is what the wgmmas add to; with `f16_sums` acc and total are
           float16 (`int4_f16_sums`)
Halves:    of more than 128 tokens that are neither folded nor summed in float16 each half's products take the same accumulators in turn
           (`int4_halves`): unpacked once
Split:     SPLIT CTAs of a cluster share a tile, each a range of K; their sums meet in distributed shared memory and are added in rank
           order, so that a result has the same bits every run
Tail:      with TAIL of 2 CTAs take whole tiles while there is one for each, then pairs of them share what is left, as with a split: a last round
           of half as many tiles as multiprocessors, or fewer, takes half the time; of more, each is taken whole
D:         a token at a time, or with `quads` four columns at a time, turned between the lanes of a warp (`int4_quads`)
Exactness: codes less an integer zero point are exact in every operand type, and scales meet sums, not weights: what is rounded is float32.
           With `fold` scales meet weights, which are rounded to A's type; with `f16_sums` sums are rounded to float16
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
from .int4_f16_sums import RECORDS_OF_A_SUM, add_sums, f16_stage_for, first_fragments_for
from .int4_finish import store_partial
from .int4_fold import folded_stage_for
from .int4_halves import halved_stage_for
from .int4_quads import ends_for
from .int4_spec import Int4Plan
from .int4_stage import stage_for, table_word_for
from .pipeline import FULL_ARRIVALS, Slot, empty_arrivals, next_slot
from .sm90_int4_gemm_rules import consumer_registers, producer_registers, producer_threads, smem, threads
from .spec import Built


def build(plan: Int4Plan) -> Built:
    """The kernel of a plan; its arguments are those of `sm90_int4_gemm_rules.bind`."""
    BLOCK_M, BLOCK_N, NUM_STAGES, RECORDS, SPLIT = plan.block_m, plan.block_n, plan.num_stages, plan.records, plan.split
    TAIL, SHARERS = plan.tail, plan.cluster
    TILES = BLOCK_N // 64
    CONSUMERS = 2 * BLOCK_N
    CONSUMER_WARPS, PRODUCERS, EVERYONE = CONSUMERS // 32, producer_threads(plan), CONSUMERS + 32
    REGISTERS, KEPT = consumer_registers(plan), producer_registers(plan)
    MAPPED = smem(plan)
    W, A, SFA, TABLES, PARTIAL, FULL, EMPTY = (MAPPED[name].offset for name in ("w", "a", "sfa", "tables", "partial", "full", "empty"))
    W_BYTES, A_BYTES, SFA_BYTES = (MAPPED[name].nbytes for name in ("w", "a", "sfa"))
    RECORD_BYTES = plan.record.nbytes
    ROW_BYTES = RECORD_BYTES * RECORDS
    BLOCKS = RECORDS * DTYPES[plan.a_dtype].itemsize
    HAS_SFA, TABLE_WORDS, PDL = plan.has_block_scales, plan.table_words, plan.pdl
    STAGE_BYTES = W_BYTES + A_BYTES + (BLOCK_M * 4 * RECORDS if HAS_SFA else 0)
    EMPTY_ARRIVALS = empty_arrivals(CONSUMER_WARPS, 1)
    ACC, PAIRS = BLOCK_M // 2, BLOCK_M // 4
    product_for = folded_stage_for if plan.fold else halved_stage_for if plan.turns > 1 else stage_for
    stage_product, table_word = product_for(plan), table_word_for(plan)
    # of float16 sums: 2^8 / ratio, by its bits, is what the operands' power and the ratio of scales leave to be taken off
    f16_stage, first_fragments = (f16_stage_for(plan), first_fragments_for(plan)) if plan.f16_sums else (None, None)
    STAGES_OF_A_SUM, RATIO_AGAIN = RECORDS_OF_A_SUM // RECORDS, u32((2 * 127 + plan.operand_power) << 23)
    store_tile, add_some, PARTS, ADDED = ends_for(plan, CONSUMERS * 4)
    zeros, bits_of = (fragment.zero_s32, convert.forget) if plan.is_whole else (fragment.zero, fragment.bits)

    @device_function
    def grid_of_tiles(m, tiles):  # type: ignore[no-untyped-def]
        """Tiles along M, tiles in all, and those that CTAs, or the clusters of a split, take whole or alone."""
        m_blocks = (m + (BLOCK_M - 1)) // BLOCK_M
        count = m_blocks * ((tiles + (TILES - 1)) // TILES)
        ahead = count
        if TAIL > 1:
            left = count % u32(cuda.gridDim.x)
            if left <= u32(cuda.gridDim.x) // TAIL:
                ahead = count - left
        return m_blocks, count, ahead

    @device_function
    def share(records):  # type: ignore[no-untyped-def]
        """The range of stages that this CTA takes of a tile which its cluster shares."""
        rank = thread.cluster_ctarank()
        return records // RECORDS * rank // SHARERS, records // RECORDS * (rank + 1) // SHARERS

    @device_function
    def fill(tmap_a, tmap_sfa, w_ptr, smem, slot, m_idx, n_idx, tiles, records, stage, last):  # type: ignore[no-untyped-def]
        """A range of a tile's stages into the ring."""
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
        return slot

    @device_function
    def producer(tmap_a, tmap_sfa, w_ptr, smem, m, tiles, records):  # type: ignore[no-untyped-def]
        m_blocks, count, ahead = grid_of_tiles(m, tiles)
        first, last = u32(0), records // RECORDS
        if SPLIT > 1:
            first, last = share(records)
        slot = Slot(u32(0), u32(0))
        tile = u32(cuda.blockIdx.x) // SPLIT
        while tile < ahead:
            slot = fill(
                tmap_a, tmap_sfa, w_ptr, smem, slot, tile % m_blocks * BLOCK_M, tile // m_blocks * TILES, tiles, records, first, last
            )
            tile += u32(cuda.gridDim.x) // SPLIT
        if TAIL > 1:
            tile = ahead + u32(cuda.blockIdx.x) // TAIL
            if tile < count:
                first, last = share(records)
                fill(tmap_a, tmap_sfa, w_ptr, smem, slot, tile % m_blocks * BLOCK_M, tile // m_blocks * TILES, tiles, records, first, last)

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
    def add_up(tile, m_blocks, w_ptr, d_ptr, d_pitch, bias_ptr, c_ptr, c_pitch, token_ptr, alpha, smem, m, n, records):  # type: ignore[no-untyped-def]
        """Add the partial sums of all CTAs of the cluster: each takes every so many-th token, or every so many-th eight."""
        tid = u32(cuda.threadIdx.x)
        token, row = place(tile, m_blocks, tid)
        partial = smem + PARTIAL + tid * 4
        i = thread.cluster_ctarank()
        while i < PARTS:
            add_some(partial, i, token, row, w_ptr, records, d_ptr, d_pitch, bias_ptr, c_ptr, c_pitch, token_ptr, alpha, m, n)
            i += ADDED

    @device_function
    def share_out(bits, tile, m_blocks, w_ptr, d_ptr, d_pitch, bias_ptr, c_ptr, c_pitch, token_ptr, alpha, smem, m, n, records):  # type: ignore[no-untyped-def]
        """The cluster's sums of a tile, its last: each CTA's own to where all see them, then all of them added."""
        barrier.sync(2, CONSUMERS)  # the last stages have been read: of others' rows, too
        # NOTE: the producers have exited by then, or will: who has exited is not waited for (PTX ISA 9.0, "barrier.cluster").
        store_partial(bits, smem + PARTIAL + u32(cuda.threadIdx.x) * 4, CONSUMERS * 4)
        barrier.cluster_arrive()
        barrier.cluster_wait()
        add_up(tile, m_blocks, w_ptr, d_ptr, d_pitch, bias_ptr, c_ptr, c_pitch, token_ptr, alpha, smem, m, n, records)
        # NOTE: a CTA may not exit while a peer reads its partial sums (PTX ISA 9.0, shared::cluster lifetime).
        barrier.cluster_arrive()
        barrier.cluster_wait()

    @device_function
    def sum_up_f32(smem, slot, tid, stage, last, ratio):  # type: ignore[no-untyped-def]
        """The sums of a range of a tile's stages; `ratio` is not needed."""
        lane_idx = thread.lane_idx()
        first_w = smem + W + thread.uniform(tid // 128) * ROW_BYTES
        first_a = low_word(smem + A)
        total = zeros(ACC)
        while stage < last:
            mbarrier.wait(smem + FULL + slot.stage * 8, slot.phase)
            tokens = smem + SFA + slot.stage * SFA_BYTES + lane_idx % 4 * 8
            desc = first_a + slot.stage * (A_BYTES // 16)
            total = stage_product(total, first_w + slot.stage * W_BYTES, tid % 128, desc, tokens, smem + TABLES)
            mbarrier.arrive_if(lane_idx == 0, smem + EMPTY + slot.stage * 8)
            slot = next_slot(slot, NUM_STAGES)
            stage += 1
        return bits_of(total), slot

    @device_function
    def sum_up_f16(smem, slot, tid, stage, last, ratio):  # type: ignore[no-untyped-def]
        """The same where sums are float16, scales times `ratio`, a float32 by its bits."""
        lane_idx = thread.lane_idx()
        first_w = smem + W + thread.uniform(tid // 128) * ROW_BYTES
        first_a = low_word(smem + A)
        scale_ratio = convert.bits_to_f32(ratio)
        mbarrier.wait(smem + FULL + slot.stage * 8, slot.phase)
        held = fragment.zero_u32(PAIRS) + first_fragments(first_w + slot.stage * W_BYTES, tid % 128)
        total = fragment.zero_u32(PAIRS)
        while stage < last:
            used, then = slot, next_slot(slot, NUM_STAGES)
            stage += 1
            # behind the last stage it is awaited and unpacked once more, for nothing: that is no branch while products are on their way
            ahead = used
            if stage < last:
                ahead = then
            held = f16_stage(
                held, first_w + used.stage * W_BYTES, tid % 128, first_a + used.stage * (A_BYTES // 16), scale_ratio,
                first_w + ahead.stage * W_BYTES, smem + FULL + ahead.stage * 8, ahead.phase,
            )  # fmt: skip
            mbarrier.arrive_if(lane_idx == 0, smem + EMPTY + used.stage * 8)
            slot = then
            if stage % STAGES_OF_A_SUM == 0:
                total, held = add_sums(total, held[:PAIRS]), fragment.zero_u32(PAIRS) + held[PAIRS:]
        return fragment.scaled_f16x2_bits(add_sums(total, held[:PAIRS]), convert.bits_to_f32(RATIO_AGAIN - ratio)), slot

    sum_up = sum_up_f16 if plan.f16_sums else sum_up_f32

    @device_function
    def consumer(w_ptr, d_ptr, d_pitch, bias_ptr, c_ptr, c_pitch, token_ptr, alpha, ratio, smem, m, n, tiles, records):  # type: ignore[no-untyped-def]
        tid = u32(cuda.threadIdx.x)
        m_blocks, count, ahead = grid_of_tiles(m, tiles)
        if TABLE_WORDS > 0:
            write_tables(smem, tid)
        slot = Slot(u32(0), u32(0))
        tile = u32(cuda.blockIdx.x) // SPLIT
        if SPLIT > 1:
            first, last = share(records)
            bits, slot = sum_up(smem, slot, tid, first, last, ratio)
            share_out(bits, tile, m_blocks, w_ptr, d_ptr, d_pitch, bias_ptr, c_ptr, c_pitch, token_ptr, alpha, smem, m, n, records)
        else:
            while tile < ahead:
                bits, slot = sum_up(smem, slot, tid, u32(0), records // RECORDS, ratio)
                token, row = place(tile, m_blocks, tid)
                store_tile(bits, token, row, w_ptr, records, d_ptr, d_pitch, bias_ptr, c_ptr, c_pitch, token_ptr, alpha, m, n)
                tile += u32(cuda.gridDim.x)
            if TAIL > 1:
                tile = ahead + u32(cuda.blockIdx.x) // TAIL
                if tile < count:
                    first, last = share(records)
                    bits, slot = sum_up(smem, slot, tid, first, last, ratio)
                    share_out(bits, tile, m_blocks, w_ptr, d_ptr, d_pitch, bias_ptr, c_ptr, c_pitch, token_ptr, alpha, smem, m, n, records)

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

    def kernel(tmap_a, tmap_sfa, w_ptr, d_ptr, d_pitch, bias_ptr, c_ptr, c_pitch, token_ptr, alpha, ratio, m, n, tiles, records):  # type: ignore[no-untyped-def]
        smem = (memory.shared_address(cuda.shared.array(0, np.uint8)) + 1023) // 1024 * 1024
        warp_idx = thread.uniform(u32(cuda.threadIdx.x) // 32)
        if warp_idx >= CONSUMER_WARPS:
            if PRODUCERS == 128:
                thread.setmaxnreg_dec(KEPT)
            produce(tmap_a, tmap_sfa, w_ptr, smem, warp_idx, m, tiles, records)
        else:
            if PRODUCERS == 128:
                thread.setmaxnreg_inc(REGISTERS)
            barrier.sync(1, EVERYONE)
            thread.griddepcontrol_wait()
            consumer(w_ptr, d_ptr, d_pitch, bias_ptr, c_ptr, c_pitch, token_ptr, alpha, ratio, smem, m, n, tiles, records)

    argtypes = (TensorMap,) * 2 + (u64,) * 7 + (u32,) * 6
    return Built(kernel, argtypes, threads(plan), MAPPED, SHARERS)
