"""The instruction set: one family a file, one operation a function, which works in any `@cuda.jit` kernel.

from dgnumba.ptx import mbarrier, tma, wgmma
"""

from ..integers import u32, u64
from . import (
    activation,
    barrier,
    clock,
    convert,
    cp_async,
    fragment,
    matrix,
    mbarrier,
    memory,
    mma,
    packed,
    prefetch,
    st_async,
    thread,
    tma,
    transpose,
    unpack,
    wgmma,
)
from ._declare import OPS, Fragment, Imm, Registers, TensorMapArg, f32, op, select, unrolled

__all__ = [
    "Fragment",
    "Imm",
    "OPS",
    "Registers",
    "TensorMapArg",
    "activation",
    "barrier",
    "clock",
    "convert",
    "cp_async",
    "f32",
    "fragment",
    "matrix",
    "mbarrier",
    "memory",
    "mma",
    "op",
    "packed",
    "prefetch",
    "select",
    "st_async",
    "thread",
    "tma",
    "transpose",
    "u32",
    "u64",
    "unpack",
    "unrolled",
    "wgmma",
]
