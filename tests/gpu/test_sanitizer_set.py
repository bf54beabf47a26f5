"""The set that runs under compute-sanitizer is right by itself; with the tool at hand, a short run of it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

SCRIPT = Path(__file__).with_name("sanitizer_set.py")


def test_the_set_is_right():
    from gpu import sanitizer_set

    assert sanitizer_set.main() == 0


@pytest.mark.full
@pytest.mark.parametrize("tool", ["memcheck", "synccheck"])
def test_compute_sanitizer_finds_nothing(tool):
    found = shutil.which("compute-sanitizer")
    if found is None:
        pytest.skip("compute-sanitizer is not on PATH")
    run = subprocess.run(
        [found, "--tool", tool, "--error-exitcode", "9", sys.executable, str(SCRIPT)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    assert "ERROR SUMMARY: 0 errors" in run.stdout
