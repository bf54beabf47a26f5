"""The kernels: `@cuda.jit`-style functions, each frozen from a plan. Adding one is one file and one line here."""

from __future__ import annotations

from . import sm90_fp8_gemm_1d2d, sm90_fp8_gemm_1d2d_swap_ab
from .spec import Built, GemmPlan, KernelSpec

KERNELS: tuple[KernelSpec, ...] = (sm90_fp8_gemm_1d2d, sm90_fp8_gemm_1d2d_swap_ab)
"""Every kernel, in the order in which plans are preferred."""

__all__ = ["KERNELS", "Built", "GemmPlan", "KernelSpec"]
