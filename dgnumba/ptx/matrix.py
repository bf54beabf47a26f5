"""stmatrix: 8x8 matrices of 16-bit elements from the fragments of a warp to rows in shared memory."""

from ._declare import WARP, op, u32
from ._emulate import stmatrix

_TEXT = "stmatrix.sync.aligned.m8n8.x{n}.shared.b16 [{{address}}], {{{{{regs}}}}};"


@op(_TEXT.format(n=1, regs="{r0}"), scope=WARP)
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


@op(_TEXT.format(n=2, regs="{r0}, {r1}"), scope=WARP)
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


@op(_TEXT.format(n=4, regs="{r0}, {r1}, {r2}, {r3}"), scope=WARP)
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
