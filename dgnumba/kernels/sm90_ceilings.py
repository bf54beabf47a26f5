"""Two kernels that do one thing as fast as the GPU can: what a product is measured against, in the same run.

Shapes:    tensor: operands uint32 [(128 + 256) * 32], e4m3 codes of A [128, 128] and B [256, 128]; out float32 [CTAs, 256]
           read: data uint32, at least 64 bytes a thread; out uint32 [CTAs * threads]
Roles:     tensor: two warpgroups, each multiplies its 64 rows again and again, so that one's products hide the other's waits
           read: every thread loads 16 bytes four times a round, strided over the grid
Barriers:  none but the CTA's
Tile:      tensor: `rounds` times 8 wgmma of 64 x 256 x 32, operands in shared memory, no load in between
Budget:    128 accumulators a thread
Follows:   nothing: the least code that keeps a pipe full. For random operands: on zeros the clock does not fall, and no product meets the figure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda

from ..integers import u32, u64
from ..layouts.descriptors import SmemDescriptor, low_word
from ..ptx import barrier, fragment, memory, wgmma

THREADS = 256
ROWS, COLUMNS, DEPTH = 64, 256, 128
OPERAND_WORDS = (2 * ROWS + COLUMNS) * DEPTH // 4
SMEM_BYTES = OPERAND_WORDS * 4 + 1024
ACCUMULATORS = COLUMNS // 2
PRODUCTS = 8
"""wgmma of a round and warpgroup."""
FLOPS_PER_ROUND = 2 * PRODUCTS * 2 * ROWS * COLUMNS * 32
"""Of a CTA."""
READ_BYTES = 64
"""Of a thread and round."""


def tensor_kernel() -> Callable[..., Any]:
    """`kernel(operands, out, rounds)`: products without loads. Every thread stores one accumulator, so that none is left out."""
    operand = SmemDescriptor(swizzle=128)
    mma = wgmma.mma_for("float8_e4m3fn", "float8_e4m3fn", a=operand, b=operand)

    def kernel(operands, out, rounds):  # type: ignore[no-untyped-def]
        smem = (memory.shared_address(cuda.shared.array(0, np.uint8)) + 1023) // 1024 * 1024
        tid = u32(cuda.threadIdx.x)
        word = tid
        while word < OPERAND_WORDS:
            memory.store_shared_u32(smem + word * 4, u32(operands[word]))
            word += THREADS
        barrier.fence_proxy_async()
        cuda.syncthreads()
        desc_a = low_word(smem + tid // 128 * (ROWS * DEPTH))
        desc_b = low_word(smem + 2 * ROWS * DEPTH)
        acc = fragment.zero(ACCUMULATORS)
        left = u32(rounds)
        while left != 0:
            wgmma.fence()
            acc = mma(acc, desc_a, desc_b, 1)
            acc = mma(acc, desc_a + 2, desc_b + 2, 1)
            acc = mma(acc, desc_a + 4, desc_b + 4, 1)
            acc = mma(acc, desc_a + 6, desc_b + 6, 1)
            acc = mma(acc, desc_a, desc_b, 1)
            acc = mma(acc, desc_a + 2, desc_b + 2, 1)
            acc = mma(acc, desc_a + 4, desc_b + 4, 1)
            acc = mma(acc, desc_a + 6, desc_b + 6, 1)
            wgmma.commit()
            acc = wgmma.wait(acc, 0)
            left -= 1
        out[cuda.blockIdx.x, tid] = acc[0]

    return kernel


def read_kernel() -> Callable[..., Any]:
    """`kernel(data, out, rounds)`: reads ``rounds * READ_BYTES`` a thread of the grid, and stores the xor of a thread's words."""

    def kernel(data, out, rounds):  # type: ignore[no-untyped-def]
        thread = u32(cuda.blockIdx.x) * THREADS + u32(cuda.threadIdx.x)
        threads = u32(cuda.gridDim.x) * THREADS
        address = memory.global_address(data) + u64(thread) * 16
        stride = u64(threads) * 16
        left = u32(rounds)
        found = u32(0)
        while left != 0:
            a = memory.load_global_v4_if(left != 0, address)
            b = memory.load_global_v4_if(left != 0, address + stride)
            c = memory.load_global_v4_if(left != 0, address + stride * 2)
            d = memory.load_global_v4_if(left != 0, address + stride * 3)
            found = found ^ a[0] ^ a[1] ^ a[2] ^ a[3] ^ b[0] ^ b[1] ^ b[2] ^ b[3]
            found = found ^ c[0] ^ c[1] ^ c[2] ^ c[3] ^ d[0] ^ d[1] ^ d[2] ^ d[3]
            address += stride * 4
            left -= 1
        out[thread] = found

    return kernel
