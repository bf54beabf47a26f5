"""mma.sync: a warp multiplies 16 x 8 tiles, all operands in registers, from sm_80 on.

One instruction takes 32 bytes of K, whatever the type: 16 bfloat16, 32 FP8 or INT8, 64 INT4. So a fragment of A is always four registers
(`layouts.lanes.MMA_A`), one of B two (`MMA_B`), the accumulator four (`MMA_ACCUMULATOR`): float32, or int32 in u32 registers.
"""

from collections.abc import Callable
from typing import Any

from ..dtypes import DTYPES
from ._declare import WARP, Fragment, Registers, op
from ._emulate import mma_sync

_TEXT = "mma.sync.aligned.m16n8k{k}.row.col.{acc}.{t}.{t}.{acc} {{acc}}, {{a}}, {{b}}, {{acc}};"


def _text(dtype: str) -> str:
    row = DTYPES[dtype]
    return _TEXT.format(k=256 // row.bits, acc="f32" if row.is_float else "s32", t=row.ptx)


@op(_text("bfloat16"), scope=WARP, tied="acc")
def m16n8k16_bf16(acc: Fragment(4), a: Registers(4), b: Registers(2)) -> Fragment:
    """mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 - acc[16, 8] += A[16, 16] @ B[8, 16].T, bfloat16.

    PTX:       ISA 9.0, "mma"; sm_80+
    Scope:     warp
    Args:      acc  four float32 registers
               a    four u32, each two bfloat16
               b    two u32, each two bfloat16
    Returns:   acc
    Lanes:     layouts.lanes.MMA_ACCUMULATOR, layouts.lanes.MMA_A, layouts.lanes.MMA_B
    Emulates:  the exact sum, rounded once; GPUs truncate it, each generation at another bit: equal bits where all sums are exact in float32
    """
    return mma_sync("bfloat16", acc, a, b)


@op(_text("float16"), scope=WARP, tied="acc")
def m16n8k16_f16(acc: Fragment(4), a: Registers(4), b: Registers(2)) -> Fragment:
    """mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 - acc[16, 8] += A[16, 16] @ B[8, 16].T, float16.

    PTX:       ISA 9.0, "mma"; sm_80+
    Scope:     warp
    Args:      acc  four float32 registers
               a    four u32, each two float16
               b    two u32, each two float16
    Returns:   acc
    Lanes:     layouts.lanes.MMA_ACCUMULATOR, layouts.lanes.MMA_A, layouts.lanes.MMA_B
    Emulates:  as `m16n8k16_bf16`
    """
    return mma_sync("float16", acc, a, b)


@op(_text("float8_e4m3fn"), scope=WARP, tied="acc")
def m16n8k32_e4m3(acc: Fragment(4), a: Registers(4), b: Registers(2)) -> Fragment:
    """mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 - acc[16, 8] += A[16, 32] @ B[8, 32].T, FP8 e4m3.

    PTX:       ISA 9.0, "mma"; sm_89+
    Scope:     warp
    Args:      acc  four float32 registers
               a    four u32, each four e4m3
               b    two u32, each four e4m3
    Returns:   acc
    Lanes:     layouts.lanes.MMA_ACCUMULATOR, layouts.lanes.MMA_A, layouts.lanes.MMA_B
    Emulates:  as `m16n8k16_bf16`
    """
    return mma_sync("float8_e4m3fn", acc, a, b)


@op(_text("int8"), scope=WARP, tied="acc")
def m16n8k32_s8(acc: Registers(4), a: Registers(4), b: Registers(2)) -> Registers:
    """mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 - acc[16, 8] += A[16, 32] @ B[8, 32].T, INT8, wrapping at 32 bits.

    PTX:       ISA 9.0, "mma"; sm_80+
    Scope:     warp
    Args:      acc  four u32 that hold int32
               a    four u32, each four int8
               b    two u32, each four int8
    Returns:   acc
    Lanes:     layouts.lanes.MMA_ACCUMULATOR, layouts.lanes.MMA_A, layouts.lanes.MMA_B
    Emulates:  exactly
    """
    return mma_sync("int8", acc, a, b)


@op(_text("int4"), scope=WARP, tied="acc")
def m16n8k64_s4(acc: Registers(4), a: Registers(4), b: Registers(2)) -> Registers:
    """mma.sync.aligned.m16n8k64.row.col.s32.s4.s4.s32 - acc[16, 8] += A[16, 64] @ B[8, 64].T, INT4, wrapping at 32 bits.

    PTX:       ISA 9.0, "mma"; sm_80+, in hardware up to sm_89: later GPUs do it by INT8
    Scope:     warp
    Args:      acc  four u32 that hold int32
               a    four u32, each eight int4, the lowest nibble first
               b    two u32, each eight int4
    Returns:   acc
    Lanes:     layouts.lanes.MMA_ACCUMULATOR, layouts.lanes.MMA_A, layouts.lanes.MMA_B
    Emulates:  exactly
    """
    return mma_sync("int4", acc, a, b)


def tile_for(dtype: str, m_tiles: int, n_tiles: int) -> Callable[..., Any]:
    """The operation `mma(acc, a, b)` of a warp on `m_tiles` x `n_tiles` tiles of 16 x 8: all its instructions as one operation.

    dtype  of A and B: a name of `DTYPES` that one of the instructions above takes

    The registers of tile (i, j) are acc[4 (i n_tiles + j)...], a[4i...] and b[2j...].
    """
    row = DTYPES[dtype]
    kind = Fragment if row.is_float else Registers
    parts = []
    for i in range(m_tiles):
        # NOTE: back and forth, so that a tile shares a fragment with the one before (less register traffic).
        for j in range(n_tiles) if i % 2 == 0 else reversed(range(n_tiles)):
            acc = ", ".join(f"{{acc[{4 * (i * n_tiles + j) + r}]}}" for r in range(4))
            a = ", ".join(f"{{a[{4 * i + r}]}}" for r in range(4))
            b = ", ".join(f"{{b[{2 * j + r}]}}" for r in range(2))
            mnemonic = _text(dtype).partition(" ")[0]
            parts.append(f"{mnemonic} {{{{{acc}}}}}, {{{{{a}}}}}, {{{{{b}}}}}, {{{{{acc}}}}};")

    def mma(acc: kind(4 * m_tiles * n_tiles), a: Registers(4 * m_tiles), b: Registers(2 * n_tiles)) -> kind:  # type: ignore[valid-type]
        """mma.sync.aligned - acc[16 m_tiles, 8 n_tiles] += A[16 m_tiles, 32 bytes] @ B[8 n_tiles, 32 bytes].T.

        PTX:       ISA 9.0, "mma"; as the single instruction
        Scope:     warp
        Args:      acc  float32 registers (u32 for integers), four a tile
                   a    u32 registers, four for each 16 rows
                   b    u32 registers, two for each 8 columns
        Returns:   acc
        Lanes:     layouts.lanes.MMA_ACCUMULATOR, layouts.lanes.MMA_A, layouts.lanes.MMA_B, of each tile
        Emulates:  as the single instruction
        """
        return mma_sync(dtype, acc, a, b, m_tiles, n_tiles)

    return op(" ".join(parts), scope=WARP, tied="acc", name="mma.tile")(mma)
