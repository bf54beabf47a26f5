"""st.async: a store into the shared memory of another CTA of the cluster that counts its own bytes at a barrier there.

Nobody meets: the sender goes on, and may end; the receiver waits for its bytes as it waits for those of a copy. That wait (`mbarrier.wait`) acquires
at CTA scope, as it does for copies by TMA, which other CTAs issue too; `.acquire.cluster` is the same instruction and drops L1 besides, which shared
memory does not pass (ptxas 13.0, sm_90a, 2026-11-30).
"""

import numpy as np

from ._declare import f32, op, u32
from ._emulate import store_async


@op("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [{address}], {value}, [{bar}];")
def store_f32(address: u32, value: f32, bar: u32) -> None:
    """st.async.weak.shared::cluster.f32 - store a float32 into the shared memory of a CTA of the cluster; 4 bytes are counted at `bar`.

    PTX:       ISA 9.0, "st.async"; sm_90+
    Scope:     thread
    Args:      address  u32  shared::cluster address (`thread.mapa`), 4-byte aligned
               value    float32
               bar      u32  shared::cluster address of an mbarrier of the same CTA
    Returns:   nothing
    Orders:    visible to who waits on `bar`
    Async:     due when the phase of `bar` that expects its bytes is waited for
    Emulates:  exactly
    """
    store_async(address, np.float32(value).tobytes(), bar)
