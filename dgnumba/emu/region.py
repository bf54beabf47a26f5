"""A set of bytes in one CTA's shared memory, as asynchronous units touch it."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

CHUNK = 16  # bytes: what TMA, wgmma, ldmatrix and stmatrix move at once
WINDOW = 1 << 24  # shared::cluster addresses: (rank + 1) * WINDOW + the address in that CTA


@dataclass(frozen=True, eq=False)
class Region:
    """`nbytes` bytes from `address`, or, with `chunks`, the 16-byte chunks at these addresses (in any order, and shape).

    layout  how the unit that touches them takes them to lie: (swizzle, bytes of a row); None if it does not matter to it
    """

    address: int
    nbytes: int
    chunks: np.ndarray | None = None
    layout: tuple[int, int] | None = None

    @classmethod
    def of(cls, chunks: np.ndarray, layout: tuple[int, int] | None = None) -> Region:
        """The 16-byte chunks at `chunks`, addresses in shared memory."""
        return cls(int(chunks.min()), int(chunks.max()) + CHUNK - int(chunks.min()), chunks, layout)

    @functools.cached_property
    def granules(self) -> slice | np.ndarray:
        """The 16-byte granules it touches, as an index."""
        if self.chunks is None:
            return slice(self.address // CHUNK, -(-(self.address + self.nbytes) // CHUNK))
        return self.chunks.ravel() // CHUNK

    def address_of(self, index: int) -> int:
        """The address of byte `index` of the region, in its own order."""
        if self.chunks is None:
            return self.address + index
        return int(self.chunks.ravel()[index // CHUNK]) + index % CHUNK

    def of_bytes(self, array: np.ndarray) -> np.ndarray:
        """What `array`, with an entry for every byte of shared memory, holds for this region: a view if contiguous, else a copy."""
        if self.chunks is None:
            return array[self.address : self.address + self.nbytes]
        gathered: np.ndarray = array.reshape(-1, CHUNK)[self.chunks // CHUNK]
        return gathered

    def set_bytes(self, array: np.ndarray, value: np.ndarray | int) -> None:
        """Put `value` into `array`, which has an entry for every byte of shared memory."""
        if self.chunks is None:
            array[self.address : self.address + self.nbytes] = value
        else:
            array.reshape(-1, CHUNK)[self.chunks // CHUNK] = value
