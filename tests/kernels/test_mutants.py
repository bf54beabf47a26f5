"""Small faults planted in the kernels' source, one at a time: the emulator, its checks or the oracle notice every one that can be noticed.

What notices each is kept in bench/results/mutation.json, which `tests/mutation.py` writes. Here a spread of 70 is run again, each first by
what noticed it then; `-m full` runs them all.
"""

import ast
import json
import re
from collections import Counter

import mutation
import pytest
from cases import KERNEL_OF
from mutants import TRIALS
from mutation import EQUIVALENT_, LAB, RESULTS, UNNOTICED, Attempt, Mutant
from mutation_equivalent import EQUIVALENT

MUTANTS = {str(m): m for m in mutation.mutants()}
KEPT = json.loads(RESULTS.read_text(encoding="utf-8"))["mutants"]
KNOWN = [name for name in KEPT if name in MUTANTS and KEPT[name]["by"] != EQUIVALENT_]
SPREAD = mutation.spread(KNOWN, 70)


def first_attempt(name):
    row = KEPT.get(name, {})
    return Attempt(row["kernel"], row["trial"], row["policy"], row["is_checked"]) if "trial" in row else None


def check_noticed(name):
    said = mutation.verdict(MUTANTS[name], first_attempt(name))
    assert said.by not in (UNNOTICED, EQUIVALENT_), f"{name}: nobody notices"
    assert said.words


@pytest.mark.parametrize("name", SPREAD)
def test_a_mutant_is_noticed(name):
    check_noticed(name)


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in MUTANTS if mutation.reason_of(MUTANTS[name]) is None])
def test_every_mutant_is_noticed(name):
    check_noticed(name)


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in MUTANTS if mutation.reason_of(MUTANTS[name]) is not None])
def test_an_equivalent_mutant_is_not_noticed(name):
    """The list is not a hiding place: nothing sees it."""
    said = mutation.verdict(MUTANTS[name])
    assert said.by == EQUIVALENT_, f"{name}: {said.words}"


def test_the_kept_numbers_say_that_all_are_noticed():
    assert Counter(row["by"] for row in KEPT.values())[UNNOTICED] == 0
    assert len(SPREAD) == 70 and sum(KEPT[name]["by"] == LAB for name in SPREAD) >= 49  # of the others only the result is wrong


def test_every_reason_is_about_a_mutant():
    unused = [pattern for pattern in EQUIVALENT if not any(mutation.matches(name, pattern) for name in MUTANTS)]
    assert unused == []
    assert all(len(reason) > 30 for reason in EQUIVALENT.values())


def test_every_operator_of_the_table_is_used():
    table = re.findall(r"^([a-z][a-z ]+?)  +\S", mutation.operators_text(), re.MULTILINE)
    assert Counter(m.operator for m in MUTANTS.values()).keys() == set(table)


def test_all_synchronising_calls_are_mutated():
    """Counted by eye: no call of these families escapes, however it is written."""
    pattern = re.compile(
        r"^[^#\n]*?\b(?:barrier\.(?!_)\w+|mbarrier\.\w+|wgmma\.(?:fence|commit|wait(?:_s32)?)|cp_async\.(?:commit|wait|mbarrier_arrive_noinc)|tma\.(?:commit|wait\w*)"
        r"|cuda\.sync\w+|thread\.(?:sync\w+|griddepcontrol_wait))\("
    )
    for module in mutation.modules():
        tree, file = mutation.source_of(module)
        with open(file, encoding="utf-8") as stream:
            text = re.sub(r'""".*?"""', "", stream.read(), flags=re.DOTALL)
        written = sum(bool(pattern.match(line)) for line in text.splitlines())
        calls = [
            m
            for m in MUTANTS.values()
            if m.module == module and m.operator.startswith("drop ") and m.text == m.call and not m.call.endswith("_if")
        ]
        conditional = [m for m in MUTANTS.values() if m.module == module and m.operator == "drop arrive" and m.call.endswith("_if")]
        expects = sum(m.operator == "drop expect" and m.call == "mbarrier.arrive_expect_tx" for m in calls)
        assert written == len(calls) + len(conditional) - expects, module
        assert isinstance(tree, ast.Module)


def test_every_kernel_has_trials():
    assert set(TRIALS) >= set(KERNEL_OF)


def test_changing_nothing_changes_nothing():
    """The machinery itself: a module executed anew without a change gives the oracle's bits, so that what is noticed comes from the mutant."""
    room = mutation.room_of(None)
    for kernel in TRIALS:
        assert mutation.made(Attempt(kernel, 0, "late", False), mutation.kernel_in(room, kernel)) == ("", "")


def test_a_mutant_that_is_not_there_is_refused():
    with pytest.raises(AssertionError, match="is not in the source"):
        mutation.verdict(Mutant("pipeline", "next_slot", "phase", "nothing", "", 99))


def test_the_readme_has_the_kept_numbers():
    readme = (RESULTS.parent.parent.parent / "README.md").read_text(encoding="utf-8")
    assert mutation.table(KEPT) in readme
