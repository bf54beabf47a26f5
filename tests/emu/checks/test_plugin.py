"""The pytest plugin, as a user's own suite has it."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba import cuda

ROOT = Path(__file__).parents[3]

SUITE = """
import numpy as np
from numba import cuda

@cuda.jit
def reverse(x, out):
    i = cuda.threadIdx.x
    shared = cuda.shared.array(64, np.float32)
    shared[i] = x[i]
    {barrier}
    out[i] = shared[63 - i]

def test_reverse(emu_check):
    x, out = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    report = emu_check(reverse, 1, 64, (x, out), bank_ways=1)
    assert report.is_clean and out[0] == 63
"""


def test_the_fixture_checks(emu_check):
    def kernel(x):
        x[cuda.threadIdx.x] = np.float32(1)

    assert emu_check(kernel, 1, 32, (np.zeros(32, np.float32),)).is_clean
    with pytest.raises(AssertionError, match="error bounds"):
        emu_check(kernel, 1, 64, (np.zeros(32, np.float32),))
    with pytest.raises(AssertionError, match="times the sectors needed"):
        emu_check(kernel, 1, 32, (np.zeros(32, np.float32),), sectors=0.5)


@pytest.mark.parametrize("barrier, passes", [("cuda.syncthreads()", True), ("pass", False)])
def test_a_suite_of_its_own(tmp_path, barrier, passes):
    (tmp_path / "test_mine.py").write_text(SUITE.format(barrier=barrier))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "dgnumba.pytest_plugin", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env={**__import__("os").environ, "PYTEST_ADDOPTS": ""}, check=False
    )
    assert (done.returncode == 0) == passes, done.stdout
    if not passes:
        assert "out[i] = shared[63 - i]" in done.stdout
        assert "error uninitialized" in done.stdout or "error race" in done.stdout
