"""`emu.check`: a kernel run with every check on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import EmulationError
from ...wrapping import watching
from ..observe import Observe, Observer
from ..run import run
from .boxes import Boxes
from .global_races import GlobalRaces
from .layout import Layout
from .overflow import Overflow
from .report import ERROR, Finding, Report
from .requests import Requests

POLICIES = ("eager", "late")


def check(
    kernel: Callable[..., Any],
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence[Any],
    *,
    smem: int = 0,
    cluster: int | Sequence[int] = 1,
    smem_base: int = 1024,
    arrays: Iterable[np.ndarray] = (),
    labels: Mapping[int, str] | None = None,
    policies: Sequence[str] = POLICIES,
    observe: Observe | None = None,
) -> Report:
    """Run `kernel` in the emulator with every check on, and report what they find; what the kernel does wrong is never raised.

    Arguments as of `emu.run`; the kernel runs once under each of `policies`. Arrays are put back before each run, and hold the last one's result
    afterwards. Beside what `emu.run` reports: races in global memory, overflow in the arithmetic of indices, a swizzle that writer and reader
    take differently, boxes outside their tensors, a result that depends on when asynchronous work completes; and, as tables, bank
    conflicts and sectors.

    >>> import numpy as np
    >>> from numba import cuda
    >>> from dgnumba import emu
    >>> def shift(x):
    ...     i = cuda.threadIdx.x
    ...     x[i] = x[i + 1]
    >>> report = emu.check(shift, 1, 32, (np.zeros(33, np.float32),))
    >>> [finding.kind for finding in report.errors]
    ['global-race', 'global-race']

    Raises EmulationError if the arguments cannot be run at all.
    """
    arrays = tuple(arrays)
    options = {"smem": smem, "cluster": cluster, "smem_base": smem_base, "arrays": arrays, "labels": labels}
    kept = [(a, a.copy()) for a in _arrays_of((*args, *arrays)) if a.flags.writeable]
    findings: list[Finding] = []
    results: dict[str, list[np.ndarray]] = {}
    tables: tuple[Requests, Boxes] | None = None
    for policy in policies:
        for array, before in kept:
            array[...] = before
        requests, boxes = Requests(), Boxes()
        lookers: list[Any] = [boxes, *([requests] if tables is None else []), *_listed(observe)]
        found = _run_once(lambda **more: run(kernel, grid, block, args, **more), {**options, "policy": policy}, lookers)
        findings += [found] if found is not None else []
        if found is None:
            results[policy] = [array.copy() for array, _ in kept]
        if tables is None:
            findings += boxes.findings(policy)
            tables = requests, boxes
    if tables is None:
        raise EmulationError("policies: expected at least one of 'eager' and 'late', got none")
    findings += _differences(results)
    name = getattr(kernel, "__name__", repr(kernel))
    return Report(name, tuple(policies), tuple(findings), tables[0].shared(), tables[0].global_memory(), tables[1].rows())


def _run_once(launch: Callable[..., None], options: dict[str, Any], lookers: list[Any]) -> Finding | None:
    """Run under one policy; what stopped the kernel, if anything did."""
    overflow = Overflow()
    try:
        with watching(overflow.origin, overflow.used):
            launch(**options, observe=[overflow, Layout(), GlobalRaces(), *lookers])
    except EmulationError as error:
        if not error.threads and not error.where:
            raise  # no thread is to blame: the launch itself cannot be
        return Finding.of_error(overflow.explained(error), options["policy"])
    except Exception as error:
        return _of_exception(error, options["policy"])
    return None


def _listed(observe: Observe | None) -> list[Any]:
    if observe is None:
        return []
    return [observe] if isinstance(observe, Observer) or callable(observe) else list(observe)


def _arrays_of(values: Sequence[Any]) -> list[np.ndarray]:
    """The arrays that the kernel may write, each once."""
    found = [v if isinstance(v, np.ndarray) else getattr(v, "array", None) for v in values]
    return list({id(a): a for a in found if isinstance(a, np.ndarray)}.values())


def _of_exception(error: Exception, policy: str) -> Finding:
    """Python's own exception in a kernel: not one of the emulator's words, but the kernel cannot go on."""
    blame = getattr(error, "emulated", None)
    if not isinstance(blame, EmulationError):
        raise error  # not in a kernel
    return dataclasses.replace(Finding.of_error(blame, policy), error=error)


def _differences(results: dict[str, list[np.ndarray]]) -> list[Finding]:
    """A finding if a run left other bytes than the first."""
    policies = list(results)
    for policy in policies[1:]:
        for number, (one, other) in enumerate(zip(results[policies[0]], results[policy])):
            different = np.ascontiguousarray(one).view(np.uint8) != np.ascontiguousarray(other).view(np.uint8)
            if different.any():
                elements = int(different.reshape(one.size, -1).any(axis=1).sum())
                message = (
                    f"array {number} of shape {one.shape}: {elements} elements differ between the {policies[0]} and the {policy} policy: "
                    "the result depends on when asynchronous work completes"
                )
                return [Finding("policy", ERROR, message)]
    return []
