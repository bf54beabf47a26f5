"""Fit the constants of `dgnumba.cost` to recorded measurements: ``python bench/fit_cost.py [--held-out]``.

Reads `bench/results/tune_h200.json` and `tune_gemv_h200.json`; prints, for each kernel in them, the constants to put into `dgnumba/cost.py` and
`dgnumba/cost_gemv.py` (the dense kernel's first: the swapped one's fit begins with them), how well they tell the time, and how much slower than the
best measured plan the one is that they pick.
``--held-out`` fits again without each (N, K) and without each M, and judges the picks there. No GPU.

A file: `device`, a key of `dgnumba.device.KNOWN`; `runs`: what a run says of L2 (`is_dirty`), and whether a later one supersedes it; `rows`, one
object a measurement: run, kernel, m, n, k, us, and plan, the fields of `GemmPlan` that differ from its defaults; `rivals`, what other libraries
took in the same run. The runs' clocks differ: where a kernel lasts, its time is put to the pace of all runs, which the rivals tell.
A plan that several runs have for one shape counts as their geometric mean; one that no kernel offers for its shape is left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from dgnumba import cost_gemv
from dgnumba.cost import CONSTANTS, Constants, Work, price, work_of
from dgnumba.device import Device
from dgnumba.dtypes import DTYPES
from dgnumba.kernels import KERNELS, GemmPlan
from dgnumba.problem import GemmProblem

RESULTS = tuple(Path(__file__).parent / "results" / name for name in ("tune_h200.json", "tune_gemv_h200.json"))

DENSE, SWAPPED, RESIDENT = "sm90_fp8_gemm_1d2d", "sm90_fp8_gemm_1d2d_swap_ab", "sm90_fp8_gemm_1d2d_resident"
STREAMED, STREAMED_SPLIT, STREAMED_RS = cost_gemv.NAMES

AnyConstants = Constants | cost_gemv.Constants

STARTS: dict[str, AnyConstants] = {
    DENSE: Constants(
        launch=2.0, wgmma_floor=64.0, promotion=1.0, block_1=100.0, block_2=100.0, block_4=100.0, rotate_block=50.0, rotate_tile=500.0,
        segment=5.0, peer_block=50.0, peer_tile=500.0, tile=1000.0, store=1.0, store_again=1.0, store_warp=0.005, store_panel=0.005, power=0.1,
        power_exponent=1.0, power_load=0.2, power_slow=0.2, power_time=100.0, load_rate=100.0, port_rate=2000.0, memory_share=0.8,
        write_cost=1.0, write_kept=0.2, dirty_share=0.5, ragged=0.1, ragged_row=0.001,
    ),
    # A split's CTAs do not wait for each other in the loop. Its store is by the element, and begins at what one of the dense kernel's costs.
    # Boxes past the end cost nothing where they are A's few rows: M = 1 takes the time of M = 8. Its memory_norm from 0.9 (free) to 3 picks the same
    # plans, and memory_share is a bandwidth near 3 only.
    SWAPPED: replace(
        CONSTANTS[DENSE], memory_norm=3.0, peer_block=0.0, store=0.0, store_again=0.0, store_direct=0.06, ragged=0.0, ragged_row=0.0, row_copies=0.0
    ),
    # As the swapped one, but for its store, which is as the dense kernel's.
    RESIDENT: replace(CONSTANTS[DENSE], peer_block=0.0, store_again=0.0, store_direct=0.0, ragged=0.0, ragged_row=0.0, row_copies=0.0),
    # One warp's load after another, and no more than the datasheet's bandwidth; of a split the latter is free (`cost_gemv.CONSTANTS`).
    STREAMED: cost_gemv.Constants(2.0, 0.02, 0.0, 0.0, 0.0, 0.5, 0.0, 0.02, 0.0, 0.0, 0.0, 0.0, 1.0, 1.5),
    STREAMED_SPLIT: cost_gemv.Constants(2.0, 0.02, 0.02, 0.1, 0.4, 0.1, 0.0, 0.002, 0.001, 0.01, 0.1, 0.0, 1.0, 1.5),
    STREAMED_RS: cost_gemv.Constants(2.0, 0.02, 0.05, 0.685, 0.4, 0.1, 1.0, 0.002, 0.001, 0.0, 0.1, 0.1, 1.0, 2.0),
}  # fmt: skip
"""Where a fit begins, by kernel. The dense kernel's: round numbers of the right order, which pick badly, so that what is found comes from the
measurements. The swapped one's: where the dense one's fit ended, as clock, power, ports and memory are the same device's. Of those for very few
rows: round numbers."""

FREE = {
    DENSE: frozenset(asdict(STARTS[DENSE])) - {"clock", "latency", "memory_norm", "peer_sum", "store_direct", "row_copies", "doubt"},
    SWAPPED: frozenset(
        "launch wgmma_floor promotion block_1 block_2 peer_tile peer_sum tile store_direct load_rate latency memory_share".split()
    ),
    RESIDENT: frozenset("launch wgmma_floor promotion block_2 tile store load_rate latency memory_share memory_norm".split()),
    STREAMED: frozenset("launch row step token exponent".split()),
    STREAMED_SPLIT: frozenset("launch row gather meeting arrival step token column port sum share exponent".split()),
    STREAMED_RS: frozenset("launch row gather arrival step token column sum crowd share exponent".split()),
}
"""Constants that a kernel's measurements tell; the others stay as they are."""

BELIEF, SPREAD = 0.03, 1.0
"""A constant e**SPREAD times its start costs the fit as much as one measurement that is BELIEF * 100 % off."""

OUTLIER = 0.03
"""Errors of the logarithm beyond this count by their size, not its square."""

NEAR, FAR = 0.15, 0.15
"""A measurement counts exp(-slower / (2 NEAR)), FAR at least: choices are made near the best. `slower` is its time over the shape's best, less 1."""

PACED = 60.0
"""Microseconds from which a rival's time tells a run's pace (heat and clock); below, it tells noise."""

WITHIN = 1.03
"""A pick is good when it is not slower than the best measured plan times this."""


@dataclass(frozen=True)
class Measured:
    """One kernel's measurements, element by element."""

    kernel: str
    plans: tuple[GemmPlan, ...]
    shapes: np.ndarray
    """[rows, 3]: m, n, k."""
    us: np.ndarray
    work: Work | cost_gemv.Work

    @property
    def over_best(self) -> np.ndarray:
        """Each time over the best of its shape."""
        _, shape = np.unique(self.shapes, axis=0, return_inverse=True)
        best = np.full(shape.max() + 1, np.inf)
        np.minimum.at(best, shape.ravel(), self.us)
        return self.us / best[shape.ravel()]

    def where(self, keep: np.ndarray) -> Measured:
        """The rows of a mask."""
        plans = tuple(p for p, kept in zip(self.plans, keep) if kept)
        return Measured(self.kernel, plans, self.shapes[keep], self.us[keep], type(self.work)(*(x[keep] for x in self.work)))


def sort_of(plan: GemmPlan) -> GemmPlan:
    """The plan, of the dense kernel whatever its stages, as many as fit. Of the kernels for few rows they are another choice."""
    return replace(plan, num_stages=0) if plan.kernel == DENSE else plan


@cache
def _offered(problem: GemmProblem, device: Device) -> frozenset[GemmPlan]:
    """The sorts of plans among which the planner picks, in the order of tiles that was measured."""
    kernels = [kernel for kernel in KERNELS if kernel.supports(problem, device) is None]
    return frozenset(sort_of(replace(plan, band=GemmPlan.band)) for kernel in kernels for plan in kernel.candidates(problem, device))


def _paces(rivals: list[dict[str, Any]]) -> dict[tuple[str, tuple[int, int, int]], float]:
    """Run and shape -> how slow all kernels were in it, beside the other runs of that shape."""
    by_shape: dict[Any, dict[str, float]] = {}
    for row in rivals:
        us = statistics.geometric_mean(row[name] for name in ("deepgemm", "cublaslt") if name in row)
        by_shape.setdefault((row["m"], row["n"], row["k"]), {})[row["run"]] = us
    paces: dict[tuple[str, tuple[int, int, int]], float] = {}
    for shape, by_run in by_shape.items():
        usual = statistics.geometric_mean(by_run.values())
        paces |= {(run, shape): us / usual if usual >= PACED else 1.0 for run, us in by_run.items()}
    return paces


def read(paths: Iterable[Path] = RESULTS) -> list[Measured]:
    """Files' measurements on one device, by kernel."""
    files = [json.loads(path.read_text()) for path in paths]
    runs = {name: run for recorded in files for name, run in recorded["runs"].items()}
    device, pace = Device.named(files[0]["device"]), _paces([row for recorded in files for row in recorded["rivals"]])
    superseded = {run for run in runs if runs[run].get("is_superseded")}
    times: dict[Any, dict[str, float]] = {}
    for row in (row for recorded in files for row in recorded["rows"]):
        plan, shape = GemmPlan(row["kernel"], **row["plan"]), (row["m"], row["n"], row["k"])
        problem = GemmProblem(*shape, d_dtype=DTYPES[plan.d_dtype])
        if sort_of(plan) in _offered(problem, device):
            key = plan, *shape, runs[row["run"]]["is_dirty"]
            times.setdefault(key, {})[row["run"]] = row["us"] / pace[row["run"], shape]
    found = []
    for kernel in dict.fromkeys(cost_gemv.model_of(plan) for plan, *_ in times):
        keys = [key for key in times if cost_gemv.model_of(key[0]) == kernel]
        plans, m, n, k, is_dirty = zip(*keys)
        us = np.array([_usual(times[key], superseded) for key in keys])
        shapes = np.array([m, n, k]).T
        if kernel in cost_gemv.NAMES:
            problems = [GemmProblem(m, n, k, d_dtype=DTYPES[plan.d_dtype]) for plan, m, n, k, _ in keys]
            rows = [cost_gemv.work_of(plan, problem, device) for plan, problem in zip(plans, problems)]
            found.append(Measured(kernel, plans, shapes, us, cost_gemv.Work(*map(np.array, zip(*rows)))))
            continue
        itemsize = np.array([DTYPES[plan.d_dtype].itemsize for plan in plans])
        work = work_of(plans, np.array(m), np.array(n), np.array(k), itemsize, device, np.array(is_dirty))
        found.append(Measured(kernel, plans, shapes, us, Work(*np.broadcast_arrays(*work))))
    return found


def totals(data: Measured, constants: AnyConstants) -> np.ndarray:
    """Microseconds that the model has for each measurement."""
    model: Any = cost_gemv.price if data.kernel in cost_gemv.NAMES else price
    return np.asarray(model(data.work, constants)[0])


def _usual(us: dict[str, float], superseded: set[str]) -> float:
    return statistics.geometric_mean([time for run, time in us.items() if run not in superseded] or us.values())


def fit(data: Measured, max_steps: int = 40) -> AnyConstants:
    """The constants under which `data` is least surprising: robust least squares of the logarithm, drawn a little to where they start."""
    from scipy.optimize import least_squares

    start, names = STARTS[data.kernel], sorted(FREE[data.kernel])
    begin = np.log([getattr(start, name) for name in names])
    weight = np.maximum(np.exp((1 - data.over_best) / (2 * NEAR)), FAR)

    def constants(x: np.ndarray) -> AnyConstants:
        return replace(start, **dict(zip(names, np.exp(x).tolist())))

    def surprise(x: np.ndarray) -> np.ndarray:
        error = np.log(totals(data, constants(x)) / data.us) * weight / OUTLIER
        robust = np.sign(error) * OUTLIER * np.sqrt(2 * np.sqrt(1 + error**2) - 2)
        return np.concatenate([robust, BELIEF / SPREAD * (x - begin)])

    return constants(least_squares(surprise, begin, max_nfev=max_steps).x)


Losses = dict[tuple[int, ...], float]


def losses(kernels: Iterable[tuple[Measured, AnyConstants]]) -> Losses:
    """For each shape, the time of the plan that the constants pick, of any kernel, over the best measured one's."""
    best: dict[tuple[int, ...], float] = {}
    picks: dict[tuple[int, ...], tuple[float, float]] = {}
    for data, constants in kernels:
        total = totals(data, constants).tolist()
        for shape, priced, us in zip(map(tuple, data.shapes.tolist()), total, data.us.tolist()):
            best[shape] = min(us, best.get(shape, us))
            picks[shape] = min((priced, us), picks.get(shape, (priced, us)))
    return {shape: us / best[shape] for shape, (_, us) in picks.items()}


def held_out(kernels: Sequence[Measured], columns: tuple[int, ...]) -> Losses:
    """The losses of every shape under constants that were fitted without all shapes that have its m, n, k of `columns`."""
    found: Losses = {}
    for group in np.unique(np.concatenate([data.shapes[:, columns] for data in kernels]), axis=0):
        masks = [(data.shapes[:, columns] == group).all(1) for data in kernels]
        found |= losses((data.where(held), fit(data.where(~held))) for data, held in zip(kernels, masks) if held.any())
    return found


def share_within(found: Iterable[float]) -> float:
    """The share of losses that are good."""
    return float(np.mean(np.array(list(found)) <= WITHIN))


def _say(title: str, found: Losses) -> None:
    good, mean = share_within(found.values()), float(np.exp(np.mean(np.log(list(found.values())))))
    print(
        f"{title}: within {WITHIN - 1:.0%} on {good:.0%} of {len(found)} shapes, slower than the best by {mean - 1:.2%} in the geometric mean"
    )
    for shape, loss in sorted(found.items()):
        if loss > WITHIN:
            print("   ", "x".join(map(str, shape)), f"{loss:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Fit dgnumba.cost to recorded measurements.")
    parser.add_argument("results", nargs="*", type=Path, default=RESULTS)
    parser.add_argument("--held-out", action="store_true", help="also fit without each (N, K) and each M, and judge there")
    args = parser.parse_args()
    kernels, fitted = read(args.results), []
    for data in kernels:
        constants = fit(data)
        fitted.append((data, constants))
        error = np.log(totals(data, constants) / data.us)
        near = data.over_best < 1 + NEAR
        print(f'    "{data.kernel}": {type(constants).__name__}(')
        print("".join(f"        {name}={float(f'{value:.3g}')},\n" for name, value in asdict(constants).items()), end="    ),\n")
        print(
            f"{len(error)} measurements, rms error {np.sqrt((error**2).mean()):.1%}, {np.sqrt((error[near] ** 2).mean()):.1%} near the best"
        )
        _say("picks of this kernel", losses([fitted[-1]]))
    _say("picks of all kernels", losses(fitted))
    if args.held_out:
        _say("fitted without the shape's (N, K)", held_out(kernels, (1, 2)))
        _say("fitted without the shape's M", held_out(kernels, (0,)))


if __name__ == "__main__":
    main()
