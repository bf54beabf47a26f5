"""What the kernels for few rows share: loads of weights and tokens into registers, K permuted, and the sums of the warps, and CTAs, of a tile."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda

from .._numba import device_function
from ..integers import u32, u64
from ..layouts.smem import SmemMap
from ..ptx import Fragment, Registers, barrier, mbarrier, memory, prefetch, select, st_async, thread, unrolled
from ..ptx.addend import load_element_for
from ..ptx.fragment import Held
from .epilogue import STORES
from .spec import GemmPlan


def load_rows_for(rows: int, is_once: bool, pieces: int = 2, is_first: bool = False) -> Callable[..., Any]:
    """The operation `load(base, offsets, k)`: this lane's share of `pieces` times 64 bytes of `rows` rows, four registers each.

    is_first  of what is read once: before the wait for the grid before, and to stay there
    """
    load_16 = memory.load_global_v4_once if is_once else memory.load_global_v4
    if is_first:
        load_16 = prefetch.load_global_v4_once

    @unrolled
    def load(base: u64, offsets: Registers(rows), k: u32) -> Registers(4 * pieces * rows):  # type: ignore[valid-type]
        """ld.global.nc.v4 - 16 bytes of each row, and, where there are two pieces, those 64 bytes further on.

        Lane 4g + t has 16 neighbouring bytes at 16t of each 64: two instructions' words of K for the tensor core, which takes the bytes 4t..
        and 16 + 4t.. of 32. So the order of K is another one, the same for weights and tokens, which does not change the sum.

        PTX:       ISA 9.0, "ld.global.nc"
        Scope:     thread
        Args:      base     u64  global address of the operand
                   offsets  u32 registers: bytes from there to this lane's first 16 of each row
                   k        u32  byte of the row where the block begins
        Returns:   u32 registers
        Lanes:     layouts.lanes.MMA_A, MMA_B: words 2i and 2i + 1 of a row are those of instruction i
        Emulates:  exactly
        """
        words: tuple[Any, ...] = ()
        for row in range(rows):
            at = base + (offsets[row] + k)
            for piece in range(pieces):
                words = (*words, *load_16(at + 64 * piece))
        return words

    return load


def load_scales_for(count: int) -> Callable[..., Any]:
    """The operation `load(base, offsets)`: the scales of this lane's tokens, one register each."""

    def values(base: Any, offsets: Any) -> tuple[Any, ...]:
        return tuple(memory.load_global_f32(base + offsets[i]) for i in range(count))

    @unrolled(emulate=lambda base, offsets: Held(np.array(values(base, offsets), np.float32)))
    def load(base: u64, offsets: Registers(count)) -> Fragment(count):  # type: ignore[valid-type]
        """ld.global.f32 - the scales of two tokens of every eight.

        PTX:       ISA 9.0, "ld"
        Scope:     thread
        Args:      base     u64  global address of the block's scales
                   offsets  u32 registers: bytes from there
        Returns:   a fragment
        Lanes:     layouts.lanes.MMA_ACCUMULATOR: registers 4j + {0, 1} and 4j + {2, 3} take pair j
        Emulates:  exactly
        """
        return values(base, offsets)

    return load


@unrolled
def store_partial(total: Fragment, address: u32) -> None:
    """st.shared.f32 - register i of a fragment to `address` + 128 i.

    PTX:       ISA 9.0, "st"
    Scope:     thread
    Args:      total    float32 fragment
               address  u32  shared address of this lane's first
    Returns:   nothing
    Emulates:  exactly
    """
    for i in range(len(total)):
        memory.store_shared_f32(address + 128 * i, total[i])


def _least(x: Any, y: Any) -> Any:
    return select(x < y, x, y)


def row_offsets_for(groups: int) -> Callable[..., Any]:
    """The operation `offsets(row, last, pitch, chunk)` of a lane's rows: one of every eight."""

    @unrolled
    def offsets(row: u32, last: u32, pitch: u32, chunk: u32) -> Registers(groups):  # type: ignore[valid-type]
        """min.u32, mad.lo.u32 - bytes from the operand's begin to this lane's 16 of each row; a row past the last counts as the last.

        PTX:       ISA 9.0, "min", "mad"
        Scope:     thread
        Args:      row    u32  of the first eight
                   last   u32  row
                   pitch  u32  bytes of a row
                   chunk  u32  byte of the row
        Returns:   u32 registers
        Emulates:  exactly
        """
        return tuple(_least(row + 8 * group, last) * pitch + chunk for group in range(groups))

    return offsets


def scale_offsets_for(count: int) -> Callable[..., Any]:
    """The operation `offsets(token, last)` of a lane's scales: two of every eight tokens."""

    @unrolled
    def offsets(token: u32, last: u32) -> Registers(count):  # type: ignore[valid-type]
        """min.u32 - bytes from a block's first scale to those of this lane's tokens; one past the last counts as the last.

        PTX:       ISA 9.0, "min"
        Scope:     thread
        Args:      token  u32  this lane's first
                   last   u32  token
        Returns:   u32 registers
        Emulates:  exactly
        """
        return tuple(_least(token + (8 * (i // 2) + i % 2), last) * 4 for i in range(count))

    return offsets


def fetch_first_for(fetch: Any, fetch_tokens: Any, are_weights_first: bool) -> Any:
    """The device function `fetch_first(step, at, weights, row_scale)`: what one of the first steps needs, as `fetch` asks for it.

    With `are_weights_first` weights and their scale are on their way by then, and `fetch_tokens` asks for the rest.
    """

    @device_function
    def fetch_first(step, at, weights, row_scale):  # type: ignore[no-untyped-def]
        if are_weights_first:
            tokens, scales = fetch_tokens(step, at)
            return weights, tokens, scales, row_scale
        return fetch(step, at)

    return fetch_first


def sum_in_order_for(count: int, pitch: int) -> Any:
    """The device function `sum_of(address)`: so many float32, of warps or of CTAs, `pitch` bytes of shared memory apart, added in their order."""

    @device_function
    def sum_of(address):  # type: ignore[no-untyped-def]
        total = memory.load_shared_f32(address)
        for i in range(1, count):
            total = total + memory.load_shared_f32(address + i * pitch)
        return total

    return sum_of


def begin_for(plan: GemmPlan, mapped: SmemMap) -> Any:
    """The device function `begin(smem)`, for a kernel's begin: of a split the barrier that counts what peers send, and the news that it stands."""
    OUTPUTS, SPLIT = plan.block_n * plan.block_m, plan.cluster
    BAR = mapped["bar"].offset if SPLIT > 1 else 0

    @device_function
    def begin(smem):  # type: ignore[no-untyped-def]
        if SPLIT > 1:
            if u32(cuda.threadIdx.x) == 0:
                mbarrier.init(smem + BAR, 1)
                barrier.fence_mbarrier_init()
                mbarrier.arrive_expect_tx(smem + BAR, OUTPUTS * 4)
            # NOTE: this thread's own arrival, a release, publishes the barrier, bytes expected included: both stand before it. It is not
            # `.aligned`: the others of its warp need not have waited for it.
            barrier.cluster_arrive()

    return begin


def add_up_for(plan: GemmPlan, num_threads: int, mapped: SmemMap) -> Any:
    """The device function `add_up(smem, out, rank, m, n, n_idx)`, for a kernel's end: a tile's sums added, and stored.

    In region "partial" are the sums of all warps, `store_partial`'s: those that share a tile's first 16 rows, then those of the next; a barrier of
    the CTA lies behind them. They are added in the warps' order. The CTAs of a cluster share the tile too, and each owns a part of it: who has a sum
    sends it to the owner (st.async), to a place of the sender's own in region "sums", and the owner adds by rank. So nobody waits for a peer but for
    its sums, and nobody has to stay until a peer has read. Before it sends, a CTA waits at the cluster's barrier, where `begin_for`'s arrived: by
    then every owner's barrier stands.
    """
    BLOCK_M, WARPS, SPLIT, WITH_C = plan.block_m, plan.warps, plan.cluster, plan.with_c
    OUTPUTS, SUMS_BYTES = plan.block_n * plan.block_m, 64 * plan.block_m
    PART, PARTIAL = OUTPUTS // SPLIT, mapped["partial"].offset
    SUMS, BAR = (mapped["sums"].offset, mapped["bar"].offset) if SPLIT > 1 else (0, 0)
    store_one, ELEMENT = STORES[plan.d_dtype]
    load_addend, sum_of, sum_of_ranks = (
        load_element_for(plan.d_dtype),
        sum_in_order_for(WARPS, SUMS_BYTES),
        sum_in_order_for(SPLIT, PART * 4),
    )

    @device_function
    def sum_here(smem, i):  # type: ignore[no-untyped-def]
        """The sum of this CTA's warps for the tile's output `i`, as a fragment's registers lie."""
        return sum_of(smem + PARTIAL + i // (16 * BLOCK_M) * (WARPS * SUMS_BYTES) + i % (16 * BLOCK_M) * 4)

    @device_function
    def send(smem, rank):  # type: ignore[no-untyped-def]
        i = u32(cuda.threadIdx.x)
        while i < OUTPUTS:
            owner, place = i // PART, smem + SUMS + (rank * PART + i % PART) * 4
            st_async.store_f32(thread.mapa(place, owner), sum_here(smem, i), thread.mapa(smem + BAR, owner))
            i += num_threads

    @device_function
    def add_up(smem, out, rank, m, n, n_idx):  # type: ignore[no-untyped-def]
        if SPLIT > 1:
            barrier.cluster_wait()
            send(smem, rank)
            mbarrier.wait(smem + BAR, 0)
        i = u32(cuda.threadIdx.x)
        while i < PART:
            total = sum_of_ranks(smem + SUMS + i * 4) if SPLIT > 1 else sum_here(smem, i)
            at = rank * PART + i
            group, inside = at // (16 * BLOCK_M), at % (16 * BLOCK_M)
            register, lane_idx = inside // 32, inside % 32
            token = register // 4 * 8 + lane_idx % 4 * 2 + register % 2
            row = n_idx + group * 16 + register % 4 // 2 * 8 + lane_idx // 4
            is_inside = token < m and row < n
            if WITH_C:
                total = total + load_addend(is_inside, out.c_ptr + u64(token) * out.c_pitch + u64(row) * ELEMENT)[0]
            store_one(is_inside, out.d_ptr + u64(token) * out.d_pitch + u64(row) * ELEMENT, total)
            i += num_threads

    return add_up
