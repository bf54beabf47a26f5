"""``dgnumba demo``: a real layer, quantized, multiplied, stepped in the emulator, and checked, with what happens in plain words."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import typer
from rich.console import Console

import dgnumba

from .._version import __version__
from . import gpu
from .gemm import multiply
from .show import console, duration, progress, size, speed

TILE = 128  # rows and columns of D that the emulator makes: one tile


def demo() -> None:
    """Multiply a real layer in FP8, and check every element. One tile of the GPU's kernel is stepped on this CPU, too."""
    from ..data import demo_layer

    out = console()
    layer = demo_layer()
    x, weight = layer.activations, layer.weight
    out.print(f"dgnumba {__version__}: one layer of a language model in FP8\n")
    out.print(f"1. The layer is {layer.name}: a weight {list(weight.shape)},")
    out.print(f"   and activations {list(x.shape)} that came to it from sentences of a novel, both float16.\n")
    a, b = _quantize(out, x, weight)
    d, place = _multiply(out, a, b)
    is_right = _check(out, a, b, d, place, (x, weight))
    is_right &= _step(out, a, b, d, place)
    out.print("All of it is right." if is_right else "SOMETHING IS WRONG: see above.")
    out.print("\nNext: dgnumba info says what this machine can do; dgnumba gemm --help, how to multiply your own files;")
    out.print("README.md has the first lines of code.")
    if not is_right:
        raise typer.Exit(1)


def _quantize(out: Console, x: Any, weight: Any) -> tuple[Any, Any]:
    begin = time.perf_counter()
    a, b = dgnumba.per_token_cast_to_fp8(x), dgnumba.per_block_cast_to_fp8(weight)
    took = time.perf_counter() - begin
    before = x.nbytes + weight.nbytes
    after = sum(part.nbytes for part in (*a, *b))
    out.print(f"2. Quantized to 8-bit floats (e4m3) in {duration(took)}: {size(before)} became {size(after)}.")
    out.print("   Each 1x128 of the activations and each 128x128 of the weight has a float32 scale of its own.\n")
    return a, b


def _multiply(out: Console, a: Any, b: Any) -> tuple[Any, str]:
    why = gpu.missing()
    place = "host" if why else "cuda"
    d, took = multiply(a, b, place, "bfloat16")
    flops = 2 * a.shape[0] * b.shape[0] * a.shape[1]
    if why:
        out.print(f"3. Multiplied on this CPU, in NumPy, promoting sums to float32 where the GPU's kernel does: {duration(took)}.")
        out.print(f"   No GPU: {why}; the host and the emulator need none.\n")
    else:
        out.print(f"3. Multiplied on the GPU: {duration(took)} of kernel time, {speed(flops, took)}.\n")
    return d, place


def _check(out: Console, a: Any, b: Any, d: Any, place: str, originals: tuple[Any, Any]) -> bool:
    from ..report import verify

    with progress("check against float64") as step:
        verdict = verify(a, b, d, on=place, originals=originals, progress=step)
    out.print("4. Checked against the same product in float64, and the bound on what rounding may do:")
    out.print(f"   {verdict},")
    out.print("   nearly all of which is what rounding D to bfloat16 may cost.")
    price = 100 * (verdict.quantization or 0)
    out.print(f"   Against the product of the unquantized layer it is {price:.2g} % off: that is the price of FP8.\n")
    return verdict.is_right


def _step(out: Console, a: Any, b: Any, d: Any, place: str) -> bool:
    """One tile in the emulator, with asynchronous work done as early, and as late, as the hardware may."""
    from ..kernels import GemmPlan
    from ..report import verify

    plan = GemmPlan("sm90_fp8_gemm_1d2d", block_m=TILE, block_n=TILE, num_stages=2)
    rows = dgnumba.QTensor(a.data[:TILE], a.scale[:TILE], a.dtype, a.granularity)
    columns = dgnumba.QTensor(b.data[:TILE], b.scale[:1], b.dtype, b.granularity)
    tiles, begin = [], time.perf_counter()
    with progress("emulate") as step:
        for i, policy in enumerate(("eager", "late")):
            tiles.append(dgnumba.fp8_gemm_nt(rows, columns, on="emulator", plan=plan, policy=policy))
            step(i + 1, 2)
    took = time.perf_counter() - begin
    verdict = verify(rows, columns, tiles[0], on="emulator")
    repeats = np.array_equal(tiles[0].view(np.uint16), tiles[1].view(np.uint16))
    same = float((tiles[0].view(np.uint16) == d[:TILE, :TILE].view(np.uint16)).mean())
    out.print(f"5. Stepped the GPU's kernel, thread by thread, on this CPU: the first {TILE}x{TILE} tile, in {duration(took)}.")
    out.print("   384 threads, TMA copies, mbarriers, wgmma; twice: copies and products land at once, then as late as a wait allows:")
    out.print(f"   {'the same bits both times' if repeats else 'WRONG: the two runs differ'}. {verdict}.")
    where = "the GPU's" if place == "cuda" else "the host's"
    out.print(
        f"   {100 * same:.1f} % of its elements equal {where} to the bit" + (_WHY_NOT_ALL if place == "host" and same < 1 else ".") + "\n"
    )
    return verdict.is_right and repeats


_WHY_NOT_ALL = ";\n   the others differ in the last place: the tensor core drops low bits while it adds, and that is emulated too."
