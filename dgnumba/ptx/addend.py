"""C, read where D will be written: each register of a tile gets its element of C before the one rounding. Made of other operations.

A lane reads the elements that it holds, so nothing is exchanged and nothing waits: by the time a tile is stored, whoever stores an element
has read its C, also where C and D are one array.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..emu import Fragment as Held
from . import convert, memory
from ._declare import Fragment, u32, u64, unrolled

_PIECE = 8
"""Groups of eight columns whose loads are on their way together."""


def _pair(dtype: str) -> Callable[..., Any]:
    """What loads two neighbouring elements, and gives them as float32."""
    if dtype == "float32":
        return memory.load_global_v2_f32_if
    widen = convert.bf16x2_to_f32x2 if dtype == "bfloat16" else convert.f16x2_to_f32x2
    return lambda condition, address: widen(memory.load_global_u32_if(condition, address))


def add_rows_for(block_n: int, dtype: str) -> Callable[..., Any]:
    """The operation that adds a tile's C of this type to its sums."""
    load, size = _pair(dtype), 4 if dtype == "float32" else 2
    groups = block_n // 8

    def sums(total: Any, address: Any, pitch: Any, row: Any, m: Any, col: Any, n: Any) -> tuple[Any, ...]:
        out = []
        for first in range(0, groups, _PIECE):
            read = {
                (group, half): load((row + 8 * half < m) & (col + 8 * group < n), address + pitch * (8 * half) + 8 * size * group)
                for group in range(first, min(groups, first + _PIECE))
                for half in range(2)
            }
            out += [total[4 * g + 2 * half + i] + c for (g, half), pair in read.items() for i, c in enumerate(pair)]
        return tuple(out)

    @unrolled(tied="total", emulate=lambda *args: Held(np.array(sums(*args), np.float32)))
    def add_rows(total: Fragment, address: u64, pitch: u64, row: u32, m: u32, col: u32, n: u32) -> Fragment:
        """ld.global, add.f32 - total += C, two columns at a time.

        PTX:       ISA 9.0, "ld", "add"
        Scope:     thread
        Args:      total    float32 fragment of 64 x block_n
                   address  u64  of this lane's first element in C
                   pitch    u64  bytes of a row of C, which has whole pairs of columns
                   row, m   u32  this lane's first row (the second is 8 lower), and the rows of C
                   col, n   u32  this lane's first column, and the columns of C
        Returns:   total
        Lanes:     layouts.lanes.WGMMA_ACCUMULATOR
        Emulates:  exactly
        """
        return sums(total, address, pitch, row, m, col, n)

    return add_rows


def load_one_for(dtype: str) -> Callable[..., Any]:
    """What loads one element of C as float32 where a condition holds; else 0: `load(condition, address)`, for the bodies of operations."""
    if dtype == "float32":
        return lambda condition, address: convert.bits_to_f32(memory.load_global_u32_if(condition, address))
    widen = convert.bf16x2_to_f32x2 if dtype == "bfloat16" else convert.f16x2_to_f32x2
    return lambda condition, address: widen(memory.load_global_u16_if(condition, address))[0]


def add_columns_for(dtype: str) -> Callable[..., Any]:
    """The operation that adds C of this type to the sums of a transposed tile."""
    load, size = load_one_for(dtype), 4 if dtype == "float32" else 2

    def sums(total: Any, address: Any, pitch: Any, token: Any, m: Any, row: Any, n: Any) -> tuple[Any, ...]:
        read = []
        for i in range(len(total)):
            column, lower = 8 * (i // 4) + i % 2, 8 * (i % 4 // 2)
            read.append(load((token + column < m) & (row + lower < n), address + pitch * column + size * lower))
        return tuple(total[i] + c for i, c in enumerate(read))

    @unrolled(tied="total", emulate=lambda *args: Held(np.array(sums(*args), np.float32)))
    def add_columns(total: Fragment, address: u64, pitch: u64, token: u32, m: u32, row: u32, n: u32) -> Fragment:
        """ld.global, add.f32 - total += C, whose rows are the tile's columns.

        PTX:       ISA 9.0, "ld", "add"
        Scope:     thread
        Args:      total     float32 fragment of 64 x block_m
                   address   u64  of this lane's first element: C[token, row]
                   pitch     u64  bytes of a row of C
                   token, m  u32  this lane's first token, and the tokens
                   row, n    u32  this lane's first weight row, and how many there are
        Returns:   total
        Lanes:     layouts.lanes.wgmma_accumulator
        Emulates:  exactly
        """
        return sums(total, address, pitch, token, m, row, n)

    return add_columns


def load_element_for(dtype: str) -> Callable[..., Any]:
    """The operation that loads one element of C."""
    load = load_one_for(dtype)

    @unrolled(emulate=lambda condition, address: Held(np.array([load(condition, address)], np.float32)))
    def load_element(condition: bool, address: u64) -> Fragment(1):
        """ld.global - an element of C as float32 where `condition` holds, without a branch; else 0.

        PTX:       ISA 9.0, "ld"
        Scope:     thread
        Args:      condition  bool
                   address    u64
        Returns:   a fragment of one
        Emulates:  exactly
        """
        return (load(condition, address),)

    return load_element
