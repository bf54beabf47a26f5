"""Calls of `int4_gemm_nt` kept ready: plan, compiled kernel, launcher and tensor-map encoders of operands of one form; as `prepared`."""

from __future__ import annotations

import os
import sys
import weakref
from typing import Any

from . import config, launching
from .config import Settings
from .device import Device
from .int4_operands import ARRAYS, NUMBERS, Int4LaidOut
from .int4_plan import Int4Choice
from .prepared import Launched, extent_of, program
from .quant.int4_weights import Int4Weights
from .quant.qtensor import QTensor
from .xp import address

_KEPT = 1024
_launches: dict[Any, Launch] = {}
_quick: weakref.WeakKeyDictionary[Int4Weights, dict[Any, QuickCall]] = weakref.WeakKeyDictionary()


class Launch:
    """The launch of one plan on operands of one form: extents, strides and GPU; what differs from call to call is filled in."""

    def __init__(self, choice: Int4Choice, laid: Int4LaidOut, device: Device, pdl: bool = False) -> None:
        kernel, plan = choice.kernel, choice.plan
        grid, smem = kernel.grid(plan, laid.problem, device), kernel.smem(plan)
        shape = launching.LaunchShape(
            (grid, 1, 1), (kernel.threads(plan), 1, 1), smem.launch_bytes, (plan.cluster, 1, 1), pdl and kernel.WAITS
        )
        assert device.index is not None
        self.launcher = program(Launched.of(choice, pdl), device).launcher(device.index, shape)
        args = choice.kernel.bind(choice.plan, laid)
        maps = [x for x in args if getattr(x, "is_tensor_map", False)]
        self.encoders = tuple(
            (launching.encoder(x), name if x.array is not laid.a else "a") for x, name in zip(maps, choice.kernel.MAPPED_ARRAYS)
        )
        self.scalars = [int(x) for x in args if not getattr(x, "is_tensor_map", False)]
        self.places = [(i, name) for i, name in enumerate(choice.kernel.SCALARS) if name in ARRAYS]
        self.d_alignment = 8 if plan.quads else 1
        self.numbers = [(choice.kernel.SCALARS.index(name), f"{name}_bits") for name in NUMBERS if name in choice.kernel.SCALARS]

    def __call__(self, laid: Int4LaidOut, stream: int) -> None:
        """Queue the kernel on operands of the same form at other addresses."""
        scalars = list(self.scalars)
        for i, name in self.places:
            array = getattr(laid, name)
            scalars[i] = 0 if array is None else address(array)
        for i, name in self.numbers:
            scalars[i] = getattr(laid, name)
        maps = tuple(encode(address(getattr(laid, name))) for encode, name in self.encoders)
        self.launcher(scalars, maps, stream)


def prepared(choice: Int4Choice, laid: Int4LaidOut, device: Device, pdl: bool = False) -> Launch:
    """The prepared launch for operands of this form; made once."""
    strides = [None if x is None else x.strides for x in (laid.a, laid.sfa, laid.d, laid.c)]
    key = (choice.plan, device.index, device.num_sms, pdl, laid.problem, laid.a.shape, *strides)
    found = _launches.get(key)
    if found is None:
        found = Launch(choice, laid, device, pdl)
        if len(_launches) >= _KEPT:
            _launches.clear()
        _launches[key] = found
    return found


class QuickCall:
    """A call on CuPy arrays that needs no copy and adds nothing, by the form of its arrays; made once the whole way has been gone."""

    __slots__ = ("launch", "places", "scalars", "sizes")
    GIVEN = {"a": 0, "sfa": 1, "token_scales": 1, "w": 2, "d": 3}

    def __init__(self, launch: Launch, laid: Int4LaidOut) -> None:
        self.launch = launch
        self.scalars = list(launch.scalars)
        for i, name in launch.numbers:
            self.scalars[i] = getattr(laid, name)
        self.places = [(i, self.GIVEN[name]) for i, name in launch.places if name in self.GIVEN]
        self.sizes = tuple(0 if x is None else extent_of(x)
                           for x in (laid.a, laid.sfa if laid.sfa is not None else laid.token_scales, laid.w, laid.d))  # fmt: skip

    def __call__(self, a: int, scales: int, w: int, d: int, stream: int) -> bool:
        """Queue the kernel on operands at these addresses; False where they must be looked at more closely."""
        if (a | scales | w) & 15 or d % self.launch.d_alignment:
            return False
        end = d + self.sizes[3]
        if any(at < end and d < at + size for at, size in zip((a, scales, w), self.sizes)):
            return False
        scalars, given = list(self.scalars), (a, scales, w, d)
        for i, which in self.places:
            scalars[i] = given[which]
        maps = tuple([encode(a if name == "a" else scales) for encode, name in self.launch.encoders])
        self.launch.launcher(scalars, maps, stream)
        return True


def _form(a: Any, d: Any) -> tuple[Any, ...]:
    """What a quick call is kept by, beside the weights."""
    data, scales = (a.data, a.scale) if type(a) is QTensor else (a, None)
    form: tuple[Any, ...] = (data.shape, data.strides, data.dtype, data.data.device_id, d.shape, d.strides, d.dtype, d.data.device_id)
    return form if scales is None else (*form, a.dtype, a.granularity, scales.shape, scales.strides, scales.dtype, scales.data.device_id)


def _arrays(a: Any, w: Any, d: Any) -> tuple[Any, ...]:
    return (a.data, a.scale, w.stream, d) if type(a) is QTensor else (a, w.stream, d)


def _is_plain(q: QTensor) -> bool:
    return all(part is None for part in (q.zero_point, q.global_scale, q.g_idx, q.packing))


def quick(a: Any, w: Any, d: Any, stream: Any) -> bool:
    """Run a call that has been run before, in the same form, on CuPy arrays; False where this one must go the whole way."""
    cupy = sys.modules.get("cupy")
    if cupy is None or type(w) is not Int4Weights or (type(a) is QTensor and not _is_plain(a)):
        return False
    calls = _quick.get(w)
    if calls is None:
        return False
    arrays = _arrays(a, w, d)
    if any(type(x) is not cupy.ndarray for x in arrays):
        return False
    call = calls.get((_form(a, d), config.current()))
    if call is None:
        return False
    device = d.data.device_id
    handle = launching.cupys_stream(device) if stream is None else launching.stream_of(arrays, device, stream)
    scales = arrays[1].data.ptr if len(arrays) == 4 else 0
    return call(arrays[0].data.ptr, scales, w.stream.data.ptr, d.data.ptr, handle)


def remember(a: Any, w: Any, d: Any, launch: Launch, laid: Int4LaidOut, settings: Settings) -> None:
    """Keep a call for `quick`, if its arrays are CuPy's and none was copied."""
    cupy = sys.modules.get("cupy")
    if (
        cupy is None
        or type(w) is not Int4Weights
        or not all(note.startswith("w:") for note in laid.copies)
        or (type(a) is QTensor and (not _is_plain(a) or a.dtype.bits < 8))
    ):
        return
    if all(type(x) is cupy.ndarray for x in _arrays(a, w, d)):
        calls = _quick.setdefault(w, {})
        if len(calls) >= _KEPT:
            calls.clear()
        calls[_form(a, d), settings] = QuickCall(launch, laid)


def _forget() -> None:
    """In a forked child nothing that was loaded is there."""
    _launches.clear()
    _quick.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
