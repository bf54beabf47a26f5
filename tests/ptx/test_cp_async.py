"""cp.async of 4 bytes, and its arrival at an mbarrier: what is seen behind it, and what is a fault. Groups, and 16 bytes, are in test_mma."""

import numpy as np
import pytest
from numba import cuda

from dgnumba import emu
from dgnumba.errors import AsyncError, BarrierError, DeadlockError, OutOfBoundsError, RaceError
from dgnumba.integers import u32, u64
from dgnumba.ptx import cp_async, mbarrier, memory

FULL, EMPTY, BASE = u32(1024), u32(1032), u32(2048)


def launch(kernel, *args, threads=64, **more):
    emu.run(kernel, 1, threads, args, smem=8192, **more)


def begin(arrivals):
    """Thread 0's barriers, which everybody may use."""
    if cuda.threadIdx.x == 0:
        mbarrier.init(FULL, u32(arrivals))
        mbarrier.init(EMPTY, u32(1))
    cuda.syncthreads()


@pytest.mark.parametrize("count", [1, 3, 8])
def test_another_warp_sees_the_words_behind_the_barrier(count, policy, rng):
    """Word by word in any order, several a lane and none for some: each granule of 16 bytes has four writers."""
    source = rng.integers(0, 1 << 32, 32 * count, np.uint32)
    places = rng.permutation(len(source) - 5)
    out = np.zeros(len(places), np.uint32)

    def kernel(x):
        t = u32(cuda.threadIdx.x)
        begin(32)
        if t < 32:
            for i in range(int(t), len(places), 32):
                cp_async.copy_4(BASE + u32(4 * i), u64(x.address) + 4 * int(places[i]))
            cp_async.mbarrier_arrive_noinc(FULL)
        else:
            mbarrier.wait(FULL, u32(0))
            for i in range(int(t) - 32, len(places), 32):
                out[i] = memory.load_shared_u32(BASE + u32(4 * i))

    launch(kernel, source, policy=policy)
    assert out.tolist() == source[places].tolist()


def ring(*, waits_for_readers=True, arrives_behind=True, reads_other=False):
    """Lane 0 brings a word to the same place three times, thread 32 reads each: what each one waits for is the caller's."""
    out = np.zeros(3, np.uint32)

    def kernel(x):
        t = cuda.threadIdx.x
        begin(1)
        if t == 0:
            cp_async.copy_4(BASE + 4, u64(x.address))  # to a neighbour of the place: thread 32 may go on reading that
            for i in range(3):
                if waits_for_readers:
                    mbarrier.wait(EMPTY, u32(i & 1 ^ 1))
                cp_async.copy_4(BASE + (4 if reads_other else 0), u64(x.address) + 4 * i)
                if arrives_behind:
                    cp_async.mbarrier_arrive_noinc(FULL)
                else:
                    mbarrier.arrive(FULL)
        if t == 32:
            for i in range(3):
                mbarrier.wait(FULL, u32(i & 1))
                out[i] = memory.load_shared_u32(BASE + (4 if reads_other else 0))
                mbarrier.arrive(EMPTY)

    return kernel, out


@pytest.mark.parametrize("reads_other", [False, True])
def test_a_place_is_used_again(reads_other, policy):
    source = np.array([7, 8, 9], np.uint32)
    kernel, out = ring(reads_other=reads_other)
    if reads_other:  # the first copy and the second one write one place, and neither waits for the other
        with pytest.raises(RaceError, match=r"write by the asynchronous cp_async\.copy_4"):
            launch(kernel, source, policy=policy)
    else:
        launch(kernel, source, policy=policy)
        assert out.tolist() == [7, 8, 9]


def test_the_readers_of_before_must_be_waited_for(policy):
    """Eager: the second copy meets the first, done and read or not; late: it runs on into a phase that has no arrival left."""
    with pytest.raises((RaceError, BarrierError)):
        launch(ring(waits_for_readers=False)[0], np.zeros(3, np.uint32), policy=policy)


def test_a_plain_arrival_does_not_wait_for_the_copies(policy):
    with pytest.raises(
        RaceError, match=r"read of 4 bytes races with the write by the asynchronous cp_async\.copy_4.*wait for it to finish"
    ):
        launch(ring(arrives_behind=False)[0], np.zeros(3, np.uint32), policy=policy)


def test_neighbours_within_sixteen_bytes_are_no_conflict(policy):
    """A word is read while the one beside it is on its way; its own bytes are not free."""

    def kernel(offset):
        def body(x):
            begin(1)
            if cuda.threadIdx.x == 0:
                memory.store_shared_u32(BASE, u32(5))
                cp_async.copy_4(BASE + 4, u64(x.address))
                assert memory.load_shared_u32(BASE) == 5
                cp_async.copy_4(BASE + offset, u64(x.address) + 4)
                cp_async.mbarrier_arrive_noinc(FULL)
                mbarrier.wait(FULL, u32(0))
                assert [memory.load_shared_u32(BASE + at) for at in (0, 4, offset)] == [5, 1, 2]

        return body

    launch(kernel(8), np.array([1, 2], np.uint32), policy=policy)
    with pytest.raises(RaceError):
        launch(kernel(4), np.array([1, 2], np.uint32), policy=policy)


def test_an_arrival_counts_all_copies_before_it_and_no_others(policy):
    """Those of a group that was committed, and those that another barrier counts, too; one that comes later is not seen."""

    def kernel(place):
        def body(x):
            t = cuda.threadIdx.x
            begin(1)
            if t == 0:
                cp_async.copy_4(BASE, u64(x.address))
                cp_async.commit()
                cp_async.copy_4(BASE + 4, u64(x.address) + 4)
                cp_async.mbarrier_arrive_noinc(EMPTY)
                cp_async.copy_4(BASE + 8, u64(x.address) + 8)
                cp_async.mbarrier_arrive_noinc(FULL)
                cp_async.copy_4(BASE + 12, u64(x.address) + 12)
                cp_async.commit()
            if t == 32:
                mbarrier.wait(FULL, u32(0))
                assert memory.load_shared_u32(BASE + place) == 1 + place // 4
            if t == 0:
                cp_async.wait(0)

        return body

    source = np.arange(1, 5, dtype=np.uint32)
    for place in (0, 4, 8):
        launch(kernel(place), source, policy=policy)
    with pytest.raises(RaceError):
        launch(kernel(12), source, policy=policy)


def test_a_lane_without_copies_arrives(policy):
    def kernel():
        begin(64)
        cp_async.mbarrier_arrive_noinc(FULL)
        mbarrier.wait(FULL, u32(0))

    launch(kernel, policy=policy)


def test_faults_of_counting_are_named(policy):
    def too_many():
        begin(63)
        cp_async.mbarrier_arrive_noinc(FULL)
        cuda.syncthreads()

    def too_few():
        begin(65)
        cp_async.mbarrier_arrive_noinc(FULL)
        mbarrier.wait(FULL, u32(0))

    def not_awaited(x):
        begin(64)
        cp_async.copy_4(BASE + 4 * cuda.threadIdx.x, u64(x.address))
        cp_async.mbarrier_arrive_noinc(FULL)

    if policy == "late":  # eager: the 63rd ends the phase, and the 64th is the next one's
        with pytest.raises(BarrierError, match="arrival beyond its count of 63 in phase 0"):
            launch(too_many, policy=policy)
    with pytest.raises(DeadlockError, match="1 of 65 arrivals missing"):
        launch(too_few, policy=policy)
    with pytest.raises(
        AsyncError, match=r"cp_async\.mbarrier_arrive_noinc by .* into shared memory, counted by mbarrier .*was never waited for"
    ):
        launch(not_awaited, np.zeros(1, np.uint32), policy=policy)


@pytest.mark.parametrize(
    "dst, src, words", [(2, 0, "expected dst to be a multiple of 4"), (0, 2, "expected src"), (0, 8, "4 bytes from there are in no array")]
)
def test_places_are_checked(dst, src, words):
    def kernel(x):
        cp_async.copy_4(BASE + dst, u64(x.address) + src)

    with pytest.raises(OutOfBoundsError, match=words):
        launch(kernel, np.zeros(2, np.uint32), threads=1)
