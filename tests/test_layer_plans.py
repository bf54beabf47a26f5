"""All plans of a layer: none is missing, M is in none, and a few of them take every number of tokens. No GPU."""

import dataclasses
import random
from itertools import combinations

import numpy as np
import pytest
from cases import FORWARD, H200

from dgnumba import layer_plans
from dgnumba.errors import ProblemError, UnsupportedError
from dgnumba.layer_plans import TOKENS, chosen, family, members
from dgnumba.plan import choose
from dgnumba.problem import GemmProblem

LAYERS = {f"{n}x{k}": GemmProblem(TOKENS, n, k) for n, k in FORWARD}

MOST_OF_A_LAYER, MOST_OF_ALL = 22, 57
"""Plans that are the cheapest by the model for some M from 1 to 16384: of one of the seven layers, and of the seven together."""


def check_none_is_missing(layer, ms):
    found = chosen(layer, H200)
    assert {m: choose(dataclasses.replace(layer, m=m), H200).plan.name for m in ms} == {
        m: next(p.name for p in found if p == choose(dataclasses.replace(layer, m=m), H200).plan) for m in ms
    }
    assert len(found) <= MOST_OF_A_LAYER
    for plan, least in found.items():
        assert choose(dataclasses.replace(layer, m=least), H200).plan == plan


@pytest.mark.parametrize("layer", [LAYERS["2112x7168"], LAYERS["4096x7168"], LAYERS["32768x512"]], ids=lambda layer: f"{layer.n}x{layer.k}")
def test_no_plan_of_a_layer_is_missing(layer, rng):
    """Each of a few numbers of tokens, all small ones among them, gets one of the plans; and each plan is chosen for the M that is named."""
    check_none_is_missing(layer, [*range(1, 66), *rng.integers(66, TOKENS + 1, 40).tolist()])


@pytest.mark.full
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_no_plan_of_a_layer_is_missing_at_any_m(layer):
    check_none_is_missing(layer, random.Random(layer.n).sample(range(1, TOKENS + 1), 3000))


@pytest.mark.full
def test_how_many_kernels_layers_need():
    found = {name: chosen(layer, H200) for name, layer in LAYERS.items()}
    assert len({plan for plans in found.values() for plan in plans}) <= MOST_OF_ALL


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_five_kernels_take_every_number_of_tokens(layer, rng):
    """Held to five: some of them takes each M from 1 to 16384, and what is chosen is one of the five, the cheapest that takes it."""
    five = family(layer, H200, 5)
    assert len(five) <= 5
    for m in range(1, TOKENS + 1):
        assert any(largest is None or m <= largest for _, largest in five)
    for m in [1, 8, 9, 64, 65, *rng.integers(66, TOKENS + 1, 5).tolist()]:
        problem = dataclasses.replace(layer, m=m)
        choice = choose(problem, H200, None, 5)
        assert choice.plan in {plan for plan, _ in five}
        assert choice.estimate.total == min(e.total for _, e in ((choice.plan, choice.estimate), *choice.runners_up))
        assert choice.kernel.refusal(choice.plan, problem) is None and choice.kernel.supports(problem, H200) is None


LOSSES = {
    "2112x7168": 0.065,
    "576x7168": 0.12,
    "24576x1536": 0.004,
    "32768x512": 0.006,
    "7168x16384": 0.021,
    "4096x7168": 0.053,
    "7168x2048": 0.023,
}
"""What five cost, by the model, in the mean over numbers of tokens spread evenly over octaves. Of 576x7168 the best
plans for few tokens, splits over clusters, are for few numbers of tokens each; of 7168x2048
the plan for the fewest tokens is for 4 of them at most."""


@pytest.mark.parametrize("name", LAYERS)
def test_what_five_kernels_cost(name):
    layer, losses = LAYERS[name], []
    for exponent in range(0, 57):
        problem = dataclasses.replace(layer, m=round(2 ** (exponent / 4)))
        losses.append(choose(problem, H200, None, 5).estimate.total / choose(problem, H200).estimate.total - 1)
    assert sum(losses) / len(losses) <= LOSSES[name]


def test_begun_with_one_plan_only_exchanges_may_end_too_early():
    """Alone the first is the best, and no exchange of one of the pair that it leads to is of use; the last two are far better."""
    loss = np.array([[3.0, 3.0, 3.0, 3.0], [1.0, 1.0, 9.0, 9.0], [9.0, 9.0, 1.0, 1.0], [9.0, 9.0, 9.0, 1.0], [3.0, 3.0, 3.0, 3.0]])
    assert layer_plans._undominated(loss).tolist() == [0, 1, 2]
    assert layer_plans._exchanged(loss, np.ones(4), 2) == [1, 2]


@pytest.mark.parametrize("name", ["576x7168", "4096x7168"])
def test_no_three_plans_are_better_than_those_picked(name):
    """Against every choice of three of those that a layer is offered, where none is worse than another everywhere."""
    offers = layer_plans._offers(LAYERS[name], H200, layer_plans._FEW)
    loss = (offers.us / offers.us.min(0)) ** layer_plans._EMPHASIS
    rows, weights = loss[layer_plans._undominated(loss)], np.ones(loss.shape[1])
    least = min(float(rows[list(three)].min(0) @ weights) for three in combinations(range(len(rows)), 3))
    assert float(loss[layer_plans._exchanged(loss, weights, 3)].min(0) @ weights) == pytest.approx(least, rel=1e-9)


def test_more_kernels_cost_less():
    """In the mean, which is what is picked for. At 1000 tokens twelve cost 9 % more than no limit, and eight nothing."""
    layer = LAYERS["576x7168"]
    problems = [dataclasses.replace(layer, m=round(2 ** (exponent / 4))) for exponent in range(57)]
    best = [choose(p, H200).estimate.total for p in problems]

    def mean(most):
        return sum(choose(p, H200, None, most).estimate.total / us for p, us in zip(problems, best)) / len(problems)

    assert mean(12) <= mean(8) <= mean(5)
    assert mean(12) <= 1.03


def test_a_family_that_cannot_take_all_is_refused():
    assert len(family(LAYERS["7168x2048"], H200, 1)) == 1
    offers = layer_plans._offers(LAYERS["7168x2048"], H200, layer_plans._FEW)
    small = offers.offered & (offers.grid <= 64)
    there = np.flatnonzero(small.any(1))
    only_small = offers._replace(plans=tuple(offers.plans[i] for i in there), offered=small[there], us=offers.us[there])
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(ProblemError, match="most: expected as many plans as take 1 to 16384 tokens, got 3"),
    ):
        patch.setattr(layer_plans, "_offers", lambda *arguments: only_small)
        family.__wrapped__(LAYERS["7168x2048"], H200, 3)


def test_a_layer_that_no_kernel_takes_is_refused():
    with pytest.raises(UnsupportedError, match="no kernel takes .* on NVIDIA T4"):
        chosen(LAYERS["7168x2048"], dataclasses.replace(H200, name="NVIDIA T4", cc=(7, 5)))


def test_members_are_those_that_take_the_problem():
    found = dict.fromkeys(plan for _, plans in members(GemmProblem(16, 7168, 2048), H200, 5) for plan in plans)
    assert found and all(p.block_m >= 16 for p in found)
    assert not any("swap" in p.kernel for _, plans in members(GemmProblem(65, 7168, 2048), H200, 5) for p in plans)
