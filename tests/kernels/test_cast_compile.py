"""Casts and moves of scales -> PTX -> ptxas, for the oldest GPU and for Hopper: no spill, no local memory, 16-byte accesses, few registers."""

import re

import pytest

from dgnumba import _numba
from dgnumba.assemble import find_ptxas, ptxas
from dgnumba.kernels import smxx_cast_rules, smxx_layout_rules
from dgnumba.kernels.smxx_cast_rules import CastPlan
from dgnumba.kernels.smxx_layout_rules import LayoutPlan

pytestmark = pytest.mark.skipif(not _numba.HAVE_NUMBA_CUDA or find_ptxas() is None, reason="needs numba-cuda and ptxas")

CASTS = {
    CastPlan("token", "bfloat16"): 40,  # registers: 48 warps of 64 at once
    CastPlan("token", "float16", 32, use_ue8m0=True, packed=True): 56,
    CastPlan("token", "float32", use_ue8m0=True): 64,
    CastPlan("block", "bfloat16"): 64,  # two CTAs of 512
    CastPlan("block", "float32", use_ue8m0=True): 64,
    CastPlan("channel", "bfloat16"): 128,  # two CTAs of 256
    CastPlan("channel", "float32"): 128,
    CastPlan("token", "bfloat16", is_vector=False): 128,
}
MOVES = {
    LayoutPlan("turn"): 64,
    LayoutPlan("turn", is_vector=False, is_vector_out=False): 64,
    LayoutPlan("pack"): 64,
    LayoutPlan("unpack"): 64,
    LayoutPlan("unpack", is_vector=False, is_vector_out=False): 64,
}


def assembled(built, arch):
    ptx, _ = _numba.compile_ptx(built.kernel, built.argtypes, arch=arch, threads=built.threads)
    return re.sub(r"//.*", "", ptx), ptxas(ptx, arch)


def check(built, arch, registers, is_vector):
    ptx, cubin = assembled(built, arch)
    assert (cubin.spill_stores, cubin.spill_loads, cubin.local_bytes, cubin.warnings) == (0, 0, 0, ())
    assert 0 < cubin.registers <= registers
    assert not re.search(r"\.f64\b|\bcall\b|\.local\b|\b(div|rem)\.[su]", ptx)
    assert bool(re.search(r"ld\.global\.v4\.b32", ptx)) == is_vector
    return ptx


@pytest.mark.parametrize("plan", CASTS, ids=str)
def test_casts(plan):
    ptx = check(smxx_cast_rules.build(plan), "sm_90a", CASTS[plan], plan.is_vector)
    assert "cvt.rn.satfinite.e4m3x2.f32" in ptx and ptx.count("div.rn.f32") == 2
    assert bool(re.search(r"st\.global\.v4\.b32", ptx)) == plan.is_vector


@pytest.mark.parametrize("blocks", ["token", "block", "channel"])
def test_casts_for_sm_80(blocks):
    """Which has no conversion to e4m3."""
    ptx = check(smxx_cast_rules.build(CastPlan(blocks, "float16", is_native=False)), "sm_80", {"channel": 168}.get(blocks, 128), True)
    assert "e4m3" not in ptx


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("plan", MOVES, ids=str)
def test_moves(plan, arch):
    ptx = check(smxx_layout_rules.build(plan), arch, MOVES[plan], plan.is_vector)
    assert bool(re.search(r"st\.global\.v4\.b32", ptx)) == plan.is_vector_out


def test_what_no_kernel_takes_is_refused():
    for plan, why in (
        (CastPlan("token", "float64"), "takes x of bfloat16, float16, float32, got float64"),
        (CastPlan("token", "float16", 48), "takes groups of 16, 32, 64, 128, 256, 512, got 48"),
        (CastPlan("block", "float16", 64), "takes groups of 128, got 64"),
        (CastPlan("token", "float16", packed=True), "packs UE8M0 scales"),
        (CastPlan("token", "float16", 256, use_ue8m0=True, packed=True), "packs UE8M0 scales"),
    ):
        assert smxx_cast_rules.refusal(plan).startswith(why)
