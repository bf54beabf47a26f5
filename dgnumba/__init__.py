"""DeepGEMM in pure Python: FP8 matrix products for Hopper GPUs, exact host quantizers, and the kernels stepped without a GPU.

Importing the package touches no GPU. The names below are loaded when they are first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__ as __version__

_HOME = {
    "Device": "device",
    "Explanation": "api",
    "GemmPlan": "kernels",
    "QTensor": "quant",
    "error_bound": "quant",
    "explain": "api",
    "fp8_gemm_nt": "api",
    "gemm_reference": "quant",
    "launch": "launching",
    "per_block_cast_to_fp8": "quant",
    "per_channel_cast_to_fp8": "quant",
    "per_token_cast_to_fp8": "quant",
    "tensor_map": "launching",
    "u32": "integers",
    "u64": "integers",
}
"""Public name -> the room that defines it."""

_ROOMS = ("emu", "errors", "layouts", "ptx", "quant", "testing")

__all__ = sorted([*_HOME, *_ROOMS])

if TYPE_CHECKING:
    from . import emu as emu
    from . import errors as errors
    from . import layouts as layouts
    from . import ptx as ptx
    from . import quant as quant
    from . import testing as testing
    from .api import Explanation as Explanation
    from .api import explain as explain
    from .api import fp8_gemm_nt as fp8_gemm_nt
    from .device import Device as Device
    from .integers import u32 as u32
    from .integers import u64 as u64
    from .kernels import GemmPlan as GemmPlan
    from .launching import launch as launch
    from .launching import tensor_map as tensor_map
    from .quant import QTensor as QTensor
    from .quant import error_bound as error_bound
    from .quant import gemm_reference as gemm_reference
    from .quant import per_block_cast_to_fp8 as per_block_cast_to_fp8
    from .quant import per_channel_cast_to_fp8 as per_channel_cast_to_fp8
    from .quant import per_token_cast_to_fp8 as per_token_cast_to_fp8


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    elif name in _ROOMS:
        value = import_module(f".{name}", __name__)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
