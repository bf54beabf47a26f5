"""The stream that work is queued on, and how temporaries live long enough.

Work goes where its arrays are being worked on: on CuPy's current stream, on torch's for torch
tensors, on the one that any other array names (``__cuda_array_interface__``, version 3); or where
the caller says. Nothing waits for anything, so nothing stands in the way of a stream's other work
or of a capture.

An array may be dropped as soon as the call that used it returns. Its memory goes back to CuPy's
pool, under the stream that was current when it was taken, and the pool gives it out again only to
work on that stream, which runs after the kernel. A temporary of this package must therefore be
made with the launch's own stream current: inside `ordered`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from .errors import ProblemError

LEGACY = 1
"""The handle of the default stream that CuPy and torch mean. 0 would be whichever default stream
`cuda.bindings` was told to use."""


def stream_of(arrays: Iterable[Any], device: int, stream: Any = None) -> int:
    """The handle of the stream to run on: `stream` itself, else that of the arrays.

    Args:
        arrays: the arrays as the caller gave them.
        device: the GPU that holds them.
        stream: a handle, anything with ``__cuda_stream__``, or a stream of CuPy's or torch's.

    Raises:
        ProblemError: `stream` is none of these, or the arrays come with different streams.
    """
    if stream is not None:
        return _handle(stream)
    cupy, torch = sys.modules.get("cupy"), sys.modules.get("torch")
    cupys = int(cupy.cuda.get_current_stream(device).ptr) if cupy is not None else 0
    found: dict[int, str] = {}
    handle: Any
    for array in arrays:
        if cupy is not None and isinstance(array, cupy.ndarray):
            handle = cupys
        elif torch is not None and isinstance(array, torch.Tensor):
            handle = torch.cuda.current_stream(device).cuda_stream
        else:
            interface = getattr(array, "__cuda_array_interface__", None) or {}
            handle = interface.get("stream")
            if handle is None:
                continue
        found.setdefault(int(handle) or LEGACY, type(array).__module__.partition(".")[0])
    if len(found) > 1:
        streams = ", ".join(f"{owner}'s {handle:#x}" for handle, owner in found.items())
        raise ProblemError(f"stream: the arrays come with different ones ({streams}): pass stream=")
    if found:
        return next(iter(found))
    return cupys or LEGACY


def cupys_stream(device: int) -> int:
    """The handle of CuPy's current stream: what `stream_of` gives for CuPy's arrays alone, in a fraction of the time."""
    return sys.modules["cupy"].cuda.get_current_stream(device).ptr or LEGACY


def _handle(stream: Any) -> int:
    if hasattr(stream, "__cuda_stream__"):
        handle = stream.__cuda_stream__()[1]
    elif isinstance(stream, int):
        handle = stream
    else:
        handle = getattr(stream, "ptr", getattr(stream, "cuda_stream", None))
    if handle is None or handle < 0:
        got = type(stream).__name__
        raise ProblemError(f"stream: expected a handle or an object with __cuda_stream__, got {got}")
    return int(handle) or LEGACY


def joined(device: int, stream: int) -> None:
    """Have CuPy's current stream wait for `stream`: what came from another library's arrays, there, is CuPy's now.

    Not while `stream` is captured, as the capture would then take CuPy's stream in.
    """
    cupy = sys.modules["cupy"]
    current = cupy.cuda.get_current_stream(device)
    if (int(current.ptr) or LEGACY) == stream:
        return
    source = _cupys(cupy, stream, device)
    if source.is_capturing():
        return
    with cupy.cuda.Device(device):
        event = cupy.cuda.Event(disable_timing=True)
        event.record(source)
        current.wait_event(event)


@contextmanager
def ordered(device: int, stream: int) -> Iterator[None]:
    """Have `device` and, for CuPy, `stream` current: where the temporaries of a launch are made."""
    cupy = sys.modules["cupy"]  # the arrays that are to be ordered are its own
    with cupy.cuda.Device(device), _cupys(cupy, stream, device):
        yield


class _Handle:
    """A stream's handle, by the protocol that libraries pass streams by."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


def _cupys(cupy: Any, stream: int, device: int) -> Any:
    """CuPy's object for a stream that is not its own, and that it leaves alone when the object dies."""
    if stream in (0, LEGACY):
        return cupy.cuda.Stream.null
    external = getattr(cupy.cuda, "ExternalStream", None)
    if external is None:
        return cupy.cuda.Stream.from_external(_Handle(stream))
    # NOTE: CuPy 14 deprecates `ExternalStream` for `Stream.from_external`, whose object, up to 14.1, destroys the stream when it dies. So the
    # old class, without its constructor, which does nothing but warn.
    made = external.__new__(external)
    super(external, made).__init__(stream, device)
    return made
