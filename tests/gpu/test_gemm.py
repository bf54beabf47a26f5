"""fp8_gemm_nt on a GPU: random legal problems under every plan, against float64 within the rigorous bound, and bit-equal where sums are exact.

DGNUMBA_GPU_PROBLEMS=2000 DGNUMBA_RESULTS=results.json python -m pytest tests/gpu -m gpu -s
"""

import datetime
import json
import os
import time

import numpy as np
import pytest
from conftest import SEED
from gpu.problems import RoundRobin, all_plans, as_float64, bits_of, bound, describe, operands, output, reference, warm

from dgnumba import api
from dgnumba.problem import GemmProblem
from dgnumba.quant.reference import error_bound, gemm_reference

pytestmark = pytest.mark.gpu

PROBLEMS = int(os.environ.get("DGNUMBA_GPU_PROBLEMS") or 2000)


@pytest.fixture(scope="module")
def cupy():
    return pytest.importorskip("cupy")


@pytest.fixture(scope="module")
def plans():
    found = all_plans()
    began = time.monotonic()
    warm(found)
    print(f"\n{len(found)} plans compiled in {time.monotonic() - began:.0f} s")
    return found


def check(cupy, rng, problem, chosen, kind):
    """One problem; gives what is wrong with it, or the largest share of its bound that was used."""
    (a, sfa), (b, sfb) = operands(cupy, rng, problem.m, problem.n, problem.k, kind)
    d, frame = output(cupy, rng, problem.m, problem.n, problem.d_dtype)
    outside = cupy.ones(frame.shape, bool)
    outside[: problem.m, : problem.n] = False
    before = frame[outside].copy()
    api.fp8_gemm_nt((a, sfa), (b, sfb), d, plan=chosen)
    if not bool((frame[outside] == before).all()):
        return "wrote outside of d", 0.0
    if problem.is_empty:
        return None, 0.0
    oracle, size, aligned = reference(cupy, a, sfa, b, sfb)
    if kind == "exact":
        got = d.view(cupy.uint32) if d.dtype == cupy.float32 else d
        wrong = cupy.ascontiguousarray(got) != bits_of(cupy, oracle + 0.0, problem.d_dtype)
        # an exact sum of 0 may have either sign
        wrong &= ~((oracle == 0) & (as_float64(cupy, d) == 0))
        return (
            f"{int(wrong.sum())} elements differ in bits, first at {[int(i[0]) for i in cupy.nonzero(wrong)]}"
            if bool(wrong.any())
            else None
        ), 0.0
    limit = bound(cupy, oracle, size, aligned, problem.k, problem.d_dtype)
    error = cupy.abs(as_float64(cupy, d) - oracle)
    wrong = ~((error <= limit) | cupy.isinf(limit))
    share = float(cupy.where(cupy.isfinite(limit), error / limit, 0).max())
    return (
        f"{int(wrong.sum())} elements out of bound, first at {[int(i[0]) for i in cupy.nonzero(wrong)]}" if bool(wrong.any()) else None
    ), share


def test_random_problems(cupy, plans):
    began, turn, faults, largest = time.monotonic(), RoundRobin(plans), [], 0.0
    for i in range(PROBLEMS):
        rng = np.random.default_rng([SEED, i])
        chosen, problem = turn.next_with(rng)
        m, n, k = problem.m, problem.n, problem.k
        for kind in ("any", "exact"):
            fault, share = check(cupy, rng, problem, chosen, kind)
            largest = max(largest, share)
            if fault:
                faults.append(
                    f"seed [{SEED}, {i}], {kind}: {m}x{n}x{k} {problem.d_dtype}, {chosen and chosen.kernel + ' ' + chosen.name}: {fault}"
                )
    used = sum(count > 0 for count in turn.used.values())
    seconds = time.monotonic() - began
    print(f"\n{PROBLEMS} problems, seeds [{SEED}, 0] to [{SEED}, {PROBLEMS - 1}], {used} of {len(plans)} plans, {seconds:.0f} s, "
          f"largest share of the bound {largest:.3f}, {len(faults)} faults")  # fmt: skip
    if os.environ.get("DGNUMBA_RESULTS"):
        record = {"bench": "correctness", "problems": PROBLEMS, "seed": SEED, "plans": len(plans), "plans_used": used, "faults": faults,
                  "largest_share_of_bound": largest, "seconds": round(seconds), "date": datetime.date.today().isoformat(), **describe(cupy),
                  "command": f"DGNUMBA_TEST_SEED={SEED} DGNUMBA_GPU_PROBLEMS={PROBLEMS} python -m pytest tests/gpu/test_gemm.py -m gpu"}  # fmt: skip
        with open(os.environ["DGNUMBA_RESULTS"], "w") as file:
            json.dump(record, file, indent=1)
    assert faults == []
    if PROBLEMS >= 2 * len(plans):
        assert used == len(plans), f"never used: {[p.name for p, count in turn.used.items() if not count]}"
    assert largest > 0, "a bound that nothing uses proves nothing"


def test_the_bound_here_is_the_hosts(cupy, rng):
    """The reference and the bound computed on the GPU equal those of `quant.reference`."""
    for out in ("bfloat16", "float32"):
        problem = GemmProblem(37, 150, 300, d_dtype=out)
        (a, sfa), (b, sfb) = operands(cupy, rng, 37, 150, 300, "any")
        oracle, size, aligned = reference(cupy, a, sfa, b, sfb)
        host = [x.get() for x in (a, sfa, b, sfb)]
        expected = gemm_reference(*host)
        np.testing.assert_allclose(oracle.get(), expected, rtol=0, atol=float(size.max()) * 300 * 2.0**-52)
        np.testing.assert_allclose(bound(cupy, oracle, size, aligned, 300, problem.d_dtype).get(), error_bound(*host, out), rtol=1e-12)


def test_the_check_sees_faults(cupy, rng, monkeypatch):
    """It is no rubber stamp: a wrong element, and a write beside d, are found."""
    problem = GemmProblem(40, 50, 200, d_dtype="float32")
    real = api.fp8_gemm_nt

    def wrong(a, b, d, **more):
        real(a, b, d, **more)
        d[3, 4] += 1e30  # beyond every bound: 1000 was within one of twenty problems'

    def beside(a, b, d, **more):
        real(a, b, d, **more)
        d.base[40, 0] = 1

    for spoiled, kind, words in ((wrong, "any", "out of bound"), (wrong, "exact", "differ in bits"), (beside, "any", "outside")):
        monkeypatch.setattr(api, "fp8_gemm_nt", spoiled)
        assert words in check(cupy, rng, problem, None, kind)[0]


@pytest.mark.parametrize("m, n, k", [(4096, 2112, 7168), (128, 576, 7168), (1, 24576, 1536)])
def test_dense_shapes_with_the_plan_that_is_chosen(cupy, rng, m, n, k):
    problem = GemmProblem(m, n, k)
    for kind in ("any", "exact"):
        assert check(cupy, rng, problem, None, kind)[0] is None


def test_the_same_bits_every_run(cupy, rng):
    (a, sfa), (b, sfb) = operands(cupy, rng, 300, 600, 4000, "any")
    runs = [api.fp8_gemm_nt((a, sfa), (b, sfb), cupy.zeros((300, 600), cupy.float32)) for _ in range(5)]
    assert all((run.view(cupy.uint32) == runs[0].view(cupy.uint32)).all() for run in runs)


def test_host_path_and_gpu_agree(cupy, rng):
    """Bit-equal in the exact zone; else each within its own bound of the oracle, hence of the other."""
    for out, dtype in (("float32", np.float32), ("bfloat16", np.uint16)):
        for kind in ("exact", "any"):
            (a, sfa), (b, sfb) = operands(cupy, rng, 70, 140, 500, kind)
            d = api.fp8_gemm_nt((a, sfa), (b, sfb), cupy.zeros((70, 140), dtype)).get()
            host = [x.get() for x in (a, sfa, b, sfb)]
            h = api.fp8_gemm_nt(host[:2], host[2:], np.zeros((70, 140), dtype))
            if kind == "exact":
                assert (d == h).all()
                continue
            d, h = (x if dtype is np.float32 else (x.astype(np.uint32) << 16).view(np.float32) for x in (d, h))
            both = error_bound(*host, out) + error_bound(*host, out, tau=128 * 2.0**-24)
            assert (np.abs(d.astype(np.float64) - h) <= both).all()
