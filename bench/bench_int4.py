"""`int4_gemm_nt` on one GPU, beside what else multiplies by INT4 weights, cuBLAS and our FP8, and the time in which memory could be read.

    python bench/bench_int4.py --out bench/results/h200.json        # chosen plans and rivals (int4_rivals.py), all shapes: W4A16, W4A8
    python bench/bench_int4.py --m 4096 --activation int4 bfloat16 float8_e4m3fn int8 --rival cublas our --out bench/results/h200.json
    python bench/bench_int4.py --sweep --out sweep.json             # every candidate plan, ours alone
    python bench/bench_int4.py --m 1 16 --shape 7168x16384 --activation int8 --rival humming

A row: bench (int4_gemm_nt:w4a16, :w4a8, :w4a4), m, n, k, activation, format, us, tflops, rivals {name: us}, method, plan, floor_us (compulsory
bytes at the copy bandwidth measured in the same run), gpu, date, versions, command; in the place of older rows of the same problem. us: the
median of the runs' medians. Kernel times by CUPTI, L2 flushed by reading 8 GB before each call, calls interleaved, random data; a rival's
result is compared with the float32 product first. Each rival is tried in a process of its own beforehand (int4_ready.py), and each N x K is
measured in one: where that breaks, once more without the rival that broke it. Both kinds of W4A8 stand beside the same rivals. W4A4 has one
scale a row and INT32 sums as output, as cuBLAS INT8 has.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import importlib.metadata
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bench_gemm
import cupy
import int4_ready
import int4_rivals
import torch
from apart import Apart, doing, one_line
from int4_ours import Ours, plans_of, problem_of, warm
from measure import Call, Flush, copy_bandwidth
from turns import in_turns

import dgnumba
from dgnumba.device import Device
from dgnumba.int4_plan import int4_kernel_named

SHAPES = [(7168, 16384), (28672, 8192), (4096, 4096), (8192, 8192), (4096, 14336)]
MS = [1, 8, 16, 32, 64, 128, 256]
ACTIVATIONS = ("bfloat16", "int8", "float8_e4m3fn", "float8_e4m3fn_row")
FAMILY = {"bfloat16": "w4a16", "float16": "w4a16", "int4": "w4a4"} | dict.fromkeys(("float8_e4m3fn", "float8_e4m3fn_row", "int8"), "w4a8")

LAST = {"float8_e4m3fn": 1, "float8_e4m3fn_row": 2}
"""Activations whose rows stand behind the others."""


def yardsticks(m: int, n: int, k: int, kinds: list[str], wanted: list[str]) -> dict[str, Call]:
    """cuBLAS in BF16, and beside INT4 activations in INT8; our FP8."""
    x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    y = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
    out: dict[str, Call] = {"cublas_bf16": (lambda: x @ y.T, ("",))}
    a, b = dgnumba.per_token_cast_to_fp8(cupy.asarray(x.float())), dgnumba.per_block_cast_to_fp8(cupy.asarray(y.float()))
    d = cupy.empty((m, n), cupy.uint16)
    out["our_fp8"] = (lambda: dgnumba.fp8_gemm_nt(a, b, d), ("fp8_gem",))
    if "int4" in kinds:
        x8, y8 = (torch.randint(-8, 8, (rows, k), dtype=torch.int8, device="cuda") for rows in (m, n))
        out["cublas_int8"] = (lambda: torch._int_mm(x8, y8.T), ("",))
    return {name: call for name, call in out.items() if is_wanted(name, wanted)}


def is_wanted(name: str, wanted: list[str]) -> bool:
    """Whether a rival's name contains one of the words; without words, all are wanted."""
    return not wanted or any(word in name for word in wanted)


def rows_of(ours: Ours, others: Callable[[int], dict[str, Call]], m: int, flush: Flush, notes: Notes) -> list[dict[str, Any]]:
    """The rows of one M x N x K: one for each kind of activations, or for each of its plans; all calls take turns in one run."""
    n, k, args = ours.n, ours.k, ours.args
    kinds = args.activation
    mine = {kind: ours.calls(m, kind) for kind in kinds}
    calls: dict[str, Call] = {f"{kind} {i}": call for kind, (_, by_plan) in mine.items() for i, call in enumerate(by_plan.values())}
    calls |= others(m)
    runs = [timed(calls, flush, args.rounds, notes) for _ in range(1 if args.sweep else args.runs)]
    us = {name: round(statistics.median(run[name] for run in runs), 3) for name in runs[0] if all(name in run for run in runs)}
    rows = []
    for kind, (problem, by_plan) in mine.items():
        beside = (*int4_rivals.RIVALS.get(kind, ()), "cublas_bf16", "our_fp8", *(("cublas_int8",) if kind == "int4" else ()))
        for i, plan in enumerate(by_plan):
            time_us = us[f"{kind} {i}"]
            rows.append({
                "bench": f"int4_gemm_nt:{FAMILY[kind]}", "m": m, "n": n, "k": k, "activation": kind,
                "format": f"int4_g{k if kind == 'int4' else args.group} {args.scale}", "us": time_us,
                "tflops": round(2e-6 * m * n * k / time_us, 1), "rivals": {name: us[name] for name in beside if name in us},
                "method": {"flush": flush.kind, "timer": "cupti", "runs": len(runs), "rounds": args.rounds, "interleaved": True, "data": "random"},
                "kernel": plan.kernel, "plan": plan.name, "chosen": i == 0, "floor_us": round(problem.bytes / notes.copied, 3),
                "estimate": int4_kernel_named(plan.kernel).estimate(plan, problem, ours.device),
                "choices": [plan.block_m, plan.block_n, plan.records, plan.split, plan.num_stages], "fold": plan.fold, "tail": plan.tail,
                "f16_sums": plan.f16_sums,
                "quads": plan.quads,
                "d_has_quads": problem.d_has_quads,
            })  # fmt: skip
        show(rows[-len(by_plan) :])
    return rows


def timed(calls: dict[str, Call], flush: Flush, rounds: int, notes: Notes) -> dict[str, float]:
    """Times of calls that take turns; where that fails, of ours and of those rivals that can be timed alone."""
    calls = {name: call for name, call in calls.items() if name not in notes.without}
    for name, (call, _) in calls.items():
        doing(name)
        call()
        torch.cuda.synchronize()
    doing("")
    try:
        return in_turns(calls, flush, rounds, notes.seen)
    except Exception as error:
        print(f"taking turns: {one_line(error)}", flush=True)
        bad = [name for name, call in calls.items() if not is_ours(name) and not is_timed_alone(name, call, flush)]
        if not bad:
            raise
        notes.without += bad
        return in_turns({name: call for name, call in calls.items() if name not in bad}, flush, rounds, notes.seen)


def is_ours(name: str) -> bool:
    """Whether a call is one of our plans, named by the activations and a number; not a rival."""
    return name.split()[0] in FAMILY


def is_timed_alone(name: str, call: Call, flush: Flush) -> bool:
    """Whether a rival can be timed by itself; one that cannot prints a line."""
    try:
        return bool(in_turns({name: call}, flush, 1))
    except Exception as error:
        print(f"{name}: left out: {one_line(error)}", flush=True)
        return False


class Notes:
    """What a run learns beside times: bandwidths, the rivals' distances from the right product, the kernels that were counted, and the rivals
    that are left out.
    """

    def __init__(self, without: list[str]) -> None:
        self.without = without
        self.copied, self.read = copy_bandwidth()
        torch.cuda.empty_cache()
        self.distances: dict[str, float] = {}
        self.seen: dict[str, dict[str, bool]] = {}
        print(f"copy {self.copied * 1e-6:.2f} TB/s (bytes read and written), read {self.read * 1e-6:.2f} TB/s", flush=True)

    def show(self) -> None:
        """Print what was counted."""
        for name, kernels in self.seen.items():
            if not is_ours(name):
                told = [f"{'' if counts else 'not '}counted {kernel[:50]}" for kernel, counts in kernels.items()]
                print(f"{name}: distance {self.distances.get(name, 0.0):.2g}, {'; '.join(dict.fromkeys(told))}")


def measure(n: int, k: int, args: Any, env: dict[str, Any], notes: Notes) -> tuple[list[dict[str, Any]], Notes]:
    """In a process of its own: the rows of one N x K, written after each M; and the notes, added to."""
    torch.manual_seed(0)
    flush, ours = Flush("read"), Ours(n, k, args.activation, args, Device.current())
    makers = {name: make for name, make in makers_of(args).items() if name not in notes.without}
    ready = int4_ready.ready(makers, n, k, args.group)
    doing("")

    def others(m: int) -> dict[str, Call]:
        if args.sweep or args.no_rivals:
            return {}
        return int4_ready.at(ready, m, notes.distances) | yardsticks(m, n, k, args.activation, args.rival)

    rows: list[dict[str, Any]] = []
    for m in args.m:
        rows += rows_of(ours, others, m, flush, notes)
        if not args.sweep:
            store(rows, args.out, args, env, notes)
    return rows, notes


def measured(process: Apart, n: int, k: int, args: Any, env: dict[str, Any], notes: Notes) -> tuple[list[dict[str, Any]], Notes]:
    """`measure` by a process; where that breaks, once more by another one, without the rival that broke it, nor is that called at later N x K.
    What breaks twice has no rows. Ours is called again: without it there is nothing to measure.
    """
    for given in (process, None):
        used = given or Apart(int4_ready.import_all, makers_of(args))
        try:
            result: tuple[list[dict[str, Any]], Notes] = used(measure, n, k, args, env, notes, timeout=args.timeout)
            return result
        except RuntimeError as error:
            print(f"{n}x{k}: {used.doing or 'between calls'}: {error}", flush=True)
            if used.doing and not is_ours(used.doing):
                notes.without.append(used.doing)
        finally:
            used.close()
    return [], notes


def show(rows: list[dict[str, Any]]) -> None:
    """One line for one problem: the chosen plan, the best one, the rivals."""
    mine, best = rows[0], min(rows, key=lambda r: r["us"])
    short = lambda row: row["plan"].split(" b")[0].split(" f")[0].split(" i")[0]  # noqa: E731
    beside = ", ".join(f"{name} {other:.1f} ({other / mine['us']:.2f})" for name, other in mine["rivals"].items())
    print(f"{mine['activation']:14s} {mine['m']:4d}x{mine['n']}x{mine['k']}: chosen {mine['us']:6.1f} us {short(mine):26s}"
          + (f" best {best['us']:6.1f} us {short(best):26s}" if len(rows) > 1 else "") + f" floor {mine['floor_us']:5.1f}  {beside}",
          flush=True)  # fmt: skip


def store(rows: list[dict[str, Any]], out: Path | None, args: Any, env: dict[str, Any], notes: Notes) -> None:
    """Write what there is: a sweep as it is, other rows in the place of older ones; FP8 last, and last of
    it that with a scale a row, as the rivals have it: one row of W4A8 is read where some are.
    """
    bandwidths = {"copy_bytes_per_us": notes.copied, "read_bytes_per_us": notes.read}
    if out is None:
        return
    if args.sweep:
        out.write_text(json.dumps({"about": env | bandwidths, "rows": rows}))
        return
    ours = {"chosen", "estimate", "choices"}
    new = [{key: value for key, value in row.items() if key not in ours} | env for row in rows]
    done = {bench_gemm.key_of(row) for row in new}
    kept = json.loads(out.read_text()) if out.exists() else []
    fp8 = [row for row in kept if row.get("activation") in LAST and bench_gemm.key_of(row) not in done]
    bench_gemm.save(sorted(new + fp8, key=lambda row: LAST.get(row["activation"], 0)), out)


def parsed() -> Any:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--no-rivals", action="store_true")
    parser.add_argument("--rival", nargs="*", default=[], help="only rivals whose names contain one of these")
    parser.add_argument("--runs", type=int, default=3, help="a sweep has one")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one N x K (a sweep: ten times as many)")
    parser.add_argument("--group", type=int, default=128)
    parser.add_argument("--scale", default="float16")
    parser.add_argument("--activation", nargs="*", choices=list(FAMILY), default=list(ACTIVATIONS))
    parser.add_argument("--m", nargs="*", type=int, default=MS)
    parser.add_argument("--shape", nargs="*", default=[f"{n}x{k}" for n, k in SHAPES])
    return parser.parse_args()


def environment(makers: dict[str, int4_rivals.Maker]) -> dict[str, Any]:
    """What every row says of where it was measured."""
    env = bench_gemm.environment()
    for name in ("humming-kernels", "gemlite", "quack-kernels", "triton") if makers else ():
        try:
            env["versions"][name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return env


def makers_of(args: Any) -> dict[str, int4_rivals.Maker]:
    """The rivals that are wanted."""
    if args.sweep or args.no_rivals:
        return {}
    return {
        name: make for kind in args.activation for name, make in int4_rivals.RIVALS.get(kind, {}).items() if is_wanted(name, args.rival)
    }


def prepare(args: Any, shapes: list[tuple[int, int]], device: Device) -> list[str]:
    """Compile all that will run, all at once, and try each rival. The rivals that cannot be used."""
    problems = [problem_of(m, n, k, kind, args.group, args.scale) for n, k in shapes for m in args.m for kind in args.activation]
    plans = list(dict.fromkeys(plan for problem in problems for plan in plans_of(problem, device, args.sweep)))
    makers = makers_of(args)
    by_source: dict[type, dict[str, int4_rivals.Maker]] = {}
    for name, make in makers.items():
        by_source.setdefault(type(make), {})[name] = make
    with concurrent.futures.ThreadPoolExecutor(len(by_source) + 2) as threads:  # much of each is the start of processes
        tried = [threads.submit(int4_ready.usable, some, shapes, args.m, args.group) for some in by_source.values()]
        jobs = [threads.submit(warm, plans)]
        if not args.sweep and not args.no_rivals and is_wanted("our_fp8", args.rival):
            jobs.append(threads.submit(bench_gemm.warm, [(m, n, k) for n, k in shapes for m in args.m]))
    for job in jobs:
        job.result()
    usable = {name for job in tried for name in job.result()}
    return [name for name in makers if name not in usable]


def main() -> None:
    """Measure, print, write."""
    args, began = parsed(), time.time()
    args.timeout *= 10 if args.sweep else 1
    device = Device.current()
    shapes = [(int(n), int(k)) for n, k in (s.split("x") for s in args.shape)]
    processes = {shape: Apart(int4_ready.import_all, makers_of(args)) for shape in dict.fromkeys(shapes)}  # while the others compile
    without = prepare(args, list(processes), device)
    print(f"ready after {time.time() - began:.0f} s", flush=True)
    env, notes, rows = environment(makers_of(args)), Notes(without), []
    for (n, k), process in processes.items():
        begin = time.time()
        of_shape, notes = measured(process, n, k, args, env, notes)
        rows += of_shape
        print(f"{n}x{k}: {len(of_shape)} rows in {time.time() - begin:.0f} s", flush=True)
        if rows:
            store(rows, args.out, args, env, notes)
    notes.show()
    compare(rows)
    print(f"{time.time() - began:.0f} s in all")


def compare(rows: list[dict[str, Any]]) -> None:
    """Ratios to each rival and to the best that takes INT4 weights, over all rows of a kind."""
    chosen = [r for r in rows if r["chosen"]]
    for kind in dict.fromkeys(r["activation"] for r in chosen):
        mine = [r for r in chosen if r["activation"] == kind]
        ratios = {name: [r["rivals"][name] / r["us"] for r in mine if name in r["rivals"]] for r in mine for name in r["rivals"]}
        peers = int4_rivals.RIVALS.get(kind, {})
        best = [min(times) / r["us"] for r in mine if (times := [us for name, us in r["rivals"].items() if name in peers])]
        for name, all_of in (ratios | ({"the best with INT4 weights": best} if best else {})).items():
            print(
                f"{kind}: {name}: {statistics.geometric_mean(all_of):.3f} in the geometric mean of {len(all_of)}, least {min(all_of):.3f}"
            )


if __name__ == "__main__":
    main()
