"""Layouts in the order of the tensor core's registers: a lane loads its words and multiplies, no shuffle and no shared memory between.

Both hold operand B of ``mma.m16n8k16``: of a tile of 8 of N and 16 of K, lane ``4 q + p`` holds row
n = q and the four columns k = 2p, 2p + 1, 2p + 8, 2p + 9 (PTX ISA, "Matrix fragments for
mma.m16n8k16"). Eight codes make a word, interleaved as in AWQ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ...errors import ProblemError
from ...xp import as_array, device_of, namespace
from .packing import INTERLEAVED, Packing, extents, from_words, to_words

_INT32 = np.dtype(np.int32)


class Marlin(Packing):
    """Marlin ``B [K/16, 2 N]``: for 16 of K and 64 of N, 32 lanes of four words; a word is two tiles of B, eight rows apart.

    ::

        codes [64, 16]: int32 [1, 128], word 4 lane + j holds rows 16 j + lane/4 and 8 more
        [0, 0]  n8k9 n8k1 n0k9 n0k1 n8k8 n8k0 n0k8 n0k0
        [0, 1]  n24k9 n24k1 n16k9 n16k1 n24k8 n24k0 n16k8 n16k0
        [0, 2]  n40k9 n40k1 n32k9 n32k1 n40k8 n40k0 n32k8 n32k0
        [0, 3]  n56k9 n56k1 n48k9 n48k1 n56k8 n56k0 n48k8 n48k0
        [0, 4]  n8k11 n8k3 n0k11 n0k3 n8k10 n8k2 n0k10 n0k2
        ...

    Codes are 0 to 15, meaning ``code - 8``. Scales have an order of their own: `pack_scales`.
    """

    name = "marlin"
    word = _INT32

    def _packed_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        lead, rows, columns = extents(shape, self.name, n=64, k=16)
        return (*lead, columns // 16, rows * 2)

    def _full_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape[:-2], shape[-1] // 2, shape[-2] * 16)

    def _place(self, nibs: Any) -> Any:
        *lead, n, k = nibs.shape
        # n = 64 block + 16 j + 8 b + q,  k = 16 tile + 8 h + 2 p + i;  lane = 4 q + p, element = 4 b + 2 h + i
        parts = nibs.reshape(math.prod(lead), n // 64, 4, 2, 8, k // 16, 2, 4, 2)
        parts = parts.transpose(0, 5, 1, 4, 7, 2, 3, 6, 8)
        words = to_words(namespace(nibs).ascontiguousarray(parts).reshape(-1, 8), INTERLEAVED)
        return words.reshape(*lead, k // 16, n * 2)

    def _take(self, words: Any, shape: tuple[int, ...]) -> Any:
        *lead, n, k = shape
        parts = from_words(words.reshape(-1, 1), INTERLEAVED).reshape(math.prod(lead), k // 16, n // 64, 8, 4, 4, 2, 2, 2)
        parts = parts.transpose(0, 2, 5, 6, 3, 1, 7, 4, 8)
        return namespace(words).ascontiguousarray(parts).reshape(shape)

    def pack_scales(self, scales: Any) -> Any:
        """Scales ``[N, groups]`` as Marlin's ``s [groups, N]``.

        ::

            several groups: 64 of N a time    0 8 16 24 32 40 48 56 | 1 9 17 ... | ... | 7 15 ... 63
            one group:      32 of N a time    0 1 8 9 16 17 24 25   | 2 3 10 11 ... | ... | 6 7 ... 30 31
        """
        scales = as_array(scales, "scales").array
        xp = namespace(scales)
        *lead, n, count = scales.shape
        with device_of(scales):
            turned, order = self._scale_order(scales.swapaxes(-1, -2))
            return xp.ascontiguousarray(turned[..., xp.asarray(order)].reshape(*lead, count, n))

    def unpack_scales(self, packed: Any) -> Any:
        """Inverse of `pack_scales`: ``[N, groups]``."""
        packed = as_array(packed, "packed").array
        with device_of(packed):
            turned, order = self._scale_order(packed)
            back = turned[..., namespace(packed).asarray(np.argsort(order))].reshape(packed.shape)
            return namespace(packed).ascontiguousarray(back.swapaxes(-1, -2))

    @staticmethod
    def _scale_order(scales: Any) -> tuple[Any, Any]:
        """Scales [.., groups, N] in runs, and which of a run comes first, second, ..."""
        *_, groups, n = scales.shape
        run = 32 if groups == 1 else 64
        if n % run:
            raise ProblemError(f"scales: marlin expects N in multiples of {run}, got N = {n}")
        order = np.arange(64).reshape(8, 8).T if groups > 1 else np.arange(32).reshape(4, 4, 2).transpose(1, 0, 2)
        return scales.reshape(*scales.shape[:-1], n // run, run), order.reshape(-1)


@dataclass(frozen=True, repr=False)
class Tinygemm(Packing):
    """torch's ``_weight_int4pack_mm`` (tinygemm): ``[N/8, K/(16 inner), 32 lanes, inner/2]``; a word is two tiles of B, 16 of K apart.

    ::

        codes [8, 32], inner 2: int32 [1, 1, 32, 1]
        [0, 0, 0, 0]  n0k25 n0k17 n0k9 n0k1 n0k24 n0k16 n0k8 n0k0
        [0, 0, 1, 0]  n0k27 n0k19 n0k11 n0k3 n0k26 n0k18 n0k10 n0k2
        [0, 0, 2, 0]  n0k29 n0k21 n0k13 n0k5 n0k28 n0k20 n0k12 n0k4
        [0, 0, 3, 0]  n0k31 n0k23 n0k15 n0k7 n0k30 n0k22 n0k14 n0k6
        [0, 0, 4, 0]  n1k25 n1k17 n1k9 n1k1 n1k24 n1k16 n1k8 n1k0
        ...

    Codes are 0 to 15, meaning ``(code - 8) * scale + zero``, with scale and zero side by side ``[K/group, N, 2]``.

    Attributes:
        inner_k_tiles: 2, 4 or 8 tiles of K side by side, so that a lane loads 4, 8 or 16 bytes at once.
    """

    inner_k_tiles: int = 8

    name: ClassVar[str] = "tinygemm"
    word: ClassVar[np.dtype[Any]] = _INT32

    def __post_init__(self) -> None:
        if self.inner_k_tiles not in (2, 4, 8):
            raise ProblemError(f"inner_k_tiles: expected 2, 4 or 8, got {self.inner_k_tiles}")

    def _packed_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        lead, rows, columns = extents(shape, self.name, n=8, k=16 * self.inner_k_tiles)
        return (*lead, rows // 8, columns // (16 * self.inner_k_tiles), 32, self.inner_k_tiles // 2)

    def _full_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        if len(shape) < 4:
            raise ProblemError(
                f"packed: expected [..., N/8, K/{16 * self.inner_k_tiles}, 32, {self.inner_k_tiles // 2}], got {list(shape)}"
            )
        return (*shape[:-4], shape[-4] * 8, shape[-3] * 16 * self.inner_k_tiles)

    def _place(self, nibs: Any) -> Any:
        *lead, n, k = nibs.shape
        # n = 8 tile + q,  k = 16 (inner outer + 2 w + t) + 8 h + 2 p + i;  lane = 4 q + p, element = 4 t + 2 h + i
        parts = nibs.reshape(math.prod(lead), n // 8, 8, k // (16 * self.inner_k_tiles), self.inner_k_tiles // 2, 2, 2, 4, 2)
        parts = parts.transpose(0, 1, 3, 2, 7, 4, 5, 6, 8)
        words = to_words(namespace(nibs).ascontiguousarray(parts).reshape(-1, 8), INTERLEAVED)
        return words.reshape(self.packed_shape(nibs.shape))

    def _take(self, words: Any, shape: tuple[int, ...]) -> Any:
        *lead, n, k = shape
        parts = from_words(words.reshape(-1, 1), INTERLEAVED)
        parts = parts.reshape(math.prod(lead), n // 8, k // (16 * self.inner_k_tiles), 8, 4, self.inner_k_tiles // 2, 2, 2, 2)
        parts = parts.transpose(0, 1, 3, 2, 5, 6, 7, 4, 8)
        return namespace(words).ascontiguousarray(parts).reshape(shape)


MARLIN = Marlin()
TINYGEMM = Tinygemm()
