"""What a plan of `sm90_fp8_gemv_1d2d` should cost, in microseconds: memory, and how long one warp's loads take one after another. Pure, no GPU.

    total = launch + || memory, latency ||        latency = step * blocks of K that a warp has, times the rounds of CTAs

The constants are fitted to 14 measurements, of the plans that the kernel's rules give for one and eight tokens (one H200, 2026-11-29,
bench/results/tune_gemv_h200.json); they tell each within 5 %.
"""

from __future__ import annotations

from .device import Device
from .kernels.sm90_fp8_gemv_1d2d_rules import NAME, count_tiles, registers, threads
from .kernels.spec import GemmPlan
from .problem import GemmProblem

LAUNCH, ROW = 2.17, 0.037
"""Microseconds from launch to the first products and from the last to the kernel's end; and for each token."""

STEP = 0.533
"""Microseconds from a warp's asking for a block of K to its asking for the next in its place."""

SHARE, EXPONENT = 0.997, 1.535
"""Of the datasheet's bandwidth that is reached; and of the norm in which memory and latency meet."""


def parts(plan: GemmPlan, problem: GemmProblem, device: Device) -> tuple[float, float, float, float]:
    """Total, latency, memory and launch."""
    tiles = count_tiles(plan, problem)
    at_once = max(1, min(65536 // (registers(plan) * threads(plan)), 64 * 32 // threads(plan)))
    rounds = max(1.0, tiles / (device.num_sms * at_once))
    latency = STEP * -(-problem.k // (128 * plan.warps)) * rounds
    moved = (problem.n + 33 / 32 * problem.m) * problem.k + problem.m * problem.n * problem.d_dtype.itemsize
    memory = moved / (SHARE * device.memory_bandwidth * 1e-6)
    launch = LAUNCH + ROW * problem.m
    return launch + (latency**EXPONENT + memory**EXPONENT) ** (1 / EXPONENT), latency, memory, launch


__all__ = ["NAME", "parts"]
