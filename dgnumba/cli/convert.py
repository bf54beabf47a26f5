"""``dgnumba convert IN OUT --to FORMAT``: the quantized layers of a checkpoint in another format."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .files import expect_folder
from .show import console, progress, size

if TYPE_CHECKING:
    from ..checkpoint import Conversion, TensorReport

Source = Annotated[Path, typer.Argument(metavar="IN", help="FILE.safetensors, an index FILE.safetensors.index.json, or a folder with one")]
Out = Annotated[Path, typer.Argument(metavar="OUT", help="FILE.safetensors; an old one is replaced once the new one is whole")]
Group = Annotated[int | None, typer.Option(min=-1, help="columns that share a scale in new int4 layers; -1 for all; by default 128")]
ZeroPoints = Annotated[bool | None, typer.Option(help="zero points in new int4 layers; by default for awq only")]
Search = Annotated[bool, typer.Option(help="look for the scales of the least squared error; slower")]
Ue8m0 = Annotated[bool, typer.Option("--ue8m0", help="powers of two as scales of new fp8-block layers")]
Rule = Annotated[str | None, typer.Option(help="of new scales: amax/7, amax/7.5, extremum/-8 (int4); rceil, floor, ceil, even (mxfp4)")]
Measure = Annotated[bool, typer.Option(help="compare every element with what it was, for the report; most of the time")]
ReportFile = Annotated[Path | None, typer.Option("--report", metavar="FILE", help="write the report as JSON too")]


def convert(
    source: Source,
    out: Out,
    to: Annotated[
        str, typer.Option(help="fp8-block, awq, gptq, gptq-v2, compressed-tensors, mxfp4, nvfp4, ..., or bfloat16, float16, float32")
    ],
    group: Group = None,
    zero_points: ZeroPoints = None,
    search: Search = False,
    ue8m0: Ue8m0 = False,
    rule: Rule = None,
    source_group: Annotated[int | None, typer.Option(min=-1, help="columns that share a scale in IN, where no config says it")] = None,
    gptq: Annotated[int | None, typer.Option(min=1, max=2, help="GPTQ version of IN, against what its config says")] = None,
    measure: Measure = True,
    report: ReportFile = None,
) -> None:
    """Write a quantized checkpoint in another format. Losslessly where that can hold the same values; the rest stays as it is."""
    from ..checkpoint import Options
    from ..checkpoint import convert as run

    expect_folder("report", report)
    options = Options(group, zero_points, search, ue8m0, rule=rule, measure=measure)
    with unfinished_ends_clean(), progress("convert") as step:
        done = run(source, out, to, group=source_group, gptq_version=gptq, options=options, progress=lambda n, total, name: step(n, total))
    tell(done, report)


@contextmanager
def unfinished_ends_clean() -> Iterator[None]:
    """Let a request to end the process run what takes an unfinished file away."""

    def leave(number: int, frame: Any) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def tell(done: Conversion, report: Path | None) -> None:
    """Print what became of every layer, and write it as JSON where that is asked for."""
    out = console()
    rows = [["layer", "from", "to", "shape", "SQNR dB", "largest error", "of bound", "clipped"], *(_cells(line) for line in done.reports)]
    if done.reports:
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        for row in rows:
            left = [text.ljust(width) for text, width in zip(row[:4], widths[:4])]
            right = [text.rjust(width) for text, width in zip(row[4:], widths[4:])]
            out.print("  ".join(left + right).rstrip())
    for line in done.reports:
        if line.kind == "kept":
            out.print(f"kept {line.name}: {line.why}")
        for flag in line.flags:
            out.print(f"LOOK AT {line.name}: {flag}")
    out.print(f"{done.path}: {size(done.nbytes_after)}, was {size(done.nbytes_before)}")
    if done.config is not None:
        out.print(f'for config.json: "quantization_config": {json.dumps(done.config)}')
    elif any(line.kind in ("exact", "quantized") for line in done.reports):
        out.print("no quantization_config was written: layers differ in their groups or zero points, which one config cannot say")
    if report is not None:
        found = {
            "out": str(done.path),
            "bytes_before": done.nbytes_before,
            "bytes_after": done.nbytes_after,
            "layers": [r.as_dict() for r in done.reports],
        }
        report.write_text(json.dumps(found, indent=1) + "\n")


def _cells(line: TensorReport) -> list[str]:
    shape = "x".join(map(str, line.shape))
    if line.tally is None:
        return [line.name, line.before, line.after, shape, line.kind, "", "", ""]
    t = line.tally
    bound = f"{100 * t.bound_used:.3g} %" if line.kind == "quantized" else ""
    outside = f" ({t.outside} OUTSIDE)" if t.outside else ""
    return [line.name, line.before, line.after, shape, f"{t.sqnr_db:.2f}", f"{t.largest_error:.3g}", bound + outside, str(t.clipped)]
