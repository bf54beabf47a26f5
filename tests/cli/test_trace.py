"""``dgnumba trace``: the timeline of a product as a table, a trace and a picture."""

import json

import pytest

from dgnumba.cli import gpu


def test_a_trace_is_written_and_its_table_printed(run, tmp_path):
    path = tmp_path / "trace.json"
    code, out, err = run("trace", 64, 32, 256, "-o", path)
    assert (code, err) == (0, "")
    assert "block 0 tensor core" in out
    assert f"written to {path}" in out
    kinds = {e["cat"] for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "X"}
    assert {"load", "mma", "wait", "promote", "store"} <= kinds


def test_a_picture_is_written(run, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "trace.png"
    code, _, _ = run("trace", 16, 32, 128, "--picture", path, "--late")
    assert code == 0
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("64", "32", "0"), "expected M, N, K and blocks of 1 or more, got 64, 32, 0 and 1"),
        (("64", "32", "128", "-o", "trace.png"), "output: expected a name that ends in .json or .json.gz, got trace.png"),
        (("64", "32", "128", "-o", "none/trace.json"), "output: expected a file in a folder that is there, got none/trace.json"),
        (("64", "32", "128", "--picture", "none/trace.png"), "picture: expected a file in a folder that is there"),
        (("64", "32", "128", "--picture", "trace.txt"), "picture: expected a name that ends in .png, .svg or .pdf, got trace.txt"),
        (("4096", "4096", "4096"), "would take the emulator minutes"),
        (("64", "32", "128", "--on", "cuda"), "on: expected emulator here, got cuda: none is here"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(run, monkeypatch, arguments, message):
    monkeypatch.setattr(gpu, "missing", lambda: "none is here")
    code, out, err = run("trace", *arguments)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.gpu
def test_a_gpus_own_clocks_give_the_trace(run, tmp_path):
    code, out, _ = run("trace", 256, 256, 1024, "--on", "cuda", "-o", tmp_path / "trace.json")
    assert code == 0
    assert "clocks of" in out
