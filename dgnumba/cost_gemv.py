"""What a plan of the kernels for very few rows should cost, in microseconds: memory, and how long one warp's loads take. Pure, no GPU.

    total = launch + || memory, latency ||        latency = time of the blocks of K that a warp has, times the rounds of CTAs

`sm90_fp8_gemv_1d2d`  a block takes a step. The constants are fitted to 14 measurements, of the plans that the kernel's rules give for one and eight
                      tokens (one H200, 2026-11-29, bench/results/tune_gemv_h200.json); they tell each within 5 %
`sm90_fp8_gemv_1d2d_rs`  predicted, bench/NOTES.md: each block is used in turn, and as many as are on their way at once arrive together
"""

from __future__ import annotations

from .device import Device
from .kernels import sm90_fp8_gemv_1d2d_rs_rules as rs
from .kernels import sm90_fp8_gemv_1d2d_rules as gemv
from .kernels.spec import GemmPlan
from .problem import GemmProblem

NAMES = (gemv.NAME, rs.NAME)
_PREDICTED = frozenset({rs.NAME})

LAUNCH = 2.17
"""Microseconds from launch to the first products and from the last to the kernel's end."""

ROW = {gemv.NAME: 0.037, rs.NAME: 0.015}
"""And for each token: of the first kernel mostly conversions, of the second what the tokens' way through L2 and shared memory takes."""

STEP = 0.533
"""Microseconds from a warp's asking for a block of K to its asking for the next in its place."""

ARRIVAL, USE = 0.38, 0.11
"""Microseconds from a warp's asking for blocks to having them, and for each from there to the end of its products; predicted, bench/NOTES.md."""

MEETING = 1.1
"""Microseconds that a cluster costs: its launch, and where its CTAs wait for each other; as measured of the swapped kernel, bench/NOTES.md."""

SHARE, EXPONENT = 0.997, 1.535
"""Of the datasheet's bandwidth that is reached; and of the norm in which memory and latency meet."""

SMEM_PER_SM = 228 << 10
"""Shared memory of a multiprocessor, which its CTAs divide; each takes a KiB more than it asks for."""


def is_predicted(kernel: str) -> bool:
    """Whether no measurement has confirmed a kernel's prices: `plan.choose` leaves it out, `dgnumba tune` measures it."""
    return kernel in _PREDICTED


def parts(plan: GemmPlan, problem: GemmProblem, device: Device) -> tuple[float, float, float, float]:
    """Total, latency, memory and launch."""
    rules = rs if plan.kernel == rs.NAME else gemv
    threads = rules.threads(plan)
    at_once = min(65536 // (rules.registers(plan) * threads), 64 * 32 // threads, SMEM_PER_SM // (rules.smem(plan).launch_bytes + 1024))
    rounds = max(1.0, rules.count_tiles(plan, problem) * plan.cluster / (device.num_sms * max(1, at_once)))
    blocks = -(-problem.k // (128 * plan.warps * plan.cluster))
    waits = ARRIVAL * -(-blocks // max(1, plan.num_stages)) + USE * blocks if rules is rs else STEP * blocks
    latency = waits * rounds
    moved = (problem.n + 33 / 32 * problem.m) * problem.k + problem.m * problem.n * problem.d_dtype.itemsize
    memory = moved / (SHARE * device.memory_bandwidth * 1e-6)
    launch = LAUNCH + ROW[plan.kernel] * problem.m + MEETING * (plan.cluster > 1)
    return launch + (latency**EXPONENT + memory**EXPONENT) ** (1 / EXPONENT), latency, memory, launch


__all__ = ["NAMES", "is_predicted", "parts"]
