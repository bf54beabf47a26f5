"""The kernels: `@cuda.jit`-style functions, each frozen from a plan. Adding one is two files, its rules and its code, and one line here.

What plans and launches ask of a kernel, its rules answer without Numba. The code is imported when a kernel must be compiled or stepped.
"""

from __future__ import annotations

from . import (
    sm80_gemm_rules,
    sm80_int4_gemm_rules,
    sm90_fp8_gemm_1d2d_rules,
    sm90_fp8_gemm_1d2d_swap_ab_rules,
    sm90_fp8_gemv_1d2d_rs_rules,
    sm90_fp8_gemv_1d2d_rules,
    sm90_int4_gemm_rules,
)
from .int4_spec import Int4Kernel, Int4Plan
from .spec import Built, GemmPlan, KernelSpec

KERNELS: tuple[KernelSpec, ...] = (
    sm90_fp8_gemm_1d2d_rules,
    sm90_fp8_gemm_1d2d_swap_ab_rules,
    sm90_fp8_gemv_1d2d_rules,
    sm90_fp8_gemv_1d2d_rs_rules,
    sm80_gemm_rules,
)
"""Every kernel, in the order in which plans are preferred."""

INT4_KERNELS: tuple[Int4Kernel, ...] = (sm90_int4_gemm_rules, sm80_int4_gemm_rules)
"""Those with weights of 4 bits, likewise."""

__all__ = ["INT4_KERNELS", "KERNELS", "Built", "GemmPlan", "Int4Kernel", "Int4Plan", "KernelSpec"]
