"""What tests of asynchronous work begin with: one CTA, one barrier, one tile in shared memory."""

from numba import cuda

from dgnumba import emu
from dgnumba.integers import u32
from dgnumba.ptx import barrier, mbarrier

POLICIES = ["eager", "late"]
BAR, TILE = u32(1024), u32(2048)


def launch(kernel, *args, threads=32, policy="eager", **more):
    emu.run(kernel, 1, threads, args, smem=16384, policy=policy, **more)


def ready_barrier(count=1):
    """Thread 0 makes a barrier that TMA may use; all may use it afterwards."""
    if cuda.threadIdx.x == 0:
        mbarrier.init(BAR, count)
        barrier.fence_mbarrier_init()
    cuda.syncthreads()
