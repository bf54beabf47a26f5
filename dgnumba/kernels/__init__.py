"""The kernels: `@cuda.jit`-style functions, each frozen from a plan. Adding one is two files, its rules and its code, and one line here.

What plans and launches ask of a kernel, its rules answer without Numba. The code is imported when a kernel must be compiled or stepped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import (
    sm80_gemm_rules,
    sm90_fp8_gemm_1d2d_resident_rules,
    sm90_fp8_gemm_1d2d_rules,
    sm90_fp8_gemm_1d2d_swap_ab_rules,
    sm90_fp8_gemv_1d2d_rs_rules,
    sm90_fp8_gemv_1d2d_rules,
)
from .spec import Built, GemmPlan, KernelSpec

if TYPE_CHECKING:
    from .int4_spec import Int4Kernel as Int4Kernel
    from .int4_spec import Int4Plan as Int4Plan

KERNELS: tuple[KernelSpec, ...] = (
    sm90_fp8_gemm_1d2d_rules,
    sm90_fp8_gemm_1d2d_swap_ab_rules,
    sm90_fp8_gemm_1d2d_resident_rules,
    sm90_fp8_gemv_1d2d_rules,
    sm90_fp8_gemv_1d2d_rs_rules,
    sm80_gemm_rules,
)
"""Every kernel, in the order in which plans are preferred."""

INT4_KERNELS: tuple[Int4Kernel, ...]
"""Those with weights of 4 bits, likewise."""

__all__ = ["INT4_KERNELS", "KERNELS", "Built", "GemmPlan", "Int4Kernel", "Int4Plan", "KernelSpec"]


def __getattr__(name: str) -> Any:
    """What is INT4's is imported when it is asked for: an FP8 product's first call does without."""
    if name == "INT4_KERNELS":
        from . import sm80_int4_gemm_rules, sm90_int4_gemm_rules, sm90_int4_gemv_rules

        value: Any = (sm90_int4_gemm_rules, sm90_int4_gemv_rules, sm80_int4_gemm_rules)
    elif name in ("Int4Kernel", "Int4Plan"):
        from . import int4_spec

        value = getattr(int4_spec, name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value
