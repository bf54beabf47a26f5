"""Eight codes to an int32, as the checkpoints of GPTQ, AWQ and compressed-tensors hold them; and their packed zero points."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import ProblemError
from ...xp import as_array, device_of, namespace
from .packing import INTERLEAVED, Packing, extents, from_words, nibbles, padded, to_words

_INT32 = np.dtype(np.int32)


class CompressedTensors(Packing):
    """compressed-tensors ``pack-quantized``: eight of K to an int32, low bits first, int4 stored as value + 8.

    ::

        codes [1, 9]: int32 [1, 2]    bits 31-28 | ... | 3-0
        [0, 0]  n0k7 n0k6 n0k5 n0k4 n0k3 n0k2 n0k1 n0k0
        [0, 1]   .    .    .    .    .    .    .   n0k8

    >>> hex(COMPRESSED_TENSORS.pack(np.arange(-8, 0)[None])[0, 0])
    '0x76543210'
    """

    name = "compressed_tensors"
    word = _INT32
    flip = 8

    def _packed_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        lead, rows, columns = extents(shape, self.name)
        return (*lead, rows, -(-columns // 8))

    def _full_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape[:-1], shape[-1] * 8)

    def _place(self, nibs: Any) -> Any:
        return to_words(padded(nibs, 8))

    def _take(self, words: Any, shape: tuple[int, ...]) -> Any:
        return from_words(words)[..., : shape[-1]]

    def pack_zeros(self, zeros: Any) -> Any:
        """Zero points ``[..., N, groups]``, int4, as int32 ``[..., N/8, groups]``: eight of **N** to a word."""
        zeros = nibbles(zeros, "zeros")
        with device_of(zeros):
            turned = padded((zeros ^ self.flip).swapaxes(-1, -2), 8)
            return _contiguous(to_words(turned).swapaxes(-1, -2))

    def unpack_zeros(self, packed: Any, n: int | None = None) -> Any:
        """Inverse of `pack_zeros`: uint8 nibbles ``[..., n, groups]``; `n` by default eight a word."""
        words = _zero_words(packed)
        with device_of(words):
            zeros = from_words(words.swapaxes(-1, -2)).swapaxes(-1, -2) ^ self.flip
        return _first_rows(zeros, n, "packed", 8)


class _Gptq(Packing):
    word = _INT32
    zero_offset = 0

    def _packed_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        lead, rows, columns = extents(shape, self.name, k=8)
        return (*lead, columns // 8, rows)

    def _full_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape[:-2], shape[-1], shape[-2] * 8)

    def _place(self, nibs: Any) -> Any:
        return _contiguous(to_words(nibs).swapaxes(-1, -2))

    def _take(self, words: Any, shape: tuple[int, ...]) -> Any:
        return from_words(words.swapaxes(-1, -2))

    def pack_zeros(self, zeros: Any) -> Any:
        """Zero points ``[..., N, groups]`` from 0 to 15 as int32 ``[..., groups, N/8]``: eight of **N** to a word."""
        zeros = nibbles(zeros, "zeros")
        extents(zeros.shape, f"{self.name} zeros", n=8)
        with device_of(zeros):
            return to_words(((zeros - self.zero_offset) & 15).swapaxes(-1, -2))

    def unpack_zeros(self, packed: Any, n: int | None = None) -> Any:
        """Inverse of `pack_zeros`: uint8 ``[..., N, groups]``."""
        words = _zero_words(packed)
        with device_of(words):
            zeros = (from_words(words) + self.zero_offset) & 15
        return _first_rows(zeros.swapaxes(-1, -2), n, "packed", 1)


class GptqV1(_Gptq):
    """GPTQ ``qweight [K/8, N]``: eight of K to an int32, low bits first; zero points are stored **minus one**.

    ::

        codes [2, 8]: int32 [1, 2]    bits 31-28 | ... | 3-0
        [0, 0]  n0k7 n0k6 n0k5 n0k4 n0k3 n0k2 n0k1 n0k0
        [0, 1]  n1k7 n1k6 n1k5 n1k4 n1k3 n1k2 n1k1 n1k0

        zeros [8, 1]: int32 [1, 1]    z - 1 in four bits, so 0 is stored as 15
        n7g0 n6g0 n5g0 n4g0 n3g0 n2g0 n1g0 n0g0

    An element is ``(code - z) * scale`` with the z and scale of group ``g_idx[k]`` (`groups`).

    >>> hex(GPTQ_V1.pack_zeros(np.full((8, 1), 8))[0, 0])
    '0x77777777'
    """

    name = "gptq_v1"
    zero_offset = 1


class GptqV2(_Gptq):
    """GPTQ v2: ``qweight [K/8, N]`` as in v1; zero points are stored as they are.

    ::

        codes [2, 8]: int32 [1, 2]    bits 31-28 | ... | 3-0
        [0, 0]  n0k7 n0k6 n0k5 n0k4 n0k3 n0k2 n0k1 n0k0
        [0, 1]  n1k7 n1k6 n1k5 n1k4 n1k3 n1k2 n1k1 n1k0

    NOTE: the words alone do not tell v1 from v2; the tag ``checkpoint_format`` of a file does, and
    has been wrong. Symmetric weights do: their zeros are 0x77777777 in v1, 0x88888888 in v2.
    """

    name = "gptq_v2"


class Awq(Packing):
    """AWQ ``qweight [K, N/8]``: eight of **N** to an int32, interleaved; zero points ``[groups, N/8]`` likewise.

    ::

        codes [8, 2]: int32 [2, 1]    bits 31-28 | ... | 3-0
        [0, 0]  n7k0 n5k0 n3k0 n1k0 n6k0 n4k0 n2k0 n0k0
        [1, 0]  n7k1 n5k1 n3k1 n1k1 n6k1 n4k1 n2k1 n0k1

    Neighbours 2i and 2i + 1 are 16 bits apart: shifted by 4i and masked, a word is two half-words in order.

    >>> hex(AWQ.pack(np.arange(8)[:, None])[0, 0])
    '0x75316420'
    """

    name = "awq"
    word = _INT32

    def _packed_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        lead, rows, columns = extents(shape, self.name, n=8)
        return (*lead, columns, rows // 8)

    def _full_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape[:-2], shape[-1] * 8, shape[-2])

    def _place(self, nibs: Any) -> Any:
        return to_words(nibs.swapaxes(-1, -2), INTERLEAVED)

    def _take(self, words: Any, shape: tuple[int, ...]) -> Any:
        return _contiguous(from_words(words, INTERLEAVED).swapaxes(-1, -2))

    def pack_zeros(self, zeros: Any) -> Any:
        """Zero points ``[..., N, groups]`` from 0 to 15 as int32 ``[..., groups, N/8]``, interleaved as the weight is."""
        return self.pack(zeros)

    def unpack_zeros(self, packed: Any, n: int | None = None) -> Any:
        """Inverse of `pack_zeros`: uint8 ``[..., N, groups]``."""
        return _first_rows(self.unpack(packed), n, "packed", 1)


def gptq_v1_to_v2(qzeros: Any) -> Any:
    """Packed zero points of GPTQ v1 as v2 stores them: one more in every nibble, no carry from one to the next.

    >>> hex(gptq_v1_to_v2(np.int32([[0x7FFFFFF7]]))[0, 0])
    '-0x7ffffff8'
    """
    return GPTQ_V2.pack_zeros(GPTQ_V1.unpack_zeros(qzeros))


def gptq_v2_to_v1(qzeros: Any) -> Any:
    """Inverse of `gptq_v1_to_v2`: one less in every nibble, no borrow."""
    return GPTQ_V1.pack_zeros(GPTQ_V2.unpack_zeros(qzeros))


def _contiguous(x: Any) -> Any:
    return namespace(x).ascontiguousarray(x)


def _zero_words(packed: Any) -> Any:
    array = as_array(packed, "packed").array
    if array.dtype.kind not in "iu" or array.dtype.itemsize != 4 or array.ndim < 2:
        raise ProblemError(f"packed: expected zero points as int32 words of rank 2 or more, got {array.dtype} {list(array.shape)}")
    return array


def _first_rows(zeros: Any, n: int | None, argument: str, per_word: int) -> Any:
    have = zeros.shape[-2]
    if n is not None and not have - per_word < n <= have:
        raise ProblemError(f"{argument}: expected words for {n} rows, got words for {have}")
    return _contiguous(zeros[..., :n, :])


COMPRESSED_TENSORS = CompressedTensors()
GPTQ_V1 = GptqV1()
GPTQ_V2 = GptqV2()
AWQ = Awq()
