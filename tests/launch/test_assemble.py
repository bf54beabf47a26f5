"""`dgnumba.assemble`: PTX to cubin, by whichever ptxas there is, or by the driver."""

import os
import subprocess
import zipfile
from importlib import metadata

import pytest

from dgnumba import assemble
from dgnumba.assemble import Cubin, entry_of, find_ptxas, installed, ptxas
from dgnumba.errors import CompileError

PTX = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry two(
    .param .u64 two_param_0,
    .param .align 64 .b8 two_param_1[128],
    .param .f32 two_param_2
)
.maxntid 128, 1, 1
{
    .reg .b64 %rd<2>;
    .reg .f32 %f<2>;
    .shared .align 4 .b8 room[64];
    ld.param.u64 %rd1, [two_param_0];
    ld.param.f32 %f1, [two_param_2];
    st.global.f32 [%rd1], %f1;
    ret;
}
"""

# From ptxas 13.0.88, names shortened.
LOG = """ptxas info    : 0 bytes gmem
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized \
due to insufficient register resources for the wgmma pipeline in the function 'k'
ptxas warning : Value of threads per SM for entry k is out of range. .minnctapersm will be ignored
ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
    96 bytes stack frame, 100 bytes spill stores, 104 bytes spill loads
ptxas info    : Used 168 registers, used 9 barriers, 96 bytes cumulative stack size, 1024 bytes smem
ptxas info    : Function properties for helper
    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Compile time = 151.000 ms
"""

needs_ptxas = pytest.mark.skipif(find_ptxas() is None, reason="no ptxas on this machine")


def executable(folder, said="V1.2.3"):
    folder.mkdir(parents=True)
    path = folder / "ptxas"
    path.write_text(f"#!/bin/sh\necho {said}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(monkeypatch):
    """A machine with no ptxas anywhere."""
    monkeypatch.setattr(assemble, "find_spec", lambda name: None)
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "")


@needs_ptxas
def test_a_kernel_is_assembled_and_reported():
    cubin = ptxas(PTX)
    assert cubin.code.startswith(b"\x7fELF")
    assert not cubin.is_ptx
    assert (cubin.entry, cubin.parameters) == ("two", ("u64", "b8[128]", "f32"))
    assert 0 < cubin.registers <= 32
    assert (cubin.spill_stores, cubin.spill_loads, cubin.local_bytes) == (0, 0, 0)
    assert cubin.warnings == ()
    assert "kernel.ptx" not in cubin.log or "/" not in cubin.log


@needs_ptxas
def test_assembling_twice_gives_the_same_bytes():
    assert ptxas(PTX).code == ptxas(PTX).code


@needs_ptxas
def test_refused_text_raises_with_ptxas_words():
    with pytest.raises(CompileError, match="ptxas refused the kernel for sm_90a") as caught:
        ptxas(PTX.replace("st.global.f32", "st.nowhere.f32"))
    line = PTX[: PTX.index("st.global")].count("\n") + 1
    assert f"kernel.ptx, line {line}" in caught.value.log


@needs_ptxas
def test_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ptxas(PTX)
    with pytest.raises(CompileError):
        ptxas("garbage")
    assert list(tmp_path.iterdir()) == []


@needs_ptxas
def test_the_assembler_is_named_with_its_version():
    said = subprocess.run([find_ptxas(), "--version"], capture_output=True, text=True).stdout
    assert assemble.ptxas_version(find_ptxas()) in said
    assert assemble.assembler().startswith("ptxas ")


def test_the_log_is_read():
    resources = assemble._resources(LOG)
    assert resources == {
        "registers": 168,
        "spill_stores": 104,
        "spill_loads": 108,
        "local_bytes": 104,
        "smem_bytes": 1024,
    }
    warnings = assemble._warnings(LOG)
    assert ["C7510" in warnings[0], "out of range" in warnings[1], len(warnings)] == [True, True, 2]


def test_ptxas_is_looked_for_in_the_wheels_then_the_toolkit_then_the_path(bare, monkeypatch, tmp_path):
    on_path = executable(tmp_path / "path")
    monkeypatch.setenv("PATH", str(on_path.parent))
    assert find_ptxas() == on_path
    in_toolkit = executable(tmp_path / "toolkit" / "bin")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "toolkit"))
    assert find_ptxas() == in_toolkit

    class Spec:
        submodule_search_locations = [str(tmp_path / "site" / "nvidia")]

    monkeypatch.setattr(assemble, "find_spec", lambda name: Spec)
    assert find_ptxas() == in_toolkit
    of_cuda_12 = executable(tmp_path / "site" / "nvidia" / "cuda_nvcc" / "bin")
    assert find_ptxas() == of_cuda_12
    of_cuda_13 = executable(tmp_path / "site" / "nvidia" / "cu13" / "bin")
    assert find_ptxas() == of_cuda_13


def test_a_toolkits_ptxas_says_its_own_version(bare, monkeypatch, tmp_path):
    executable(tmp_path / "bin", "release 12.9, V12.9.41")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", os.defpath)
    assert assemble.assembler() == "ptxas 12.9.41"


def test_without_ptxas_the_driver_gets_the_text(bare):
    cubin = assemble.assemble(PTX)
    assert cubin == Cubin(PTX.encode(), "two", ("u64", "b8[128]", "f32"))
    assert cubin.is_ptx
    assert assemble.assembler() == "driver"
    with pytest.raises(CompileError, match="no ptxas found: pip install nvidia-cuda-nvcc"):
        ptxas(PTX)


@pytest.mark.parametrize("count", [0, 2])
def test_a_text_of_not_one_kernel_is_refused(count):
    with pytest.raises(CompileError, match=f"expected PTX with one kernel, got {count}"):
        entry_of(PTX * count)


# -- versions of what is installed


def test_versions_are_those_that_the_descriptions_say():
    seen = {d.metadata["Name"] for d in metadata.distributions()}
    assert seen and {name: installed(name) for name in seen} == {name: metadata.version(name) for name in seen}


def test_names_are_compared_as_the_index_compares_them(monkeypatch, tmp_path):
    (tmp_path / "A_Thing.more-1.2.post3.dist-info").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [installed(name) for name in ("a-thing-more", "A.Thing_More", "a-thing")] == ["1.2.post3", "1.2.post3", None]


def test_the_first_on_the_path_counts(monkeypatch, tmp_path):
    for folder, version in (("second", "2.0"), ("first", "1.0")):
        (tmp_path / folder / f"thing-{version}.dist-info").mkdir(parents=True)
        monkeypatch.syspath_prepend(str(tmp_path / folder))
    assert installed("thing") == "1.0"


def test_what_lies_in_an_archive_or_in_a_folder_of_the_old_kind_is_found_too(monkeypatch, tmp_path):
    with zipfile.ZipFile(tmp_path / "things.zip", "w") as archive:
        archive.writestr("zipped-1.5.dist-info/METADATA", "Metadata-Version: 2.1\nName: zipped\nVersion: 1.5\n")
    old = tmp_path / "old" / "ancient-0.9.egg-info"
    old.mkdir(parents=True)
    (old / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: ancient\nVersion: 0.9\n")
    for place in (tmp_path / "things.zip", tmp_path / "old"):
        monkeypatch.syspath_prepend(str(place))
    assert (installed("zipped"), installed("ancient"), installed("neither")) == ("1.5", "0.9", None)
