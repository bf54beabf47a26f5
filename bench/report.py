"""Carry the recorded figures into README.md, bench/results/README.md and a plot: ``python bench/report.py``.

``--check`` writes nothing and says whether the three are those of `bench/results/h200.json`. Of the plot the data are compared, which it names
by their digest, and not the picture's bytes, which depend on matplotlib's release. Without matplotlib only the tables are written.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import plot
from figures import (
    BEST,
    CASTS,
    CUBLASLT,
    DEEPGEMM,
    HOST_TITLES,
    Row,
    counted,
    duration,
    families,
    flush_of,
    host_key,
    is_cast,
    is_product,
    kind,
    microseconds,
    missed,
    name,
    nbytes,
    ratios,
    rivals_of,
    shape,
    share,
    tflops,
)

ROOT = Path(__file__).parent.parent
RESULTS, README = ROOT / "bench" / "results" / "h200.json", ROOT / "README.md"
TABLES, PLOT = RESULTS.with_name("README.md"), RESULTS.with_name("h200.svg")
BEGIN, END = "<!-- bench:begin -->\n", "<!-- bench:end -->"
ALT = "Throughput over arithmetic intensity, and the ratio to the best rival over M"

HOW_TO_READ = (
    'A figure in brackets, and every "mean" and "least", is a rival\'s time over ours: **more than 1 means that dgnumba is faster**, 1.10 that the '
    "rival takes 10 % longer. Means are geometric. The best rival is the fastest of those measured at each shape (at odd M above 1 DeepGEMM "
    "alone). cuBLASLt multiplies without block scales, which is less work."
)

FLUSHES = {"memset": "L2 flushed by a memset", "read": "L2 flushed by reading", "": "L2 not flushed"}
TIMERS = {"cupti": "kernel time by CUPTI", "events": "time between CUDA events"}
METHODS: dict[str, Callable[[Any], str]] = {
    "timer": lambda v: TIMERS.get(str(v).lower(), str(v)),
    "rivals_timer": lambda v: "rivals: " + TIMERS.get(str(v).lower(), str(v)),
    "runs": lambda v: f"median of {v} runs",
    "rounds": lambda v: f"{v} rounds a run",
    "interleaved": lambda v: "calls take turns" if v else "one call after the other",
    "data": lambda v: f"{v} random data",
}
"""What a row's method says, in words; `flush` has its own."""


def fill(text: str, indent: str = "") -> str:
    """A paragraph in lines of at most 140 characters."""
    return textwrap.fill(text, 140, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def method(row: Row) -> str:
    """How a row was measured, in words."""
    return ", ".join(METHODS[key](value) if key in METHODS else f"{key} {value}" for key, value in row["method"].items() if key != "flush")


def grid(heads: list[str], lines: list[list[str]]) -> str:
    """A table in Markdown: the first column to the left, the others to the right."""
    rows = [heads, [":--", *(["--:"] * (len(heads) - 1))], *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def beside(row: Row, rival: str) -> str:
    """A rival's time, and its ratio in brackets."""
    us = (row.get("rivals") or {}).get(rival)
    return f"{microseconds(us)} ({us / row['us']:.2f})" if us else "-"


def listed(values: Any) -> str:
    """What several rows say, each once."""
    return ", ".join(sorted({str(v) for v in values if v}))


def where(rows: list[Row]) -> str:
    """GPU and date."""
    return f"One {listed(row['gpu'] for row in rows)}, {listed(row['date'] for row in rows)}"


def large(rows: list[Row]) -> str:
    """Time and throughput of the large products."""
    members = next((family.rows for family in families(rows) if family.key == "large"), ())
    lines = [[shape(row), microseconds(row["us"]), f"{tflops(row):.0f}", beside(row, DEEPGEMM), beside(row, CUBLASLT)] for row in members]
    return grid(["M x N x K", "dgnumba, us", "TFLOP/s", f"{name(DEEPGEMM)}, us", f"{name(CUBLASLT)}, us"], lines)


def _mean_and_least(found: Any) -> list[str]:
    return [f"{found.mean:.2f}", f"{found.least:.2f}"] if found else ["-", "-"]


def summary(rows: list[Row]) -> str:
    """One line for each family, and for the casts, beside a copy in the place of a rival."""
    lines = [[f.title, str(len(f.rows)), *_mean_and_least(f.against(DEEPGEMM)), *_mean_and_least(f.against(BEST))] for f in families(rows)]
    casts = [row for row in rows if is_cast(row) and (row["m"], row["n"]) == CASTS]
    if casts:
        title = f"casts and moves of scales ({CASTS[0]} x {CASTS[1]}), beside a copy of as many bytes"
        lines.append([title, str(len(casts)), "-", "-", *_mean_and_least(ratios(casts, share))])
    return grid(["what", "cases", f"{name(DEEPGEMM)}: mean", "least", "the best rival: mean", "least"], lines)


def host(rows: list[Row]) -> str:
    """What a call costs the host, and the first call of a process."""
    lines = []
    for row in rows:
        if is_product(row) or is_cast(row):
            continue
        us = (row.get("rivals") or {}).get(DEEPGEMM)
        what = HOST_TITLES.get(host_key(row), f"`{host_key(row)}`")
        lines.append([what + (f", {shape(row)}" if "m" in row else ""), duration(row["us"]), duration(us) if us else "-"])
    return grid(["time of the host", "dgnumba", name(DEEPGEMM)], lines)


def equal_bits(rows: list[Row]) -> str:
    """How many products have DeepGEMM's bits."""
    compared = [row for row in counted(rows) if row.get("bits_equal") is not None]
    others = [row for row in compared if not row["bits_equal"]]
    if not compared:
        return ""
    equal = f"{len(compared) - len(others)} of the {len(compared)} products compared with {name(DEEPGEMM)}'s equal them in every bit"
    split = all(re.search(r"\bc\d+K\b", row.get("plan") or "") for row in others)
    return equal + ("; the others split K over a cluster, and so add in another order." if others and split else ".")


def short(rows: list[Row]) -> str:
    """What the README says of speed."""
    runs = listed(row["method"].get("runs") for row in rows if is_product(row))
    scripts = " and ".join(sorted({"`" + " ".join(row["command"].split()[:2]) + "`" for row in rows}))
    how = f"{where(rows)}: kernel time by CUPTI, median of {runs} runs, calls taking turns with the rivals', random data, L2 emptied before each call"
    aims = missed(rows)
    return "\n".join(
        [
            fill(f"{how} ({scripts})."),
            "",
            fill(HOW_TO_READ),
            "",
            large(rows),
            summary(rows),
            host(rows),
            equal_bits(rows),
            "",
            f"![{ALT}](bench/results/{PLOT.name})",
            "",
            *(["Not reached yet:", "", *(fill(f"* {aim}", "  ") for aim in aims)] if aims else ["All that we aimed at is reached."]),
            "",
        ]
    )


def full_products(rows: list[Row]) -> str:
    """All products of one function and one way to flush."""
    rivals = rivals_of(rows)
    own = rows[0]["bench"] == "fp8_gemm_nt"
    floor = any("floor_us" in row for row in rows)
    extra = ["TB/s"] if own else ["time of a copy of as many bytes, us"] if floor else []
    heads = ["M x N x K", "us", "TFLOP/s", *extra, *(f"{name(r)}, us" for r in rivals), "equal bits", "plan"]
    lines = []
    for row in rows:
        equal = {True: "yes", False: "no", None: "-"}[row.get("bits_equal")]
        rate = (
            [f"{nbytes(row) / row['us'] / 1e6:.2f}"]
            if own
            else [microseconds(row["floor_us"]) if "floor_us" in row else "-"]
            if floor
            else []
        )
        others = [beside(row, rival) for rival in rivals]
        lines.append([shape(row), microseconds(row["us"]), f"{tflops(row):.0f}", *rate, *others, equal, row.get("plan") or "-"])
    return f"### `{kind(rows[0])}`, {FLUSHES[flush_of(rows[0])]}\n\n{_measured(rows)}\n" + grid(heads, lines)


def full_casts(rows: list[Row]) -> str:
    """All casts of one extent."""
    rivals = rivals_of(rows)
    heads = ["function", "variant", "from", "us", "GB/s", "share of a copy's", *(f"{name(r)}, us" for r in rivals)]
    lines = [
        [
            f"`{row['bench']}`",
            row["variant"] or "-",
            row["dtype"],
            microseconds(row["us"]),
            f"{row['gb_s']:.0f}",
            f"{share(row):.0%}",
            *(beside(row, rival) for rival in rivals),
        ]
        for row in rows
    ]
    return f"### Casts and moves of scales, {shape(rows[0])}\n\n{_measured(rows)}\n" + grid(heads, lines)


def _measured(rows: list[Row]) -> str:
    """GPU, date, method and command of some rows."""
    how = "\n".join(f"* {line}." for line in dict.fromkeys(method(row) for row in rows))
    commands = "\n".join(f"* `{command}`" for command in dict.fromkeys(row["command"] for row in rows))
    return f"{where(rows)}.\n\n{how}\n{commands}\n"


def groups(rows: list[Row], key: Any) -> list[list[Row]]:
    """Rows that agree in a key, in order of appearance."""
    return [[row for row in rows if key(row) == k] for k in dict.fromkeys(map(key, rows))]


WRITTEN = (
    "`python bench/report.py` writes this page, the README's section and the plot from `h200.json`; what is written here by hand is lost. What was "
    "tried, and why it is as it is: [bench/NOTES.md](../NOTES.md)."
)
COUNTED = (
    "Of a shape that was measured with both ways to flush L2 the one by reading counts: it leaves no dirty lines, whose way back to memory shares "
    "its bandwidth with the weights."
)
BYTES = "TB/s: the bytes that a product must move at least once (codes, scales, output), over its time."
FILES = """## The other files

| file | what it holds |
|:--|:--|
| `h200.json` | every row of this page, with versions, method and command |
| `tune_h200.json` | the time of each plan tried for each shape, to which the cost model is fitted (`bench/fit_cost.py`) |
| `tune_gemv_h200.json` | the same of the kernels for few rows, by turns |
| `floor_decode_h200.json` | decode beside kernels that only read the weights and write the output (`bench/floor_decode.py`) |
| `tune_int4_h200.json` | the time of each plan tried of `sm90_int4_gemm`, to which its cost model is fitted (`bench/fit_int4.py`) |
| `correctness_h200.json`, `correctness_int4_h200.json` | random problems on the GPU against the oracle, and what compute-sanitizer said |
| `portable_h200.json` | the `mma.sync` kernels, FP8 to INT4, on a GPU that has `wgmma` too (`bench/bench_portable.py`) |
| `steps_h200.json` | each step of notebook 07, timed (`bench/bench_steps.py`) |
| `tensor_core_h200.json` | the emulator's tensor core against the hardware's, bit by bit (`bench/probe_tensor_core.py`) |
| `emulator.json` | how fast the emulator steps the FP8 kernel on a CPU (`bench/bench_emulator.py`) |
| `compile_full.json` | registers, spills and shared memory of every plan, without a GPU (`tests/kernels/full_report.py`) |
"""


def versions(rows: list[Row]) -> str:
    """What was installed."""
    lines = ["; ".join(f"{key} {value}" for key, value in row["versions"].items()) for row in rows]
    return "## Versions\n\n" + "\n".join(f"* {line}" for line in dict.fromkeys(lines)) + "\n"


def full(rows: list[Row]) -> str:
    """The page of all figures."""
    products, casts = [row for row in rows if is_product(row)], [row for row in rows if is_cast(row)]
    others = [row for row in rows if not is_product(row) and not is_cast(row)]
    return "\n".join(
        [
            "# Figures\n",
            fill(WRITTEN) + "\n",
            fill(f"{HOW_TO_READ} {BYTES}") + "\n",
            f"![{ALT}]({PLOT.name})\n",
            "## In short\n",
            fill(COUNTED) + "\n",
            summary(rows),
            equal_bits(rows) + "\n",
            "## Products\n",
            *(full_products(group) for group in groups(products, lambda row: (kind(row), flush_of(row)))),
            "## The host\n",
            *([_measured(others), host(others)] if others else []),
            "## Casts\n",
            *(full_casts(group) for group in groups(casts, shape)),
            versions(rows),
            FILES,
        ]
    )


def filled(readme: str, rows: list[Row]) -> str:
    """The README with the figures between its marks."""
    before, rest = readme.split(BEGIN)
    return before + BEGIN + short(rows) + END + rest.split(END, 1)[1]


def stale(rows: list[Row]) -> list[Path]:
    """Which of the three do not show the rows."""
    shown = {README: filled(README.read_text(), rows), TABLES: full(rows)}
    out = [path for path, text in shown.items() if not path.exists() or path.read_text() != text]
    drawn = PLOT.read_text() if PLOT.exists() else ""
    return out if plot.digest(rows) in drawn else [*out, PLOT]


def main(arguments: list[str]) -> int:
    """Write, or with --check compare; the exit code."""
    rows = json.loads(RESULTS.read_text())
    if "--check" in arguments:
        found = stale(rows)
        for path in (README, TABLES, PLOT):
            print(f"{path.relative_to(ROOT)}: " + ("not of these figures: run python bench/report.py" if path in found else "up to date"))
        return int(bool(found))
    README.write_text(filled(README.read_text(), rows))
    TABLES.write_text(full(rows))
    try:
        plot.draw(rows, PLOT)
    except ModuleNotFoundError as error:
        print(f"{PLOT.relative_to(ROOT)}: not drawn, which needs matplotlib: python -m pip install matplotlib ({error})")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
