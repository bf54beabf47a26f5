"""From a problem with weights of 4 bits and a device to a plan: pure, as `plan`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from .device import Device
from .errors import PlanError, UnsupportedError
from .int4_problem import Int4Problem
from .kernels import INT4_KERNELS
from .kernels.int4_spec import Int4Kernel, Int4Plan
from .plan import VARIES


@dataclass(frozen=True)
class Int4Choice:
    """A plan, and why: microseconds that it should take, and the plans that came next."""

    plan: Int4Plan
    kernel: Int4Kernel
    estimate: float
    considered: int
    runners_up: tuple[tuple[Int4Plan, float], ...]


def int4_kernel_named(name: str) -> Int4Kernel:
    """The kernel of this name. Raises `PlanError` for none."""
    for kernel in INT4_KERNELS:
        if kernel.NAME == name:
            return kernel
    raise PlanError(f"kernel: expected one of {', '.join(k.NAME for k in INT4_KERNELS)}, got {name}")


FOLDS = "folds scales into weights, which rounds these, and exact weights are asked for (set_exact_weights)"
SUMS_F16 = "sums in float16, and float32 sums are asked for (set_float32_sums)"
"""Why a plan is refused."""

ROUNDING = 1.06
"""How many times as long a plan may take that rounds no weight, where one that does would take its place."""

ROUNDED_SUMS = 1.03
"""The same of sums, to float16, which lose less."""


@lru_cache(maxsize=4096)
def choose_int4(
    problem: Int4Problem, device: Device, batch_invariant: bool = False, exact_weights: bool = False, float32_sums: bool = False
) -> Int4Choice:
    """The plan for a problem on a device: the cheapest of all kernels that take it, `FALLBACK`'s only where no
    other does; `batch_invariant` as of `plan.choose`.

    `exact_weights` leaves out plans that round weights, `float32_sums` plans that round sums to float16; without it these are chosen where they are
    cheaper by more than `ROUNDING`, or `ROUNDED_SUMS`.

    Raises:
        UnsupportedError: no kernel takes the problem there; lists each one's reason.
        PlanError: a kernel takes it, but no plan of it fits.
    """
    refusals: dict[str, str] = {}
    priced: list[tuple[Int4Kernel, Int4Plan, float]] = []
    for kernel in INT4_KERNELS:
        if priced and kernel.FALLBACK:
            break
        reason = kernel.supports(problem, device)
        if reason is not None:
            refusals[kernel.NAME] = reason
            continue
        plans = [plan for plan in kernel.candidates(problem, device) if not batch_invariant or kernel.is_batch_invariant(plan)]
        plans = [plan for plan in plans if not (exact_weights and _rounds_weights(plan, problem) or float32_sums and plan.f16_sums)]
        priced += [(kernel, plan, kernel.estimate(plan, problem, device)) for plan in plans]
        if not plans:
            refusals[kernel.NAME] = f"no tile fits {device.smem_per_block} bytes of shared memory a block"
    if priced:
        priced.sort(key=lambda one: one[2] * _handicap(one[1], problem))
        kernel, plan, best = priced[0]
        return Int4Choice(plan, kernel, best, len(priced), tuple(one[1:] for one in priced[1:4]))
    if any(reason.startswith("no tile fits") for reason in refusals.values()):
        raise PlanError(f"no plan fits {problem} on {device.name}", refusals)
    raise UnsupportedError(f"no kernel takes {problem} on {device.name}", refusals)


def _handicap(plan: Int4Plan, problem: Int4Problem) -> float:
    """What the price of a plan is multiplied by when plans are compared."""
    return ROUNDING if _rounds_weights(plan, problem) else ROUNDED_SUMS if plan.f16_sums else 1.0


def _rounds_weights(plan: Int4Plan, problem: Int4Problem) -> bool:
    """Whether a plan rounds weights of a problem."""
    return plan.fold and problem.fold_error > 0


def validate_int4(
    plan: Int4Plan,
    problem: Int4Problem,
    device: Device,
    batch_invariant: bool = False,
    exact_weights: bool = False,
    float32_sums: bool = False,
) -> Int4Choice:
    """A plan that the caller chose, checked. Raises `PlanError` saying what rules it out."""
    if not isinstance(plan, Int4Plan):
        raise PlanError(f"plan: expected an Int4Plan, got {type(plan).__name__}")
    kernel = int4_kernel_named(plan.kernel)
    reason = kernel.supports(problem, device) or kernel.refusal(plan, problem)
    if reason is None and plan.pdl and not kernel.LAUNCHES_DEPENDENTS:
        reason = "lets no grid behind it begin early, as pdl=True says"
    if reason is None and batch_invariant and not kernel.is_batch_invariant(plan):
        reason = VARIES
    if reason is None and exact_weights and _rounds_weights(plan, problem):
        reason = FOLDS
    if reason is None and float32_sums and plan.f16_sums:
        reason = SUMS_F16
    if reason is None:
        smem = kernel.smem(plan).launch_bytes
        if smem > device.smem_per_block:
            reason = f"needs {smem} bytes of shared memory, {device.name} has {device.smem_per_block} a block"
    if reason is not None:
        raise PlanError(f"plan: {plan.name} cannot be used", {kernel.NAME: reason})
    return Int4Choice(plan, kernel, kernel.estimate(plan, problem, device), 1, ())


__all__ = ["Int4Choice", "choose_int4", "int4_kernel_named", "validate_int4"]
