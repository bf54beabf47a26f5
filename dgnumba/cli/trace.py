"""``dgnumba trace M N K``: the timeline of one product, as a table, for a trace viewer, and as a picture."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import dgnumba

from ..errors import ProblemError
from . import files, gpu, patience
from .show import console


class Source(StrEnum):
    """Where the times come from."""

    emulator = "emulator"
    cuda = "cuda"


def trace(
    m: Annotated[int, typer.Argument(metavar="M", help="rows of A and D")],
    n: Annotated[int, typer.Argument(metavar="N", help="rows of B, columns of D")],
    k: Annotated[int, typer.Argument(metavar="K", help="columns of A and B")],
    on: Annotated[
        Source, typer.Option(help="emulator: the GPU's kernel stepped here, with estimated times; cuda: by the GPU's own clocks")
    ] = (Source.emulator),
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="trace for chrome://tracing or ui.perfetto.dev")
    ] = None,
    picture: Annotated[Path | None, typer.Option(metavar="FILE", help=".png, .svg or .pdf; needs matplotlib")] = None,
    blocks: Annotated[int, typer.Option(help="how many blocks of the grid to show")] = 1,
    late: Annotated[bool, typer.Option(help="in the emulator: asynchronous work completes as late as it may")] = False,
    large: Annotated[bool, typer.Option(help="step also what takes the emulator long")] = False,
) -> None:
    """The pipeline of one FP8 product: who copies, multiplies, waits."""
    if output is not None and not output.name.endswith((".json", ".json.gz")):
        raise ProblemError(f"output: expected a name that ends in .json or .json.gz, got {output}; a picture goes to --picture")
    files.expect_folder("output", output)
    files.expect_picture("picture", picture)
    if min(m, n, k) < 1 or blocks < 1:
        raise ProblemError(f"expected M, N, K and blocks of 1 or more, got {m}, {n}, {k} and {blocks}")
    timeline = _on_gpu(m, n, k, blocks) if on is Source.cuda else _emulated(m, n, k, blocks, late, large)
    out = console()
    out.print(str(timeline))
    for path in (output, picture):
        if path is not None:
            timeline.save(path)
            out.print(f"written to {path}")


def _operands(m: int, n: int, k: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal((rows, k), np.float32) for rows in (m, n))
    return dgnumba.per_token_cast_to_fp8(x), dgnumba.per_block_cast_to_fp8(w)


def _emulated(m: int, n: int, k: int, blocks: int, late: bool, large: bool) -> Any:
    if not large:
        patience.expect_small("M, N, K", m, n, k, patience.TRACE, "a tile or two shows the pipeline (256 256 1024)")
    return dgnumba.lab.trace_gemm(*_operands(m, n, k), policy="late" if late else "eager", blocks=blocks)


def _on_gpu(m: int, n: int, k: int, blocks: int) -> Any:
    if (why := gpu.missing()) is not None:
        raise ProblemError(f"on: expected emulator here, got cuda: {why}")
    a, b = _operands(m, n, k)
    return dgnumba.lab.watch_gemm(gpu.to_gpu(a), gpu.to_gpu(b), blocks=blocks)
