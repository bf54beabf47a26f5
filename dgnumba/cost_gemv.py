"""What a plan of the kernels for very few rows should cost, in microseconds: memory, and how long one warp's loads take. Pure, no GPU.

    total = launch + || memory, latency, tokens ||

latency  time of the blocks of K that a warp has, times the rounds of CTAs; blocks that are on their way at once arrive together
tokens   what all warps of a multiprocessor do for columns of products, and for the sums of a tile
memory   operands and output; more loads on their way than memory needs are in each other's way

``python bench/fit_cost.py`` fits the constants to bench/results/tune_gemv_h200.json with this very code, to the plans that are offered. Near the best
the error (root mean square) is 4.2 % over 22 times of the first kernel's plans without a split, 4.0 % over 371 with one, and 4.1 % over 154 of the
second's; two runs' times of one plan differ by 3 % in the mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from .device import Device
from .kernels import sm90_fp8_gemv_1d2d_rs_rules as rs
from .kernels import sm90_fp8_gemv_1d2d_rules as gemv
from .kernels.spec import GemmPlan, ctas_at_once
from .problem import GemmProblem

SPLIT = f"{gemv.NAME} split"
NAMES = (gemv.NAME, SPLIT, rs.NAME)
"""What has constants of its own: each kernel, and of the first the plans with a split. There all CTAs run at one time, so that they load, multiply
and add up one after another; without one some of a multiprocessor's CTAs load while others do the rest."""


@dataclass(frozen=True)
class Constants:
    """What the model does not get from plan, problem or device.

    launch    us     from launch to the first products and from the last to the kernel's end
    row       us     and for each token: its conversions, or its way through L2 and shared memory
    gather    us     and for each further warp that shares a tile, whose sums are added one after another
    meeting   us     that a cluster costs, for each doubling of its CTAs: its launch, and where they wait for each other
    arrival   us     from a warp's asking for blocks of K to having all that it may have on their way
    step      us     and for each block from there to the end of its products
    idle      share  of what a last round lacks, that is lost
    token     us     the same for each token, which all multiprocessors ask L2 for at one time
    column    us     a step of a warpgroup: a column of its products, tokens through shared memory included
    port      us     1024 bytes of operands that come to one multiprocessor
    sum       us     1024 of the partial sums of a warpgroup, written and added up
    crowd     share  more that memory takes where twice `IN_FLIGHT` blocks are on their way to a multiprocessor
    share     share  of the datasheet's bandwidth that is reached
    exponent  -      of the norm in which memory, latency and tokens meet
    """

    launch: float
    row: float
    gather: float
    meeting: float
    arrival: float
    step: float
    idle: float
    token: float
    column: float
    port: float
    sum: float
    crowd: float
    share: float
    exponent: float


CONSTANTS = {
    gemv.NAME: Constants(
        launch=2.08, row=0.0158, gather=0.0, meeting=0.0, arrival=0.0, step=0.639, idle=0.0,
        token=0.0134, column=0.0, port=0.0, sum=0.0, crowd=0.0, share=1.0, exponent=1.7,
    ),
    SPLIT: Constants(
        launch=2.16, row=0.0139, gather=0.0081, meeting=0.0564, arrival=0.034, step=0.247, idle=0.0,
        token=0.00149, column=0.00507, port=0.0017, sum=0.148, crowd=0.0, share=1.34, exponent=1.06,
    ),
    rs.NAME: Constants(
        launch=1.73, row=0.0403, gather=0.0386, meeting=0.685, arrival=0.367, step=0.196, idle=1.0,
        token=0.00237, column=0.00507, port=0.0, sum=0.35, crowd=0.0721, share=0.983, exponent=1.98,
    ),
}  # fmt: skip
"""By sort of plans. A split's `share` is no bandwidth: what overlaps is added up there (exponent 1), at the price of the part that does not.
`meeting` of the last is of plans that are not offered."""


class Work(NamedTuple):
    """What a plan does to a problem on a device: numbers, or arrays of them.

    rounds   of CTAs, as the hardware deals them out, several to a multiprocessor: one, or more and a part
    lacks    what the last round does of a whole one
    blocks   of K that a warp has
    batches  in which they arrive
    steps    of all warpgroups of the multiprocessor with most CTAs, times the columns of one's products
    loaded   bytes of operands that come to it, in 1024
    sums     its warpgroups' partial sums, in 1024
    crowd    blocks on their way to a multiprocessor beyond `IN_FLIGHT`, in `IN_FLIGHT`
    tokens   M
    warps    that share a tile, beyond the first
    share    of the multiprocessors that have a CTA
    doublings  of a CTA to its cluster
    moved    bytes of memory; A comes with a scale of 4 bytes for 128 elements
    memory_rate  bytes a microsecond
    """

    rounds: Any
    lacks: Any
    blocks: Any
    batches: Any
    steps: Any
    loaded: Any
    sums: Any
    crowd: Any
    tokens: Any
    warps: Any
    share: Any
    doublings: Any
    moved: Any
    memory_rate: Any


def model_of(plan: GemmPlan) -> str:
    """Whose constants a plan's price takes: one of `NAMES`."""
    return SPLIT if plan.kernel == gemv.NAME and plan.cluster > 1 else plan.kernel


def _rules_of(plan: GemmPlan) -> Any:
    return rs if plan.kernel == rs.NAME else gemv


def ctas_of_an_sm(plan: GemmPlan) -> int:
    """CTAs of a plan that a multiprocessor runs at one time."""
    rules = _rules_of(plan)
    return ctas_at_once(rules.threads(plan), rules.registers(plan), rules.smem(plan).launch_bytes)


def work_of(plan: GemmPlan, problem: GemmProblem, device: Device) -> Work:
    """What a plan does, counted."""
    rules = _rules_of(plan)
    threads, stages = rules.threads(plan), max(1, plan.num_stages)
    warpgroups, columns = threads / 128, rs.columns(plan) if rules is rs else plan.block_m
    ctas, at_once = rules.count_tiles(plan, problem) * plan.cluster, ctas_of_an_sm(plan)
    each = max(1.0, ctas / device.num_sms)
    if plan.cluster > 1:
        # all CTAs of a split run at one time: some multiprocessors have one more than others, and are what its clusters wait for
        each = math.ceil(each)
    blocks = -(-problem.k // (128 * plan.warps * plan.cluster))
    on_their_way = min(at_once, -(-ctas // device.num_sms)) * (threads // 32) * min(stages, blocks)
    rounds = max(1.0, ctas / (device.num_sms * at_once))
    return Work(
        rounds, -rounds % 1, blocks, -(-blocks // stages), each * warpgroups * blocks * columns,
        each * 4 * warpgroups * blocks * (16 + problem.m) / 8, each * warpgroups * plan.block_m * plan.block_n / 1024,
        max(0.0, on_their_way / gemv.IN_FLIGHT - 1), problem.m,
        plan.warps - 1, min(1.0, ctas / device.num_sms), plan.cluster.bit_length() - 1,
        (problem.n + 33 / 32 * problem.m) * problem.k + problem.m * problem.n * problem.d_dtype.itemsize, device.memory_bandwidth * 1e-6,
    )  # fmt: skip


def price(w: Work, c: Constants) -> tuple[Any, Any, Any, Any, Any]:
    """The model: total, latency, tokens, memory and launch."""
    latency = (c.arrival * w.batches + (c.step + c.token * w.tokens * w.share) * w.blocks) * (w.rounds + c.idle * w.lacks)
    tokens = c.column * w.steps + c.port * w.loaded + c.sum * w.sums
    memory = w.moved / (c.share * w.memory_rate) * (1 + c.crowd * w.crowd)
    launch = c.launch + c.row * w.tokens + c.gather * w.warps + c.meeting * w.doublings
    return launch + (latency**c.exponent + memory**c.exponent + tokens**c.exponent) ** (1 / c.exponent), latency, tokens, memory, launch


def parts(plan: GemmPlan, problem: GemmProblem, device: Device) -> tuple[float, float, float, float, float]:
    """Total, latency, tokens, memory and launch of a plan."""
    return price(work_of(plan, problem, device), CONSTANTS[model_of(plan)])


__all__ = ["CONSTANTS", "NAMES", "SPLIT", "Constants", "Work", "ctas_of_an_sm", "model_of", "parts", "price", "work_of"]
