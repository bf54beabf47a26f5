"""mbarriers, named and cluster barriers: misuse is named, and divergence and deadlock are told apart."""

import numpy as np
import pytest
from numba import cuda

from dgnumba import emu
from dgnumba.errors import BarrierError, DeadlockError, DivergenceError, EmulationError, OutOfBoundsError, RaceError
from dgnumba.integers import u32
from dgnumba.ptx import barrier, mbarrier, memory, thread

BAR = u32(1024)


def launch(kernel, threads=64, **more):
    emu.run(kernel, more.pop("grid", 1), threads, (), smem=1024, **more)


def test_phases_alternate() -> None:
    log = []

    def kernel():
        t = cuda.threadIdx.x
        if t == 0:
            mbarrier.init(BAR, 2)
        cuda.syncthreads()
        mbarrier.wait(BAR, u32(1))  # a fresh barrier lets parity 1 pass
        cuda.syncthreads()
        for phase in range(3):
            if t < 2:
                mbarrier.arrive(BAR)
            mbarrier.wait(BAR, u32(phase & 1))
            log.append((phase, t))
            cuda.syncthreads()

    launch(kernel)
    assert [phase for phase, _ in log] == [0] * 64 + [1] * 64 + [2] * 64


def test_waiting_acquires_what_was_released() -> None:
    def kernel(is_awaited):
        def body():
            shared, t = cuda.shared.array(64, np.int32), cuda.threadIdx.x
            if t == 0:
                mbarrier.init(BAR, 32)
            cuda.syncthreads()
            if t >= 32:
                shared[t] = t
                mbarrier.arrive(BAR)
            else:
                if is_awaited:
                    mbarrier.wait(BAR, u32(0))
                assert shared[63 - t] == 63 - t

        return body

    launch(kernel(True))
    with pytest.raises(EmulationError):
        launch(kernel(False))


def test_waiting_does_not_acquire_later_phases() -> None:
    def kernel():
        shared, t = cuda.shared.array(1, np.int32), cuda.threadIdx.x
        if t == 0:
            mbarrier.init(BAR, 1)
            mbarrier.init(BAR + 8, 1)
        cuda.syncthreads()
        if t == 0:
            mbarrier.arrive(BAR)
            shared[0] = 1
        else:
            mbarrier.wait(BAR, u32(0))
            shared[0] = 2

    with pytest.raises(RaceError, match="no barrier orders the two"):
        launch(kernel, 2)


MISUSES = {
    "init with count 0": (lambda: mbarrier.init(BAR, 0), BarrierError, "expected a count from 1 to 1048575, got 0"),
    "misaligned init": (lambda: mbarrier.init(BAR + 4, 1), OutOfBoundsError, "expected an address that is a multiple of 8"),
    "misaligned use": (lambda: mbarrier.arrive(BAR + 4), OutOfBoundsError, "expected an address that is a multiple of 8"),
    "no init": (lambda: mbarrier.arrive(BAR + 8), BarrierError, "no mbarrier.init has been executed there"),
    "init twice": (lambda: mbarrier.init(BAR, 1), BarrierError, "initialised again while in use"),
    "outside": (lambda: mbarrier.init(u32(8), 1), OutOfBoundsError, "not in this CTA's shared memory"),
    "parity 2": (lambda: mbarrier.wait(BAR, u32(2)), BarrierError, "expected parity 0 or 1, got 2"),
    "too many bytes": (lambda: mbarrier.expect_tx(BAR, u32(1 << 20)), BarrierError, "at most 1048575 can be"),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_misuse_of_an_mbarrier(misuse: str) -> None:
    act, error, message = MISUSES[misuse]

    def kernel():
        if misuse not in ("init with count 0", "misaligned init"):
            mbarrier.init(BAR, 1)
        act()

    with pytest.raises(error, match=message):
        launch(kernel, 1)


def test_arrival_beyond_the_count_names_who_came_before() -> None:
    def kernel():
        t = cuda.threadIdx.x
        if t == 0:
            mbarrier.init(BAR, 3)
            mbarrier.expect_tx(BAR, u32(64))  # holds the phase open
        cuda.syncthreads()
        if t < 4:
            mbarrier.arrive(BAR)

    with pytest.raises(BarrierError, match="beyond its count of 3 in phase 0; before it arrived threads 0-2 .* 64 transaction bytes"):
        launch(kernel)


def test_a_barrier_that_overruns_a_waiter_is_reported() -> None:
    def kernel():
        t = cuda.threadIdx.x
        if t == 0:
            mbarrier.init(BAR, 1)
            mbarrier.init(BAR + 8, 1)
        cuda.syncthreads()
        if t == 0:
            mbarrier.wait(BAR, u32(0))
        elif t == 2:
            mbarrier.wait(BAR + 8, u32(0))
            for _ in range(3):
                mbarrier.arrive(BAR)
        elif t == 3:
            mbarrier.arrive(BAR + 8)

    with pytest.raises(BarrierError, match="phases 0 and 1 both completed while this thread waited for parity 0"):
        launch(kernel, 4)


def test_init_must_be_ordered_before_use() -> None:
    def kernel():
        if cuda.threadIdx.x == 0:
            mbarrier.init(BAR, 1)
        else:
            mbarrier.arrive(BAR)

    with pytest.raises(BarrierError, match="no barrier orders its init, by thread 0 of block .*, before this use of it"):
        launch(kernel, 2)


def test_wait_that_nobody_ends_is_a_deadlock_with_every_thread_in_it() -> None:
    def kernel():
        t = cuda.threadIdx.x
        if t == 0:
            mbarrier.init(BAR, 2)
        cuda.syncthreads()
        if t < 40:
            mbarrier.wait(BAR, u32(0))
        elif t < 60:
            cuda.syncthreads()

    with pytest.raises(DeadlockError) as caught:
        launch(kernel, labels={0: "full[0]"})
    text = str(caught.value)
    assert "threads 0-39 of block (0, 0, 0) in mbarrier.wait(full[0] @0x400, parity 0) [phase 0: 2 of 2 arrivals missing]" in text
    assert "threads 40-59 of block (0, 0, 0) in syncthreads [20 of 60 threads there]" in text
    assert "threads 60-63 of block (0, 0, 0) exited" in text
    assert "test_barriers.py:" in text and "mbarrier.wait(BAR, u32(0))" in text


def test_endless_polling_is_a_deadlock() -> None:
    def kernel(flag):
        while cuda.atomic.cas(flag, 0, 1, 1) != 1:
            pass

    with pytest.raises(DeadlockError, match="a loop that polls in cuda.atomic.cas"):
        emu.run(kernel, 1, 32, (np.zeros(1, np.int32),))


# Named barriers


def test_arrive_and_sync_of_a_named_barrier_order_producer_and_consumer() -> None:
    def kernel(is_ordered):
        def body():
            shared, t = cuda.shared.array(32, np.int32), u32(cuda.threadIdx.x)
            if t < 32:
                shared[t] = t
                if is_ordered:
                    barrier.arrive(u32(2), u32(64))
            else:
                if is_ordered:
                    barrier.sync(u32(2), u32(64))
                assert shared[63 - t] == 63 - t

        return body

    launch(kernel(True))
    with pytest.raises(EmulationError):
        launch(kernel(False))


@pytest.mark.parametrize(
    ("number", "threads", "message"),
    [
        (16, 64, "expected a number from 0 to 15, got 16"),
        (1, 40, "multiple of 32 threads, .*got 40"),
        (1, 96, "at most the CTA's 64, got 96"),
    ],
)
def test_misuse_of_a_named_barrier(number: int, threads: int, message: str) -> None:
    with pytest.raises(BarrierError, match=message):
        launch(lambda: barrier.sync(u32(number), u32(threads)))


def test_named_barrier_with_two_counts() -> None:
    def kernel():
        barrier.sync(u32(1), u32(64) if cuda.threadIdx.x < 32 else u32(32))

    with pytest.raises(BarrierError, match="32 threads said here, 64 by those who came before"):
        launch(kernel)


def test_named_barrier_with_too_few_threads_is_a_deadlock() -> None:
    def kernel():
        if cuda.threadIdx.x < 32:
            barrier.sync(u32(1), u32(64))

    with pytest.raises(DeadlockError, match=r"threads 0-31 of block .* in named barrier 1 \[32 of 64 threads there\]"):
        launch(kernel)


# Divergence


def test_half_a_warp_in_an_aligned_operation() -> None:
    def kernel():
        if cuda.threadIdx.x < 16:
            barrier.sync(u32(1), u32(32))
        else:
            thread.syncwarp()

    with pytest.raises(
        DivergenceError, match="thread.syncwarp: expected the whole warp here, but threads 0-15 are in barrier.sync at test_barriers.py:"
    ):
        launch(kernel)


def test_lanes_that_exited_are_missing() -> None:
    def kernel():
        if cuda.threadIdx.x == 7:
            return
        thread.syncwarp()

    with pytest.raises(DivergenceError, match="thread.syncwarp: expected the whole warp, but thread 7 has exited"):
        launch(kernel)


def test_lanes_at_two_places_of_the_source() -> None:
    def kernel():
        if cuda.threadIdx.x % 2:
            thread.syncwarp()
        else:
            thread.syncwarp()

    with pytest.raises(DivergenceError, match="expected the whole warp here"):
        launch(kernel)


def test_syncthreads_in_two_branches_of_a_warp() -> None:
    def kernel():
        if cuda.threadIdx.x % 2:
            cuda.syncthreads()
        else:
            cuda.syncthreads()

    with pytest.raises(DivergenceError, match="the lanes of warp 0 come from two places"):
        launch(kernel)


def test_lanes_waiting_for_a_barrier_are_missing_from_a_collective() -> None:
    def kernel():
        if cuda.threadIdx.x < 40:
            cuda.syncthreads()
        else:
            thread.syncwarp()

    with pytest.raises(DivergenceError) as caught:
        launch(kernel)
    assert "thread.syncwarp: threads 40-63 of block (0, 0, 0) wait for the whole warp, but threads 32-39" in str(caught.value)
    assert "are in syncthreads [40 of 64 threads there]" in str(caught.value)


def test_a_lane_that_waits_for_an_event_makes_a_deadlock_not_a_divergence() -> None:
    def kernel():
        t = cuda.threadIdx.x
        if t == 0:
            mbarrier.init(BAR, 1)
            mbarrier.wait(BAR, u32(0))
        thread.syncwarp()

    with pytest.raises(DeadlockError, match=r"threads 1-31 of block .* in thread.syncwarp \[waits for thread 0\]"):
        launch(kernel, 32)


def test_exited_threads_do_not_hold_up_syncthreads() -> None:
    def kernel():
        if cuda.threadIdx.x >= 10:
            cuda.syncthreads()

    launch(kernel)


# Clusters


def remote_store(is_released_by_cluster_barrier: bool):
    def kernel():
        t, rank = u32(cuda.threadIdx.x), thread.cluster_ctarank()
        if t == 0:
            memory.store_shared_u32(thread.mapa(u32(1024), u32(1) - rank), rank + 10)
        barrier.cluster_arrive()
        if is_released_by_cluster_barrier:
            barrier.cluster_wait()
        assert memory.load_shared_u32(u32(1024)) == 11 - rank
        if not is_released_by_cluster_barrier:
            barrier.cluster_wait()

    return kernel


def test_cluster_barrier_orders_stores_into_the_peer() -> None:
    launch(remote_store(True), 32, grid=2, cluster=2)
    with pytest.raises(EmulationError):
        launch(remote_store(False), 32, grid=2, cluster=2)


@pytest.mark.parametrize("waits", [True, False])
def test_a_cta_may_not_exit_before_its_peer_is_done_with_it(waits: bool) -> None:
    def kernel():
        rank = thread.cluster_ctarank()
        if cuda.threadIdx.x == 0:
            mbarrier.init(BAR, 1)
            barrier.fence_mbarrier_init()
        barrier.cluster_arrive()
        barrier.cluster_wait()
        if cuda.threadIdx.x == 0 and rank == 0:
            mbarrier.arrive_cluster_if(True, BAR, u32(1))
        if waits and rank == 1:
            mbarrier.wait(BAR, u32(0))

    if waits:
        launch(kernel, 32, grid=2, cluster=2)
    else:
        with pytest.raises(RaceError, match="block .1, 0, 0. may exit before mbarrier.arrive at .* by thread 0 of block .0, 0, 0."):
            launch(kernel, 32, grid=2, cluster=2)


def test_touching_a_peer_that_has_exited() -> None:
    def kernel():
        if thread.cluster_ctarank() == 1:
            for _ in range(2):
                cuda.syncthreads()
            memory.store_shared_u32(thread.mapa(u32(1024), u32(0)), u32(1))

    with pytest.raises(RaceError, match="the peer, CTA 0 of the cluster, has exited"):
        launch(kernel, 32, grid=2, cluster=2)


def test_own_address_works_as_a_cluster_address() -> None:
    def kernel():
        rank = thread.cluster_ctarank()
        memory.store_shared_u32(thread.mapa(u32(1028), rank), u32(5))
        assert memory.load_shared_u32(u32(1028)) == 5

    launch(kernel, 1, grid=2, cluster=2)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: thread.mapa(u32(1024), u32(2)), "expected a rank below the cluster's 2 CTAs, got 2"),
        (lambda: memory.load_shared_u32(u32(9 << 24)), "no CTA of this cluster of 2 is there"),
        (lambda: barrier.cluster_wait(), "without barrier.cluster.arrive before"),
        (lambda: (barrier.cluster_arrive(), barrier.cluster_arrive()), "again without barrier.cluster.wait between"),
    ],
)
def test_misuse_of_a_cluster(act, message: str) -> None:
    with pytest.raises(EmulationError, match=message):
        launch(lambda: act() and None, 1, grid=2, cluster=2)
