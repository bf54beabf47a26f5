"""``dgnumba bench``: the time of `fp8_gemm_nt` on this GPU, beside whichever rivals can be imported."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import dgnumba

from ..errors import ProblemError
from . import files, gpu, int4
from .show import console, progress

SHAPES = [
    "4096x2112x7168", "4096x576x7168", "4096x24576x1536", "4096x32768x512", "4096x7168x16384", "4096x4096x7168", "4096x7168x2048",
    "128x7168x2048", "16x7168x2048", "1x7168x2048",
]  # fmt: skip
"""Layers of a large mixture-of-experts model: a prefill batch, and a few decode batches."""


def bench(
    shapes: Annotated[
        list[str] | None, typer.Argument(metavar="[int4] MxNxK", help="shapes; by default layers of a large language model")
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="timed calls of each, of which the median counts")] = 20,
    flush: Annotated[bool, typer.Option(help="empty L2 before each call by reading other memory")] = True,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="write the rows as JSON too")] = None,
    form: Annotated[
        str | None, typer.Option("--format", metavar="FORMAT", help="of the weights, after the word int4; by default int4_g128")
    ] = None,
    activation: Annotated[int4.Activation | None, typer.Option(help="of A, after the word int4; by default bfloat16")] = None,
) -> None:
    """Time FP8 products on this GPU, or INT4 after the word int4.

    Random data; beside DeepGEMM, cuBLAS and torch's int4 where they can be imported.
    """
    is_int4 = bool(shapes) and shapes[0] == "int4"  # type: ignore[index]
    named = (shapes or [])[1:] or int4.SHAPES if is_int4 else shapes or SHAPES
    extents = [parse(s) for s in named]
    for name, value in (("format", form), ("activation", activation)):
        if value is not None and not is_int4:
            raise ProblemError(f"{name}: expected none without the word int4, got {value}; as in `dgnumba bench int4 16x7168x2048`")
    weights, kind = form or "int4_g128", activation or int4.Activation.bfloat16
    if is_int4:
        int4.check_format(weights)
    why = gpu.missing()
    if why is not None:
        raise ProblemError(f"bench: expected a GPU, got none: {why}")
    files.expect_folder("output", output)
    rows = []
    with progress("measure") as step:
        for i, (m, n, k) in enumerate(extents):
            rows.append(int4.measure(m, n, k, weights, kind, runs, flush) if is_int4 else measure(m, n, k, runs, flush))
            step(i + 1, len(extents))
    _print(rows)
    if output is not None:
        output.write_text(json.dumps(rows, indent=1) + "\n")


def parse(shape: str) -> tuple[int, int, int]:
    """Extents of a shape.

    >>> parse("4096x7168x2048")
    (4096, 7168, 2048)
    """
    parts = shape.lower().split("x")
    if len(parts) != 3 or not all(p.isdecimal() and int(p) > 0 for p in parts):
        raise ProblemError(f"shape: expected MxNxK, as 4096x7168x2048, got {shape}")
    m, n, k = map(int, parts)
    return m, n, k


def measure(m: int, n: int, k: int, runs: int, flush: bool) -> dict[str, Any]:
    """One row: our time and each rival's in microseconds."""
    from ..device import Device

    rng = np.random.default_rng(0)
    a = gpu.to_gpu(dgnumba.per_token_cast_to_fp8(rng.standard_normal((m, k), np.float32)))
    b = gpu.to_gpu(dgnumba.per_block_cast_to_fp8(rng.standard_normal((n, k), np.float32)))
    d = dgnumba.fp8_gemm_nt(a, b)
    us = 1e6 * gpu.seconds(lambda: dgnumba.fp8_gemm_nt(a, b, d), runs, flush=flush)
    rivals = {name: 1e6 * gpu.seconds(call, runs, flush=flush) for name, call in rival_calls(a, b).items()}
    return {
        "bench": "fp8_gemm_nt", "m": m, "n": n, "k": k, "us": us, "tflops": 2e-6 * m * n * k / us, "rivals": rivals,
        "method": {"flush": "read" if flush else "none", "timer": "events", "runs": runs}, "gpu": Device.current().name,
    }  # fmt: skip


def rival_calls(a: Any, b: Any) -> dict[str, Callable[[], Any]]:
    """Calls of what else does this product, for the same operands; only of what is installed."""
    try:
        import torch
    except ImportError:
        return {}
    x, sfx, y, sfy = (torch.as_tensor(part, device="cuda") for part in (*a, *b))
    x, y = x.view(torch.float8_e4m3fn), y.view(torch.float8_e4m3fn)
    d = torch.empty((len(x), len(y)), dtype=torch.bfloat16, device="cuda")
    one = torch.ones((), device="cuda")
    calls: dict[str, Callable[[], Any]] = {}
    if all(extent % 16 == 0 for extent in (*x.shape, *y.shape)):
        calls["cublas (no block scales)"] = lambda: torch._scaled_mm(x, y.T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    try:
        import deep_gemm
    except ImportError:
        return calls
    calls["deepgemm"] = lambda: deep_gemm.fp8_gemm_nt((x, sfx), (y, sfy), d)
    return calls


def _print(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(title=f"{rows[0]['gpu']}: median microseconds, TFLOP/s, and each rival's time over ours")
    for name in ("M", "N", "K", "us", "TFLOP/s"):
        table.add_column(name, justify="right")
    rivals = list(dict.fromkeys(name for row in rows for name in row["rivals"]))
    for name in rivals:
        table.add_column(name, justify="right")
    for row in rows:
        others = [f"{row['rivals'][r] / row['us']:.3f}" if r in row["rivals"] else "-" for r in rivals]
        table.add_row(*(str(row[x]) for x in "mnk"), f"{row['us']:.1f}", f"{row['tflops']:.0f}", *others)
    console().print(table)
