"""`Chunk`, compiled by Numba for the host: the same bits, at the speed of memory. Imports Numba."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dtypes import DType
from . import _kernels
from .chunk import Chunk


class CompiledChunk(Chunk):
    """As `Chunk`, of NumPy arrays; the kernels hold no lock, so that threads can share the work."""

    def amax(self) -> Any:
        """As `Chunk.amax`."""
        out = np.zeros(self.blocks, np.int32)
        _kernels.amax(self.x.view(np.int32), self.gm, self.gk, out)
        return out.view(np.float32)

    def extrema(self) -> tuple[Any, Any]:
        """As `Chunk.extrema`."""
        low, high = np.zeros(self.blocks, np.float32), np.zeros(self.blocks, np.float32)
        _kernels.extrema(self.x, self.gm, self.gk, low, high)
        return low, high

    def write_codes(self, out: Any, scale: Any, zero: Any, dtype: DType) -> None:
        """As `Chunk.write_codes`."""
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            inverse = np.float32(1) / scale
        if dtype.is_float:
            _kernels.float_codes(self.x, self.gm, self.gk, inverse, *_fields(dtype), out)
        else:
            zeros = np.zeros_like(scale) if zero is None else zero
            mask = np.int32((1 << dtype.bits) - 1)
            _kernels.integer_codes(self.x, self.gm, self.gk, inverse, zeros, np.float32(dtype.min), np.float32(dtype.max), mask, out)

    def codes_with_ties_to_zero(self, scale: Any, dtype: DType) -> Any:
        """As `Chunk.codes_with_ties_to_zero`."""
        out = np.empty(self.x.shape, np.uint8)
        with np.errstate(invalid="ignore", divide="ignore"):
            _kernels.e2m1_codes_with_ties_to_zero(self.x, self.gm, self.gk, np.float32(1) / scale, out)
        return out

    def squared_error(self, scale: Any, zero: Any, dtype: DType) -> Any:
        """As `Chunk.squared_error`, summed in another order."""
        out = np.zeros(self.blocks)
        if dtype.is_float:
            mantissa, lowest, *_ = _fields(dtype)
            _kernels.float_errors(self.x, self.gm, self.gk, scale, mantissa, lowest, np.float32(dtype.max), out)
        else:
            zeros = np.zeros_like(scale) if zero is None else zero
            _kernels.integer_errors(self.x, self.gm, self.gk, scale, zeros, np.float32(dtype.min), np.float32(dtype.max), out)
        return out


def _fields(dtype: DType) -> tuple[Any, ...]:
    """mantissa, lowest, max_code, nan_code, inf_code, sign_shift, has_minus_zero, as `_kernels.float_codes` takes them."""
    infinity = {"ieee": dtype.max_code + 1, "none": dtype.max_code}.get(dtype.specials, dtype.nan_code)
    numbers = (dtype.mantissa, 128 - dtype.bias, dtype.max_code, dtype.nan_code, infinity, dtype.bits - 1)
    return (*(np.int32(n) for n in numbers), dtype.specials != "fnuz")
