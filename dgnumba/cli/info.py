"""``dgnumba info``: what is here, what is missing, and the line that cures it."""

from __future__ import annotations

import json
import platform
import sys
import warnings
from collections.abc import Iterator
from importlib import metadata
from typing import Annotated, Any

import typer

from .._version import __version__
from . import gpu
from .show import console, size

_PACKAGES = (
    "numpy", "ml_dtypes", "numba", "numba-cuda", "greenlet", "cupy-cuda13x", "cupy-cuda12x", "cuda-core", "cuda-bindings",
    "nvidia-nvvm", "nvidia-cuda-nvcc", "nvidia-cuda-nvrtc", "torch", "jax",
)  # fmt: skip
_OPTIONAL = {"cupy-cuda12x", "torch", "jax"}


def info(as_json: Annotated[bool, typer.Option("--json", help="for a bug report, or a program")] = False) -> None:
    """Say what is here, what is missing, and the line that cures it."""
    facts = gather()
    out = console()
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    for section, content in facts.items():
        rows = content if isinstance(content, dict) else {f"{i}": line for i, line in enumerate(content, 1)}
        out.print(f"{section}")
        for name, value in rows.items():
            out.print(f"  {name:18s} {value}")


def gather() -> dict[str, Any]:
    """Everything that ``info`` prints, by section."""
    versions = {name: _version(name) for name in _PACKAGES}
    installed = {name: version or "not installed" for name, version in versions.items() if version or name not in _OPTIONAL}
    return {
        "dgnumba": {
            "version": __version__,
            "python": f"{platform.python_version()} ({sys.executable})",
            "system": f"{platform.system()} {platform.machine()}",
        },
        "GPU": _gpu(),
        "compiler": _compiler(),
        "packages": installed,
        "kernel cache": _cache(),
        "what runs here": dict(_abilities()),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _gpu() -> dict[str, str]:
    try:
        from .. import driver
        from ..device import Device

        count = driver.device_count()
    except ImportError as error:
        return {"none": f"the driver cannot be asked: {error}"}
    if not count:
        return {"none": gpu.missing() or "no GPU"}
    devices = [Device.numbered(i) for i in range(count)]
    facts = {f"GPU {d.index}": f"{d.name}, {d.arch}, {d.num_sms} multiprocessors, L2 {size(d.l2_bytes)}" for d in devices}
    return facts | {"driver takes CUDA": ".".join(map(str, driver.version()))}


def _compiler() -> dict[str, str]:
    from ..assemble import assembler, find_ptxas

    path = find_ptxas()
    found = {"NVVM": _library("nvvm"), "NVRTC": _library("nvrtc"), "ptxas": f"{path} ({assembler()})" if path else None}
    return {name: where or f"not found; {gpu.CURE}" for name, where in found.items()}


def _library(name: str) -> str | None:
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        return str(load_nvidia_dynamic_lib(name).abs_path)
    except (ImportError, RuntimeError):
        return None


def _cache() -> dict[str, str]:
    from .. import cache

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # what it would say is said here
        facts = cache.info()
    if not facts["usable"]:
        return {"directory": f"{facts['directory'] or 'none'}: not usable, kernels are kept in memory only; set DGNUMBA_CACHE_DIR"}
    return {"directory": str(facts["directory"]), "kernels": f"{facts['kernels']}, {size(facts['bytes'])}"}


def _abilities() -> Iterator[tuple[str, str]]:
    yield "host path", "yes"
    yield "emulator", "yes"
    can_compile = _version("numba-cuda") is not None and all(map(_library, ("nvvm", "nvrtc")))
    yield "compile for sm_90a", "yes" if can_compile else f"no; {gpu.CURE}"
    yield "run on a GPU", _on_gpu()


def _on_gpu() -> str:
    why = gpu.missing()
    if why is not None:
        return f"no: {why}"
    from ..device import Device

    cc = Device.current().cc
    return "yes" if cc == (9, 0) else f"no: the kernels are for compute capability 9.0, this GPU has {cc[0]}.{cc[1]}"
