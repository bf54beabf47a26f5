"""What a call may be given and may write: output types and their overflow, the addend in one pass, e5m2, scales read as they lie, settings."""

import dataclasses
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from cases import H200, KERNEL_OF, expected_of, plan, portable, skinny, skinny_rs, swapped, whole_rows

import dgnumba
from dgnumba import api, config, emulated, prepared
from dgnumba import plan as planning
from dgnumba.device import Device
from dgnumba.errors import PlanError, ProblemError
from dgnumba.layouts.operands import lay_out
from dgnumba.problem import GemmProblem, check_fp8_gemm_nt
from dgnumba.quant.reference import exact_integer_reference, gemm_reference
from dgnumba.testing import assert_bits_equal, exact_problem

E4M3, E5M2, BF16, F16 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.bfloat16, np.float16
BOTH = ["host", "emulator"]
on = pytest.mark.parametrize("on", BOTH)

EPILOGUES = {
    "tma": plan(16, 16),
    "warp": plan(64, 64, epilogue="warp"),
    "direct": plan(16, 16, epilogue="direct"),
    "registers": swapped(8, 64),
    "a split's registers": swapped(8, 64, split=2),
}
"""A small plan for each way that D leaves the registers."""


@pytest.fixture(autouse=True)
def settings(monkeypatch):
    """Every test ends with the settings that it began with; and `explain` need not compile, which takes seconds."""
    monkeypatch.setattr(api, "resources_of", lambda *args: "not asked for")
    before = config.current()
    yield
    dgnumba.set_num_sms(before.num_sms)
    dgnumba.set_pdl(before.pdl, constant_weights=before.constant_weights)
    dgnumba.set_batch_invariant(before.batch_invariant)


# Output types


@on
@pytest.mark.parametrize("m, n", [(5, 24), (37, 50)])
def test_float16_is_an_output(on, m, n, rng):
    case = exact_problem(rng, m, n, 300, "float16")
    d = np.full((m, n), -7, F16)
    assert api.fp8_gemm_nt(case.a, case.b, d, on=on) is d
    assert_bits_equal(d, exact_integer_reference(*case.a, *case.b, "float16"))


def rounding_problem(k=256):
    """`(a, sfa), (b, sfb)` whose product is 1, 1.5, ... times 2^e in each row: between, at and past the ends of the 16-bit types."""
    a = np.zeros((8, k), E4M3)
    a[:, 0] = 1
    b = np.zeros((64, k), E4M3)
    b[:, 0] = 1
    sfa = np.zeros((8, k // 128), np.float32)
    ulp = np.float32(2.0**-23)
    exact = [65504, 65519.996, 65520, 65536, 2.0**-24, 3 * 2.0**-25, (2 - 2.0**-8) * 2.0**127 * (1 - ulp), (2 - 2.0**-8) * 2.0**127]
    sfa[:, 0] = exact
    return (a, sfa), (b, np.ones((1, k // 128), np.float32)), np.float32(exact)


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("with_c", [False, True])
@pytest.mark.parametrize("place", ["host", *EPILOGUES])
def test_too_large_is_infinite_and_ties_go_to_even_on_every_path(place, with_c, dtype):
    """65520 is float16's first infinity, 2^-24 its least number; 1.5 of that is a tie. bfloat16's first infinity is in the last row."""
    if place == "direct":
        pytest.skip("writes float32 alone")
    a, b, exact = rounding_problem()
    with np.errstate(over="ignore"):
        expected = np.repeat(exact[:, None].astype(dtype), 64, axis=1)
    c = np.zeros((8, 64), dtype) if with_c else None
    d = np.full((8, 64), -7, dtype)
    chosen = None
    if place != "host":
        chosen = dataclasses.replace(EPILOGUES[place], d_dtype=np.dtype(dtype).name, with_c=with_c)
    with np.errstate(all="raise"):
        api.fp8_gemm_nt(a, b, d, c, on="host" if place == "host" else "emulator", plan=chosen)
    assert_bits_equal(d, expected, place)
    assert np.isinf(d.astype(np.float32)).sum() == 64 * (4 if dtype is F16 else 1)


# The addend


@pytest.mark.parametrize("is_in_place", [False, True])
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_c_is_added_in_the_epilogue(epilogue, is_in_place, rng):
    """In one pass, rounded once: nothing is copied, and where C is D nothing is read after it was written."""
    policy = ("eager", "late")[is_in_place]
    chosen = dataclasses.replace(EPILOGUES[epilogue], with_c=True)
    m, n = (8, 72) if "registers" in epilogue else (19, 72)
    case = exact_problem(rng, m, n, 200, chosen.d_dtype)
    out = case.problem.d_dtype.numpy
    # quarters, that a product rounded before the sum would lose
    c = (rng.integers(-8, 9, (m, n)) + 0.25).astype(out)
    before, expected = c.copy(), expected_of(case, c)
    d = c if is_in_place else np.full((m, n), np.nan, out)
    assert "c:" not in str(api.explain(case.a, case.b, d, c, plan=chosen))
    api.fp8_gemm_nt(case.a, case.b, d, c, on="emulator", plan=chosen, policy=policy)
    assert_bits_equal(d, expected)
    assert is_in_place or np.array_equal(c.view(np.uint8), before.view(np.uint8))


@pytest.mark.parametrize("m, n, k, dtype", [(3, 64, 256, BF16), (3, 64, 256, np.float32), (70, 16, 128, F16)])
def test_a_call_with_c_is_one_kernel(m, n, k, dtype, monkeypatch):
    from dgnumba import emu

    runs, real = [], emu.run
    monkeypatch.setattr(emu, "run", lambda *args, **more: (runs.append(args[0]), real(*args, **more)))
    (a, b), c = ones(m, n, k), np.full((m, n), 2, dtype)
    assert (api.fp8_gemm_nt(a, b, c, c, on="emulator").astype(float) == k + 2).all() and len(runs) == 1
    assert not any(copy.startswith(("c:", "d:")) for copy in api.explain(a, b, c, c).copies)


@pytest.mark.parametrize("pitch", [72, 71, 80])
def test_any_pitch_of_c(pitch, rng):
    """One that is read as it lies, or else a padded copy that explain names; in place too."""
    case = exact_problem(rng, 20, 66, 260)
    held = rng.integers(-8, 9, (20, pitch)).astype(BF16)
    c = held[:, :66]
    expected, beside = expected_of(case, c), held[:, 66:].copy()
    d = np.full((20, 66), np.nan, BF16)
    assert "c: byte strides" in str(api.explain(case.a, case.b, d, c)), "66 columns are no whole pieces of 16 bytes"
    assert_bits_equal(api.fp8_gemm_nt(case.a, case.b, d, c, on="emulator"), expected)
    assert_bits_equal(api.fp8_gemm_nt(case.a, case.b, c, c, on="emulator"), expected)
    assert_bits_equal(held[:, 66:], beside)


def test_a_plan_without_an_addend_refuses_one():
    (a, b), c = ones(8, 64, 256), np.zeros((8, 64), BF16)
    with pytest.raises(PlanError, match=r"is for products without an addend, got c \(with_c=True\)"):
        api.fp8_gemm_nt(a, b, c, c, on="emulator", plan=swapped(8, 64))
    assert (api.fp8_gemm_nt(a, b, c, c, on="emulator", plan="8x64x128 s2 registers").astype(float) == 256).all(), (
        "a name says no such thing"
    )


def test_a_gpu_without_such_a_kernel_adds_in_a_second_pass(monkeypatch):
    """Before Hopper the product is made in float32 and C added there, with the same one rounding, and explain says so."""
    ampere = dataclasses.replace(H200, name="NVIDIA A100", cc=(8, 0), smem_per_block=166912)
    monkeypatch.setattr(Device, "current", classmethod(lambda cls: ampere))
    for dtype in (BF16, F16, np.float32):
        (a, b), c = ones(5, 24, 256), np.full((5, 24), 3, dtype)
        assert "c: the product is made in a float32 buffer" in str(api.explain(a, b, c, c))
        assert (api.fp8_gemm_nt(a, b, c, c, on="emulator").astype(float) == np.float32(259).astype(dtype)).all()


# e5m2


@on
@pytest.mark.parametrize("kinds", [(E5M2, E4M3), (E4M3, E5M2), (E5M2, E5M2)], ids=lambda kinds: "-".join(k.__name__[7:] for k in kinds))
@pytest.mark.parametrize("m", [6, 70])
def test_e5m2_on_either_side(on, kinds, m, rng):
    """Pairs of arrays and QTensors alike, of values that only the one type has (5 in e4m3 is 0b101 * 2^0, 2^-16 in e5m2 alone)."""
    n, k = 40, 300
    case = exact_problem(rng, m, n, k, "float32")
    parts = [x.data.astype(np.float32).astype(kind) for x, kind in zip((case.a, case.b), kinds)]  # -4 to 4 are numbers of both
    expected = exact_integer_reference(*case.a, *case.b, "float32")
    for data, kind in zip(parts, kinds):
        if kind is E5M2:
            data[:, 7] = 2.0**-16
            data[:, :7] = data[:, 8:] = 0
    if kinds == (E5M2, E5M2):
        expected = (gemm_reference(*(quantized(x, q) for x, q in zip(parts, (case.a, case.b))))).astype(np.float32)
    else:
        whole = [x.astype(np.float64) for x in parts]
        scales = np.repeat(case.a.scale, 128, 1)[:, :k], np.repeat(np.repeat(case.b.scale, 128, 0)[:n], 128, 1)[:, :k]
        expected = ((whole[0] * scales[0]) @ (whole[1] * scales[1]).T).astype(np.float32)
    pairs = [(data, q.scale) for data, q in zip(parts, (case.a, case.b))]
    assert_bits_equal(api.fp8_gemm_nt(*pairs, np.full((m, n), -7, np.float32), on=on) + 0, expected + 0)
    tensors = [quantized(x, q) for x, q in zip(parts, (case.a, case.b))]
    assert_bits_equal(api.fp8_gemm_nt(*tensors, np.full((m, n), -7, np.float32), on=on) + 0, expected + 0)


def quantized(data, like):
    return dgnumba.QTensor(data.view(np.uint8), like.scale, data.dtype.name, like.granularity)


# Scales of A as they lie


@pytest.mark.parametrize("m, k", [(9, 500), (9, 512), (9, 900), (9, 2048), (150, 600)])
def test_row_major_scales_are_read_as_they_lie(m, k, policy, rng):
    """By the kernel for few rows and by the dense one: no pass over them before, whatever lies between their rows."""
    case = exact_problem(rng, m, 70, k)
    sfa = whole_rows(case.a.scale)
    d = np.full((m, 72), -7, BF16)[:, :70]
    explained = api.explain((case.a.data, sfa), case.b, d)
    assert explained.choice.plan.row_scales and not any("sfa" in copy for copy in explained.copies)
    assert_bits_equal(
        api.fp8_gemm_nt((case.a.data, sfa), case.b, d, on="emulator", policy=policy), exact_integer_reference(*case.a, *case.b, "bfloat16")
    )


def test_scales_that_cannot_be_read_so_are_turned(rng):
    case = exact_problem(rng, 9, 64, 700)
    odd = case.a.scale  # rows of six
    assert any("turned to MN-major" in copy for copy in api.explain((case.a.data, odd), case.b).copies)
    turned = dgnumba.get_mn_major_tma_aligned_tensor(odd)
    explained = api.explain((case.a.data, turned), case.b)
    assert not explained.choice.plan.row_scales and not any("sfa" in copy for copy in explained.copies)


def test_scales_give_the_same_bits_however_they_are_read(rng):
    """So batch invariance does not ask: at one M they may be turned, at another read as they lie."""
    a = dgnumba.per_token_cast_to_fp8(rng.standard_normal((20, 600), np.float32))
    a = (a.data, whole_rows(a.scale))
    b = dgnumba.per_block_cast_to_fp8(rng.standard_normal((30, 600), np.float32))
    plans = (plan(16, 32, d_dtype="float32", row_scales=row_scales) for row_scales in (True, False))
    direct, turned = (api.fp8_gemm_nt(a, b, np.zeros((20, 30), np.float32), on="emulator", plan=chosen) for chosen in plans)
    assert_bits_equal(direct, turned)


# Settings


def ones(m, n, k):
    a, b = np.ones((m, k), E4M3), np.ones((n, k), E4M3)
    return (a, np.ones((m, -(-k // 128)), np.float32)), (b, np.ones((-(-n // 128), -(-k // 128)), np.float32))


def test_settings_are_as_they_were_set():
    assert (dgnumba.get_pdl(), dgnumba.get_batch_invariant()) == (False, False)
    everything = dgnumba.get_num_sms()
    dgnumba.set_num_sms(4)
    dgnumba.set_pdl(True)
    dgnumba.set_batch_invariant(True)
    assert (dgnumba.get_num_sms(), dgnumba.get_pdl(), dgnumba.get_batch_invariant()) == (4, True, True)
    dgnumba.set_num_sms(10**6)
    assert dgnumba.get_num_sms() == everything, "a GPU has what it has"


def test_a_promise_holds_until_set_pdl_is_called_without_it():
    assert dgnumba.get_constant_weights() is False
    dgnumba.set_pdl(True, constant_weights=True)
    assert (dgnumba.get_pdl(), dgnumba.get_constant_weights()) == (True, True)
    dgnumba.set_pdl(True)
    assert (dgnumba.get_pdl(), dgnumba.get_constant_weights()) == (True, False)
    dgnumba.set_pdl(True, constant_weights=True)
    for arguments, words in (
        ((False, True), "constant_weights: expected False where enabled is False: nothing then begins before the kernel before has ended"),
        ((True, "constant"), "constant_weights: expected True or False, got 'constant'"),
        ((1, True), "enabled: expected True or False, got 1"),
    ):
        with pytest.raises(ProblemError, match=words):
            dgnumba.set_pdl(arguments[0], constant_weights=arguments[1])
        assert (dgnumba.get_pdl(), dgnumba.get_constant_weights()) == (True, True), "refused, so nothing has changed"
    dgnumba.set_pdl(False)
    assert (dgnumba.get_pdl(), dgnumba.get_constant_weights()) == (False, False)


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, "8"])
def test_a_bad_count_is_refused(bad):
    dgnumba.set_num_sms(7)
    with pytest.raises(ProblemError, match="num_sms: expected an integer of 1 or more, or None for all, got"):
        dgnumba.set_num_sms(bad)
    assert dgnumba.get_num_sms() == 7


@pytest.mark.parametrize("setter", [dgnumba.set_pdl, dgnumba.set_batch_invariant])
def test_a_switch_is_true_or_false(setter):
    with pytest.raises(ProblemError, match="enabled: expected True or False, got 1"):
        setter(1)


def test_plans_keep_to_the_multiprocessors_that_they_may_use(monkeypatch):
    from dgnumba import emu

    (a, b), grids, real = ones(48, 64, 128), [], emu.run
    monkeypatch.setattr(emu, "run", lambda kernel, grid, *args, **more: (grids.append(grid), real(kernel, grid, *args, **more)))
    chosen = plan(16, 32)
    monkeypatch.setattr(emulated, "SMS", 5)
    for limit, expected in ((None, 5), (3, 3), (64, 5)):
        dgnumba.set_num_sms(limit)
        assert (api.fp8_gemm_nt(a, b, on="emulator", plan=chosen).astype(float) == 128).all()
        assert grids[-1] == expected
    monkeypatch.setattr(Device, "current", classmethod(lambda cls: H200))
    dgnumba.set_num_sms(64)
    explained = api.explain(*ones(4096, 4096, 128))
    assert explained.choice.kernel.grid(explained.choice.plan, explained.operands.problem, explained.device) <= 64
    assert "tiles on 64 multiprocessors" in str(explained)


@pytest.mark.parametrize(
    "name", ["sm90_fp8_gemv_1d2d 8x16x128 s1 c8K registers w1", "sm90_fp8_gemm_1d2d_swap_ab 8x64x128 s4 c4K registers"]
)
def test_the_emulator_runs_a_split_over_more_ctas_than_it_plans_for(name):
    """A plan as `explain` prints it, of a GPU with more multiprocessors than the emulator stands for, can be stepped."""
    a, b = ones(5, 17, 1024)
    assert (api.fp8_gemm_nt(a, b, on="emulator", plan=name).astype(float) == 1024).all()
    chosen = planning.named(name, GemmProblem(5, 17, 1024), H200).plan
    assert (api.fp8_gemm_nt(a, b, on="emulator", plan=chosen).astype(float) == 1024).all()


@pytest.mark.parametrize("split", [3, 16])
def test_a_split_that_no_kernel_has_is_refused_for_that(split):
    with pytest.raises(PlanError, match=r"needs a split over \(1, 2, 4, 8\) CTAs"):
        api.fp8_gemm_nt(*ones(5, 17, 1024), on="emulator", plan=f"sm90_fp8_gemv_1d2d 8x16x128 s1 c{split}K registers w2")


DEPENDENT = [
    (plan(64, 64), True),
    (swapped(8, 64), True),
    (skinny(8, 1, 2), True),
    (portable("float8_e4m3fn", 128, 128, d_dtype="bfloat16"), False),
]


@pytest.mark.parametrize("chosen, is_dependent", DEPENDENT, ids=[chosen.kernel for chosen, _ in DEPENDENT])
def test_only_kernels_that_wait_are_launched_early(monkeypatch, chosen, is_dependent):
    """`sm80_gemm` reads at once: begun before the kernel that writes its operands has ended, it would read what is not there yet."""
    (a, b), shapes, built = ones(8, 64, 128), [], []
    record = SimpleNamespace(launcher=lambda index, shape: shapes.append(shape))
    monkeypatch.setattr(prepared, "program", lambda choice, device: built.append(choice.plan) or record)
    monkeypatch.setattr(prepared.launching, "encoder", lambda descriptor: None)
    operands = check_fp8_gemm_nt(a, b, np.zeros((8, 64), chosen.d_dtype), None)
    device = dataclasses.replace(H200, index=0)
    for pdl in (True, False):
        prepared.PreparedLaunch(SimpleNamespace(kernel=KERNEL_OF[chosen.kernel], plan=chosen), lay_out(operands), device, pdl)
    assert [shape.pdl for shape in shapes] == [is_dependent, False]
    assert built == [dataclasses.replace(chosen, pdl=KERNEL_OF[chosen.kernel].LAUNCHES_DEPENDENTS), chosen]


WEIGHTS = {
    "the caller's": (True, lambda b, sfb: (b, sfb)),
    "B copied": (False, lambda b, sfb: (np.asfortranarray(b), sfb)),
    "its scales copied": (False, lambda b, sfb: (b, np.asfortranarray(sfb))),
    "its scales unpacked": (False, lambda b, sfb: (b, np.full((len(sfb), 2), 0x7F7F7F7F, np.int32))),
}


@pytest.mark.parametrize("is_callers, weights", WEIGHTS.values(), ids=WEIGHTS)
@pytest.mark.parametrize("chosen", [swapped(8, 64), skinny(8, 1, 2), skinny_rs(8, 1, 1, block_n=64)], ids=lambda chosen: chosen.kernel)
def test_first_weights_wait_where_the_call_itself_makes_them(monkeypatch, chosen, is_callers, weights):
    """A copy of B, or scales that are unpacked, come from the kernel before: loaded before the wait they would be what lay there earlier."""
    (a, sfa), b = ones(8, 256, 1024)
    shapes, built = [], []
    record = SimpleNamespace(launcher=lambda index, shape: shapes.append(shape))
    monkeypatch.setattr(prepared, "program", lambda choice, device: built.append(choice.plan) or record)
    monkeypatch.setattr(prepared.launching, "encoder", lambda descriptor: None)
    monkeypatch.setattr(prepared, "_prepared", {})
    choice, device = SimpleNamespace(kernel=KERNEL_OF[chosen.kernel], plan=chosen), dataclasses.replace(H200, index=0)
    # rows of A whose pitch no TMA takes: a copy of A's is none of the weights'
    laid = api._lay_out(check_fp8_gemm_nt((np.asfortranarray(a), sfa), weights(*b), np.zeros((8, 256), "bfloat16"), None), chosen)
    assert laid.has_callers_weights is is_callers and any(words.startswith("a:") for words in laid.copies)
    for pdl, constant in ((True, True), (True, False), (False, False), (True, True)):
        prepared.prepared(choice, laid, device, pdl, constant)
    deep = choice.kernel.first_stages(chosen)
    assert deep >= chosen.num_stages
    early = [dataclasses.replace(chosen, pdl=True, weights_first=True, num_stages=deep)] * is_callers
    assert built == [*early, dataclasses.replace(chosen, pdl=True), chosen], "each form once"
    assert all(shape.pdl == plan_.pdl for shape, plan_ in zip(shapes, built, strict=True))
    # the ring of first weights is deeper: with the other's shared memory it wrote past the end (an H200 said so)
    assert [shape.smem for shape in shapes] == [choice.kernel.smem(plan_).launch_bytes for plan_ in built]


# Batch invariance


def test_a_row_has_the_same_bits_whatever_m_is(rng):
    """Real numbers, K long enough to be split: with the switch on every M gives the first row's bits; without it some does not."""
    n, k = 16, 1152
    x, w = rng.standard_normal((40, k)).astype(np.float32), rng.standard_normal((n, k)).astype(np.float32)
    (a, sfa), b = dgnumba.per_token_cast_to_fp8(x), dgnumba.per_block_cast_to_fp8(w)

    def product(m, **more):
        return api.fp8_gemm_nt((a[:m], sfa[:m]), b, np.zeros((m, n), np.float32), on="emulator", **more)

    dgnumba.set_batch_invariant(True)
    alone = product(1)
    for m in (9, 40):
        assert_bits_equal(product(m)[:1], alone)
    for chosen in (
        swapped(8, 64, d_dtype="float32", block_k=256),
        swapped(16, 64, d_dtype="float32"),
        plan(16, 16, d_dtype="float32"),
        plan(128, 16, d_dtype="float32", rotate=True),
    ):
        assert_bits_equal(product(7, plan=chosen)[:1], alone, chosen.name)
    split = swapped(8, 64, d_dtype="float32", split=2)
    with pytest.raises(PlanError, match="batch invariance is on"):
        product(7, plan=split)
    dgnumba.set_batch_invariant(False)
    assert not np.array_equal(product(7, plan=split)[:1], alone), "a split adds in another order"


def test_the_host_is_batch_invariant(rng):
    x, w = rng.standard_normal((70, 1000)).astype(np.float32), rng.standard_normal((200, 1000)).astype(np.float32)
    (a, sfa), b = dgnumba.per_token_cast_to_fp8(x), dgnumba.per_block_cast_to_fp8(w)
    whole = api.fp8_gemm_nt((a, sfa), b, np.zeros((70, 200), np.float32))
    for m in (1, 2, 33):
        assert_bits_equal(api.fp8_gemm_nt((a[:m], sfa[:m]), b, np.zeros((m, 200), np.float32)), whole[:m])
