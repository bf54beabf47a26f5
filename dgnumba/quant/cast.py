"""`quantize`: an array into a `QTensor` of any `Format`, on NumPy or CuPy.

For each block, in float32:

    statistic = max |x|, or min x and max x            of what is there; edges may cut a block short
    scale     = what the format's rule makes of it     rounded to the scale type, before anything else
    code      = element(x * (1 / scale))               to nearest, ties to even; plus the zero point

NOTE: the reciprocal is rounded and then multiplied by; a division gives another code for rare
values beside a tie. Powers of two give the same either way.

What is not finite is not refused, since looking for it would cost a device synchronisation; it
poisons its own block alone. The block's scale is NaN, so that the whole block dequantizes to NaN.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..errors import DTypeError, ProblemError
from ..problem import scale_shape
from ..xp import ArrayView, as_array, carrier, device_of, is_device_array, namespace
from .chunk import Chunk
from .formats import Format, as_format
from .qtensor import QTensor
from .random import random_bits
from .rules import poisoned, scales_of, total_scale, zero_points
from .scale import E8M0, F32, LEAST_GIVEN, MOST_GIVEN, RULES, decode_scales, encode_scales, global_scale_from_amax
from .search import search_scales

Rounding = Literal["nearest", "stochastic", "ties_to_zero"]

# Elements cast at a time. On the host the float32 copy of a chunk should stay in the cache; on a
# GPU it should fill the GPU. Below the last number the compiled form is not worth importing Numba.
_CHUNK_HOST, _CHUNK_DEVICE, _COMPILED = 1 << 18, 1 << 23, 1 << 18


def quantize(
    x: Any,
    format: Format | str,
    *,
    scale: Any = None,
    global_scale: Any = None,
    search: bool = False,
    rounding: Literal["nearest", "stochastic"] = "nearest",
    seed: int | None = None,
) -> QTensor:
    """`dgnumba.quantize`, which has the contract, by the array module of `x`, one code a byte.

    >>> quantize(np.ones((3, 200), np.float32), "mxfp4")
    QTensor(float4_e2m1fn [3, 200], scale float8_e8m0fnu [3, 7], one per 1x32)
    """
    if rounding not in ("nearest", "stochastic"):
        raise ProblemError(f"rounding: expected nearest or stochastic, got {rounding}")
    return cast(as_array(x, "x"), as_format(format), Options(scale, global_scale, search, rounding, seed))


@dataclass(frozen=True)
class Options:
    """What `quantize` takes beside array and format; `cast` takes "ties_to_zero" too."""

    scale: Any = None
    global_scale: Any = None
    search: bool = False
    rounding: Rounding = "nearest"
    seed: int | None = None

    def __post_init__(self) -> None:
        if (self.seed is None) == (self.rounding == "stochastic"):
            expected = "an integer for stochastic rounding" if self.seed is None else "None for rounding to nearest"
            raise ProblemError(f"seed: expected {expected}, got {self.seed}")
        if self.seed is not None:
            object.__setattr__(self, "seed", operator.index(self.seed) & 0xFFFF_FFFF_FFFF_FFFF)
        if self.search and (self.scale is not None or self.rounding != "nearest"):
            raise ProblemError("search: expected no scale of your own and rounding to nearest beside it")


@dataclass(frozen=True, eq=False)
class Matrix:
    """One matrix on its way: where it comes from and where it goes.

    source     what is quantized, as it came
    codes      uint8 ``[rows, columns]``; scale, zero  float32 ``[m_blocks, k_blocks]``
    whole      its global scale, or None
    first      flat position of its first element in the tensor, for stochastic rounding
    """

    source: ArrayView
    form: Format
    options: Options
    codes: Any
    scale: Any
    zero: Any
    whole: Any
    first: int

    @property
    def blocks(self) -> tuple[int, int]:
        """Rows and columns of a block, no more than there are."""
        rows, columns = self.codes.shape
        gm, gk = self.form.blocks(rows, columns)
        return min(gm, max(rows, 1)), min(gk, max(columns, 1))


def cast(view: ArrayView, form: Format, options: Options) -> QTensor:
    """`quantize`, of an array that has been seen as one."""
    check_input(view)
    xp, shape = namespace(view.array), view.array.shape
    *groups, rows, columns = shape
    blocks = scale_shape(shape, form.blocks(rows, columns))
    with device_of(view.array):
        codes, scale = xp.empty(shape, xp.uint8), xp.empty(blocks, xp.float32)
        zero = xp.empty(blocks, xp.float32) if form.has_zero_point else None
        if options.scale is not None:
            scale[...] = _given_scales(options.scale, form, blocks, scale)
        whole = _given_global(options.global_scale, form, tuple(groups), scale)
        if form.has_global_scale and whole is None:
            whole = xp.empty(tuple(groups), xp.float32)
            for i in np.ndindex(*groups):
                whole[i] = _global_scale(view._replace(array=view.array[i]), form)
        for number, i in enumerate(np.ndindex(*groups)):
            own = None if whole is None else whole[i] if whole.ndim else whole
            part = view._replace(array=view.array[i])
            zeros = None if zero is None else zero[i]
            _cast_matrix(Matrix(part, form, options, codes[i], scale[i], zeros, own, number * rows * columns))
        held = carrier(form.dtype, view.array)
        return QTensor(
            codes if held == np.uint8 else codes.view(held),
            encode_scales(scale, form.scale_dtype),
            form.dtype,
            form.blocks(rows, columns),
            None if zero is None else zero.astype(xp.uint8),
            whole,
            scale_dtype=form.scale_dtype,
        )


def check_input(view: ArrayView, least_rank: int = 2) -> None:
    """Refuse what no quantizer takes."""
    if view.dtype is None or not view.dtype.is_float or view.dtype.bits < 16:
        raise DTypeError(f"x: expected float16, bfloat16, float32 or float64, got {view.dtype_name}")
    if view.array.ndim < least_rank:
        raise ProblemError(f"x: expected rank 2 or more, [..., rows, columns], got {list(view.array.shape)}")


def _cast_matrix(matrix: Matrix) -> None:
    rows, columns = matrix.codes.shape
    if matrix.codes.size == 0:
        return
    gm, _ = matrix.blocks
    make = _chunk_maker(matrix.source, matrix.options)
    step = max(1, _budget(matrix.codes) // (gm * columns))
    bands = [slice(first, min(first + step, matrix.scale.shape[0])) for first in range(0, matrix.scale.shape[0], step)]
    _each(lambda band: _cast_band(matrix, band, make), bands, make is not Chunk)


def _cast_band(matrix: Matrix, band: slice, make: Callable[..., Chunk]) -> None:
    """Whole rows of blocks; where one is larger than a chunk, in parts of it."""
    form, options = matrix.form, matrix.options
    (gm, gk), (rows, columns) = matrix.blocks, matrix.codes.shape
    first, stop = band.start * gm, min(band.stop * gm, rows)
    step = stop - first
    if band.stop - band.start == 1:
        step = min(step, max(1, _budget(matrix.codes) // columns))
    parts = [slice(r, min(r + step, stop)) for r in range(first, stop, step)]
    kept = [make(_load(matrix.source, parts[0]), gm, gk)] if len(parts) == 1 else None

    def chunks() -> Iterable[Chunk]:
        return kept or (make(_load(matrix.source, part), step, gk) for part in parts)

    statistic = _statistic(chunks(), form)
    if options.scale is None:
        scale, zero = scales_of(statistic, form, matrix.whole)
        if options.search:
            scale, zero = search_scales(list(chunks()), statistic, form, matrix.whole, scale, zero)
    else:
        scale = poisoned(matrix.scale[band], statistic)
        zero = zero_points(statistic, scale, form)
    matrix.scale[band] = scale
    if zero is not None:
        matrix.zero[band] = zero
    total = total_scale(scale, matrix.whole)
    for part, chunk in zip(parts, chunks()):
        if options.rounding == "nearest":
            chunk.write_codes(matrix.codes[part], total, zero, form.dtype)
        elif options.rounding == "ties_to_zero":
            matrix.codes[part] = chunk.codes_with_ties_to_zero(total, form.dtype)
        else:
            random = random_bits(options.seed or 0, matrix.first + part.start * columns, chunk.x.shape, chunk.xp)
            matrix.codes[part] = chunk.codes(total, zero, form.dtype, random)


def _statistic(chunks: Iterable[Chunk], form: Format) -> Any:
    """amax, or (lowest, highest), of each block, over the parts that it comes in."""
    if RULES[form.rule].statistic == "amax":
        return _combine([chunk.amax() for chunk in chunks], "maximum")
    pairs = [chunk.extrema() for chunk in chunks]
    return _combine([low for low, _ in pairs], "minimum"), _combine([high for _, high in pairs], "maximum")


def _combine(parts: list[Any], how: str) -> Any:
    total = parts[0]
    for part in parts[1:]:
        total = getattr(namespace(part), how)(total, part)
    return total


def _global_scale(view: ArrayView, form: Format) -> Any:
    """From the largest magnitude of the blocks that hold finite numbers alone."""
    xp, (rows, columns) = namespace(view.array), view.array.shape
    _, gk = form.blocks(rows, columns)
    make, step = _chunk_maker(view, Options()), max(1, _budget(view.array) // max(columns, 1))
    largest = xp.zeros((), xp.float32)
    for first in range(0, rows if columns else 0, step):
        amax = make(_load(view, slice(first, first + step)), 1, gk).amax()
        largest = xp.maximum(largest, xp.where(amax <= np.float32(F32.max), amax, np.float32(0)).max())
    return global_scale_from_amax(largest, form.dtype)


def _given_scales(given: Any, form: Format, blocks: tuple[int, ...], like: Any) -> Any:
    xp = namespace(like)
    values = as_array(given, "scale").array if hasattr(given, "dtype") else xp.asarray(given)
    if values.dtype.kind not in "iuf" and values.dtype != carrier(form.scale_dtype, like):
        raise DTypeError(f"scale: expected floats, got {values.dtype}")
    if is_device_array(values) != is_device_array(like):
        raise ProblemError("scale: expected memory of the device of x")
    values = decode_scales(values, form.scale_dtype) if values.dtype.kind == "V" else values.astype(xp.float32)
    if values.shape not in ((), blocks):
        raise ProblemError(f"scale: expected {list(blocks)}, one for each block, or a single one, got {list(values.shape)}")
    values = xp.broadcast_to(values, blocks)
    good = (values >= np.float32(E8M0.min)) & (values <= np.float32(F32.max))
    if not bool(good.all()):
        where = tuple(int(axis[0]) for axis in xp.nonzero(~good))
        raise ProblemError(f"scale: expected finite scales of 2^-127 or more, got {float(values[where]):g} at {list(where)}")
    encode_scales(values, form.scale_dtype)
    return values


def _given_global(given: Any, form: Format, groups: tuple[int, ...], like: Any) -> Any:
    if given is None:
        return None
    if not form.has_global_scale:
        raise ProblemError(f"global_scale: expected None, {form.name} has none, got {given}")
    xp = namespace(like)
    whole = xp.asarray(given) if hasattr(given, "dtype") else xp.asarray(given, xp.float64)
    if whole.dtype not in (np.float32, np.float64) or whole.shape not in ((), groups):
        raise ProblemError(f"global_scale: expected float32 or float64, one or {list(groups)}, got {whole.dtype} {list(whole.shape)}")
    check_global_scale(whole)
    return whole


def check_global_scale(whole: Any) -> None:
    """Refuse a scale of a tensor with which the scales of blocks, or their products with it, leave float32's normal numbers."""
    if not bool(((whole >= LEAST_GIVEN) & (whole <= MOST_GIVEN)).all()):
        found = f", got {float(whole.reshape(())):g}" if whole.size == 1 else ", got others among them"
        raise ProblemError(f"global_scale: expected 2^-116 to 2^119{found}")


def _budget(array: Any) -> int:
    return _CHUNK_DEVICE if is_device_array(array) else _CHUNK_HOST


def _chunk_maker(view: ArrayView, options: Options) -> Callable[..., Chunk]:
    """The compiled form where it is quicker; a search always takes it on the host, so that size decides nothing."""
    wants = view.array.size >= _COMPILED or options.search
    if is_device_array(view.array) or options.rounding == "stochastic" or not wants:
        return Chunk
    from .compiled import CompiledChunk

    return CompiledChunk


def _load(view: ArrayView, rows: slice) -> Any:
    """Rows in float32, C-contiguous; the source's own memory where it is so already."""
    xp, part = namespace(view.array), view.array[rows]
    if view.dtype is not None and part.dtype != view.dtype.numpy:
        part = view.dtype.decode(part, xp)
    with np.errstate(over="ignore"):
        return xp.ascontiguousarray(part, dtype=xp.float32)


def _each(do: Callable[[slice], None], bands: list[slice], in_threads: bool) -> None:
    workers = min(len(bands), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    if not in_threads or workers == 1:
        for band in bands:
            do(band)
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(workers) as pool:
        for _ in pool.map(do, bands):
            pass
