"""Plans and problems that several tests share, and the running of a plan in the emulator."""

from __future__ import annotations

import dataclasses

import numpy as np

from dgnumba import emu
from dgnumba.device import Device
from dgnumba.dtypes import DTYPES
from dgnumba.kernels import KERNELS, GemmPlan
from dgnumba.layouts.operands import lay_out
from dgnumba.problem import GemmProblem, check_fp8_gemm_nt
from dgnumba.quant.reference import exact_integer_reference
from dgnumba.testing import exact_problem

H200 = Device.named("h200")
KERNEL_OF = {kernel.NAME: kernel for kernel in KERNELS}
DENSE, SWAPPED, PORTABLE = KERNEL_OF["sm90_fp8_gemm_1d2d"], KERNEL_OF["sm90_fp8_gemm_1d2d_swap_ab"], KERNEL_OF["sm80_gemm"]
RESIDENT = KERNEL_OF["sm90_fp8_gemm_1d2d_resident"]
SKINNY, SKINNY_RS = KERNEL_OF["sm90_fp8_gemv_1d2d"], KERNEL_OF["sm90_fp8_gemv_1d2d_rs"]

DENSE_BLOCK_MS, DENSE_BLOCK_NS = (16, 32, 64, 128, 256), tuple(range(16, 193, 16))
DENSE_EPILOGUES = {"tma": ("bfloat16", "float16"), "warp": ("bfloat16", "float16"), "direct": ("float32",)}
SWAPPED_BLOCK_MS, SWAPPED_BLOCK_NS = (8, 16, 24, 32, 48, 64, 96, 128), (64, 128)


def plan(block_m, block_n, num_stages=3, *, share=None, epilogue=None, d_dtype=None, **more):
    """A plan of the dense kernel, in few words; the epilogue decides the output type, or the other way round."""
    d_dtype = d_dtype or ("float32" if epilogue == "direct" else "bfloat16")
    epilogue = epilogue or ("direct" if d_dtype == "float32" else "tma")
    cluster = 2 if share else 1
    return GemmPlan(DENSE.NAME, block_m, block_n, num_stages, d_dtype=d_dtype, cluster=cluster, multicast=share, epilogue=epilogue, **more)


def swapped(block_m, block_n, num_stages=2, *, split=1, block_k=128, d_dtype="bfloat16", **more):
    """A plan of the kernel with swapped operands."""
    return GemmPlan(
        SWAPPED.NAME, block_m, block_n, num_stages, d_dtype=d_dtype, block_k=block_k, cluster=split, epilogue="registers", **more
    )


def resident(block_m, groups=2, num_stages=2, *, held=4, block_k=256, d_dtype="bfloat16", **more):
    """A plan of the kernel that holds all of A, `held` blocks of K, with as many warpgroups as `groups`."""
    return GemmPlan(
        RESIDENT.NAME, block_m, 64 * groups, num_stages, d_dtype=d_dtype, block_k=block_k, resident=held, epilogue="tma", **more
    )


def skinny(block_m, depth=1, warps=2, *, block_n=16, split=1, d_dtype="bfloat16", **more):
    """A plan of the kernel for very few rows."""
    return GemmPlan(SKINNY.NAME, block_m, block_n, depth, d_dtype=d_dtype, epilogue="registers", warps=warps, cluster=split, **more)


def skinny_rs(block_m, depth=1, groups=1, *, block_n=16, split=1, d_dtype="bfloat16", **more):
    """A plan of the kernel for few rows that multiplies by wgmma, of this many warpgroups."""
    return GemmPlan(
        SKINNY_RS.NAME, block_m, block_n, depth, d_dtype=d_dtype, epilogue="registers", warps=groups * 64 // block_n, cluster=split, **more
    )


def portable(dtype, block_m, block_n, num_stages=3, *, d_dtype=None, **more):
    """A plan of the mma.sync kernel."""
    bits = DTYPES[dtype].bits
    d_dtype = d_dtype or ("int32" if dtype.startswith("int") else "bfloat16" if bits == 8 else dtype)
    return GemmPlan(PORTABLE.NAME, block_m, block_n, num_stages, dtype, dtype, d_dtype, 1024 // bits, epilogue="registers", **more)


def refusal(chosen, m=128, n=128, k=512):
    """Why a plan cannot be built or cannot take this problem, or None."""
    return KERNEL_OF[chosen.kernel].refusal(chosen, GemmProblem(m, n, k, d_dtype=chosen.d_dtype))


def with_all_stages(chosen, device=H200):
    """The plan with as many stages as fit the device, 16 at most."""
    kernel = KERNEL_OF[chosen.kernel]
    fitting = [n for n in range(1, 17) if kernel.smem(dataclasses.replace(chosen, num_stages=n)).launch_bytes <= device.smem_per_block]
    return dataclasses.replace(chosen, num_stages=max(fitting))


def emulate(chosen, m, n, k, *, policy="eager", num_sms=132, seed=0, kernel=None):
    """Run a plan on an exact-zone problem in the emulator; give (d, case). A plan with an addend adds `addend(case, seed)`, in place.

    num_sms  of the GPU that is played: few make a CTA take several tiles
    kernel   in the place of the plan's own: a module with a `build` like its
    """
    module = kernel or KERNEL_OF[chosen.kernel]
    case = exact_problem(np.random.default_rng(seed), m, n, k, chosen.d_dtype)
    d = addend(case, seed) if chosen.with_c else np.full((m, n), -7, case.problem.d_dtype.numpy)
    run_plan(module, chosen, case, d, policy, num_sms)
    return d, case


def addend(case, seed):
    """Small integers to add to a case's product."""
    problem = case.problem
    return np.random.default_rng([seed, 1]).integers(-8, 9, (problem.m, problem.n)).astype(problem.d_dtype.numpy)


def expected_of(case, c=None):
    """The one right result of an exact-zone problem, with an addend of small integers or without."""
    out = case.problem.d_dtype.numpy
    product = exact_integer_reference(*case.a, *case.b, "float32")
    with np.errstate(over="ignore"):
        return (product if c is None else product + c.astype(np.float32)).astype(out)


def run_plan(module, chosen, case, d, policy, num_sms, rules=None):
    """Run the kernel that `module` builds of a plan on a case's operands, into `d`, which holds an addend already."""
    rules = rules or KERNEL_OF[chosen.kernel]
    sfa = case.a.scale
    if chosen.row_scales:  # rows of whole 16 bytes
        sfa = whole_rows(sfa)
    operands = check_fp8_gemm_nt((case.a.data, sfa), case.b, d, d if chosen.with_c else None)
    laid = lay_out(dataclasses.replace(operands, problem=dataclasses.replace(operands.problem, row_scales=chosen.row_scales)))
    built = module.build(chosen)
    grid = rules.grid(chosen, laid.problem, dataclasses.replace(H200, num_sms=num_sms))
    args = rules.bind(chosen, laid)
    emu.run(
        built.kernel, grid, built.threads, args,
        smem=built.smem.launch_bytes, cluster=built.cluster, policy=policy, labels=built.smem.labels,
        arrays=[getattr(laid, name) for name in rules.pointers(chosen)],
    )  # fmt: skip
    if laid.target is not laid.d:
        laid.target[...] = laid.d[:, : laid.problem.n]


def whole_rows(sfa):
    """The same scales, row-major in rows of whole 16 bytes, with NaN between: a kernel may read them as they lie."""
    held = np.full((sfa.shape[0] + 1, -(-sfa.shape[1] // 4) * 4 + 4), np.nan, np.float32)
    held = held.reshape(-1)[-held.ctypes.data % 16 // 4 :][: sfa.shape[0] * held.shape[1]].reshape(sfa.shape[0], -1)
    held[:, : sfa.shape[1]] = sfa
    return held[:, : sfa.shape[1]]


# The dense shapes of DeepGEMM's own tests (tests/generators.py at 54e2261): N, K of the forward pass.
FORWARD = ((2112, 7168), (576, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048))
FORWARD_M = (1, 8, 16, 33, 64, 100, 128, 256, 512, 777, 1024, 2048, 4096, 8192)


def dense_problems():
    """Name -> problem: forward at many M, and the two backward products at M = 4096."""
    out = {}
    for n, k in FORWARD:
        for m in FORWARD_M:
            for d_dtype in ("bfloat16", "float32"):
                out[f"forward {m}x{n}x{k} {d_dtype}"] = GemmProblem(m, n, k, d_dtype=d_dtype)
        out[f"dgrad 4096x{k}x{n}"] = GemmProblem(4096, k, n)
        out[f"wgrad {n}x4096x{k}"] = GemmProblem(n, 4096, k)
    out["8192x8192x8192"] = GemmProblem(8192, 8192, 8192)
    return out
