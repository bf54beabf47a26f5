"""The public names: complete, sorted, documented; and an import that costs little and starts nothing."""

import inspect
import subprocess
import sys

import pytest

import dgnumba

DEEPGEMM = ["fp8_gemm_nt", "per_block_cast_to_fp8", "per_channel_cast_to_fp8", "per_token_cast_to_fp8"]
"""Names that are DeepGEMM's, unchanged."""

OURS = ["QTensor", "emu", "error_bound", "explain", "gemm_reference", "lab", "launch", "ptx", "u32", "u64"]


def public():
    return [name for name in dgnumba.__all__ if not name.startswith("__")]


def test_all_is_sorted():
    assert list(dgnumba.__all__) == sorted(dgnumba.__all__, key=str)


def test_every_name_of_all_is_there():
    assert [name for name in dgnumba.__all__ if not hasattr(dgnumba, name)] == []


@pytest.mark.parametrize("name", DEEPGEMM + OURS)
def test_what_the_readme_promises_is_public(name):
    assert name in dgnumba.__all__


def test_dir_shows_every_public_name():
    assert set(dgnumba.__all__) - set(dir(dgnumba)) == set()


@pytest.mark.parametrize("name", public())
def test_every_public_name_is_documented(name):
    assert (inspect.getdoc(getattr(dgnumba, name)) or "").strip()


@pytest.mark.parametrize("name", public())
def test_every_public_function_has_types(name):
    value = getattr(dgnumba, name)
    if inspect.isfunction(value):
        signature = inspect.signature(value)
        untyped = [p.name for p in signature.parameters.values() if p.annotation is p.empty]
        assert untyped == []
        assert signature.return_annotation is not signature.empty


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        dgnumba.nothing  # noqa: B018


def test_a_star_import_brings_all():
    names = {}
    exec("from dgnumba import *", names)
    assert set(public()) - set(names) == set()


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_the_import_loads_neither_a_compiler_nor_a_gpu_library():
    heavy = python("import sys, dgnumba; print(*sorted({'numba', 'cupy', 'cuda', 'torch', 'jax', 'greenlet', 'typer'} & set(sys.modules)))")
    assert heavy == ""


def test_F35_the_import_and_the_host_path_start_no_cuda():
    """Neither the package nor a host product loads the driver library, so a process may fork afterwards."""
    code = """
import os, numpy as np, dgnumba
x = np.ones((3, 256), np.float32)
def product():
    return dgnumba.fp8_gemm_nt(dgnumba.per_token_cast_to_fp8(x), dgnumba.per_block_cast_to_fp8(x)).tobytes()
first = product()
read, write = os.pipe()
if os.fork() == 0:
    os.write(write, product())
    os._exit(0)
assert os.read(read, 1 << 16) == first
maps = open("/proc/self/maps").read()
print("libcuda.so" in maps)
"""
    if not sys.platform.startswith("linux"):
        pytest.skip("reads /proc")
    assert python(code) == "False"


def test_the_version_is_the_installed_one():
    from importlib import metadata

    try:
        installed = metadata.version("dgnumba")
    except metadata.PackageNotFoundError:
        pytest.skip("dgnumba is not installed, only its sources are on the path")
    assert dgnumba.__version__ == installed


@pytest.mark.parametrize("first", ["dgnumba.fp8_gemm_nt", "dgnumba.emu", "dgnumba.tensor_map", "import dgnumba.api", "import dgnumba.cli"])
def test_a_name_means_the_same_whatever_was_loaded_before(first):
    """A submodule that is loaded becomes an attribute of the package: it must not take the place of a public function."""
    code = f"import dgnumba\n{first}\nprint(*sorted(n for n in dgnumba.__all__ if not callable(getattr(dgnumba, n))))"
    assert set(python(code).split()) == {"checkpoint", "emu", "errors", "lab", "layouts", "ptx", "quant", "testing"}
