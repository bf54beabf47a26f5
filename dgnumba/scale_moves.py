"""Scales from one form to another, by where they lie: NumPy by `layouts.scales`, a GPU's by one kernel, bit for bit the same.

Rank 3 and prefix-sum layouts go the way of the host on the GPU too, by CuPy, in several passes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .kernels import smxx_layout_rules as rules
from .kernels.smxx_layout_rules import LayoutPlan
from .layouts import scales
from .layouts.ue8m0 import checked_words
from .onepass import On, launch, machine, new_scales, queued
from .xp import address, as_array, namespace

_MAX_GRID_Y = 65535
"""CTAs along y that CUDA launches."""


def get_mn_major_tma_aligned_tensor(sf: Any, *, on: On | None = None, stream: Any = None, policy: str = "eager") -> Any:
    """Turn float32 scales to MN-major, TMA-aligned memory; the values and the shape stay (picture: `layouts.scales`).

    Args:
        sf: float32 ``[mn, k_blocks]`` or ``[groups, mn, k_blocks]``, any strides; NumPy, CuPy, torch or JAX.
        on: "cuda", or "emulator": the GPU's kernel interpreted, on NumPy arrays; None: where `sf` is.
        stream: the stream to run on; by default the array's own (CuPy's current one).
        policy: of the emulator.

    Returns:
        An array of the same shape with element strides ``(1, aligned mn)``, groups one after
        another. An array that conforms already shares its memory with the result.

    Raises:
        DTypeError: not float32. ProblemError: not of rank 2 or 3.
    """
    array = as_array(sf, "sf").array
    device = machine(array, on, "sf")
    strides = (4, scales.get_tma_aligned_size(array.shape[0], 4) * 4) if array.ndim == 2 else ()
    if device is None or not _is_taken("turn", array) or scales._conforms(array, strides):
        with queued(array, sf, stream):
            return scales.get_mn_major_tma_aligned_tensor(array)
    out, _ = _moved("turn", array, sf, array.shape, False, True, (on, stream, policy))
    return out


def get_row_major_tensor(sf: Any, *, on: On | None = None, stream: Any = None, policy: str = "eager") -> Any:
    """Inverse of `get_mn_major_tma_aligned_tensor`: the same scales, C-contiguous, no padding; arguments likewise."""
    array = as_array(sf, "sf").array
    device = machine(array, on, "sf")
    if device is None or not _is_taken("turn", array) or array.flags.c_contiguous or not _is_taken("turn", array.T):
        with queued(array, sf, stream):
            return scales.get_row_major_tensor(array)
    # row-major scales [mn, k] are MN-major ones [k, mn] without padding
    with queued(array, sf, stream) as handle:
        out = namespace(array).empty(array.shape, np.float32)
        _turn(
            array.T, out, out, out.strides[0], None, LayoutPlan("turn", _by_16(array.T), out.strides[0] % 16 == 0), device, handle, policy
        )
    return out


def get_mn_major_tma_aligned_packed_ue8m0_tensor(
    sf: Any,
    psum_layout: Any = None,
    *,
    m_alignment: int = 128,
    check: bool = True,
    on: On | None = None,
    stream: Any = None,
    policy: str = "eager",
) -> Any:
    """Pack power-of-two scales four to an int32 and turn them to MN-major, TMA-aligned memory (picture: `layouts.ue8m0`).

    Args:
        sf: float32 or float8_e8m0fnu ``[mn, k_blocks]`` or ``[groups, mn, k_blocks]``, any strides.
        psum_layout, m_alignment: as in `layouts.scales.get_mn_major_tma_aligned_packed_ue8m0_tensor`.
        check: whether to wait for the kernel and refuse scales that are no powers of two; without,
            their mantissa is dropped unseen. Of the kernel alone.
        on, stream, policy: as in `get_mn_major_tma_aligned_tensor`.

    Returns:
        int32 ``[..., mn, ceil(k_blocks / 4)]``, element strides ``(1, aligned mn)``.

    Raises:
        DTypeError: another type. ProblemError: a scale that is no power of two; another rank.
    """
    array = as_array(sf, "sf").array
    if machine(array, on, "sf") is None or psum_layout is not None or not _is_taken("pack", array):
        with queued(array, sf, stream):
            return scales.get_mn_major_tma_aligned_packed_ue8m0_tensor(array, psum_layout, m_alignment=m_alignment)
    with queued(array, sf, stream):
        out, flag = _moved("pack", array, sf, array.shape, True, True, (on, stream, policy))
        if check and int(flag[0]):
            scales.get_mn_major_tma_aligned_packed_ue8m0_tensor(array)  # says which
    return out


def get_row_major_ue8m0_tensor(
    packed: Any, k_blocks: int | None = None, *, on: On | None = None, stream: Any = None, policy: str = "eager"
) -> Any:
    """Inverse of `get_mn_major_tma_aligned_packed_ue8m0_tensor`: float32 ``[..., mn, k_blocks]``, C-contiguous.

    Args:
        packed: int32 ``[..., mn, words]``, any strides.
        k_blocks: how many of the ``4 words`` there are; by default all.
        on, stream, policy: as in `get_mn_major_tma_aligned_tensor`.
    """
    return unpacked(packed, k_blocks, mn_major=False, on=on, stream=stream, policy=policy)


def unpacked(
    packed: Any,
    k_blocks: int | None = None,
    *,
    mn_major: bool = True,
    on: On | None = None,
    stream: Any = None,
    policy: str = "eager",
) -> Any:
    """Float32 scales of packed ones, straight in MN-major, TMA-aligned memory; arguments as of `get_row_major_ue8m0_tensor`."""
    words = checked_words(packed, "packed")
    k_blocks = 4 * words.shape[-1] if k_blocks is None else k_blocks
    if machine(words, on, "packed") is None or not _is_taken("unpack", words) or -(-k_blocks // 4) != words.shape[1]:
        with queued(words, packed, stream):
            values = scales.get_row_major_ue8m0_tensor(words, k_blocks)
            return scales.mn_major(values) if mn_major else values
    out, _ = _moved("unpack", words, packed, (words.shape[0], k_blocks), False, mn_major, (on, stream, policy))
    return out


def _moved(
    move: str, array: Any, owner: Any, shape: tuple[int, int], packed: bool, mn_major: bool, how: tuple[On | None, Any, str]
) -> tuple[Any, Any]:
    """Run a move; give the new scales of `shape` (in float32), and the flag for bad ones that "pack" may raise."""
    on, stream, policy = how
    device, xp = machine(array, on, "sf"), namespace(array)
    assert device is not None
    with queued(array, owner, stream) as handle:
        out, memory = new_scales(shape, packed, mn_major, array)
        flag = xp.zeros(1, np.int32) if move == "pack" else None
        if move == "unpack":
            by_m = array.strides[0] == 4 and array.strides[1] % 16 == 0 and array.shape[0] % 4 == 0 and address(array) % 16 == 0
            plan = LayoutPlan(move, bool(by_m), mn_major)
            args = [address(array), *array.strides, address(out), *out.strides, *shape]
            launch(plan, rules, rules.grid(plan, *shape), args, (array, memory), device, handle, policy)
        else:
            _turn(array, out, memory, out.strides[1], flag, LayoutPlan(move, _by_16(array), mn_major), device, handle, policy)
    return out, flag


def _turn(array: Any, out: Any, memory: Any, pitch: int, flag: Any, plan: LayoutPlan, device: Any, stream: int | None, policy: str) -> None:
    """Launch "turn" or "pack": `out` is given by its address and the pitch of its lines."""
    grid = rules.grid(plan, *array.shape)
    args = [address(array), *array.strides, address(out), pitch, 0 if flag is None else address(flag), *array.shape]
    arrays = (array, memory) if flag is None else (array, memory, flag)
    launch(plan, rules, grid, args, arrays, device, stream, policy)


def _is_taken(move: str, array: Any) -> bool:
    """Whether there is a kernel for the array; else CuPy, or NumPy, moves it."""
    if array.dtype != (np.int32 if move == "unpack" else np.float32) or array.ndim != 2 or array.size == 0:
        return False
    columns = 4 * array.shape[1] if move == "unpack" else array.shape[1]
    return rules.grid(LayoutPlan(move), array.shape[0], columns)[1] <= _MAX_GRID_Y


def _by_16(array: Any) -> bool:
    """Whether the rows of an array of four-byte elements can be read by 16 bytes."""
    (pitch, step), columns = array.strides, array.shape[1]
    return bool(step == 4 and columns % 4 == 0 and (pitch % 16 == 0 or array.shape[0] == 1) and address(array) % 16 == 0)


__all__ = [
    "get_mn_major_tma_aligned_packed_ue8m0_tensor",
    "get_mn_major_tma_aligned_tensor",
    "get_row_major_tensor",
    "get_row_major_ue8m0_tensor",
    "unpacked",
]
