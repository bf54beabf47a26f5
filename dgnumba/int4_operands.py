"""The arguments of `int4_gemm_nt`: checked before anything is written, then laid out in the form that the kernels read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .dtypes import DTYPES, DType, as_dtype
from .errors import DTypeError, ProblemError
from .int4_problem import Int4Problem
from .layouts.int4 import as_signed
from .layouts.operands import complies
from .layouts.scales import get_mn_major_tma_aligned_tensor
from .problem import check_output, check_overlap, describe, same_device
from .quant.int4_weights import LAYOUT, Int4Weights, prepare_int4_weights
from .quant.qtensor import QTensor
from .xp import ArrayView, address, as_array, device_of, empty, namespace

BF16, F16, F32 = DTYPES["bfloat16"], DTYPES["float16"], DTYPES["float32"]
E4M3, INT8, INT4 = DTYPES["float8_e4m3fn"], DTYPES["int8"], DTYPES["int4"]
I32 = DTYPES["int32"]
OUTPUTS = (BF16, F16, F32)


@dataclass(frozen=True, eq=False)
class Int4Operands:
    """The arrays of one checked call, NumPy or CuPy, and the problem that they make.

    a             ``[M, K]``: bfloat16 or its bits, float16; uint8 codes of e4m3 or int8
    scales        None, or of A: float32 ``[M, K/128]`` (e4m3 by blocks), ``[M]`` (int8; e4m3 by rows)
    weights       prepared
    d, c, bias    output; None, or what is added to it, of its type; None, or float32 ``[N]``
    device        the GPU that holds all of them; None for host memory
    notes         what was made anew on the way here, in words
    """

    problem: Int4Problem
    a: Any
    scales: Any
    weights: Int4Weights
    d: Any
    c: Any
    bias: Any
    device: int | None
    notes: tuple[str, ...]


def check_int4_gemm_nt(
    a: Any,
    w: Any,
    d: Any = None,
    c: Any = None,
    bias: Any = None,
    out_dtype: DType | str | None = None,
    check: bool | None = None,
) -> Int4Operands:
    """Check the arguments of ``d = c + bias + a @ w.T``; as `int4_gemm_nt` documents them.

    Raises:
        DTypeError, ProblemError: an argument is refused; nothing has been written.
        UnsupportedError: an array is on a GPU, and CuPy cannot be imported.
    """
    notes: list[str] = []
    view, kind, scales = _activations(a)
    weights = _weights(w, kind, notes)
    m, k = view.array.shape
    if k != weights.k:
        hint = "; transposed?" if m == weights.k else ""
        raise ProblemError(f"a: expected [M, {weights.k}] (K of the weights), got {[m, k]}{hint}")
    out = None if d is None else _output(d, (m, weights.n))
    d_dtype = _out_dtype(out_dtype, kind) if out is None else _kind_of(out, "d", (*OUTPUTS, I32))
    add = None if c is None else _addend(c, (m, weights.n), d_dtype)
    row = None if bias is None else _bias(bias, weights.n)
    stream = as_array(weights.stream, "w")
    device = same_device(("a", view), ("sfa", scales), ("w", stream), ("d", out), ("c", add), ("bias", row))
    if out is not None:
        read = tuple((name, x) for name, x in (("a", view), ("sfa", scales), ("w", stream), ("bias", row)) if x is not None)
        check_overlap(out, read, add)
    if check if check is not None else device is None:
        _check_scales(scales)
        weights.verify()
    if weights.has_gate and row is not None:
        raise ProblemError("bias: expected none beside a gate, got one")
    problem = Int4Problem(
        m, weights.n, k, kind, weights.dtype, d_dtype, weights.group, weights.scale_dtype, weights.zeros,
        weights.has_gate, row is not None, add is not None, weights.global_scale is not None,
        kind is INT8 and weights.is_whole and weights.zeros != "float", kind is E4M3 and scales is not None and scales.array.ndim == 1,
        weights.folds_into(kind), kind is E4M3 and scales is not None and scales.array.ndim == 1 and weights.f16_ratio(kind) is not None,
        out is None or (address(out.array) | out.array.strides[0]) % 8 == 0 or weights.n % 4 > 0,
    )  # fmt: skip
    if d_dtype is I32:
        _check_raw(problem)
    made = empty((m, weights.n), d_dtype, view.array) if out is None else out.array
    return Int4Operands(
        problem, view.array, None if scales is None else scales.array, weights, made, None if add is None else add.array,
        None if row is None else _as_float32(row), device, tuple(notes),
    )  # fmt: skip


def _activations(a: Any) -> tuple[ArrayView, DType, ArrayView | None]:
    """A's data, its element type and its scales."""
    if not isinstance(a, QTensor):
        view = as_array(a, "a")
        kind = BF16 if view.dtype is DTYPES["uint16"] else view.dtype
        if kind not in (BF16, F16):
            hint = "; quantize first, as with per_token_cast_to_fp8 or quantize(a, 'int8_row')" if kind in (E4M3, INT8) else ""
            raise DTypeError(f"a: expected bfloat16 (or its bits as uint16), float16, or a QTensor, got {view.dtype_name}{hint}")
        if view.array.ndim != 2:
            raise ProblemError(f"a: expected rank 2, [M, K], got {list(view.array.shape)}")
        return view, kind, None
    if len(a.shape) != 2:
        raise ProblemError(f"a: expected rank 2, [M, K], got {list(a.shape)}")
    if any(part is not None for part in (a.zero_point, a.global_scale, a.g_idx)):
        raise ProblemError(f"a: expected a QTensor of data and scales alone, got {a}")
    if a.dtype not in (E4M3, INT8, INT4):
        raise DTypeError(f"a: expected a QTensor of {E4M3}, {INT8} or {INT4}, got {a.dtype}")
    if a.scale_dtype is not F32:
        raise DTypeError(f"a: expected float32 scales, got {a.scale_dtype}")
    k = a.shape[1]
    gm, gk = a.granularity
    by_blocks = a.dtype is E4M3 and (gm, gk) == (1, 128)
    if a.dtype is E4M3 and not by_blocks and (gm != 1 or gk < k):
        raise ProblemError(
            f"a: expected a scale for each 1x128 of {E4M3}, or for each row, got one per {gm}x{gk}; quantize with per_token_cast_to_fp8, "
            "or with fp8_row"
        )
    if a.dtype is not E4M3 and (gm != 1 or gk < k):
        raise ProblemError(f"a: expected a scale for each row of {a.dtype}, got one per {gm}x{gk}; quantize with {a.dtype}_row")
    codes = a.codes
    if a.dtype is INT4:
        with device_of(codes):
            codes = as_signed(codes).view(np.uint8)
    scale = as_array(a.scale if by_blocks else a.scale.reshape(-1), "sfa")
    return as_array(codes, "a"), INT8 if a.dtype is INT4 else a.dtype, scale


def _weights(w: Any, kind: DType, notes: list[str]) -> Int4Weights:
    if isinstance(w, QTensor):
        notes.append("w: a QTensor, prepared in this call; prepare_int4_weights does it once")
        return prepare_int4_weights(w, kind)
    if not isinstance(w, Int4Weights):
        raise DTypeError(f"w: expected Int4Weights or a QTensor of int4, uint4 or float4_e2m1fn, got {describe(w)}")
    if w.layout != LAYOUT:
        raise ProblemError(f"w: expected weights in the layout {LAYOUT}, got {w.layout}: prepare them anew with this version")
    if not w.takes(kind):
        raise DTypeError(f"w: expected weights prepared for {kind}, as a is, got some for {w.a_dtype}: prepare_int4_weights(q, '{kind}')")
    expected = (-(-w.rows // 64), max(1, -(-w.k // 128)), w.record.nbytes)
    if tuple(w.stream.shape) != expected or w.stream.dtype != np.uint8 or not w.stream.flags.c_contiguous:
        raise ProblemError(f"w: expected a stream of uint8 {list(expected)}, contiguous, got {describe(w.stream)}")
    return w


def _output(d: Any, shape: tuple[int, int]) -> ArrayView:
    view = as_array(d, "d")
    _kind_of(view, "d", (*OUTPUTS, I32))
    return check_output("d", view, shape)


def _kind_of(view: ArrayView, name: str, kinds: tuple[DType, ...] = OUTPUTS) -> DType:
    kind = BF16 if view.dtype is DTYPES["uint16"] else view.dtype
    if kind not in kinds:
        others = ", ".join(x.name for x in kinds[1:])
        raise DTypeError(f"{name}: expected bfloat16 (or its bits as uint16), {others}, got {view.dtype_name}")
    assert kind is not None
    return kind


def _out_dtype(out_dtype: DType | str | None, kind: DType) -> DType:
    if out_dtype is None:
        return F16 if kind is F16 else BF16
    dtype = as_dtype(out_dtype)
    if dtype not in (*OUTPUTS, I32):
        raise DTypeError(f"out_dtype: expected bfloat16, float16, float32 or int32, got {dtype}")
    return dtype


def _check_raw(problem: Int4Problem) -> None:
    """int32 is for sums of codes: nothing scales them, so that there must be one scale for all of a row, and nothing is done to them."""
    if not problem.is_whole:
        raise DTypeError(
            f"d: expected int32 (out_dtype too) only for int8 or int4 beside weights with one scale a row, got a of {problem.a_dtype}"
        )
    if problem.has_gate or problem.with_bias or problem.with_c or problem.with_alpha:
        raise ProblemError("d: expected int32 for the sums of codes alone, got a gate, a bias, c or a global scale too")


def _addend(c: Any, shape: tuple[int, int], d_dtype: DType) -> ArrayView:
    view = as_array(c, "c")
    if _kind_of(view, "c") is not d_dtype:
        raise DTypeError(f"c: expected {d_dtype} as d, got {view.dtype_name}")
    if view.array.shape != shape:
        hint = "; transposed?" if view.array.shape == shape[::-1] else ""
        raise ProblemError(f"c: expected [M, N] = {list(shape)} as d, got {list(view.array.shape)}{hint}")
    return view


def _bias(bias: Any, n: int) -> ArrayView:
    view = as_array(bias, "bias")
    _kind_of(view, "bias")
    if view.array.shape != (n,):
        raise ProblemError(f"bias: expected [N] = [{n}], got {list(view.array.shape)}")
    return view


def _as_float32(view: ArrayView) -> Any:
    x = view.array
    with device_of(x):
        kind = _kind_of(view, "bias")
        values = x if kind is F32 else kind.decode(namespace(x).ascontiguousarray(x).view(np.uint16), namespace(x))
        return _vector(values)


def _check_scales(scales: ArrayView | None) -> None:
    if scales is None:
        return
    x = scales.array
    with device_of(x), np.errstate(invalid="ignore"):
        if not bool(((x >= 0) & (x <= F32.max)).all()):
            raise ProblemError("sfa: expected finite scales of 0 or more, got others")


ARRAYS = ("a", "sfa", "w", "d", "bias", "c", "token_scales")
"""Of `Int4LaidOut`: what a kernel may reach by address."""

NUMBERS = ("alpha", "ratio")
"""Of its numbers, by their bits: those of the weights themselves, which another call of the same form may have otherwise."""


@dataclass(frozen=True, eq=False)
class Int4LaidOut:
    """Arrays that a kernel can be bound to.

    a             uint16 or uint8 ``[M, K in whole blocks of 128 bytes]``, rows of 16-byte multiples
    sfa           None, or float32 ``[M, K/128]``, M contiguous; or as the caller has them, for a kernel that reads them so
    token_scales  None, or float32 ``[M]``
    w             the stream
    d             ``[M, N]``, N contiguous; `target` is the caller's, to which it is copied when it is another
    c, bias       None, or what is added
    alpha_bits    bits of the float32 that all is multiplied by
    ratio_bits    bits of the float32 that scales are multiplied by where sums are float16 (`Int4Weights.f16_ratio`); 0: they must not be
    copies        what had to be copied, in words
    """

    problem: Int4Problem
    a: Any
    sfa: Any
    token_scales: Any
    w: Any
    d: Any
    target: Any
    c: Any
    bias: Any
    alpha_bits: int
    ratio_bits: int
    copies: tuple[str, ...]


def lay_out(operands: Int4Operands, any_scales: bool = False) -> Int4LaidOut:
    """Lay out the operands of one call; on their device, in the current stream.

    `any_scales`: for a kernel that reads A's scales of 1x128 wherever they lie (`Int4Kernel.ANY_SCALES`), so that none are turned.
    """
    copies = list(operands.notes)
    problem, weights = operands.problem, operands.weights
    a = operands.a if operands.a.dtype == np.uint8 else operands.a.view(np.uint16)
    columns = 128 // a.dtype.itemsize
    if weights.order is not None:
        with device_of(a):
            a = namespace(a).take(a, weights.order, axis=1)
        copies.append("a: its columns brought into the order of the weights' groups (act order)")
    if not complies(a) or a.shape[1] % columns or a.shape[1] == 0:
        a = _padded(a, columns)
        copies.append(f"a: {list(operands.a.shape)} copied to rows of whole 128 bytes, {list(a.shape)}")
    sfa = token_scales = None
    if problem.has_block_scales:
        sfa = operands.scales if any_scales and _is_within_reach(operands.scales) else get_mn_major_tma_aligned_tensor(operands.scales)
        if address(sfa) != address(operands.scales):
            copies.append(f"sfa: row-major {list(sfa.shape)} turned to MN-major, rows of 16-byte multiples")
    elif operands.scales is not None:
        with device_of(operands.scales):
            token_scales = _vector(operands.scales)
    d, c = operands.d, operands.c
    if not _has_plain_rows(d):
        with device_of(d):
            d = namespace(d).empty(d.shape, d.dtype)  # of the caller's type: bits are copied back as bits
        copies.append(f"d: byte strides {list(operands.d.strides)}; computed in a buffer, then copied")
    if c is not None and not _has_plain_rows(c):
        with device_of(c):
            c = c.copy()
        copies.append(f"c: byte strides {list(operands.c.strides)} copied")
    padded = [f"{name} {have} padded to {full} in the stream" for name, have, full in
              (("N", problem.rows, problem.tiles * 64), ("K", problem.k, problem.records * 128)) if have != full]  # fmt: skip
    if padded:
        copies.append("w: " + ", ".join(padded))
    alpha = 1.0 if weights.global_scale is None else weights.global_scale
    ratio = weights.f16_ratio(problem.a_dtype) or 0.0
    bits, ratio_bits = (int(np.float32(x).view(np.uint32)) for x in (alpha, ratio))
    return Int4LaidOut(problem, a, sfa, token_scales, weights.stream, d, operands.d, c, operands.bias, bits, ratio_bits, tuple(copies))


def _has_plain_rows(x: Any) -> bool:
    """Whether a kernel can reach every element of D or C by a pitch: neighbours side by side, each at a multiple of its size."""
    pitch, step = x.strides
    return bool(step == x.itemsize and pitch >= 0 and pitch % x.itemsize == 0 and address(x) % x.itemsize == 0)


def _is_within_reach(x: Any) -> bool:
    """Whether a kernel can reach every element of scales by two strides of 32 bits, each at a multiple of its size."""
    far = sum((extent - 1) * stride for extent, stride in zip(x.shape, x.strides))
    return far < 2**32 and address(x) % x.itemsize == 0 and all(stride >= 0 and stride % x.itemsize == 0 for stride in x.strides)


def _vector(x: Any) -> Any:
    """Numbers side by side, each at a multiple of its size: those that are given, where they are so."""
    return x if x.flags.c_contiguous and address(x) % x.itemsize == 0 else x.copy()


def _padded(a: Any, columns: int) -> Any:
    """A copy whose rows are whole blocks of `columns`, zeros at their end; 16-byte aligned."""
    m, k = a.shape
    width = max(1, -(-k // columns)) * columns
    with device_of(a):
        spare = 16 // a.dtype.itemsize
        flat = namespace(a).zeros(m * width + spare, a.dtype)
        skip = -address(flat) % 16 // a.dtype.itemsize
        out = flat[skip : skip + m * width].reshape(m, width)
        out[:, :k] = a
        return out
