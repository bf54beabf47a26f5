"""The price of a plan: picks held to recorded measurements, and the shape of the model held to reason. No GPU."""

import dataclasses
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from cases import H200, plan
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dgnumba.cost import CONSTANTS, DEPTH, MACS_PER_CYCLE, TILES, Constants, estimate, estimates, price
from dgnumba.device import KNOWN
from dgnumba.kernels import sm90_fp8_gemm_1d2d as kernel
from dgnumba.problem import GemmProblem

_spec = importlib.util.spec_from_file_location("fit_cost", Path(__file__).parent.parent / "bench" / "fit_cost.py")
fit_cost = importlib.util.module_from_spec(_spec)
sys.modules["fit_cost"] = fit_cost
_spec.loader.exec_module(fit_cost)

MEASURED = {data.kernel: data for data in fit_cost.read()}
DENSE = MEASURED[kernel.NAME]
SHIPPED = CONSTANTS[kernel.NAME]

GOOD_SHARE = 0.9
"""Of the shapes, where a pick must be within `fit_cost.WITHIN` of the best measured plan."""


# Against the measurements


def test_the_measurements_are_what_the_model_says_it_was_fitted_to():
    assert DENSE.us.size == 1280 and len(np.unique(DENSE.shapes, axis=0)) == 64
    assert {(p.block_m, p.block_n, p.multicast) for p in DENSE.plans} == TILES[kernel.NAME]
    assert not DENSE.work.is_doubted.any()
    assert all(kernel.refusal(p, GemmProblem(*shape)) is None for p, shape in zip(DENSE.plans, DENSE.shapes.tolist()))


def test_the_shipped_constants_pick_well():
    found = fit_cost.losses(DENSE, SHIPPED)
    assert len(found) == 64
    assert fit_cost.share_within(found.values()) >= GOOD_SHARE


def test_the_shipped_constants_tell_the_time():
    near = DENSE.over_best < 1 + fit_cost.NEAR
    error = np.log(price(DENSE.work, SHIPPED)[0] / DENSE.us)[near]
    assert np.sqrt((error**2).mean()) < 0.04, "what bench/fit_cost.py reports near the best is 3.4 %"


def test_the_fit_finds_the_shipped_constants():
    """From a start that picks badly: what the model knows comes from the measurements."""
    assert fit_cost.share_within(fit_cost.losses(DENSE, fit_cost.START).values()) < GOOD_SHARE
    fitted = fit_cost.fit(DENSE)
    apart = np.abs(np.log(price(DENSE.work, fitted)[0] / price(DENSE.work, SHIPPED)[0]))
    assert apart.max() < 0.01, "shipped to three digits"


@pytest.mark.parametrize("columns", [(1, 2), (0,)], ids=["whole (N, K)", "whole M"])
def test_what_was_held_out_is_picked_well(columns):
    found = fit_cost.held_out(DENSE, columns)
    assert len(found) == 64
    assert fit_cost.share_within(found.values()) >= GOOD_SHARE


@pytest.mark.parametrize("seed", [0, 1])
def test_half_of_the_shapes_tell_the_other_half(seed):
    shapes = np.unique(DENSE.shapes, axis=0)
    rng = np.random.default_rng(seed)
    half = rng.permutation(len(shapes))[: len(shapes) // 2]
    is_held = (DENSE.shapes[:, None] == shapes[half]).all(2).any(1)
    found = fit_cost.losses(DENSE.where(is_held), fit_cost.fit(DENSE.where(~is_held)))
    assert len(found) == 32
    # of half as many shapes one may be missed by chance: the two halves together are held to the share above
    assert fit_cost.share_within(found.values()) >= GOOD_SHARE - 1 / 32


@pytest.mark.parametrize(
    "blind",
    [
        {"segment": 0.0, "store_panel": 0.0},
        {"store": 0.0, "store_again": 0.0, "store_warp": 0.0, "tile": 0.0},
        {"promotion": 0.0, "block_1": 0.0, "block_2": 0.0, "block_4": 0.0, "wgmma_floor": 0.0},
        {"memory_share": 100.0},
    ],
    ids=["segments", "epilogue", "promotion and blocks", "memory"],
)
def test_a_model_that_knows_less_picks_worse(blind):
    found = fit_cost.losses(DENSE, dataclasses.replace(SHIPPED, **blind))
    assert sum(loss > fit_cost.WITHIN for loss in found.values()) > sum(
        loss > fit_cost.WITHIN for loss in fit_cost.losses(DENSE, SHIPPED).values()
    )


def cost_of(shape, *args, **fields):
    return estimate(plan(*args, **fields), GemmProblem(*shape), H200).total


def test_multicast_pays_at_long_k_only():
    tile, shared = {"epilogue": "warp"}, {"epilogue": "warp", "share": "A"}
    assert cost_of((4096, 7168, 16384), 256, 128, 4, **shared) < cost_of((4096, 7168, 16384), 256, 128, 4, **tile)
    assert cost_of((4096, 32768, 512), 256, 128, 4, **shared) > cost_of((4096, 32768, 512), 256, 128, 4, **tile)


@pytest.mark.parametrize("n, k", [(24576, 1536), (32768, 512)])
def test_the_warp_epilogue_loses_at_short_k(n, k):
    assert cost_of((4096, n, k), 128, 192, 5, epilogue="warp") > cost_of((4096, n, k), 128, 192, 4)


# Against reason

tiles = st.sampled_from(kernel.candidates(GemmProblem(4096, 4096, 4096), H200))
devices = st.sampled_from(sorted(KNOWN)).map(KNOWN.__getitem__)
extents = st.one_of(st.integers(1, 300), st.integers(1, 2**17))
blocks = st.integers(1, 200)


@settings(max_examples=80)
@given(tiles, extents, extents, extents, devices)
def test_nothing_is_faster_than_the_device(tile, m, n, k, device):
    problem = GemmProblem(m, n, k)
    got = estimate(tile, problem, device)
    parts = dataclasses.astuple(got)
    assert np.isfinite(parts).all() and min(parts) >= 0
    assert got.total * 1e-6 >= (m + n) * k / device.memory_bandwidth
    assert got.total * 1e-6 >= m * n * k / (MACS_PER_CYCLE * SHIPPED.clock * 1e9 * device.num_sms)
    assert got.total > got.launch
    assert got.bound in ("tensor cores", "loads", "L2", "latency", "ragged boxes", "memory")


@settings(max_examples=60)
@given(tiles, extents, extents, extents, st.integers(1, 2**16), devices)
def test_more_k_is_never_cheaper(tile, m, n, k, more, device):
    less, longer = (estimate(tile, GemmProblem(m, n, depth), device).total for depth in (k, k + more))
    assert longer >= less


@settings(max_examples=60)
@given(tiles, blocks, blocks, extents, st.integers(1, 100), devices)
def test_more_columns_are_never_cheaper(tile, m_blocks, n_blocks, k, more, device):
    """In whole tiles (whole clusters): a box past the end is slow, and that is meant."""
    assume(tile.multicast != "A")  # along N the raster's neighbours share more, the more there are
    m, step = m_blocks * tile.block_m * tile.cluster, tile.block_n
    narrow, wide = (estimate(tile, GemmProblem(m, count * step, k), device).total for count in (n_blocks, n_blocks + more))
    assert wide >= narrow


@settings(max_examples=40)
@given(tiles, extents, extents, extents, devices)
def test_what_is_better_is_not_slower(tile, m, n, k, device):
    problem = GemmProblem(m, n, k)
    cost = estimate(tile, problem, device).total
    assert estimate(tile, problem, dataclasses.replace(device, memory_bandwidth=2 * device.memory_bandwidth)).total <= cost
    assert estimate(dataclasses.replace(tile, num_stages=tile.num_stages + 1), problem, device).total <= cost
    assert estimates([tile], problem, device, is_dirty=True)[0].total >= cost
    assert estimate(tile, GemmProblem(m, n, k, d_dtype="float32"), device).total >= cost


@settings(max_examples=20)
@given(extents, extents, extents, devices)
def test_together_costs_are_what_they_are_alone(m, n, k, device):
    problem = GemmProblem(m, n, k)
    plans = kernel.candidates(problem, device)[::17]
    for together, alone in zip(estimates(plans, problem, device), (estimate(p, problem, device) for p in plans), strict=True):
        assert dataclasses.astuple(together) == pytest.approx(dataclasses.astuple(alone), rel=1e-12)
    assert estimates([], problem, device) == []


def test_a_tile_too_many_costs_a_wave():
    """132 tiles fill an H200 once; with 144 some have to wait, and 264 then take little longer."""
    one, more, two = (cost_of((128 * down, 128 * across, 7168), 128, 128, 5) for down, across in ((12, 11), (12, 12), (24, 11)))
    assert more > 1.7 * one
    assert more < two < 1.25 * more


def test_fewer_tiles_than_multiprocessors_are_hardly_faster():
    """They leave the rest idle; only the clock stays higher."""
    few, many = (estimate(plan(128, 128, 5), GemmProblem(128 * down, 128 * across, 7168), H200) for down, across in ((2, 4), (12, 11)))
    assert 0.75 * many.total < few.total < many.total
    assert few.bound == many.bound == "tensor cores"


def test_promotion_is_exposed_where_a_warpgroup_is_alone():
    alone, hidden = (estimate(plan(bm, 128, 5), GemmProblem(bm, 128, 65536), H200).tensor / bm for bm in (64, 128))
    assert alone > 1.25 * hidden
    less = dataclasses.replace(SHIPPED, promotion=SHIPPED.promotion / 2)
    for bm, falls in ((64, True), (128, False)):
        before, after = (estimates([plan(bm, 128, 5)], GemmProblem(bm, 128, 65536), H200, constants=c)[0].tensor for c in (SHIPPED, less))
        assert (after < before) == falls


def test_latency_binds_where_little_is_in_flight():
    slow = dataclasses.replace(SHIPPED, latency=5.0)
    shallow, deep = (estimates([plan(16, 32, stages)], GemmProblem(16, 576, 7168), H200, constants=slow)[0] for stages in (3, 16))
    assert shallow.bound == "latency" and shallow.total > 3 * deep.total


def test_a_box_past_the_end_slows_a_crowd_and_no_single_reader():
    def slower(n):
        few, whole = (estimate(plan(64, 64, 12), GemmProblem(m, n, 7168), H200).total for m in (1, 64))
        return few / whole

    assert slower(64) < 1.05 < slower(4096)


def test_a_tile_that_was_not_measured_is_doubted():
    problem, sure = GemmProblem(512, 4096, 4096), dataclasses.replace(SHIPPED, doubt=0.0)
    for tile, doubt in ((plan(64, 128, 5), 0), (plan(64, 160, 5), SHIPPED.doubt), (plan(64, 128, 5, share="A"), SHIPPED.doubt)):
        assert estimate(tile, problem, H200).total == pytest.approx(
            (1 + doubt) * estimates([tile], problem, H200, constants=sure)[0].total, rel=1e-12
        )


def test_a_split_takes_its_share_of_k_and_of_the_device():
    """Of the kernel that swaps its operands: CTAs of a cluster that share no operand share K. A cluster of four has room 32 times, not 33."""
    base = dataclasses.replace(plan(16, 64, 5), kernel="sm90_fp8_gemm_1d2d_swap_ab", block_k=4 * DEPTH, epilogue="registers")
    split = dataclasses.replace(base, cluster=4)
    one, four = (estimates([p], GemmProblem(16, 576, 7168), H200, constants=Constants(peer_tile=0.0))[0] for p in (base, split))
    assert four.tensor < one.tensor / 3
    fits, over = (estimate(split, GemmProblem(16, 64 * tiles, 7168), H200).tensor for tiles in (32, 33))
    assert over > 1.8 * fits


def test_a_plan_that_cannot_be_built_has_a_price():
    odd = dataclasses.replace(plan(64, 64, 4), num_stages=0, band=0, block_k=64)
    assert estimate(odd, GemmProblem(64, 64, 64), H200).total > 0
