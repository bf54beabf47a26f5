"""D[M,N] = A[M,K] @ W[N,K].T for weights of 4 bits by mma.sync: sm80_gemm's frame, for any GPU from sm_80 on; weights on its 16-row side.

Shapes:    as sm90_int4_gemm: W a stream of records, 64 rows by 128 of K (`layouts.int4.stream`); A bf16, f16, e4m3 or int8 [M,K], rows of whole
           blocks of 128 bytes; with e4m3 SFA f32 [K/128, M] (MN-major); a tile is BLOCK_N rows of W by BLOCK_M tokens
Roles:     four warps for each 64 rows of W, 16 each; they copy their own records, and all copy the tokens
Barriers:  one __syncthreads a stage: behind it the stage may be read, and the one before it filled again
Tile:      for each record of a stage: unpack in registers -> for each step of 32 bytes: ldmatrix of the tokens, mma.sync for each group
           -> total += scales * acc
Exactness: as sm90_int4_gemm, whose sums these are
Budget:    smem = layouts.smem of plan; what counts is bytes in flight
"""

from __future__ import annotations

import numpy as np
from numba import cuda

from .._numba import device_function
from ..dtypes import DTYPES
from ..integers import u32, u64
from ..ptx import convert, cp_async, fragment, memory
from .int4_finish import store_tile_for
from .int4_spec import Int4Plan
from .int4_stage import table_word_for
from .sm80_int4_gemm_rules import smem, threads
from .sm80_int4_stage import stage_for
from .spec import Built


def build(plan: Int4Plan) -> Built:
    """The kernel of a plan; its arguments are `bind`'s."""
    BLOCK_M, BLOCK_N, NUM_STAGES, RECORDS = plan.block_m, plan.block_n, plan.num_stages, plan.records
    THREADS, TILES = threads(plan), BLOCK_N // 64
    # groups that may be in flight when the next stage must have landed, and stages that are filled at first
    ALL_BUT_NEXT, FILLED = NUM_STAGES - 2, NUM_STAGES - 1
    MAPPED = smem(plan)
    W, A, SFA, TABLES = (MAPPED[name].offset for name in ("w", "a", "sfa", "tables"))
    W_BYTES, A_BYTES, SFA_BYTES = (MAPPED[name].nbytes for name in ("w", "a", "sfa"))
    RECORD_BYTES = plan.record.nbytes
    ROW_BYTES = RECORD_BYTES * RECORDS
    BLOCKS, BLOCK_BYTES = RECORDS * DTYPES[plan.a_dtype].itemsize, BLOCK_M * 128
    W_CHUNKS, A_CHUNKS, SFA_CHUNKS = ROW_BYTES // 16, A_BYTES // 16, BLOCK_M // 4 * RECORDS
    HAS_SFA, TABLE_WORDS = plan.has_block_scales, plan.table_words
    PAIRS = 1 if BLOCK_M >= 16 else 0
    ACC = BLOCK_M // 2
    stage_product, table_word = stage_for(plan), table_word_for(plan)
    store_tile = store_tile_for(plan)
    zeros, bits_of = (fragment.zero_s32, convert.forget) if plan.is_whole else (fragment.zero, fragment.bits)

    @device_function
    def fill_weights(smem, w, slot, stage, n_tile, tiles, records):  # type: ignore[no-untyped-def]
        """Begin to copy the records of this thread's 64 rows: 128 threads, a chunk of 16 bytes each in turn."""
        group_idx, chunk = u32(cuda.threadIdx.x) // 128, u32(cuda.threadIdx.x) % 128
        # past the last tile of the stream it is loaded again: its products are not stored
        row = u64(min(n_tile + group_idx, tiles - 1)) * u64(records) + u64(stage * RECORDS)
        src, dst = w + row * RECORD_BYTES, smem + W + slot * W_BYTES + group_idx * ROW_BYTES
        while chunk < W_CHUNKS:
            cp_async.copy_16(dst + chunk * 16, src + u64(chunk * 16))
            chunk += 128

    @device_function
    def fill_tokens(smem, a, sfa, slot, stage, m_idx, a_pitch, sfa_pitch, m, row_bytes):  # type: ignore[no-untyped-def]
        """The same of the tokens, swizzled, zeros behind the end of a row, and of their scales; tokens past the last are the last one again."""
        item = u32(cuda.threadIdx.x)
        while item < A_CHUNKS:
            row, chunk = item % (BLOCK_BYTES // 16) // 8, item % 8
            at = (stage * BLOCKS + item // (BLOCK_BYTES // 16)) * 128 + chunk * 16
            nbytes = min(row_bytes - min(at, row_bytes), 16)
            place = item // 8 * 128 + ((chunk ^ row % 8) << 4)
            cp_async.copy_16_zfill(smem + A + slot * A_BYTES + place, a + u64(min(m_idx + row, m - 1)) * u64(a_pitch) + u64(at), nbytes)
            item += THREADS
        if HAS_SFA:
            item = u32(cuda.threadIdx.x)
            while item < SFA_CHUNKS:
                token, record = m_idx + item % (BLOCK_M // 4) * 4, stage * RECORDS + item // (BLOCK_M // 4)
                nbytes = min((m - min(token, m)) * 4, 16)
                src = sfa + u64(record) * u64(sfa_pitch) + u64(token) * 4
                cp_async.copy_16_zfill(smem + SFA + slot * SFA_BYTES + item * 16, src, nbytes)
                item += THREADS

    @device_function
    def write_tables(smem):  # type: ignore[no-untyped-def]
        """The tables by which codes become e4m3."""
        tid = u32(cuda.threadIdx.x)
        if tid < TABLE_WORDS:
            memory.store_shared_u32(smem + TABLES + tid * 4, table_word(tid))

    def kernel(a, sfa, w, d, d_pitch, bias, c, c_pitch, token_scales, alpha, a_pitch, sfa_pitch, row_bytes, m, n, tiles, records):  # type: ignore[no-untyped-def]
        smem = (memory.shared_address(cuda.shared.array(0, np.uint8)) + 1023) // 1024 * 1024
        tid, lane_idx = u32(cuda.threadIdx.x), u32(cuda.threadIdx.x) % 32
        m_blocks = (m + (BLOCK_M - 1)) // BLOCK_M
        m_idx, n_tile = u32(cuda.blockIdx.x) % m_blocks * BLOCK_M, u32(cuda.blockIdx.x) // m_blocks * TILES
        stages = records // RECORDS
        if TABLE_WORDS > 0:
            write_tables(smem)
        for filled in range(FILLED):
            if u32(filled) < stages:
                fill_weights(smem, w, u32(filled), u32(filled), n_tile, tiles, records)
                fill_tokens(smem, a, sfa, u32(filled), u32(filled), m_idx, a_pitch, sfa_pitch, m, row_bytes)
            cp_async.commit()
        # this lane's row and chunk of the tokens' first step, and its first pair of token scales
        place = (lane_idx // 16 * 8 * PAIRS + lane_idx % 8) * 128 + ((lane_idx // 8 % 2 ^ lane_idx % 8) << 4)
        first_w, first_a = smem + W + tid // 128 * ROW_BYTES, smem + A + place
        first_sfa = smem + SFA + lane_idx % 4 * 8
        total = zeros(ACC)
        stage, slot, free = u32(0), u32(0), u32(FILLED)
        while stage < stages:
            cp_async.wait(ALL_BUT_NEXT)
            # all copies of the stage have landed, and all warps have left the one before it
            cuda.syncthreads()
            if stage + FILLED < stages:
                fill_weights(smem, w, free, stage + FILLED, n_tile, tiles, records)
                fill_tokens(smem, a, sfa, free, stage + FILLED, m_idx, a_pitch, sfa_pitch, m, row_bytes)
            cp_async.commit()
            total = stage_product(
                total, first_w + slot * W_BYTES, tid % 128, first_a + slot * A_BYTES, first_sfa + slot * SFA_BYTES, smem + TABLES
            )
            free = slot
            slot = slot + 1 if slot + 1 < NUM_STAGES else u32(0)
            stage += 1
        token, row = m_idx + tid % 4 * 2, n_tile * 64 + tid // 32 * 16 + lane_idx // 4
        store_tile(bits_of(total), token, row, w, records, d, d_pitch, bias, c, c_pitch, token_scales, alpha, m, n)

    argtypes = (u64,) * 9 + (u32,) * 8
    return Built(kernel, argtypes, THREADS, MAPPED, 1)
