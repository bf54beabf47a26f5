"""How fast the emulator steps the FP8 kernel, on this machine's processor: ``python bench/bench_emulator.py --out bench/results/emulator.json``.

Seconds of processor time in one process (the emulator uses one core), the least of a few runs, for both completion policies. What is run: the product
of random data by the plan that the emulator takes by itself; every check that `emu.run` makes is on, as always. Then with an observer that takes
every note, access and transfer; and by `emu.check`, where the package has it.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np

import dgnumba
from dgnumba import emu, lab

SHAPES = ((128, 128, 512), (256, 256, 1024))
TARGETS = {(128, 128, 512): 2.0, (256, 256, 1024): 20.0}
"""Seconds that a run may take."""


class Everything(emu.Observer):
    """Hears of everything, and does nothing with it."""

    def note(self, note: emu.Note) -> None:
        """Take a note."""

    def access(self, access: emu.Access) -> None:
        """Take an access."""

    def transfer(self, transfer: emu.Transfer) -> None:
        """Take a transfer."""


def operands(m: int, n: int, k: int) -> tuple[Any, Any]:
    """Random data, quantized."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal((rows, k), np.float32) for rows in (m, n))
    return dgnumba.per_token_cast_to_fp8(x), dgnumba.per_block_cast_to_fp8(w)


def seconds(run: Callable[[], Any], times: int) -> float:
    """Processor time of a run, the least of `times`."""
    took = []
    for _ in range(times):
        begin = time.process_time()
        run()
        took.append(time.process_time() - begin)
    return min(took)


def rows(shapes: Any, times: int) -> list[dict[str, Any]]:
    """One row a shape."""
    out = []
    for shape in shapes:
        call = lab.emulated(*operands(*shape))
        row: dict[str, Any] = {"m": shape[0], "n": shape[1], "k": shape[2], "plan": call.choice.plan.name, "blocks": call.launch[1]}
        row["eager_s"] = seconds(lambda call=call: call.run("eager"), times)
        row["late_s"] = seconds(lambda call=call: call.run("late"), times)
        row["observed_s"] = seconds(lambda call=call: call.run("eager", Everything()), times)
        if hasattr(emu, "check"):
            row["check_s"] = seconds(lambda call=call: emu.check(*call.launch, **call.options, policies=("eager",)), times)
        row["target_s"] = TARGETS.get(shape)
        print(json.dumps(row), flush=True)
        out.append(row)
    return out


def main() -> None:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="where the figures go, as JSON")
    parser.add_argument("--times", type=int, default=3)
    given = parser.parse_args()
    call = lab.emulated(*operands(16, 32, 128))
    call.run()  # what is loaded and built once
    made = {
        "what": "seconds of processor time to step one product in the emulator", "command": "python bench/bench_emulator.py",
        "date": f"{datetime.now(UTC):%Y-%m-%d}", "python": platform.python_version(), "numpy": np.__version__, "machine": _processor(),
        "rows": rows(SHAPES, given.times),
    }  # fmt: skip
    if given.out:
        with open(given.out, "w") as file:
            json.dump(made, file, indent=1)
            file.write("\n")


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":")[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


if __name__ == "__main__":
    main()
