"""The price of each step from a naive FP8 GEMM to the real one: the kernels of notebook 07, every bit checked, timed on one GPU.

    python bench/bench_steps.py --out bench/results/steps_h200.json     # 30 seconds or so

The kernels are the notebook's own: its cells tagged "kernel". A row: bench, step, name, m, n, k, us (median, L2 flushed by reading before each
call), tflops, method, gpu, date, versions, command. Needs CuPy and a Hopper GPU.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import re
import sys
from pathlib import Path
from typing import Any

import cupy
import numpy as np
from recorded import command

import dgnumba
from dgnumba.cli import gpu
from dgnumba.device import Device
from dgnumba.dtypes import DTYPES
from dgnumba.testing import exact_problem

NOTEBOOK = Path(__file__).parent.parent / "notebooks" / "07_fp8_gemm.py"
CELL = re.compile(r"^# %%(.*)$", re.MULTILINE)


def steps() -> list[Any]:
    """The notebook's `STEPS`: functions that give kernel, grid, block, arguments and options for a task."""
    text = NOTEBOOK.read_text()
    heads = list(CELL.finditer(text))
    names: dict[str, Any] = {"__name__": "steps"}
    for head, after in zip(heads, [*heads[1:], None]):
        if '"kernel"' in head[1]:
            lines = text[: head.end()].count("\n")
            code = text[head.end() : after.start() if after else None]
            exec(compile("\n" * lines + code, str(NOTEBOOK), "exec"), names)
    return list(names["STEPS"])


class Task:
    """Operands on the GPU, of which every right kernel gives the same bits, and the answer."""

    def __init__(self, m: int, n: int, k: int) -> None:
        case = exact_problem(np.random.default_rng(7), m, n, k, "float32")
        self.m, self.n, self.k = m, n, k
        self.a, self.b = cupy.asarray(case.a.data.view(np.uint8)), cupy.asarray(case.b.data.view(np.uint8))
        self.sfa, self.sfb = cupy.asarray(np.ascontiguousarray(case.a.scale.T)), cupy.asarray(case.b.scale)
        self.decoded = cupy.asarray(DTYPES["float8_e4m3fn"].decode(np.arange(256, dtype=np.uint8)).astype(np.float32))
        self.operands = (self.a, cupy.asarray(case.a.scale)), (self.b, self.sfb)
        self.out, self.want = cupy.full((m, n), cupy.nan, cupy.float32), cupy.empty((m, n), cupy.float32)
        dgnumba.fp8_gemm_nt(*self.operands, self.want)


def measure(name: str, call: Any, task: Task, runs: int) -> float:
    """Microseconds; refuses a kernel that is not right."""
    task.out.fill(cupy.nan)
    call()
    wrong = int((task.out.view(cupy.uint32) != task.want.view(cupy.uint32)).sum())
    if wrong:
        sys.exit(f"{name}: expected every bit as fp8_gemm_nt gives it, got {wrong} elements that differ")
    return 1e6 * gpu.seconds(call, runs)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--shape", type=int, nargs=3, metavar=("M", "N", "K"), default=(4096, 4096, 4096))
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args()
    task = Task(*options.shape)
    versions = {name: importlib.metadata.version(name) for name in ("numba-cuda", "cuda-core", "cupy-cuda13x", "numpy")}
    env = {
        "gpu": Device.current().name, "date": datetime.date.today().isoformat(), "versions": versions | {"dgnumba": dgnumba.__version__},
        "command": command(),
    }  # fmt: skip
    calls: list[tuple[str, Any]] = []
    for step in steps():
        kernel, grid, block, args, launch_options = step(task)
        calls.append((step.__name__, lambda k=kernel, g=grid, b=block, a=args, o=launch_options: dgnumba.launch(k, g, b, a, **o)))
    calls.append(("fp8_gemm_nt", lambda: dgnumba.fp8_gemm_nt(*task.operands, task.out)))
    rows = []
    for number, (name, call) in enumerate(calls, 1):
        us = measure(name, call, task, options.runs)
        rows.append(
            {"bench": "fp8_gemm_step", "step": number, "name": name, "m": task.m, "n": task.n, "k": task.k, "us": round(us, 2),
             "tflops": round(2e-6 * task.m * task.n * task.k / us, 2), "method": {"timer": "events", "flush": "read", "runs": options.runs}} | env
        )  # fmt: skip
        print(f"{number} {name:16s} {us:12.1f} us {rows[-1]['tflops']:8.1f} TFLOP/s, every bit right", flush=True)
        if options.out is not None:
            options.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
