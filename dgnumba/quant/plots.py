"""The picture of a `QuantReport`; needs matplotlib, which nothing else here does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UnsupportedError

if TYPE_CHECKING:
    from .quality import QuantReport


def plot(found: QuantReport, path: Any = None) -> Any:
    """A heat map of the blocks' SQNR, a histogram of the share of its bound that each element used, and one of the codes, by their value.

    Args:
        found: what `report` gave; of a stack of matrices the rows of blocks stand one below another.
        path: a file to write, of a format that matplotlib knows by its ending; None: none.

    Returns:
        The `matplotlib.figure.Figure`.

    Raises:
        UnsupportedError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise UnsupportedError(f"plot: needs matplotlib: python -m pip install matplotlib ({error})") from error
    figure = Figure(figsize=(13, 4), layout="constrained")
    blocks, shares, codes = figure.subplots(1, 3, width_ratios=(1.3, 1, 1))
    finite = np.where(np.isfinite(found.sqnr_db), found.sqnr_db, np.nan)
    image = blocks.imshow(finite.reshape(-1, finite.shape[-1]), aspect="auto", interpolation="nearest", cmap="viridis")
    figure.colorbar(image, ax=blocks, label="SQNR, dB")
    blocks.set(title="blocks", xlabel="block of columns", ylabel="block of rows")
    edges = np.linspace(0, 100, len(found.histogram) + 1)
    shares.stairs(found.histogram, edges, fill=True)
    shares.set(title="error", xlabel="% of the element's bound", ylabel="elements", yscale="symlog")
    order = np.argsort(found.levels, kind="stable")  # NaN last
    codes.bar(np.arange(len(order)), found.codes[order], width=1.0)
    ticks = np.linspace(0, len(order) - 1, 5).astype(int)
    codes.set_xticks(ticks, [f"{found.levels[order[i]]:.2g}" for i in ticks])
    codes.set(title="codes", xlabel="what the code means, unscaled", ylabel="elements", yscale="symlog")
    figure.suptitle(f"{found.format}\n{found.total}", fontsize=9)
    if path is not None:
        figure.savefig(path, dpi=120)
    return figure
