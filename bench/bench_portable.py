"""`sm80_gemm`, the mma.sync kernel, beside cuBLAS on one GPU: is it right, and how fast.

    python bench/bench_portable.py --out bench/results/portable.json       # both
    python bench/bench_portable.py --check 300                             # 300 random problems a type, no timing

Right: random problems of small integers, whose sums are exact, against float64, in every type that the GPU has; FP8 with block scales too, as
it is and widened to float16. And BF16 of normal data within the bound of a truncating tensor core. Fast: every tile, 4096^3 and 8192^3.
A row of the timing: bench, dtype, m, n, k, plan, us, tflops, rivals {name: us}, method, gpu, date, versions, command.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cupy
import numpy as np
import torch
from bench_gemm import environment
from measure import Flush, kernel_times

import dgnumba
from dgnumba import launching
from dgnumba.device import Device
from dgnumba.int4_operands import check_int4_gemm_nt
from dgnumba.kernels import GemmPlan
from dgnumba.kernels import sm80_gemm_rules as sm80_gemm
from dgnumba.kernels import sm80_int4_gemm_rules as sm80_int4_gemm
from dgnumba.kernels.sm80_gemm_rules import MAX_STAGES, OUTPUTS, TILES, tiles_of
from dgnumba.kernels.spec import most_stages
from dgnumba.layouts.operands import LaidOut, lay_out
from dgnumba.problem import GemmProblem, check_fp8_gemm_nt
from dgnumba.quant.reference import exact_integer_reference
from dgnumba.testing import exact_problem

TORCH = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32, "int32": torch.int32}
BITS = {"bfloat16": 16, "float16": 16, "float8_e4m3fn": 8, "int8": 8, "int4": 4}
RIVAL_NAMES = ("nvjet", "xmma", "cutlass")
RANGE = {"int8": (-128, 127), "int4": (-8, 7)}


def plans(dtype: str, d_dtype: str, device: Device, both_stages: bool = False) -> list[GemmPlan]:
    """Every tile, with as many stages as fit, and one fewer."""
    out = []
    for block_m, block_n in TILES:
        plan = GemmPlan(sm80_gemm.NAME, block_m, block_n, 2, dtype, dtype, d_dtype, 1024 // BITS[dtype], epilogue="registers")
        if (block_m, block_n) in tiles_of(plan):
            stages = min(MAX_STAGES, most_stages(sm80_gemm.smem, plan, device))
            out += [replace(plan, num_stages=s) for s in ({stages, max(2, stages - 1)} if both_stages else {stages})]
    return out


def launcher(plan: GemmPlan, laid: LaidOut, device: Device) -> Callable[[], None]:
    """The call that runs a plan on operands."""
    built = sm80_gemm.build(plan)
    made = launching.program(plan, lambda: (built.kernel, built.argtypes), arch=device.arch, **built.bounds)
    shape = launching.LaunchShape(
        (sm80_gemm.grid(plan, laid.problem, device), 1, 1), (built.threads, 1, 1), built.smem.launch_bytes, (1, 1, 1)
    )
    run, values = made.launcher(device.index or 0, shape), [int(x) for x in sm80_gemm.bind(plan, laid)]
    return lambda: run(values, (), torch.cuda.current_stream().cuda_stream or launching.LEGACY)


class Dense:
    """Operands without scales: random integers that every sum takes exactly, or normal data."""

    def __init__(self, dtype: str, d_dtype: str, m: int, n: int, k: int, is_normal: bool = False) -> None:
        low, high = RANGE.get(dtype, (-8, 8))
        if is_normal and dtype in TORCH:
            self.a, self.b = (torch.randn(rows, k, device="cuda").to(TORCH[dtype]) for rows in (m, n))
        else:
            self.a, self.b = (torch.randint(low, high + 1, (rows, k), device="cuda", dtype=torch.int8) for rows in (m, n))
            if dtype in TORCH:
                self.a, self.b = self.a.to(TORCH[dtype]), self.b.to(TORCH[dtype])
        self.d = torch.full((m, -(-n // 8) * 8), -7, device="cuda").to(TORCH[d_dtype])
        codes = [self._codes(x, dtype) for x in (self.a, self.b)]
        problem = GemmProblem(m, n, k, dtype, dtype, d_dtype, None, None)
        out = cupy.asarray(self.d.view(torch.uint8))
        self.laid = LaidOut(problem, codes[0], None, codes[1], None, out, out, None, ())

    @staticmethod
    def _codes(x: Any, dtype: str) -> Any:
        if dtype == "int4":
            x = torch.nn.functional.pad(x, (0, x.shape[1] % 2))
            x = (x[:, ::2] & 15) | (x[:, 1::2] << 4)
        codes = x.contiguous().view(torch.uint8)
        return cupy.asarray(torch.nn.functional.pad(codes, (0, -codes.shape[1] % 16)).contiguous())

    def exact(self) -> Any:
        """The product in float64."""
        return self.a.double() @ self.b.double().T


def check_dense(dtype: str, count: int, device: Device, rng: np.random.Generator) -> dict[str, Any]:
    """Random problems of integers, every plan by turns; bits against float64's."""
    wrong, first = 0, ""
    for i in range(count):
        d_dtype = OUTPUTS[dtype][i % len(OUTPUTS[dtype])]
        choices = plans(dtype, d_dtype, device)
        plan = choices[i % len(choices)]
        m, n, k = (int(rng.integers(1, top)) for top in (600, 600, 1500))
        k += k % 2 if dtype == "int4" else 0
        op = Dense(dtype, d_dtype, m, n, k)
        launcher(plan, op.laid, device)()
        torch.cuda.synchronize()
        exact = op.exact()
        if not bool((op.d[:, :n].double() == exact.to(TORCH[d_dtype]).double()).all()) or (n % 2 == 0 and bool((op.d[:, n:] != -7).any())):
            wrong, first = wrong + 1, first or f"{plan.name} {m}x{n}x{k} {d_dtype}"
    return {"check": "integers", "dtype": dtype, "problems": count, "wrong": wrong, "first": first}


def check_scaled(widen: bool, count: int, device: Device, rng: np.random.Generator) -> dict[str, Any]:
    """FP8 with block scales: the zone in which every sum is exact."""
    wrong, first = 0, ""
    for i in range(count):
        d_dtype = ("bfloat16", "float32")[i % 2]
        choices = plans("float8_e4m3fn", d_dtype, device)
        plan = replace(choices[i % len(choices)], widen=widen)
        m, n, k = (int(rng.integers(1, top)) for top in (400, 400, 1200))
        case = exact_problem(rng, m, n, k, d_dtype)
        a, b = (
            [cupy.asarray(np.ascontiguousarray(x).view(np.uint8) if x.dtype.itemsize == 1 else x) for x in pair]
            for pair in (case.a, case.b)
        )
        d = cupy.full((m, n), 7, cupy.uint16 if d_dtype == "bfloat16" else cupy.float32)
        laid = lay_out(check_fp8_gemm_nt(a, b, d))
        launcher(plan, laid, device)()
        cupy.cuda.Device().synchronize()
        expected = exact_integer_reference(*case.a, *case.b, d_dtype)
        got = laid.d[:, :n].get()
        if not (np.ascontiguousarray(got).view(np.uint8) == np.ascontiguousarray(expected).view(np.uint8)).all():
            wrong, first = wrong + 1, first or f"{plan.name} {m}x{n}x{k} {d_dtype}"
    return {"check": "scaled integers", "dtype": "float8_e4m3fn", "widen": widen, "problems": count, "wrong": wrong, "first": first}


def check_normal(dtype: str, device: Device) -> dict[str, Any]:
    """Normal data: each of K / 16 steps may cut its 17 terms and its sum below 2^-23 of the largest; D is rounded once."""
    m, n, k = 1000, 1000, 4000
    op = Dense(dtype, "float32", m, n, k, is_normal=True)
    launcher(plans(dtype, "float32", device)[-1], op.laid, device)()
    torch.cuda.synchronize()
    exact, magnitude = op.exact(), op.a.double().abs() @ op.b.double().abs().T
    bound = -(-k // 16) * 18 * 2.0**-23 * magnitude
    error = (op.d[:, :n].double() - exact).abs()
    return {
        "check": "normal",
        "dtype": dtype,
        "worst_share_of_bound": float((error / bound).max()),
        "rms": float((error / magnitude).square().mean().sqrt()),
    }


def rivals(op: Dense, dtype: str) -> dict[str, Any]:
    """cuBLAS, where it has the type."""
    if dtype in ("bfloat16", "float16"):
        out = torch.empty(op.a.shape[0], op.b.shape[0], device="cuda", dtype=TORCH[dtype])
        return {"cublas": (lambda: torch.matmul(op.a, op.b.T, out=out), RIVAL_NAMES)}
    if dtype == "int8":
        return {"cublas": (lambda: torch._int_mm(op.a, op.b.T), RIVAL_NAMES)}
    return {}


def time_plans(
    dtype: str, d_dtype: str, shape: tuple[int, int, int], device: Device, flush: Flush, rounds: int, is_tuning: bool
) -> list[dict[str, Any]]:
    """The large tiles, or, tuning, all but the smallest with fewer stages and other bands too; each beside the rival, interleaved."""
    m, n, k = shape
    rows = []
    choices = [
        p for p in plans(dtype, d_dtype, device, both_stages=is_tuning) if p.block_m * p.block_n >= (64 * 128 if is_tuning else 128 * 128)
    ]
    if is_tuning:
        choices += [replace(p, band=band) for p in choices if p.block_m * p.block_n >= 128 * 256 for band in (4, 8)]
    if dtype == "float8_e4m3fn":
        case = [torch.randint(0, 120, (rows_, k), device="cuda", dtype=torch.uint8) for rows_ in (m, n)]
        sfa, sfb = torch.ones(m, -(-k // 128), device="cuda"), torch.ones(-(-n // 128), -(-k // 128), device="cuda")
        d = torch.zeros(m, n, device="cuda", dtype=torch.int16).view(torch.bfloat16)
        laid = lay_out(
            check_fp8_gemm_nt(
                (cupy.asarray(case[0]), cupy.asarray(sfa)),
                (cupy.asarray(case[1]), cupy.asarray(sfb)),
                cupy.asarray(d.view(torch.int16)).view(cupy.uint16),
            )
        )
        others: dict[str, Any] = {}
        choices += [replace(p, widen=True) for p in choices]
    else:
        op = Dense(dtype, d_dtype, m, n, k, is_normal=True)
        laid, others = op.laid, rivals(op, dtype)
    for plan in choices:
        us = kernel_times({"ours": (launcher(plan, laid, device), ("sm80_gemm",)), **others}, flush, rounds)
        ours = us.pop("ours")
        rows.append({"bench": "sm80_gemm", "dtype": dtype, "m": m, "n": n, "k": k, "plan": f"{plan.name} band {plan.band}", "us": round(ours, 2),
                     "tflops": round(2e-6 * m * n * k / ours, 1), "rivals": {name: round(t, 2) for name, t in us.items()}})  # fmt: skip
        print(rows[-1]["dtype"], m, n, k, rows[-1]["plan"], rows[-1]["us"], rows[-1]["tflops"], rows[-1]["rivals"], flush=True)
    return rows


def time_int4(shape: tuple[int, int, int], flush: Flush, rounds: int) -> dict[str, Any]:
    """BF16 by INT4 in groups of 128: `sm80_int4_gemm` beside the plan that is chosen here, and cuBLAS on widened weights."""
    m, n, k = shape
    q = dgnumba.quantize(cupy.random.standard_normal((n, k), cupy.float32), "int4_g128")
    w = dgnumba.prepare_int4_weights(q, "bfloat16")
    x, wide = torch.randn(m, k, device="cuda").bfloat16(), torch.randn(n, k, device="cuda").bfloat16()
    a, d = (cupy.asarray(t.view(torch.int16)).view(cupy.uint16) for t in (x, torch.empty(m, n, device="cuda", dtype=torch.bfloat16)))
    problem, device = check_int4_gemm_nt(a, w, d).problem, Device.current()
    plans = sorted(sm80_int4_gemm.candidates(problem, device), key=lambda p: sm80_int4_gemm.estimate(p, problem, device))
    calls = {f"sm80 {p.name}": (functools.partial(dgnumba.int4_gemm_nt, a, w, d, plan=p), ("sm80_int4_gemm",)) for p in plans[:3]}
    rows: dict[str, float] = {}
    for name, call in calls.items():
        others = {
            "chosen": (functools.partial(dgnumba.int4_gemm_nt, a, w, d), ("sm90_int4_gem",)),
            "cublas": (lambda: torch.matmul(x, wide.T), RIVAL_NAMES),
        }
        rows |= kernel_times({name: call, **others}, flush, rounds)
    return {"bench": "sm80_int4_gemm", "m": m, "n": n, "k": k, "us": {name: round(us, 2) for name, us in rows.items()}}


def main() -> None:
    """Check, time, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--check", type=int, default=0, help="only check, this many problems a type")
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    device, rng = Device.current(), np.random.default_rng(2026)
    count = options.check or 60
    checks = [check_dense(dtype, count, device, rng) for dtype in BITS if dtype != "float8_e4m3fn"]
    checks += [check_scaled(widen, count, device, rng) for widen in (False, True)]
    checks += [check_normal(dtype, device) for dtype in ("bfloat16", "float16")]
    for row in checks:
        print(row, flush=True)
    rows: list[dict[str, Any]] = []
    if not options.check:
        flush = Flush("memset")
        cube, large = (4096, 4096, 4096), (8192, 8192, 8192)
        for dtype, d_dtype, shape in (
            ("bfloat16", "bfloat16", cube), ("bfloat16", "bfloat16", large), ("float16", "float16", cube), ("int8", "int32", cube),
            ("float8_e4m3fn", "bfloat16", cube), ("int4", "int32", cube),
        ):  # fmt: skip
            rows += time_plans(dtype, d_dtype, shape, device, flush, options.rounds, (dtype, shape) == ("bfloat16", cube))
        for m in (1, 16, 64):
            rows.append(time_int4((m, 7168, 16384), Flush("read"), options.rounds))
            print(rows[-1], flush=True)
    if options.out:
        env = environment()
        options.out.write_text(json.dumps({"checks": checks, "rows": rows, "environment": env}, indent=1) + "\n")
    if any(row.get("wrong") or row.get("worst_share_of_bound", 0) > 1 for row in checks):
        raise SystemExit("wrong results")


if __name__ == "__main__":
    main()
