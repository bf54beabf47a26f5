"""What a warp of `sm90_int4_gemv` does with 16 rows or more of a record: load, unpack, multiply, promote."""

from collections.abc import Callable
from typing import Any

from ..integers import u32, u64
from ..layouts.int4.stream import ROWS
from ..ptx import Fragment, Registers, convert, cp_async, fragment, matrix, memory, mma, select, unrolled
from .int4_spec import Int4Plan
from .int4_stage import Unpack, decode_pair_for
from .sm90_int4_gemv_rules import held


class Strip(Unpack):
    """16 rows of a record in a warp's registers, as they came from memory: Python that runs once, at compile time, or in the emulator."""

    def loaded(self, codes: Any, rest: Any, is_there: Any) -> tuple[Any, ...]:
        """Registers of a strip: eight words of codes, then scales and zero points, a group each.

        codes, rest  addresses of the lane's first 16 bytes of codes, and of its strip's first pair of rows, from the record's start
        """
        words: list[Any] = [w for half in (0, 1) for w in memory.load_global_v4_once(codes + 2048 * half)]
        start, pair = rest
        size, record = self.record.scale_bytes, self.record
        for group in range(record.groups):
            at = start + (record.scales_at + group * (ROWS * size)) + pair * (2 * size)
            if size == 1:
                words.append(memory.load_global_u16_if(is_there, at))
            else:
                words.extend(memory.load_global_u32_if(is_there, at + 4 * i) for i in range(size // 2))
        if self.plan.zeros != "none":
            first = start + record.zeros_at + pair * 2
            words.extend(memory.load_global_u16_if(is_there, first + group * ROWS) for group in range(record.groups))
        return tuple(words)

    def scales_of(self, words: Any) -> list[tuple[Any, Any]]:
        """The scales of this lane's two rows, a group each."""
        if self.record.scale_bytes == 4:
            return [(convert.bits_to_f32(words[8 + 2 * g]), convert.bits_to_f32(words[9 + 2 * g])) for g in range(self.record.groups)]
        decode = decode_pair_for(self.plan.scale_dtype)
        return [decode(words[8 + g]) for g in range(self.record.groups)]

    def constants_of(self, words: Any) -> list[tuple[Any, Any]]:
        """What takes the zero points of this lane's two rows off, a group each."""
        groups = self.record.groups
        if self.plan.zeros == "none":
            return [self._constants(self.zero_code, self.zero_code, None)] * groups
        pairs = [words[len(words) - groups + g] for g in range(groups)]
        return [self._constants(p & 255, p >> 8, None) for p in pairs]

    def fragment(self, words: Any, step: int, constants: list[tuple[Any, Any]]) -> Any:
        """The four registers of one step of K."""
        return self._wide(words[step], *constants[self.group_of(step)])


def load_for(plan: Int4Plan) -> Callable[..., Any]:
    """The operation `load(base, codes, pair, is_there)`: this lane's share of the tile's rows of a record."""
    strips, strip = plan.block_n // 16, Strip(plan)

    @unrolled
    def load(base: u64, codes: u32, pair: u32, is_there: bool) -> Registers(strips * held(plan)):  # type: ignore[valid-type]
        """ld.global.nc.v4, ld.global - codes, scales and zero points of a record's rows, 16 after 16.

        PTX:       ISA 9.0, "ld.global.nc"
        Scope:     thread
        Args:      base      u64   global address of the record
                   codes     u32   bytes from there to this lane's first 16
                   pair      u32   of the 32 pairs of rows, this lane's first
                   is_there  bool  true; what is not read by `nc` is read under a predicate
        Returns:   u32 registers
        Lanes:     layouts.int4.stream
        Emulates:  exactly
        """
        out: tuple[Any, ...] = ()
        for s in range(strips):
            out = (*out, *strip.loaded(base + (codes + 512 * s), (base, pair + 8 * s), is_there))
        return out

    return load


@unrolled
def copy_tokens(dst: u32, src: u64, pitch: u32, lane: u32, column: u32, row_bytes: u32, m: u32) -> None:
    """cp.async.cg.shared.global - begin to copy a record's 128 columns of eight tokens: two blocks of eight rows of 128 bytes, swizzled.

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
    for i in range(4):
        block, row, chunk = i // 2, lane // 8 + 4 * (i % 2), lane % 8
        at = column + (128 * block) + chunk * 16
        # rows are of whole 16 bytes
        is_there = (row < m) & (at < row_bytes)
        nbytes = select(is_there, u32(16), u32(0))
        address = src + u64(select(is_there, row, u32(0)) * pitch + select(is_there, at, u32(0)))
        cp_async.copy_16_zfill(dst + 1024 * block + row * 128 + ((chunk ^ row) << 4), address, nbytes)


def multiply_for(plan: Int4Plan) -> Callable[..., Any]:
    """The operation `multiply(total, words, tokens)`: a record's products, promoted."""
    strips, strip, each = plan.block_n // 16, Strip(plan), held(plan)
    tile = mma.tile_for(plan.a_dtype, strips, 1)
    steps = 128 // strip.steps

    @unrolled(tied="total")
    def multiply(total: Fragment(4 * strips), words: Registers(strips * each), tokens: u32) -> Fragment:  # type: ignore[valid-type]
        """mma.sync.aligned - total += W @ A.T * scales over a record, W unpacked in registers.

        PTX:       ISA 9.0, "mma", "ldmatrix"; sm_80+
        Scope:     warp
        Args:      total   float32 fragment of block_n x 8
                   words   u32 registers of `load_for`
                   tokens  u32  shared address of this lane's row and chunk of the record's first two steps
        Returns:   total
        Lanes:     layouts.lanes.MMA_A, MMA_B, MMA_ACCUMULATOR
        Emulates:  exactly
        """
        rows = [tuple(words[s * each + i] for i in range(each)) for s in range(strips)]
        constants, scales = [strip.constants_of(row) for row in rows], [strip.scales_of(row) for row in rows]
        of_tokens: Any = None
        for group in range(plan.record.groups):
            acc = fragment.zero(4 * strips)
            for step in range(group * plan.group // steps, (group + 1) * plan.group // steps):
                if step % 2 == 0:
                    # four chunks of 16 bytes: bit 6 of the address tells the block's halves apart
                    of_tokens = matrix.ldmatrix_x4((tokens + 1024 * (step // 4)) ^ 64 * (step // 2 % 2))
                a = tuple(r for row, known in zip(rows, constants) for r in strip.fragment(row, step, known))
                acc = tile(acc, a, (of_tokens[step % 2 * 2], of_tokens[step % 2 * 2 + 1]))
            total = fragment.promote(total, acc, tuple(x for pairs in scales for x in pairs[group]))
        return total

    return multiply
