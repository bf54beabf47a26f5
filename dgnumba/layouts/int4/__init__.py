"""4-bit layouts by name, each with `pack`, `unpack`, `elements` (the map) and `picture`; codes are ``[..., N, K]`` everywhere.

===================  ============================================================================
LOW_FIRST            even columns in the low nibble: FP4 of compressed-tensors, DeepGEMM, MX
HIGH_FIRST           even columns in the high nibble
ONNX                 flat, low first
BITSANDBYTES         flat, high first
TORCHAO, TINYGEMM    torchao's plain int4; torch's tiles of mma fragments
COMPRESSED_TENSORS   int32 along K, int4 as value + 8
GPTQ_V1, GPTQ_V2     int32 along K, transposed; zero points minus one, or as they are
AWQ                  int32 along N, interleaved
MARLIN               tiles of mma fragments, interleaved
SPLIT_HALVES         gguf's 32-blocks; `Q4_0` and `MXFP4` are the records with their scales
HQQ                  upper half of the rows high, lower half low
===================  ============================================================================
"""

from __future__ import annotations

from . import groups as groups
from .byte_orders import BITSANDBYTES, HIGH_FIRST, HQQ, LOW_FIRST, ONNX, SPLIT_HALVES, TORCHAO
from .fragments import MARLIN, TINYGEMM, Tinygemm
from .gguf import MXFP4, Q4_0, BlockRecord
from .packing import Packing, as_signed, nibbles
from .words import AWQ, COMPRESSED_TENSORS, GPTQ_V1, GPTQ_V2, gptq_v1_to_v2, gptq_v2_to_v1

PACKINGS: dict[str, Packing] = {
    layout.name: layout
    for layout in (
        LOW_FIRST,
        HIGH_FIRST,
        ONNX,
        BITSANDBYTES,
        TORCHAO,
        TINYGEMM,
        COMPRESSED_TENSORS,
        GPTQ_V1,
        GPTQ_V2,
        AWQ,
        MARLIN,
        SPLIT_HALVES,
        HQQ,
    )
}
"""Every 4-bit layout, by its name."""

__all__ = [
    "AWQ",
    "BITSANDBYTES",
    "COMPRESSED_TENSORS",
    "GPTQ_V1",
    "GPTQ_V2",
    "HIGH_FIRST",
    "HQQ",
    "LOW_FIRST",
    "MARLIN",
    "MXFP4",
    "ONNX",
    "PACKINGS",
    "Q4_0",
    "SPLIT_HALVES",
    "TINYGEMM",
    "TORCHAO",
    "BlockRecord",
    "Packing",
    "Tinygemm",
    "as_signed",
    "gptq_v1_to_v2",
    "gptq_v2_to_v1",
    "groups",
    "nibbles",
]
