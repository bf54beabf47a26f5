"""Blocks of gguf: 32 codes and their scale in one record, records of a row one after another.

::

    Q4_0   18 bytes:  d d | b0 b1 ... b15      d: float16, little-endian; an element is (code - 8) * d
    MXFP4  17 bytes:  e   | b0 b1 ... b15      e: UE8M0; an element is e2m1(code) * 2^(e - 127)

    byte bj holds element j in its low nibble and element j + 16 in its high nibble (`SPLIT_HALVES`)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import DTypeError, ProblemError
from ...xp import as_array, device_of, namespace, view_bytes
from .byte_orders import SPLIT_HALVES
from .packing import extents, nibbles

BLOCK = 32


@dataclass(frozen=True)
class BlockRecord:
    """A gguf block type: `pack` and `unpack` invert each other.

    Attributes:
        name: as gguf has it.
        scale: name of the scale's type.
        scale_bytes: of a record, before the codes.
        flip: xored with every code: 8 where int4 is stored as value + 8.
    """

    name: str
    scale: str
    scale_bytes: int
    flip: int

    @property
    def nbytes(self) -> int:
        """Bytes of a record."""
        return self.scale_bytes + BLOCK // 2

    def pack(self, codes: Any, scale: Any) -> Any:
        """Records of a weight.

        Args:
            codes: ``[..., N, K]``; Q4_0: int4, MXFP4: e2m1; as `Packing.pack` takes them. K in multiples of 32.
            scale: ``[..., N, K/32]`` of the type `scale` (MXFP4: or its bytes as uint8).

        Returns:
            uint8 ``[..., N, K/32 * nbytes]``.
        """
        nibs = nibbles(codes)
        lead, n, k = extents(nibs.shape, self.name, k=BLOCK)
        view = as_array(scale, "scale")
        taken = (self.scale, "uint8") if self.scale_bytes == 1 else (self.scale,)
        if view.dtype_name not in taken:
            raise DTypeError(f"scale: expected {' or '.join(taken)}, got {view.dtype_name}")
        expected = (*lead, n, k // BLOCK)
        if view.array.shape != expected:
            raise ProblemError(
                f"scale: expected {list(expected)} (one per 1x{BLOCK}) for codes {list(nibs.shape)}, got {list(view.array.shape)}"
            )
        with device_of(nibs):
            xp = namespace(nibs)
            halves = SPLIT_HALVES._place(nibs ^ self.flip).reshape(*expected, BLOCK // 2)
            head = xp.ascontiguousarray(view.array).view(xp.uint8).reshape(*expected, self.scale_bytes)
            return xp.concatenate([head, halves], axis=-1).reshape(*lead, n, -1)

    def unpack(self, records: Any, *, signed: bool = False) -> tuple[Any, Any]:
        """(codes uint8 ``[..., N, K]``, scale ``[..., N, K/32]``) of records; with `signed` the codes are int8 from -8 to 7.

        The scale comes in its NumPy dtype; on CuPy MXFP4's comes as uint8.
        """
        view = as_array(records, "records")
        raw = view.array
        if raw.dtype.itemsize != 1 or raw.ndim < 1:
            raise DTypeError(f"records: expected uint8, got {view.dtype_name}")
        if raw.shape[-1] % self.nbytes:
            raise ProblemError(f"records: expected rows of whole {self.nbytes}-byte {self.name} blocks, got rows of {raw.shape[-1]} bytes")
        with device_of(raw):
            xp = namespace(raw)
            parts = view_bytes(raw).reshape(*raw.shape[:-1], raw.shape[-1] // self.nbytes, self.nbytes)
            blocks = xp.ascontiguousarray(parts[..., self.scale_bytes :])
            packed = blocks.reshape(*raw.shape[:-1], -1) if raw.size else xp.zeros((*raw.shape[:-1], 0), xp.uint8)
            codes = SPLIT_HALVES.unpack(packed ^ (self.flip * 0x11), signed=signed)
            head = xp.ascontiguousarray(parts[..., : self.scale_bytes])
            if self.scale_bytes == 2:
                return codes, head.view(xp.float16)[..., 0]
            return codes, head[..., 0] if xp is not np else head[..., 0].view(_e8m0())


def _e8m0() -> Any:
    import ml_dtypes

    return ml_dtypes.float8_e8m0fnu


Q4_0 = BlockRecord("Q4_0", "float16", 2, 8)
MXFP4 = BlockRecord("MXFP4", "float8_e8m0fnu", 1, 0)
