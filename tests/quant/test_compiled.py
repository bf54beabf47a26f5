"""The compiled form in the world: without a folder for its cache, in threads, after a fork."""

import subprocess
import sys

import numpy as np
import pytest

from dgnumba.quant import _kernels

SETUP = """
import numpy as np
from dgnumba.quant import quantize
x = np.random.default_rng(0).standard_normal((1024, 512)).astype(np.float32)
def cast(form="mxfp8"):
    q = quantize(x, form)
    return q.codes.tobytes() + q.scales.tobytes()
"""


def run(code):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SETUP + code], capture_output=True, text=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_F31_without_a_folder_for_the_cache_it_compiles_for_this_process(monkeypatch):
    tried = []

    def njit(**options):
        tried.append(options)
        if options.get("cache"):
            raise RuntimeError("cannot cache function 'f': no locator available for file 'f.py'")
        return lambda function: function

    monkeypatch.setattr(_kernels, "njit", njit)
    assert _kernels._compile(run) is run
    assert [bool(options.get("cache")) for options in tried] == [True, False]


def test_F35_the_first_call_from_four_threads():
    assert run("""
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(4) as pool:
    found = list(pool.map(lambda i: cast(), range(4)))
print(len(set(found)))
""") == ["1"]


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_F35_after_a_fork_the_child_gives_the_same():
    assert run("""
import os, sys, zlib
before = zlib.crc32(cast())
print(before, flush=True)
child = os.fork()
if child == 0:
    print(zlib.crc32(cast()), flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(zlib.crc32(cast()), "numba.cuda" in sys.modules)
""") in ([str(n)] * 3 + ["False"] for n in [int(run("import zlib; print(zlib.crc32(cast()))")[0])])


def test_small_arrays_do_not_wait_for_numba():
    assert run("""
import sys
quantize(x[:16], "int4_g128").dequantize()
print("numba" in sys.modules)
""") == ["False"]


def test_F38_the_floating_point_mode_stays():
    assert run("""
cast()
print(np.float32(2.0**-126) / np.float32(2) != 0, np.float64(2.0**-1022) / 2 != 0)
""") == ["True", "True"]


def test_nothing_is_contracted():
    """A product and a sum, each rounded: contracted to one operation the second would see the exact product."""
    x = np.float32([[1 + 2.0**-12]])
    out = np.zeros((1, 1))
    _kernels.integer_errors(x, 1, 1, x, np.zeros((1, 1), np.float32), np.float32(-8), np.float32(7), out)
    assert out[0, 0] == 0.0
    third, out = np.float32([[1 / 3]]), np.zeros((1, 1))
    _kernels.integer_errors(np.float32([[1.0]]), 1, 1, third, np.zeros((1, 1), np.float32), np.float32(-8), np.float32(7), out)
    assert out[0, 0] == float(np.float32(1) - np.float32(3) * third[0, 0]) ** 2
