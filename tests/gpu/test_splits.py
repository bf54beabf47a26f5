"""Clusters that share a tile's K and send their sums to who adds them (st.async), on a GPU: right, the same bits every run, and in many streams."""

import os

import numpy as np
import pytest
from cases import skinny, skinny_rs, swapped
from conftest import SEED
from gpu.problems import RoundRobin, operands, split_plans, warm
from gpu.test_gemm import check

from dgnumba import api

pytestmark = pytest.mark.gpu

PROBLEMS = int(os.environ.get("DGNUMBA_SPLIT_PROBLEMS") or 300)
RUNS, STREAMS = 20, 8

OF_EACH_SORT = [
    (skinny(8, 1, 16, split=2), 1, 576, 7168),
    (skinny(8, 1, 14, split=4), 8, 576, 7168),
    (skinny(8, 2, 4, split=8, d_dtype="float32"), 5, 2112, 7168),
    (skinny(16, 1, 8, split=4), 16, 2112, 7168),
    (skinny(16, 2, 4, block_n=32, split=8), 9, 4090, 7168),
    (skinny(8, 1, 2, split=2), 3, 512, 512),
    (skinny(8, 1, 4, split=8), 8, 100, 1024),  # CTAs without a block of K
    (skinny_rs(16, 1, 1, block_n=64, split=2), 12, 1000, 4096),
    (swapped(8, 64, 4, split=8, block_k=256), 8, 576, 7168),  # half of the CTAs own no register
    (swapped(24, 64, 6, split=8, d_dtype="float32"), 20, 1100, 4096),
    (swapped(64, 128, 4, split=4), 64, 2112, 7168),
]
"""(plan, m, n, k)"""


@pytest.fixture(scope="module")
def cupy():
    found = pytest.importorskip("cupy")
    warm([chosen for chosen, *_ in OF_EACH_SORT])
    return found


def zeros(cupy, chosen, m, n):
    return cupy.zeros((m, n), cupy.float32 if chosen.d_dtype == "float32" else cupy.uint16)


def bits(d):
    return d.get().view(np.uint8)


def test_random_problems(cupy):
    """Each split that is offered for up to 16 rows, on random problems: any numbers within the bound, small integers exactly."""
    plans = split_plans()
    assert {(p.block_m, p.cluster) for p in plans} == {(m, c) for m in (8, 16) for c in (2, 4, 8)}
    assert {p.warps for p in plans} >= {2, 4, 7, 8, 14, 16}
    warm(plans)
    turn, faults = RoundRobin(plans), []
    for i in range(PROBLEMS):
        rng = np.random.default_rng([SEED, 7, i])
        chosen, problem = turn.next_with(rng)
        faults += [
            f"seed [{SEED}, 7, {i}], {kind}: {problem.m}x{problem.n}x{problem.k} {problem.d_dtype}, {chosen and chosen.name}: {fault}"
            for kind in ("any", "exact")
            for fault, _ in [check(cupy, rng, problem, chosen, kind)]
            if fault
        ]
    used = sum(count > 0 for count in turn.used.values())
    print(f"\n{PROBLEMS} problems, {used} of {len(plans)} splits, {len(faults)} faults")
    assert faults == []
    if PROBLEMS >= 2 * len(plans):
        assert used == len(plans)


@pytest.mark.parametrize(
    "chosen, m, n, k", OF_EACH_SORT, ids=lambda x: f"{x.kernel}-{x.name}".replace(" ", "-") if hasattr(x, "kernel") else None
)
def test_the_same_bits_every_run(cupy, rng, chosen, m, n, k):
    a, b = operands(cupy, rng, m, n, k, "any")
    first, *others = [bits(api.fp8_gemm_nt(a, b, zeros(cupy, chosen, m, n), plan=chosen)) for _ in range(RUNS)]
    assert all((other == first).all() for other in others)
    assert first.any()


def test_many_streams(cupy, rng):
    """Launches of all sorts side by side in streams, each twenty times, give the bits that each gives alone."""
    work = []
    for chosen, m, n, k in OF_EACH_SORT:
        a, b = operands(cupy, rng, m, n, k, "any")
        work.append((chosen, a, b, bits(api.fp8_gemm_nt(a, b, zeros(cupy, chosen, m, n), plan=chosen))))
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(STREAMS)]
    results = []
    cupy.cuda.Device().synchronize()
    for run in range(RUNS):
        for i, (chosen, a, b, alone) in enumerate(work):
            stream = streams[(run + i) % STREAMS]
            with stream:
                d = zeros(cupy, chosen, a[0].shape[0], b[0].shape[0])
                results.append((chosen, api.fp8_gemm_nt(a, b, d, plan=chosen, stream=stream), alone))
    cupy.cuda.Device().synchronize()
    assert [chosen.name for chosen, d, alone in results if not (bits(d) == alone).all()] == []
