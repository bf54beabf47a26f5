"""How many CTAs of a kernel a multiprocessor holds at one time, and what keeps it from holding more."""

from __future__ import annotations

from dataclasses import dataclass

from ..device import Device
from ..errors import UnsupportedError

WARP = 32


@dataclass(frozen=True)
class _Limits:
    """Of one multiprocessor: registers, in units of a warp; warps; CTAs; shared memory, and what of it the system keeps for each CTA."""

    registers: int = 65536
    register_unit: int = 256
    warps: int = 64
    ctas: int = 32
    smem: int = 228 * 1024
    smem_reserved: int = 1024
    smem_unit: int = 128


_LIMITS = {(9, 0): _Limits()}
"""Source: CUDA C++ Programming Guide, "Compute Capabilities"; CUDA occupancy calculator (register and shared-memory granularity)."""


@dataclass(frozen=True)
class Occupancy:
    """CTAs and warps that a multiprocessor holds, and why not more.

    ctas, warps    at one time on one multiprocessor
    most_warps     that it could hold
    limit          what runs out first: "registers", "shared memory", "warps" or "CTAs"
    by             CTAs that each of these alone would allow
    """

    ctas: int
    warps: int
    most_warps: int
    limit: str
    by: dict[str, int]

    def __str__(self) -> str:
        room = ", ".join(f"{name} {count}" for name, count in self.by.items())
        return f"{self.ctas} CTA a multiprocessor, {self.warps} of {self.most_warps} warps; {self.limit} runs out first (room for: {room})"


def occupancy(device: Device, *, threads: int, registers: int, smem_bytes: int) -> Occupancy:
    """The occupancy of a kernel.

    Args:
        device: the GPU; compute capability 9.0.
        threads: of a CTA.
        registers: a thread, at entry.
        smem_bytes: of a CTA, static and dynamic.

    Raises:
        UnsupportedError: a GPU whose limits are not known here.

    >>> occupancy(Device.named("h200"), threads=256, registers=128, smem_bytes=100 * 1024).ctas
    2
    """
    if device.cc not in _LIMITS:
        known = ", ".join(f"{major}.{minor}" for major, minor in _LIMITS)
        raise UnsupportedError(f"occupancy: expected a GPU of compute capability {known}, got {device.name}", {})
    limits = _LIMITS[device.cc]
    warps = -(-threads // WARP)
    of_a_warp = -(-registers * WARP // limits.register_unit) * limits.register_unit
    shared = -(-(smem_bytes + limits.smem_reserved) // limits.smem_unit) * limits.smem_unit
    # registers belong to one of four schedulers, so a CTA takes them in whole warps of each
    by_scheduler = limits.registers // 4 // of_a_warp if of_a_warp else limits.warps
    by = {
        "shared memory": limits.smem // shared,
        "registers": by_scheduler * 4 // warps,
        "warps": limits.warps // warps,
        "CTAs": limits.ctas,
    }
    limit = min(by, key=by.__getitem__)
    return Occupancy(by[limit], by[limit] * warps, limits.warps, limit, by)
