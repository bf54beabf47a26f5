"""Barriers of a CTA and of a cluster, and the fences between the generic and the asynchronous proxy."""

from ..emu import cta, thread, uniform
from ._declare import WARP, op, u32


@op("bar.sync {barrier}, {threads};", scope=WARP)
def sync(barrier: u32, threads: u32) -> None:
    """bar.sync - wait until `threads` threads have arrived at named barrier `barrier`.

    PTX:       ISA 9.0, "bar, barrier"; sm_20+
    Scope:     warp (a warp arrives as one)
    Args:      barrier  u32  0 to 15; 0 is `cuda.syncthreads`'s
               threads  u32  a multiple of 32
    Returns:   nothing
    Orders:    memory accesses of the participating threads
    Lanes:     all lanes pass the same arguments
    Emulates:  exactly
    """
    cta().named_barrier(uniform(barrier, "barrier")).sync(uniform(threads, "threads"))


@op("bar.arrive {barrier}, {threads};", scope=WARP)
def arrive(barrier: u32, threads: u32) -> None:
    """bar.arrive - arrive at named barrier `barrier` without waiting.

    PTX:       ISA 9.0, "bar, barrier"; sm_20+
    Scope:     warp (a warp arrives as one)
    Args:      barrier  u32  0 to 15
               threads  u32  a multiple of 32; the same as the others' `sync`
    Returns:   nothing
    Orders:    what this warp accessed before is ordered before the barrier completes
    Lanes:     all lanes pass the same arguments
    Emulates:  exactly
    """
    cta().named_barrier(uniform(barrier, "barrier")).arrive(uniform(threads, "threads"))


# NOTE: without `.aligned`: a warp that comes from a divergent role (one lane the producer) is an illegal instruction with it (H200, 2026-11-29).
@op("barrier.cluster.arrive.release;")
def cluster_arrive() -> None:
    """barrier.cluster.arrive - arrive at the cluster's barrier.

    PTX:       ISA 9.0, "barrier.cluster"; sm_90+
    Scope:     thread; every thread of the cluster that has not exited must arrive
    Args:      none
    Returns:   nothing
    Orders:    release, cluster
    Emulates:  exactly
    """
    cta().cluster.barrier.arrive()


@op("barrier.cluster.wait.acquire;")
def cluster_wait() -> None:
    """barrier.cluster.wait - wait until every thread of the cluster has arrived.

    PTX:       ISA 9.0, "barrier.cluster"; sm_90+
    Scope:     thread
    Args:      none
    Returns:   nothing
    Orders:    acquire, cluster
    Emulates:  exactly
    """
    cta().cluster.barrier.wait()


@op("fence.proxy.async.shared::cta;")
def fence_proxy_async() -> None:
    """fence.proxy.async - order this thread's accesses of shared memory before the asynchronous proxy's (TMA, wgmma) that follow.

    PTX:       ISA 9.0, "membar / fence", "Async Proxy"; sm_90+
    Scope:     thread (each thread that wrote)
    Args:      none
    Returns:   nothing
    Orders:    generic proxy before async proxy, for this thread
    Emulates:  exactly
    """
    thread().fence_proxy_async()


@op("fence.mbarrier_init.release.cluster;")
def fence_mbarrier_init() -> None:
    """fence.mbarrier_init - make this thread's `mbarrier.init`s visible to the asynchronous proxy and to the cluster.

    PTX:       ISA 9.0, "membar / fence", ".mbarrier_init"; sm_90+
    Scope:     thread
    Args:      none
    Returns:   nothing
    Orders:    earlier mbarrier.init, release, cluster
    Emulates:  exactly
    """
    thread().fence_mbarrier_init()
