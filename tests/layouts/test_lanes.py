"""Who holds what: every map covers its tile once, and holds what the PTX ISA's figures show."""

import numpy as np
import pytest

from dgnumba.layouts.lanes import matrix_8x8, wgmma_a_fp8, wgmma_accumulator

MAPS = [wgmma_accumulator(n) for n in range(8, 257, 8)] + [wgmma_a_fp8(), matrix_8x8()]
IDS = [f"{m.name}-{m.shape[1]}" for m in MAPS]


@pytest.mark.parametrize("lane_map", MAPS, ids=IDS)
def test_each_element_is_held_once(lane_map, rng):
    rows, columns = lane_map.shape
    places = lane_map.row * columns + lane_map.col
    assert sorted(places.ravel().tolist()) == list(range(rows * columns))
    tile = rng.standard_normal(lane_map.shape)
    held = lane_map.gather(tile)
    assert held.shape == (lane_map.lanes, rows * columns // lane_map.lanes)
    assert (lane_map.scatter(held) == tile).all()


def test_the_accumulator_is_the_isas_figure():
    """PTX ISA, "Register fragments for wgmma.mma_async.m64nNk32", matrix D."""
    m = wgmma_accumulator(16)
    expected = {(0, 0): (0, 0), (0, 1): (0, 1), (0, 2): (8, 0), (0, 3): (8, 1), (0, 4): (0, 8), (0, 7): (8, 9), (1, 0): (0, 2), (3, 1): (0, 7),
                (4, 0): (1, 0), (31, 0): (7, 6), (32, 0): (16, 0), (127, 7): (63, 15)}  # fmt: skip
    assert {key: (int(m.row[key]), int(m.col[key])) for key in expected} == expected


def test_a_in_registers_is_the_isas_figure():
    """PTX ISA, "Register fragments for wgmma.mma_async.m64nNk32", matrix A: four registers of four bytes."""
    m = wgmma_a_fp8()
    expected = {(0, 0): (0, 0), (0, 3): (0, 3), (0, 4): (8, 0), (0, 8): (0, 16), (0, 12): (8, 16), (1, 0): (0, 4), (3, 15): (8, 31), (4, 0): (1, 0),
                (33, 0): (16, 4), (127, 15): (63, 31)}  # fmt: skip
    assert {key: (int(m.row[key]), int(m.col[key])) for key in expected} == expected


def test_a_matrix_of_8x8_is_the_isas_figure():
    """PTX ISA, "ldmatrix": thread 0 holds row 0, columns 0 and 1; thread 4 begins row 1."""
    m = matrix_8x8()
    expected = {(0, 0): (0, 0), (0, 1): (0, 1), (1, 0): (0, 2), (3, 1): (0, 7), (4, 0): (1, 0), (31, 1): (7, 7)}
    assert {key: (int(m.row[key]), int(m.col[key])) for key in expected} == expected


def test_a_warps_part_of_the_accumulator_is_stmatrix_shaped():
    """What the epilogues build on: registers 8j + 2i, 8j + 2i + 1 of a warp are matrix i of one stmatrix.x4, whose rows are (r, r + 8, r, r + 8)."""
    accumulator, matrix = wgmma_accumulator(32), matrix_8x8()
    for warp in range(4):
        lanes = slice(32 * warp, 32 * warp + 32)
        for step in range(2):
            for i in range(4):
                registers = slice(8 * step + 2 * i, 8 * step + 2 * i + 2)
                assert (accumulator.row[lanes, registers] == 16 * warp + 8 * (i % 2) + matrix.row).all()
                assert (accumulator.col[lanes, registers] == 16 * step + 8 * (i // 2) + matrix.col).all()


def test_maps_are_made_once_and_cannot_be_spoiled():
    assert wgmma_accumulator(64) is wgmma_accumulator(64)
    with pytest.raises(ValueError, match="read-only"):
        wgmma_accumulator(64).row[0, 0] = 5
    assert wgmma_accumulator(64).row.dtype == np.int64
