"""Clocks, and a record of them: what a kernel that is watched from inside writes down.

A record is 16 bytes in global memory: the clock, 64 bits; a number that says what happened, 32 bits; and a value of its own, 32 bits. Lane 0 of each
warp writes those of its warp, one after another, from the address that `begin` was given. Where it is and how many fit is kept in two registers
of the kernel, which no compiler sees: so `begin` must be executed once, at the start of the kernel, in the kernel itself.
"""

import numpy as np

from ..emu import cta, thread
from ._declare import Fragment, Imm, op, u32, u64

RECORD_BYTES = 16


@op("mov.u64 {out}, %clock64;")
def clock64() -> u64:
    """mov.u64 %clock64 - cycles of this multiprocessor; it wraps with 64 bits.

    PTX:       ISA 9.0, "Special Registers: %clock64"; sm_20+
    Scope:     thread
    Args:      none
    Returns:   u64
    Emulates:  a count that grows with every reading: the emulator knows order, not time
    """
    return u64(thread().machine.tick())


@op("mov.u64 {out}, %globaltimer;")
def globaltimer() -> u64:
    """mov.u64 %globaltimer - nanoseconds, the same in all multiprocessors; it may move in steps of a microsecond.

    PTX:       ISA 9.0, "Special Registers: %globaltimer"; sm_30+
    Scope:     thread
    Args:      none
    Returns:   u64
    Emulates:  the count of `clock64`
    """
    return u64(thread().machine.tick())


@op("mov.u32 {out}, %smid;", pure=True)
def smid() -> u32:
    """mov.u32 %smid - the multiprocessor that this thread runs on.

    PTX:       ISA 9.0, "Special Registers: %smid"; sm_13+
    Scope:     thread
    Args:      none
    Returns:   u32
    Emulates:  the number of its CTA in the grid's first dimension
    """
    return u32(cta().block_idx[0])


@op(".reg .b64 dgnumba_record_at; .reg .b32 dgnumba_records_left; mov.b64 dgnumba_record_at, {at}; mov.b32 dgnumba_records_left, {count};")
def begin(at: u64, count: u32) -> None:
    """mov.b64 - records of this warp go to `at` from now on.

    PTX:       ISA 9.0, "mov"
    Scope:     thread
    Args:      at     u64  global address, 16-byte aligned
               count  u32  how many fit; what comes after that is lost
    Returns:   nothing
    Orders:    before any `record` of the kernel, in the kernel's own first lines
    Emulates:  exactly
    """
    thread().records = [int(at), int(count)]


_RECORD = (
    "{{ .reg .pred p, q; .reg .b32 lane; .reg .b64 now, tag; mov.u32 lane, %laneid; setp.eq.u32 p, lane, 0; "
    "setp.ne.and.b32 q, dgnumba_records_left, 0, p; mov.u64 now, %CLOCK; mov.b64 tag, {{{event}, {value}}}; "
    "@q st.global.v2.b64 [dgnumba_record_at], {{now, tag}}; @q add.u64 dgnumba_record_at, dgnumba_record_at, 16; "
    "@q sub.u32 dgnumba_records_left, dgnumba_records_left, 1; }}"
)


def _write(event: int, value: int) -> None:
    t = thread()
    if t.lane or not t.records[1]:
        return
    tag = np.array([event, int(value)], np.uint32).tobytes()
    cta().gmem.store(t.records[0], np.uint64(t.machine.tick()).tobytes() + tag, 16)
    t.records = [t.records[0] + RECORD_BYTES, t.records[1] - 1]


@op(_RECORD.replace("CLOCK", "clock64"))
def record(event: Imm, value: u32) -> None:
    """st.global.v2.b64 - lane 0 writes a record with %clock64, if there is room.

    PTX:       ISA 9.0, "st", "Special Registers: %clock64"
    Scope:     thread
    Args:      event  constant, 1 or more
               value  u32
    Returns:   nothing
    Emulates:  exactly, with the count of `clock64`
    """
    _write(event, value)


@op(_RECORD.replace("CLOCK", "globaltimer"))
def record_time(event: Imm, value: u32) -> None:
    """st.global.v2.b64 - the same with %globaltimer.

    PTX:       ISA 9.0, "st", "Special Registers: %globaltimer"
    Scope:     thread
    Args:      event  constant, 1 or more
               value  u32
    Returns:   nothing
    Emulates:  exactly, with the count of `clock64`
    """
    _write(event, value)


@op(_RECORD.replace("CLOCK", "clock64"), tied="frag")
def record_of(frag: Fragment, event: Imm, value: u32) -> Fragment:
    """st.global.v2.b64 - `record`, after what makes these registers and before what uses them.

    PTX:       ISA 9.0, "st", "Special Registers: %clock64"
    Scope:     thread
    Args:      frag   a tuple of float32 registers
               event  constant, 1 or more
               value  u32
    Returns:   frag
    Emulates:  as `record`; no access of the registers
    """
    _write(event, value)
    return frag
