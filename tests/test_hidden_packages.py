"""Without numba-cuda, CuPy, cuda-core and cuda-bindings, as on macOS: the package imports, multiplies on the host, and steps the kernel.

A folder of links to all installed packages but these stands in for such an installation; `-S` keeps out the .pth file by which numba-cuda
takes the place of numba's own ``numba.cuda``.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dgnumba

HIDDEN = ("numba_cuda", "cupy", "cupy_backends", "cuda", "nvidia", "torch", "jax")
HIDDEN_DISTRIBUTIONS = ("numba_cuda", "cupy", "cuda_", "nvidia_", "torch", "jax")

pytestmark = pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Runs code where the hidden packages are not installed; gives what it printed."""
    site = tmp_path_factory.mktemp("site")
    for installed in Path(np.__file__).parent.parent.iterdir():
        is_hidden = installed.name in HIDDEN or (installed.suffix == ".dist-info" and installed.name.startswith(HIDDEN_DISTRIBUTIONS))
        if not is_hidden and installed.name != "dgnumba" and installed.suffix != ".pth":
            (site / installed.name).symlink_to(installed)
    (site / "dgnumba").symlink_to(Path(dgnumba.__file__).parent)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "NUMBA_", "CUDA"))}

    def run(code, *, fails=False):
        done = subprocess.run(
            [sys.executable, "-S", "-W", "error::RuntimeWarning", "-c", code],
            capture_output=True,
            text=True,
            env=environment | {"PYTHONPATH": str(site), "DGNUMBA_CACHE_DIR": str(site / "cache")},
            cwd=site,
        )
        assert (done.returncode != 0) == fails, done.stderr
        return done.stderr if fails else done.stdout

    return run


def test_the_packages_are_hidden(python):
    for name in ("numba_cuda", "cupy", "cuda.core", "cuda.bindings"):
        assert "ModuleNotFoundError" in python(f"import {name}", fails=True)


def test_the_import_is_quiet_and_says_the_version(python):
    assert python("import dgnumba; print(dgnumba.__version__)") == f"{dgnumba.__version__}\n"


def test_every_module_imports_or_says_what_it_lacks(python):
    code = """
import importlib, pkgutil, dgnumba
for found in pkgutil.walk_packages(dgnumba.__path__, "dgnumba."):
    if found.name != "dgnumba.__main__" and not found.name.startswith("dgnumba._numba."):
        importlib.import_module(found.name)
"""
    assert python(code) == ""


PRODUCT = """
import numpy as np, dgnumba
from dgnumba.testing import exact_problem
case = exact_problem(np.random.default_rng(7), {m}, {n}, {k})
d = dgnumba.fp8_gemm_nt(case.a, case.b, on={on!r})
print(d.view(np.uint16).tolist())
"""


def test_the_emulated_kernel_gives_the_bits_of_the_host_path(python):
    """In the exact zone every right implementation gives the same bits."""
    host, emulated = (python(PRODUCT.format(m=17, n=24, k=300, on=on)) for on in ("host", "emulator"))
    assert emulated == host
    assert len(host) > 17 * 24


def test_a_users_kernel_is_stepped(python):
    code = """
import numpy as np, dgnumba
from numba import cuda

@cuda.jit
def double(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= 2

x = np.arange(40, dtype=np.float32)
dgnumba.launch(double, 2, 32, (x,))
print(x.tolist() == (2.0 * np.arange(40)).tolist())
"""
    assert python(code) == "True\n"


def test_the_command_line_says_what_is_missing(python):
    code = "from dgnumba.cli import main; main(['info'])"
    out = python(code)
    assert "numba-cuda         not installed" in out
    assert "cuda-bindings is not installed" in out


def test_a_gpu_call_says_what_is_missing(python):
    error = python("import dgnumba; from dgnumba.cli import main; main(['bench'])", fails=True)
    assert "dgnumba[cuda13]" in error
    assert "Traceback" not in error


def test_the_whole_demo_is_right(python):
    assert "All of it is right." in python("from dgnumba.cli import main; main(['demo'])")
