"""`dgnumba.tune` with timers that make times up: what is measured, what is kept, what the GPU's timer does in which order. No GPU."""

import contextlib
import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from cases import H200

from dgnumba import policy, tuning, tuning_plot
from dgnumba.errors import LaunchError, ProblemError
from dgnumba.layouts.operands import complies
from dgnumba.measured import Table
from dgnumba.plan import choose, ranked
from dgnumba.problem import GemmProblem

GPU = dataclasses.replace(H200, index=0)


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """A directory of its own; the plans that would have been compiled."""
    plans = []
    monkeypatch.setenv("DGNUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(policy, "_most", [None])
    monkeypatch.setattr(tuning, "compile_all", lambda new, arch, jobs, progress: plans.extend(new))
    policy.forget()
    yield plans
    policy.forget()


def slower_by_the_model(problem, choices, device, rounds, step):
    """A GPU on which the last of the plans is the fastest."""
    for _ in range(rounds):
        step()
    return [100.0 - i for i in range(len(choices))]


def test_the_fastest_is_kept_and_taken_by_the_next_call(compiled):
    steps = []
    found = tuning.tune(
        [(300, 512, 1024), (16, 512, 1024)],
        candidates=5, rounds=3, device=GPU, timer=slower_by_the_model, progress=lambda *words: steps.append(words),
    )  # fmt: skip
    assert [(row.problem.m, row.gpu) for row in found] == [(300, GPU.name), (16, GPU.name)]
    for row in found:
        offered = [choice.plan for choice in tuning.plans_for(row.problem, GPU, 5)]
        assert row.plan == offered[-1] != choose(row.problem, GPU).plan
        assert row.us == 101.0 - len(offered)
        assert [plan for plan, _ in row.others] == offered[-2::-1]
        assert set(offered) <= set(compiled)
        assert policy.choose(row.problem, GPU).plan == row.plan
        assert policy.choose(row.problem, GPU).measured == row
    assert steps == [("measure", i, 6) for i in range(1, 7)]
    assert "median of 3" in found[0].method and "L2" in found[0].method


def test_the_cheapest_plans_are_measured_and_the_first_with_fewer_stages():
    problem = GemmProblem(4096, 4096, 7168)
    best = [plan for _, plan, _ in ranked(problem, GPU)]
    offered = [choice.plan for choice in tuning.plans_for(problem, GPU, 6)]
    assert offered[:6] == best[:6]
    assert {dataclasses.replace(plan, num_stages=plan.num_stages - 1) for plan in best[:3]} <= set(offered)
    assert len(set(offered)) == len(offered)
    assert set(best) <= {choice.plan for choice in tuning.plans_for(problem, GPU, None)}


def test_what_is_no_product_is_refused(compiled):
    for shape in ((1, 2), (0, 128, 128), (1.5, 128, 128)):
        with pytest.raises(ProblemError, match=r"shapes: expected \(m, n, k\) of positive integers, got"):
            tuning.tune([shape], device=GPU, timer=slower_by_the_model)
    with pytest.raises(ProblemError, match="rounds, candidates: expected 1 or more, got 0 and 24"):
        tuning.tune([(1, 128, 128)], rounds=0, device=GPU, timer=slower_by_the_model)
    assert compiled == []


def test_without_a_gpu_it_says_what_is_missing(compiled, monkeypatch):
    def missing():
        raise LaunchError("no NVIDIA driver on this machine; NumPy arrays need none")

    monkeypatch.setattr(tuning.driver, "api", missing)
    with pytest.raises(LaunchError, match="no NVIDIA driver on this machine"):
        tuning.tune([(1, 128, 128)])
    monkeypatch.setattr(tuning.driver, "api", lambda: None)
    monkeypatch.setattr(tuning.Device, "current", classmethod(lambda cls: H200))
    with pytest.raises(LaunchError, match="tune: expected a GPU, got none"):
        tuning.tune([(1, 128, 128)])


@pytest.mark.parametrize(
    "problem", [GemmProblem(5, 70, 200), GemmProblem(300, 256, 512, d_dtype="float32"), GemmProblem(16, 48, 128, "float8_e5m2")]
)
def test_the_operands_are_as_kernels_read_them(problem):
    """NumPy in the place of CuPy: addressable by TMA, of the right types, finite, positive scales."""
    laid = tuning._operands(problem, np)
    assert all(map(complies, (laid.a, laid.b, laid.sfa.T, laid.sfb, laid.d)))
    assert (laid.a.shape, laid.b.shape) == ((problem.m, problem.k), (problem.n, problem.k))
    assert laid.sfa.shape == (problem.m, -(-problem.k // 128)) and laid.sfb.shape == (-(-problem.n // 128), -(-problem.k // 128))
    assert laid.d.strides[0] % 16 == 0 and laid.d.shape[1] >= problem.n and laid.d.itemsize == problem.d_dtype.itemsize
    values = problem.a_dtype.decode(laid.a)
    assert np.isfinite(values).all() and np.abs(values).max() > problem.a_dtype.max / 4
    assert (laid.sfa > 0).all() and (laid.sfb > 0).all()


class Clock:
    """A GPU whose launches take the times that they are told to; events tell it. `said` is what was queued."""

    def __init__(self):
        self.now, self.said = 0.0, []

    def cupy(self):
        clock = self

        class Event:
            def record(self):
                self.at = clock.now
                clock.said.append("event")

            def synchronize(self):
                pass

        class Cold:
            def sum(self):
                clock.now += 1000
                clock.said.append("flush")

        cuda = SimpleNamespace(
            Event=Event, Device=lambda index: contextlib.nullcontext(), get_elapsed_time=lambda a, b: (b.at - a.at) * 1e-3
        )
        return SimpleNamespace(cuda=cuda, zeros=lambda size, dtype: Cold(), asarray=np.asarray, tile=np.tile, empty=np.empty)


def test_plans_take_turns_each_with_l2_emptied_before(monkeypatch):
    clock, taken = Clock(), {}
    problem = GemmProblem(16, 256, 512)
    choices = tuning.plans_for(problem, GPU, 3)

    def prepared(choice, laid, device):
        def launch(laid, stream):
            seen = taken.setdefault(choice.plan, [])
            # the first launch is slow, and one of the others too
            clock.now += (9999 if not seen else 500 if len(seen) == 2 else 10) + choices.index(choice)
            seen.append(clock.now)
            clock.said.append(choice.plan)

        return launch

    monkeypatch.setattr(tuning, "cupy_for", lambda what: clock.cupy())
    monkeypatch.setattr(tuning, "prepared", prepared)
    monkeypatch.setattr(tuning.driver, "on_device", lambda index: contextlib.nullcontext())
    monkeypatch.setattr(tuning.launching, "stream_of", lambda arrays, device: 7)
    steps = []
    us = tuning._by_events(problem, choices, GPU, 5, lambda: steps.append(1))
    assert us == pytest.approx([10 + i for i in range(len(choices))])
    assert len(steps) == 5 and all(len(times) == 6 for times in taken.values())
    rounds = [clock.said[i : i + 4 * len(choices)] for i in range(0, len(clock.said), 4 * len(choices))]
    for said in rounds:
        assert said[0::4] == ["flush"] * len(choices) and said[1::4] == said[3::4] == ["event"] * len(choices)
        assert sorted(plan.name for plan in said[2::4]) == sorted(choice.plan.name for choice in choices)
    assert len({tuple(said[2::4]) for said in rounds}) > 1, "in another order each round"


def test_the_plot_has_a_row_a_tile_and_a_column_a_number_of_stages(compiled, tmp_path):
    pytest.importorskip("matplotlib")
    found = tuning.tune([(300, 512, 1024), (16, 512, 1024)], candidates=8, device=GPU, timer=slower_by_the_model)
    for row in found:
        tiles, stages, us = tuning_plot.grid(row)
        assert us.shape == (len(tiles), len(stages)) and np.nanmin(us) == row.us
        assert {f"{p.block_m} x {p.block_n}" for p in (row.plan, *(p for p, _ in row.others))} == {
            t.removesuffix(" swapped") for t in tiles
        }
        assert stages == sorted({p.num_stages for p in (row.plan, *(p for p, _ in row.others))})
    figure = tuning_plot.heat_map(found, tmp_path / "tiles.png")
    assert (tmp_path / "tiles.png").read_bytes().startswith(b"\x89PNG")
    assert [axis.get_title() for axis in figure.axes if axis.get_title()][0].startswith("300x512x1024 bfloat16: ")
    with pytest.raises(ProblemError, match="found: expected what was measured, got nothing"):
        tuning_plot.heat_map([])


def test_a_table_of_what_was_found_chooses_it():
    found = tuning.Measured(GPU.name, GemmProblem(16, 512, 1024), tuning.plans_for(GemmProblem(16, 512, 1024), GPU, 2)[1].plan, 1.0)
    assert choose(found.problem, GPU, Table([found])).plan == found.plan
