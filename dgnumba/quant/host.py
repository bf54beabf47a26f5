"""The FP8 product on the host: the numbers of the kernel, at the kernel's promotion points."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arithmetic import add32, fma, two_sum
from ..dtypes import DTYPES, DType
from ..xp import view_bytes

E4M3, E5M2, BF16 = DTYPES["float8_e4m3fn"], DTYPES["float8_e5m2"], DTYPES["bfloat16"]

PROMOTE = 128
"""Elements of K between two promotions: the K of a block of scales."""

# A tile of the output, and how many elements of an operand's rows are kept decoded beside it.
_TILE_M, _TILE_N, _DECODED = 512, 512, 1 << 22

_VALUES = {row: row.decode(np.arange(256)).astype(np.float64) for row in (E4M3, E5M2)}


def fp8_gemm_nt_host(a: Any, sfa: Any, b: Any, sfb: Any, d: Any, c: Any = None, *, a_dtype: DType = E4M3, b_dtype: DType = E4M3) -> None:
    """Write ``c + a @ b.T``, dequantized, into `d`; checked arguments are taken as they are.

    For each block of 128 of K, in order, and with the float32 operations that the kernel does:

        acc   = sum of a[m,k] * b[n,k] over the block
        total = fma(sfa[m,kb] * sfb[n//128,kb], acc, total)

    and at the end ``d = total``, or ``c + total`` in float32, rounded to `d`'s type.

    DIFFERS: the tensor core drops bits while it sums a block; here `acc` is the exact sum, rounded
    once to float32 (in float64 no order of summing can lose a bit of it; of e5m2, which spans more
    bits, large and small values are summed apart, `_wide_sums`). So the result depends on
    no BLAS, thread count or batch size, and equals the kernel's wherever the kernel drops nothing.

    Args:
        a: FP8 ``[M,K]``, or its bytes as uint8. b: the same, ``[N,K]``.
        sfa: float32 ``[M, ceil(K/128)]``. sfb: float32 ``[ceil(N/128), ceil(K/128)]``.
        d: bfloat16 (or its bits as uint16), float16 or float32 ``[M,N]``, any strides.
        c: None, or an array of `d`'s shape and type; it may be `d`.
        a_dtype, b_dtype: what the bytes of `a` and `b` are: e4m3 or e5m2.
    """
    a, b = view_bytes(a), view_bytes(b)
    d, c = _float_view(d), None if c is None else _float_view(c)
    (m, k), n = a.shape, b.shape[0]
    step_m = max(1, min(_TILE_M, _DECODED // max(k, 1)))
    step_n = max(PROMOTE, min(_TILE_N, _DECODED // max(k, 1) // PROMOTE * PROMOTE))
    for m0 in range(0, m, step_m):
        rows = slice(m0, min(m0 + step_m, m))
        a_values = _VALUES[a_dtype][a[rows]]
        for n0 in range(0, n, step_n):
            columns = slice(n0, min(n0 + step_n, n))
            sf_rows = slice(n0 // PROMOTE, -(-columns.stop // PROMOTE))
            total = _tile(a_values, sfa[rows], _VALUES[b_dtype][b[columns]], sfb[sf_rows], E5M2 in (a_dtype, b_dtype))
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                if c is not None:
                    total += c[rows, columns].astype(np.float32)
                d[rows, columns] = total.astype(d.dtype)


def _tile(a: Any, sfa: Any, b: Any, sfb: Any, is_wide: bool) -> Any:
    """One tile of the output in float32; `a` and `b` hold decoded values in float64, of e5m2 on either side if `is_wide`."""
    (m, k), n = a.shape, b.shape[0]
    total = np.zeros((m, n), np.float32)
    exact, acc = np.empty((m, n)), np.empty((m, n), np.float32)
    work = np.empty((m, n)), np.empty((m, n)), np.empty((m, n))
    with np.errstate(over="ignore", invalid="ignore"):
        for kb, k0 in enumerate(range(0, k, PROMOTE)):
            part_a, part_b = a[:, k0 : k0 + PROMOTE], b[:, k0 : k0 + PROMOTE]
            np.matmul(part_a, part_b.T, out=exact)
            np.copyto(acc, _wide_sums(part_a, part_b, exact) if is_wide else exact, casting="unsafe")
            scale = np.multiply.outer(sfa[:, kb], sfb[:, kb], dtype=np.float32)
            fma(acc, _per_column(scale, n), total, out=total, work=work)
    return total


def _wide_sums(a: Any, b: Any, plain: Any) -> Any:
    """The exact sums of a block with e5m2 on either side, rounded once to float32; `plain` are those that float64 gives.

    Products of e5m2 and their sums span up to 71 bits. Cut at 1, the large and the small values of both sides make four products whose sums
    span 43 at most, so that float64 has each; what rounding loses while they are added is kept, and fits too.
    """
    is_finite = np.isfinite(plain)
    (large_a, small_a), (large_b, small_b) = _cut(a), _cut(b)
    low, lost = two_sum(large_a @ small_b.T + small_a @ large_b.T, small_a @ small_b.T)
    total, more = two_sum(large_a @ large_b.T, low)
    return np.where(is_finite, add32(total, more + lost), plain)


def _cut(x: Any) -> tuple[Any, Any]:
    """Values from 1 on, and those below; without infinities and NaNs."""
    x = np.where(np.isfinite(x), x, 0)
    is_large = np.abs(x) >= 1
    return np.where(is_large, x, 0), np.where(is_large, 0, x)


def _per_column(scale: Any, n: int) -> Any:
    """A scale for each block of 128 columns as one for each of `n` columns, in float64."""
    return np.repeat(scale.astype(np.float64), PROMOTE, axis=1)[:, :n]


def _float_view(x: Any) -> Any:
    return x.view(BF16.numpy) if x.dtype == np.uint16 else x
