"""What a plan of `sm90_int4_gemm` should cost, in microseconds: a model of its pipes whose constants were fitted to measurements. Pure, no GPU.

    total = launch + || multiprocessor, port, memory || + rounds * (tile + store) + the meeting of a split

``|| ... ||`` is a norm: the largest, and a little more where two are level. For a record, 64 rows of weights by 128 of K, of each warpgroup

    multiprocessor  || alone, || tensor, issue || ||, as warpgroups share the tensor cores and the schedulers, but not their waiting; the inner
                    norm is low, between a sum and the larger: what is issued beside products slows these (bench/NOTES.md):
        alone       of one warpgroup: products, their way through the pipe, and the unpacking that they do not hide. The first record of a
                    stage hides behind nothing, so that stages of several records take less. By halves of the tokens a record is unpacked once,
                    and products go through the pipe twice
        tensor      products of all warpgroups
        issue       unpacking, promotion and a stage's barriers of all warpgroups, in the slots of the schedulers
    port            bytes of weights and tokens into one multiprocessor
    memory          bytes that must move at least once

Every quantity comes from the plan, the problem and the `Device`; no measured shape is looked up. `bench/fit_int4.py` fits `Int4Constants` to
bench/results/tune_int4_h200.json with this very code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..device import Device
from ..int4_problem import Int4Problem
from .int4_spec import Int4Plan

Array = Any
"""Of NumPy: a number, or an array with one element a plan."""

ORDERS = {"bits16": 0, "signs": 1, "table": 1, "bytes": 2}
"""How codes lie and become operands: of 16 bits, e4m3, int8. What was measured of e4m3 lies as "signs"."""

PROMOTIONS = ("bits16", "e4m3", "bytes", "rows", "f16")
"""How sums of a record become sums of all: as of the operands, of e4m3 whose tokens have one scale, or of that in float16, two a register."""


@dataclass(frozen=True)
class Int4Constants:
    """What the model does not know from the hardware's data sheet.

    clock            GHz         of the multiprocessors
    launch           us          from launch to the first products, and from the last store to the kernel's end
    split            us          the two meetings of a split's CTAs
    exchange         B/ns        at which one CTA writes its partial sums and reads its share of all
    tile             us          a tile's begin and end
    store            elements/ns of D that one CTA writes
    wgmma_floor      cycles      a wgmma of few tokens at least
    latency          cycles      from a record's last wgmma until its sums can be read
    stage            cycles      of the schedulers for a stage: barriers, the ring's next slot
    unpack_wide      cycles      of the schedulers for a record's unpacking for 16-bit activations
    unpack_e4m3      cycles      the same for e4m3 in the order "signs"; "table" is taken for as dear, and is dearer
    unpack_bytes     cycles      the same for int8
    promotion_wide   cycles      of the schedulers for an accumulator register of a record: a multiply-add
    promotion_e4m3   cycles      the same for e4m3, whose tokens have scales of their own: loads, a product, a multiply-add
    promotion_bytes  cycles      the same for int8: a conversion, in the pipe of integers, a multiply-add
    promotion_rows   cycles      the same for e4m3 by rows: a multiply-add
    promotion_f16    cycles      the same for float16 sums, a register of two
    fold             cycles      of the schedulers for a record's products of weights and scales, 32 instructions, and for a group's scales
    fold_sharing     -           `sharing` where scales are folded and tokens are 128 or more, which fill the time of other warpgroups' waits; of
                                 fewer tokens in proportion between both
    port             B/cycle     into one multiprocessor
    memory_share     share       of the data sheet's bandwidth that is reached
    norm             -           exponent of the norm in which multiprocessor, port and memory meet
    pipes            -           the same of products and other instructions
    pipes_f16        -           the same beside products with float16 sums, which leave the registers' ports to others
    sharing          -           the same of these and a warpgroup alone: lower, as warpgroups wait for each other by chance
    """

    clock: float = 1.75
    launch: float = 3.3
    split: float = 1.01
    exchange: float = 36.0
    tile: float = 0.114
    store: float = 14.6
    wgmma_floor: float = 11.3
    latency: float = 104.0
    stage: float = 34.9
    unpack_wide: float = 104.0
    unpack_e4m3: float = 89.9
    unpack_bytes: float = 28.4
    promotion_wide: float = 1.0
    promotion_e4m3: float = 3.21
    promotion_bytes: float = 2.42
    promotion_rows: float = 1.24
    promotion_f16: float = 2.96
    fold: float = 34.2
    fold_sharing: float = 17.4
    port: float = 64.0
    memory_share: float = 0.928
    norm: float = 4.0
    pipes: float = 1.5
    pipes_f16: float = 2.51
    sharing: float = 3.52


CONSTANTS = Int4Constants()


class Work(NamedTuple):
    """What plans do to a problem on a device: numbers, or arrays with one element a plan.

    order           of the codes, its number in `ORDERS`
    promotion       its place in `PROMOTIONS`
    records         that one CTA's warpgroups go through, each, in all its rounds
    stage_records   records of a stage, of one warpgroup
    warpgroups      that consume
    tokens, wgmmas  columns of one wgmma, and how many a record takes, in units of half a cycle a column
    accumulators    registers of a thread that are promoted for a record
    turns           in which its products are issued, and waited for: 2 by halves of the tokens
    is_f16          1 where sums are float16, else 0: a stage's first record is unpacked behind the stage before, too
    is_folded       1 where scales are folded into the weights, else 0
    groups          of a record
    record_bytes    of weights and tokens that one CTA loads for a record of all warpgroups
    rounds          of tiles
    stored          elements of D of a tile; half as many with `quads`, whose stores touch half as many places
    partial_bytes   of a tile's partial sums in one CTA of a split, or of a tail; 0 without
    is_shared       1 with a split or a tail, else 0
    nbytes, rate    that must move through memory; the data sheet's bytes a microsecond
    """

    order: Array
    promotion: Array
    records: Array
    stage_records: Array
    warpgroups: Array
    tokens: Array
    wgmmas: Array
    accumulators: Array
    turns: Array
    is_f16: Array
    is_folded: Array
    groups: Array
    record_bytes: Array
    rounds: Array
    stored: Array
    partial_bytes: Array
    is_shared: Array
    nbytes: Array
    rate: Array


def work_of(plan: Int4Plan, problem: Int4Problem, device: Device, tiles: int, accumulators: int) -> Work:
    """The work of a plan that has `tiles` tiles, and `accumulators` registers for a record's sums, in each of its turns."""
    is_shared, size = plan.cluster > 1, problem.a_dtype.itemsize
    slots = tiles if plan.split > 1 else max(1, device.num_sms // plan.tail) * plan.tail
    whole, left = divmod(tiles, slots)
    rounds = whole + (left > 0)
    turns = 1 / plan.split if plan.split > 1 else whole + (1 / plan.tail if left <= slots // plan.tail else 1) * (left > 0)
    warpgroups, tokens = plan.block_n // 64, min(plan.block_m, problem.m)
    passes = (2 if plan.zeros == "float" else 1) * (2 if plan.group == 16 and size == 1 else 1)
    return Work(
        order=ORDERS[plan.record.order],
        promotion=PROMOTIONS.index("f16" if plan.f16_sums else "rows") if plan.a_by_row else ORDERS[plan.record.order],
        records=turns * problem.records,
        stage_records=plan.records,
        warpgroups=warpgroups,
        tokens=plan.block_m,
        wgmmas=4 * size * passes,
        accumulators=accumulators * plan.turns,
        turns=plan.turns,
        is_f16=int(plan.f16_sums),
        is_folded=int(plan.fold),
        groups=plan.record.groups,
        record_bytes=plan.record.nbytes * warpgroups + tokens * 128 * size,
        rounds=rounds,
        stored=0 if plan.split > 1 else tokens * plan.block_n / (2 if plan.quads else 1),
        partial_bytes=plan.block_m * plan.block_n * 4 if is_shared else 0,
        is_shared=int(is_shared),
        nbytes=problem.bytes,
        rate=device.memory_bandwidth * 1e-6,
    )


def microseconds(work: Work, c: Int4Constants = CONSTANTS) -> Array:
    """What the work should take."""
    unpack = np.take((c.unpack_wide, c.unpack_e4m3, c.unpack_bytes), work.order) + work.is_folded * c.fold * (1 + work.groups / 8)
    each = (c.promotion_wide, c.promotion_e4m3, c.promotion_bytes, c.promotion_rows, c.promotion_f16)
    promotion = work.accumulators * np.take(each, work.promotion)
    tensor = np.maximum(work.tokens / 2, c.wgmma_floor) * work.wgmmas
    products, first = tensor + work.turns * c.latency, 1 / work.stage_records
    behind = first * (1 - work.is_f16)
    alone = behind * (products + unpack) + (1 - behind) * np.maximum(products, unpack) + promotion
    issue = unpack + promotion + first * c.stage
    sharing = c.sharing + (c.fold_sharing - c.sharing) * work.is_folded * np.minimum(work.tokens / 128, 1)
    pipes = c.pipes + (c.pipes_f16 - c.pipes) * work.is_f16
    cycles = _norm(sharing, alone, _norm(pipes, work.warpgroups * tensor, work.warpgroups * issue))
    per_us = c.clock * 1e3
    memory = work.nbytes / (c.memory_share * work.rate)
    pace = _norm(c.norm, work.records * cycles / per_us, work.records * work.record_bytes / (c.port * per_us), memory)
    ends = work.rounds * c.tile + work.rounds * work.stored / (c.store * 1e3)
    return c.launch + pace + ends + work.is_shared * c.split + work.partial_bytes / (c.exchange * 1e3)


def _norm(exponent: Array, *parts: Array) -> Array:
    return sum(part**exponent for part in parts) ** (1 / exponent)


def price(plan: Int4Plan, problem: Int4Problem, device: Device, tiles: int, accumulators: int, c: Int4Constants = CONSTANTS) -> float:
    """Microseconds of a plan that has `tiles` tiles, and `accumulators` registers for a record's sums, in each of its turns."""
    return float(microseconds(work_of(plan, problem, device, tiles, accumulators), c))
