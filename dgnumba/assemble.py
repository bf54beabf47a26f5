"""PTX to machine code, with or without a GPU: by `ptxas`, else by the driver when it loads the text.

`ptxas` comes with the wheel ``nvidia-cuda-nvcc``, or from a CUDA toolkit. It gives the resource
report that `explain` and the compile tests read, and works where there is no GPU. Where there is
none, `assemble` hands the PTX on as it is, and the driver assembles it when it is loaded.

DIFFERS from Numba and `cuda.core`, which assemble through nvJitLink: it takes PTX as relocatable
code, ignores `setmaxnreg` and serialises every `wgmma` of a kernel that has a 64-bit division.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from .errors import CompileError

_WHEELS = {
    "nvidia-cuda-nvcc": "nvidia/cu13/bin",
    "nvidia-cuda-nvcc-cu12": "nvidia/cuda_nvcc/bin",
}
"""Where each wheel puts its programs; those of CUDA 13 share a folder, nvdisasm and cuobjdump among them."""
_PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+(?:\.ptr\S*\s+)?[\w$]+(\[\d+\])?")


@dataclass(frozen=True)
class Cubin:
    """A kernel ready to be loaded, and what the assembler said of it.

    code          machine code, or PTX text where no ptxas was found
    entry         the kernel's name in it
    parameters    its parameters' PTX types in order: "u64", "f32", "b8[128]" (a tensor map)
    registers     registers a thread at entry; -1 where only the driver will know, as below
    spill_stores  bytes a thread spills to local memory; spill_loads: reads back
    local_bytes   bytes of local memory a thread
    smem_bytes    bytes of static shared memory a CTA
    warnings      ptxas' warnings, and its notes on lost performance (C75xx: serialised wgmma)
    log           all that ptxas said
    """

    code: bytes
    entry: str
    parameters: tuple[str, ...] = ()
    registers: int = -1
    spill_stores: int = -1
    spill_loads: int = -1
    local_bytes: int = -1
    smem_bytes: int = -1
    warnings: tuple[str, ...] = ()
    log: str = ""

    @property
    def is_ptx(self) -> bool:
        """Whether the driver has yet to assemble it."""
        return not self.code.startswith(b"\x7fELF")

    def __repr__(self) -> str:
        kind = "PTX" if self.is_ptx else f"{self.registers} registers, {self.spill_stores} spilled"
        return f"Cubin({self.entry}: {len(self.code)} bytes, {kind})"


def _candidates() -> Iterator[tuple[Path, str | None]]:
    """Folders that may hold a ptxas, and the wheel that each belongs to."""
    spec = find_spec("nvidia")
    for root in spec.submodule_search_locations or () if spec else ():
        for wheel, folder in _WHEELS.items():
            yield Path(root).parent / folder, wheel
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield Path(os.environ[variable]) / "bin", None
    for folder in os.get_exec_path():
        yield Path(folder), None


def _find(tool: str = "ptxas") -> tuple[Path, str | None] | None:
    name = f"{tool}.exe" if os.name == "nt" else tool
    for folder, wheel in _candidates():
        if os.access(folder / name, os.X_OK):
            return folder / name, wheel
    return None


def find_ptxas() -> Path | None:
    """The `ptxas` to use: of NVIDIA's wheel, of CUDA_HOME or CUDA_PATH, or of PATH; None: no such."""
    found = _find()
    return found[0] if found else None


def find_tool(name: str) -> Path | None:
    """A program of the CUDA toolkit, as "nvdisasm", looked for where `find_ptxas` looks; None: no such."""
    found = _find(name)
    return found[0] if found else None


@functools.lru_cache(maxsize=8)
def ptxas_version(path: Path) -> str:
    """The version of a `ptxas`, as "13.0.88"."""
    said = _run([str(path), "--version"]).stdout
    found = re.search(r"\bV(\d+\.\d+\.\d+)", said)
    return found.group(1) if found else said.strip()


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)


def ptxas(ptx: str, arch: str = "sm_90a", *, path: Path | None = None) -> Cubin:
    """Assemble the one kernel of a PTX text.

    Args:
        ptx: the text.
        arch: the machine to assemble for; "sm_90a" code runs on Hopper and nothing else.
        path: the `ptxas` to use; by default `find_ptxas`.

    Raises:
        CompileError: there is no ptxas, or it refuses the text; `log` has its words.
    """
    path = path or find_ptxas()
    if path is None:
        raise CompileError("no ptxas found: pip install nvidia-cuda-nvcc, or set CUDA_HOME")
    with tempfile.TemporaryDirectory(prefix="dgnumba-") as folder:
        source, target = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(ptx)
        run = _run([str(path), f"-arch={arch}", "-v", "-o", str(target), str(source)])
        log = (run.stdout + run.stderr).replace(str(source), "kernel.ptx").strip()
        if run.returncode or not target.exists():
            raise CompileError(f"ptxas refused the kernel for {arch} (status {run.returncode})", log)
        code = target.read_bytes()
    entry, parameters = entry_of(ptx)
    return Cubin(code, entry, parameters, log=log, warnings=_warnings(log), **_resources(log))


def assemble(ptx: str, arch: str = "sm_90a") -> Cubin:
    """Assemble by `ptxas` where there is one; else keep the text, for the driver to assemble."""
    if find_ptxas() is not None:
        return ptxas(ptx, arch)
    entry, parameters = entry_of(ptx)
    return Cubin(ptx.encode(), entry, parameters)


def assembler() -> str:
    """What `assemble` uses, for the keys of caches: "ptxas 13.0.88", or "driver"."""
    found = _find()
    if found is None:
        return "driver"
    path, wheel = found
    # Without starting the program: a process that finds its kernels in the cache needs none.
    return f"ptxas {(wheel and installed(wheel)) or ptxas_version(path)}"


def installed(name: str) -> str | None:
    """The version of a distribution, None where it is not installed: as `importlib.metadata.version`, and ten times as fast.

    That reads and parses the whole description; the name of the folder that it lies in says as much.
    """
    version = _distributions(tuple(sys.path)).get(_normal(name))
    if version is None:  # not a folder of its own: in an archive, or as setuptools once left it
        with contextlib.suppress(metadata.PackageNotFoundError):
            version = metadata.version(name)
    return version


@functools.lru_cache(maxsize=1)
def _distributions(path: tuple[str, ...]) -> dict[str, str]:
    """Name -> version of what lies on the path, the first of each."""
    found: dict[str, str] = {}
    for folder in path:
        with contextlib.suppress(OSError):
            for entry in os.listdir(folder or "."):
                if entry.endswith(".dist-info"):
                    name, _, version = entry.removesuffix(".dist-info").partition("-")
                    found.setdefault(_normal(name), version)
    return found


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def entry_of(ptx: str) -> tuple[str, tuple[str, ...]]:
    """Name and parameter types of the one kernel in a PTX text."""
    found = re.findall(r"\.entry\s+([\w$]+)\s*\((.*?)\)", ptx, re.DOTALL)
    if len(found) != 1:
        raise CompileError(f"expected PTX with one kernel, got {len(found)}")
    name, declared = found[0]
    return name, tuple(kind + size for kind, size in _PARAMETER.findall(declared))


def _resources(log: str) -> dict[str, int]:
    def total(pattern: str) -> int:
        # One figure for each function: the kernel, and any helper that was not inlined.
        return sum(map(int, re.findall(pattern, log)))

    return {
        "registers": total(r"Used (\d+) registers"),
        "spill_stores": total(r"(\d+) bytes spill stores"),
        "spill_loads": total(r"(\d+) bytes spill loads"),
        "local_bytes": total(r"(\d+) bytes stack frame"),
        "smem_bytes": total(r"(\d+) bytes smem"),
    }


def _warnings(log: str) -> tuple[str, ...]:
    lines = (line.strip() for line in log.splitlines())
    return tuple(line for line in lines if "warning" in line or re.search(r"\bC7\d{3}\b", line))
