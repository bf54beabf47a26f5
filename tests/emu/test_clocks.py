"""Vector clocks, against the plain definition: one access happens before another if a chain of synchronisations leads to it."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dgnumba.emu.clocks import Clocks, Event, Knowledge

THREADS, BARRIERS, AGENTS = 5, 2, 3

ACTS = st.one_of(
    st.tuples(st.just("meet"), st.sets(st.integers(0, THREADS - 1), min_size=1)),
    st.tuples(st.just("publish"), st.integers(0, THREADS - 1), st.integers(0, BARRIERS - 1)),
    st.tuples(st.just("acquire"), st.integers(0, THREADS - 1), st.integers(0, BARRIERS - 1)),
    st.tuples(st.just("finish"), st.integers(0, AGENTS - 1), st.integers(0, BARRIERS - 1)),
    st.tuples(st.just("learn"), st.integers(0, AGENTS - 1), st.sets(st.integers(0, THREADS - 1), min_size=1)),
    st.tuples(st.just("fence"), st.integers(0, THREADS - 1)),
)


@settings(max_examples=150)
@given(st.lists(ACTS, max_size=40))
def test_knows_exactly_what_synchronisation_has_carried(acts: list) -> None:  # noqa: C901
    """The model holds, for each thread and barrier, the plain set of accesses that happen before it; an access is made before every act."""
    clocks = Clocks(THREADS)
    barriers = [Knowledge(clocks) for _ in range(BARRIERS)]
    agents = [clocks.new_agent() for _ in range(AGENTS)]
    agent_epochs = [0] * AGENTS
    seen: list[set] = [set() for _ in range(THREADS)]  # accesses (agent, epoch, serial) that happen before the thread's next
    held: list[set] = [set() for _ in range(BARRIERS)]
    done: list[set] = [set() for _ in range(AGENTS)]
    made: list[tuple[int, int, int]] = []

    def access(agent: int, epoch: int) -> tuple[int, int, int]:
        made.append((agent, epoch, len(made)))
        return made[-1]

    for act in acts:
        for t in range(THREADS):
            seen[t].add(access(t, clocks.now[t]))
        for i, agent in enumerate(agents):
            agent_epochs[i] += 1
            done[i].add(access(agent, agent_epochs[i]))
        if act[0] == "meet":
            clocks.meet(sorted(act[1]))
            union = set().union(*(seen[t] for t in act[1]))
            for t in act[1]:
                seen[t] = set(union)
        elif act[0] == "publish":
            barriers[act[2]].add(act[1])
            held[act[2]] |= seen[act[1]]
        elif act[0] == "acquire":
            clocks.acquire(act[1], barriers[act[2]].snapshot())
            seen[act[1]] |= held[act[2]]
        elif act[0] == "finish":
            barriers[act[2]].add_agent(agents[act[1]], agent_epochs[act[1]])
            held[act[2]] |= done[act[1]]
        elif act[0] == "learn":
            clocks.learn(act[2], agents[act[1]], agent_epochs[act[1]])
            for t in act[2]:
                seen[t] |= done[act[1]]
        else:
            clocks.fence_proxy_async(act[1])
    for t in range(THREADS):
        expected = [item in seen[t] for item in made]
        actual = [clocks.knows(t, agent, epoch) for agent, epoch, _ in made]
        assert expected == actual, f"thread {t}"


def test_a_fence_covers_what_was_written_before_it_for_those_ordered_after_it() -> None:
    clocks = Clocks(2)
    written_before = clocks.now[0]
    clocks.fence_proxy_async(0)
    written_after = clocks.now[0]
    clocks.meet([0, 1])
    row = clocks.full_row([1])
    assert row[0 + 2] >= written_before
    assert row[0 + 2] < written_after
    assert row[0] >= written_after


def test_rows_grow_with_the_agents() -> None:
    clocks = Clocks(3)
    first = clocks.new_agent()
    clocks.learn([0], first, 7)
    many = [clocks.new_agent() for _ in range(200)]
    clocks.learn([1], many[-1], 9)
    clocks.meet([0, 1, 2])
    assert clocks.knows(2, first, 7) and clocks.knows(2, many[-1], 9)
    assert not clocks.knows(2, first, 8) and not clocks.knows(2, many[-1], 10)


def test_threads_that_met_share_one_row() -> None:
    clocks = Clocks(64)
    clocks.meet(list(range(64)))
    assert len({id(row) for row in clocks.rows}) == 1
    barrier = Knowledge(clocks)
    barrier.add(5)
    done = barrier.snapshot()
    for t in range(64):
        clocks.acquire(t, done)
    assert len({id(row) for row in clocks.rows}) == 1


def test_events_are_numbered_once() -> None:
    clocks = Clocks(1)
    event = Event(agent=0, epoch=1, site=3, thread=0)
    assert clocks.event(event) == clocks.event(Event(0, 1, 3, 0)) == 2
    assert clocks.event(Event(0, 2, 3, 0)) == 3
    assert clocks.event_of(2) == event
    assert np.all(clocks.rows[0] == 0)
