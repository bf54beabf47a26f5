"""The price of a plan of `sm90_int4_gemm`: picks held to recorded measurements, and the model held to reason. No GPU."""

import dataclasses
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from dgnumba.device import KNOWN
from dgnumba.int4_plan import choose_int4
from dgnumba.int4_problem import Int4Problem
from dgnumba.kernels import sm90_int4_gemm_rules as rules
from dgnumba.kernels.int4_spec import Int4Plan
from dgnumba.kernels.sm90_int4_cost import CONSTANTS, Int4Constants, microseconds, work_of

_spec = importlib.util.spec_from_file_location("fit_int4", Path(__file__).parent.parent / "bench" / "fit_int4.py")
fit_int4 = importlib.util.module_from_spec(_spec)
sys.modules["fit_int4"] = fit_int4
_spec.loader.exec_module(fit_int4)

H200 = KNOWN["h200"]
BY_ROW = {"a_dtype": "float8_e4m3fn", "a_by_row": True}
SWEEP = fit_int4.read()
EVERY = [field.name for field in dataclasses.fields(Int4Constants)]


def ratios_of(found):
    return np.array([ratio for ratio, _, _ in found.values()])


def error_near_the_best(constants):
    error = np.log(microseconds(SWEEP.work, constants) / SWEEP.us)[SWEEP.over_best < 1 + fit_int4.NEAR]
    return np.sqrt((error**2).mean())


def test_the_measurements_are_what_the_model_says_it_was_fitted_to():
    problems = set(SWEEP.problems)
    assert len(SWEEP.us) == 1432 == len(set(zip(SWEEP.plans, SWEEP.problems)))
    assert {(p.n, p.k) for p in problems} == {(4096, 4096), (7168, 16384), (28672, 8192)}
    assert {p.m for p in problems} == {1, 8, 16, 32, 64, 128, 256} and len(problems) == 84
    assert all(rules.refusal(plan, problem) is None for plan, problem in zip(SWEEP.plans, SWEEP.problems))


def test_of_every_measured_problem_a_plan_near_the_best_is_chosen():
    """By `choose_int4` itself, which may pick only what was measured."""
    times = dict(zip(zip(SWEEP.problems, SWEEP.plans), SWEEP.us.tolist()))
    best = {problem: min(us for (p, _), us in times.items() if p == problem) for problem in SWEEP.problems}
    choices = {problem: choose_int4(problem, H200) for problem in best}
    found = np.array([times[problem, choice.plan] / best[problem] for problem, choice in choices.items() if choice.kernel is rules])
    assert len(found) >= 60, "all of 16 tokens and more: of up to 8 another kernel may be chosen, which was measured apart"
    assert found.mean() < 1.01 and found.max() < 1.075, "what bench/fit_int4.py reports is 1.007 and 1.073"
    regrets = fit_int4.regrets(SWEEP)
    of_these = [regrets[problem][0] for problem, choice in choices.items() if choice.kernel is rules]
    assert found.tolist() == of_these, "the fit judges by the planner's own prices"


def test_without_split_plans_near_the_best_are_chosen_too():
    """Which is what `batch_invariant` leaves."""
    unsplit = SWEEP.where(np.array([rules.is_batch_invariant(plan) for plan in SWEEP.plans]))
    found = ratios_of(fit_int4.regrets(unsplit))
    assert len(found) == 84
    assert found.mean() < 1.02 and found.max() < 1.1


def test_the_shipped_constants_tell_the_time():
    assert error_near_the_best(CONSTANTS) < 0.04, "what bench/fit_int4.py reports is 3.8 %"
    assert error_near_the_best(fit_int4.START) > 1.3 * error_near_the_best(CONSTANTS)


def test_the_fit_finds_the_shipped_constants():
    apart = np.abs(np.log(microseconds(SWEEP.work, fit_int4.fit(SWEEP)) / microseconds(SWEEP.work)))
    assert apart.max() < 0.01, "shipped to three digits"


def test_what_was_held_out_is_picked_well():
    found = ratios_of(fit_int4.held_out(SWEEP))
    assert len(found) == 84
    assert found.mean() < 1.015 and found.max() < 1.075, "what bench/fit_int4.py --held-out reports is 1.006 and 1.073"


@pytest.mark.parametrize("name", [name for name in EVERY if name not in ("norm", "pipes", "pipes_f16", "sharing", "fold", "fold_sharing")])
def test_every_constant_counts(name):
    """A slower clock, or more of what costs, is slower somewhere and faster nowhere."""
    is_rate = name in ("clock", "exchange", "store", "port", "memory_share")
    slower = dataclasses.replace(CONSTANTS, **{name: getattr(CONSTANTS, name) * (0.5 if is_rate else 2.0)})
    longer = microseconds(SWEEP.work, slower) / microseconds(SWEEP.work)
    assert longer.min() >= 1 and longer.max() > 1.01


def test_the_constants_are_what_an_h200_can_be():
    assert 1.2 <= CONSTANTS.clock <= 1.98, "GHz, from a full tensor pipe to the highest boost"
    assert CONSTANTS.memory_share < 1 and CONSTANTS.port <= 128
    assert CONSTANTS.wgmma_floor * 8 < CONSTANTS.latency + CONSTANTS.unpack_wide, "few tokens are not bound by the tensor cores"
    assert CONSTANTS.unpack_bytes < CONSTANTS.unpack_e4m3 < CONSTANTS.unpack_wide, "as their instructions count"


@pytest.mark.parametrize(
    "types", [{}, {"group": 32}, {"group": 16, "zeros": "float"}, {"a_dtype": "float8_e4m3fn"}, BY_ROW, {"a_dtype": "int8"}]
)
def test_more_work_costs_no_less(types):
    """Of one plan: more tokens, rows or columns."""
    problem = Int4Problem(16, 4096, 4096, **types)
    for plan in rules.candidates(problem, H200):
        price = rules.estimate(plan, problem, H200)
        assert price * 1e-6 > problem.bytes / H200.memory_bandwidth
        for more in ({"m": 32}, {"n": 8192}, {"k": 8192}):
            assert rules.estimate(plan, dataclasses.replace(problem, **more), H200) > price


@pytest.mark.parametrize("a_dtype", rules.A_DTYPES)
@pytest.mark.parametrize("group", [16, 32, 64, 128])
@pytest.mark.parametrize("zeros", ["none", "integer", "float"])
def test_one_kernel_takes_every_number_of_tokens(a_dtype, group, zeros):
    """Else rows would be added up by one kernel or another, by how many they are, even where `batch_invariant` is asked for."""
    for m in (1, 24, 32, 49, 65, 128, 129, 4096):
        problem = Int4Problem(m, 4096, 4096, a_dtype, "uint4", group=group, zeros=zeros)
        for batch_invariant in (False, True):
            choice = choose_int4(problem, H200, batch_invariant)
            assert choice.kernel.refusal(choice.plan, problem) is None
            assert choice.kernel is rules or m <= 8 and not batch_invariant


@pytest.mark.parametrize(
    "num_sms, tiles, turns", [(132, 448, 3.5), (131, 131, 1.5), (131, 130, 1.0), (131, 200, 2.0), (4, 5, 1.5), (4, 7, 2.0), (2, 1, 0.5)]
)
def test_a_tail_is_priced_by_the_pairs_there_are(num_sms, tiles, turns):
    """An odd multiprocessor has no pair; where more tiles are left than pairs, each is taken whole."""
    problem = Int4Problem(8, 64 * tiles, 1024)
    plan = Int4Plan.of(problem, rules.NAME, block_m=8, block_n=64, num_stages=3, tail=2)
    device = dataclasses.replace(H200, num_sms=num_sms)
    assert rules.count_tiles(plan, problem) == tiles
    assert work_of(plan, problem, device, tiles, 4).records == turns * problem.records
    plain = dataclasses.replace(plan, tail=1)
    assert work_of(plain, problem, device, tiles, 4).records == -(-tiles // num_sms) * problem.records
