"""explain as a user meets it: the whole chain from the operands to the registers, in words."""

import re

import numpy as np
import pytest
from api_cases import BAD, full, ones
from cases import H200, plan

import dgnumba
from dgnumba import api, config, int4, prepared
from dgnumba.device import Device
from dgnumba.errors import PlanError, ProblemError
from dgnumba.kernels import KERNELS, GemmPlan
from dgnumba.kernels.spec import launched
from dgnumba.plan import choose
from dgnumba.problem import GemmProblem
from dgnumba.testing import exact_problem


def test_explain_prints_the_whole_chain(rng):
    case = exact_problem(rng, 100, 300, 650)
    text = str(api.explain(case.a, case.b))
    heads = [line.split()[0] for line in text.splitlines() if not line.startswith(" ")]
    assert ["operands", "lay", "problem", "plan", "why", "smem", "registers"] == heads
    for part in (
        "a float8_e4m3fn [100, 650], one scale per 1x128",
        "b float8_e4m3fn [300, 650], one scale per 128x128",
        "d bfloat16 [100, 300]",
        "a: byte strides [650, 1] (TMA: 1 element, a multiple of 16) copied to [656, 1]",
        "sfa: row-major [100, 6] turned to MN-major",
        "d: byte strides [600, 2]; computed in a padded buffer of [608, 2], then copied",
        "0.04 GFLOP",
        "NVIDIA H200",
        "us expected, bound by",
        "cheapest of",
        "bytes asked for at launch",
    ):
        assert part in text, part
    found = re.search(r"plan +(\S+): tile (\d+)x(\d+)x(\d+), (\d+) stages, .* epilogue", text)
    assert found and found.group(1) in {k.NAME for k in KERNELS}


def test_explain_says_the_registers_where_it_can_compile(rng):
    pytest.importorskip("numba_cuda")
    from dgnumba.assemble import find_ptxas

    if find_ptxas() is None:
        pytest.skip("needs ptxas")
    case = exact_problem(rng, 16, 256, 512)
    text = str(api.explain(case.a, case.b))
    assert re.search(r"registers  \d+ a thread at entry, \d+ threads; 0 bytes spilled", text), text


def test_explain_says_what_brings_the_compilers(rng, monkeypatch, tmp_path):
    pathfinder = pytest.importorskip("cuda.pathfinder")
    monkeypatch.setenv("DGNUMBA_CACHE_DIR", str(tmp_path))

    def fails(*args, **options):
        raise pathfinder.DynamicLibNotFoundError('Failure finding "libnvrtc.so.13": No such file')

    monkeypatch.setattr("numba.cuda.compile", fails)
    case = exact_problem(rng, 16, 256, 512)
    rare = GemmPlan("sm90_fp8_gemm_1d2d", block_m=64, block_n=32, num_stages=3)  # which no other test has compiled in this process
    text = str(api.explain(case.a, case.b, plan=rare))
    assert "registers  unknown" in text
    assert "NVIDIA's NVRTC is not found: python -m pip install 'dgnumba[cuda13]')" in text


def test_explain_says_nothing_to_copy_and_writes_nothing():
    a, b = ones(16, 128, 512)
    d = full((16, 128))
    explanation = api.explain((a[0], np.asfortranarray(a[1])), b, d)
    assert "lay out    nothing to copy" in str(explanation)
    assert (d == -7).all()
    assert explanation.choice.plan.d_dtype == "bfloat16"


def test_explain_of_a_callers_plan():
    text = str(api.explain(*ones(70, 70, 512), plan=plan(64, 32, share="B")))
    assert "tile 64x32x128, 3 stages, clusters of 2 sharing B, tma epilogue" in text
    with pytest.raises(PlanError, match="needs BLOCK_N"):
        api.explain(*ones(70, 70, 512), plan=plan(64, 30))


def test_a_plan_by_its_name():
    text = str(api.explain(*ones(70, 70, 512), plan="64x32x128 s3 c2B tma"))
    assert "tile 64x32x128, 3 stages, clusters of 2 sharing B, row-major scales, tma epilogue; plan='64x32x128 s3 c2B tma'" in text
    a, b = ones(16, 16, 128)
    assert (api.fp8_gemm_nt(a, b, on="emulator", plan="16x16x128 s3 tma").astype(np.float32) == 128).all()
    with pytest.raises(PlanError, match="needs N of a multiple of 8 for the warp epilogue"):
        api.fp8_gemm_nt(*ones(64, 70, 128), on="emulator", plan="64x64x128 s3 warp")


@pytest.mark.parametrize("m, n, k", [(0, 5, 128), (5, 0, 128), (5, 5, 0)])
def test_explain_of_nothing(m, n, k):
    with pytest.raises(ProblemError, match=f"nothing to explain: m {m}, n {n}, k {k}"):
        api.explain(*ones(m, n, k))


def test_explain_refuses_as_the_call_does():
    changes, error, message = BAD["scale shape"]
    with pytest.raises(error, match=message):
        api.explain(changes["a"], ones(4, 6, 256)[1])


def test_explain_tells_how_scales_are_read(monkeypatch):
    """Of two plans of one name one reads A's scales as they lie, for the other they are turned."""
    monkeypatch.setattr(api, "resources_of", lambda *args: "not asked for")
    explained = api.explain(*ones(20, 64, 512))
    assert explained.choice.plan.row_scales and " stages, no cluster, row-major scales, registers epilogue; plan=" in str(explained)
    assert "row-major scales" not in str(api.explain(*ones(20, 64, 500), plan=plan(32, 32)))
    chosen = choose(GemmProblem(512, 2112, 7168, row_scales=True), H200)
    shown = [p.label for p in (chosen.plan, *(p for p, _ in chosen.runners_up))]
    assert len({p.name for p, _ in ((chosen.plan, None), *chosen.runners_up)}) < len(shown) == len(set(shown)) == 4
    text = api.Explanation._against(api.Explanation(None, (), H200, chosen, None, ""))
    assert all(f"{label} " in text for label in shown[1:])


def test_explain_tells_how_a_launch_begins(monkeypatch):
    """The plan that is built says more than the one that is chosen, where `set_pdl` is on."""
    monkeypatch.setattr(Device, "current", classmethod(lambda cls: H200))
    monkeypatch.setattr(api, "resources_of", lambda *args: "not asked for")
    (a, sfa), (b, sfb) = ones(8, 2112, 1024)
    said = []
    for settings in (config.Settings(), config.Settings(pdl=True), config.Settings(pdl=True, constant_weights=True)):
        monkeypatch.setattr(config, "_settings", settings)
        explained = api.explain((a, sfa), (b, sfb))
        said.append([line for line in str(explained).splitlines() if line.startswith("launch")])
        name = explained.choice.plan.name
    begin, end = (
        "launch     begins as the kernel before it ends, ",
        "waits for that one, and lets the next begin behind its loads; built as ",
    )
    assert explained.launched.num_stages == 6 > explained.choice.plan.num_stages, "first weights have a ring as deep as fits"
    first = explained.launched.name
    assert first.endswith(" weights_first")
    assert said == [[], [f"{begin}{end}{name!r}"], [f"{begin}asks for its first weights, then {end}{first!r}"]]
    assert "weights_first" not in str(api.explain((a, sfa), (np.asfortranarray(b), sfb))), "a copy is what the kernel before has written"
    assert not any(line.startswith("launch") for line in str(api.explain(*ones(4096, 4096, 512))).splitlines()), (
        "the kernel for many tokens"
    )


@pytest.mark.parametrize("pdl", [False, True])
def test_explain_tells_of_the_kernel_that_calls_launch(pdl, monkeypatch):
    """Of the one that is built for an early begin where `set_pdl` asks for it: registers of another binary would be nobody's."""
    monkeypatch.setattr(Device, "current", classmethod(lambda cls: H200))
    monkeypatch.setattr(config, "_settings", config.Settings(pdl=pdl))
    told = []
    for module in (api, int4):
        monkeypatch.setattr(module, "resources_of", lambda choice, built, device: told.append((choice.plan, built)) or "")
    weights = dgnumba.quantize(np.ones((64, 256), np.float32), "int4_g128")
    for explained in (api.explain(*ones(4, 64, 256)), dgnumba.explain_int4(np.ones((4, 256), np.float16), weights)):
        plan, built = told.pop(0)
        assert plan == launched(explained.choice.plan, explained.choice.kernel, pdl)
        assert plan.pdl == pdl and explained.choice.plan.pdl is False
        assert built is explained.built is prepared.built(prepared.Launched(plan, explained.choice.kernel))
