"""One warp's product by cp.async, ldmatrix and mma.sync, as a user would write it: for the emulator, the compiler and a GPU alike."""

import ml_dtypes
import numpy as np
from numba import cuda

from dgnumba.integers import u32, u64
from dgnumba.ptx import cp_async, matrix, memory, mma

SINGLE = {
    "bfloat16": mma.m16n8k16_bf16,
    "float16": mma.m16n8k16_f16,
    "float8_e4m3fn": mma.m16n8k32_e4m3,
    "int8": mma.m16n8k32_s8,
    "int4": mma.m16n8k64_s4,
}
FLOATS = ("bfloat16", "float16", "float8_e4m3fn")


def make(dtype):
    """The kernel `(a, b, c, d)`: d[16, 8] = c + A @ B.T; a uint8 [16, 32], b uint8 [8, 32], c and d float32 or uint32 [16, 8]."""
    multiply, IS_FLOAT = SINGLE[dtype], dtype in FLOATS

    def kernel(a, b, c, d):
        lane = cuda.threadIdx.x
        smem = (memory.shared_address(cuda.shared.array(0, np.uint8)) + 127) // 128 * 128
        cp_async.copy_16(smem + u32(lane) * 16, memory.global_address(a) + u64(lane) * 16)
        # the upper half of the warp reads nothing, and writes zeros behind B
        nbytes = u32(16) if lane < 16 else u32(0)
        cp_async.copy_16_zfill(smem + 512 + u32(lane) * 16, memory.global_address(b) + u64(lane % 16) * 16, nbytes)
        cp_async.commit()
        cp_async.wait(0)
        cuda.syncwarp()
        frag_a = matrix.ldmatrix_x4(smem + u32(lane % 16) * 32 + u32(lane // 16) * 16)
        frag_b = matrix.ldmatrix_x2(smem + 512 + u32(lane % 8) * 32 + u32(lane // 8 % 2) * 16)
        row, col = lane // 4, 2 * (lane % 4)
        if IS_FLOAT:
            acc = (c[row, col], c[row, col + 1], c[row + 8, col], c[row + 8, col + 1])
        else:
            acc = (u32(c[row, col]), u32(c[row, col + 1]), u32(c[row + 8, col]), u32(c[row + 8, col + 1]))
        acc = multiply(acc, frag_a, frag_b)
        d[row, col], d[row, col + 1] = acc[0], acc[1]
        d[row + 8, col], d[row + 8, col + 1] = acc[2], acc[3]

    return kernel


def codes(values, dtype):
    """Rows of numbers as their bytes: int4 two to a byte, the lower nibble first."""
    if dtype == "int4":
        nibbles = values.astype(np.int64) & 15
        return (nibbles[:, ::2] | nibbles[:, 1::2] << 4).astype(np.uint8)
    kind = getattr(ml_dtypes, dtype, None) or np.dtype(dtype)
    return np.ascontiguousarray(values.astype(kind)).view(np.uint8)


def operands(rng, dtype):
    """Small integers, every sum of which is exact in float32: A [16, K], B [8, K], C [16, 8], K of 32 bytes."""
    k = {"bfloat16": 16, "float16": 16, "float8_e4m3fn": 32, "int8": 32, "int4": 64}[dtype]
    low, high = {"int8": (-128, 128), "int4": (-8, 8)}.get(dtype, (-15, 16))
    a, b = rng.integers(low, high, (16, k)), rng.integers(low, high, (8, k))
    return a, b, rng.integers(-1000, 1000, (16, 8))


def run_arguments(a, b, c, dtype):
    """The kernel's arguments for numbers a, b, c."""
    kind = np.float32 if dtype in FLOATS else np.uint32
    return codes(a, dtype), codes(b, dtype), c.astype(np.int64).astype(kind), np.zeros((16, 8), kind)
