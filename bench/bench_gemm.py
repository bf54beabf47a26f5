"""`fp8_gemm_nt` beside DeepGEMM and cuBLASLt on one GPU: one command, one table, one JSON.

    python bench/bench_gemm.py --out bench/results/h200.json     # all families, and the host's cost
    python bench/bench_gemm.py --family large

large: M = 4096 and 8192^3; middle: M from 17 to 8192; decode: M from 1 to 128, L2 flushed both ways. DeepGEMM is measured where `deep_gemm`
can be imported, cuBLASLt through it (unscaled: cuBLASLt gets no block scales). A row: bench, m, n, k, us (median of three runs), tflops,
rivals {name: us}, method, bits_equal (against DeepGEMM, compared as bits), plan, gpu, date, versions, command.
"""

from __future__ import annotations

import argparse
import compileall
import concurrent.futures
import datetime
import importlib.metadata
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cupy
import torch
from measure import Flush, kernel_times
from recorded import command

import dgnumba
from dgnumba import plan as planning
from dgnumba.device import Device
from dgnumba.layouts.scales import get_mn_major_tma_aligned_tensor
from dgnumba.problem import GemmProblem

try:
    import deep_gemm
except ImportError:
    deep_gemm = None

NK = [(2112, 7168), (576, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048)]
FAMILIES: dict[str, tuple[list[tuple[int, int, int]], tuple[str, ...]]] = {
    "large": ([(4096, n, k) for n, k in NK] + [(8192, 8192, 8192)], ("memset",)),
    "middle": ([(m, n, k) for m in (17, 127, 256, 512, 1000, 1024, 2048, 4097, 8192) for n, k in NK], ("memset",)),
    "decode": ([(m, n, k) for m in (1, 8, 16, 32, 64, 128) for n, k in NK], ("read", "memset")),
}


def environment() -> dict[str, Any]:
    """What every row says of where it was measured."""
    names = ("numba", "numba-cuda", "cuda-core", "cuda-bindings", "cupy-cuda13x", "numpy", "torch")
    versions = {"dgnumba": dgnumba.__version__, "python": sys.version.split()[0]}
    for name in names:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    if deep_gemm is not None:
        versions["deep_gemm"] = f"{deep_gemm.__version__} (54e2261)"
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    versions["driver"] = subprocess.run(query, capture_output=True, text=True, check=False).stdout.split("\n")[0]
    return {"gpu": Device.current().name, "date": datetime.date.today().isoformat(), "versions": versions, "command": command()}


class Operands:
    """One problem's random operands, as torch tensors and as CuPy arrays over the same memory."""

    def __init__(self, m: int, n: int, k: int) -> None:
        x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        y = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
        a, b = dgnumba.per_token_cast_to_fp8(cupy.asarray(x.float())), dgnumba.per_block_cast_to_fp8(cupy.asarray(y.float()))
        self.a, self.b = (a.data, get_mn_major_tma_aligned_tensor(a.scale)), (b.data, b.scale)
        self.torch_a = (torch.as_tensor(a.data, device="cuda").view(torch.float8_e4m3fn), torch.as_tensor(self.a[1], device="cuda"))
        self.torch_b = (torch.as_tensor(b.data, device="cuda").view(torch.float8_e4m3fn), torch.as_tensor(b.scale, device="cuda"))
        self.d = cupy.full((m, n), 0x7FC0, cupy.uint16)
        self.rival_d = torch.full((m, n), float("nan"), dtype=torch.bfloat16, device="cuda")

    def ours(self) -> None:
        """Our call."""
        dgnumba.fp8_gemm_nt(self.a, self.b, self.d)

    def deepgemm(self) -> None:
        """DeepGEMM's."""
        deep_gemm.fp8_gemm_nt(self.torch_a, self.torch_b, self.rival_d, disable_ue8m0_cast=True)

    def cublas(self) -> None:
        """cuBLASLt's, without scales."""
        deep_gemm.cublaslt_gemm_nt(self.torch_a[0], self.torch_b[0], self.rival_d)

    def bits_equal(self) -> bool:
        """Whether the last outputs of `ours` and `deepgemm` agree in every bit."""
        self.ours()
        self.deepgemm()
        torch.cuda.synchronize()
        return bool((cupy.asarray(self.rival_d.view(torch.int16)).view(cupy.uint16) == self.d).all())


def rivals(op: Operands, m: int, n: int, k: int) -> dict[str, tuple[Callable[[], None], tuple[str, ...]]]:
    """The rivals that take the problem."""
    out: dict[str, tuple[Callable[[], None], tuple[str, ...]]] = {}
    if deep_gemm is None or n % 8 or k % 16:
        return out
    out["deepgemm"] = (op.deepgemm, ("deep_gemm",))
    if m % 16 == 0 or m == 1 or m % 8 == 0:
        try:
            op.cublas()
            torch.cuda.synchronize()
            out["cublaslt_unscaled"] = (op.cublas, ("nvjet", "splitK"))
        except RuntimeError:
            pass
    return out


def measure(shape: tuple[int, int, int], flush: Flush, runs: int, rounds: int, env: dict[str, Any]) -> dict[str, Any]:
    """One row."""
    m, n, k = shape
    op = Operands(m, n, k)
    calls = {"ours": (op.ours, ("dgnumba",)), **rivals(op, m, n, k)}
    equal = op.bits_equal() if "deepgemm" in calls else None
    times = [kernel_times(calls, flush, rounds) for _ in range(runs)]
    us = {name: round(statistics.median(t[name] for t in times), 3) for name in times[0]}
    ours = us.pop("ours")
    row: dict[str, Any] = {
        "bench": "fp8_gemm_nt",
        "m": m,
        "n": n,
        "k": k,
        "us": ours,
        "tflops": round(2e-6 * m * n * k / ours, 1),
        "rivals": us,
    }
    row["method"] = {"flush": flush.kind, "timer": "cupti", "runs": runs, "rounds": rounds, "interleaved": True, "data": "normal"}
    if equal is not None:
        row["bits_equal"] = equal
    row["plan"] = planning.choose(GemmProblem(m, n, k), Device.current()).plan.name
    return row | env


def host_cost(env: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Microseconds of the host for one call in steady state, beside DeepGEMM's in the same run."""

    def cost(call: Callable[[], None], calls: int = 1000) -> float:
        for _ in range(50):
            call()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        spent = (time.perf_counter() - begin) / calls * 1e6
        torch.cuda.synchronize()
        return round(spent, 2)

    for m, n, k in ((16, 7168, 2048), (4096, 7168, 2048)):
        op = Operands(m, n, k)
        us = statistics.median(cost(op.ours, 300) for _ in range(3))
        others = {"deepgemm": statistics.median(cost(op.deepgemm, 300) for _ in range(3))} if deep_gemm is not None else {}
        method = {"timer": "wall clock, no synchronisation", "runs": 3}
        yield {"bench": "host_call", "m": m, "n": n, "k": k, "us": us, "rivals": others, "method": method} | env
        multiply = dgnumba.prepare_fp8_gemm_nt(op.a, op.b, op.d)
        us = statistics.median(cost(lambda: multiply(op.a, op.b, op.d), 300) for _ in range(3))  # noqa: B023
        yield {"bench": "host_prepared", "m": m, "n": n, "k": k, "us": us, "rivals": others, "method": method} | env


FIRST = """
import time, cupy
a = (cupy.zeros((128, 2048), cupy.uint8), cupy.ones((128, 16), cupy.float32))
b = (cupy.zeros((7168, 2048), cupy.uint8), cupy.ones((56, 16), cupy.float32))
cupy.cuda.Device().synchronize()
t0 = time.perf_counter()
from dgnumba import fp8_gemm_nt
t = time.perf_counter(); fp8_gemm_nt(a, b); cupy.cuda.Device().synchronize(); print(t - t0, time.perf_counter() - t)
"""
RIVAL_FIRST = """
import time, torch
x = torch.zeros(1, device="cuda"); torch.cuda.synchronize()
t0 = time.perf_counter()
import deep_gemm
imported = time.perf_counter() - t0
a = (torch.zeros(128, 2048, dtype=torch.float8_e4m3fn, device="cuda"), torch.ones(128, 16, device="cuda"))
b = (torch.zeros(7168, 2048, dtype=torch.float8_e4m3fn, device="cuda"), torch.ones(56, 16, device="cuda"))
d = torch.empty(128, 7168, dtype=torch.bfloat16, device="cuda")
t = time.perf_counter(); deep_gemm.fp8_gemm_nt(a, b, d, disable_ue8m0_cast=True); torch.cuda.synchronize()
print(imported, time.perf_counter() - t)
"""


def first_calls(env: dict[str, Any], runs: int = 3) -> Iterator[dict[str, Any]]:
    """Microseconds to the first result of a process that has its CUDA context and has imported the function, with an empty and with a filled cache.

    Of our import too, by itself (`import_us`): a process that has neither waits for both. Byte code is on disk, as after an installation.
    """
    compileall.compile_dir(Path(dgnumba.__file__).parent, quiet=1)
    with tempfile.TemporaryDirectory() as root:

        def microseconds(script: str, folder: str) -> tuple[int, int]:
            variables = os.environ | {"DGNUMBA_CACHE_DIR": folder, "DG_JIT_CACHE_DIR": folder + "/deepgemm"}
            variables.pop("PYTHONDONTWRITEBYTECODE", None)
            out = subprocess.run([sys.executable, "-c", script], env=variables, capture_output=True, text=True, check=True)
            imported, took = (round(float(x) * 1e6) for x in out.stdout.split()[-2:])
            return imported, took

        for state in ("empty", "filled"):
            folders = [f"{root}/{run if state == 'empty' else 0}" for run in range(runs)]
            ours = [microseconds(FIRST, folder) for folder in folders]
            imported, took = (round(statistics.median(column)) for column in zip(*ours))
            others = {}
            if deep_gemm is not None:
                others["deepgemm"] = round(statistics.median(microseconds(RIVAL_FIRST, folder)[1] for folder in folders))
            method = {"timer": "wall clock", "runs": runs, "imported": True, "byte_code": "on disk"}
            yield {"bench": "first_call", "cache": state, "us": took, "import_us": imported, "rivals": others, "method": method} | env


def compile_plan(plan: Any) -> str:
    """Put a plan's kernel into the cache; runs in a process of its own."""
    from dgnumba import launching
    from dgnumba.prepared import built

    choice = planning.Choice(plan, planning.kernel_named(plan.kernel), None, 0, ())  # type: ignore[arg-type]
    made = built(choice)
    launching.compiled(plan, lambda: (made.kernel, made.argtypes), arch="sm_90a", **made.bounds)
    return str(plan.name)


def warm(shapes: list[tuple[int, int, int]]) -> None:
    """Compile what the shapes need, in parallel: the benchmark's time is the GPU's."""
    device = Device.current()
    plans = list({planning.choose(GemmProblem(*shape), device).plan for shape in shapes})
    with concurrent.futures.ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        print("compiled", len(list(pool.map(compile_plan, plans))), "plans", flush=True)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", nargs="*", choices=[*FAMILIES, "host"], default=[*FAMILIES, "host"])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--m", type=int, nargs="*", help="only these M")
    parser.add_argument("--flush", choices=["memset", "read"], help="only this way to flush")
    options = parser.parse_args()
    torch.manual_seed(0)
    env = environment()
    rows: list[dict[str, Any]] = []
    wanted = [shape for family in options.family if family != "host" for shape in FAMILIES[family][0]]
    warm([shape for shape in wanted if not options.m or shape[0] in options.m])
    for family in options.family:
        if family == "host":
            rows += [*host_cost(env), *first_calls(env)]
            save(rows, options.out)
            continue
        shapes, kinds = FAMILIES[family]
        for kind in [options.flush] if options.flush else kinds:
            flush = Flush(kind)
            for shape in shapes:
                if options.m and shape[0] not in options.m:
                    continue
                row = measure(shape, flush, options.runs, options.rounds, env)
                rows.append(row)
                save(rows, options.out)
                ratios = " ".join(f"{name} {us:.1f} ({us / row['us']:.3f})" for name, us in row["rivals"].items())
                equal = f"bits equal {row.get('bits_equal')}"
                print(
                    f"{family:7s} {kind:7s} {shape}: {row['us']:.1f} us {row['tflops']:.0f} TF  {ratios}  {equal}  {row['plan']}",
                    flush=True,
                )
            del flush
    for row in rows:
        if row["bench"] != "fp8_gemm_nt":
            print({key: value for key, value in row.items() if key not in env})
    save(rows, options.out)


def save(rows: list[dict[str, Any]], out: Path | None) -> None:
    """Put rows into the file of results, in the place of older ones of the same problem and method."""
    if out is None:
        return
    keep = json.loads(out.read_text()) if out.exists() else []
    done = {key_of(row) for row in rows}
    out.write_text(json.dumps([r for r in keep if key_of(r) not in done] + rows, indent=1) + "\n")


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """What tells a row from others: two with the same key are of the same problem and method."""
    told = "bench", "m", "n", "k", "cache", "activation", "format"
    return *(str(row.get(x)) for x in told), str((row.get("method") or {}).get("flush"))


if __name__ == "__main__":
    main()
