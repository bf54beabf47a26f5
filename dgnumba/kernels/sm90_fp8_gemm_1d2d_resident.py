"""D[M,N] = sum over kb of (A[:,kb] @ B[:,kb].T) * SFA[:,kb] * SFB[n//128,kb], for few rows of A, all of which stay in shared memory.

Shapes:    as sm90_fp8_gemm_1d2d; a tile is 64 rows of B (the weights) by BLOCK_M rows of A (the tokens), of which there are no more
Roles:     one thread of the last warp: producer (TMA); the warpgroups before it: consumers, each with tiles and a ring of B of its own
Barriers:  full[slot]     1 arrival + bytes of B and SFB           producer -> one warpgroup
                          with `weights_first` those of the ring's first round come before the wait for the grid before
           empty[slot]    1 arrival per warp of it                 a warpgroup -> producer
           ready[piece]   1 arrival + bytes of A (and of SFA)      producer -> consumers, once
           named 1        everyone, once: the barriers are initialised; the producer does not wait
           named 2...     a warpgroup: its panel of D is free, or written
Tile:      for each stage of BLOCK_K / 128 blocks: all its wgmma -> wait -> release -> total += acc * (SFA of the column * SFB) for each block
Budget:    smem = layouts.smem of plan. A is asked for once a CTA and not once a tile: where a tile's K is short that is up to half of what comes
           out of L2, and the ring holds weights alone
Follows:   sm90_fp8_gemm_1d2d_swap_ab, but for where A lies, who takes which tile, and the store, which is the dense kernel's, turned.
"""

from __future__ import annotations

import numpy as np
from numba import cuda

from .._numba import device_function
from ..integers import u32, u64
from ..layouts.descriptors import SmemDescriptor, TensorMap, low_word
from ..ptx import barrier, fragment, mbarrier, memory, thread, tma, wgmma
from ..ptx.addend import add_columns_for
from .epilogue import store_turned_for
from .pipeline import FULL_ARRIVALS, Slot, empty_arrivals, next_slot
from .sm90_fp8_gemm_1d2d_resident_rules import groups, smem, threads
from .spec import Built, GemmPlan


def build(plan: GemmPlan) -> Built:
    """The kernel `kernel(tmap_a, tmap_b, tmap_sfa, tmap_sfb, tmap_d, c_ptr, c_pitch, m, n, k)` of a plan."""
    BLOCK_M, NUM_STAGES, GROUPS = plan.block_m, plan.num_stages, groups(plan)
    BLOCKS = plan.block_k // 128
    PIECES, SLOTS = plan.resident // BLOCKS, NUM_STAGES * GROUPS
    CONSUMER_WARPS, THREADS = 4 * GROUPS, threads(plan)
    MAPPED = smem(plan)
    B, A, D, SFA, SFB, FULL, EMPTY, READY = (MAPPED[name].offset for name in ("b", "a", "d", "sfa", "sfb", "full", "empty", "ready"))
    B_BYTES, A_BYTES, SFA_BYTES, SFB_BYTES, PANEL = (MAPPED[name].nbytes for name in ("b", "a", "sfa", "sfb", "d"))
    B_BLOCK, A_BLOCK, SFA_BLOCK = 64 * 128, BLOCK_M * 128, BLOCK_M * 4
    STAGE_BYTES = B_BYTES + 16
    EMPTY_ARRIVALS = empty_arrivals(4, 1)
    ACC = BLOCK_M // 2
    WITH_C, PDL, WEIGHTS_FIRST = plan.with_c, plan.pdl, plan.weights_first

    operand = SmemDescriptor(swizzle=128)
    mma = wgmma.mma_for(plan.b_dtype, plan.a_dtype, a=operand, b=operand)
    load_token_scales = fragment.load_token_scales_for(BLOCK_M, 4)
    promote = fragment.promote_columns
    store_turned = store_turned_for(BLOCK_M, plan.d_dtype)
    add_columns = add_columns_for(plan.d_dtype)

    @device_function
    def work(n, k):  # type: ignore[no-untyped-def]
        """Tiles, and stages of K."""
        return (n + 63) // 64, (k + (BLOCKS * 128 - 1)) // (BLOCKS * 128)

    @device_function
    def load_piece(tmap_a, tmap_sfa, smem, piece):  # type: ignore[no-untyped-def]
        """A's blocks of one stage; with the first all scales of A."""
        ready = smem + READY + piece * 8
        nbytes = u32(A_BYTES)
        if piece == 0:
            nbytes = u32(A_BYTES + SFA_BYTES)
        mbarrier.arrive_expect_tx(ready, nbytes)
        tma.load_3d(smem + A + piece * A_BYTES, tmap_a, ready, u32(0), u32(0), piece * BLOCKS)
        if piece == 0:
            tma.load_2d(smem + SFA, tmap_sfa, ready, u32(0), u32(0))

    @device_function
    def load_weights(tmap_b, tmap_sfb, smem, slot, stage, tile, tiles):  # type: ignore[no-untyped-def]
        """B's blocks of one stage and their scales, for each warpgroup that has a tile, once its slot is free."""
        group = u32(0)
        while group < GROUPS and tile < tiles:
            at = slot.stage * GROUPS + group
            full = smem + FULL + at * 8
            mbarrier.wait(smem + EMPTY + at * 8, slot.phase ^ 1)
            mbarrier.arrive_expect_tx(full, STAGE_BYTES)
            tma.load_3d(smem + B + at * B_BYTES, tmap_b, full, u32(0), tile * 64, stage * BLOCKS)
            tma.load_2d(smem + SFB + at * SFB_BYTES, tmap_sfb, full, stage * BLOCKS // 4 * 4, tile * 64 // 128)
            tile += u32(cuda.gridDim.x)
            group += 1

    @device_function
    def first_weights(tmap_b, tmap_sfb, smem, n, k):  # type: ignore[no-untyped-def]
        """Ask for B and SFB of the ring's first round, whose stages are empty; returns for how many stages."""
        tiles, stages = work(n, k)
        slot, asked = Slot(u32(0), u32(0)), u32(0)
        tile = u32(cuda.blockIdx.x)
        while tile < tiles and asked < NUM_STAGES:
            stage = u32(0)
            while stage < stages and asked < NUM_STAGES:
                load_weights(tmap_b, tmap_sfb, smem, slot, stage, tile, tiles)
                slot = next_slot(slot, NUM_STAGES)
                asked += 1
                stage += 1
            tile += u32(cuda.gridDim.x) * GROUPS
        return asked

    @device_function
    def producer(tmap_a, tmap_b, tmap_sfa, tmap_sfb, smem, n, k, asked):  # type: ignore[no-untyped-def]
        """Round after round of tiles, one a warpgroup, stage after stage; A in the first round, behind B. Of the first `asked` B is on its way."""
        tiles, stages = work(n, k)
        slot, is_first = Slot(u32(0), u32(0)), True
        tile = u32(cuda.blockIdx.x)
        while tile < tiles:
            stage = u32(0)
            while stage < stages:
                if WEIGHTS_FIRST and asked > 0:
                    asked -= 1
                else:
                    load_weights(tmap_b, tmap_sfb, smem, slot, stage, tile, tiles)
                if is_first:
                    load_piece(tmap_a, tmap_sfa, smem, stage)
                slot = next_slot(slot, NUM_STAGES)
                stage += 1
            is_first = False
            tile += u32(cuda.gridDim.x) * GROUPS

    @device_function
    def issue(acc, desc_b, desc_a):  # type: ignore[no-untyped-def]
        acc = mma(acc, desc_b, desc_a, 0)
        acc = mma(acc, desc_b + 2, desc_a + 2, 1)
        acc = mma(acc, desc_b + 4, desc_a + 4, 1)
        return mma(acc, desc_b + 6, desc_a + 6, 1)

    @device_function
    def multiply(total, acc0, acc1, acc2, acc3, smem, slot, phase, stage, first_b, first_a, lane_idx):  # type: ignore[no-untyped-def]
        """One stage: the products of all its blocks in flight together, then their promotion."""
        mbarrier.wait(smem + READY + stage * 8, u32(0))
        mbarrier.wait(smem + FULL + slot * 8, phase)
        desc_b = first_b + slot * (B_BYTES // 16)
        desc_a = first_a + stage * (A_BYTES // 16)
        wgmma.fence()
        acc0 = issue(acc0, desc_b, desc_a)
        acc1 = issue(acc1, desc_b + B_BLOCK // 16, desc_a + A_BLOCK // 16)
        if BLOCKS == 4:
            acc2 = issue(acc2, desc_b + 2 * B_BLOCK // 16, desc_a + 2 * A_BLOCK // 16)
            acc3 = issue(acc3, desc_b + 3 * B_BLOCK // 16, desc_a + 3 * A_BLOCK // 16)
        wgmma.commit()
        sfa = smem + SFA + stage * (BLOCKS * SFA_BLOCK) + lane_idx % 4 * 8
        sfb = smem + SFB + slot * SFB_BYTES + stage * BLOCKS % 4 * 4
        tokens0, row0 = load_token_scales(sfa), memory.load_shared_f32(sfb)
        tokens1, row1 = load_token_scales(sfa + SFA_BLOCK), memory.load_shared_f32(sfb + 4)
        tokens2, row2, tokens3, row3 = tokens0, row0, tokens0, row0
        if BLOCKS == 4:
            tokens2, row2 = load_token_scales(sfa + 2 * SFA_BLOCK), memory.load_shared_f32(sfb + 8)
            tokens3, row3 = load_token_scales(sfa + 3 * SFA_BLOCK), memory.load_shared_f32(sfb + 12)
        acc0 = wgmma.wait(acc0, 0)
        acc1 = wgmma.wait(acc1, 0)
        if BLOCKS == 4:
            acc2 = wgmma.wait(acc2, 0)
            acc3 = wgmma.wait(acc3, 0)
        mbarrier.arrive_if(lane_idx == 0, smem + EMPTY + slot * 8)
        total = promote(total, acc0, tokens0, row0)
        total = promote(total, acc1, tokens1, row1)
        if BLOCKS == 4:
            total = promote(total, acc2, tokens2, row2)
            total = promote(total, acc3, tokens3, row3)
        return total, acc0, acc1, acc2, acc3

    @device_function
    def store(total, tmap_d, smem, n_idx, group, warp_idx, lane_idx):  # type: ignore[no-untyped-def]
        """A tile's sums as rows of D, through the warpgroup's panel."""
        panel = smem + D + group * PANEL
        chunk = (warp_idx % 4 * 2 + lane_idx // 8 % 2) ^ lane_idx % 8
        # the tile before must have left the panel
        tma.wait_read(0)
        barrier.sync(group + 2, 128)
        store_turned(total, panel + (lane_idx // 16 * 8 + lane_idx % 8) * 128 + chunk * 16)
        # NOTE: each writer fences, then all meet, then one stores (PTX ISA 9.0, "Async Proxy").
        barrier.fence_proxy_async()
        barrier.sync(group + 2, 128)
        tma.store_2d_if(u32(cuda.threadIdx.x) % 128 == 0, tmap_d, panel, n_idx, u32(0))
        tma.commit()

    @device_function
    def consumer(tmap_d, c_ptr, c_pitch, smem, m, n, k):  # type: ignore[no-untyped-def]
        warp_idx = thread.uniform(u32(cuda.threadIdx.x) // 32)
        lane_idx = thread.lane_idx()
        group = warp_idx // 4
        tiles, stages = work(n, k)
        first_b, first_a = low_word(smem + B), low_word(smem + A)
        slot = Slot(u32(0), u32(0))
        acc0, acc1, acc2, acc3 = fragment.zero(ACC), fragment.zero(ACC), fragment.zero(ACC), fragment.zero(ACC)
        tile = u32(cuda.blockIdx.x) + u32(cuda.gridDim.x) * group
        while tile < tiles:
            total = fragment.zero(ACC)
            stage = u32(0)
            while stage < stages:
                at = slot.stage * GROUPS + group
                total, acc0, acc1, acc2, acc3 = multiply(
                    total, acc0, acc1, acc2, acc3, smem, at, slot.phase, stage, first_b, first_a, lane_idx
                )
                slot = next_slot(slot, NUM_STAGES)
                stage += 1
            if WITH_C:
                token, row = lane_idx % 4 * 2, tile * 64 + warp_idx % 4 * 16 + lane_idx // 4
                total = add_columns(total, c_ptr + u64(token) * c_pitch + u64(row) * 2, c_pitch, token, m, row, n)
            store(total, tmap_d, smem, tile * 64, group, warp_idx, lane_idx)
            tile += u32(cuda.gridDim.x) * GROUPS
        # shared memory must outlive the last store's reads
        tma.wait_read(0)

    def kernel(tmap_a, tmap_b, tmap_sfa, tmap_sfb, tmap_d, c_ptr, c_pitch, m, n, k):  # type: ignore[no-untyped-def]
        smem = (memory.shared_address(cuda.shared.array(0, np.uint8)) + 1023) // 1024 * 1024
        warp_idx = thread.uniform(u32(cuda.threadIdx.x) // 32)
        if warp_idx == CONSUMER_WARPS:
            if thread.lane_idx() == 0:
                for slot in range(SLOTS):
                    mbarrier.init(smem + FULL + slot * 8, FULL_ARRIVALS)
                    mbarrier.init(smem + EMPTY + slot * 8, EMPTY_ARRIVALS)
                for piece in range(PIECES):
                    mbarrier.init(smem + READY + piece * 8, FULL_ARRIVALS)
                barrier.fence_mbarrier_init()
            thread.syncwarp()
            # the producer tells that the barriers stand, and does not wait for anyone: its loads start at once
            barrier.arrive(1, THREADS)
            asked = u32(0)
            if WEIGHTS_FIRST:
                # NOTE: a load by TMA before the wait need not see what the grid before writes: only of weights that nobody writes (`GemmPlan`).
                if thread.lane_idx() == 0:
                    asked = first_weights(tmap_b, tmap_sfb, smem, n, k)
            thread.griddepcontrol_wait()
            if thread.lane_idx() == 0:
                producer(tmap_a, tmap_b, tmap_sfa, tmap_sfb, smem, n, k, asked)
            if PDL:
                # NOTE: behind the wait, so that only one grid before the next still runs; and behind the loads, as it was measured (bench/NOTES.md).
                thread.griddepcontrol_launch_dependents()
        else:
            barrier.sync(1, THREADS)
            thread.griddepcontrol_wait()
            consumer(tmap_d, c_ptr, c_pitch, smem, m, n, k)

    argtypes = (TensorMap,) * 5 + (u64,) * 2 + (u32,) * 3
    return Built(kernel, argtypes, THREADS, MAPPED, 1)
