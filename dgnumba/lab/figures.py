"""What every picture needs of matplotlib, which is imported when the first one is drawn."""

from __future__ import annotations

import functools
import io
from typing import Any

from ..errors import UnsupportedError


def axes_of(ax: Any, size: tuple[float, float]) -> tuple[Any, Any]:
    """(figure, axes): those given, or new ones of `size` inches. Raises `UnsupportedError` where matplotlib is not installed."""
    if ax is not None:
        return ax.figure, ax
    figure = new_figure(size)
    return figure, figure.subplots()


def new_figure(size: tuple[float, float]) -> Any:
    """An empty figure of `size` inches, of no window system."""
    return _figure_type()(figsize=size, layout="constrained")


@functools.cache
def _figure_type() -> Any:
    try:
        from matplotlib.figure import Figure  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise UnsupportedError(f"draw: needs matplotlib: python -m pip install 'dgnumba[notebooks]' ({error})") from error

    class Picture(Figure):  # type: ignore[misc, unused-ignore]
        """A figure that a notebook shows by itself, whatever backend it has."""

        def _repr_png_(self) -> bytes:
            data = io.BytesIO()
            self.savefig(data, format="png", dpi=100)
            return data.getvalue()

    return Picture


def color_of(number: int) -> Any:
    """A colour for the `number`-th of some things that are told apart."""
    from matplotlib import colormaps

    return colormaps["tab20"](number % 20)
