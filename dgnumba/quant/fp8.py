"""Casts to FP8 with one float32 scale for each block, with DeepGEMM's names and numbers, in NumPy or CuPy.

What each takes, gives and refuses is said where the package shows it, in `dgnumba.casts`, which takes these for arrays in host memory and for
what no kernel takes.

For a block of elements x, all in float32:

    amax  = max |x|, at least 1e-4
    scale = amax / 448          use_ue8m0: rounded up to a power of two, before anything else
    code  = e4m3(x * (1 / scale))                                       nearest, ties to even

NOTE: the reciprocal is rounded and then multiplied by; a division gives another code for rare
values.

What is not finite is not refused, since looking for it would cost a device synchronisation; it
poisons its own block alone. Where a block holds a NaN, the NaN's code is NaN; where it holds an
infinity, the infinity's code is NaN. The block's scale is then NaN or infinite, so that the whole
block dequantizes to NaN; under `use_ue8m0` it is 2^127 and the other codes are zero.

`quantize` is the general cast: without the floor of 1e-4, with powers of two down to 2^-127, and
with one policy for what is not finite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..dtypes import DTYPES, DType
from ..errors import ProblemError
from ..layouts.scales import pack_ue8m0_to_int
from ..xp import ArrayView, as_array, device_of, namespace
from .cast import Options, Rounding, cast, check_input
from .formats import Format
from .qtensor import QTensor
from .scale import scale_from_amax

E4M3 = DTYPES["float8_e4m3fn"]


def per_token_cast_to_fp8(x: Any, use_ue8m0: bool = False, gran_k: int = 128, use_packed_ue8m0: bool = False) -> QTensor:
    """`dgnumba.per_token_cast_to_fp8`, which has the contract, by the array module of `x`; scales are C-contiguous.

    >>> import numpy as np
    >>> per_token_cast_to_fp8(np.ones((3, 200), np.float32))
    QTensor(float8_e4m3fn [3, 200], scale float32 [3, 2], one per 1x128)
    """
    q = deepgemm_cast(as_array(x, "x"), (1, gran_k), E4M3, use_ue8m0)
    return with_packed_scales(q, use_ue8m0) if use_packed_ue8m0 else q


def per_channel_cast_to_fp8(x: Any, use_ue8m0: bool = False, gran_k: int = 128) -> QTensor:
    """`dgnumba.per_channel_cast_to_fp8`, which has the contract, by the array module of `x`."""
    view = as_array(x, "x")
    shape = view.array.shape
    if len(shape) == 2 and gran_k > 0 and shape[0] % gran_k:
        raise ProblemError(f"x: expected rows in multiples of gran_k = {gran_k}, got {shape[0]}")
    return deepgemm_cast(view, (gran_k, 1), E4M3, use_ue8m0)


def per_block_cast_to_fp8(x: Any, use_ue8m0: bool = False, gran_k: int = 128) -> QTensor:
    """`dgnumba.per_block_cast_to_fp8`, which has the contract, by the array module of `x`."""
    return deepgemm_cast(as_array(x, "x"), (gran_k, gran_k), E4M3, use_ue8m0)


def per_custom_dims_cast_to_fp8(x: Any, dims: Sequence[int], use_ue8m0: bool = False) -> tuple[Any, Any]:
    """Quantize `x` to e4m3 with one scale for each index of the axes `dims`, over all the others.

    Args:
        x: an array of any rank, of a float type as in `per_token_cast_to_fp8`.
        dims: axes that keep scales of their own, from 0; none: one scale for all.
        use_ue8m0: round the scales up to powers of two.

    Returns:
        Data of `x`'s shape (on a device its codes as uint8), and float32 scales of the shape of
        `dims` in the order of the axes, axes of extent 1 left out. A plain pair, since blocks of
        such a form are more than a QTensor says.

    Raises:
        DTypeError: `x` is no array of a float type. ProblemError: an axis that `x` lacks, or twice.

    >>> import numpy as np
    >>> data, scale = per_custom_dims_cast_to_fp8(np.ones((2, 3, 4), np.float32), (0,))
    >>> data.shape, scale.shape
    ((2, 3, 4), (2,))
    """
    view = as_array(x, "x")
    check_input(view, least_rank=0)
    xp, shape = namespace(view.array), view.array.shape
    kept = sorted(set(dims))
    if len(kept) < len(dims) or any(axis not in range(len(shape)) for axis in kept):
        raise ProblemError(f"dims: expected axes from 0 to {len(shape) - 1}, each once, got {tuple(dims)}")
    order = [*kept, *(axis for axis in range(len(shape)) if axis not in kept)]
    outer = [shape[axis] for axis in kept]
    rows, size = math.prod(outer), math.prod(shape)
    with device_of(view.array):
        turned = view.array.transpose(order)
        whole_rows = view._replace(array=turned.reshape(rows, size // max(rows, 1)))
        data, scale = deepgemm_cast(whole_rows, (1, max(size, 1)), E4M3, use_ue8m0)
        if size == 0:  # nothing to look at: the floor
            scale = scale_from_amax(xp.zeros(rows, xp.float32), E4M3, use_ue8m0)
        back = [order.index(axis) for axis in range(len(shape))]
        data = xp.ascontiguousarray(data.reshape(turned.shape).transpose(back))
        return data.reshape(shape), scale.reshape([extent for extent in outer if extent != 1])


def deepgemm_cast(view: ArrayView, granularity: tuple[int, int], dtype: DType, use_ue8m0: bool, rounding: Rounding = "nearest") -> QTensor:
    """Cast ``x [m, n]`` with one scale a block of `granularity`, by DeepGEMM's rule."""
    check_input(view, least_rank=0)
    if view.array.ndim != 2:
        raise ProblemError(f"x: expected rank 2, [m, n], got {list(view.array.shape)}")
    if min(granularity) < 1:
        raise ProblemError(f"gran_k: expected 1 or more, got {min(granularity)}")
    rule = "deepgemm_ue8m0" if use_ue8m0 else "deepgemm"
    return cast(view, Format("deepgemm", dtype, granularity, rule=rule), Options(rounding=rounding))


def with_packed_scales(q: QTensor, use_ue8m0: bool) -> QTensor:
    """The same tensor, its power-of-two scales packed four to an int32."""
    if not use_ue8m0:
        raise ProblemError("use_packed_ue8m0: expected use_ue8m0 with it: other scales are no powers of two")
    xp, (rows, blocks) = namespace(q.scale), q.scale.shape
    with device_of(q.scale):
        filled = xp.ones((rows, -(-blocks // 4) * 4), xp.float32)
        filled[:, :blocks] = q.scale
        return QTensor(q.data, pack_ue8m0_to_int(filled), q.dtype, q.granularity, packing=q.packing, extents=q.extents)
