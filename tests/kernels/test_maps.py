"""The tensor maps that kernels are launched with: what they say of L2, which no emulated result depends on."""

import numpy as np
import pytest
from cases import DENSE, H200, RESIDENT, SWAPPED

from dgnumba.layouts.operands import lay_out
from dgnumba.problem import GemmProblem, check_fp8_gemm_nt


def l2_promotions(rules, m, n, k):
    """Of each plan that the kernel offers for the problem, by the array it is a map of."""
    a, b, d = np.zeros((m, k), np.uint8), np.zeros((n, k), np.uint8), np.zeros((m, n), np.uint16)
    sfa, sfb = np.ones((m, -(-k // 128)), np.float32), np.ones((-(-n // 128), -(-k // 128)), np.float32)
    laid = lay_out(check_fp8_gemm_nt((a, sfa), (b, sfb), d))
    for plan in rules.candidates(GemmProblem(m, n, k), H200):
        maps = [x for x in rules.bind(plan, laid) if getattr(x, "is_tensor_map", False)]
        yield plan, {name: tmap.l2_promotion for name, tmap in zip(rules.mapped_arrays(plan), maps, strict=True)}


@pytest.mark.parametrize(
    "rules, shape", [(SWAPPED, (16, 576, 512)), (SWAPPED, (128, 576, 512)), (RESIDENT, (16, 9000, 256)), (DENSE, (128, 576, 512))]
)
def test_weights_that_few_rows_meet_are_fetched_a_line_at_a_time(rules, shape):
    """7168x16384 by 8 rows: 28.7 us, and 30.8 with the two lines that suit weights asked for by many tiles (H200, bench/NOTES.md)."""
    found = list(l2_promotions(rules, *shape))
    assert found
    for plan, promotions in found:
        assert promotions["b"] == (256 if plan.kernel == DENSE.NAME and plan.block_m > 64 else 128), plan
        assert {each for name, each in promotions.items() if name != "b"} == {256}, plan


def test_weights_that_many_tiles_meet_are_fetched_two_lines_at_a_time():
    """Whatever the tile: those of up to 64 rows are chosen for a thousand rows too, of narrow weights."""
    found = list(l2_promotions(DENSE, 512, 576, 512))
    assert {plan.block_m for plan, _ in found} >= {64, 128, 256}
    assert {promotions["b"] for _, promotions in found} == {256}
