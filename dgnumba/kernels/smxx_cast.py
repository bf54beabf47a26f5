"""q[M,K] = e4m3(x * (1 / scale)), scale = max(amax |x|, 1e-4) / 448 over each block, in one pass; for any GPU from sm_80 on.

Shapes:    x bf16, fp16 or float32 [M,K], any strides; q e4m3 [M,K], row-major; one scale a block, float32, or UE8M0 in int32 words
           of four neighbours along K; any strides, so that the scales land row-major or MN-major as the GEMM wants them
Blocks:    token    1 x GROUP     warps of 1 x 512 elements; GROUP / 16 lanes share a block and find its amax by shuffles
           block    128 x 128     a CTA a block: shuffles, then one number a warp through shared memory
           channel  GROUP x 1     a CTA 128 columns: one row of maxima for each of 32 threads through shared memory
Thread:    holds rows of sixteen elements as they were loaded, 16 bytes at a time; looks at them twice; stores 16 codes at once
Budget:    memory: 2 (or 4) bytes read and 1 written an element. Instructions: 10 an element (token, bf16), of the 20 that an H200
           has time for at that rate; below sm_89, which has no conversion to e4m3, some 20. Registers: 32 for token (48 packed), 48 for
           block (two CTAs of 512 threads), 88 for channel (two of 256): 64 KB of loads in flight a multiprocessor, or more
Numerics:  as `quant.fp8`, bit for bit (but a NaN's payload): amax / 448 and 1 / scale are each rounded to float32, then the product, then the
           code. A NaN poisons its block; infinities in a block of UE8M0 scale go the long way, since the conversion would make them 448
Follows:   DeepGEMM's utils (54e2261) in its numbers; it has no kernel for them
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

from .._numba import device_function
from ..integers import u32, u64
from ..ptx import convert, memory, thread
from .cast_registers import E4M3, amax_for, column_amax_for, encode_for, is_any_poisoned, load_for, store_for
from .smxx_cast_rules import BLOCK, LINES, TOKEN_ROWS, WARP_COLUMNS, WIDTH, BuiltCast, CastPlan, refusal, threads

FLOOR, LARGEST, ONE = np.float32(1e-4), np.float32(E4M3.max), np.float32(1)
FULL, BYTE_OF_1 = 0xFFFFFFFF, 127


def build(plan: CastPlan) -> BuiltCast:
    """The kernel of a plan."""
    assert refusal(plan) is None
    return {"token": _build_token, "block": _build_block, "channel": _build_channel}[plan.blocks](plan)


def _arithmetic(plan: CastPlan) -> tuple[Any, Any]:
    """Device functions `scale_of(amax)` and `codes_of(values, inverses)` of a plan."""
    UE8M0, LONG_WAY = plan.use_ue8m0, plan.use_ue8m0 and plan.is_native
    encode, encode_long = encode_for(plan.x_dtype, plan.is_native), encode_for(plan.x_dtype, False)

    @device_function
    def scale_of(largest):  # type: ignore[no-untyped-def]
        scale = convert.divide(convert.max_magnitude(FLOOR, largest), LARGEST)
        if UE8M0:
            bits = convert.f32_to_bits(scale) & 0x7FFFFFFF
            exponent = (bits >> 23) + u32((bits & 0x7FFFFF) != 0)
            scale = convert.bits_to_f32(min(max(exponent, 1), 254) << 23)
        return scale

    @device_function
    def codes_of(values, inverses):  # type: ignore[no-untyped-def]
        if LONG_WAY:
            if is_any_poisoned(inverses):
                return encode_long(values, inverses)
        return encode(values, inverses)

    return scale_of, codes_of


def _build_token(plan: CastPlan) -> BuiltCast:
    GROUP, PACKED = plan.group, plan.packed
    LANES = GROUP // WIDTH
    STEPS = LANES.bit_length() - 1
    load, store = load_for(plan.x_dtype, plan.is_vector, 1, 1), store_for(plan.is_vector, 1, 1)
    amax = amax_for(plan.x_dtype)
    scale_of, codes_of = _arithmetic(plan)

    @device_function
    def store_scale(sf, sf_row, sf_col, scale, row, col, k, lane):  # type: ignore[no-untyped-def]
        block = col // GROUP
        line = sf + u64(row) * sf_row
        if PACKED:
            byte = cuda.selp(col < k, convert.f32_to_bits(scale) >> 23, u32(BYTE_OF_1))
            word = byte << (block % 4 * 8)
            word = word | cuda.shfl_xor_sync(FULL, word, LANES)
            word = word | cuda.shfl_xor_sync(FULL, word, 2 * LANES)
            memory.store_global_u32_if((lane % (4 * LANES) == 0) & (col < k), line + u64(block // 4) * sf_col, word)
        else:
            memory.store_global_f32_if((lane % LANES == 0) & (col < k), line + u64(block) * sf_col, scale)

    def kernel(x, x_row, x_col, q, sf, sf_row, sf_col, m, k):  # type: ignore[no-untyped-def]
        lane = thread.lane_idx()
        col = u32(cuda.blockIdx.x) * WARP_COLUMNS + lane * WIDTH
        row = u32(cuda.blockIdx.y) * TOKEN_ROWS + u32(cuda.threadIdx.x) // 32
        while row < m:
            values = load(x + u64(row) * x_row + u64(col) * x_col, x_row, x_col, row, m, col, k)
            largest = amax(values)
            for step in range(STEPS):
                largest = convert.max_magnitude(largest, cuda.shfl_xor_sync(FULL, largest, 1 << step))
            scale = scale_of(largest)
            codes = codes_of(values, (convert.divide(ONE, scale),))
            store(q + u64(row) * u64(k) + u64(col), u64(k), row, m, col, k, codes)
            store_scale(sf, sf_row, sf_col, scale, row, col, k, lane)
            row += u32(cuda.gridDim.y) * TOKEN_ROWS

    return BuiltCast(kernel, threads(plan))


def _build_block(plan: CastPlan) -> BuiltCast:
    THREADS = threads(plan)
    WARPS, PIECES, STEP = THREADS // 32, BLOCK // WIDTH, THREADS * WIDTH // BLOCK
    load, store = load_for(plan.x_dtype, plan.is_vector, BLOCK // STEP, STEP), store_for(plan.is_vector, BLOCK // STEP, STEP)
    amax = amax_for(plan.x_dtype)
    scale_of, codes_of = _arithmetic(plan)

    @device_function
    def over_lanes(largest, steps):  # type: ignore[no-untyped-def]
        for step in range(steps):
            largest = convert.max_magnitude(largest, cuda.shfl_xor_sync(FULL, largest, 1 << step))
        return largest

    def kernel(x, x_row, x_col, q, sf, sf_row, sf_col, m, k):  # type: ignore[no-untyped-def]
        of_warps = memory.shared_address(cuda.shared.array(WARPS, np.float32))
        index = u32(cuda.threadIdx.x)
        row = u32(cuda.blockIdx.y) * BLOCK + index // PIECES
        col = u32(cuda.blockIdx.x) * BLOCK + index % PIECES * WIDTH
        values = load(x + u64(row) * x_row + u64(col) * x_col, x_row, x_col, row, m, col, k)
        largest = over_lanes(amax(values), 5)
        if index % 32 == 0:
            memory.store_shared_f32(of_warps + index // 32 * 4, largest)
        cuda.syncthreads()
        largest = over_lanes(memory.load_shared_f32(of_warps + index % WARPS * 4), 4)
        scale = scale_of(largest)
        codes = codes_of(values, (convert.divide(ONE, scale),))
        store(q + u64(row) * u64(k) + u64(col), u64(k), row, m, col, k, codes)
        at = sf + u64(u32(cuda.blockIdx.y)) * sf_row + u64(u32(cuda.blockIdx.x)) * sf_col
        memory.store_global_f32_if(index == 0, at, scale)

    return BuiltCast(kernel, THREADS)


def _build_channel(plan: CastPlan) -> BuiltCast:
    GROUP, PIECES = plan.group, BLOCK // WIDTH
    ROWS, LINE_BYTES, SMEM_FLOATS = GROUP // LINES, BLOCK * 4, (LINES + 1) * BLOCK
    load, store = load_for(plan.x_dtype, plan.is_vector, ROWS, LINES), store_for(plan.is_vector, ROWS, LINES)
    column_amax = column_amax_for(plan.x_dtype)
    scale_of, codes_of = _arithmetic(plan)

    # NOTE: column 16 p + 4 j + e lies at 32 j + 4 p + e, so that the 16-byte accesses of eight pieces fall on all banks.
    @device_function
    def put(line, piece, v):  # type: ignore[no-untyped-def]
        at = line + piece * 16
        memory.store_shared_v4_f32(at, v[0], v[1], v[2], v[3])
        memory.store_shared_v4_f32(at + 128, v[4], v[5], v[6], v[7])
        memory.store_shared_v4_f32(at + 256, v[8], v[9], v[10], v[11])
        memory.store_shared_v4_f32(at + 384, v[12], v[13], v[14], v[15])

    @device_function
    def take(line, piece):  # type: ignore[no-untyped-def]
        at = line + piece * 16
        a, b = memory.load_shared_v4_f32(at), memory.load_shared_v4_f32(at + 128)
        c, d = memory.load_shared_v4_f32(at + 256), memory.load_shared_v4_f32(at + 384)
        return (a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3], c[0], c[1], c[2], c[3], d[0], d[1], d[2], d[3])

    def kernel(x, x_row, x_col, q, sf, sf_row, sf_col, m, k):  # type: ignore[no-untyped-def]
        lines = memory.shared_address(cuda.shared.array(SMEM_FLOATS, np.float32, alignment=16))
        inverses = lines + LINES * LINE_BYTES
        index = u32(cuda.threadIdx.x)
        piece, first = index % PIECES, u32(cuda.blockIdx.x) * BLOCK
        row, col = u32(cuda.blockIdx.y) * GROUP + index // PIECES, first + piece * WIDTH
        values = load(x + u64(row) * x_row + u64(col) * x_col, x_row, x_col, row, m, col, k)
        put(lines + index // PIECES * LINE_BYTES, piece, column_amax(values))
        cuda.syncthreads()
        # one thread a column
        if index < BLOCK:
            largest = np.float32(0)
            for line in range(LINES):
                largest = convert.max_magnitude(largest, memory.load_shared_f32(lines + line * LINE_BYTES + index * 4))
            scale = scale_of(largest)
            memory.store_shared_f32(inverses + index * 4, convert.divide(ONE, scale))
            column = first + index % 32 // 4 * WIDTH + index // 32 * 4 + index % 4
            memory.store_global_f32_if(column < k, sf + u64(u32(cuda.blockIdx.y)) * sf_row + u64(column) * sf_col, scale)
        cuda.syncthreads()
        codes = codes_of(values, take(inverses, piece))
        store(q + u64(row) * u64(k) + u64(col), u64(k), row, m, col, k, codes)

    return BuiltCast(kernel, threads(plan))
