"""The order in which a plan's tiles are computed, and what of their operands L2 saves from being read from memory again."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..device import Device
from ..dtypes import DTYPES
from ..errors import ProblemError
from ..integers import u32
from ..kernels import GemmPlan
from ..layouts.tiles import band_tile
from .figures import new_figure

BANDED = ("sm90_fp8_gemm_1d2d", "sm80_gemm")
M_FIRST = ("sm90_fp8_gemm_1d2d_swap_ab", "sm90_fp8_gemm_1d2d_resident", "sm90_fp8_gemv_1d2d", "sm90_fp8_gemv_1d2d_rs")
"""Kernels by the order of their tiles: in bands (`layouts.tiles`), or the m blocks of one n block after another."""

_band_tile = getattr(band_tile, "py_func", band_tile)


def tile_order(plan: GemmPlan, m_blocks: int, n_blocks: int) -> list[tuple[int, int]]:
    """(m block, n block) of each tile in the order in which the kernel of `plan` numbers them. Raises `ProblemError` for a kernel not known here."""
    if plan.kernel not in BANDED + M_FIRST:
        raise ProblemError(f"plan: expected one of {', '.join(BANDED + M_FIRST)}, whose orders are known, got {plan.kernel}")
    if plan.kernel in M_FIRST:
        return [(i % m_blocks, i // m_blocks) for i in range(m_blocks * n_blocks)]
    if plan.multicast == "A":  # neighbours share A when they differ in n
        n_blocks = -(-n_blocks // plan.cluster) * plan.cluster
        pairs = [_band_tile(u32(i), u32(n_blocks), u32(m_blocks), plan.band) for i in range(m_blocks * n_blocks)]
        return [(int(m), int(n)) for n, m in pairs]
    if plan.multicast == "B":
        m_blocks = -(-m_blocks // plan.cluster) * plan.cluster
    pairs = [_band_tile(u32(i), u32(m_blocks), u32(n_blocks), plan.band) for i in range(m_blocks * n_blocks)]
    return [(int(m), int(n)) for m, n in pairs]


@dataclass(frozen=True)
class TileRaster:
    """The tiles of one product.

    order   [m blocks, n blocks]: which number each tile has
    wave    the same: in which round of tiles, one a multiprocessor, it is computed
    loads   bytes of A and B that the multiprocessors load in all
    shared  of these, bytes that another tile of the same round has too: one read through L2 serves them
    memory  bytes read from memory, if L2 keeps what was used last; A and B once are `least`
    least   bytes of A and B
    """

    plan: GemmPlan
    order: np.ndarray
    wave: np.ndarray
    loads: int
    shared: int
    memory: int
    least: int

    @property
    def reuse(self) -> float:
        """Bytes loaded for each byte that memory gives."""
        return self.loads / self.memory

    def __str__(self) -> str:
        tiles = f"{self.order.size} tiles of {self.plan.block_m}x{self.plan.block_n} in {int(self.wave.max()) + 1} rounds"
        loaded = f"{self.loads / 1e6:.1f} MB loaded, {100 * self.shared / self.loads:.0f} % of it shared within a round"
        return f"{tiles}: {loaded}; {self.memory / 1e6:.1f} MB from memory ({self.least / 1e6:.1f} at least)"

    def draw(self, ax: Any = None) -> Any:
        """The output with its tiles coloured by round, and numbered where there are few. Returns matplotlib's Figure."""
        figure = ax.figure if ax is not None else new_figure((7, 6))
        ax = ax if ax is not None else figure.subplots()
        image = ax.imshow(self.wave, aspect="auto", cmap="viridis", interpolation="nearest")
        figure.colorbar(image, ax=ax, label="round")
        if self.order.size <= 400:
            for (row, column), number in np.ndenumerate(self.order):
                ax.text(column, row, str(number), ha="center", va="center", fontsize=6, color="white")
        ax.set(xlabel=f"n block (of {self.plan.block_n})", ylabel=f"m block (of {self.plan.block_m})")
        ax.set_title(f"{self.plan.name}\n{self}", fontsize=7)
        return figure


def tile_raster(plan: GemmPlan, m: int, n: int, k: int = 4096, device: Device | None = None) -> TileRaster:
    """The tiles of D [m, n] under `plan`; L2 and multiprocessors are those of `device` (None: the one that plans are made for).

    >>> from dgnumba import lab
    >>> from dgnumba.kernels import GemmPlan
    >>> lab.tile_raster(GemmPlan("sm90_fp8_gemm_1d2d", 128, 128, 5, band=2), 640, 384).order
    array([[ 0,  2,  4],
           [ 1,  3,  5],
           [ 6,  8, 10],
           [ 7,  9, 11],
           [12, 13, 14]])
    """
    device = device or Device.current()
    m_blocks, n_blocks = -(-m // plan.block_m), -(-n // plan.block_n)
    order = np.zeros((m_blocks, n_blocks), np.int64)
    wave = np.zeros_like(order)
    at_once = max(1, device.num_sms // plan.cluster * (plan.cluster if plan.multicast else 1))
    a_bytes, b_bytes = (rows * k * DTYPES[dtype].bits // 8 for rows, dtype in ((plan.block_m, plan.a_dtype), (plan.block_n, plan.b_dtype)))
    cache: OrderedDict[tuple[str, int], int] = OrderedDict()
    loads = shared = memory = held = 0
    in_round: set[tuple[str, int]] = set()
    for number, (m_block, n_block) in enumerate(tile_order(plan, m_blocks, n_blocks)):
        if number % at_once == 0:
            in_round.clear()
        if m_block >= m_blocks or n_block >= n_blocks:
            continue  # a cluster's tile outside of D
        order[m_block, n_block], wave[m_block, n_block] = number, number // at_once
        for rows, nbytes in ((("a", m_block), a_bytes), (("b", n_block), b_bytes)):
            loads += nbytes
            shared += nbytes if rows in in_round else 0
            in_round.add(rows)
            if rows not in cache:
                memory += nbytes
                held += nbytes
            cache[rows] = nbytes
            cache.move_to_end(rows)
            while held > device.l2_bytes and len(cache) > 1:
                held -= cache.popitem(last=False)[1]
    return TileRaster(plan, order, wave, loads, shared, memory, m_blocks * a_bytes + n_blocks * b_bytes)
