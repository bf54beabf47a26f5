"""Each family of operations on a GPU against its own emulation, on random bits: the same kernel, run in both worlds."""

import numpy as np
import pytest
from numba import cuda
from ptx.test_user_kernel import THREADS, arguments, expected, user_kernel
from ptx.wgmma_kernel import PAIRS, SOURCES, make, operands, registers_of, smem_bytes

from dgnumba import emu
from dgnumba.integers import u32, u64
from dgnumba.launching import launch, tensor_map
from dgnumba.layouts.descriptors import TensorMap
from dgnumba.ptx import barrier, convert, cp_async, matrix, mbarrier, memory, prefetch, thread, tma

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def cupy():
    return pytest.importorskip("cupy")


def both(cupy, kernel, grid, block, args, *, smem=0, cluster=1, maps=()):
    """Run a kernel in the emulator and on the GPU on equal arguments; give the arrays of both, by place.

    args     arrays, scalars
    maps     (place, box, swizzle): which of the arrays goes as a tensor map
    """
    twins = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
    device = [cupy.asarray(a) if isinstance(a, np.ndarray) else a for a in args]
    host_args, device_args = list(twins), list(device)
    for place, box, swizzle in maps:
        host_args[place] = TensorMap.of(twins[place], box, swizzle=swizzle)
        device_args[place] = tensor_map(device[place], box, swizzle=swizzle)
    emu.run(kernel, grid, block, host_args, smem=smem, cluster=cluster)
    launch(kernel, grid, block, device_args, smem=smem, cluster=cluster)
    cupy.cuda.Device().synchronize()
    return [(t, d.get()) for t, d in zip(twins, device) if isinstance(t, np.ndarray)]


def same(pairs):
    for place, (emulated, real) in enumerate(pairs):
        e, r = (np.ascontiguousarray(x).view(np.uint8) for x in (emulated, real))
        if emulated.dtype.kind == "f":
            nan = np.isnan(emulated) & np.isnan(real)
            emulated, real = np.where(nan, 0, emulated), np.where(nan, 0, real)
            e, r = (np.ascontiguousarray(x).view(np.uint8) for x in (emulated, real))
        assert (e == r).all(), f"array {place}: {int((e != r).sum())} bytes differ"


def random_floats(rng, count):
    """Random bits; subnormals, infinities, NaN, and ties of bfloat16 and float16 among them."""
    words = rng.integers(0, 2**32, count, dtype=np.uint64).astype(np.uint32)
    words[::5] = (words[::5] & 0xFFFF0000) | 0x8000  # half a bfloat16 step
    words[1::5] = (words[1::5] & 0xFFFFE000) | 0x1000  # half a float16 step
    words[2::5] = words[2::5] & 0x8FFFFFFF | 0x38000000  # float16's own range
    return words.view(np.float32)


def conversions(x, y, z, pairs, halves, sums):
    i = cuda.grid(1)
    if i < x.size:
        pairs[i] = u64(convert.f32x2_to_bf16x2(x[i], y[i]))
        halves[i] = u64(convert.f32x2_to_f16x2(x[i], y[i]))
        sums[i] = convert.fma(x[i], y[i], z[i])


def test_conversions(cupy, rng):
    n = 20000
    x, y, z = (random_floats(rng, n) for _ in range(3))
    with np.errstate(all="ignore"):
        z[::2] = -(x[::2].astype(np.float64) * y[::2]).astype(np.float32)  # sums that cancel show a second rounding
        outs = both(
            cupy, conversions, -(-n // 128), 128, (x, y, z, np.zeros(n, np.uint64), np.zeros(n, np.uint64), np.zeros(n, np.float32))
        )
    nan = np.isnan(x) | np.isnan(y)  # a packed NaN: any payload
    for place in (3, 4):
        emulated, real = outs[place]
        assert (emulated[~nan] == real[~nan]).all()
    same([outs[5]])


def of_bits(words, halves, shifted):
    i = cuda.grid(1)
    if i < words.size:
        low, high = convert.cvt_e4m3x4_to_f16x4(u32(words[i]))
        halves[2 * i], halves[2 * i + 1] = low, high
        shifted[i] = convert.shr_s32(u32(words[i]), 4)


def test_e4m3_to_float16_and_integers_shifted(cupy, rng):
    n = 20000
    words, halves, shifted = rng.integers(0, 2**32, n, dtype=np.uint32), np.zeros(2 * n, np.uint32), np.zeros(n, np.uint32)
    same(both(cupy, of_bits, -(-n // 256), 256, [words, halves, shifted]))


def identity(out):
    i = cuda.grid(1)
    out[i, 0] = u64(thread.lane_idx())
    out[i, 1] = u64(thread.cluster_ctarank())
    out[i, 2] = u64(thread.uniform(u32(i) // 32))
    out[i, 3] = u64(thread.redux_max(u32(i) * 2654435761))
    out[i, 4] = u64(thread.mapa(u32(64), thread.cluster_ctarank()) & 0xFFFF)


def test_who_a_thread_is(cupy):
    pairs = both(cupy, identity, 4, 64, (np.zeros((256, 5), np.uint64),), cluster=2)
    emulated, real = pairs[0]
    assert (emulated[:, :4] == real[:, :4]).all()
    assert len(set((emulated[:, 4] % 1024).tolist())) == len(set((real[:, 4] % 1024).tolist())) == 1


def matrices(registers, out):
    smem = (memory.shared_address(cuda.shared.array(0, np.uint8)) + 127) // 128 * 128
    i = cuda.threadIdx.x
    lane, base = u32(i) % 32, smem + u32(i) // 32 * 2048
    for word in range(16):
        memory.store_shared_u32(base + lane * 64 + 4 * u32(word), u32(0))
    thread.syncwarp()
    r0, r1, r2, r3 = registers[i, 0], registers[i, 1], registers[i, 2], registers[i, 3]
    matrix.stmatrix_x1(base + lane % 8 * 16, r0)
    matrix.stmatrix_x2(base + 256 + lane % 16 * 16, r1, r2)
    matrix.stmatrix_x2_trans(base + 512 + lane % 16 * 16, r0, r3)
    matrix.stmatrix_x4(base + 1024 + lane * 16, r0, r1, r2, r3)
    matrix.stmatrix_x4_trans(base + 1536 + lane * 16, r0, r1, r2, r3)
    thread.syncwarp()
    for part in range(4):
        words = memory.load_shared_v4(base + lane * 64 + 16 * u32(part))
        out[i, 4 * part] = u64(words[0])
        out[i, 4 * part + 1] = u64(words[1])
        out[i, 4 * part + 2] = u64(words[2])
        out[i, 4 * part + 3] = u64(words[3])


def test_stmatrix(cupy, rng):
    registers = rng.integers(0, 2**32, (64, 4), dtype=np.uint64).astype(np.uint32)
    same(both(cupy, matrices, 1, 64, (registers, np.zeros((64, 16), np.uint64)), smem=4096 + 128))


def stores(values, words, out, raw):
    i = cuda.threadIdx.x
    smem = memory.shared_address(cuda.shared.array(0, np.uint8))
    own = smem + u32(i) * 16
    memory.store_shared_f32(own, values[i])
    memory.store_shared_u32(own + 4, words[i])
    memory.store_shared_f32(own + 8, memory.load_shared_f32(own))
    memory.store_shared_u32(own + 12, memory.load_shared_u32(own + 4) ^ 0xFFFFFFFF)
    to = memory.global_address(raw) + u64(i) * 16
    memory.store_global_v4_if(i % 3 == 0, to, memory.load_shared_v4(own))
    memory.store_global_v2_f32_if(i % 3 == 1, to, values[i], memory.load_global_f32(memory.global_address(values)))
    memory.store_global_f32_if(i % 3 == 2, to + 4, values[i])
    out[i] = u64(memory.load_shared_u32(own + 12))


def test_memory(cupy, rng):
    args = (
        random_floats(rng, 96),
        rng.integers(0, 2**32, 96, dtype=np.uint64).astype(np.uint32),
        np.zeros(96, np.uint64),
        np.full(96 * 4, 7, np.uint32),
    )
    same(both(cupy, stores, 1, 96, args, smem=2048))


def prefetching(flat, box, source, out):
    """Ask for boxes inside, over the edge of and outside their tensors, for a span and a line; then read, as if nothing had been asked for."""
    i = u32(cuda.threadIdx.x)
    if i == 0:
        for step in range(4):
            prefetch.tensor_2d(flat, u32(64) * step, u32(3) * step)
            prefetch.tensor_3d(box, u32(64) * step, u32(3) * step, u32(step))
        prefetch.tensor_2d(flat, u32(0) - 16, u32(0) - 1)
        prefetch.bulk(memory.global_address(source), u32(1024))
    prefetch.line(memory.global_address(source) + u64(i) * 32)
    thread.syncwarp()
    out[i] = memory.load_global_f32(memory.global_address(source) + u64(i) * 4)


def words_by_copies(x, places, out):
    """Warp 0 brings four rounds of words to one place each, by lane; warp 1 sees them by the barrier alone, and frees the place."""
    smem = memory.shared_address(cuda.shared.array(0, np.uint8))
    t = u32(cuda.threadIdx.x)
    full, empty, word = smem, smem + 8, smem + 16 + t % 32 * 4
    if t == 0:
        mbarrier.init(full, 32)
        mbarrier.init(empty, 32)
    cuda.syncthreads()
    for i in range(4):
        if t < 32:
            mbarrier.wait(empty, u32(i + 1) % 2)
            cp_async.copy_4(word, memory.global_address(x) + u64(places[i * 32 + t]) * 4)
            cp_async.mbarrier_arrive_noinc(full)
        else:
            mbarrier.wait(full, u32(i) % 2)
            out[i * 32 + t % 32] = memory.load_shared_u32(word)
            mbarrier.arrive(empty)


def test_words_by_copies_that_arrive(cupy, rng):
    x, places = rng.integers(0, 1 << 32, 1 << 20, np.uint32), rng.integers(0, 1 << 20, 128, np.uint32)
    pairs = both(cupy, words_by_copies, 1, 64, (x, places, np.zeros(128, np.uint32)), smem=256)
    same(pairs)
    assert (pairs[2][0] == x[places]).all()


def test_prefetches_change_nothing(cupy, rng):
    flat, box = (rng.integers(0, 256, shape, dtype=np.uint8) for shape in ((8, 160), (2, 8, 160)))
    source = rng.standard_normal(256).astype(np.float32)
    args, maps = (flat, box, source, np.zeros(32, np.float32)), ((0, (64, 4), 0), (1, (64, 4, 2), 0))
    pairs = both(cupy, prefetching, 1, 32, args, maps=maps)
    same(pairs)
    assert (pairs[-1][1] == source[:32]).all()


def boxes_kernel(rank, box_bytes, words):
    """Load a box at `where`, dump it as it lies in shared memory, and store it back at `to` by TMA."""
    BYTES, WORDS = box_bytes, words

    if rank == 2:

        @cuda.jit(device=True, forceinline=True)
        def load(dst, source, bar, where):
            tma.load_2d(dst, source, bar, where[0], where[1])

        @cuda.jit(device=True, forceinline=True)
        def store(target, src, where):
            tma.store_2d(target, src, where[2], where[3])
    else:

        @cuda.jit(device=True, forceinline=True)
        def load(dst, source, bar, where):
            tma.load_3d(dst, source, bar, where[0], where[1], where[4])

        @cuda.jit(device=True, forceinline=True)
        def store(target, src, where):
            tma.store_3d(target, src, where[2], where[3], where[5])

    def kernel(source, target, dump, places):
        smem = (memory.shared_address(cuda.shared.array(0, np.uint8)) + 1023) // 1024 * 1024
        i = cuda.threadIdx.x
        bar, box = smem + BYTES, smem
        if i == 0:
            tma.prefetch(source)
            mbarrier.init(bar, 1)
            barrier.fence_mbarrier_init()
        cuda.syncthreads()
        for turn in range(places.shape[0]):
            where = (places[turn, 0], places[turn, 1], places[turn, 2], places[turn, 3], places[turn, 4], places[turn, 5])
            if i == 0:
                mbarrier.arrive_expect_tx(bar, BYTES)
                load(box, source, bar, where)
            mbarrier.wait(bar, u32(turn) & 1)
            for word in range(i, WORDS, 32):
                dump[turn, word] = u64(memory.load_shared_u32(box + 4 * u32(word)))
            cuda.syncthreads()
            if i == 0:
                store(target, box, where)
                tma.commit()
                tma.wait_read(0)
            cuda.syncthreads()
        if i == 0:
            tma.wait(0)

    return kernel


BOXES = [
    ("uint8", (128, 8), 128),
    ("uint8", (64, 16), 64),
    ("uint8", (32, 32), 32),
    ("uint8", (48, 5), 0),
    ("float32", (32, 4), 128),
    ("uint16", (64, 3), 128),
]


@pytest.mark.parametrize("dtype, box, swizzle", BOXES)
@pytest.mark.parametrize("rank", [2, 3])
def test_boxes_in_and_out(cupy, rng, dtype, box, swizzle, rank):
    """Boxes inside, over every edge and wholly outside; loads fill with zeros, stores clip. Stores begin inside or behind: see `tma.store_2d`."""
    item = np.dtype(dtype).itemsize
    shape = (37, 160) if rank == 2 else (3, 37, 160)
    box = box if rank == 2 else (*box, 2)
    step = 16 // item
    source = rng.integers(0, 256, (*shape[:-1], shape[-1] * item), dtype=np.uint8).view(dtype)
    target = np.zeros(shape, dtype)
    xs = [step * int(rng.integers(-12 // step - 1, 160 // step + 2)) for _ in range(24)]
    places = np.array(
        [
            (xs[2 * t], rng.integers(-9, 40), max(xs[2 * t + 1], 0), rng.integers(0, 40), rng.integers(-1, 4), rng.integers(0, 4))
            for t in range(12)
        ]
    )
    places = places.astype(np.int32)
    nbytes = int(np.prod(box)) * item
    kernel = boxes_kernel(rank, nbytes, nbytes // 4)
    dump = np.zeros((12, nbytes // 4), np.uint64)
    args, maps = (source, target, dump, places), ((0, box, swizzle), (1, box, swizzle))
    same(both(cupy, kernel, 1, 32, args, smem=nbytes + 8 + 1024, maps=maps))


def multicast(source, dump, again):
    """Each CTA of a pair loads half of a box into both; then copies 256 bytes of its own, and arrives at the other's barrier."""
    smem = (memory.shared_address(cuda.shared.array(0, np.uint8)) + 1023) // 1024 * 1024
    i, rank = cuda.threadIdx.x, thread.cluster_ctarank()
    bar, done, box = smem + 2048, smem + 2056, smem
    if i == 0:
        mbarrier.init(bar, 1)
        mbarrier.init(done, 2)
        barrier.fence_mbarrier_init()
    barrier.cluster_arrive()
    barrier.cluster_wait()
    if i == 0:
        mbarrier.arrive_expect_tx(bar, 1024 + 256)
        tma.load_2d_multicast(box + rank * 512, source, bar, u32(16), u32(1) + rank * 4, u32(3))
        tma.load_bytes(box + 1024, memory.global_address(again) + u64(rank) * 256, u32(256), bar)
    mbarrier.wait(bar, 0)
    for word in range(i, 320, 32):
        dump[rank, word] = u64(memory.load_shared_u32(box + 4 * u32(word)))
    thread.syncwarp()
    mbarrier.arrive_cluster_if(thread.lane_idx() < 2, done, thread.lane_idx())
    mbarrier.wait(done, 0)
    barrier.cluster_arrive()
    barrier.cluster_wait()


def test_multicast_bulk_copy_and_remote_arrival(cupy, rng):
    source = rng.integers(0, 256, (12, 256), dtype=np.uint8)
    again = rng.integers(0, 2**32, 128, dtype=np.uint64).astype(np.uint32)
    args = (source, np.zeros((2, 320), np.uint64), again)
    same(both(cupy, multicast, 2, 32, args, smem=2064 + 1024, cluster=2, maps=((0, (128, 4), 128),)))


def named(out):
    """A producer warp hands numbers to a consumer warp through named barriers; the others do not take part."""
    numbers = cuda.shared.array(32, np.uint32)
    i = cuda.threadIdx.x
    warp = thread.uniform(u32(i) // 32)
    if warp == 0:
        for turn in range(3):
            barrier.sync(2, 64)
            numbers[i] = i + 100 * turn
            barrier.arrive(1, 64)
    elif warp == 1:
        barrier.arrive(2, 64)
        for turn in range(3):
            barrier.sync(1, 64)
            out[turn, i - 32] = numbers[i - 32]
            if turn < 2:
                barrier.arrive(2, 64)


def test_named_barriers(cupy):
    same(both(cupy, named, 1, 96, (np.zeros((3, 32), np.uint32),)))


@pytest.mark.parametrize("pair", PAIRS, ids=["-".join(p) for p in PAIRS])
def test_wgmma_of_small_integers(cupy, rng, pair):
    for n in (8, 40, 136, 256):
        a, b, registers, _, _ = operands(rng, n, *pair, 4)
        out = np.zeros((2, 128, n // 2), np.float32)
        kernel = make(n, [(*pair, source) for source in SOURCES])
        same(both(cupy, kernel, 1, 128, (a, b, registers, out), smem=smem_bytes(n), maps=((0, (128, 64), 128), (1, (128, n), 128))))


@pytest.mark.parametrize("pair", PAIRS, ids=["-".join(p) for p in PAIRS])
def test_wgmma_of_any_codes_is_the_model(cupy, rng, pair):
    """The tensor core's own rounding, bit for bit: `emu.tensor_core` on random finite codes."""
    n, worst = 64, 0
    for _ in range(20):
        a, b = rng.integers(0, 256, (64, 128), dtype=np.uint8), rng.integers(0, 256, (n, 128), dtype=np.uint8)
        for codes, dtype in ((a, pair[0]), (b, pair[1])):
            special = (codes & 0x7F) == 0x7F if dtype == "float8_e4m3fn" else (codes & 0x7C) == 0x7C
            codes[special] = 0x11
        out = np.zeros((2, 128, n // 2), np.float32)
        kernel = make(n, [(*pair, source) for source in SOURCES])
        maps = ((0, (128, 64), 128), (1, (128, n), 128))
        emulated, real = both(cupy, kernel, 1, 128, (a, b, registers_of(a), out), smem=smem_bytes(n), maps=maps)[3]
        worst += int((emulated.view(np.uint32) != real.view(np.uint32)).sum())
    assert worst == 0, f"{worst} of {20 * out.size} accumulators differ from the model"


@pytest.mark.filterwarnings("ignore:.*under-utilization")  # Numba's own, of a grid of one block
def test_a_users_kernel_by_our_launch_and_by_numbas(cupy, rng):
    """An operation at the level of sm_80 needs nothing but Numba."""
    x, out, positions = arguments(rng)
    for run in (
        lambda args: launch(user_kernel, 1, THREADS, args),
        lambda args: user_kernel[1, THREADS](*args),
    ):
        device = [cupy.asarray(v) for v in (x, out, positions)]
        run(device)
        cupy.cuda.Device().synchronize()
        assert expected(x).tolist() == device[1].get().tolist()
        assert device[2].get().tolist() == [0, 10, 20, 1, 11, 21, 0]
