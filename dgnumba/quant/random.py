"""Random bits for stochastic rounding: a function of seed and position, the same everywhere.

No state is carried: the bits of an element depend on the seed and on the element's flat position in
its tensor alone, so that chunks, threads, host and device give the same codes.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np

_WORD = 2**64 - 1


def random_bits(seed: int, first: int, shape: tuple[int, ...], xp: ModuleType = np) -> Any:
    """uint32 bits of the elements of an array of `shape`, whose flat positions count from `first`.

    Two rounds of the 32-bit finalizer of MurmurHash3 (public domain), one over the low word of the
    position and one over the high, with a word of a key before each; the key is the 64-bit seed
    after one step of SplitMix64 (public domain too), so that near seeds are not near.

    >>> random_bits(1, 0, (3,)).tolist() == random_bits(1, 1, (2,)).tolist()
    False
    """
    count, key = math.prod(shape), _key(seed)
    position = xp.arange(first, first + count, dtype=xp.uint64)
    low, high = (position & 0xFFFFFFFF).astype(xp.uint32), (position >> 32).astype(xp.uint32)
    bits = _mix(low ^ np.uint32(key & 0xFFFFFFFF))
    return _mix(bits + high * np.uint32(0x9E3779B9) + np.uint32(key >> 32)).reshape(shape)


def _key(seed: int) -> int:
    z = (seed + 0x9E3779B97F4A7C15) & _WORD
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _WORD
    return z ^ (z >> 31)


def _mix(h: Any) -> Any:
    h = (h ^ (h >> 16)) * np.uint32(0x85EBCA6B)
    h = (h ^ (h >> 13)) * np.uint32(0xC2B2AE35)
    return h ^ (h >> 16)
