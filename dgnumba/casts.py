"""Casts to FP8 and moves of scales, by where the array lies: NumPy by `quant` and `layouts`, a GPU's by one kernel, bit for bit the same.

    per_token_cast_to_fp8(x) -> QTensor             x in host memory: quant.fp8            x on a GPU: kernels.smxx_cast

What no kernel takes (float64, odd groups) goes the way of the host on the GPU too, by CuPy, in several passes.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from . import quant
from .kernels import smxx_cast_rules as rules
from .kernels.smxx_cast_rules import CastPlan
from .layouts.scales import mn_major as turned
from .onepass import On, launch, machine, new_scales, queued
from .problem import scale_shape
from .quant import QTensor
from .quant.fp8 import E4M3
from .xp import ArrayView, address, as_array, carrier, namespace

_MULTIPLE = 16
"""Bytes of an access, and the elements that a thread stores: where rows begin and end for the vector form of a cast."""


def per_token_cast_to_fp8(
    x: Any,
    use_ue8m0: bool = False,
    gran_k: int = 128,
    use_packed_ue8m0: bool = False,
    *,
    mn_major: bool = False,
    on: On | None = None,
    stream: Any = None,
    policy: str = "eager",
) -> QTensor:
    """Quantize `x` to e4m3 with one scale for each row and `gran_k` columns: the left operand of `fp8_gemm_nt`.

    Args:
        x: ``[m, n]``, any float type, any strides; NumPy, CuPy, torch or JAX. Not modified.
        use_ue8m0: round the scales up to powers of two, before the data is divided by them.
        gran_k: columns that share a scale; the last group may be shorter.
        use_packed_ue8m0: the scales as int32, four UE8M0 bytes each, the first in the lowest byte;
            a last one is filled up with 1.0. Only with `use_ue8m0`.
        mn_major: the scales in the memory that a GEMM reads, MN-major and TMA-aligned
            (`layouts.scales`), in the place of row-major.
        on: "cuda", or "emulator": the GPU's kernel interpreted, on NumPy arrays; None: where `x` is.
        stream: the stream to run on; by default the array's own (CuPy's current one).
        policy: of the emulator.

    Returns:
        QTensor with data ``[m, n]`` and scale float32 ``[m, ceil(n / gran_k)]`` (packed: a quarter
        of the columns, rounded up).

    Raises:
        DTypeError: `x` is no array of a float type. ProblemError: not of rank 2, `gran_k` below 1,
            or packed scales that are no powers of two.

    >>> import numpy as np
    >>> per_token_cast_to_fp8(np.ones((3, 200), np.float32))
    QTensor(float8_e4m3fn [3, 200], scale float32 [3, 2], one per 1x128)
    """
    run = _Run(as_array(x, "x"), x, on, stream, policy)
    plan = run.plan("token", gran_k, use_ue8m0, use_packed_ue8m0)
    if plan is not None:
        return run.cast(plan, (1, gran_k), mn_major)
    with run.queued():
        q = quant.per_token_cast_to_fp8(x, use_ue8m0, gran_k, use_packed_ue8m0)
        return QTensor(q.data, turned(q.scale), q.dtype, q.granularity) if mn_major else q


def per_channel_cast_to_fp8(
    x: Any, use_ue8m0: bool = False, gran_k: int = 128, *, on: On | None = None, stream: Any = None, policy: str = "eager"
) -> QTensor:
    """Quantize `x` to e4m3 with one scale for each column and `gran_k` rows.

    Args:
        x: ``[m, n]`` as in `per_token_cast_to_fp8`; m must be a multiple of `gran_k`.
        use_ue8m0: round the scales up to powers of two.
        gran_k: rows that share a scale.
        on, stream, policy: as in `per_token_cast_to_fp8`.

    Returns:
        QTensor with data ``[m, n]`` and scale float32 ``[m / gran_k, n]``.

    Raises:
        DTypeError: `x` is no array of a float type. ProblemError: wrong rank, or rows that are no
            multiple of `gran_k`.
    """
    run = _Run(as_array(x, "x"), x, on, stream, policy)
    plan = run.plan("channel", gran_k, use_ue8m0)
    if plan is None or run.shape[0] % gran_k:
        with run.queued():
            return quant.per_channel_cast_to_fp8(x, use_ue8m0, gran_k)
    return run.cast(plan, (gran_k, 1))


def per_block_cast_to_fp8(
    x: Any, use_ue8m0: bool = False, gran_k: int = 128, *, on: On | None = None, stream: Any = None, policy: str = "eager"
) -> QTensor:
    """Quantize `x` to e4m3 with one scale for each `gran_k` x `gran_k` block: the right operand of `fp8_gemm_nt`.

    Args:
        x: ``[m, n]`` as in `per_token_cast_to_fp8`; blocks at the lower and right edge may be smaller.
        use_ue8m0: round the scales up to powers of two.
        gran_k: rows, and columns, that share a scale.
        on, stream, policy: as in `per_token_cast_to_fp8`.

    Returns:
        QTensor with data ``[m, n]`` and scale float32 ``[ceil(m / gran_k), ceil(n / gran_k)]``.

    Raises:
        DTypeError: `x` is no array of a float type. ProblemError: not of rank 2, or `gran_k` below 1.
    """
    run = _Run(as_array(x, "x"), x, on, stream, policy)
    plan = run.plan("block", gran_k, use_ue8m0)
    if plan is None:
        with run.queued():
            return quant.per_block_cast_to_fp8(x, use_ue8m0, gran_k)
    return run.cast(plan, (gran_k, gran_k))


class _Run:
    """One call: where it runs, and its cast."""

    def __init__(self, view: ArrayView, owner: Any, on: On | None, stream: Any, policy: str) -> None:
        self.view, self.x, self.owner, self.stream, self.policy = view, view.array, owner, stream, policy
        self.shape: tuple[int, ...] = view.array.shape
        self.device = machine(view.array, on)

    def queued(self) -> AbstractContextManager[int | None]:
        """The stream of the call, and what is allocated inside in its order."""
        return queued(self.x, self.owner, self.stream)

    def plan(self, blocks: str, group: int, use_ue8m0: bool, packed: bool = False) -> CastPlan | None:
        """The kernel for this array; None where the way of the host is to be taken."""
        dtype = self.view.dtype
        if self.device is None or dtype is None or len(self.shape) != 2 or 0 in self.shape:
            return None
        plan = CastPlan(blocks, dtype.name, group, use_ue8m0, packed, self._is_vector(), self.device.cc >= (8, 9))
        if rules.refusal(plan) is not None or max(self.shape) >= 1 << 31 or rules.grid(plan, *self.shape)[1] > 65535:
            return None
        return plan

    def _is_vector(self) -> bool:
        (pitch, step), (rows, columns) = self.x.strides, self.shape
        is_even = columns % _MULTIPLE == 0 and (pitch % _MULTIPLE == 0 or rows == 1) and address(self.x) % _MULTIPLE == 0
        return bool(step == self.x.dtype.itemsize and is_even)

    def cast(self, plan: CastPlan, granularity: tuple[int, int], mn_major: bool = False) -> QTensor:
        """Run the kernel."""
        assert self.device is not None
        m, k = self.shape
        with self.queued() as stream:
            data = namespace(self.x).empty((m, k), np.uint8)
            scale, _ = new_scales(scale_shape((m, k), granularity), plan.packed, mn_major, self.x)
            args = [address(self.x), *self.x.strides, address(data), address(scale), *scale.strides, m, k]
            launch(plan, rules, rules.grid(plan, m, k), args, (self.x, data, scale), self.device, stream, self.policy)
        held = carrier(E4M3, self.x)
        return QTensor(data if held == np.uint8 else data.view(held), scale, E4M3, granularity)


__all__ = ["per_block_cast_to_fp8", "per_channel_cast_to_fp8", "per_token_cast_to_fp8"]
