"""Bank conflicts and coalescing of a plan's kernel, counted in the emulator over one of its tiles (a cluster's, if it has clusters)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .. import emu
from ..device import Device
from ..dtypes import DTYPES
from ..emulated import Emulated
from ..errors import EmulationError
from ..kernels import GemmPlan
from ..layouts.operands import lay_out
from ..plan import validate
from ..problem import GemmProblem, check_fp8_gemm_nt
from ..testing import exact_problem

DEPTH = 256
"""Columns of K that are emulated, for each CTA that shares the sum: two rounds of the loop."""
ALIGNMENT = 256


@dataclass(frozen=True)
class Accesses:
    """What the emulator counted.

    m, n, k          of the product that was emulated
    shared           (place, ways that banks conflict, requests) of each place that touches shared memory
    global_memory    (place, sectors over those that its bytes need, requests) of each that touches global memory
    errors           what the checks found wrong; none for a kernel that is right
    """

    m: int
    n: int
    k: int
    shared: tuple[tuple[str, float, int], ...]
    global_memory: tuple[tuple[str, float, int], ...]
    errors: tuple[str, ...]

    @property
    def bank_ways(self) -> float:
        """How many ways banks conflict where they conflict most; 1: nowhere."""
        return max((ways for _, ways, _ in self.shared), default=1.0)

    @property
    def sector_excess(self) -> float:
        """Sectors that are fetched over those that are needed, where that is most; 1: all is coalesced."""
        return max((excess for _, excess, _ in self.global_memory), default=1.0)


def accesses(plan: GemmPlan, problem: GemmProblem, device: Device) -> Accesses:
    """Run one tile of `plan` under `emu.check` and count. A second or two; what bulk copies and tensor cores touch is not counted.

    Raises:
        PlanError: the plan cannot take the tile.
    """
    m = min(problem.m, plan.block_m * (plan.cluster if plan.multicast == "B" else 1))
    n = min(problem.n, plan.block_n * (plan.cluster if plan.multicast == "A" else 1))
    splits = plan.cluster if plan.multicast is None else 1
    k = min(problem.k, DEPTH * splits)
    case = exact_problem(np.random.default_rng(0), m, n, k, plan.d_dtype)
    d = _aligned((m, n), DTYPES[plan.d_dtype].numpy)
    operands = check_fp8_gemm_nt(case.a, case.b, d, None, None)
    call = Emulated.of(validate(plan, operands.problem, device), lay_out(operands), replace(device, num_sms=max(2, plan.cluster)))
    report = emu.check(*call.launch, **call.options, policies=("eager",))
    if not report.shared and report.errors:
        raise EmulationError(str(report.errors[0]))
    return Accesses(
        m, n, k,
        tuple((access.text, access.ways, access.requests) for access in report.shared),
        tuple((access.text, access.excess, access.requests) for access in report.global_memory),
        tuple(map(str, report.errors)),
    )  # fmt: skip


def _aligned(shape: tuple[int, int], dtype: Any) -> Any:
    """A new array that begins at a multiple of 256 bytes, as the GPU's allocator gives it: its rows meet sectors as they do there."""
    nbytes = shape[0] * shape[1] * np.dtype(dtype).itemsize
    room = np.empty(nbytes + ALIGNMENT, np.uint8)
    first = -room.ctypes.data % ALIGNMENT
    return room[first : first + nbytes].view(dtype).reshape(shape)
