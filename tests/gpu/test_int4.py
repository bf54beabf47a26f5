"""`int4_gemm_nt` on the GPU: every activation by every format, random extents, plans by turns; exact where it must be, else within the bound."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import multiprocessing
import os

import int4_cases as cases
import numpy as np
import pytest

import dgnumba
from dgnumba import launching
from dgnumba.int4_operands import check_int4_gemm_nt
from dgnumba.int4_plan import int4_kernel_named
from dgnumba.kernels import sm90_int4_gemm_rules as sm90_int4_gemm
from dgnumba.testing import assert_bits_equal, assert_within, random_extent

pytestmark = pytest.mark.gpu

ROUNDS = int(os.environ.get("DGNUMBA_INT4_ROUNDS", "300"))


@pytest.fixture(scope="module")
def cp():
    return pytest.importorskip("cupy")


def to_gpu(cp, q):
    """A QTensor, or an array, on the GPU; what CuPy lacks as its bits."""
    if not isinstance(q, dgnumba.QTensor):
        return cp.asarray(q.view(np.uint16) if q.dtype.name == "bfloat16" else q)
    bits = np.ascontiguousarray(q.scale).view(f"u{q.scale.dtype.itemsize}") if q.scale.dtype.name not in ("float32", "float16") else q.scale
    return dataclasses.replace(
        q, data=cp.asarray(np.ascontiguousarray(q.codes)), scale=cp.asarray(bits), scale_dtype=q.scale_dtype,
        zero_point=None if q.zero_point is None else cp.asarray(q.zero_point), g_idx=None if q.g_idx is None else cp.asarray(q.g_idx),
    )  # fmt: skip


def compile_plan(plan):
    made = int4_kernel_named(plan.kernel).build(plan)
    launching.compiled(plan, lambda: (made.kernel, made.argtypes), arch="sm_90a", threads=made.threads)


def random_cases(rng, rounds):
    """(activations, weights, what else is passed, plan) of random problems; few plans of each form, so that they can all be compiled."""
    chosen = {}
    for i in range(rounds):
        kind = cases.ACTIVATIONS[i % len(cases.ACTIVATIONS)]
        variant = cases.VARIANTS[i // len(cases.ACTIVATIONS) % len(cases.VARIANTS)]
        if not cases.goes(kind, variant):
            continue
        m, n = random_extent(rng, 300), random_extent(rng, 1200)
        k = max(32, random_extent(rng, 2500) // 32 * 32) if variant.startswith("act") else max(1, random_extent(rng, 2500))
        a, q = cases.activations(rng, kind, m, k), cases.weights(rng, variant, n, k)
        if kind in cases.INTEGERS and not variant.startswith("float_zeros"):
            a, q = cases.exact(rng, a, q)
        w = dgnumba.prepare_int4_weights(q, "int8" if kind == "int4" else kind)
        problem = check_int4_gemm_nt(a, w, out_dtype="float32").problem
        plan = None
        if not problem.is_empty and k:
            plans = sm90_int4_gemm.candidates(problem, dgnumba.Device.current())
            form = (kind, problem.group, problem.scale_dtype, problem.zeros, problem.w_dtype, problem.with_alpha)
            fitting = [p for p in chosen.get(form, []) if p in plans]
            offered = fitting if len(fitting) > 2 else plans  # none: another kernel takes the problem
            plan = offered[rng.integers(len(offered))] if offered else None
            if plan is not None:
                chosen.setdefault(form, []).append(plan)
        yield kind, variant, a, q, w, plan


def test_random_problems(cp, rng):
    todo = list(random_cases(rng, ROUNDS))
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        list(pool.map(compile_plan, {plan for *_, plan in todo if plan is not None}))
    used, exact = {}, 0
    for kind, variant, a, q, host, plan in todo:
        x, y = to_gpu(cp, a), to_gpu(cp, q)
        w = dgnumba.prepare_int4_weights(y, "int8" if kind == "int4" else kind)
        assert_bits_equal(cp.asnumpy(w.stream), host.stream, f"{variant} prepared on the GPU")
        d = cp.asnumpy(dgnumba.int4_gemm_nt(x, w, out_dtype="float32", plan=plan))
        what = f"{kind} {variant} {a.shape} {q.shape} {plan and plan.name}"
        if kind in cases.INTEGERS and not variant.startswith("float_zeros"):
            assert_bits_equal(d, dgnumba.int4_gemm_nt(a, host, out_dtype="float32", on="host"), what)
            exact += 1
        else:
            share = assert_within(d, dgnumba.int4_gemm_reference(a, q)[0], dgnumba.int4_error_bound(a, q, "float32"), what)
            used[kind] = max(used.get(kind, 0), share)
    print(f"{len(todo)} problems, {exact} bit for bit; largest share of the bound used: {used}")


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float8_e4m3fn", "int8"])
@pytest.mark.parametrize("out", cases.D_DTYPES)
def test_what_is_done_on_the_way_out(cp, rng, kind, out):
    """Bias, C and the gate on exact sums: the host's bits, but for silu, whose power of two the device approximates."""
    m, n, k = 37, 200, 640
    a, q = cases.exact_problem(rng, kind, "int4_g128", m, n, k)
    w, gate = cases.gate_pair(rng, "int4_g128", n, k)
    bias, c = rng.standard_normal(n).astype(np.float32), rng.standard_normal((m, n)).astype(cases.D_DTYPES[out])
    x = to_gpu(cp, a)
    for pair, more in (((q, None), {"bias": bias, "c": c}), ((w, gate), {"c": c}), ((w, gate), {})):
        host = dgnumba.prepare_int4_weights(pair[0], kind, gate=pair[1])
        there = dgnumba.prepare_int4_weights(to_gpu(cp, pair[0]), kind, gate=None if pair[1] is None else to_gpu(cp, pair[1]))
        expected = dgnumba.int4_gemm_nt(a, host, out_dtype=out, on="host", **more)
        got = dgnumba.int4_gemm_nt(x, there, out_dtype=out, **{name: to_gpu(cp, value) for name, value in more.items()})
        got = cp.asnumpy(got).view(expected.dtype)
        if pair[1] is None:
            assert_bits_equal(got, expected, f"{kind} {out}")
        else:
            wide = expected.astype(np.float64)
            assert_within(got, wide, cases.gate_slack(out, wide, more.get("c")), f"{kind} {out} gate")


@pytest.mark.parametrize("kind", ["bfloat16", "float8_e4m3fn", "int8"])
def test_a_repeated_call_is_quick_and_the_same(cp, rng, kind):
    """The second call of a form, at the same and at other addresses, and what it must decline."""
    from dgnumba import int4_prepared
    from dgnumba.layouts.scales import get_mn_major_tma_aligned_tensor

    m, n, k = 24, 256, 512
    a, q = cases.exact_problem(rng, kind, "int4_g128", m, n, k)
    w, x = dgnumba.prepare_int4_weights(to_gpu(cp, q), kind), to_gpu(cp, a)
    if kind == "float8_e4m3fn":
        x = dataclasses.replace(x, scale=get_mn_major_tma_aligned_tensor(x.scale))
    d, other = cp.zeros((m, n), cp.float32), cp.zeros((m, n), cp.float32)
    assert not int4_prepared.quick(x, w, d, None)
    dgnumba.int4_gemm_nt(x, w, d)
    expected = dgnumba.int4_gemm_nt(a, dgnumba.prepare_int4_weights(q, kind), out_dtype="float32", on="host")
    assert_bits_equal(cp.asnumpy(d), expected)
    for out in (d, other):
        out[...] = 0
        assert int4_prepared.quick(x, w, out, None)
        assert_bits_equal(cp.asnumpy(out), expected)
    wide = cp.zeros((m, 2 * n), cp.float32)
    assert not int4_prepared.quick(x, w, wide[:, ::2], None)
