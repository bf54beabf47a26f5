"""What the first call of a process loads: with an empty cache the compiler, with a filled one nothing of Numba, and no `cuda.core`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dgnumba import _numba
from dgnumba.assemble import find_ptxas

pytestmark = pytest.mark.skipif(not _numba.HAVE_NUMBA_CUDA or find_ptxas() is None, reason="needs numba-cuda and ptxas")


def first_call(cache, *extents):
    done = subprocess.run(
        [sys.executable, Path(__file__).parent / "first_call.py", *map(str, extents)],
        capture_output=True,
        text=True,
        env=os.environ | {"DGNUMBA_CACHE_DIR": str(cache)},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def of_packages(modules, *packages):
    return [m for m in modules if any(m == p or m.startswith((p + ".", p + "_")) for p in packages)]


def test_with_a_filled_cache_no_compiler_is_imported(tmp_path):
    """The kernel is found under the key that the process which compiled it wrote, launched alike, and no compiler is loaded for that."""
    empty, filled = first_call(tmp_path, 3, 256, 384), first_call(tmp_path, 3, 256, 384)
    assert of_packages(empty["modules"], "numba.cuda", "llvmlite", "dgnumba.ptx")
    foreign = of_packages(filled["modules"], "numba", "llvmlite", "cuda.core", "dgnumba.ptx", "dgnumba.emu", "dgnumba.quant")
    assert foreign + [m for m in filled["modules"] if "int4" in m] == []
    assert filled["launches"] == empty["launches"]
    assert filled["code"] == empty["code"] == [b"\x7fELF".hex()]
