"""Which ceiling a call meets, in one sentence."""

from __future__ import annotations

import math
from dataclasses import dataclass

BINDS = 0.8
"""A pipe binds from this share of its ceiling on: what is left are beginnings and ends."""
BESIDE = 0.9
"""Of two that bind, the second is named too from this share of the first on."""
LATENCY, IDLE = 0.4, 0.15
"""An empty kernel's share of the time, and the share of multiprocessors without a tile, that are the reason where neither ceiling binds."""


@dataclass(frozen=True)
class Measured:
    """Times of one call and of the two ceilings, in the same run on the same GPU.

    us              of the kernel
    flops, bytes    that it does, and that it must move at least
    peak_flops      a second, of products without loads; None where that cannot be measured (the kernel for it is Hopper's)
    peak_bytes      a second, of reads from memory
    launch_us       of a kernel that does nothing
    """

    us: float
    flops: float
    bytes: float
    peak_flops: float | None
    peak_bytes: float
    launch_us: float

    @property
    def tflops(self) -> float:
        """Achieved."""
        return self.flops / self.us * 1e-6

    @property
    def gbytes(self) -> float:
        """Achieved, in gigabytes a second."""
        return self.bytes / self.us * 1e-3

    @property
    def tensor_share(self) -> float | None:
        """Of the ceiling of products; None where there is none."""
        return None if self.peak_flops is None else self.flops / self.us * 1e6 / self.peak_flops

    @property
    def memory_share(self) -> float:
        """Of the ceiling of reads."""
        return self.bytes / self.us * 1e6 / self.peak_bytes

    @property
    def launch_share(self) -> float:
        """Of the time, that an empty kernel takes too."""
        return self.launch_us / self.us


def verdict(measured: Measured, *, waves: float) -> str:
    """One sentence.

    Args:
        measured: what was measured.
        waves: rounds of the CTAs that run at one time (`plan.waves`): 1.02 has a second one for 2 % of them.

    >>> verdict(Measured(us=100, flops=1.5e11, bytes=5e7, peak_flops=1.6e15, peak_bytes=4e12, launch_us=2), waves=3.9)
    'The tensor cores bind: 94 % of what they give without loads on this GPU; memory is at 12 % of its ceiling.'
    """
    tensor, memory = measured.tensor_share, measured.memory_share
    if tensor is None:
        what = "Memory binds" if memory >= BINDS else "Memory does not bind"
        return (
            f"{what}: {memory:.0%} of what reading alone reaches; what the tensor cores give at most is not measured on this GPU.".replace(
                "%", " %"
            )
        )
    if max(tensor, memory) >= BINDS:
        if min(tensor, memory) >= BESIDE * max(tensor, memory):
            return f"Both bind: the tensor cores are at {tensor:.0%} of their ceiling and memory at {memory:.0%} of its.".replace("%", " %")
        if tensor > memory:
            words = f"The tensor cores bind: {tensor:.0%} of what they give without loads on this GPU; memory is at {memory:.0%} of its ceiling."
        else:
            words = f"Memory binds: {memory:.0%} of what reading alone reaches on this GPU; the tensor cores are at {tensor:.0%} of their ceiling."
        return words.replace("%", " %")
    shares = f"the tensor cores are at {tensor:.0%} of their ceiling and memory at {memory:.0%} of its"
    idle = 1 - waves / math.ceil(waves)
    if measured.launch_share >= LATENCY:
        what = f"latency does: an empty kernel takes {measured.launch_share:.0%} of this time"
    elif idle >= IDLE and waves < 1:
        what = f"the number of tiles does: {idle:.0%} of the multiprocessors have none"
    elif idle >= IDLE:
        what = f"the last round of tiles does: {idle:.0%} of the multiprocessors' time has no tile"
    else:
        what = "what lies between them does (filling the ring, promotion, storing)"
    return f"Neither ceiling binds, {what}; {shares}.".replace("%", " %")
