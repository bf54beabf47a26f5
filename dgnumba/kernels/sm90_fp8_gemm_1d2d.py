"""D[M,N] = sum over kb of (A[:,kb] @ B[:,kb].T) * SFA[:,kb] * SFB[n//128,kb], for Hopper.

Shapes:    A fp8 [M,K] and B fp8 [N,K], row-major, K the contiguous axis; SFA float32 [K/128, M] (MN-major), or
           [M, K/128] as it lies (row_scales), SFB float32 [N/128, K/128], all in rows of 16 B multiples; D bf16, fp16 or float32 [M,N],
           C as D (with_c). K/128 and N/128 round up.
Roles:     the last warpgroup: one thread is the producer (TMA); with row_scales a warp brings A's scales (cp.async); the others leave
           the warpgroups before it: consumers (wgmma, promotion, store), 64 rows each, in two waves when BLOCK_M is 256
Barriers:  full[stage]   1 arrival + bytes of A, B, SFA, SFB             producer -> consumers
                         row_scales: 32 more, for SFA, no bytes of it    the warp's lanes -> consumers
           empty[stage]  1 arrival per consumer warp, of each CTA that   consumers -> producer, and that warp
                         reads what the producer writes
Tile:      for each k block: 4 wgmma of k=32 a wave -> await the next block's stage and scales -> wait -> release the stage
           -> total += acc * scales; in turns (`alternates`): wait -> issue the next wgmma -> release -> total
Cluster:   two CTAs take neighbouring tiles along the axis they do not share; each loads half of the shared operand into both
Budget:    smem = layouts.smem of plan; registers ~ BLOCK_N/2 * (1 + waves) a thread beside 40, so BLOCK_M 256 wants BLOCK_N <= 128
Follows:   DeepGEMM sm90_fp8_gemm_1d2d (54e2261); differs in: B's scales come by TMA with their stage; both CTAs of a cluster load;
           the next stage is awaited under the last wave; a tile may touch three blocks of B's scales; float32 output; row-major scales of A.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import cuda

from .._numba import device_function
from ..integers import u32, u64
from ..layouts.descriptors import SmemDescriptor, TensorMap, low_word
from ..layouts.tiles import band_tile
from ..ptx import barrier, cp_async, fragment, mbarrier, memory, thread, tma, wgmma
from .epilogue import Output, epilogue_for
from .pipeline import Slot, empty_arrivals, full_arrivals, next_slot
from .sm90_fp8_gemm_1d2d_loops import Parts, loop_for
from .sm90_fp8_gemm_1d2d_rules import smem, threads, warpgroups_of
from .spec import Built, GemmPlan

PRODUCER_WARP, SCALES_WARP = 2, 3  # of the last warpgroup: with small tiles warps 0 and 1 are the busy ones elsewhere
REGISTERS_PRODUCER, REGISTERS_CONSUMER = 40, 232
STAGGER = 100
"""Nanoseconds, about half of a block of K, by which the second of two warpgroups with one wide wave each begins after the first."""


class RowScales(NamedTuple):
    """Where A's row-major scales lie: the address, and bytes of a row. Nowhere where they come by TMA."""

    ptr: u64
    pitch: u64


def build(plan: GemmPlan) -> Built:
    """The kernel of a plan: `kernel` at its end, which takes what the rules' `bind` gives; with row_scales `kernel_by_rows`."""
    BLOCK_M, BLOCK_N, BLOCK_K, NUM_STAGES, BAND = plan.block_m, plan.block_n, plan.block_k, plan.num_stages, plan.band
    CLUSTER, SHARE_A, SHARE_B = plan.cluster, plan.multicast == "A", plan.multicast == "B"
    WARPGROUPS = warpgroups_of(plan)
    WAVES = 2 if BLOCK_M == 256 else 1
    CONSUMER_WARPS, THREADS = 4 * WARPGROUPS, threads(plan)
    MAPPED = smem(plan)
    D, A, B, SFA, SFB, FULL, EMPTY = (MAPPED[name].offset for name in ("d", "a", "b", "sfa", "sfb", "full", "empty"))
    A_BYTES, B_BYTES, SFA_BYTES, SFB_BYTES = (MAPPED[name].nbytes for name in ("a", "b", "sfa", "sfb"))
    ROW_SCALES, SCALES_A_LANE = plan.row_scales, -(-BLOCK_M // 32)  # of 16 rows those of 32 are brought, for which a stage has room
    STAGE_BYTES = A_BYTES + B_BYTES + BLOCK_M * 4 * (not ROW_SCALES) + fragment.column_scales(BLOCK_N) * 16
    FULL_ARRIVALS, EMPTY_ARRIVALS = full_arrivals(32 if ROW_SCALES else 0), empty_arrivals(CONSUMER_WARPS, CLUSTER)
    A_SHARE, B_SHARE = (BLOCK_M // CLUSTER, BLOCK_N // CLUSTER)
    WAVE_A, WAVE_SFA = 64 * WARPGROUPS * BLOCK_K, 64 * WARPGROUPS * 4  # bytes between a warpgroup's two waves, of A and of its scales
    ACC, ROTATE, OVERLAP = BLOCK_N // 2, plan.rotate, plan.overlap
    RESIZE_REGISTERS = WARPGROUPS == 2
    IS_STAGGERED = WARPGROUPS == 2 and WAVES == 1 and BLOCK_N > 128

    operand = SmemDescriptor(swizzle=128)
    mma = wgmma.mma_block_for(plan.a_dtype, plan.b_dtype, a=operand, b=operand, rows=min(64, BLOCK_M))
    load_column_scales = fragment.load_column_scales_for(BLOCK_N)
    store = epilogue_for(plan, WARPGROUPS, WAVES)

    @device_function
    def blocks(extent, block):  # type: ignore[no-untyped-def]
        return (extent + (block - 1)) // block

    @device_function
    def tile_at(index, m_blocks, n_blocks):  # type: ignore[no-untyped-def]
        # neighbours share A when they differ in n, and B when they differ in m
        if SHARE_A:
            n_block, m_block = band_tile(index, n_blocks, m_blocks, BAND)
        else:
            m_block, n_block = band_tile(index, m_blocks, n_blocks, BAND)
        return m_block, n_block

    @device_function
    def grid_of_tiles(m, n):  # type: ignore[no-untyped-def]
        """Tiles along M and N; the axis along which a cluster's CTAs differ is made even: the tile too many lies outside."""
        m_blocks = blocks(m, BLOCK_M)
        n_blocks = blocks(n, BLOCK_N)
        if SHARE_A:
            n_blocks = blocks(n_blocks, CLUSTER) * CLUSTER
        if SHARE_B:
            m_blocks = blocks(m_blocks, CLUSTER) * CLUSTER
        return m_blocks, n_blocks

    @device_function
    def producer(tmap_a, tmap_b, tmap_sfa, tmap_sfb, smem, m, n, k):  # type: ignore[no-untyped-def]
        rank = thread.cluster_ctarank()
        m_blocks, n_blocks = grid_of_tiles(m, n)
        k_blocks = blocks(k, BLOCK_K)
        slot = Slot(u32(0), u32(0))
        tile = u32(cuda.blockIdx.x)
        while tile < m_blocks * n_blocks:
            m_block, n_block = tile_at(tile, m_blocks, n_blocks)
            m_idx, n_idx = m_block * BLOCK_M, n_block * BLOCK_N
            k_block = u32(0)
            while k_block < k_blocks:
                full = smem + FULL + slot.stage * 8
                mbarrier.wait(smem + EMPTY + slot.stage * 8, slot.phase ^ 1)
                mbarrier.arrive_expect_tx(full, STAGE_BYTES)
                smem_a = smem + A + slot.stage * A_BYTES
                smem_b = smem + B + slot.stage * B_BYTES
                if SHARE_A:
                    tma.load_2d_multicast(smem_a + rank * (A_SHARE * BLOCK_K), tmap_a, full, k_block * BLOCK_K, m_idx + rank * A_SHARE, 3)
                else:
                    tma.load_2d(smem_a, tmap_a, full, k_block * BLOCK_K, m_idx)
                if SHARE_B:
                    tma.load_2d_multicast(smem_b + rank * (B_SHARE * BLOCK_K), tmap_b, full, k_block * BLOCK_K, n_idx + rank * B_SHARE, 3)
                else:
                    tma.load_2d(smem_b, tmap_b, full, k_block * BLOCK_K, n_idx)
                if not ROW_SCALES:
                    tma.load_2d(smem + SFA + slot.stage * SFA_BYTES, tmap_sfa, full, m_idx, k_block)
                # NOTE: a box begins at a multiple of 16 bytes, so of B four blocks' scales come and the consumer picks one.
                tma.load_2d(smem + SFB + slot.stage * SFB_BYTES, tmap_sfb, full, k_block // 4 * 4, n_idx // 128)
                slot = next_slot(slot, NUM_STAGES)
                k_block += 1
            tile += u32(cuda.gridDim.x)

    @device_function
    def bring_scales(rows, smem, m, n, k):  # type: ignore[no-untyped-def]
        """A's row-major scales into every stage, in order of rows, as a box of MN-major ones lies: a row for a lane, then the one 32 further.

        NOTE: as a box of the TMA unit each row is a piece of its own, and tiles of 128x64 took up to 3.6 times as long (H200, 2026-11-30). The
        32 bytes of a row that L1 keeps hold eight blocks' scales.
        """
        lane_idx = thread.lane_idx()
        m_blocks, n_blocks = grid_of_tiles(m, n)
        slot = Slot(u32(0), u32(0))
        tile = u32(cuda.blockIdx.x)
        left, row, at = u32(0), u32(0), rows.ptr
        # NOTE: one loop over all tiles' blocks of K: of one in another the compiler unrolls the inner, and keeps more addresses than registers.
        while tile < m_blocks * n_blocks:
            if left == 0:
                m_block, _ = tile_at(tile, m_blocks, n_blocks)
                left, row, at = blocks(k, BLOCK_K), m_block * BLOCK_M + lane_idx, rows.ptr
            mbarrier.wait(smem + EMPTY + slot.stage * 8, slot.phase ^ 1)
            to = smem + SFA + slot.stage * SFA_BYTES + lane_idx * 4
            for i in range(SCALES_A_LANE):
                # rows past the end, whose products are not stored, have the last one's
                cp_async.copy_4(to + i * 128, at + u64(min(row + i * 32, m - 1)) * rows.pitch)
            # NOTE: no fence: cp.async writes by the generic proxy, as consumers read, and the barrier orders the two
            # (PTX ISA 9.0, "cp.async.mbarrier.arrive"; "async proxy" names only the bulk copies).
            cp_async.mbarrier_arrive_noinc(smem + FULL + slot.stage * 8)
            slot = next_slot(slot, NUM_STAGES)
            at += 4
            left -= 1
            if left == 0:
                tile += u32(cuda.gridDim.x)

    @device_function
    def multiply(acc, desc_a, desc_b):  # type: ignore[no-untyped-def]
        """Issue acc = A[64, 128] @ B[BLOCK_N, 128].T as one group: a new sum for every block of K."""
        wgmma.fence()
        acc = mma(acc, desc_a, desc_b)
        wgmma.commit()
        return acc

    @device_function
    def release(smem, stage, lane_idx):  # type: ignore[no-untyped-def]
        empty = smem + EMPTY + stage * 8
        if CLUSTER == 1:
            mbarrier.arrive_if(lane_idx == 0, empty)
        else:
            mbarrier.arrive_cluster_if(lane_idx < CLUSTER, empty, lane_idx)

    @device_function
    def await_stage(smem, slot):  # type: ignore[no-untyped-def]
        mbarrier.wait(smem + FULL + slot.stage * 8, slot.phase)

    @device_function
    def load_scales(smem, stage, quarter, row):  # type: ignore[no-untyped-def]
        """A stage's scales: A's of this thread's rows (of both waves), and B's of the tile, `quarter` bytes into the four that came."""
        sfa = smem + SFA + stage * SFA_BYTES + row * 4
        sa0, sa8 = memory.load_shared_f32(sfa), memory.load_shared_f32(sfa + 32)
        sa64, sa72 = sa0, sa8
        if WAVES == 2:
            sa64, sa72 = memory.load_shared_f32(sfa + WAVE_SFA), memory.load_shared_f32(sfa + (WAVE_SFA + 32))
        sb = load_column_scales(smem + SFB + stage * SFB_BYTES + quarter)
        return sa0, sa8, sa64, sa72, sb

    @device_function
    def first_wave(acc, first_a, first_b, slot):  # type: ignore[no-untyped-def]
        return multiply(acc, first_a + slot.stage * (A_BYTES // 16), first_b + slot.stage * (B_BYTES // 16))

    @device_function
    def second_wave(acc, first_a, first_b, slot):  # type: ignore[no-untyped-def]
        return multiply(acc, first_a + (slot.stage * (A_BYTES // 16) + WAVE_A // 16), first_b + slot.stage * (B_BYTES // 16))

    loop, begin = loop_for(plan, Parts(await_stage, load_scales, first_wave, second_wave, release))

    @device_function
    def consumer(tmap_d, out, smem, m, n, k):  # type: ignore[no-untyped-def]
        warp_idx = thread.uniform(u32(cuda.threadIdx.x) // 32)
        lane_idx = thread.lane_idx()
        m_blocks, n_blocks = grid_of_tiles(m, n)
        k_blocks = blocks(k, BLOCK_K)
        # a tile of fewer than 64 rows has no scales for the rows that wgmma adds
        row = (warp_idx * 16 + lane_idx // 4) % BLOCK_M
        first_a = low_word(smem + A + warp_idx // 4 * (64 * BLOCK_K))
        first_b = low_word(smem + B)
        slot = Slot(u32(0), u32(0))
        acc = fragment.zero(ACC)
        tile = u32(cuda.blockIdx.x)
        scales = begin(smem, slot, u32(0), row)
        if IS_STAGGERED and warp_idx >= 4:
            # NOTE: both would multiply at once and then promote at once, and the tensor cores idle meanwhile. One that begins later stays behind:
            # 4 % less time for 128x192 (H200, 2026-11-30); what makes the order sure, a barrier for each block, costs more than that.
            thread.nanosleep(STAGGER)
        if ROTATE:
            acc = first_wave(acc, first_a, first_b, slot)
        while True:
            m_block, n_block = tile_at(tile, m_blocks, n_blocks)
            m_idx, n_idx = m_block * BLOCK_M, n_block * BLOCK_N
            acc, total0, total1, slot = loop(acc, scales, slot, smem, first_a, first_b, row, lane_idx, n_idx % 128, k_blocks)
            tile += u32(cuda.gridDim.x)
            if tile >= m_blocks * n_blocks:
                break
            if not OVERLAP:
                store(total0, total1, smem + D, tmap_d, out, m_idx, n_idx, m, n)
            scales = begin(smem, slot, u32(0), row)
            if ROTATE:
                acc = first_wave(acc, first_a, first_b, slot)
            if OVERLAP:
                store(total0, total1, smem + D, tmap_d, out, m_idx, n_idx, m, n)
        store(total0, total1, smem + D, tmap_d, out, m_idx, n_idx, m, n)
        # shared memory must outlive the last store's reads
        tma.wait_read(0)

    @device_function
    def run(tmap_a, tmap_b, tmap_sfa, tmap_sfb, tmap_d, out, rows, m, n, k):  # type: ignore[no-untyped-def]
        smem = (memory.shared_address(cuda.shared.array(0, np.uint8)) + 1023) // 1024 * 1024
        warp_idx = thread.uniform(u32(cuda.threadIdx.x) // 32)
        lane_idx = thread.lane_idx()
        if warp_idx == CONSUMER_WARPS and lane_idx == 0:
            tma.prefetch(tmap_a)
            tma.prefetch(tmap_b)
            if not ROW_SCALES:
                tma.prefetch(tmap_sfa)
            tma.prefetch(tmap_sfb)
            tma.prefetch(tmap_d)
        if warp_idx == 0 and lane_idx == 0:
            for stage in range(NUM_STAGES):
                mbarrier.init(smem + FULL + stage * 8, FULL_ARRIVALS)
                mbarrier.init(smem + EMPTY + stage * 8, EMPTY_ARRIVALS)
            barrier.fence_mbarrier_init()
        if CLUSTER == 1:
            cuda.syncthreads()
        else:
            barrier.cluster_arrive()
            barrier.cluster_wait()
        thread.griddepcontrol_wait()
        if warp_idx >= CONSUMER_WARPS:
            if RESIZE_REGISTERS:
                thread.setmaxnreg_dec(REGISTERS_PRODUCER)
            if warp_idx == CONSUMER_WARPS + PRODUCER_WARP and lane_idx == 0:
                producer(tmap_a, tmap_b, tmap_sfa, tmap_sfb, smem, m, n, k)
            if ROW_SCALES and warp_idx == CONSUMER_WARPS + SCALES_WARP:
                bring_scales(rows, smem, m, n, k)
        else:
            if RESIZE_REGISTERS:
                thread.setmaxnreg_inc(REGISTERS_CONSUMER)
            consumer(tmap_d, out, smem, m, n, k)
        if CLUSTER > 1:
            # NOTE: a CTA may not exit while its peer can still arrive on its barriers (PTX ISA 9.0, "mapa", shared::cluster lifetime).
            barrier.cluster_arrive()
            barrier.cluster_wait()

    def kernel(tmap_a, tmap_b, tmap_sfa, tmap_sfb, tmap_d, d_ptr, c_ptr, d_pitch, c_pitch, m, n, k):  # type: ignore[no-untyped-def]
        run(tmap_a, tmap_b, tmap_sfa, tmap_sfb, tmap_d, Output(d_ptr, c_ptr, d_pitch, c_pitch), RowScales(u64(0), u64(0)), m, n, k)

    def kernel_by_rows(tmap_a, tmap_b, tmap_sfb, tmap_d, d_ptr, c_ptr, sfa_ptr, d_pitch, c_pitch, sfa_pitch, m, n, k):  # type: ignore[no-untyped-def]
        # there is no map of A's scales; B's stands in its place, where nothing asks for it
        run(tmap_a, tmap_b, tmap_sfb, tmap_sfb, tmap_d, Output(d_ptr, c_ptr, d_pitch, c_pitch), RowScales(sfa_ptr, sfa_pitch), m, n, k)

    if ROW_SCALES:
        return Built(kernel_by_rows, (TensorMap,) * 4 + (u64,) * 6 + (u32,) * 3, THREADS, MAPPED, CLUSTER)
    return Built(kernel, (TensorMap,) * 5 + (u64,) * 4 + (u32,) * 3, THREADS, MAPPED, CLUSTER)
