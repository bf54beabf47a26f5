"""Two codes to a byte: which of two neighbours is low, and which two are neighbours."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...errors import ProblemError
from ...xp import namespace
from .packing import Packing, extents, padded

_BYTE = np.dtype(np.uint8)


class _AlongK(Packing):
    """Pairs along the last axis; the last byte of an odd K is half padding."""

    word = _BYTE
    low, high = 0, 1
    step = 1

    def _packed_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        if len(shape) < 1 or shape[-1] % self.step:
            raise ProblemError(f"codes: {self.name} expects K in multiples of {self.step}, got {list(shape)}")
        return (*shape[:-1], -(-shape[-1] // 2))

    def _full_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape[:-1], shape[-1] * 2)

    def _place(self, nibs: Any) -> Any:
        nibs = padded(nibs, 2)
        return nibs[..., self.low :: 2] | nibs[..., self.high :: 2] << 4

    def _take(self, words: Any, shape: tuple[int, ...]) -> Any:
        xp = namespace(words)
        out = xp.empty((*words.shape[:-1], words.shape[-1] * 2), xp.uint8)
        out[..., self.low :: 2] = words & 15
        out[..., self.high :: 2] = words >> 4
        return out[..., : shape[-1]]


class LowFirst(_AlongK):
    """Even columns in the low nibble: compressed-tensors' and DeepGEMM's FP4, MX checkpoints, CUTLASS int4.

    ::

        codes [1, 3]: uint8 [1, 2]    bits 7-4 | 3-0
        [0, 0]  n0k1 n0k0
        [0, 1]   .   n0k2

    >>> LOW_FIRST.pack(np.array([[1, 2, 3]])).tolist() == [[0x21, 0x03]]
    True
    """

    name = "low_first"


class HighFirst(_AlongK):
    """Even columns in the high nibble: what a hexadecimal dump shows in reading order.

    ::

        codes [1, 3]: uint8 [1, 2]    bits 7-4 | 3-0
        [0, 0]  n0k0 n0k1
        [0, 1]  n0k2  .

    >>> HIGH_FIRST.pack(np.array([[1, 2, 3]])).tolist() == [[0x12, 0x30]]
    True
    """

    name = "high_first"
    low, high = 1, 0


class Torchao(LowFirst):
    """torchao's plain int4 (``Int4Tensor``, ``pack_uint4``): as `LowFirst`, of an even K.

    ::

        codes [2, 4]: uint8 [2, 2]    bits 7-4 | 3-0
        [0, 0]  n0k1 n0k0
        [0, 1]  n0k3 n0k2
        [1, 0]  n1k1 n1k0
        [1, 1]  n1k3 n1k2
    """

    name = "torchao"
    step = 2


class _Flat(Packing):
    """Pairs of the flattened codes, rows run on into each other."""

    word = _BYTE
    low, high = 0, 1
    tail: tuple[int, ...] = ()

    def _packed_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (-(-math.prod(shape) // 2), *self.tail)

    def _full_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (shape[0] * 2,)

    def _place(self, nibs: Any) -> Any:
        nibs = padded(nibs.reshape(-1), 2)
        return (nibs[self.low :: 2] | nibs[self.high :: 2] << 4).reshape(-1, *self.tail)

    def _take(self, words: Any, shape: tuple[int, ...]) -> Any:
        xp = namespace(words)
        out = xp.empty(words.size * 2, xp.uint8)
        out[self.low :: 2] = words.reshape(-1) & 15
        out[self.high :: 2] = words.reshape(-1) >> 4
        return out[: math.prod(shape)].reshape(shape)


class Onnx(_Flat):
    """ONNX INT4, UINT4 and FLOAT4E2M1: the whole tensor flat, low nibble first, half a byte of padding at the very end.

    ::

        codes [2, 3]: uint8 [3]    bits 7-4 | 3-0
        [0]  n0k1 n0k0
        [1]  n1k0 n0k2
        [2]  n1k2 n1k1
    """

    name = "onnx"


class Bitsandbytes(_Flat):
    """bitsandbytes nf4 and fp4: the whole tensor flat, high nibble first, one byte a row.

    ::

        codes [2, 3]: uint8 [3, 1]    bits 7-4 | 3-0
        [0, 0]  n0k0 n0k1
        [1, 0]  n0k2 n1k0
        [2, 0]  n1k1 n1k2

    NOTE: its codes index code books of its own; fp4 there is not e2m1.
    """

    name = "bitsandbytes"
    low, high = 1, 0
    tail = (1,)


class SplitHalves(Packing):
    """gguf Q4_0 and MXFP4: in each 32 of K the first 16 are low nibbles, the other 16 the high nibbles of the same bytes.

    ::

        codes [1, 32]: uint8 [1, 16]    bits 7-4 | 3-0
        [0, 0]  n0k16 n0k0
        [0, 1]  n0k17 n0k1
        [0, 2]  n0k18 n0k2
        ...
    """

    name = "split_halves"
    word = _BYTE
    block = 32

    def _packed_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        lead, rows, columns = extents(shape, self.name, k=self.block)
        return (*lead, rows, columns // 2)

    def _full_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape[:-1], shape[-1] * 2)

    def _place(self, nibs: Any) -> Any:
        halves = nibs.reshape(*nibs.shape[:-1], nibs.shape[-1] // self.block, 2, self.block // 2)
        return (halves[..., 0, :] | halves[..., 1, :] << 4).reshape(*nibs.shape[:-1], nibs.shape[-1] // 2)

    def _take(self, words: Any, shape: tuple[int, ...]) -> Any:
        xp = namespace(words)
        blocks = words.reshape(*words.shape[:-1], words.shape[-1] * 2 // self.block, 1, self.block // 2)
        return xp.concatenate([blocks & 15, blocks >> 4], axis=-2).reshape(shape)


class Hqq(Packing):
    """hqq ``pack_4bit_u8``: the upper half of the rows in the high nibbles, the lower half in the low ones.

    ::

        codes [4, 2]: uint8 [2, 2]    bits 7-4 | 3-0
        [0, 0]  n0k0 n2k0
        [0, 1]  n0k1 n2k1
        [1, 0]  n1k0 n3k0
        [1, 1]  n1k1 n3k1
    """

    name = "hqq"
    word = _BYTE

    def _packed_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        lead, rows, columns = extents(shape, self.name, n=2)
        return (*lead, rows // 2, columns)

    def _full_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape[:-2], shape[-2] * 2, shape[-1])

    def _place(self, nibs: Any) -> Any:
        half = nibs.shape[-2] // 2
        return nibs[..., :half, :] << 4 | nibs[..., half:, :]

    def _take(self, words: Any, shape: tuple[int, ...]) -> Any:
        return namespace(words).concatenate([words >> 4, words & 15], axis=-2)


LOW_FIRST = LowFirst()
HIGH_FIRST = HighFirst()
TORCHAO = Torchao()
ONNX = Onnx()
BITSANDBYTES = Bitsandbytes()
SPLIT_HALVES = SplitHalves()
HQQ = Hqq()
