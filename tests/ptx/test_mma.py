"""cp.async, ldmatrix and mma.sync: what they mean in the emulator, against integers; the whole way compiled for every architecture they are for."""

import ml_dtypes
import numpy as np
import pytest
from numba import cuda
from ptx.mma_kernel import FLOATS, SINGLE, make, operands, run_arguments

from dgnumba import _numba, emu
from dgnumba.assemble import find_ptxas, ptxas
from dgnumba.errors import AsyncError, CompileError, DivergenceError, OutOfBoundsError, RaceError, UninitializedError
from dgnumba.integers import u32, u64
from dgnumba.ptx import cp_async, fragment, matrix, memory, mma

with_compiler = pytest.mark.skipif(not _numba.HAVE_NUMBA_CUDA or find_ptxas() is None, reason="needs numba-cuda and ptxas")
BASE = u32(1024)


def launch(kernel, *args, threads=32, **more):
    emu.run(kernel, 1, threads, args, smem=8192, **more)


@pytest.mark.parametrize("dtype", SINGLE)
def test_a_product_of_integers(dtype, policy, rng):
    a, b, c = operands(rng, dtype)
    args = run_arguments(a, b, c, dtype)
    launch(make(dtype), *args, policy=policy)
    assert (c + a @ b.T).tolist() == args[3].astype(np.float64 if dtype in FLOATS else np.int32).astype(np.int64).tolist()


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_integers_wrap_at_32_bits(dtype, rng):
    a, b, c = operands(rng, dtype)
    c = c + 2**31 - 1
    args = run_arguments(a, b, c, dtype)
    launch(make(dtype), *args)
    assert ((c + a @ b.T) % 2**32).tolist() == args[3].tolist()


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_sum_is_rounded_once(dtype, rng):
    a, b, _ = operands(rng, dtype)
    if dtype != "float8_e4m3fn":
        a, b = rng.standard_normal(a.shape), rng.standard_normal(b.shape)
    kind = getattr(ml_dtypes, dtype, None) or np.dtype(dtype)
    a, b, c = a.astype(kind).astype(np.float64), b.astype(kind).astype(np.float64), rng.standard_normal((16, 8)).astype(np.float32)
    args = (*run_arguments(a, b, np.zeros((16, 8)), dtype)[:2], c, np.zeros((16, 8), np.float32))
    launch(make(dtype), *args)
    assert (c + a @ b.T).astype(np.float32).tolist() == args[3].tolist()


@pytest.mark.parametrize("dtype", SINGLE)
@pytest.mark.parametrize("m_tiles, n_tiles", [(1, 1), (2, 3), (3, 2)])
def test_a_tile_is_its_instructions(dtype, m_tiles, n_tiles, rng):
    """`tile_for` against the single instruction, on random registers (integers: any; floats: small exact ones)."""
    tile, single = mma.tile_for(dtype, m_tiles, n_tiles), SINGLE[dtype]
    if dtype in FLOATS:
        kind = getattr(ml_dtypes, dtype, None) or np.dtype(dtype)
        make_words = lambda n: rng.integers(-15, 16, (32, n * 4 // np.dtype(kind).itemsize)).astype(kind).view(np.uint32)  # noqa: E731
        acc = rng.integers(-9, 10, (32, 4 * m_tiles * n_tiles)).astype(np.float32)
        start = [emu.Fragment] * 32
    else:
        make_words = lambda n: rng.integers(0, 2**32, (32, n), dtype=np.uint64).astype(np.uint32)  # noqa: E731
        acc, start = make_words(4 * m_tiles * n_tiles), [tuple] * 32
    a, b = make_words(4 * m_tiles), make_words(2 * n_tiles)
    together, alone = np.zeros_like(acc), np.zeros_like(acc)

    def kernel():
        lane = cuda.threadIdx.x
        regs_a, regs_b = tuple(map(u32, a[lane])), tuple(map(u32, b[lane]))
        held = start[lane](acc[lane] if dtype in FLOATS else map(u32, acc[lane]))
        together[lane] = list(tile(held, regs_a, regs_b))
        for i in range(m_tiles):
            for j in range(n_tiles):
                at = 4 * (i * n_tiles + j)
                alone[lane, at : at + 4] = list(single(tuple(held)[at : at + 4], regs_a[4 * i : 4 * i + 4], regs_b[2 * j : 2 * j + 2]))

    launch(kernel)
    assert together.tolist() == alone.tolist()
    assert (together != acc).any()


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("count", [2, 4])
def test_ldmatrix_gives_lane_l_row_l_over_4(count, is_transposed):
    name = f"ldmatrix_x{count}" + "_trans" * is_transposed
    out = np.zeros((32, count), np.uint32)

    def kernel():
        lane = cuda.threadIdx.x
        for word in range(4):  # row r of the 32: elements 100 r + column
            first = 100 * lane + 2 * word
            memory.store_shared_u32(BASE + u32(48 * lane + 4 * word), u32(first | first + 1 << 16))
        cuda.syncthreads()
        out[lane] = getattr(matrix, name)(BASE + u32(48 * lane))

    launch(kernel)
    for lane in range(32):
        for m in range(count):
            row, col = (8 * m + lane // 4), 2 * (lane % 4)
            pair = [(row, col), (row, col + 1)] if not is_transposed else [(8 * m + col, lane // 4), (8 * m + col + 1, lane // 4)]
            assert [int(out[lane, m]) & 0xFFFF, int(out[lane, m]) >> 16] == [100 * r + c for r, c in pair]


def test_tiles_of_ldmatrix_are_single_ones():
    load = matrix.load_tiles_for(3, 512)
    out = np.zeros((32, 12), np.uint32)
    one = np.zeros((32, 12), np.uint32)

    def kernel():
        lane = cuda.threadIdx.x
        for word in range(12):
            memory.store_shared_u32(BASE + u32(4 * (32 * word + lane)), u32(1000 * word + lane))
        cuda.syncthreads()
        out[lane] = load(BASE + u32(16 * lane))
        for i in range(3):
            one[lane, 4 * i : 4 * i + 4] = matrix.ldmatrix_x4(BASE + u32(512 * i + 16 * lane))

    launch(kernel)
    assert out.tolist() == one.tolist() and len(np.unique(out)) == out.size


def test_ldmatrix_checks_each_row():
    def written():
        memory.store_shared_u32(BASE + u32(4 * cuda.threadIdx.x), u32(0))
        cuda.syncthreads()

    def outside():
        written()
        matrix.ldmatrix_x4(BASE + u32(8192 * (cuda.threadIdx.x == 0)))

    def crooked():
        written()
        matrix.ldmatrix_x2(BASE + u32(8 * (cuda.threadIdx.x == 0)))

    def unwritten():
        matrix.ldmatrix_x2(BASE + u32(16 * cuda.threadIdx.x))

    for kernel, error in ((outside, OutOfBoundsError), (crooked, OutOfBoundsError), (unwritten, UninitializedError)):
        with pytest.raises(error):
            launch(kernel)


def test_half_a_warp_is_no_warp():
    def kernel():
        if cuda.threadIdx.x < 16:
            matrix.ldmatrix_x2(BASE)

    with pytest.raises(DivergenceError):
        launch(kernel)
    with pytest.raises(DivergenceError, match="expected a warp of 32 lanes, got 16"):
        launch(lambda: mma.m16n8k16_bf16(fragment.zero(4), (u32(0),) * 4, (u32(0),) * 2), threads=16)


# cp.async


@pytest.mark.parametrize("nbytes", [0, 1, 5, 15, 16])
def test_zfill_reads_so_many_bytes_and_writes_sixteen(nbytes, policy):
    source = np.arange(1, nbytes + 1, dtype=np.uint8)
    whole = np.zeros(64, np.uint8)
    start = -whole.ctypes.data % 16
    whole[start : start + nbytes] = source
    out = np.zeros(4, np.uint32)

    def kernel(x):
        cp_async.copy_16_zfill(BASE, u64(x.address) + start, u32(nbytes))
        cp_async.commit()
        cp_async.wait(0)
        out[:] = memory.load_shared_v4(BASE)

    launch(kernel, whole[: start + nbytes] if nbytes else whole, threads=1, policy=policy)
    assert out.view(np.uint8).tolist() == [*source.tolist(), *[0] * (16 - nbytes)]


def test_zfill_of_seventeen_bytes_is_refused():
    def kernel(x):
        cp_async.copy_16_zfill(BASE, u64(x.address) // 16 * 16 + 16, u32(17))

    with pytest.raises(OutOfBoundsError, match="expected 0 to 16 bytes to read, got 17"):
        launch(kernel, np.zeros(64, np.uint8), threads=1)


def two_groups(pending, with_barrier=True):
    """Two groups of a copy each; thread 0 reads the first one of thread 32 after waiting for all but `pending`."""
    out = np.zeros(2, np.uint32)

    def kernel(x):
        i = cuda.threadIdx.x
        for group in range(2):
            address = (u64(x.address) + 15) // 16 * 16 + 16 * i
            cp_async.copy_16(BASE + u32(1024 * group + 16 * i), address)
            cp_async.commit()
        cp_async.wait(pending)
        if with_barrier:
            cuda.syncthreads()
        if i == 0:
            out[0] = memory.load_shared_u32(BASE + 512)
        cp_async.wait(0)

    return kernel, out


def test_a_wait_leaves_the_last_groups_in_flight(policy):
    x = np.arange(64 * 16 + 16, dtype=np.uint8)
    kernel, _ = two_groups(1)
    launch(kernel, x, threads=64, policy=policy)
    kernel, _ = two_groups(2)
    with pytest.raises(RaceError, match=r"cp_async\.copy_16"):
        launch(kernel, x, threads=64, policy=policy)


def test_other_threads_need_a_barrier_too(policy):
    kernel, _ = two_groups(0, with_barrier=False)
    with pytest.raises((RaceError, UninitializedError)):
        launch(kernel, np.zeros(64 * 16 + 16, np.uint8), threads=64, policy=policy)


def test_what_is_not_committed_or_awaited_is_reported():
    def never_committed(x):
        cp_async.copy_16(BASE, (u64(x.address) + 15) // 16 * 16)
        cp_async.wait(0)

    def never_awaited(x):
        cp_async.copy_16(BASE, (u64(x.address) + 15) // 16 * 16)
        cp_async.commit()

    for kernel, words in ((never_committed, "never committed"), (never_awaited, "never waited for")):
        with pytest.raises(AsyncError, match=words):
            launch(kernel, np.zeros(32, np.uint8), threads=1)


# Compiled


@with_compiler
@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90", "sm_120"])
@pytest.mark.parametrize("dtype", SINGLE)
def test_the_product_compiles(dtype, arch, rng):
    args = run_arguments(*operands(rng, dtype), dtype)
    ptx, _ = _numba.compile_ptx(make(dtype), args, arch=arch, threads=32)
    if dtype == "float8_e4m3fn" and arch in ("sm_80", "sm_86"):
        with pytest.raises(CompileError, match="ptxas refused"):
            ptxas(ptx, arch)
        return
    assert f".target {arch}" in ptx
    cubin = ptxas(ptx, arch)
    assert (cubin.local_bytes, cubin.spill_stores) == (0, 0)


@with_compiler
@pytest.mark.parametrize("dtype", SINGLE)
def test_a_tile_holds_all_its_instructions(dtype):
    tile, load = mma.tile_for(dtype, 2, 4), matrix.load_tiles_for(2, 2048)
    zero = fragment.zero if dtype in FLOATS else fragment.zero_u32

    def kernel(smem, out):
        acc = tile(zero(32), load(smem), load(smem + 4096))
        out[0], out[1] = acc[0], acc[31]

    kind = np.float32 if dtype in FLOATS else np.uint32
    ptx, _ = _numba.compile_ptx(kernel, (u32, np.zeros(32, kind)), arch="sm_89", threads=32)
    assert ptx.count("mma.sync.aligned") == 8
    assert ptx.count("ldmatrix.sync.aligned.m8n8.x4.shared.b16") == 4
    ptxas(ptx, "sm_89")
