"""``dgnumba gemm --format`` and ``dgnumba bench int4``: products with weights of 4 bits."""

from __future__ import annotations

import dataclasses
import time
from enum import StrEnum
from typing import Any

import numpy as np

import dgnumba

from ..dtypes import DTYPES
from ..errors import ProblemError
from ..quant import QTensor, as_format
from . import files, gpu, patience
from .show import console, duration, progress, size, speed

LAYER = "layer"
"""In the place of a format: B names a quantized layer of a checkpoint, which says its own."""

SHAPES = ["1x4096x4096", "16x4096x4096", "1x7168x16384", "16x7168x16384", "64x7168x16384", "16x28672x8192", "256x8192x8192"]
"""Layers of large language models at the batches of decoding."""


class Activation(StrEnum):
    """What A is made for the product."""

    bfloat16 = "bfloat16"
    float16 = "float16"
    fp8 = "fp8"
    fp8_row = "fp8_row"
    int8 = "int8"
    int4 = "int4"


KINDS = {Activation.fp8: "float8_e4m3fn", Activation.fp8_row: "float8_e4m3fn", Activation.int4: "int8"}
"""For which activations weights are prepared, where the names differ."""


def activations(x: Any, kind: Activation) -> Any:
    """A as `int4_gemm_nt` takes it."""
    if kind in (Activation.bfloat16, Activation.float16):
        return np.asarray(x).astype(DTYPES[kind.value].numpy)
    if kind is Activation.fp8:
        return dgnumba.per_token_cast_to_fp8(np.asarray(x))
    return dgnumba.quantize(np.asarray(x), f"{kind.value.removesuffix('_row')}_row")


def weights(where: str, form: str) -> tuple[QTensor, Any, str]:
    """B as a `QTensor`, what it was before (None: it is quantized), and a line about it."""
    path, tensor = files.split(where)
    if form == LAYER:
        from ..checkpoint import read_layer

        if tensor is None:
            raise ProblemError(f"B: expected FILE.safetensors:LAYER for --format {LAYER}, got {where}")
        q = read_layer(path, tensor)
        return q, None, f"B  {q} from {where}"
    wanted = as_format(form)
    if wanted.dtype.bits != 4:
        raise ProblemError(f"format: expected one of 4 bits, as int4_g128, uint4_g64, mxfp4 or nvfp4, or {LAYER}; got {form}")
    x = _floats("B", where)
    begin = time.perf_counter()
    q = dgnumba.quantize(x, wanted)
    took = duration(time.perf_counter() - begin)
    nbytes = q.data.size // 2 + q.scale.nbytes
    return q, x, f"B  {x.dtype.name} {list(x.shape)} from {where}, quantized to {form}: {size(nbytes)}, {took}"


def _floats(name: str, where: str) -> Any:
    x = np.asarray(files.load(where))
    if x.ndim != 2 or x.dtype.name not in ("float16", "bfloat16", "float32", "float64"):
        raise ProblemError(
            f"{name}: expected a matrix of float16, bfloat16, float32 or float64, got {x.dtype.name} {list(x.shape)} in {where}"
        )
    files.refuse_beyond(np.float32, name, x, where)
    return x.astype(np.float32) if x.dtype.name == "float64" else x


def to_gpu(x: Any) -> Any:
    """An array, or a QTensor with all its parts, on the current GPU; what CuPy has no type for as its bits."""
    import cupy

    def moved(part: Any) -> Any:
        bits = np.ascontiguousarray(part)
        return cupy.asarray(bits if bits.dtype.isbuiltin == 1 else bits.view(f"u{bits.dtype.itemsize}"))

    if not isinstance(x, QTensor):
        return moved(x)
    parts = {name: moved(getattr(x, name)) for name in ("scale", "zero_point", "g_idx") if getattr(x, name) is not None}
    return dataclasses.replace(
        x, data=cupy.asarray(np.ascontiguousarray(x.codes)), packing=None, extents=(), scale_dtype=x.scale_dtype, **parts
    )


def multiply(a: Any, q: QTensor, kind: Activation, place: str, dtype: str) -> tuple[Any, float]:
    """The product as a NumPy array, and how long it took in seconds."""
    prepared_for = KINDS.get(kind, kind.value)
    if place == "cuda":
        x, w = to_gpu(a), dgnumba.prepare_int4_weights(to_gpu(q), prepared_for)
        d = dgnumba.int4_gemm_nt(x, w, out_dtype=dtype)
        return gpu.to_host(d, DTYPES[dtype]), gpu.seconds(lambda: dgnumba.int4_gemm_nt(x, w, d))
    w = dgnumba.prepare_int4_weights(q, prepared_for)
    begin = time.perf_counter()
    with progress(f"multiply ({place})"):
        d = dgnumba.int4_gemm_nt(a, w, out_dtype=dtype, on=place)  # type: ignore[arg-type]
    return d, time.perf_counter() - begin


def gemm(
    a: str, b: str, form: str, kind: Activation, output: str | None, dtype: str, place: str, where: str, check: bool, large: bool
) -> bool:
    """The command's work; whether the product is right, or was not looked at."""
    out = console()
    x = _floats("A", a)
    if kind in (Activation.bfloat16, Activation.float16):
        files.refuse_beyond(DTYPES[kind.value].numpy, "A", x, a)
    q, original, about = weights(b, form)
    if x.shape[1] != q.shape[1]:
        hint = "; B is [N, K]: transposed?" if x.shape[1] == q.shape[0] else ""
        raise ProblemError(f"B: expected [N, {x.shape[1]}] (K as in A), got {list(q.shape)}{hint}")
    if place == "emulator" and not large:
        patience.expect_small("A, B", x.shape[0], q.shape[0], x.shape[1], patience.MULTIPLY, "the host gives the same numbers")
    left = activations(x, kind)
    out.print(f"A  {x.dtype.name} {list(x.shape)} from {a}, as {kind.value}")
    out.print(about)
    d, took = multiply(left, q, kind, place, dtype)
    out.print(f"D  {dtype} {list(d.shape)}: {duration(took)} on {where}, {speed(2 * x.shape[0] * q.shape[0] * q.shape[1], took)}")
    if output is not None:
        files.save(output, d)
        out.print(f"   written to {output}")
    if not check:
        return True
    from ..report import verify_int4

    with progress("check against float64") as step:
        beside, way = None if original is None else (x, original), False if place == "host" else None
        verdict = verify_int4(left, q, d, originals=beside, progress=step, fold=way, f16_sums=way)
    out.print(f"   {verdict}")
    if verdict.quantization is not None:
        out.print(f"   against the product of the unquantized files: {100 * verdict.quantization:.2g} % off, which is the price of {form}")
    return verdict.is_right


def measure(m: int, n: int, k: int, form: str, kind: Activation, runs: int, flush: bool) -> dict[str, Any]:
    """One row of ``bench int4``: our time and each rival's in microseconds."""
    from ..device import Device

    rng = np.random.default_rng(0)
    a = to_gpu(activations(rng.standard_normal((m, k), np.float32), kind))
    w = dgnumba.prepare_int4_weights(to_gpu(dgnumba.quantize(rng.standard_normal((n, k), np.float32), form)), KINDS.get(kind, kind.value))
    d = dgnumba.int4_gemm_nt(a, w)
    us = 1e6 * gpu.seconds(lambda: dgnumba.int4_gemm_nt(a, w, d), runs, flush=flush)
    rivals = {name: 1e6 * gpu.seconds(call, runs, flush=flush) for name, call in _rivals(m, n, k).items()}
    return {
        "bench": "int4_gemm_nt", "m": m, "n": n, "k": k, "format": form, "activation": kind.value, "us": us, "tflops": 2e-6 * m * n * k / us,
        "rivals": rivals, "method": {"flush": "read" if flush else "none", "timer": "events", "runs": runs}, "gpu": Device.current().name,
    }  # fmt: skip


def _rivals(m: int, n: int, k: int) -> dict[str, Any]:
    """cuBLAS in bfloat16, and torch's own int4, where torch is installed."""
    try:
        import torch
    except ImportError:
        return {}
    x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    y = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
    calls: dict[str, Any] = {"cublas bf16": lambda: x @ y.T}
    try:
        packed = torch._convert_weight_to_int4pack(torch.randint(0, 255, (n, k // 2), dtype=torch.uint8, device="cuda"), 8)
        scales = torch.randn(k // 128, n, 2, device="cuda", dtype=torch.bfloat16)
        torch._weight_int4pack_mm(x, packed, 128, scales)
    except (RuntimeError, AttributeError):
        return calls  # this torch, or its kernel, takes no such shape
    return calls | {"torch int4": lambda: torch._weight_int4pack_mm(x, packed, 128, scales)}


def check_format(form: str) -> None:
    """Refuse what `bench int4` cannot make weights of."""
    if as_format(form).dtype.bits != 4:
        raise ProblemError(f"format: expected one of 4 bits, as int4_g128, uint4_g64, mxfp4 or nvfp4, got {form}")
