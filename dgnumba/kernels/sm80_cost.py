"""What a plan of an sm_80 kernel should take: the slowest of a multiprocessor's pipes for each stage, in rounds of tiles. From datasheets; pure.

On these GPUs the kernel has no rival of ours, so what counts is which of its tiles is best: how much of a round is idle, and what a tile moves
through shared memory and L2 for its products.
"""

from __future__ import annotations

from typing import NamedTuple

from ..device import Device
from ..problem import GemmProblem
from .spec import GemmPlan

CLOCK = 1.6e3
"""Cycles a microsecond, of all these GPUs within a third."""

MACS = {(8, 0): 1024, (8, 6): 512, (8, 7): 512, (8, 9): 512, (9, 0): 1280, (12, 0): 512}
"""BF16 multiply-adds of a multiprocessor in a cycle by mma.sync, by compute capability; FP8 and INT8 twice as many, INT4 four times.
Of the H200 what mma.sync can reach: its datasheet's figure is wgmma's."""

SMEM_RATE, L2_RATE = 128, 40
"""Bytes a cycle: of a multiprocessor's shared memory; from L2 into one multiprocessor."""

STAGE, TILE, LAUNCH = 150, 2500, 3.0
"""Cycles of a stage that nothing hides where one CTA is alone; cycles to begin and end a tile; microseconds of a launch."""

LATENCY = 900
"""Cycles from a copy's issue to its arrival."""

SMEM_RESERVED = 1024
"""Bytes that each CTA takes beside its own."""

MOST_THREADS = 512
"""Threads of a multiprocessor whose registers hold a tile's sums: 128 each."""


class Parts(NamedTuple):
    """Microseconds of each pipe over the whole product, and their sum as the model has it."""

    total: float
    tensor: float
    load: float
    smem: float
    latency: float
    epilogue: float
    memory: float


def macs_per_cycle(device: Device, bits: int) -> int:
    """Multiply-adds of a multiprocessor in a cycle, for operands of 16, 8 or 4 bits."""
    base = MACS.get(device.cc) or MACS.get((device.cc[0], 0)) or MACS[12, 0]
    return base * 16 // bits


def price(plan: GemmPlan, problem: GemmProblem, device: Device, warps: tuple[int, int], smem_bytes: int) -> Parts:
    """Price a plan that has `warps` along M and N and asks for `smem_bytes` of shared memory."""
    m, n, bits = plan.block_m, plan.block_n, problem.a_dtype.bits
    blocks = -(-problem.k // plan.block_k)
    tiles = -(-problem.m // m) * -(-problem.n // n)
    threads = 32 * warps[0] * warps[1]
    together = max(1, min((device.smem_per_block + SMEM_RESERVED) // (smem_bytes + SMEM_RESERVED), MOST_THREADS // threads))
    rounds, rest = divmod(tiles, device.num_sms * together)
    # CTAs that a multiprocessor has in the last round
    last = -(-rest // device.num_sms)

    # cycles of one stage of one CTA in each pipe
    tensor = m * n * plan.block_k / macs_per_cycle(device, 16 if plan.widen else bits)
    row = plan.block_k * bits // 8
    load = (m + n) * row / L2_RATE
    smem = ((m + n) + m * warps[1] + n * warps[0]) * row / SMEM_RATE
    waiting = LATENCY / max(1, plan.num_stages - 1)

    def pace(ctas: int) -> float:
        return max(max(tensor, load, smem) * ctas + STAGE / max(1, ctas), waiting) if ctas else 0.0

    cycles = blocks * (rounds * pace(together) + pace(last)) + TILE * (rounds * together + last)
    memory = problem.bytes / device.memory_bandwidth * 1e6
    work = rounds * together + last
    total = LAUNCH + max(cycles / CLOCK, memory)
    return Parts(
        total,
        work * blocks * tensor / CLOCK,
        work * blocks * load / CLOCK,
        work * blocks * smem / CLOCK,
        (rounds + (last > 0)) * blocks * waiting / CLOCK,
        TILE * work / CLOCK,
        memory,
    )
