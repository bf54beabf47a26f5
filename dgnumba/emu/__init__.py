"""The machine that interprets a kernel: threads, time and memory of a Hopper GPU, on any CPU; it knows no instruction.

``emu.run(kernel, grid, block, args)`` steps any `@cuda.jit` kernel and reports, as errors, what the hardware forbids or leaves undefined.
The bodies of `dgnumba.ptx`'s operations use the rest: `thread`, `cta`, `warpgroup`, `perform`, `AsyncOp`, `Region`, `Fragment`.
"""

from .async_ops import AsyncOp
from .checks import Report, check
from .fragment import Fragment
from .machine import thread
from .observe import Access, Move, Note, Observer, Transfer
from .region import Region
from .run import CLUSTER, CTA, THREAD, WARP, WARPGROUP, compose, cta, lanes, perform, run, uniform, warpgroup
from .stepping import Session, step
from .trace import Trace
from .views import BarrierView, SmemView, ThreadView

__all__ = [
    "CLUSTER",
    "CTA",
    "THREAD",
    "WARP",
    "WARPGROUP",
    "Access",
    "AsyncOp",
    "BarrierView",
    "Fragment",
    "Move",
    "Note",
    "Observer",
    "Region",
    "Session",
    "SmemView",
    "ThreadView",
    "Report",
    "Trace",
    "Transfer",
    "check",
    "compose",
    "cta",
    "lanes",
    "perform",
    "run",
    "step",
    "thread",
    "uniform",
    "warpgroup",
]
