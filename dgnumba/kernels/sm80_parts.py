"""Operations that the sm_80 kernels are made of: copies of rows, products of a warp's tile, scales, the store."""

from collections.abc import Callable
from typing import Any

from ..integers import u32, u64
from ..ptx import Fragment, Registers, convert, cp_async, f32, memory, mma, select, unrolled

CHUNKS = 8
"""16-byte chunks in a row of a stage."""


def copy_rows_for(rows: int, threads: int) -> Callable[..., Any]:
    """The operation `copy(...)` by which `threads` threads copy a stage's `rows` rows of 128 bytes; threads / 8 rows at a time."""
    step = threads // CHUNKS
    assert rows % step == 0, "every thread has as many rows"

    @unrolled
    def copy(dst: u32, src: u64, pitch: u32, row: u32, last: u32, nbytes: u32) -> None:
        """cp.async.cg.shared.global - this thread's chunk of every so many rows.

        PTX:       ISA 9.0, "cp.async"; sm_80+
        Scope:     thread
        Args:      dst     u32  shared address of its chunk of its first row
                   src     u64  global address of that chunk in row 0 of the operand
                   pitch   u32  bytes of a row of the operand
                   row     u32  its first row
                   last    u32  the operand's last row, which is taken for those behind it
                   nbytes  u32  0 to 16, of the chunk that lie in the row; the rest is zeros
        Returns:   nothing
        Async:     as `cp_async.copy_16`
        Emulates:  exactly
        """
        # the rows' addresses are computed anew for each stage: kept, they would take two registers each
        row, last = convert.forget((row, last))
        for i in range(rows // step):
            at = row + step * i
            at = select(at < last, at, last)
            cp_async.copy_16_zfill(dst + 128 * step * i, src + u64(at) * u64(pitch), nbytes)

    return copy


def multiply_for(dtype: str, m_tiles: int, n_tiles: int, widen: bool = False) -> Callable[..., Any]:
    """The operation `multiply(acc, a, b)` of a warp on one step of 32 bytes of K.

    widen  FP8 becomes float16 first, for tensor cores that lack it: two steps of 16. Which columns of K meet in which step does not
           matter to the sum, so halves of registers are taken as they come.
    """
    if not widen:
        return mma.tile_for(dtype, m_tiles, n_tiles)
    multiply = mma.tile_for("float16", m_tiles, n_tiles)

    @unrolled(tied="acc")
    def widened(acc: Fragment(4 * m_tiles * n_tiles), a: Registers(4 * m_tiles), b: Registers(2 * n_tiles)) -> Fragment:
        """mma.sync.aligned.m16n8k16 - acc[16 m_tiles, 8 n_tiles] += A[.., 32] @ B[.., 32].T of e4m3, as float16.

        PTX:       ISA 9.0, "mma"; sm_80+
        Scope:     warp
        Args:      acc  float32 registers, four a tile
                   a    u32 registers, four for each 16 rows
                   b    u32 registers, two for each 8 columns
        Returns:   acc
        Lanes:     layouts.lanes.MMA_ACCUMULATOR, layouts.lanes.MMA_A, layouts.lanes.MMA_B, of each tile
        Emulates:  as `mma.m16n8k16_f16`
        """
        a_wide, b_wide = [convert.e4m3x4_to_f16x4(r) for r in a], [convert.e4m3x4_to_f16x4(r) for r in b]
        for half in range(2):
            # columns 4t + {0, 1} and 4t + {2, 3} of the half become 2t + {0, 1} and 2t + 8 + {0, 1}, in A and in B
            a_step = [a_wide[4 * i + 2 * half + r % 2][r // 2] for i in range(m_tiles) for r in range(4)]
            b_step = [b_wide[2 * j + half][r] for j in range(n_tiles) for r in range(2)]
            acc = multiply(acc, tuple(a_step), tuple(b_step))
        return acc

    return widened


def row_scales_for(m_tiles: int) -> Callable[..., Any]:
    """The operation `load(address, row, last, column)` that gives `fragment.promote` the scales of a warp's rows."""

    @unrolled
    def load(address: u64, row: u32, last: u32, column: f32) -> Fragment(2 * m_tiles):
        """ld.global.f32 - A's scales of this lane's rows times B's scale.

        PTX:       ISA 9.0, "ld", "mul"
        Scope:     thread
        Args:      address  u64  global address of the scale of row 0
                   row      u32  this lane's first row; the others follow 8 apart
                   last     u32  the last row, which is taken for those behind it
                   column   float32  B's scale
        Returns:   pairs (rows r, r + 8), one for each 16 rows
        Emulates:  exactly
        """
        rows = [row + 8 * i for i in range(2 * m_tiles)]
        rows = [select(r < last, r, last) for r in rows]
        return tuple(memory.load_global_f32(address + u64(r) * 4) * column for r in rows)

    return load


def store_tile_for(m_tiles: int, n_tiles: int, d_dtype: str) -> Callable[..., Any]:
    """The operation `store(acc, address, pitch, row, m, col, n)` of a warp's tile, from the registers."""
    pack = {"bfloat16": convert.f32x2_to_bf16x2, "float16": convert.f32x2_to_f16x2}.get(d_dtype)
    kind = Registers if d_dtype == "int32" else Fragment

    def put(is_inside: Any, at: Any, x: Any, y: Any) -> None:
        if pack is not None:
            memory.store_global_u32_if(is_inside, at, pack(x, y))
        elif d_dtype == "float32":
            memory.store_global_v2_f32_if(is_inside, at, x, y)
        else:
            memory.store_global_u32_if(is_inside, at, x)
            memory.store_global_u32_if(is_inside, at + 4, y)

    @unrolled
    def store(acc: kind(4 * m_tiles * n_tiles), address: u64, pitch: u32, row: u32, m: u32, col: u32, n: u32) -> None:  # type: ignore[valid-type]
        """st.global - a warp's tile, two neighbouring columns at a time.

        PTX:       ISA 9.0, "st"
        Scope:     thread
        Args:      acc      registers, four for each 16 x 8
                   address  u64  of this lane's first element in D
                   pitch    u32  bytes of a row of D: whole pairs of columns
                   row, m   u32  this lane's first row, and the rows of D
                   col, n   u32  this lane's first column, and the columns of D; with an odd n the column behind it is written too
        Returns:   nothing
        Lanes:     layouts.lanes.MMA_ACCUMULATOR, of each tile
        Emulates:  exactly
        """
        size = 2 if pack is not None else 4
        for i in range(2 * m_tiles):
            line = address + u64(pitch) * (8 * i)
            for j in range(n_tiles):
                first = 4 * (i // 2 * n_tiles + j) + 2 * (i % 2)
                put((row + 8 * i < m) & (col + 8 * j < n), line + 8 * size * j, acc[first], acc[first + 1])

    return store
