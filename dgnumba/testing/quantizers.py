"""`check_quantizer`: what any quantizer must keep, tried on the user's own array.

A property is a function from a `_Case` (the quantizer, the array, what it became) that raises
AssertionError, or returns False where it says nothing about this format or array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..dtypes import DTYPES
from ..errors import DTypeError, ProblemError
from ..problem import scale_shape
from ..quant import QTensor, Tally, element_bound
from ..quant.bounds import FLOAT32_SLACK
from .compare import assert_bits_equal, assert_within

E8M0 = DTYPES["float8_e8m0fnu"]

Quantizer = Callable[[Any], QTensor]


@dataclass(frozen=True)
class Checked:
    """What `check_quantizer` found.

    properties  that were checked and hold
    skipped     that say nothing about this format or array
    tally       of the errors
    """

    properties: tuple[str, ...]
    skipped: tuple[str, ...]
    tally: Tally

    def __str__(self) -> str:
        skipped = f"; does not apply: {', '.join(self.skipped)}" if self.skipped else ""
        return f"holds: {', '.join(self.properties)}{skipped}\n{self.tally}"


def check_quantizer(fn: Quantizer, x: Any, properties: Iterable[str] | None = None) -> Checked:
    """Raise AssertionError unless a quantizer keeps its properties on `x`.

    ==============  =================================================================================
    pure            the same array gives the same bits, and is left as it was
    strides         Fortran order, a reversed view and a view with gaps give the same bits (F13)
    scales          finite and not zero
    bound           every element within `quant.element_bound`, half a step of the stored scale
    nearest         no other code of the element type would have been nearer
    zero            zeros have a finite scale, not zero, and stay zeros (F01)
    poison          NaN or infinity is refused, or spoils its own block: not finite there, and every
                    other block as without it (F07)
    sign            -x gives the negated values; floats, and integers that leave their least code
    power_of_two    16 x gives 16 times the values; blocks of magnitude 2^-10 and more, times 2^8
                    for the tensor's largest
    monotone        in a block a larger element never gets a smaller value
    rows            rows (of blocks) in another order give the values in that order
    idempotent      quantizing the values gives the values; UE8M0 scales exactly, float32 scales to
                    2^-20 in blocks whose largest element has the largest code and is kept
    ==============  =================================================================================

    Args:
        fn: from an array ``[..., rows, columns]`` to a `QTensor`; rounds to nearest.
        x: finite, of a float type that `fn` takes, in host memory.
        properties: names of some of the above (and so of `PROPERTIES`); None: all.

    Raises:
        AssertionError: a property does not hold; names it, and the first element that shows it.
        ProblemError: `x` is not finite, or an unknown property.

    >>> from dgnumba.quant import quantize
    >>> x = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    >>> check_quantizer(lambda x: quantize(x, "mxfp4"), x).skipped
    ()
    """
    names = tuple(PROPERTIES) if properties is None else tuple(properties)
    unknown = [name for name in names if name not in PROPERTIES]
    if unknown:
        raise ProblemError(f"properties: expected some of {', '.join(PROPERTIES)}, got {', '.join(unknown)}")
    if not isinstance(x, np.ndarray):
        raise DTypeError(f"x: expected a NumPy array, got {type(x).__name__}")
    if not np.isfinite(x.astype(np.float64)).all():
        raise ProblemError("x: expected finite numbers; what becomes of others is checked beside them")
    before = x.copy()
    case = _Case(fn, x, fn(x))
    assert case.q.shape == x.shape, f"shape: expected {list(x.shape)}, got {list(case.q.shape)}"
    assert_bits_equal(x, before, "pure: x after the call")
    held = [name for name in names if PROPERTIES[name](case) is not False]
    tally = Tally()
    tally.add(x, case.q)
    return Checked(tuple(held), tuple(name for name in names if name not in held), tally)


class _Case:
    """A quantizer, an array and what it became; its values and the largest magnitude of each block."""

    def __init__(self, fn: Quantizer, x: Any, q: QTensor) -> None:
        self.fn, self.x, self.q = fn, x, q
        self.values = q.dequantize("float64")
        self.exact = x.astype(np.float64)

    def per_block(self, values: Any, how: Any, start: float) -> Any:
        """Reduce ``[..., rows, columns]`` to one a block."""
        *groups, rows, columns = self.q.shape
        out = np.full(scale_shape(self.q.shape, self.q.granularity), start)
        column = np.arange(columns) // self.q.granularity[1] if self.q.g_idx is None else self.q.g_idx
        how.at(out, (..., (np.arange(rows) // self.q.granularity[0])[:, None], np.asarray(column)[None, :]), values)
        return out

    def again(self, x: Any, what: str, expected: Any) -> None:
        """The quantizer on `x` must give these values (not in their last bits: exactly)."""
        assert_bits_equal(self.fn(x).dequantize("float64") + 0.0, expected + 0.0, what)


def _pure(case: _Case) -> None:
    assert_same(case.fn(case.x.copy()), case.q, "pure: called again")


def _strides(case: _Case) -> None:
    x = case.x
    spaced = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
    spaced[..., ::2] = x
    turned = np.ascontiguousarray(x[..., ::-1, ::-1])[..., ::-1, ::-1]
    frozen = x.copy()
    frozen.flags.writeable = False
    for view, name in ((np.asfortranarray(x), "Fortran order"), (spaced[..., ::2], "gaps"), (turned, "reversed"), (frozen, "read-only")):
        assert_same(case.fn(view), case.q, f"strides: {name}")


def _scales(case: _Case) -> None:
    bad = ~np.isfinite(case.q.block_scales) | (case.q.block_scales == 0)
    assert not bad.any(), f"scales: expected finite scales, not 0, got {case.q.block_scales[bad][0]} at {np.argwhere(bad)[0].tolist()}"


def _bound(case: _Case) -> None:
    assert_within(case.values, case.exact, element_bound(case.x, case.q), "bound: values")


def _nearest(case: _Case) -> None:
    levels = np.unique(case.q.dtype.decode(np.arange(1 << case.q.dtype.bits)).astype(np.float64))
    levels = levels[np.isfinite(levels)]
    scale = case.q.spread(case.q.block_scales.astype(np.float64))
    zero = 0.0 if case.q.zero_point is None else case.q.spread(case.q.zeros())
    at = np.clip(np.searchsorted(levels, case.exact / scale + zero), 1, len(levels) - 1)
    best = np.minimum(*(np.abs(case.exact - (levels[at - i] - zero) * scale) for i in (0, 1)))
    assert_within(np.abs(case.values - case.exact), best, np.abs(case.exact) * FLOAT32_SLACK + np.abs(scale) * 2.0**-149, "nearest: errors")


def _zero(case: _Case) -> None:
    q = case.fn(np.zeros_like(case.x))
    assert_bits_equal(np.abs(q.dequantize()), np.zeros(case.x.shape, np.float32), "zero: values of zeros")
    scale = q.block_scales
    assert (np.isfinite(scale) & (scale != 0)).all(), "zero: expected finite scales, not 0, of zeros"


def _poison(case: _Case) -> bool:
    if case.x.size == 0:
        return False
    # In the block of the least magnitude, so that a scale of the whole tensor stays.
    amax = case.per_block(np.abs(case.exact), np.maximum, 0.0)
    own = case.q.spread((np.arange(amax.size) == amax.argmin()).reshape(amax.shape).astype(np.float64)) > 0
    element = tuple(int(i) for i in np.argwhere(own)[0])
    for bad in (np.nan, np.inf, -np.inf):
        x = case.x.copy()
        x[element] = bad
        try:
            values = case.fn(x).dequantize("float64")
        except ValueError:
            continue
        assert not np.isfinite(values[element]), (
            f"poison: expected {bad} at {list(element)} to be refused or to show, got {values[element]}"
        )
        assert_bits_equal(np.where(own, 0.0, values), np.where(own, 0.0, case.values), f"poison: blocks without the {bad}")
    return True


def _sign(case: _Case) -> bool:
    row = case.q.dtype
    if not row.is_signed or case.q.zero_point is not None:
        return False
    negated = case.fn(-case.x)
    if not row.is_float and any((row.decode(q.codes) == row.min).any() for q in (case.q, negated)):
        return False
    assert_bits_equal(negated.dequantize("float64") + 0.0, 0.0 - case.values, "sign: values of -x")
    return True


def _power_of_two(case: _Case) -> bool:
    largest = np.abs(case.exact).max(initial=0.0)
    if largest == 0:
        return False
    unit = 2.0 ** (8 - np.frexp(largest)[1])
    x = (case.exact * unit).astype(np.float32)
    counts = case.per_block(np.abs(x), np.maximum, 0.0) >= 2.0**-10
    counts = case.q.spread(counts.astype(np.float64)) > 0
    once, scaled = (np.where(counts, case.fn(x * np.float32(f)).dequantize("float64"), 0.0) for f in (1.0, 16.0))
    assert_bits_equal(scaled + 0.0, 16 * once + 0.0, "power_of_two: values of 16 x")
    return True


def _monotone(case: _Case) -> None:
    *_, rows, columns = case.q.shape
    blocks = scale_shape(case.q.shape, case.q.granularity)
    number = case.q.spread(np.arange(np.prod(blocks, dtype=int), dtype=np.float64).reshape(blocks)).ravel()
    order = np.lexsort((case.exact.ravel(), number))
    values, number = case.values.ravel()[order], number[order]
    fell = (np.diff(values) < 0) & (np.diff(number) == 0)
    if fell.any():
        i = int(np.flatnonzero(fell)[0])
        pair = [[int(n) for n in np.unravel_index(order[j], case.q.shape)] for j in (i, i + 1)]
        raise AssertionError(f"monotone: the element at {pair[1]} is not less than that at {pair[0]}, but its value is")


def _rows(case: _Case) -> bool:
    rows, gm = case.q.shape[-2], case.q.granularity[0]
    if rows < 2 or (gm < rows and rows % gm):
        return False
    order = np.arange(rows)[::-1] if gm >= rows else np.arange(rows).reshape(-1, gm)[::-1].ravel()
    case.again(case.x[..., order, :], "rows: values of the rows in reverse", case.values[..., order, :])
    return True


def _idempotent(case: _Case) -> bool:
    kind, row = case.q.scale_dtype, case.q.dtype
    if np.abs(case.values).max(initial=0.0) > DTYPES["float32"].max:
        return False  # 2^128, to which what is just below it may be rounded
    values = case.q.dequantize()
    if kind is E8M0:
        case.again(values, "idempotent: values of the values", case.values)
        return True
    if kind is not DTYPES["float32"] or case.q.zero_point is not None:
        return False
    code, value, amax = (case.per_block(np.abs(x), np.maximum, 0.0) for x in (row.decode(case.q.codes), case.values, case.exact))
    reached = (code == row.max) & (np.abs(value - amax) <= amax * 2.0**-20)
    counts = case.q.spread(reached.astype(np.float64)) > 0
    if not counts.any() or (not row.is_float and (row.decode(case.q.codes) == row.min).any()):
        return False
    again = np.where(counts, case.fn(values).dequantize("float64"), 0.0)
    expected = np.where(counts, case.values, 0.0)
    assert_within(again, expected, np.abs(expected) * 2.0**-20, "idempotent: values of the values")
    return True


def assert_same(actual: QTensor, expected: QTensor, what: str) -> None:
    """Raise AssertionError unless two QTensors hold the same codes and scales, bit for bit."""
    assert_bits_equal(actual.codes, expected.codes, f"{what}: codes")
    for name in ("scale", "zero_point", "global_scale"):
        one, other = getattr(actual, name), getattr(expected, name)
        assert (one is None) == (other is None), f"{what}: {name}: expected {other}, got {one}"
        if one is not None:
            assert_bits_equal(one, other, f"{what}: {name}")


PROPERTIES: dict[str, Callable[[_Case], bool | None]] = {
    "pure": _pure,
    "strides": _strides,
    "scales": _scales,
    "bound": _bound,
    "nearest": _nearest,
    "zero": _zero,
    "poison": _poison,
    "sign": _sign,
    "power_of_two": _power_of_two,
    "monotone": _monotone,
    "rows": _rows,
    "idempotent": _idempotent,
}
"""The properties by name, in the order in which they are checked."""
