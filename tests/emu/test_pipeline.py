"""A whole pipeline: the right kernel is clean and exact, and whatever step is taken from it is reported."""

import numpy as np
import pytest
from emu import pipeline_kernel as pipeline

from dgnumba.errors import AsyncError, BarrierError, DeadlockError, EmulationError, ProxyError, RaceError, UninitializedError

POLICIES = ["eager", "late"]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("cluster", [1, 2])
def test_right_kernel_is_exact_and_clean(cluster: int, policy: str) -> None:
    got, right = pipeline.run(cluster=cluster, policy=policy)
    np.testing.assert_array_equal(got, right)


ERRORS = {
    "init_full": BarrierError,  # wait on what was never initialised
    "init_empty": BarrierError,
    "fence_mbarrier_init": BarrierError,  # TMA completes on a barrier that it may not see
    "sync_start": BarrierError,  # other threads use a barrier that they may not see
    "wait_empty": (RaceError, BarrierError),  # a stage is overwritten that was not released; late, the producer overruns its barrier
    "expect": DeadlockError,  # the phase never gets its arrival
    "load_a": (DeadlockError, UninitializedError),  # the bytes never come
    "load_b": (DeadlockError, UninitializedError),
    "wait_full": (RaceError, UninitializedError),  # operands are read while they arrive
    "fence_wgmma": AsyncError,
    "commit_wgmma": (AsyncError, RaceError),  # the sums are read in flight, or the stage is refilled under the wgmma
    "wait_wgmma": (AsyncError, RaceError),
    "arrive_empty": DeadlockError,  # the ring never turns round
    "wait_store": RaceError,  # D's tile is overwritten under the store that reads it
    "sync_before_d": RaceError,
    "fence_proxy": ProxyError,
    "sync_after_d": (RaceError, UninitializedError),
    "commit_store": (RaceError, AsyncError),
    "wait_last_store": AsyncError,
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("step", pipeline.STEPS)
def test_each_step_is_needed(step: str, policy: str) -> None:
    with pytest.raises(ERRORS[step]):
        pipeline.run(step, policy=policy)


@pytest.mark.parametrize("step", pipeline.STEPS + pipeline.CLUSTER_STEPS)
def test_each_step_is_needed_in_a_cluster(step: str) -> None:
    with pytest.raises(EmulationError):
        pipeline.run(step, cluster=2)


def test_peer_that_exits_too_early_is_reported() -> None:
    with pytest.raises((RaceError, AsyncError), match="exit"):
        pipeline.run("sync_end", cluster=2)


def test_deadlock_names_threads_barriers_and_what_is_missing() -> None:
    with pytest.raises(DeadlockError) as caught:
        pipeline.run("arrive_empty")
    text = str(caught.value)
    assert "threads 0-127 of block (0, 0, 0) in mbarrier.wait(full[0] @" in text
    assert "thread 128 of block (0, 0, 0) in mbarrier.wait(empty[0] @" in text
    assert "4 of 4 arrivals missing" in text
    assert "pipeline_kernel.py:" in text


def test_missing_proxy_fence_names_writer_and_reader() -> None:
    with pytest.raises(ProxyError) as caught:
        pipeline.run("fence_proxy")
    text = str(caught.value)
    assert "shared memory at d + " in text or "shared memory at d @" in text
    assert "memory.store_shared_f32 at pipeline_kernel.py:" in text
    assert "without fence.proxy.async by the writer" in text
    assert "tma.store_2d at pipeline_kernel.py:" in text


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"more_bytes": 16}, DeadlockError),
        ({"more_bytes": -16}, DeadlockError),
        ({"fewer_arrivals": -1}, DeadlockError),
        ({"fewer_arrivals": 1, "tiles": 6}, DeadlockError),  # the barrier gains a phase in every third round
        ({"parity": 1}, (RaceError, UninitializedError, DeadlockError)),
        ({"stage_off": 1}, (RaceError, UninitializedError)),
    ],
    ids=str,
)
def test_each_number_is_needed(wrong: dict, error: type, policy: str) -> None:
    with pytest.raises(error):
        pipeline.run(policy=policy, **wrong)


def test_bytes_that_do_not_add_up_are_explained() -> None:
    with pytest.raises(DeadlockError, match="all arrivals there, 16 transaction bytes expected and not come"):
        pipeline.run(more_bytes=16)
    with pytest.raises(DeadlockError, match="all arrivals there, 16 transaction bytes more than were expected"):
        pipeline.run(more_bytes=-16)
