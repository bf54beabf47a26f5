"""Compile every plan that the heuristic can choose for the dense shapes, and every candidate once; write what came of it.

    python tests/kernels/full_report.py [--jobs 2] [--output bench/results/compile_full.json] [--chosen-only]

Needs numba-cuda, NVVM and ptxas, and no GPU. Exits with 1 if any plan spills, warns, or misses a rule of `compiled_plans.problems_with`.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from compiled_plans import candidate_plans, chosen_plans, compile_plan, problems_with  # noqa: E402

from dgnumba.assemble import assembler  # noqa: E402


def compiled_row(plan):
    """One plan's row; what is wrong with it under "faults"."""
    try:
        got = compile_plan(plan)
    except Exception as error:
        return {"kernel": plan.kernel, "plan": plan.name, "faults": [f"{type(error).__name__}: {error}"[:500]]}
    return {**got.row(plan), "faults": problems_with(plan, got)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", type=Path, default=ROOT / "bench" / "results" / "compile_full.json")
    parser.add_argument("--chosen-only", action="store_true", help="leave out the candidates that no dense shape takes")
    options = parser.parse_args()
    chosen = chosen_plans()
    plans = list(chosen) + ([] if options.chosen_only else [p for p in candidate_plans() if p not in chosen])
    rows, began = [], time.monotonic()
    with ProcessPoolExecutor(options.jobs) as pool:
        for plan, row in zip(plans, pool.map(compiled_row, plans, chunksize=4)):
            row["chosen_for"] = chosen.get(plan, [])
            rows.append(row)
            if row["faults"] or len(rows) % 25 == 0:
                print(f"{len(rows)}/{len(plans)} {row['kernel']} {row['plan']}: {row['faults'] or 'well'}", flush=True)
    faulty = [r for r in rows if r["faults"]]
    report = {
        "command": "python tests/kernels/full_report.py" + (" --chosen-only" if options.chosen_only else ""),
        "date": datetime.date.today().isoformat(),
        "versions": {name: importlib.metadata.version(name) for name in ("numba", "numba-cuda", "nvidia-nvvm")}
        | {"assembler": assembler()},
        "seconds": round(time.monotonic() - began),
        "problems": sum(map(len, chosen.values())),
        "plans_chosen": len(chosen),
        "plans": len(rows),
        "faulty": len(faulty),
        "rows": rows,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(report, indent=1) + "\n")
    print(f"{len(rows)} plans ({len(chosen)} chosen for {report['problems']} problems), {len(faulty)} at fault: {options.output}")
    return 1 if faulty else 0


if __name__ == "__main__":
    sys.exit(main())
