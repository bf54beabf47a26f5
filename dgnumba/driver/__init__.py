"""The CUDA driver, called directly: devices and contexts, loaded code, tensor maps, launches.

The one room that knows `cuda.bindings`. That is imported, and CUDA initialised, by the first call
that needs the driver and not before: importing the package costs nothing, works without a GPU, and
leaves a process free to fork.
"""

from __future__ import annotations

from .context import (
    api,
    attribute,
    check,
    current_context,
    current_device,
    device_count,
    device_name,
    device_of,
    enter,
    failure,
    leave,
    on_device,
    version,
)
from .kernel import Kernel
from .launcher import BoundLaunch, Launcher, LaunchShape, parameter_code
from .tensor_map import EncodedMap, MapEncoder, TensorMapSpec

__all__ = [
    "BoundLaunch",
    "EncodedMap",
    "Kernel",
    "LaunchShape",
    "Launcher",
    "MapEncoder",
    "TensorMapSpec",
    "api",
    "attribute",
    "check",
    "current_context",
    "current_device",
    "device_count",
    "device_name",
    "device_of",
    "enter",
    "failure",
    "leave",
    "on_device",
    "parameter_code",
    "version",
]
