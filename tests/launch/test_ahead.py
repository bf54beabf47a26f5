"""`dgnumba.warmup`: after it no call of these shapes compiles, in any process; without a GPU too."""

import ctypes
import dataclasses

import pytest
from cases import H200, KERNEL_OF, swapped
from launch.test_first_call import first_call, of_packages

import dgnumba
from dgnumba import _numba, ahead, cache, config, layer_plans, policy
from dgnumba.assemble import Cubin, find_ptxas
from dgnumba.errors import CompileError, ProblemError, UnsupportedError
from dgnumba.kernels.smxx_layout_rules import LayoutPlan
from dgnumba.kernels.spec import launched
from dgnumba.plan import choose
from dgnumba.problem import GemmProblem

needs_compiler = pytest.mark.skipif(not _numba.HAVE_NUMBA_CUDA or find_ptxas() is None, reason="needs numba-cuda and ptxas")


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """A cache of its own, nothing measured, no limit of plans."""
    monkeypatch.setenv("DGNUMBA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_shared", {})
    monkeypatch.setattr(policy, "_most", [None])
    policy.forget()
    yield tmp_path / "cache"
    policy.forget()


@pytest.fixture
def uncompiled(monkeypatch, folder):
    """What would be compiled is put into the cache as it is; the list of it."""
    done = []

    def compiled(plans, arch, jobs):
        for plan in plans:
            done.append(plan)
            key = cache.key_of(plan, (), arch=arch, **ahead._bounds(plan))
            cache.shared().get(key, lambda: Cubin(b"\x7fELF", "k"))
            yield str(getattr(plan, "name", plan)), ""

    monkeypatch.setattr(ahead, "_compiled", compiled)
    return done


@needs_compiler
@pytest.mark.parametrize("m, k, kernels, launches", [(200, 640, 1, 2), (200, 512, 2, 1), (16, 512, 2, 1)])
def test_after_a_warm_up_no_call_imports_the_compiler(folder, m, k, kernels, launches):
    """A product, and the move of its row-major scales where it cannot read them as they lie: compiled elsewhere, found here."""
    steps = []
    shape = {"shapes": [(m, 256, k)], "d_dtype": "float32", "device": "h200"}
    warmed = dgnumba.warmup(**shape, jobs=2, progress=lambda done, total: steps.append((done, total)))
    assert (warmed.compiled, len(warmed.kernels), len(warmed.moves)) == (kernels + 1, kernels, 1)
    assert steps == [(n, kernels + 1) for n in range(kernels + 2)]
    called = first_call(folder, m, 256, k, "row-major")
    assert len(called["launches"]) == launches
    assert called["again"] == {"launches": launches, "is_quick": launches == 1}
    assert of_packages(called["modules"], "numba", "llvmlite", "cuda.core", "dgnumba.ptx") == []
    again = dgnumba.warmup(**shape)
    count = kernels + 1
    assert again.compiled == 0 and str(again) == f"{count} kernels for NVIDIA H200: 0 compiled, {count} were in the cache"


def test_what_does_not_compile_is_told_of(folder, monkeypatch):
    monkeypatch.setattr(ahead, "_compiled", lambda plans, arch, jobs: ((plans[0].name, "ptxas says no" if i else "") for i in range(2)))
    with pytest.raises(CompileError, match="1 of 2 kernels did not compile\n8x64x128 s2 registers: ptxas says no"):
        ahead.compile_all([swapped(8, 64), swapped(8, 64, 3)], "sm_90a", 2)


def test_what_is_wrong_with_all_is_told_once(folder, monkeypatch):
    """Compilers that are not there, say: of 31 kernels that was one sentence 31 times."""
    plans = [swapped(8, 64, stages) for stages in range(2, 7)]
    monkeypatch.setattr(ahead, "_compiled", lambda plans, arch, jobs: ((plan.name, "NVRTC is not found: pip install") for plan in plans))
    with pytest.raises(CompileError) as caught:
        ahead.compile_all(plans, "sm_90a", 2)
    assert str(caught.value).count("NVRTC is not found") == 1
    assert "5 of 5 kernels" in str(caught.value) and f"{plans[2].name} and others: NVRTC" in str(caught.value)


def test_a_process_gives_back_what_was_wrong(folder, monkeypatch):
    def refuse(*args, **options):
        raise CompileError("ptxas refused the kernel", "line 7")

    monkeypatch.setattr(ahead.launching, "compiled", refuse)
    assert ahead._compile(swapped(8, 64), "sm_90a") == ("8x64x128 s2 registers", "ptxas refused the kernel\nline 7")


def test_a_layer_gets_all_kernels_of_any_number_of_tokens(uncompiled):
    """Whichever way the scales of A lie."""
    warmed = dgnumba.warmup([(7168, 2048), (16, 7168, 2048)], device="h200")
    layers = [GemmProblem(layer_plans.TOKENS, 7168, 2048, row_scales=row_scales) for row_scales in (False, True)]
    assert set(warmed.kernels) == {plan for layer in layers for plan in layer_plans.chosen(layer, H200)}
    for row_scales in (False, True):
        chosen = choose(GemmProblem(16, 7168, 2048, row_scales=row_scales), H200).plan
        assert warmed.kernels[chosen] == ((7168, 2048), (16, 7168, 2048)) and chosen.row_scales == row_scales
    assert warmed.moves == (LayoutPlan("turn", True, True),)
    assert uncompiled == [*warmed.kernels, *warmed.moves] and warmed.compiled == len(uncompiled)


def test_scales_whose_rows_no_kernel_reads_ask_for_none(uncompiled):
    assert not any(plan.row_scales for plan in dgnumba.warmup([(7168, 1152)], device="h200").kernels)


def test_calls_with_c_have_kernels_of_their_own(uncompiled):
    warmed = dgnumba.warmup([(16, 7168, 1152), (300, 7168, 1152)], with_c=True, device="h200")
    assert len(warmed.kernels) == 2 and all(plan.with_c for plan in warmed.kernels)
    portable = dgnumba.warmup([(300, 7168, 1152)], with_c=True, device="l40s").kernels
    assert [(plan.with_c, plan.d_dtype) for plan in portable] == [(False, "float32")]


@pytest.mark.parametrize("most", [None, 5])
def test_kernels_are_those_that_calls_take_under_the_settings(uncompiled, monkeypatch, most):
    """Fewer multiprocessors, and no plan that splits a sum: what is compiled is what calls ask for."""
    policy.set_plans_per_layer(most)
    monkeypatch.setattr(config, "_settings", config.Settings(num_sms=64, batch_invariant=True))
    warmed, device = dgnumba.warmup([(576, 7168)], device="h200"), dataclasses.replace(H200, num_sms=64)
    taken = {policy.choose(GemmProblem(m, 576, 7168), device, batch_invariant=True).plan for m in (*range(1, 130, 7), 1000, 5000)}
    assert len(taken) > 1 and taken <= set(warmed.kernels)
    assert all(KERNEL_OF[plan.kernel].is_batch_invariant(plan) for plan in warmed.kernels)
    assert policy.choose(GemmProblem(1, 576, 7168), device, batch_invariant=True).plan.block_m < 64, "few tokens keep a kernel for few"
    assert set(dgnumba.warmup([(16, 576, 7168)], device="h200").kernels) <= set(warmed.kernels)


def test_kernels_that_begin_early_are_compiled_where_calls_will_ask_for_them(uncompiled, monkeypatch):
    """As many as without: a layer does not get both."""
    without = dgnumba.warmup([(576, 7168)], device="h200").kernels
    for constant in (False, True):
        monkeypatch.setattr(config, "_settings", config.Settings(pdl=True, constant_weights=constant))
        warmed = dgnumba.warmup([(576, 7168)], device="h200").kernels
        assert list(warmed) == [launched(plan, KERNEL_OF[plan.kernel], True, constant) for plan in without]
        assert {plan.pdl for plan in warmed} == {True, False}, "the kernel for many tokens lets nobody begin early"
        assert {plan.weights_first for plan in warmed if plan.pdl} == {constant}


def test_a_layer_held_to_five_gets_five(uncompiled):
    policy.set_plans_per_layer(5)
    warmed = dgnumba.warmup([(576, 7168)], device="h200")
    assert set(warmed.kernels) == {plan for plan, _ in layer_plans.family(GemmProblem(layer_plans.TOKENS, 576, 7168), H200, 5)}


def test_measured_plans_are_compiled_too(uncompiled):
    from test_policy import ROW

    policy.save([ROW])
    gpu = dataclasses.replace(H200, index=0)
    assert ROW.plan in dgnumba.warmup([(ROW.problem.n, ROW.problem.k)], device=gpu).kernels
    by_rows = dataclasses.replace(ROW.plan, row_scales=True)
    assert set(dgnumba.warmup([(ROW.problem.m, ROW.problem.n, ROW.problem.k)], device=gpu).kernels) == {ROW.plan, by_rows}
    assert ROW.plan not in dgnumba.warmup([(ROW.problem.m, ROW.problem.n, ROW.problem.k)], device="h200").kernels


def test_a_measured_plan_that_no_longer_fits_is_not_compiled_but_what_a_call_takes_then(uncompiled):
    from test_policy import ROW

    policy.save([dataclasses.replace(ROW, plan=dataclasses.replace(ROW.plan, num_stages=60))])
    gpu = dataclasses.replace(H200, index=0)
    with pytest.warns(RuntimeWarning, match="is not taken, but planned anew"):
        compiled = dgnumba.warmup([(ROW.problem.n, ROW.problem.k)], device=gpu).kernels
    assert choose(ROW.problem, H200).plan in compiled and all(plan.num_stages < 60 for plan in compiled)


def test_without_a_gpu_it_says_for_which_one_it_compiled(uncompiled, monkeypatch):
    monkeypatch.setattr(ahead.Device, "current", classmethod(lambda cls: H200))
    assert str(dgnumba.warmup([(16, 256, 512)])).startswith("3 kernels for NVIDIA H200, since no GPU is here: 3 compiled")


@pytest.mark.parametrize("shape", [(1,), (1, 2, 3, 4), (0, 128), (128, -1), (1.5, 128), ("128", 128)], ids=str)
def test_a_shape_that_is_none_is_refused(uncompiled, shape):
    with pytest.raises(ProblemError, match=r"shapes: expected a list of \(n, k\) or \(m, n, k\), got"):
        dgnumba.warmup((7168, 2048))
    with pytest.raises(ProblemError, match=r"shapes: expected \(n, k\) of a layer, or \(m, n, k\), of positive integers, got"):
        dgnumba.warmup([shape])
    assert uncompiled == []


def test_what_cannot_be_done_is_refused(uncompiled, monkeypatch, tmp_path):
    with pytest.raises(UnsupportedError, match="no kernel takes"):
        dgnumba.warmup([(256, 512)], a_dtype="float16", device="h200")
    with pytest.raises(ProblemError, match="jobs: expected 1 or more, got 0"):
        dgnumba.warmup([(16, 256, 512)], jobs=0)
    monkeypatch.setattr(cache, "_sources", lambda: None)
    with pytest.raises(ProblemError, match="sources were changed after it was imported"):
        dgnumba.warmup([(16, 256, 512)])


def test_a_cache_that_keeps_nothing_is_refused(uncompiled, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DGNUMBA_CACHE_DIR", str(tmp_path / "file" / "below"))
    monkeypatch.setattr(cache, "_warned", False)  # it warns once a process
    with pytest.warns(RuntimeWarning), pytest.raises(ProblemError, match="cache: .* cannot be used; set DGNUMBA_CACHE_DIR"):
        dgnumba.warmup([(16, 256, 512)])


def test_kernels_that_were_compiled_and_lost_are_told_of(folder, monkeypatch):
    monkeypatch.setattr(ahead, "_compiled", lambda plans, arch, jobs: ((str(plan), "") for plan in plans))
    with pytest.raises(ProblemError, match="cache: 3 kernels were compiled, and could not be kept in"):
        dgnumba.warmup([(16, 256, 512)])


def test_a_process_that_dies_is_told_of(folder, monkeypatch):
    monkeypatch.setattr(ahead, "_compile", ctypes.string_at)  # which reads what is at its first argument
    with pytest.raises(CompileError, match="a process that compiles has died: a script that is run needs the guard"):
        list(ahead._compiled([1], 8, 1))
