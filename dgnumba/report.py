"""How right a product is: every element against float64 and its bound, in tiles, so that memory stays small and progress can be shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .dtypes import as_dtype
from .errors import ProblemError
from .quant import QTensor, error_bound, gemm_reference, int4_error_bound, int4_gemm_reference
from .quant.int4_weights import scale_range_of
from .quant.reference import TAU_FLOAT32, TAU_WGMMA

Progress = Callable[[int, int], None]

TILE_M, TILE_N = 1024, 2048

TAU = {"host": TAU_FLOAT32, "emulator": TAU_WGMMA, "cuda": TAU_WGMMA}
"""What a sum over 128 of K may lose, by where it was made (`quant.reference`)."""


@dataclass(frozen=True)
class Verdict:
    """What a comparison with float64 found.

    elements         compared
    largest_error    of an element, absolute
    bound_used       the largest share of its bound that an element's error is; above 1 something is wrong
    outside          elements whose error is above their bound, or that are not numbers where they should be
    first_outside    [m, n] of the first of them
    quantization     relative error (Frobenius) against the product before quantization; None where that is not known
    unbounded        elements that may overflow on the way, or in the output, so that no bound says what they are
    """

    elements: int
    largest_error: float
    bound_used: float
    outside: int
    first_outside: tuple[int, int] | None
    quantization: float | None
    unbounded: int = 0

    @property
    def is_right(self) -> bool:
        """Whether every element is within its bound."""
        return self.outside == 0

    def __str__(self) -> str:
        if not self.is_right:
            at = list(self.first_outside or ())
            return f"WRONG: {self.outside} of {self.elements} elements are outside their error bound, first at {at}"
        if self.unbounded:
            others = f"; the other {self.elements - self.unbounded} are within their error bound" if self.unbounded < self.elements else ""
            return f"UNCHECKED: {self.unbounded} of {self.elements} elements may overflow float32 or the output and have no error bound{others}"
        used = f"at most {100 * self.bound_used:.2g} % of an element's bound"
        return f"right: all {self.elements} elements within their error bound; largest error {self.largest_error:.2g}, {used}"


def verify(
    a: QTensor, b: QTensor, d: Any, *, on: str, originals: tuple[Any, Any] | None = None, progress: Progress | None = None
) -> Verdict:
    """Compare ``d = a @ b.T`` with float64, element by element.

    Args:
        a: one scale per 1x128, ``[M,K]``. b: one per 128x128, ``[N,K]``. d: ``[M,N]``. All in host memory.
        on: where `d` was made, "host", "emulator" or "cuda": what its bound is.
        originals: the operands before they were quantized.
        progress: called with elements done and elements to do.
    """
    m, n = np.shape(d)
    if (m, n) != (a.shape[0], b.shape[0]):
        raise ProblemError(f"d: expected [M, N] = {[a.shape[0], b.shape[0]]}, got {[m, n]}")
    largest, used, outside, first, unbounded = 0.0, 0.0, 0, None, 0
    lost = size = 0.0
    for rows, columns in _tiles(m, n):
        part = a.data[rows], a.scale[rows], b.data[columns], b.scale[columns.start // 128 : -(-columns.stop // 128)]
        expected, bound = gemm_reference(*part), error_bound(*part, as_dtype(d.dtype), tau=TAU[on])
        found = np.asarray(d[rows, columns]).astype(np.float64)
        error, bad = _compare(found, expected, bound)
        if bad.any() and first is None:
            r, c = (int(i) for i in np.argwhere(bad)[0])
            first = (rows.start + r, columns.start + c)
        outside += int(bad.sum())
        unbounded += int(np.isinf(bound).sum())
        largest = max(largest, float(error.max(initial=0.0)))
        used = max(used, float((error[error > 0] / bound[error > 0]).max(initial=0.0)))
        if originals is not None:
            exact = _float64(originals[0][rows]) @ _float64(originals[1][columns]).T
            lost, size = lost + float(((found - exact) ** 2).sum()), size + float((exact**2).sum())
        if progress is not None:
            progress(rows.start * n + (rows.stop - rows.start) * columns.stop, m * n)
    quantization = None if originals is None else (lost / size) ** 0.5 if size else 0.0
    return Verdict(m * n, largest, used, outside, first, quantization, unbounded)


def verify_int4(
    a: Any,
    w: QTensor,
    d: Any,
    *,
    originals: tuple[Any, Any] | None = None,
    progress: Progress | None = None,
    fold: bool | None = None,
    f16_sums: bool | None = None,
) -> Verdict:
    """`verify` for ``d = a @ w.T`` with weights of 4 bits; `a` an array of 16-bit floats, or a QTensor, `w` a QTensor.

    `fold` and `f16_sums` as of `int4_error_bound`: whether scales were folded into the weights, and sums were float16; False for what the host made.
    """
    m, n = np.shape(d)
    if (m, n) != (a.shape[0], w.shape[0]):
        raise ProblemError(f"d: expected [M, N] = {[a.shape[0], w.shape[0]]}, got {[m, n]}")
    largest, used, outside, first, unbounded = 0.0, 0.0, 0, None, 0
    lost = size = 0.0
    ways: dict[str, Any] = {"fold": fold, "f16_sums": f16_sums, "scale_range": scale_range_of(w)}
    for columns in (slice(j, min(j + TILE_N, n)) for j in range(0, n, TILE_N)):
        part = w.rows(columns.start, columns.stop)
        expected, bound = int4_gemm_reference(a, part)[0], int4_error_bound(a, part, as_dtype(d.dtype), **ways)
        found = np.asarray(d[:, columns]).astype(np.float64)
        error, bad = _compare(found, expected, bound)
        if bad.any() and first is None:
            r, c = (int(i) for i in np.argwhere(bad)[0])
            first = (r, columns.start + c)
        outside += int(bad.sum())
        unbounded += int(np.isinf(bound).sum())
        largest = max(largest, float(error.max(initial=0.0)))
        used = max(used, float((error[error > 0] / bound[error > 0]).max(initial=0.0)))
        if originals is not None:
            exact = _float64(originals[0]) @ _float64(originals[1][columns]).T
            lost, size = lost + float(((found - exact) ** 2).sum()), size + float((exact**2).sum())
        if progress is not None:
            progress(m * columns.stop, m * n)
    quantization = None if originals is None else (lost / size) ** 0.5 if size else 0.0
    return Verdict(m * n, largest, used, outside, first, quantization, unbounded)


def _compare(found: Any, expected: Any, bound: Any) -> tuple[Any, Any]:
    """Errors, 0 where there is none to speak of, and where they are too large."""
    with np.errstate(invalid="ignore"):
        error = np.abs(found - expected)
    unbounded = np.isinf(bound)
    bad = np.where(np.isnan(expected), ~np.isnan(found), ~unbounded & ~(error <= bound))
    return np.where(np.isfinite(error) & ~unbounded, error, 0.0), bad


def _tiles(m: int, n: int) -> Iterator[tuple[slice, slice]]:
    for i in range(0, m, TILE_M):
        for j in range(0, n, TILE_N):
            yield slice(i, min(i + TILE_M, m)), slice(j, min(j + TILE_N, n))


def _float64(x: Any) -> Any:
    return np.asarray(x).astype(np.float64)
