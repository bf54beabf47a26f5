"""Starting CUDA, its statuses as exceptions, and which device is current."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from ..errors import LaunchError
from .explain import explain

_start_lock = threading.Lock()
_api: ModuleType | None = None
_primary: dict[int, Any] = {}


def api() -> ModuleType:
    """`cuda.bindings.driver`, with CUDA initialised.

    Raises:
        LaunchError: what is missing, and what cures it.
    """
    return _api or _start()


def _start() -> ModuleType:
    global _api
    with _start_lock:
        if _api is None:
            try:
                from cuda.bindings import driver
            except ImportError as error:
                cure = "pip install 'dgnumba[cuda13]'"
                raise LaunchError(f"cuda-bindings is not installed: {cure}") from error
            try:
                result = driver.cuInit(0)
            except RuntimeError as error:
                raise LaunchError(f"no NVIDIA driver on this machine ({error}); NumPy arrays need none") from error
            check(result, "starting CUDA", driver)
            _api = driver
        return _api


def _forget() -> None:
    """In a forked child: CUDA does not survive a fork, nor does a lock that another thread held."""
    global _api, _start_lock
    _api = None
    _start_lock = threading.Lock()
    _primary.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def check(result: Sequence[Any], doing: str, module: ModuleType | None = None) -> Any:
    """What a driver call returned, without its status. Raises `LaunchError` unless it succeeded."""
    if result[0]:
        raise failure(result[0], doing, module)
    return result[1] if len(result) == 2 else result[1:]


def failure(status: Any, doing: str, module: ModuleType | None = None) -> LaunchError:
    """The exception for a driver status: what was being done, the driver's words, and ours."""
    module = module or api()
    error, text = module.cuGetErrorString(status)
    said = text.decode() if not error and text else "no text for this status"
    name = getattr(status, "name", str(status))
    hint = explain(name)
    return LaunchError(f"{doing}: {said}{'; ' + hint if hint else ''}", f"{name}, {int(status)}")


def device_count() -> int:
    """GPUs that this process can use; 0 where there is no driver."""
    try:
        return int(check(api().cuDeviceGetCount(), "counting devices"))
    except LaunchError:
        return 0


def version() -> tuple[int, int]:
    """The newest CUDA version that the driver takes, as (major, minor)."""
    number = int(check(api().cuDriverGetVersion(), "asking for the driver's version"))
    return number // 1000, number % 1000 // 10


def attribute(device: int, name: str) -> int:
    """A device attribute by the tail of its name: ``attribute(0, "MULTIPROCESSOR_COUNT")``."""
    cuda = api()
    key = getattr(cuda.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(check(cuda.cuDeviceGetAttribute(key, device), f"asking device {device} for {name}"))


def device_name(device: int) -> str:
    """The name of a device, as "NVIDIA H200"."""
    text: bytes = check(api().cuDeviceGetName(128, device), f"asking device {device} for its name")
    return text.split(b"\0")[0].decode()


def current_device() -> int | None:
    """The device of this thread's current context; None where the thread has none yet."""
    status, device = api().cuCtxGetDevice()
    return None if status else int(device)


def device_of(address: int) -> int:
    """The device that holds the memory at `address`."""
    cuda = api()
    key = cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(check(cuda.cuPointerGetAttribute(key, address), f"looking up {address:#x}"))


def current_context() -> int:
    """The handle of this thread's current context; 0 where the thread has none."""
    return int(check(api().cuCtxGetCurrent(), "reading the current context"))


def primary(device: int) -> Any:
    """The device's primary context, which the CUDA runtime and what is built on it use."""
    context = _primary.get(device)
    if context is None:
        # NOTE: retained once and never released: other libraries in the process share it.
        context = check(api().cuDevicePrimaryCtxRetain(device), f"opening device {device}")
        context = _primary.setdefault(device, context)
    return context


def enter(device: int) -> Any | None:
    """Make `device` current in this thread; returns what `leave` takes, or None: nothing to undo.

    A context of the caller's own on that device stays in place. A thread that had no context keeps
    the device's primary one, as with the CUDA runtime.
    """
    cuda = api()
    status, current = cuda.cuCtxGetDevice()
    if not status and int(current) == device:
        return None
    context = primary(device)
    previous = None if status else check(cuda.cuCtxGetCurrent(), "reading the current context")
    check(cuda.cuCtxSetCurrent(context), f"making device {device} current")
    return previous


def leave(previous: Any) -> None:
    """Make current again what was current before `enter`."""
    check(api().cuCtxSetCurrent(previous), "going back to the caller's device")


@contextmanager
def on_device(device: int) -> Iterator[None]:
    """Have `device` current inside the block, and the caller's own again after it."""
    previous = enter(device)
    try:
        yield
    finally:
        if previous is not None:
            leave(previous)
