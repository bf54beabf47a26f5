"""``dgnumba quantize IN OUT --to FORMAT``: the float weights of a checkpoint quantized."""

from __future__ import annotations

from typing import Annotated

import typer

from .convert import Group, Measure, Out, ReportFile, Rule, Search, Source, Ue8m0, ZeroPoints, tell, unfinished_ends_clean
from .files import expect_folder
from .show import progress


def quantize(
    source: Source,
    out: Out,
    to: Annotated[str, typer.Option(help="fp8-block, awq, gptq, gptq-v2, compressed-tensors, mxfp4, nvfp4 or nvfp4-modelopt")],
    group: Group = None,
    zero_points: ZeroPoints = None,
    search: Search = False,
    ue8m0: Ue8m0 = False,
    rule: Rule = None,
    include: Annotated[list[str] | None, typer.Option(metavar="PATTERN", help="tensors to quantize, in the place of *.weight")] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="tensors to leave, in the place of embeddings, heads, norms, routers")
    ] = None,
    measure: Measure = True,
    report: ReportFile = None,
) -> None:
    """Quantize a checkpoint's weight matrices. They are rounded to nearest; the rest stays as it is."""
    from ..checkpoint import NOT_QUANTIZED, Options, quantize_checkpoint

    expect_folder("report", report)
    options = Options(group, zero_points, search, ue8m0, rule=rule, measure=measure)
    chosen = tuple(include or ("*.weight",)), NOT_QUANTIZED if exclude is None else tuple(exclude)
    with unfinished_ends_clean(), progress("quantize") as step:
        done = quantize_checkpoint(
            source, out, to, include=chosen[0], exclude=chosen[1], options=options, progress=lambda n, total, name: step(n, total)
        )
    tell(done, report)
