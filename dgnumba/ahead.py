"""Compile ahead: all kernels that layers need, in parallel processes, into the cache on disk. Needs no GPU."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from typing import Any

from . import cache, config, launching, layer_plans, policy
from . import plan as planning
from .device import Device
from .dtypes import DType
from .errors import CompileError, DGNumbaError, ProblemError
from .kernels import GemmPlan, smxx_layout_rules
from .kernels.smxx_layout_rules import LayoutPlan
from .kernels.spec import launched
from .problem import GemmProblem
from .store import Store

Shape = tuple[int, ...]
Progress = Callable[[int, int], None]
"""Called with the kernels that are there and those that are to be."""


@dataclass(frozen=True)
class Warmed:
    """What a warm-up did.

    device      that it was planned for; `is_assumed`: since no GPU is here
    kernels     of the products: plan -> the shapes, as they were given, that need it
    moves       kernels that turn row-major scales of A
    compiled    how many of both were compiled now; the others were in the cache
    """

    device: Device
    is_assumed: bool
    kernels: dict[GemmPlan, tuple[Shape, ...]]
    moves: tuple[LayoutPlan, ...]
    compiled: int

    def __str__(self) -> str:
        assumed = ", since no GPU is here" if self.is_assumed else ""
        count = len(self.kernels) + len(self.moves)
        return f"{count} kernels for {self.device.name}{assumed}: {self.compiled} compiled, {count - self.compiled} were in the cache"


def warmup(
    shapes: Iterable[Sequence[int]],
    *,
    device: Device | str | None = None,
    a_dtype: DType | str = "float8_e4m3fn",
    b_dtype: DType | str = "float8_e4m3fn",
    d_dtype: DType | str = "bfloat16",
    with_c: bool = False,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Warmed:
    """Compile the kernels that calls of `fp8_gemm_nt` with these shapes will ask for, so that none of them compiles.

    What `set_num_sms`, `set_pdl` and `set_batch_invariant` say now is heeded: call it behind them.

    Run as a script it needs the guard ``if __name__ == "__main__":``, since the processes that compile import the script.

    Args:
        shapes: ``(n, k)`` of a layer, for 1 to 16384 rows of A, or ``(m, n, k)`` of one product.
        device: the GPU to plan for: a `Device`, or the name of a known one ("h200"); None: the one that is here, and where none is an H200.
        a_dtype, b_dtype, d_dtype: element types.
        with_c: for calls that add C.
        jobs: processes at one time; None: as many as this process may use CPUs.
        progress: called with the kernels that are there and those that are to be.

    Raises:
        ProblemError: a shape that is none, or a cache that cannot be written. UnsupportedError: no kernel takes a shape.
        CompileError: kernels that did not compile; the others are in the cache.
    """
    machine, is_assumed = _device(device)
    settings = config.current()
    planned_for = settings.limited(machine)
    kernels: dict[GemmPlan, list[Shape]] = {}
    moves: dict[LayoutPlan, None] = {}
    for extents in _all_extents(shapes):
        m, n, k = extents if len(extents) == 3 else (layer_plans.TOKENS, *extents)
        has_readable_rows = -(-k // 128) % 4 == 0  # row-major scales, as the casts give them: whole pieces of 16 bytes
        for row_scales in (False, True) if has_readable_rows and policy.plans_per_layer() is None else (False,):
            problem = GemmProblem(m, n, k, a_dtype, b_dtype, d_dtype, with_c=with_c, row_scales=row_scales)  # type: ignore[arg-type]
            problem = planning.as_taken(problem, planned_for)
            for plan in needed(problem, planned_for, len(extents) == 2, settings.batch_invariant):
                needed_by = kernels.setdefault(
                    launched(plan, planning.kernel_named(plan.kernel), settings.pdl, settings.constant_weights), []
                )
                if extents not in needed_by:
                    needed_by.append(extents)
        moves[LayoutPlan("turn", has_readable_rows, True)] = None
    compiled = compile_all([*kernels, *moves], machine.arch, jobs, progress)
    return Warmed(machine, is_assumed, {plan: tuple(for_) for plan, for_ in kernels.items()}, tuple(moves), compiled)


def needed(problem: GemmProblem, device: Device, any_m: bool, batch_invariant: bool = False) -> list[GemmPlan]:
    """The plans that calls of this shape take, or, for any M, of this N and K: those measured here among them."""
    if not any_m:
        return [policy.choose(problem, device, batch_invariant).plan]
    table = policy.table() if device.index is not None else None
    measured = [
        policy.choose(replace(problem, m=row.problem.m), device, batch_invariant).plan
        for row in (table.rows() if table is not None else ())
        if row.gpu == device.name and replace(row.problem, m=problem.m, with_c=problem.with_c, row_scales=problem.row_scales) == problem
    ]
    most = policy.plans_per_layer()
    if most is None:
        found = list(layer_plans.chosen(problem, device, batch_invariant))
    else:
        found = [plan for plan, _ in layer_plans.family(problem, device, most, batch_invariant)]
    return list(dict.fromkeys([*found, *measured]))


def _device(device: Device | str | None) -> tuple[Device, bool]:
    if device is None:
        found = Device.current()
        return found, found.index is None
    return (Device.named(device) if isinstance(device, str) else device), False


def _all_extents(shapes: Iterable[Sequence[int]]) -> list[Shape]:
    given = list(shapes) if isinstance(shapes, Iterable) else shapes
    if not isinstance(given, list) or any(isinstance(shape, str) or not isinstance(shape, Sequence) for shape in given):
        raise ProblemError(f"shapes: expected a list of (n, k) or (m, n, k), got {given!r}")
    return [_extents(shape) for shape in given]


def _extents(shape: Sequence[int]) -> Shape:
    extents = tuple(shape)
    if len(extents) not in (2, 3) or not all(isinstance(x, int) and x > 0 for x in extents):
        raise ProblemError(f"shapes: expected (n, k) of a layer, or (m, n, k), of positive integers, got {extents}")
    return extents


def compile_all(plans: Sequence[Any], arch: str, jobs: int | None = None, progress: Progress | None = None) -> int:
    """Have the kernels of these plans in the cache on disk; how many had to be compiled.

    Raises as `warmup` does.
    """
    if jobs is not None and jobs < 1:
        raise ProblemError(f"jobs: expected 1 or more, got {jobs}")
    store = cache.required_store()
    missing = [plan for plan in plans if not _is_there(plan, arch, store)]
    done = len(plans) - len(missing)
    if progress is not None:
        progress(done, len(plans))
    failed: dict[str, list[str]] = {}
    if missing:
        for name, why in _compiled(missing, arch, min(jobs or _cpus(), len(missing))):
            if why:
                failed.setdefault(why, []).append(name)
            done += 1
            if progress is not None:
                progress(done, len(plans))
    if failed:
        # one line for what is wrong with all alike: compilers that are not there, say
        log = "\n".join(f"{', '.join(names[:3])}{' and others' * (len(names) > 3)}: {why}" for why, names in failed.items())
        raise CompileError(f"{sum(map(len, failed.values()))} of {len(plans)} kernels did not compile", log)
    lost = [plan for plan in missing if not _is_there(plan, arch, store)]
    if lost:
        raise ProblemError(f"cache: {len(lost)} kernels were compiled, and could not be kept in {store.folder}")
    return len(missing)


def _compiled(plans: Sequence[Any], arch: str, jobs: int) -> Iterator[tuple[str, str]]:
    """The name of each, and what was wrong with it, as it is ready."""
    with concurrent.futures.ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            for finished in concurrent.futures.as_completed([pool.submit(_compile, plan, arch) for plan in plans]):
                yield finished.result()
        except BrokenProcessPool as error:
            guard = 'a script that is run needs the guard `if __name__ == "__main__":`, as the processes import it'
            raise CompileError(f"a process that compiles has died: {guard}; or memory ran out", str(error)) from error


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _rules(plan: Any) -> Any:
    return planning.kernel_named(plan.kernel) if isinstance(plan, GemmPlan) else smxx_layout_rules


def _bounds(plan: Any) -> dict[str, Any]:
    """What a kernel is compiled for beside its plan, as calls ask for it."""
    rules = _rules(plan)
    return {"threads": rules.threads(plan), "min_ctas": rules.min_ctas(plan)}


def _is_there(plan: Any, arch: str, store: Store) -> bool:
    key = cache.key_of(plan, (), arch=arch, **_bounds(plan))
    if key is None:
        raise ProblemError("cache: this package's sources were changed after it was imported: start anew")
    entry = store.get(key)
    return entry is not None and cache.unpack(key, entry) is not None


def _compile(plan: Any, arch: str) -> tuple[str, str]:
    """Compile one kernel into the cache; its name, and what was wrong. Runs in a process of its own."""
    rules, name = _rules(plan), str(getattr(plan, "name", plan))

    def build() -> tuple[Any, tuple[Any, ...]]:
        made = rules.build(plan)
        return made.kernel, made.argtypes

    try:
        launching.compiled(plan, build, arch=arch, **_bounds(plan))
    except DGNumbaError as error:
        return name, str(error)
    return name, ""


__all__ = ["Warmed", "compile_all", "needed", "warmup"]
