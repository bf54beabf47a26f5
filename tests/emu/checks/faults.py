"""Faults in what memory holds and when: races, missing fences and waits, what nothing wrote, registers of wgmma, addresses."""

import numpy as np
from numba import cuda
from one_barrier import BAR, TILE, ready_barrier

from dgnumba.integers import u32, u64
from dgnumba.layouts.descriptors import SmemDescriptor, TensorMap, low_word
from dgnumba.ptx import barrier, fragment, mbarrier, memory, tma, wgmma

from .planted import BOX, A, B, load, plant


@plant("race", "read of 4 bytes races with the write by thread 0", who=32, address=2048, threads=64)
def race_between_threads(is_right):
    def kernel(tmap, d, out):
        t = cuda.threadIdx.x
        if t == 0:
            memory.store_shared_f32(TILE, np.float32(1))
        if is_right:
            cuda.syncthreads()
        if t == 32:
            out[0] = memory.load_shared_f32(TILE)  # here

    return kernel


@plant("race", "write of 4 bytes races with the read by thread", who=0, address=2048)
def race_with_an_earlier_read(is_right):
    def kernel(tmap, d, out):
        t = cuda.threadIdx.x
        if t == 0:
            memory.store_shared_f32(TILE, np.float32(1))
        cuda.syncthreads()
        if t == 1:
            out[t] = memory.load_shared_f32(TILE)
        if is_right:
            cuda.syncwarp()
        else:
            cuda.ballot_sync(0xFFFFFFFF, True)  # the lanes meet, but nothing is ordered
        if t == 0:
            memory.store_shared_f32(TILE, np.float32(2))  # here

    return kernel


def store_tile(tmap, is_fenced, is_before):
    memory.store_shared_v4_f32(TILE + 16 * u32(cuda.threadIdx.x), *(np.float32(1),) * 4)
    if is_fenced and is_before:
        barrier.fence_proxy_async()
    cuda.syncthreads()
    if is_fenced and not is_before:
        barrier.fence_proxy_async()
    if cuda.threadIdx.x == 0:
        tma.store_2d(tmap, TILE, u32(0), u32(0))  # here
        tma.commit()
        tma.wait(0)


@plant("proxy", "without fence.proxy.async by the writer", address=2048)
def missing_proxy_fence(is_right):
    def kernel(tmap, d, out):
        store_tile(d, is_right, True)

    return kernel


@plant("proxy", "the async proxy reads what", address=2064)
def proxy_fence_behind_the_barrier(is_right):
    def kernel(tmap, d, out):
        store_tile(d, True, is_right)

    return kernel


@plant("missing-wait", "the asynchronous tma.load_2d that thread 0", address=2048)
def missing_wait_for_a_load(is_right):
    def kernel(tmap, d, out):
        t = cuda.threadIdx.x
        ready_barrier()
        load(tmap)
        if is_right:
            mbarrier.wait(BAR, u32(0))
        if t == 0:
            out[t] = memory.load_shared_f32(TILE)  # here
        mbarrier.wait(BAR, u32(0))

    return kernel


@plant("missing-wait", "races with the read by the asynchronous tma.store_2d", address=2048)
def missing_wait_for_a_store_that_reads(is_right):
    def kernel(tmap, d, out):
        memory.store_shared_v4_f32(TILE + 16 * u32(cuda.threadIdx.x), *(np.float32(1),) * 4)
        barrier.fence_proxy_async()
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            tma.store_2d(d, TILE, u32(0), u32(0))
            tma.commit()
            if is_right:
                tma.wait_read(0)
            memory.store_shared_f32(TILE, np.float32(2))  # here
            tma.wait(0)

    return kernel


@plant("missing-wait", "the asynchronous tma.load_2d", address=2048, policies=("late",))
def wrong_parity(is_right):
    """Parity 1 of a fresh barrier passes at once."""

    def kernel(tmap, d, out):
        ready_barrier()
        if cuda.threadIdx.x == 0:
            mbarrier.arrive_expect_tx(BAR, u32(BOX))
            tma.load_2d(TILE, tmap, BAR, u32(0), u32(0))
            mbarrier.wait(BAR, u32(0 if is_right else 1))
            out[0] = memory.load_shared_f32(TILE)  # here
            mbarrier.wait(BAR, u32(0))

    return kernel


@plant("uninitialized", "of which nothing wrote this one", address=2052)
def uninitialized_shared_memory(is_right):
    def kernel(tmap, d, out):
        if cuda.threadIdx.x == 0:
            memory.store_shared_f32(TILE, np.float32(1))
            if is_right:
                memory.store_shared_f32(TILE + 4, np.float32(1))
            out[0] = memory.load_shared_v2_f32(TILE)[1]  # here

    return kernel


@plant("uninitialized", "cannot access local variable 'x'", who=3)
def uninitialized_register(is_right):
    def kernel(tmap, d, out):
        t = cuda.threadIdx.x
        if t < 3 or is_right:
            x = np.float32(t)
        out[t] = x  # here

    return kernel


@plant("uninitialized", "local array[1]: read, but this thread has not written it")
def uninitialized_local_array(is_right):
    def kernel(tmap, d, out):
        mine = cuda.local.array(2, np.float32)
        for i in range(2 if is_right else 1):
            mine[i] = np.float32(i)
        out[cuda.threadIdx.x] = mine[1]  # here

    return kernel


mma = wgmma.mma_for("float8_e4m3fn", "float8_e4m3fn", a=SmemDescriptor(128), b=SmemDescriptor(128))

MAPS = {swizzle: [TensorMap.of(x, (swizzle, len(x)), swizzle=swizzle) for x in (A, B)] for swizzle in (128, 64)}


def loaded_operands(swizzle):
    """A and B in shared memory behind TILE, in columns as wide as the swizzle; the low words of their descriptors."""
    tmap_a, tmap_b = MAPS[swizzle]
    ready_barrier()
    if cuda.threadIdx.x == 0:
        mbarrier.arrive_expect_tx(BAR, u32(72 * 128))
        for part in range(128 // swizzle):
            tma.load_2d(TILE + part * 4096, tmap_a, BAR, u32(part * swizzle), u32(0))
            tma.load_2d(TILE + 8192 + part * 512, tmap_b, BAR, u32(part * swizzle), u32(0))
    mbarrier.wait(BAR, u32(0))
    return low_word(TILE), low_word(TILE + 8192)


@plant("in-flight", "used while in flight: wgmma.wait must come first", who=None, threads=128)
def registers_of_a_wgmma_in_flight(is_right):
    def kernel(tmap, d, out):
        a, b = loaded_operands(128)
        acc = fragment.zero(4)
        wgmma.fence()
        acc = mma(acc, a, b, 0)
        wgmma.commit()
        if is_right:
            acc = wgmma.wait(acc, 0)
        out[cuda.threadIdx.x] = acc[0]  # here
        acc = wgmma.wait(acc, 0)

    return kernel


@plant("in-flight", "wgmma.fence must come between", who=None, threads=128)
def registers_touched_without_a_fence(is_right):
    def kernel(tmap, d, out):
        a, b = loaded_operands(128)
        acc = fragment.zero(4)
        if is_right:
            wgmma.fence()
        acc = mma(acc, a, b, 0)  # here
        wgmma.commit()
        out[cuda.threadIdx.x] = wgmma.wait(acc, 0)[0]

    return kernel


@plant(
    "swizzle",
    "wgmma.mma reads it as rows of 128 bytes with swizzle 128, but it was written as rows of 64 bytes with swizzle 64",
    who=None,
    threads=128,
    address=2048,
)
def swizzle_of_writer_and_descriptor(is_right):
    def kernel(tmap, d, out):
        a, b = loaded_operands(128 if is_right else 64)
        acc = fragment.zero(4)
        wgmma.fence()
        acc = mma(acc, a, b, 0)  # here
        wgmma.commit()
        out[cuda.threadIdx.x] = wgmma.wait(acc, 0)[0]

    return kernel


@plant("async", "wgmma.mma issued and never committed", threads=128)
def wgmma_without_a_commit(is_right):
    def kernel(tmap, d, out):
        a, b = loaded_operands(128)
        acc = fragment.zero(4)
        wgmma.fence()
        acc = mma(acc, a, b, 0)
        if is_right:
            wgmma.commit()
            acc = wgmma.wait(acc, 0)

    return kernel


@plant("async", "was never waited for")
def load_left_behind(is_right):
    def kernel(tmap, d, out):
        ready_barrier()
        load(tmap)
        if is_right:
            mbarrier.wait(BAR, u32(0))

    return kernel


@plant("misaligned", "expected a multiple of 16 for 16 bytes", address=2056)
def misaligned_vector_access(is_right):
    def kernel(tmap, d, out):
        if cuda.threadIdx.x == 0:
            at = TILE if is_right else TILE + 8
            memory.store_shared_v4_f32(at, *(np.float32(1),) * 4)  # here

    return kernel


@plant("misaligned", "expected an innermost coordinate that is a multiple of 16 bytes (4 of float32), got 2")
def misaligned_box(is_right):
    def kernel(tmap, d, out):
        ready_barrier()
        if cuda.threadIdx.x == 0:
            mbarrier.arrive_expect_tx(BAR, u32(BOX))
            tma.load_2d(TILE, tmap, BAR, u32(0 if is_right else 2), u32(0))  # here
        mbarrier.wait(BAR, u32(0))

    return kernel


@plant("bounds", "4 bytes from there are in no array of the launch", who=31)
def global_address_out_of_bounds(is_right):
    def kernel(tmap, d, out):
        first = memory.global_address(out) + (0 if is_right else 4 * (256 - 31))
        memory.store_global_f32_if(True, first + u64(cuda.threadIdx.x) * 4, np.float32(1))  # here

    return kernel


@plant("overflow", "comes from 32-bit arithmetic that wrapped in an integer mul at faults.py", who=1, address=2048)
def address_that_wrapped(is_right):
    """Lane 1 comes to where lane 0 wrote."""

    def kernel(tmap, d, out):
        t = u32(cuda.threadIdx.x)
        if t < 2:
            offset = t << (9 if is_right else 32 - 1)
            memory.store_shared_f32(TILE + offset * 2, np.float32(1))  # here

    return kernel


@plant("overflow", "the index 0 (0x0) comes from 32-bit arithmetic that wrapped in an integer mul at faults.py", who=2)
def index_that_wrapped(is_right):
    def kernel(tmap, d, out):
        t = u32(cuda.threadIdx.x)
        row = t * (1 if is_right else 1 << 31)
        if t % 2 == 0:
            out[row] = np.float32(1)  # here

    return kernel


@plant("overflow", "the coordinate 0 (0x0) comes from 32-bit arithmetic that wrapped")
def coordinate_that_wrapped(is_right):
    def kernel(tmap, d, out):
        ready_barrier()
        if cuda.threadIdx.x == 0:
            mbarrier.arrive_expect_tx(BAR, u32(BOX))
            row = u32(1 << 30) * (0 if is_right else 4)
            tma.load_2d(TILE, tmap, BAR, u32(0), row)  # here
        mbarrier.wait(BAR, u32(0))

    return kernel


@plant("global-race", "nothing orders blocks but atomics behind a fence", grid=2)
def race_between_blocks(is_right):
    def kernel(tmap, d, out):
        if cuda.threadIdx.x == 0:
            out[cuda.blockIdx.x if is_right else 0] = np.float32(1)  # here

    return kernel


@plant("global-race", "read races with the write by thread 0", who=33, threads=64)
def race_in_global_memory_of_a_block(is_right):
    def kernel(tmap, d, out):
        t = cuda.threadIdx.x
        out[t] = np.float32(t)
        if is_right:
            cuda.syncthreads()
        if t > 32:
            out[t + 64] = out[t - 33]  # here

    return kernel


def read_back(d, out, is_waited):
    """Thread 0 reads what its TMA store wrote."""
    t = u32(cuda.threadIdx.x)
    memory.store_shared_v4_f32(TILE + 16 * t, *(np.float32(1),) * 4)
    barrier.fence_proxy_async()
    cuda.syncthreads()
    if t == 0:
        tma.store_2d(d, TILE, u32(0), u32(0))
        tma.commit()
        if is_waited:
            tma.wait(0)
        else:
            tma.wait_read(0)
        out[0] = memory.load_global_f32(u64(tmap_address(d)))  # here
        tma.wait(0)


@plant("missing-wait", "read races with the write by thread 0 of block (0, 0, 0) (tma.store_2d at faults.py")
def store_read_back_without_a_wait(is_right):
    def kernel(tmap, d, out):
        read_back(d, out, is_right)

    return kernel


def tmap_address(tmap):
    return tmap.array.ctypes.data


@plant("unknown", "cuda.grid_sync: not emulated")
def something_the_emulator_does_not_know(is_right):
    def kernel(tmap, d, out):
        if not is_right:
            cuda.grid_sync()  # here

    return kernel
