"""mbarriers: a phase ends when the pending arrivals and the pending transaction bytes are both zero."""

from ..emu import cta
from ._declare import op, u32

# NOTE: no `.release.cluster` on a remote arrive: the default semantics do, and naming them made a cluster kernel twice as slow
# (H200, 2026-11-29, hopper figures in bench/NOTES.md).


@op("mbarrier.init.shared::cta.b64 [{bar}], {count};")
def init(bar: u32, count: u32) -> None:
    """mbarrier.init - start `bar` in phase 0 with `count` arrivals expected in each phase.

    PTX:       ISA 9.0, "mbarrier.init"; sm_80+
    Scope:     thread
    Args:      bar    u32  shared address, 8-byte aligned
               count  u32  1 to 2^20 - 1
    Returns:   nothing
    Orders:    needs barrier.fence_mbarrier_init before TMA or another CTA uses it, and a CTA barrier before other threads do
    Emulates:  exactly
    """
    cta().mbarrier_init(bar, count)


@op("mbarrier.arrive.shared::cta.b64 _, [{bar}];")
def arrive(bar: u32) -> None:
    """mbarrier.arrive - one arrival at `bar`.

    PTX:       ISA 9.0, "mbarrier.arrive"; sm_80+
    Scope:     thread
    Args:      bar  u32  shared address
    Returns:   nothing
    Orders:    release, CTA
    Emulates:  exactly
    """
    cta().mbarrier(bar).arrive()


@op("{{ .reg .pred p; setp.ne.b32 p, {condition}, 0; @p mbarrier.arrive.shared::cta.b64 _, [{bar}]; }}")
def arrive_if(condition: bool, bar: u32) -> None:
    """mbarrier.arrive - one arrival at `bar` by each thread whose `condition` holds, without a branch.

    PTX:       ISA 9.0, "mbarrier.arrive"; sm_80+
    Scope:     thread
    Args:      condition  bool  whether this thread arrives
               bar        u32   shared address
    Returns:   nothing
    Orders:    release, CTA
    Emulates:  exactly
    """
    if condition:
        cta().mbarrier(bar).arrive()


@op("{{ .reg .pred p; .reg .b32 remote; setp.ne.b32 p, {condition}, 0; @p mapa.shared::cluster.u32 remote, {bar}, {rank}; "
    "@p mbarrier.arrive.shared::cluster.b64 _, [remote]; }}")  # fmt: skip
def arrive_cluster_if(condition: bool, bar: u32, rank: u32) -> None:
    """mbarrier.arrive.shared::cluster - one arrival, where `condition` holds, at the barrier that CTA `rank` has at `bar`.

    PTX:       ISA 9.0, "mbarrier.arrive", "mapa"; sm_90+
    Scope:     thread
    Args:      condition  bool  whether this thread arrives
               bar        u32   shared address, as in this CTA
               rank       u32   CTA of the cluster whose barrier it is
    Returns:   nothing
    Orders:    release, cluster
    Emulates:  exactly
    """
    if condition:
        cta().mbarrier(cta().cluster.map(bar, rank)).arrive()


@op("mbarrier.arrive.expect_tx.shared::cta.b64 _, [{bar}], {nbytes};")
def arrive_expect_tx(bar: u32, nbytes: u32) -> None:
    """mbarrier.arrive.expect_tx - expect `nbytes` more bytes of asynchronous copies in this phase, then arrive.

    PTX:       ISA 9.0, "mbarrier.arrive", ".expect_tx"; sm_90+
    Scope:     thread
    Args:      bar     u32  shared address
               nbytes  u32  bytes that copies with this barrier will bring, below 2^20
    Returns:   nothing
    Orders:    release, CTA
    Emulates:  exactly
    """
    cta().mbarrier(bar).arrive_expect_tx(nbytes)


@op("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [{bar}], {nbytes};")
def expect_tx(bar: u32, nbytes: u32) -> None:
    """mbarrier.expect_tx - expect `nbytes` more bytes of asynchronous copies in this phase.

    PTX:       ISA 9.0, "mbarrier.expect_tx"; sm_90+
    Scope:     thread
    Args:      bar     u32  shared address
               nbytes  u32  bytes, below 2^20
    Returns:   nothing
    Orders:    nothing
    Emulates:  exactly
    """
    cta().mbarrier(bar).expect_tx(nbytes)


@op("{{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [{bar}], {parity}; @p bra DONE; bra AGAIN; DONE: }}")
def wait(bar: u32, parity: u32) -> None:
    """mbarrier.try_wait.parity - wait until the phase of `bar` with parity `parity` is complete.

    PTX:       ISA 9.0, "mbarrier.test_wait / mbarrier.try_wait"; sm_90+
    Scope:     thread
    Args:      bar     u32  shared address
               parity  u32  parity of the phase to wait for: 0 first; waiting for 1 on a fresh barrier passes at once
    Returns:   nothing
    Orders:    acquire, CTA: what the arriving threads and the completing copies wrote is visible after it
    Emulates:  exactly; no time limit
    """
    cta().mbarrier(bar).wait(parity)
