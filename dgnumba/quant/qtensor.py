"""`QTensor`: quantized data and its scales, together with what they mean."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..dtypes import DTYPES, DType, as_dtype
from ..errors import DTypeError, ProblemError
from ..layouts.int4 import PACKINGS
from ..problem import scale_shape
from ..xp import carrier, device_of, namespace
from .scale import decode_scales

F32, E8M0, I32 = DTYPES["float32"], DTYPES["float8_e8m0fnu"], DTYPES["int32"]

PACKED_SCALES = 4
"""UE8M0 bytes in an int32 of packed scales."""


@dataclass(frozen=True, eq=False)
class QTensor:
    """Data of few bits, and one scale for each block of ``granularity = (gm, gk)`` elements.

    The value of the element in row r and column c, with ``i = r // gm`` and ``j = c // gk`` (or
    ``g_idx[c]``), is

        (data[..., r, c] - zero_point[..., i, j]) * scale[..., i, j] * global_scale[...]

    Unpacks as ``data, scale = q``, and stands wherever such a pair does.

    Attributes:
        data: ``[..., rows, columns]``: of `dtype` (NumPy), or its codes as uint8 (any array
            module), one element a byte; or words of a `packing`.
        scale: ``[..., ceil(rows/gm), ceil(columns/gk)]`` of `scale_dtype`, or its codes; or int32
            with four UE8M0 bytes each, then with a quarter of the columns, rounded up.
        dtype: element type that `data` means.
        granularity: rows and columns of a block, in elements.
        zero_point: None, or what is taken off the data before it is scaled, ``[..., blocks]`` as
            `scale`: integers, or floats (HQQ, tinygemm).
        global_scale: None, or one multiplier of all scales (of each matrix of a stack: ``[...]``),
            float32, or float64 where a checkpoint stores its inverse in float32. NVFP4.
        g_idx: None, or int32 ``[columns]``: each column's group, that is its column of `scale`
            (GPTQ's act order).
        scale_dtype: element type that `scale` means; by default what it is of.
        packing: None, or the name in `layouts.int4.PACKINGS` of how `data` is packed.
        extents: of the logical data, where `data` is packed; else its shape.

    Raises:
        DTypeError: `data` does not hold `dtype`, or the scales not `scale_dtype`.
        ProblemError: the scales, zero points or groups do not fit the data.
    """

    data: Any
    scale: Any
    dtype: DType
    granularity: tuple[int, int]
    zero_point: Any = None
    global_scale: Any = None
    g_idx: Any = None
    scale_dtype: DType = None  # type: ignore[assignment]  # never None once it is made
    packing: str | None = None
    extents: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", as_dtype(self.dtype))
        object.__setattr__(self, "granularity", tuple(self.granularity))
        if not self.extents and self.packing is not None:
            raise ProblemError(f"extents: expected the logical shape of data packed as {self.packing}, got ()")
        object.__setattr__(self, "extents", tuple(self.data.shape if self.packing is None else self.extents))
        given = E8M0 if self.scale.dtype == np.int32 else self.scale.dtype if self.scale_dtype is None else self.scale_dtype
        object.__setattr__(self, "scale_dtype", as_dtype(given))
        if isinstance(self.global_scale, float):
            object.__setattr__(self, "global_scale", np.float64(self.global_scale))
        self._check_data()
        self._check_scale()
        self._check_beside()

    def _check_data(self) -> None:
        data = self.data
        if self.packing is None and data.dtype != np.uint8 and data.dtype != carrier(self.dtype, data):
            raise DTypeError(f"data: expected {self.dtype} or its codes as uint8, got {data.dtype}")
        if self.packing is not None and self.dtype.bits > 4:
            raise DTypeError(f"dtype: expected a type of 4 bits for data packed as {self.packing}, got {self.dtype}")
        if len(self.extents) < 2:
            raise ProblemError(f"data: expected rank 2 or more, got {list(self.extents)}")
        if min(self.granularity) < 1:
            raise ProblemError(f"granularity: expected 1 or more each way, got {self.granularity}")

    def _check_scale(self) -> None:
        scale, kind = self.scale, self.scale_dtype
        if not kind.is_float or (kind.bits > 16 and kind is not F32) or kind.bits < 8:
            raise DTypeError(f"scale: expected float32 or a float type of 8 or 16 bits, got {kind}")
        bits = f"uint{kind.bits}"
        if not (scale.dtype == carrier(kind, scale) or scale.dtype == np.dtype(bits) or (scale.dtype == np.int32 and kind is E8M0)):
            raise DTypeError(f"scale: expected {kind} or its codes as {bits}, got {scale.dtype}")
        expected = scale_shape(self.extents, self.granularity)
        if scale.dtype == np.int32:
            expected = (*expected[:-1], -(-expected[-1] // PACKED_SCALES))
        if scale.shape == expected:
            return
        turned = scale.shape == (*expected[:-2], expected[-1], expected[-2])
        raise ProblemError(
            f"scale: expected {scale.dtype} {list(expected)} for data {list(self.extents)} (one per {self.granularity[0]}x{self.granularity[1]}"
            f"{', four to an int32' if scale.dtype == np.int32 else ''}), got {scale.dtype} {list(scale.shape)}"
            + ("; transposed?" if turned else "")
        )

    def _check_beside(self) -> None:
        blocks = scale_shape(self.extents, self.granularity)
        zero, whole, groups = self.zero_point, self.global_scale, self.g_idx
        if zero is not None and tuple(zero.shape) != blocks:
            raise ProblemError(f"zero_point: expected {list(blocks)}, one for each block as the scales, got {list(zero.shape)}")
        if zero is not None and zero.dtype.kind not in "iufV":
            raise DTypeError(f"zero_point: expected integers or floats, got {zero.dtype}")
        if whole is not None and (whole.shape not in ((), self.extents[:-2]) or whole.dtype not in (np.float32, np.float64)):
            raise ProblemError(
                f"global_scale: expected float32 or float64, one or {list(self.extents[:-2])}, got {whole.dtype} {list(whole.shape)}"
            )
        if groups is None:
            return
        if groups.shape != self.extents[-1:] or groups.dtype.kind not in "iu":
            raise ProblemError(f"g_idx: expected integers [{self.extents[-1]}], one a column, got {groups.dtype} {list(groups.shape)}")
        if groups.size and not 0 <= int(groups.min()) <= int(groups.max()) < blocks[-1]:
            raise ProblemError(f"g_idx: expected groups 0 to {blocks[-1] - 1}, got {int(groups.min())} to {int(groups.max())}")

    def __iter__(self) -> Iterator[Any]:
        yield self.data
        yield self.scale

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return (self.data, self.scale)[index]

    def rows(self, first: int, stop: int) -> QTensor:
        """Rows `first` to `stop` of every matrix, in whole blocks of gm rows, or else all within one.

        Raises:
            ProblemError: rows out of range, or a block cut beside another.
        """
        height, gm = self.extents[-2], self.granularity[0]
        in_one = first // gm == (max(stop, first + 1) - 1) // gm
        if not 0 <= first <= stop <= height or not (in_one or (first % gm == 0 and (stop % gm == 0 or stop == height))):
            raise ProblemError(f"rows: expected 0 to {height}, from block to block of {gm} rows or within one, got {first} to {stop}")
        q, rows, blocks = self.unpacked(), slice(first, stop), slice(first // gm, -(-stop // gm) if stop > first else first // gm)
        zero = None if q.zero_point is None else q.zero_point[..., blocks, :]
        return replace(q, data=q.data[..., rows, :], scale=q.scale[..., blocks, :], zero_point=zero, extents=())

    def matrix(self, index: tuple[int, ...]) -> QTensor:
        """One matrix of a stack, by the index of its leading axes."""
        q, whole = self.unpacked(), self.global_scale
        zero = None if q.zero_point is None else q.zero_point[index]
        whole = whole[index] if whole is not None and whole.ndim else whole
        return replace(q, data=q.data[index], scale=q.scale[index], zero_point=zero, global_scale=whole, extents=())

    def __repr__(self) -> str:
        gm, gk = self.granularity
        parts = [f"{self.dtype} {list(self.shape)}" + (f" packed {self.packing}" if self.packing else "")]
        packed = ", four to an int32" if self.scale.dtype == np.int32 else ""
        parts.append(f"scale {self.scale_dtype} {list(self.scale.shape)}, one per {gm}x{gk}{packed}")
        parts += ["zero points"] * (self.zero_point is not None) + ["a global scale"] * (self.global_scale is not None)
        return f"QTensor({', '.join(parts + ['g_idx'] * (self.g_idx is not None))})"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the data, in elements."""
        return self.extents

    @property
    def codes(self) -> Any:
        """The codes, one a byte, as uint8 of `shape`: the data's own memory where it is so already.

        A code of 4 bits stands alone in the low half of its byte, also that of a negative int4.
        """
        if self.packing is not None:
            return self.unpacked().data
        codes = self.data if self.data.dtype == np.uint8 else self.data.view(np.uint8)
        # What ml_dtypes stores is masked; bytes from elsewhere may carry a sign extension.
        return codes & ((1 << self.dtype.bits) - 1) if self.dtype.bits < 8 and self.data.dtype == np.uint8 else codes

    @property
    def scales(self) -> Any:
        """The block scales in float32, one a block, `global_scale` not among them."""
        scale = self.scale
        if scale.dtype == np.int32:
            *_, rows, words = scale.shape
            with device_of(scale):
                scale = namespace(scale).ascontiguousarray(scale).view(np.uint8).reshape(*scale.shape[:-2], rows, words * PACKED_SCALES)
            scale = scale[..., : scale_shape(self.extents, self.granularity)[-1]]
        with device_of(scale):
            return decode_scales(scale, self.scale_dtype)

    @property
    def block_scales(self) -> Any:
        """What the data of each block is multiplied by, in float32: the scales times `global_scale`, rounded once."""
        with device_of(self.scale):
            return self._block_scales().astype(np.float32, copy=False)

    def _block_scales(self) -> Any:
        """Unrounded: float64 where there is a `global_scale`."""
        if self.global_scale is None:
            return self.scales
        whole = namespace(self.scale).asarray(self.global_scale, np.float64)
        return self.scales.astype(np.float64) * whole[..., None, None]

    def unpacked(self) -> QTensor:
        """The same tensor with one code a byte; itself where it is so already."""
        if self.packing is None:
            return self
        if self.packing not in PACKINGS:
            raise ProblemError(f"packing: expected one of {', '.join(PACKINGS)}, got {self.packing}")
        codes = PACKINGS[self.packing].unpack(self.data, self.extents)
        return replace(self, data=codes, packing=None, extents=())

    def dequantize(self, dtype: DType | str = "float32") -> Any:
        """The values, as a new array.

        Args:
            dtype: float32 (each product is rounded once: scale times global scale, then element
                times that) or float64 (all is exact).

        In float32 a value of 2^128 or more becomes infinity, of its sign. A format with large steps
        may round to one: MXFP4 has no value between 3 and 4 times 2^126, and takes 3.4e38 up. Float64
        has it, and `report` counts such elements as overflowed.
        """
        kind = as_dtype(dtype)
        if kind.name not in ("float32", "float64"):
            raise DTypeError(f"dtype: expected float32 or float64, got {kind}")
        xp = namespace(self.data)
        with device_of(self.data), np.errstate(over="ignore", invalid="ignore"):
            values = self.dtype.decode(self.codes, xp).astype(kind.numpy, copy=False)
            if self.zero_point is not None:
                values -= self.spread(self.zeros(kind))
            values *= self.spread(self._block_scales().astype(kind.numpy, copy=False))
        return values

    def zeros(self, dtype: DType | str = "float64") -> Any:
        """The zero points as floats of `dtype`, one a block."""
        kind = as_dtype(dtype)
        zero = self.zero_point
        if zero.dtype.kind == "V":  # int4 and bfloat16 of ml_dtypes
            return as_dtype(zero.dtype).decode(zero.view(f"u{zero.dtype.itemsize}")).astype(kind.numpy)
        return zero.astype(kind.numpy)

    def spread(self, blocks: Any) -> Any:
        """A value a block, ``[..., m_blocks, k_blocks]``, as one an element, by `granularity` or `g_idx`."""
        if self.g_idx is not None:
            blocks = namespace(blocks).take(blocks, self.g_idx, axis=-1)
            return expand(blocks, (self.granularity[0], 1), self.shape)
        return expand(blocks, self.granularity, self.shape)


def expand(scale: Any, granularity: tuple[int, int], shape: tuple[int, ...]) -> Any:
    """One scale for each element of `shape`: each is repeated over its block."""
    xp = namespace(scale)
    (*groups, rows, columns), (gm, gk) = shape, granularity
    *_, m_blocks, k_blocks = scale.shape
    if gk > 1:
        spread = xp.broadcast_to(scale[..., None], (*groups, m_blocks, k_blocks, gk))
        scale = spread.reshape(*groups, m_blocks, k_blocks * gk)[..., :columns]
    if gm > 1:
        spread = xp.broadcast_to(scale[..., None, :], (*groups, m_blocks, gm, columns))
        scale = spread.reshape(*groups, m_blocks * gm, columns)[..., :rows, :]
    return scale
