"""ldmatrix, stmatrix: 8x8 matrices of 16-bit elements between rows in shared memory and the fragments of a warp.

A row is 16 bytes, whatever they hold: eight bfloat16, sixteen FP8 or INT8, thirty-two INT4. So one ldmatrix serves every `ptx.mma`.
"""

from collections.abc import Callable
from typing import Any

from ._declare import WARP, Registers, op, u32
from ._emulate import ldmatrix, stmatrix

_LOAD = "ldmatrix.sync.aligned.m8n8.x{n}{trans}.shared.b16 {{out}}, [{{address}}];"
_TEXT = "stmatrix.sync.aligned.m8n8.x{n}{trans}.shared.b16 [{{address}}], {{{{{regs}}}}};"


@op(_TEXT.format(n=1, trans="", regs="{r0}"), scope=WARP)
def stmatrix_x1(address: u32, r0: u32) -> None:
    """stmatrix.x1 - store one 8x8 matrix.

    PTX:       ISA 9.0, "stmatrix"; sm_90+
    Scope:     warp
    Args:      address  u32  lanes 0-7: 16-byte-aligned shared address of row 0-7; other lanes': any valid address
               r0       u32  two 16-bit elements
    Returns:   nothing
    Lanes:     layouts.lanes.MATRIX_8X8
    Emulates:  exactly
    """
    stmatrix(address, r0)


@op(_TEXT.format(n=2, trans="", regs="{r0}, {r1}"), scope=WARP)
def stmatrix_x2(address: u32, r0: u32, r1: u32) -> None:
    """stmatrix.x2 - store two 8x8 matrices.

    PTX:       ISA 9.0, "stmatrix"; sm_90+
    Scope:     warp
    Args:      address  u32  lanes 8i to 8i+7: 16-byte-aligned shared addresses of matrix i's rows; lanes 16-31: any valid address
               r0, r1   u32  two 16-bit elements of matrix 0 and 1
    Returns:   nothing
    Lanes:     layouts.lanes.MATRIX_8X8
    Emulates:  exactly
    """
    stmatrix(address, r0, r1)


@op(_TEXT.format(n=4, trans="", regs="{r0}, {r1}, {r2}, {r3}"), scope=WARP)
def stmatrix_x4(address: u32, r0: u32, r1: u32, r2: u32, r3: u32) -> None:
    """stmatrix.x4 - store four 8x8 matrices.

    PTX:       ISA 9.0, "stmatrix"; sm_90+
    Scope:     warp
    Args:      address  u32  lanes 8i to 8i+7: 16-byte-aligned shared addresses of matrix i's rows
               r0..r3   u32  two 16-bit elements of matrix 0 to 3
    Returns:   nothing
    Lanes:     layouts.lanes.MATRIX_8X8
    Emulates:  exactly
    """
    stmatrix(address, r0, r1, r2, r3)


@op(_TEXT.format(n=2, trans=".trans", regs="{r0}, {r1}"), scope=WARP)
def stmatrix_x2_trans(address: u32, r0: u32, r1: u32) -> None:
    """stmatrix.x2.trans - store two 8x8 matrices, each transposed.

    PTX:       ISA 9.0, "stmatrix"; sm_90+
    Scope:     warp
    Args:      address  u32  lanes 8i to 8i+7: 16-byte-aligned shared addresses of the rows of matrix i transposed; lanes 16-31: any valid address
               r0, r1   u32  two 16-bit elements of matrix 0 and 1
    Returns:   nothing
    Lanes:     layouts.lanes.MATRIX_8X8
    Emulates:  exactly
    """
    stmatrix(address, r0, r1, is_transposed=True)


@op(_TEXT.format(n=4, trans=".trans", regs="{r0}, {r1}, {r2}, {r3}"), scope=WARP)
def stmatrix_x4_trans(address: u32, r0: u32, r1: u32, r2: u32, r3: u32) -> None:
    """stmatrix.x4.trans - store four 8x8 matrices, each transposed.

    PTX:       ISA 9.0, "stmatrix"; sm_90+
    Scope:     warp
    Args:      address  u32  lanes 8i to 8i+7: 16-byte-aligned shared addresses of the rows of matrix i transposed
               r0..r3   u32  two 16-bit elements of matrix 0 to 3
    Returns:   nothing
    Lanes:     layouts.lanes.MATRIX_8X8
    Emulates:  exactly
    """
    stmatrix(address, r0, r1, r2, r3, is_transposed=True)


@op(_LOAD.format(n=2, trans=""), scope=WARP)
def ldmatrix_x2(address: u32) -> Registers(2):
    """ldmatrix.x2 - load two 8x8 matrices.

    PTX:       ISA 9.0, "ldmatrix"; sm_75+
    Scope:     warp
    Args:      address  u32  lanes 8i to 8i+7: 16-byte-aligned shared addresses of matrix i's rows; lanes 16-31: any valid address
    Returns:   two u32, each two 16-bit elements of one matrix
    Lanes:     layouts.lanes.MATRIX_8X8
    Emulates:  exactly
    """
    return ldmatrix(address, 2)


@op(_LOAD.format(n=4, trans=""), scope=WARP)
def ldmatrix_x4(address: u32) -> Registers(4):
    """ldmatrix.x4 - load four 8x8 matrices.

    PTX:       ISA 9.0, "ldmatrix"; sm_75+
    Scope:     warp
    Args:      address  u32  lanes 8i to 8i+7: 16-byte-aligned shared addresses of matrix i's rows
    Returns:   four u32, each two 16-bit elements of one matrix
    Lanes:     layouts.lanes.MATRIX_8X8
    Emulates:  exactly
    """
    return ldmatrix(address, 4)


@op(_LOAD.format(n=2, trans=".trans"), scope=WARP)
def ldmatrix_x2_trans(address: u32) -> Registers(2):
    """ldmatrix.x2.trans - load two 8x8 matrices, each transposed.

    PTX:       ISA 9.0, "ldmatrix"; sm_75+
    Scope:     warp
    Args:      address  u32  lanes 8i to 8i+7: 16-byte-aligned shared addresses of matrix i's rows; lanes 16-31: any valid address
    Returns:   two u32, each two 16-bit elements of one transposed matrix
    Lanes:     layouts.lanes.MATRIX_8X8, of the transposed matrix
    Emulates:  exactly
    """
    return ldmatrix(address, 2, is_transposed=True)


@op(_LOAD.format(n=4, trans=".trans"), scope=WARP)
def ldmatrix_x4_trans(address: u32) -> Registers(4):
    """ldmatrix.x4.trans - load four 8x8 matrices, each transposed.

    PTX:       ISA 9.0, "ldmatrix"; sm_75+
    Scope:     warp
    Args:      address  u32  lanes 8i to 8i+7: 16-byte-aligned shared addresses of matrix i's rows
    Returns:   four u32, each two 16-bit elements of one transposed matrix
    Lanes:     layouts.lanes.MATRIX_8X8, of the transposed matrix
    Emulates:  exactly
    """
    return ldmatrix(address, 4, is_transposed=True)


def load_tiles_for(count: int, pitch: int) -> Callable[..., Any]:
    """The operation `load(address)`: `count` times ldmatrix.x4, `pitch` bytes apart, as one operation."""
    parts = []
    for i in range(count):
        out = ", ".join(f"{{out[{4 * i + j}]}}" for j in range(4))
        parts.append(f"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{{{out}}}}}, [{{address}} + {pitch * i}];")

    @op(" ".join(parts), scope=WARP, name="matrix.load_tiles")
    def load(address: u32) -> Registers(4 * count):
        """ldmatrix.x4 - load `count` times four 8x8 matrices, `pitch` bytes apart.

        PTX:       ISA 9.0, "ldmatrix"; sm_75+
        Scope:     warp
        Args:      address  u32  lanes 8i to 8i+7: 16-byte-aligned shared addresses of the rows of matrix i of the first four
        Returns:   u32 registers, four for each tile
        Lanes:     layouts.lanes.MATRIX_8X8
        Emulates:  exactly
        """
        tiles = [ldmatrix([a + pitch * i for a in address], 4) for i in range(count)]
        return [tuple(register for tile in tiles for register in tile[lane]) for lane in range(len(address))]

    return load
