"""Scales as a GEMM asks for them, under DeepGEMM's names: which form a recipe needs on an architecture, and the k-grouped form.

::

    given                        sm_90                                  sm_100
    float32, 1x128               MN-major, aligned float32              packed UE8M0
    float32, 128x128             as it is (dense)                       rows repeated, packed UE8M0
    float32, 1x32 or 32x32 ...   -                                      rows repeated, packed UE8M0
    int32 (packed), 1x32, 1x128  MN-major, aligned int32 (DIFFERS)      MN-major, aligned int32

DIFFERS from DeepGEMM on sm_90, which refuses packed scales: our kernel unpacks them. What is packed
but not aligned is copied, where DeepGEMM asserts.

K-grouped (the weight gradient's operands, K of every group one after another): scales ``[sum of
k_blocks, mn]``, mn contiguous; each group's K-blocks are padded to whole words of their own (groups
of 3 and 5 K-blocks)::

    rows of sf        0 1 2 | 3 4 5 6 7
    rows of words     (0 1 2 .) | (3 4 5 6) (7 . . .)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import DTypeError, ProblemError, UnsupportedError
from ..xp import as_array, device_of, namespace
from .scales import get_mn_major_tma_aligned_packed_ue8m0_tensor, get_mn_major_tma_aligned_tensor, host_integers, mn_major, psum_ranges
from .ue8m0 import bytes_of, checked_words, ue8m0_bytes, ue8m0_values, words_of

MAX_K_GROUPS = 128
"""DeepGEMM's limit."""


def transform_sf_into_required_layout(
    sf: Any,
    mn: int,
    k: int,
    recipe: tuple[int, int, int] | tuple[int, int],
    num_groups: int | None = None,
    is_sfa: bool | None = None,
    disable_ue8m0_cast: bool = False,
    psum_layout: Any = None,
    *,
    arch: int = 9,
) -> Any:
    """Check the scales of an operand and lay them out as a GEMM on `arch` wants them (table: this module).

    Args:
        sf: float32 ``[(groups,) ceil(mn/gran_mn), ceil(k/gran_k)]``, or int32, four K-blocks each.
        mn, k: extents of the operand, in elements.
        recipe: ``(gran_m, gran_n, gran_k)`` with `is_sfa`, or ``(gran_mn, gran_k)`` without.
        num_groups: of a stack of operands; None for one.
        is_sfa: whether a recipe of three is read for A.
        disable_ue8m0_cast: on sm_100, keep float32.
        psum_layout: see `get_mn_major_tma_aligned_packed_ue8m0_tensor`.
        arch: 9 (Hopper) or 10.

    Raises:
        DTypeError: neither float32 nor int32. ProblemError: scales that do not fit, or a recipe
            given in part. UnsupportedError: no such form on `arch`.
    """
    gran_mn, gran_k = _granularity(recipe, is_sfa)
    view = as_array(sf, "sf")
    sf = view.array
    if sf.dtype not in (np.float32, np.int32):
        raise DTypeError(f"sf: expected float32 scales, or int32 of four UE8M0 each, got {view.dtype_name}")
    is_packed = sf.dtype == np.int32
    _check_shape(sf, mn, k, (gran_mn, gran_k), num_groups, is_packed)
    keeps_float = arch == 9 or disable_ue8m0_cast
    if is_packed:
        if gran_mn == 1 and gran_k in (32, 128):
            return mn_major(sf)
    elif keeps_float and (gran_mn, gran_k) == (1, 128):
        return get_mn_major_tma_aligned_tensor(sf)
    elif keeps_float and (gran_mn, gran_k) == (128, 128):
        return _dense(sf)
    elif arch == 10 and not disable_ue8m0_cast and gran_k in (32, 128):
        return get_mn_major_tma_aligned_packed_ue8m0_tensor(_each_row(sf, gran_mn, mn), psum_layout)
    kind = "packed" if is_packed else "float32"
    raise UnsupportedError(f"recipe: no layout for {kind} scales of {gran_mn}x{gran_k} on sm_{arch}0")


def get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(
    sf: Any, grouped_layout: Any, ks_cpu: Sequence[int] | None, gran_k: int, k_alignment: int = 128, use_psum_layout: bool = False
) -> Any:
    """Pack the scales of K-grouped operands four to an int32, each group padded to whole words.

    Args:
        sf: float32 or float8_e8m0fnu ``[sum of ceil(k_g / gran_k), mn]``, groups one after another.
        grouped_layout: int32 ``[groups]``: K of each group, or with `use_psum_layout` where each
            ends, beginning at the end before it rounded up to `k_alignment`.
        ks_cpu: K of each group, known on the host; None (psum only): the size is then an upper bound.
        gran_k: K of a scale, 32 or 128.
        k_alignment: see `grouped_layout`; a multiple of 32.

    Returns:
        int32 ``[sum of ceil(k_g / (4 gran_k)), mn]``, C-contiguous: mn is a multiple of 4, so every
        row begins on 16 bytes. Rows beyond the groups' are 0.

    Raises:
        DTypeError, ProblemError: what does not fit, by name.
    """
    sf = as_array(sf, "sf").array
    counts, rows = _k_groups(sf, grouped_layout, ks_cpu, gran_k, k_alignment, use_psum_layout)
    xp = namespace(sf)
    with device_of(sf):
        padded = xp.zeros((rows * 4, sf.shape[1]), xp.uint8)
        first = at = 0
        for count in counts:
            padded[at : at + count] = ue8m0_bytes(sf[first : first + count])
            first, at = first + count, at + -(-count // 4) * 4
        # [words, 4, mn] with the four side by side
        words = words_of(padded.reshape(rows, 4, sf.shape[1]).swapaxes(1, 2))
        return words.reshape(rows, sf.shape[1])


def get_k_grouped_row_major_ue8m0_tensor(packed: Any, ks: Sequence[int], gran_k: int) -> Any:
    """Inverse of `get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor`: float32 ``[sum of ceil(k_g / gran_k), mn]``."""
    packed = checked_words(packed, "packed")
    counts = [-(-k // gran_k) for k in ks]
    need = sum(-(-n // 4) for n in counts)
    if packed.ndim != 2 or packed.shape[0] < need:
        raise ProblemError(f"packed: expected [{need}, mn] for K {list(ks)} at {gran_k} a scale, got {list(packed.shape)}")
    xp = namespace(packed)
    with device_of(packed):
        codes = bytes_of(packed[..., None]).swapaxes(1, 2).reshape(-1, packed.shape[1])
        parts, at = [codes[:0]], 0
        for count in counts:
            parts.append(codes[at : at + count])
            at += -(-count // 4) * 4
        return ue8m0_values(xp.concatenate(parts))


def transform_k_grouped_sf_into_required_layout(
    sf: Any,
    ks_cpu: Sequence[int] | None,
    grouped_layout: Any,
    recipe: tuple[int, int, int],
    k_alignment: int = 128,
    use_psum_layout: bool = False,
    *,
    arch: int = 9,
) -> Any:
    """Scales of a K-grouped operand as the GEMM on `arch` wants them: float32 MN-major on sm_90, packed on sm_100.

    Args:
        sf: on sm_90 float32 ``[mn, sum of k_blocks]`` (from a per-channel cast: its transpose); on
            sm_100 float32 ``[sum of k_blocks, mn]``, or int32, packed already.
        recipe: ``(1, 1, gran_k)``, gran_k 32 or 128.
        ks_cpu, grouped_layout, k_alignment, use_psum_layout: see
            `get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor`.
    """
    if recipe[:2] != (1, 1) or recipe[2] not in (32, 128):
        raise ProblemError(f"recipe: expected (1, 1, 32) or (1, 1, 128) for K-grouped scales, got {recipe}")
    view = as_array(sf, "sf")
    if view.array.dtype == np.float32 and arch == 9:
        return get_mn_major_tma_aligned_tensor(sf)
    if view.array.dtype == np.float32 and arch == 10:
        return get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(sf, grouped_layout, ks_cpu, recipe[2], k_alignment, use_psum_layout)
    if view.array.dtype == np.int32 and arch == 10:
        words = view.array
        need = 1 if ks_cpu is None or use_psum_layout else sum(-(-k // (4 * recipe[2])) for k in ks_cpu)
        if words.ndim != 2 or words.shape[0] < need or words.shape[1] % 4:
            raise ProblemError(f"sf: expected packed int32 [{need} or more, a multiple of 4], got {list(words.shape)}")
        return namespace(words).ascontiguousarray(words)
    raise UnsupportedError(f"sf: no K-grouped layout for {view.dtype_name} scales on sm_{arch}0")


def _granularity(recipe: tuple[int, ...], is_sfa: bool | None) -> tuple[int, int]:
    if len(recipe) not in (2, 3) or (len(recipe) == 3) != (is_sfa is not None):
        raise ProblemError(
            f"recipe: expected (gran_m, gran_n, gran_k) with is_sfa, or (gran_mn, gran_k) without, got {recipe}, is_sfa={is_sfa}"
        )
    if len(recipe) == 2:
        return recipe[0], recipe[1]
    return recipe[0] if is_sfa else recipe[1], recipe[2]


def _check_shape(sf: Any, mn: int, k: int, granularity: tuple[int, int], num_groups: int | None, is_packed: bool) -> None:
    gran_mn, gran_k = granularity
    groups = () if num_groups is None else (num_groups,)
    expected = (*groups, -(-mn // gran_mn), -(-k // (gran_k * (4 if is_packed else 1))))
    if sf.shape != expected:
        turned = sf.shape == (*groups, expected[-1], expected[-2])
        packs = ", four to an int32" if is_packed else ""
        raise ProblemError(
            f"sf: expected {sf.dtype} {list(expected)} for an operand of {[*groups, mn, k]} (one per {gran_mn}x{gran_k}{packs}), "
            f"got {list(sf.shape)}" + ("; transposed?" if turned else "")
        )


def _dense(sf: Any) -> Any:
    """As it is when dense, either axis contiguous; else a row-major copy (DIFFERS: DeepGEMM refuses)."""
    flags = [m.flags.c_contiguous for m in (sf, sf.swapaxes(-1, -2))]
    return sf if any(flags) else namespace(sf).ascontiguousarray(sf)


def _each_row(sf: Any, gran_mn: int, mn: int) -> Any:
    if gran_mn == 1:
        return sf
    xp = namespace(sf)
    with device_of(sf):
        return xp.take(sf, xp.arange(mn) // gran_mn, axis=-2)


def _k_groups(
    sf: Any, grouped_layout: Any, ks_cpu: Sequence[int] | None, gran_k: int, k_alignment: int, use_psum_layout: bool
) -> tuple[list[int], int]:
    """(scale rows of each group, packed rows), checked against `sf`."""
    if gran_k not in (32, 128):
        raise ProblemError(f"gran_k: expected 32 or 128, got {gran_k}")
    if k_alignment < 32 or k_alignment % 32:
        raise ProblemError(f"k_alignment: expected a multiple of 32, got {k_alignment}")
    if sf.ndim != 2 or sf.shape[1] % 4:
        raise ProblemError(f"sf: expected [sum of k_blocks, mn], mn in multiples of 4, got {list(sf.shape)}; transposed?")
    layout = host_integers(grouped_layout, "grouped_layout")
    if len(layout) > MAX_K_GROUPS:
        raise ProblemError(f"grouped_layout: expected at most {MAX_K_GROUPS} groups, got {len(layout)}")
    if ks_cpu is not None and len(ks_cpu) not in (0, len(layout)):
        raise ProblemError(f"ks_cpu: expected {len(layout)} entries as in grouped_layout, got {len(ks_cpu)}")
    known = list(ks_cpu) if ks_cpu else None
    if known is None and not use_psum_layout:
        raise ProblemError("ks_cpu: expected K of each group (only with use_psum_layout it may be None), got none")
    if use_psum_layout:
        ks = [end - first for first, end in psum_ranges(layout, max([*layout, 0]), k_alignment, "grouped_layout")]
    else:
        ks = layout
        if known != layout:
            raise ProblemError(f"ks_cpu: expected the same as grouped_layout, {layout}, got {known}")
    counts = [-(-k // gran_k) for k in ks]
    if sum(counts) > sf.shape[0] or (not use_psum_layout and sum(counts) != sf.shape[0]):
        raise ProblemError(f"sf: expected {sum(counts)} rows for K {ks} at {gran_k} a scale, got {sf.shape[0]}")
    rows = sum(-(-k // (4 * gran_k)) for k in known) if known else (sf.shape[0] + 3 * len(layout)) // 4
    need = sum(-(-n // 4) for n in counts)
    if rows < need:
        raise ProblemError(f"ks_cpu: expected K of at least {ks}, as grouped_layout says, got {known}")
    return counts, rows
