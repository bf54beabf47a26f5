"""Who holds what: every map covers its tile once, and holds what the PTX ISA's figures show."""

import numpy as np
import pytest

from dgnumba.layouts.lanes import matrix_8x8, mma_a, mma_accumulator, mma_b, token_quads, wgmma_a_fp8, wgmma_accumulator

MAPS = [wgmma_accumulator(n) for n in range(8, 257, 8)] + [wgmma_a_fp8(), matrix_8x8(), token_quads(), mma_accumulator()]
MAPS += [of(bits) for of in (mma_a, mma_b) for bits in (4, 8, 16)]
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


@pytest.mark.parametrize(
    "m, expected",
    [
        (mma_accumulator(), {(0, 1): (0, 1), (0, 2): (8, 0), (5, 3): (9, 3), (31, 3): (15, 7)}),
        (mma_a(16), {(0, 1): (0, 1), (0, 2): (8, 0), (0, 4): (0, 8), (0, 7): (8, 9), (6, 0): (1, 4), (31, 7): (15, 15)}),
        (mma_b(16), {(0, 1): (0, 1), (0, 2): (0, 8), (6, 3): (1, 13), (31, 3): (7, 15)}),
        (mma_a(8), {(0, 3): (0, 3), (0, 4): (8, 0), (0, 8): (0, 16), (6, 15): (9, 27), (31, 15): (15, 31)}),
        (mma_b(8), {(0, 3): (0, 3), (0, 4): (0, 16), (6, 7): (1, 27), (31, 7): (7, 31)}),
        (mma_a(4), {(0, 7): (0, 7), (0, 8): (8, 0), (0, 16): (0, 32), (6, 31): (9, 55), (31, 31): (15, 63)}),
        (mma_b(4), {(0, 7): (0, 7), (0, 8): (0, 32), (6, 15): (1, 55), (31, 15): (7, 63)}),
    ],
    ids=lambda x: f"{x.name}-{x.shape[1]}" if hasattr(x, "name") else "",
)
def test_fragments_of_mma_are_the_isas_figures(m, expected):
    """PTX ISA, "Matrix fragments for mma.m16n8k16", "m16n8k32", "m16n8k64"; B's rows are columns there."""
    assert {key: (int(m.row[key]), int(m.col[key])) for key in expected} == expected


def test_ldmatrix_gives_fragments_of_mma():
    """What the kernels build on: 16 bytes of a row are a row of an 8x8 matrix; registers 0 and 1 of A are the upper and lower rows."""
    matrix = matrix_8x8()
    for bits in (4, 8, 16):
        e = 32 // bits
        for r in range(4):
            first = mma_a(bits)
            assert (first.row[:, e * r] == matrix.row[:, 0] + 8 * (r % 2)).all()
            assert (first.col[:, e * r] == matrix.col[:, 0] * e // 2 + 4 * e * (r // 2)).all()
        for r in range(2):
            assert (mma_b(bits).row[:, e * r] == matrix.row[:, 0]).all()
            assert (mma_b(bits).col[:, e * r] == matrix.col[:, 0] * e // 2 + 4 * e * r).all()


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
