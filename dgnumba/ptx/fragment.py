"""Work on the registers of a fragment, one thread's share of a tile: loops over registers that are unrolled at compile time."""

from collections.abc import Callable
from math import gcd
from typing import Any

import numpy as np

from .. import _numba
from ..arithmetic import fma32
from ..emu import Fragment as Held
from ..layouts.tiles import column_scales
from . import memory, packed
from ._declare import Fragment, Imm, Registers, f32, select, u32, unrolled
from .convert import f16x2_to_f32x2, f32_to_bits, fma, s32_to_f32, shr_s32


@unrolled(emulate=lambda count: Held(np.zeros(count, np.float32)))
def zero(count: Imm) -> Fragment(lambda sizes: sizes["count"]):
    """zero - `count` registers of 0.0.

    PTX:       mov.f32
    Scope:     thread
    Args:      count  constant
    Returns:   a fragment
    Emulates:  exactly
    """
    return (0.0,) * count


@unrolled
def zero_u32(count: Imm) -> Registers(lambda sizes: sizes["count"]):
    """zero - `count` registers of 0.

    PTX:       mov.b32
    Scope:     thread
    Args:      count  constant
    Returns:   u32 registers
    Emulates:  exactly
    """
    return (u32(0),) * count


@unrolled(emulate=lambda count: Held(np.zeros(count, np.uint32)))
def zero_s32(count: Imm) -> Registers(lambda sizes: sizes["count"]):
    """zero_s32 - `count` int32 accumulators of wgmma, 0 each.

    PTX:       mov.b32
    Scope:     thread
    Args:      count  constant
    Returns:   u32 registers
    Emulates:  exactly; as accumulators, which a wgmma may use after a fence only
    """
    return (u32(0),) * count


@unrolled(emulate=lambda count: Held(np.full(count, np.nan, np.float32)))
def undefined(count: Imm) -> Fragment(lambda sizes: sizes["count"]):
    """undefined - `count` registers that hold nothing yet: for a wgmma that overwrites them. No instruction.

    PTX:       none
    Scope:     thread
    Args:      count  constant
    Returns:   a fragment
    Emulates:  as NaN
    """
    return tuple(_numba.undefined_register("f32") for _ in range(count))


@unrolled(emulate=lambda count: Held(np.full(count, 0x80000000, np.uint32)))
def undefined_s32(count: Imm) -> Registers(lambda sizes: sizes["count"]):
    """undefined_s32 - `undefined` for int32 accumulators.

    PTX:       none
    Scope:     thread
    Args:      count  constant
    Returns:   u32 registers
    Emulates:  as the least int32
    """
    return tuple(_numba.undefined_register("u32") for _ in range(count))


def _promote(total: Any, acc: Any, scales: Any) -> Any:
    pairs = np.array([float(s) for s in scales], np.float32).reshape(-1, 2)
    by_group = np.repeat(pairs, len(acc) // 4 // len(pairs), axis=0)
    return Held(fma32(np.repeat(by_group, 2, axis=1).reshape(-1), acc.values, total.values))


@unrolled(tied="total", emulate=_promote)
def promote(total: Fragment, acc: Fragment, scales: Fragment) -> Fragment:
    """fma.rn.f32 - total += scale * acc, in float32, register by register.

    PTX:       ISA 9.0, "fma"
    Scope:     thread
    Args:      total   fragment of a float32 sum
               acc     fragment, as long: what the tensor core summed over one block of K
               scales  pairs (rows r, rows r + 8), one for each of the equal column segments of the tile
    Returns:   total
    Lanes:     layouts.lanes.WGMMA_ACCUMULATOR, both
    Emulates:  exactly
    """
    per_segment = len(acc) // (len(scales) // 2)
    return tuple(fma(scales[2 * (i // per_segment) + i % 4 // 2], acc[i], total[i]) for i in range(len(acc)))


def load_column_scales_for(block_n: int) -> Callable[..., Any]:
    """The operation `load(address)`: B's scales of one K block, 16 bytes apart in shared memory, one register each."""
    count = column_scales(block_n)

    @unrolled(emulate=lambda address: Held(np.array([memory.load_shared_f32(address + 16 * j) for j in range(count)], np.float32)))
    def load(address: u32) -> Fragment(count):
        """ld.shared.f32 - `count` float32, 16 bytes apart.

        PTX:       ISA 9.0, "ld"
        Scope:     thread
        Args:      address  u32  shared address of the first
        Returns:   a fragment of `column_scales(block_n)`
        Emulates:  exactly
        """
        return tuple(memory.load_shared_f32(address + 16 * j) for j in range(count))

    return load


def segment_scales_for(block_n: int) -> Callable[..., Any]:
    """The operation `products(row0, row8, columns, offset)` that gives `promote` its scales for a tile of `block_n` columns.

    A tile that begins `offset` columns into a 128-column block is cut into segments of gcd(block_n, 128) columns, each inside one block.
    """
    step = 128 if 128 % block_n == 0 else gcd(block_n, 128)
    segments = max(1, block_n // step)

    def choose(columns: Any, offset: Any, begin: int) -> Any:
        first, last = begin // 128, (begin + 128 - step) // 128
        chosen = columns[last]
        for block in range(last - 1, first - 1, -1):
            chosen = select(offset < 128 * (block + 1) - begin, columns[block], chosen)
        return chosen

    def products_of(row0: Any, row8: Any, columns: Any, offset: Any) -> tuple[Any, ...]:
        chosen = [choose(columns, offset, j * step) for j in range(segments)]
        return tuple(product for c in chosen for product in (row0 * c, row8 * c))

    @unrolled(emulate=lambda row0, row8, columns, offset: Held(np.array(products_of(row0, row8, columns, offset), np.float32)))
    def products(row0: f32, row8: f32, columns: Fragment, offset: u32) -> Fragment(2 * segments):
        """mul.rn.f32 - A's scales of rows r and r + 8 times B's scale of each column segment.

        PTX:       ISA 9.0, "mul", "selp"
        Scope:     thread
        Args:      row0, row8  float32  A's scales
                   columns     fragment of `column_scales(block_n)`: B's scales of the blocks the tile touches
                   offset      u32  column of the tile's first column in its 128-column block
        Returns:   pairs, one for each segment
        Emulates:  exactly
        """
        return products_of(row0, row8, columns, offset)

    return products


def load_token_scales_for(tokens: int, pitch: int = 4) -> Callable[..., Any]:
    """The operation `load(address)`: the scales of this lane's columns of an accumulator whose columns are tokens, two for each group of eight.

    `pitch` bytes lie from a token's scale to the next one's.
    """

    def values(address: Any) -> tuple[Any, ...]:
        if pitch != 4:
            return tuple(memory.load_shared_f32(address + pitch * (8 * group + i)) for group in range(tokens // 8) for i in range(2))
        return tuple(value for group in range(tokens // 8) for value in memory.load_shared_v2_f32(address + 32 * group))

    @unrolled(emulate=lambda address: Held(np.array(values(address), np.float32)))
    def load(address: u32) -> Fragment(tokens // 4):
        """ld.shared.v2.f32 - two float32 of every eight; ld.shared.f32 where they are no neighbours.

        PTX:       ISA 9.0, "ld"
        Scope:     thread
        Args:      address  u32  shared address of this lane's first pair: columns 2 (lane % 4)
        Returns:   a fragment of tokens / 4
        Lanes:     layouts.lanes.wgmma_accumulator: registers 4j + {0, 1} and 4j + {2, 3} take pair j
        Emulates:  exactly
        """
        return values(address)

    return load


def _promote_columns(total: Any, acc: Any, columns: Any, row: Any) -> Any:
    pairs = np.asarray(columns.values, np.float32).reshape(-1, 1, 2) * np.float32(row)
    return Held(fma32(np.repeat(pairs, 2, axis=1).reshape(-1), acc.values, total.values))


@unrolled(tied="total", emulate=_promote_columns)
def promote_columns(total: Fragment, acc: Fragment, columns: Fragment, row: f32) -> Fragment:
    """mul.rn.f32, fma.rn.f32 - total += (columns * row) * acc: the promotion of a transposed tile, one scale a column, one for all rows.

    PTX:       ISA 9.0, "mul", "fma"
    Scope:     thread
    Args:      total    fragment of a float32 sum
               acc      fragment, as long: what the tensor core summed over one block of K
               columns  fragment of half as many: scales of this lane's columns (`load_token_scales_for`)
               row      float32  scale of all rows
    Returns:   total
    Lanes:     layouts.lanes.wgmma_accumulator
    Emulates:  exactly
    """
    scales = [c * row for c in columns]
    return tuple(fma(scales[2 * (i // 4) + i % 2], acc[i], total[i]) for i in range(len(acc)))


@unrolled(emulate=lambda registers, first, count: Held(registers.values[int(first) : int(first) + int(count)].copy()))
def part(registers: Fragment, first: Imm, count: Imm) -> Fragment(lambda sizes: sizes["count"]):
    """part - some of a fragment's registers, neighbours: of an accumulator those of some columns. No instruction.

    PTX:       none
    Scope:     thread
    Args:      registers  fragment
               first      constant: the first of them
               count      constant: how many
    Returns:   a fragment of `count`
    Emulates:  exactly
    """
    return tuple(registers[first : first + count])


@unrolled(emulate=lambda first, second: Held(np.concatenate([first.values, second.values])))
def join(first: Fragment, second: Fragment) -> Fragment(lambda sizes: sizes["first"] + sizes["second"]):
    """join - the registers of two fragments as one. No instruction.

    PTX:       none
    Scope:     thread
    Args:      first, second  fragments
    Returns:   a fragment as long as both
    Emulates:  exactly
    """
    return tuple(first) + tuple(second)


@unrolled(emulate=lambda registers: tuple(u32(int(x)) for x in registers.values.view(np.uint32)))
def bits(registers: Fragment) -> Registers(lambda sizes: sizes["registers"]):
    """mov.b32 - the bits of float32 registers.

    PTX:       ISA 9.0, "mov"
    Scope:     thread
    Args:      registers  fragment
    Returns:   as many u32
    Emulates:  exactly
    """
    return tuple(f32_to_bits(x) for x in registers)


def _pairs(values: Any) -> Any:
    return np.array([np.float32(v) for v in values], np.float32)


def _promote_both(total: Any, acc: Any, columns: Any, rows: Any) -> Any:
    products = _pairs(columns).reshape(1, -1, 1, 2) * _pairs(rows).reshape(-1, 1, 2, 1)
    return Held(fma32(products.reshape(-1), acc.values, total.values))


@unrolled(tied="total", emulate=_promote_both)
def promote_both(total: Fragment, acc: Fragment, columns: Fragment, rows: Fragment) -> Fragment:
    """mul.rn.f32, fma.rn.f32 - total += (columns * rows) * acc: the promotion of a tile with a scale a column and a scale a row.

    PTX:       ISA 9.0, "mul", "fma"
    Scope:     thread
    Args:      total    fragment of a float32 sum
               acc      fragment, as long: what the tensor core summed over one block of K
               columns  fragment of half as many for each pair of `rows`: scales of this lane's columns (`load_token_scales_for`)
               rows     pairs: scales of rows r and r + 8; one pair, or one for each of equal parts of the registers: other rows, the same columns
    Returns:   total
    Lanes:     layouts.lanes.wgmma_accumulator, or MMA_ACCUMULATOR part by part
    Emulates:  exactly
    """
    each = len(acc) // (len(rows) // 2)
    scales = [columns[2 * (i % each // 4) + i % 2] * rows[2 * (i // each) + i % 4 // 2] for i in range(len(acc))]
    return tuple(fma(scale, a, t) for scale, a, t in zip(scales, acc, total))


def _promote_s32(total: Any, acc: Any, rows: Any) -> Any:
    scales = np.repeat(np.repeat(_pairs(rows).reshape(-1, 1, 2), len(acc) // (2 * len(rows)), axis=1), 2)
    return Held(fma32(scales, acc.values.view(np.int32).astype(np.float32), total.values))


@unrolled(tied="total", emulate=_promote_s32)
def promote_s32(total: Fragment, acc: Registers, rows: Fragment) -> Fragment:
    """cvt.rn.f32.s32, fma.rn.f32 - total += rows * acc: the promotion of int32 sums, a scale a row.

    PTX:       ISA 9.0, "cvt", "fma"
    Scope:     thread
    Args:      total  fragment of a float32 sum
               acc    u32 registers, as many: int32 sums
               rows   pairs, as of `promote_both`
    Returns:   total
    Lanes:     as of `promote_both`
    Emulates:  exactly
    """
    each = len(acc) // (len(rows) // 2)
    return tuple(fma(rows[2 * (i // each) + i % 4 // 2], s32_to_f32(acc[i]), total[i]) for i in range(len(acc)))


def _shifted(acc: Any, count: Any) -> Any:
    return Held((acc.values.view(np.int32) >> np.int32(int(count))).view(np.uint32))


@unrolled(tied="acc", emulate=_shifted)
def shift_s32(acc: Registers, count: Imm) -> Registers:
    """shr.s32 - int32 sums over 2^count: of multiples of it, exactly.

    PTX:       ISA 9.0, "shr"
    Scope:     thread
    Args:      acc    u32 registers: int32 sums
               count  constant, 0 to 31
    Returns:   acc
    Emulates:  exactly
    """
    return tuple(shr_s32(x, count) for x in acc)


def _words(registers: Any) -> Any:
    return registers.values if isinstance(registers, Held) else np.array([int(x) for x in registers], np.uint32)


def _promote_f16x2(total: Any, acc: Any, rows: Any) -> Any:
    return Held(packed.fma_pairs(_words(acc), np.tile(_words(rows), len(acc) // 2), _words(total)))


@unrolled(tied="total", emulate=_promote_f16x2)
def promote_f16x2(total: Registers, acc: Registers, rows: Registers(2)) -> Registers:
    """fma.rn.f16x2 - total += rows * acc in float16, two neighbours of a row in a register.

    PTX:       ISA 9.0, "fma"
    Scope:     thread
    Args:      total  u32 registers: a float16 sum
               acc    u32 registers, as many: what the tensor core summed over one group of K
               rows   the scale of row r twice in a register, and that of row r + 8
    Returns:   total
    Lanes:     layouts.lanes.wgmma_accumulator, two elements a register
    Emulates:  exactly
    """
    return tuple(packed.fma_f16x2(acc[i], rows[i % 2], total[i]) for i in range(len(acc)))


def _scaled_bits(pairs: Any, factor: Any) -> Any:
    halves = _words(pairs).view(np.float16)
    with np.errstate(over="ignore", invalid="ignore"):
        return tuple(u32(int(x)) for x in (halves.astype(np.float32) * np.float32(factor)).view(np.uint32))


@unrolled(emulate=_scaled_bits)
def scaled_f16x2_bits(pairs: Registers, factor: f32) -> Registers(lambda sizes: 2 * sizes["pairs"]):
    """cvt.f32.f16, mul.rn.f32 - float16 as float32, times a factor: their bits, in the order of float32 accumulators.

    PTX:       ISA 9.0, "cvt", "mul"
    Scope:     thread
    Args:      pairs   u32 registers: two float16 each
               factor  float32
    Returns:   u32, twice as many
    Lanes:     layouts.lanes.wgmma_accumulator
    Emulates:  exactly
    """
    return tuple(f32_to_bits(x * factor) for pair in pairs for x in f16x2_to_f32x2(pair))
