"""Running a kernel: on the GPU that holds its arguments, or in the emulator.

`launch` takes any `@cuda.jit` kernel, of this package or of a user, and is Numba's
``kernel[grid, block](...)`` for what that cannot do: code assembled for sm_90a, tensor maps,
clusters, more than 48 KB of shared memory. `program` is the same in steps, for callers that launch
one kernel again and again: it gives a `Program`, whose launchers queue it in a few microseconds.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal

from . import _numba, cache, driver
from .arguments import Arguments, encoded, encoder, is_on_gpu, tensor_map
from .assemble import Cubin, assemble
from .device import Device
from .driver import Kernel, Launcher, LaunchShape
from .errors import ProblemError
from .streams import LEGACY, cupys_stream, joined, ordered, stream_of

Dim3 = int | Sequence[int]
On = Literal["cuda", "emulator"]

_KEPT = 4096
_lock = threading.RLock()
_programs: dict[Any, Program] = {}
_launchers: dict[Any, Launcher] = {}


class _Uncollected:
    """No search for reference cycles inside: where a compiler's objects grow by the million, all of use, it takes a tenth of the time."""

    def __init__(self) -> None:
        self._lock, self._inside, self._was_enabled = threading.Lock(), 0, False

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._inside += 1

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._was_enabled:
                gc.enable()

    def forget(self) -> None:
        """In a forked child: whoever was inside is not here."""
        self._lock = threading.Lock()
        if self._inside and self._was_enabled:
            gc.enable()
        self._inside = 0


_uncollected = _Uncollected()


class Program:
    """A compiled kernel, and the launchers made of it. It is loaded when the first one is asked for."""

    def __init__(self, cubin: Cubin) -> None:
        self.cubin = cubin
        self._kernel: Kernel | None = None
        self._launchers: dict[tuple[int, LaunchShape], Launcher] = {}

    def __repr__(self) -> str:
        return f"Program({self.cubin})"

    def launcher(self, device: int, shape: LaunchShape) -> Launcher:
        """What queues the kernel on GPU `device` in this shape; made once, and kept."""
        found = self._launchers.get((device, shape))
        if found is not None:
            return found
        with _lock:
            if self._kernel is None:
                with driver.on_device(device):
                    self._kernel = Kernel(self.cubin.code, self.cubin.entry)
            if len(self._launchers) >= _KEPT:
                self._launchers.clear()
            made = Launcher(self._kernel, device, self.cubin.parameters, shape)
            return self._launchers.setdefault((device, shape), made)


def compiled(
    what: Any,
    build: Callable[[], tuple[Any, tuple[Any, ...]]],
    *,
    arch: str = "sm_90a",
    threads: int | None = None,
    min_ctas: int = 1,
    argtypes: tuple[Any, ...] = (),
) -> Cubin:
    """A kernel's machine code, from the cache, else compiled and put there. Needs no GPU.

    Args:
        what: the kernel, or what stands for it and all it is made of (its name and its plan).
        build: makes the kernel, gives it and its argument types; called only when it must compile.
        arch: the machine to assemble for.
        threads: threads a CTA.
        min_ctas: CTAs that a multiprocessor is to have registers for.
        argtypes: the argument types, as far as `what` leaves them open.
    """
    key = cache.key_of(what, argtypes, arch=arch, threads=threads, min_ctas=min_ctas)

    def compile_it() -> Cubin:
        with _uncollected:
            return _compile(*build(), arch=arch, threads=threads, min_ctas=min_ctas)

    return cache.shared().get(key, compile_it)


def program(
    what: Any,
    build: Callable[[], tuple[Any, tuple[Any, ...]]],
    *,
    arch: str = "sm_90a",
    threads: int | None = None,
    min_ctas: int = 1,
    argtypes: tuple[Any, ...] = (),
) -> Program:
    """The `Program` of a kernel, one for all threads; arguments as of `compiled`."""
    key = (what, argtypes, arch, threads, min_ctas)
    found = _programs.get(key)
    if found is not None:
        return found
    with _lock:
        if key not in _programs:
            cubin = compiled(what, build, arch=arch, threads=threads, min_ctas=min_ctas, argtypes=argtypes)
            _programs[key] = Program(cubin)
        return _programs[key]


def _compile(kernel: Any, argtypes: tuple[Any, ...], arch: str, threads: int | None, min_ctas: int = 1) -> Cubin:
    ptx, _ = _numba.compile_ptx(kernel, argtypes, arch=arch, threads=threads, min_ctas=min_ctas)
    debug = os.environ.get("DGNUMBA_DEBUG", "")
    if debug >= "2":
        print(ptx, file=sys.stderr)
    cubin = assemble(ptx, arch)
    if debug >= "3":
        print(cubin.log, file=sys.stderr)
    return cubin


def launch(
    kernel: Any,
    grid: Dim3,
    block: Dim3,
    args: Sequence[Any],
    *,
    smem: int = 0,
    cluster: Dim3 = 1,
    stream: Any = None,
    pdl: bool = False,
    on: On | None = None,
) -> Any:
    """Run a kernel.

    Args:
        kernel: a function decorated with `@cuda.jit`, or a plain one.
        grid: CTAs, as a number or up to three of them; a multiple of `cluster`.
        block: threads of a CTA, likewise.
        args: its arguments: arrays, `u32`, `u64`, int (64 bits), float (64 bits), NumPy scalars,
            and tensor maps (`tensor_map`).
        smem: bytes of dynamic shared memory a CTA.
        cluster: CTAs of a cluster, likewise.
        stream: the stream to run on, as a handle or anything with ``__cuda_stream__``; by default
            the arrays' own: CuPy's current one, or torch's for torch tensors.
        pdl: let the kernel begin before the one before it in the stream has ended.
        on: "cuda" or "emulator"; by default the GPU for arrays on a GPU, else the emulator.

    Raises:
        ProblemError: an argument that cannot be launched with; nothing has run then.
        CompileError: Numba or ptxas refuses the kernel.
        LaunchError: the driver refuses.

    The first call with new argument types compiles, which takes a second or two. A CUDA graph can
    capture any later call.
    """
    shape = (_dim3("grid", grid), _dim3("block", block), smem, _dim3("cluster", cluster), pdl)
    where = on or ("cuda" if any(map(is_on_gpu, args)) else "emulator")
    if where == "cuda":
        _launch_on_gpu(kernel, shape, args, stream)
        return None
    if where == "emulator":
        return _launch_in_emulator(kernel, LaunchShape(*shape), args)
    raise ProblemError(f"on: expected 'cuda' or 'emulator', got {on!r}")


def _launch_in_emulator(kernel: Any, shape: LaunchShape, args: Sequence[Any]) -> Any:
    from . import emu

    for i, arg in enumerate(args):
        if is_on_gpu(arg):
            raise ProblemError(f"args[{i}]: expected host memory for the emulator, got a GPU's")
    return emu.run(kernel, shape.grid, shape.block, tuple(args), smem=shape.smem, cluster=shape.cluster)


def _launch_on_gpu(kernel: Any, shape: tuple[Any, ...], args: Sequence[Any], stream: Any) -> None:
    call = Arguments(args)
    key = (kernel, call.device, shape, tuple(call.signature))
    launcher = _launchers.get(key)
    if launcher is None:
        launcher = _new_launcher(kernel, call, LaunchShape(*shape))
        if len(_launchers) >= _KEPT:
            _launchers.clear()
        _launchers[key] = launcher
    handle = stream_of(call.owners, call.device, stream)
    if call.tensor_maps:
        with driver.on_device(call.device):
            launcher(call.scalars, tuple(map(encoded, call.tensor_maps)), handle)
    else:
        launcher(call.scalars, (), handle)


def _new_launcher(kernel: Any, call: Arguments, shape: LaunchShape) -> Launcher:
    arch = Device.numbered(call.device).arch
    argtypes = tuple(_numba.argtype(arg, i) for i, arg in enumerate(call.typed))
    made = program(kernel, lambda: (kernel, argtypes), arch=arch, threads=shape.threads, argtypes=argtypes)
    return made.launcher(call.device, shape)


def _dim3(name: str, value: Dim3) -> tuple[int, int, int]:
    if type(value) is int:
        return value, 1, 1
    dims = (value,) if isinstance(value, int) else tuple(value)
    if not 1 <= len(dims) <= 3:
        raise ProblemError(f"{name}: expected one to three numbers, got {value}")
    x, y, z = (*(int(d) for d in dims), 1, 1)[:3]
    return x, y, z


def _forget() -> None:
    """In a forked child: nothing that was loaded is there, and a lock may be held by nobody."""
    global _lock
    _lock = threading.RLock()
    _uncollected.forget()
    _programs.clear()
    _launchers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)

__all__ = [
    "LEGACY",
    "Dim3",
    "LaunchShape",
    "On",
    "Program",
    "compiled",
    "cupys_stream",
    "encoded",
    "encoder",
    "joined",
    "launch",
    "ordered",
    "program",
    "stream_of",
    "tensor_map",
]
