"""wgmma: accumulators in flight, fences, groups, and operands that threads wrote."""

import ml_dtypes
import numpy as np
import pytest
from numba import cuda
from one_barrier import BAR, POLICIES, TILE, launch, ready_barrier

from dgnumba.errors import AsyncError, EmulationError, ProxyError, RaceError
from dgnumba.integers import u32
from dgnumba.layouts.descriptors import SmemDescriptor, TensorMap, low_word
from dgnumba.ptx import barrier, fragment, mbarrier, memory, tma, wgmma

mma = wgmma.mma_for("float8_e4m3fn", "float8_e4m3fn", a=SmemDescriptor(swizzle=128), b=SmemDescriptor(swizzle=128))
A8 = np.random.default_rng(0).integers(-3, 4, (64, 128)).astype(ml_dtypes.float8_e4m3fn)
B8 = np.random.default_rng(1).integers(-3, 4, (8, 128)).astype(ml_dtypes.float8_e4m3fn)
RIGHT = A8.astype(np.float32) @ B8.astype(np.float32).T


def product(act):
    """A kernel that loads A and B, has `act(desc_a, desc_b)` make registers of them, and stores what it returns."""

    def kernel(tmap_a, tmap_b, out):
        t = cuda.threadIdx.x
        ready_barrier()
        if t == 0:
            mbarrier.arrive_expect_tx(BAR, u32(64 * 128 + 8 * 128))
            tma.load_2d(TILE, tmap_a, BAR, u32(0), u32(0))
            tma.load_2d(TILE + 8192, tmap_b, BAR, u32(0), u32(0))
        mbarrier.wait(BAR, u32(0))
        registers = act(low_word(TILE), low_word(TILE + 8192))
        for i in range(4):
            out[t, i] = registers[i]

    return kernel


def run_product(act, policy="late"):
    out = np.zeros((128, 4), np.float32)
    maps = TensorMap.of(A8, (128, 64), swizzle=128), TensorMap.of(B8, (128, 8), swizzle=128)
    launch(product(act), *maps, out, threads=128, policy=policy)
    t = np.arange(128)[:, None]
    i = np.arange(4)[None, :]
    np.testing.assert_array_equal(out, RIGHT[t // 32 * 16 + t % 32 // 4 + i // 2 * 8, t % 4 * 2 + i % 2])


def four_steps(acc, a, b):
    for k in range(4):
        acc = mma(acc, a + 2 * k, b + 2 * k, int(k > 0))
    return acc


@pytest.mark.parametrize("policy", POLICIES)
def test_wgmma_with_every_step(policy: str) -> None:
    def act(a, b):
        acc = fragment.zero(4)
        wgmma.fence()
        acc = four_steps(acc, a, b)
        wgmma.commit()
        return wgmma.wait(acc, 0)

    run_product(act, policy)


@pytest.mark.parametrize("policy", POLICIES)
def test_wait_leaves_the_last_groups_in_flight(policy: str) -> None:
    def act(first_is_read):
        def body(a, b):
            early, late = fragment.zero(4), fragment.zero(4)
            wgmma.fence()
            early = four_steps(early, a, b)
            wgmma.commit()
            late = four_steps(late, a, b)
            wgmma.commit()
            early, late = wgmma.wait(early, 1), wgmma.wait(late, 1)
            return early if first_is_read and wgmma.wait(late, 0) is not None else late

        return body

    run_product(act(True), policy)
    with pytest.raises(AsyncError, match="accumulators of wgmma.mma used while in flight: wgmma.wait must come first"):
        run_product(act(False), policy)


def _touch_without_fence(a, b):
    acc = fragment.zero(4)
    wgmma.fence()
    acc[0]
    return wgmma.wait(four_steps(acc, a, b), 0)


def _no_commit(a, b):
    acc = fragment.zero(4)
    wgmma.fence()
    return wgmma.wait(four_steps(acc, a, b), 0)


def _no_wait(a, b):
    acc = fragment.zero(4)
    wgmma.fence()
    acc = four_steps(acc, a, b)
    wgmma.commit()
    return acc


def _wait_result_dropped(a, b):
    acc = fragment.zero(4)
    wgmma.fence()
    acc = four_steps(acc, a, b)
    wgmma.commit()
    wgmma.wait(acc, 0)
    return acc


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("act", "message"),
    [
        (_touch_without_fence, "accumulators used by a wgmma after an access of them: wgmma.fence must come between"),
        (_no_commit, "wgmma.wait must come first"),
        (_no_wait, "wgmma.wait must come first"),
        (_wait_result_dropped, "use what wgmma.wait returned, not what was given to it"),
    ],
)
def test_accumulators_at_the_wrong_time(act, message: str, policy: str) -> None:
    with pytest.raises(AsyncError, match=message):
        run_product(act, policy)


@pytest.mark.parametrize(
    ("commits", "message"), [(False, "4 x wgmma.mma issued and never committed"), (True, "1 groups of wgmma committed and never")]
)
def test_a_warpgroup_may_not_leave_its_wgmmas_behind(commits: bool, message: str) -> None:
    def act(a, b):
        acc = fragment.zero(4)
        wgmma.fence()
        four_steps(acc, a, b)
        if commits:
            wgmma.commit()
        return [0.0] * 4

    with pytest.raises(AsyncError, match=message):
        run_product(act)


def test_operands_written_by_threads_need_fence_and_barrier() -> None:
    def kernel(fenced, synced):
        def body():
            t = u32(cuda.threadIdx.x)
            for i in range(16):
                memory.store_shared_u32(TILE + (t * 16 + i) * 4, u32(0x38383838))
            for i in range(2):
                memory.store_shared_u32(TILE + 8192 + (t * 2 + i) * 4, u32(0x38383838))
            if fenced:
                barrier.fence_proxy_async()
            if synced:
                cuda.syncthreads()
            acc = fragment.zero(4)
            wgmma.fence()
            acc = four_steps(acc, low_word(TILE), low_word(TILE + 8192))
            wgmma.commit()
            acc = wgmma.wait(acc, 0)
            assert list(acc) == [128.0] * 4

        return body

    launch(kernel(True, True), threads=128)
    with pytest.raises(ProxyError, match="without fence.proxy.async by the writer"):
        launch(kernel(False, True), threads=128)
    # the four warps of a warpgroup are not ordered by the wgmma itself
    with pytest.raises(RaceError, match="no barrier orders the two"):
        launch(kernel(True, False), threads=128)


def test_a_wait_by_one_warp_does_not_cover_the_others() -> None:
    def kernel(all_wait):
        def body(tmap_a, tmap_b):
            ready_barrier()
            if cuda.threadIdx.x == 0:
                mbarrier.arrive_expect_tx(BAR, u32(64 * 128 + 8 * 128))
                tma.load_2d(TILE, tmap_a, BAR, u32(0), u32(0))
                tma.load_2d(TILE + 8192, tmap_b, BAR, u32(0), u32(0))
            if all_wait or cuda.threadIdx.x < 32:
                mbarrier.wait(BAR, u32(0))
            acc = fragment.zero(4)
            wgmma.fence()
            acc = four_steps(acc, low_word(TILE), low_word(TILE + 8192))
            wgmma.commit()
            wgmma.wait(acc, 0)

        return body

    maps = TensorMap.of(A8, (128, 64), swizzle=128), TensorMap.of(B8, (128, 8), swizzle=128)
    launch(kernel(True), *maps, threads=128)
    with pytest.raises(RaceError, match="races with the write by the asynchronous tma.load_2d"):
        launch(kernel(False), *maps, threads=128)


def test_descriptor_must_be_uniform_and_aligned() -> None:
    def varying(a, b):
        acc = fragment.zero(4)
        wgmma.fence()
        return mma(acc, a + cuda.threadIdx.x, b, 0)

    def misaligned(a, b):
        acc = fragment.zero(4)
        wgmma.fence()
        return mma(acc, a + 8, b, 0)

    with pytest.raises(EmulationError, match="wgmma.mma: desc_a must be the same in all lanes"):
        run_product(varying)
    with pytest.raises(EmulationError, match="a tile with swizzle 128 begins at a multiple of 1024, got 0x880"):
        run_product(misaligned)


def test_rows_without_data_are_poison() -> None:
    narrow = wgmma.mma_for("float8_e4m3fn", "float8_e4m3fn", a=SmemDescriptor(swizzle=128), b=SmemDescriptor(swizzle=128), rows=16)

    def act(a, b):
        acc = fragment.zero(4)
        wgmma.fence()
        acc = narrow(acc, a, b, 0)
        wgmma.commit()
        acc = wgmma.wait(acc, 0)
        assert np.isnan(acc.values).all() == (cuda.threadIdx.x >= 32)
        return [0.0] * 4

    with pytest.raises(AssertionError, match="Arrays are not equal"):
        run_product(act)
