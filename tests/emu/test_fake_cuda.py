"""Numba's `cuda` names, each against what Numba documents."""

import numpy as np
import pytest
from numba import cuda, float32, int32

from dgnumba import emu
from dgnumba.errors import DivergenceError, UninitializedError
from dgnumba.integers import u32


def per_thread(kernel, threads=32, width=None, dtype=np.int64, block=None):
    out = np.zeros(threads if width is None else (threads, width), dtype)
    emu.run(kernel, 1, block or threads, (out,))
    return out


def test_tiled_matrix_product_of_numbas_documentation() -> None:
    TPB = 4

    @cuda.jit
    def fast_matmul(A, B, C):
        sA = cuda.shared.array(shape=(TPB, TPB), dtype=float32)
        sB = cuda.shared.array(shape=(TPB, TPB), dtype=float32)
        x, y = cuda.grid(2)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        bpg = cuda.gridDim.x
        tmp = float32(0.0)
        for i in range(bpg):
            sA[ty, tx] = 0
            sB[ty, tx] = 0
            if y < A.shape[0] and (tx + i * TPB) < A.shape[1]:
                sA[ty, tx] = A[y, tx + i * TPB]
            if x < B.shape[1] and (ty + i * TPB) < B.shape[0]:
                sB[ty, tx] = B[ty + i * TPB, x]
            cuda.syncthreads()
            for j in range(TPB):
                tmp += sA[ty, j] * sB[j, tx]
            cuda.syncthreads()
        if y < C.shape[0] and x < C.shape[1]:
            C[y, x] = tmp

    rng = np.random.default_rng(0)
    a, b = rng.integers(-8, 9, (7, 9)).astype(np.float32), rng.integers(-8, 9, (9, 6)).astype(np.float32)
    c = np.full((7, 6), np.nan, np.float32)
    emu.run(fast_matmul, (3, 3), (TPB, TPB), (a, b, c))
    np.testing.assert_array_equal(c, a @ b)


def test_shared_memory_reduction_of_numbas_documentation() -> None:
    @cuda.jit
    def array_sum(data):
        tid = cuda.threadIdx.x
        shr = cuda.shared.array(64, int32)
        shr[tid] = data[tid] if cuda.grid(1) < len(data) else 0
        cuda.syncthreads()
        s = 1
        while s < cuda.blockDim.x:
            if tid % (2 * s) == 0:
                shr[tid] += shr[tid + s]
            s *= 2
            cuda.syncthreads()
        if tid == 0:
            data[tid] = shr[tid]

    data = np.arange(64, dtype=np.int32)
    emu.run(array_sum, 1, 64, (data,))
    assert data[0] == 2016


def test_dynamic_shared_memory_is_one_block_for_all_dtypes() -> None:
    def kernel(out):
        words = cuda.shared.array(0, np.uint32)
        octets = cuda.shared.array(0, np.uint8)
        if cuda.threadIdx.x == 0:
            words[1] = 0x04030201
        cuda.syncthreads()
        out[cuda.threadIdx.x] = octets[4 + cuda.threadIdx.x] + 100 * (octets.shape[0] == 64 and words.shape == (16,))

    out = np.zeros(4, np.int64)
    emu.run(kernel, 1, 4, (out,), smem=64)
    assert out.tolist() == [101, 102, 103, 104]


def test_shared_arrays_slice_and_are_one_a_call_site() -> None:
    def kernel(out):
        a = cuda.shared.array((2, 8), np.int16)
        b = cuda.shared.array((2, 8), np.int16)
        t = cuda.threadIdx.x
        a[0, t] = t
        a[1, t] = -t
        b[0][t] = 7
        cuda.syncthreads()
        row = a[1]
        out[t] = row[::-1][t] + b[0, t] + a[0, t]

    assert per_thread(kernel, 8).tolist() == [-(7 - t) + 7 + t for t in range(8)]


def test_static_and_dynamic_shared_arrays_do_not_overlap() -> None:
    def kernel(out):
        dynamic, static = cuda.shared.array(0, np.uint8), cuda.shared.array(10, np.uint8)
        for i in range(40):
            dynamic[i] = 1
        for i in range(10):
            static[i] = 2
        for i in range(40):
            out[0] += dynamic[i]

    out = np.zeros(1, np.int64)
    emu.run(kernel, 1, 1, (out,), smem=40)
    assert out[0] == 40


def test_local_arrays_belong_to_a_thread_and_must_be_written_first() -> None:
    def kernel(out):
        mine = cuda.local.array(3, np.float64)
        mine[1] = cuda.threadIdx.x
        out[cuda.threadIdx.x] = mine[1]

    assert per_thread(kernel, 4).tolist() == [0, 1, 2, 3]

    def careless(out):
        mine = cuda.local.array(3, np.float64)
        out[0] = mine[2]

    with pytest.raises(UninitializedError, match=r"local array\[2\]"):
        per_thread(careless, 1)


def test_constant_arrays() -> None:
    table = np.array([5, 6, 7])

    def kernel(out):
        out[cuda.threadIdx.x] = cuda.const.array_like(table)[cuda.threadIdx.x % 3]

    assert per_thread(kernel, 4).tolist() == [5, 6, 7, 5]


def test_shuffles() -> None:
    def kernel(out):
        t = cuda.threadIdx.x
        out[t, 0] = cuda.shfl_sync(0xFFFFFFFF, t, 5)
        out[t, 1] = cuda.shfl_up_sync(0xFFFFFFFF, t, 3)
        out[t, 2] = cuda.shfl_down_sync(0xFFFFFFFF, t, 3)
        out[t, 3] = cuda.shfl_xor_sync(0xFFFFFFFF, t, 1)

    lane = np.arange(32)
    right = np.stack([np.full(32, 5), np.where(lane < 3, lane, lane - 3), np.where(lane > 28, lane, lane + 3), lane ^ 1], axis=1)
    np.testing.assert_array_equal(per_thread(kernel, 32, 4), right)


def test_votes_and_matches() -> None:
    def kernel(out):
        t = cuda.threadIdx.x
        out[t, 0] = cuda.ballot_sync(0xFFFFFFFF, t % 3 == 0)
        out[t, 1] = cuda.any_sync(0xFFFFFFFF, t == 4)
        out[t, 2] = cuda.all_sync(0xFFFFFFFF, t == 4)
        out[t, 3] = cuda.eq_sync(0xFFFFFFFF, t < 32)
        out[t, 4] = cuda.match_any_sync(0xFFFFFFFF, t // 8)
        mask, same = cuda.match_all_sync(0xFFFFFFFF, 1)
        out[t, 5] = mask + same
        out[t, 6] = cuda.lanemask_lt()
        out[t, 7] = cuda.activemask() >> t & 1  # which other lanes are active is the schedule's affair

    out = per_thread(kernel, 32, 8)
    lane = np.arange(32)
    right = [sum(1 << i for i in range(0, 32, 3)), 1, 0, 1, 0xFF << lane // 8 * 8, 0x100000000, (1 << lane) - 1, 1]
    np.testing.assert_array_equal(out, np.stack([np.broadcast_to(r, 32) for r in right], axis=1))


def test_half_a_warp_can_shuffle_by_itself() -> None:
    def kernel(out):
        t = cuda.threadIdx.x
        if t < 16:
            out[t] = cuda.shfl_xor_sync(0xFFFF, t, 1)
        else:
            out[t] = cuda.shfl_xor_sync(0xFFFF0000, t * 10, 1)

    lane = np.arange(32)
    np.testing.assert_array_equal(per_thread(kernel, 32), np.where(lane < 16, lane ^ 1, (lane ^ 1) * 10))


def test_shuffle_does_not_wait_for_lanes_that_exited() -> None:
    def kernel(out):
        t = cuda.threadIdx.x
        if t >= 8:
            return
        out[t] = cuda.shfl_xor_sync(0xFFFFFFFF, t, 1)

    assert per_thread(kernel, 32).tolist() == [1, 0, 3, 2, 5, 4, 7, 6] + [0] * 24


def test_mask_without_the_caller_is_refused() -> None:
    def kernel(out):
        cuda.shfl_sync(1, 0, 0)

    with pytest.raises(DivergenceError, match="a mask that names the caller's own lane 1, got 0x1"):
        per_thread(kernel, 2)


def test_syncthreads_with_a_vote() -> None:
    def kernel(out):
        t = cuda.threadIdx.x
        out[t, 0] = cuda.syncthreads_count(t % 2)
        out[t, 1] = cuda.syncthreads_and(t < 50)
        out[t, 2] = cuda.syncthreads_or(t == 49)

    np.testing.assert_array_equal(per_thread(kernel, 50, 3), np.broadcast_to([25, 1, 1], (50, 3)))


def test_syncthreads_with_a_vote_orders_memory() -> None:
    def kernel(out):
        shared = cuda.shared.array(64, np.int32)
        t = cuda.threadIdx.x
        shared[t] = t
        cuda.syncthreads_count(1)
        out[t] = shared[63 - t]

    np.testing.assert_array_equal(per_thread(kernel, 64), 63 - np.arange(64))


@pytest.mark.parametrize("where", ["global", "shared"])
@pytest.mark.parametrize(
    ("name", "start", "value", "right"),
    [
        ("add", 5, 3, 5 + 3 * 40), ("sub", 5, 3, 5 - 3 * 40), ("max", 5, 9, 9), ("min", 5, 2, 2), ("exch", 5, 6, 6), ("and_", 7, 5, 5),
        ("or_", 1, 4, 5), ("xor", 5, 4, 5), ("inc", 0, 9, 0), ("dec", 0, 9, 0),
    ],
)  # fmt: skip
def test_atomics(name: str, start: int, value: int, right: int, where: str) -> None:
    is_shared = where == "shared"

    def kernel(out):
        cell = cuda.shared.array(1, np.int32) if is_shared else out
        if cuda.threadIdx.x == 0:
            cell[0] = start
        cuda.syncthreads()
        operation = getattr(cuda.atomic, name)
        operation(cell, 0, value)
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            out[0] = cell[0]

    assert per_thread(kernel, 40)[0] == right


def test_atomic_returns_the_old_value_and_takes_index_tuples() -> None:
    def kernel(out):
        out[1, cuda.threadIdx.x] = cuda.atomic.add(out, (0, 0), 1)

    out = np.zeros((2, 8), np.int64)
    emu.run(kernel, 1, 8, (out,))
    assert out.tolist() == [[8, 0, 0, 0, 0, 0, 0, 0], list(range(8))]


def test_a_lock_by_compare_and_swap_does_not_hang() -> None:
    def kernel(out, lock):
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        cuda.nanosleep(10)
        out[0] += 1
        cuda.atomic.exch(lock, 0, 0)

    out = np.zeros(1, np.int64)
    emu.run(kernel, 1, 64, (out, np.zeros(1, np.int32)))
    assert out[0] == 64


@pytest.mark.parametrize(
    ("value", "popc", "clz", "ffs", "brev"),
    [(u32(0), 0, 32, 0, 0), (u32(1), 1, 31, 1, 0x80000000), (u32(0x80000001), 2, 0, 1, 0x80000001), (6, 2, 61, 2, 0x6000000000000000)],
)
def test_bit_functions(value: int, popc: int, clz: int, ffs: int, brev: int) -> None:
    def kernel(out):
        out[0], out[1], out[2], out[3] = cuda.popc(value), cuda.clz(value), cuda.ffs(value), cuda.brev(value)

    out = np.zeros(4, np.int64)
    emu.run(kernel, 1, 1, (out,))
    assert out.tolist() == [popc, clz, ffs, brev]


def test_fma_rounds_once_and_selp_selects() -> None:
    def kernel(out):
        x = np.float32(1 + 2**-12)
        out[0] = cuda.fma(x, x, np.float32(-1 - 2**-11))
        out[1] = cuda.selp(True, 1, 2) + cuda.selp(False, 10, 20)

    out = np.zeros(2)
    emu.run(kernel, 1, 1, (out,))
    assert out.tolist() == [2**-24, 21]


def test_fences_and_lanes_are_there() -> None:
    def kernel(out):
        cuda.threadfence()
        cuda.threadfence_block()
        cuda.threadfence_system()
        cuda.syncwarp()
        out[cuda.grid(1)] = cuda.laneid + cuda.gridsize(1)

    np.testing.assert_array_equal(per_thread(kernel, 40), np.arange(40) % 32 + 40)
