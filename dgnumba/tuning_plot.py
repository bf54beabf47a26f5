"""The picture of what `tune` measured; needs matplotlib, which `tune` does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .errors import ProblemError, UnsupportedError
from .measured import Measured


def heat_map(found: Sequence[Measured], path: Any = None) -> Any:
    """A heat map of each shape: a row a tile, a column a number of stages, and the time of the fastest plan with both over that of the fastest.

    Args:
        found: what `tune` gave.
        path: a file to write, of a format that matplotlib knows by its ending; None: none.

    Returns:
        The `matplotlib.figure.Figure`.

    Raises:
        ProblemError: nothing was measured. UnsupportedError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise UnsupportedError(f"plot: needs matplotlib: python -m pip install matplotlib ({error})") from error
    if not found:
        raise ProblemError("found: expected what was measured, got nothing")
    grids = [grid(row) for row in found]
    height = 1.6 + 0.32 * max(len(tiles) for tiles, _, _ in grids)
    figure = Figure(figsize=(5.2 * len(found), height), layout="constrained")
    for axis, row, (tiles, stages, us) in zip(figure.subplots(1, len(found), squeeze=False)[0], found, grids):
        image = axis.imshow(us / row.us, aspect="auto", interpolation="nearest", cmap="viridis_r", vmin=1, vmax=2)
        for (y, x), value in np.ndenumerate(us):
            if np.isfinite(value):
                axis.text(x, y, f"{value:.1f}", ha="center", va="center", fontsize=7, color="white" if value > 1.5 * row.us else "black")
        axis.set_xticks(range(len(stages)), [str(s) for s in stages])
        axis.set_yticks(range(len(tiles)), tiles, fontsize=8)
        p = row.problem
        axis.set_title(f"{p.m}x{p.n}x{p.k} {p.d_dtype}: {row.us:.1f} us\n{row.plan.name}", fontsize=9)
        axis.set_xlabel("stages")
        axis.set_ylabel("BLOCK_M x BLOCK_N")
        figure.colorbar(image, ax=axis, label="time over the fastest's")
    figure.suptitle(f"{found[0].gpu}: microseconds ({found[0].method})", fontsize=8)
    if path is not None:
        figure.savefig(path, dpi=120)
    return figure


def grid(row: Measured) -> tuple[list[str], list[int], Any]:
    """Tiles, numbers of stages, and the least microseconds [tiles, stages] of the plans with both; NaN where none was measured."""
    times: dict[tuple[int, int, bool], dict[int, float]] = {}
    for plan, us in ((row.plan, row.us), *row.others):
        of_tile = times.setdefault((plan.block_m, plan.block_n, "swap" in plan.kernel), {})
        of_tile[plan.num_stages] = min(us, of_tile.get(plan.num_stages, np.inf))
    stages = sorted({s for of_tile in times.values() for s in of_tile})
    least = np.array([[of_tile.get(s, np.nan) for s in stages] for _, of_tile in sorted(times.items())])
    return [f"{m} x {n}" + " swapped" * is_swapped for m, n, is_swapped in sorted(times)], stages, least


__all__ = ["grid", "heat_map"]
