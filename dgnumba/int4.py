"""`int4_gemm_nt`: products with weights of 4 bits, from check to run, and `explain_int4`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from . import config, launching
from .api import On, _as_float32, _store_float32, resources_of
from .device import Device
from .dtypes import DType
from .emulated import SMS
from .errors import ProblemError
from .int4_operands import ARRAYS, Int4LaidOut, Int4Operands, check_int4_gemm_nt, lay_out
from .int4_plan import Int4Choice, choose_int4, validate_int4
from .int4_prepared import prepared, quick, remember
from .int4_problem import Int4Problem
from .kernels import Built
from .kernels.int4_spec import Int4Plan
from .prepared import Launched, built
from .quant.int4_host import int4_gemm_nt_host
from .xp import device_of, namespace


def int4_gemm_nt(
    a: Any,
    w: Any,
    d: Any = None,
    c: Any = None,
    *,
    bias: Any = None,
    out_dtype: DType | str | None = None,
    on: On | None = None,
    stream: Any = None,
    check: bool | None = None,
    plan: Int4Plan | None = None,
    policy: str = "eager",
) -> Any:
    """D = C + bias + A @ W.T for weights of 4 bits; with a gate, D = C + silu(A @ W.T) * (A @ G.T).

    Args:
        a: ``[M,K]``: bfloat16 (or its bits as uint16) or float16; or a `QTensor` of float8_e4m3fn with a float32 scale for each
            1x128 or each row, or of int8 or int4 (widened to int8) with one for each row. NumPy, CuPy, torch or JAX arrays.
        w: `Int4Weights` of ``[N,K]``, made once by `prepare_int4_weights` for this type of `a`; or a `QTensor`, prepared in the call.
        d: output ``[M,N]``, bfloat16, float16 or float32; None: a new one of `out_dtype`. int32 is for int8 and int4 `a` beside weights
            with one scale a row: the sums of codes less zero points, unscaled.
        c: None, or an array like `d` (or `d` itself) that is added in float32 before the one rounding.
        bias: None, or ``[N]`` of any of these types, added to each row.
        out_dtype: of a new `d`: by default float16 for float16 `a`, else bfloat16.
        on: "cuda", "host" (NumPy, the same numbers at the same promotion points) or "emulator" (the GPU's kernel, interpreted); by
            default where the arrays are.
        stream: the stream to run on; by default the arrays' own (CuPy's current one).
        check: look at every scale of `a`, and compare the weights' stream with its check value: by default on the host only.
        plan: an `Int4Plan` in the place of the chosen one.
        policy: of the emulator: "eager" or "late" (`emu.run`).

    Returns:
        `d`.

    Raises:
        ProblemError, DTypeError: an argument is refused; nothing has been written. UnsupportedError: no GPU, or no kernel for it.

    Scales meet float32 sums, so that no weight is rounded; beside 16-bit activations a GPU's plan may fold them into the weights, where that is
    faster, each rounded to that type (`Int4Plan.fold`, `set_exact_weights`), and beside float8_e4m3fn by rows it may sum in float16 for a bfloat16
    result (`Int4Plan.f16_sums`, `set_float32_sums`). `int4_error_bound` says how far a result may lie from the exact one.

    >>> import numpy as np, dgnumba
    >>> w = dgnumba.prepare_int4_weights(dgnumba.quantize(np.full((3, 128), 0.5, np.float32), "int4_g128"), "float16")
    >>> dgnumba.int4_gemm_nt(np.ones((2, 128), np.float16), w)
    array([[64., 64., 64.],
           [64., 64., 64.]], dtype=float16)
    """
    is_plain = d is not None and c is None and bias is None and plan is None and not check
    if is_plain and on in (None, "cuda") and quick(a, w, d, stream):
        return d
    operands = check_int4_gemm_nt(a, w, d, c, bias, out_dtype, check)
    where = _where(on, operands)
    if where == "cuda":
        _run_on_gpu(operands, plan, (a, d, c, bias), w, stream)
    elif where == "emulator" and _has_work(operands):
        _emulate(operands, plan, policy)
    else:
        _run_on_host(operands)
    return operands.d if d is None else d


def _where(on: On | None, operands: Int4Operands) -> On:
    is_host = operands.device is None
    if on not in (None, "cuda", "host", "emulator"):
        raise ProblemError(f"on: expected 'cuda', 'host' or 'emulator', got {on!r}")
    if on == "cuda" and is_host or on in ("host", "emulator") and not is_host:
        place = "host memory" if is_host else f"GPU {operands.device}"
        raise ProblemError(f"on: {on!r} needs arrays {'on a GPU' if is_host else 'in host memory'}, got arrays in {place}")
    return on or ("host" if is_host else "cuda")


def _choose(problem: Int4Problem, plan: Int4Plan | None, device: Device, settings: config.Settings) -> Int4Choice:
    """The plan for what may be used of a device."""
    rules = settings.batch_invariant, settings.exact_weights, settings.float32_sums
    if plan is None:
        return choose_int4(problem, settings.limited(device), *rules)
    return validate_int4(plan, problem, settings.limited(device), *rules)


def _has_work(operands: Int4Operands) -> bool:
    """Whether there is anything to multiply."""
    return not operands.problem.is_empty and operands.problem.k > 0


def _write_addends(operands: Int4Operands) -> None:
    """Nothing is multiplied: D = bias + C, or 0."""
    d, c = operands.d, operands.c
    with device_of(d):
        total = namespace(d).zeros(d.shape, np.float32)
        if operands.bias is not None:
            total += operands.bias
        _store_float32(d, total if c is None else total + _as_float32(c))


def _finish(laid: Int4LaidOut) -> None:
    if laid.target is not laid.d:
        with device_of(laid.d):
            laid.target[...] = laid.d


def _run_on_host(operands: Int4Operands) -> None:
    if _has_work(operands):
        int4_gemm_nt_host(operands.a, operands.scales, operands.weights, operands.d, operands.c, operands.bias)
    else:
        _write_addends(operands)


def _run_on_gpu(operands: Int4Operands, plan: Int4Plan | None, owners: tuple[Any, ...], weights: Any, stream: Any) -> None:
    """Queue the product; `owners` are a, d, c and bias, and `weights` the weights, as the caller gave them."""
    index, settings = operands.device, config.current()
    assert index is not None
    arrays = [x.data if hasattr(x, "granularity") else x for x in owners if x is not None]
    handle = launching.stream_of(arrays, index, stream)
    with launching.ordered(index, handle):
        if not _has_work(operands):
            _write_addends(operands)
        else:
            device = Device.numbered(index)
            choice = _choose(operands.problem, plan, device, settings)
            laid = lay_out(operands, choice.kernel.ANY_SCALES)
            launch = prepared(choice, laid, settings.limited(device), settings.pdl)
            launch(laid, handle)
            _finish(laid)
            if plan is None and all(x is None for x in owners[2:]) and owners[1] is not None:
                remember(owners[0], weights, owners[1], launch, laid, settings)
    if owners[1] is None and stream is None:
        launching.joined(index, handle)


def _emulate(operands: Int4Operands, plan: Int4Plan | None, policy: str) -> None:
    from . import emu

    # planned for few multiprocessors: that gives the largest tiles, hence the fewest threads to step
    settings = config.current()
    device = settings.limited(replace(Device.current(), num_sms=SMS))
    choice = _choose(operands.problem, plan, device, settings)
    laid = lay_out(operands, choice.kernel.ANY_SCALES)
    made = built(choice)
    grid = choice.kernel.grid(choice.plan, laid.problem, device)
    arrays = [x for x in (getattr(laid, name) for name in ARRAYS) if x is not None]
    emu.run(made.kernel, grid, made.threads, choice.kernel.bind(choice.plan, laid), smem=made.smem.launch_bytes, cluster=made.cluster,
            policy=policy, labels=made.smem.labels, arrays=arrays)  # fmt: skip
    _finish(laid)


@dataclass(frozen=True, eq=False)
class Int4Explanation:
    """The chain of one call, to print: operands, layout, problem, plan and why, shared memory, registers."""

    operands: Int4Operands
    copies: tuple[str, ...]
    device: Device
    choice: Int4Choice
    built: Built
    resources: str

    def __str__(self) -> str:
        p, plan, choice = self.operands.problem, self.choice.plan, self.choice
        tiles = choice.kernel.count_tiles(plan, p)
        others = "; ".join(f"{q.name} {e:.1f} us" for q, e in choice.runners_up) or "none"
        floor = p.bytes / self.device.memory_bandwidth * 1e6
        lines = [
            f"operands   a {p.a_dtype} [{p.m}, {p.k}]; {self.operands.weights}; d {p.d_dtype} [{p.m}, {p.n}]",
            "lay out    " + ("\n           ".join(self.copies) or "nothing to copy"),
            f"problem    {p.flops / 1e9:.2f} GFLOP, {p.bytes / 1e6:.2f} MB at least, of which {p.weight_bytes / 1e6:.2f} weights: "
            f"{floor:.1f} us at the memory's {self.device.memory_bandwidth / 1e12:.1f} TB/s",
            f"plan       {plan.kernel}: tile {plan.block_m}x{plan.block_n}{', by halves of its tokens' * (plan.turns > 1)}, "
            f"{plan.records} records of 128 of K a stage, {plan.num_stages} stages, "
            + (
                f"K split over clusters of {plan.split}"
                if plan.split > 1
                else f"no split but of the last round's tiles, over clusters of {plan.tail}"
                if plan.tail > 1
                else "no split"
            )
            + ", four columns of d stored at a time" * plan.quads,
            "scales     " + _scales_meet(plan, p),
            f"why        {tiles} tiles on {self.device.num_sms} multiprocessors ({self.device.name}); {choice.estimate:.1f} us expected",
            f"           cheapest of {choice.considered} plans; next: {others}",
            "smem       " + str(self.built.smem).replace("\n", "\n           "),
            f"registers  {self.resources}",
        ]  # fmt: skip
        return "\n".join(lines)


def _scales_meet(plan: Int4Plan, problem: Int4Problem) -> str:
    """Where scales are multiplied in, and what that rounds."""
    if plan.f16_sums:
        return f"of weights multiply float16 sums of {plan.group} columns, and all sums are float16 (f16_sums): no weight is rounded"
    if not plan.fold:
        return "of weights multiply float32 sums: no weight is rounded"
    off = problem.fold_error
    return f"multiply the weights, in {plan.a_dtype} (fold): " + (
        f"each off by 2^{math.log2(off):.1f} of itself at most" if off else "exactly"
    )


def explain_int4(a: Any, w: Any, d: Any = None, c: Any = None, *, bias: Any = None, out_dtype: DType | str | None = None,
                 check: bool | None = None, plan: Int4Plan | None = None) -> Int4Explanation:  # fmt: skip
    """What `int4_gemm_nt` would do with these arguments, and why; `print` it. Compiles the kernel and lays the operands out, multiplies nothing.

    Raises as `int4_gemm_nt` does.
    """
    operands = check_int4_gemm_nt(a, w, d, c, bias, out_dtype, check)
    if not _has_work(operands):
        p = operands.problem
        raise ProblemError(f"a, w: nothing to explain: m {p.m}, n {p.n}, k {p.k}, no kernel runs")
    settings = config.current()
    device = settings.limited(Device.of(operands.a))
    choice = _choose(operands.problem, plan, device, settings)
    launched = Launched.of(choice, settings.pdl)
    made = built(launched)
    return Int4Explanation(
        operands, lay_out(operands, choice.kernel.ANY_SCALES).copies, device, choice, made, resources_of(launched, made, device)
    )


__all__ = ["Int4Explanation", "explain_int4", "int4_gemm_nt"]
