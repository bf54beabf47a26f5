"""Our side of `bench_int4`: random operands, the problems that they make, plans compiled ahead, and launches of them."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import time
from collections.abc import Callable
from typing import Any

import cupy
import torch
from measure import Call

import dgnumba
from dgnumba import launching
from dgnumba.device import Device
from dgnumba.int4_operands import check_int4_gemm_nt, lay_out
from dgnumba.int4_plan import choose_int4, int4_kernel_named, validate_int4
from dgnumba.int4_prepared import Launch
from dgnumba.int4_problem import Int4Problem
from dgnumba.kernels import INT4_KERNELS
from dgnumba.kernels.int4_spec import Int4Plan

PREPARED_FOR = {"int4": "int8", "float8_e4m3fn_row": "float8_e4m3fn"}
"""The activations that weights are prepared for, where they are not those of the product."""


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
    if kind == "float8_e4m3fn_row":
        return dgnumba.casts.quantize(cupy.asarray(x), "fp8_row")
    scale = x.abs().amax(dim=1, keepdim=True) / (127 if kind == "int8" else 7)
    codes = torch.round(x / scale).to(torch.int8)
    codes = codes if kind == "int8" else codes & 15
    return dgnumba.QTensor(cupy.asarray(codes).view(cupy.uint8), cupy.asarray(scale), kind, (1, k))


def compile_plan(plan: Int4Plan) -> str:
    """In a process of its own: compile a plan into the cache on disk; what is wrong with it, or nothing."""
    made = int4_kernel_named(plan.kernel).build(plan)
    cubin = launching.compiled(plan, lambda: (made.kernel, made.argtypes), arch="sm_90a", **made.bounds)
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


def launches(a: Any, w: Any, d: Any, plans: list[Int4Plan], device: Device) -> list[Callable[[], Any]]:
    """Launches of plans on one problem's operands."""
    operands = check_int4_gemm_nt(a, w, d)
    laid = lay_out(operands)
    stream = cupy.cuda.get_current_stream().ptr or launching.LEGACY
    out: list[Callable[[], Any]] = []
    for plan in plans:
        launch = Launch(validate_int4(plan, operands.problem, device), laid, device)
        out.append(lambda launch=launch: launch(laid, stream))
    return out


def problem_of(m: int, n: int, k: int, kind: str, group: int, scale: str) -> Int4Problem:
    """The problem of these operands, before they are made."""
    if kind == "int4":
        return Int4Problem(m, n, k, "int8", "int4", "int32", 128, scale, is_whole=True)
    by_row = kind == "float8_e4m3fn_row"
    d_dtype = "float16" if kind == "float16" else "bfloat16"
    return Int4Problem(
        m,
        n,
        k,
        PREPARED_FOR.get(kind, kind),
        "int4",
        d_dtype,
        group,
        scale,
        a_by_row=by_row,
        may_fold=kind in ("bfloat16", "float16"),
        may_sum_f16=by_row,
    )


def plans_of(problem: Int4Problem, device: Device, is_sweep: bool) -> list[Int4Plan]:
    """The chosen plan, first; in a sweep every candidate of the kernels that take the problem."""
    chosen = choose_int4(problem, device).plan
    kernels = [kernel for kernel in INT4_KERNELS if not kernel.FALLBACK and kernel.supports(problem, device) is None] if is_sweep else []
    others = [plan for kernel in kernels for plan in kernel.candidates(problem, device)]
    return [chosen, *(plan for plan in others if plan != chosen)]


class Ours:
    """Our weights of one N x K, prepared for each kind of activations."""

    def __init__(self, n: int, k: int, kinds: list[str], args: Any, device: Device) -> None:
        self.n, self.k, self.args, self.device = n, k, args, device
        self.weights = {kind: dgnumba.prepare_int4_weights(random_weights(n, k, k if kind == "int4" else args.group, args.scale),
                                                           PREPARED_FOR.get(kind, kind)) for kind in kinds}  # fmt: skip

    def calls(self, m: int, kind: str) -> tuple[Int4Problem, dict[Int4Plan, Call]]:
        """The problem, and a launch of each plan; the first is the chosen one."""
        problem = problem_of(m, self.n, self.k, kind, self.args.group, self.args.scale)
        d = cupy.empty((m, self.n), {"int32": cupy.int32, "float16": cupy.float16}.get(problem.d_dtype.name, cupy.uint16))
        plans = plans_of(problem, self.device, self.args.sweep)
        made = launches(activations(m, self.k, kind), self.weights[kind], d, plans, self.device)
        return problem, {plan: (call, ("sm90_int4_gem", "sm80_int4_gem")) for plan, call in zip(plans, made)}
