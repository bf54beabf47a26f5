"""Measure the plans for the shapes of a caller on the GPU that is here, and keep the fastest: `plan.choose` takes it from then on.

Each plan's launches take turns with the others': in every round each runs once, in another order, after L2 was emptied by reading other memory.
A time is that between two CUDA events around the launch; the median of the rounds counts.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from . import driver, launching, policy
from . import plan as planning
from .ahead import Progress, compile_all
from .device import Device
from .dtypes import DTYPES, DType
from .errors import LaunchError, PlanError, ProblemError
from .kernels import GemmPlan
from .layouts.operands import LaidOut
from .measured import Measured
from .plan import Choice
from .prepared import prepared
from .problem import GemmProblem
from .xp import cupy_for

CANDIDATES = 24
"""Plans that are measured, the cheapest by the model: it errs by a few percent, so the fastest is among them."""

ROUNDS = 25
_VARIED = 3
_FLUSH = 4
_SAMPLE = 1 << 20

Timer = Callable[[GemmProblem, Sequence[Choice], Device, int, Callable[[], None]], list[float]]
"""Microseconds of each plan: of a problem, plans, the GPU, rounds, and what to call after each round."""


def tune(
    shapes: Iterable[Sequence[int]],
    *,
    a_dtype: DType | str = "float8_e4m3fn",
    b_dtype: DType | str = "float8_e4m3fn",
    d_dtype: DType | str = "bfloat16",
    candidates: int | None = CANDIDATES,
    rounds: int = ROUNDS,
    jobs: int | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    device: Device | None = None,
    timer: Timer | None = None,
) -> list[Measured]:
    """Measure plans for products of these shapes, and have calls take the fastest from now on, in this process and in others.

    The choice is kept beside the compiled kernels, by the GPU's name, the problem and the version of dgnumba. Run as a script it needs the guard
    ``if __name__ == "__main__":``, as `warmup` does.

    Args:
        shapes: ``(m, n, k)`` each.
        a_dtype, b_dtype, d_dtype: element types.
        candidates: how many plans to measure of a shape, the cheapest by the model, and of the first few those with a stage more or one or two less;
            None: all.
        rounds: launches of each plan, of which the median counts.
        jobs: processes that compile at one time.
        progress: called with "compile" or "measure", what is done, and what there is to do.
        device: the GPU; None: the current one.
        timer: what measures; None: CUDA events on `device`.

    Returns:
        What was found, a row a shape: the fastest plan, and the others' times.

    Raises:
        LaunchError: no GPU is here. ProblemError: a shape that is none, or no directory to keep the choice in. CompileError: as `warmup`.
    """
    if timer is None:
        timer, device = _by_events, device or _gpu()
    device = device or Device.current()
    if rounds < 1 or (candidates is not None and candidates < 1):
        raise ProblemError(f"rounds, candidates: expected 1 or more, got {rounds} and {candidates}")
    problems = [_problem(shape, a_dtype, b_dtype, d_dtype) for shape in shapes]
    offered = {problem: plans_for(problem, device, candidates) for problem in problems}
    everything = list(dict.fromkeys(choice.plan for choices in offered.values() for choice in choices))
    compile_all(everything, device.arch, jobs, _named(progress, "compile"))
    found, step = [], _Steps(_named(progress, "measure"), rounds * len(offered))
    for problem, choices in offered.items():
        us = timer(problem, choices, device, rounds, step)
        order = sorted(zip(us, (choice.plan for choice in choices)), key=lambda entry: entry[0])
        (best, plan), *others = order
        found.append(Measured(device.name, problem, plan, best, tuple((p, t) for t, p in others), method(rounds)))
    policy.save(found)
    return found


def method(rounds: int) -> str:
    """How a time was measured, in words."""
    return f"CUDA events around a launch, L2 emptied by reading before each, plans by turns, median of {rounds}"


def plans_for(problem: GemmProblem, device: Device, candidates: int | None = CANDIDATES) -> list[Choice]:
    """The plans to measure: the cheapest by the model, and the first few of them with a stage more, where it fits, and with one or two less."""
    ranked = planning.ranked(problem, device)
    first = [plan for _, plan, _ in ranked[:candidates]]
    others = [replace(plan, num_stages=plan.num_stages + more) for plan in first[:_VARIED] for more in (1, -1, -2)]
    return [choice for plan in dict.fromkeys([*first, *others]) if (choice := _valid(plan, problem, device)) is not None]


def _valid(plan: GemmPlan, problem: GemmProblem, device: Device) -> Choice | None:
    try:
        return planning.validate(plan, problem, device)
    except PlanError:
        return None


def _problem(shape: Sequence[int], a_dtype: DType | str, b_dtype: DType | str, d_dtype: DType | str) -> GemmProblem:
    extents = tuple(shape)
    if len(extents) != 3 or not all(isinstance(x, int) and x > 0 for x in extents):
        raise ProblemError(f"shapes: expected (m, n, k) of positive integers, got {extents}")
    return GemmProblem(*extents, a_dtype, b_dtype, d_dtype)  # type: ignore[arg-type]


def _named(progress: Callable[[str, int, int], None] | None, what: str) -> Progress | None:
    return None if progress is None else lambda done, total: progress(what, done, total)


class _Steps:
    """Counts rounds."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._done, self._total = progress, 0, total

    def __call__(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._total)


def _by_events(problem: GemmProblem, choices: Sequence[Choice], device: Device, rounds: int, step: Callable[[], None]) -> list[float]:
    """The `Timer` of a GPU."""
    cupy = cupy_for("tune")
    assert device.index is not None
    with cupy.cuda.Device(device.index), driver.on_device(device.index):
        laid = _operands(problem, cupy)
        stream = launching.stream_of([laid.a], device.index)
        cold = cupy.zeros(_FLUSH * device.l2_bytes // 4, np.float32)
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        launches = [prepared(choice, laid, device) for choice in choices]
        times: list[list[float]] = [[] for _ in choices]
        for round_ in range(-1, rounds):
            for i in _order(len(launches), round_):
                cold.sum()
                begin.record()
                launches[i](laid, stream)
                end.record()
                end.synchronize()
                if round_ >= 0:  # what the first launch of a kernel costs beside does not count
                    times[i].append(1e3 * cupy.cuda.get_elapsed_time(begin, end))
            if round_ >= 0:
                step()
    return [float(statistics.median(each)) for each in times]


def _order(count: int, round_: int) -> list[int]:
    """Another order each round, so that no plan always comes after the same one."""
    return [int(i) for i in np.random.default_rng(round_ + 1).permutation(count)]


def _operands(problem: GemmProblem, cupy: Any) -> LaidOut:
    """Operands on the current GPU: normal data, as a quantizer gives it, and positive scales, as the kernels read them."""
    rng = np.random.default_rng(0)
    m, n, k, k_blocks = problem.m, problem.n, problem.k, -(-problem.k // 128)

    def codes(rows: int, dtype: DType) -> Any:
        values = rng.standard_normal(_SAMPLE, np.float32) * np.float32(dtype.max / 4.5)
        pitch = -(-k // 16) * 16
        sample = cupy.asarray(dtype.encode(values).view(np.uint8))
        return cupy.tile(sample, -(-rows * pitch // _SAMPLE))[: rows * pitch].reshape(rows, pitch)[:, :k]

    def scales(rows: int, columns: int) -> Any:
        return cupy.asarray(rng.uniform(0.5, 2, (rows, columns)).astype(np.float32))

    def whole(columns: int, itemsize: int) -> int:
        """Columns of rows that are whole pieces of 16 bytes."""
        return -(-columns * itemsize // 16) * 16 // itemsize

    sfa = scales(k_blocks, whole(m, 4))[:, :m].T
    sfb = scales(-(-n // 128), whole(k_blocks, 4))[:, :k_blocks]
    d = cupy.empty((m, whole(n, problem.d_dtype.itemsize)), np.float32 if problem.d_dtype is DTYPES["float32"] else np.uint16)
    return LaidOut(problem, codes(m, problem.a_dtype), sfa, codes(n, problem.b_dtype), sfb, d, d, None, ())


def _gpu() -> Device:
    """The GPU that is here. Raises `LaunchError` that says what is missing."""
    driver.api()
    device = Device.current()
    if device.index is None:
        raise LaunchError("tune: expected a GPU, got none: the CUDA driver finds none")
    return device


__all__ = ["CANDIDATES", "ROUNDS", "Timer", "method", "plans_for", "tune"]
