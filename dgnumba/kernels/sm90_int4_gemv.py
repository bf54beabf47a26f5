"""D[M,N] = A[M,K] @ W[N,K].T for weights of 4 bits and up to eight tokens: the weights go from memory to the registers, for mma.sync.

Shapes:    W the stream of sm90_int4_gemm, records of 64 rows by 128 of K (`layouts.int4.stream`); A bf16, f16, e4m3 or int8 [M,K], rows of whole
           blocks of 128 bytes; with e4m3 by blocks SFA f32 [M, K/128], of any strides; a tile is BLOCK_N rows of W (16, 32 or 64) by 8 tokens
Roles:     every warp the same: all rows of the tile, and each WARPS-th record of K
Barriers:  one __syncthreads, before the warps' sums are added; a warp's tokens are its own, as are its tables of e4m3
Tile:      DEPTH records are asked for, weights and tokens' scales to registers, tokens to shared memory; then, one by one: unpack -> ldmatrix of
           the tokens, mma.sync -> total += acc * scales, group by group -> ask for another
Budget:    registers on their way: what counts is bytes, and nothing that stands before the first of them: no tensor map, no barrier, no ring
Order:     a tile's sums are added in the order of the warps, so that a result has the same bits every run
Exactness: as sm90_int4_gemm: scales meet float32 sums; of int8 with one scale a row the sums of all warps are int32
Follows:   sm90_fp8_gemv_1d2d, its FP8 counterpart; a warp's 16 rows of a record are already the fragment of mma.sync, register by register
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from .._numba import device_function
from ..dtypes import DTYPES
from ..integers import u32, u64
from ..ptx import convert, cp_async, fragment, memory, thread
from .gemv_parts import sum_in_order_for
from .int4_finish import finish_for, store_partial
from .int4_gemv_parts import bits_for, copy_tokens_for, load_for, multiply_for
from .int4_spec import Int4Plan
from .int4_stage import table_word_for
from .sm90_int4_gemv_rules import held, smem, threads, token_bytes
from .spec import Built


class Source(NamedTuple):
    """Where a warp reads.

    base              address of the tile's weights
    codes, pair       of a record, this lane's first bytes of codes and pair of rows
    place             shared address of the warp's tokens
    a, a_pitch        address of A, and bytes of a row of it, of which `row_bytes` count
    sfa, sfa_pitch    address of A's scales, and bytes from a record's to the next one's
    columns           bytes from a record's first to those of this lane's two tokens
    """

    base: Any
    codes: Any
    pair: Any
    place: Any
    a: Any
    a_pitch: Any
    row_bytes: Any
    m: Any
    sfa: Any
    sfa_pitch: Any
    columns: Any


def build(plan: Int4Plan) -> Built:
    """The kernel of a plan; its arguments are those of `sm90_int4_gemv_rules.bind`."""
    BLOCK_M, BLOCK_N, WARPS, DEPTH = plan.block_m, plan.block_n, plan.records, plan.num_stages
    THREADS, PDL, MAPPED = threads(plan), plan.pdl, smem(plan)
    A, PARTIAL, RECORD_BYTES = MAPPED["a"].offset, MAPPED["partial"].offset, plan.record.nbytes
    SUMS = BLOCK_N // 4  # of a thread, as of all tiles of 16 x 8
    SUMS_BYTES, PAIRS, HELD = SUMS * 128, BLOCK_N * BLOCK_M // 2, held(plan)
    TOKEN_BYTES, ROW_BYTES = token_bytes(plan), 128 * DTYPES[plan.a_dtype].itemsize
    TABLES, TABLE_WORDS, IS_WHOLE = MAPPED["tables"].offset, plan.table_words, plan.is_whole
    load, multiply, finish, copy_tokens = load_for(plan), multiply_for(plan), finish_for(plan), copy_tokens_for(plan)
    table_word, bits_of, zeros = table_word_for(plan), bits_for(plan), fragment.zero_s32 if IS_WHOLE else fragment.zero
    # all copies but those of the records behind the next
    PENDING = DEPTH - 1

    @device_function
    def fetch(record, slot, at, records):  # type: ignore[no-untyped-def]
        """Ask for a record's tokens, to a slot of the warp's shared memory, and for its weights; for none past the last."""
        words = fragment.zero_u32(HELD)
        if record < records:
            to = at.place + slot * TOKEN_BYTES
            copy_tokens(to, at.a, at.a_pitch, u32(cuda.threadIdx.x) % 32, record * ROW_BYTES, at.row_bytes, at.m)
            scales = at.sfa + u64(record) * at.sfa_pitch
            words = load(at.base + u64(record) * RECORD_BYTES, at.codes, at.pair, scales, at.columns, record < records)
        # an empty group too: the number of groups behind a record's is what it waits by
        cp_async.commit()
        return words

    @device_function
    def use(total, words, tokens, slot, tables):  # type: ignore[no-untyped-def]
        """total += a record's products, once its tokens have landed, those that other lanes copied too."""
        cp_async.wait(PENDING)
        thread.syncwarp()
        total = multiply(total, words, tokens + slot * TOKEN_BYTES, tables)
        # all lanes have read the tokens: others may take their place
        thread.syncwarp()
        return total

    @device_function
    def write_tables(tables):  # type: ignore[no-untyped-def]
        """The tables by which codes become e4m3, of this warp; seen by all its lanes behind the barrier before the first record's use."""
        i = thread.lane_idx()
        while i < TABLE_WORDS:
            memory.store_shared_u32(tables + i * 4, table_word(i))
            i += 32

    @device_function
    def sums(record, tokens, tables, at, records):  # type: ignore[no-untyped-def]
        """A warp's sum: records `record`, + WARPS, ... of K, of which DEPTH are on their way."""
        total = zeros(SUMS)
        w0 = fetch(record, u32(0), at, records)
        w1, w2, w3 = w0, w0, w0
        if DEPTH >= 2:
            w1 = fetch(record + WARPS, u32(1), at, records)
        if DEPTH >= 3:
            w2 = fetch(record + 2 * WARPS, u32(2), at, records)
        if DEPTH >= 4:
            w3 = fetch(record + 3 * WARPS, u32(3), at, records)
        if TABLE_WORDS > 0:
            write_tables(tables)  # while they are on their way
        while record < records:
            total = use(total, w0, tokens, u32(0), tables)
            w0 = fetch(record + DEPTH * WARPS, u32(0), at, records)
            record += WARPS
            if DEPTH >= 2 and record < records:
                total = use(total, w1, tokens, u32(1), tables)
                w1 = fetch(record + DEPTH * WARPS, u32(1), at, records)
                record += WARPS
            if DEPTH >= 3 and record < records:
                total = use(total, w2, tokens, u32(2), tables)
                w2 = fetch(record + DEPTH * WARPS, u32(2), at, records)
                record += WARPS
            if DEPTH >= 4 and record < records:
                total = use(total, w3, tokens, u32(3), tables)
                w3 = fetch(record + DEPTH * WARPS, u32(3), at, records)
                record += WARPS
        return total

    @device_function
    def whole_sum_of(partial):  # type: ignore[no-untyped-def]
        """The int32 sum of the warps."""
        total = memory.load_shared_u32(partial)
        for warp in range(1, WARPS):
            total = total + memory.load_shared_u32(partial + warp * SUMS_BYTES)
        return total

    float_sum_of = sum_in_order_for(WARPS, SUMS_BYTES)

    @device_function
    def bits_of_sum(partial):  # type: ignore[no-untyped-def]
        """The float32 sum of the warps, as its bits."""
        return convert.f32_to_bits(float_sum_of(partial))

    sum_of = whole_sum_of if IS_WHOLE else bits_of_sum

    @device_function
    def add_up(partial, n_idx, w, d, d_pitch, bias, c, c_pitch, token_scales, alpha, m, n, records):  # type: ignore[no-untyped-def]
        """Add the sums of the warps, in their order, and store: two rows of one token a thread and time."""
        i = u32(cuda.threadIdx.x)
        while i < PAIRS:
            lane_idx, strip, side = i % 32, i // 64, i // 32 % 2
            at = partial + (strip * 4 + side) * 128 + lane_idx * 4
            token, row = lane_idx % 4 * 2 + side, n_idx + strip * 16 + lane_idx // 4
            finish(sum_of(at), sum_of(at + 256), token, row, w, records, d, d_pitch, bias, c, c_pitch, token_scales, alpha, m, n)
            i += THREADS

    def kernel(
        a, w, d, d_pitch, bias, c, c_pitch, token_scales, alpha, a_pitch, row_bytes, m, n, records, sfa, sfa_row, sfa_pitch,
    ):  # type: ignore[no-untyped-def] # fmt: skip
        smem = memory.shared_address(cuda.shared.array(0, np.uint8, alignment=16))
        smem = (smem + 127) // 128 * 128
        warp_idx = thread.uniform(u32(cuda.threadIdx.x) // 32)
        lane_idx = thread.lane_idx()
        n_idx = u32(cuda.blockIdx.x) * BLOCK_N
        base = w + u64(n_idx // 64) * u64(records) * RECORD_BYTES
        in_tile = n_idx % 64 // 16
        codes, pair = in_tile * 512 + lane_idx * 16, in_tile * 8 + lane_idx // 4
        place, tables = smem + A + warp_idx * (DEPTH * TOKEN_BYTES), smem + TABLES + warp_idx * (TABLE_WORDS * 4)
        # matrix lane / 8 of ldmatrix is that chunk of a row
        tokens = place + lane_idx % 8 * 128 + ((lane_idx // 8 ^ lane_idx % 8) << 4)
        # the scale of a token past the last is read as the last one's; nothing of it is stored
        token = lane_idx % 4 * 2
        columns = min(token, m - 1) * sfa_row, min(token + 1, m - 1) * sfa_row
        at = Source(base, codes, pair, place, a, a_pitch, row_bytes, m, sfa, sfa_pitch, columns)
        thread.griddepcontrol_wait()
        total = sums(warp_idx, tokens, tables, at, records)
        if PDL:
            # NOTE: behind the wait, so that only one grid before the next still runs; and behind the loads, as it was measured (bench/NOTES.md).
            thread.griddepcontrol_launch_dependents()
        store_partial(bits_of(total), smem + PARTIAL + warp_idx * SUMS_BYTES + lane_idx * 4, 128)
        cuda.syncthreads()
        add_up(smem + PARTIAL, n_idx, w, d, d_pitch, bias, c, c_pitch, token_scales, alpha, m, n, records)

    argtypes = (u64,) * 8 + (u32,) * 6 + (u64, u32, u32)
    return Built(kernel, argtypes, THREADS, MAPPED, 1)
