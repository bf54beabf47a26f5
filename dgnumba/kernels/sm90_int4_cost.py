"""What a plan of `sm90_int4_gemm` should cost: a launch, then memory, L2, the tensor cores or the unpacking, whichever is slowest.

The constants are counted from the instructions, and taken from the FP8 kernels where they are the GPU's; `bench/fit_int4.py` fits them to a sweep.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..device import Device
from ..int4_problem import Int4Problem
from .int4_spec import Int4Plan


@dataclass(frozen=True)
class Int4Constants:
    """What the model does not know from the hardware's data sheet.

    clock          GHz     of the multiprocessors
    launch         us      from launch to the first products, and from the last store to the kernel's end
    split          us      the meeting of a split's CTAs; with `split_token` us more for each token of the tile
    tile           us      a tile's begin and end; with `store_token` us more for each token of the tile
    wgmma_floor    cycles  a wgmma of few tokens at least
    unpack_wide    cycles  in which a multiprocessor unpacks a record for 16-bit activations, all schedulers busy
    unpack_table   cycles  the same for e4m3
    unpack_bytes   cycles  the same for int8
    promotion      cycles  for each accumulator register of a record
    alone          cycles  a record that nothing else hides: barrier, issue, drain; over the root of the records of a stage
    load_rate      B/ns    into one multiprocessor
    l2_rate        B/ns    from L2 into all of them
    memory_share   share   of the data sheet's bandwidth that is reached
    norm           -       exponent of the norm in which the four meet
    """

    clock: float = 1.75
    launch: float = 2.5
    split: float = 1.5
    split_token: float = 0.02
    tile: float = 0.6
    store_token: float = 0.0
    wgmma_floor: float = 14.0
    unpack_wide: float = 125.0
    unpack_table: float = 180.0
    unpack_bytes: float = 120.0
    promotion: float = 1.2
    alone: float = 250.0
    load_rate: float = 100.0
    l2_rate: float = 6500.0
    memory_share: float = 0.88
    norm: float = 6.0


CONSTANTS = Int4Constants()


def price(plan: Int4Plan, problem: Int4Problem, device: Device, tiles: int, accumulators: int, c: Int4Constants = CONSTANTS) -> float:
    """Microseconds of a plan that has `tiles` tiles, and `accumulators` registers for a record's sums."""
    rounds = 1 if plan.split > 1 else -(-tiles // device.num_sms)
    ctas = tiles * plan.split if plan.split > 1 else min(tiles, device.num_sms)
    warpgroups = plan.block_n // 64
    records = rounds * problem.records / plan.split
    size = problem.a_dtype.itemsize
    unpack = {"bits16": c.unpack_wide, "table": c.unpack_table, "bytes": c.unpack_bytes}[plan.record.order]
    passes = (2 if plan.zeros == "float" else 1) * (2 if plan.group == 16 and size == 1 else 1)
    tensor = max(plan.block_m / 2, c.wgmma_floor) * 4 * size * passes
    promotion = accumulators * c.promotion
    alone = tensor + 2 * (unpack + promotion) + c.alone / plan.records**0.5
    cycles = records * max(warpgroups * max(tensor, unpack + promotion), alone)
    nbytes = plan.record.nbytes * warpgroups + min(plan.block_m, problem.m) * 128 * size
    load, l2 = records * nbytes / c.load_rate * 1e-3, ctas * records * nbytes / c.l2_rate * 1e-3
    memory = problem.bytes / (c.memory_share * device.memory_bandwidth * 1e-6)
    pace = sum(part**c.norm for part in (cycles / c.clock * 1e-3, load, l2, memory)) ** (1 / c.norm)
    ends = rounds * (c.tile + c.store_token * plan.block_m)
    return c.launch + pace + ends + (c.split + c.split_token * plan.block_m if plan.split > 1 else 0.0)
