"""Scales from one form to another, in one pass: turned to MN-major, packed to UE8M0, and back; for any GPU from sm_80 on.

Shapes:    turn    out[c, r] = in[r, c]: words of four bytes [R,C], any strides -> rows of R words, `out_pitch` bytes apart
           pack    out[w, r] = bytes of in[r, 4w .. 4w+3]: float32 [R,C], powers of two -> int32 [ceil(C/4), R]; a scale that is none
                   raises a flag (and packs as whatever its exponent says)
           unpack  out[r, c] = 2^(byte c % 4 of in[r, c // 4] - 127): int32 [R, ceil(C/4)], any strides -> float32 [R,C], any strides
Tile:      turn, pack: 64 rows by 64 (pack: 16) words through shared memory; 256 threads, accesses of 16 bytes on both sides where rows
           begin at multiples of 16 bytes, else by word. Rows of the output are filled up with zeros to 16 bytes
           unpack: four rows and a word a thread; 16 bytes a store where neighbours of M are neighbours in memory
Banks:     the word of row r and column c lies at row r ^ 4 (c/4 % 16) of line c (pack: c % 16): 16-byte accesses stay whole, and both ways are spread
Follows:   DeepGEMM's transpose and pack of scales (54e2261); differs in: any K from one binary; bad scales are reported, not trapped on.
"""

from __future__ import annotations

import numpy as np
from numba import cuda

from .._numba import device_function
from ..integers import u32, u64
from ..ptx import memory
from .smxx_cast_rules import BuiltCast
from .smxx_layout_rules import ARGTYPES, PACK_WORDS, PIECE, THREADS, TILE, LayoutPlan


def build(plan: LayoutPlan) -> BuiltCast:
    """The kernel `kernel(*ARGTYPES)` of a plan."""
    return _build_unpack(plan) if plan.move == "unpack" else _build_turn(plan)


def _build_turn(plan: LayoutPlan) -> BuiltCast:
    PACK, VECTOR, VECTOR_OUT = plan.move == "pack", plan.is_vector, plan.is_vector_out
    LINES = PACK_WORDS if PACK else TILE
    SMEM_WORDS, STEP = LINES * TILE, THREADS * PIECE // TILE
    STORES, SPREAD = LINES // STEP, 1 if PACK else PIECE

    @device_function
    def place(line, row):  # type: ignore[no-untyped-def]
        """Where in shared memory the word of a column of the tile and a row lies: bytes."""
        return (line * TILE + (row ^ (line // SPREAD % 16 * PIECE))) * 4

    @device_function
    def byte_of(word, flag):  # type: ignore[no-untyped-def]
        """The UE8M0 byte of a float32; what is no power of two raises the flag."""
        is_lowest = word == 0x00400000
        exponent = word >> 23
        is_bad = ((word & 0x7FFFFF) != 0) | (exponent == 0) | (exponent >= 255)
        memory.store_global_u32_if(is_bad & (not is_lowest), flag, u32(1))
        return exponent & 0xFF

    @device_function
    def load(source, row, col, row_pitch, col_pitch, rows, columns):  # type: ignore[no-untyped-def]
        """Four neighbours of a row; zeros outside."""
        at = source + u64(row) * row_pitch + u64(col) * col_pitch
        if VECTOR:
            return memory.load_global_v4_if((row < rows) & (col < columns), at)
        w0 = memory.load_global_u32_if((row < rows) & (col < columns), at)
        w1 = memory.load_global_u32_if((row < rows) & (col + 1 < columns), at + col_pitch)
        w2 = memory.load_global_u32_if((row < rows) & (col + 2 < columns), at + col_pitch * 2)
        w3 = memory.load_global_u32_if((row < rows) & (col + 3 < columns), at + col_pitch * 3)
        return (w0, w1, w2, w3)

    @device_function
    def packed(w, flag, col, columns):  # type: ignore[no-untyped-def]
        """Four scales as a word; zero bytes for those that are not there."""
        word = byte_of(w[0], flag)
        if col + 1 < columns:
            word = word | byte_of(w[1], flag) << 8
        if col + 2 < columns:
            word = word | byte_of(w[2], flag) << 16
        if col + 3 < columns:
            word = word | byte_of(w[3], flag) << 24
        return word

    @device_function
    def put(smem, row, piece, w, flag, row0, col0, rows, columns):  # type: ignore[no-untyped-def]
        """Four neighbours of a row into the lines of shared memory that they belong to."""
        col = piece * PIECE
        if PACK:
            word = u32(0)
            if (row0 + row < rows) & (col0 + col < columns):
                word = packed(w, flag, col0 + col, columns)
            memory.store_shared_u32(smem + place(piece, row), word)
        else:
            memory.store_shared_u32(smem + place(col, row), w[0])
            memory.store_shared_u32(smem + place(col + 1, row), w[1])
            memory.store_shared_u32(smem + place(col + 2, row), w[2])
            memory.store_shared_u32(smem + place(col + 3, row), w[3])

    @device_function
    def store(target, pitch, line, lines, row, rows, w):  # type: ignore[no-untyped-def]
        at = target + u64(line) * pitch + u64(row) * 4
        if VECTOR_OUT:
            memory.store_global_v4_if((line < lines) & (row < rows), at, w)
        else:
            memory.store_global_u32_if((line < lines) & (row < rows), at, w[0])
            memory.store_global_u32_if((line < lines) & (row + 1 < rows), at + 4, w[1])
            memory.store_global_u32_if((line < lines) & (row + 2 < rows), at + 8, w[2])
            memory.store_global_u32_if((line < lines) & (row + 3 < rows), at + 12, w[3])

    def kernel(source, row_pitch, col_pitch, target, out_pitch, flag, rows, columns):  # type: ignore[no-untyped-def]
        smem = memory.shared_address(cuda.shared.array(SMEM_WORDS, np.uint32, alignment=16))
        piece, first = u32(cuda.threadIdx.x) % 16, u32(cuda.threadIdx.x) // 16
        row0, col0 = u32(cuda.blockIdx.y) * TILE, u32(cuda.blockIdx.x) * TILE
        col = piece * PIECE
        # all loads first, so that they are in flight together
        w0 = load(source, row0 + first, col0 + col, row_pitch, col_pitch, rows, columns)
        w1 = load(source, row0 + first + STEP, col0 + col, row_pitch, col_pitch, rows, columns)
        w2 = load(source, row0 + first + 2 * STEP, col0 + col, row_pitch, col_pitch, rows, columns)
        w3 = load(source, row0 + first + 3 * STEP, col0 + col, row_pitch, col_pitch, rows, columns)
        put(smem, first, piece, w0, flag, row0, col0, rows, columns)
        put(smem, first + STEP, piece, w1, flag, row0, col0, rows, columns)
        put(smem, first + 2 * STEP, piece, w2, flag, row0, col0, rows, columns)
        put(smem, first + 3 * STEP, piece, w3, flag, row0, col0, rows, columns)
        cuda.syncthreads()
        lines = (columns + 3) // 4 if PACK else columns
        line0 = u32(cuda.blockIdx.x) * LINES
        for i in range(STORES):
            line, row = first + i * STEP, piece * PIECE
            w = memory.load_shared_v4(smem + place(line, row))
            store(target, out_pitch, line0 + line, lines, row0 + row, rows, w)

    return BuiltCast(kernel, THREADS, ARGTYPES)


def _build_unpack(plan: LayoutPlan) -> BuiltCast:
    VECTOR, VECTOR_OUT = plan.is_vector, plan.is_vector_out

    @device_function
    def value_of(word, byte, inside):  # type: ignore[no-untyped-def]
        """The bits of 2^(byte - 127): of byte 0 a subnormal, of 255 NaN; 0 for what is padding."""
        code = (word >> (byte * 8)) & 0xFF
        bits = code << 23
        bits = cuda.selp(code == 0, u32(0x00400000), bits)
        bits = cuda.selp(code == 255, u32(0x7FC00000), bits)
        return cuda.selp(inside, bits, u32(0))

    @device_function
    def load(source, row, rows, row_pitch):  # type: ignore[no-untyped-def]
        """The words of four rows."""
        if VECTOR:
            return memory.load_global_v4_if(row < rows, source)
        w0 = memory.load_global_u32_if(row < rows, source)
        w1 = memory.load_global_u32_if(row + 1 < rows, source + row_pitch)
        w2 = memory.load_global_u32_if(row + 2 < rows, source + row_pitch * 2)
        w3 = memory.load_global_u32_if(row + 3 < rows, source + row_pitch * 3)
        return (w0, w1, w2, w3)

    def kernel(source, row_pitch, col_pitch, target, out_row, out_col, rows, columns):  # type: ignore[no-untyped-def]
        row = (u32(cuda.blockIdx.x) * THREADS + u32(cuda.threadIdx.x)) * PIECE
        word = u32(cuda.blockIdx.y)
        w = load(source + u64(row) * row_pitch + u64(word) * col_pitch, row, rows, row_pitch)
        for byte in range(4):
            col = word * 4 + u32(byte)
            at = target + u64(row) * out_row + u64(col) * out_col
            v0, v1 = value_of(w[0], u32(byte), row < rows), value_of(w[1], u32(byte), row + 1 < rows)
            v2, v3 = value_of(w[2], u32(byte), row + 2 < rows), value_of(w[3], u32(byte), row + 3 < rows)
            if VECTOR_OUT:
                memory.store_global_v4_if((row < rows) & (col < columns), at, (v0, v1, v2, v3))
            else:
                memory.store_global_u32_if((row < rows) & (col < columns), at, v0)
                memory.store_global_u32_if((row + 1 < rows) & (col < columns), at + out_row, v1)
                memory.store_global_u32_if((row + 2 < rows) & (col < columns), at + out_row * 2, v2)
                memory.store_global_u32_if((row + 3 < rows) & (col < columns), at + out_row * 3, v3)

    return BuiltCast(kernel, THREADS, ARGTYPES)
