"""``dgnumba warmup``: compile ahead what layers will ask for."""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import ProblemError
from .gemm import OutType
from .show import console, progress


def warmup(
    shapes: Annotated[list[str], typer.Argument(metavar="NxK | MxNxK", help="layers, for any M; or single products")],
    dtype: Annotated[OutType, typer.Option(help="of D")] = OutType.bfloat16,
    with_c: Annotated[bool, typer.Option("--with-c", help="for calls that add C")] = False,
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="the GPU to plan for, as h200; by default the one that is here, else an H200")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="processes; by default one a CPU")] = None,
    plans: Annotated[
        int | None, typer.Option(min=1, help="kernels of a layer at most: with DGNUMBA_PLANS_PER_LAYER set to this, calls keep to them")
    ] = None,
) -> None:
    """Compile the kernels of these shapes ahead; needs no GPU."""
    import dgnumba

    extents = [parse(shape) for shape in shapes]
    if plans is not None:
        dgnumba.set_plans_per_layer(plans)
    with progress("compile") as step:
        warmed = dgnumba.warmup(extents, device=device, d_dtype=dtype.value, with_c=with_c, jobs=jobs, progress=step)
    out = console()
    for plan, needed_by in warmed.kernels.items():
        out.print(f"{plan.label:44s} {plan.kernel:28s} {' '.join('x'.join(map(str, shape)) for shape in needed_by)}")
    for _ in warmed.moves:
        out.print(f"{'row-major scales of A to MN-major':44s} smxx_layout")
    out.print(str(warmed))
    if plans is not None:
        out.print(f"calls keep to these kernels where DGNUMBA_PLANS_PER_LAYER={plans} is set")


def parse(shape: str, counts: tuple[int, ...] = (2, 3)) -> tuple[int, ...]:
    """Extents of a layer or a product.

    >>> parse("7168x2048"), parse("16x7168x2048")
    ((7168, 2048), (16, 7168, 2048))
    """
    parts = shape.lower().split("x")
    if len(parts) not in counts or not all(p.isdecimal() and int(p) > 0 for p in parts):
        wanted = " or ".join({2: "NxK, as 7168x2048", 3: "MxNxK, as 16x7168x2048"}[count] for count in counts)
        raise ProblemError(f"shape: expected {wanted}, got {shape}")
    return tuple(map(int, parts))
