"""What plans `smxx_quantize` has: which there are, and their launch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from ..dtypes import DTYPES
from ..integers import u64
from .smxx_cast_rules import ARGTYPES as CAST_ARGTYPES
from .smxx_cast_rules import ITEMSIZE, WARP_COLUMNS, WIDTH, BuiltCast

ROWS = 8
GROUPS, PIECES_OF_A_ROW, ROW_THREADS, MAX_ROW_THREADS = (16, 32, 64, 128, 256, 512), (1, 2, 4), 256, 512
PARTIALS, AMAX_THREADS, REGISTERS = 256, 512, 65536
UE8M0_RULES = ("rceil", "floor", "ceil", "even")
RULES = {
    "float8_e4m3fn": ("amax", *UE8M0_RULES),
    "float4_e2m1fn": ("deepgemm", "deepgemm_ue8m0", "nvfp4", *UE8M0_RULES),
    "int4": ("amax/7", "amax/7.5"),
    "int8": ("amax",),
}
"""Element -> the rules by which its scales are found: those of `quant.scale`, and "nvfp4", of an e4m3 scale below one of the tensor."""

ARGTYPES = (*CAST_ARGTYPES, u64, u64)
"""(x, its row pitch, its column pitch, q, scales, their row pitch, their column pitch, m, k, ...): addresses and bytes; elements. Then of a
tensor's one scale: the partial maxima, or the scale as given, and where to write it."""


@dataclass(frozen=True)
class QuantizePlan:
    """Every choice that is frozen into a cast.

    element    type of the codes
    x_dtype    type of the input
    blocks     "group" (1 x group), "row" or "tensor"
    group      elements that share a scale; of "row" the threads of a CTA
    rule       how the scale follows from amax: one of `RULES`
    packed     two codes of 4 bits a byte
    words      scales are UE8M0, four to an int32 (DeepGEMM's alone), filled up with 1.0
    is_given   NVFP4's scale of the tensor is given
    pieces     of a row, of sixteen elements, that a thread holds
    is_vector  the input has rows in pieces of 16 bytes, and so has the output
    is_native  the GPU converts to e4m3 (sm_89)
    """

    element: str
    x_dtype: str
    blocks: str = "group"
    group: int = 128
    rule: str = "amax"
    packed: bool = False
    words: bool = False
    is_given: bool = False
    pieces: int = 1
    is_vector: bool = True
    is_native: bool = True

    @property
    def has_partials(self) -> bool:
        """Whether `build_amax` has to run before."""
        return self.blocks == "tensor" or (self.rule == "nvfp4" and not self.is_given)

    @property
    def scale_dtype(self) -> str:
        """Type of the scales in memory."""
        if self.rule in UE8M0_RULES:
            return "float8_e8m0fnu"
        return "float8_e4m3fn" if self.rule == "nvfp4" else "int32" if self.words else "float32"


@dataclass(frozen=True)
class AmaxPlan:
    """Every choice that is frozen into the pass that looks for a tensor's largest magnitude.

    x_dtype     type of the input
    all_finite  pieces of sixteen that hold what is not finite are left out
    is_vector   the input has rows in pieces of 16 bytes
    """

    x_dtype: str
    all_finite: bool
    is_vector: bool = True


def refusal(plan: QuantizePlan) -> str | None:
    """Why there is no kernel for a plan, or None."""
    if plan.x_dtype not in ITEMSIZE:
        return f"takes x of {', '.join(ITEMSIZE)}, got {plan.x_dtype}"
    if plan.rule not in RULES.get(plan.element, ()):
        return f"takes {', '.join(f'{e} by {r}' for e, rules in RULES.items() for r in rules)}, got {plan.element} by {plan.rule}"
    if plan.blocks == "group" and (plan.group not in GROUPS or plan.rule == "nvfp4" and plan.group != WIDTH):
        return f"takes groups of {WIDTH if plan.rule == 'nvfp4' else ', '.join(map(str, GROUPS))}, got {plan.group}"
    if plan.blocks != "group" and plan.scale_dtype != "float32":
        return f"takes groups of columns for scales of {plan.scale_dtype}, got {plan.blocks}"
    if plan.words and (plan.rule != "deepgemm_ue8m0" or plan.group > 128):
        return f"packs UE8M0 scales of 1 x 16 to 1 x 128 by deepgemm_ue8m0, got {plan}"
    if plan.packed and DTYPES[plan.element].bits != 4:
        return f"packs codes of 4 bits, got {plan.element}"
    return None


def row_shape(k: int, packed: bool) -> tuple[int, int] | None:
    """Threads of a CTA that holds a row of k elements, and pieces of each; None: there is no such CTA.

    Rather more pieces than more threads: a CTA waits for all of its row, and others on the multiprocessor load meanwhile.
    """
    if k > PIECES_OF_A_ROW[-1] * MAX_ROW_THREADS * WIDTH:
        return None
    fits = (p for p in PIECES_OF_A_ROW if p * ROW_THREADS * WIDTH >= k and (p > 1 or not packed))
    pieces = next(fits, PIECES_OF_A_ROW[-1])
    return -(-k // (32 * WIDTH * pieces)) * 32, pieces


def grid(plan: QuantizePlan, m: int, k: int) -> tuple[int, int]:
    """CTAs along K and along M; all go on below what fits."""
    if plan.blocks == "row":
        return 1, min(m, 65535)
    return -(-k // (WARP_COLUMNS * plan.pieces)), min(-(-m // ROWS), 65535)


def amax_grid(m: int, k: int) -> tuple[int, int]:
    """CTAs along K and along M, `PARTIALS` together or fewer, as many as there are tiles; all with as many tiles, as far as that goes."""
    columns, tiles = min(-(-k // WARP_COLUMNS), PARTIALS), max(1, -(-m // (AMAX_THREADS // 32 * 2)))
    turns = -(-tiles // (PARTIALS // columns))
    return columns, -(-tiles // turns)


def threads(plan: QuantizePlan | AmaxPlan) -> int:
    """Threads of a CTA."""
    if isinstance(plan, AmaxPlan):
        return AMAX_THREADS
    return plan.group if plan.blocks == "row" else 32 * ROWS


def min_ctas(plan: QuantizePlan | AmaxPlan) -> int:
    """CTAs that a multiprocessor is to have registers for.

    NOTE: of groups 5 (48 registers), or 6 (40) where that spills nothing, float32 in two pieces 4 (64), or ptxas takes up to 116 and leaves too
    few loads in flight; of rows what leaves 48 beside those that hold the elements. Of 40 registers the partial maxima leave too few for all
    loads: ptxas then sends the last two when the first have come, which no count of spills shows (tests/kernels/test_cast_compile.py does).
    """
    if isinstance(plan, AmaxPlan) or not plan.is_vector:
        return 1
    words = 4 * ITEMSIZE[plan.x_dtype] * plan.pieces
    if plan.blocks == "row":
        return max(1, REGISTERS // (plan.group * (48 + words)))
    if plan.blocks == "tensor" and words == 8 and plan.is_native:
        return 8
    if words == 16 and plan.rule == "deepgemm":
        return 6
    return 4 if words == 32 or not plan.is_native else 5


@cache
def build(plan: QuantizePlan | AmaxPlan) -> BuiltCast:
    """The kernel of a plan. Imports its file, and Numba with it."""
    from . import smxx_quantize

    return smxx_quantize.build_amax(plan) if isinstance(plan, AmaxPlan) else smxx_quantize.build(plan)
