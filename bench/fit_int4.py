"""Fit `sm90_int4_cost.Int4Constants` to a sweep of plans, and say what the choice by them loses. No GPU.

    python bench/bench_int4.py --sweep --out sweep.json      # on a GPU
    python bench/fit_int4.py [sweep.json] [--held-out]       # anywhere; without a file: bench/results/tune_int4_h200.json

Robust least squares of the logarithm of estimate over measurement, in which plans near their problem's best count most, as choices are made
there; constants are drawn a little to where they start. A regret is how much longer the plan that the estimate prefers takes than the fastest.
``--held-out`` fits again without each (N, K), and judges there.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

import numpy as np

from dgnumba.device import Device
from dgnumba.int4_plan import ROUNDED_SUMS, ROUNDING
from dgnumba.int4_problem import Int4Problem
from dgnumba.kernels import sm90_int4_gemm_rules as rules
from dgnumba.kernels.int4_spec import Int4Plan
from dgnumba.kernels.sm90_int4_cost import CONSTANTS, Int4Constants, Work, microseconds, work_of

RESULTS = Path(__file__).parent / "results" / "tune_int4_h200.json"

START = Int4Constants(
    launch=2.5, split=1.0, exchange=20.0, tile=0.5, store=20.0, wgmma_floor=16.0, latency=60.0, stage=20.0, unpack_wide=100.0, unpack_e4m3=100.0,
    unpack_bytes=100.0, promotion_e4m3=2.0, promotion_bytes=2.0, memory_share=0.9,
)  # fmt: skip
"""Where the fit begins: round numbers of the right order. What is not named here stays as it is: the sweep does not tell it from the others."""

FREE = tuple(
    "launch split exchange tile store wgmma_floor latency stage unpack_wide unpack_e4m3 unpack_bytes promotion_e4m3 promotion_bytes "
    "promotion_rows promotion_f16 pipes_f16 memory_share fold fold_sharing sharing".split()
)
"""What is fitted."""

NEAR, FAR, BELIEF, SPREAD, OUTLIER = 0.15, 0.15, 0.03, 2.0, 0.03
"""As in `fit_cost`."""

Regrets = dict[Int4Problem, tuple[float, Int4Plan, Int4Plan]]
"""For each problem: the time of the plan that the estimate prefers over the fastest's, and both plans."""


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Measurements, element by element: plans, problems, microseconds, and the model's view of them."""

    plans: tuple[Int4Plan, ...]
    problems: tuple[Int4Problem, ...]
    us: np.ndarray
    work: Work

    @property
    def over_best(self) -> np.ndarray:
        """Each time over the best of its problem."""
        best: dict[Int4Problem, float] = {}
        for problem, us in zip(self.problems, self.us.tolist()):
            best[problem] = min(us, best.get(problem, us))
        return self.us / np.array([best[problem] for problem in self.problems])

    def where(self, keep: np.ndarray) -> Sweep:
        """The rows of a mask."""
        plans, problems = (tuple(x for x, kept in zip(xs, keep) if kept) for xs in (self.plans, self.problems))
        return Sweep(plans, problems, self.us[keep], Work(*(x[keep] for x in self.work)))


def read(path: Path = RESULTS) -> Sweep:
    """The rows of a sweep on an H200."""
    device, plans, problems, us = Device.named("h200"), [], [], []
    # a sweep has the plans of each kernel that takes a problem
    rows = [row for row in json.loads(path.read_text())["rows"] if row.get("kernel", rules.NAME) == rules.NAME]
    keys = [tuple(row[name] for name in ("m", "n", "k", "activation", "format")) for row in rows]
    folded = {key for key, row in zip(keys, rows) if row.get("fold")}
    for key, row in zip(keys, rows):
        form, scale = row["format"].split()
        group, may_fold = int(form.split("_g")[1]), key in folded
        kind, by_row = row["activation"].removesuffix("_row"), row["activation"].endswith("_row")
        # rows that say nothing of it were measured before any plan stored four columns together
        problem = Int4Problem(row["m"], row["n"], row["k"], kind, "int4", "bfloat16", group, scale, may_fold=may_fold, a_by_row=by_row,
                              may_sum_f16=by_row, d_has_quads=row.get("d_has_quads", False))  # fmt: skip
        block_m, block_n, records, split, stages = row["choices"]
        choices = {"block_m": block_m, "block_n": block_n, "records": records, "split": split, "num_stages": stages}
        plans.append(Int4Plan.of(problem, rules.NAME, fold=row.get("fold", False), tail=row.get("tail", 1),
                                 f16_sums=row.get("f16_sums", False), quads=row.get("quads", False), **choices))  # fmt: skip
        problems.append(problem)
        us.append(row["us"])
    work = [work_of(p, q, device, rules.count_tiles(p, q), rules.accumulators(p)) for p, q in zip(plans, problems)]
    return Sweep(tuple(plans), tuple(problems), np.array(us), Work(*map(np.array, zip(*work))))


def regrets(sweep: Sweep, constants: Int4Constants = CONSTANTS) -> Regrets:
    """What the choice by the estimates loses."""
    rows: dict[Int4Problem, list[tuple[float, float, Int4Plan]]] = {}
    for problem, *row in zip(sweep.problems, microseconds(sweep.work, constants).tolist(), sweep.us.tolist(), sweep.plans):
        rows.setdefault(problem, []).append((row[0], row[1], row[2]))
    found: Regrets = {}
    for problem, tried in rows.items():
        # as `choose_int4` has it: a plan that rounds weights must be cheaper by more than a little
        _, us, chosen = min(tried, key=lambda row: row[0] * (ROUNDING if row[2].fold else ROUNDED_SUMS if row[2].f16_sums else 1))
        _, least, fastest = min(tried, key=lambda row: row[1])
        found[problem] = us / least, chosen, fastest
    return found


def fit(sweep: Sweep) -> Int4Constants:
    """The constants under which the sweep is least surprising."""
    from scipy.optimize import least_squares

    begin = np.log([getattr(START, name) for name in FREE])
    weight = np.maximum(np.exp((1 - sweep.over_best) / (2 * NEAR)), FAR)

    def constants(x: np.ndarray) -> Int4Constants:
        return dataclasses.replace(START, **dict(zip(FREE, np.exp(x).tolist())))

    def surprise(x: np.ndarray) -> np.ndarray:
        error = np.log(microseconds(sweep.work, constants(x)) / sweep.us) * weight / OUTLIER
        robust = np.sign(error) * OUTLIER * np.sqrt(2 * np.sqrt(1 + error**2) - 2)
        return np.concatenate([robust, BELIEF / SPREAD * (x - begin)])

    return constants(least_squares(surprise, begin, max_nfev=60).x)


def held_out(sweep: Sweep) -> Regrets:
    """The regrets of every problem under constants that were fitted without all problems of its N and K."""
    found: Regrets = {}
    for extents in dict.fromkeys((problem.n, problem.k) for problem in sweep.problems):
        held = np.array([(problem.n, problem.k) == extents for problem in sweep.problems])
        found |= regrets(sweep.where(held), fit(sweep.where(~held)))
    return found


def _say(title: str, found: Regrets) -> None:
    ratios = [ratio for ratio, _, _ in found.values()]
    print(f"{title}: {len(ratios)} problems, regret mean {np.mean(ratios):.4f}, worst {max(ratios):.3f}")
    for problem, (ratio, chosen, fastest) in sorted(found.items(), key=lambda item: -item[1][0])[:8]:
        print(f"    {ratio:.3f}  {problem.m}x{problem.n}x{problem.k}: chosen {chosen.name}, fastest {fastest.name}")


def main() -> None:
    """Fit, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", nargs="?", type=Path, default=RESULTS)
    parser.add_argument("--held-out", action="store_true", help="also fit without each (N, K), and judge there")
    args = parser.parse_args()
    sweep = read(args.sweep)
    for name, constants in (("as they are", CONSTANTS), ("fitted", fit(sweep))):
        error = np.log(microseconds(sweep.work, constants) / sweep.us)
        near = sweep.over_best < 1 + NEAR
        print(
            f"{name}: {len(error)} measurements, rms error {np.sqrt((error**2).mean()):.1%}, {np.sqrt((error[near] ** 2).mean()):.1%} near the best"
        )
        _say(name, regrets(sweep, constants))
    if args.held_out:
        _say("fitted without the shape's (N, K)", held_out(sweep))
    print("\n".join(f"    {f.name}: float = {getattr(constants, f.name):.3g}" for f in dataclasses.fields(Int4Constants)))


if __name__ == "__main__":
    main()
