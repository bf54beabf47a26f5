"""Calls kept ready: plan, compiled kernel, launcher and tensor-map encoders of operands of one form, so that the next call costs microseconds.

What does not change from call to call (extents, strides, types, GPU) is a key; what does (addresses, stream) is filled in. `quick` is the way
of a repeated call with CuPy arrays: it looks only at what may have changed, and declines whatever it has not seen checked.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any, Protocol

from . import config, launching
from .config import Settings
from .device import Device
from .kernels import Built
from .layouts.operands import LaidOut
from .plan import Choice
from .problem import is_plain
from .xp import address

_KEPT = 1024
_PLACES = 256
"""Most addresses kept for one form of call; then it starts afresh."""

_lock = threading.Lock()
_built: dict[Any, Built] = {}
_prepared: dict[Any, PreparedLaunch] = {}


class Planned(Protocol):
    """A choice of any family of kernels: the kernel, and the plan that it is to be built from."""

    @property
    def plan(self) -> Any:
        """What is frozen into the kernel."""

    @property
    def kernel(self) -> Any:
        """`build` and `threads` take the plan."""


def built(choice: Planned) -> Built:
    """The kernel of a plan; built once."""
    found = _built.get(choice.plan)
    if found is None:
        with _lock:
            found = _built.setdefault(choice.plan, choice.kernel.build(choice.plan))
    return found


def program(choice: Planned, device: Device) -> launching.Program:
    """The compiled kernel of a plan."""

    def build() -> tuple[Any, tuple[Any, ...]]:
        made = built(choice)
        return made.kernel, made.argtypes

    return launching.program(choice.plan, build, arch=device.arch, threads=choice.kernel.threads(choice.plan))


class PreparedLaunch:
    """The launch of one plan on laid-out operands of one form: extents, strides, types and GPU."""

    def __init__(self, choice: Choice, laid: LaidOut, device: Device, pdl: bool) -> None:
        kernel, plan = choice.kernel, choice.plan
        grid, smem = kernel.grid(plan, laid.problem, device), kernel.smem(plan)
        shape = launching.LaunchShape(
            (grid, 1, 1), (kernel.threads(plan), 1, 1), smem.launch_bytes, (plan.cluster, 1, 1), pdl and kernel.WAITS
        )
        assert device.index is not None
        self.launcher = program(choice, device).launcher(device.index, shape)
        args = kernel.bind(plan, laid)
        self.encoders = tuple(launching.encoder(x) for x in args if getattr(x, "is_tensor_map", False))
        self.sources, self.pointers = kernel.MAPPED_ARRAYS, kernel.POINTERS
        self.rest = [int(x) for x in args if not getattr(x, "is_tensor_map", False)][len(self.pointers) :]

    def __call__(self, laid: LaidOut, stream: int) -> None:
        """Queue the kernel on operands of the same form at other addresses."""
        at = (address(laid.a), address(laid.sfa), address(laid.b), address(laid.sfb), address(laid.d))
        self.launcher(*self.passed(*at, address(laid.addend)), stream)

    def passed(self, a: int, sfa: int, b: int, sfb: int, d: int, addend: int | None = None) -> tuple[list[int], tuple[Any, ...]]:
        """What the launcher takes for operands at these addresses, D's in the addend's place where there is none: scalars and tensor maps."""
        at = {"a": a, "sfa": sfa, "b": b, "sfb": sfb, "d": d, "addend": d if addend is None else addend}
        maps = tuple([encode(at[name]) for encode, name in zip(self.encoders, self.sources)])
        return [*[at[name] for name in self.pointers], *self.rest], maps


def prepared(choice: Choice, laid: LaidOut, device: Device, pdl: bool = False) -> PreparedLaunch:
    """The prepared launch for operands of this form; made once."""
    arrays = (laid.a, laid.b, laid.sfa, laid.sfb, laid.d, laid.addend)
    key = (choice.plan, device.index, device.num_sms, pdl, *((x.shape, x.strides) for x in arrays))
    found = _prepared.get(key)
    if found is None:
        found = PreparedLaunch(choice, laid, device, pdl)
        if len(_prepared) >= _KEPT:
            _prepared.clear()
        _prepared[key] = found
    return found


class QuickCall:
    """A call of `fp8_gemm_nt` whose operands need no copy, by the form of its arrays; made once the whole way has been gone.

    What is passed for operands at certain addresses is kept: a layer's weights stay where they are, and activations come to lie at few places.
    """

    __slots__ = ("_kept", "launch", "sizes")

    def __init__(self, launch: PreparedLaunch, laid: LaidOut) -> None:
        self.launch = launch
        self.sizes = tuple(extent_of(x) for x in (laid.a, laid.sfa, laid.b, laid.sfb, laid.d))
        self._kept: dict[tuple[int, ...], tuple[list[int], tuple[Any, ...]]] = {}

    def __call__(self, at: tuple[int, int, int, int, int], stream: int) -> bool:
        """Queue the kernel on operands at these addresses; False where they must be looked at more closely."""
        passed = self._kept.get(at)
        if passed is None:
            if not self._fits(*at):
                return False
            if len(self._kept) >= _PLACES:
                self._kept.clear()
            passed = self._kept.setdefault(at, self.launch.passed(*at))
        self.launch.launcher(*passed, stream)
        return True

    def _fits(self, a: int, sfa: int, b: int, sfb: int, d: int) -> bool:
        """Whether TMA takes the addresses, and nothing is written that is read."""
        if (a | sfa | b | sfb | d) & 15:
            return False
        *read, size_d = self.sizes
        return not any(at < d + size_d and d < at + size for at, size in zip((a, sfa, b, sfb), read))


def extent_of(x: Any) -> int:
    """Bytes from the first element to behind the last."""
    return int(sum((n - 1) * stride for n, stride in zip(x.shape, x.strides)) + x.itemsize)


_quick: dict[tuple[Any, Settings], QuickCall] = {}
"""By the operands' form, and the settings that the call was planned under."""


def form(a: Any, sfa: Any, b: Any, sfb: Any, d: Any) -> tuple[Any, ...]:
    """What a call's operands must have again to be launched alike: shapes, strides, types and GPUs of its arrays."""
    return (
        a.shape, a.strides, a.dtype, a.data.device_id, sfa.shape, sfa.strides, sfa.dtype, sfa.data.device_id,
        b.shape, b.strides, b.dtype, b.data.device_id, sfb.shape, sfb.strides, sfb.dtype, sfb.data.device_id,
        d.shape, d.strides, d.dtype, d.data.device_id,
    )  # fmt: skip


def quick(a_pair: Any, b_pair: Any, d: Any, stream: Any) -> bool:
    """Run a call that has been run before, in the same form, on CuPy arrays; False where this one must go the whole way."""
    cupy = sys.modules.get("cupy")
    if cupy is None or not (_is_taken(a_pair, (1, 128)) and _is_taken(b_pair, (128, 128))):
        return False
    (a, sfa), (b, sfb) = a_pair, b_pair
    # NOTE: written out, and without a loop: each microsecond here is one of the host's for every call.
    array = cupy.ndarray
    if not (type(a) is array and type(sfa) is array and type(b) is array and type(sfb) is array and type(d) is array):
        return False
    call = _quick.get((form(a, sfa, b, sfb, d), config.current()))
    if call is None:
        return False
    device = d.data.device_id
    handle = launching.cupys_stream(device) if stream is None else launching.stream_of((d,), device, stream)
    return call((a.data.ptr, sfa.data.ptr, b.data.ptr, sfb.data.ptr, d.data.ptr), handle)


def _is_taken(pair: Any, granularity: tuple[int, int]) -> bool:
    """Whether arrays are all there is to an operand. A QTensor says more, and on CuPy e5m2 is uint8 too."""
    if type(pair) is tuple or type(pair) is list:
        return len(pair) == 2
    return hasattr(pair, "granularity") and is_plain(pair, granularity)


def remember(arrays: tuple[Any, ...], launch: PreparedLaunch, laid: LaidOut, settings: Settings) -> None:
    """Keep a call for `quick`, if its arrays are CuPy's and none was copied."""
    cupy = sys.modules.get("cupy")
    if cupy is None or laid.copies or not all(type(x) is cupy.ndarray for x in arrays):
        return
    if len(_quick) >= _KEPT:
        _quick.clear()
    _quick[form(*arrays), settings] = QuickCall(launch, laid)


def forget_choices() -> None:
    """Choose anew for calls of every form: what decides the choice has changed."""
    _quick.clear()


def _forget() -> None:
    """In a forked child nothing that was loaded is there."""
    _prepared.clear()
    _quick.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
