"""The rivals of int4_rivals.py made ready: compiled, each tried in a process of its own, and called for one problem.

One that breaks its CUDA context or hangs is left out before anything is measured; one that raises or computes something else prints a line.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import importlib
import multiprocessing
from collections.abc import Callable
from typing import Any

import torch
from apart import Apart, doing, one_line
from int4_rivals import RIVALS, Gemlite, Humming, Maker, Marlin, Quack, Ready
from measure import Call


def compile_gemlite(job: tuple[bool, int, int, int, int]) -> str:
    """In a process of its own: run a problem once, which leaves its kernel in Triton's cache on disk; what went wrong, or nothing."""
    is_fp8, n, k, group, m = job
    try:
        Gemlite(is_fp8)(n, k, group)(m).call()
        torch.cuda.synchronize()
    except Exception as error:  # said again where it is made
        return one_line(error)
    return ""


def warm(makers: dict[str, Maker], shapes: list[tuple[int, int]], ms: list[int], group: int) -> None:
    """Compile what humming and gemlite need for these problems, on all cores."""
    specs, faults = [], []
    try:
        specs = [s for make in makers.values() if isinstance(make, Humming) for n, k in shapes for s in make.specs(n, k, group, ms)]
        if specs:
            from humming.kernel.humming import HummingKernel

            HummingKernel.compile_many([(HummingKernel, spec) for spec in specs])
    except Exception as error:  # each of them says so again where it is made
        faults.append(f"humming: {one_line(error)}")
    jobs = [(make.is_fp8, n, k, group, m) for make in makers.values() if isinstance(make, Gemlite) for n, k in shapes for m in ms]
    try:
        with concurrent.futures.ProcessPoolExecutor(16, mp_context=multiprocessing.get_context("spawn")) as pool:
            faults += [f"gemlite: {fault}" for fault in dict.fromkeys(pool.map(compile_gemlite, jobs)) if fault]
    except concurrent.futures.BrokenExecutor as error:  # one of its processes ended
        faults.append(f"gemlite: {one_line(error)}")
    if specs or jobs:
        print(f"{len(specs)} kernels of humming, {len(jobs)} of gemlite compiled", *faults, sep="\n  ", flush=True)


def import_all(makers: dict[str, Maker]) -> None:
    """In a process that is to measure: import what the rivals need, and make the CUDA context."""
    wanted = {Humming: "humming.layer", Marlin: "marlin_rival", Gemlite: "gemlite", Quack: "quack_rival"}
    for kind in {type(make) for make in makers.values()} & set(wanted):
        with contextlib.suppress(Exception):  # said where the rival is made
            importlib.import_module(wanted[kind])
    torch.zeros(1, device="cuda")


def check(name: str, shapes: list[tuple[int, int]], ms: list[int], group: int) -> int:
    """In a process of its own: run a rival on these problems. How many it computes rightly; the others print a line each."""
    doing(name)
    make = {name: make for of_kind in RIVALS.values() for name, make in of_kind.items()}[name]
    return sum(len(at(made, m, {})) for n, k in shapes if (made := ready({name: make}, n, k, group)) for m in ms)


def usable(makers: dict[str, Maker], shapes: list[tuple[int, int]], ms: list[int], group: int, timeout: float = 60) -> list[str]:
    """The rivals that can be called without harm and compute something rightly: compiled first, then checked side by side."""
    processes = {name: Apart() for name in makers}
    warm(makers, shapes, ms, group)
    # the first N x K and the smallest one, each once
    some = list(dict.fromkeys((shapes[0], min(shapes, key=lambda shape: shape[0] * shape[1]))))

    def is_usable(name: str) -> bool:
        try:
            right = processes[name](check, name, some, ms, group, timeout=timeout)
            fault = "" if right else "nothing computed rightly"
        except RuntimeError as error:
            fault = str(error)
        processes[name].close()
        print(f"{name}: " + (f"left out: {fault}" if fault else f"{right} of {len(some) * len(ms)} problems right"), flush=True)
        return not fault

    with concurrent.futures.ThreadPoolExecutor(max(1, len(makers))) as threads:
        return [name for name, is_good in zip(makers, threads.map(is_usable, makers)) if is_good]


def ready(makers: dict[str, Maker], n: int, k: int, group: int) -> dict[str, Ready]:
    """The rivals that can be made for these weights. Raises where one breaks the CUDA context; `doing` says which."""
    return {name: made for name, make in makers.items() if (made := _tried(name, f"{n}x{k}", lambda: make(n, k, group))) is not None}  # noqa: B023


def at(ready: dict[str, Ready], m: int, distances: dict[str, float]) -> dict[str, Call]:
    """The calls of the rivals that give the right product for this M; `distances` keeps the largest of each. Raises as `ready`."""
    out: dict[str, Call] = {}
    for name, make in ready.items():
        checked = _tried(name, f"M = {m}", lambda: (rival := make(m), rival.distance()))  # noqa: B023
        if checked is not None:
            rival, distance = checked
            distances[name] = max(distances.get(name, 0.0), distance)
            out[name] = (rival.call, rival.kernels)
    return out


def _tried(name: str, where: str, call: Callable[[], Any]) -> Any:
    """What a rival's call gives, or None and a line where it raises. Raises where the CUDA context is broken."""
    doing(name)
    try:
        result = call()
    except Exception as error:  # a rival that does not run is none
        torch.cuda.synchronize()
        print(f"{name}: {where}: {one_line(error)}", flush=True)
        result = None
    doing("")
    return result
