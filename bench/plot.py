"""The plot of the recorded figures: throughput over arithmetic intensity under both ceilings, and the ratio to the best rival over M.

Needs matplotlib. The bytes are the same from run to run of one matplotlib: the ids of SVG are salted with a constant, and no date is written.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from pathlib import Path
from typing import Any

from figures import CASTS, CUBLASLT, DEEPGEMM, PEAKS, Row, counted, intensity, is_cast, name, ratio, ratios, rivals_of

LOOKS = {"dgnumba": ("#d55e00", "o", 26), DEEPGEMM: ("#0072b2", "s", 14), CUBLASLT: ("#009e73", "^", 16)}
"""Colour, marker and size; Okabe's and Ito's colours, which those who see few colours tell apart."""
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000")


def shown(rows: list[Row]) -> list[Row]:
    """The rows that are drawn: the FP8 products, each once."""
    return [row for row in counted(rows) if row["bench"] == "fp8_gemm_nt"]


def copy_rate(rows: list[Row]) -> float | None:
    """TB/s of a device-to-device copy, read plus written: the median of those beside which large casts were measured."""
    rates = [row["copy_gb_s"] / 1e3 for row in rows if is_cast(row) and (row["m"], row["n"]) == CASTS]
    return statistics.median(rates) if rates else None


def digest(rows: list[Row]) -> str:
    """What the plot shows, as a name, which stands in its metadata."""
    data = [[row[key] for key in ("m", "n", "k", "us", "rivals", "gpu", "date")] for row in shown(rows)]
    return "sha256:" + hashlib.sha256(json.dumps([data, copy_rate(rows)], sort_keys=True).encode()).hexdigest()[:32]


def draw(rows: list[Row], path: Path) -> None:
    """Write the plot as SVG; ModuleNotFoundError where matplotlib is missing."""
    import matplotlib
    from matplotlib.figure import Figure

    drawn = shown(rows)
    with matplotlib.rc_context({"svg.hashsalt": "dgnumba", "svg.fonttype": "path", "font.size": 9}):
        figure = Figure(figsize=(11.5, 4.6), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
        roofline(left, drawn, copy_rate(rows))
        over_m(right, drawn)
        gpus, dates = ({row[key] for row in drawn} for key in ("gpu", "date"))
        figure.suptitle(f"fp8_gemm_nt on one {', '.join(sorted(gpus))}, {', '.join(sorted(dates))}")
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": "bench/plot.py", "Identifier": digest(rows)})


def roofline(axes: Any, rows: list[Row], copied: float | None) -> None:
    """TFLOP/s over FLOP for each byte, ours and the rivals', under both ceilings."""
    ends = [min(map(intensity, rows)) / 1.3, max(map(intensity, rows)) * 1.3]
    for gpu in sorted({row["gpu"] for row in rows} & PEAKS.keys()):
        tflops, tb_s = PEAKS[gpu]
        ridge = tflops / tb_s
        axes.plot([ends[0], ridge], [ends[0] * tb_s, tflops], color="black", lw=1.2, label=f"memory, {tb_s:g} TB/s ({gpu} data sheet)")
        axes.plot([ridge, ends[1]], [tflops, tflops], color="black", lw=1.2, ls="--", label=f"dense FP8, {tflops:g} TFLOP/s (the same)")
    if copied is not None:
        top = ends[0] * copied, 1000.0
        label = f"a copy's {copied:.2f} TB/s, measured"
        axes.plot([ends[0], top[1] / copied], top, color="gray", lw=0.8, ls=":", label=label)
    for call in (CUBLASLT, DEEPGEMM, "dgnumba"):
        colour, marker, size = LOOKS[call]
        times = [(row, row["us"] if call == "dgnumba" else row["rivals"].get(call)) for row in rows]
        points = [(intensity(row), 2e-6 * row["m"] * row["n"] * row["k"] / us) for row, us in times if us]
        face = {"facecolors": "none", "edgecolors": colour} if call == "dgnumba" else {"color": colour, "alpha": 0.6, "linewidths": 0}
        axes.scatter(*zip(*points), s=size, marker=marker, label=name(call), zorder=3, **face)
    axes.set(xscale="log", yscale="log", xlabel="arithmetic intensity, FLOP/byte", ylabel="TFLOP/s", title="roofline")
    axes.grid(alpha=0.25)
    axes.legend(loc="lower right", fontsize=8)


def over_m(axes: Any, rows: list[Row]) -> None:
    """The best rival's time over ours at each M: a mark for each N x K, hollow where one rival was measured, and the full marks' mean."""
    layers = list(dict.fromkeys((row["n"], row["k"]) for row in rows))
    everyone = set(rivals_of(rows))
    full = [row for row in rows if everyone <= row["rivals"].keys()]
    for i, (n, k) in enumerate(layers):
        colour = COLOURS[i % len(COLOURS)]
        mine = [row for row in rows if (row["n"], row["k"]) == (n, k)]
        for row in mine:
            face = colour if row in full else "none"
            axes.plot(
                row["m"],
                ratio(row),
                marker="o",
                ms=3.5,
                lw=0,
                color=colour,
                mfc=face,
                label=f"N x K = {n} x {k}" if row is mine[0] else None,
            )
    means = [
        (m, found.mean) for m in sorted({row["m"] for row in full}) if (found := ratios(row for row in full if row["m"] == m)) is not None
    ]
    axes.plot(*zip(*means), color="black", lw=1.2, label="geometric mean")
    axes.axhline(1, color="gray", lw=0.8)
    if len(full) < len(rows):
        axes.plot([], [], marker="o", ms=3.5, lw=0, color="black", mfc="none", label="hollow: one rival measured")
    title = "above 1: dgnumba is faster"
    axes.set(xscale="log", yscale="log", xlabel="M", ylabel="the best rival's time / dgnumba's", title=title)
    axes.set_xticks([1, 8, 32, 128, 512, 2048, 8192], ["1", "8", "32", "128", "512", "2048", "8192"])
    low, high = axes.get_ylim()
    high *= 1.3  # room for the legend
    axes.set_ylim(low, high)
    marks = [x / 10 for x in range(1, 40) if low <= x / 10 <= high]
    axes.set_yticks(marks, [f"{x:g}" for x in marks])
    axes.minorticks_off()
    axes.grid(alpha=0.25)
    axes.legend(fontsize=7, ncols=2)
