"""How fast a product of few rows could be: our plan and its rivals beside kernels that only read the weights and write the output.

    python bench/floor_decode.py --out floor.json [--m 1 16 64] [--also plans.json]

All in one run, in turns, L2 flushed by reading before each call, kernel time by CUPTI, as `bench_gemm` has it. A row: m, n, k, us (ours, by the
plan that is chosen), plan, rivals {name: us}, others {plan: us}, plain {kernel: us}, bits_equal {plan: against DeepGEMM, as bits}. `others` are
what ``--also``, {"MxNxK": [names of plans]}, has for the problem; a problem of its that is not asked for is measured at the end. Plain kernels
(`kernels.sm90_floors`): loads of 16 bytes by threads, bulk copies and TMA (an L2 promotion of 128 and of 256) through a ring in shared memory, in
several launch shapes each; they read N * K bytes once and write M * N * 2, but no token and no scale.
The summary says what the geometric mean by the better rival is, and what it would be at the fastest plain kernel: no product gets further.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import math
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cupy
import numpy as np
import torch
from bench_gemm import NK, Operands, compile_plan, environment, rivals
from measure import Call, Flush
from turns import in_turns

import dgnumba
from dgnumba import _numba, launching
from dgnumba import plan as planning
from dgnumba.device import Device
from dgnumba.integers import u32
from dgnumba.kernels import GemmPlan
from dgnumba.kernels import sm90_floors as floors
from dgnumba.layouts.descriptors import TensorMap
from dgnumba.problem import GemmProblem

KB = 1024
LOADS = [(4, 1, 1024), (4, 2, 1024), (4, 4, 512), (4, 8, 256), (8, 1, 1024), (8, 2, 512), (8, 4, 256), (16, 1, 512), (16, 2, 256)]
"""Pieces a thread has on their way, CTAs a multiprocessor, threads of one."""
RINGS = [
    (1, floors.Ring(6, 256, nbytes=32 * KB)),
    (1, floors.Ring(13, 256, nbytes=16 * KB)),
    (2, floors.Ring(6, 256, nbytes=16 * KB)),
    (4, floors.Ring(6, 128, nbytes=8 * KB)),
    (1, floors.Ring(6, 256, blocks=4)),
    (1, floors.Ring(13, 256, blocks=2)),
    (2, floors.Ring(6, 256, blocks=2)),
]
"""CTAs a multiprocessor, and what they are."""

Kernel = Callable[..., Any]


def plain_calls(n: int, k: int, m: int, b: Any, kernels: dict[Any, Kernel], num_sms: int) -> dict[str, Call]:
    """The plain kernels on weights `b`, uint8 [n, k], by name; of those whose chunks divide them."""
    d = cupy.empty((m, n), cupy.uint16)
    stores = d.nbytes // floors.PIECE
    calls: dict[str, Call] = {}
    for unroll, ctas, threads in LOADS:
        grid, pieces = ctas * num_sms, b.nbytes // floors.PIECE
        rounds = -(-pieces // (grid * threads * unroll))
        for each in {0, -(-stores // (rounds * grid * threads))}:
            args = b, d, u32(pieces), u32(stores), u32(each)
            name = f"load {unroll} x {ctas} x {threads}" + (" write last" if each == 0 else "")
            calls[name] = _call(kernels[unroll], grid, threads, args, 0)
    for ctas, ring in RINGS:
        across = k // (128 * ring.blocks) if ring.blocks else 1
        if b.nbytes % ring.chunk_bytes or (ring.blocks and (k % (128 * ring.blocks) or n % floors.ROWS)):
            continue
        chunks = b.nbytes // ring.chunk_bytes
        name = f"{ring.chunk_bytes // KB} KB x {ring.slots} x {ctas}"
        sources: dict[str, Any] = {f"bulk {name}": b}
        if ring.blocks:
            dims, strides, box = (128, n, k // 128), (k, 128), (128, floors.ROWS, ring.blocks)
            sources = {f"tma {name}, L2 {nbytes}": TensorMap("uint8", dims, strides, box, 128, b, nbytes) for nbytes in (128, 256)}
        for label, source in sources.items():
            args = source, d, u32(chunks), u32(across), u32(stores), u32(-(-stores // (chunks * ring.threads)))
            calls[label] = _call(kernels[ring], min(chunks, ctas * num_sms), ring.threads, args, ring.smem_bytes)
    return calls


def _call(kernel: Kernel, grid: int, threads: int, args: tuple[Any, ...], smem: int) -> Call:
    return lambda: launching.launch(kernel, grid, threads, args, smem=smem), ("dgnumba",)


def compile_plain(what: Any, threads: int) -> None:
    """Put a plain kernel for CTAs of so many threads into the cache on disk; runs in a process of its own."""
    kernel, b, d = plain_kernel(what), np.empty((1, 1), np.uint8), np.empty((1, 1), np.uint16)
    args: tuple[Any, ...] = (b, d, *[u32(1)] * 3)
    if isinstance(what, floors.Ring):
        args = (TensorMap("uint8", (128, 64, 8), (1024, 128), (128, 64, 1), 128) if what.blocks else b, d, *[u32(1)] * 4)
    argtypes = tuple(_numba.argtype(a, i) for i, a in enumerate(args))
    launching.compiled(kernel, lambda: (kernel, argtypes), arch="sm_90a", threads=threads, argtypes=argtypes)


def plain_kernel(what: Any) -> Kernel:
    """The plain kernel of a ring, or of this many loads."""
    return floors.ring_kernel(what) if isinstance(what, floors.Ring) else floors.load_kernel(what)


Also = dict[str, list[str]]


def plans_of(problem: GemmProblem, also: Also, device: Device) -> dict[str, GemmPlan]:
    """The plan that is chosen, as "ours", and those that are named for the problem."""
    names = also.get(f"{problem.m}x{problem.n}x{problem.k}", [])
    return {"ours": planning.choose(problem, device).plan} | {name: planning.named(name, problem, device).plan for name in names}


def measure(shape: tuple[int, int, int], also: Also, flush: Flush, rounds: int, kernels: dict[Any, Kernel]) -> dict[str, Any]:
    """One row, but for what all rows say."""
    m, n, k = shape
    device, op = Device.current(), Operands(m, n, k)
    plans = plans_of(GemmProblem(m, n, k), also, device)
    calls: dict[str, Call] = {}
    for name, plan in plans.items():
        calls[name] = (lambda plan=plan: dgnumba.fp8_gemm_nt(op.a, op.b, op.d, plan=plan)), ("dgnumba",)
    beside = rivals(op, m, n, k)
    calls |= beside
    equal = {}
    if "deepgemm" in beside:
        op.deepgemm()
        for name, plan in plans.items():
            op.d.fill(0x7FC0)
            dgnumba.fp8_gemm_nt(op.a, op.b, op.d, plan=plan)
            equal[name] = bool((cupy.asarray(op.rival_d.view(torch.int16)).view(cupy.uint16) == op.d).all())
    plain = plain_calls(n, k, m, op.b[0], kernels, device.num_sms)
    us = {name: round(t, 3) for name, t in in_turns(calls | plain, flush, rounds).items()}
    return {
        "bench": "decode_floor", "m": m, "n": n, "k": k, "us": us["ours"], "plan": f"{plans['ours'].kernel} {plans['ours'].name}",
        "rivals": {name: us[name] for name in beside}, "others": {name: us[name] for name in plans if name != "ours"},
        "plain": dict(sorted(((name, us[name]) for name in plain), key=lambda item: item[1])), "bits_equal": equal,
        "method": {"flush": "read", "timer": "cupti", "rounds": rounds, "interleaved": True, "data": "normal"},
    }  # fmt: skip


def shape_of(name: str) -> tuple[int, int, int]:
    """M, N and K of "MxNxK"."""
    m, n, k = map(int, name.split("x"))
    return m, n, k


def mean(values: list[float]) -> float:
    """The geometric mean."""
    return math.exp(statistics.fmean(map(math.log, values)))


def summary(rows: list[dict[str, Any]]) -> str:
    """For each M: the better rival's time over ours, over the fastest plan's of those timed, and over the fastest plain kernel's."""
    lines = []
    for m in sorted({row["m"] for row in rows}):
        mine = [row for row in rows if row["m"] == m and row["rivals"]]
        if mine:
            rival = [min(row["rivals"].values()) for row in mine]
            best = [min([row["us"], *row["others"].values()]) for row in mine]
            floor = [min(row["plain"].values()) for row in mine]
            ratios = [mean([r / x for r, x in zip(rival, those)]) for those in ([row["us"] for row in mine], best, floor)]
            lines.append(f"M = {m}: ours {ratios[0]:.3f}, best plan {ratios[1]:.3f}, plain kernels {ratios[2]:.3f} of the better rival")
    return "\n".join(lines)


def warm(shapes: list[tuple[int, int, int]], also: Also) -> None:
    """Compile in parallel what the shapes need."""
    device = Device.current()
    plans = {plan for shape in shapes for plan in plans_of(GemmProblem(*shape), also, device).values()}
    plain = {(unroll, threads) for unroll, _, threads in LOADS} | {(ring, ring.threads) for _, ring in RINGS}
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count(), mp_context=multiprocessing.get_context("spawn")) as pool:
        done = [*[pool.submit(compile_plan, plan) for plan in plans], *[pool.submit(compile_plain, *what) for what in plain]]
        for one in done:
            one.result()


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--m", type=int, nargs="*", default=[1, 16, 64])
    parser.add_argument("--also", type=Path, help="a JSON file of plans to time as well, by problem")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    begin = time.time()
    torch.manual_seed(0)
    also: Also = json.loads(options.also.read_text()) if options.also else {}
    shapes = list(dict.fromkeys([*((m, n, k) for m in options.m for n, k in NK), *map(shape_of, also)]))
    warm(shapes, also)
    print(f"compiled after {time.time() - begin:.0f} s", flush=True)
    kernels = {what: plain_kernel(what) for what in [unroll for unroll, _, _ in LOADS] + [ring for _, ring in RINGS]}
    env, flush, rows = environment(), Flush("read"), []
    for shape in shapes:
        row = measure(shape, also, flush, options.rounds, kernels)
        rows.append(row)
        others = "; ".join(f"{name} {us:.2f}" for name, us in sorted(row["others"].items(), key=lambda item: item[1]))
        plain = "; ".join(f"{name} {us:.2f}" for name, us in list(row["plain"].items())[:4])
        wrong = [name for name, is_equal in row["bits_equal"].items() if not is_equal]
        print(
            f"{shape}: ours {row['us']:.2f} ({row['plan']}), {row['rivals']}, others: {others}; plain: {plain}; bits differ: {wrong}",
            flush=True,
        )
        if options.out is not None:
            options.out.write_text(json.dumps([r | env for r in rows], indent=1) + "\n")
    print(summary(rows), f"{time.time() - begin:.0f} s in all", sep="\n")


if __name__ == "__main__":
    main()
