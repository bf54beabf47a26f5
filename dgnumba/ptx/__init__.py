"""The instruction set: one family a file, one operation a function, which works in any `@cuda.jit` kernel.

from dgnumba.ptx import mbarrier, tma, wgmma
"""

from ..integers import u32, u64
from . import barrier, convert, fragment, matrix, mbarrier, memory, thread, tma, wgmma
from ._declare import OPS, Fragment, Imm, Registers, TensorMapArg, f32, op, select, unrolled

__all__ = [
    "Fragment",
    "Imm",
    "OPS",
    "Registers",
    "TensorMapArg",
    "barrier",
    "convert",
    "f32",
    "fragment",
    "matrix",
    "mbarrier",
    "memory",
    "op",
    "select",
    "thread",
    "tma",
    "u32",
    "u64",
    "unrolled",
    "wgmma",
]
