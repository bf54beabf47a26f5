"""Who holds which element of a fragment: the maps of `layouts.lanes` as pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ProblemError
from ..layouts import lanes
from ..layouts.lanes import LaneMap
from .figures import axes_of, color_of


@dataclass(frozen=True)
class FragmentMap:
    """For each element of a tile the lane that holds it, and in which of its registers (or register elements).

    lane      [rows, columns]
    register  [rows, columns]
    """

    name: str
    lane: np.ndarray
    register: np.ndarray

    def held_by(self, lane: int) -> list[tuple[int, int]]:
        """(row, column) of what `lane` holds, in the order of its registers."""
        rows, columns = np.nonzero(self.lane == lane)
        order = np.argsort(self.register[rows, columns])
        return [(int(rows[i]), int(columns[i])) for i in order]

    def draw(self, ax: Any = None, rows: int = 16, columns: int = 16) -> Any:
        """The tile's first `rows` x `columns`: one colour a lane (of eight), as text lane and register. Returns matplotlib's Figure."""
        rows, columns = min(rows, self.lane.shape[0]), min(columns, self.lane.shape[1])
        figure, ax = axes_of(ax, (0.55 * columns + 1, 0.32 * rows + 1))
        colors = np.array([[color_of(int(lane) % 20)[:3] for lane in row[:columns]] for row in self.lane[:rows]])
        ax.imshow(0.5 + colors / 2, aspect="auto", interpolation="nearest")
        for row in range(rows):
            for column in range(columns):
                text = f"T{self.lane[row, column]}:{self.register[row, column]}"
                ax.text(column, row, text, ha="center", va="center", fontsize=6)
        ax.set(xlabel="column", ylabel="row")
        height, width = self.lane.shape
        ax.set_title(f"{self.name}, {height} x {width}" + (" (a part)" if (rows, columns) != self.lane.shape else ""), fontsize=8)
        return figure


def fragment_map(layout: str | LaneMap = "wgmma_accumulator", *arguments: int) -> FragmentMap:
    """The map of one of `layouts.lanes`, by name with its arguments, or of a `LaneMap`.

    >>> from dgnumba import lab
    >>> seen = lab.fragment_map("wgmma_accumulator", 16)
    >>> seen.held_by(5)
    [(1, 2), (1, 3), (9, 2), (9, 3), (1, 10), (1, 11), (9, 10), (9, 11)]
    """
    lane_map = layout if isinstance(layout, LaneMap) else _named(layout, arguments)
    count, elements = lane_map.row.shape
    lane, register = np.meshgrid(np.arange(count), np.arange(elements), indexing="ij")
    return FragmentMap(lane_map.name, lane_map.scatter(lane), lane_map.scatter(register))


def _named(name: str, arguments: tuple[int, ...]) -> LaneMap:
    names = [n for n, made in vars(lanes).items() if hasattr(made, "cache_info")]
    if name not in names:
        raise ProblemError(f"layout: expected one of {', '.join(names)}, or a LaneMap, got {name!r}")
    found: LaneMap = getattr(lanes, name)(*(arguments or ((64,) if name == "wgmma_accumulator" else ())))
    return found
