"""`int4_gemm_nt` on the GPU: every activation by every format, random extents, plans by turns; exact where it must be, else within the bound.

DGNUMBA_INT4_PROBLEMS=3000 DGNUMBA_INT4_RESULTS=results.json python -m pytest tests/gpu/test_int4.py -m gpu -s
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import datetime
import itertools
import json
import multiprocessing
import os
import time

import int4_cases as cases
import numpy as np
import pytest
from conftest import SEED
from gpu.int4_problems import choose_plans, compile_plan, draw
from gpu.problems import describe

import dgnumba
from dgnumba.int4_operands import check_int4_gemm_nt
from dgnumba.kernels.int4_spec import Int4Plan
from dgnumba.testing import assert_bits_equal, assert_within

pytestmark = pytest.mark.gpu

PROBLEMS = int(os.environ.get("DGNUMBA_INT4_PROBLEMS") or 300)


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


def test_random_problems(cp):
    began, device = time.monotonic(), dgnumba.Device.current()
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        found = pool.map(draw, itertools.repeat(SEED), range(PROBLEMS), itertools.repeat(device), chunksize=8)
        drawn = [one for one in found if one is not None]
        plans = choose_plans(drawn)
        list(pool.map(compile_plan, {plan for plan in plans if plan is not None}))
    largest, exact, faults = {}, 0, []
    for one, plan in zip(drawn, plans, strict=True):
        what = f"{one.what}, {plan and plan.name}"
        x, y = to_gpu(cp, one.a), to_gpu(cp, one.q)
        w = dgnumba.prepare_int4_weights(y, cases.prepared_for(one.kind))
        d = cp.asnumpy(dgnumba.int4_gemm_nt(x, w, out_dtype="float32", plan=plan))
        try:
            assert_bits_equal(cp.asnumpy(w.stream), one.stream, f"{what}: prepared on the GPU")
            if one.bound is None:
                assert_bits_equal(d, one.expected, what)
                exact += 1
            else:
                largest[one.kind] = max(largest.get(one.kind, 0.0), assert_within(d, one.expected, one.bound_of(plan), what))
        except AssertionError as error:
            faults.append(f"{what}: {str(error)[:300]}")
    used, seconds = len({p for p in plans if p is not None}), time.monotonic() - began
    print(f"\n{len(drawn)} problems of seed {SEED}, {exact} bit for bit, {used} plans, {seconds:.0f} s; "
          f"largest share of the bound {largest}; {len(faults)} faults")  # fmt: skip
    if os.environ.get("DGNUMBA_INT4_RESULTS"):
        record = {"bench": "correctness_int4", "problems": len(drawn), "bit_for_bit": exact, "seed": SEED, "plans_used": used, "faults": faults,
                  "largest_share_of_bound": largest, "seconds": round(seconds), "date": datetime.date.today().isoformat(), **describe(cp),
                  "command": f"DGNUMBA_TEST_SEED={SEED} DGNUMBA_INT4_PROBLEMS={PROBLEMS} python -m pytest tests/gpu/test_int4.py -m gpu"}  # fmt: skip
        with open(os.environ["DGNUMBA_INT4_RESULTS"], "w") as file:
            json.dump(record, file, indent=1)
    assert faults == []
    assert exact > PROBLEMS // 4
    assert any(plan.fold for plan in plans if plan is not None), "plans that fold scales into weights are among them"
    assert any(plan.f16_sums for plan in plans if plan is not None), "and plans that sum in float16"
    assert all(largest[kind] > 0 for kind in ("bfloat16", "float16", "float8_e4m3fn")), "a bound that nothing uses proves nothing"


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float8_e4m3fn_row", "int8"])
@pytest.mark.parametrize("m, n, block_m, block_n, records", [(40, 66 * 3 * 128 - 70, 48, 128, 2), (9, 132 * 64 * 2 + 200, 16, 64, 1)])
def test_the_last_round_shared_by_pairs(cp, rng, kind, m, n, block_m, block_n, records):
    """Exact sums: tiles that two CTAs share have the host's bits as those that one makes."""
    a, q = cases.exact_problem(rng, kind, "int4_g128", m, n, 1024)
    w = dgnumba.prepare_int4_weights(q, cases.prepared_for(kind))
    problem = check_int4_gemm_nt(a, w, out_dtype="float32").problem
    plan = Int4Plan.of(problem, "sm90_int4_gemm", block_m=block_m, block_n=block_n, num_stages=2, records=records, tail=2)
    there = dgnumba.prepare_int4_weights(to_gpu(cp, q), cases.prepared_for(kind))
    got = dgnumba.int4_gemm_nt(to_gpu(cp, a), there, out_dtype="float32", plan=plan)
    assert_bits_equal(cp.asnumpy(got), dgnumba.int4_gemm_nt(a, w, out_dtype="float32", on="host"), f"{kind} {plan.name}")


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float8_e4m3fn", "float8_e4m3fn_row", "int8"])
@pytest.mark.parametrize(
    "m, block_m, shared", [(250, 256, {}), (600, 256, {"split": 2}), (377, 192, {"split": 4}), (256, 256, {"tail": 2})]
)
def test_halves_of_more_than_128_tokens(cp, rng, kind, m, block_m, shared):
    """Exact sums: tiles that are multiplied by halves of their tokens have the host's bits."""
    n, k = 1100, 2048
    a, q = cases.exact_problem(rng, kind, "int4_g128", m, n, k)
    w = dgnumba.prepare_int4_weights(q, cases.prepared_for(kind))
    problem = check_int4_gemm_nt(a, w, out_dtype="float32").problem
    plan = Int4Plan.of(problem, "sm90_int4_gemm", block_m=block_m, block_n=128, num_stages=3, **shared)
    assert plan.turns == 2
    there = dgnumba.prepare_int4_weights(to_gpu(cp, q), cases.prepared_for(kind))
    got = dgnumba.int4_gemm_nt(to_gpu(cp, a), there, out_dtype="float32", plan=plan)
    assert_bits_equal(cp.asnumpy(got), dgnumba.int4_gemm_nt(a, w, out_dtype="float32", on="host"), f"{kind} {plan.name}")


def f16_plan(a, w, **choices):
    """A plan that sums in float16, with a float32 result."""
    problem = check_int4_gemm_nt(a, w, out_dtype="float32").problem
    return Int4Plan.of(problem, "sm90_int4_gemm", **{"num_stages": 2, "f16_sums": True, **choices})


@pytest.mark.parametrize("m, n, k, variant, choices", [
    (13, 70, 1408, "int4_g128", {"block_m": 16, "block_n": 64}),
    (50, 140, 1536, "int4_g64", {"block_m": 64, "block_n": 128, "records": 2}),
    (100, 130, 1280, "int4_row", {"block_m": 128, "block_n": 128, "split": 2}),
    (200, 60, 1152, "int4_g128", {"block_m": 256, "block_n": 64}),
    (190, 130, 640, "int4_g128", {"block_m": 192, "block_n": 128}),
])  # fmt: skip
def test_float16_sums_have_the_emulators_bits(cp, rng, m, n, k, variant, choices):
    """Random numbers, rounded at every step: the tensor core's sums, promotion, sums of eight records."""
    a, q = cases.activations(rng, "float8_e4m3fn_row", m, k), cases.weights(rng, variant, n, k)
    w = dgnumba.prepare_int4_weights(q, "float8_e4m3fn")
    plan = f16_plan(a, w, **choices)
    there = dgnumba.prepare_int4_weights(to_gpu(cp, q), "float8_e4m3fn")
    got = dgnumba.int4_gemm_nt(to_gpu(cp, a), there, out_dtype="float32", plan=plan)
    assert_bits_equal(cp.asnumpy(got), dgnumba.int4_gemm_nt(a, w, out_dtype="float32", on="emulator", plan=plan), plan.name)


@pytest.mark.parametrize("m, n, k, choices", [
    (40, 66 * 3 * 128 - 70, 1024, {"block_m": 48, "block_n": 128, "records": 2, "tail": 2}),
    (250, 3000, 8192, {"block_m": 256, "block_n": 128, "split": 2}),
    (377, 1100, 8192, {"block_m": 192, "block_n": 128, "split": 4}),
    (1000, 5000, 2048, {"block_m": 128, "block_n": 128, "records": 2}),
    (64, 1100, 16384, {"block_m": 64, "block_n": 64, "records": 4, "split": 4}),
])  # fmt: skip
def test_float16_sums_that_are_exact(cp, rng, m, n, k, choices):
    """The host's bits, of more tiles than can be emulated."""
    a, q = cases.exact_problem(rng, "float8_e4m3fn_row", "int4_g128", m, n, k)
    a = cases.few(rng, a)
    w = dgnumba.prepare_int4_weights(q, "float8_e4m3fn")
    plan = f16_plan(a, w, **choices)
    there = dgnumba.prepare_int4_weights(to_gpu(cp, q), "float8_e4m3fn")
    got = dgnumba.int4_gemm_nt(to_gpu(cp, a), there, out_dtype="float32", plan=plan)
    assert_bits_equal(cp.asnumpy(got), dgnumba.int4_gemm_nt(a, w, out_dtype="float32", on="host"), plan.name)


def test_a_repeated_call_takes_the_ratio_of_its_own_weights(cp, rng):
    """Weights of one form whose scales ask for different ratios, one after another through the same kernel."""
    a = cases.activations(rng, "float8_e4m3fn_row", 64, 1024)
    q = cases.weights(rng, "int4_g128", 200, 1024)
    x, found = to_gpu(cp, a), []
    for factor in (1.0, 64.0, 2.0**-10, 1.0):
        scaled = dataclasses.replace(q, scale=(q.scale.astype(np.float32) * np.float32(factor)), scale_dtype=None)
        there = dgnumba.prepare_int4_weights(to_gpu(cp, scaled), "float8_e4m3fn")
        plan = f16_plan(a, dgnumba.prepare_int4_weights(scaled, "float8_e4m3fn"), block_m=64, block_n=128)
        got = cp.asnumpy(dgnumba.int4_gemm_nt(x, there, out_dtype="float32", plan=plan))
        found.append(got)
        assert_bits_equal(got, found[0] * np.float32(factor), f"scales times {factor}")


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
@pytest.mark.parametrize("m", [24, 3])
def test_a_repeated_call_is_quick_and_the_same(cp, rng, kind, m):
    """The second call of a form, at the same and at other addresses, and what it must decline; row-major scales are read where few tokens are."""
    from dgnumba import int4_prepared
    from dgnumba.layouts.scales import get_mn_major_tma_aligned_tensor

    n, k = 256, 512
    a, q = cases.exact_problem(rng, kind, "int4_g128", m, n, k)
    w, x = dgnumba.prepare_int4_weights(to_gpu(cp, q), kind), to_gpu(cp, a)
    if kind == "float8_e4m3fn" and m == 24:
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
