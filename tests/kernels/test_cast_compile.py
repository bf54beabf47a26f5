"""Casts and moves of scales -> PTX -> ptxas, for the oldest GPU and for Hopper: no spill, no local memory, 16-byte accesses, few registers."""

import re
from dataclasses import replace

import pytest

from dgnumba import _numba
from dgnumba.assemble import find_ptxas, find_tool, ptxas
from dgnumba.kernels import smxx_cast_rules, smxx_layout_rules, smxx_quantize_rules
from dgnumba.kernels.smxx_cast_rules import ITEMSIZE, CastPlan
from dgnumba.kernels.smxx_layout_rules import LayoutPlan
from dgnumba.kernels.smxx_quantize_rules import AmaxPlan, QuantizePlan
from dgnumba.profile import sass

pytestmark = pytest.mark.skipif(not _numba.HAVE_NUMBA_CUDA or find_ptxas() is None, reason="needs numba-cuda and ptxas")
HAVE_NVDISASM = find_tool("nvdisasm") is not None

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
FP4 = {"element": "float4_e2m1fn", "packed": True, "pieces": 2}
QUANTIZERS = {
    QuantizePlan(x_dtype="bfloat16", group=32, rule="rceil", **FP4): 48,  # registers: 40 warps of 64 at once, with two pieces each
    QuantizePlan(x_dtype="bfloat16", group=16, rule="nvfp4", **FP4): 48,
    QuantizePlan(x_dtype="bfloat16", rule="deepgemm", **FP4): 40,  # 48 warps
    QuantizePlan(x_dtype="bfloat16", group=16, rule="nvfp4", is_given=True, **FP4): 48,
    QuantizePlan(x_dtype="float16", rule="deepgemm", **FP4): 40,
    QuantizePlan(x_dtype="bfloat16", rule="deepgemm_ue8m0", words=True, **FP4): 48,
    QuantizePlan(x_dtype="float32", group=32, rule="rceil", **FP4): 64,
    QuantizePlan("float4_e2m1fn", "bfloat16", group=32, rule="floor"): 48,
    QuantizePlan("int4", "bfloat16", rule="amax/7", packed=True, pieces=2): 48,
    QuantizePlan("int4", "float32", rule="amax/7.5"): 48,
    QuantizePlan("float8_e4m3fn", "bfloat16", group=32, rule="rceil"): 48,
    QuantizePlan("float8_e4m3fn", "bfloat16", blocks="tensor"): 48,
    QuantizePlan("int8", "bfloat16", blocks="row", group=256): 48,  # 5 CTAs of 256
    QuantizePlan("int8", "bfloat16", blocks="row", group=224, pieces=2): 48,  # 6 CTAs: 86 KB of loads in flight
    QuantizePlan("int8", "bfloat16", blocks="row", group=256, pieces=4): 80,  # 3 CTAs: 96 KB
    QuantizePlan("int8", "float32", blocks="row", group=224, pieces=2): 80,
    QuantizePlan("int8", "float32", blocks="row", group=512, pieces=4): 128,
    QuantizePlan("int4", "bfloat16", blocks="row", group=512, rule="amax/7", packed=True, pieces=4): 128,
    QuantizePlan("float4_e2m1fn", "bfloat16", group=16, rule="nvfp4", is_vector=False): 128,
}
WITH_PARTIALS = [
    QuantizePlan(x_dtype="float16", group=16, rule="nvfp4", **FP4),
    QuantizePlan(x_dtype="float32", group=16, rule="nvfp4", **FP4),
    QuantizePlan("float4_e2m1fn", "float32", group=16, rule="nvfp4"),
    QuantizePlan("float8_e4m3fn", "float32", "tensor"),
    QuantizePlan("int8", "bfloat16", "tensor"),
    QuantizePlan("int4", "bfloat16", "tensor", rule="amax/7", packed=True, pieces=2),
]


def assembled(rules, plan, arch):
    built = rules.build(plan)
    bounds = {"threads": rules.threads(plan), "min_ctas": rules.min_ctas(plan)}
    assert (built.threads, built.argtypes) == (bounds["threads"], rules.ARGTYPES)
    ptx, _ = _numba.compile_ptx(built.kernel, built.argtypes, arch=arch, **bounds)
    return re.sub(r"//.*", "", ptx), ptxas(ptx, arch)


def check(rules, plan, arch, registers, is_vector):
    ptx, cubin = assembled(rules, plan, arch)
    assert (cubin.spill_stores, cubin.spill_loads, cubin.local_bytes, cubin.warnings) == (0, 0, 0, ())
    assert 0 < cubin.registers <= registers
    assert not re.search(r"\.f64\b|\bcall\b|\.local\b|\b(div|rem)\.[su]", ptx)
    assert bool(re.search(r"ld\.global\.v4\.b32", ptx)) == is_vector
    return ptx, cubin


def check_loads(plan, cubin):
    """Of the elements and of the partial maxima: no register that is loaded is named again before the last load."""
    code = [line for line in sass.disassemble(cubin).splitlines() if re.match(r"\s+/\*[0-9a-f]{4,}\*/", line)]
    loads = [i for i, line in enumerate(code) if "LDG.E.128" in line]
    assert len(loads) == ITEMSIZE[plan.x_dtype] * plan.pieces + 2 * plan.has_partials
    for i in loads:
        first = int(re.search(r"LDG\.E\.128\S* R(\d+)", code[i])[1])
        loaded = re.compile(rf"\bR({'|'.join(str(first + word) for word in range(4))})\b")
        assert not [line for line in code[i + 1 : loads[-1]] if loaded.search(line)]


@pytest.mark.parametrize("plan", CASTS, ids=str)
def test_casts(plan):
    ptx, _ = check(smxx_cast_rules, plan, "sm_90a", CASTS[plan], plan.is_vector)
    assert "cvt.rn.satfinite.e4m3x2.f32" in ptx and ptx.count("div.rn.f32") == 2
    assert bool(re.search(r"st\.global\.v4\.b32", ptx)) == plan.is_vector


@pytest.mark.parametrize("blocks", ["token", "block", "channel"])
def test_casts_for_sm_80(blocks):
    """Which has no conversion to e4m3."""
    ptx, _ = check(smxx_cast_rules, CastPlan(blocks, "float16", is_native=False), "sm_80", {"channel": 168}.get(blocks, 128), True)
    assert "e4m3" not in ptx


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("plan", MOVES, ids=str)
def test_moves(plan, arch):
    ptx, _ = check(smxx_layout_rules, plan, arch, MOVES[plan], plan.is_vector)
    assert bool(re.search(r"st\.global\.v4\.b32", ptx)) == plan.is_vector_out


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("plan", QUANTIZERS, ids=str)
def test_quantizers(plan, arch):
    if arch == "sm_80" and plan.element == "float8_e4m3fn":
        plan, registers = replace(plan, is_native=False), 128
    else:
        registers = QUANTIZERS[plan]
    ptx, cubin = check(smxx_quantize_rules, plan, arch, registers, plan.is_vector or plan.has_partials)
    assert bool(re.search(r"st\.global\.v4\.b32", ptx)) == plan.is_vector
    if HAVE_NVDISASM and arch == "sm_90a" and plan.is_vector and plan.blocks != "row":
        check_loads(plan, cubin)


@pytest.mark.skipif(not HAVE_NVDISASM, reason="needs nvdisasm")
@pytest.mark.parametrize("plan", WITH_PARTIALS, ids=str)
def test_all_loads_are_sent_before_one_is_waited_for(plan):
    """The partial maxima take registers, and what ptxas has too few for it sends later."""
    check_loads(plan, assembled(smxx_quantize_rules, plan, "sm_90a")[1])


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_look_for_the_maximum(dtype):
    check(smxx_quantize_rules, AmaxPlan(dtype, True), "sm_90a", 64, True)


def test_what_no_kernel_takes_is_refused():
    for plan, why in (
        (CastPlan("token", "float64"), "takes x of bfloat16, float16, float32, got float64"),
        (CastPlan("token", "float16", 48), "takes groups of 16, 32, 64, 128, 256, 512, got 48"),
        (CastPlan("block", "float16", 64), "takes groups of 128, got 64"),
        (CastPlan("token", "float16", packed=True), "packs UE8M0 scales"),
        (CastPlan("token", "float16", 256, use_ue8m0=True, packed=True), "packs UE8M0 scales"),
    ):
        assert smxx_cast_rules.refusal(plan).startswith(why)
    for plan, why in (
        (QuantizePlan("int4", "float64", rule="amax/7"), "takes x of bfloat16, float16, float32, got float64"),
        (QuantizePlan("float8_e5m2", "float16"), "takes float8_e4m3fn by amax, .*, got float8_e5m2 by amax"),
        (QuantizePlan("int4", "float16", rule="minmax"), ".*, got int4 by minmax"),
        (QuantizePlan("int8", "float16", group=48), "takes groups of 16, 32, 64, 128, 256, 512, got 48"),
        (QuantizePlan("float4_e2m1fn", "float16", group=32, rule="nvfp4"), "takes groups of 16, got 32"),
        (QuantizePlan("float4_e2m1fn", "float16", "row", rule="rceil"), "takes groups of columns for scales of float8_e8m0fnu, got row"),
        (QuantizePlan("float4_e2m1fn", "float16", rule="deepgemm", words=True), "packs UE8M0 scales"),
        (QuantizePlan("int8", "float16", packed=True), "packs codes of 4 bits, got int8"),
    ):
        assert re.match(why, smxx_quantize_rules.refusal(plan))
