"""All plans that a layer needs, whatever the number of tokens: what `warmup` compiles, and a choice held to a few. Pure, no GPU.

A layer is N, K and the types; M comes with each call, and is in no kernel. `chosen` says which plans the calls from one token to `TOKENS` of
them take; `family` picks as few as one likes, and what that costs by the model of `cost`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from .cost import CONSTANTS, Constants, estimates, is_priced_together, price, turning, work_of
from .device import Device
from .errors import ProblemError, UnsupportedError
from .kernels import KERNELS, GemmPlan, KernelSpec
from .problem import GemmProblem

TOKENS = 16384
"""Most rows of A that count; beyond them plans are those of that many."""

_GRID = np.array([*range(1, 128), *(m + more for m in range(128, TOKENS, 64) for more in (0, 1)), TOKENS])
"""Numbers of tokens at which kernels are asked what they offer: it changes at few of them, and what it costs most behind a multiple of 64."""

_FEW = np.array(sorted({*(round(2 ** (i / 4)) for i in range(57)), *range(8, 129, 8)}))
"""Numbers of tokens at which families are compared: four an octave, and what tiles of few tokens are made for."""

_CHUNK = 512
_SLACK = 1.15
"""A plan that is dearer than the best by this factor, wherever the grid looks nearby, is not priced between."""

_EMPHASIS = 8
"""Exponent of the mean over tokens that a family has least of: a great loss at few numbers of tokens counts for more than a small one at many."""


class Offers(NamedTuple):
    """What the kernels offer a layer.

    grid     numbers of tokens, rising
    plans    in the order in which they are preferred
    kernels  slices of `plans`, a kernel's each
    offered  [plans, grid]  whether a plan is a candidate there
    us       [plans, grid]  what it should cost, wherever
    """

    grid: Any
    plans: tuple[GemmPlan, ...]
    kernels: tuple[slice, ...]
    offered: Any
    us: Any


def _offers(layer: GemmProblem, device: Device, grid: Any, batch_invariant: bool = False) -> Offers:
    refusals: dict[str, str] = {}
    plans: list[GemmPlan] = []
    kernels: list[slice] = []
    rows: list[Any] = []
    for kernel in KERNELS:
        found: dict[GemmPlan, Any] = {}
        for i, m in enumerate(grid.tolist()):
            problem = replace(layer, m=m)
            reason = kernel.supports(problem, device)
            if reason is not None:
                refusals[kernel.NAME] = reason
                continue
            for plan in kernel.candidates(problem, device):
                if batch_invariant and not kernel.is_batch_invariant(plan):
                    continue
                found.setdefault(plan, np.zeros(len(grid), bool))[i] = True
        if found:
            kernels.append(slice(len(plans), len(plans) + len(found)))
            plans += found
            rows += found.values()
    if not plans:
        raise UnsupportedError(f"no kernel takes {layer} on {device.name}", refusals)
    us = np.concatenate([_times(plans[part], grid, layer, device) for part in kernels])
    return Offers(grid, tuple(plans), tuple(kernels), np.array(rows), us)


def _times(plans: Sequence[GemmPlan], ms: Any, layer: GemmProblem, device: Device) -> Any:
    """Microseconds [plans, ms] of plans of one kernel; infinite where it takes no product."""
    if not is_priced_together(plans[0].kernel):
        return np.array([_times_at(plans, replace(layer, m=m), device) for m in ms.tolist()]).T
    work = work_of(plans, ms[:, None], layer.n, layer.k, layer.d_dtype.itemsize, device)
    total = price(work, CONSTANTS.get(plans[0].kernel, Constants()))[0] + np.array([turning(plan, layer) for plan in plans])
    return np.broadcast_to(total, (len(ms), len(plans))).T


def _times_at(plans: Sequence[GemmPlan], problem: GemmProblem, device: Device) -> list[float]:
    kernel = next(kernel for kernel in KERNELS if plans[0].kernel == kernel.NAME)
    if kernel.supports(problem, device) is not None:
        return [np.inf] * len(plans)
    return [estimate.total for estimate in estimates(plans, problem, device)]


def chosen(layer: GemmProblem, device: Device, batch_invariant: bool = False) -> dict[GemmPlan, int]:
    """Every plan that `plan.choose` takes for a layer and 1 to `TOKENS` rows of A (`layer.m` says nothing) -> the least M that takes it.

    `batch_invariant` as of `plan.choose`.

    Raises `UnsupportedError` where no kernel takes the layer.
    """
    offers = _offers(layer, device, _GRID, batch_invariant)
    grid_us = np.where(offers.offered, offers.us, np.inf)
    is_near = grid_us <= grid_us.min(0) * _SLACK
    out: dict[GemmPlan, int] = {}
    for first in range(1, TOKENS + 1, _CHUNK):
        ms = np.arange(first, min(first + _CHUNK, TOKENS + 1))
        column = np.searchsorted(_GRID, ms)
        nearby = is_near[:, max(0, column[0] - 1) : column[-1] + 2].any(1)
        best, who = np.full(len(ms), np.inf), np.zeros(len(ms), int)
        for part in offers.kernels:
            indices = np.flatnonzero(nearby[part]) + part.start
            if len(indices):
                us = _times([offers.plans[i] for i in indices], ms, layer, device)
                us = np.where(offers.offered[np.ix_(indices, column)], us, np.inf)
                row = us.argmin(0)
                least = us[row, np.arange(len(ms))]
                best, who = np.where(least < best, least, best), np.where(least < best, indices[row], who)
        indices, at = np.unique(who, return_index=True)
        for index, where in zip(indices.tolist(), at.tolist()):
            out.setdefault(offers.plans[index], int(ms[where]))
    return dict(sorted(out.items(), key=lambda entry: entry[1]))


@lru_cache(maxsize=64)
def family(layer: GemmProblem, device: Device, most: int, batch_invariant: bool = False) -> tuple[tuple[GemmPlan, int | None], ...]:
    """At most `most` plans that between them take any number of tokens, and the largest M that each is for (None: any).

    Of all such families one of little loss: the mean of (time / that of the best plan) ** 8 over M, each octave of tokens alike, which no
    exchange of one plan lowers. A plan is also offered for fewer tokens than it was made for. `batch_invariant` as of `plan.choose`.

    Raises:
        ProblemError: no `most` plans take all. UnsupportedError: no kernel takes the layer.
    """
    offers = _offers(layer, device, _FEW, batch_invariant)
    grid, end = offers.grid, len(offers.grid) - 1
    last = end - offers.offered[:, ::-1].argmax(1)
    us = np.where(np.arange(end + 1) <= last[:, None], offers.us, np.inf)
    best = us.min(0)
    loss = (us / np.where(np.isfinite(best), best, 1)) ** _EMPHASIS
    octaves = np.diff(np.log(np.concatenate([[0.5], grid])))
    picked = _exchanged(np.minimum(loss, 1e30), octaves, most)
    if not np.isfinite(us[picked].min(0)).all():
        raise ProblemError(f"most: expected as many plans as take 1 to {TOKENS} tokens, got {most}")
    return tuple((offers.plans[i], None if last[i] == end else int(grid[last[i]])) for i in sorted(picked))


def _exchanged(loss: Any, weights: Any, most: int) -> list[int]:
    """Rows of `loss` whose least, summed with `weights`, is small: begun with each row in turn, one after another the best, then exchanged while
    that helps. Begun with one row only, five plans of 576x7168 had 19 % more than the least, by an integer
    program, which this finds.
    """
    rows = _undominated(loss)
    loss = loss[rows]
    ends = [_exchanged_from(first, loss, weights, most) for first in range(len(loss))]
    best = min(ends, key=lambda picked: float(loss[picked].min(0) @ weights))
    return sorted({int(rows[i]) for i in best})


def _undominated(loss: Any) -> Any:
    """Indices of the rows that no other row is below or level with everywhere; of equal rows the first."""
    below = (loss[:, None] <= loss).all(2)
    is_later = np.tri(len(loss), k=-1, dtype=bool).T
    return np.flatnonzero(~(below & (~below.T | is_later)).any(0))


def _exchanged_from(first: int, loss: Any, weights: Any, most: int) -> list[int]:
    picked, least = [first], loss[first]
    while len(picked) < min(most, len(loss)):
        picked.append(int((np.minimum(loss, least) @ weights).argmin()))
        least = np.minimum(least, loss[picked[-1]])
    improves = True
    while improves:
        improves = False
        for i in range(len(picked)):
            others = loss[picked[:i] + picked[i + 1 :]].min(0, initial=1e30)
            sums = np.minimum(loss, others) @ weights
            better = int(sums.argmin())
            if sums[better] < sums[picked[i]] * (1 - 1e-9):
                picked[i], improves = better, True
    return picked


def members(problem: GemmProblem, device: Device, most: int, batch_invariant: bool = False) -> list[tuple[KernelSpec, list[GemmPlan]]]:
    """Each kernel's plans of a layer's family that take a problem."""
    found = family(replace(problem, m=TOKENS), device, most, batch_invariant)
    out = []
    for kernel in KERNELS:
        plans = [plan for plan, largest in found if plan.kernel == kernel.NAME and (largest is None or problem.m <= largest)]
        if plans and kernel.supports(problem, device) is None:
            out.append((kernel, plans))
    return out


__all__ = ["TOKENS", "chosen", "family", "members"]
