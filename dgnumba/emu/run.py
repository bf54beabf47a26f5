"""Run a kernel, thread by thread, on this machine."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from greenlet import getcurrent

from ..errors import DivergenceError, EmulationError
from .arrays import GlobalArray, scalar
from .cluster import Cluster
from .cta import Cta, Dim3, Warpgroup
from .fragment import Fragment
from .machine import Machine, thread
from .observe import Observe
from .rebind import Rebinder
from .threads import IN_KERNEL, Thread

THREAD, WARP, WARPGROUP, CTA, CLUSTER = "thread", "warp", "warpgroup", "cta", "cluster"
MAX_THREADS, MAX_CLUSTER = 1024, 16


def run(
    kernel: Callable[..., Any],
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence[Any],
    *,
    smem: int = 0,
    cluster: int | Sequence[int] = 1,
    policy: str = "eager",
    observe: Observe | None = None,
    smem_base: int = 1024,
    arrays: Iterable[np.ndarray] = (),
    labels: Mapping[int, str] | None = None,
) -> None:
    """Interpret `kernel` (a Python function, or a `@cuda.jit` one) on NumPy arrays, and check all that it does.

    Each thread runs until it blocks, in a fixed order; the CTAs of a cluster run together, clusters one after another. Raises an
    `EmulationError` for whatever the hardware forbids or leaves undefined, naming thread, operation and source line.

    grid, block, cluster  extents: an int, or up to three
    args                  NumPy arrays, numbers, tensor maps
    smem                  bytes of dynamic shared memory
    policy                "eager": asynchronous work takes effect when issued; "late": only when a wait makes it due
    observe               who looks on: an `Observer`, a function that takes a `Note` for all that happens, as `Trace` does, or several
    smem_base             address of the dynamic shared memory: 1024-aligned unless asked for otherwise
    arrays                more arrays that the kernel may reach by address
    labels                names for messages: offset in the dynamic shared memory -> "full[0]"

    Not modelled: races in global memory; time.
    """
    machine = Machine(policy, labels, observe)
    run_on(machine, kernel, grid, block, args, smem=smem, cluster=cluster, smem_base=smem_base, arrays=arrays)


def run_on(
    machine: Machine, kernel: Callable[..., Any], grid: int | Sequence[int], block: int | Sequence[int], args: Sequence[Any], *, smem: int,
    cluster: int | Sequence[int], smem_base: int, arrays: Iterable[np.ndarray],
) -> None:  # fmt: skip
    """`run` on a machine that is there."""
    grid_dim, block_dim, cluster_dim = _dim3("grid", grid), _dim3("block", block), _dim3("cluster", cluster)
    _check_extents(grid_dim, block_dim, cluster_dim)
    machine.grid_dim = grid_dim
    machine.kernel = Rebinder(machine.sites).function(kernel)
    machine.args = _arguments(machine, kernel, args)
    for i, array in enumerate(arrays):
        machine.gmem.register(array, f"arrays[{i}]")
    for indices in _clusters(grid_dim, cluster_dim):
        Cluster(machine, indices, block_dim, smem, smem_base).schedule.run()


def perform(name: str, scope: str, body: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """The running thread comes to operation `name`: run its `body`, in the scope that it has.

    "thread": ``body(*args)``. Else the threads of the warp, warpgroup, CTA or cluster meet, `body` runs once on columns (each argument a
    tuple over the lanes), and each takes its own item of what it returns.
    """
    t = thread()
    t.op = name
    if scope == THREAD:
        t.machine.note("op", name, t.lanes)
        result = body(*args)
        t.op = IN_KERNEL
        return result
    if scope == WARP:
        return t.cta.warps[t.warp].meet(t, name, body, args)
    if scope == WARPGROUP:
        return warpgroup().meet(t, name, body, args)  # which orders the lanes of each warp
    if scope == CTA:
        return t.cta.everyone.meet(t, name, body, args)
    if scope == CLUSTER:
        return t.cta.cluster.everyone.meet(t, name, body, args)
    raise EmulationError(f"{name}: expected a scope thread, warp, warpgroup, cta or cluster, got {scope!r}")


def compose(name: str, body: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Operation `name`, made of others: run its `body`, in an emulated thread or outside of any."""
    t = getcurrent()
    if isinstance(t, Thread) and t.machine.hearers.note is not None:
        t.machine.note("op", name, t.lanes, amount=next((len(a) for a in args if isinstance(a, Fragment)), 0))
    return body(*args)


def cta() -> Cta:
    """The CTA of the running thread."""
    return thread().cta


def lanes() -> Sequence[Thread]:
    """The threads for which the running thread acts: itself, or all of the meeting whose body it runs."""
    return thread().lanes


def warpgroup() -> Warpgroup:
    """The warpgroup of the running thread."""
    t = thread()
    return t.cta.warpgroups[t.index // 128]


def uniform(column: Sequence[Any], name: str) -> Any:
    """The one value that all lanes pass for argument `name` of a collective."""
    first = column[0]
    for lane, value in enumerate(column):
        if value != first:
            t = thread()
            raise DivergenceError(f"{t.op}: {name} must be the same in all lanes, got {first} in lane 0 and {value} in lane {lane}")
    return first


def _dim3(name: str, extents: int | Sequence[int]) -> Dim3:
    values = (extents,) if isinstance(extents, (int, np.integer)) else tuple(extents)
    if not 1 <= len(values) <= 3 or any(v < 0 for v in values):
        raise EmulationError(f"{name}: expected one to three extents, got {extents}")
    x, y, z = (int(v) for v in (*values, 1, 1)[:3])
    return x, y, z


def _check_extents(grid: Dim3, block: Dim3, cluster: Dim3) -> None:
    if not 1 <= math.prod(block) <= MAX_THREADS:
        raise EmulationError(f"block: expected 1 to {MAX_THREADS} threads, got {block}")
    if not 1 <= math.prod(cluster) <= MAX_CLUSTER:
        raise EmulationError(f"cluster: expected 1 to {MAX_CLUSTER} CTAs, got {cluster}")
    if any(g % c for g, c in zip(grid, cluster)):
        raise EmulationError(f"grid: expected a multiple of the cluster {cluster}, got {grid}")


def _arguments(machine: Machine, kernel: Callable[..., Any], args: Sequence[Any]) -> tuple[Any, ...]:
    function = getattr(kernel, "py_func", kernel)
    names = list(inspect.signature(function).parameters)
    if len(args) != len(names):
        raise EmulationError(f"args: {function.__name__} takes {len(names)} arguments ({', '.join(names)}), got {len(args)}")
    out: list[Any] = []
    for name, value in zip(names, args):
        if isinstance(value, np.ndarray) and value.ndim:
            machine.gmem.register(value, name)
            value = GlobalArray(value, name, machine.hearers.access)
        elif isinstance(value, (np.generic, np.ndarray)):
            value = scalar(np.asarray(value)[()])
        elif isinstance(getattr(value, "array", None), np.ndarray):
            machine.gmem.register(value.array, name)
        out.append(value)
    return tuple(out)


def _clusters(grid: Dim3, cluster: Dim3) -> Iterable[list[Dim3]]:
    """The block indices of each cluster, by rank."""
    counts = [g // c for g, c in zip(grid, cluster)]
    for z, y, x in itertools.product(*(range(n) for n in reversed(counts))):
        corner = (x * cluster[0], y * cluster[1], z * cluster[2])
        inside = itertools.product(*(range(c) for c in reversed(cluster)))
        yield [(corner[0] + i, corner[1] + j, corner[2] + k) for k, j, i in inside]
