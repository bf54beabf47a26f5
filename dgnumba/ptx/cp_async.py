"""cp.async: copies of 4 or 16 bytes from global to shared memory that go on by themselves, from sm_80 on.

Each thread waits for its own, or lets an mbarrier tell others when they are done.
"""

import numpy as np

from ..emu import AsyncOp, Region, cta, thread
from ..errors import OutOfBoundsError
from ._declare import Imm, op, u32, u64

_BYTES = 16


def _issue(dst: int, src: int, nbytes: int, size: int = _BYTES) -> None:
    here, address, nbytes = cta(), int(dst), int(nbytes)
    if not 0 <= nbytes <= size:
        raise OutOfBoundsError(f"cp.async: expected 0 to {size} bytes to read, got {nbytes}")
    for name, value in (("dst", address), ("src", int(src))):
        if value % size:
            raise OutOfBoundsError(f"cp.async: expected {name} to be a multiple of {size}, got {value:#x}")
    region = Region(address, size)
    source = here.gmem.bytes_at(int(src), nbytes, size) if nbytes else np.zeros(0, np.uint8)

    def act() -> None:
        here.smem.poke(region, np.concatenate([source, np.zeros(size - nbytes, np.uint8)]))

    thread().cp_async.issue(AsyncOp(f"cp_async.copy_{size}", act, writes=[region], amount=nbytes))


@op("cp.async.ca.shared.global.L2::128B [{dst}], [{src}], 4;")
def copy_4(dst: u32, src: u64) -> None:
    """cp.async.ca.shared.global - copy 4 bytes, through L1, which keeps the 32 around them; L2 fetches 128.

    PTX:       ISA 9.0, "cp.async"; sm_80+
    Scope:     thread
    Args:      dst  u32  shared address, 4-byte aligned
               src  u64  global address, 4-byte aligned
    Returns:   nothing
    Async:     as `copy_16`
    Emulates:  exactly
    """
    _issue(dst, src, 4, 4)


@op("cp.async.cg.shared.global.L2::128B [{dst}], [{src}], 16;")
def copy_16(dst: u32, src: u64) -> None:
    """cp.async.cg.shared.global - copy 16 bytes, past L1; L2 fetches the 128 around them.

    PTX:       ISA 9.0, "cp.async"; sm_80+
    Scope:     thread
    Args:      dst  u32  shared address, 16-byte aligned
               src  u64  global address, 16-byte aligned
    Returns:   nothing
    Async:     joins a group at `commit`; the bytes may be read after a `wait` for it, by other threads after a barrier behind that
    Emulates:  exactly
    """
    _issue(dst, src, _BYTES)


@op("cp.async.cg.shared.global.L2::128B [{dst}], [{src}], 16, {nbytes};")
def copy_16_zfill(dst: u32, src: u64, nbytes: u32) -> None:
    """cp.async.cg.shared.global - read `nbytes` and write 16, the rest zeros: for the end of a row.

    PTX:       ISA 9.0, "cp.async"; sm_80+
    Scope:     thread
    Args:      dst     u32  shared address, 16-byte aligned
               src     u64  global address, 16-byte aligned; of no bytes any such address
               nbytes  u32  0 to 16
    Returns:   nothing
    Async:     as `copy_16`
    Emulates:  exactly
    """
    _issue(dst, src, nbytes)


@op("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [{bar}];")
def mbarrier_arrive_noinc(bar: u32) -> None:
    """cp.async.mbarrier.arrive.noinc - one arrival at `bar`, once all copies that this thread has issued so far are done.

    PTX:       ISA 9.0, "cp.async.mbarrier.arrive"; sm_80+
    Scope:     thread
    Args:      bar  u32  shared address; its count holds this arrival
    Returns:   nothing
    Async:     the arrival comes later, the thread goes on
    Orders:    those copies: who waits for the phase sees their bytes. They are of the generic proxy, so that its loads need no fence
    Emulates:  exactly; an arrival that the phase has no more room for is refused when it is issued, not when it comes
    """
    cta().mbarrier(bar).arrive_behind(thread().cp_async)


@op("cp.async.commit_group;")
def commit() -> None:
    """cp.async.commit_group - close this thread's group of the copies issued since the last commit; it may be empty.

    PTX:       ISA 9.0, "cp.async.commit_group"; sm_80+
    Scope:     thread
    Args:      none
    Returns:   nothing
    Emulates:  exactly
    """
    thread().cp_async.commit()


@op("cp.async.wait_group {pending};")
def wait(pending: Imm) -> None:
    """cp.async.wait_group - wait until at most the last `pending` groups of this thread are in flight.

    PTX:       ISA 9.0, "cp.async.wait_group"; sm_80+
    Scope:     thread
    Args:      pending  constant
    Returns:   nothing
    Orders:    this thread's copies of the other groups: it sees their bytes, other threads do after a barrier
    Emulates:  exactly
    """
    thread().cp_async.wait(int(pending))
