"""Nsight Compute's figures for one product, where `ncu` is installed and may look at the GPU's counters."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

from ..assemble import find_tool

WANTED = re.compile(
    r"tensor|^DRAM Throughput|^Memory Throughput|^Compute \(SM\) Throughput|^L2 Hit Rate|^Duration|^SM Frequency|^SM Active Cycles",
    re.IGNORECASE,
)
SECTIONS = ("SpeedOfLight", "ComputeWorkloadAnalysis", "MemoryWorkloadAnalysis")
CALL = """
import sys, numpy as np, cupy, dgnumba
m, n, k = map(int, sys.argv[1:4])
rng = np.random.default_rng(0)
a = dgnumba.per_token_cast_to_fp8(cupy.asarray(rng.standard_normal((m, k), np.float32)))
b = dgnumba.per_block_cast_to_fp8(cupy.asarray(rng.standard_normal((n, k), np.float32)))
d = cupy.empty((m, n), cupy.float32 if sys.argv[4] == "float32" else cupy.uint16)
for _ in range(2):
    dgnumba.fp8_gemm_nt(a, b, d)
cupy.cuda.Device().synchronize()
"""


def figures(m: int, n: int, k: int, dtype: str, *, tool: Path | None = None) -> tuple[dict[str, str], str]:
    """(name -> value with its unit, ""), or ({}, why there are none)."""
    tool = tool or find_tool("ncu")
    if tool is None:
        return {}, "ncu is not installed"
    sections = [part for section in SECTIONS for part in ("--section", section)]
    # the kernels of a product are named after their file, but not in the name that ncu looks at by default, which is without it; the first
    # one is the warm-up's
    only = ["--kernel-name-base", "mangled", "--kernel-name", "regex:dgnumba.*fp8_gem[mv]", "--launch-skip", "1", "--launch-count", "1"]
    command = [str(tool), "--csv", "--page", "details", "--print-details", "all", *sections, *only, sys.executable, "-c", CALL]
    done = subprocess.run(
        [*command, *map(str, (m, n, k)), dtype], capture_output=True, text=True, errors="replace", check=False, env=os.environ
    )
    found = parsed(done.stdout)
    if found:
        return found, ""
    said = [line for line in (done.stdout + done.stderr).splitlines() if "ERR" in line or "Error" in line]
    return {}, said[0].strip("= ") if said else f"ncu gave no figures (status {done.returncode})"


def parsed(text: str) -> dict[str, str]:
    r"""The wanted rows of ncu's CSV.

    >>> parsed('"Metric Name","Metric Unit","Metric Value"\n"L2 Hit Rate","%","81.2"\n')
    {'L2 Hit Rate': '81.2 %'}
    """
    lines = text.splitlines()
    head = next((i for i, line in enumerate(lines) if '"Metric Name"' in line), None)
    if head is None:
        return {}
    rows = csv.DictReader(lines[head:])
    return {
        row["Metric Name"]: f"{row['Metric Value']} {row['Metric Unit']}".strip() for row in rows if WANTED.search(row["Metric Name"] or "")
    }
