"""D[M,N] = A[M,K] @ B[N,K].T by mma.sync: the textbook kernel, for any GPU from sm_80 on; with FP8's block scales, sm90_fp8_gemm_1d2d's sum.

Shapes:    A [M,K] and B [N,K] of one type, row-major, K the contiguous axis, rows of 16 B multiples: bf16, f16, e4m3, int8 or int4 (two a byte);
           D [M,N] bf16, f16 or float32, of integers int32; with e4m3 SFA float32 [K/128, M] (MN-major), SFB float32 [N/128, K/128]
Roles:     all warps do the same: copy a part of each stage, multiply a part of the tile
Barriers:  one __syncthreads a stage: behind it the next stage may be read and the last one filled again
Tile:      a stage is 128 bytes of K, so four steps of 32 bytes, whatever the type. For each step: ldmatrix of the next step's fragments,
           then mma.sync of those at hand; for each stage: wait, meet, refill; with scales: total += acc * scales
Banks:     16-byte chunk c of row r lies at c ^ (r % 8) (`layouts.swizzle`, 128): ldmatrix reads eight rows of one chunk without a conflict
Budget:    smem = stages * (BLOCK_M + BLOCK_N) * 128 B; registers ~ (BLOCK_M * BLOCK_N / threads) * (1, scaled: 2) + fragments of two steps
Follows:   the multistage mainloop that CUTLASS and Triton have for sm_80; no code of theirs.
"""

from __future__ import annotations

import numpy as np
from numba import cuda

from .._numba import device_function
from ..integers import u32, u64
from ..layouts.tiles import band_tile
from ..ptx import cp_async, fragment, matrix, memory
from .sm80_gemm_rules import ROW, is_scaled, smem, threads, warps_of
from .sm80_parts import copy_rows_for, multiply_for, row_scales_for, store_tile_for
from .spec import Built, GemmPlan


def build(plan: GemmPlan) -> Built:
    """The kernel `kernel(a, b, d, sfa, sfb, a_pitch, b_pitch, d_pitch, sfa_pitch, sfb_pitch, m, n, row_bytes)` of a plan."""
    BLOCK_M, BLOCK_N, NUM_STAGES, BAND = plan.block_m, plan.block_n, plan.num_stages, plan.band
    WARPS_M, WARPS_N = warps_of(plan)
    THREADS = threads(plan)
    M_TILES, N_TILES = BLOCK_M // (16 * WARPS_M), BLOCK_N // (8 * WARPS_N)
    # groups that may be in flight when the first stage must have landed, and when the next one must
    ALL_BUT_FIRST, ALL_BUT_NEXT = NUM_STAGES - 1, NUM_STAGES - 2
    ACC = 4 * M_TILES * N_TILES
    SCALED, IS_FLOAT = is_scaled(plan), plan.d_dtype != "int32"
    MAPPED = smem(plan)
    A, B = MAPPED["a"].offset, MAPPED["b"].offset
    A_BYTES, B_BYTES = MAPPED["a"].nbytes, MAPPED["b"].nbytes
    D_SIZE = 2 if plan.d_dtype in ("bfloat16", "float16") else 4

    zero = fragment.zero if IS_FLOAT else fragment.zero_u32
    copy_a, copy_b = copy_rows_for(BLOCK_M, THREADS), copy_rows_for(BLOCK_N, THREADS)
    load_a, load_b = matrix.load_tiles_for(M_TILES, 16 * ROW), matrix.load_tiles_for(N_TILES // 2, 16 * ROW)
    multiply = multiply_for(plan.a_dtype, M_TILES, N_TILES, widen=plan.widen)
    row_scales = row_scales_for(M_TILES)
    store = store_tile_for(M_TILES, N_TILES, plan.d_dtype)

    @device_function
    def fill(smem, stage, k_block, a, b, a_pitch, b_pitch, m_row, n_row, m, n, row_bytes):  # type: ignore[no-untyped-def]
        """Begin to copy a block of K into a stage: each thread one 16-byte chunk of every so many rows, zeros behind the end of a row."""
        thread_idx = u32(cuda.threadIdx.x)
        row, chunk = thread_idx // 8, thread_idx % 8
        at = k_block * ROW + chunk * 16
        nbytes = min(row_bytes - min(at, row_bytes), 16)
        place = row * ROW + ((chunk ^ row % 8) << 4)
        # rows past the end of an operand are the last one again: their products are not stored
        copy_a(smem + A + stage * A_BYTES + place, a + u64(at), a_pitch, m_row + row, m - 1, nbytes)
        copy_b(smem + B + stage * B_BYTES + place, b + u64(at), b_pitch, n_row + row, n - 1, nbytes)

    @device_function
    def next_stage(stage):  # type: ignore[no-untyped-def]
        return stage + 1 if stage + 1 < NUM_STAGES else u32(0)

    @device_function
    def step(acc, frags, smem_a, smem_b):  # type: ignore[no-untyped-def]
        """Issue the loads of the next step's fragments, then multiply those at hand."""
        frag_a, frag_b = frags
        following = load_a(smem_a), load_b(smem_b)
        return multiply(acc, frag_a, frag_b), following

    @device_function
    def lane_places():  # type: ignore[no-untyped-def]
        """Bytes into a stage's A and B at which this lane's row and chunk of the first step lie."""
        warp_idx, lane_idx = u32(cuda.threadIdx.x) // 32, u32(cuda.threadIdx.x) % 32
        a_row = warp_idx // WARPS_N * (16 * M_TILES) + lane_idx % 16
        b_row = warp_idx % WARPS_N * (8 * N_TILES) + lane_idx // 16 * 8 + lane_idx % 8
        a_place = a_row * ROW + ((lane_idx // 16 ^ lane_idx % 8) << 4)
        b_place = b_row * ROW + ((lane_idx // 8 % 2 ^ lane_idx % 8) << 4)
        return a_place, b_place

    def kernel(a, b, d, sfa, sfb, a_pitch, b_pitch, d_pitch, sfa_pitch, sfb_pitch, m, n, row_bytes):  # type: ignore[no-untyped-def]
        smem = (memory.shared_address(cuda.shared.array(0, np.uint8)) + 1023) // 1024 * 1024
        m_block, n_block = band_tile(u32(cuda.blockIdx.x), (m + (BLOCK_M - 1)) // BLOCK_M, (n + (BLOCK_N - 1)) // BLOCK_N, BAND)
        m_row, n_row = m_block * BLOCK_M, n_block * BLOCK_N
        warp_idx, lane_idx = u32(cuda.threadIdx.x) // 32, u32(cuda.threadIdx.x) % 32
        row = m_row + warp_idx // WARPS_N * (16 * M_TILES) + lane_idx // 4
        col = n_row + warp_idx % WARPS_N * (8 * N_TILES) + lane_idx % 4 * 2
        k_blocks = (row_bytes + (ROW - 1)) // ROW

        # fill the ring; a group for each stage, also where K has no block for it
        for filled in range(NUM_STAGES):
            fill(smem, u32(filled), u32(filled), a, b, a_pitch, b_pitch, m_row, n_row, m, n, row_bytes)
            cp_async.commit()
        a_place, b_place = lane_places()
        smem_a, smem_b = smem + A + a_place, smem + B + b_place
        cp_async.wait(ALL_BUT_FIRST)
        cuda.syncthreads()
        frags = load_a(smem_a), load_b(smem_b)

        acc, total = zero(ACC), zero(ACC)
        k_block, stage = u32(0), u32(0)
        while k_block < k_blocks:
            if SCALED:
                column = memory.load_global_f32(sfb + u64(n_row // 128 * sfb_pitch + k_block * 4))
                scales = row_scales(sfa + u64(k_block) * u64(sfa_pitch), row, m - 1, column)
                acc = zero(ACC)
            # step s of 32 bytes: its two chunks differ from the first step's in bits 5 and 6 of the address
            acc, frags = step(acc, frags, smem_a + stage * A_BYTES ^ 32, smem_b + stage * B_BYTES ^ 32)
            acc, frags = step(acc, frags, smem_a + stage * A_BYTES ^ 64, smem_b + stage * B_BYTES ^ 64)
            acc, frags = step(acc, frags, smem_a + stage * A_BYTES ^ 96, smem_b + stage * B_BYTES ^ 96)
            # the stage's last fragments are in registers: once all warps are here it may be filled again
            cp_async.wait(ALL_BUT_NEXT)
            cuda.syncthreads()
            used, stage = stage, next_stage(stage)
            following = load_a(smem_a + stage * A_BYTES), load_b(smem_b + stage * B_BYTES)
            if k_block + NUM_STAGES < k_blocks:
                fill(smem, used, k_block + NUM_STAGES, a, b, a_pitch, b_pitch, m_row, n_row, m, n, row_bytes)
            cp_async.commit()
            acc = multiply(acc, frags[0], frags[1])
            frags = following
            if SCALED:
                total = fragment.promote(total, acc, scales)
            k_block += 1
        cp_async.wait(0)
        if not SCALED:
            total = acc
        store(total, d + u64(row) * u64(d_pitch) + u64(col) * D_SIZE, d_pitch, row, m, col, n)

    argtypes = (u64,) * 5 + (u32,) * 8
    return Built(kernel, argtypes, THREADS, MAPPED, 1)
