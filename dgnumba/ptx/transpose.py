"""Results of 16 bits turned between the lanes of a warp, so that four rows of a transposed tile, neighbours in memory, leave by one store.

A lane of a wgmma's accumulator holds two tokens of a row, and of the row 8 lower: of D, whose rows are tokens, elements of 2 bytes far apart.
Turned it holds four neighbouring rows of one token.
"""

from collections.abc import Sequence

import numpy as np

from ..emu import cta
from ..errors import DivergenceError
from ._declare import WARP, Imm, Registers, op, select, u32, u64, unrolled


@op("movmatrix.sync.aligned.m8n8.trans.b16 {out}, {pair};", scope=WARP)
def movmatrix(pair: u32) -> u32:
    """movmatrix.trans - an 8x8 matrix of 16-bit elements, transposed.

    PTX:       ISA 9.0, "movmatrix"; sm_75+
    Scope:     warp; not to be moved to where only some lanes use the result
    Args:      pair  u32  two elements of the matrix
    Returns:   u32, two elements of the transposed one
    Lanes:     layouts.lanes.MATRIX_8X8, of both
    Emulates:  exactly
    """
    matrix = np.array(_warp("movmatrix", pair), np.uint32).view(np.uint16).reshape(8, 8)
    return [u32(word) for word in np.ascontiguousarray(matrix.T).view(np.uint32).ravel().tolist()]


@op("shfl.sync.bfly.b32 {out}, {value}, {mask}, 31, 0xffffffff;", scope=WARP)
def shfl_bfly(value: u32, mask: Imm) -> u32:
    """shfl.sync.bfly - the `value` of the lane whose number differs by exclusive or with `mask`.

    PTX:       ISA 9.0, "shfl.sync"; sm_30+
    Scope:     warp; not to be moved to where only some lanes use the result
    Args:      value  u32
               mask   constant, 1 to 31
    Returns:   u32
    Lanes:     lane L gets that of lane L ^ mask
    Emulates:  exactly
    """
    lanes = _warp("shfl_bfly", value)
    return [lanes[lane ^ int(mask[0])] for lane in range(len(lanes))]


def _warp(name: str, column: Sequence[int]) -> Sequence[int]:
    if len(column) != 32:
        raise DivergenceError(f"{name}: expected a warp of 32 lanes, got {len(column)}")
    return column


@unrolled
def quads(low: u32, high: u32, is_odd: bool) -> Registers(2):
    """movmatrix, shfl - two tokens of rows q and q + 8 of sixteen, two elements of 16 bits each, turned to four neighbouring rows of one token.

    PTX:       ISA 9.0, "movmatrix", "shfl.sync"; sm_75+
    Scope:     warp
    Args:      low, high  u32  tokens 2(lane%4) and 2(lane%4) + 1 of row lane/4, and of row lane/4 + 8
               is_odd     bool  whether the lane's number is odd
    Returns:   two u32, of two elements each
    Lanes:     layouts.lanes.MATRIX_8X8, twice; layouts.lanes.TOKEN_QUADS
    Emulates:  exactly
    """
    first, second = movmatrix(low), movmatrix(high)  # rows 2c and 2c + 1 of the upper eight, and of the lower
    got = shfl_bfly(select(is_odd, first, second), 1)
    return select(is_odd, got, first), select(is_odd, second, got)


@op("{{ .reg .pred p; setp.ne.b32 p, {condition}, 0; @p st.global.v2.b32 [{address}], {words}; }}")
def store_global_v2_if(condition: bool, address: u64, words: Registers(2)) -> None:
    """st.global.v2.b32 - store 8 bytes where `condition` holds, without a branch.

    PTX:       ISA 9.0, "st"
    Scope:     thread
    Args:      condition  bool
               address    u64  global address, 8-byte aligned
               words      two u32
    Returns:   nothing
    Emulates:  exactly
    """
    if condition:
        cta().gmem.store(address, b"".join(int(word).to_bytes(4, "little") for word in words))
