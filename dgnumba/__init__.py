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
    "Int4Explanation": "int4",
    "Int4Plan": "kernels",
    "Int4Weights": "quant",
    "PreparedGemm": "prepare",
    "QTensor": "quant",
    "cast_back_from_fp4": "quant",
    "error_bound": "quant",
    "explain": "api",
    "explain_int4": "int4",
    "fp8_gemm_nt": "api",
    "gemm_reference": "quant",
    "get_batch_invariant": "config",
    "get_constant_weights": "config",
    "get_exact_weights": "config",
    "get_float32_sums": "config",
    "get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor": "layouts",
    "get_mn_major_tma_aligned_packed_ue8m0_tensor": "scale_moves",
    "get_mn_major_tma_aligned_tensor": "scale_moves",
    "get_num_sms": "config",
    "get_pdl": "config",
    "get_tma_aligned_size": "layouts",
    "int4_error_bound": "quant",
    "int4_gemm_nt": "int4",
    "int4_gemm_reference": "quant",
    "launch": "launching",
    "pack_ue8m0_to_int": "layouts",
    "per_block_cast_to_fp8": "casts",
    "per_channel_cast_to_fp8": "casts",
    "per_custom_dims_cast_to_fp8": "quant",
    "per_token_cast_to_fp4": "casts",
    "per_token_cast_to_fp8": "casts",
    "prepare_fp8_gemm_nt": "prepare",
    "prepare_int4_weights": "quant",
    "quantize": "casts",
    "set_batch_invariant": "config",
    "set_exact_weights": "config",
    "set_float32_sums": "config",
    "set_num_sms": "config",
    "set_pdl": "config",
    "set_plans_per_layer": "policy",
    "tensor_map": "launching",
    "transform_k_grouped_sf_into_required_layout": "layouts",
    "transform_sf_into_required_layout": "layouts",
    "tune": "tuning",
    "u32": "integers",
    "u64": "integers",
    "unpack_ue8m0_from_int": "layouts",
    "warmup": "ahead",
}
"""Public name -> the room that defines it."""

_ROOMS = ("checkpoint", "emu", "errors", "lab", "layouts", "ptx", "quant", "testing")

__all__ = sorted([*_HOME, *_ROOMS])

if TYPE_CHECKING:
    from . import checkpoint as checkpoint
    from . import emu as emu
    from . import errors as errors
    from . import lab as lab
    from . import layouts as layouts
    from . import ptx as ptx
    from . import quant as quant
    from . import testing as testing
    from .ahead import warmup as warmup
    from .api import Explanation as Explanation
    from .api import explain as explain
    from .api import fp8_gemm_nt as fp8_gemm_nt
    from .casts import per_block_cast_to_fp8 as per_block_cast_to_fp8
    from .casts import per_channel_cast_to_fp8 as per_channel_cast_to_fp8
    from .casts import per_token_cast_to_fp4 as per_token_cast_to_fp4
    from .casts import per_token_cast_to_fp8 as per_token_cast_to_fp8
    from .casts import quantize as quantize
    from .config import get_batch_invariant as get_batch_invariant
    from .config import get_constant_weights as get_constant_weights
    from .config import get_exact_weights as get_exact_weights
    from .config import get_float32_sums as get_float32_sums
    from .config import get_num_sms as get_num_sms
    from .config import get_pdl as get_pdl
    from .config import set_batch_invariant as set_batch_invariant
    from .config import set_exact_weights as set_exact_weights
    from .config import set_float32_sums as set_float32_sums
    from .config import set_num_sms as set_num_sms
    from .config import set_pdl as set_pdl
    from .device import Device as Device
    from .int4 import Int4Explanation as Int4Explanation
    from .int4 import explain_int4 as explain_int4
    from .int4 import int4_gemm_nt as int4_gemm_nt
    from .integers import u32 as u32
    from .integers import u64 as u64
    from .kernels import GemmPlan as GemmPlan
    from .kernels import Int4Plan as Int4Plan
    from .launching import launch as launch
    from .launching import tensor_map as tensor_map
    from .layouts import get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor as get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor
    from .layouts import get_tma_aligned_size as get_tma_aligned_size
    from .layouts import pack_ue8m0_to_int as pack_ue8m0_to_int
    from .layouts import transform_k_grouped_sf_into_required_layout as transform_k_grouped_sf_into_required_layout
    from .layouts import transform_sf_into_required_layout as transform_sf_into_required_layout
    from .layouts import unpack_ue8m0_from_int as unpack_ue8m0_from_int
    from .policy import set_plans_per_layer as set_plans_per_layer
    from .prepare import PreparedGemm as PreparedGemm
    from .prepare import prepare_fp8_gemm_nt as prepare_fp8_gemm_nt
    from .quant import Int4Weights as Int4Weights
    from .quant import QTensor as QTensor
    from .quant import cast_back_from_fp4 as cast_back_from_fp4
    from .quant import error_bound as error_bound
    from .quant import gemm_reference as gemm_reference
    from .quant import int4_error_bound as int4_error_bound
    from .quant import int4_gemm_reference as int4_gemm_reference
    from .quant import per_custom_dims_cast_to_fp8 as per_custom_dims_cast_to_fp8
    from .quant import prepare_int4_weights as prepare_int4_weights
    from .scale_moves import get_mn_major_tma_aligned_packed_ue8m0_tensor as get_mn_major_tma_aligned_packed_ue8m0_tensor
    from .scale_moves import get_mn_major_tma_aligned_tensor as get_mn_major_tma_aligned_tensor
    from .tuning import tune as tune


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
