"""What the operations mean in the emulator, each against its definition written out by hand."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda

from dgnumba import emu
from dgnumba.errors import OutOfBoundsError
from dgnumba.integers import u32
from dgnumba.layouts.descriptors import SmemDescriptor, TensorMap, low_word
from dgnumba.ptx import barrier, convert, fragment, matrix, mbarrier, memory, thread, tma, wgmma

BAR, TILE = u32(1024), u32(2048)


def launch(kernel: Any, *args: Any, threads: int = 32, **more: Any) -> None:
    emu.run(kernel, more.pop("grid", 1), threads, args, smem=100_000, **more)


def ready_barrier() -> None:
    if cuda.threadIdx.x == 0:
        mbarrier.init(BAR, 1)
        barrier.fence_mbarrier_init()
    cuda.syncthreads()


def shared_bytes(address: int, nbytes: int) -> np.ndarray:
    return emu.cta().smem.peek(emu.Region(int(address), nbytes))


# TMA


def place(address: int, swizzle: int) -> int:
    """Where the byte lies that would be at `address` without swizzle: its 16-byte chunk is xored with the 128-byte line's number."""
    line = address // 128
    flip = {0: 0, 32: line % 2, 64: line % 4, 128: line % 8}[swizzle]
    return address ^ (flip * 16)


@st.composite
def boxes(draw: Any) -> tuple:
    swizzle = draw(st.sampled_from([0, 32, 64, 128]))
    row = swizzle or draw(st.sampled_from([16, 48, 128]))
    rank = draw(st.sampled_from([2, 3]))
    box = (row, *(draw(st.integers(1, 9)) for _ in range(rank - 1)))
    dims = (draw(st.integers(1, 200)), *(draw(st.integers(1, 12)) for _ in range(rank - 1)))
    start = (draw(st.integers(-9, 13)) * 16, *(draw(st.integers(-b - 1, d + 1)) for b, d in zip(box[1:], dims[1:])))
    return swizzle, box, dims, start, draw(st.integers(0, 7)) * 128


def tensor(dims: tuple, seed: int = 0) -> np.ndarray:
    """uint8 [.., dims[0]] whose rows are 16-byte multiples apart."""
    pitch = -(-dims[0] // 16) * 16
    whole = np.random.default_rng(seed).integers(1, 256, (*reversed(dims[1:]), pitch)).astype(np.uint8)
    return whole[..., : dims[0]]


def box_by_hand(array: np.ndarray, box: tuple, start: tuple) -> np.ndarray:
    out = np.zeros(tuple(reversed(box)), np.uint8)
    for index in itertools.product(*(range(n) for n in out.shape)):
        at = tuple(s + i for s, i in zip(reversed(start), index))
        if all(0 <= a < n for a, n in zip(at, array.shape)):
            out[index] = array[at]
    return out


@settings(max_examples=60)
@given(boxes(), st.sampled_from(["eager", "late"]), st.sampled_from([u32, np.int32, int]))
def test_load_brings_the_box_swizzled_and_zero_outside(case: tuple, policy: str, as_type: type) -> None:
    swizzle, box, dims, start, offset = case
    array = tensor(dims)
    got = []

    def kernel(tmap):
        ready_barrier()
        coordinates = [as_type(c) for c in start]  # a negative one as its 32 bits or as itself: a kernel may read it from an int32 array
        mbarrier.arrive_expect_tx(BAR, u32(tmap.box_bytes))
        (tma.load_2d if len(start) == 2 else tma.load_3d)(TILE + offset, tmap, BAR, *coordinates)
        mbarrier.wait(BAR, u32(0))
        got.append(shared_bytes(TILE + offset, tmap.box_bytes))

    launch(kernel, TensorMap.of(array, box, swizzle=swizzle), threads=1, policy=policy)
    rows = box_by_hand(array, box, start).reshape(-1, box[0])
    right = np.zeros(rows.size, np.uint8)
    for (row, byte), value in np.ndenumerate(rows):
        right[place(offset + row * box[0] + byte, swizzle) - offset] = value  # the pattern is one of absolute addresses
    np.testing.assert_array_equal(got[0], right)


@settings(max_examples=40)
@given(boxes(), st.sampled_from(["eager", "late"]))
def test_store_is_the_inverse_of_load_and_clips_by_whole_chunks(case: tuple, policy: str) -> None:
    swizzle, box, dims, start, offset = case
    start = tuple(max(s, 0) for s in start)
    source = tensor(dims)
    frame = np.full((*source.shape[:-1], -(-dims[0] // 16) * 16), 255, np.uint8)
    target = frame[..., : dims[0]]

    def kernel(from_map, to_map):
        ready_barrier()
        coordinates = [u32(c) for c in start]
        three = len(start) == 3
        mbarrier.arrive_expect_tx(BAR, u32(from_map.box_bytes))
        (tma.load_3d if three else tma.load_2d)(TILE + offset, from_map, BAR, *coordinates)
        mbarrier.wait(BAR, u32(0))
        (tma.store_3d if three else tma.store_2d)(to_map, TILE + offset, *coordinates)
        tma.commit()
        tma.wait(0)

    launch(
        kernel,
        TensorMap.of(source, box, swizzle=swizzle),
        TensorMap.of(target, box, swizzle=swizzle),
        threads=1,
        policy=policy,
        arrays=[frame],
    )
    stored = np.zeros(frame.shape, bool)
    stored[tuple(slice(max(s, 0), max(s + b, 0)) for s, b in zip(reversed(start), reversed(box)))] = True
    right = np.zeros(frame.shape, np.uint8)  # behind the tensor's rows, as far as the chunk goes: the zeros that the load filled in
    right[..., : dims[0]] = source
    np.testing.assert_array_equal(frame, np.where(stored, right, 255))


@pytest.mark.parametrize("start", [(-16, 0), (0, -1)])
def test_a_store_does_not_begin_before_the_tensor(start: tuple) -> None:
    """An illegal instruction on the H200 (2026-11-29), though all of the box that lies inside is legal."""

    def kernel(tmap):
        tma.store_2d(tmap, TILE, u32(start[0]), u32(start[1]))

    with pytest.raises(OutOfBoundsError, match=r"expected coordinates of 0 or more for a store, got \[-?\d+, -?\d+\]"):
        launch(kernel, TensorMap.of(tensor((64, 4)), (32, 2), swizzle=32), threads=1)


def test_multicast_writes_each_cta_and_counts_on_its_own_barrier() -> None:
    data = np.arange(4 * 32, dtype=np.float32).reshape(4, 32)
    out = np.zeros((2, 4, 32))

    def kernel(tmap, out):
        rank = emu.cta().rank
        ready_barrier()
        barrier.cluster_arrive()
        barrier.cluster_wait()
        t = cuda.threadIdx.x
        if t == 0:
            mbarrier.arrive_expect_tx(BAR, u32(512))
            tma.load_2d_multicast(TILE + rank * 256, tmap, BAR, u32(0), u32(2 * rank), u32(3))
        mbarrier.wait(BAR, u32(0))
        for row in range(4):
            out[rank, row, t] = memory.load_shared_f32(TILE + row * 128 + 4 * t)
        barrier.cluster_arrive()
        barrier.cluster_wait()

    for policy in ("eager", "late"):
        launch(kernel, TensorMap.of(data, (32, 2)), out, grid=2, cluster=2, policy=policy)
        np.testing.assert_array_equal(out, np.stack([data, data]))


def test_load_bytes_and_its_alignment() -> None:
    data = np.arange(64, dtype=np.float32)

    def kernel(nbytes):
        def body(values, out):
            ready_barrier()
            mbarrier.arrive_expect_tx(BAR, u32(nbytes))
            tma.load_bytes(TILE, memory.global_address(values) + 16, u32(nbytes), BAR)
            mbarrier.wait(BAR, u32(0))
            for i in range(nbytes // 4):
                out[i] = memory.load_shared_f32(TILE + 4 * i)

        return body

    out = np.zeros(8)
    launch(kernel(32), data, out, threads=1)
    assert out.tolist() == list(range(4, 12))
    with pytest.raises(OutOfBoundsError, match="tma.load_bytes: expected nbytes to be a multiple of 16, got 0x14"):
        launch(kernel(20), data, out, threads=1)


def test_shared_address_of_a_box_is_a_multiple_of_128() -> None:
    def kernel(tmap):
        ready_barrier()
        tma.load_2d(TILE + 64, tmap, BAR, u32(0), u32(0))

    with pytest.raises(OutOfBoundsError, match="TMA: expected a shared address that is a multiple of 128, got 0x840"):
        launch(kernel, TensorMap.of(np.zeros((4, 32), np.float32), (32, 2)), threads=1)


def test_innermost_coordinate_is_a_multiple_of_16_bytes() -> None:
    def kernel(tmap):
        ready_barrier()
        tma.load_2d(TILE, tmap, BAR, u32(6), u32(0))

    with pytest.raises(OutOfBoundsError, match=r"innermost coordinate that is a multiple of 16 bytes \(4 of float32\), got 6"):
        launch(kernel, TensorMap.of(np.zeros((4, 32), np.float32), (32, 2)), threads=1)


# stmatrix


@pytest.mark.parametrize("count", [1, 2, 4])
def test_stmatrix_puts_lane_l_into_row_l_over_4(count: int) -> None:
    got = []
    store = {1: matrix.stmatrix_x1, 2: matrix.stmatrix_x2, 4: matrix.stmatrix_x4}[count]

    def kernel():
        lane = u32(cuda.threadIdx.x)
        registers = [lane * 2 + 100 * m | (lane * 2 + 100 * m + 1) << 16 for m in range(count)]
        store(TILE + lane * 48, *registers)
        if lane == 0:
            got.append(shared_bytes(TILE, 32 * 48))

    launch(kernel)
    for m in range(count):
        for row in range(8):
            words = got[0][(8 * m + row) * 48 :][:16].view(np.uint16)
            assert words.tolist() == [8 * row + 100 * m + c for c in range(8)]


@pytest.mark.parametrize("count", [2, 4])
def test_stmatrix_trans_puts_lane_l_into_column_l_over_4(count: int) -> None:
    got = []
    store = {2: matrix.stmatrix_x2_trans, 4: matrix.stmatrix_x4_trans}[count]

    def kernel():
        lane = u32(cuda.threadIdx.x)
        registers = [lane * 2 + 100 * m | (lane * 2 + 100 * m + 1) << 16 for m in range(count)]
        store(TILE + lane * 48, *registers)
        if lane == 0:
            got.append(shared_bytes(TILE, 32 * 48))

    launch(kernel)
    for m in range(count):
        for row in range(8):
            words = got[0][(8 * m + row) * 48 :][:16].view(np.uint16)
            assert words.tolist() == [8 * c + 100 * m + row for c in range(8)]


# wgmma


def swizzled(tile: np.ndarray, mode: int) -> np.ndarray:
    """Bytes of a K-major tile [rows, mode] as they lie in shared memory."""
    out = np.zeros(tile.size, np.uint8)
    for (row, byte), value in np.ndenumerate(tile.view(np.uint8)):
        out[place(row * mode + byte, mode)] = value
    return out


def accumulators(product: np.ndarray) -> np.ndarray:
    """[128, N/2] of what each lane holds of [64, N]: registers 4j, 4j + 1 are row 16 warp + lane/4, 4j + 2, 4j + 3 eight rows lower."""
    n = product.shape[1]
    out = np.zeros((128, n // 2), np.float32)
    for t, i in itertools.product(range(128), range(n // 2)):
        out[t, i] = product[t // 32 * 16 + t % 32 // 4 + (i & 2) * 4, i // 4 * 8 + t % 4 * 2 + (i & 1)]
    return out


@pytest.mark.parametrize("policy", ["eager", "late"])
@pytest.mark.parametrize(
    ("n", "a_dtype", "b_dtype", "mode", "in_registers"),
    [
        (8, "float8_e4m3fn", "float8_e4m3fn", 128, False), (24, "float8_e5m2", "float8_e4m3fn", 64, False),
        (136, "float8_e4m3fn", "float8_e5m2", 128, False), (256, "float8_e4m3fn", "float8_e4m3fn", 32, False),
        (16, "float8_e4m3fn", "float8_e4m3fn", 128, True), (40, "float8_e5m2", "float8_e5m2", 64, True),
    ],
)  # fmt: skip
def test_wgmma_multiplies(n: int, a_dtype: str, b_dtype: str, mode: int, in_registers: bool, policy: str) -> None:
    rng = np.random.default_rng(n)
    a, b = (rng.integers(-3, 4, (rows, mode)).astype(getattr(ml_dtypes, d)) for rows, d in ((64, a_dtype), (n, b_dtype)))
    a_rows, b_rows = (swizzled(x, mode).reshape(-1, 128) for x in (a, b))
    layout = SmemDescriptor(swizzle=mode)
    if in_registers:
        mma = wgmma.mma_rs_for(a_dtype, b_dtype, b=layout)
    else:
        mma = wgmma.mma_for(a_dtype, b_dtype, a=layout, b=layout)
    steps = mode // 32
    a_bytes = a.view(np.uint8)

    def frag_a(t: int, step: int) -> tuple:
        """Byte b of register r: row 16 warp + lane/4 + 8 (r%2), column 16 (r/2) + 4 (lane%4) + b."""
        row, column = t // 32 * 16 + t % 32 // 4, 32 * step + 4 * (t % 4)
        parts = [a_bytes[row + 8 * (r % 2), column + 16 * (r // 2) :][:4] for r in range(4)]
        return tuple(u32(int.from_bytes(p.tobytes(), "little")) for p in parts)

    def kernel(map_a, map_b, out):
        t = cuda.threadIdx.x
        ready_barrier()
        at_b = TILE + 8192
        if t == 0:
            mbarrier.arrive_expect_tx(BAR, u32(a_rows.size + b_rows.size))
            tma.load_bytes(TILE, memory.global_address(map_a), u32(a_rows.size), BAR)
            tma.load_bytes(at_b, memory.global_address(map_b), u32(b_rows.size), BAR)
        mbarrier.wait(BAR, u32(0))
        acc = fragment.zero(n // 2)
        wgmma.fence()
        for step in range(steps):
            first = frag_a(t, step) if in_registers else low_word(TILE) + 2 * step
            acc = mma(acc, first, low_word(at_b) + 2 * step, int(step > 0))
        wgmma.commit()
        acc = wgmma.wait(acc, 0)
        for i in range(n // 2):
            out[t, i] = acc[i]

    out = np.full((128, n // 2), np.nan, np.float32)
    launch(kernel, a_rows, b_rows, out, threads=128, policy=policy)
    np.testing.assert_array_equal(out, accumulators(a.astype(np.float32) @ b.astype(np.float32).T))


# memory, convert, thread


def test_words_and_vectors_in_shared_memory() -> None:
    def kernel(out):
        for i in range(4):
            memory.store_shared_u32(TILE + 4 * i, u32(0xF0000000 + i))
        memory.store_shared_f32(TILE + 16, np.float32(-1.5))
        out[0], out[1], out[2], out[3] = memory.load_shared_v4(TILE)
        out[4], out[5] = memory.load_shared_u32(TILE + 16), memory.load_shared_f32(TILE + 16)

    out = np.zeros(6)
    launch(kernel, out, threads=1)
    assert out.tolist() == [0xF0000000, 0xF0000001, 0xF0000002, 0xF0000003, 0xBFC00000, -1.5]


def test_predicated_global_stores() -> None:
    def kernel(values):
        base, t = memory.global_address(values), u32(cuda.threadIdx.x)
        memory.store_global_f32_if(t == 0, base, np.float32(1))
        memory.store_global_v2_f32_if(t == 1, base + 8, np.float32(2), np.float32(3))
        memory.store_global_v4_if(t == 2, base + 16, (u32(0x3F800000), u32(0), u32(0x40000000), u32(0xBF800000)))

    values = np.full(8, -7, np.float32)
    launch(kernel, values, threads=4)
    assert values.tolist() == [1, -7, 2, 3, 1, 0, 2, -1]


def test_the_largest_of_a_warp() -> None:
    def kernel(values, out):
        t = u32(cuda.threadIdx.x)
        out[t] = thread.redux_max(u32(values[t]))

    values = np.random.default_rng(0).permutation(1 << 32 - 6 << np.arange(64) % 6).astype(np.uint32) | np.arange(64, dtype=np.uint32)
    out = np.zeros(64, np.uint32)
    launch(kernel, values, out, threads=64)
    assert out.tolist() == [max(values[:32])] * 32 + [max(values[32:])] * 32


@pytest.mark.parametrize(("low", "high", "bits"), [(1.0, -2.0, 0xC0003F80), (257.0, 259.0, 0x43824380), (float("inf"), 0.0, 0x00007F80)])
def test_pairs_to_bfloat16_round_to_even(low: float, high: float, bits: int) -> None:
    def kernel():
        assert convert.f32x2_to_bf16x2(np.float32(low), np.float32(high)) == bits

    launch(kernel, threads=1)
