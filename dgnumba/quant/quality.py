"""What quantizing did to an array: errors, bounds and clipping, of the tensor and of each block."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from ..errors import DTypeError, ProblemError
from ..problem import scale_shape
from ..xp import as_array, is_device_array
from .bounds import Bounds
from .qtensor import QTensor

BINS = 50
"""Of the histogram of errors, from 0 to the whole bound."""

BEYOND_FLOAT32 = 2.0**128 - 2.0**103
"""The least magnitude that becomes infinity in float32."""

_SLAB = 1 << 16


@dataclass
class Tally:
    """Errors of a tensor, summed as its parts come; ``tally + other`` is that of both.

    elements       compared
    poisoned       of them, those that are not finite, before or after; they count no further
    squares        sum of x^2
    squared_error  sum of (value - x)^2
    largest_error  of an element, absolute
    bound_used     the largest share of its bound (`element_bound`) that an element used
    outside        elements over their bound: 0, or the quantizer did not round to nearest
    clipped        elements more than half a step beyond the range
    overflowed     elements whose value float32 does not hold, so that `QTensor.dequantize` gives infinity
    """

    elements: int = 0
    poisoned: int = 0
    squares: float = 0.0
    squared_error: float = 0.0
    largest_error: float = 0.0
    bound_used: float = 0.0
    outside: int = 0
    clipped: int = 0
    overflowed: int = 0

    def add(self, x: Any, q: QTensor) -> None:
        """Count a part of a tensor, and what it became; any rank, host or device."""
        for _, slab, part in _slabs(x, q):
            self._count(_Errors(slab, part))

    def _count(self, found: _Errors) -> None:
        self.elements += found.error.size
        self.poisoned += int(found.is_poisoned.sum())
        self.squares += float(np.square(found.x).sum())
        self.squared_error += float(np.square(found.error).sum())
        self.largest_error = max(self.largest_error, float(found.error.max(initial=0.0)))
        self.bound_used = max(self.bound_used, float(found.used.max(initial=0.0)))
        self.outside += int((found.used > 1).sum())
        self.clipped += int(found.clipped.sum())
        self.overflowed += found.overflowed

    def __add__(self, other: Tally) -> Tally:
        out = Tally()
        for each in fields(Tally):
            mine, others = getattr(self, each.name), getattr(other, each.name)
            setattr(out, each.name, max(mine, others) if each.name in ("largest_error", "bound_used") else mine + others)
        return out

    @property
    def mse(self) -> float:
        """Mean squared error, of what is finite; 0 of nothing."""
        return self.squared_error / max(self.elements - self.poisoned, 1)

    @property
    def sqnr_db(self) -> float:
        """Signal to quantization noise in dB: ``10 log10(sum x^2 / sum error^2)``; infinite without an error, NaN where nothing is finite."""
        return math.nan if self.poisoned == self.elements > 0 else float(decibels(self.squares, self.squared_error))

    @property
    def relative_error(self) -> float:
        """``sqrt(sum error^2 / sum x^2)``, relative Frobenius; 0 without an error."""
        return math.sqrt(self.squared_error / self.squares) if self.squared_error and self.squares else float(self.squared_error > 0)

    def __str__(self) -> str:
        used = f"{100 * self.bound_used:.3g} % of the bound used" + (f", {self.outside} OUTSIDE" if self.outside else "")
        poisoned = f", {self.poisoned} not finite" if self.poisoned else ""
        poisoned += f", {self.overflowed} beyond float32" if self.overflowed else ""
        errors = f"SQNR {self.sqnr_db:.2f} dB, largest error {self.largest_error:.3g}"
        return f"{self.elements} elements: {errors}, {used}, {self.clipped} clipped{poisoned}"


@dataclass(frozen=True, eq=False)
class QuantReport:
    """What `report` found. Arrays have a value for each block, ``[..., m_blocks, k_blocks]``.

    format         in words, what `q` is
    total          of the whole tensor, a `Tally`
    rms_error      root of the mean squared error
    sqnr_db        infinite without an error
    largest_error  absolute
    bound_used     largest share of its bound that an element used
    clipped        elements
    histogram      elements by the share of their bound that they used, in `BINS` of the same width
    codes          elements by their code
    levels         what each code means, before it is scaled; NaN for some
    """

    format: str
    total: Tally
    rms_error: Any = field(repr=False)
    sqnr_db: Any = field(repr=False)
    largest_error: Any = field(repr=False)
    bound_used: Any = field(repr=False)
    clipped: Any = field(repr=False)
    histogram: Any = field(repr=False)
    codes: Any = field(repr=False)
    levels: Any = field(repr=False)

    def __str__(self) -> str:
        """The whole tensor, in two lines; `table` has the worst blocks too."""
        return f"{self.format}\n{self.total}"

    def as_dict(self) -> dict[str, Any]:
        """Numbers and lists alone, for JSON; None for what is infinite (an SQNR without an error) or NaN."""
        total = {each.name: getattr(self.total, each.name) for each in fields(Tally)}
        total |= {name: _plain(getattr(self.total, name)) for name in ("sqnr_db", "mse", "relative_error")}
        blocks = {name: _plain(getattr(self, name)) for name in ("rms_error", "sqnr_db", "largest_error", "bound_used", "clipped")}
        arrays = {name: _plain(getattr(self, name)) for name in ("histogram", "codes", "levels")}
        return {"format": self.format, "total": total, "blocks": blocks, **arrays}

    def table(self, rows: int = 10) -> str:
        """The whole, and the blocks of the lowest SQNR, as text."""
        head = f"{'block':>16} {'SQNR dB':>9} {'rms error':>10} {'largest':>10} {'bound used':>11} {'clipped':>8}"
        lines = [self.format, str(self.total), head]
        order = np.argsort(self.sqnr_db, axis=None, kind="stable")[:rows]
        for i in zip(*np.unravel_index(order, self.sqnr_db.shape)):
            at = "[" + ", ".join(str(int(n)) for n in i) + "]"
            errors = f"{self.sqnr_db[i]:>9.2f} {self.rms_error[i]:>10.3g} {self.largest_error[i]:>10.3g}"
            lines.append(f"{at:>16} {errors} {100 * self.bound_used[i]:>9.3g} % {int(self.clipped[i]):>8}")
        return "\n".join(lines)

    def plot(self, path: Any = None) -> Any:
        """A heat map of the blocks' SQNR, and histograms; see `plots.plot`."""
        from .plots import plot

        return plot(self, path)


def report(x: Any, q: QTensor) -> QuantReport:
    """Compare what was quantized with what it became: of each block and of the whole, as data, `table` and `plot`.

    Args:
        x: ``[..., rows, columns]``, any float type, in host or device memory.
        q: its quantized form; `x` and `q` are looked at on the host, some rows at a time.

    Raises:
        ProblemError: another shape.

    >>> from dgnumba.quant import quantize
    >>> x = np.linspace(-1, 1, 256, dtype=np.float32).reshape(2, 128)
    >>> found = report(x, quantize(x, "int4_g64"))
    >>> found.sqnr_db.shape, found.total.outside, round(found.total.sqnr_db)
    ((2, 2), 0, 25)
    """
    if not isinstance(q, QTensor):
        raise DTypeError(f"q: expected a QTensor, what x became, got {type(q).__name__}")
    blocks = scale_shape(q.shape, q.granularity)
    sums = {name: np.zeros(blocks) for name in ("squares", "squared_error", "largest_error", "bound_used", "clipped", "elements")}
    histogram, codes, total = np.zeros(BINS, np.int64), np.zeros(1 << q.dtype.bits, np.int64), Tally()
    for at, slab, part in _slabs(x, q):
        found = _Errors(slab, part)
        total._count(found)
        added = {"squares": found.x**2, "squared_error": found.error**2, "clipped": found.clipped, "elements": ~found.is_poisoned}
        for name, values in added.items():
            sums[name][at] += _per_block(np.add, values.astype(np.float64), part)
        for name, values in {"largest_error": found.error, "bound_used": found.used}.items():
            sums[name][at] = np.maximum(sums[name][at], _per_block(np.maximum, values, part))
        bins = np.minimum(found.used[~found.is_poisoned] * BINS, BINS - 1).astype(np.int64)
        histogram += np.bincount(bins, minlength=BINS)
        codes += np.bincount(part.codes.ravel(), minlength=len(codes))
    levels = q.dtype.decode(np.arange(len(codes)))
    rms = np.sqrt(sums["squared_error"] / np.maximum(sums["elements"], 1))
    sqnr = decibels(sums["squares"], sums["squared_error"])
    return QuantReport(
        repr(q), total, rms, sqnr, sums["largest_error"], sums["bound_used"], sums["clipped"].astype(np.int64), histogram, codes, levels
    )


def _plain(x: Any) -> Any:
    """A number or nested lists of them, None for those that are not finite."""
    x = np.asarray(x)
    if x.dtype.kind == "f":
        x = np.asarray(np.where(np.isfinite(x), x, None))
    return x.tolist()


def decibels(signal: Any, noise: Any) -> Any:
    """``10 log10(signal / noise)``; infinite where there is no noise."""
    with np.errstate(divide="ignore", invalid="ignore"):
        out = np.where(np.asarray(noise) > 0, 10 * np.log10(np.asarray(signal, np.float64) / noise), np.inf)
    return out


class _Errors:
    """Element by element, 0 where a number is not finite: magnitudes of errors, shares of bounds, what was clipped."""

    def __init__(self, x: Any, q: QTensor) -> None:
        value, bounds = q.dequantize("float64"), Bounds(x, q)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            self.is_poisoned = ~(np.isfinite(value) & np.isfinite(x))
            error = np.abs(value - x)
            used = error / np.maximum(bounds.within, bounds.beyond)  # over 0 only where the scale is: a wrong one
        used[error == 0] = 0.0
        self.error, self.used, self.x, self.clipped = error, used, x, bounds.is_clipped
        self.overflowed = (
            int((np.abs(value[np.isfinite(value)]) >= BEYOND_FLOAT32).sum()) if value.size and np.abs(x).max() > 2.0**126 else 0
        )
        if self.is_poisoned.any():
            self.error, self.used, self.x = (np.where(self.is_poisoned, 0.0, part) for part in (error, used, x))
            self.clipped = self.clipped & ~self.is_poisoned


def _slabs(x: Any, q: QTensor) -> Iterator[tuple[Any, Any, QTensor]]:
    """Parts of a tensor on the host: index into its blocks, ``x`` in float64, and the part of `q`."""
    view = as_array(x, "x")
    if view.array.shape != q.shape:
        raise ProblemError(f"x: expected {list(q.shape)} as q, got {list(view.array.shape)}")
    q = _on_host(q.unpacked())
    *groups, rows, columns = q.shape
    gm = min(q.granularity[0], max(rows, 1))
    step = max(1, _SLAB // max(gm * columns, 1)) * gm
    for i in np.ndindex(*groups):
        matrix = q.matrix(i)
        for first in range(0, rows, step):
            stop = min(first + step, rows)
            # Within one block of many rows any cut will do: the cut block keeps its scale.
            inner = max(1, _SLAB // max(columns, 1)) if stop - first <= gm else stop - first
            for r in range(first, stop, inner):
                end = min(r + inner, stop)
                blocks = slice(r // gm, -(-end // gm))
                yield (*i, blocks), _host_values(view, (*i, slice(r, end))), matrix.rows(r, end)


def _host_values(view: Any, index: Any) -> Any:
    part = view.array[index]
    part = part.get() if is_device_array(part) else part
    if view.dtype is not None and part.dtype != view.dtype.numpy:
        part = part.view(view.dtype.numpy)
    return part.astype(np.float64)


def _on_host(q: QTensor) -> QTensor:
    if not is_device_array(q.data):
        return q
    data, scale, zero, whole, groups = (
        None if part is None else part.get() for part in (q.data, q.scale, q.zero_point, q.global_scale, q.g_idx)
    )
    return replace(q, data=data, scale=scale, zero_point=zero, global_scale=whole, g_idx=groups)


def _per_block(how: Any, values: Any, q: QTensor) -> Any:
    """Reduce a value an element, ``[rows, columns]``, to one a block."""
    rows, columns = values.shape
    gm, gk = q.granularity
    m_blocks, k_blocks = scale_shape(q.shape, q.granularity)
    if values.size == 0:
        return np.zeros((m_blocks, k_blocks))
    values = how.reduceat(values, range(0, rows, gm), axis=0)
    if q.g_idx is None:
        return how.reduceat(values, range(0, columns, gk), axis=1)
    out = np.zeros((m_blocks, k_blocks))
    how.at(out, (slice(None), np.asarray(q.g_idx)), values)
    return out
