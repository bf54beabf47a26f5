"""Where a problem stands under a device's ceilings, and what of a plan's time each pipe takes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ..cost import MACS_PER_CYCLE, Constants, Estimate, estimate
from ..device import Device
from ..kernels import GemmPlan
from ..plan import choose
from ..problem import GemmProblem
from .figures import new_figure


@dataclass(frozen=True)
class Roofline:
    """One problem and plan on one device. FLOP/s and bytes/s; times in microseconds.

    intensity  FLOP for each byte that has to move
    compute    the tensor cores' ceiling
    bandwidth  memory's, of the datasheet
    reached    the plan's FLOP/s, as `cost` estimates it, or as measured if `measured` was given
    """

    plan: GemmPlan
    problem: GemmProblem
    device: Device
    estimate: Estimate
    intensity: float
    compute: float
    bandwidth: float
    reached: float
    is_measured: bool = False

    @property
    def ridge(self) -> float:
        """The intensity from which on compute is the ceiling."""
        return self.compute / self.bandwidth

    @property
    def ceiling(self) -> float:
        """The most FLOP/s at this intensity."""
        return min(self.compute, self.intensity * self.bandwidth)

    @property
    def bound(self) -> str:
        """What sets the pace of the plan, by its estimate."""
        return self.estimate.bound

    @property
    def pipes(self) -> dict[str, float]:
        """The estimate's parts, in microseconds; they run side by side, so that their sum means nothing."""
        return {f.name: getattr(self.estimate, f.name) for f in fields(self.estimate) if f.name != "total"}

    def __str__(self) -> str:
        how = "measured" if self.is_measured else "estimated"
        return (
            f"{self.problem.m} x {self.problem.n} x {self.problem.k}: {self.intensity:.0f} FLOP a byte, ceiling {self.ceiling / 1e12:.0f} TFLOP/s "
            f"({'compute' if self.intensity > self.ridge else 'memory'}); {self.reached / 1e12:.0f} TFLOP/s {how}, "
            f"{100 * self.reached / self.ceiling:.0f} % of it, bound by {self.bound}"
        )

    def draw(self) -> Any:
        """The roofline with the plan under it, and beside it the plan's pipes. Returns matplotlib's Figure."""
        figure = new_figure((11, 4.5))
        roof, bars = figure.subplots(1, 2, width_ratios=(1.3, 1))
        low, high = min(self.intensity, self.ridge) / 8, max(self.intensity, self.ridge) * 8
        x = np.geomspace(low, high, 200)
        roof.loglog(x, np.minimum(self.compute, x * self.bandwidth) / 1e12, color="black")
        roof.plot(self.intensity, self.reached / 1e12, "o", label=f"{'measured' if self.is_measured else 'estimated'}: {self.plan.name}")
        roof.plot([self.intensity] * 2, [self.reached / 1e12, self.ceiling / 1e12], ":", color="gray")
        roof.set(
            xlabel="FLOP a byte", ylabel="TFLOP/s", title=f"{self.device.name}: {self.problem.m} x {self.problem.n} x {self.problem.k}"
        )
        roof.legend(fontsize=7)
        names = list(self.pipes)
        bars.barh(names, list(self.pipes.values()), color="#4878a8")
        bars.axvline(self.estimate.total, color="black", linestyle=":", label=f"total {self.estimate.total:.1f} us")
        bars.invert_yaxis()
        bars.set(xlabel="us, side by side", title=f"bound by {self.bound}")
        bars.legend(fontsize=7)
        return figure


def roofline(
    problem: GemmProblem, plan: GemmPlan | None = None, device: Device | None = None, *, measured: float | None = None
) -> Roofline:
    """The roofline of `problem`.

    problem   a `GemmProblem`
    plan      None: the one that would be chosen
    device    None: the current one, or the one that plans are made for
    measured  seconds of a call, in the place of the estimate

    >>> from dgnumba import lab
    >>> from dgnumba.device import Device
    >>> from dgnumba.problem import GemmProblem
    >>> seen = lab.roofline(GemmProblem(16, 4096, 7168), device=Device.named("h200"))
    >>> seen.intensity < seen.ridge
    True
    """
    device = device or Device.current()
    plan = plan or choose(problem, device).plan
    price = estimate(plan, problem, device)
    compute = 2.0 * MACS_PER_CYCLE * device.num_sms * Constants().clock * 1e9
    seconds = price.total * 1e-6 if measured is None else measured
    return Roofline(
        plan,
        problem,
        device,
        price,
        problem.flops / problem.bytes,
        compute,
        device.memory_bandwidth,
        problem.flops / seconds,
        measured is not None,
    )
