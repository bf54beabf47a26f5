"""``dgnumba profile MxNxK``: what one product's kernel is made of, how fast it is, and which ceiling it meets."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import dgnumba

from .. import launching
from .. import plan as planning
from ..device import Device
from ..dtypes import DTYPES
from ..errors import CompileError
from ..prepared import built
from ..problem import GemmProblem
from ..profile import Measured, accesses, mix_of, occupancy, verdict
from . import ceilings, files, gpu, ncu
from .bench import parse
from .gemm import OutType
from .show import console, progress


def profile(
    shape: Annotated[str, typer.Argument(metavar="MxNxK", help="the product, as 4096x7168x2048")],
    dtype: Annotated[OutType, typer.Option(help="of D")] = OutType.bfloat16,
    runs: Annotated[int, typer.Option(min=1, help="timed calls, of which the median counts")] = 20,
    with_ncu: Annotated[bool, typer.Option("--ncu/--no-ncu", help="ask Nsight Compute too, where it is installed")] = True,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="write all of it as JSON too")] = None,
) -> None:
    """What a product's kernel is made of, and which ceiling it meets."""
    m, n, k = parse(shape)
    files.expect_folder("output", output)
    device, out = Device.current(), console()
    problem = GemmProblem(m, n, k, d_dtype=DTYPES[dtype.value])
    choice = planning.choose(problem, device)
    facts: dict[str, Any] = {"m": m, "n": n, "k": k, "gpu": device.name, "kernel": choice.plan.kernel, "plan": choice.plan.name}
    out.print(f"product      {m} x {n} x {k}, D {dtype.value}: {problem.flops / 1e9:.2f} GFLOP, {problem.bytes / 1e6:.2f} MB at least")
    out.print(f"kernel       {choice.plan.kernel}, {choice.plan.name}, for {device.name}")
    facts |= _resources(out, choice, device)
    facts["accesses"] = _accesses(out, choice.plan, problem, device)
    facts |= _speed(out, choice, problem, device, runs)
    if with_ncu and facts["measured"] is not None:
        facts["ncu"] = _ncu(out, m, n, k, dtype.value)
    if output is not None:
        output.write_text(json.dumps(facts, indent=1) + "\n")


def _resources(out: Console, choice: planning.Choice, device: Device) -> dict[str, Any]:
    """Registers, spills, occupancy, instructions: of the compiled kernel."""
    made = built(choice)
    try:
        cubin = launching.compiled(choice.plan, lambda: (made.kernel, made.argtypes), arch=device.arch, **made.bounds)
    except (CompileError, ImportError) as error:
        out.print(f"registers    not known: the kernel cannot be compiled here ({_first_line(error)}); {gpu.CURE}")
        return {"registers": None, "occupancy": None, "mix": None}
    if cubin.is_ptx:
        out.print("registers    not known: there is no ptxas here, only the driver will assemble; pip install nvidia-cuda-nvcc")
        return {"registers": None, "occupancy": None, "mix": None}
    spilled = cubin.spill_stores + cubin.spill_loads
    out.print(
        f"registers    {cubin.registers} a thread at entry, {made.threads} threads; {spilled} bytes spilled, {cubin.local_bytes} of local memory"
    )
    smem = made.smem.launch_bytes + max(0, cubin.smem_bytes)
    found = occupancy(device, threads=made.threads, registers=cubin.registers, smem_bytes=smem)
    out.print(f"occupancy    {found}; {smem} bytes of shared memory a CTA")
    facts = {
        "registers": cubin.registers,
        "spilled_bytes": spilled,
        "threads": made.threads,
        "smem_bytes": smem,
        "occupancy": asdict(found),
    }
    try:
        mix = mix_of(cubin)
    except CompileError as error:
        out.print(f"instructions not known: {_first_line(error)}")
        return facts | {"mix": None}
    table = Table(title="instructions as written", title_justify="left")
    for name, justify in (("class", "left"), ("kernel", "right"), ("loop over K", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for name, total, loop in mix.table():
        table.add_row(name, str(total), str(loop) if loop else "-")
    out.print(table)
    return facts | {"mix": {"kernel": dict(mix.total), "loop": dict(mix.loop)}}


def _accesses(out: Console, plan: Any, problem: GemmProblem, device: Device) -> dict[str, Any]:
    with progress("emulate a tile") as step:
        found = accesses(plan, problem, device)
        step(1, 1)
    out.print(f"emulated     {found.m} x {found.n} x {found.k}, every access of a thread counted:")
    for what, unit, rows in (("shared", "ways", found.shared), ("global", "times the sectors needed", found.global_memory)):
        out.print(f"  {what} memory: " + ("no access by threads" if not rows else ""))
        for place, excess, requests in sorted(rows, key=lambda row: -row[1]):
            out.print(f"    {excess:5.2f} {unit}, {requests:6d} requests  {place}")
    for error in found.errors:
        out.print(f"  {error}")
    return asdict(found)


def _speed(out: Console, choice: planning.Choice, problem: GemmProblem, device: Device, runs: int) -> dict[str, Any]:
    """Time against the two ceilings, and the sentence; without a GPU what cannot be known."""
    estimate = choice.estimate
    guess = f"the cost model expects {estimate.total:.1f} us, bound by {estimate.bound}, on a {device.name}"
    why = gpu.missing()
    if why is not None:
        out.print(
            f"speed        not measured: there is no GPU here ({why}). Time, TFLOP/s, GB/s, both ceilings and Nsight's figures need one."
        )
        out.print(f"             An estimate, no measurement: {guess}.")
        return {"measured": None, "estimate_us": estimate.total, "verdict": None}
    measured = measure(choice.plan, problem, runs)
    sentence = verdict(measured, waves=planning.waves(choice.plan, problem, device))
    out.print(f"speed        {measured.us:.2f} us of the call on its stream (median of {runs}, L2 flushed by reading); {guess}")
    if measured.peak_flops is None:
        out.print(f"  products   {measured.tflops:8.1f} TFLOP/s; their ceiling is not measured: the kernel for it is Hopper's")
    else:
        out.print(
            f"  products   {measured.tflops:8.1f} TFLOP/s of {measured.peak_flops / 1e12:.1f} without loads: {measured.tensor_share:.1%}"
        )
    out.print(
        f"  memory     {measured.gbytes:8.1f} GB/s    of {measured.peak_bytes / 1e9:.1f} of reading alone: {measured.memory_share:.1%}"
    )
    out.print(f"  launch     {measured.launch_us:8.2f} us of a kernel that does nothing: {measured.launch_share:.1%}")
    out.print(f"binds        {sentence}")
    shares = {
        "tflops": measured.tflops,
        "gbytes": measured.gbytes,
        "tensor_share": measured.tensor_share,
        "memory_share": measured.memory_share,
    }
    return {"measured": asdict(measured) | shares, "estimate_us": estimate.total, "verdict": sentence}


def measure(plan: Any, problem: GemmProblem, runs: int) -> Measured:
    """The call and the two ceilings on the current GPU, on random data."""
    rng = np.random.default_rng(0)
    a = gpu.to_gpu(dgnumba.per_token_cast_to_fp8(rng.standard_normal((problem.m, problem.k), np.float32)))
    b = gpu.to_gpu(dgnumba.per_block_cast_to_fp8(rng.standard_normal((problem.n, problem.k), np.float32)))
    from ..xp import empty

    d = empty((problem.m, problem.n), problem.d_dtype, a.data)
    us = 1e6 * gpu.seconds(lambda: dgnumba.fp8_gemm_nt(a, b, d, plan=plan), runs)
    return Measured(us, problem.flops, problem.bytes, ceilings.tensor(), ceilings.memory(), 1e6 * ceilings.launch())


def _ncu(out: Console, m: int, n: int, k: int, dtype: str) -> dict[str, str] | None:
    found, why = ncu.figures(m, n, k, dtype)
    if not found:
        out.print(f"Nsight       no figures: {why}")
        return None
    out.print("Nsight Compute:")
    for name, value in found.items():
        out.print(f"  {name:42s} {value}")
    return found


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0]
