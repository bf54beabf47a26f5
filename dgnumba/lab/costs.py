"""What operations are, and what they take: the kinds of spans, and estimates in cycles."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ..cost import MACS_PER_CYCLE, Constants

_H200 = Constants()

FAMILIES = {
    "mbarrier.wait": "wait", "mbarrier.test_wait": "wait", "barrier.cluster_wait": "wait", "wgmma.wait": "wait", "tma.wait*": "wait",
    "cp_async.wait*": "wait", "cuda.sync*": "wait", "barrier.sync": "wait", "tma.load*": "load", "tma.bulk_load*": "load", "cp_async.copy*": "load",
    "memory.load_global*": "load",
    "wgmma.mma*": "mma", "mma.*": "mma", "fragment.promote*": "promote", "tma.store*": "store", "tma.commit": "store", "matrix.stmatrix*": "store",
    "memory.store_global*": "store", "epilogue.*": "store", "mbarrier.*": "barrier", "barrier.*": "barrier", "wgmma.*": "mma",
    "cp_async.mbarrier*": "barrier",
}  # fmt: skip
"""What kind of span an operation is, by pattern; the first that fits counts."""


def kind_of(op: str) -> str:
    """The kind of span that operation `op` is."""
    return next((kind for pattern, kind in FAMILIES.items() if fnmatchcase(op, pattern)), "other")


@dataclass(frozen=True)
class Costs:
    """What things take, in cycles of a multiprocessor: estimates, to be held beside a GPU's own trace.

    op             an operation of a warp, mma.sync among them, as far as nothing below says otherwise
    register       each register of an operation on a fragment (promotion); as `cost.Constants.promotion` has it for a column
    macs           multiply-adds that the tensor cores do in a cycle
    drain          from a product's end to where its wait returns
    barrier        from the completion of a barrier to where a wait for it returns
    load_latency   from the issue of a copy to its first byte (`cost.Constants.latency`)
    load_bytes     a cycle, into one multiprocessor (`cost.Constants.load_rate`)
    store_latency  from a store's issue to its first byte read from shared memory
    store_bytes    a cycle, out of it
    """

    op: float = 4.0
    register: float = 2 * _H200.promotion
    macs: float = MACS_PER_CYCLE
    drain: float = 60.0
    barrier: float = 20.0
    load_latency: float = _H200.latency * _H200.clock * 1e3
    load_bytes: float = _H200.load_rate / _H200.clock
    store_latency: float = 200.0
    store_bytes: float = _H200.load_rate / _H200.clock


_STAGE = re.compile(r"\[(\d+)\]")


def stage_of(label: str) -> int:
    """The stage that a barrier's label names (``full[2]``), or -1."""
    found = _STAGE.search(label)
    return int(found[1]) if found else -1
