"""Launches: the hot path, which has to cost a few microseconds.

Measured on a core of an AMD EPYC against a driver library that does nothing (2026-11-29, Python 3.11,
cuda-bindings 13.0.3, best of 150 runs of 400): a `Launcher` call with ten parameters, four of them
tensor maps, 1.3 us. Of that `cuLaunchKernelEx` itself is 0.3 us through `cuda.bindings`, which is
why it is not called through ctypes (0.45 us), and asking for the current device 0.25 us. A tensor
map that is kept costs 0.16 us, a new one 3 us.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import LaunchError, ProblemError
from .context import api, failure, on_device, primary
from .kernel import Kernel
from .tensor_map import EncodedMap

KEPT = 256
"""Most streams kept for one launcher; then it starts afresh."""

_CODES = {"8": "B", "16": "H", "32": "I", "64": "Q"}


def parameter_code(parameter: str) -> str | None:
    """The struct code of a PTX parameter type ("u32", "f64", "b8[48]"); None for a tensor map."""
    if parameter.endswith("]"):
        size = int(parameter[parameter.index("[") + 1 : -1])
        return None if size == 128 else f"{size}s"
    if parameter in ("f32", "f64"):
        return {"f32": "f", "f64": "d"}[parameter]
    return _CODES[parameter[1:]]


@dataclass(frozen=True)
class LaunchShape:
    """How a kernel is launched.

    grid     CTAs in x, y, z
    block    threads of a CTA in x, y, z
    smem     bytes of dynamic shared memory a CTA
    cluster  CTAs of a cluster in x, y, z
    pdl      the kernel may begin while the one before it in the stream still runs; it must itself
             wait before it touches that one's results
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    smem: int = 0
    cluster: tuple[int, int, int] = (1, 1, 1)
    pdl: bool = False

    def __post_init__(self) -> None:
        limits = (2**31 - 1, 65535, 65535)
        if not all(1 <= g <= limit for g, limit in zip(self.grid, limits, strict=True)):
            raise ProblemError(f"grid: expected 1 to {limits} CTAs, got {self.grid}")
        if not 1 <= self.threads <= 1024 or min(self.block) < 1 or self.block[2] > 64:
            raise ProblemError(f"block: expected 1 to 1024 threads, 64 in z at most, got {self.block}")
        if not 1 <= self.cluster_size <= 16 or min(self.cluster) < 1:
            raise ProblemError(f"cluster: expected 1 to 16 CTAs, got {self.cluster}")
        if any(g % c for g, c in zip(self.grid, self.cluster, strict=True)):
            raise ProblemError(f"grid: expected a multiple of the cluster {self.cluster}, got {self.grid}")
        if self.smem < 0:
            raise ProblemError(f"smem: expected 0 bytes or more, got {self.smem}")

    @property
    def cluster_size(self) -> int:
        """CTAs of a cluster."""
        return self.cluster[0] * self.cluster[1] * self.cluster[2]

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return self.block[0] * self.block[1] * self.block[2]

    def __str__(self) -> str:
        cluster = f", clusters of {self.cluster}" if self.cluster_size > 1 else ""
        return f"grid {self.grid}{cluster}, block {self.block}, {self.smem} bytes of shared memory"


class Launcher:
    """One kernel on one device in one launch shape, to be queued again and again.

    ``launcher(scalars, maps, stream)``

    scalars  values of the parameters that are no tensor maps, in order: unsigned integers, floats
    maps     the `EncodedMap` of each tensor-map parameter, in order
    stream   the stream's handle

    Nothing is allocated on the device and nothing synchronises. No parameter memory is shared
    between threads: a call takes a block out of a pool and gives it back once the driver has
    copied it, which it does before it returns, under stream capture as well. Taking and giving
    back are single list operations, which are atomic in every Python.
    """

    def __init__(self, kernel: Kernel, device: int, parameters: Sequence[str], shape: LaunchShape) -> None:
        cuda = api()
        self.kernel, self.device, self.shape = kernel, device, shape
        codes = [parameter_code(p) for p in parameters]
        self._layout = _Layout(codes)
        self._pack_into = self._layout.values.pack_into
        self._current_device = cuda.cuCtxGetDevice
        self._queue = cuda.cuLaunchKernelEx
        self._function = kernel.function
        self._blocks: list[_Block] = []
        self._configs: dict[int, Any] = {}
        with on_device(device):
            kernel.prepare(device, shape.smem, shape.cluster_size)
            # NOTE: the caller's own context may be current, which the handle would not outlive
            self.context = int(primary(device))
            self._in_context = kernel.in_context(primary(device))

    def __call__(self, scalars: Sequence[Any], maps: tuple[EncodedMap, ...], stream: int) -> None:
        """Queue the kernel on `stream`. Raises `LaunchError` where the driver refuses."""
        status, current = self._current_device()
        if status or int(current) != self.device:
            with on_device(self.device):
                return self(scalars, maps, stream)
        config = self._configs.get(stream) or self._config(stream)
        try:
            block = self._blocks.pop()
        except IndexError:
            block = _Block(self._layout)
        self._pack_into(block.values, 0, *scalars)
        if maps is not block.maps and maps != block.maps:
            block.point(maps)
        status = self._queue(config, self._function, block.address, 0)[0]
        self._blocks.append(block)
        if status:
            raise self._refused(status)

    def bind(self, scalars: Sequence[Any], maps: tuple[EncodedMap, ...]) -> BoundLaunch:
        """The launch that passes these and nothing else, for who queues it again and again."""
        block = _Block(self._layout)
        self._pack_into(block.values, 0, *scalars)
        block.point(maps)
        return BoundLaunch(self, block)

    def _refused(self, status: Any) -> LaunchError:
        return failure(status, f"launching {self.kernel.entry} on device {self.device}, {self.shape}")

    def _config(self, stream: int) -> Any:
        """The driver's configuration for `stream`; unchanging once made, so threads share it."""
        cuda = api()
        ids = cuda.CUlaunchAttributeID
        config = cuda.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = self.shape.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = self.shape.block
        config.sharedMemBytes = self.shape.smem
        config.hStream = stream
        attributes = []
        if self.shape.cluster_size > 1:
            cluster = cuda.CUlaunchAttribute()
            cluster.id = ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            dim = cluster.value.clusterDim
            dim.x, dim.y, dim.z = self.shape.cluster
            attributes.append(cluster)
        if self.shape.pdl:
            pdl = cuda.CUlaunchAttribute()
            pdl.id = ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            pdl.value.programmaticStreamSerializationAllowed = 1
            attributes.append(pdl)
        config.attrs = attributes
        config.numAttrs = len(attributes)
        if len(self._configs) >= KEPT:
            self._configs.clear()
        return self._configs.setdefault(stream, config)


class BoundLaunch:
    """A launch whose parameters are fixed: memory of its own that nobody writes to again, so that any thread may queue it at any time.

    It keeps the tensor maps alive, and no array.
    """

    __slots__ = ("_address", "_block", "_configs", "_function", "_launcher", "_queue")

    def __init__(self, launcher: Launcher, block: _Block) -> None:
        self._launcher, self._block, self._address = launcher, block, block.address
        self._queue, self._configs, self._function = launcher._queue, launcher._configs, launcher._function

    def __call__(self, stream: int) -> None:
        """Queue the kernel on `stream`. Raises `LaunchError` where the driver refuses."""
        with on_device(self._launcher.device):
            self.queue(stream)

    @property
    def context(self) -> int:
        """The handle of the device's primary context, where `plain` holds."""
        return self._launcher.context

    def plain(self, stream: int) -> tuple[int, ...] | None:
        """What ``cuLaunchKernel`` takes for it: function, grid, block, shared memory, stream, parameters, extra; None where it has attributes.

        For the device's primary context alone, where `queue` works in any of the device's.
        """
        shape = self._launcher.shape
        if shape.cluster_size > 1 or shape.pdl:
            return None
        return self._launcher._in_context, *shape.grid, *shape.block, shape.smem, stream, self._address, 0

    def queue(self, stream: int) -> None:
        """The same in a thread that has the launcher's device current, which is not asked again."""
        config = self._configs.get(stream) or self._launcher._config(stream)
        status = self._queue(config, self._function, self._address, 0)[0]
        if status:
            raise self._launcher._refused(status)


class _Layout:
    """Where each parameter stands in a block; every value in a slot of its own, 8-byte aligned."""

    def __init__(self, codes: Sequence[str | None]) -> None:
        padded = [c + "x" * (-struct.calcsize("=" + c) % 8) for c in codes if c]
        self.count = len(codes)
        self.values = struct.Struct("=" + "".join(padded))
        self.map_slots = [i for i, code in enumerate(codes) if code is None]
        self.value_slots = [i for i, code in enumerate(codes) if code is not None]
        self.offsets = [struct.calcsize("=" + "".join(padded[:i])) for i in range(len(padded))]


class _Block:
    """What one launch passes: the address of each parameter, and then the values themselves."""

    __slots__ = ("_map_slots", "_memory", "_words", "address", "maps", "values")

    def __init__(self, layout: _Layout) -> None:
        self._memory = (ctypes.c_uint64 * (layout.count + layout.values.size // 8 + 1))()
        self._words = memoryview(self._memory).cast("B").cast("Q")
        self._map_slots = layout.map_slots
        self.address = ctypes.addressof(self._memory)
        self.values = self._words[layout.count :].cast("B")
        self.maps: tuple[EncodedMap, ...] | None = None
        for slot, offset in zip(layout.value_slots, layout.offsets, strict=True):
            self._words[slot] = self.address + 8 * layout.count + offset

    def point(self, maps: tuple[EncodedMap, ...]) -> None:
        """Put in the addresses of the tensor maps, and keep the maps alive as long as they stand."""
        self.maps = None
        for slot, encoded in zip(self._map_slots, maps, strict=True):
            self._words[slot] = encoded.pointer
        self.maps = maps
