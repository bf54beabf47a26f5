"""wgmma: a warpgroup multiplies a 64-row tile, operands in shared memory (A also in registers), accumulators in registers.

The accumulator's length is the shape: a fragment of N/2 registers a thread is 64 x N (`layouts.lanes.WGMMA_ACCUMULATOR`).
"""

from collections.abc import Callable
from typing import Any

from ..dtypes import DTYPES
from ..emu import Fragment as Held
from ..emu import uniform, warpgroup
from ..layouts.descriptors import SmemDescriptor
from ._declare import WARPGROUP, Fragment, Imm, Registers, op, u32
from ._emulate import wgmma

# NOTE: the accumulators travel through `wait`: it takes them and returns them, so that no read can be moved above it. ptxas serialises wgmmas
# (C75xx, or a WARPGROUP.DEPBAR after each in the SASS) when accumulators in flight are read or copied (H200, 2026-11-29, ptxas 13.0).


@op("wgmma.fence.sync.aligned;", scope=WARPGROUP)
def fence() -> None:
    """wgmma.fence - order this warpgroup's register and shared-memory accesses before the wgmmas that follow.

    PTX:       ISA 9.0, "wgmma.fence"; sm_90a
    Scope:     warpgroup
    Args:      none
    Returns:   nothing
    Orders:    registers: earlier accesses of accumulators and register operands, before wgmma.mma_async
    Lanes:     no arguments
    Emulates:  exactly, for fragments; a plain tuple of registers is not tracked
    """
    warpgroup().fence()


@op("wgmma.commit_group.sync.aligned;", scope=WARPGROUP)
def commit() -> None:
    """wgmma.commit_group - close the group of the wgmmas issued since the last commit.

    PTX:       ISA 9.0, "wgmma.commit_group"; sm_90a
    Scope:     warpgroup
    Args:      none
    Returns:   nothing
    Lanes:     no arguments
    Emulates:  exactly
    """
    warpgroup().mma.commit()


@op("wgmma.wait_group.sync.aligned {pending};", scope=WARPGROUP, tied="acc")
def wait(acc: Fragment, pending: Imm) -> Fragment:
    """wgmma.wait_group - wait until at most `pending` groups are in flight; gives the accumulators back.

    PTX:       ISA 9.0, "wgmma.wait_group"; sm_90a
    Scope:     warpgroup
    Args:      acc      accumulators of the wgmmas waited for
               pending  constant
    Returns:   acc, now readable
    Orders:    the wgmmas' reads of shared memory are done, their registers are written
    Lanes:     layouts.lanes.WGMMA_ACCUMULATOR
    Emulates:  exactly
    """
    warpgroup().mma.wait(uniform(pending, "pending"))
    return [f.settled() if isinstance(f, Held) else f for f in acc]


def _prologue(descriptors: dict[str, SmemDescriptor]) -> str:
    """PTX that joins a descriptor's low word, in a register, with its constant high word."""
    declared = " ".join(f".reg .b64 {d}; mov.b64 {d}, {{{{{{desc_{d}}}, {m.high}}}}};" for d, m in descriptors.items())
    return "{{ .reg .pred p; setp.ne.b32 p, {accumulate}, 0; " + declared


def mma_for(a_dtype: str, b_dtype: str, *, a: SmemDescriptor, b: SmemDescriptor, rows: int = 64) -> Callable[..., Any]:
    """The operation `mma(acc, desc_a, desc_b, accumulate)` for FP8 operands, both in shared memory, K-major.

    a_dtype, b_dtype  "float8_e4m3fn" or "float8_e5m2"
    a, b              how the operands lie in shared memory (`layouts.descriptors.SmemDescriptor`)
    rows              how many of the 64 rows of A hold data; the accumulators of the others are garbage
    """
    types = f"{DTYPES[a_dtype].ptx}.{DTYPES[b_dtype].ptx}"
    text = _prologue({"a": a, "b": b}) + (" wgmma.mma_async.sync.aligned.m64n{acc.columns}k32.f32." + types + " {acc}, a, b, p, 1, 1; }}")

    @op(text, scope=WARPGROUP, tied="acc", name="wgmma.mma")
    def mma(acc: Fragment, desc_a: u32, desc_b: u32, accumulate: Imm) -> Fragment:
        """wgmma.mma_async - acc[64, N] = A[64, 32] @ B[N, 32].T (+ acc if `accumulate`), FP8 with float32 accumulators.

        PTX:       ISA 9.0, "wgmma.mma_async"; sm_90a
        Scope:     warpgroup
        Args:      acc         N/2 float32 registers, N a multiple of 8 from 8 to 256
                   desc_a      u32  low word of A's descriptor: SmemDescriptor.low_word(address)
                   desc_b      u32  low word of B's
                   accumulate  constant: 0 overwrites acc, 1 adds to it
        Returns:   acc, in flight
        Orders:    needs wgmma.fence before, when acc was touched since the last one
        Lanes:     layouts.lanes.WGMMA_ACCUMULATOR
        Async:     joins a group at `commit`; acc may be used by nothing but further wgmmas until `wait`
        Emulates:  sums as emu.tensor_core models them
        """
        return wgmma("wgmma.mma", acc, desc_a, a, desc_b, b, accumulate, (a_dtype, b_dtype), rows)

    return mma


def mma_block_for(
    a_dtype: str, b_dtype: str, *, a: SmemDescriptor, b: SmemDescriptor, rows: int = 64, steps: int = 4
) -> Callable[..., Any]:
    """The operation `mma(acc, desc_a, desc_b)` over a block of K of `steps` times 32: a new sum, its wgmmas issued one behind the other.

    Arguments as of `mma_for`. One operation is less for the compiler to carry accumulators through than `steps` of them.
    """
    types = f"{DTYPES[a_dtype].ptx}.{DTYPES[b_dtype].ptx}"
    parts = ["{{ .reg .pred first, next; setp.ne.b32 first, 0, 0; setp.eq.b32 next, 0, 0;"]
    for s in range(steps):
        for operand, layout in (("a", a), ("b", b)):
            parts.append(f".reg .b32 low_{operand}{s}; add.u32 low_{operand}{s}, {{desc_{operand}}}, {2 * s};")
            parts.append(f".reg .b64 {operand}{s}; mov.b64 {operand}{s}, {{{{low_{operand}{s}, {layout.high}}}}};")
    for s in range(steps):
        scale = "next" if s else "first"
        parts.append("wgmma.mma_async.sync.aligned.m64n{acc.columns}k32.f32." + types + f" {{acc}}, a{s}, b{s}, {scale}, 1, 1;")

    @op(" ".join(parts) + " }}", scope=WARPGROUP, tied="acc", name="wgmma.mma_block")
    def mma(acc: Fragment, desc_a: u32, desc_b: u32) -> Fragment:
        """wgmma.mma_async - acc[64, N] = A[64, 32 steps] @ B[N, 32 steps].T, FP8 with float32 accumulators, `steps` instructions.

        PTX:       ISA 9.0, "wgmma.mma_async"; sm_90a
        Scope:     warpgroup
        Args:      acc     N/2 float32 registers, N a multiple of 8 from 8 to 256
                   desc_a  u32  low word of A's descriptor: layouts.descriptors.low_word(address)
                   desc_b  u32  low word of B's
        Returns:   acc, in flight
        Orders:    needs wgmma.fence before, when acc was touched since the last one
        Lanes:     layouts.lanes.WGMMA_ACCUMULATOR
        Async:     joins a group at `commit`; acc may be used by nothing but further wgmmas until `wait`
        Emulates:  as `wgmma.mma`, one step after the other
        """
        for s in range(steps):
            at_a, at_b = [d + 2 * s for d in desc_a], [d + 2 * s for d in desc_b]
            acc = wgmma("wgmma.mma_block", acc, at_a, a, at_b, b, (int(s > 0),) * len(at_a), (a_dtype, b_dtype), rows)
        return acc

    return mma


STEP_BYTES = 32
"""Of K, in one wgmma: 16 elements of 16 bits, 32 of 8."""

_TAIL = {2: "p, 1, 1, 0", 1: "p, 1, 1"}
"""Scale-d, signs, and, where a type has it, whether B is transposed; by the bytes of an element."""


def mma_rs_for(a_dtype: str, b_dtype: str, *, b: SmemDescriptor) -> Callable[..., Any]:
    """The operation `mma(acc, frag_a, desc_b, accumulate)` with A in four registers a thread and B in shared memory, K-major.

    a_dtype, b_dtype  both "bfloat16", both "float16", or FP8 types
    """
    size = DTYPES[a_dtype].itemsize
    shape = f"m64n{{acc.columns}}k{STEP_BYTES // size}.f32.{DTYPES[a_dtype].ptx}.{DTYPES[b_dtype].ptx}"
    text = _prologue({"b": b}) + f" wgmma.mma_async.sync.aligned.{shape} {{acc}}, {{frag_a}}, b, {_TAIL[size]}; }}}}"

    @op(text, scope=WARPGROUP, tied="acc", name="wgmma.mma_rs")
    def mma(acc: Fragment, frag_a: Registers, desc_b: u32, accumulate: Imm) -> Fragment:
        """wgmma.mma_async - acc[64, N] = A[64, k] @ B[N, k].T (+ acc if `accumulate`), A in registers; k is 16 elements of 16 bits or 32 of 8.

        PTX:       ISA 9.0, "wgmma.mma_async"; sm_90a
        Scope:     warpgroup
        Args:      acc         N/2 float32 registers, N a multiple of 8 from 8 to 256
                   frag_a      four u32, each two values of 16 bits or four FP8 values
                   desc_b      u32  low word of B's descriptor
                   accumulate  constant: 0 overwrites acc, 1 adds to it
        Returns:   acc, in flight
        Orders:    needs wgmma.fence before, when acc or frag_a was touched since the last one
        Lanes:     layouts.lanes.WGMMA_ACCUMULATOR, layouts.lanes.WGMMA_A_FP8 or WGMMA_A_BITS16
        Async:     joins a group at `commit`; acc and frag_a may be used by nothing but further wgmmas until `wait`
        Emulates:  FP8 as `wgmma.mma`; 16 bits: the exact sum, rounded once to float32 (the tensor core keeps a bit or two more and cuts)
        """
        return wgmma("wgmma.mma_rs", acc, frag_a, None, desc_b, b, accumulate, (a_dtype, b_dtype))

    return mma


def mma_rs_f16_for(a_dtype: str, b_dtype: str, *, b: SmemDescriptor) -> Callable[..., Any]:
    """The operation `mma(acc, frag_a, desc_b, accumulate)` on FP8 with float16 accumulators, A in four registers a thread, B in shared memory.

    a_dtype, b_dtype  "float8_e4m3fn" or "float8_e5m2"
    """
    types = f"{DTYPES[a_dtype].ptx}.{DTYPES[b_dtype].ptx}"
    text = (
        _prologue({"b": b}) + f" wgmma.mma_async.sync.aligned.m64n{{acc.columns_f16}}k32.f16.{types} {{acc}}, {{frag_a}}, b, p, 1, 1; }}}}"
    )

    @op(text, scope=WARPGROUP, tied="acc", name="wgmma.mma_rs_f16")
    def mma(acc: Registers, frag_a: Registers, desc_b: u32, accumulate: Imm) -> Registers:
        """wgmma.mma_async - acc[64, N] = A[64, 32] @ B[N, 32].T (+ acc if `accumulate`), FP8, A in registers, with float16 accumulators.

        They are half as many registers as float32's, which leaves other instructions time beside the products (H200, 2026-11-30).

        PTX:       ISA 9.0, "wgmma.mma_async"; sm_90a
        Scope:     warpgroup
        Args:      acc         N/4 u32 registers of two float16 each, neighbours of a row; N a multiple of 8 from 8 to 256
                   frag_a      four u32, each four FP8 values
                   desc_b      u32  low word of B's descriptor
                   accumulate  constant: 0 overwrites acc, 1 adds to it
        Returns:   acc, in flight
        Orders:    needs wgmma.fence before, when acc or frag_a was touched since the last one
        Lanes:     layouts.lanes.WGMMA_ACCUMULATOR, two elements a register; layouts.lanes.WGMMA_A_FP8
        Async:     joins a group at `commit`; acc and frag_a may be used by nothing but further wgmmas until `wait_s32`
        Emulates:  sums as emu.tensor_core models them
        """
        return wgmma("wgmma.mma_rs_f16", acc, frag_a, None, desc_b, b, accumulate, (a_dtype, b_dtype), in_f16=True)

    return mma


def mma_rs_s8_for(*, b: SmemDescriptor) -> Callable[..., Any]:
    """The operation `mma(acc, frag_a, desc_b, accumulate)` on int8, A in four registers a thread, B in shared memory, with int32 accumulators."""
    text = _prologue({"b": b}) + " wgmma.mma_async.sync.aligned.m64n{acc.columns}k32.s32.s8.s8 {acc}, {frag_a}, b, p; }}"

    @op(text, scope=WARPGROUP, tied="acc", name="wgmma.mma_rs_s8")
    def mma(acc: Registers, frag_a: Registers, desc_b: u32, accumulate: Imm) -> Registers:
        """wgmma.mma_async - acc[64, N] = A[64, 32] @ B[N, 32].T (+ acc if `accumulate`), int8, A in registers; int32, wrapped.

        PTX:       ISA 9.0, "wgmma.mma_async"; sm_90a
        Scope:     warpgroup
        Args:      acc         N/2 u32 registers: int32, N a multiple of 8 up to 32, or of 16 up to 256
                   frag_a      four u32, each four int8
                   desc_b      u32  low word of B's descriptor
                   accumulate  constant: 0 overwrites acc, 1 adds to it
        Returns:   acc, in flight
        Orders:    needs wgmma.fence before, when acc or frag_a was touched since the last one
        Lanes:     layouts.lanes.WGMMA_ACCUMULATOR, layouts.lanes.WGMMA_A_FP8
        Async:     joins a group at `commit`; acc and frag_a may be used by nothing but further wgmmas until `wait_s32`
        Emulates:  exactly
        """
        return wgmma("wgmma.mma_rs_s8", acc, frag_a, None, desc_b, b, accumulate, ("int8", "int8"))

    return mma


@op("wgmma.wait_group.sync.aligned {pending};", scope=WARPGROUP, tied="acc")
def wait_s32(acc: Registers, pending: Imm) -> Registers:
    """wgmma.wait_group - `wait` for accumulators in u32 registers: int32, or two float16 each.

    PTX:       ISA 9.0, "wgmma.wait_group"; sm_90a
    Scope:     warpgroup
    Args:      acc      accumulators of the wgmmas waited for
               pending  constant
    Returns:   acc, now readable
    Orders:    the wgmmas' reads of shared memory are done, their registers are written
    Lanes:     layouts.lanes.WGMMA_ACCUMULATOR
    Emulates:  exactly
    """
    warpgroup().mma.wait(uniform(pending, "pending"))
    return [f.settled() if isinstance(f, Held) else f for f in acc]
