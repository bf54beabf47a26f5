"""A plan on its way to machine code, and what must hold of it: shared by the compile test and the full report."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace

from cases import DENSE, H200, KERNEL_OF, RESIDENT, SKINNY, SKINNY_RS, SWAPPED, dense_problems

from dgnumba import _numba
from dgnumba.assemble import ptxas
from dgnumba.kernels import KERNELS, GemmPlan
from dgnumba.plan import choose
from dgnumba.problem import GemmProblem


def most_registers(threads: int, min_ctas: int = 1) -> int:
    """Registers a thread that 65536 allow of so many CTAs on a multiprocessor, in steps of 8 as ptxas has them, and 255 at most."""
    return min(255, 65536 // (threads * min_ctas) // 8 * 8)


@dataclass(frozen=True)
class Compiled:
    """What ptxas said of a plan, and what its PTX holds."""

    registers: int
    spilled: int
    local_bytes: int
    smem_bytes: int
    warnings: tuple[str, ...]
    threads: int
    wgmma: int
    ptx: str

    def row(self, plan: GemmPlan) -> dict[str, object]:
        """For the report."""
        return {"kernel": plan.kernel, "plan": plan.name, "registers": self.registers, "spilled": self.spilled, "local_bytes": self.local_bytes,
                "wgmma": self.wgmma, "warnings": list(self.warnings), "smem": KERNEL_OF[plan.kernel].smem(plan).launch_bytes}  # fmt: skip


def compile_plan(plan: GemmPlan) -> Compiled:
    """Plan -> kernel -> PTX -> ptxas, past every cache."""
    built = KERNEL_OF[plan.kernel].build(plan)
    ptx, _ = _numba.compile_ptx(built.kernel, built.argtypes, arch="sm_90a", **built.bounds)
    cubin = ptxas(ptx)
    count = len(re.findall(r"\bwgmma\.mma_async\.", ptx))
    return Compiled(
        cubin.registers,
        cubin.spill_stores + cubin.spill_loads,
        cubin.local_bytes,
        cubin.smem_bytes,
        cubin.warnings,
        built.threads,
        count,
        ptx,
    )


def expected_wgmma(plan: GemmPlan) -> int:
    """wgmmas in the PTX: four steps of 32 for each place in the source that issues a block's products."""
    if plan.kernel == SKINNY.NAME:
        return 0  # mma.sync
    if plan.kernel == SKINNY_RS.NAME:
        return 4 * plan.num_stages
    if plan.kernel in (SWAPPED.NAME, RESIDENT.NAME):
        return 4 * (plan.block_k // 128)
    waves = 2 if plan.block_m == 256 else 1
    if DENSE.alternates(plan):
        # in turns: before the loop, twice in it, and once behind it
        return 4 * 4
    if not plan.rotate:
        return 4 * waves
    # rotated: the first wave is issued before the first tile, in the loop, and before the next tile; the second in the loop and behind it
    return 4 * 3 + (4 * 2 if waves == 2 else 0)


def problems_with(plan: GemmPlan, got: Compiled) -> list[str]:
    """What is wrong with a compiled plan; empty when nothing is."""
    body, min_ctas = re.sub(r"//.*", "", got.ptx), KERNEL_OF[plan.kernel].min_ctas(plan)
    n = SKINNY_RS.columns(plan) if plan.kernel == SKINNY_RS.NAME else plan.block_n
    n = plan.block_m if plan.kernel in (SWAPPED.NAME, RESIDENT.NAME) else n
    widths = set(re.findall(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k32\.f32\.e4m3\.e4m3", body))
    rules = {
        f"{got.spilled} bytes spilled": got.spilled == 0,
        f"{got.local_bytes} bytes of local memory": got.local_bytes == 0,
        f"ptxas warns: {got.warnings}": not got.warnings,
        f"{got.smem_bytes} bytes of static shared memory": got.smem_bytes == 0,
        f"{got.registers} registers for {min_ctas} x {got.threads} threads": 0 < got.registers <= most_registers(got.threads, min_ctas),
        # NVVM may unroll the loop over K of a small tile
        f"{got.wgmma} wgmmas, expected {expected_wgmma(plan)}": got.wgmma
        in {expected_wgmma(plan) * n for n in ((1, 2, 3, 4) if plan.block_m <= 64 or plan.block_n <= 16 else (1,))},
        f"wgmma of widths {widths}": widths == (set() if plan.kernel == SKINNY.NAME else {str(n)}),
        "float64 in the PTX": not re.search(r"\.f64\b", body),
        "a 64-bit division in the PTX": not re.search(r"\b(?:div|rem)\.[su]64\b", body),
        "a call in the PTX": not re.search(r"\bcall\b", body),
        "a local array in the PTX": not re.search(r"\.local\b", body),
        f"entry of {got.threads} threads is not fixed": f".maxntid {got.threads}" in body,
        f"registers are not bounded for {min_ctas} CTAs": re.search(rf"\.minnctapersm {min_ctas}\b", body),
        "waits for the grids before it, or its rules say so": ("griddepcontrol.wait" in body) == KERNEL_OF[plan.kernel].WAITS,
        f"its plan says pdl={plan.pdl}, the PTX otherwise": ("griddepcontrol.launch_dependents" in body) == plan.pdl,
        "target is not sm_90a": ".target sm_90a" in body,
    }
    return [fault for fault, holds in rules.items() if not holds]


def chosen_plans() -> dict[GemmPlan, list[str]]:
    """Every plan that the heuristic picks for the dense shapes, and for which."""
    out: dict[GemmPlan, list[str]] = {}
    for name, problem in dense_problems().items():
        out.setdefault(choose(problem, H200).plan, []).append(name)
    return out


def few_rows_plans() -> list[GemmPlan]:
    """What the kernel for very few rows has for the shapes that between them have all its splits; and each built to let the next grid begin."""
    shapes = ((576, 7168), (2112, 7168), (4096, 7168), (1024, 4096), (512, 512), (256, 7168), (2048, 2048))
    out: dict[GemmPlan, None] = {}
    for m, (n, k), d_dtype in itertools.product((1, 8, 9, 16), shapes, ("bfloat16", "float32")):
        out.update(dict.fromkeys(SKINNY.candidates(GemmProblem(m, n, k, d_dtype=d_dtype), H200)))
    more = [replace(plan, pdl=True, weights_first=first) for plan in out if plan.d_dtype == "bfloat16" for first in (False, True)]
    return [*out, *more]


def candidate_plans() -> list[GemmPlan]:
    """Every candidate of every kernel, offered or not, for a few problems that between them allow all tiles, once each."""
    problems = [GemmProblem(m, 4096, 4096, d_dtype=d) for m in (8, 16, 24, 32, 48, 64, 96, 128, 4096) for d in ("bfloat16", "float32")]
    out: dict[GemmPlan, None] = {}
    for problem in problems:
        for kernel in KERNELS:
            if kernel.supports(problem, H200) is None:
                out.update(dict.fromkeys(getattr(kernel, "buildable", kernel.candidates)(problem, H200)))
    return list(out)


__all__ = [
    "DENSE",
    "SWAPPED",
    "Compiled",
    "candidate_plans",
    "chosen_plans",
    "compile_plan",
    "few_rows_plans",
    "most_registers",
    "problems_with",
]
