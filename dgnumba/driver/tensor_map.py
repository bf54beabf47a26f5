"""Tensor maps: the 128 bytes that tell the TMA unit how an array lies in memory."""

from __future__ import annotations

import ctypes
from types import ModuleType
from typing import Any, Protocol

from ..dtypes import as_dtype
from .context import api, check, failure

KEPT = 4096
"""Most tensor maps kept for one description; then it starts afresh."""

_ENCODE = ctypes.CFUNCTYPE(
    ctypes.c_int,
    *(ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p),
    *[ctypes.c_void_p] * 4,
    *[ctypes.c_int] * 4,
)


class TensorMapSpec(Protocol):
    """What a tensor map says: `layouts.descriptors.TensorMap`. Extents from the innermost out."""

    @property
    def dtype(self) -> Any:
        """A name in `DTYPES`."""

    @property
    def dims(self) -> tuple[int, ...]:
        """Elements."""

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next along ``dims[1:]``."""

    @property
    def box(self) -> tuple[int, ...]:
        """Elements that one operation moves."""

    @property
    def swizzle(self) -> int:
        """0, 32, 64 or 128 bytes."""

    @property
    def l2_promotion(self) -> int:
        """0, 64, 128 or 256 bytes."""


class EncodedMap:
    """128 encoded bytes at `pointer`, which last as long as this object."""

    __slots__ = ("_memory", "pointer")

    def __init__(self) -> None:
        # NOTE: the driver asks for 64-byte alignment, and the CUtensorMap objects of
        # cuda-bindings 13.0.3 do not have it: so this memory is ours, and so is the call.
        self._memory = ctypes.create_string_buffer(128 + 63)
        self.pointer = (ctypes.addressof(self._memory) + 63) & ~63

    def __bytes__(self) -> bytes:
        return ctypes.string_at(self.pointer, 128)


class MapEncoder:
    """Makes the tensor maps of one description, and keeps them: ``encoder(address)``.

    A map holds an address, not the memory there. A map whose array is gone does no harm unless it
    is used, and an array that comes to lie at the same address makes it right again: nothing has
    to be told when an array dies.
    """

    def __init__(self, spec: TensorMapSpec) -> None:
        cuda = api()
        rank = len(spec.dims)
        self.spec = spec
        self._kept: dict[int, EncodedMap] = {}
        self._encode = _ENCODE(_address_of(cuda, b"cuTensorMapEncodeTiled"))
        self._arrays = (
            (ctypes.c_uint64 * rank)(*spec.dims),
            (ctypes.c_uint64 * max(rank - 1, 1))(*spec.strides),
            (ctypes.c_uint32 * rank)(*spec.box),
            (ctypes.c_uint32 * rank)(*[1] * rank),
        )
        dtype = f"CU_TENSOR_MAP_DATA_TYPE_{as_dtype(spec.dtype).tma}"
        swizzle = "CU_TENSOR_MAP_SWIZZLE_" + (f"{spec.swizzle}B" if spec.swizzle else "NONE")
        promotion = "CU_TENSOR_MAP_L2_PROMOTION_" + (f"L2_{spec.l2_promotion}B" if spec.l2_promotion else "NONE")
        self._before = (int(getattr(cuda.CUtensorMapDataType, dtype)), rank)
        self._after = (
            *[ctypes.addressof(array) for array in self._arrays],
            int(cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE),
            int(getattr(cuda.CUtensorMapSwizzle, swizzle)),
            int(getattr(cuda.CUtensorMapL2promotion, promotion)),
            int(cuda.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        )

    def __call__(self, address: int) -> EncodedMap:
        """The map of an array at `address`. Raises `LaunchError` where the driver refuses it."""
        found = self._kept.get(address)
        if found is not None:
            return found
        made = EncodedMap()
        status = self._encode(made.pointer, *self._before, address, *self._after)
        if status:
            doing = f"making a tensor map at {address:#x} for {self.spec}"
            broken = "".join(f"; {rule}" for rule in broken_rules(self.spec, address))
            raise failure(api().CUresult(status), doing + broken)
        if len(self._kept) >= KEPT:
            self._kept.clear()
        return self._kept.setdefault(address, made)


def _address_of(cuda: ModuleType, name: bytes) -> int:
    found = check(cuda.cuGetProcAddress(name, 12000, 0), f"finding {name.decode()} in the driver")
    return int(found[0])


def broken_rules(spec: TensorMapSpec, address: int) -> list[str]:
    """TMA's rules that a map would break, in words."""
    inner = spec.box[0] * as_dtype(spec.dtype).itemsize
    strides = spec.strides
    rules = (
        (f"the address {address:#x} is no multiple of 16", address % 16),
        (f"strides {strides} are not all multiples of 16 bytes", any(s % 16 for s in strides)),
        (f"the box {spec.box} is not within 1..256", not all(1 <= b <= 256 for b in spec.box)),
        (f"a box row of {inner} bytes is no multiple of 16", inner % 16),
        (f"a box row of {inner} bytes is wider than the swizzle", 0 < spec.swizzle < inner),
        (f"extents {spec.dims} exceed 1..2^32", not all(1 <= d <= 2**32 for d in spec.dims)),
    )
    return [rule for rule, is_broken in rules if is_broken]
