"""``dgnumba warmup`` and ``dgnumba tune``: what they print, keep and refuse. Nothing is compiled, and no GPU asked."""

import dataclasses

import pytest
from cases import H200

from dgnumba import ahead, cache, policy, tuning
from dgnumba.assemble import Cubin
from dgnumba.cli import gpu
from dgnumba.cli.warmup import parse
from dgnumba.errors import ProblemError


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    """A cache of its own, into which what would be compiled is put as it is."""
    monkeypatch.setenv("DGNUMBA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(policy, "_most", [None])

    def compiled(plans, arch, jobs):
        for plan in plans:
            key = cache.key_of(plan, (), arch=arch, **ahead._bounds(plan))
            cache.shared().get(key, lambda: Cubin(b"\x7fELF", "k"))
            yield str(plan), ""

    monkeypatch.setattr(ahead, "_compiled", compiled)
    policy.forget()
    yield tmp_path / "cache"
    policy.forget()


def test_warmup_says_which_kernels_for_what(run, monkeypatch):
    monkeypatch.setattr(ahead.Device, "current", classmethod(lambda cls: H200))
    code, out, _ = run("warmup", "16x256x512", "300x4096x7168")
    assert code == 0
    first, *_, last = out.splitlines()
    assert first.split()[-1] == "16x256x512" and " sm90_fp8_gemv_1d2d " in first and "row-major scales" in out
    assert len(out.splitlines()) == 1 + 5 and "scales of A to MN-major" in out
    assert last == "5 kernels for NVIDIA H200, since no GPU is here: 5 compiled, 0 were in the cache"
    assert "0 compiled, 5 were in the cache" in run("warmup", "16x256x512", "300x4096x7168", "--device", "h200")[1]


def test_warmup_held_to_few_plans_says_how_calls_keep_to_them(run):
    code, out, _ = run("warmup", "7168x2048", "--plans", "4", "--device", "h200")
    assert code == 0
    assert "5 kernels for NVIDIA H200" in out  # and the one that turns scales
    assert out.endswith("calls keep to these kernels where DGNUMBA_PLANS_PER_LAYER=4 is set\n")


@pytest.mark.parametrize("words", [("5",), ("5x",), ("1x2x3x4",), ("0x128",), ("axb",)], ids=str)
def test_warmup_refuses_a_shape_that_is_none(run, words):
    code, _, err = run("warmup", *words)
    assert (code, f"shape: expected NxK, as 7168x2048 or MxNxK, as 16x7168x2048, got {words[0]}" in err) == (2, True)


def test_warmup_refuses_a_gpu_that_nobody_knows(run):
    code, _, err = run("warmup", "256x512", "--device", "h900")
    assert (code, "device: expected one of" in err) == (2, True)


def made_up(problem, choices, device, rounds, step):
    return [100.0 - i for i in range(len(choices))]


def test_tune_prints_the_fastest_keeps_it_and_draws(run, monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")
    real, asked = tuning.tune, []

    def tune(shapes, **options):
        asked.append(options)
        return real(shapes, **options, device=dataclasses.replace(H200, index=0), timer=made_up)

    monkeypatch.setattr(gpu, "missing", lambda: None)
    monkeypatch.setattr(tuning, "tune", tune)
    code, out, err = run("tune", "300x512x1024", "--candidates", "4", "--plot", str(tmp_path / "tiles.png"))
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("300x512x1024 bfloat16 on NVIDIA H200: CUDA events around a launch, L2 emptied by reading")
    assert lines[1].split()[1:2] == ["us"] and float(lines[1].split()[0]) < float(lines[2].split()[0])
    assert lines[-2:] == [f"kept in {policy.path()}", f"drawn in {tmp_path / 'tiles.png'}"]
    assert (asked[0]["candidates"], asked[0]["rounds"]) == (4, tuning.ROUNDS)
    assert policy.rows(policy.path())[0].plan.name == lines[1].split("TFLOP/s  ")[1]
    assert (tmp_path / "tiles.png").stat().st_size > 1000


def test_tune_without_a_gpu_is_refused(run, no_gpu):
    code, _, err = run("tune", "16x256x512")
    assert (code, err) == (2, "dgnumba: tune: expected a GPU, got none: none is here\n")
    assert not policy.path().exists()


def test_tune_takes_products_alone(run, no_gpu):
    assert "shape: expected MxNxK, as 16x7168x2048, got 256x512" in run("tune", "256x512")[2]
    assert "candidates: expected none with --all, got 3" in run("tune", "1x256x512", "--all", "--candidates", "3")[2]
    assert "plot: expected a file in a folder that is there" in run("tune", "1x256x512", "--plot", "none/tiles.png")[2]


def test_extents():
    assert parse("16X256x512") == (16, 256, 512)
    with pytest.raises(ProblemError, match="shape: expected MxNxK"):
        parse("256x512", (3,))
