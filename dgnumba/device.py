"""What a plan needs to know of a GPU: `Device`, live or, on a machine without one, from a table.

Planning is pure: it reads a `Device` and asks no driver. `Device.current()` is the GPU at hand;
where there is none, plans are made for the one of `KNOWN` that `OFFLINE` names.
"""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass, field, replace
from typing import Any

from . import driver
from .errors import ProblemError

_ON_GPU = (2, 13)  # DLPack's numbers for CUDA memory, plain and managed

OFFLINE = "h200"
"""The GPU that plans are made for where there is none; a key of `KNOWN`."""


GPCS, GPC_SMS = 8, 18
"""Groups of multiprocessors and how many a whole one has: Hopper's. Each has one port to L2."""


@dataclass(frozen=True)
class Device:
    """One GPU.

    name              the driver's name for it
    cc                compute capability
    num_sms           multiprocessors
    smem_per_block    most bytes of shared memory that a CTA may have
    l2_bytes          L2 cache
    memory_bandwidth  of the datasheet, in bytes a second
    index             its ordinal in this process; None for one of the table. Two devices that
                      differ in nothing else are equal: they take the same plans.
    """

    name: str
    cc: tuple[int, int] = (9, 0)
    num_sms: int = 132
    smem_per_block: int = 232448
    l2_bytes: int = 50 * 2**20
    memory_bandwidth: float = 3.35e12
    index: int | None = field(default=None, compare=False)

    @property
    def arch(self) -> str:
        """What its kernels are assembled for: "sm_90a" on Hopper."""
        major, minor = self.cc
        return f"sm_{major}{minor}" + ("a" if major >= 9 else "")

    def clusters_at_once(self, size: int) -> int:
        """Clusters of CTAs with a multiprocessor each that surely run at one time, wherever the device's missing multiprocessors are.

        A cluster lies in one GPC, and pairs of multiprocessors are missing. On an H200 (12 of 144 are) 29 clusters of 4 are sure, and
        32 were too many (2026-11-29).
        """
        if size <= 2:
            return self.num_sms // size
        missing, spare = max(0, GPCS * GPC_SMS - self.num_sms), GPC_SMS % size
        # at worst each GPC loses just so many that it has room for one less, then every `size` take another
        lost = min(GPCS, missing // (spare + 2))
        return max(0, GPC_SMS // size * GPCS - lost - (missing - lost * (spare + 2)) // size)

    @classmethod
    def named(cls, name: str) -> Device:
        """A GPU of the table, as "h200". Raises `ProblemError` for one that is not in it."""
        if not isinstance(name, str) or name.lower() not in KNOWN:
            raise ProblemError(f"device: expected one of {', '.join(KNOWN)}; got {name}")
        return KNOWN[name.lower()]

    @classmethod
    def numbered(cls, index: int) -> Device:
        """The GPU of this ordinal. Raises `LaunchError` where there is none."""
        return _read(index)

    @classmethod
    def current(cls) -> Device:
        """The current GPU of this thread; `KNOWN[OFFLINE]` where there is no GPU."""
        index = current_index()
        return _read(index) if index is not None else KNOWN[OFFLINE]

    @classmethod
    def of(cls, array: Any) -> Device:
        """The GPU that holds `array`; `KNOWN[OFFLINE]` for an array in host memory, where no GPU is."""
        index = index_of(array)
        return cls.current() if index is None else _read(index)


def current_index() -> int | None:
    """Ordinal of the current GPU: CuPy's, where CuPy is in use, else the driver's; None without a GPU."""
    if driver.device_count() == 0:
        return None
    cupy = sys.modules.get("cupy")
    if cupy is not None:
        return int(cupy.cuda.runtime.getDevice())
    return driver.current_device() or 0


def index_of(array: Any) -> int | None:
    """Ordinal of the GPU that holds `array`; None for host memory.

    CuPy says it itself, others through DLPack; what has only an address is looked up.
    """
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(array, cupy.ndarray):
        return int(array.device.id)
    if hasattr(type(array), "__dlpack_device__"):
        kind, index = array.__dlpack_device__()
        return int(index) if int(kind) in _ON_GPU else None
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        return None
    address = interface["data"][0]
    return driver.device_of(address) if address else driver.current_device() or 0


@functools.cache
def _read(index: int) -> Device:
    name = driver.device_name(index)
    ask = functools.partial(driver.attribute, index)
    # Kilohertz and bits; the memory transfers twice a cycle.
    bandwidth = ask("MEMORY_CLOCK_RATE") * 1e3 * 2 * ask("GLOBAL_MEMORY_BUS_WIDTH") / 8
    live = Device(
        name,
        (ask("COMPUTE_CAPABILITY_MAJOR"), ask("COMPUTE_CAPABILITY_MINOR")),
        ask("MULTIPROCESSOR_COUNT"),
        ask("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        ask("L2_CACHE_SIZE"),
        bandwidth,
        index,
    )
    for known in KNOWN.values():
        if known.name == name:
            return replace(live, memory_bandwidth=known.memory_bandwidth)
    return live


KNOWN: dict[str, Device] = {
    "h200": Device("NVIDIA H200", l2_bytes=60 * 2**20, memory_bandwidth=4.8e12),
    "h100": Device("NVIDIA H100 80GB HBM3"),
    "h100-pcie": Device("NVIDIA H100 PCIe", num_sms=114, memory_bandwidth=2.0e12),
    "h20": Device("NVIDIA H20", num_sms=78, l2_bytes=60 * 2**20, memory_bandwidth=4.0e12),
    "a100": Device("NVIDIA A100-SXM4-80GB", (8, 0), 108, 163 * 1024, 40 * 2**20, 2.039e12),
    "rtx-3090": Device("NVIDIA GeForce RTX 3090", (8, 6), 82, 99 * 1024, 6 * 2**20, 0.936e12),
    "l40s": Device("NVIDIA L40S", (8, 9), 142, 99 * 1024, 96 * 2**20, 0.864e12),
    "rtx-4090": Device("NVIDIA GeForce RTX 4090", (8, 9), 128, 99 * 1024, 72 * 2**20, 1.008e12),
    "rtx-5090": Device("NVIDIA GeForce RTX 5090", (12, 0), 170, 99 * 1024, 96 * 2**20, 1.792e12),
}
"""GPUs to plan for offline, from their datasheets; the H200's 132 SMs and 60 MB of L2 were read."""
