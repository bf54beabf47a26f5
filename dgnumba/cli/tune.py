"""``dgnumba tune``: measure the plans for one's own shapes, and keep the fastest."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import ProblemError
from . import files, gpu
from .gemm import OutType
from .show import console, progress
from .warmup import parse


def tune(
    shapes: Annotated[list[str], typer.Argument(metavar="MxNxK", help="products")],
    dtype: Annotated[OutType, typer.Option(help="of D")] = OutType.bfloat16,
    candidates: Annotated[int | None, typer.Option(min=1, help="plans to measure of a shape, the cheapest by the model")] = None,
    everything: Annotated[bool, typer.Option("--all", help="measure every plan there is; compiling them takes minutes")] = False,
    rounds: Annotated[int | None, typer.Option(min=1, help="launches of each plan, of which the median counts")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="processes that compile; by default one a CPU")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="draw the times by tile and stages; needs matplotlib")] = None,
) -> None:
    """Measure the plans for these shapes; calls take the fastest then."""
    from .. import policy, tuning

    extents = [parse(shape, (3,)) for shape in shapes]
    if everything and candidates is not None:
        raise ProblemError(f"candidates: expected none with --all, got {candidates}")
    files.expect_picture("plot", plot)
    why = gpu.missing()
    if why is not None:
        raise ProblemError(f"tune: expected a GPU, got none: {why}")
    with progress("compile, then measure") as step:
        found = tuning.tune(
            extents,
            d_dtype=dtype.value,
            candidates=None if everything else candidates or tuning.CANDIDATES,
            rounds=rounds or tuning.ROUNDS,
            jobs=jobs,
            progress=lambda what, done, total: step(done, total),
        )
    out = console()
    for row in found:
        p = row.problem
        out.print(f"{p.m}x{p.n}x{p.k} {p.d_dtype} on {row.gpu}: {row.method}")
        for plan, us in ((row.plan, row.us), *row.others)[:6]:
            out.print(f"  {us:9.1f} us  {2e-6 * p.m * p.n * p.k / us:7.0f} TFLOP/s  {plan.name}")
    out.print(f"kept in {policy.path()}")
    if plot is not None:
        from ..tuning_plot import heat_map

        heat_map(found, plot)
        out.print(f"drawn in {plot}")
