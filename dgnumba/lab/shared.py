"""Shared memory and its banks: where a swizzled tile's bytes lie, and which banks a kernel's accesses meet."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import emu
from ..emu.checks.requests import BANKS, WORD, One, Requests, served_together
from ..errors import ProblemError
from ..layouts import swizzle as swizzles
from ..layouts.swizzle import CHUNK, SWIZZLES
from .figures import axes_of, color_of, new_figure

LINE = BANKS * WORD


@dataclass(frozen=True)
class SmemTile:
    """A tile of `rows` rows of `row_bytes` bytes, written with a swizzle.

    place    [rows, chunks]: the byte address, from the tile's base, of each chunk of 16 bytes
    bank     [rows, chunks]: the first of the four banks that it lies in
    """

    rows: int
    row_bytes: int
    swizzle: int
    place: np.ndarray
    bank: np.ndarray

    def ways(self, rows: int = 8) -> np.ndarray:
        """[chunks]: how often the busiest bank is met, at worst, when `rows` successive rows are read at one chunk of each, as ldmatrix reads."""
        groups = self.bank[: self.rows // rows * rows].reshape(-1, rows, self.bank.shape[1])
        counts = [[np.bincount(group[:, chunk], minlength=BANKS).max() for chunk in range(group.shape[1])] for group in groups]
        worst: np.ndarray = np.max(np.array(counts), axis=0)
        return worst

    def draw(self) -> Any:
        """Left the tile as it lies: a line of 32 banks a row, in colour the tile's row, as text its chunk. Right the conflicts of a column."""
        figure = new_figure((11, 0.28 * max(self.rows * self.row_bytes // LINE, 8) + 1.5))
        memory, bars = figure.subplots(1, 2, width_ratios=(3, 1))
        for row in range(self.rows):
            for chunk in range(self.row_bytes // CHUNK):
                line, at = divmod(int(self.place[row, chunk]), LINE)
                memory.add_patch(_box(at // WORD, line, color_of(row % 16)))
                memory.text(at // WORD + 2, line + 0.5, f"r{row} c{chunk}", ha="center", va="center", fontsize=6)
        memory.set(xlim=(0, BANKS), ylim=(self.rows * self.row_bytes / LINE, 0), xlabel="bank", ylabel="128 bytes of shared memory")
        memory.set_title(f"{self.rows} rows of {self.row_bytes} bytes, swizzle {self.swizzle}", fontsize=8)
        ways = self.ways(min(8, self.rows))
        bars.barh(np.arange(len(ways)), ways, color="#a33b3b")
        bars.axvline(1, color="black", linestyle=":")
        bars.invert_yaxis()
        bars.set(xlabel="ways", ylabel="chunk", title="8 rows read at one chunk", xlim=(0, 8.5))
        return figure


def _box(x: float, y: float, color: Any) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), 4, 1, facecolor=color, edgecolor="white", alpha=0.6)


def smem_tile(rows: int, row_bytes: int, swizzle: int) -> SmemTile:
    """Where a tile's chunks lie, its base aligned to the swizzle's pattern.

    rows       of the tile
    row_bytes  of a row, a multiple of 16; for a swizzle other than 0 not longer than it, as TMA has it
    swizzle    0, 32, 64 or 128

    >>> from dgnumba import lab
    >>> lab.smem_tile(8, 128, 0).ways(), lab.smem_tile(8, 128, 128).ways()
    (array([8, 8, 8, 8, 8, 8, 8, 8]), array([1, 1, 1, 1, 1, 1, 1, 1]))
    """
    if swizzle not in SWIZZLES:
        raise ProblemError(f"swizzle: expected one of {SWIZZLES}, got {swizzle}")
    if row_bytes % CHUNK or row_bytes < CHUNK or swizzle and row_bytes != swizzle:
        raise ProblemError(f"row_bytes: expected a multiple of {CHUNK}, and the swizzle's own {swizzle or 'any'}, got {row_bytes}")
    plain = np.arange(rows)[:, None] * row_bytes + np.arange(0, row_bytes, CHUNK)
    place = swizzles.swizzle(plain, swizzle)
    return SmemTile(rows, row_bytes, swizzle, place, place % LINE // WORD)


@dataclass(frozen=True)
class BankHeat:
    """Accesses of shared memory by threads, by place in the source.

    places      "gemm.py:120: tile[i] = x", in the order in which the kernel came to them
    words       [places, 32]: words of 4 bytes that each bank gave or took
    wavefronts  [places]: rounds of the banks that the warps' requests took
    ideal       [places]: what they would have taken without a conflict
    """

    places: tuple[str, ...]
    words: np.ndarray
    wavefronts: np.ndarray
    ideal: np.ndarray

    @property
    def ways(self) -> np.ndarray:
        """[places]: rounds for each that was needed; 1 is free of conflicts."""
        ratio: np.ndarray = self.wavefronts / np.maximum(self.ideal, 1)
        return ratio

    def __str__(self) -> str:
        return "\n".join(
            f"{ways:5.2f} ways  {used:7d} rounds  {place}" for ways, used, place in zip(self.ways, self.wavefronts, self.places)
        )

    def draw(self, ax: Any = None) -> Any:
        """One row a place, one column a bank. Returns matplotlib's Figure."""
        figure, ax = axes_of(ax, (11, 0.35 * max(len(self.places), 3) + 1.5))
        shares = self.words / np.maximum(self.words.sum(axis=1, keepdims=True), 1)
        image = ax.imshow(shares * BANKS, aspect="auto", cmap="magma", vmin=0, interpolation="nearest")
        figure.colorbar(image, ax=ax, label="times its even share")
        ax.set_yticks(range(len(self.places)), [f"{ways:.1f}x  {place[:70]}" for ways, place in zip(self.ways, self.places)], fontsize=7)
        ax.set(xlabel="bank")
        return figure


class _Banks(Requests):
    """Requests of warps, with a count of the words that each bank gives or takes."""

    def __init__(self) -> None:
        super().__init__()
        self.words: dict[tuple[Any, ...], np.ndarray] = defaultdict(lambda: np.zeros(BANKS, np.int64))

    def close(self, place: Any, request: list[One]) -> None:
        """A request is complete."""
        super().close(place, request)
        space, is_store, number = place
        if space == "shared":
            site = self.site(number)
            words = np.array([word % BANKS for part in served_together(request) for word in part])
            self.words[site.op, site.file, site.line, site.source, is_store] += np.bincount(words, minlength=BANKS)


def bank_heat(kernel: Callable[..., Any], grid: Any, block: Any, args: Any, **options: Any) -> BankHeat:
    """Run any kernel in the emulator (arguments as of `emu.run`), and count which banks its accesses of shared memory meet.

    >>> import numpy as np
    >>> from numba import cuda
    >>> from dgnumba import lab
    >>> def columns(x):
    ...     tile = cuda.shared.array((32, 32), np.float32)
    ...     tile[cuda.threadIdx.x, 0] = x[cuda.threadIdx.x]
    >>> lab.bank_heat(columns, 1, 32, (np.zeros(32, np.float32),)).ways
    array([32.])
    """
    banks = _Banks()
    emu.run(kernel, grid, block, args, observe=banks, **options)
    rows = {(row.op, row.file, row.line, row.source, row.is_store): row for row in banks.shared()}
    order = list(banks.words)
    return BankHeat(
        tuple(f"{os.path.basename(file)}:{line}: {source}" for _, file, line, source, _ in order),
        np.array([banks.words[key] for key in order]).reshape(-1, BANKS),
        np.array([rows[key].wavefronts for key in order], np.int64),
        np.array([rows[key].ideal for key in order], np.int64),
    )
