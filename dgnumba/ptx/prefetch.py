"""What is asked for ahead of time: prefetches into L2, which read nothing into registers or shared memory; and a load that stays where it stands.

NOTE: L2 is where all of a GPU meet: a line that another kernel writes after it was prefetched is the new one there. So a prefetch may stand
before `thread.griddepcontrol_wait`, where a load may not, unless nobody writes what it reads.
"""

import numpy as np

from ..emu import cta
from ._declare import Registers, TensorMapArg, op, u32, u64
from ._emulate import bulk_source, tma_prefetch

_TENSOR = "cp.async.bulk.prefetch.tensor.{d}.L2.global.tile"


@op(_TENSOR.format(d="2d") + " [{tmap}, {{{x}, {y}}}];")
def tensor_2d(tmap: TensorMapArg, x: u32, y: u32) -> None:
    """cp.async.bulk.prefetch.tensor.2d.L2.global.tile - bring the box at (x, y) into L2.

    PTX:       ISA 9.0, "cp.async.bulk.prefetch.tensor"; sm_90+
    Scope:     thread
    Args:      tmap  tensor map, a kernel parameter
               x, y  u32  element coordinates as of `tma.load_2d`; of what lies outside the tensor nothing is brought
    Returns:   nothing
    Orders:    nothing: it may be before anything, and nobody can wait for it
    Emulates:  no movement; the coordinates are checked as a load's
    """
    tma_prefetch(tmap, (x, y))


@op(_TENSOR.format(d="3d") + " [{tmap}, {{{x}, {y}, {z}}}];")
def tensor_3d(tmap: TensorMapArg, x: u32, y: u32, z: u32) -> None:
    """cp.async.bulk.prefetch.tensor.3d.L2.global.tile - bring the box at (x, y, z) into L2.

    PTX:       ISA 9.0, "cp.async.bulk.prefetch.tensor"; sm_90+
    Scope:     thread
    Args:      tmap     tensor map, a kernel parameter
               x, y, z  u32  element coordinates as of `tma.load_3d`; of what lies outside the tensor nothing is brought
    Returns:   nothing
    Orders:    as tensor_2d
    Emulates:  no movement; the coordinates are checked as a load's
    """
    tma_prefetch(tmap, (x, y, z))


@op("cp.async.bulk.prefetch.L2.global [{src}], {nbytes};")
def bulk(src: u64, nbytes: u32) -> None:
    """cp.async.bulk.prefetch.L2.global - bring `nbytes` contiguous bytes into L2.

    PTX:       ISA 9.0, "cp.async.bulk.prefetch"; sm_90+
    Scope:     thread
    Args:      src     u64  global address, 16-byte aligned
               nbytes  u32  a multiple of 16
    Returns:   nothing
    Orders:    as tensor_2d
    Emulates:  no movement; address and size are checked as those of `tma.load_bytes`
    """
    bulk_source("prefetch.bulk", src, nbytes)


@op("prefetch.global.L2 [{address}];")
def line(address: u64) -> None:
    """prefetch.global.L2 - bring the cache line around an address into L2.

    PTX:       ISA 9.0, "prefetch, prefetchu"; sm_50+
    Scope:     thread
    Args:      address  u64  global address
    Returns:   nothing
    Orders:    as tensor_2d
    Emulates:  no movement; the address is checked as that of a load of one byte
    """
    cta().gmem.bytes_at(int(address), 1, 1)


@op("ld.global.L1::no_allocate.L2::128B.v4.b32 {out}, [{address}];")
def load_global_v4_once(address: u64) -> Registers(4):
    """ld.global.L1::no_allocate.v4.b32 - `memory.load_global_v4_once` that stays before a wait for other grids, if it stands there.

    ptxas 13.0 moves a conditional load of what nobody writes (.nc) past griddepcontrol.wait.

    PTX:       ISA 9.0, "ld", ".level::eviction_priority", ".level::prefetch_size"
    Scope:     thread
    Args:      address  u64  global address, 16-byte aligned
    Returns:   four u32
    Emulates:  exactly
    """
    return tuple(u32(word) for word in np.frombuffer(cta().gmem.load(address, 16), np.uint32))
