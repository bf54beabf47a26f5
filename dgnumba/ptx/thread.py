"""Who a thread is, and how many registers it may use. (The rest is `numba.cuda`'s: threadIdx, blockIdx, shfl_sync, ...)"""

from ..emu import cta, thread
from ._declare import WARP, WARPGROUP, Imm, op, u32


@op("mov.u32 {out}, %laneid;", pure=True)
def lane_idx() -> u32:
    """mov.u32 %laneid - the lane of this thread in its warp, 0 to 31.

    PTX:       ISA 9.0, "Special Registers: %laneid"
    Scope:     thread
    Args:      none
    Returns:   u32
    Emulates:  exactly
    """
    return u32(thread().lane)


@op("shfl.sync.idx.b32 {out}, {value}, 0, 31, 0xffffffff;", scope=WARP, pure=True)
def uniform(value: u32) -> u32:
    """shfl.sync.idx - lane 0's `value` in every lane; tells ptxas that it is uniform over the warp.

    PTX:       ISA 9.0, "shfl.sync"; sm_30+
    Scope:     warp
    Args:      value  u32  the same in all lanes, or lane 0's counts
    Returns:   u32
    Lanes:     every lane gets lane 0's register
    Emulates:  exactly
    """
    return [value[0]] * len(value)


@op("redux.sync.max.u32 {out}, {value}, 0xffffffff;", scope=WARP)
def redux_max(value: u32) -> u32:
    """redux.sync.max.u32 - the largest `value` of the warp in every lane; of float32 from 0 on by their bits, NaN above infinity.

    PTX:       ISA 9.0, "redux.sync"; sm_80+
    Scope:     warp; not to be moved to where only some lanes use the result
    Args:      value  u32
    Returns:   u32
    Lanes:     every lane gives one, and gets the largest
    Emulates:  exactly
    """
    return [max(value)] * len(value)


@op("mov.u32 {out}, %cluster_ctarank;", pure=True)
def cluster_ctarank() -> u32:
    """mov.u32 %cluster_ctarank - the rank of this CTA in its cluster.

    PTX:       ISA 9.0, "Special Registers: %cluster_ctarank"; sm_90+
    Scope:     thread
    Args:      none
    Returns:   u32
    Emulates:  exactly
    """
    return u32(cta().rank)


@op("mapa.shared::cluster.u32 {out}, {address}, {rank};", pure=True)
def mapa(address: u32, rank: u32) -> u32:
    """mapa - the shared::cluster address, in CTA `rank`, of what has shared address `address` here.

    PTX:       ISA 9.0, "mapa"; sm_90+
    Scope:     thread
    Args:      address  u32  shared address in this CTA
               rank     u32  rank in the cluster
    Returns:   u32, an address for `.shared::cluster`
    Emulates:  exactly
    """
    return u32(cta().cluster.map(address, rank))


@op("setmaxnreg.dec.sync.aligned.u32 {count};", scope=WARPGROUP)
def setmaxnreg_dec(count: Imm) -> None:
    """setmaxnreg.dec - give back registers down to `count` a thread.

    PTX:       ISA 9.0, "setmaxnreg"; sm_90a
    Scope:     warpgroup (every warp of it)
    Args:      count  constant, 24 to 256, a multiple of 8
    Returns:   nothing
    Emulates:  nothing: the emulator counts no registers
    """


@op("setmaxnreg.inc.sync.aligned.u32 {count};", scope=WARPGROUP)
def setmaxnreg_inc(count: Imm) -> None:
    """setmaxnreg.inc - wait for, and take, registers up to `count` a thread.

    PTX:       ISA 9.0, "setmaxnreg"; sm_90a
    Scope:     warpgroup (every warp of it)
    Args:      count  constant, 24 to 256, a multiple of 8
    Returns:   nothing
    Emulates:  nothing: the emulator counts no registers
    """


@op("griddepcontrol.wait;")
def griddepcontrol_wait() -> None:
    """griddepcontrol.wait - wait until the grids this one depends on are done and their memory is visible.

    PTX:       ISA 9.0, "griddepcontrol"; sm_90+
    Scope:     thread
    Args:      none
    Returns:   nothing
    Orders:    what earlier grids of the stream wrote is visible after it; nothing to do without a programmatic dependent launch
    Emulates:  nothing: grids run one after another
    """


@op("griddepcontrol.launch_dependents;")
def griddepcontrol_launch_dependents() -> None:
    """griddepcontrol.launch_dependents - let the grids that depend on this one start.

    PTX:       ISA 9.0, "griddepcontrol"; sm_90+
    Scope:     thread
    Args:      none
    Returns:   nothing
    Emulates:  nothing: grids run one after another
    """


@op("nanosleep.u32 {nanoseconds};")
def nanosleep(nanoseconds: Imm) -> None:
    """nanosleep.u32 - sleep for about that long: no time at all, or up to twice as long.

    PTX:       ISA 9.0, "nanosleep"; sm_70+
    Scope:     thread
    Args:      nanoseconds  constant, a million at most
    Returns:   nothing
    Emulates:  nothing: the emulator has no time
    """


@op("bar.warp.sync 0xffffffff;", scope=WARP)
def syncwarp() -> None:
    """bar.warp.sync - wait for all lanes of the warp.

    PTX:       ISA 9.0, "bar.warp.sync"; sm_30+
    Scope:     warp
    Args:      none
    Returns:   nothing
    Orders:    memory accesses of the lanes
    Lanes:     no arguments
    Emulates:  exactly
    """
    thread().order_lanes()
