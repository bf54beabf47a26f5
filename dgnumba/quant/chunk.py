"""What a cast does to a chunk of rows, in NumPy or CuPy: statistics of its blocks, codes, errors.

A chunk is rows of a matrix in float32, blocks of gm rows by gk columns from its first row on; the
last blocks each way may be cut short. `compiled.CompiledChunk` does the same on the host, bit for
bit, in Numba. In CuPy an element that is a float32 subnormal counts as 0, as its compiler has it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dtypes import DType
from ..xp import is_device_array, namespace

E2M1_THRESHOLDS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
"""Half-way between two magnitudes of e2m1; the code is how many of them a magnitude exceeds."""


class Chunk:
    """Rows ``x [rows, columns]`` of a matrix, float32, not modified, in blocks of `gm` by `gk`."""

    def __init__(self, x: Any, gm: int, gk: int) -> None:
        self.x, self.gm, self.gk = x, gm, gk
        self.xp = namespace(x)
        rows, columns = x.shape
        self.blocks = (-(-rows // gm), -(-columns // gk))

    def _in_blocks(self, x: Any) -> Any:
        """An array of the chunk's shape as ``[m_block, gm, k_block, gk]``; zeros at the edges, which change no statistic."""
        (rows, columns), (m_blocks, k_blocks) = self.x.shape, self.blocks
        if (rows, columns) != (m_blocks * self.gm, k_blocks * self.gk):
            padded = self.xp.zeros((m_blocks * self.gm, k_blocks * self.gk), x.dtype)
            padded[:rows, :columns] = x
            x = padded
        return x.reshape(m_blocks, self.gm, k_blocks, self.gk)

    def amax(self) -> Any:
        """The largest magnitude of each block; NaN where a block holds one."""
        return _reduce(self._in_blocks(self.xp.abs(self.x)), "max")

    def extrema(self) -> tuple[Any, Any]:
        """The least value of each block and zero, and the largest; both NaN where a block holds one."""
        blocks, zero = self._in_blocks(self.x), np.float32(0)
        return self.xp.minimum(_reduce(blocks, "min"), zero), self.xp.maximum(_reduce(blocks, "max"), zero)

    def _scaled(self, scale: Any) -> Any:
        """Each element times the reciprocal of its block's scale."""
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            if is_device_array(self.x):
                # NOTE: CuPy's kernels take float32 subnormals for 0 (-ftz=true). A scale of 2^-127 is one, and so is the inverse of one beyond 2^126:
                # there both sides are multiplied by a power of two, which is exact.
                xp, word = self.xp, self.xp.ascontiguousarray(scale).view(self.xp.int32)
                is_least = word == 0x00400000
                lift = xp.where(is_least, np.float32(2), xp.where(word >= 0x7E800000, np.float32(0.25), np.float32(1)))
                lifted = xp.where(is_least, np.float32(2.0**-126), scale * lift)
                return self.x * self._spread(lift) * self._spread(np.float32(1) / lifted)
            return self.x * self._spread(np.float32(1) / scale)

    def _spread(self, blocks: Any) -> Any:
        (rows, columns), (m_blocks, k_blocks) = self.x.shape, self.blocks
        shape = (m_blocks, self.gm, k_blocks, self.gk)
        whole = self.xp.broadcast_to(blocks[:, None, :, None], shape).reshape(m_blocks * self.gm, k_blocks * self.gk)
        return whole[:rows, :columns]

    def write_codes(self, out: Any, scale: Any, zero: Any, dtype: DType) -> None:
        """`codes`, to nearest, into uint8 `out` of the chunk's shape."""
        out[...] = self.codes(scale, zero, dtype)

    def codes(self, scale: Any, zero: Any, dtype: DType, random: Any = None) -> Any:
        """The code of each element, uint8: of ``x * (1 / scale)``, to nearest, or by `random` bits; plus `zero`.

        What is not finite after the scaling becomes NaN (infinity in e5m2), or 0 in a type without.
        """
        y = self._scaled(scale)
        if zero is not None:
            return self._shifted(y, zero, dtype, random)
        return dtype.encode(y, self.xp, saturate_inf=False, random=random)

    def _shifted(self, y: Any, zero: Any, dtype: DType, random: Any) -> Any:
        xp = self.xp
        whole = xp.rint(y) if random is None else xp.floor(y) + ((random >> 8).astype(xp.float32) * np.float32(2.0**-24) < y - xp.floor(y))
        code = xp.clip(whole + self._spread(zero), np.float32(dtype.min), np.float32(dtype.max))
        return xp.where(y == y, code, np.float32(0)).astype(xp.uint8)

    def codes_with_ties_to_zero(self, scale: Any, dtype: DType) -> Any:
        """e2m1 codes as DeepGEMM makes them: a tie goes toward zero, and there is no -0."""
        y = self._scaled(scale)
        magnitude = self.xp.abs(y)
        code = sum((magnitude > np.float32(t)).astype(self.xp.uint8) for t in E2M1_THRESHOLDS)
        return code | ((y < 0) & (code > 0)).astype(self.xp.uint8) << 3

    def squared_error(self, scale: Any, zero: Any, dtype: DType) -> Any:
        """The sum of ``(x - value)^2`` of each block, in float64, were it quantized with this scale and zero point."""
        xp = self.xp
        values = dtype.decode(self.codes(scale, zero, dtype), xp)
        if zero is not None:
            values = values - self._spread(zero)
        with np.errstate(invalid="ignore", over="ignore"):
            error = (self.x - values * self._spread(scale)).astype(xp.float64)
        return _reduce(self._in_blocks(error * error), "sum")


def _reduce(blocks: Any, how: str) -> Any:
    """One value for each block of ``[m_block, gm, k_block, gk]``."""
    blocks = getattr(blocks, how)(axis=3) if blocks.shape[3] > 1 else blocks[..., 0]
    return getattr(blocks, how)(axis=1) if blocks.shape[1] > 1 else blocks[:, 0]
