"""Arrays in, quantized tensors out, on NumPy and CuPy; and what a product of them must be."""

from .bounds import element_bound
from .cast import quantize
from .formats import (
    FORMATS,
    INT4,
    INT8,
    MXFP4,
    MXFP6_E2M3,
    MXFP6_E3M2,
    MXFP8,
    MXFP8_E5M2,
    NVFP4,
    UINT4,
    Format,
    as_format,
    fp8_format,
    int4_format,
    mx_format,
    uint4_format,
)
from .fp4 import cast_back_from_fp4, per_token_cast_to_fp4
from .fp8 import per_block_cast_to_fp8, per_channel_cast_to_fp8, per_custom_dims_cast_to_fp8, per_token_cast_to_fp8
from .host import fp8_gemm_nt_host
from .int4_host import int4_error_bound, int4_gemm_nt_host, int4_gemm_reference
from .int4_weights import Int4Weights, prepare_int4_weights
from .qtensor import QTensor
from .quality import QuantReport, Tally, report
from .reference import error_bound, exact_integer_reference, gemm_reference
from .scale import ceil_to_ue8m0, global_scale_from_amax, ue8m0_codes
from .scan import LayerDamage, sensitivity

__all__ = [
    "FORMATS",
    "INT4",
    "INT8",
    "MXFP4",
    "MXFP6_E2M3",
    "MXFP6_E3M2",
    "MXFP8",
    "MXFP8_E5M2",
    "NVFP4",
    "UINT4",
    "Format",
    "Int4Weights",
    "LayerDamage",
    "QTensor",
    "QuantReport",
    "Tally",
    "as_format",
    "cast_back_from_fp4",
    "ceil_to_ue8m0",
    "element_bound",
    "error_bound",
    "exact_integer_reference",
    "fp8_format",
    "fp8_gemm_nt_host",
    "gemm_reference",
    "global_scale_from_amax",
    "int4_error_bound",
    "int4_format",
    "int4_gemm_nt_host",
    "int4_gemm_reference",
    "mx_format",
    "per_block_cast_to_fp8",
    "per_channel_cast_to_fp8",
    "per_custom_dims_cast_to_fp8",
    "per_token_cast_to_fp4",
    "per_token_cast_to_fp8",
    "prepare_int4_weights",
    "quantize",
    "report",
    "sensitivity",
    "ue8m0_codes",
    "uint4_format",
]
