"""How a tile leaves the registers: the epilogues, each a device function `store(totals..., where)` chosen by `epilogue_for`.

tma     bf16 or fp16: stmatrix into swizzled panels in shared memory, TMA stores them and clips; the store runs under the next tile
warp    bf16 or fp16: each warp turns its 16 rows round in 2 KB of its own and stores whole 128-byte rows; leaves room for a stage more
direct  float32: from the registers, two columns a lane, four lanes a 32-byte sector

With an addend each first adds C to the registers (`ptx.addend`). What is too large for the output's type is rounded to infinity by all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from numba import cuda

from .._numba import device_function
from ..integers import u32, u64
from ..layouts import swizzle
from ..ptx import Fragment, TensorMapArg, barrier, convert, matrix, memory, thread, tma, unrolled
from ..ptx.addend import add_rows_for
from .epilogue_rules import WARP_STAGING_BYTES, panel_columns

STORES = {
    "bfloat16": (memory.store_global_bf16_if, 2),
    "float16": (memory.store_global_f16_if, 2),
    "float32": (memory.store_global_f32_if, 4),
}
"""Output dtype -> what stores an element, and its bytes."""


class Output(NamedTuple):
    """Where D goes, and where C lies: D's place where there is none. Addresses, and bytes of a row."""

    d_ptr: u64
    c_ptr: u64
    d_pitch: u64
    c_pitch: u64


def _pack_for(d_dtype: str) -> Callable[..., tuple[Any, ...]]:
    """Registers first .. first + 7 (16 columns) as the four matrices of one stmatrix.x4: (r, c), (r + 8, c), (r, c + 8), (r + 8, c + 8).

    Or so many of them.
    """
    narrow = {"bfloat16": convert.f32x2_to_bf16x2, "float16": convert.f32x2_to_f16x2}[d_dtype]
    return lambda frag, first, count=4: tuple(narrow(frag[first + 2 * j], frag[first + 2 * j + 1]) for j in range(count))


def addend_for(plan: Any) -> Any:
    """The device function `add(total, out, m_idx, n_idx, m, n)`: a wave's sums with C, or as they are without; its rows begin at `m_idx`."""
    WITH_C, SIZE, ROWS = plan.with_c, 4 if plan.d_dtype == "float32" else 2, min(64, plan.block_m)
    add_rows = add_rows_for(plan.block_n, plan.d_dtype)

    @device_function
    def add(total, out, m_idx, n_idx, m, n):  # type: ignore[no-untyped-def]
        if WITH_C:
            warp_idx = thread.uniform(u32(cuda.threadIdx.x) // 32)
            lane_idx = thread.lane_idx()
            row = m_idx + warp_idx * 16 + lane_idx // 4
            col = n_idx + lane_idx % 4 * 2
            # rows that wgmma adds to a tile of fewer than 64 are the next tile's
            end = m
            if ROWS < 64:
                end = min(m, m_idx + ROWS)
            total = add_rows(total, out.c_ptr + u64(row) * out.c_pitch + u64(col) * SIZE, out.c_pitch, row, end, col, n)
        return total

    return add


def store_panels_for(block_n: int, rows: int, d_dtype: str = "bfloat16") -> Callable[..., Any]:
    """The operation that writes a warp's 16 rows of two-byte elements into the panels of a tile of `rows` rows in shared memory."""
    columns, pack = panel_columns(block_n), _pack_for(d_dtype)

    @unrolled
    def store_panels(frag: Fragment, row_address: u32, phase: u32, half: u32) -> None:
        """stmatrix.x4 - a fragment, as bf16 or fp16, into swizzled panels.

        PTX:       ISA 9.0, "stmatrix"; sm_90+
        Scope:     warp
        Args:      frag         float32 fragment of 64 x block_n
                   row_address  u32  this lane's row (lane % 16 of the warp's) in the first panel
                   phase        u32  layouts.swizzle.row_phase of that row
                   half         u32  lane / 16: which eight columns of sixteen this lane's address is for
        Returns:   nothing
        Lanes:     layouts.lanes.WGMMA_ACCUMULATOR
        Emulates:  exactly
        """
        for step in range(block_n // 16):
            panel, inside = step // (columns // 16), step % (columns // 16)
            chunk = (half + 2 * inside) ^ phase
            matrix.stmatrix_x4(row_address + panel * rows * 2 * columns + chunk * 16, *pack(frag, 8 * step))

    return store_panels


def store_turned_for(block_m: int, d_dtype: str = "bfloat16") -> Callable[..., Any]:
    """The operation that writes a warp's 16 rows of a transposed fragment, as two-byte elements, into 16 columns of a panel of `block_m` rows."""
    pack = _pack_for(d_dtype)

    @unrolled
    def store_turned(frag: Fragment, address: u32) -> None:
        """stmatrix.x4.trans - a fragment whose rows are columns of D, as bf16 or fp16, into a panel of 128-byte rows with the 128-byte swizzle.

        PTX:       ISA 9.0, "stmatrix"; sm_90+
        Scope:     warp
        Args:      frag     float32 fragment of 64 x block_m
                   address  u32  where this lane's row of the first 16 goes: row lane / 16 * 8 + lane % 8, chunk lane / 8 % 2 of the warp's two
        Returns:   nothing
        Lanes:     layouts.lanes.wgmma_accumulator
        Emulates:  exactly
        """
        for step in range(block_m // 16):
            matrix.stmatrix_x4_trans(address + step * (16 * 128), *pack(frag, 8 * step))
        if block_m % 16:
            first = block_m // 16 * 8
            matrix.stmatrix_x2_trans(address + block_m // 16 * (16 * 128), *pack(frag, first, 2))

    return store_turned


def tma_epilogue(plan: Any, warpgroups: int, waves: int) -> Any:
    """D through shared memory: panels of 64 (or fewer) columns, one TMA store each."""
    BLOCK_N, ROWS, COLUMNS = plan.block_n, min(64, plan.block_m), panel_columns(plan.block_n)
    ROW_BYTES, PANELS, WARPS = 2 * COLUMNS, plan.block_n // COLUMNS, ROWS // 16
    TILE_BYTES, WAVE_ROWS, WAVES = ROWS * BLOCK_N * 2, 64 * warpgroups, waves
    store_panels = store_panels_for(BLOCK_N, ROWS, plan.d_dtype)
    add = addend_for(plan)
    PHASE_MASK = swizzle.phase_mask(ROW_BYTES)

    @unrolled
    def store_tile(leads: bool, tmap_d: TensorMapArg, smem_d: u32, n_idx: u32, m_idx: u32) -> None:
        """cp.async.bulk.tensor.2d.global - all panels of 64 rows, by the one thread that `leads`.

        PTX:       ISA 9.0, "cp.async.bulk.tensor"; sm_90+
        Scope:     thread
        Args:      leads         bool  the thread that stores
                   tmap_d        tensor map of D
                   smem_d        u32  shared address of the panels
                   n_idx, m_idx  u32  coordinates of the first
        Returns:   nothing
        Async:     as tma.store_2d
        Emulates:  exactly
        """
        for panel in range(PANELS):
            tma.store_2d_if(leads, tmap_d, smem_d + panel * ROWS * ROW_BYTES, n_idx + panel * COLUMNS, m_idx)

    @device_function
    def store(total0, total1, smem_d, tmap_d, out, m_idx, n_idx, m, n):  # type: ignore[no-untyped-def]
        total0 = add(total0, out, m_idx, n_idx, m, n)
        if WAVES == 2:
            total1 = add(total1, out, m_idx + WAVE_ROWS, n_idx, m, n)
        warp_idx = thread.uniform(u32(cuda.threadIdx.x) // 32)
        lane_idx = thread.lane_idx()
        warpgroup = warp_idx // 4
        leads = u32(cuda.threadIdx.x) % 128 == 0
        row = warp_idx % 4 * 16 + lane_idx % 16
        row_phase = (row * ROW_BYTES >> 7) & PHASE_MASK
        half = lane_idx // 16
        panels = smem_d + warpgroup * TILE_BYTES
        # the tile before must have left the panels
        tma.wait_read(0)
        barrier.sync(warpgroup + 1, 128)
        if WARPS == 4 or warp_idx % 4 < WARPS:
            store_panels(total0, panels + row * ROW_BYTES, row_phase, half)
            if WAVES == 2:
                store_panels(total1, panels + (2 * TILE_BYTES + row * ROW_BYTES), row_phase, half)
        # NOTE: each writer fences, then all meet, then one stores (PTX ISA 9.0, "Async Proxy").
        barrier.fence_proxy_async()
        barrier.sync(warpgroup + 1, 128)
        store_tile(leads, tmap_d, panels, n_idx, m_idx + warpgroup * 64)
        if WAVES == 2:
            store_tile(leads, tmap_d, panels + 2 * TILE_BYTES, n_idx, m_idx + (WAVE_ROWS + warpgroup * 64))
        tma.commit()

    return store


def store_rows_for(block_n: int, d_dtype: str = "bfloat16") -> Callable[..., Any]:
    """The operation that stores a warp's 16 rows of two-byte elements to global memory in whole 128-byte rows."""
    pack = _pack_for(d_dtype)

    @unrolled
    def store_rows(frag: Fragment, staging: u32, lane_idx: u32, address: u64, pitch: u64, row: u32, m: u32, col: u32, n: u32) -> None:
        """stmatrix.x4, ld.shared.v4, st.global.v4 - a fragment, as bf16 or fp16, turned round in the warp's own 2 KB.

        PTX:       ISA 9.0, "stmatrix", "ld", "st"; sm_90+
        Scope:     warp
        Args:      frag      float32 fragment of 64 x block_n
                   staging   u32  shared address of this warp's 16 rows of 128 bytes, 1024-byte aligned
                   lane_idx  u32
                   address   u64  of this lane's first 16 bytes in D: row lane / 8 of the warp's rows, columns 8 (lane % 8)
                   pitch     u64  bytes of a row of D
                   row, m    u32  that row, and the rows of D
                   col, n    u32  that column, and the columns of D (a multiple of 8)
        Returns:   nothing
        Lanes:     layouts.lanes.WGMMA_ACCUMULATOR
        Emulates:  exactly
        """
        write = staging + lane_idx % 16 * 128
        # row 4i + lane/8 has phase (4i + lane/8) % 8: i odd flips bit 2 of the chunk
        read = staging + lane_idx // 8 * 128 + ((lane_idx % 8 ^ lane_idx // 8) << 4)
        for panel in range(block_n // 64):
            for step in range(4):
                chunk = (lane_idx // 16 + 2 * step) ^ lane_idx % 8
                matrix.stmatrix_x4(write + chunk * 16, *pack(frag, 32 * panel + 8 * step))
            thread.syncwarp()
            rows = [memory.load_shared_v4((read ^ 64 if i % 2 else read) + 512 * i) for i in range(4)]
            for i in range(4):
                inside = (row + 4 * i < m) & (col + 64 * panel < n)
                memory.store_global_v4_if(inside, address + pitch * (4 * i) + 128 * panel, rows[i])
            thread.syncwarp()

    return store_rows


def warp_epilogue(plan: Any, warpgroups: int, waves: int) -> Any:
    """D from each warp for itself: no tile of D in shared memory, no barrier between warps."""
    WAVE_ROWS, WAVES = 64 * warpgroups, waves
    store_rows = store_rows_for(plan.block_n, plan.d_dtype)
    add = addend_for(plan)

    @device_function
    def store(total0, total1, smem_d, tmap_d, out, m_idx, n_idx, m, n):  # type: ignore[no-untyped-def]
        warp_idx = thread.uniform(u32(cuda.threadIdx.x) // 32)
        lane_idx = thread.lane_idx()
        staging = smem_d + warp_idx * WARP_STAGING_BYTES
        row = m_idx + warp_idx * 16 + lane_idx // 8
        col = n_idx + lane_idx % 8 * 8
        address = out.d_ptr + u64(row) * out.d_pitch + u64(col) * 2
        total0 = add(total0, out, m_idx, n_idx, m, n)
        store_rows(total0, staging, lane_idx, address, out.d_pitch, row, m, col, n)
        if WAVES == 2:
            total1 = add(total1, out, m_idx + WAVE_ROWS, n_idx, m, n)
            store_rows(total1, staging, lane_idx, address + out.d_pitch * WAVE_ROWS, out.d_pitch, row + WAVE_ROWS, m, col, n)

    return store


def store_float32_for(block_n: int) -> Callable[..., Any]:
    """The operation that stores a fragment as float32."""

    @unrolled
    def store_float32(frag: Fragment, address: u64, pitch: u64, row: u32, m: u32, col: u32, n: u32) -> None:
        """st.global.v2.f32 - a fragment from the registers, two columns at a time.

        PTX:       ISA 9.0, "st"
        Scope:     thread
        Args:      frag     float32 fragment of 64 x block_n
                   address  u64  of this lane's first element in D
                   pitch    u64  bytes of a row of D, a multiple of 8
                   row, m   u32  this lane's first row (the second is 8 lower), and the rows of D
                   col, n   u32  this lane's first column, and the columns of D
        Returns:   nothing
        Lanes:     layouts.lanes.WGMMA_ACCUMULATOR
        Emulates:  exactly
        """
        for half in range(2):
            in_m = row + 8 * half < m
            line = address + pitch * (8 * half)
            for group in range(block_n // 8):
                at, left = line + 32 * group, col + 8 * group
                x, y = frag[4 * group + 2 * half], frag[4 * group + 2 * half + 1]
                memory.store_global_v2_f32_if(in_m & (left + 1 < n), at, x, y)
                memory.store_global_f32_if(in_m & (left + 1 == n), at, x)

    return store_float32


def direct_epilogue(plan: Any, warpgroups: int, waves: int) -> Any:
    """D as float32, from the registers."""
    WAVE_ROWS, WAVES, WARPS = 64 * warpgroups, waves, min(4, plan.block_m // 16)
    store_float32 = store_float32_for(plan.block_n)
    add = addend_for(plan)

    @device_function
    def store(total0, total1, smem_d, tmap_d, out, m_idx, n_idx, m, n):  # type: ignore[no-untyped-def]
        warp_idx = thread.uniform(u32(cuda.threadIdx.x) // 32)
        lane_idx = thread.lane_idx()
        row = m_idx + warp_idx * 16 + lane_idx // 4
        col = n_idx + lane_idx % 4 * 2
        address = out.d_ptr + u64(row) * out.d_pitch + u64(col) * 4
        if WARPS == 4 or warp_idx < WARPS:
            total0 = add(total0, out, m_idx, n_idx, m, n)
            store_float32(total0, address, out.d_pitch, row, m, col, n)
        if WAVES == 2:
            total1 = add(total1, out, m_idx + WAVE_ROWS, n_idx, m, n)
            store_float32(total1, address + out.d_pitch * WAVE_ROWS, out.d_pitch, row + WAVE_ROWS, m, col, n)

    return store


def epilogue_for(plan: Any, warpgroups: int, waves: int) -> Any:
    """The device function `store(total0, total1, smem_d, tmap_d, out, m_idx, n_idx, m, n)` of a plan."""
    return {"tma": tma_epilogue, "warp": warp_epilogue, "direct": direct_epilogue}[plan.epilogue](plan, warpgroups, waves)
