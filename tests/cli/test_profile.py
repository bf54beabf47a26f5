"""``profile``: the report with and without a GPU, and what Nsight Compute said."""

import json
import re
import sys

import pytest

from dgnumba.cli import gpu, ncu, profile
from dgnumba.errors import CompileError
from dgnumba.kernels import KERNELS
from dgnumba.profile import Measured

CSV = """==PROF== Connected to process 1
"ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","kernel","GPU Speed Of Light Throughput","DRAM Throughput","%","21.50"
"0","kernel","Compute Workload Analysis","SM: Pipe Tensor Cycles Active","%","93.1"
"0","kernel","Compute Workload Analysis","Issue Slots Busy","%","31.0"
"""


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(gpu, "missing", lambda: "none is here")


def test_without_a_gpu_it_says_what_is_not_measured_and_gives_the_rest(run, no_gpu, tmp_path):
    code, out, err = run("profile", "64x64x256", "-o", tmp_path / "p.json")
    facts = json.loads((tmp_path / "p.json").read_text())
    assert (code, err) == (0, "")
    assert "not measured: there is no GPU here (none is here)" in out
    assert "An estimate, no measurement" in out
    assert (facts["measured"], facts["verdict"]) == (None, None)
    assert facts["accesses"]["errors"] == []
    assert "every access of a thread counted" in out


def test_without_a_compiler_the_rest_is_there(run, no_gpu, monkeypatch):
    def refuse(*arguments, **options):
        raise CompileError("no NVVM is here")

    monkeypatch.setattr(profile.launching, "compiled", refuse)
    code, out, _ = run("profile", "64x64x256")
    assert code == 0
    assert "registers    not known: the kernel cannot be compiled here (no NVVM is here)" in out
    assert "shared memory:" in out


def test_on_a_gpu_both_ceilings_and_one_sentence(run, monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "missing", lambda: None)
    found = Measured(us=2.0, flops=2.0 * 64 * 64 * 256, bytes=45000, peak_flops=1.5e15, peak_bytes=4e12, launch_us=1.5)
    monkeypatch.setattr(profile, "measure", lambda plan, problem, runs: found)
    monkeypatch.setattr(ncu, "find_tool", lambda name: None)
    code, out, err = run("profile", "64x64x256", "-o", tmp_path / "p.json")
    facts = json.loads((tmp_path / "p.json").read_text())
    assert (code, err) == (0, "")
    assert "TFLOP/s of 1500.0 without loads: 0.1%" in out
    assert "binds        Neither ceiling binds, latency does: an empty kernel takes 75 % of this time" in out
    assert "Nsight       no figures: ncu is not installed" in out
    assert facts["measured"]["tflops"] == found.tflops
    assert facts["ncu"] is None


def test_on_a_gpu_without_a_ceiling_of_products(run, monkeypatch):
    monkeypatch.setattr(gpu, "missing", lambda: None)
    found = Measured(us=2.0, flops=2.0 * 64 * 64 * 256, bytes=45000, peak_flops=None, peak_bytes=4e12, launch_us=1.5)
    monkeypatch.setattr(profile, "measure", lambda plan, problem, runs: found)
    code, out, _ = run("profile", "64x64x256", "--no-ncu")
    assert code == 0
    assert "their ceiling is not measured" in out and "Memory does not bind" in out and "Nsight" not in out


def script(tmp_path, text):
    path = tmp_path / "ncu"
    path.write_text(f"#!{sys.executable}\n{text}\n")
    path.chmod(0o755)
    return path


def test_nsights_figures_are_read(tmp_path):
    found, why = ncu.figures(64, 64, 256, "bfloat16", tool=script(tmp_path, f"print({CSV!r})"))
    assert found == {"DRAM Throughput": "21.50 %", "SM: Pipe Tensor Cycles Active": "93.1 %"}
    assert why == ""


def test_nsights_refusal_is_told(tmp_path):
    refusal = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters"
    found, why = ncu.figures(64, 64, 256, "bfloat16", tool=script(tmp_path, f"print({refusal!r}); raise SystemExit(1)"))
    assert found == {}
    assert why.startswith("ERROR== ERR_NVGPUCTRPERM")


@pytest.mark.parametrize("shape", ["12x13", "axbxc", "0x1x1"])
def test_a_shape_that_is_none_is_refused(run, shape):
    code, _, err = run("profile", "--", shape)
    assert code == 2 and f"shape: expected MxNxK, as 4096x7168x2048, got {shape}" in err


@pytest.mark.gpu
def test_it_measures_on_the_gpu(run, tmp_path):
    code, out, err = run("profile", "4096x4096x7168", "--runs", "5", "-o", tmp_path / "p.json")
    facts = json.loads((tmp_path / "p.json").read_text())
    assert code == 0, err
    assert 0 < facts["measured"]["tensor_share"] < 1.1 and 0 < facts["measured"]["memory_share"] < 1.1
    assert "binds  " in out


def test_nsight_is_asked_for_every_fp8_kernel_by_its_mangled_name(tmp_path):
    """Its default name of a function is the last part alone, "kernel"; a pattern that matches none gives no figures, and no error."""
    seen = tmp_path / "arguments"
    ncu.figures(64, 64, 256, "bfloat16", tool=script(tmp_path, f"import sys; open({str(seen)!r}, 'w').write('\\n'.join(sys.argv))"))
    arguments = seen.read_text().split("\n")
    assert arguments[arguments.index("--kernel-name-base") + 1] == "mangled"
    kind, pattern = arguments[arguments.index("--kernel-name") + 1].split(":")
    names = [kernel.NAME for kernel in KERNELS if "fp8" in kernel.NAME]
    assert kind == "regex" and len(names) >= 4
    assert all(re.search(pattern, f"_ZN7dgnumba7kernels{len(name)}{name}5build12_3clocals_3e6kernelB2v1") for name in names)
    assert not re.search(pattern, "_ZN7dgnumba7kernels11smxx_layout11_build_turn12_3clocals_3e6kernelB2v1")
