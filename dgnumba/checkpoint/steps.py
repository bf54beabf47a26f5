"""The work of a conversion, tensor by tensor: each `Step` knows what it will write before anything is read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..dtypes import DTYPES
from ..errors import ProblemError
from ..quant import QTensor, Tally
from .layer import Layer, LayerFormat, Scheme, slabs
from .recipes import Recipe
from .tensors import COPY_BYTES, TAGS, TensorInfo, TensorSource, numpy_type
from .writer import TensorSpec, TensorWriter

SLAB_ELEMENTS = 1 << 22
"""Of a weight, held at a time as float32, and a few times that while it is quantized."""

Advance = Callable[[int], None]
"""Called with bytes that were written."""


@dataclass(frozen=True)
class TensorReport:
    """What became of a layer.

    Attributes:
        name: the layer's.
        before, after: its format.
        shape: of the weight.
        kind: "exact" (the same values), "quantized" (anew), "dequantized", or "kept".
        tally: errors against what it was before; None where there are none by construction.
        why: of what was kept although it was asked for.
        flags: what to look at before the layer is used: scales at the ends of their type, little left.
    """

    name: str
    before: str
    after: str
    shape: tuple[int, ...]
    kind: str
    nbytes_before: int
    nbytes_after: int
    tally: Tally | None = None
    why: str = ""
    flags: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Numbers and strings alone, for JSON."""
        found = {key: value for key, value in vars(self).items() if key != "tally"}
        if self.tally is not None:
            t = self.tally
            found |= {"sqnr_db": None if np.isinf(t.sqnr_db) else t.sqnr_db, "largest_error": t.largest_error, "bound_used": t.bound_used}
            found |= {"clipped": t.clipped, "outside": t.outside, "elements": t.elements}
        return {**found, "shape": list(self.shape), "flags": list(self.flags)}


LITTLE_LEFT_DB = 6.0
"""An SQNR below this is flagged: the error is half the layer, or more."""


class Ends:
    """Scales of blocks, and how many of them lie at an end of a type of 16 bits, where they are not what the rule makes."""

    def __init__(self) -> None:
        self.count = self.high = self.low = 0
        self.dtype = DTYPES["float32"]

    def add(self, x: Any, q: QTensor) -> None:
        """Count the scales of rows ``[rows, K]``, one for each group of columns."""
        self.dtype = q.scale_dtype
        if self.dtype.bits != 16:
            return
        size = np.abs(q.scales)
        self.count += size.size
        self.high += int((size >= np.float32(self.dtype.max)).sum())
        low = size < np.float32(self.dtype.min_normal)
        if low.any():
            some = np.logical_or.reduceat(x != 0, range(0, x.shape[1], q.granularity[1]), axis=1)
            self.low += int((low & some).sum())

    def flags(self) -> Iterator[str]:
        """In words."""
        if self.high:
            yield f"{self.high} of {self.count} scales are the largest {self.dtype}, {self.dtype.max:g}, and what lies beyond is clipped"
        if self.low:
            yield f"{self.low} of {self.count} scales lie below {self.dtype}'s normal range, {self.dtype.min_normal:.2g}, and are coarse"


def flags_of(tally: Tally | None, ends: Ends | None = None) -> tuple[str, ...]:
    """What a report has to point at."""
    found = [] if ends is None else list(ends.flags())
    if tally is not None and tally.squares and tally.sqnr_db < LITTLE_LEFT_DB:
        found.append(f"SQNR {tally.sqnr_db:.2f} dB: the error is half the layer or more")
    if tally is not None and tally.overflowed:
        found.append(f"{tally.overflowed} values are beyond float32")
    return tuple(found)


class Step(ABC):
    """Some tensors that are written together."""

    specs: list[TensorSpec]

    @property
    def nbytes(self) -> int:
        """Bytes that it writes."""
        return sum(spec.nbytes for spec in self.specs)

    @abstractmethod
    def run(self, source: TensorSource, writer: TensorWriter, advance: Advance) -> TensorReport | None:
        """Do it."""


class Copy(Step):
    """A tensor as it is."""

    def __init__(self, info: TensorInfo, why: str = "") -> None:
        self.info, self.why = info, why
        self.specs = [TensorSpec(info.name, info.tag, info.shape)]

    def run(self, source: TensorSource, writer: TensorWriter, advance: Advance) -> TensorReport | None:
        """Bytes, whatever they mean; reported only where something else was asked for."""
        for number, piece in enumerate(source.chunks(self.info.name)):
            writer.write_bytes(self.info.name, number * COPY_BYTES, piece)
            advance(len(piece))
        if not self.why:
            return None
        kind, size = self.info.dtype or self.info.tag, self.info.nbytes
        return TensorReport(self.info.name, kind, kind, self.info.shape, "kept", size, size, None, self.why)


class Recode(Step):
    """A quantized layer in another format that holds the same values."""

    def __init__(self, layer: Layer, form: LayerFormat, scheme: Scheme) -> None:
        self.layer, self.form, self.scheme = layer, form, scheme
        self.specs = form.specs(layer.name, layer.shape, scheme)

    def run(self, source: TensorSource, writer: TensorWriter, advance: Advance) -> TensorReport:
        """Codes and scales from one place to another."""
        layer, done, kind = self.layer, 0, "exact"
        whole = layer.read_whole(source)
        for rows in layer.slabs(4 * SLAB_ELEMENTS):
            q = layer.read(source, rows, whole)
            self.form.write(writer, layer.name, layer.shape, self.scheme, q, rows)
            if q.global_scale is not None and not _survives(self.form, q.global_scale):
                kind = "exact but for the rounding of its global scale"
            done = _advanced(self.nbytes, rows.stop, layer.rows, done, advance)
        before = sum(source[name].nbytes for name in layer.tensors)
        return TensorReport(layer.name, layer.format.name, self.form.name, layer.shape, kind, before, self.nbytes)


@dataclass
class Weight:
    """A weight to be read as float32, from a quantized layer or from a tensor of floats."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    before: str
    nbytes: int
    layer: Layer | None = None
    tensor: str = ""
    _whole: dict[str, Any] | None = field(default=None, repr=False)

    @classmethod
    def of_layer(cls, layer: Layer, source: TensorSource) -> Weight:
        """A layer's, dequantized."""
        nbytes = sum(source[name].nbytes for name in layer.tensors)
        return cls(layer.name, layer.shape, layer.scheme.scale_dtype, layer.format.name, nbytes, layer)

    @classmethod
    def of_tensor(cls, name: str, info: TensorInfo) -> Weight:
        """A tensor's."""
        return cls(name, info.shape, info.dtype, info.dtype, info.nbytes, None, info.name)

    @property
    def rows(self) -> int:
        """Rows, of all of a stack."""
        return int(np.prod(self.shape[:-1], dtype=np.int64))

    def slabs(self, source: TensorSource) -> Iterator[tuple[slice, Any]]:
        """(rows, float32 ``[rows, K]``) after each other."""
        columns = self.shape[-1]
        if self.layer is not None and self._whole is None:
            self._whole = self.layer.read_whole(source)
        for rows in slabs(self.rows, columns, SLAB_ELEMENTS):
            if self.layer is not None:
                yield rows, self._values(self.layer.read(source, rows, self._whole), rows)
            else:
                part = source.read_part(self.tensor, 0, rows.start, rows.stop, shape=(self.rows, columns))
                yield rows, part.astype(np.float32, copy=False)

    def _values(self, q: QTensor, rows: slice) -> Any:
        x = q.dequantize()
        beyond = np.isinf(x)
        if beyond.any() and np.isfinite(exact := np.where(beyond, q.dequantize("float64"), np.inf)).any():
            r, c = (int(i) for i in np.argwhere(np.isfinite(exact))[0])
            raise ProblemError(f"{self.name}: expected values that float32 holds, got {exact[r, c]:g} at [{r + rows.start}, {c}]")
        return x


class Requantize(Step):
    """A weight quantized anew, slab by slab; twice through it where the whole has a scale."""

    def __init__(self, weight: Weight, form: LayerFormat, recipe: Recipe, with_tally: bool = True) -> None:
        self.weight, self.form, self.recipe, self.with_tally = weight, form, recipe, with_tally
        self.specs = form.specs(weight.name, weight.shape, recipe.scheme)

    def run(self, source: TensorSource, writer: TensorWriter, advance: Advance) -> TensorReport:
        """Read, quantize, compare, write."""
        weight, done, tally, ends = self.weight, 0, Tally(), Ends()
        whole = None
        if self.recipe.scheme.has_global_scale:
            whole = self.recipe.global_scale(max((_amax(x, weight.name, rows) for rows, x in weight.slabs(source)), default=0.0))
        for rows, x in weight.slabs(source):
            _amax(x, weight.name, rows)
            q = self.recipe(x, whole)
            self.form.write(writer, weight.name, weight.shape, self.recipe.scheme, q, rows)
            ends.add(x, q)
            if self.with_tally:
                tally.add(x, q)
            done = _advanced(self.nbytes, rows.stop, weight.rows, done, advance)
        return TensorReport(
            weight.name,
            weight.before,
            self.form.name,
            weight.shape,
            "quantized",
            weight.nbytes,
            self.nbytes,
            tally if self.with_tally else None,
            flags=flags_of(tally if self.with_tally else None, ends),
        )


class Dequantize(Step):
    """A quantized layer as a tensor of floats."""

    def __init__(self, weight: Weight, dtype: str) -> None:
        assert weight.layer is not None
        self.weight, self.dtype = weight, dtype
        suffix = "" if weight.layer.format.marks[0].startswith("_") else ".weight"
        self.specs = [TensorSpec(weight.name + suffix, TAGS[dtype], weight.shape)]

    def run(self, source: TensorSource, writer: TensorWriter, advance: Advance) -> TensorReport:
        """Values in float32, rounded to the type, to nearest; what is too large for it is refused."""
        weight, done, tally = self.weight, 0, Tally()
        dtype, flat = numpy_type(self.dtype), (weight.rows, weight.shape[-1])
        for rows, x in weight.slabs(source):
            with np.errstate(over="ignore"):
                rounded = x.astype(dtype)
            back = rounded.astype(np.float32)
            if (np.isinf(back) & np.isfinite(x)).any():
                raise ProblemError(
                    f"{weight.name}: expected values up to {DTYPES[self.dtype].max:g} for {self.dtype}, got {np.abs(x).max():g}"
                )
            _count_rounding(tally, x, back)
            writer.write(self.specs[0].name, rounded, first=rows.start, shape=flat)
            done = _advanced(self.nbytes, rows.stop, weight.rows, done, advance)
        made = TensorReport(weight.name, weight.before, self.dtype, weight.shape, "dequantized", weight.nbytes, self.nbytes, tally)
        return replace(made, flags=flags_of(tally))


def _count_rounding(tally: Tally, x: Any, back: Any) -> None:
    """What rounding to a half type did; its bound is the type's own and needs no report."""
    is_finite = np.isfinite(x)
    error = np.where(is_finite, back - x, 0).astype(np.float64)
    tally.elements += x.size
    tally.poisoned += int(x.size - is_finite.sum())
    tally.squares += float((np.where(is_finite, x, 0).astype(np.float64) ** 2).sum())
    tally.squared_error += float((error**2).sum())
    tally.largest_error = max(tally.largest_error, float(np.abs(error).max(initial=0.0)))


def _amax(x: Any, name: str, rows: slice) -> float:
    """The largest magnitude; NaN and infinity, which no format here holds, are refused."""
    if x.size == 0:
        return 0.0
    largest = max(float(x.max()), -float(x.min()))
    if not np.isfinite(largest):
        at = np.argwhere(~np.isfinite(x))[0]
        raise ProblemError(f"{name}: expected finite weights, got {x[tuple(at)]} at [{int(at[0]) + rows.start}, {int(at[1])}]")
    return largest


def _survives(form: LayerFormat, whole: Any) -> bool:
    return bool(form.multiplier(form.stored(whole)) == whole)  # type: ignore[attr-defined]


def _advanced(nbytes: int, stop: int, rows: int, done: int, advance: Advance) -> int:
    """Tell of the bytes up to row `stop`; the number told of so far."""
    now = nbytes if stop == rows else nbytes * stop // rows
    advance(now - done)
    return now
