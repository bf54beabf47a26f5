"""Kernels that read a matrix once and write another, and nothing else: what a product of few rows cannot beat, as it must do both.

Shapes:    data: the weights' bytes, a multiple of 16; d: the output's, likewise. A piece is 16 bytes
Roles:     load: each thread loads `unroll` pieces a round, strided over the grid; ring: thread 0 asks, every thread waits for each chunk
Barriers:  ring: full[slot] 1 arrival + bytes of a chunk; the CTA's own before a slot is filled again
Tile:      load: none; ring: a chunk, contiguous by bulk copies, or 64 rows of some blocks of 128 by TMA; chunks go round the CTAs
Budget:    load: 4 registers a piece; ring: `slots` chunks, as many as fit
Follows:   nothing: the least code that does it. What is written depends on what was read, so that no load is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from .._numba import device_function
from ..integers import u32, u64
from ..ptx import barrier, mbarrier, memory, tma, unrolled

PIECE = 16
ROWS, DEPTH = 64, 128
"""Of a chunk by TMA: rows, and the bytes of a row in one swizzled block."""


def _read_for(unroll: int) -> Callable[..., Any]:
    @unrolled
    def read(address: u64, stride: u64, index: u32, step: u32, pieces: u32) -> u32:
        """ld.global.v4.b32 - some pieces, `step` pieces or `stride` bytes apart; the xor of their words.

        PTX:       ISA 9.0, "ld"
        Scope:     thread
        Args:      address      u64  of the first
                   stride       u64  bytes
                   index, step  u32  the first one's number, and the next one's distance
                   pieces       u32  how many there are: none behind is read
        Returns:   u32
        Emulates:  exactly
        """
        words: list[Any] = []
        for i in range(unroll):
            words.extend(memory.load_global_v4_if(index + step * i < pieces, address + stride * i))
        found = words[0]
        for word in words[1:]:
            found = found ^ word
        return found

    return read


def load_kernel(unroll: int) -> Callable[..., Any]:
    """`kernel(data, d, pieces, stores, each)`: reads `pieces` of data, writes `stores` of d.

    `each`: how many a thread writes after each of its rounds; what is left it writes at its end.
    """
    read = _read_for(unroll)

    def kernel(data, d, pieces, stores, each):  # type: ignore[no-untyped-def]
        threads = u32(cuda.gridDim.x) * u32(cuda.blockDim.x)
        index = u32(cuda.blockIdx.x) * u32(cuda.blockDim.x) + u32(cuda.threadIdx.x)
        source, target = memory.global_address(data), memory.global_address(d)
        stride = u64(threads) * PIECE
        address = source + u64(index) * PIECE
        to, found = index, u32(0)
        while index < pieces:
            found = found ^ read(address, stride, index, threads, pieces)
            left = u32(each)
            while left != 0:
                memory.store_global_v4_if(to < stores, target + u64(to) * PIECE, (found, found, found, found))
                to += threads
                left -= 1
            address += stride * unroll
            index += threads * unroll
        while to < stores:
            memory.store_global_v4_if(to < stores, target + u64(to) * PIECE, (found, found, found, found))
            to += threads

    return kernel


class Ring(NamedTuple):
    """How chunks pass through a CTA's shared memory: bytes of one, or 64 rows of `blocks` blocks of 128 by TMA; slots; threads."""

    slots: int
    threads: int
    nbytes: int = 0
    blocks: int = 0

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a chunk."""
        return self.nbytes or ROWS * DEPTH * self.blocks

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory to ask for."""
        return 1024 + self.slots * (self.chunk_bytes + 8)


def ring_kernel(ring: Ring) -> Callable[..., Any]:
    """`kernel(source, d, chunks, across, stores, each)`: reads `chunks`, writes `stores` pieces of d, `each` a thread after a chunk.

    `source` is the array of the data where chunks are contiguous, else the tensor map [K/128, N, 128] with boxes [blocks, 64, 128]; then
    `across` chunks make up 64 rows. `chunks` times `each` times the threads must be `stores` or more.
    """
    SLOTS, THREADS, BYTES, BLOCKS = ring.slots, ring.threads, ring.chunk_bytes, ring.blocks

    @device_function
    def ask_bytes(source, full, to, chunk, across):  # type: ignore[no-untyped-def]
        tma.load_bytes(to, memory.global_address(source) + u64(chunk) * BYTES, u32(BYTES), full)

    @device_function
    def ask_box(source, full, to, chunk, across):  # type: ignore[no-untyped-def]
        tma.load_3d(to, source, full, u32(0), chunk // across * ROWS, chunk % across * BLOCKS)

    ask = ask_box if BLOCKS else ask_bytes

    def kernel(source, d, chunks, across, stores, each):  # type: ignore[no-untyped-def]
        smem = (memory.shared_address(cuda.shared.array(0, np.uint8)) + 1023) // 1024 * 1024
        full = smem + SLOTS * BYTES
        tid, ctas, target = u32(cuda.threadIdx.x), u32(cuda.gridDim.x), memory.global_address(d)
        chunk = u32(cuda.blockIdx.x)
        if tid == 0:
            for slot in range(SLOTS):
                mbarrier.init(full + slot * 8, 1)
            barrier.fence_mbarrier_init()
            ahead, slot = chunk, u32(0)
            while ahead < chunks and slot < SLOTS:
                mbarrier.arrive_expect_tx(full + slot * 8, BYTES)
                ask(source, full + slot * 8, smem + slot * BYTES, ahead, across)
                ahead += ctas
                slot += 1
        cuda.syncthreads()
        slot, phase, found = u32(0), u32(0), u32(0)
        while chunk < chunks:
            mbarrier.wait(full + slot * 8, phase)
            found = found ^ memory.load_shared_u32(smem + slot * BYTES + tid * 4)
            left, to = u32(each), chunk * each * THREADS + tid
            while left != 0:
                memory.store_global_v4_if(to < stores, target + u64(to) * PIECE, (found, found, found, found))
                to += THREADS
                left -= 1
            cuda.syncthreads()
            ahead = chunk + ctas * SLOTS
            if tid == 0 and ahead < chunks:
                mbarrier.arrive_expect_tx(full + slot * 8, BYTES)
                ask(source, full + slot * 8, smem + slot * BYTES, ahead, across)
            chunk += ctas
            slot += 1
            if slot == SLOTS:
                slot = u32(0)
                phase = phase ^ 1

    return kernel
