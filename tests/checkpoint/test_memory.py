"""A checkpoint larger than the memory that its conversion may take; the tool that measures it is `tools/checkpoint_memory.py`."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "checkpoint_memory.py"


def run(monkeypatch, capsys, *arguments):
    if not TOOL.is_file() or not hasattr(os, "wait4"):
        pytest.skip("needs the source tree and a POSIX system")
    spec = importlib.util.spec_from_file_location("checkpoint_memory", TOOL)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    monkeypatch.setattr(sys, "argv", ["checkpoint_memory.py", *map(str, arguments)])
    code = tool.main()
    return code, capsys.readouterr().out


def test_a_small_one_goes_through_the_tool(monkeypatch, capsys, tmp_path):
    code, out = run(monkeypatch, capsys, "--gb", 0.02, "--to", "fp8-block", "bfloat16", "--folder", tmp_path)
    assert code == 0 and [line.split(":")[0] for line in out.splitlines()] == [
        "quantize to fp8-block",
        "convert to bfloat16",
    ]


def test_what_measures_may_be_large_itself(monkeypatch, capsys, tmp_path):
    """On Linux a child's peak begins with its parent's."""
    ballast = bytearray(b"1") * (700 << 20)
    code, out = run(monkeypatch, capsys, "--gb", 0.02, "--to", "fp8-block", "--folder", tmp_path, "--limit", 600)
    assert code == 0 and len(ballast) == 700 << 20, out


@pytest.mark.full
def test_4_gb_within_1_gb_of_memory(monkeypatch, capsys, tmp_path):
    code, out = run(monkeypatch, capsys, "--gb", 4, "--to", "fp8-block", "awq", "bfloat16", "--folder", tmp_path)
    assert code == 0, out
