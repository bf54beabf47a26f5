"""Plans that were measured: kept, found by GPU, problem and version, taken by calls; and layers held to a few plans."""

import dataclasses
import json
import warnings

import pytest
from cases import H200

from dgnumba import api, measured, plan, policy
from dgnumba.errors import ProblemError
from dgnumba.kernels import GemmPlan
from dgnumba.measured import Measured, Table
from dgnumba.problem import GemmProblem

GPU = dataclasses.replace(H200, index=0)
PROBLEM = GemmProblem(300, 512, 1024)
OTHER = GemmPlan("sm90_fp8_gemm_1d2d", 64, 32, 5)
ROW = Measured(H200.name, PROBLEM, OTHER, 12.5, ((GemmPlan("sm90_fp8_gemm_1d2d", 128, 64, 5), 13.0),), "by hand")


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    """A directory of its own; the file of measured plans in it."""
    monkeypatch.setenv("DGNUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("DGNUMBA_PLANS_PER_LAYER", raising=False)
    monkeypatch.setattr(policy, "_most", [])
    policy.forget()
    yield tmp_path / "tuned.json"
    policy.forget()


def test_a_row_comes_back_from_json():
    row = dataclasses.replace(ROW, problem=GemmProblem(1, 2, 3, "float8_e5m2", "float8_e4m3fn", "float32"))
    assert Measured.from_json(json.loads(json.dumps(row.to_json()))) == row


@pytest.mark.parametrize(
    "change",
    [
        {"m": -1},
        {"m": "x"},
        {"a_dtype": "float9"},
        {"plan": 3},
        {"plan": {}},
        {"plan": {name: value for name, value in ROW.to_json()["plan"].items() if name != "block_m"}},
        {"plan": ROW.to_json()["plan"] | {"speed": 9}},
        {"us": "fast"},
        {"others": [1]},
    ],
    ids=str,
)
def test_a_row_that_nobody_wrote_is_refused(change):
    with pytest.raises(ProblemError):
        Measured.from_json(ROW.to_json() | change)


def test_a_row_from_before_a_field_is_read(kept):
    """Else one old row would make the whole file unreadable, and `dgnumba tune` refuse to add to it."""
    old = ROW.to_json()
    for written in (old["plan"], *(other for other, _ in old["others"])):
        del written["pdl"], written["row_scales"]
    kept.write_text(json.dumps({"schema": 1, "rows": [old, old | {"dgnumba": "0.0.9"}]}))
    assert policy.choose(PROBLEM, GPU).measured == ROW
    policy.save([dataclasses.replace(ROW, gpu="another")])
    assert [row.version for row in policy.rows(kept)] == [ROW.version, "0.0.9", ROW.version]


def test_the_measured_plan_is_chosen_for_its_problem_on_its_gpu_alone():
    table = Table([ROW])
    choice = plan.choose(PROBLEM, H200, table)
    assert (choice.plan, choice.measured, choice.considered) == (OTHER, ROW, 2)
    with_c = plan.choose(dataclasses.replace(PROBLEM, with_c=True), H200, table)
    assert with_c.plan == dataclasses.replace(OTHER, with_c=True), "measured without C, taken with it"
    for problem, device in (
        (dataclasses.replace(PROBLEM, m=301), H200),
        (dataclasses.replace(PROBLEM, d_dtype="float32"), H200),
        (PROBLEM, dataclasses.replace(H200, name="NVIDIA H100")),
    ):
        assert plan.choose(problem, device, table) == plan.choose(problem, device)


def test_a_row_of_another_version_is_not_taken():
    assert len(Table([dataclasses.replace(ROW, version="0.0.0")])) == 0


def test_of_two_rows_for_one_problem_the_last_counts():
    assert Table([ROW, dataclasses.replace(ROW, us=3.0)]).get(PROBLEM, H200).us == 3.0


def test_a_measured_plan_that_cannot_be_used_is_told_of_and_planned_anew():
    impossible = dataclasses.replace(ROW, plan=dataclasses.replace(OTHER, num_stages=40))
    with pytest.warns(RuntimeWarning, match="is not taken, but planned anew: 64x32x128 s40 tma needs .* bytes of shared memory"):
        assert plan.choose(PROBLEM, H200, Table([impossible])).plan == plan.choose(PROBLEM, H200).plan


def test_what_is_saved_is_taken_by_the_next_call_on_a_gpu(kept):
    assert policy.choose(PROBLEM, GPU).measured is None
    assert policy.save([ROW]) == kept
    assert policy.choose(PROBLEM, GPU).plan == OTHER
    assert policy.choose(PROBLEM, H200).measured is None, "where no GPU is nothing was measured"
    policy.save([dataclasses.replace(ROW, gpu="another")])
    assert {row.gpu for row in policy.rows(kept)} == {H200.name, "another"}
    policy.save([dataclasses.replace(ROW, us=1.0)])
    assert [row.us for row in policy.rows(kept) if row.gpu == H200.name] == [1.0]
    assert list(kept.parent.glob(".tuned*")) == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 2, "rows": []}', '{"schema": 1, "rows": [{}]}', '{"schema": 1}'])
def test_a_file_that_is_damaged_is_told_of_once_and_costs_no_call(kept, text):
    kept.write_text(text)
    with pytest.warns(RuntimeWarning, match=r"measured plans are not taken: .*; remove the file, or measure again") as caught:
        for _ in range(2):
            assert policy.choose(PROBLEM, GPU).measured is None
    assert len(caught) == 1
    with pytest.raises(ProblemError):
        policy.save([ROW])
    assert kept.read_text() == text


def test_explain_says_that_a_plan_was_measured():
    text = api.Explanation._against(api.Explanation(None, (), GPU, plan.choose(PROBLEM, H200, Table([ROW])), None, ""))
    assert text == "fastest of 2 plans that were measured here: 12.5 us (by hand)"


def test_a_layer_is_held_to_as_many_plans_as_one_says(monkeypatch):
    problem = GemmProblem(1000, 576, 7168)
    free = policy.choose(problem, GPU).plan
    policy.set_plans_per_layer(2)
    held = {policy.choose(dataclasses.replace(problem, m=m), GPU).plan for m in (1, 30, 100, 1000, 5000)}
    assert len(held) <= 2
    policy.set_plans_per_layer(None)
    assert policy.choose(problem, GPU).plan == free
    for wrong in (0, -1, 2.5, "5", True):
        with pytest.raises(ProblemError, match="most: expected None or a number from 1"):
            policy.set_plans_per_layer(wrong)


def test_the_environment_says_so_too(monkeypatch):
    monkeypatch.setenv("DGNUMBA_PLANS_PER_LAYER", "3")
    assert policy.plans_per_layer() == 3
    monkeypatch.setattr(policy, "_most", [])
    monkeypatch.setenv("DGNUMBA_PLANS_PER_LAYER", "few")
    with pytest.raises(ProblemError, match="DGNUMBA_PLANS_PER_LAYER: expected a number from 1, got 'few'"):
        policy.plans_per_layer()


def test_the_emulator_plans_for_itself(kept):
    """What was measured was measured on a GPU; the emulator stands for one of few multiprocessors."""
    policy.save([Measured(H200.name, GemmProblem(16, 16, 128), GemmPlan("sm90_fp8_gemm_1d2d", 64, 192, 3), 1.0)])
    from api_cases import ones

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (api.fp8_gemm_nt(*ones(16, 16, 128), on="emulator") == 128).all()


def test_the_table_is_a_pure_argument():
    """Two tables of one content are two keys; nothing is read, and nothing is kept between."""
    assert plan.choose(PROBLEM, H200, Table([ROW])).plan == plan.choose(PROBLEM, H200, Table([ROW])).plan == OTHER
    assert plan.choose(PROBLEM, H200, Table()).measured is None
    assert measured.Table().rows() == ()
