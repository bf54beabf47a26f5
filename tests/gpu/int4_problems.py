"""Random products with weights of 4 bits for a GPU: the operands, what the host makes of them, and the plan that is to multiply them."""

from __future__ import annotations

import dataclasses
from typing import Any

import int4_cases as cases
import numpy as np

import dgnumba
from dgnumba import launching
from dgnumba.device import Device
from dgnumba.int4_operands import check_int4_gemm_nt
from dgnumba.int4_plan import int4_kernel_named
from dgnumba.kernels import sm90_int4_gemm_rules as sm90_int4_gemm
from dgnumba.kernels import sm90_int4_gemv_rules as sm90_int4_gemv
from dgnumba.testing import assert_bits_equal, random_extent

PLANS_A_FORM = 4
"""Plans of each form that random problems draw from, so that all of them can be compiled in a minute."""


KINDS = tuple(kind for kind in cases.ACTIVATIONS if kind != "float8_e4m3fn_row")
"""Activations, in turn; FP8 has a scale a row every other time."""


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A problem and its answer; `bound` is None where every bit must agree, else those of `WAYS`."""

    what: str
    kind: str
    form: tuple[Any, ...]
    a: Any
    q: Any
    stream: np.ndarray
    expected: np.ndarray
    bound: dict[str, np.ndarray] | None
    plans: list[Any]

    def bound_of(self, plan: Any) -> np.ndarray:
        """Of a plan; of None, that of any which may be chosen for it."""
        assert self.bound is not None
        return self.bound["any" if plan is None else "folds" if plan.fold else "sums in float16" if plan.f16_sums else "plain"]


WAYS: dict[str, dict[str, bool | None]] = {
    "plain": {"fold": False, "f16_sums": False},
    "folds": {"fold": True, "f16_sums": False},
    "sums in float16": {"fold": False, "f16_sums": True},
    "any": {"fold": None, "f16_sums": None},
}
"""What plans may round, as `int4_error_bound` takes it."""


def extents(rng, i, variant):
    """M up to 300, now and then to 4096; N and K of any size, odd ones too; K a multiple of 32 where the order of activations needs it."""
    tall = i % 9 == 0
    m, n, k = (random_extent(rng, x) for x in ((4096, 200, 700) if tall else (300, 1200, 2500)))
    return m, n, max(32, k // 32 * 32) if variant.startswith("act") else max(1, k)


def draw(seed: int, i: int, device: Device) -> Drawn | None:
    """Problem `i` of a run; None where no kernel takes the pair. NOTE: in a process of its own, so that the oracle uses all cores."""
    rng = np.random.default_rng([seed, i])
    turn, kind = i // len(KINDS), KINDS[i % len(KINDS)]
    variant = cases.VARIANTS[turn % len(cases.VARIANTS)]
    if kind == "float8_e4m3fn" and turn // len(cases.VARIANTS) % 2:
        kind = "float8_e4m3fn_row"
    if not cases.goes(kind, variant):
        return None
    m, n, k = extents(rng, i, variant)
    a, q = cases.activations(rng, kind, m, k), cases.weights(rng, variant, n, k)
    is_exact = kind in cases.INTEGERS and not variant.startswith("float_zeros")
    if is_exact:
        a, q = cases.exact(rng, a, q)
    w = dgnumba.prepare_int4_weights(q, cases.prepared_for(kind))
    oracle = dgnumba.int4_gemm_reference(a, q)[0]
    what = f"seed [{seed}, {i}]: {kind} {variant} {m}x{n}x{k}"
    if is_exact:
        expected, bound = dgnumba.int4_gemm_nt(a, w, out_dtype="float32", on="host"), None
        # both are right: the host's sums of integers, and the oracle in float64, which holds them exactly (0 of either sign)
        assert_bits_equal(expected + np.float32(0), (oracle + 0.0).astype(np.float32), f"{what}: the host")
    else:
        expected, bound = oracle, {way: dgnumba.int4_error_bound(a, q, "float32", **rounded) for way, rounded in WAYS.items()}
    problem = check_int4_gemm_nt(a, w, out_dtype="float32").problem
    plans = sm90_int4_gemm.candidates(problem, device) if m and n else []  # none: another kernel takes the problem
    if plans and problem.may_sum_f16:  # offered where D is bfloat16; in float32 every bit of their sums is seen
        others = sm90_int4_gemm.candidates(dataclasses.replace(problem, d_dtype="bfloat16"), device)
        plans += [dataclasses.replace(plan, d_dtype="float32", quads=False) for plan in others if plan.f16_sums]
    if plans and sm90_int4_gemv.supports(problem, device) is None:
        plans = [*sm90_int4_gemv.candidates(problem, device), *plans]
    form = (kind, problem.group, problem.scale_dtype, problem.zeros, problem.w_dtype, problem.with_alpha)
    return Drawn(what, kind, form, a, q, w.stream, expected, bound, plans)


def choose_plans(drawn: list[Drawn]) -> list[Any]:
    """A plan for each, by turns among few of its form; None where this kernel has none."""
    known: dict[tuple[Any, ...], list[Any]] = {}
    chosen = []
    for i, one in enumerate(drawn):
        held = known.setdefault(one.form, [])
        fitting = [p for p in held if p in one.plans]
        if one.plans and (len(held) < PLANS_A_FORM or not fitting):
            fresh = [p for p in one.plans if p not in held]
            if not any(p.f16_sums for p in held):  # the first of a form, where there are any
                fresh = [p for p in fresh if p.f16_sums] or fresh
            if fresh:
                held.append(fresh[i * 7 % len(fresh)])
                fitting = held[-1:]
        chosen.append(fitting[i % len(fitting)] if fitting else None)
    return chosen


def compile_plan(plan: Any) -> None:
    """Into the cache on disk, in a process of its own."""
    made = int4_kernel_named(plan.kernel).build(plan)
    launching.compiled(plan, lambda: (made.kernel, made.argtypes), arch="sm_90a", **made.bounds)
