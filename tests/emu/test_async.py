"""Asynchronous work: what is due when, and what may not be touched or left behind."""

import numpy as np
import pytest
from numba import cuda
from one_barrier import BAR, POLICIES, TILE, launch, ready_barrier

from dgnumba import emu
from dgnumba.errors import AsyncError, ProxyError, RaceError, UninitializedError
from dgnumba.integers import u32
from dgnumba.layouts.descriptors import TensorMap
from dgnumba.ptx import barrier, mbarrier, memory, thread, tma

DATA = np.arange(8 * 16, dtype=np.float32).reshape(8, 16)
MAP = TensorMap.of(DATA, (16, 8))


# Loads


@pytest.mark.parametrize("policy", POLICIES)
def test_a_load_is_there_after_its_wait(policy: str) -> None:
    def kernel(tmap, out):
        t = cuda.threadIdx.x
        ready_barrier()
        if t == 0:
            mbarrier.arrive_expect_tx(BAR, u32(512))
            tma.load_2d(TILE, tmap, BAR, u32(0), u32(0))
        mbarrier.wait(BAR, u32(0))
        out[t] = memory.load_shared_f32(TILE + 4 * t)

    out = np.zeros(32)
    launch(kernel, MAP, out, policy=policy)
    assert out.tolist() == list(range(32))


def test_late_loads_land_only_when_nothing_else_can_run() -> None:
    trace = emu.Trace()

    def kernel(tmap):
        ready_barrier()
        if cuda.threadIdx.x == 0:
            mbarrier.arrive_expect_tx(BAR, u32(512))
            tma.load_2d(TILE, tmap, BAR, u32(0), u32(0))
        thread.syncwarp()
        mbarrier.wait(BAR, u32(0))

    for policy, order in (("eager", ["issue", "land", "block"]), ("late", ["issue", "block", "land"])):
        trace.notes.clear()
        launch(kernel, MAP, policy=policy, observe=trace)
        kinds = [n.kind for n in trace.notes if n.kind in ("issue", "land") or n.kind == "block" and n.op == "mbarrier.wait"]
        assert list(dict.fromkeys(kinds)) == [k for k in order if k != "block" or policy == "late"]


@pytest.mark.parametrize("policy", POLICIES)
def test_bytes_in_flight_may_not_be_read_or_written(policy: str) -> None:
    def kernel(is_write):
        def body(tmap):
            ready_barrier()
            if cuda.threadIdx.x == 0:
                mbarrier.arrive_expect_tx(BAR, u32(512))
                tma.load_2d(TILE, tmap, BAR, u32(0), u32(0))
                if is_write:
                    memory.store_shared_f32(TILE, np.float32(0))
                else:
                    memory.load_shared_f32(TILE)

        return body

    for is_write in (False, True):
        with pytest.raises(RaceError, match="races with the write by the asynchronous tma.load_2d .*not ordered after a wait for it"):
            launch(kernel(is_write), MAP, policy=policy)


def test_two_loads_into_one_place_race_even_on_one_barrier() -> None:
    def kernel(tmap):
        ready_barrier()
        if cuda.threadIdx.x == 0:
            mbarrier.arrive_expect_tx(BAR, u32(1024))
            tma.load_2d(TILE, tmap, BAR, u32(0), u32(0))
            tma.load_2d(TILE, tmap, BAR, u32(0), u32(0))

    with pytest.raises(RaceError, match="write of 512 bytes races with the write by the asynchronous tma.load_2d"):
        launch(kernel, MAP)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_load_that_nobody_waits_for_is_left_behind(policy: str) -> None:
    def kernel(tmap):
        ready_barrier()
        if cuda.threadIdx.x == 0:
            mbarrier.arrive_expect_tx(BAR, u32(512))
            tma.load_2d(TILE, tmap, BAR, u32(0), u32(0))

    with pytest.raises(AsyncError, match="block .0, 0, 0. exits, but the asynchronous tma.load_2d .* was never waited for"):
        launch(kernel, MAP, policy=policy)


def test_overwriting_what_was_read_needs_an_order() -> None:
    def kernel(is_ordered):
        def body(tmap):
            t = cuda.threadIdx.x
            ready_barrier()
            for phase in range(2):
                if t == 0:
                    mbarrier.arrive_expect_tx(BAR, u32(512))
                    tma.load_2d(TILE, tmap, BAR, u32(0), u32(0))
                mbarrier.wait(BAR, u32(phase))
                thread.syncwarp()
                memory.load_shared_f32(TILE + 4 * t)
                if is_ordered:
                    thread.syncwarp()

        return body

    launch(kernel(True), MAP)
    with pytest.raises(RaceError, match="races with the read by thread"):
        launch(kernel(False), MAP)


@pytest.mark.parametrize("fenced", [True, False])
def test_a_load_over_generic_writes_needs_a_proxy_fence(fenced: bool) -> None:
    def kernel(tmap):
        ready_barrier()
        memory.store_shared_f32(TILE + 4 * cuda.threadIdx.x, np.float32(0))
        if fenced:
            barrier.fence_proxy_async()
        thread.syncwarp()
        if cuda.threadIdx.x == 0:
            mbarrier.arrive_expect_tx(BAR, u32(512))
            tma.load_2d(TILE, tmap, BAR, u32(0), u32(0))
            mbarrier.wait(BAR, u32(0))

    if fenced:
        launch(kernel, MAP)
    else:
        with pytest.raises(ProxyError, match="the async proxy writes what .* without fence.proxy.async by the writer"):
            launch(kernel, MAP)


def test_a_fence_after_the_barrier_comes_too_late() -> None:
    def kernel(tmap):
        t = cuda.threadIdx.x
        memory.store_shared_f32(TILE + 4 * t, np.float32(1))
        cuda.syncthreads()
        barrier.fence_proxy_async()
        if t == 0:
            tma.store_2d(tmap, TILE, u32(0), u32(0))

    out = np.zeros((8, 4), np.float32)
    with pytest.raises(ProxyError, match="thread 1 of block|threads? 1 "):
        launch(kernel, TensorMap.of(out, (4, 8)))


# Stores


def store(leave_out: str = ""):
    def kernel(tmap):
        t = cuda.threadIdx.x
        for value in range(2):
            if leave_out != "wait":
                tma.wait_read(0)
            thread.syncwarp()
            memory.store_shared_f32(TILE + 4 * t, np.float32(value + t))
            barrier.fence_proxy_async()
            thread.syncwarp()
            if t == 0:
                tma.store_2d(tmap, TILE, u32(0), u32(value))
                if leave_out != "commit":
                    tma.commit()
        if leave_out != "last wait":
            tma.wait(0)

    return kernel


@pytest.mark.parametrize("policy", POLICIES)
def test_stores_read_their_source_before_it_is_written_again(policy: str) -> None:
    out = np.zeros((2, 32), np.float32)
    launch(store(), TensorMap.of(out, (32, 1)), policy=policy)
    np.testing.assert_array_equal(out, [np.arange(32), np.arange(32) + 1])


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("leave_out", "error"), [("wait", RaceError), ("commit", RaceError), ("last wait", AsyncError)])
def test_stores_must_be_committed_and_waited_for(leave_out: str, error: type, policy: str) -> None:
    with pytest.raises(error):
        launch(store(leave_out), TensorMap.of(np.zeros((2, 32), np.float32), (32, 1)), policy=policy)


def test_the_part_of_a_box_outside_the_tensor_need_not_be_written() -> None:
    def kernel(tmap):
        t = cuda.threadIdx.x
        if t < 12:
            memory.store_shared_f32(TILE + 4 * t, np.float32(t))
        barrier.fence_proxy_async()
        thread.syncwarp()
        if t == 0:
            tma.store_2d(tmap, TILE, u32(0), u32(0))
            tma.commit()
            tma.wait(0)

    out = np.zeros((3, 4), np.float32)
    launch(kernel, TensorMap.of(out, (4, 8)))
    assert out.ravel().tolist() == list(range(12))
    with pytest.raises(UninitializedError):
        launch(kernel, TensorMap.of(np.zeros((4, 4), np.float32), (4, 8)))


# cp.async


def test_cp_async_groups() -> None:
    """The queue by hand, below the operations that use it."""

    def kernel(is_awaited):
        def body(source):
            t = emu.thread()
            region = emu.Region(2048, 16)
            smem = emu.cta().smem
            data = np.arange(16, dtype=np.uint8)
            t.cp_async.issue(emu.AsyncOp("cp_async.copy_16", lambda: smem.poke(region, data), writes=[region]))
            t.cp_async.commit()
            if is_awaited:
                t.cp_async.wait(0)
            source[0] = smem.load(2052, 4)[1]
            t.cp_async.wait(0)

        return body

    out = np.zeros(1)
    for policy in POLICIES:
        launch(kernel(True), out, threads=1, policy=policy)
        assert out[0] == 5
        with pytest.raises(RaceError, match="asynchronous cp_async.copy_16"):
            launch(kernel(False), out, threads=1, policy=policy)
