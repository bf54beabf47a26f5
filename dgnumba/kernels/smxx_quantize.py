"""q[M,K] = element(x * (1 / scale)): the casts of `quant.quantize` to e4m3, e2m1, int4 and int8, and DeepGEMM's to e2m1, for any GPU from sm_80 on.

Shapes:    x bf16, fp16 or float32 [M,K], any strides; q one code a byte [M,K], or two of 4 bits [M,K/2], row-major; scales, any strides:
           float32, UE8M0 or e4m3 bytes, or UE8M0 in int32 words of four neighbours along K
Blocks:    group   1 x 16 to 1 x 512     GROUP / 16 lanes share a block and find its amax by shuffles
           row     1 x K                 a CTA a row, which it holds: one number a warp through shared memory
           tensor  M x K                 two passes: `build_amax` writes the largest magnitude that each of its CTAs sees, and the cast begins
                                         with the largest of those; so does NVFP4, whose blocks of 16 have a scale of the tensor above them.
                                         The second pass begins with the last rows, of which L2 holds what the first has read last
Thread:    holds pieces of sixteen elements as they were loaded, 16 bytes at a time, looks at them twice, stores 16 bytes at once. Of two
           codes a byte a piece has but 8 bytes: a thread then holds two pieces, and neighbours exchange halves
Budget:    memory: 2 (or 4) bytes read and 0.5 or 1 written an element, and again what is read for a second pass. Instructions an element of
           bfloat16, counted in the SASS: 7 (e4m3 by tensor), 8 (int8 by row), 9 (int4, mxfp8, DeepGEMM's e2m1), 10 (mxfp4), 12 (nvfp4),
           of the 12 (codes of 4 bits) to 15 (of 8) that an H200 issues in the time that memory needs: bench/NOTES.md
Numerics:  as `quant.cast`, bit for bit: amax / largest, then 1 / scale, each rounded to float32, then the product, then the code. A block that
           holds what is not finite has the scale NaN and codes 0 (e4m3: NaN); under DeepGEMM's rules the scale that `quant.fp4` says
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

from .._numba import device_function
from ..integers import u32, u64
from ..ptx import convert, memory, thread
from .cast_registers import load_for as load_rows_for
from .quantize_registers import amax_for, encode_for, load_for, store_for
from .quantize_scales import INFINITY, LARGEST_E4M3, LARGEST_UE8M0, largest_of, normal_quotient_for, scale_for
from .smxx_cast_rules import WARP_COLUMNS, WIDTH, BuiltCast
from .smxx_quantize_rules import AMAX_THREADS, ARGTYPES, PARTIALS, ROWS, UE8M0_RULES, AmaxPlan, QuantizePlan, refusal

FULL, BYTE_OF_1 = 0xFFFFFFFF, 127
LEAST_GLOBAL, GLOBAL_RANGE = np.float32(2.0**-100), 448.0 * 6.0


def build(plan: QuantizePlan) -> BuiltCast:
    """The kernel of a plan."""
    assert refusal(plan) is None
    return _build_row(plan) if plan.blocks == "row" else _build_group(plan)


@device_function
def over_lanes(largest, steps):  # type: ignore[no-untyped-def]
    """The largest of 2^steps neighbours."""
    for step in range(steps):
        largest = convert.max_magnitude(largest, cuda.shfl_xor_sync(FULL, largest, 1 << step))
    return largest


@device_function
def over_warp(largest):  # type: ignore[no-untyped-def]
    """The largest of all lanes; of numbers from 0 on, or NaN, which are in the order of their bits."""
    return convert.bits_to_f32(thread.redux_max(convert.f32_to_bits(largest)))


@device_function
def over_cta(largest, of_warps, index, warps):  # type: ignore[no-untyped-def]
    """The largest of all threads, by way of one number a warp in shared memory."""
    largest = over_warp(largest)
    if index % 32 == 0:
        memory.store_shared_f32(of_warps + index // 32 * 4, largest)
    cuda.syncthreads()
    return over_warp(memory.load_shared_f32(of_warps + min(index % 32, warps - 1) * 4))


def build_amax(plan: AmaxPlan) -> BuiltCast:
    """The pass before: float32 maxima [PARTIALS], one a CTA, and zeros behind them, at the address of the scales."""
    ALL_FINITE, WARPS = plan.all_finite, AMAX_THREADS // 32
    load, amax = load_rows_for(plan.x_dtype, plan.is_vector, 2, 1), amax_for(plan.x_dtype, 2)

    @device_function
    def kept(largest):  # type: ignore[no-untyped-def]
        if ALL_FINITE:
            bits = convert.f32_to_bits(largest)
            return convert.bits_to_f32(cuda.selp(bits < INFINITY, bits, u32(0)))
        return largest

    def kernel(x, x_row, x_col, q, sf, sf_row, sf_col, m, k, above, above_out):  # type: ignore[no-untyped-def]
        of_warps = memory.shared_address(cuda.shared.array(WARPS, np.float32))
        index, lane = u32(cuda.threadIdx.x), thread.lane_idx()
        largest = np.float32(0)
        col = u32(cuda.blockIdx.x) * WARP_COLUMNS + lane * WIDTH
        while col - lane * WIDTH < k:
            row = (u32(cuda.blockIdx.y) * WARPS + index // 32) * 2
            while row < m:
                values = load(x + u64(row) * x_row + u64(col) * x_col, x_row, x_col, row, m, col, k)
                found = amax(values)
                largest = convert.max_magnitude(convert.max_magnitude(largest, kept(found[0])), kept(found[1]))
                row += u32(cuda.gridDim.y) * WARPS * 2
            col += u32(cuda.gridDim.x) * WARP_COLUMNS
        largest = over_cta(largest, of_warps, index, WARPS)
        number, count = u32(cuda.blockIdx.y) * u32(cuda.gridDim.x) + u32(cuda.blockIdx.x), u32(cuda.gridDim.x) * u32(cuda.gridDim.y)
        memory.store_global_f32_if(index == 0, sf + u64(number) * 4, largest)
        memory.store_global_f32_if((number == 0) & (index >= count) & (index < PARTIALS), sf + u64(index) * 4, np.float32(0))

    return BuiltCast(kernel, AMAX_THREADS, ARGTYPES)


def _codes(plan: QuantizePlan) -> Any:
    """The device function `codes_of(values, inverses, bits)` of a plan; `bits`: the largest of the scales as they are stored."""
    how = {"packed": plan.packed, "is_native": plan.is_native, "by_powers": plan.rule in UE8M0_RULES}
    how["ties_to_zero"] = plan.rule.startswith("deepgemm")
    LONG_WAY, LARGEST_BITS = plan.is_given or plan.rule == "deepgemm_ue8m0", LARGEST_E4M3 if plan.is_given else LARGEST_UE8M0
    encode = encode_for(plan.x_dtype, plan.element, clips=plan.rule in ("floor", "even", "amax/7.5"), **how)
    encode_long = encode_for(plan.x_dtype, plan.element, clips=True, **how)

    @device_function
    def codes_of(values, inverses, bits):  # type: ignore[no-untyped-def]
        if LONG_WAY:
            if bits >= LARGEST_BITS:
                return encode_long(values, inverses)
        return encode(values, inverses)

    return codes_of


@device_function
def exchanged(first, second, third, fourth, lane):  # type: ignore[no-untyped-def]
    """From eight bytes of each of two pieces to sixteen of one: of the first piece for even lanes, of the second for odd."""
    is_odd = lane % 2 != 0
    low = cuda.shfl_xor_sync(FULL, cuda.selp(is_odd, first, third), 1)
    high = cuda.shfl_xor_sync(FULL, cuda.selp(is_odd, second, fourth), 1)
    begin, then = cuda.selp(is_odd, low, first), cuda.selp(is_odd, high, second)
    return (begin, then, cuda.selp(is_odd, third, low), cuda.selp(is_odd, fourth, high))


def _stores(plan: QuantizePlan, step: int) -> Any:
    """The device function `store_codes(q, is_in_m, row, col, k, codes, lane)` of pieces that lie `step` columns apart."""
    PACKED, PIECES, STEP = plan.packed, plan.pieces, step
    store = store_for(plan.is_vector, PIECES // 2 if PACKED else PIECES, step)  # packed: every second piece, at half as many bytes

    @device_function
    def store_codes(q, is_in_m, row, col, k, codes, lane):  # type: ignore[no-untyped-def]
        if PACKED:
            width = k // 2
            at = (col + lane % 2 * (STEP - WIDTH)) // 2
            words = exchanged(codes[0], codes[1], codes[2], codes[3], lane)
            if PIECES == 4:
                words = words + exchanged(codes[4], codes[5], codes[6], codes[7], lane)
            store(q + u64(row) * u64(width) + u64(at), is_in_m, at, width, words)
        else:
            store(q + u64(row) * u64(k) + u64(col), is_in_m, col, k, codes)

    return store_codes


def _build_group(plan: QuantizePlan) -> BuiltCast:
    GROUP, PIECES, WORDS, BYTES, TENSOR = (
        plan.group,
        plan.pieces,
        plan.words,
        plan.scale_dtype.startswith("float8"),
        plan.blocks == "tensor",
    )
    PARTIAL, WHOLE = plan.has_partials, plan.rule == "nvfp4"
    LANES = GROUP // WIDTH
    STEPS, STEP = LANES.bit_length() - 1, WARP_COLUMNS
    load, amax = load_for(plan.x_dtype, plan.is_vector, PIECES, STEP), amax_for(plan.x_dtype, PIECES)
    scale_of, codes_of, store_codes = scale_for(plan.rule, plan.element, plan.is_given), _codes(plan), _stores(plan, STEP)
    quotient = normal_quotient_for(GLOBAL_RANGE)

    @device_function
    def of_tensor(above, lane):  # type: ignore[no-untyped-def]
        """The scale of the tensor, or with TENSOR its largest magnitude; 1 where it has none."""
        if PARTIAL:
            a, b = memory.load_global_v4_if(True, above + u64(lane) * 16), memory.load_global_v4_if(True, above + u64(lane) * 16 + 512)
            largest = over_warp(largest_of(a, b))
            return convert.max_magnitude(LEAST_GLOBAL, quotient(largest)) if WHOLE else largest
        if WHOLE:
            return memory.load_global_f32(above)
        return np.float32(1)

    @device_function
    def store_scale(sf, sf_row, sf_col, bits, row, col, k, lane):  # type: ignore[no-untyped-def]
        block = col // GROUP
        line = sf + u64(row) * sf_row
        if WORDS:
            word = cuda.selp(col < k, bits >> 23, u32(BYTE_OF_1)) << (block % 4 * 8)
            word = word | cuda.shfl_xor_sync(FULL, word, LANES)
            word = word | cuda.shfl_xor_sync(FULL, word, 2 * LANES)
            memory.store_global_u32_if((lane % (4 * LANES) == 0) & (col < k), line + u64(block // 4) * sf_col, word)
        elif BYTES:
            memory.store_global_u8_if((lane % LANES == 0) & (col < k), line + u64(block) * sf_col, bits)
        else:
            memory.store_global_u32_if((lane % LANES == 0) & (col < k), line + u64(block) * sf_col, bits)

    def kernel(x, x_row, x_col, q, sf, sf_row, sf_col, m, k, above, above_out):  # type: ignore[no-untyped-def]
        lane = thread.lane_idx()
        col = u32(cuda.blockIdx.x) * (WARP_COLUMNS * PIECES) + lane * WIDTH
        row = u32(cuda.blockIdx.y)
        if PARTIAL:
            row = u32(cuda.gridDim.y) - 1 - row  # the last rows first: the pass before has left them in L2
        row = row * ROWS + u32(cuda.threadIdx.x) // 32
        while row < m:
            values = load(x + u64(row) * x_row + u64(col) * x_col, x_col, True, col, k)
            whole = of_tensor(above, lane)  # behind the loads, which take longer
            is_first = (col == 0) & (row == 0)
            if TENSOR:
                bits, inverse = scale_of(whole, whole)
                memory.store_global_u32_if(is_first, sf, bits)
                codes = codes_of(values, (inverse,), bits)
            else:
                if WHOLE and PARTIAL:
                    memory.store_global_f32_if(is_first, above_out, whole)
                found = amax(values)
                bits, inverse = scale_of(over_lanes(found[0], STEPS), whole)
                store_scale(sf, sf_row, sf_col, bits, row, col, k, lane)
                if PIECES == 2:
                    bits_of_other, other = scale_of(over_lanes(found[1], STEPS), whole)
                    store_scale(sf, sf_row, sf_col, bits_of_other, row, col + STEP, k, lane)
                    codes = codes_of(values, (inverse, other), max(bits, bits_of_other))
                else:
                    codes = codes_of(values, (inverse,), bits)
            store_codes(q, True, row, col, k, codes, lane)
            row += u32(cuda.gridDim.y) * ROWS

    return BuiltCast(kernel, 32 * ROWS, ARGTYPES)


def _build_row(plan: QuantizePlan) -> BuiltCast:
    THREADS, PIECES = plan.group, plan.pieces
    WARPS, STEP = THREADS // 32, THREADS * WIDTH
    load, amax = load_for(plan.x_dtype, plan.is_vector, PIECES, STEP), amax_for(plan.x_dtype, 1)
    scale_of, codes_of, store_codes = scale_for(plan.rule, plan.element), _codes(plan), _stores(plan, STEP)

    def kernel(x, x_row, x_col, q, sf, sf_row, sf_col, m, k, above, above_out):  # type: ignore[no-untyped-def]
        of_warps = memory.shared_address(cuda.shared.array(WARPS, np.float32))
        index, lane = u32(cuda.threadIdx.x), thread.lane_idx()
        col, row = index * WIDTH, u32(cuda.blockIdx.y)
        while row < m:
            values = load(x + u64(row) * x_row + u64(col) * x_col, x_col, True, col, k)
            largest = over_cta(amax(values)[0], of_warps, index, WARPS)
            bits, inverse = scale_of(largest, np.float32(1))
            memory.store_global_u32_if(index == 0, sf + u64(row) * sf_row, bits)
            store_codes(q, True, row, col, k, codes_of(values, (inverse,), bits), lane)
            row += u32(cuda.gridDim.y)
            cuda.syncthreads()

    return BuiltCast(kernel, THREADS, ARGTYPES)
