"""``demo``, ``info``, ``bench``, and what all commands share."""

import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import dgnumba
from dgnumba.cli import COMMANDS, bench, gpu, info
from dgnumba.errors import CompileError, PlanError


def test_the_demo_is_right_and_says_what_it_did(run, no_gpu):
    code, out, err = run("demo")
    assert (code, err) == (0, "")
    assert out.count("right: all") == 2
    assert "all 2198016 elements" in out  # 1431 x 1536, the whole layer
    assert "all 16384 elements" in out  # 128 x 128, the emulated tile
    assert "the same bits both times" in out
    assert "All of it is right." in out


def test_the_demo_says_when_the_product_is_wrong(run, no_gpu, monkeypatch):
    right = dgnumba.fp8_gemm_nt

    def wrong(a, b, d=None, **options):
        d = right(a, b, d, **options)
        if options["on"] == "host":
            d[0, 0] = np.nan
        return d

    monkeypatch.setattr(dgnumba, "fp8_gemm_nt", wrong)
    code, out, _ = run("demo")
    assert code == 1
    assert "SOMETHING IS WRONG" in out


def test_info_says_what_is_missing_and_what_cures_it(run, monkeypatch):
    monkeypatch.setattr(gpu, "missing", lambda: f"cupy is not installed; {gpu.CURE}")
    monkeypatch.setattr(info, "_library", lambda name: None)
    code, out, err = run("info")
    assert (code, err) == (0, "")
    assert f"run on a GPU       no: cupy is not installed; {gpu.CURE}" in out
    assert f"compile for sm_90a no; {gpu.CURE}" in out


def test_info_as_json_holds_the_same(run):
    code, out, _ = run("info", "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["dgnumba"]["version"] == dgnumba.__version__
    assert facts["packages"]["numpy"] == np.__version__


def test_info_says_that_the_cache_cannot_be_used(run, monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("DGNUMBA_CACHE_DIR", str(blocked / "below"))
    code, out, _ = run("info")
    assert code == 0
    assert "not usable" in out


def test_the_cache_is_told_of_and_cleared(run, monkeypatch, tmp_path):
    from dgnumba import cache
    from dgnumba.assemble import Cubin

    monkeypatch.setenv("DGNUMBA_CACHE_DIR", str(tmp_path))
    cache.shared().get("0" * 64, lambda: Cubin(b"code", "kernel"))
    code, out, _ = run("cache")
    assert code == 0
    assert out.startswith(f"{tmp_path}: 1 kernels, ")
    assert run("cache", "clear") == (0, f"{tmp_path}: 1 kernels removed\n", "")
    assert run("cache", "info") == (0, f"{tmp_path}: 0 kernels, 0 B\n", "")


def test_the_cache_is_exported_and_imported(run, monkeypatch, tmp_path):
    from dgnumba import cache
    from dgnumba.assemble import Cubin

    file = tmp_path / "kernels.tar.gz"
    monkeypatch.setenv("DGNUMBA_CACHE_DIR", str(tmp_path / "one"))
    cache.shared().get("0" * 64, lambda: Cubin(b"code", "kernel"))
    code, out, _ = run("cache", "export", str(file))
    assert (code, out.startswith(f"{file}: 1 kernels of {tmp_path / 'one'}, ")) == (0, True)
    monkeypatch.setenv("DGNUMBA_CACHE_DIR", str(tmp_path / "two"))
    assert run("cache", "import", str(file)) == (0, f"{tmp_path / 'two'}: 1 kernels of {file} are new, 0 were there\n", "")
    file.write_bytes(file.read_bytes()[:-5])
    code, out, err = run("cache", "import", str(file))
    assert (code, out, err.startswith(f"dgnumba: file: {file} is no whole file")) == (2, "", True)
    for words in (("export",), ("import",), ("clear", str(file))):
        code, _, err = run("cache", *words)
        assert (code, "file: expected one with export and import, and none with info and clear" in err) == (2, True)


def test_bench_without_a_gpu_is_refused(run, no_gpu):
    code, _, err = run("bench")
    assert (code, err) == (2, "dgnumba: bench: expected a GPU, got none: none is here\n")


@pytest.mark.parametrize("shape", ["12x13", "axbxc", "0x1x1", "1x-1x1", "x"])
def test_bench_refuses_a_shape_that_is_none(run, shape):
    code, _, err = run("bench", "--", shape)
    assert code == 2
    assert f"shape: expected MxNxK, as 4096x7168x2048, got {shape}" in err


def test_bench_refuses_a_file_that_it_could_not_write_before_it_measures(run, monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "missing", lambda: None)
    code, out, err = run("bench", "4x8x128", "-o", tmp_path / "none" / "rows.json")
    assert (code, out) == (2, "")
    assert "output: expected a file in a folder that is there" in err


def test_bench_prints_a_row_a_shape_and_writes_them(run, monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "missing", lambda: None)
    monkeypatch.setattr(gpu, "to_gpu", lambda q: q)
    monkeypatch.setattr(gpu, "seconds", lambda call, runs, flush: (call(), 1e-5)[1])
    monkeypatch.setattr(bench, "rival_calls", lambda a, b: {"deepgemm": lambda: None})
    monkeypatch.setattr("dgnumba.device.Device.current", lambda: SimpleNamespace(name="a GPU"))
    code, out, _ = run("bench", "4x8x128", "16x16x256", "-o", tmp_path / "rows.json")
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert code == 0
    assert [(r["m"], r["n"], r["k"], r["us"], r["rivals"]) for r in rows] == [
        (4, 8, 128, 10.0, {"deepgemm": 10.0}),
        (16, 16, 256, 10.0, {"deepgemm": 10.0}),
    ]
    assert out.count("1.000") == 2


@pytest.mark.gpu
def test_bench_measures_on_the_gpu(run):
    code, out, err = run("bench", "64x128x256", "--runs", "2")
    assert code == 0, err
    assert "64" in out


@pytest.mark.gpu
def test_the_demo_runs_on_the_gpu(run):
    code, out, err = run("demo")
    assert code == 0, err
    assert "Multiplied on the GPU" in out


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (PlanError("no plan", {"k1": "too big"}), "dgnumba: no plan; k1: too big\n"),
        (CompileError("ptxas refused", "line 1\nline 2"), "dgnumba: ptxas refused; line 1; line 2\n"),
        (MemoryError("2 TB"), "dgnumba: not enough memory: 2 TB\n"),
        (PermissionError(13, "Permission denied", "d.npy"), "dgnumba: d.npy: Permission denied\n"),
    ],
)
def test_an_error_of_the_library_is_one_line(run, monkeypatch, error, line):
    def fails():
        raise error

    monkeypatch.setattr(info, "gather", fails)
    assert run("info") == (2, "", line)


def test_a_bug_is_no_refusal(monkeypatch):
    def fails():
        raise ZeroDivisionError

    monkeypatch.setattr(info, "gather", fails)
    with pytest.raises(ZeroDivisionError):
        from dgnumba.cli import main

        main(["info"])


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(run, command):
    code, out, _ = run(command, "--help")
    assert code == 0
    assert f"dgnumba {command}" in out


def test_the_list_of_commands_cuts_no_sentence(run, monkeypatch):
    """It shows a docstring's first sentence, up to the terminal's edge."""
    monkeypatch.setenv("COLUMNS", "80")
    lines = run("--help")[1].partition("Commands:\n")[2].splitlines()
    assert [line for line in lines if line.endswith("...")] == []


def test_the_module_is_the_command():
    done = subprocess.run([sys.executable, "-m", "dgnumba", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"dgnumba {dgnumba.__version__}\n"
