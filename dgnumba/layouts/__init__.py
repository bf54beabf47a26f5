"""Index maps, and the array moves that apply them: which byte, lane or tile an element is at, and back.

`int4` holds the 4-bit layouts by name; scale factors are in `scales` and `ue8m0`, what a GEMM asks
of them under DeepGEMM's names in `required`, and the 128x4 tiles of later GPUs in `scale_tiles`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .required import get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor as get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor
from .required import transform_k_grouped_sf_into_required_layout as transform_k_grouped_sf_into_required_layout
from .required import transform_sf_into_required_layout as transform_sf_into_required_layout
from .scale_tiles import TILES_128X4 as TILES_128X4
from .scales import get_mn_major_tma_aligned_packed_ue8m0_tensor as get_mn_major_tma_aligned_packed_ue8m0_tensor
from .scales import get_mn_major_tma_aligned_tensor as get_mn_major_tma_aligned_tensor
from .scales import get_tma_aligned_size as get_tma_aligned_size
from .scales import pack_ue8m0_to_int as pack_ue8m0_to_int
from .scales import unpack_ue8m0_from_int as unpack_ue8m0_from_int

if TYPE_CHECKING:
    from . import int4 as int4


def __getattr__(name: str) -> Any:
    if name != "int4":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # when it is first asked for: no FP8 product needs it
    return import_module(".int4", __name__)
