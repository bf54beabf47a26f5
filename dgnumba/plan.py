"""From a problem and a device to a plan: pure, so that it runs, and is tested, where no GPU is.

Every kernel of `KERNELS` says whether it takes the problem and which plans fit the device; `cost` prices each; the cheapest wins,
the first of equals. A plan that was measured (`measured.Table`) goes before. A refusal carries each kernel's reason.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from . import cost_gemv
from .cost import Estimate, estimate, estimates
from .device import Device
from .dtypes import DTYPES
from .errors import PlanError, UnsupportedError
from .kernels import KERNELS, GemmPlan, KernelSpec
from .kernels.spec import changed, choices_named
from .layer_plans import members
from .measured import Measured, Table
from .problem import GemmProblem

VARIES = "sums K in an order of its own, and batch invariance is on (set_batch_invariant)"
"""Why a plan is refused."""


@dataclass(frozen=True)
class Choice:
    """A plan, and why: its estimate, and the plans that came next; or that it was measured."""

    plan: GemmPlan
    kernel: KernelSpec
    estimate: Estimate
    considered: int
    runners_up: tuple[tuple[GemmPlan, Estimate], ...]
    measured: Measured | None = None


def kernel_named(name: str) -> KernelSpec:
    """The kernel of this name. Raises `PlanError` for none."""
    for kernel in KERNELS:
        if kernel.NAME == name:
            return kernel
    raise PlanError(f"kernel: expected one of {', '.join(k.NAME for k in KERNELS)}, got {name}")


@lru_cache(maxsize=4096)
def choose(
    problem: GemmProblem, device: Device, table: Table | None = None, most: int | None = None, batch_invariant: bool = False
) -> Choice:
    """The plan for a problem on a device.

    Args:
        problem, device: what is to be multiplied where.
        table: measured plans; one for this problem on a GPU of this name is taken.
        most: of how many plans to choose for all numbers of tokens (`layer_plans.family`); None: of all that fit. Plans that read A's scales as
            they lie in row-major memory would come on top: where plans are counted, such scales are turned.
        batch_invariant: choose of those only that give a row the same bits whatever M is (`config`).

    Raises:
        UnsupportedError: no kernel takes the problem there; lists each one's reason.
        PlanError: a kernel takes it, but no plan of it fits.
    """
    if most is not None:
        problem = replace(problem, row_scales=False)
    row = table.get(problem, device) if table is not None else None
    # what was measured without an addend, or without regard to order, may not be fit for a call that has such a wish
    if row is not None and not ((problem.with_c or batch_invariant) and not _is_fit(row.plan, problem, device, batch_invariant)):
        try:
            checked = validate(measured_for(row.plan, problem, device), problem, device, batch_invariant)
            return Choice(checked.plan, checked.kernel, checked.estimate, 1 + len(row.others), (), row)
        except PlanError as error:
            why = "; ".join(error.reasons.values()) or str(error)
            warnings.warn(
                f"the plan measured for {problem} is not taken, but planned anew: {row.plan.name} {why}", RuntimeWarning, stacklevel=2
            )
    priced = ranked(problem, device, most, batch_invariant)
    best, plan, kernel = priced[0]
    return Choice(plan, kernel, best, len(priced), tuple((p, e) for e, p, _ in priced[1:4]))


def measured_for(plan: GemmPlan, problem: GemmProblem, device: Device) -> GemmPlan:
    """A plan that was measured, for a problem that may have an addend and row-major scales beside."""
    return as_read(replace(plan, with_c=problem.with_c), problem, device)


def as_read(plan: GemmPlan, problem: GemmProblem, device: Device) -> GemmPlan:
    """The plan, with row-major scales of A read as they lie where it can and that should be faster; else with those turned before."""
    turned = replace(plan, row_scales=False)
    if problem.row_scales and kernel_named(plan.kernel).ROW_SCALES:
        try:
            direct = validate(replace(plan, row_scales=True), problem, device)
        except PlanError:  # with swapped operands four blocks' scales of each row come, which may need more shared memory than there is
            return turned
        if direct.estimate.total <= estimate(turned, problem, device).total:
            return direct.plan
    return turned


def _is_fit(plan: GemmPlan, problem: GemmProblem, device: Device, batch_invariant: bool) -> bool:
    kernel = kernel_named(plan.kernel)
    return kernel.supports(problem, device) is None and (not batch_invariant or kernel.is_batch_invariant(plan))


def waves(plan: GemmPlan, problem: GemmProblem, device: Device) -> float:
    """Rounds of the CTAs that run at one time: 1.02 has a second one for 2 % of them. Below 1: the share of multiprocessors that have any.

    CTAs are tiles, or as many times the tiles as share K; of the kernels for very few rows a multiprocessor runs several at one time.
    """
    ctas = kernel_named(plan.kernel).count_tiles(plan, problem) * (1 if plan.multicast else plan.cluster)
    sms = device.clusters_at_once(plan.cluster) * plan.cluster
    each = cost_gemv.ctas_of_an_sm(plan) if plan.kernel in cost_gemv.NAMES else 1
    return max(ctas / (sms * each), min(1.0, ctas / sms))


def as_taken(problem: GemmProblem, device: Device) -> GemmProblem:
    """What a kernel is asked for: where none adds C, a product in float32, to which it is added afterwards, and rounded once."""
    if problem.with_c and all(kernel.supports(problem, device) is not None for kernel in KERNELS):
        return replace(problem, d_dtype=DTYPES["float32"], with_c=False)
    return problem


def ranked(
    problem: GemmProblem, device: Device, most: int | None = None, batch_invariant: bool = False
) -> list[tuple[Estimate, GemmPlan, KernelSpec]]:
    """Every plan that `choose` chooses from, the cheapest first; arguments and errors as its own."""
    refusals = {kernel.NAME: reason for kernel in KERNELS if (reason := kernel.supports(problem, device)) is not None}
    if len(refusals) == len(KERNELS):
        raise UnsupportedError(f"no kernel takes {problem} on {device.name}", refusals)
    priced = []
    for kernel, plans in _offered(problem, device, refusals, most, batch_invariant):
        if batch_invariant:
            plans = [plan for plan in plans if kernel.is_batch_invariant(plan)]
        priced += [(price, plan, kernel) for price, plan in zip(estimates(plans, problem, device), plans)]
    if not priced:
        cut = {
            kernel.NAME: f"no tile fits {device.smem_per_block} bytes of shared memory a block" + ", batch-invariant" * batch_invariant
            for kernel in KERNELS
            if kernel.NAME not in refusals
        }
        raise PlanError(f"no plan fits {problem} on {device.name}", refusals | cut)
    priced.sort(key=lambda entry: entry[0].total)
    return priced


def _offered(
    problem: GemmProblem, device: Device, refusals: dict[str, str], most: int | None, batch_invariant: bool
) -> Iterable[tuple[KernelSpec, list[GemmPlan]]]:
    if most is not None:
        return members(problem, device, most, batch_invariant)
    return [(kernel, kernel.candidates(problem, device)) for kernel in KERNELS if kernel.NAME not in refusals]


def named(name: str, problem: GemmProblem, device: Device, batch_invariant: bool = False) -> Choice:
    """The plan of this name (`GemmPlan.name`), of the first kernel that can run it, or of the one named before it.

    Raises `PlanError` saying why none can.
    """
    choices = choices_named(name)
    kernels = [kernel_named(choices.pop("kernel"))] if "kernel" in choices else KERNELS
    given = {f"{operand}_dtype": getattr(problem, f"{operand}_dtype").name for operand in "abd"}
    reasons: dict[str, str] = {}
    for kernel in kernels:
        try:
            plan = as_read(GemmPlan(kernel.NAME, **choices, **given, with_c=problem.with_c), problem, device)
            offered = kernel.candidates(problem, device) if kernel.supports(problem, device) is None else []
            # the order of tiles is in no name: that of the candidate
            plan = next((x for x in offered if x == changed(plan, band=x.band)), plan)
            return validate(plan, problem, device, batch_invariant)
        except PlanError as error:
            reasons |= error.reasons
    raise PlanError(f"plan: {name} cannot be used for {problem} on {device.name}", reasons)


def validate(plan: GemmPlan, problem: GemmProblem, device: Device, batch_invariant: bool = False) -> Choice:
    """A plan that the caller chose, checked. Raises `PlanError` saying what rules it out."""
    if not isinstance(plan, GemmPlan):
        raise PlanError(f"plan: expected a GemmPlan or the name of one, got {type(plan).__name__}")
    kernel = kernel_named(plan.kernel)
    reason = kernel.supports(problem, device) or _misfit(plan, problem, kernel) or kernel.refusal(plan, problem)
    if reason is None and plan.cluster > device.num_sms:
        reason = f"needs {plan.cluster} multiprocessors, {device.name} has {device.num_sms}"
    if reason is None and batch_invariant and not kernel.is_batch_invariant(plan):
        reason = VARIES
    if reason is None:
        smem = kernel.smem(plan).launch_bytes
        if smem > device.smem_per_block:
            reason = f"needs {smem} bytes of shared memory, {device.name} has {device.smem_per_block} a block"
    if reason is not None:
        raise PlanError(f"plan: {plan.name} cannot be used", {kernel.NAME: reason})
    return Choice(plan, kernel, estimate(plan, problem, device), 1, ())


def _misfit(plan: GemmPlan, problem: GemmProblem, kernel: KernelSpec) -> str | None:
    """What is wrong with a plan whatever its kernel, or None."""
    for operand in "abd":
        planned, given = getattr(plan, f"{operand}_dtype"), getattr(problem, f"{operand}_dtype").name
        if planned != given:
            return f"is for {operand} of {planned}, got {given}"
    if plan.with_c != problem.with_c:
        return "is for products with an addend, got none" if plan.with_c else "is for products without an addend, got c (with_c=True)"
    if plan.row_scales and not problem.row_scales:
        return "reads A's scales row by row, which these cannot be: K contiguous, rows of whole 16 bytes"
    if plan.pdl and not kernel.LAUNCHES_DEPENDENTS:
        return "lets no grid behind it begin early, as pdl=True says"
    if plan.weights_first:
        return "is not the plan's to say that nobody writes the weights (weights_first=True): set_pdl(True, constant_weights=True) says so"
    if plan.resident and not kernel.RESIDENT:
        return f"keeps nothing of A in shared memory, got {plan.resident} blocks of K"
    if plan.block_k not in kernel.BLOCK_KS:
        return f"takes BLOCK_K of {kernel.BLOCK_KS}, got {plan.block_k}"
    if plan.multicast is not None and (plan.band < plan.cluster or plan.band % plan.cluster):
        return f"needs a band of whole clusters, got {plan.band} for clusters of {plan.cluster}"
    return None if plan.band >= 1 else f"needs a band of 1 or more, got {plan.band}"


__all__ = ["Choice", "Estimate", "choose", "estimate", "kernel_named", "named", "ranked", "validate", "waves"]
