"""Pictures' data against counts by hand; that each can be drawn."""

import numpy as np
import pytest
from numba import cuda

import dgnumba
from dgnumba import emu, lab
from dgnumba.device import Device
from dgnumba.errors import ProblemError
from dgnumba.integers import u32
from dgnumba.kernels import KERNELS
from dgnumba.layouts import lanes
from dgnumba.problem import GemmProblem
from dgnumba.ptx import memory

H200 = Device.named("h200")


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_a_tile_covers_its_bytes_once(swizzle):
    tile = lab.smem_tile(16, swizzle or 128, swizzle)
    assert sorted(tile.place.ravel()) == list(range(0, 16 * (swizzle or 128), 16))


@pytest.mark.parametrize(("row_bytes", "swizzle", "ways"), [(128, 0, 8), (64, 0, 4), (32, 0, 2), (128, 128, 1), (64, 64, 1), (32, 32, 1)])
def test_ways_of_a_column_of_chunks(row_bytes, swizzle, ways):
    assert lab.smem_tile(16, row_bytes, swizzle).ways().tolist() == [ways] * (row_bytes // 16)


def test_a_tile_that_cannot_be_says_why():
    with pytest.raises(ProblemError, match="swizzle: expected one of .* got 16"):
        lab.smem_tile(8, 128, 16)
    with pytest.raises(ProblemError, match="row_bytes: expected a multiple of 16, and the swizzle's own 128, got 64"):
        lab.smem_tile(8, 64, 128)


WIDTH = 32


def heat(monkeypatch, width):
    monkeypatch.setitem(globals(), "WIDTH", width)
    x, y = np.arange(32 * 4, dtype=np.float32).reshape(4, 32), np.zeros((4, 32), np.float32)

    def columns(x, y):
        tile = cuda.shared.array((32, WIDTH), np.float32)
        i, j = cuda.threadIdx.x, cuda.threadIdx.y
        tile[i, j] = x[j, i]
        cuda.syncthreads()
        y[j, i] = tile[i, j]

    found = lab.bank_heat(columns, 1, (32, 4), (x, y))
    np.testing.assert_array_equal(x, y)
    return found


@pytest.mark.parametrize(("width", "ways"), [(32, 32.0), (33, 1.0), (34, 2.0), (40, 8.0)])
def test_conflicts_of_a_column_by_the_rows_width(monkeypatch, width, ways):
    found = heat(monkeypatch, width)
    assert found.ways.tolist() == [ways, ways]
    assert found.words.sum(axis=1).tolist() == [128, 128]
    assert [p.split(": ")[1] for p in found.places] == ["tile[i, j] = x[j, i]", "y[j, i] = tile[i, j]"]


def test_lanes_that_read_one_word_are_served_together():
    def broadcast(y):
        tile = cuda.shared.array(32, np.float32)
        tile[cuda.threadIdx.x] = 1
        cuda.syncwarp()
        y[cuda.threadIdx.x] = tile[7]

    found = lab.bank_heat(broadcast, 1, 32, (np.zeros(32, np.float32),))
    assert found.ways.tolist() == [1, 1]
    assert found.words[1, 7] == 1 and found.words[1].sum() == 1


def test_accesses_of_16_bytes_are_served_by_quarters():
    def wide():
        at = u32(1024) + u32(cuda.threadIdx.x) * 16
        for word in range(4):
            memory.store_shared_u32(at + 4 * word, u32(word))
        memory.load_shared_v4(at)

    found = lab.bank_heat(wide, 1, 32, (), smem=1024)
    by_line = dict(zip((p.split(": ")[1] for p in found.places), zip(found.wavefronts.tolist(), found.ideal.tolist())))
    assert by_line["memory.load_shared_v4(at)"] == (4, 4)
    assert by_line["memory.store_shared_u32(at + 4 * word, u32(word))"] == (16, 4)  # four words apart: eight banks, four rounds each


@pytest.mark.parametrize(("name", "arguments"), [("wgmma_accumulator", (32,)), ("wgmma_a_fp8", ()), ("matrix_8x8", ())])
def test_a_fragment_map_is_the_lane_maps_inverse(name, arguments):
    lane_map = getattr(lanes, name)(*arguments)
    found = lab.fragment_map(name, *arguments)
    for lane in (0, 5, lane_map.lanes - 1):
        assert found.held_by(lane) == list(zip(lane_map.row[lane].tolist(), lane_map.col[lane].tolist()))


def test_a_map_that_is_not_there_is_refused():
    with pytest.raises(ProblemError, match="layout: expected one of wgmma_accumulator, .* got 'mine'"):
        lab.fragment_map("mine")


def order_in_the_emulator(plan, m, n):
    """(m block, n block) in the order in which a single block's producer comes to them."""
    a = dgnumba.per_token_cast_to_fp8(np.ones((m, 128), np.float32))
    b = dgnumba.per_block_cast_to_fp8(np.ones((n, 128), np.float32))
    call = lab.emulated(a, b, plan=plan)
    kernel, _, threads, args = call.launch
    seen = []
    with emu.step(kernel, plan.cluster, threads, args, **call.options, who="producer", at="k_block = u32(0)", cta=0) as state:
        while not state.is_over:
            seen.append((int(state.thread().locals["m_block"]), int(state.thread().locals["n_block"])))
            state.run()
    return seen


@pytest.mark.parametrize(("multicast", "m_blocks", "n_blocks"), [(None, 3, 2), ("A", 2, 3), ("B", 3, 2)])
def test_the_order_is_the_kernels_own(multicast, m_blocks, n_blocks):
    cluster = 1 if multicast is None else 2
    plan = dgnumba.GemmPlan("sm90_fp8_gemm_1d2d", 64, 16, 3, cluster=cluster, multicast=multicast, band=2)
    expected = lab.tile_order(plan, m_blocks, n_blocks)
    assert len(expected) == (m_blocks * n_blocks if cluster == 1 else 8)
    assert {t for t in expected if t[0] < m_blocks and t[1] < n_blocks} == set(np.ndindex(m_blocks, n_blocks))
    assert order_in_the_emulator(plan, m_blocks * 64, n_blocks * 16) == expected[::cluster]


def test_the_order_with_swapped_operands_is_the_kernels_own():
    plan = dgnumba.GemmPlan("sm90_fp8_gemm_1d2d_swap_ab", 8, 64, 4, epilogue="direct")
    order = lab.tile_order(plan, 2, 3)
    assert order == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]


def test_every_kernels_order_is_known_and_no_others():
    for kernel in KERNELS:
        assert len(lab.tile_order(dgnumba.GemmPlan(kernel.NAME, 64, 64, 4), 2, 3)) == 6
    with pytest.raises(ProblemError, match="plan: expected one of sm90_fp8_gemm_1d2d, .* got mine"):
        lab.tile_order(dgnumba.GemmPlan("mine", 64, 64, 4), 2, 3)


def test_the_portable_kernels_tiles_are_counted_in_bands():
    plan = dgnumba.GemmPlan("sm80_gemm", 64, 64, 3, band=2)
    expected = lab.tile_order(plan, 3, 2)
    assert expected == [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1)]


def test_what_l2_saves_is_counted_by_hand():
    plan = dgnumba.GemmPlan("sm90_fp8_gemm_1d2d", 128, 128, 4, band=2)
    device = Device("two", num_sms=2, l2_bytes=4 * 128 * 1024)
    seen = lab.tile_raster(plan, 256, 384, 1024, device)
    row = 128 * 1024
    assert seen.loads == 12 * row
    assert seen.shared == 3 * row  # in each round two tiles below one another share B
    assert seen.memory == 5 * row  # L2 holds both rows of A, and two columns of B
    assert seen.least == 5 * row
    starved = lab.tile_raster(plan, 256, 384, 1024, Device("two", num_sms=2, l2_bytes=2 * row))
    assert starved.memory > seen.memory


def test_the_roofline_is_the_lesser_of_its_ceilings():
    thin, thick = (lab.roofline(GemmProblem(m, 4096, 7168), device=H200) for m in (1, 8192))
    assert thin.ceiling == thin.intensity * thin.bandwidth < thin.compute
    assert thick.ceiling == thick.compute
    assert thin.intensity == pytest.approx(2.0, rel=0.01)
    assert thick.reached < thick.ceiling
    assert "memory" in str(thin) and "compute" in str(thick)
    assert lab.roofline(GemmProblem(1, 4096, 7168), device=H200, measured=1e-3).reached == 2 * 4096 * 7168 / 1e-3


def test_every_picture_can_be_drawn(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    plan = dgnumba.GemmPlan("sm90_fp8_gemm_1d2d", 128, 128, 4)
    pictures = [
        lab.smem_tile(8, 64, 64), heat(monkeypatch, 33), lab.fragment_map(), lab.tile_raster(plan, 512, 512), lab.roofline(GemmProblem(64, 512, 512)),
        lab.Timeline((lab.Span("block 0 warp 0", 0, 5, "wait", "mbarrier.wait full[0]", 0), lab.Span("block 0 TMA", 0, 4, "load", "tma", 0))),
    ]  # fmt: skip
    for number, picture in enumerate(pictures):
        figure = picture.draw()
        figure.savefig(tmp_path / f"{number}.png")
        assert figure.axes
        assert (tmp_path / f"{number}.png").stat().st_size > 2000


def test_pictures_need_matplotlib_and_say_so(monkeypatch):
    import sys

    from dgnumba.lab import figures

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    figures._figure_type.cache_clear()
    with pytest.raises(dgnumba.errors.UnsupportedError, match="draw: needs matplotlib"):
        lab.smem_tile(8, 64, 64).draw()
    figures._figure_type.cache_clear()
