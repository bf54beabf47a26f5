"""How many CTAs of a kernel a multiprocessor holds at one time, and what keeps it from holding more."""

from __future__ import annotations

from dataclasses import dataclass

from ..device import Device
from ..errors import UnsupportedError

WARP = 32


@dataclass(frozen=True)
class _Limits:
    """Of one multiprocessor: warps; CTAs; bytes of shared memory. All have 65,536 registers and keep 1 KB of shared memory for each CTA."""

    warps: int
    ctas: int
    smem: int


REGISTERS, REGISTER_UNIT, SCHEDULERS = 65536, 256, 4
SMEM_RESERVED, SMEM_UNIT = 1024, 128
_LIMITS = {
    (8, 0): _Limits(64, 32, 164 * 1024),
    (8, 6): _Limits(48, 16, 100 * 1024),
    (8, 9): _Limits(48, 24, 100 * 1024),
    (9, 0): _Limits(64, 32, 228 * 1024),
    (10, 0): _Limits(64, 32, 228 * 1024),
    (12, 0): _Limits(48, 24, 100 * 1024),
}
"""By compute capability. Source: CUDA C++ Programming Guide, "Compute Capabilities"; the units: CUDA occupancy calculator."""


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
        device: the GPU.
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
        raise UnsupportedError(
            f"occupancy: expected a GPU of compute capability {known}, got {device.name} of {device.cc[0]}.{device.cc[1]}", {}
        )
    limits = _LIMITS[device.cc]
    warps = -(-threads // WARP)
    of_a_warp = -(-registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
    shared = -(-(smem_bytes + SMEM_RESERVED) // SMEM_UNIT) * SMEM_UNIT
    by = {
        "shared memory": limits.smem // shared,
        # each scheduler has its part of the registers, and holds whole warps
        "registers": REGISTERS // SCHEDULERS // of_a_warp * SCHEDULERS // warps,
        "warps": limits.warps // warps,
        "CTAs": limits.ctas,
    }
    limit = min(by, key=by.__getitem__)
    return Occupancy(by[limit], by[limit] * warps, limits.warps, limit, by)
