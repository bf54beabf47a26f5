"""``dgnumba gemm A B -o D``: one product of arrays in files."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import numpy as np
import typer

import dgnumba

from ..dtypes import DTYPES
from ..errors import ProblemError
from . import files, gpu, int4, patience
from .show import Step, console, duration, progress, size, speed

_FLOATS = ("float16", "bfloat16", "float32", "float64")
_SLAB = 512  # rows that are worked on between two movements of the bar; a multiple of 128


class Place(StrEnum):
    """Where the product is made."""

    cuda = "cuda"
    host = "host"
    emulator = "emulator"


class OutType(StrEnum):
    """Element types of D."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


@dataclass(frozen=True)
class _Input:
    """One operand: quantized, what it was before (None: it was quantized already), and a line about it."""

    q: Any
    original: Any
    about: str


def gemm(
    a: Annotated[str, typer.Argument(metavar="A", help="[M,K], in FILE.npy or FILE.safetensors:TENSOR; floats are quantized")],
    b: Annotated[str, typer.Argument(metavar="B", help="[N,K], likewise")],
    output: Annotated[
        str | None,
        typer.Option("-o", "--output", metavar="FILE", help="where D goes, .npy or .safetensors[:TENSOR]; without it only the report"),
    ] = None,
    sfa: Annotated[str | None, typer.Option(metavar="FILE", help="scales of an A that is FP8 already, [M, K/128]")] = None,
    sfb: Annotated[str | None, typer.Option(metavar="FILE", help="scales of a B that is FP8 already, [N/128, K/128]")] = None,
    dtype: Annotated[OutType, typer.Option(help="of D; .npy holds no bfloat16")] = OutType.float32,
    on: Annotated[Place | None, typer.Option(help="where; by default the GPU if there is one, else the host")] = None,
    check: Annotated[bool, typer.Option(help="compare every element with float64 and its error bound")] = True,
    form: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="FORMAT", help="B in 4 bits: int4_g128, uint4_g64, mxfp4, ..., or layer: B is one of a checkpoint"
        ),
    ] = None,
    activation: Annotated[
        int4.Activation | None, typer.Option(help="with --format: what A is made; by default bfloat16", show_default=False)
    ] = None,
    large: Annotated[bool, typer.Option(help="step also what takes the emulator long")] = False,
) -> None:
    """Multiply matrices from files: D = A @ B.T. A [M,K] is scaled per 1x128, B [N,K] per 128x128; or B has 4 bits, with --format."""
    out = console()
    target = None if output is None else files.split(output)[0]
    files.expect_folder("output", target)
    if target is not None and target.suffix == ".npy" and dtype is OutType.bfloat16:
        raise ProblemError("dtype: expected another for a .npy file, which cannot hold bfloat16, got bfloat16; write FILE.safetensors:d")
    place = on or (Place.host if gpu.missing() else Place.cuda)
    if place is Place.cuda and (why := gpu.missing()) is not None:
        raise ProblemError(f"on: expected host or emulator here, got cuda: {why}")
    if form is None and activation is not None:
        raise ProblemError(f"activation: expected --format beside it, got {activation.value} alone; without it A becomes FP8")
    if form is not None:
        if sfa is not None or sfb is not None:
            raise ProblemError("sfa, sfb: expected none beside --format, which says what A and B become")
        kind = activation or int4.Activation.bfloat16
        if not int4.gemm(a, b, form, kind, output, dtype.value, place.value, _WHERE[place], check, large):
            raise typer.Exit(1)
        return
    left, right = _read("A", a, sfa, 1), _read("B", b, sfb, 128)
    if left.q.shape[1] != right.q.shape[1]:
        hint = "; B is [N, K]: transposed?" if left.q.shape[1] == right.q.shape[0] else ""
        raise ProblemError(f"B: expected [N, {left.q.shape[1]}] (K as in A), got {list(right.q.shape)}{hint}")
    if place is Place.emulator and not large:
        patience.expect_small(
            "A, B", left.q.shape[0], right.q.shape[0], left.q.shape[1], patience.MULTIPLY, "the host gives the same numbers"
        )
    out.print(left.about)
    out.print(right.about)
    d, took = multiply(left.q, right.q, place.value, dtype.value)
    flops = 2 * left.q.shape[0] * right.q.shape[0] * left.q.shape[1]
    out.print(f"D  {dtype.value} {list(d.shape)}: {duration(took)} on {_WHERE[place]}, {speed(flops, took)}")
    if output is not None:
        files.save(output, d)
        out.print(f"   written to {output}")
    if check and not _is_right(left, right, d, place.value):
        raise typer.Exit(1)


_WHERE = {Place.cuda: "the GPU (kernel time, median, L2 flushed)", Place.host: "the host", Place.emulator: "the emulator"}


def multiply(a: Any, b: Any, place: str, dtype: str) -> tuple[Any, float]:
    """``a @ b.T`` as a NumPy array, and how long it took in seconds."""
    kind = DTYPES[dtype]
    if place == "cuda":
        from ..xp import empty

        x, y = gpu.to_gpu(a), gpu.to_gpu(b)
        d = empty((a.shape[0], b.shape[0]), kind, x.data)
        return gpu.to_host(dgnumba.fp8_gemm_nt(x, y, d), kind), gpu.seconds(lambda: dgnumba.fp8_gemm_nt(x, y, d))
    d = np.empty((a.shape[0], b.shape[0]), kind.numpy)
    begin = time.perf_counter()
    with progress(f"multiply ({place})") as step:
        slab = _SLAB if place == "host" else len(d)
        for first in range(0, len(d), max(slab, 1)):
            rows = slice(first, first + slab)
            dgnumba.fp8_gemm_nt((a.data[rows], a.scale[rows]), b, d[rows], on=place)  # type: ignore[arg-type]
            step(min(rows.stop, len(d)), len(d))
    return d, time.perf_counter() - begin


def _is_right(left: _Input, right: _Input, d: Any, place: str) -> bool:
    from ..report import verify

    originals = None if left.original is None or right.original is None else (left.original, right.original)
    with progress("check against float64") as step:
        verdict = verify(left.q, right.q, d, on=place, originals=originals, progress=step)
    console().print(f"   {verdict}")
    if verdict.quantization is not None:
        price = 100 * verdict.quantization
        console().print(f"   against the product of the unquantized files: {price:.2g} % off, which is the price of FP8")
    return verdict.is_right


def _refuse_not_finite(name: str, x: Any, scale: Any, rows: int, where: str) -> None:
    """A block's scale is finite where all of the block is."""
    blocks = np.argwhere(~np.isfinite(scale))
    if not blocks.size:
        return
    m, k = int(blocks[0][0]) * rows, int(blocks[0][1]) * 128
    files.refuse_beyond(np.float32, name, x[m : m + rows, k : k + 128], where, (m, k))


def _read(name: str, where: str, scales: str | None, rows: int) -> _Input:
    x = files.load(where)
    if x.ndim != 2:
        raise ProblemError(f"{name}: expected a matrix, got {list(x.shape)} in {where}")
    kind, sf = x.dtype.name, f"sf{name.lower()}"
    about = f"{name}  {kind} {list(x.shape)} from {where}"
    if kind in _FLOATS:
        if scales is not None:
            raise ProblemError(f"{sf}: expected none, since {where} holds {kind}, which is quantized here; got {scales}")
        with progress(f"quantize {name}") as step:
            _quantize(x[:_SLAB], rows, lambda done, total: None)  # may compile the cast, once for all processes: no part of the time told
            begin = time.perf_counter()
            q = _quantize(x, rows, step)
        took = time.perf_counter() - begin
        _refuse_not_finite(name, x, q.scale, rows, where)
        nbytes = q.data.nbytes + q.scale.nbytes
        return _Input(q, x, f"{about}, quantized to e4m3, one scale per {rows}x128: {size(nbytes)}, {duration(took)}")
    if kind not in ("float8_e4m3fn", "float8_e5m2", "uint8"):
        raise ProblemError(
            f"{name}: expected float8_e4m3fn (or its bytes as uint8) or float8_e5m2, or {', '.join(_FLOATS)} to quantize, got {kind} in {where}"
        )
    if scales is None:
        raise ProblemError(f"{sf}: expected --{sf} FILE for the scales of {where}, which holds {kind}; got none")
    q = dgnumba.QTensor(x, np.ascontiguousarray(files.load(scales)), "float8_e4m3fn" if kind == "uint8" else kind, (rows, 128))  # type: ignore[arg-type]
    return _Input(q, None, f"{about}, scales from {scales}")


def _quantize(x: Any, rows: int, step: Step) -> Any:
    """In slabs of rows, so that a mapped file is read as it is used."""
    cast = dgnumba.per_token_cast_to_fp8 if rows == 1 else dgnumba.per_block_cast_to_fp8
    if not len(x):
        return cast(x)
    parts = []
    for first in range(0, len(x), _SLAB):
        parts.append(cast(x[first : first + _SLAB]))
        step(min(first + _SLAB, len(x)), len(x))
    return dgnumba.QTensor(np.concatenate([p.data for p in parts]), np.concatenate([p.scale for p in parts]), parts[0].dtype, (rows, 128))
