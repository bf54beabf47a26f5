"""Checkpoints: quantized layers in .safetensors files, read into `QTensor`s, written back, and converted from format to format.

::

    format              a layer's tensors                                          values
    fp8-block           .weight e4m3, .weight_scale_inv float32 per 128x128        DeepSeek-V3, -R1
    awq                 .qweight, .qzeros, .scales                                 AutoAWQ (gemm)
    gptq, gptq-v2       .qweight, .qzeros, .scales, .g_idx                         AutoGPTQ, GPTQModel
    compressed-tensors  .weight_packed, .weight_scale, .weight_shape, ...          llm-compressor, pack-quantized
    mxfp4               .weight_packed, .weight_scale per 1x32                     llm-compressor
    mxfp4-stack         _blocks, _scales                                           gpt-oss
    nvfp4               .weight_packed, .weight_scale, .weight_global_scale        llm-compressor
    nvfp4-modelopt      .weight, .weight_scale, .weight_scale_2                    ModelOpt
"""

from __future__ import annotations

from .convert import NOT_QUANTIZED, Conversion, convert, quantize_checkpoint
from .layer import Layer, LayerFormat, Scheme
from .layers import FORMATS, find_layers, read_layer, write_layers
from .recipes import FLOATS, Options
from .settings import Settings, settings_of
from .steps import TensorReport
from .tensors import TensorInfo, TensorSource
from .writer import TensorSpec, TensorWriter

__all__ = [
    "FLOATS",
    "FORMATS",
    "NOT_QUANTIZED",
    "Conversion",
    "Layer",
    "LayerFormat",
    "Options",
    "Scheme",
    "Settings",
    "TensorInfo",
    "TensorReport",
    "TensorSource",
    "TensorSpec",
    "TensorWriter",
    "convert",
    "find_layers",
    "quantize_checkpoint",
    "read_layer",
    "settings_of",
    "write_layers",
]
