"""Casts to FP4 (e2m1) with DeepGEMM's names and numbers.

As in `fp8`, with ``scale = max(amax, 1e-4) / 6``; the code is how many of 0.25, 0.75, 1.25, 1.75,
2.5, 3.5 and 5 the scaled magnitude exceeds, so that a tie goes toward zero, and what comes out zero
has no sign. NaN becomes 0; its block's scale is NaN (under `use_ue8m0` 2^127).

DIFFERS: everything else here and nearly everyone rounds a tie to even; `quantize` with "mxfp4" or
"nvfp4" does.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dtypes import DTYPES
from ..errors import DTypeError, ProblemError
from ..layouts.int4 import LOW_FIRST
from ..xp import as_array, device_of, is_device_array
from .fp8 import deepgemm_cast, with_packed_scales
from .qtensor import QTensor

E2M1 = DTYPES["float4_e2m1fn"]


def per_token_cast_to_fp4(x: Any, use_ue8m0: bool = False, gran_k: int = 128, use_packed_ue8m0: bool = False) -> QTensor:
    """`dgnumba.per_token_cast_to_fp4`, which has the contract, by the array module of `x`.

    >>> q = per_token_cast_to_fp4(np.array([[6.0, -3.0]], np.float32))
    >>> [hex(byte) for byte in q.data.view(np.uint8).ravel()], q.dequantize().tolist()
    (['0xd7'], [[6.0, -3.0]])
    """
    view = as_array(x, "x")
    if view.array.ndim == 2 and view.array.shape[1] % 2:
        raise ProblemError(f"x: expected an even number of columns, two to a byte, got {view.array.shape[1]}")
    q = deepgemm_cast(view, (1, gran_k), E2M1, use_ue8m0, "ties_to_zero")
    with device_of(q.data):
        data = LOW_FIRST.pack(q.codes).view(np.int8)
    packed = QTensor(data, q.scale, E2M1, q.granularity, packing=LOW_FIRST.name, extents=q.shape)
    return with_packed_scales(packed, use_ue8m0) if use_packed_ue8m0 else packed


def cast_back_from_fp4(packed: Any, scale: Any, gran_k: int = 128) -> Any:
    """The float32 values of packed e2m1 data ``[m, n / 2]`` and its scales: DeepGEMM's inverse of `per_token_cast_to_fp4`.

    Args:
        packed: int8 or uint8, the even column in the low nibble.
        scale: float32 ``[m, ceil(n / gran_k)]``, or int32 with four UE8M0 bytes each.
        gran_k: columns that share a scale.
    """
    view = as_array(packed, "packed")
    if view.array.dtype.itemsize != 1 or view.array.ndim != 2:
        raise DTypeError(f"packed: expected int8 or uint8 [m, n / 2], got {view.dtype_name} {list(view.array.shape)}")
    rows, half = view.array.shape
    other = as_array(scale, "scale").array
    if is_device_array(other) != is_device_array(view.array):
        raise ProblemError("scale: expected memory of the device of packed")
    return QTensor(view.array, other, E2M1, (1, gran_k), packing=LOW_FIRST.name, extents=(rows, 2 * half)).dequantize()
