"""st.async: a store into a CTA of the cluster that counts its bytes there; each way to get it wrong is named, under both policies."""

import re

import numpy as np
import pytest
from numba import cuda

from dgnumba import emu
from dgnumba.errors import AsyncError, BarrierError, DeadlockError, EmulationError, RaceError
from dgnumba.integers import u32
from dgnumba.ptx import barrier, mbarrier, memory, st_async, thread

BAR, PLACE = u32(1024), u32(1040)
LANES = 32


def exchange(got, *, init=1, fences=True, arrives=True, waits_for_init=True, expects=LANES * 4, waits=True, bar_of=1, again=0):
    """Each lane of a CTA sends `100 * rank + lane` to the same lane of the other, and what came there goes to `got[rank, lane]`.

    bar_of  0: names the sender's own barrier in the place of the receiver's
    again   lanes that send twice
    """

    def kernel():
        lane, rank = u32(cuda.threadIdx.x), thread.cluster_ctarank()
        if lane == 0 and init:
            mbarrier.init(BAR, init)
            if fences:
                barrier.fence_mbarrier_init()
            mbarrier.arrive_expect_tx(BAR, expects)
        thread.syncwarp()
        if arrives:
            barrier.cluster_arrive()
            if waits_for_init:
                barrier.cluster_wait()
        peer = u32(1) - rank
        for _ in range(1 + int(lane < again)):
            st_async.store_f32(thread.mapa(PLACE + lane * 4, peer), np.float32(100 * int(rank) + int(lane)),
                               thread.mapa(BAR, peer if bar_of else rank))  # fmt: skip
        if waits:
            mbarrier.wait(BAR, u32(0))
        got[int(rank), int(lane)] = memory.load_shared_f32(PLACE + lane * 4)
        if arrives and not waits_for_init:
            barrier.cluster_wait()

    return kernel


def run(kernel, policy, grid=2, **more):
    emu.run(kernel, grid, LANES, (), smem=256, cluster=2, policy=policy, **more)


def test_it_arrives_in_the_peers_memory_for_who_waits_there(policy):
    got = np.zeros((2, LANES), np.float32)
    run(exchange(got), policy)
    assert (got == [100 + np.arange(LANES), np.arange(LANES)]).all()


@pytest.mark.parametrize(
    "wrong, error, words",
    [
        ({"waits": False}, EmulationError, "nothing wrote this one|races with the write by the asynchronous st.async"),
        ({"fences": False}, BarrierError, "has not executed fence.mbarrier_init"),
        ({"waits_for_init": False}, BarrierError, "no barrier orders its init|no mbarrier.init has been executed there"),
        ({"arrives": False}, BarrierError, "no barrier orders its init|no mbarrier.init has been executed there"),
        ({"init": 0}, BarrierError, "no mbarrier.init has been executed there"),
        ({"init": 2}, DeadlockError, "1 of 2 arrivals missing"),
        ({"bar_of": 0}, BarrierError, "expected a barrier of the CTA that is stored to, [01] of the cluster, got one of CTA [01]"),
        ({"expects": LANES * 4 + 4}, DeadlockError, "4 transaction bytes expected and not come"),
        ({"expects": LANES * 4 - 4}, RaceError, "st.async .*is not ordered after a wait for it"),  # one comes behind the wait
        ({"again": 1, "expects": LANES * 4 + 4}, RaceError, "st.async"),  # two on their way to one place
    ],
    ids=lambda value: "-".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else None,
)
def test_what_is_wrong_is_named(wrong, error, words, policy):
    with pytest.raises(error) as caught:
        run(exchange(np.zeros((2, LANES), np.float32), **wrong), policy)
    assert re.search(words, caught.value.problem)


def one_way(act, is_awaited=True, senders=1):
    """CTA 1 makes a barrier for `senders` floats, and awaits them; threads of CTA 0 `act`, and are gone."""

    def kernel():
        lane, rank = u32(cuda.threadIdx.x), thread.cluster_ctarank()
        if lane == 0 and rank == 1:
            mbarrier.init(BAR, 1)
            barrier.fence_mbarrier_init()
            mbarrier.arrive_expect_tx(BAR, senders * 4)
        barrier.cluster_arrive()
        barrier.cluster_wait()
        if rank == 0 and lane < senders:
            act(lane)
        if rank == 1 and is_awaited:
            mbarrier.wait(BAR, u32(0))
            assert memory.load_shared_f32(PLACE) == np.float32(-0.1)

    return kernel


def send(lane, value=-0.1):
    st_async.store_f32(thread.mapa(PLACE + lane * 4, u32(1)), np.float32(value), thread.mapa(BAR, u32(1)))


def test_a_sender_may_have_exited_before_its_number_is_read(policy):
    gone = []

    def act(lane):
        send(lane)
        gone.append(int(lane))

    run(one_way(act, senders=LANES), policy)
    assert sorted(gone) == list(range(LANES))


def test_a_receiver_may_not_exit_before_it_has_waited(policy):
    with pytest.raises((AsyncError, RaceError), match="exit"):
        run(one_way(send, is_awaited=False), policy)


def test_a_peer_that_has_exited_is_sent_nothing(policy):
    def act(lane):
        for _ in range(3):  # the other's threads run to their ends meanwhile
            thread.syncwarp()
        send(lane)

    with pytest.raises(EmulationError, match="the peer, CTA 1 of the cluster, has exited"):
        run(one_way(act, is_awaited=False, senders=LANES), policy)


@pytest.mark.parametrize(
    "place, bar, words",
    [
        (lambda: thread.mapa(PLACE + 2, u32(1)), lambda: thread.mapa(BAR, u32(1)), "expected a multiple of 4 for 4 bytes"),
        (lambda: thread.mapa(u32(4096), u32(1)), lambda: thread.mapa(BAR, u32(1)), "are not in this CTA's shared memory"),
        (lambda: thread.mapa(BAR, u32(1)), lambda: thread.mapa(BAR, u32(1)), "mbarrier"),
        (lambda: PLACE, lambda: thread.mapa(BAR, u32(1)), "no CTA of this cluster of 2 is there"),
        (lambda: thread.mapa(PLACE, u32(1)), lambda: BAR, "no CTA of this cluster of 2 is there"),
        (lambda: thread.mapa(PLACE, u32(1)), lambda: thread.mapa(BAR + 4, u32(1)), "expected an address that is a multiple of 8"),
    ],
    ids=[
        "between two words",
        "behind the memory",
        "on the barrier",
        "no cluster address",
        "no barrier of the cluster",
        "beside the barrier",
    ],
)
def test_addresses_that_are_none(place, bar, words, policy):
    with pytest.raises(EmulationError) as caught:
        run(one_way(lambda lane: st_async.store_f32(place(), np.float32(1), bar())), policy)
    assert words in caught.value.problem


def test_it_may_store_into_its_own_cta(policy):
    def kernel():
        if cuda.threadIdx.x == 0:
            mbarrier.init(BAR, 1)
            barrier.fence_mbarrier_init()
            mbarrier.arrive_expect_tx(BAR, 4)
            here = thread.cluster_ctarank()
            st_async.store_f32(thread.mapa(PLACE, here), np.float32(3), thread.mapa(BAR, here))
            mbarrier.wait(BAR, u32(0))
            assert memory.load_shared_f32(PLACE) == 3

    run(kernel, policy)
