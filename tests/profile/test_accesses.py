"""What the emulator counts of a plan's kernel: no conflict in the kernels as they are, and one where the staging is read without its swizzle."""

import pytest

from dgnumba.device import Device
from dgnumba.kernels import GemmPlan, epilogue
from dgnumba.kernels import sm90_fp8_gemm_1d2d_rules as dense
from dgnumba.problem import GemmProblem
from dgnumba.profile import accesses

H200 = Device.named("h200")


@pytest.mark.parametrize("kind", ["tma", "warp"])
def test_a_kernel_has_no_bank_conflict_and_is_right(kind):
    plan = GemmPlan(dense.NAME, 64, 64, 4, epilogue=kind)
    found = accesses(plan, GemmProblem(4096, 4096, 4096), H200)
    assert (found.m, found.n, found.k, found.errors) == (64, 64, 256, ())
    assert found.bank_ways == 1.0
    assert any("stmatrix" in place for place, _, _ in found.shared)
    assert found.sector_excess == 1.0
    assert bool(found.global_memory) == (kind == "warp")  # the others store by TMA


def test_a_conflict_shows(monkeypatch):
    """stmatrix at rows of 128 bytes without the swizzle: eight rows in the same banks."""
    monkeypatch.setattr(epilogue.swizzle, "phase_mask", lambda mode: 0)
    plan = GemmPlan(dense.NAME, 64, 64, 5)
    found = accesses(plan, GemmProblem(64, 64, 128), H200)
    assert found.bank_ways == 8.0
