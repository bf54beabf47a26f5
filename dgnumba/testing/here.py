"""The machine at hand: the same lines run on a GPU, where these kernels run on it, else in the emulator."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np

from .. import driver
from ..device import Device


def array_module() -> ModuleType:
    """CuPy on a machine with a Hopper GPU and CuPy, else NumPy. `launch` runs a kernel where its arrays are, so all follows from this choice.

    >>> xp = array_module()
    >>> float(xp.ones(3).sum())
    3.0
    """
    is_hopper = driver.device_count() > 0 and Device.current().cc[0] == 9
    return importlib.import_module("cupy") if is_hopper and find_spec("cupy") else np


def to_numpy(x: Any) -> Any:
    """An array of `array_module` in host memory.

    >>> to_numpy(np.arange(3))
    array([0, 1, 2])
    """
    return x.get() if hasattr(x, "get") else np.asarray(x)
