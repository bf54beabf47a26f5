"""Operations made of others: what the emulator runs in their place is the same as their own body, and both are what they say."""

import numpy as np
import pytest
from numba import cuda

from dgnumba import emu
from dgnumba.arithmetic import fma32
from dgnumba.dtypes import DTYPES
from dgnumba.emu import Fragment as Held
from dgnumba.integers import u32
from dgnumba.kernels.epilogue import store_panels_for, store_rows_for
from dgnumba.kernels.epilogue_rules import panel_columns
from dgnumba.layouts import lanes, swizzle
from dgnumba.ptx import fragment, memory
from dgnumba.testing import assert_bits_equal

SEGMENTED = tuple(range(16, 193, 16))


def both(operation, *args, prepare=None):
    """What an operation gives in the emulator, and what its own body gives there, on the same registers."""
    results = []
    body = operation.operation.body

    def kernel():
        if prepare is not None:
            prepare()
        for function in (operation, body):
            registers = function(*[Held(a) if isinstance(a, np.ndarray) else a for a in args])
            results.append(np.array([np.float32(x) for x in registers], np.float32))

    emu.run(kernel, 1, 1, (), smem=4096)
    return results


def random_registers(rng, count):
    """Random bits: subnormals, infinities and NaN among them."""
    return rng.integers(0, 2**32, count, dtype=np.uint64).astype(np.uint32).view(np.float32)


def test_zero():
    for count in (4, 8, 64, 128):
        twin, body = both(fragment.zero, count)
        assert_bits_equal(twin, np.zeros(count, np.float32))
        assert_bits_equal(body, twin)


@pytest.mark.parametrize("registers, segments", [(4, 1), (8, 1), (64, 1), (64, 2), (72, 9), (88, 11), (96, 3), (128, 2)])
def test_promote(registers, segments, rng):
    for draw in (random_registers, lambda rng, n: rng.standard_normal(n).astype(np.float32)):
        total, acc, scales = draw(rng, registers), draw(rng, registers), draw(rng, 2 * segments)
        twin, body = both(fragment.promote, total, acc, scales)
        assert_bits_equal(twin, body)


@pytest.mark.parametrize("block_n", SEGMENTED)
def test_column_scales_are_16_bytes_apart(block_n, rng):
    count = fragment.column_scales(block_n)
    # tiles begin at multiples of block_n: the most 128-column blocks that one of them can touch
    assert count == max((start + block_n - 1) // 128 - start // 128 + 1 for start in range(0, 128 * block_n, block_n))
    values = random_registers(rng, count)
    load = fragment.load_column_scales_for(block_n)

    def prepare():
        for j in range(count):
            memory.store_shared_f32(u32(1024 + 16 * j), values[j])

    for got in both(load, u32(1024), prepare=prepare):
        assert_bits_equal(got, values)


@pytest.mark.parametrize("block_n", SEGMENTED)
def test_segment_scales_are_those_of_their_columns(block_n, rng):
    """For every place where a tile can begin, `promote` scales each register by its row's and its column block's scale."""
    count = fragment.column_scales(block_n)
    products = fragment.segment_scales_for(block_n)
    columns = np.exp2(rng.integers(-6, 7, count)).astype(np.float32)
    row0, row8 = np.float32(3), np.float32(5)
    col = lanes.wgmma_accumulator(block_n).col[0]  # of one lane's registers; the lane changes the place in a group of 8 only
    for offset in sorted({start % 128 for start in range(0, 128 * block_n, block_n)}):
        twin, body = both(products, row0, row8, columns, u32(offset))
        assert_bits_equal(twin, body)
        ones = np.ones(block_n // 2, np.float32)
        promoted, plain = both(fragment.promote, 0 * ones, ones, twin)
        assert_bits_equal(promoted, plain)
        rows = np.where(np.arange(block_n // 2) % 4 < 2, row0, row8)
        expected = (rows * columns[(offset + col) // 128]).astype(np.float32)
        assert_bits_equal(promoted, expected, f"block_n {block_n}, offset {offset}")


@pytest.mark.parametrize("block_n", SEGMENTED)
def test_panels_hold_the_tile_swizzled(block_n, rng, policy):
    """store_panels writes every element of 64 x block_n once, where TMA with this swizzle reads it."""
    columns = panel_columns(block_n)
    mode, panels = 2 * columns, block_n // columns
    store_panels = store_panels_for(block_n, 64)
    tile = rng.standard_normal((64, block_n)).astype(np.float32)
    held = lanes.wgmma_accumulator(block_n).gather(tile)
    words = np.zeros((panels, 64, mode // 4), np.uint32)

    def kernel(out):
        t = cuda.threadIdx.x
        warp, lane = t // 32, t % 32
        row = 16 * warp + lane % 16
        store_panels(Held(held[t]), u32(1024 + row * mode), u32(swizzle.row_phase(row, mode)), u32(lane // 16))
        cuda.syncthreads()
        for i in range(t, out.size, 128):
            panel, rest = divmod(i, 64 * mode // 4)
            r, word = divmod(rest, mode // 4)
            out[panel, r, word] = memory.load_shared_u32(u32(1024 + panel * 64 * mode + swizzle.swizzle(r * mode + 4 * word, mode)))

    emu.run(kernel, 1, 128, (words,), smem=64 * block_n * 2, policy=policy)
    got = words.view(DTYPES["bfloat16"].numpy).transpose(1, 0, 2).reshape(64, block_n)
    assert_bits_equal(got, tile.astype(DTYPES["bfloat16"].numpy))


@pytest.mark.parametrize("block_n", [64, 128, 192])
@pytest.mark.parametrize("m, n", [(64, 192), (61, 192), (17, 136), (64, 8)])
def test_rows_of_the_warp_epilogue_stay_inside(block_n, m, n, rng):
    """store_rows writes rows below m and columns below n (a multiple of 8), and nothing else."""
    store_rows = store_rows_for(block_n)
    tile = rng.standard_normal((64, block_n)).astype(np.float32)
    held = lanes.wgmma_accumulator(block_n).gather(tile)
    bfloat16 = DTYPES["bfloat16"].numpy
    out = np.full((64, 200), -7, bfloat16)

    def kernel(d):
        t = cuda.threadIdx.x
        warp, lane = t // 32, t % 32
        row, col = 16 * warp + lane // 8, lane % 8 * 8
        address = memory.global_address(d) + 400 * row + 2 * col
        store_rows(Held(held[t]), u32(1024 + 2048 * warp), u32(lane), address, memory.u64(400), u32(row), u32(m), u32(col), u32(n))

    emu.run(kernel, 1, 128, (out.view(np.uint16),), smem=8192)
    expected = np.full((64, 200), -7, bfloat16)
    expected[:m, : min(n, block_n)] = tile[:m, : min(n, block_n)].astype(bfloat16)
    assert_bits_equal(out, expected)


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_promote_both_and_s32(parts, rng):
    """Scales of columns and rows, and sums of integers: the twin, the body, and the formula on each register's place in its part."""
    for each in (4, 24, 64):
        registers = parts * each
        total, columns, rows = (rng.standard_normal(n).astype(np.float32) for n in (registers, each // 2, 2 * parts))
        acc = rng.standard_normal(registers).astype(np.float32)
        twin, body = both(fragment.promote_both, total, acc, columns, tuple(rows))
        assert_bits_equal(twin, body)
        place, part = np.arange(registers) % each, np.arange(registers) // each
        of_rows = rows[2 * part + place % 4 // 2]
        expected = fma32(columns[place // 4 * 2 + place % 2] * of_rows, acc, total)
        assert_bits_equal(twin, expected)
        sums = rng.integers(-(2**31), 2**31, registers).astype(np.int32)
        twin, body = both(fragment.promote_s32, total, sums.view(np.uint32), tuple(rows))
        assert_bits_equal(twin, body)
        assert_bits_equal(twin, fma32(of_rows, sums.astype(np.float32), total))


@pytest.mark.parametrize("count", [0, 4, 31])
def test_integers_over_a_power_of_two(count, rng):
    """The twin and the body, of both signs, as NumPy shifts them."""
    sums, found = rng.integers(-(2**31), 2**31, 24).astype(np.int32), []

    def kernel():
        for function in (fragment.shift_s32, fragment.shift_s32.operation.body):
            found.append([int(x) for x in function(Held(sums.view(np.uint32)), count)])

    emu.run(kernel, 1, 1, ())
    assert found == [(sums >> count).view(np.uint32).tolist()] * 2


def test_the_bits_of_a_fragment(rng):
    values = random_registers(rng, 16)
    found = []

    def kernel():
        for function in (fragment.bits, fragment.bits.operation.body):
            found.append([int(x) for x in function(Held(values))])

    emu.run(kernel, 1, 1, ())
    assert found == [values.view(np.uint32).tolist()] * 2


def test_a_fragment_in_two_parts(rng):
    """Registers by their place, untouched: a part from the middle, and two parts as one again."""
    values, found = random_registers(rng, 24), []

    def kernel():
        for part, join in ((fragment.part, fragment.join), (fragment.part.operation.body, fragment.join.operation.body)):
            held = Held(values)
            found.append([np.float32(x) for x in part(held, 4, 12)])
            found.append([np.float32(x) for x in join(part(held, 0, 16), part(held, 16, 8))])

    emu.run(kernel, 1, 1, ())
    for some, all_of_them in (found[:2], found[2:]):
        assert_bits_equal(np.array(some), values[4:16])
        assert_bits_equal(np.array(all_of_them), values)


def test_accumulators_that_begin_with_nothing_or_zero():
    found = []

    def kernel():
        found.append([np.isnan(x) for x in fragment.undefined(8)])
        found.append([int(x) for x in fragment.undefined_s32(4)])
        found.append([int(x) for x in fragment.zero_s32(4)])

    emu.run(kernel, 1, 1, ())
    assert found == [[True] * 8, [1 << 31] * 4, [0] * 4]
