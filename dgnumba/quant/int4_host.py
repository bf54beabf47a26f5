"""The product with 4-bit weights on the host: the numbers of the kernel, at the kernel's promotion points; and what it must be.

For each group of columns, in order, with the float32 operations that the kernel does::

    acc   = sum of a[m,k] * (code[n,k] - z)          exactly (of bfloat16: as float64 has it), then rounded once
    total = fma(scale, acc, total)                   e4m3 by blocks: scale is SFA[m, k // 128] * scale
    total = fma(scale * rest, sum of a[m,k], total)  float zero points: z is an integer, and rest = integer - z

Beside int8, one scale for all of a row is one group: the sum over all of K is an integer, and for an int32 output that is the result.

DIFFERS: the kernel splits K where that is faster, and then adds the parts' totals; the FP8 tensor core drops bits while it sums a group; a plan
may fold scales into weights, or sum in float16 (`Int4Plan`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .. import config
from ..arithmetic import fma
from ..dtypes import DTYPES, DType, as_dtype
from ..errors import DTypeError, ProblemError
from ..int4_problem import fold_error
from ..layouts.int4.stream import Zeros
from .int4_weights import Int4Weights, f16_ratio, scale_range_of
from .qtensor import QTensor
from .reference import TAU_WGMMA, as_aligned

BF16, F16, F32 = DTYPES["bfloat16"], DTYPES["float16"], DTYPES["float32"]
E4M3, INT8, INT4 = DTYPES["float8_e4m3fn"], DTYPES["int8"], DTYPES["int4"]

_LARGEST_TERM = {E4M3: 2**12, INT8: 2**14, INT4: 2**14}
"""By activations, at least half of the largest product of two operands: below float32's normal numbers a scale may be off by half of 2^-149.

Of e4m3 448 * 15, and what rests of zero points add, by the product of two scales; of INT8 16 * 128 * 8: int4 without zero points is multiplied
as 16 times itself, and its scale is a sixteenth.
"""

_TILE = 256
"""Rows of the weights that are decoded at a time."""


def int4_gemm_nt_host(a: Any, scales: Any, weights: Int4Weights, d: Any, c: Any = None, bias: Any = None) -> None:
    """Write the product into `d`; checked arguments are taken as they are (`int4_operands.Int4Operands`)."""
    kind = weights.a_dtype if a.dtype == np.uint8 else _float_type(a)
    values = _activations(a, kind)
    by_blocks = scales is not None and scales.ndim == 2
    if weights.order is not None:
        values = values[:, weights.order]
    out = d if d.dtype != np.uint16 else d.view(BF16.numpy)
    add = None if c is None else c if c.dtype != np.uint16 else c.view(BF16.numpy)
    codes, scale_bytes, zeros, rests = weights.unpack()
    block = _scale_values(scale_bytes, weights.scale_dtype)
    alpha = None if weights.global_scale is None else np.float32(weights.global_scale)
    step = _TILE * (2 if weights.has_gate else 1)
    for first in range(0, weights.rows, step):
        rows = slice(first, min(first + step, weights.rows))
        whole = _whole_codes(codes[rows], None if zeros is None else zeros[rows], weights)
        if kind is INT8 and weights.is_whole and rests is None:
            exact = values @ whole.T
            if d.dtype == np.int32:
                out[:, rows] = exact.astype(np.int32)
                continue
            total = exact.astype(np.float32) * block[None, rows, 0]
        else:
            total = _product(
                values, scales if by_blocks else None, whole, block[rows], None if rests is None else rests[rows], weights.group
            )
        if alpha is not None:
            total *= alpha
        if scales is not None and not by_blocks:
            total *= scales[:, None]
        columns = rows
        if weights.has_gate:
            total = _gated(total)
            columns = slice(first // 2, min(first // 2 + _TILE, weights.n))
            total = total[:, : columns.stop - columns.start]
        with np.errstate(over="ignore", invalid="ignore"):
            if bias is not None:
                total += bias[columns]
            if add is not None:
                total += add[:, columns].astype(np.float32)
            out[:, columns] = total.astype(out.dtype)


def _float_type(a: Any) -> DType:
    return F16 if a.dtype == np.float16 else BF16


def _activations(a: Any, kind: DType) -> Any:
    """Values in float64."""
    if kind.itemsize == 2:
        return (a.view(BF16.numpy) if a.dtype == np.uint16 else a).astype(np.float64)
    return kind.decode(a).astype(np.float64)


def _scale_values(scale_bytes: Any, dtype: DType) -> Any:
    bits = np.ascontiguousarray(scale_bytes).view(f"u{dtype.itemsize}")[..., 0]
    return bits.view(np.float32) if dtype is F32 else dtype.decode(bits)


def _whole_codes(codes: Any, zeros: Any, weights: Int4Weights) -> Any:
    """Codes less their integer zero points, in float64."""
    if weights.dtype is DTYPES["float4_e2m1fn"]:
        return weights.dtype.decode(codes).astype(np.float64)
    if zeros is None:
        return codes.astype(np.float64) - weights.zero_code
    return codes.astype(np.float64) - np.repeat(zeros, weights.group, axis=1)[:, : codes.shape[1]]


def _product(values: Any, sfa: Any, codes: Any, scales: Any, rests: Any, group: int) -> Any:
    (m, k), n = values.shape, codes.shape[0]
    total = np.zeros((m, n), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for g, k0 in enumerate(range(0, k, group)):
            part = values[:, k0 : k0 + group]
            terms = [(part @ codes[:, k0 : k0 + group].T, scales[None, :, g])]
            if rests is not None:
                terms.append((np.broadcast_to(part.sum(axis=1)[:, None], (m, n)), scales[None, :, g] * rests[None, :, g]))
            for acc, scale in terms:
                if sfa is not None:
                    scale = sfa[:, k0 // 128, None] * scale
                total = fma(acc.astype(np.float32), np.broadcast_to(scale, (m, n)), total)
    return total


def silu(x: Any) -> Any:
    """``x / (1 + exp(-x))`` in float32, as `ptx.activation.silu`."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        power = np.exp2((x * np.float32(-1.4426950408889634)).astype(np.float64)).astype(np.float32)
        return x / (power + np.float32(1))


def _gated(total: Any) -> Any:
    """Rows in runs of eight of W and eight of the gate: silu of the one times the other."""
    m, rows = total.shape
    pairs = total.reshape(m, rows // 16, 2, 8)
    return (silu(pairs[:, :, 0]) * pairs[:, :, 1]).reshape(m, rows // 2)


def int4_gemm_reference(a: Any, w: QTensor) -> tuple[Any, Any]:
    """The product in float64, ``[M,N]``, and S, the same of all magnitudes: ``a`` floats (bfloat16 also as its bits) or a QTensor, `w` a QTensor.

    Raises `DTypeError` for a `w` that is none, `ProblemError` for another K.
    """
    left, right = _factors(a, w)
    return left @ right.T, np.abs(left) @ np.abs(right).T


def _size(a: Any, w: QTensor) -> Any:
    """S alone."""
    left, right = _factors(a, w)
    return np.abs(left) @ np.abs(right).T


def _factors(a: Any, w: QTensor) -> tuple[Any, Any]:
    """Both operands in float64."""
    if not isinstance(w, QTensor):
        raise DTypeError(f"w: expected the QTensor, got {type(w).__name__}")
    if len(a.shape) != 2 or a.shape[1] != w.shape[1]:
        raise ProblemError(f"a: expected [M, {w.shape[1]}] (K of w), got {list(a.shape)}")
    if isinstance(a, QTensor):
        left = a.dequantize("float64")
    else:
        left = _floats(a)
    return left, w.dequantize("float64")


def _floats(a: Any) -> Any:
    """Values of an array of floats, or of the bits of bfloat16, in float64."""
    values = np.asarray(a)
    return (values.view(BF16.numpy) if values.dtype == np.uint16 else values).astype(np.float64)


def int4_error_bound(
    a: Any,
    w: QTensor,
    out_dtype: DType | str = "bfloat16",
    *,
    fold: bool | None = None,
    f16_sums: bool | None = None,
    scale_range: tuple[float, float] | None = None,
) -> Any:
    """How far each element of a right result may lie from `int4_gemm_reference`, float64 ``[M,N]``.

    `fold` says which way the plan goes (`Int4Plan.fold`): False, scales meet sums; True, they meet weights; None, either, as the settings allow.
    `f16_sums` likewise whether its sums are float16 (`Int4Plan.f16_sums`), where they can be. `scale_range` is that of all scales, the least
    but 0 and the largest, where `w` is but some of the rows that are multiplied.

    With S = the sum of the magnitudes of all terms, S~ the same as the tensor core aligns them, C the oracle's value, u the unit roundoff of the
    output type, G the groups of K::

        bound = E + u * (|C| + E) + tiny       E = r S + (1 + r) f (tau S~ + gamma S)      gamma = (2 G + 6) * 2^-24

    It is infinite where a sum may leave float32 or the output type, be it before the scales of A's rows, and the weights' global scale,
    meet it; what they multiply last counts in `tiny` too, as they enlarge what was lost below float32's normal numbers. So it is where scales
    themselves may leave it that are multiplied first (`_first_scales`).

    tau is what sums within groups may lose: 2^-23 K for 16 bits (the tensor core cuts its last bit), 1.7e-2 for e4m3 (`TAU_WGMMA`), 0 for
    int8; S~ why there (`_as_aligned`). f is 1; with float zero points 4: there d = code - rint(z) and r = rint(z) - z are multiplied apart, and
    |d| + |r| is at most 3 |d + r|, which the roundings of scale times r exceed by less than another. r is what folding rounds a weight by, of
    itself (`int4_problem.fold_error`): for bfloat16 activations 2^-8, or 2^-7 and a little where scales are of another type than bfloat16, for
    float16 2^-11 or 2^-10; 0 where nothing is folded, and where scales have few bits, as those of MXFP4 and NVFP4.

    Where sums are float16 E grows by h (S + tau S~) and by what is lost below its normal numbers; h = (1 + 2^-11)^n - 1, where n counts the roundings
    that a term meets: four in the tensor core, one of its scale, one for each group of the eight records of a sum, one for each sum.
    """
    out = as_dtype(out_dtype)
    kind = a.dtype if isinstance(a, QTensor) else _float_type(np.asarray(a))
    left, right = _factors(a, w)
    oracle, size = left @ right.T, np.abs(left) @ np.abs(right).T
    k = w.shape[1]
    groups = -(-k // min(w.granularity[1], 128))
    tau = {E4M3: TAU_WGMMA}.get(kind, 0.0) if kind.itemsize == 1 else k * 2.0**-23
    zeros = _zeros_of(w)
    folds = _folds(fold, kind, zeros)
    off = fold_error(kind, w.dtype, w.scale_dtype, zeros) if folds else 0.0
    x, y = _as_aligned(a, w, kind, zeros, folds)
    aligned = size if x is a and y is w else _size(x, y)
    error = off * size + (1 + off) * (4 if zeros == "float" else 1) * (tau * aligned + (2 * groups + 6) * F32.unit_roundoff * size)
    ratio = f16_ratio(scale_range or scale_range_of(w), k)
    if ratio is not None and _sums_f16(f16_sums, a, w, out):
        error = error + _rounded_to_f16(a, w, size + tau * aligned, ratio)
    unit = 0.0 if out is F32 else out.unit_roundoff
    least, most = _met_last(a, w)
    tiny = out.min_subnormal + F32.min_subnormal * (groups + 1 + _LARGEST_TERM.get(kind, 16) * k) * most
    if zeros == "float":  # scale times r is off by half of it, times the sum of A
        tiny = tiny + F32.min_subnormal * np.abs(left).sum(axis=1, keepdims=True) * _global_scale(w)
    bound = error + unit * (np.abs(oracle) + error) + tiny
    with np.errstate(divide="ignore", invalid="ignore"):  # a scale of 0: all of its row is 0
        overflows = ((size + error) / least >= F32.max) | (_first_scales(a, w, kind, zeros) >= F32.max)
    bound[(size + bound >= min(out.max, F32.max)) | overflows] = np.inf
    bound[np.isnan(oracle)] = np.nan
    return bound


def _as_aligned(a: Any, w: QTensor, kind: DType, zeros: Zeros, folds: bool) -> tuple[Any, QTensor]:
    """The operands with magnitudes as the tensor core aligns them: it takes a subnormal number for as large as the smallest normal one.

    Beside e4m3, int4 without zero points is (code - 8) * 2^-8, of which 1 to 3 are subnormal; other weights of 4 bits are normal numbers, as are
    folded ones. For float16 and bfloat16 it matters only where those are: else all terms are multiples of a bit that is not cut beside a
    subnormal one. Operands in which nothing is subnormal are given as they are.
    """
    left = _raised(a, kind.min_normal) if kind is E4M3 or folds else a
    return left, _raised(w, 4.0) if kind is E4M3 and _is_subnormal_int4(w, zeros) else w


def _raised(x: Any, least: float) -> Any:
    """An operand whose codes, or values, other than 0 have at least a magnitude; itself where they have."""
    if isinstance(x, QTensor):
        values = x.dtype.decode(x.codes)
        is_less = (values != 0) & (np.abs(values) < least)
        if not is_less.any():
            return x
        return replace(x, data=np.where(is_less, x.dtype.encode(np.float32(least)), x.codes), packing=None, extents=())
    values = _floats(x)
    aligned = as_aligned(values, least)
    return aligned if (aligned > np.abs(values)).any() else x


def _is_subnormal_int4(w: QTensor, zeros: Zeros) -> bool:
    """Whether weights are 2^-8 of their codes beside e4m3, and their scales 2^8 of themselves."""
    return w.dtype is INT4 and zeros == "none"


def _first_scales(a: Any, w: QTensor, kind: DType, zeros: Zeros) -> Any:
    """The largest product of scales that meets a sum of e4m3, for each row and column: ``[M,N]``, ``[1,N]``, or 0 beside other activations.

    Of the weights', 2^8 where that is taken off the weights, and A's where they are of its blocks; in any order: one below 1 makes none smaller.
    """
    if kind is not E4M3:
        return 0.0
    columns = np.repeat(np.abs(w.scales.astype(np.float64)).max(axis=1, initial=0.0), w.granularity[0])[None, : w.shape[0]]
    taken = 2.0**8 if _is_subnormal_int4(w, zeros) else 1.0
    if not _by_blocks(a):
        return taken * columns
    rows = np.abs(a.scales.astype(np.float64)).max(axis=1, keepdims=True, initial=0.0)
    return taken * np.maximum(rows, 1.0) * np.maximum(columns, 1.0)


def _by_blocks(a: Any) -> bool:
    return isinstance(a, QTensor) and a.dtype is E4M3 and a.granularity == (1, 128)


def _global_scale(w: QTensor) -> float:
    return 1.0 if w.global_scale is None else abs(float(w.global_scale))


def _token_scales(a: Any) -> Any:
    """The scales of A's rows, float64 ``[M,1]``; 1 where sums have met all scales of A."""
    return np.abs(np.asarray(a.scale, np.float64)) if isinstance(a, QTensor) and not _by_blocks(a) else np.float64(1.0)


def _met_last(a: Any, w: QTensor) -> tuple[Any, Any]:
    """What finished sums have still to be multiplied by, the least and the most of it, float64 ``[M,1]`` or one number.

    First by the weights' global scale, then by the scales of A's rows; blocks of A have met theirs by then.
    """
    alpha, token = _global_scale(w), _token_scales(a)
    ahead = (np.ones_like(token), token, alpha * token)
    return np.minimum.reduce(ahead), np.maximum.reduce(ahead)


def _zeros_of(w: QTensor) -> Zeros:
    if w.zero_point is None:
        return "none"
    return "float" if w.zero_point.dtype.kind == "f" or str(w.zero_point.dtype) == "bfloat16" else "integer"


def _folds(fold: bool | None, kind: DType, zeros: Zeros) -> bool:
    """Whether scales are folded, or may be."""
    if kind.itemsize != 2 or zeros == "float":
        return False
    settings = config.current()
    return not (settings.exact_weights or settings.batch_invariant) if fold is None else fold


def _sums_f16(f16_sums: bool | None, a: Any, w: QTensor, out: DType) -> bool:
    """Whether sums are float16, or may be, as far as types and settings go."""
    is_by_row = isinstance(a, QTensor) and a.dtype is E4M3 and not _by_blocks(a)
    if not is_by_row or not _is_subnormal_int4(w, _zeros_of(w)):
        return False
    settings = config.current()
    return out is BF16 and not (settings.float32_sums or settings.batch_invariant) if f16_sums is None else f16_sums


def _rounded_to_f16(a: Any, w: QTensor, size: Any, ratio: float) -> Any:
    """What sums in float16 lose: a share of the terms' magnitudes, and halves of the last bit below the normal numbers."""
    k, group = w.shape[1], min(w.granularity[1], 128)
    groups, sums = -(-k // group), -(-k // 1024)
    roundings = 4 + 1 + 8 * (128 // group) + sums + 1
    share = (1 + F16.unit_roundoff) ** roundings - 1
    of_groups = np.abs(w.scales.astype(np.float64)).sum(axis=1) * -(-min(w.granularity[1], k) // group)
    columns = np.repeat(of_groups, w.granularity[0])[None, : w.shape[0]]
    lost = 2.0**8 * F16.min_subnormal / 2 * (4 * columns + (groups + sums + 2) / ratio)
    return share * size + lost * _global_scale(w) * _token_scales(a)
