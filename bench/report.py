"""Carry the recorded figures into the README: ``python bench/report.py`` (``--check``: only say whether they are there).

Reads `bench/results/h200.json`, one object a row: bench, m, n, k, us, tflops, rivals {name: us}, method, bits_equal, gpu, date, versions.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS, README = ROOT / "bench" / "results" / "h200.json", ROOT / "README.md"
BEGIN, END = "<!-- bench:begin -->\n", "<!-- bench:end -->"

Row = dict[str, Any]


def table(rows: list[Row]) -> str:
    """Figures as Markdown: one table for each function that was measured, all of its rivals beside it."""
    if not rows:
        return "No figures are recorded yet.\n"
    products = [row for row in rows if "tflops" in row]
    kinds = dict.fromkeys((row["bench"], _flush(row)) for row in products)
    tables = [_one([row for row in products if (row["bench"], _flush(row)) == kind]) for kind in kinds]
    others = [row for row in rows if "tflops" not in row]
    return "\n".join([*tables, *([_other(others)] if others else [])])


def _flush(row: Row) -> str:
    return str((row.get("method") or {}).get("flush", ""))


def _other(rows: list[Row]) -> str:
    """Everything that is no product: the host's cost of a call, a process's first call, casts."""
    lines = ["What else was measured, in microseconds:", "", "| what | dgnumba | beside it |", "|---|---|---|"]
    for row in rows:
        what = " ".join(f"{key} {row[key]}" for key in ("m", "n", "k", "cache", "dtype") if row.get(key) is not None)
        beside = ", ".join(f"{name} {_us(us)}" for name, us in (row.get("rivals") or {}).items() if us)
        lines.append(f"| `{row['bench']}` {what} | {_us(row['us'])} | {beside or '-'} |")
    return "\n".join(lines) + "\n"


def _one(rows: list[Row]) -> str:
    rivals = list(dict.fromkeys(name for row in rows for name in row.get("rivals") or {}))
    gpus, dates = ({row.get(key) for row in rows} for key in ("gpu", "date"))
    lines = [
        f"`{rows[0]['bench']}` on one {_list(gpus)}, {_list(dates)}{_flushed(rows[0])}: microseconds (the median of the recorded runs),",
        "and in brackets a rival's time over ours, so that more than 1 is ours.",
        "",
        "| M x N x K | dgnumba | TFLOP/s | " + "".join(f"{name} | " for name in rivals) + "equal bits |",
        "|---|---|---|" + "---|" * (len(rivals) + 1),
    ]
    for row in rows:
        others = [_rival(row, name) for name in rivals]
        equal = {True: "yes", False: "no"}.get(row.get("bits_equal"), "-")  # type: ignore[call-overload]
        cells = [f"{row['m']} x {row['n']} x {row['k']}", _us(row["us"]), f"{row['tflops']:.0f}", *others, equal]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _flushed(row: Row) -> str:
    how = {"memset": ", L2 flushed by a memset", "read": ", L2 flushed by reading"}
    return how.get(_flush(row), "")


def _rival(row: Row, name: str) -> str:
    us = (row.get("rivals") or {}).get(name)
    return f"{_us(us)} ({us / row['us']:.2f})" if us else "-"


def _us(us: float) -> str:
    return f"{us:.1f}" if us < 100 else f"{us:.0f}"


def _list(values: set[Any]) -> str:
    return ", ".join(sorted(str(v) for v in values if v)) or "GPU"


def filled(readme: str, rows: list[Row]) -> str:
    """The README with the table between its marks."""
    before, rest = readme.split(BEGIN)
    return before + BEGIN + table(rows) + END + rest.split(END, 1)[1]


def main(arguments: list[str]) -> int:
    """Write the README, or with --check compare it; the exit code."""
    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    now = README.read_text()
    new = filled(now, rows)
    if "--check" in arguments:
        print("README.md: the table is " + ("that of " if now == new else "not that of ") + str(RESULTS.relative_to(ROOT)))
        return int(now != new)
    README.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
