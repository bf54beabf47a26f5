"""The calls: check -> plan -> lay out -> run, each step a function of another room."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from . import config, launching, policy, scale_moves
from . import plan as planning
from .device import Device
from .dtypes import DTYPES
from .errors import ProblemError
from .kernels import Built, GemmPlan
from .kernels.spec import choices_named
from .layouts.operands import LaidOut, has_readable_rows, lay_out
from .plan import Choice
from .prepared import Launched, Planned, prepared, quick, quick_new, remember
from .prepared import built as built_kernel
from .problem import Operands, check_fp8_gemm_nt, settle
from .xp import address, device_of, empty, namespace

if TYPE_CHECKING:
    from .emulated import Emulated

On = Literal["cuda", "host", "emulator"]
E4M3, F32 = DTYPES["float8_e4m3fn"], DTYPES["float32"]


def fp8_gemm_nt(
    a: Any,
    b: Any,
    d: Any = None,
    c: Any = None,
    *,
    on: On | None = None,
    stream: Any = None,
    check: bool | None = None,
    plan: GemmPlan | str | None = None,
    policy: str = "eager",
) -> Any:
    """D = C + A @ B.T for FP8 operands with block scales; named and defined as DeepGEMM's.

    Args:
        a: `QTensor`, or pair of e4m3 or e5m2 data ``[M,K]`` and float32 scales ``[M, ceil(K/128)]``. NumPy, CuPy, torch or JAX
            arrays; uint8 is the bytes of e4m3. Scales that are powers of two may be int32 ``[M, ceil(K/512)]``, four UE8M0 bytes each.
        b: the same, ``[N,K]`` and ``[ceil(N/128), ceil(K/128)]``, or int32 ``[ceil(N/128), ceil(K/512)]``.
        d: output ``[M,N]``, bfloat16, float16 or float32, any strides; None: a new bfloat16 one. What is too large for it becomes infinity.
        c: None, or an array like `d` (or `d` itself) that is added in float32 before the one rounding, to the nearest, ties to even.
        on: "cuda", "host" (NumPy, the same numbers at the same promotion points) or "emulator" (the GPU's kernel, interpreted); by
            default where the arrays are.
        stream: the stream to run on; by default the arrays' own (CuPy's current one).
        check: look at every scale for NaN, infinity and negative values: by default on the host only.
        plan: a `GemmPlan`, or the name of one as `explain` prints it ("64x64x128 s12 tma"), in the place of the chosen one.
        policy: of the emulator: "eager" or "late" (`emu.run`).

    Returns:
        `d`.

    Raises:
        ProblemError, DTypeError: an argument is refused; nothing has been written. UnsupportedError: no GPU, or no kernel for it.
        PlanError: `plan` cannot be used; says what rules it out.

    >>> import numpy as np, dgnumba
    >>> x, w = np.ones((2, 256), np.float32), np.ones((3, 256), np.float32)
    >>> d = dgnumba.fp8_gemm_nt(dgnumba.per_token_cast_to_fp8(x), dgnumba.per_block_cast_to_fp8(w))
    >>> d.astype(np.float32)
    array([[256., 256., 256.],
           [256., 256., 256.]], dtype=float32)
    """
    if c is None and plan is None and not check and (on is None or on == "cuda"):
        made = quick_new(a, b, stream) if d is None else quick(a, b, d, stream)
        if made is not None:
            return made
    operands = check_fp8_gemm_nt(a, b, d, c, check, defer=True)
    where = _where(on, operands)
    if where == "cuda":
        made = _run_on_gpu(operands, plan, check, (*a, *b, d), c, stream)
        return made if d is None else d
    result = operands.d if d is None else d
    if operands.problem.is_empty:
        return result
    if operands.problem.k == 0:
        _write_addend(operands)
    elif where == "host":
        _run_on_host(operands)
    else:
        _emulate(operands, plan, policy)
    return result


def _where(on: On | None, operands: Operands) -> On:
    is_host = operands.device is None
    if on not in (None, "cuda", "host", "emulator"):
        raise ProblemError(f"on: expected 'cuda', 'host' or 'emulator', got {on!r}")
    if on == "cuda" and is_host or on in ("host", "emulator") and not is_host:
        place = "host memory" if is_host else f"GPU {operands.device}"
        raise ProblemError(f"on: {on!r} needs arrays {'on a GPU' if is_host else 'in host memory'}, got arrays in {place}")
    return on or ("host" if is_host else "cuda")


def _choose(
    operands: Operands, plan: GemmPlan | str | None, device: Device, settings: config.Settings | None = None,
    choose: Callable[..., Choice] = policy.choose,
) -> Choice:  # fmt: skip
    settings = settings or config.current()
    problem, device = replace(operands.problem, row_scales=has_readable_rows(operands.sfa)), settings.limited(device)
    problem = planning.as_taken(problem, device)
    if isinstance(plan, str):
        return planning.named(plan, problem, device, settings.batch_invariant)
    if plan is None:
        return choose(problem, device, batch_invariant=settings.batch_invariant)
    return planning.validate(plan, problem, device, settings.batch_invariant)


def _with_float_scales(operands: Operands, row_scales: bool, stream: Any = None) -> tuple[Operands, list[str]]:
    """The operands with float32 scales, on a GPU A's in the form that TMA reads; and what was made anew for that."""
    sfa, sfb, k_blocks, made = operands.sfa, operands.sfb, -(-operands.problem.k // 128), []
    if sfa.dtype == np.int32:
        sfa = scale_moves.unpacked(sfa, k_blocks, mn_major=operands.device is not None, stream=stream)
        made.append(f"sfa: UE8M0, int32 {list(operands.sfa.shape)}, unpacked to float32 {list(sfa.shape)}")
    elif operands.device is not None and not row_scales:
        sfa = scale_moves.get_mn_major_tma_aligned_tensor(sfa, stream=stream)
        if address(sfa) != address(operands.sfa):
            made.append(f"sfa: row-major {list(sfa.shape)} turned to MN-major, rows of 16-byte multiples")
    if sfb.dtype == np.int32:
        sfb = scale_moves.get_row_major_ue8m0_tensor(sfb, k_blocks, stream=stream)
        made.append(f"sfb: UE8M0, int32 {list(operands.sfb.shape)}, unpacked to float32 {list(sfb.shape)}")
    return (replace(operands, sfa=sfa, sfb=sfb) if made else operands), made


def _lay_out(operands: Operands, plan: GemmPlan, stream: Any = None) -> LaidOut:
    if plan.row_scales:
        operands = replace(operands, problem=replace(operands.problem, row_scales=True))
    operands, made = _with_float_scales(operands, plan.row_scales, stream)
    laid = lay_out(operands) if plan.with_c or operands.c is None else _lay_out_product(operands)
    return replace(laid, copies=(*made, *laid.copies)) if made else laid


def _lay_out_product(operands: Operands) -> LaidOut:
    """For a kernel that adds nothing."""
    total = empty(operands.d.shape, F32, operands.d)
    product = replace(operands, problem=replace(operands.problem, d_dtype=F32, with_c=False), d=total, c=None)
    laid = lay_out(product)
    note = "c: the product is made in a float32 buffer, c is added there, and the sum rounded to d"
    return replace(laid, target=operands.d, c=operands.c, copies=(*laid.copies, note))


def _finish(laid: LaidOut) -> None:
    """Bring the product to the caller's array, if it was not made there."""
    if laid.target is laid.d:
        return
    with device_of(laid.d):
        made = laid.d[:, : laid.problem.n]
        if laid.c is None or laid.problem.with_c:
            laid.target[...] = made
        else:
            _store_float32(laid.target, made + _as_float32(laid.c))


def _as_float32(x: Any) -> Any:
    if x.dtype.itemsize == 4:
        return x
    return x.astype(np.float32) if x.dtype == np.float16 else DTYPES["bfloat16"].decode(x.view("uint16"), namespace(x))


def _store_float32(target: Any, total: Any) -> None:
    if target.dtype.itemsize == 4 or target.dtype == np.float16:
        with np.errstate(over="ignore", under="ignore"):
            target[...] = total
    else:
        target[...] = _as_bfloat16(total).view(target.dtype)


def _as_bfloat16(total: Any) -> Any:
    """The bits of float32 as bfloat16, to nearest even; too large is infinite, as the kernels' cvt.rn has it (`DType.encode` saturates)."""
    xp, bits = namespace(total), total.view("uint32")
    rounded = (bits + (0x7FFF + (bits >> 16 & 1))) >> 16
    return xp.where(xp.isnan(total), bits >> 16 & 0x8000 | 0x7FC0, rounded).astype("uint16")


def _write_addend(operands: Operands) -> None:
    """K is 0: D = C, or 0."""
    with device_of(operands.d):
        # C as D has it: one of them may be bfloat16, and the other its bits
        operands.d[...] = 0 if operands.c is None else operands.c.view(operands.d.dtype)


def _run_on_host(operands: Operands) -> None:
    from .quant.host import fp8_gemm_nt_host

    operands, _ = _with_float_scales(operands, False)
    p = operands.problem
    fp8_gemm_nt_host(operands.a, operands.sfa, operands.b, operands.sfb, operands.d, operands.c, a_dtype=p.a_dtype, b_dtype=p.b_dtype)


def _run_on_gpu(operands: Operands, plan: GemmPlan | str | None, check: bool | None, owners: tuple[Any, ...], c: Any, stream: Any) -> Any:
    """Queue the product; `owners` are a, sfa, b, sfb, d as the caller gave them. Returns the array of d."""
    index, settings = operands.device, config.current()
    assert index is not None
    handle = launching.stream_of([x for x in (*owners, c) if x is not None], index, stream)
    with launching.ordered(index, handle):
        operands = settle(operands, check)
        if operands.problem.is_empty:
            return operands.d
        if operands.problem.k == 0:
            _write_addend(operands)
        else:
            device = Device.numbered(index)
            choice = _choose(operands, plan, device, settings)
            laid = _lay_out(operands, choice.plan, handle)
            launch = prepared(choice, laid, settings.limited(device), settings.pdl, settings.constant_weights)
            launch(laid, handle)
            _finish(laid)
            if plan is None and c is None and _is_e4m3(operands):
                remember((*owners[:4], operands.d if owners[-1] is None else owners[-1]), launch, laid, settings)
    if owners[-1] is None and stream is None:
        launching.joined(index, handle)
    return operands.d


def _is_e4m3(operands: Operands) -> bool:
    """Whether both operands are what bytes are taken for where no type is said: CuPy has no float8."""
    return operands.problem.a_dtype is E4M3 and operands.problem.b_dtype is E4M3


def _emulate(operands: Operands, plan: GemmPlan | str | None, policy: str) -> None:
    call = emulated(operands, plan)
    call.run(policy)
    _finish(call.laid)


def emulated(operands: Operands, plan: GemmPlan | str | None = None) -> Emulated:
    """Checked operands in host memory as a call of the emulator."""
    from .emulated import SMS, Emulated

    settings = config.current()
    cluster = 1
    if isinstance(plan, str):
        cluster = choices_named(plan)["cluster"]
    elif isinstance(plan, GemmPlan):
        cluster = plan.cluster
    device = settings.limited(replace(Device.current(), num_sms=max(SMS, cluster)))
    choice = _choose(operands, plan, device, settings, planning.choose)
    return Emulated.of(choice, _lay_out(operands, choice.plan), device)


@dataclass(frozen=True, eq=False)
class Explanation:
    """The chain of one call, to print: operands, layout, problem, plan and why, shared memory, registers."""

    operands: Operands
    copies: tuple[str, ...]
    device: Device
    choice: Choice
    built: Built
    resources: str
    launched: GemmPlan | None = None
    """The plan as it is built: of a launch that begins early it says more than the choice."""

    def __str__(self) -> str:
        p, plan, est = self.operands.problem, self.choice.plan, self.choice.estimate
        tiles, waves = self.choice.kernel.count_tiles(plan, p), planning.waves(plan, p, self.device)
        lines = [
            f"operands   a {p.a_dtype} [{p.m}, {p.k}], {_scales(p.gran_a)}; b {p.b_dtype} [{p.n}, {p.k}], {_scales(p.gran_b)}; "
            f"d {p.d_dtype} [{p.m}, {p.n}]",
            "lay out    " + ("\n           ".join(self.copies) or "nothing to copy"),
            f"problem    {p.flops / 1e9:.2f} GFLOP, {p.bytes / 1e6:.2f} MB at least",
            f"plan       {plan.kernel}: tile {plan.block_m}x{plan.block_n}x{plan.block_k}, {plan.num_stages} stages, "
            + _shared(plan) + "widened to float16, " * plan.widen + "row-major scales, " * plan.row_scales
            + f"{plan.epilogue} epilogue; plan={plan.name!r}",
            *_early(self.launched),
            f"why        {tiles} tiles on {self.device.num_sms} multiprocessors ({self.device.name}): {waves:.2f} waves; "
            f"{est.total:.1f} us expected, bound by {est.bound} (tensor {est.tensor:.1f}, loads {est.load:.1f}, L2 {est.l2:.1f}, "
            f"memory {est.memory:.1f}, epilogues {est.epilogue:.1f}, launch {est.launch:.1f})",
            "           " + self._against(),
            "smem       " + str(self.built.smem).replace("\n", "\n           "),
            f"registers  {self.resources}",
        ]  # fmt: skip
        return "\n".join(lines)

    def _against(self) -> str:
        row = self.choice.measured
        if row is not None:
            return f"fastest of {self.choice.considered} plans that were measured here: {row.us:.1f} us ({row.method})"
        others = "; ".join(f"{q.label} {e.total:.1f} us" for q, e in self.choice.runners_up) or "none"
        return f"cheapest of {self.choice.considered} plans; next: {others}"


def _scales(granularity: tuple[int, int] | None) -> str:
    return "no scales" if granularity is None else f"one scale per {granularity[0]}x{granularity[1]}"


def _shared(plan: GemmPlan) -> str:
    if plan.cluster == 1:
        return "no cluster, "
    return f"clusters of {plan.cluster} sharing {plan.multicast}, " if plan.multicast else f"K split over clusters of {plan.cluster}, "


def _early(launched: GemmPlan | None) -> list[str]:
    if launched is None or not launched.pdl:
        return []
    ask = "asks for its first weights, then waits for that one" if launched.weights_first else "waits for that one"
    return [f"launch     begins as the kernel before it ends, {ask}, and lets the next begin behind its loads; built as {launched.name!r}"]


def explain(a: Any, b: Any, d: Any = None, c: Any = None, *, check: bool | None = None, plan: GemmPlan | str | None = None) -> Explanation:
    """What `fp8_gemm_nt` would do with these arguments, and why; `print` it. Compiles the kernel and lays the operands out, but multiplies nothing.

    Raises as `fp8_gemm_nt` does.
    """
    operands = check_fp8_gemm_nt(a, b, d, c, check)
    if operands.problem.is_empty or operands.problem.k == 0:
        raise ProblemError(
            f"a, b: nothing to explain: m {operands.problem.m}, n {operands.problem.n}, k {operands.problem.k}, no kernel runs"
        )
    settings = config.current()
    device = settings.limited(Device.of(operands.a))
    choice = _choose(operands, plan, device, settings)
    laid = _lay_out(operands, choice.plan)
    launched = Launched.of(choice, settings.pdl, settings.constant_weights and laid.has_callers_weights)
    built = built_kernel(launched)
    return Explanation(operands, laid.copies, device, choice, built, resources_of(launched, built, device), launched.plan)


def resources_of(choice: Planned, built: Built, device: Device) -> str:
    """What a plan's kernel takes of a multiprocessor, in words."""
    try:
        cubin = launching.compiled(choice.plan, lambda: (built.kernel, built.argtypes), arch=device.arch, **built.bounds)
    except Exception as error:  # explaining must work where nothing can be compiled
        return f"unknown, the kernel could not be compiled here ({type(error).__name__}: {str(error).splitlines()[0]})"
    return f"{cubin.registers} a thread at entry, {built.threads} threads; {cubin.spill_stores + cubin.spill_loads} bytes spilled"


__all__ = ["Explanation", "On", "explain", "fp8_gemm_nt"]
