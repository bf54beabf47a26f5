"""The ring of stages between a producer and its consumers: position, and what each barrier counts."""

from __future__ import annotations

from typing import NamedTuple

from .._numba import device_function
from ..integers import u32


class Slot(NamedTuple):
    """A position in the ring: the stage, and the parity of the round. Only `next_slot` moves it."""

    stage: u32
    phase: u32


@device_function
def next_slot(slot: Slot, num_stages: int) -> Slot:
    """The position after `slot` in a ring of `num_stages`."""
    stage = slot.stage + 1
    phase = slot.phase
    if stage == num_stages:
        stage = u32(0)
        phase = phase ^ 1
    return Slot(stage, phase)


FULL_ARRIVALS = 1
"""The producer's arrive.expect_tx; the bytes of the copies do the rest."""


def full_arrivals(copying_lanes: int) -> int:
    """Arrivals that fill a stage: the producer's, and one of each lane that brings a part by cp.async and lets its completion arrive."""
    return FULL_ARRIVALS + copying_lanes


def empty_arrivals(consumer_warps: int, cluster: int) -> int:
    """Arrivals that free a stage: one from each consumer warp of each CTA that reads what the producer writes here."""
    return consumer_warps * cluster
