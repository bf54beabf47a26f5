"""The plan of a kernel with weights of 4 bits, and what its file provides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from ..device import Device
from ..dtypes import DTYPES
from ..int4_problem import Int4Problem
from ..layouts.int4.stream import COLUMNS, Record, Zeros, order_for
from ..layouts.smem import SmemMap
from ..xp import address
from .spec import Built

MOST_AT_ONCE = 128
"""Tokens whose sums of one record find registers beside their totals."""


@dataclass(frozen=True)
class Int4Plan:
    """Every choice that is frozen into a kernel. M, N and K are not: one binary serves them all.

    block_m, block_n   tokens and weight rows of a tile
    num_stages         slots of the ring in shared memory
    records            of 64 rows by 128 of K in a stage, for each 64 rows of the tile
    split              CTAs of a cluster that share a tile, each a range of K
    tail               CTAs of a cluster that share a tile of the last round, where there are too few for all multiprocessors; 1: none
    fold               scales are multiplied into the weights, which are rounded to A's type; sums then need none
    f16_sums           sums of a group, and of groups, are float16, the tensor core's own too
    quads              D is stored by fours of its columns, which lie where a store of 8 bytes may (`Int4Problem.d_has_quads`)
    widen              FP8 operands become float16 in the registers, where the tensor core lacks FP8
    pdl                as of `GemmPlan`
    the rest           as of `Int4Problem`
    """

    kernel: str
    block_m: int
    block_n: int
    num_stages: int
    records: int = 1
    split: int = 1
    a_dtype: str = "bfloat16"
    w_dtype: str = "int4"
    d_dtype: str = "bfloat16"
    group: int = 128
    scale_dtype: str = "float16"
    zeros: Zeros = "none"
    has_gate: bool = False
    with_bias: bool = False
    with_c: bool = False
    with_alpha: bool = False
    is_whole: bool = False
    a_by_row: bool = False
    widen: bool = False
    pdl: bool = False
    fold: bool = False
    tail: int = 1
    f16_sums: bool = False
    quads: bool = False

    @property
    def name(self) -> str:
        """A short name that says every choice: `16x128x256 s5 split2 bfloat16 int4_g128 float16`."""
        split = (
            f" split{self.split}" * (self.split > 1)
            + f" tail{self.tail}" * (self.tail > 1)
            + " widen" * self.widen
            + " fold" * self.fold
            + " f16sums" * self.f16_sums
            + " quads" * self.quads
        )
        zeros = f" {self.zeros[:3]}zero" if self.zeros != "none" else ""
        fused = "".join(
            f" {word}"
            for word, has in (
                ("gate", self.has_gate),
                ("bias", self.with_bias),
                ("c", self.with_c),
                ("alpha", self.with_alpha),
                ("whole", self.is_whole),
            )
            if has
        )
        types = f"{self.a_dtype}{'_row' * self.a_by_row} {self.w_dtype}_g{self.group} {self.scale_dtype}{zeros}{fused} {self.d_dtype}"
        return f"{self.block_m}x{self.block_n}x{COLUMNS * self.records} s{self.num_stages}{split} {types}"

    @property
    def has_block_scales(self) -> bool:
        """As of `Int4Problem`."""
        return self.a_dtype == "float8_e4m3fn" and not self.a_by_row

    @property
    def has_token_scales(self) -> bool:
        """As of `Int4Problem`."""
        return self.a_dtype == "int8" or self.a_by_row

    @property
    def table_words(self) -> int:
        """Words of the tables in shared memory by which codes become e4m3: of one, or of one for each zero point there can be; 0: it keeps none."""
        if self.record.order != "table":
            return 0
        if self.zeros == "none":
            return 4 if self.block_n < 256 else 0  # four warpgroups have no registers to spare for it: there it is constants
        return 64

    @property
    def cluster(self) -> int:
        """CTAs of a cluster."""
        return max(self.split, self.tail)

    @property
    def turns(self) -> int:
        """Parts of a tile's tokens that use one set of accumulators in turn, record by record: two halves where all would find no registers."""
        return 2 if self.block_m > MOST_AT_ONCE and not self.fold and not self.f16_sums and not self.is_whole else 1

    @property
    def operand_power(self) -> int:
        """The tensor core is given the weights' whole numbers over 2 to this power, and scales times that: where masks alone make the operands.

        e4m3 in the order "signs": 2^-8 of them. bfloat16: 2^-6, as codes are subnormal numbers first. int8 without zero points: codes are the
        upper halves of bytes. Not where float zero points add sums of tokens by the same scales, nor where int32 sums over all of K are given out.
        """
        if self.record.order == "signs":
            return 8
        if self.is_whole or self.zeros == "float" or self.w_dtype == "float4_e2m1fn":
            return 0
        if self.a_dtype == "bfloat16":
            return 6
        return -4 if self.is_sixteenfold else 0

    @property
    def is_sixteenfold(self) -> bool:
        """Whether codes can become int8 as sixteen times their value, which three operations do for eight of them and not seven."""
        return self.a_dtype == "int8" and self.w_dtype == "int4" and self.zeros == "none"

    @property
    def record(self) -> Record:
        """The form of a record of weights."""
        return Record(
            order_for(DTYPES[self.a_dtype], DTYPES[self.w_dtype], self.zeros), self.group, DTYPES[self.scale_dtype].itemsize, self.zeros
        )

    @classmethod
    def of(cls, problem: Int4Problem, kernel: str, **choices: Any) -> Int4Plan:
        """A plan for a problem: its types, and these choices."""
        types = {name: getattr(problem, name).name for name in ("a_dtype", "w_dtype", "d_dtype", "scale_dtype")}
        others = ("group", "zeros", "has_gate", "with_bias", "with_c", "with_alpha", "is_whole", "a_by_row")
        rest = {name: getattr(problem, name) for name in others}
        return cls(kernel, **choices, **types, **rest)

    def differs_from(self, problem: Int4Problem) -> str | None:
        """In what the plan is for another problem, or None."""
        like = Int4Plan.of(
            problem,
            self.kernel,
            block_m=self.block_m,
            block_n=self.block_n,
            num_stages=self.num_stages,
            records=self.records,
            split=self.split,
            widen=self.widen,
            fold=self.fold,
            tail=self.tail,
            f16_sums=self.f16_sums,
            quads=self.quads,
            pdl=self.pdl,
        )
        for name in self.__dataclass_fields__:
            planned, given = getattr(self, name), getattr(like, name)
            if planned != given:
                return f"is for {name} {planned}, got {given}"
        return None


def address_or_0(x: Any) -> int:
    """The address of an array that a call may do without."""
    return 0 if x is None else address(x)


class Int4Kernel(Protocol):
    """The whole interface of a kernel with weights of 4 bits; as `KernelSpec`, but that it prices its own plans.

    MAPPED_ARRAYS  whose tensor maps `bind` gives, in order
    WAITS          as of `KernelSpec`, as is LAUNCHES_DEPENDENTS
    FALLBACK       taken only where no other kernel takes a problem: for any GPU, tuned for none
    ANY_SCALES     it reads A's scales of 1x128 by address, whatever their strides
    SCALARS        what its other arguments are, in order: addresses of arrays of `Int4LaidOut`, and numbers
    """

    NAME: str
    MAPPED_ARRAYS: tuple[str, ...]
    SCALARS: tuple[str, ...]
    WAITS: bool
    LAUNCHES_DEPENDENTS: bool
    FALLBACK: bool
    ANY_SCALES: bool

    def supports(self, problem: Int4Problem, device: Device) -> str | None:
        """None when the kernel takes the problem on the device, else the reason why not."""

    def candidates(self, problem: Int4Problem, device: Device) -> list[Int4Plan]:
        """Plans that fit the device."""

    def is_batch_invariant(self, plan: Int4Plan) -> bool:
        """Whether an element of D is summed in one order of K: then its bits depend on its row of A alone."""

    def refusal(self, plan: Int4Plan, problem: Int4Problem) -> str | None:
        """Why a plan cannot be built, or cannot take the problem, or None."""

    def estimate(self, plan: Int4Plan, problem: Int4Problem, device: Device) -> float:
        """What a plan should cost, in microseconds."""

    def smem(self, plan: Int4Plan) -> SmemMap:
        """The plan's shared-memory map."""

    def threads(self, plan: Int4Plan) -> int:
        """Threads of a CTA."""

    def min_ctas(self, plan: Int4Plan) -> int:
        """As `KernelSpec` has it."""

    def build(self, plan: Int4Plan) -> Built:
        """The kernel of a plan."""

    def bind(self, plan: Int4Plan, laid: Any) -> tuple[Any, ...]:
        """The kernel's arguments, in order, for operands laid out by `int4_operands`."""

    def grid(self, plan: Int4Plan, problem: Int4Problem, device: Device) -> int:
        """CTAs to launch."""

    def count_tiles(self, plan: Int4Plan, problem: Int4Problem) -> int:
        """Tiles of the output."""
