"""`int4_gemm_nt` on one GPU, beside cuBLAS BF16, torch's own int4 and our FP8, and the time in which memory could be read.

    python bench/bench_int4.py --out rows.json                  # chosen plans and rivals, all shapes
    python bench/bench_int4.py --sweep --out sweep.json         # every candidate plan, ours alone
    python bench/bench_int4.py --m 1 16 --shape 7168x16384 --activation int8

A row: bench, m, n, k, activation, format, us (median), plan, floor_us (compulsory bytes at the copy bandwidth measured in the same run),
rivals {name: us}. Kernel times by CUPTI, L2 flushed by reading 8 GB before each call, calls interleaved, random data.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import cupy
import numpy as np
import torch
from measure import Flush, kernel_times
from torch.profiler import ProfilerActivity, profile

import dgnumba
from dgnumba import launching
from dgnumba.device import Device
from dgnumba.int4_operands import check_int4_gemm_nt, lay_out
from dgnumba.int4_plan import choose_int4, int4_kernel_named, validate_int4
from dgnumba.int4_prepared import Launch
from dgnumba.int4_problem import Int4Problem
from dgnumba.kernels.int4_spec import Int4Plan

SHAPES = [(4096, 4096), (8192, 8192), (7168, 16384), (28672, 8192), (4096, 14336)]
MS = [1, 8, 16, 32, 64, 128, 256]
ACTIVATIONS = ("bfloat16", "float8_e4m3fn", "int8")


def copy_bandwidth() -> tuple[float, float]:
    """Bytes a microsecond of a device-to-device copy (read and written), and of a reduction (read)."""
    x = torch.zeros(1 << 30, dtype=torch.int32, device="cuda")
    y = torch.empty_like(x)
    out = []
    for call, factor in ((lambda: y.copy_(x), 2), (lambda: torch.amax(x), 1)):
        call()
        times = []
        for _ in range(7):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            call()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1e3)
        out.append(x.numel() * 4 * factor / statistics.median(times))
    return out[0], out[1]


def random_weights(n: int, k: int, group: int, scale_dtype: str) -> dgnumba.QTensor:
    """Random int4 weights on the GPU."""
    codes = cupy.random.randint(0, 16, (n, k), dtype=cupy.uint8)
    scale = (cupy.random.random((n, -(-k // group)), dtype=cupy.float32) * 0.02 + 0.01).astype(cupy.float16)
    if scale_dtype == "bfloat16":
        scale = (cupy.random.random(scale.shape, dtype=cupy.float32) + 0.5).view(cupy.uint32) >> 16
        return dgnumba.QTensor(codes, scale.astype(cupy.uint16), "int4", (1, group), scale_dtype="bfloat16")
    return dgnumba.QTensor(codes, scale, "int4", (1, group))


def activations(m: int, k: int, kind: str) -> Any:
    """Random activations on the GPU, as `int4_gemm_nt` takes them."""
    x = torch.randn(m, k, device="cuda")
    if kind == "bfloat16":
        return cupy.asarray(x.bfloat16().view(torch.int16)).view(cupy.uint16)
    if kind == "float16":
        return cupy.asarray(x.half())
    if kind == "float8_e4m3fn":
        return dgnumba.per_token_cast_to_fp8(cupy.asarray(x))
    scale = x.abs().amax(dim=1, keepdim=True) / 127
    codes = torch.round(x / scale).to(torch.int8)
    return dgnumba.QTensor(cupy.asarray(codes).view(cupy.uint8), cupy.asarray(scale), "int8", (1, k))


def compile_plan(plan: Int4Plan) -> str:
    """In a process of its own: compile a plan into the cache on disk; what is wrong with it, or nothing."""
    made = int4_kernel_named(plan.kernel).build(plan)
    cubin = launching.compiled(plan, lambda: (made.kernel, made.argtypes), arch="sm_90a", threads=made.threads)
    return f"{plan.name}: {cubin.spill_stores + cubin.spill_loads} spilled" if cubin.spill_stores else ""


def warm(plans: list[Int4Plan]) -> None:
    """Fill the cache on disk, with all cores."""
    begin = time.time()
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        for fault in pool.map(compile_plan, plans, chunksize=1):
            if fault:
                print(fault)
    print(f"{len(plans)} plans compiled in {time.time() - begin:.0f} s", flush=True)


def in_order(calls: list[Callable[[], Any]], flush: Flush, rounds: int) -> list[float]:
    """Median microseconds of each call; all launch one kernel of this package, told apart by their order."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(rounds):
            for call in calls:
                flush()
                call()
        torch.cuda.synchronize()
    events = [e for e in profiler.events() if e.device_type == torch.autograd.DeviceType.CUDA and "int4_gemm" in e.name]
    events.sort(key=lambda e: e.time_range.start)
    assert len(events) == rounds * len(calls), (len(events), rounds, len(calls))
    us = [e.time_range.elapsed_us() for e in events]
    return [statistics.median(us[i :: len(calls)]) for i in range(len(calls))]


def launches(a: Any, w: Any, d: Any, plans: list[Int4Plan], device: Device) -> list[Callable[[], Any]]:
    """Launches of plans on one problem's operands."""
    operands = check_int4_gemm_nt(a, w, d)
    laid = lay_out(operands)
    stream = cupy.cuda.get_current_stream().ptr or launching.LEGACY
    out = []
    for plan in plans:
        launch = Launch(validate_int4(plan, operands.problem, device), laid, device)
        out.append(lambda launch=launch: launch(laid, stream))
    return out


def problem_of(m: int, n: int, k: int, kind: str, group: int, scale: str) -> Int4Problem:
    """The problem of these operands, before they are made."""
    return Int4Problem(m, n, k, kind, "int4", "bfloat16", group, scale)


def torch_int4(q: Any, m: int, n: int, k: int, group: int) -> tuple[Callable[[], Any], tuple[str, ...]] | None:
    """torch's `_weight_int4pack_mm`, on random weights of the same size."""
    try:
        x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        packed = torch._convert_weight_to_int4pack(torch.randint(0, 255, (n, k // 2), dtype=torch.uint8, device="cuda"), 8)
        scales = torch.randn(k // group, n, 2, device="cuda", dtype=torch.bfloat16)
        torch._weight_int4pack_mm(x, packed, group, scales)
        torch.cuda.synchronize()
    except (RuntimeError, AttributeError) as error:
        print(f"torch int4: {str(error).splitlines()[0]}")
        return None
    return (lambda: torch._weight_int4pack_mm(x, packed, group, scales)), ("tinygemm",)


def humming(m: int, n: int, k: int, group: int) -> tuple[Callable[[], Any], tuple[str, ...]] | None:
    """humming-kernels' W4A16, where it can be imported and made to run; measured only."""
    try:
        from humming.layer import HummingLayer

        config = {"dtype": "int4", "group_size": group}
        layer = HummingLayer(shape_n=n, shape_k=k, weight_config=config, torch_dtype=torch.bfloat16).cuda()
        layer.load_from_unquantized(torch.randn((n, k), dtype=torch.bfloat16, device="cuda"))
        layer.transform()
        x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        layer(x)
        torch.cuda.synchronize()
    except Exception as error:  # a rival that does not run is none
        print(f"humming: {type(error).__name__}: {str(error).splitlines()[:1]}")
        return None
    return (lambda: layer(x)), ("humming",)


def rivals(q: Any, m: int, n: int, k: int, group: int) -> dict[str, tuple[Callable[[], Any], tuple[str, ...]]]:
    """What else multiplies these extents."""
    x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    y = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
    out: dict[str, Any] = {"cublas_bf16": (lambda: x @ y.T, ("nvjet", "gemm", "splitK", "gemv", "cutlass"))}
    a, b = dgnumba.per_token_cast_to_fp8(cupy.asarray(x.float())), dgnumba.per_block_cast_to_fp8(cupy.asarray(y.float()))
    d = cupy.empty((m, n), cupy.uint16)
    out["our_fp8"] = (lambda: dgnumba.fp8_gemm_nt(a, b, d), ("fp8_gemm",))
    if (found := humming(m, n, k, group)) is not None:
        out["humming"] = found
    if m <= 64 and (found := torch_int4(q, m, n, k, group)) is not None:
        out["torch_int4"] = found
    return out


def measure(shape: tuple[int, int, int], kind: str, args: Any, flush: Flush, bandwidth: float, device: Device) -> list[dict[str, Any]]:
    """The rows of one problem: one, or one a plan."""
    m, n, k = shape
    q = random_weights(n, k, args.group, args.scale)
    w = dgnumba.prepare_int4_weights(q, kind)
    a, d = activations(m, k, kind), cupy.empty((m, n), cupy.uint16)
    problem = problem_of(m, n, k, kind, args.group, args.scale)
    choice = choose_int4(problem, device)
    plans = int4_kernel_named(choice.plan.kernel).candidates(problem, device) if args.sweep else [choice.plan]
    us = in_order(launches(a, w, d, plans, device), flush, args.rounds)
    others = {} if args.sweep or args.no_rivals else kernel_times(rivals(q, m, n, k, args.group), flush, args.rounds)
    rows = []
    for plan, time_us in zip(plans, us):
        rows.append({
            "bench": "int4_gemm_nt", "m": m, "n": n, "k": k, "activation": kind, "format": f"int4_g{args.group} {args.scale}", "us": time_us,
            "plan": plan.name, "chosen": plan == choice.plan, "floor_us": problem.bytes / bandwidth, "rivals": others,
            "estimate": int4_kernel_named(plan.kernel).estimate(plan, problem, device),
            "choices": [plan.block_m, plan.block_n, plan.records, plan.split, plan.num_stages],
        })  # fmt: skip
    best = min(rows, key=lambda r: r["us"])
    mine = next(r for r in rows if r["chosen"])
    beside = ", ".join(f"{name} {other:.1f}" for name, other in others.items())
    print(f"{kind:14s} {m:4d}x{n}x{k}: chosen {mine['us']:6.1f} us {mine['plan'].split(' b')[0].split(' f')[0].split(' i')[0]:26s}"
          + (f" best {best['us']:6.1f} us {best['plan'].split(' b')[0].split(' f')[0].split(' i')[0]:26s}" if args.sweep else "")
          + f" floor {mine['floor_us']:5.1f}  {beside}", flush=True)  # fmt: skip
    return rows


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--no-rivals", action="store_true")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--group", type=int, default=128)
    parser.add_argument("--scale", default="float16")
    parser.add_argument("--activation", nargs="*", default=list(ACTIVATIONS))
    parser.add_argument("--m", nargs="*", type=int, default=MS)
    parser.add_argument("--shape", nargs="*", default=[f"{n}x{k}" for n, k in SHAPES])
    args = parser.parse_args()
    device = Device.current()
    copied, read = copy_bandwidth()
    print(f"copy {copied * 1e-6:.2f} TB/s (bytes read and written), read {read * 1e-6:.2f} TB/s", flush=True)
    shapes = [(m, *map(int, s.split("x"))) for s in args.shape for m in args.m]
    wanted: dict[Int4Plan, None] = {}
    for m, n, k in shapes:
        for kind in args.activation:
            problem = problem_of(m, n, k, kind, args.group, args.scale)
            choice = choose_int4(problem, device)
            every = int4_kernel_named(choice.plan.kernel).candidates(problem, device) if args.sweep else [choice.plan]
            wanted.update(dict.fromkeys(every))
    warm(list(wanted))
    flush, rows = Flush("read"), []
    versions = {"dgnumba": dgnumba.__version__, "python": sys.version.split()[0], "torch": torch.__version__, "numpy": np.__version__}
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True, check=False
    )
    about = {"gpu": device.name, "versions": versions | {"driver": driver.stdout.strip()}, "copy_bytes_per_us": copied, "read_bytes_per_us": read,
             "method": {"timer": "CUPTI", "flush": "read", "rounds": args.rounds}, "command": " ".join(sys.argv)}  # fmt: skip
    for kind in args.activation:
        for shape in shapes:
            rows += measure(shape, kind, args, flush, copied, device)
            if args.out:
                with open(args.out, "w") as stream:
                    json.dump({"about": about, "rows": rows}, stream)
    geometric(rows)


def geometric(rows: list[dict[str, Any]]) -> None:
    """Ratios to each rival over all rows."""
    chosen = [r for r in rows if r["chosen"]]
    for name in sorted({n for r in chosen for n in r["rivals"]}):
        ratios = [r["rivals"][name] / r["us"] for r in chosen if name in r["rivals"]]
        print(f"{name}: {statistics.geometric_mean(ratios):.3f} of its time, in the geometric mean of {len(ratios)}")


if __name__ == "__main__":
    main()
