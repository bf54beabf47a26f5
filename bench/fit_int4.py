"""Fit `sm90_int4_cost.Int4Constants` to a sweep of plans, and say what the choice by them loses.

    python bench/bench_int4.py --sweep --out sweep.json      # on a GPU
    python bench/fit_int4.py sweep.json                      # anywhere

The loss is the mean squared logarithm of estimate over measurement, plus twice the mean regret: how much slower the plan that the estimate
prefers is than the fastest. Coordinate descent, one constant after the other, in steps that shrink.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from typing import Any

from dgnumba.device import Device
from dgnumba.int4_problem import Int4Problem
from dgnumba.kernels import sm90_int4_gemm_rules as rules
from dgnumba.kernels.int4_spec import Int4Plan
from dgnumba.kernels.sm90_int4_cost import Int4Constants, price

Row = tuple[Int4Plan, Int4Problem, int, int, float]


def rows_of(path: str) -> dict[Int4Problem, list[Row]]:
    """The sweep's rows, by problem."""
    out: dict[Int4Problem, list[Row]] = {}
    with open(path) as stream:
        rows = json.load(stream)["rows"]
    for row in rows:
        form, scale = row["format"].split()
        problem = Int4Problem(row["m"], row["n"], row["k"], row["activation"], "int4", "bfloat16", int(form.split("_g")[1]), scale)
        block_m, block_n, records, split, stages = row["choices"]
        plan = Int4Plan.of(problem, rules.NAME, block_m=block_m, block_n=block_n, records=records, split=split, num_stages=stages)
        out.setdefault(problem, []).append((plan, problem, rules.count_tiles(plan, problem), rules.accumulators(plan), row["us"]))
    return out


def regrets(groups: dict[Int4Problem, list[Row]], constants: Int4Constants, device: Device) -> dict[Int4Problem, tuple[float, Row, Row]]:
    """For each problem: the time of the plan that the estimate prefers over the fastest's, and both rows."""
    out = {}
    for problem, rows in groups.items():
        chosen = min(rows, key=lambda r: price(*r[:2], device, *r[2:4], constants))
        fastest = min(rows, key=lambda r: r[4])
        out[problem] = (chosen[4] / fastest[4], chosen, fastest)
    return out


def loss(groups: dict[Int4Problem, list[Row]], constants: Int4Constants, device: Device) -> float:
    """What is made small."""
    rows = [row for group in groups.values() for row in group]
    errors = [math.log(price(*r[:2], device, *r[2:4], constants) / r[4]) ** 2 for r in rows]
    lost = [math.log(ratio) for ratio, _, _ in regrets(groups, constants, device).values()]
    return sum(errors) / len(errors) + 2 * sum(lost) / len(lost)


def fit(groups: dict[Int4Problem, list[Row]], device: Device, rounds: int) -> Int4Constants:
    """Constants by coordinate descent."""
    best, constants = math.inf, Int4Constants()
    step = 1.5
    for _ in range(rounds):
        for field in dataclasses.fields(Int4Constants):
            here = getattr(constants, field.name)
            for factor in (step, 1 / step):
                tried = dataclasses.replace(constants, **{field.name: here * factor or 0.001})
                if tried.memory_share <= 1 and (found := loss(groups, tried, device)) < best:
                    best, constants = found, tried
        step = 1 + (step - 1) * 0.85
    return constants


def main() -> None:
    """Fit, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep")
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    device, groups = Device.named("h200"), rows_of(args.sweep)
    for name, constants in (("as they are", Int4Constants()), ("fitted", fit(groups, device, args.rounds))):
        found = regrets(groups, constants, device)
        ratios: list[float] = [ratio for ratio, _, _ in found.values()]
        print(f"{name}: loss {loss(groups, constants, device):.4f}, regret mean {sum(ratios) / len(ratios):.3f}, worst {max(ratios):.3f}")
    worst: list[Any] = sorted(found.items(), key=lambda item: -item[1][0])[:12]
    for problem, (ratio, chosen, fastest) in worst:
        print(f"  {problem.a_dtype} {problem.m}x{problem.n}x{problem.k}: {ratio:.3f}; chosen {chosen[0].name.split(' b')[0]} {chosen[4]:.1f}, "
              f"fastest {fastest[0].name.split(' b')[0]} {fastest[4]:.1f}")  # fmt: skip
    print("\n".join(f"    {f.name}: float = {getattr(constants, f.name):.4g}" for f in dataclasses.fields(Int4Constants)))


if __name__ == "__main__":
    main()
