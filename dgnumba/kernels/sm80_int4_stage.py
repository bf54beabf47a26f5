"""What a warp does with one stage of 4-bit weights by mma.sync: unpack in registers, multiply, promote. `int4_stage` is the same for wgmma."""

from collections.abc import Callable, Iterator
from typing import Any

from ..integers import u32
from ..ptx import Fragment, Registers, convert, fragment, matrix, memory, unrolled
from .int4_spec import Int4Plan
from .int4_stage import Multiply
from .sm80_parts import multiply_for


def _load_e4m3_pair(at: Any) -> tuple[Any, Any]:
    """Two e4m3 as float32, on GPUs that have no instruction for it too."""
    return tuple(convert.f16x2_to_f32x2(convert.e4m3x4_to_f16x4(memory.load_shared_u16(at))[0]))  # type: ignore[return-value]


class MultiplySync(Multiply):
    """The products of a record by mma.sync. Its accumulator of 16 rows by n tokens is a warp's part of wgmma's of 64."""

    def __init__(self, plan: Int4Plan) -> None:
        super().__init__(plan)
        tiles = plan.block_m // 8
        self.multiply = multiply_for(plan.a_dtype, 1, tiles, widen=plan.widen)
        self.zero = fragment.zero_u32 if self.is_integer else fragment.zero
        self.load = matrix.load_tiles_for(tiles // 2, 16 * 128) if tiles > 1 else matrix.ldmatrix_x2
        if plan.scale_dtype == "float8_e4m3fn":
            self.take.load_pair = _load_e4m3_pair

    def steps_with_tokens(self, record: int, tokens: Any) -> Iterator[tuple[int, Any]]:
        """Each step of a record, and the fragments of its tokens."""
        per_block = self.take.steps // self.blocks
        for step in range(self.take.steps):
            # a step's two chunks differ from the first one's in bits 5 and 6 of the address
            at = tokens + (record * self.blocks + step // per_block) * (self.plan.block_m * 128)
            yield step, self.load(at ^ 32 * (step % per_block))

    def products(self, record: int, frags: list[Any], tokens: Any) -> list[Any]:
        """An accumulator for each group, then, with float zero points, one for the sum of the tokens."""
        groups = self.plan.record.groups
        accs = [self.zero(self.plan.block_m // 2) for _ in range(groups * (1 + self.has_sums))]
        for step, held in self.steps_with_tokens(record, tokens):
            for i in range(len(accs)):
                if step in self.steps_of(i % groups):
                    half = self.halves[i % groups % len(self.halves)]
                    frag = frags[step] if i < groups else self.ones
                    accs[i] = self.multiply(accs[i], self.masked(frag, half), held)
        return accs


def stage_for(plan: Int4Plan) -> Callable[..., Any]:
    """The operation `stage(total, base, tid, tokens, scales, tables)`: a stage's products, added to `total`."""
    multiply = MultiplySync(plan)
    take, nbytes = multiply.take, plan.record.nbytes
    load_tokens = fragment.load_token_scales_for(plan.block_m)
    if plan.is_whole:
        return _whole_stage_for(plan, multiply)

    @unrolled(tied="total")
    def stage(total: Fragment, base: u32, tid: u32, tokens: u32, scales: u32, tables: u32) -> Fragment:
        """mma.sync.aligned - total += W @ A.T * scales over a stage's records, W unpacked in registers.

        PTX:       ISA 9.0, "mma", "ldmatrix"; sm_80+
        Scope:     warp
        Args:      total   float32 fragment of 16 x block_m
                   base    u32  shared address of the stage's first record of this warp's 64 rows
                   tid     u32  thread of the four warps that share the record
                   tokens  u32  shared address of this lane's row and chunk of the stage's first step of tokens
                   scales  u32  shared address of this lane's first pair of token scales
                   tables  u32  shared address of the tables of e4m3 for zero points
        Returns:   total
        Lanes:     layouts.lanes.wgmma_accumulator, a warp's part
        Emulates:  exactly
        """
        for record in range(plan.records):
            here = base + record * nbytes
            frags = take.fragments(here, tid, tables)
            rows = take.scales(here, tid // 4)
            rests = take.rests(here, tid // 4) if multiply.has_sums else []
            columns = load_tokens(scales + record * (plan.block_m * 4)) if multiply.is_scaled else None
            total = multiply.promoted(total, multiply.products(record, frags, tokens), rows, rests, columns)
        return total

    return stage


def _whole_stage_for(plan: Int4Plan, multiply: MultiplySync) -> Callable[..., Any]:
    """`stage` where one scale serves all of K: the sums stay integers."""

    @unrolled(tied="total")
    def stage_whole(total: Registers, base: u32, tid: u32, tokens: u32, scales: u32, tables: u32) -> Registers:
        """mma.sync.aligned - total += W @ A.T over a stage's records, in int32, W unpacked in registers.

        PTX:       ISA 9.0, "mma", "ldmatrix"; sm_80+
        Scope:     warp
        Args:      total   u32 registers: int32 sums of 16 x block_m
                   base    u32  shared address of the stage's first record of this warp's 64 rows
                   tid     u32  thread of the four warps that share the record
                   tokens  u32  shared address of this lane's row and chunk of the stage's first step of tokens
                   scales, tables  u32  not used
        Returns:   total
        Lanes:     layouts.lanes.wgmma_accumulator, a warp's part
        Emulates:  exactly
        """
        for record in range(plan.records):
            frags = multiply.take.fragments(base + record * plan.record.nbytes, tid, tables)
            for step, held in multiply.steps_with_tokens(record, tokens):
                total = multiply.multiply(total, frags[step], held)
        return total

    return stage_whole
