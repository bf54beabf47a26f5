"""What results say of their making holds on any machine."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
RESULTS = sorted((ROOT / "bench" / "results").glob("*.json"))


@pytest.mark.parametrize("script", ["bench/bench_gemm.py", "bench_gemm.py", "/somewhere/bench/bench_gemm.py"])
def test_of_absolute_paths_the_last_part_alone_is_recorded(monkeypatch, script):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    from recorded import command

    monkeypatch.setattr(sys, "argv", [script, "--family", "decode", "--out", "/somewhere/out/h.json", "--also", "bench/plans.json"])
    assert command() == "python bench/bench_gemm.py --family decode --out h.json --also bench/plans.json"


def commands(x):
    if isinstance(x, dict):
        yield from (value for key, value in x.items() if key == "command")
    for each in x.values() if isinstance(x, dict) else x if isinstance(x, list) else ():
        yield from commands(each)


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.name)
def test_no_recorded_command_names_a_machines_folder(path):
    assert not {command for command in commands(json.loads(path.read_text())) if any(part.startswith("/") for part in command.split())}


def test_the_results_record_commands():
    assert len({command for path in RESULTS for command in commands(json.loads(path.read_text()))}) > 10
