"""What the FP8 product must be: the float64 oracle, how far from it a result may lie, and where it
must equal it.

    D[m,n] = sum over k of (A[m,k] * SFA[m, k // 128]) * (B[n,k] * SFB[n // 128, k // 128])

Everything here is for checking, written for the eye and not for speed. Codes are e4m3 or e5m2, as ml_dtypes
arrays; uint8 is the bytes of e4m3.
"""

from __future__ import annotations

from typing import Any, overload

import numpy as np

from ..arithmetic import fma
from ..dtypes import DTYPES, DType, as_dtype
from ..errors import DTypeError, ProblemError
from ..layouts.scales import get_row_major_ue8m0_tensor
from ..problem import scale_shape
from ..xp import view_bytes
from .qtensor import PACKED_SCALES, QTensor, expand

E4M3, E5M2, F32 = DTYPES["float8_e4m3fn"], DTYPES["float8_e5m2"], DTYPES["float32"]
BLOCK = 128
A, B = (1, BLOCK), (BLOCK, BLOCK)
"""Rows and columns that share a scale, of the left and of the right operand."""

TAU_WGMMA = 1.7e-2
"""Largest error of Hopper's FP8 tensor core over 128 of K, as a share of the sum of ``|a|~ |b|~`` (`as_aligned`).

Each of 4 steps of 32 products aligns 34 terms to the largest exponent and cuts each below 2^-13 of it:
136 * 2^-13 = 1.66e-2. A product's exponent is the sum of its factors' as they are stored, which for a
subnormal number is that of the smallest normal one (`emu.tensor_core`): up to 2^3 times too much for e4m3.
"""

TAU_FLOAT32 = BLOCK * 2.0**-24
"""The same for products that are summed in float32, in any order, as a share of the sum of ``|a||b|``: nothing is aligned."""

EXACT_BITS = 14
"""Bits that survive in the tensor core's accumulator: the width of the exact zone."""


Pair = QTensor | tuple[Any, Any]


def as_aligned(values: Any, smallest: float) -> Any:
    """``|x|~``: the magnitudes of values as a tensor core aligns them, those other than 0 at least the `smallest` normal number.

    >>> as_aligned(np.float64([-3.0, 0.0, 2.0**-9]), E4M3.min_normal).tolist()
    [3.0, 0.0, 0.015625]
    """
    size = np.abs(values)
    return np.where(size > 0, np.maximum(size, smallest), size)


@overload
def gemm_reference(a: Pair, b: Pair, /, *, gran_a: tuple[int, int] | None = None, gran_b: tuple[int, int] | None = None) -> Any: ...
@overload
def gemm_reference(
    a: Any, sfa: Any, b: Any, sfb: Any, /, *, gran_a: tuple[int, int] | None = None, gran_b: tuple[int, int] | None = None
) -> Any: ...
def gemm_reference(*operands: Any, gran_a: tuple[int, int] | None = None, gran_b: tuple[int, int] | None = None) -> Any:
    """The product in float64, ``[M,N]``: the formula above, as it stands.

    Args:
        operands: ``a, b``, each a `QTensor` (of any element type, with all that belongs to it) or a
            pair of codes and scales; or the four of two pairs. Codes ``[M,K]`` and ``[N,K]``, scales
            float32, one for each block of `gran_a` and `gran_b` elements, or int32 of four UE8M0 each.
            In host memory.
        gran_a, gran_b: rows and columns that share a scale; None: what a QTensor says, of a pair
            1x128 and 128x128.

    Raises:
        ProblemError: neither two operands nor four, or operands that do not go together. DTypeError: codes that are of no 8-bit type.

    >>> from dgnumba.quant import quantize
    >>> a, b = quantize(np.ones((2, 64), np.float32), "mxfp4"), quantize(np.full((3, 64), 7, np.float32), "int4_g64")
    >>> gemm_reference(a, b).tolist()
    [[448.0, 448.0, 448.0], [448.0, 448.0, 448.0]]
    """
    pair, grans = _two(operands), (gran_a or A, gran_b or B)
    x, y = (q.dequantize("float64") if isinstance(q, QTensor) else _scaled(q, n, g) for q, n, g in zip(pair, "ab", grans))
    if x.shape[-1] != y.shape[-1]:
        raise ProblemError(f"b: expected [N, {x.shape[-1]}] (K as in a), got {list(y.shape)}")
    return x @ y.T


@overload
def error_bound(
    a: Pair,
    b: Pair,
    out_dtype: DType | str = "bfloat16",
    /,
    *,
    tau: float = TAU_WGMMA,
    gran_a: tuple[int, int] | None = None,
    gran_b: tuple[int, int] | None = None,
) -> Any: ...
@overload
def error_bound(
    a: Any,
    sfa: Any,
    b: Any,
    sfb: Any,
    out_dtype: DType | str = "bfloat16",
    /,
    *,
    tau: float = TAU_WGMMA,
    gran_a: tuple[int, int] | None = None,
    gran_b: tuple[int, int] | None = None,
) -> Any: ...
def error_bound(
    *operands: Any,
    out_dtype: DType | str = "bfloat16",
    tau: float = TAU_WGMMA,
    gran_a: tuple[int, int] | None = None,
    gran_b: tuple[int, int] | None = None,
) -> Any:
    """How far each element of a right result may lie from `gemm_reference`, float64 ``[M,N]``.

    With S = the sum of the magnitudes of all terms, S~ the same with every code but 0 at least the smallest
    normal number of its type, C the oracle's value and u the unit roundoff of the output type (0 for
    float32, whose rounding is that of the last addition):

        bound = E + u * (|C| + E) + tiny      E = tau * S~ + gamma * S      gamma = (K/128 + 3) * 2^-24

    Rigorous for every input, of a tensor core that adds as `emu.tensor_core` says: `tau` holds for any codes
    (why S~: `TAU_WGMMA`), gamma counts the roundings of the promotion in float32, and tiny what underflows.
    Where the result may leave the output's range the bound is infinite; where the oracle is NaN it is NaN.

    Args:
        operands: as in `gemm_reference`, of e4m3 or e5m2 with scales of their blocks alone; behind them the
            `out_dtype`, if it is not named.
        out_dtype: element type of the result.
        tau: share of S~ that the sum over one block of K may lose; or `TAU_FLOAT32`, for the host path, which is a share of S.
        gran_a, gran_b: elements that share a scale, as in `gemm_reference`.

    Raises:
        DTypeError: codes or a QTensor of another element type, or with zero points, a global scale or g_idx.
        ProblemError: as `gemm_reference`.
    """
    *operands, last = operands  # type: ignore[assignment]
    if isinstance(last, str | DType):
        out_dtype = last
    else:
        operands = (*operands, last)
    (a, sfa, gran_a), (b, sfb, gran_b) = (_fp8(q, n, g) for q, n, g in zip(_two(tuple(operands)), "ab", (gran_a or A, gran_b or B)))
    out, k = as_dtype(out_dtype), np.shape(a)[1]
    oracle = gemm_reference(a, sfa, b, sfb, gran_a=gran_a, gran_b=gran_b)
    x, y = np.abs(_values(a)), np.abs(_values(b))
    size = aligned = _product(x, sfa, y, sfb, gran_a, gran_b)
    if tau != TAU_FLOAT32 and (_has_subnormals(a) or _has_subnormals(b)):
        aligned = _product(as_aligned(x, _row(a).min_normal), sfa, as_aligned(y, _row(b).min_normal), sfb, gran_a, gran_b)
    blocks = -(-k // BLOCK)
    error = tau * aligned + (blocks + 3) * F32.unit_roundoff * size
    # Half a subnormal step a promotion, and for each product of two scales, times what it scales.
    tiny = F32.min_subnormal / 2 * (blocks + 1 + k * _row(a).max * _row(b).max) + out.min_subnormal / 2
    unit = 0.0 if out is F32 else out.unit_roundoff
    bound = error + unit * (np.abs(oracle) + error) + tiny
    largest = np.multiply.outer(_per_row(sfa, gran_a, a), _per_row(sfb, gran_b, b))
    bound[(size + bound >= min(out.max, F32.max)) | (largest > F32.max)] = np.inf
    bound[np.isnan(oracle)] = np.nan
    return bound


def exact_integer_reference(
    a: Any,
    sfa: Any,
    b: Any,
    sfb: Any,
    out_dtype: DType | str = "float32",
    bits: int | None = EXACT_BITS,
) -> Any:
    """The one right result in the exact zone, ``[M,N]`` of `out_dtype`: compare its bits.

    Each block of 128 of K is summed in integers; then, block after block, the scales are multiplied
    in float32 and their product times the sum is added with one rounding, as the kernel does.

    In the exact zone the products of a block are multiples of some 2^t and their magnitudes, as the
    tensor core aligns them (`as_aligned`), sum to less than 2^(t + bits), so that no accumulator of that
    many bits drops any. For `bits` = None any codes of e4m3 are taken, and the sum is rounded once to
    float32, as on the host path.

    Raises:
        ProblemError: outside the exact zone; names the element. Or `bits` None for e5m2, of whose sums float64 loses bits.
    """
    x, y = (_values(codes) / _row(codes).min_subnormal for codes in (a, b))
    normal = [2.0 ** _row(codes).mantissa for codes in (a, b)]
    unit = _row(a).min_subnormal * _row(b).min_subnormal
    if bits is None and E5M2 in (_row(a), _row(b)):
        raise ProblemError(f"bits: expected a number for {E5M2}, got None")
    total = np.zeros((x.shape[0], y.shape[0]), np.float32)
    sfb_rows = np.repeat(np.asarray(sfb), BLOCK, axis=0)[: y.shape[0]]
    for kb, k0 in enumerate(range(0, x.shape[1], BLOCK)):
        xs, ys = x[:, k0 : k0 + BLOCK], y[:, k0 : k0 + BLOCK]
        if bits is not None:
            _check_exact(xs, ys, normal, bits, kb)
        # Integers below 2^43 throughout, or few bits of longer ones: float64 sums them exactly in any order.
        acc = (xs @ ys.T * unit).astype(np.float32)
        scale = np.multiply.outer(np.asarray(sfa)[:, kb], sfb_rows[:, kb], dtype=np.float32)
        total = fma(acc, scale, total)
    with np.errstate(over="ignore"):
        return total.astype(as_dtype(out_dtype).numpy)


def _check_exact(x: Any, y: Any, normal: list[float], bits: int, kb: int) -> None:
    """`normal`: the smallest normal number of either type, in the integers' unit."""
    size = as_aligned(x, normal[0]) @ as_aligned(y, normal[1]).T
    unit = np.multiply.outer(_lowest_bit(x), _lowest_bit(y))
    outside = ~(size < unit * 2.0**bits)
    if outside.any():
        m, n = (int(i) for i in np.argwhere(outside)[0])
        raise ProblemError(
            f"a, b: expected blocks whose products sum exactly in {bits} bits, got magnitudes that "
            f"sum to {size[m, n] / unit[m, n]:.0f} units at [{m}, {n}], block {kb} of K"
        )


def _lowest_bit(x: Any) -> Any:
    """The largest power of two that divides all integers of a row; infinite for zeros."""
    whole = np.nan_to_num(x).astype(np.int64)
    return np.where(whole == 0, np.inf, (whole & -whole).astype(np.float64)).min(axis=1)


def _two(operands: tuple[Any, ...]) -> tuple[Any, Any]:
    """The two operands of two or of four arguments."""
    if len(operands) == 4:
        operands = operands[:2], operands[2:]
    if len(operands) != 2:
        raise ProblemError(f"operands: expected a, b, or codes and scales of both, got {len(operands)} arguments")
    for name, pair in zip("ab", operands):
        if not isinstance(pair, QTensor) and (not isinstance(pair, tuple | list) or len(pair) != 2):
            raise ProblemError(f"{name}: expected a QTensor or a pair of codes and scales, got {type(pair).__name__}")
        if not isinstance(pair, QTensor) and getattr(getattr(pair[0], "dtype", None), "itemsize", 0) != 1:
            got = getattr(pair[0], "dtype", None) or type(pair[0]).__name__
            raise DTypeError(
                f"{name}: expected an array of {E4M3} or {E5M2}, or of their bytes, got {got}; quantize it: per_token_cast_to_fp8(x)"
            )
    return operands[0], operands[1]


def _fp8(q: Any, name: str, granularity: tuple[int, int]) -> tuple[Any, Any, tuple[int, int]]:
    """Codes, float32 scales, and how many elements share one, of an operand of FP8."""
    if not isinstance(q, QTensor):
        return q[0], q[1], granularity
    beside = [n for n in ("zero_point", "global_scale", "g_idx") if getattr(q, n) is not None]
    if q.dtype not in (E4M3, E5M2) or beside:
        raise DTypeError(f"{name}: expected {E4M3} or {E5M2} and scales alone, of which the bound is known, got {q}")
    return q.codes.view(q.dtype.numpy), q.scales, q.granularity


def _scaled(pair: Any, name: str, granularity: tuple[int, int]) -> Any:
    values, shape = _values(pair[0]), np.shape(pair[1])
    expected = scale_shape(values.shape, granularity)
    if np.asarray(pair[1]).dtype == np.int32:
        expected = (*expected[:-1], -(-expected[-1] // PACKED_SCALES))
    if shape != expected:
        hint = "; transposed?" if shape == expected[::-1] else ""
        raise ProblemError(f"sf{name}: expected {list(expected)} for {name} {list(values.shape)}, got {list(shape)}{hint}")
    return values * expand(_float64(pair[1], granularity, values), granularity, values.shape)


def _float64(sf: Any, granularity: tuple[int, int], codes: Any) -> Any:
    """The scales of `codes`: int32 are words of four UE8M0."""
    if np.asarray(sf).dtype == np.int32:
        sf = get_row_major_ue8m0_tensor(np.asarray(sf), -(-np.shape(codes)[1] // granularity[1]))
    return np.asarray(sf, np.float64)


def _row(codes: Any) -> DType:
    """What codes are: e5m2 where the array says so, else e4m3."""
    return E5M2 if codes.dtype == E5M2.numpy else E4M3


def _has_subnormals(codes: Any) -> bool:
    """Whether any is one: bits of the mantissa, none of the exponent."""
    size = view_bytes(codes) & 0x7F
    return bool(((size > 0) & (size < 1 << _row(codes).mantissa)).any())


def _values(codes: Any) -> Any:
    return _row(codes).decode(view_bytes(codes)).astype(np.float64)


def _product(a: Any, sfa: Any, b: Any, sfb: Any, gran_a: tuple[int, int], gran_b: tuple[int, int]) -> Any:
    a_real = a * expand(_float64(sfa, gran_a, a), gran_a, a.shape)
    b_real = b * expand(_float64(sfb, gran_b, b), gran_b, b.shape)
    return a_real @ b_real.T


def _per_row(sf: Any, granularity: tuple[int, int], codes: Any) -> Any:
    """The largest scale of each row of a matrix."""
    largest = _float64(sf, granularity, codes).max(axis=1, initial=0.0)
    return np.repeat(largest, granularity[0])[: np.shape(codes)[0]]
