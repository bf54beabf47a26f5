"""What a warp of `sm90_int4_gemv` does with 16 rows or more of a record: load, unpack, multiply, promote."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ..integers import u32, u64
from ..layouts.int4.stream import ROWS
from ..ptx import Fragment, Registers, convert, cp_async, fragment, matrix, memory, mma, packed, select, unpack, unrolled
from .int4_spec import Int4Plan
from .int4_stage import Multiply, Unpack, decode_pair_for
from .sm90_int4_gemv_rules import held, held_of_strip, token_bytes

MINUS_8 = (0xE408E408, 0xD480D480)
"""Twice the float16 -(1024 + 8), and twice -(64 + 8): the zero point of int4, for `unpack.u4x8_to_f16x8`."""


class Strip(Unpack):
    """16 rows of a record in a warp's registers, as they came from memory: Python that runs once, at compile time, or in the emulator.

    Where `Unpack` has a record's address in shared memory, here are its words.
    """

    def __init__(self, plan: Int4Plan) -> None:
        super().__init__(plan)
        self.is_widened, self.is_signs = plan.a_dtype == "float8_e4m3fn", plan.record.order == "signs"
        # "signs" are float16 here, not e4m3; of integers that are given out as they are `bits_for` takes the sixteen off
        self.power = 0 if self.is_signs else -4 if plan.is_sixteenfold else plan.operand_power

    def loaded(self, codes: Any, rest: Any, is_there: Any) -> tuple[Any, ...]:
        """Registers of a strip: eight words of codes, then scales, but where one serves all of K, and zero points, a group each.

        codes, rest  addresses of the lane's first 16 bytes of codes, and of its strip's first pair of rows, from the record's start
        """
        words: list[Any] = [w for half in (0, 1) for w in memory.load_global_v4_once(codes + 2048 * half)]
        start, pair = rest
        size, record = self.record.scale_bytes, self.record
        for group in range(0 if self.plan.is_whole else record.groups):
            at = start + (record.scales_at + group * (ROWS * size)) + pair * (2 * size)
            if size == 1:
                words.append(memory.load_global_u16_if(is_there, at))
            else:
                words.extend(memory.load_global_u32_if(is_there, at + 4 * i) for i in range(size // 2))
        if self.plan.zeros != "none":
            first = start + record.zeros_at + pair * 2
            words.extend(memory.load_global_u16_if(is_there, first + group * ROWS) for group in range(record.groups))
        return tuple(words)

    def scales(self, base: Any, pair: Any = None) -> list[tuple[Any, Any]]:
        """The scales of this lane's two rows, a group each, of the strip's words `base`."""
        if self.record.scale_bytes == 4:
            pairs = [(convert.bits_to_f32(base[8 + 2 * g]), convert.bits_to_f32(base[9 + 2 * g])) for g in range(self.record.groups)]
        else:
            decode = decode_pair_for(self.plan.scale_dtype)
            pairs = [decode(base[8 + g]) for g in range(self.record.groups)]
        return [self.of_operands(pair) for pair in pairs]

    def zero_points(self, base: Any, pair: Any = None) -> list[tuple[Any, Any]]:
        """The zero points of this lane's two rows, a group each, of the strip's words `base`."""
        groups = self.record.groups
        if self.plan.zeros == "none":
            return [(self.zero_code, self.zero_code)] * groups
        return [(p & 255, p >> 8) for p in (base[len(base) - groups + g] for g in range(groups))]

    def constants(self, base: Any, pair: Any, tables: Any) -> list[tuple[Any, Any]]:
        """As of `Unpack`."""
        return [MINUS_8] * self.record.groups if self.is_signs else super().constants(base, pair, tables)

    def fragment(self, words: Any, step: int, known: tuple[Any, Any]) -> Any:
        """The four registers of one step of K, by the constants of its group; widened, four of each half of its columns."""
        if self.is_wide:
            return self._wide(words[step], *known)
        both = words[2 * step], words[2 * step + 1]
        if not self.is_widened:
            return self._narrow(*both, *known)
        if self.is_signs:
            rows = [self._of_signs(word, known) for word in both]
        else:
            rows = [self._of_table(word, table) for word, table in zip(both, known)]
        return tuple(rows[r % 2][r // 2] for r in range(8))

    def _of_signs(self, word: Any, known: tuple[Any, Any]) -> tuple[Any, ...]:
        """Four float16 registers of a row: columns 4p + {0, 2} and 4p + {1, 3}, then those 16 further on."""
        r0, r2, r1, r3 = unpack.u4x8_to_f16x8(unpack.signs4x8_to_u4x8(word), *known)
        return r0, r1, r2, r3

    def _of_table(self, word: Any, table: Any) -> tuple[Any, ...]:
        """The same of columns 4p + {0, 1} and 4p + {2, 3}."""
        return tuple(pair for codes in unpack.u4x8_by_table(word, table) for pair in convert.cvt_e4m3x4_to_f16x4(codes))

    def token(self, codes: Any) -> Any:
        """The e4m3 of four columns of a token, as two float16 registers of columns as those of a row."""
        return convert.cvt_e4m3x4_to_f16x4(packed.permute_bytes(codes, codes, 0x3120) if self.is_signs else codes)


def load_for(plan: Int4Plan) -> Callable[..., Any]:
    """The operation `load(base, codes, pair, scales, columns, is_there)`: this lane's share of the tile's rows of a record."""
    strips, strip = plan.block_n // 16, Strip(plan)

    @unrolled
    def load(base: u64, codes: u32, pair: u32, scales: u64, columns: Registers(2), is_there: bool) -> Registers(held(plan)):  # type: ignore[valid-type]
        """ld.global.nc.v4, ld.global - codes, scales and zero points of a record's rows, 16 after 16; then the scales of tokens.

        PTX:       ISA 9.0, "ld.global.nc"
        Scope:     thread
        Args:      base      u64  global address of the record
                   codes     u32  bytes from there to this lane's first 16
                   pair      u32  of the 32 pairs of rows, this lane's first
                   scales    u64  global address of the tokens' scales of the record, where they have some for each 1x128; else not used
                   columns   two u32  bytes from there to those of this lane's tokens
                   is_there  bool  true; what is not read by `nc` is read under a predicate
        Returns:   u32 registers
        Lanes:     layouts.int4.stream; MMA_ACCUMULATOR
        Emulates:  exactly
        """
        out: tuple[Any, ...] = ()
        for s in range(strips):
            out = (*out, *strip.loaded(base + (codes + 512 * s), (base, pair + 8 * s), is_there))
        if plan.has_block_scales:
            out = (*out, *(memory.load_global_u32_if(is_there, scales + column) for column in columns))
        return out

    return load


def copy_tokens_for(plan: Int4Plan) -> Callable[..., Any]:
    """The operation `copy_tokens(dst, src, pitch, lane, column, row_bytes, m)`: a record's 128 columns of eight tokens."""
    blocks = token_bytes(plan) // 1024

    @unrolled
    def copy_tokens(dst: u32, src: u64, pitch: u32, lane: u32, column: u32, row_bytes: u32, m: u32) -> None:
        """cp.async.cg.shared.global - begin to copy a record's 128 columns of eight tokens: blocks of eight rows of 128 bytes, swizzled.

        Columns past a row's end and tokens past the last are zeros, of which nothing is read.

        PTX:       ISA 9.0, "cp.async"; sm_80+
        Scope:     thread; a warp makes one copy
        Args:      dst        u32  shared address, 128-byte aligned
                   src        u64  global address of the tokens
                   pitch      u32  bytes of a token
                   lane       u32
                   column     u32  byte of a token where the record begins
                   row_bytes  u32  of a token
                   m          u32  tokens
        Returns:   nothing
        Async:     as `cp_async.copy_16`
        Emulates:  exactly
        """
        for i in range(2 * blocks):
            block, row, chunk = i // 2, lane // 8 + 4 * (i % 2), lane % 8
            at = column + (128 * block) + chunk * 16
            # rows are of whole 16 bytes
            is_there = (row < m) & (at < row_bytes)
            nbytes = select(is_there, u32(16), u32(0))
            address = src + u64(select(is_there, row, u32(0)) * pitch + select(is_there, at, u32(0)))
            cp_async.copy_16_zfill(dst + 1024 * block + row * 128 + ((chunk ^ row) << 4), address, nbytes)

    return copy_tokens


class Strips(Multiply):
    """The products of a record's strips and their promotion: Python that runs once, at compile time, or in the emulator.

    NOTE: e4m3 is multiplied as float16, two steps of 16 columns: Hopper has no mma.sync of e4m3. ptxas would convert both operands, but sums each
    instruction apart, and adds 16 times a record (its SASS for sm_90a); and conversions are slow: codes without zero points do without them.
    """

    def __init__(self, plan: Int4Plan) -> None:
        super().__init__(plan)
        self.count, self.strip, self.each = plan.block_n // 16, Strip(plan), held_of_strip(plan)
        self.tile = mma.tile_for("float16" if self.strip.is_widened else plan.a_dtype, self.count, 1)
        self.zero = fragment.zero_s32 if self.is_integer else fragment.zero

    def rows_of(self, words: Any) -> list[tuple[Any, ...]]:
        """The words of each strip."""
        return [tuple(words[s * self.each + i] for i in range(self.each)) for s in range(self.count)]

    def tokens_for(self, tokens: Any) -> Callable[[int], Any]:
        """What gives the fragments of a step's tokens: two registers, of e4m3 two for each half of the step's columns."""

        @lru_cache(None)
        def pair(first: int) -> Any:
            # four chunks of 16 bytes: bit 6 of the address tells the block's halves apart
            return matrix.ldmatrix_x4((tokens + 1024 * (first // 2)) ^ 64 * (first % 2))

        @lru_cache(None)
        def of_step(step: int) -> Any:
            both = pair(step // 2)
            found = both[step % 2 * 2], both[step % 2 * 2 + 1]
            return [self.strip.token(codes) for codes in found] if self.strip.is_widened else found

        return of_step

    def products(self, acc: Any, group: int, rows: list[Any], constants: list[Any], of_step: Callable[[int], Any]) -> Any:
        """acc += a group's products."""
        half = self.halves[group % len(self.halves)]
        for step in self.steps_of(group):
            frags = [self.strip.fragment(row, step, known[group]) for row, known in zip(rows, constants)]
            if self.strip.is_widened:
                acc = self.widened(acc, frags, of_step(step), (0, 1) if half is None else (half,))
            else:
                acc = self.tile(acc, tuple(register for frag in frags for register in self.masked(frag, half)), of_step(step))
        return acc

    def widened(self, acc: Any, frags: list[Any], tokens: Any, halves: tuple[int, ...]) -> Any:
        """acc += the products of these halves of a step, in float16. Four columns of a lane are two pairs of those of 16, 8 apart, in rows and
        tokens alike, which does not change the sum.
        """
        for half in halves:
            acc = self.tile(acc, tuple(register for frag in frags for register in frag[4 * half : 4 * half + 4]), tuple(tokens[half]))
        return acc

    def promote(self, total: Any, acc: Any, rows: tuple[Any, ...], columns: Any) -> Any:
        """total += scales * acc."""
        if self.is_integer:
            return fragment.promote_s32(total, acc, rows)
        return fragment.promote_both(total, acc, columns, rows) if self.is_scaled else fragment.promote(total, acc, rows)


def multiply_for(plan: Int4Plan) -> Callable[..., Any]:
    """The operation `multiply(total, words, tokens, tables)`: a record's products, promoted; integers of all of K are only added."""
    strips, kind = Strips(plan), Registers if plan.is_whole else Fragment

    @unrolled(tied="total")
    def multiply(total: kind(4 * strips.count), words: Registers(held(plan)), tokens: u32, tables: u32) -> kind:  # type: ignore[valid-type]
        """mma.sync.aligned - total += W @ A.T * scales over a record, W unpacked in registers.

        PTX:       ISA 9.0, "mma", "ldmatrix"; sm_80+, of e4m3 sm_89+
        Scope:     warp
        Args:      total   float32 fragment of block_n x 8; int32 sums where one scale serves all of K, `is_sixteenfold` ones sixteen times as large
                   words   u32 registers of `load_for`
                   tokens  u32  shared address of this lane's row and chunk of the record's first two steps
                   tables  u32  shared address of the tables of e4m3
        Returns:   total
        Lanes:     layouts.lanes.MMA_A, MMA_B, MMA_ACCUMULATOR
        Emulates:  exactly
        """
        rows = strips.rows_of(words)
        constants = [strips.strip.constants(row, None, tables) for row in rows]
        of_tokens = strips.tokens_for(tokens)
        if plan.is_whole:
            return strips.products(total, 0, rows, constants, of_tokens)
        scales = [strips.strip.scales(row) for row in rows]
        columns = tuple(convert.bits_to_f32(words[len(words) - 2 + i]) for i in range(2)) if plan.has_block_scales else None
        for group in range(plan.record.groups):
            acc = strips.products(strips.zero(4 * strips.count), group, rows, constants, of_tokens)
            total = strips.promote(total, acc, tuple(x for pairs in scales for x in pairs[group]), columns)
        return total

    return multiply


def bits_for(plan: Int4Plan) -> Callable[..., Any]:
    """The operation `bits(total)`: a warp's sums as they are added up, float32 or int32."""
    if not plan.is_whole:
        return fragment.bits  # type: ignore[no-any-return]
    count = 4 if plan.is_sixteenfold else 0

    @unrolled
    def bits(total: Registers(plan.block_n // 4)) -> Registers(plan.block_n // 4):  # type: ignore[valid-type]
        """shr.s32 - int32 sums of codes, no longer sixteen times as large.

        PTX:       ISA 9.0, "shr"
        Scope:     thread
        Args:      total  u32 registers
        Returns:   as many
        Emulates:  exactly
        """
        return tuple(fragment.shift_s32(total, count)) if count else tuple(total)

    return bits
