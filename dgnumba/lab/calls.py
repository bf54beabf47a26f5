"""The package's own products in the lab."""

from __future__ import annotations

from typing import Any

from .. import api
from ..emulated import Emulated
from ..errors import ProblemError
from ..kernels import GemmPlan
from ..problem import check_fp8_gemm_nt
from .costs import Costs
from .record import Recorder
from .timeline import Timeline


def emulated(a: Any, b: Any, d: Any = None, *, plan: GemmPlan | str | None = None) -> Emulated:
    """``fp8_gemm_nt(a, b, d)`` for arrays in host memory, made ready for `emu.run`, `emu.step` and the pictures.

    Arguments as of `fp8_gemm_nt`, and checked as there. Raises `ProblemError` for arrays on a GPU, and where there is nothing to multiply.

    >>> import numpy as np, dgnumba
    >>> from dgnumba import emu, lab
    >>> x, w = np.ones((64, 128), np.float32), np.ones((32, 128), np.float32)
    >>> call = lab.emulated(dgnumba.per_token_cast_to_fp8(x), dgnumba.per_block_cast_to_fp8(w))
    >>> with emu.step(*call.launch, **call.options, who="consumer", at="wgmma.wait") as state:
    ...     print(state.thread().function, state.fragment("acc").shape[0])
    last_turn 64
    """
    operands = check_fp8_gemm_nt(a, b, d)
    if operands.device is not None:
        raise ProblemError(f"a: expected an array in host memory for the emulator, got one on GPU {operands.device}")
    if operands.problem.is_empty or operands.problem.k == 0:
        raise ProblemError(f"a, b: nothing to run: m {operands.problem.m}, n {operands.problem.n}, k {operands.problem.k}, no kernel runs")
    return api.emulated(operands, plan)


def trace_gemm(
    a: Any,
    b: Any,
    d: Any = None,
    *,
    plan: GemmPlan | str | None = None,
    policy: str = "eager",
    costs: Costs | None = None,
    blocks: int | None = None,
) -> Timeline:
    """The timeline of ``fp8_gemm_nt(a, b, d)`` in the emulator, of its first `blocks` blocks (None: of all)."""
    recorder = Recorder(blocks)
    emulated(a, b, d, plan=plan).run(policy, recorder)
    return recorder.timeline(costs)
