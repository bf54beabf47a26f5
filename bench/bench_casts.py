"""Casts and moves of scales on one GPU, each beside a device-to-device copy and torch's version: one command, one table, one JSON.

    python bench/bench_casts.py --out bench/results/h200.json

A row: bench, variant, dtype, m, n, us, gb_s (bytes read plus written, over the time), copy_gb_s (of a copy of as many bytes in the same run),
share (of the copy's), floor_us (the bytes at the copy's rate), rivals {name: us}, method, gpu, date, versions, command. L2 is flushed before
each call, calls take turns. Kernel time by CUPTI for ours and the copy; where that fails, and for torch, whose cast is several kernels, by
CUDA events: from one that is queued behind the flush to one behind the call.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import json
import multiprocessing
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cupy
import torch
from bench_gemm import environment
from measure import kernel_times

import dgnumba
from dgnumba import casts, launching, scale_moves
from dgnumba.kernels import smxx_cast_rules, smxx_layout_rules, smxx_quantize_rules
from dgnumba.kernels.smxx_cast_rules import CastPlan
from dgnumba.kernels.smxx_layout_rules import LayoutPlan
from dgnumba.kernels.smxx_quantize_rules import AmaxPlan, QuantizePlan

SHAPES = [(16384, 16384), (4096, 7168)]
FLUSH_BYTES = 1 << 30
ITEMSIZE = {"bfloat16": 2, "float16": 2, "float32": 4, "int32": 4}


@dataclass(frozen=True)
class Case:
    """One thing that is measured.

    call    what runs it on a torch tensor x
    nbytes  read plus written, of m, n; of a cast in two passes what is read twice counts twice
    plan    its kernel, to be compiled beforehand, or several
    torch   the same in torch, or None
    """

    bench: str
    variant: str
    dtype: str
    call: Callable[[Any], Any]
    nbytes: Callable[[int, int], float]
    plan: Any
    torch: Callable[[Any], Any] | None = None


def torch_cast(x: Any, rows: int, columns: int) -> tuple[Any, Any]:
    """The cast as one writes it in torch: whole blocks of rows x columns."""
    m, n = x.shape
    blocks = x.view(m // rows, rows, n // columns, columns).float()
    scale = blocks.abs().amax(dim=(1, 3), keepdim=True).clamp(1e-4) / 448.0
    return (blocks * (1.0 / scale)).to(torch.float8_e4m3fn).view(m, n), scale.view(m // rows, n // columns)


def torch_token(x: Any) -> Any:
    """1 x 128."""
    return torch_cast(x, 1, 128)


def torch_block(x: Any) -> Any:
    """128 x 128."""
    return torch_cast(x, 128, 128)


def torch_channel(x: Any) -> Any:
    """128 x 1."""
    return torch_cast(x, 128, 1)


def torch_tensor(x: Any) -> Any:
    """All of it."""
    return torch_cast(x, *x.shape)


def torch_turn(x: Any) -> Any:
    """Transposed, made anew."""
    return x.T.contiguous()


def torch_pack(x: Any) -> Any:
    """Exponents, four to a word, transposed."""
    return (x.view(torch.int32) >> 23).to(torch.uint8).view(torch.int32).T.contiguous()


def cast_bytes(itemsize: int, block: int, scale_bytes: float = 4) -> Callable[[int, int], float]:
    """x, codes, and a scale a block."""
    return lambda m, n: m * n * (itemsize + 1 + scale_bytes / block)


def torch_int8(x: Any) -> Any:
    """One scale a row."""
    scale = x.float().abs().amax(dim=1, keepdim=True) / 127.0
    return (x.float() * (1.0 / scale)).round().to(torch.int8), scale


def torch_int4(x: Any) -> Any:
    """1 x 128, two a byte."""
    m, n = x.shape
    groups = x.view(m, n // 128, 128).float()
    scale = groups.abs().amax(dim=2, keepdim=True) / 7.0
    codes = (groups * (1.0 / scale)).round().to(torch.int32).view(m, n) & 15
    return (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8), scale


def torch_mxfp8(x: Any) -> Any:
    """1 x 32, powers of two."""
    m, n = x.shape
    groups = x.view(m, n // 32, 32).float()
    scale = torch.exp2(torch.ceil(torch.log2(groups.abs().amax(dim=2, keepdim=True) / 448.0)))
    return (groups * (1.0 / scale)).to(torch.float8_e4m3fn).view(m, n), scale


def few_bits() -> list[Case]:
    """The casts of `smxx_quantize`."""
    quantize, fp4, packed = casts.quantize, casts.per_token_cast_to_fp4, {"packed": True, "pieces": 2}
    rows = [shape for _, n in SHAPES if (shape := smxx_quantize_rules.row_shape(n, packed=False))]
    out = []
    for dtype in ("bfloat16", "float32"):
        size = ITEMSIZE[dtype]
        is_first = dtype == "bfloat16"

        def bytes_of(code: float, scale: float, passes: int = 1, size: int = size) -> Callable[[int, int], float]:
            return lambda m, n: m * n * (passes * size + code + scale)

        plan = functools.partial(QuantizePlan, x_dtype=dtype)
        e2m1 = functools.partial(plan, "float4_e2m1fn", **packed)
        out += [
            Case("per_token_cast_to_fp4", "", dtype, fp4, bytes_of(0.5, 4 / 128), e2m1(rule="deepgemm")),
            Case("quantize", "mxfp4 packed", dtype, lambda x: quantize(x, "mxfp4", packing="low_first"), bytes_of(0.5, 1 / 32),
                 e2m1(group=32, rule="rceil")),
            Case("quantize", "nvfp4 packed, two passes", dtype, lambda x: quantize(x, "nvfp4", packing="low_first"), bytes_of(0.5, 1 / 16, 2),
                 (AmaxPlan(dtype, True), e2m1(group=16, rule="nvfp4"))),
            Case("quantize", "int4_g128 packed", dtype, lambda x: quantize(x, "int4_g128", packing="low_first"), bytes_of(0.5, 4 / 128),
                 plan("int4", rule="amax/7", **packed), torch_int4 if is_first else None),
            Case("quantize", "mxfp8", dtype, lambda x: quantize(x, "mxfp8"), bytes_of(1, 1 / 32), plan("float8_e4m3fn", group=32, rule="rceil"),
                 torch_mxfp8 if is_first else None),
            Case("quantize", "int8_row", dtype, lambda x: quantize(x, "int8_row"), bytes_of(1, 0),
                 tuple(plan("int8", blocks="row", group=threads, pieces=pieces) for threads, pieces in rows), torch_int8 if is_first else None),
        ]  # fmt: skip
    whole = (AmaxPlan("bfloat16", False), QuantizePlan("float8_e4m3fn", "bfloat16", "tensor"))
    out.append(
        Case(
            "quantize",
            "fp8_tensor, two passes",
            "bfloat16",
            lambda x: quantize(x, "fp8_tensor"),
            cast_bytes(4, 128, 0),
            whole,
            torch_tensor,
        )
    )
    some = torch.ones((), device="cuda")
    given = QuantizePlan("float4_e2m1fn", "bfloat16", group=16, rule="nvfp4", is_given=True, **packed)
    nvfp4 = lambda x: quantize(x, "nvfp4", packing="low_first", global_scale=cupy.asarray(some))  # noqa: E731
    out.append(Case("quantize", "nvfp4 packed, scale given", "bfloat16", nvfp4, lambda m, n: m * n * 2.5625, given))
    return out


def cases() -> list[Case]:
    """All of them."""
    token, block, channel = casts.per_token_cast_to_fp8, casts.per_block_cast_to_fp8, casts.per_channel_cast_to_fp8
    out = []
    for dtype in ("bfloat16", "float16", "float32"):
        size = ITEMSIZE[dtype]
        plan = CastPlan("token", dtype)
        out.append(Case("per_token_cast_to_fp8", "", dtype, token, cast_bytes(size, 128), plan, torch_token))
    packed = CastPlan("token", "bfloat16", 128, True, True)
    mx = CastPlan("token", "bfloat16", 32, True, True)
    plain = CastPlan("token", "bfloat16")
    out += [
        Case("per_token_cast_to_fp8", "mn_major", "bfloat16", lambda x: token(x, mn_major=True), cast_bytes(2, 128), plain),
        Case(
            "per_token_cast_to_fp8",
            "packed mn_major",
            "bfloat16",
            lambda x: token(x, True, 128, True, mn_major=True),
            cast_bytes(2, 128, 1),
            packed,
        ),
        Case(
            "per_token_cast_to_fp8",
            "mx packed mn_major",
            "bfloat16",
            lambda x: token(x, True, 32, True, mn_major=True),
            cast_bytes(2, 32, 1),
            mx,
        ),
    ]
    for dtype in ("bfloat16", "float32"):
        size = ITEMSIZE[dtype]
        out.append(Case("per_block_cast_to_fp8", "", dtype, block, cast_bytes(size, 128 * 128), CastPlan("block", dtype), torch_block))
        out.append(Case("per_channel_cast_to_fp8", "", dtype, channel, cast_bytes(size, 128), CastPlan("channel", dtype), torch_channel))
    turn, pack = scale_moves.get_mn_major_tma_aligned_tensor, scale_moves.get_mn_major_tma_aligned_packed_ue8m0_tensor
    out += [
        Case("get_mn_major_tma_aligned_tensor", "", "float32", turn, lambda m, n: 8.0 * m * n, LayoutPlan("turn"), torch_turn),
        Case("get_mn_major_tma_aligned_packed_ue8m0_tensor", "", "float32", lambda x: pack(x, check=False), lambda m, n: 5.0 * m * n,
             LayoutPlan("pack"), torch_pack),
        Case("unpacked", "", "int32", lambda x: scale_moves.unpacked(x), lambda m, n: 5.0 * m * n, LayoutPlan("unpack")),
    ]  # fmt: skip
    return out + few_bits()


def data(case: Case, m: int, n: int) -> Any:
    """The input: random normal; powers of two for what packs; MN-major words for what unpacks."""
    if case.dtype == "int32":
        return torch.randint(0, 2**31 - 1, (n // 4, m), dtype=torch.int32, device="cuda").T
    x = torch.randn(m, n, device="cuda")
    if isinstance(case.plan, LayoutPlan):
        return torch.exp2(x.round())
    return x.to(getattr(torch, case.dtype))


def compile_plan(plan: Any) -> str:
    """Put a plan's kernel into the cache; runs in a process of its own."""
    rules = {CastPlan: smxx_cast_rules, LayoutPlan: smxx_layout_rules}.get(type(plan), smxx_quantize_rules)
    made = rules.build(plan)
    bounds = {"threads": rules.threads(plan), "min_ctas": rules.min_ctas(plan)}
    launching.compiled(plan, lambda: (made.kernel, rules.ARGTYPES), arch="sm_90a", **bounds)
    return str(plan)


def warm(todo: list[Case]) -> None:
    """Compile all kernels in parallel; what fails here is compiled, or reported, by its case."""
    began = time.perf_counter()
    plans = [plan for case in todo for plan in (case.plan if isinstance(case.plan, tuple) else (case.plan,))]
    try:
        with concurrent.futures.ProcessPoolExecutor(8, mp_context=multiprocessing.get_context("spawn")) as pool:
            count = len(list(pool.map(compile_plan, dict.fromkeys(plans))))
        print(f"compiled {count} kernels in {time.perf_counter() - began:.1f} s", flush=True)
    except Exception as error:
        print(f"not compiled beforehand: {error!r}", flush=True)


class Flush:
    """Reads more than L2 holds, so that it is left with nothing of ours and no dirty lines."""

    kind = "read"

    def __init__(self) -> None:
        self._buffer = torch.zeros(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")

    def __call__(self) -> None:
        """Flush."""
        torch.amax(self._buffer)


def event_times(calls: dict[str, Callable[[], Any]], flush: Flush, rounds: int) -> dict[str, float]:
    """Median microseconds between events around each call; the flush before it keeps the GPU busy while both are queued."""
    spans: dict[str, list[Any]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    torch.cuda.synchronize()
    for _ in range(rounds):
        for name, call in calls.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            flush()
            begin.record()
            call()
            end.record()
            spans[name].append((begin, end))
    torch.cuda.synchronize()
    return {name: statistics.median(b.elapsed_time(e) * 1e3 for b, e in pairs) for name, pairs in spans.items()}


def kernel_us(calls: dict[str, Callable[[], Any]], flush: Flush, rounds: int) -> tuple[dict[str, float], str]:
    """Microseconds of "copy" and "ours", and by what."""
    names = {"copy": ("Memcpy DtoD", "memcpy"), "ours": ("dgnumba",)}
    try:
        found = kernel_times({name: (calls[name], names[name]) for name in names}, flush, rounds)
        if set(found) == set(names):
            return found, "cupti"
    except Exception as error:
        print(f"    CUPTI: {error!r}", flush=True)
    return event_times({name: calls[name] for name in names}, flush, rounds), "events"


def measure(case: Case, m: int, n: int, flush: Flush, rounds: int, env: dict[str, Any], with_compile: bool) -> dict[str, Any]:
    """One row."""
    x = data(case, m, n)
    nbytes = case.nbytes(m, n)
    source = torch.empty(int(nbytes) // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    us, timer = kernel_us({"copy": lambda: target.copy_(source), "ours": lambda: case.call(x)}, flush, rounds)
    rivals: dict[str, float] = {}
    versions = {"torch": case.torch}
    if with_compile and case.torch is not None:
        versions["torch_compile"] = torch.compile(case.torch, dynamic=False)
    for name, version in versions.items():
        if version is None:
            continue
        try:
            rivals |= event_times({name: lambda version=version: version(x)}, flush, max(3, rounds // 3))
        except Exception as error:
            print(f"    {name}: {str(error).splitlines()[0][:200]}", flush=True)
    ours, copy = us["ours"], us["copy"]
    row: dict[str, Any] = {"bench": case.bench, "variant": case.variant, "dtype": case.dtype, "m": m, "n": n, "us": round(ours, 2)}
    row |= {"gb_s": round(nbytes / ours / 1e3, 1), "copy_gb_s": round(nbytes / copy / 1e3, 1), "share": round(copy / ours, 3)}
    row |= {"floor_us": round(copy, 2), "rivals": {name: round(t, 2) for name, t in rivals.items()}}
    row["method"] = {"flush": flush.kind, "timer": timer, "rivals_timer": "events", "rounds": rounds, "interleaved": True, "data": "normal"}
    return row | env


def _key(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(row.get(x)) for x in ("bench", "variant", "dtype", "m", "n"))


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile, which takes seconds a case")
    parser.add_argument("--only", nargs="+", default=[""], help="cases whose bench, variant or dtype contains one of these")
    options = parser.parse_args()
    torch.manual_seed(0)
    todo = [case for case in cases() if any(part in f"{case.bench} {case.variant} {case.dtype}" for part in options.only)]
    warm(todo)
    env, flush, rows, failed = environment(), Flush(), [], 0
    for m, n in SHAPES:
        for case in todo:
            label = f"{case.bench} {case.variant} {case.dtype} {m}x{n}"
            try:
                compiled = not options.no_compile and (m, n) == SHAPES[0] and case.dtype == "bfloat16"
                row = measure(case, m, n, flush, options.rounds, env, compiled)
            except Exception:
                failed += 1
                print(f"{label}: FAILED\n{traceback.format_exc()}", flush=True)
                continue
            finally:
                torch.cuda.empty_cache()
                cupy.get_default_memory_pool().free_all_blocks()
            rows.append(row)
            print(f"{label}: {row['us']} us {row['gb_s']} GB/s, {row['share']:.0%} of a copy's {row['copy_gb_s']} ({row['floor_us']} us); "
                  f"{row['rivals']} [{row['method']['timer']}]", flush=True)  # fmt: skip
    if options.out and rows:
        keep = json.loads(options.out.read_text()) if options.out.exists() else []
        done = {_key(row) for row in rows}
        options.out.write_text(json.dumps([r for r in keep if _key(r) not in done] + rows, indent=1) + "\n")
    print(f"dgnumba {dgnumba.__version__}: {len(rows)} rows, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
