"""Calls kept ready: plan, compiled kernel, launcher and tensor-map encoders of operands of one form, so that the next call costs microseconds.

What does not change from call to call (extents, strides, types, GPU) is a key; what does (addresses, stream) is filled in. `quick` is the way
of a repeated call with CuPy arrays: it looks only at what may have changed, and declines whatever it has not seen checked.

What may have changed of a CuPy array that is the same object: its memory, GPU and type cannot; its shape can be set in place, which keeps the
number of elements and their order. So an array that has two axes again, and as many rows, has the shape and the strides that it had (a stride
along an axis of one element means nothing).
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from . import config, driver, launching
from .config import Settings
from .device import Device
from .dtypes import DTYPES
from .kernels import Built
from .kernels.spec import launched
from .layouts.operands import LaidOut
from .plan import Choice
from .problem import is_plain
from .xp import address, carrier

BF16 = DTYPES["bfloat16"]
_KEPT = 1024
_PLACES = 1024
"""Most addresses kept for one form of call; then it starts afresh."""
_ALL_PLACES = 1 << 15
"""Most addresses kept for calls of all forms, a kilobyte each; then all start afresh."""

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


class Launched(NamedTuple):
    """What is built for a choice: as `Planned`."""

    plan: Any
    kernel: Any

    @classmethod
    def of(cls, choice: Planned, pdl: bool, constant_weights: bool = False) -> Launched:
        """For a launch with `set_pdl` on, or off; with weights that nobody writes, or not."""
        return cls(launched(choice.plan, choice.kernel, pdl, constant_weights), choice.kernel)


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

    kernel, plan = choice.kernel, choice.plan
    return launching.program(plan, build, arch=device.arch, threads=kernel.threads(plan), min_ctas=kernel.min_ctas(plan))


class PreparedLaunch:
    """The launch of one plan on laid-out operands of one form: extents, strides, types and GPU."""

    def __init__(self, choice: Choice, laid: LaidOut, device: Device, pdl: bool, constant_weights: bool = False) -> None:
        made = Launched.of(choice, pdl, constant_weights)
        kernel, plan = made.kernel, made.plan
        grid, smem = kernel.grid(plan, laid.problem, device), kernel.smem(plan)
        shape = launching.LaunchShape(
            (grid, 1, 1), (kernel.threads(plan), 1, 1), smem.launch_bytes, (plan.cluster, 1, 1), pdl and kernel.WAITS
        )
        assert device.index is not None
        self.launcher = program(made, device).launcher(device.index, shape)
        args = kernel.bind(plan, laid)
        self.encoders = tuple(launching.encoder(x) for x in args if getattr(x, "is_tensor_map", False))
        self.sources, self.pointers = kernel.mapped_arrays(plan), kernel.pointers(plan)
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


def prepared(choice: Choice, laid: LaidOut, device: Device, pdl: bool = False, constant_weights: bool = False) -> PreparedLaunch:
    """The prepared launch for operands of this form; made once."""
    constant_weights = constant_weights and laid.has_callers_weights
    arrays = (laid.a, laid.b, laid.sfa, laid.sfb, laid.d, laid.addend)
    key = (choice.plan, device.index, device.num_sms, pdl, constant_weights, *((x.shape, x.strides) for x in arrays))
    found = _prepared.get(key)
    if found is None:
        found = PreparedLaunch(choice, laid, device, pdl, constant_weights)
        if len(_prepared) >= _KEPT:
            _prepared.clear()
        _prepared[key] = found
    return found


class QuickCall:
    """A call of `fp8_gemm_nt` whose operands need no copy, by the form of its arrays; made once the whole way has been gone.

    What is passed for operands at certain addresses is kept: a layer's weights stay where they are, and activations come to lie at few places.
    """

    __slots__ = ("_kept", "device", "launch", "sizes")

    def __init__(self, launch: PreparedLaunch, laid: LaidOut, device: int) -> None:
        self.launch, self.device = launch, device
        self.sizes = tuple(extent_of(x) for x in (laid.a, laid.sfa, laid.b, laid.sfb, laid.d))
        self._kept: dict[tuple[int, ...], PlacedCall] = {}

    def placed(self, at: tuple[int, int, int, int, int]) -> PlacedCall | None:
        """The call on operands at these addresses; None where they must be looked at more closely."""
        global _placed
        found = self._kept.get(at)
        if found is None and self._fits(*at):
            if _placed >= _ALL_PLACES:
                forget_choices()
            if len(self._kept) >= _PLACES:
                self._kept.clear()
            _placed += 1
            found = self._kept.setdefault(at, PlacedCall(self.launch.launcher.bind(*self.launch.passed(*at)), self.device))
        return found

    def _fits(self, a: int, sfa: int, b: int, sfb: int, d: int) -> bool:
        """Whether TMA takes the addresses, and nothing is written that is read."""
        if (a | sfa | b | sfb | d) & 15:
            return False
        *read, size_d = self.sizes
        return not any(at < d + size_d and d < at + size for at, size in zip((a, sfa, b, sfb), read))


class PlacedCall:
    """A launch with all that it passes, on CuPy's arrays of one GPU: what is left to find out is the stream, and whether the GPU's primary context
    is current.
    """

    __slots__ = ("_bound", "_calls", "_context", "_current_context", "_current_stream", "_device")

    def __init__(self, bound: driver.BoundLaunch, device: int) -> None:
        self._bound, self._device, self._context = bound, device, bound.context
        self._calls: dict[int, Callable[[], Any]] = {}
        self._current_stream, self._current_context = sys.modules["cupy"].cuda.get_current_stream, context_question()

    def run(self, stream: Any) -> None:
        """Queue the kernel on `stream`; None: on CuPy's current one."""
        device = self._device
        handle = (self._current_stream(device).ptr or launching.LEGACY) if stream is None else launching.stream_of((), device, stream)
        try:
            is_current = self._current_context() == self._context
        except Exception:  # CuPy's way of saying that the driver has not begun: `_bound` says what is wrong then, if anything is
            is_current = False
        if not is_current:
            return self._bound(handle)
        call = self._calls.get(handle) or self._call(handle)
        try:
            call()
        except Exception:  # CuPy's, which says less than ours: the driver refuses once more, or takes it now
            self._bound.queue(handle)
        return None

    def _call(self, stream: int) -> Callable[[], Any]:
        """What queues the launch: CuPy's function where it has no attributes, which takes a third of the time of cuda-bindings'."""
        plain = self._bound.plain(stream)
        launch = getattr(getattr(sys.modules["cupy"].cuda, "driver", None), "launchKernel", None)
        made = functools.partial(self._bound.queue, stream) if plain is None or launch is None else functools.partial(launch, *plain)
        if len(self._calls) >= _KEPT:
            self._calls.clear()
        return self._calls.setdefault(stream, made)


def context_question() -> Callable[[], int]:
    """What asks the driver for this thread's context: as `device_question`.

    NOTE: not for the device: a thread may have another context of it current (a green one, say), in which a function of the primary one is none.
    """
    found: Callable[[], int] | None = getattr(getattr(sys.modules["cupy"].cuda, "driver", None), "ctxGetCurrent", None)
    return found or driver.current_context


def device_question() -> Callable[[], int | None]:
    """What asks the driver for this thread's device: through CuPy where it has such a function, which takes a fifth of the time of cuda-bindings'."""
    found: Callable[[], int | None] | None = getattr(getattr(sys.modules["cupy"].cuda, "driver", None), "ctxGetDevice", None)
    return found or driver.current_device


def extent_of(x: Any) -> int:
    """Bytes from the first element to behind the last."""
    return int(sum((n - 1) * stride for n, stride in zip(x.shape, x.strides)) + x.itemsize)


def form(x: Any) -> tuple[Any, ...]:
    """What a CuPy array must have again to be launched alike: shape, strides, type and GPU."""
    return x.shape, x.strides, x.dtype, x.data.device_id


class Weights:
    """B and its scales, seen in a call: looked at again only where they have been reshaped.

    calls  the calls remembered with B and scales of this form, by the form of the other arrays and the settings that they were planned under
    last   the other arrays of a call, by weak references, their rows, its settings, and what it launched: of one that came twice running
    """

    __slots__ = ("_array", "_seen", "at", "b", "blocks", "calls", "last", "n", "sfb")

    def __init__(self, b: Any, sfb: Any, calls: dict[Any, QuickCall]) -> None:
        self.b: Callable[[], Any] = weakref.ref(b)
        self.sfb: Callable[[], Any] = weakref.ref(sfb)
        self.calls, self._array = calls, type(b)
        self.n, self.blocks, self.at = len(b), len(sfb), (b.data.ptr, sfb.data.ptr)
        self._seen = 0
        self.last: tuple[Any, ...] = (_never, _never, _never, 0, None, None)

    def find(self, a: Any, sfa: Any, d: Any, settings: Settings) -> PlacedCall | None:
        """The call with these other arrays; None where there was none of this form."""
        array = self._array
        if not (type(a) is array and type(sfa) is array and type(d) is array):
            return None
        call = self.calls.get(_key(a, sfa, d, settings))
        if call is None:
            return None
        placed = call.placed((a.data.ptr, sfa.data.ptr, *self.at, d.data.ptr))
        if self._seen == id(a):
            self.last = (weakref.ref(a), weakref.ref(sfa), weakref.ref(d), len(a), settings, placed)
        self._seen = id(a)
        return placed


def _never() -> object:
    return _never


_placed = 0
"""How many calls were placed since all were forgotten."""
_quick: dict[tuple[Any, ...], dict[Any, QuickCall]] = {}
"""Calls by the form of B and its scales; then as in `Weights.calls`."""
_weights: dict[int, Weights] = {}
"""By the identity of B."""


def _key(a: Any, sfa: Any, d: Any, settings: Settings) -> tuple[Any, ...]:
    # NOTE: written out, and without a loop: each microsecond here is one of the host's for every call.
    return (
        a.shape, a.strides, a.dtype, a.data.device_id, sfa.shape, sfa.strides, sfa.dtype, sfa.data.device_id,
        d.shape, d.strides, d.dtype, d.data.device_id, settings,
    )  # fmt: skip


def quick(a_pair: Any, b_pair: Any, d: Any, stream: Any) -> Any:
    """Run a call that has been run before, in the same form, on CuPy arrays: `d`; None where this one must go the whole way."""
    if not (_is_operand(a_pair, (1, 128)) and _is_operand(b_pair, (128, 128))):
        return None
    (a, sfa), (b, sfb) = a_pair, b_pair
    weights = _known(b, sfb)
    if weights is None:
        return None
    last_a, last_sfa, last_d, m, settings, call = weights.last
    current = config.current()
    if not (
        last_a() is a and last_sfa() is sfa and last_d() is d and settings is current
        and a.ndim == sfa.ndim == d.ndim == 2 and len(a) == len(sfa) == len(d) == m
    ):  # fmt: skip
        call = weights.find(a, sfa, d, current)
    if call is None:
        return None
    call.run(stream)
    return d


_held: dict[type, Any] = {}
"""By CuPy's array type: in what it holds bfloat16."""


def quick_new(a_pair: Any, b_pair: Any, stream: Any) -> Any:
    """The product as `quick` makes it, in a new bfloat16 array, on CuPy's current stream; None where the call must go the whole way."""
    if stream is not None or not (_is_operand(a_pair, (1, 128)) and _is_operand(b_pair, (128, 128))):
        return None
    (a, _), (b, sfb) = a_pair, b_pair
    if _known(b, sfb) is None or type(a) is not type(b) or a.ndim != 2 or b.ndim != 2 or not _is_current(a.data.device_id):
        return None
    held = _held.get(type(a))
    if held is None:
        held = _held.setdefault(type(a), carrier(BF16, a))
    d = type(a)((len(a), len(b)), held)
    return quick(a_pair, b_pair, d, None)


def _is_current(device: int) -> bool:
    try:
        return device_question()() == device
    except Exception:  # as in `PlacedCall.run`
        return False


def _is_operand(pair: Any, granularity: tuple[int, int]) -> bool:
    """Whether arrays are all there is to an operand. A QTensor says more, and on CuPy e5m2 is uint8 too."""
    if type(pair) is tuple or type(pair) is list:
        return len(pair) == 2
    return hasattr(pair, "granularity") and is_plain(pair, granularity)


def _known(b: Any, sfb: Any) -> Weights | None:
    """B and its scales as they were last seen; looked at anew if they were not or have changed; None where there are no calls of their form."""
    found = _weights.get(id(b))
    if found is not None and found.b() is b and found.sfb() is sfb:
        if b.ndim == sfb.ndim == 2 and len(b) == found.n and len(sfb) == found.blocks:
            return found
    cupy = sys.modules.get("cupy")
    if cupy is None or type(b) is not cupy.ndarray or type(sfb) is not cupy.ndarray:
        return None
    calls = _quick.get((form(b), form(sfb)))
    if calls is None:
        return None
    if len(_weights) >= _KEPT:
        _weights.clear()
    made = _weights[id(b)] = Weights(b, sfb, calls)
    return made


def remember(arrays: tuple[Any, ...], launch: PreparedLaunch, laid: LaidOut, settings: Settings) -> None:
    """Keep a call for `quick`, if its arrays are CuPy's and none was copied."""
    cupy = sys.modules.get("cupy")
    if cupy is None or laid.copies or not all(type(x) is cupy.ndarray for x in arrays):
        return
    a, sfa, b, sfb, d = arrays
    if len(_quick) >= _KEPT:
        forget_choices()
    calls = _quick.setdefault((form(b), form(sfb)), {})
    if len(calls) >= _KEPT:
        calls.clear()
    calls[_key(a, sfa, d, settings)] = QuickCall(launch, laid, d.data.device_id)


def forget_choices() -> None:
    """Choose anew for calls of every form: what decides the choice has changed."""
    global _placed
    _placed = 0
    _quick.clear()
    _weights.clear()


def _forget() -> None:
    """In a forked child nothing that was loaded is there."""
    _prepared.clear()
    forget_choices()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
