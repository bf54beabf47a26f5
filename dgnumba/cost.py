"""What a plan should cost, in microseconds: a model of the kernel's pipes whose constants were fitted to measurements. Pure, no GPU.

A tile's block of K passes through pipes that run side by side, so the slowest sets the pace; rounds of tiles, one a multiprocessor, follow one
another; memory runs beside all of them:

    total = launch + ||  sum over rounds of (blocks * || tensor, load, L2, latency, ragged || + epilogue),  memory + last block and epilogue  ||

``|| ... ||`` is a norm of high exponent: the largest, and a little more where two are level. Of the pipes

    tensor    products, what of the promotion no other warpgroup hides, and the block's own overhead; the clock falls as the pipe fills
    load      bytes of a block into one multiprocessor
    L2        rows that the CTAs of one GPC read at one time, through the GPC's port; whoever shares a tile shares its row
    latency   of a load, spread over the stages
    ragged    boxes that reach past the end of an operand, which slow all who read them
    epilogue  of a tile: by kind, columns and waves of 64 rows; of a split, the sums' meeting
    memory    operands, what L2 cannot keep from round to round, the output, and dirty lines to be written back

Every quantity comes from the plan, the problem and the `Device`; no measured shape is looked up. `bench/fit_cost.py` fits `Constants` to
what bench/results has of plans by turns, with this very code. The kernels for very few rows have a model of their own, `cost_gemv`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from . import cost_gemv
from .device import GPCS, Device
from .kernels import sm80_gemm_rules
from .kernels.sm80_cost import LAUNCH
from .kernels.sm90_fp8_gemm_1d2d_rules import is_streamed
from .kernels.spec import GemmPlan
from .problem import GemmProblem

Array = Any
"""Of NumPy: a number for all plans, or an array with one for each."""

MACS_PER_CYCLE = 4096
"""FP8 multiply-adds of one multiprocessor in a cycle: 1979 TFLOP/s over 132 of them at 1.83 GHz."""

DEPTH = 128
"""K of a block: promotion and scales come once for each."""

LINE_GAIN = 1.05
"""How much faster memory is for the dense kernel where L2 fetches its weights a line at a time; the others, always so, have it in their constants."""

_NS = {
    16: (32, 64, 96, 128), 32: (64, 112), 64: (16, 32, 48, 64, 96, 112, 128, 192), 128: (64, 96, 112, 128, 144, 160, 176, 192), 256: (64, 96, 128),
}  # fmt: skip
_FEW_ROWS = (8, 16, 24, 32, 48, 64)
TILES: dict[str, frozenset[tuple[int, int, str | None, bool]]] = {
    "sm90_fp8_gemm_1d2d": frozenset(
        [(256, 128, None, True), (256, 128, "A", True), *((m, n, None, False) for m, ns in _NS.items() for n in ns)]
        + [(256, 128, "A", False), (128, 192, "A", False), (128, 192, "B", False), (128, 144, "B", False)]
    ),
    "sm90_fp8_gemm_1d2d_swap_ab": frozenset((m, n, None, False) for m in _FEW_ROWS for n in (64, 128)),
    "sm90_fp8_gemm_1d2d_resident": frozenset((m, n, None, False) for m in _FEW_ROWS for n in (128, 192, 256) if m * n < 64 * 192),
}
"""Tiles (BLOCK_M, BLOCK_N, operand shared, rotated) that were measured: others are doubted. The dense one's clusters and rotation: at M >= 4096."""


@dataclass(frozen=True)
class Constants:
    """What the model does not get from plan, problem or device. Cycles are of the multiprocessor's clock.

    The defaults are those of sm90_fp8_gemm_1d2d, fitted to 1284 measurements on one H200 (2026-11-30, ``python bench/fit_cost.py``), but for
    clock, latency, memory_norm, store_direct, row_copies and doubt, which these do not tell, and peer_sum, which that kernel has no use for.

    clock            GHz     while the tensor pipe is far from full
    launch           us      from launch to the first products, and from the last store to the kernel's end
    wgmma_floor      cycles  a wave of products (64 rows, 128 of K) at least, at 32 columns; with fewer it grows as their cube root falls
    promotion        cycles  a column of a wave: the promotion's multiply-adds, exposed where no other warpgroup has products
    block_1          cycles  a stage: barrier, issue and drain, of a warpgroup that is alone
    block_2          cycles  a stage: what two warpgroups do not hide from each other
    block_4          cycles  a stage: the same where each has two waves (BLOCK_M 256)
    segment          cycles  a block and wave, for each run of columns under one scale of B beyond the first; a quarter where one warpgroup is alone
    rotate_block     cycles  a stage: what a rotated loop hides of that
    rotate_tile      cycles  a tile: what it costs to begin and end such a loop
    peer_block       cycles  a stage: the peer's arrivals and waits, in a cluster
    peer_tile        cycles  a tile: the same
    peer_sum         cycles  each register whose partial sums a thread of a split adds up
    tile             cycles  a tile: its begin and end
    store            cycles  a column and wave of the store
    store_again      cycles  a column of the second wave's store, beyond that
    store_warp       cycles  an element beyond that, with the warp epilogue
    store_direct     cycles  an element beyond that, with the direct one or from the registers; of the dense kernel not measured
    store_panel      cycles  an element beyond that, for each halving of a panel of 64 columns
    power            share   by which the clock falls when every tensor pipe is full
    power_exponent   -       of activity: a pipe half full costs less than half of it
    power_load       share   of a full pipe's draw that 64 bytes a cycle of operands add: what multicast saves
    power_slow       share   of the fall that comes on top in a kernel that lasts
    power_time       us      half of that takes
    load_rate        B/ns    into one multiprocessor
    port_rate        B/ns    from L2 through a GPC's port
    latency          us      from a load's issue to its arrival
    memory_share     share   of the datasheet's bandwidth that is reached
    memory_norm      -       exponent of the norm in which memory and the pipes meet
    write_cost       -       bytes read that a byte written costs
    write_kept       share   of L2 that takes output before any has to leave
    dirty_share      share   of L2 that a memset leaves to be written back
    ragged           us      a block, where every multiprocessor reads boxes that lie past the end of an operand
    ragged_row       us      the same for each row of the box, where that is more
    row_copies       share   added to a block where a warp brings A's row-major scales: the median of 12 products of 128 to 4096 rows
    doubt            share   added to a plan unlike the measured ones: of many, one is estimated too low
    """

    clock: float = 1.98
    launch: float = 2.88
    wgmma_floor: float = 106.0
    promotion: float = 0.532
    block_1: float = 53.0
    block_2: float = 88.4
    block_4: float = 144.0
    segment: float = 11.2
    rotate_block: float = 46.9
    rotate_tile: float = 298.0
    peer_block: float = 22.4
    peer_tile: float = 246.0
    peer_sum: float = 200.0
    tile: float = 369.0
    store: float = 4.24
    store_again: float = 3.35
    store_warp: float = 0.014
    store_direct: float = 0.02
    store_panel: float = 0.0155
    power: float = 0.203
    power_exponent: float = 0.954
    power_load: float = 0.167
    power_slow: float = 0.203
    power_time: float = 223.0
    load_rate: float = 163.0
    port_rate: float = 949.0
    latency: float = 0.8
    memory_share: float = 0.847
    memory_norm: float = 8.0
    write_cost: float = 1.45
    write_kept: float = 0.18
    dirty_share: float = 0.382
    ragged: float = 0.178
    ragged_row: float = 0.00452
    row_copies: float = 0.08
    doubt: float = 0.05


class Work(NamedTuple):
    """What plans do to a problem on a device: arrays, one element a plan.

    columns, warpgroups, waves   of products: N of one, the warpgroups that share the pipe, and how many of its own each has in a block
    segments                     of a wave's columns, beyond the first
    blocks, stages, depth        of K in a CTA's share of it; in the ring; and in a stage of the ring
    block_bytes                  that one multiprocessor loads for a block
    full, rest, rest_share       rounds of tiles that fill the device; whether a last one follows; the share of multiprocessors that it has
    port_bytes, rest_port_bytes  that one GPC reads for a block, each row once, in a full round and in the last
    rows_a, past_a, crowd_a      rows of A's box; the share past the end, of the last one; and the share of tiles that have that one
    rows_b, past_b, crowd_b      the same of B
    elements, is_warp, is_direct of a tile of D; its epilogue's kind
    halvings                     of a panel of 64 columns
    is_cluster                   whether CTAs wait for each other
    sums                         registers of a thread's accumulator, over the root of `split`: between its share of them and all that it reads
    is_rotated, is_by_rows       whether the loop over K is; whether A's scales are read as they lie in row-major memory
    read_bytes, write_bytes      of memory; A comes with a scale of 4 bytes for 128 elements, C as long as D
    l2_bytes, memory_rate        the device's, the latter in bytes a microsecond
    is_dirty, is_doubted         whether L2 has lines to write back; whether nothing like the plan was measured
    """

    columns: Array
    warpgroups: Array
    waves: Array
    segments: Array
    blocks: Array
    stages: Array
    depth: Array
    block_bytes: Array
    full: Array
    rest: Array
    rest_share: Array
    port_bytes: Array
    rest_port_bytes: Array
    rows_a: Array
    past_a: Array
    crowd_a: Array
    rows_b: Array
    past_b: Array
    crowd_b: Array
    elements: Array
    is_warp: Array
    is_direct: Array
    halvings: Array
    is_cluster: Array
    sums: Array
    is_rotated: Array
    is_by_rows: Array
    read_bytes: Array
    write_bytes: Array
    l2_bytes: Array
    memory_rate: Array
    is_dirty: Array
    is_doubted: Array


@dataclass(frozen=True)
class Estimate:
    """What a plan should cost, in microseconds. The pipes run side by side: `total` is the largest and what no pipe hides."""

    total: float
    tensor: float
    load: float
    l2: float
    latency: float
    ragged: float
    epilogue: float
    memory: float
    launch: float

    @property
    def bound(self) -> str:
        """The pipe that sets the pace."""
        pipes = {"tensor cores": self.tensor, "loads": self.load, "L2": self.l2, "latency": self.latency, "ragged boxes": self.ragged}
        name, slowest = max(pipes.items(), key=lambda pipe: pipe[1])
        return "memory" if self.memory > slowest + self.epilogue else name


def estimate(plan: GemmPlan, problem: GemmProblem, device: Device) -> Estimate:
    """Price a plan, also one that its kernel refuses. `overlap` is not priced."""
    return estimates([plan], problem, device)[0]


def estimates(
    plans: Sequence[GemmPlan], problem: GemmProblem, device: Device, *, constants: Constants | None = None, is_dirty: bool = False
) -> list[Estimate]:
    """Price plans of one kernel, together: 200 of them in a millisecond or two.

    Args:
        plans, problem, device: what runs what where.
        constants: in the place of the fitted ones.
        is_dirty: L2 is full of another kernel's output, which has to leave first.
    """
    if not plans:
        return []
    own = OWN_MODELS.get(plans[0].kernel)
    if own is not None:
        return [_turned(own(plan, problem, device), turning(plan, problem)) for plan in plans]
    work = work_of(plans, problem.m, problem.n, problem.k, problem.d_dtype.itemsize, device, is_dirty)
    parts = price(work, constants or CONSTANTS.get(plans[0].kernel, Constants()))
    rows = np.stack(np.broadcast_arrays(*parts), 1).tolist()
    return [_turned(Estimate(*row), turning(plan, problem)) for row, plan in zip(rows, plans)]


TURN = 1.57
"""Microseconds that turning A's scales to MN-major takes: the median of 1.3 to 2.3 for 128 to 4096 rows (H200, 2026-11-30, bench/NOTES.md)."""


def turning(plan: GemmPlan, problem: GemmProblem) -> float:
    """Microseconds that go before a plan that cannot read A's row-major scales as they lie."""
    return TURN if problem.row_scales and not plan.row_scales else 0.0


def _turned(price: Estimate, us: float) -> Estimate:
    return Estimate(**(vars(price) | {"total": price.total + us, "launch": price.launch + us})) if us else price


def is_priced_together(kernel: str) -> bool:
    """Whether plans of a kernel are priced by `work_of` and `price`, many and for many extents at once; not by a model of their own."""
    return kernel not in OWN_MODELS


def _streamed(plan: GemmPlan, problem: GemmProblem, device: Device) -> Estimate:
    total, latency, tokens, memory, launch = cost_gemv.parts(plan, problem, device)
    return Estimate(total, 0.0, 0.0, 0.0, latency, 0.0, tokens, memory, launch)


def _portable(plan: GemmPlan, problem: GemmProblem, device: Device) -> Estimate:
    """The kernel for other GPUs than Hopper has a model of its own; L2's share is its loads'."""
    total, tensor, load, smem, latency, epilogue, memory = sm80_gemm_rules.parts(plan, problem, device)
    return Estimate(total, tensor, max(load, smem), load, latency, 0.0, epilogue, memory, LAUNCH)


OWN_MODELS = {**dict.fromkeys(cost_gemv.NAMES, _streamed), sm80_gemm_rules.NAME: _portable}
"""By kernel: what prices a plan where the model of tiles and rounds does not fit."""


def work_of(plans: Sequence[GemmPlan], m: Array, n: Array, k: Array, itemsize: Array, device: Device, is_dirty: Array = False) -> Work:
    """What plans of one kernel do, counted: m, n, k, `itemsize` (bytes of an element of D) for all, or one for each."""
    fields = [(p.block_m, p.block_n, p.block_k, p.num_stages, p.cluster, p.band) for p in plans]
    # a plan that cannot be built is priced too: at least a stage, a band of a tile
    bm, bn, bk, stages, cluster, band = np.maximum(1, np.array(fields)).T
    epilogue, multicast = np.array([(p.epilogue, p.multicast or "") for p in plans]).T
    tiles_measured = TILES.get(plans[0].kernel)
    doubted = [tiles_measured is not None and (p.block_m, p.block_n, p.multicast, p.rotate) not in tiles_measured for p in plans]

    # the axis along which a cluster's CTAs differ has an even count
    share_a, share_b = np.where(multicast == "A", cluster, 1), np.where(multicast == "B", cluster, 1)
    split = np.where(multicast == "", cluster, 1)
    depth = np.maximum(1, bk // DEPTH)
    m_blocks, n_blocks = -(-m // (bm * share_b)) * share_b, -(-n // (bn * share_a)) * share_a
    at_once = {int(size): max(1, device.clusters_at_once(int(size))) for size in set(cluster.tolist())}
    slots = np.array([at_once[size] for size in cluster.tolist()]) * cluster
    full, rest = np.divmod(m_blocks * n_blocks * split, slots)

    # neighbours of the raster: `width` tiles side by side along the primary axis, then the next of the secondary one
    along_n = share_a > 1
    primary, secondary = np.where(along_n, bn, bm), np.where(along_n, bm, bn)
    width = np.minimum(np.where(along_n, n_blocks, m_blocks), band)

    def rows(tiles: Array) -> Array:
        return np.minimum(width, tiles) * primary + np.maximum(1, tiles / width) * secondary

    def port_bytes(tiles: Array) -> Array:
        # CTAs spread over the GPCs; a split's each read another block
        return rows(np.maximum(1, tiles / GPCS)) * split * DEPTH

    together, last = np.where(full > 0, slots, rest) / split, np.maximum(1, rest) / split
    # what a round reads again that an earlier one has read, as far as it is too much for L2
    round_rows = np.minimum(rows(together), m + n)
    excess = (round_rows * k / device.l2_bytes) ** 4
    again = np.maximum(0, m_blocks * n_blocks * split / slots * round_rows - (m + n)) * k * excess / (1 + excess)

    is_swapped = plans[0].kernel.endswith(("_swap_ab", "_resident"))
    rows_mma, columns = (bn, bm) if is_swapped else (bm, bn)
    warpgroups = -(-rows_mma // 64) if is_swapped else 1 + (rows_mma > 64)
    is_held = np.array([p.resident for p in plans]) > 0
    is_tma, is_warp = epilogue == "tma", epilogue == "warp"
    with_c = np.array([p.with_c for p in plans])
    return Work(
        columns, warpgroups, np.maximum(1, rows_mma // (64 * warpgroups)), 0 * bn if is_swapped else bn // np.gcd(bn, 128) - 1,
        np.maximum(1, -(-k // (DEPTH * split))), stages * depth, depth, (bm / share_a * ~is_held + bn / share_b) * DEPTH,
        full, rest > 0, rest / device.num_sms, port_bytes(together), port_bytes(last),
        bm, np.minimum(1, m_blocks - m / bm), 1 / m_blocks, bn, np.minimum(1, n_blocks - n / bn), 1 / n_blocks,
        bm * bn, is_warp, ~is_tma & ~is_warp, is_tma * ((bn % 64 > 0) * 1 + (bn % 32 > 0)),
        cluster > 1, columns / (2 * np.sqrt(split)) * (split > 1), np.array([p.rotate for p in plans]), np.array([p.row_scales for p in plans]),
        (33 / 32 * m + n) * k + again + with_c * m * n * itemsize, m * n * itemsize,
        device.l2_bytes, device.memory_bandwidth * 1e-6 * np.where(is_streamed(bm, m) & (not is_swapped), LINE_GAIN, 1), is_dirty, np.array(doubted),
    )  # fmt: skip


def norm(*parts: Array, exponent: float = 8.0) -> Array:
    """The norm of this exponent: the largest, and a little more where others are level with it."""
    return sum(part**exponent for part in parts) ** (1 / exponent)


def price(w: Work, c: Constants) -> tuple[Array, ...]:
    """The model: the fields of an `Estimate`, in their order."""
    us = 1e-3 / c.clock

    # cycles of a block: products, what of the promotion nothing hides, and its own work
    wave = 64 * DEPTH / MACS_PER_CYCLE * w.columns
    products = w.warpgroups * w.waves * wave
    alone = np.maximum(wave, c.wgmma_floor * (32 / w.columns) ** (1 / 3)) + c.promotion * w.columns
    is_alone = w.warpgroups == 1
    own = np.where(is_alone, c.block_1, np.where(w.waves > 1, c.block_4, c.block_2))
    own = own + c.peer_block * w.is_cluster - c.rotate_block * w.is_rotated
    segments = c.segment * w.segments * w.waves * np.where(is_alone, 0.25, 1)
    block = np.maximum(products, w.waves * alone) + own / w.depth + segments

    # cycles of a tile's end
    by_element = c.store_warp * w.is_warp + c.store_direct * w.is_direct + c.store_panel * w.halvings
    stored = (c.store * w.waves + c.store_again * (w.waves - 1)) * w.columns + by_element * w.elements
    end = c.tile + c.peer_tile * w.is_cluster + c.peer_sum * w.sums + c.rotate_tile * w.is_rotated + stored

    # products and operands draw power, for which the clock falls
    draw = (products + c.power_load / 64 * w.block_bytes) / block
    lasting = (w.full + w.rest) * w.blocks * block * us
    fall = c.power * (1 + c.power_slow * lasting / (lasting + c.power_time))

    load, latency = w.block_bytes / c.load_rate * 1e-3, c.latency / w.stages
    ragged_a = (w.past_a * w.crowd_a) ** 0.5 * np.maximum(c.ragged, c.ragged_row * w.rows_a)
    ragged_b = (w.past_b * w.crowd_b) ** 0.5 * np.maximum(c.ragged, c.ragged_row * w.rows_b)

    def one_round(share: Array, port_bytes: Array) -> tuple[Array, ...]:
        slow = (1 + fall * (share * draw) ** c.power_exponent) * us
        tensor, l2, ragged = block * slow, port_bytes / c.port_rate * 1e-3, np.maximum(ragged_a, ragged_b) * share**0.5
        return norm(tensor, load, l2, latency, ragged), tensor, l2, ragged, end * slow

    rounds = zip(one_round(1.0, w.port_bytes), one_round(w.rest_share, w.rest_port_bytes))
    pace, tensor, l2, ragged, epilogue = (w.full * each + w.rest * last for each, last in rounds)
    leaving = w.write_bytes / (w.write_bytes + c.write_kept * w.l2_bytes)
    moved = w.read_bytes + c.write_cost * w.write_bytes * leaving + c.dirty_share * w.l2_bytes * w.is_dirty
    memory = moved / (c.memory_share * w.memory_rate)
    pace = pace * (1 + c.row_copies * w.is_by_rows)
    total = c.launch + norm(w.blocks * pace + epilogue, memory + (block + end) * us, exponent=c.memory_norm)
    total = total * (1 + c.doubt * w.is_doubted)
    steps = (w.full + w.rest) * w.blocks
    return total, w.blocks * tensor, steps * load, w.blocks * l2, steps * latency, w.blocks * ragged, epilogue, memory, c.launch


_NOTHING = {"ragged": 0.0, "ragged_row": 0.0, "row_copies": 0.0}
CONSTANTS = {
    "sm90_fp8_gemm_1d2d": Constants(),
    "sm90_fp8_gemm_1d2d_swap_ab": Constants(
        launch=2.33, wgmma_floor=16.6, promotion=1.05, block_1=187.0, block_2=278.0, peer_block=0.0, peer_tile=370.0, peer_sum=74.8, tile=58.9,
        store=0.0, store_again=0.0, store_direct=0.317, load_rate=111.0, latency=0.868, memory_share=1.02, memory_norm=3.0, **_NOTHING),
    "sm90_fp8_gemm_1d2d_resident": Constants(
        launch=2.13, wgmma_floor=73.2, promotion=0.525, block_2=75.8, peer_block=0.0, tile=326.0, store=14.6, store_again=0.0, store_direct=0.0,
        load_rate=123.0, latency=0.716, memory_share=0.966, memory_norm=4.09, **_NOTHING),
}  # fmt: skip
"""By kernel; one that was not measured is priced as the first. Of the second: a split's CTAs do not wait for each other in the loop, its store goes
by the element, and boxes past the end of A's few rows cost nothing. The third: but for the store."""
