"""What a kernel file provides, and the plan it is built from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol, TypeVar

from ..device import Device
from ..errors import PlanError
from ..layouts.smem import SmemMap
from ..problem import GemmProblem


@dataclass(frozen=True)
class GemmPlan:
    """Every choice that is frozen into a kernel. M, N and K are not: one binary serves them all.

    block_m, block_n, block_k  tile of the output, and the block of K that is promoted to float32 at once
    num_stages                 slots of the ring in shared memory
    cluster, multicast         CTAs that share an operand, and which one: "A", "B" or None
    epilogue                   how D leaves the registers (`kernels.epilogue.EPILOGUES`)
    rotate                     the loop over K ends by issuing the next block's products, so that its own work is hidden
    overlap                    a tile's store runs under the first products of the next tile
    band                       tiles of a band along the primary axis (`layouts.tiles`)
    warps                      warps that share a tile's K, each taking every so many-th block; 0: the kernel's roles say who does what
    resident                   blocks of 128 of K of A that stay in shared memory for all tiles of a CTA; 0: A comes with each stage
    widen                      operands become float16 in the registers, where the tensor core lacks their type
    with_c                     an addend is read and added before the one rounding
    row_scales                 A's scales are read as they lie in row-major memory, K contiguous, rows of whole 16 bytes; else MN-major
    pdl                        for a launch that may begin before the grid before it ends (`launched`): it lets the next begin behind its own loads
    weights_first              of such: B and its scales of the stages that are empty at first are asked for before the grid before is waited for
                               (griddepcontrol.wait). What that one writes such loads need not see, those of the asynchronous proxy (TMA) no more
                               than others: right only where it writes none of them, which the caller says (`config.set_pdl`), and no plan's choice
    """

    kernel: str
    block_m: int
    block_n: int
    num_stages: int
    a_dtype: str = "float8_e4m3fn"
    b_dtype: str = "float8_e4m3fn"
    d_dtype: str = "bfloat16"
    block_k: int = 128
    cluster: int = 1
    multicast: str | None = None
    epilogue: str = "tma"
    rotate: bool = False
    overlap: bool = False
    band: int = 16
    warps: int = 0
    resident: int = 0
    widen: bool = False
    with_c: bool = False
    row_scales: bool = False
    pdl: bool = False
    weights_first: bool = False

    @property
    def name(self) -> str:
        """A short name that says every choice that the problem leaves open: `256x128x128 s4 c2A warp rotate overlap`.

        Of a plan as it is launched also that its first weights wait for no grid: no name that a caller may give.
        """
        shared = f" c{self.cluster}{self.multicast or 'K'}" if self.cluster > 1 else ""
        loop = " rotate" * self.rotate + " overlap" * self.overlap + " widen" * self.widen + (f" w{self.warps}" if self.warps else "")
        loop += f" r{self.resident}" * (self.resident > 0)
        launch = " weights_first" * self.weights_first
        return f"{self.block_m}x{self.block_n}x{self.block_k} s{self.num_stages}{shared} {self.epilogue}{loop}{launch}"

    @property
    def label(self) -> str:
        """The name, and how A's scales are read where they are not MN-major: one product has plans of one name that differ in that."""
        return self.name + ", row-major scales" * self.row_scales


_NAME = re.compile(r"(?:(sm\w+) )?(\d+)x(\d+)x(\d+) s(\d+)(?: c(\d+)([ABK]))? (\w+)((?: \w+)*?)(?: w(\d+))?(?: r(\d+))?")
FROM_PROBLEM = ("with_c", "row_scales")
"""Of a plan's fields those that, beside the types, no name says: the problem decides them."""
_SWITCHES = {field.name for field in fields(GemmPlan) if field.default is False}.difference(FROM_PROBLEM, ("pdl", "weights_first"))


def choices_named(name: str) -> dict[str, Any]:
    """The fields of a plan that its name says, `kernel` among them if that stands before it. Raises `PlanError` for what is no such name.

    >>> choices_named("256x128x128 s4 c2A warp rotate")["multicast"]
    'A'
    """
    found = _NAME.fullmatch(" ".join(name.split()))
    switches = found[9].split() if found else []
    if found is None or not _SWITCHES.issuperset(switches):
        words = f", then any of {', '.join(sorted(_SWITCHES))}" if _SWITCHES else ""
        raise PlanError(
            "plan: expected BLOCK_MxBLOCK_NxBLOCK_K s<stages>, c<CTAs of a cluster> and A, B (the operand they share) or K (which they split), "
            f"the epilogue{words}, then w<warps>, r<blocks of K of A that stay>, as '256x128x128 s4 c2A warp rotate', '64x64x128 s12 tma' or, "
            f"with the kernel's name before it, 'sm90_fp8_gemv_1d2d 8x16x128 s2 registers w16', got {name!r}"
        )
    block_m, block_n, block_k, num_stages = map(int, found.group(2, 3, 4, 5))
    cluster, multicast = (int(found[6]), found[7].replace("K", "") or None) if found[6] else (1, None)
    return ({"kernel": found[1]} if found[1] else {}) | {
        "block_m": block_m, "block_n": block_n, "block_k": block_k, "num_stages": num_stages, "cluster": cluster, "multicast": multicast,
        "epilogue": found[8], "warps": int(found[10] or 0), "resident": int(found[11] or 0), **dict.fromkeys(switches, True),
    }  # fmt: skip


@dataclass(frozen=True)
class Built:
    """A kernel with every choice frozen in, and what a launch of it needs."""

    kernel: Callable[..., Any]
    argtypes: tuple[Any, ...]
    threads: int
    smem: SmemMap
    cluster: int
    min_ctas: int = 1

    @property
    def bounds(self) -> dict[str, Any]:
        """What it is compiled for beside its plan, as `launching` takes it: threads of a CTA, CTAs that a multiprocessor is to have registers for."""
        return {"threads": self.threads, "min_ctas": self.min_ctas}


class Staged(Protocol):
    """A plan of any family of kernels, as far as rules and stages go: a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def num_stages(self) -> int:
        """Slots of the ring in shared memory."""


P = TypeVar("P", bound=Staged)

Rule = tuple[str, Callable[[Any, Any], bool]]
"""What a plan needs, in words that may name {plan.field} and {problem.field}, and whether it has it: of a plan and a problem."""


RING: Rule = ("2 stages or more, one to fill while the other is used, got {plan.num_stages}", lambda plan, _: plan.num_stages >= 2)
"""Of a kernel whose stages are slots of a ring."""


def first_broken(rules: Iterable[Rule], plan: Staged, problem: Any = None) -> str | None:
    """The first rule that a plan breaks, as a reason, or None. Words are made for that one only: a plan is checked in microseconds."""
    for words, holds in rules:
        if not holds(plan, problem):
            return "needs " + words.format(plan=plan, problem=problem)
    return None


def ctas_at_once(threads: int, registers: int, smem: int = 0) -> int:
    """CTAs of so many threads, registers a thread and bytes of shared memory that a multiprocessor of Hopper runs at one time; at least one.

    The limits: 64 K registers, 2048 threads, 32 CTAs, 228 KB of which a CTA takes 1 KB more than it asks for (CUDA C++ Programming Guide, compute
    capability 9.0).
    """
    return max(1, min(65536 // (registers * threads), 2048 // threads, 32, (228 << 10) // (smem + 1024)))


def one_cta(plan: Staged) -> int:
    """The `min_ctas` of a kernel whose CTAs have a multiprocessor each, or as many registers as ptxas likes."""
    return 1


def own_stages(plan: Staged) -> int:
    """The `first_stages` of a kernel whose stages are no ring that could be deeper, or whose weights never come first."""
    return plan.num_stages


def changed(plan: P, **changes: Any) -> P:
    """The plan with other choices: `dataclasses.replace` in a third of the time, as a first call makes hundreds of plans."""
    return type(plan)(**(vars(plan) | changes))


def launched(plan: P, kernel: Any, pdl: bool, constant_weights: bool = False) -> P:
    """The plan that is built for a launch with `set_pdl` on, or off, and with weights that the grid before writes, or does not.

    NOTE: a field of the plan, not an argument of the kernel: what is launched without stays as it was measured, and lets nobody begin behind it. A
    process has the one setting or the other, so that a layer has as many binaries as ever.
    """
    if not (pdl and kernel.LAUNCHES_DEPENDENTS):
        return plan
    if constant_weights and kernel.WEIGHTS_FIRST:
        return changed(plan, pdl=True, weights_first=True, num_stages=kernel.first_stages(plan))
    return changed(plan, pdl=True)


def most_stages(smem: Callable[[P], SmemMap], plan: P, device: Device) -> int:
    """How many stages of a plan fit the device's shared memory: each adds the same bytes."""
    one, two = (smem(changed(plan, num_stages=n)).launch_bytes for n in (1, 2))
    return 1 + (device.smem_per_block - one) // (two - one)


IN_FLIGHT = 1.9e-6
"""Seconds of memory's bandwidth that are enough to have on their way: 9.1 MB on an H200. See `stages_in_flight`."""

MOST_IN_FLIGHT, FEWEST_STAGES = 112 * 1024, 3
"""Bytes of a CTA's ring beyond which more only wait; and stages below which a ring stands still while one is read."""


def stages_in_flight(weights: int, ctas: int, device: Device) -> int:
    """Stages of a ring that keep memory busy: `weights` bytes of them in a stage, in the rings of `ctas` CTAs that run at one time.

    NOTE: more is slower, not only useless: what is asked for ahead queues, and whoever is far from memory waits longer at the end. Of 8 rows by
    7168x16384 three stages of 32 KB take 28.7 us, six 29.8; in pairs of CTAs of 8 rows by 2112x7168 four take 6.45, six 7.1. Of the tiles within 15 %
    of the best, over 66 products of up to 128 rows, this rule is 0.8 % from the best depth in the mean, all stages that fit are 3.2 %
    (H200, 2026-11-30, bench/NOTES.md).
    """
    ring = min(MOST_IN_FLIGHT, device.memory_bandwidth * IN_FLIGHT / max(1, ctas))
    return max(FEWEST_STAGES, int(ring / weights + 0.5))


class KernelSpec(Protocol):
    """The whole interface of a kernel: `plan` and `launch` know no kernel by name. Only `build` needs Numba.

    ROW_SCALES           whether a plan of it may read A's scales as they lie in row-major memory
    WAITS                whether it waits for the grids before it itself (griddepcontrol.wait), so that it may be launched before they end
    LAUNCHES_DEPENDENTS  whether plans of it may have `pdl`: it lets the grids behind it begin (griddepcontrol.launch_dependents)
    WEIGHTS_FIRST        whether plans of it may have `weights_first`
    RESIDENT             whether plans of it have `resident`
    """

    NAME: str
    BLOCK_KS: tuple[int, ...]
    ROW_SCALES: bool
    WAITS: bool
    LAUNCHES_DEPENDENTS: bool
    WEIGHTS_FIRST: bool
    RESIDENT: bool

    def supports(self, problem: GemmProblem, device: Device) -> str | None:
        """None when the kernel takes the problem on the device, else the reason why not."""

    def candidates(self, problem: GemmProblem, device: Device) -> list[GemmPlan]:
        """Plans that fit the device."""

    def mapped_arrays(self, plan: GemmPlan) -> tuple[str, ...]:
        """Whose tensor maps `bind` gives, in order."""

    def pointers(self, plan: GemmPlan) -> tuple[str, ...]:
        """Whose addresses are the first of the other arguments."""

    def smem(self, plan: GemmPlan) -> SmemMap:
        """The plan's shared-memory map."""

    def threads(self, plan: GemmPlan) -> int:
        """Threads of a CTA."""

    def min_ctas(self, plan: GemmPlan) -> int:
        """CTAs that a multiprocessor is to have registers for, which bounds those of a thread."""

    def build(self, plan: GemmPlan) -> Built:
        """The kernel of a plan."""

    def refusal(self, plan: GemmPlan, problem: GemmProblem) -> str | None:
        """Why a plan cannot be built, or cannot take the problem, or None."""

    def first_stages(self, plan: GemmPlan) -> int:
        """Stages of a plan whose first weights come before the wait; only where `WEIGHTS_FIRST`."""

    def is_batch_invariant(self, plan: GemmPlan) -> bool:
        """Whether an element of D is summed block after block of K, each as the tensor core sums it: then its bits depend on its row of A alone."""

    def bind(self, plan: GemmPlan, laid: Any) -> tuple[Any, ...]:
        """The kernel's arguments, in order, for operands laid out by `layouts.operands`."""

    def grid(self, plan: GemmPlan, problem: GemmProblem, device: Device) -> int:
        """CTAs to launch."""

    def count_tiles(self, plan: GemmPlan, problem: GemmProblem) -> int:
        """Tiles of the output."""
