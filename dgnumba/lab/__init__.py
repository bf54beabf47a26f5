"""The lab: what a kernel does, as data and as pictures, on any machine.

A timeline of warps, copies and products (`timeline`, `trace_gemm`), shared memory and its banks (`smem_tile`, `bank_heat`), who holds what of a
fragment (`fragment_map`), the order of tiles (`tile_raster`), and where a plan stands (`roofline`). Whatever has a picture has a method `draw`,
which needs matplotlib (``pip install 'dgnumba[notebooks]'``); the data do not. Stepping is `dgnumba.emu.step`.
"""

from .calls import emulated, trace_gemm
from .clocks import Watched, watch, watch_gemm
from .costs import Costs
from .fragments import FragmentMap, fragment_map
from .raster import TileRaster, tile_order, tile_raster
from .record import Recorder, timeline
from .roofline import Roofline, roofline
from .shared import BankHeat, SmemTile, bank_heat, smem_tile
from .timeline import Span, Timeline, beside

__all__ = [
    "BankHeat",
    "Costs",
    "FragmentMap",
    "Recorder",
    "Roofline",
    "SmemTile",
    "Span",
    "TileRaster",
    "Timeline",
    "Watched",
    "bank_heat",
    "beside",
    "emulated",
    "fragment_map",
    "roofline",
    "smem_tile",
    "tile_order",
    "tile_raster",
    "timeline",
    "trace_gemm",
    "watch",
    "watch_gemm",
]
