"""TMA: bulk copies of tensor boxes between global and shared memory, described by a tensor map."""

from ..emu import thread
from ._declare import Imm, TensorMapArg, op, u32, u64
from ._emulate import bulk_load, tma_load, tma_store

# NOTE: the innermost coordinate must be a multiple of 16 bytes, and a store's coordinates must not be negative, where a load's may: anything
# else is an illegal instruction (H200, driver 580, 2026-11-29).
_LOAD = "cp.async.bulk.tensor.{d}.shared::cluster.global.mbarrier::complete_tx::bytes"
_STORE = "cp.async.bulk.tensor.{d}.global.shared::cta.bulk_group"


@op("prefetch.tensormap [{tmap}];")
def prefetch(tmap: TensorMapArg) -> None:
    """prefetch.tensormap - bring a tensor map into the descriptor cache.

    PTX:       ISA 9.0, "prefetch, prefetchu", ".tensormap"; sm_90+
    Scope:     thread
    Args:      tmap  tensor map, a kernel parameter
    Returns:   nothing
    Emulates:  nothing: a hint
    """


@op(_LOAD.format(d="2d") + " [{dst}], [{tmap}, {{{x}, {y}}}], [{bar}];")
def load_2d(dst: u32, tmap: TensorMapArg, bar: u32, x: u32, y: u32) -> None:
    """cp.async.bulk.tensor.2d.shared::cluster.global - load the box at (x, y) into shared memory.

    PTX:       ISA 9.0, "cp.async.bulk.tensor"; sm_90+
    Scope:     thread
    Args:      dst   u32  shared address, 128-byte aligned (1024 for the 128-byte swizzle)
               tmap  tensor map, a kernel parameter
               bar   u32  mbarrier that gets the box's bytes
               x, y  u32  element coordinates, x a multiple of 16 bytes; what lies outside the tensor reads as zero
    Returns:   nothing
    Orders:    async proxy; visible to who waits on `bar`
    Async:     due when the phase of `bar` that expects its bytes is waited for
    Emulates:  exactly
    """
    tma_load("tma.load_2d", dst, tmap, bar, (x, y))


@op(_LOAD.format(d="3d") + " [{dst}], [{tmap}, {{{x}, {y}, {z}}}], [{bar}];")
def load_3d(dst: u32, tmap: TensorMapArg, bar: u32, x: u32, y: u32, z: u32) -> None:
    """cp.async.bulk.tensor.3d.shared::cluster.global - load the box at (x, y, z) into shared memory.

    PTX:       ISA 9.0, "cp.async.bulk.tensor"; sm_90+
    Scope:     thread
    Args:      dst      u32  shared address, 128-byte aligned (1024 for the 128-byte swizzle)
               tmap     tensor map, a kernel parameter
               bar      u32  mbarrier that gets the box's bytes
               x, y, z  u32  element coordinates, x a multiple of 16 bytes; what lies outside the tensor reads as zero
    Returns:   nothing
    Orders:    async proxy; visible to who waits on `bar`
    Async:     due when the phase of `bar` that expects its bytes is waited for
    Emulates:  exactly
    """
    tma_load("tma.load_3d", dst, tmap, bar, (x, y, z))


_MULTICAST = "{{ .reg .b16 mask; cvt.u16.u32 mask, {mask}; " + _LOAD  # `{d}` is filled in by replace: the other holes stay


@op(_MULTICAST.replace("{d}", "2d") + ".multicast::cluster [{dst}], [{tmap}, {{{x}, {y}}}], [{bar}], mask; }}")
def load_2d_multicast(dst: u32, tmap: TensorMapArg, bar: u32, x: u32, y: u32, mask: u32) -> None:
    """cp.async.bulk.tensor.2d...multicast::cluster - load the box at (x, y) into the shared memory of several CTAs.

    PTX:       ISA 9.0, "cp.async.bulk.tensor", ".multicast::cluster"; sm_90a for speed
    Scope:     thread
    Args:      dst   u32  shared address; the same offset is written in each CTA of the mask
               tmap  tensor map, a kernel parameter
               bar   u32  mbarrier; the one at the same offset in each CTA gets the box's bytes
               x, y  u32  element coordinates, innermost first
               mask  u32  bit r: CTA of rank r
    Returns:   nothing
    Orders:    async proxy; visible, in each CTA, to who waits on its `bar`
    Async:     due in each CTA as its phase is waited for
    Emulates:  exactly
    """
    tma_load("tma.load_2d_multicast", dst, tmap, bar, (x, y), mask)


@op(_MULTICAST.replace("{d}", "3d") + ".multicast::cluster [{dst}], [{tmap}, {{{x}, {y}, {z}}}], [{bar}], mask; }}")
def load_3d_multicast(dst: u32, tmap: TensorMapArg, bar: u32, x: u32, y: u32, z: u32, mask: u32) -> None:
    """cp.async.bulk.tensor.3d...multicast::cluster - load the box at (x, y, z) into the shared memory of several CTAs.

    PTX:       ISA 9.0, "cp.async.bulk.tensor", ".multicast::cluster"; sm_90a for speed
    Scope:     thread
    Args:      dst      u32  shared address; the same offset is written in each CTA of the mask
               tmap     tensor map, a kernel parameter
               bar      u32  mbarrier; the one at the same offset in each CTA gets the box's bytes
               x, y, z  u32  element coordinates, innermost first
               mask     u32  bit r: CTA of rank r
    Returns:   nothing
    Orders:    async proxy; visible, in each CTA, to who waits on its `bar`
    Async:     due in each CTA as its phase is waited for
    Emulates:  exactly
    """
    tma_load("tma.load_3d_multicast", dst, tmap, bar, (x, y, z), mask)


@op(_STORE.format(d="2d") + " [{tmap}, {{{x}, {y}}}], [{src}];")
def store_2d(tmap: TensorMapArg, src: u32, x: u32, y: u32) -> None:
    """cp.async.bulk.tensor.2d.global.shared::cta - store a box from shared memory at (x, y); what lies outside is dropped, by chunks of 16 bytes.

    PTX:       ISA 9.0, "cp.async.bulk.tensor"; sm_90+
    Scope:     thread
    Args:      tmap  tensor map, a kernel parameter
               src   u32  shared address, 128-byte aligned (1024 for the 128-byte swizzle)
               x, y  u32  element coordinates, innermost first, none negative
    Returns:   nothing
    Orders:    async proxy: what generic stores wrote needs barrier.fence_proxy_async by the writer and a barrier before
    Async:     joins the thread's bulk group at `commit`; has read shared memory after `wait_read`
    Emulates:  exactly
    """
    tma_store("tma.store_2d", tmap, src, (x, y))


@op("{{ .reg .pred p; setp.ne.b32 p, {condition}, 0; @p " + _STORE.format(d="2d") + " [{tmap}, {{{x}, {y}}}], [{src}]; }}")
def store_2d_if(condition: bool, tmap: TensorMapArg, src: u32, x: u32, y: u32) -> None:
    """cp.async.bulk.tensor.2d.global.shared::cta - `store_2d` by each thread whose `condition` holds, without a branch.

    PTX:       ISA 9.0, "cp.async.bulk.tensor"; sm_90+
    Scope:     thread
    Args:      condition  bool  whether this thread stores
               tmap       tensor map, a kernel parameter
               src        u32   shared address
               x, y       u32   element coordinates, innermost first
    Returns:   nothing
    Orders:    as store_2d
    Async:     as store_2d
    Emulates:  exactly
    """
    if condition:
        tma_store("tma.store_2d_if", tmap, src, (x, y))


@op(_STORE.format(d="3d") + " [{tmap}, {{{x}, {y}, {z}}}], [{src}];")
def store_3d(tmap: TensorMapArg, src: u32, x: u32, y: u32, z: u32) -> None:
    """cp.async.bulk.tensor.3d.global.shared::cta - store a box from shared memory at (x, y, z); what lies outside is dropped, by chunks of 16 bytes.

    PTX:       ISA 9.0, "cp.async.bulk.tensor"; sm_90+
    Scope:     thread
    Args:      tmap     tensor map, a kernel parameter
               src      u32  shared address, 128-byte aligned (1024 for the 128-byte swizzle)
               x, y, z  u32  element coordinates, innermost first
    Returns:   nothing
    Orders:    as store_2d
    Async:     as store_2d
    Emulates:  exactly
    """
    tma_store("tma.store_3d", tmap, src, (x, y, z))


@op("cp.async.bulk.commit_group;")
def commit() -> None:
    """cp.async.bulk.commit_group - close this thread's group of bulk stores.

    PTX:       ISA 9.0, "cp.async.bulk.commit_group"; sm_90+
    Scope:     thread
    Args:      none
    Returns:   nothing
    Emulates:  exactly
    """
    thread().bulk.commit()


@op("cp.async.bulk.wait_group.read {pending};")
def wait_read(pending: Imm) -> None:
    """cp.async.bulk.wait_group.read - wait until all but the last `pending` groups have read their shared memory.

    PTX:       ISA 9.0, "cp.async.bulk.wait_group"; sm_90+
    Scope:     thread
    Args:      pending  constant
    Returns:   nothing
    Orders:    the source may be written again by this thread, or after a barrier by others
    Emulates:  exactly
    """
    thread().bulk.wait(pending, read=True)


@op("cp.async.bulk.wait_group {pending};")
def wait(pending: Imm) -> None:
    """cp.async.bulk.wait_group - wait until all but the last `pending` groups are complete: written, and visible to this thread.

    PTX:       ISA 9.0, "cp.async.bulk.wait_group"; sm_90+
    Scope:     thread
    Args:      pending  constant
    Returns:   nothing
    Orders:    the stores' writes are visible to this thread
    Emulates:  exactly
    """
    thread().bulk.wait(pending)


@op("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{dst}], [{src}], {nbytes}, [{bar}];")
def load_bytes(dst: u32, src: u64, nbytes: u32, bar: u32) -> None:
    """cp.async.bulk.shared::cluster.global - copy `nbytes` contiguous bytes to shared memory.

    PTX:       ISA 9.0, "cp.async.bulk"; sm_90+
    Scope:     thread
    Args:      dst     u32  shared address, 16-byte aligned
               src     u64  global address, 16-byte aligned
               nbytes  u32  a multiple of 16
               bar     u32  mbarrier that gets the bytes
    Returns:   nothing
    Orders:    async proxy; visible to who waits on `bar`
    Async:     due when the phase of `bar` that expects its bytes is waited for
    Emulates:  exactly
    """
    bulk_load("tma.load_bytes", dst, src, nbytes, bar)
