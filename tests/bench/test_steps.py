"""The steps that are measured are the notebook's kernels, and right: one of each in the emulator."""

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import dgnumba
from dgnumba.dtypes import DTYPES
from dgnumba.testing import exact_problem

E4M3 = DTYPES["float8_e4m3fn"]
BENCH = Path(__file__).parents[2] / "bench" / "bench_steps.py"


@pytest.fixture
def bench(monkeypatch):
    """The script, with NumPy in the place of CuPy."""
    spec = importlib.util.spec_from_file_location("bench_steps", BENCH)
    module = importlib.util.module_from_spec(spec)
    with monkeypatch.context() as during:
        during.setitem(sys.modules, "cupy", np)
        during.syspath_prepend(str(BENCH.parent))
        spec.loader.exec_module(module)
    return module


def test_every_step_of_the_notebook_is_right(bench):
    tasks = {"naive": (16, 16, 128), "shared": (16, 16, 128), "roles": (128, 128, 256)}
    found = bench.steps()
    assert [step.__name__ for step in found] == ["naive", "shared", "tensor_cores", "by_tma", "ring", "roles"]
    for step in found:
        m, n, k = tasks.get(step.__name__, (64, 64, 256))
        case = exact_problem(np.random.default_rng(7), m, n, k, "float32")
        task = SimpleNamespace(
            m=m, n=n, k=k, a=case.a.data.view(np.uint8), b=case.b.data.view(np.uint8), sfa=np.ascontiguousarray(case.a.scale.T),
            sfb=case.b.scale, decoded=E4M3.decode(np.arange(256, dtype=np.uint8)).astype(np.float32), out=np.zeros((m, n), np.float32),
        )  # fmt: skip
        kernel, grid, block, args, options = step(task)
        dgnumba.emu.run(kernel, grid, block, args, **options, policy="late")
        want = dgnumba.fp8_gemm_nt(case.a, case.b, np.empty((m, n), np.float32))
        assert np.array_equal(want, task.out), step.__name__


def test_a_step_that_is_wrong_is_not_timed(bench, monkeypatch):
    task = SimpleNamespace(out=np.zeros((2, 2), np.float32), want=np.ones((2, 2), np.float32))
    monkeypatch.setattr(bench.gpu, "seconds", lambda call, runs: pytest.fail("timed"))
    with pytest.raises(SystemExit, match="4 elements that differ"):
        bench.measure("wrong", lambda: task.out.fill(0), task, 3)
