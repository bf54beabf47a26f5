"""Faults in who arrives where: mbarriers, named barriers, a cluster's, and warps that divide."""

from numba import cuda
from one_barrier import BAR, TILE, ready_barrier

from dgnumba.integers import u32
from dgnumba.ptx import barrier, mbarrier, thread, tma

from .planted import BOX, load, plant


@plant("mbarrier", "arrival beyond its count of 1", address=1024)
def more_arrivals_than_counted(is_right):
    def kernel(tmap, d, out):
        ready_barrier(2 if is_right else 1)
        if cuda.threadIdx.x == 0:
            mbarrier.arrive_expect_tx(BAR, u32(BOX))
            mbarrier.arrive(BAR)  # here
            tma.load_2d(TILE, tmap, BAR, u32(0), u32(0))
        mbarrier.wait(BAR, u32(0))

    return kernel


@plant("deadlock", "1 of 2 arrivals missing", who=7)
def fewer_arrivals_than_counted(is_right):
    def kernel(tmap, d, out):
        ready_barrier(1 if is_right else 2)
        load(tmap)
        mbarrier.wait(BAR, u32(0))  # here

    return kernel


@plant("deadlock", "16 transaction bytes expected and not come", who=31)
def more_bytes_expected_than_come(is_right):
    def kernel(tmap, d, out):
        ready_barrier()
        load(tmap, BOX if is_right else BOX + 16)
        mbarrier.wait(BAR, u32(0))  # here

    return kernel


@plant("deadlock", "16 transaction bytes more than were expected", who=31)
def fewer_bytes_expected_than_come(is_right):
    def kernel(tmap, d, out):
        ready_barrier()
        load(tmap, BOX if is_right else BOX - 16)
        mbarrier.wait(BAR, u32(0))  # here

    return kernel


@plant("mbarrier", "initialised again while in use", address=1024)
def initialised_again_in_use(is_right):
    def kernel(tmap, d, out):
        ready_barrier()
        load(tmap)
        mbarrier.wait(BAR, u32(0))
        if cuda.threadIdx.x == 0 and not is_right:
            mbarrier.init(BAR, 1)  # here

    return kernel


@plant("mbarrier", "no barrier orders its init", who=32, address=1024, threads=64)
def used_before_its_init_is_visible(is_right):
    def kernel(tmap, d, out):
        t = cuda.threadIdx.x
        if t == 0:
            mbarrier.init(BAR, 1)
        if is_right:
            cuda.syncthreads()
        if t == 32:
            mbarrier.arrive(BAR)  # here

    return kernel


@plant("mbarrier", "has not executed fence.mbarrier_init", address=1024)
def missing_fence_of_the_init(is_right):
    def kernel(tmap, d, out):
        if cuda.threadIdx.x == 0:
            mbarrier.init(BAR, 1)
            if is_right:
                barrier.fence_mbarrier_init()
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            mbarrier.arrive_expect_tx(BAR, u32(BOX))
            tma.load_2d(TILE, tmap, BAR, u32(0), u32(0))  # here
        mbarrier.wait(BAR, u32(0))

    return kernel


@plant("peer", "CTA 1 of the cluster, has exited", grid=2, cluster=2)
def cluster_peer_gone(is_right):
    def kernel(tmap, d, out):
        t = cuda.threadIdx.x
        if t == 0:
            mbarrier.init(BAR, 1)
            barrier.fence_mbarrier_init()
        barrier.cluster_arrive()
        barrier.cluster_wait()
        if thread.cluster_ctarank() == 0:
            cuda.syncthreads()  # CTA 1 comes to its end meanwhile
            mbarrier.arrive_cluster_if(t == 0, BAR, u32(1))  # here
        if is_right:
            barrier.cluster_arrive()
            barrier.cluster_wait()

    return kernel


@plant("named-barrier", "32 threads said here, 64 by those who came before", who=63, threads=64)
def named_barrier_of_two_counts(is_right):
    def kernel(tmap, d, out):
        if cuda.threadIdx.x < 32:
            barrier.sync(u32(1), u32(64))
        else:
            barrier.sync(u32(1), u32(64 if is_right else 32))  # here

    return kernel


@plant("divergence", "expected the whole warp", who=16)
def warp_divided_at_a_collective(is_right):
    def kernel(tmap, d, out):
        if is_right or cuda.threadIdx.x < 16:
            thread.syncwarp()
        else:
            barrier.sync(u32(1), u32(32))  # here

    return kernel


@plant("divergence", "threads 0-15 of block (0, 0, 0) wait for the whole warp, but threads 16-31", who=3)
def warp_divided_for_good(is_right):
    def kernel(tmap, d, out):
        if is_right or cuda.threadIdx.x < 16:
            thread.syncwarp()  # here
        else:
            cuda.syncthreads()

    return kernel
