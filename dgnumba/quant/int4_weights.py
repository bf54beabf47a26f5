"""4-bit weights made ready for the kernels: once for a layer, before its first product."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..dtypes import DTYPES, DType, as_dtype
from ..errors import DTypeError, ProblemError
from ..layouts.int4 import groups as grouping
from ..layouts.int4.stream import COLUMNS, GROUPS, ROWS, Record, Zeros, order_for
from ..xp import device_of, namespace
from .qtensor import QTensor

INT4, UINT4, E2M1 = DTYPES["int4"], DTYPES["uint4"], DTYPES["float4_e2m1fn"]
ACTIVATIONS = tuple(DTYPES[name] for name in ("bfloat16", "float16", "float8_e4m3fn", "int8"))
SCALES = tuple(DTYPES[name] for name in ("float16", "bfloat16", "float32", "float8_e8m0fnu", "float8_e4m3fn"))
F16 = DTYPES["float16"]
LARGEST_F16_SUMS = 2.0**100
"""What scales, and their reciprocals, stay below where sums are float16: factors of float32 go between both."""

LONGEST_F16_SUMS = 2**17
"""K up to which roundings of sums in float16 stay below an eighth of them."""

LAYOUT = "rows64.2"
"""The layout's name, with a number when its bytes change: what was prepared by another is refused."""


@dataclass(frozen=True, eq=False)
class Int4Weights:
    """Weights ``[N, K]`` of 4 bits in the order in which the kernels read them; made by `prepare_int4_weights`.

    Attributes:
        stream: uint8 ``[tiles of 64 rows, K/128, bytes of a record]`` (`layouts.int4.stream`).
        n, k: rows (of one matrix, where there is a gate) and columns.
        dtype: int4, uint4 or float4_e2m1fn.
        group: columns that share a scale in a record: 16, 32, 64 or 128; larger groups are repeated.
        scale_dtype: of the scales.
        zeros: "none", "integer" or "float": the zero points.
        a_dtype: of the activations that this order of codes is for; bfloat16 and float16 share one.
        global_scale: None, or a multiplier of all scales, as Python float.
        order: None, or int32 ``[K]``: the column of A that column k of the stream belongs to (act order).
        is_whole: one scale, and zero point, serves all of a row.
        has_gate: rows come in runs of 16, eight of W and the same eight of the gate.
        layout: the layout's name.
        check: a sum over the codes that every change of place changes (`verify`).
        scale_range: the least magnitude of a scale other than 0, and the largest (0 and 0 where there is none); without
            `global_scale`. By default any: nothing is folded.
    """

    stream: Any
    n: int
    k: int
    dtype: DType
    group: int
    scale_dtype: DType
    zeros: Zeros
    a_dtype: DType
    global_scale: float | None
    order: Any
    is_whole: bool
    has_gate: bool
    layout: str
    check: int
    scale_range: tuple[float, float] = (0.0, math.inf)

    @property
    def record(self) -> Record:
        """The form of a record."""
        return Record(order_for(self.a_dtype, self.dtype, self.zeros), self.group, self.scale_dtype.itemsize, self.zeros)

    @property
    def rows(self) -> int:
        """Rows of the stream that hold weights: N, or with a gate 2 N rounded up to whole runs of 16."""
        return -(-self.n // 8) * 16 if self.has_gate else self.n

    @property
    def zero_code(self) -> int:
        """The code that means 0 where there are no zero points."""
        return 8 if self.dtype is INT4 else 0

    def takes(self, a_dtype: DType) -> bool:
        """Whether activations of a type can be multiplied with this order of codes."""
        return order_for(a_dtype, self.dtype, self.zeros) == order_for(self.a_dtype, self.dtype, self.zeros)

    def folds_into(self, a_dtype: DType) -> bool:
        """Whether every weight times its scale, both rounded to a type of 16 bits, is a normal number of it or 0: then a plan may `fold` them.

        Float zero points are not folded.
        """
        if a_dtype.itemsize != 2 or self.zeros == "float":
            return False
        least, most = self.scale_range
        smallest, largest = (0.5, 6) if self.dtype is E2M1 else (1, 15)
        roundings = 1 + 4 * a_dtype.unit_roundoff
        return most * largest * roundings <= a_dtype.max and (most == 0 or least * smallest >= a_dtype.min_normal * roundings)

    def f16_ratio(self, a_dtype: DType) -> float | None:
        """`f16_ratio` of its scales and K, where its order of codes, and the activations, are those of sums in float16; else None."""
        return f16_ratio(self.scale_range, self.k) if self.record.order == "signs" and a_dtype.itemsize == 1 else None

    def __repr__(self) -> str:
        gate, order = (" with a gate" * self.has_gate, ", act order" * (self.order is not None))
        zero = f", {self.zeros} zero points" * (self.zeros != "none")
        return f"Int4Weights({self.dtype} {[self.n, self.k]}{gate} for {self.a_dtype}, {self.scale_dtype} scales per 1x{self.group}{zero}{order})"

    def unpack(self) -> tuple[Any, Any, Any, Any]:
        """Codes ``[rows, K]``, scales' bytes, zeros and rests of the stream's rows and columns that hold weights."""
        codes, scales, zeros, rests = self.record.unpack(self.stream)
        blocks = -(-self.k // self.group)
        cut = [None if x is None else x[: self.rows, :blocks] for x in (scales, zeros, rests)]
        return codes[: self.rows, : self.k], *cut

    def verify(self) -> None:
        """Compare the stream with `check`. On a GPU this waits for it.

        Raises:
            ProblemError: the stream is not what was prepared: its codes lie in another order, or were changed.
        """
        found = code_sum(self.unpack()[0])
        if found != self.check or self.layout != LAYOUT:
            raise ProblemError(
                f"weights: expected a stream in the layout {LAYOUT} whose codes sum to {self.check:#018x}, got {self.layout} and {found:#018x}; "
                "were they packed in another order, or changed?"
            )


def f16_ratio(scale_range: tuple[float, float], k: int) -> float | None:
    """The power of two by which scales are multiplied so that sums over K fit float16; None where they might not, or scales would lose bits.

    For e4m3 activations beside int4 without zero points. The tensor core is given weights over 2^8 (`Int4Plan.operand_power`), so that a sum of 128
    products of at most 8 * 2^-8 and 448 is 1792 at most. Scales below 2^-q leave 32 * 2^q such sums in float16's range, with an eighth to spare
    for roundings; the least of them must be a normal number then.

    >>> f16_ratio((0.25, 0.75), 4096), f16_ratio((0.25, 0.75), 8192), f16_ratio((1e-9, 0.75), 4096)
    (1.0, 0.5, None)
    """
    least, most = scale_range
    if not 0 < most < LARGEST_F16_SUMS or least < 1 / LARGEST_F16_SUMS or k > LONGEST_F16_SUMS:
        return None
    room = max(0, (-(-k // COLUMNS) - 1).bit_length() - 5)
    ratio = 2.0 ** -(math.frexp(most)[1] + room)
    return ratio if least * ratio >= F16.min_normal else None


def code_sum(codes: Any) -> int:
    """A sum over codes ``[N, K]`` that depends on where each stands, modulo 2^64.

    >>> code_sum(np.uint8([[1, 2]])) == code_sum(np.uint8([[2, 1]]))
    False
    """
    xp = namespace(codes)
    n, k = codes.shape
    with device_of(codes), np.errstate(over="ignore"):
        along_k = (xp.arange(k, dtype=xp.uint64) * xp.uint64(0x9E3779B97F4A7C15)) ^ xp.uint64(0xD1B54A32D192ED03)
        along_n = (xp.arange(n, dtype=xp.uint64) * xp.uint64(0xC2B2AE3D27D4EB4F)) | xp.uint64(1)
        rows = xp.empty(n, xp.uint64)
        for first in range(0, n, 256):
            rows[first : first + 256] = (codes[first : first + 256].astype(xp.uint64) * along_k).sum(axis=1, dtype=xp.uint64)
        return int((rows * along_n).sum(dtype=xp.uint64))


def prepare_int4_weights(w: QTensor, a_dtype: DType | str = "bfloat16", *, gate: QTensor | None = None) -> Int4Weights:
    """Weights in the order in which `int4_gemm_nt` reads them; lossless, and where `w` is: in host memory or on its GPU.

    Args:
        w: `QTensor` ``[N, K]`` of int4, uint4 or float4_e2m1fn, one scale for each group of columns: 16, 32, 64, 128, a multiple of
            128, or all of K. Zero points may be integers or floats. A `g_idx` is turned into a permutation of A's columns.
        a_dtype: of the activations: bfloat16 or float16 (one order for both), float8_e4m3fn, or int8 (which serves int4 too).
        gate: another `QTensor` of the same form, for ``silu(a @ w.T) * (a @ gate.T)``: its rows are interleaved with those of `w`.

    Raises:
        DTypeError: another element, scale or activation type.
        ProblemError: no matrix, groups that do not fit, zero points out of range, a gate of another form, or a scale of int4 or uint4 of 2^120 or
            more, which might leave float32 by the power of two that goes with the operands (`Int4Plan.operand_power`).

    >>> from dgnumba.quant import quantize
    >>> prepare_int4_weights(quantize(np.ones((64, 128), np.float32), "int4_g128"))
    Int4Weights(int4 [64, 128] for bfloat16, float32 scales per 1x128)
    """
    kind = as_dtype(a_dtype)
    if kind not in ACTIVATIONS:
        raise DTypeError(f"a_dtype: expected one of {', '.join(d.name for d in ACTIVATIONS)}, got {kind}")
    _check("w", w)
    with device_of(w.data):
        first = _plain(w)
        if first.order is not None and kind is DTYPES["float8_e4m3fn"]:
            raise ProblemError(
                "w: expected no act order beside float8_e4m3fn, whose scales go by 128 columns as they stand: permute before A is quantized"
            )
        _check_scales("w", w)
        if gate is None:
            return _packed(w, first, kind, False, scale_range_of(w))
        _check("gate", gate)
        _check_gate(w, gate)
        second = _plain(gate)
        _check_scales("gate", gate)
        codes, scales, zeros, rests = (None if x is None else _interleaved(x, y) for x, y in zip(first.blocks, second.blocks))
        return _packed(w, _Plain(codes, scales, zeros, rests, first.order), kind, True, scale_range_of(w, gate))


@dataclass(frozen=True, eq=False)
class _Plain:
    """What of a QTensor goes into the stream: unsigned codes, scales' bits, zero points' integers and rests, and the order of columns."""

    codes: Any
    scales: Any
    zeros: Any
    rests: Any
    order: Any

    @property
    def blocks(self) -> tuple[Any, ...]:
        return self.codes, self.scales, self.zeros, self.rests


def _check(name: str, q: Any) -> None:
    if not isinstance(q, QTensor):
        raise DTypeError(f"{name}: expected a QTensor, got {type(q).__name__}")
    if q.dtype not in (INT4, UINT4, E2M1):
        raise DTypeError(f"{name}: expected int4, uint4 or float4_e2m1fn, got {q.dtype}")
    if q.scale_dtype not in SCALES:
        raise DTypeError(f"{name}: expected scales of {', '.join(d.name for d in SCALES)}, got {q.scale_dtype}")
    if len(q.shape) != 2:
        raise ProblemError(f"{name}: expected a matrix [N, K], got {list(q.shape)}")
    k, (gm, gk) = q.shape[1], q.granularity
    if gm != 1 or not (gk in GROUPS or gk % COLUMNS == 0 or gk >= k):
        raise ProblemError(f"{name}: expected a scale for 1 row and 16, 32, 64, a multiple of 128 or all columns, got one per {gm}x{gk}")
    if q.zero_point is not None and q.dtype is E2M1:
        raise ProblemError(f"{name}: expected no zero points beside float4_e2m1fn, got {q.zero_point.dtype}")


def _check_gate(w: QTensor, gate: QTensor) -> None:
    forms = [(q.shape, q.dtype, q.granularity, q.scale_dtype, None if q.zero_point is None else q.zero_point.dtype) for q in (w, gate)]
    if forms[0] != forms[1]:
        raise ProblemError(f"gate: expected the form of w, {w}, got {gate}")
    same = [None if q.global_scale is None else float(q.global_scale) for q in (w, gate)]
    if same[0] != same[1]:
        raise ProblemError(f"gate: expected w's global scale {same[0]}, got {same[1]}; quantize both with one")
    if (w.g_idx is None) != (gate.g_idx is None) or (w.g_idx is not None and bool((w.g_idx != gate.g_idx).any())):
        raise ProblemError("gate: expected w's g_idx, got another: both share the columns of A")


def _plain(w: QTensor) -> _Plain:
    q = w.unpacked()
    xp = namespace(q.data)
    codes = q.codes ^ 8 if q.dtype is INT4 else q.codes
    scales = _scale_bits(q)
    with np.errstate(invalid="ignore"):
        if not bool(xp.isfinite(q.scales).all()):
            raise ProblemError("w: expected finite scales, got NaN or infinity among them")
    zeros, rests = _zero_points(q)
    if q.g_idx is None or grouping.is_in_order(q.g_idx, q.granularity[1]):
        return _Plain(codes, scales, zeros, rests, None)
    g_idx = grouping.checked(q.g_idx, q.shape[1], scales.shape[1])
    order = grouping.by_group(g_idx)
    if not bool((g_idx[order] == xp.asarray(grouping.in_order(q.shape[1], q.granularity[1]))).all()):
        raise ProblemError(f"w: expected a g_idx that gives each group {q.granularity[1]} columns, the last the rest; got other counts")
    return _Plain(xp.ascontiguousarray(codes[:, order]), scales, zeros, rests, order.astype(np.int32))


def _scale_bits(q: QTensor) -> Any:
    """The scales as unsigned integers of their width, one a block."""
    scale = q.scale
    if scale.dtype == np.int32:
        scale = namespace(scale).ascontiguousarray(scale).view(np.uint8)[:, : -(-q.shape[1] // q.granularity[1])]
    return scale.view(f"u{scale.dtype.itemsize}")


def _zero_points(q: QTensor) -> tuple[Any, Any]:
    """Integers from 0 to 15 in terms of unsigned codes, and for floats what is left: ``rint(z) - z``."""
    if q.zero_point is None:
        return None, None
    xp = namespace(q.data)
    is_float = q.zero_point.dtype.kind == "f" or str(q.zero_point.dtype) == "bfloat16"
    value = q.zeros("float64") + (8 if q.dtype is INT4 else 0)
    whole = xp.rint(value)
    if not bool(xp.isfinite(value).all()) or (value.size and not (0 <= float(whole.min()) and float(whole.max()) <= 15)):
        least, most = (-8, 7) if q.dtype is INT4 else (0, 15)
        raise ProblemError(f"w: expected finite zero points from {least} to {most} for {q.dtype}, got some beyond")
    rests = (whole - value).astype(np.float32) if is_float else None
    return whole.astype(np.uint8), rests


LARGEST_SCALE = 2.0**120
"""What scales of int4 and uint4 stay below: kernels multiply them by 2^8 at most (`Int4Plan.operand_power`), in float32, before they meet sums."""


def _check_scales(name: str, q: QTensor) -> None:
    largest = float(abs(q.scales).max()) if q.scale.size else 0.0
    if largest >= LARGEST_SCALE and q.dtype is not E2M1:
        raise ProblemError(f"{name}: expected scales below 2^120, got {largest:g}")


def _interleaved(x: Any, y: Any) -> Any:
    """Rows of two matrices in runs of eight, the last run filled up with zeros, whose products are not stored."""
    xp = namespace(x)
    n, columns = x.shape
    runs = -(-n // 8)
    out = xp.zeros((runs, 2, 8, columns), x.dtype)
    for i, part in enumerate((x, y)):
        filled = xp.zeros((runs * 8, columns), x.dtype)
        filled[:n] = part
        out[:, i] = filled.reshape(runs, 8, columns)
    return out.reshape(runs * 16, columns)


def scale_range_of(*tensors: QTensor) -> tuple[float, float]:
    """The least magnitude other than 0, and the largest, of all scales."""
    ends = []
    for scales in (q.scales for q in tensors if q.scale.size):
        xp, size = namespace(scales), abs(scales)
        ends.append((float(xp.where(size > 0, size, xp.inf).min()), float(size.max())))
    most = max((most for _, most in ends), default=0.0)
    return (min(least for least, _ in ends), most) if most else (0.0, 0.0)


def _packed(w: QTensor, plain: _Plain, a_dtype: DType, has_gate: bool, scale_range: tuple[float, float]) -> Int4Weights:
    xp = namespace(plain.codes)
    rows, k = plain.codes.shape
    gk = w.granularity[1]
    group = gk if gk < COLUMNS and gk in GROUPS else COLUMNS
    zeros: Zeros = "none" if plain.zeros is None else "integer" if plain.rests is None else "float"
    record = Record(order_for(a_dtype, w.dtype, zeros), group, w.scale_dtype.itemsize, zeros)
    full_rows, full_k = -(-rows // ROWS) * ROWS, max(1, -(-k // COLUMNS)) * COLUMNS
    zero_code = 8 if w.dtype is INT4 or zeros != "none" else 0

    def whole(x: Any, padding: Any) -> Any:
        """A value a group for each group of the stream: a group of several records is repeated."""
        if x is None:
            return None
        each = xp.arange(full_k // group) * group // max(gk, 1)
        x = x[:, xp.minimum(each, x.shape[1] - 1)] if x.shape[1] else xp.full((rows, len(each)), padding, x.dtype)
        out = xp.full((full_rows, x.shape[1]), padding, x.dtype)
        out[:rows] = x
        return out

    # NOTE: past the end of K the kernels read zeros of A, so that what stands in the stream there need only be finite.
    codes = xp.full((full_rows, full_k), zero_code, np.uint8)
    codes[:rows, :k] = plain.codes
    scales, marks = whole(plain.scales, one_bits(w.scale_dtype)), whole(plain.zeros, 8)
    rests = whole(plain.rests, 0)
    scale = None if w.global_scale is None else float(w.global_scale)
    n = w.shape[0]
    return Int4Weights(
        record.pack(codes, scales, marks, rests), n, k, w.dtype, group, w.scale_dtype, zeros, a_dtype, scale, plain.order, gk >= k, has_gate,
        LAYOUT, code_sum(codes[:rows, :k]), scale_range,
    )  # fmt: skip


def one_bits(dtype: DType) -> int:
    """The bits of 1.0."""
    return {"float16": 0x3C00, "bfloat16": 0x3F80, "float32": 0x3F800000, "float8_e8m0fnu": 127, "float8_e4m3fn": 0x38}[dtype.name]
