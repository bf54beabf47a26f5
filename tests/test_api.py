"""fp8_gemm_nt and explain as a user meets them: the same numbers on the host and in the emulator, legal oddities, refusals that write nothing."""

import dataclasses
import re
import threading

import ml_dtypes
import numpy as np
import pytest
from cases import H200, plan
from hypothesis import given, settings
from hypothesis import strategies as st

from dgnumba import api
from dgnumba.device import Device
from dgnumba.dtypes import DTYPES
from dgnumba.errors import DTypeError, EmulationError, PlanError, ProblemError, UnsupportedError
from dgnumba.kernels import KERNELS, GemmPlan
from dgnumba.quant import per_block_cast_to_fp8, per_token_cast_to_fp8
from dgnumba.quant.reference import error_bound, exact_integer_reference, gemm_reference
from dgnumba.testing import assert_bits_equal, assert_within, exact_problem

E4M3, BF16 = ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16
BOTH = ["host", "emulator"]
on = pytest.mark.parametrize("on", BOTH)


def ones(m, n, k, sfa=1.0, sfb=1.0):
    """Operands of which every code is 1.0: `((a, sfa), (b, sfb))`."""
    blocks = -(-k // 128)
    a, b = np.full((m, k), 0x38, np.uint8).view(E4M3), np.full((n, k), 0x38, np.uint8).view(E4M3)
    sfa = np.broadcast_to(np.float32(sfa), (m, blocks)).copy()
    sfb = np.broadcast_to(np.float32(sfb), (-(-n // 128), blocks)).copy()
    return (a, sfa), (b, sfb)


def full(shape, dtype=BF16, value=-7):
    return np.full(shape, value, dtype)


# Numbers


@on
@pytest.mark.parametrize("out", ["bfloat16", "float32"])
def test_it_is_the_oracle(on, out, rng):
    case = exact_problem(rng, 37, 150, 300, out)
    d = full((37, 150), case.problem.d_dtype.numpy)
    assert api.fp8_gemm_nt(case.a, case.b, d, on=on) is d
    assert_bits_equal(d, exact_integer_reference(*case.a, *case.b, out))


def test_host_and_emulator_stay_within_the_bound_on_real_numbers(rng):
    x, w = rng.standard_normal((20, 500)).astype(np.float32), rng.standard_normal((140, 500)).astype(np.float32)
    a, b = per_token_cast_to_fp8(x), per_block_cast_to_fp8(w)
    for place in BOTH:
        d = full((20, 140), np.float32)
        api.fp8_gemm_nt(a, b, d, on=place)
        share = assert_within(d, gemm_reference(*a, *b), error_bound(*a, *b, "float32"), place)
        assert share > 0, "a bound that nothing uses proves nothing"


@on
def test_no_d_gives_a_new_bfloat16_one(on):
    d = api.fp8_gemm_nt(*ones(3, 5, 130), on=on)
    assert (d.dtype, d.shape) == (BF16, (3, 5)) and (d == 130).all()


@on
def test_a_policy_is_for_the_emulator_and_changes_nothing(on):
    for policy in ("eager", "late"):
        assert (api.fp8_gemm_nt(*ones(3, 5, 200), on=on, policy=policy).astype(float) == 200).all()
    with pytest.raises((ProblemError, EmulationError), match="policy"):
        api.fp8_gemm_nt(*ones(3, 5, 200), on="emulator", policy="lazy")


@on
def test_F12_k_tail_takes_the_last_scale(on):
    a, b = ones(1, 128, 192, sfa=[[1, 10]])
    assert (api.fp8_gemm_nt(a, b, full((1, 128), np.float32), on=on) == 128 + 640).all()


@on
@pytest.mark.parametrize("n", [40, 41, 42, 33, 1])
@pytest.mark.parametrize("dtype", [BF16, np.float32])
def test_F12_columns_beside_the_output_stay(on, n, dtype):
    """Also where N is no multiple of what a store writes, and the pitch is one that TMA takes."""
    buffer = full((3, 64), dtype)
    api.fp8_gemm_nt(*ones(3, n, 128), buffer[:, :n], on=on)
    assert (buffer[:, :n] == 128).all() and (buffer[:, n:] == -7).all()


@pytest.mark.parametrize("block_n, epilogue, n", [(64, "warp", 72), (64, "tma", 70), (128, "direct", 71)])
def test_F12_no_epilogue_writes_behind_n(block_n, epilogue, n):
    chosen = plan(64, block_n, epilogue=epilogue)
    buffer = full((66, 128), chosen.d_dtype if chosen.d_dtype == "float32" else BF16)
    api.fp8_gemm_nt(*ones(65, n, 128), buffer[:65, :n], on="emulator", plan=chosen)
    assert (buffer[:65, :n] == 128).all() and (buffer[:, n:] == -7).all() and (buffer[65] == -7).all()


@pytest.mark.parametrize("n", [1, 8, 63, 64, 65, 72, 127, 129, 576, 768])
def test_F12_any_n_on_the_host(n):
    for m in (1, 31, 32, 33):
        assert (api.fp8_gemm_nt(*ones(m, n, 128)) == 128).all()


@pytest.mark.parametrize("m, n", [(1, 1), (31, 8), (32, 63), (33, 65), (2, 127), (1, 129), (1, 576)])
def test_F12_any_n_in_the_emulator(m, n):
    assert (api.fp8_gemm_nt(*ones(m, n, 128), on="emulator") == 128).all()


VIEWS = {
    "fortran": np.asfortranarray,
    "reversed rows": lambda x: np.ascontiguousarray(x[::-1])[::-1],
    "reversed columns": lambda x: np.ascontiguousarray(x[:, ::-1])[:, ::-1],
    "every second column": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "every third row": lambda x: np.repeat(x, 3, axis=0)[::3],
    "odd pitch": lambda x: np.pad(x.view(f"u{x.itemsize}"), ((0, 0), (0, 1))).view(x.dtype)[:, : x.shape[1]],
    "read-only": lambda x: _read_only(x),
    "a byte in": lambda x: _shifted(x),
}


def _read_only(x):
    x = x.copy()
    x.flags.writeable = False
    return x


def _shifted(x):
    flat = np.zeros(x.nbytes + x.itemsize, np.uint8)[x.itemsize :]
    out = flat.view(x.dtype).reshape(x.shape)
    out[...] = x
    return out


@on
@pytest.mark.parametrize("view", VIEWS)
def test_F13_F14_F16_views_give_the_same(on, view, rng):
    """Each operand and the output in every guise; the inputs are not touched."""
    case = exact_problem(rng, 9, 20, 260)
    expected = exact_integer_reference(*case.a, *case.b, "bfloat16")
    operands = [VIEWS[view](x) for x in (*case.a, *case.b)]
    before = [x.copy() for x in operands]
    d = full((9, 20)) if view == "read-only" else VIEWS[view](full((9, 20)))
    api.fp8_gemm_nt(operands[:2], operands[2:], d, on=on)
    assert_bits_equal(d, expected)
    assert all(
        np.array_equal(x.view(np.uint8), y.view(np.uint8))
        for x, y in zip(map(np.ascontiguousarray, before), map(np.ascontiguousarray, operands))
    )


@settings(max_examples=12)
@given(st.lists(st.sampled_from(sorted(VIEWS)), min_size=5, max_size=5), st.sampled_from(BOTH), st.integers(0, 2**32))
def test_F13_any_mixture_of_views(views, place, seed):
    case = exact_problem(np.random.default_rng(seed), 5, 18, 140, "float32")
    a, sfa, b, sfb = (VIEWS[v](x) for v, x in zip(views, (*case.a, *case.b)))
    d = VIEWS[views[4] if views[4] != "read-only" else "fortran"](full((5, 18), np.float32))
    api.fp8_gemm_nt((a, sfa), (b, sfb), d, on=place)
    assert_bits_equal(d, exact_integer_reference(*case.a, *case.b, "float32"))


@on
def test_F14_scales_are_read_by_index_not_by_memory(on):
    scale = np.float32([[1, 2], [4, 8]])
    padded = np.zeros((2, 5), np.float32)
    padded[:, :2] = scale
    for sfa in (scale, np.asfortranarray(scale), padded[:, :2]):
        (a, _), b = ones(2, 3, 256)
        d = api.fp8_gemm_nt((a, sfa), b, full((2, 3), np.float32), on=on)
        assert d.tolist() == [[384] * 3, [1536] * 3]


@on
def test_F20_an_output_in_fortran_order(on):
    d = full((16, 8), np.float32).T
    api.fp8_gemm_nt(*ones(8, 16, 128), d, on=on)
    assert (d == 128).all() and d.flags.f_contiguous


@on
@pytest.mark.parametrize("m, n, k", [(0, 8, 128), (8, 0, 128), (0, 0, 0), (0, 8, 0)])
def test_F17_nothing_to_write(on, m, n, k):
    d = full((m, n))
    assert api.fp8_gemm_nt(*ones(m, n, k), d, on=on) is d
    assert api.fp8_gemm_nt(*ones(m, n, k), on=on).shape == (m, n)
    assert api.fp8_gemm_nt(*ones(m, n, k), d, d, on=on) is d


@on
@pytest.mark.parametrize("dtype", [BF16, np.float32])
def test_no_k_gives_c_or_zero(on, dtype):
    a, b = ones(3, 5, 0)
    assert (api.fp8_gemm_nt(a, b, full((3, 5), dtype, np.nan), on=on) == 0).all()
    c = full((3, 5), dtype, 2.5)
    assert (api.fp8_gemm_nt(a, b, full((3, 5), dtype), c, on=on) == 2.5).all()
    assert (api.fp8_gemm_nt(a, b, c, c, on=on) == 2.5).all()
    assert (api.fp8_gemm_nt(a, b, on=on) == 0).all()
    bits = np.full((3, 5), 0x4020, np.uint16)  # 2.5 in bfloat16
    assert (api.fp8_gemm_nt(a, b, np.zeros((3, 5), np.uint16), bits, on=on) == 0x4020).all()
    assert (api.fp8_gemm_nt(a, b, np.full((3, 5), 7, np.uint16), on=on) == 0).all()


# The addend


@on
def test_F22_stale_output_is_not_read(on):
    for dtype in (BF16, np.float32):
        assert (api.fp8_gemm_nt(*ones(3, 5, 256), full((3, 5), dtype, np.nan), on=on) == 256).all()


@on
@pytest.mark.parametrize("m, n", [(3, 5), (40, 70)])
@pytest.mark.parametrize("dtype", [BF16, np.float32])
def test_F22_c_is_added_once(on, m, n, dtype):
    operands = ones(m, n, 256)
    c = full((m, n), dtype, 2)
    d = full((m, n), dtype, np.nan)
    assert (api.fp8_gemm_nt(*operands, d, c, on=on) == 258).all() and (c == 2).all()
    in_place = full((m, n), dtype, 2)
    assert api.fp8_gemm_nt(*operands, in_place, in_place, on=on) is in_place
    assert (in_place == 258).all()
    wide = full((m, n + 3), dtype, 2)
    api.fp8_gemm_nt(*operands, wide[:, :n], wide[:, :n], on=on)
    assert (wide[:, :n] == 258).all() and (wide[:, n:] == 2).all()


@on
def test_F22_the_sum_is_rounded_once(on):
    """256 + 1.5 + 0.5 of ulp: rounding the product first would give 256, then 258 or 256."""
    c = full((2, 3), BF16, 3)
    # 257 is no bfloat16 (256, 258); 257 + 3 = 260 is one
    (a, sfa), b = ones(2, 3, 128)
    a = a.copy()
    a[:, :] = 2
    a[:, 0] = 3  # 127 * 2 + 3 = 257
    assert (api.fp8_gemm_nt((a, sfa), b, full((2, 3)), c, on=on) == 260).all()


@on
def test_F22_c_of_another_layout(on, rng):
    case = exact_problem(rng, 7, 12, 130)
    c = rng.integers(-8, 9, (7, 12)).astype(BF16)
    total = exact_integer_reference(*case.a, *case.b, "float32") + c.astype(np.float32)
    for view in ("fortran", "reversed columns", "read-only", "a byte in", "odd pitch"):
        d = api.fp8_gemm_nt(case.a, case.b, full((7, 12)), VIEWS[view](c), on=on)
        assert_bits_equal(d, total.astype(BF16), view)
    bits = np.zeros((7, 12), np.uint16)
    api.fp8_gemm_nt(case.a, case.b, bits, c.view(np.uint16), on=on)
    assert_bits_equal(bits.view(BF16), total.astype(BF16))


# Rounding and the tensor core


@on
def test_F23_scales_come_before_rounding(on):
    def every(code, scale):
        (_, sfa), (_, sfb) = ones(2, 3, 128, scale, scale)
        return (np.full((2, 128), code, np.uint8), sfa), (np.full((3, 128), code, np.uint8), sfb)

    for dtype in (BF16, np.float32):
        assert (api.fp8_gemm_nt(*every(0x7E, 2**-10), full((2, 3), dtype), on=on) == 24.5).all()
        assert (api.fp8_gemm_nt(*every(0x7E, 1), full((2, 3), dtype), on=on).astype(np.float64) == 25690112).all()


@on
@pytest.mark.parametrize("with_c", [False, True])
@pytest.mark.parametrize("dtype", [BF16, np.float32])
def test_F22_F23_overflow_is_infinite_with_and_without_an_addend(on, with_c, dtype):
    """What is too large for the output rounds to infinity, as it does in float32; it is not cut to the largest number."""
    (a, sfa), (b, sfb) = ones(3, 5, 128)
    sfa[1], sfb[:] = 2.0**71, 2.0**50
    sfa[2] = np.float32(2.0**70) * np.float32(1.9999999)  # 2^128 less a little: finite in float32, past the last bfloat16
    c = full((3, 5), dtype, 0) if with_c else None
    d = api.fp8_gemm_nt((a, sfa), (b, sfb), full((3, 5), dtype), c, on=on)
    assert np.isinf(d[1]).all() and np.isfinite(d[0]).all()
    assert np.isinf(d[2]).all() == (dtype is BF16)
    if with_c:
        c[0] = np.inf
        assert np.isinf(api.fp8_gemm_nt((a, sfa), (b, sfb), full((3, 5), dtype), c, on=on)[0]).all()


@on
@pytest.mark.parametrize("last, expected", [(3, 256), (5, 260)])
def test_F23_ties_go_to_even(on, last, expected):
    (a, sfa), b = ones(1, 2, 128)
    a = np.full(a.shape, 2, E4M3)
    a[0, 0] = last
    assert (api.fp8_gemm_nt((a, sfa), b, on=on) == expected).all()
    assert (api.fp8_gemm_nt((a, sfa), b, full((1, 2), np.float32), on=on) == 254 + last).all()


@on
def test_F24_small_terms_beside_a_large_one(on):
    (a, sfa), b = ones(1, 8, 128)
    a = np.full(a.shape, 0x01, np.uint8)
    a[0, 0] = 0x7E
    d = api.fp8_gemm_nt((a, sfa), b, full((1, 8), np.float32), on=on)
    assert (d == {"host": 448.248046875, "emulator": 448}[on]).all()


@on
def test_F24_promotion_happens(on, rng):
    """4096 of K in (0, 1]: without promotion every 128 the mean comes out percents low."""
    m, n, k = 8, 16, 4096
    codes = [rng.integers(0x28, 0x39, (rows, k)).astype(np.uint8) for rows in (m, n)]
    (_, sfa), (_, sfb) = ones(m, n, k)
    d = full((m, n), np.float32)
    api.fp8_gemm_nt((codes[0], sfa), (codes[1], sfb), d, on=on)
    oracle = gemm_reference(codes[0], sfa, codes[1], sfb)
    assert (d - oracle).mean() / oracle.mean() > -(2.0**-10)


def test_threads_do_not_disturb_one_another():
    """Four threads, each with its own problem, on the host and in the emulator at once."""
    results = {}

    def work(i):
        results[i] = api.fp8_gemm_nt(*ones(3 + i, 5, 128 * (i + 1)), on=BOTH[i % 2])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert {i: (d.shape, set(d.astype(float).ravel().tolist())) for i, d in results.items()} == {
        i: ((3 + i, 5), {128.0 * (i + 1)}) for i in range(4)
    }


# Refusals


def bad_calls():
    """Name -> (changes to a legal call, error, message): one of each kind; `test_problem` has them all."""
    a, sfa, b, sfb = (x for pair in ones(4, 6, 256) for x in pair)
    nan = sfa.copy()
    nan[2, 1] = np.nan
    negative = sfb.copy()
    negative[0, 0] = -1
    read_only = full((4, 6))
    read_only.flags.writeable = False
    return {
        "no pair": ({"a": a}, DTypeError, r"a: expected a QTensor or a pair \(data, scale\), got float8_e4m3fn \[4, 256\]"),
        "dtype": ({"a": (a.astype(np.float32), sfa)}, DTypeError, "a: expected float8_e4m3fn .*, got float32"),
        "rank": ({"b": (b[0], sfb)}, ProblemError, r"b: expected rank 2, \[N, K\], got \[256\]"),
        "shape": ({"b": (b[:, :100], sfb)}, ProblemError, r"b: expected \[N, 256\] \(K = 256 as in a\), got \[6, 100\]"),
        "scale shape": ({"a": (a, sfa.T.copy())}, ProblemError, r"sfa: expected float32 \[4, 2\] .*, got float32 \[2, 4\]; transposed\?"),
        "scale dtype": ({"b": (b, sfb.astype(np.float64))}, DTypeError, "sfb: expected float32 scales, or int32 of four UE8M0 each, got float64"),
        "NaN scale": ({"a": (a, nan)}, ProblemError, r"sfa: expected finite scales of 0 or more, got nan at \[2, 1\]"),
        "negative scale": ({"b": (b, negative)}, ProblemError, r"sfb: expected finite scales of 0 or more, got -1 at \[0, 0\]"),
        "output shape": ({"d": full((6, 4))}, ProblemError, r"d: expected \[M, N\] = \[4, 6\], got \[6, 4\]; transposed\?"),
        "output dtype": ({"d": full((4, 6), np.float16)}, DTypeError, "d: expected bfloat16 .* or float32, got float16"),
        "read-only output": ({"d": read_only}, ProblemError, "d: expected an array that can be written, got a read-only one"),
        "c's dtype": ({"c": full((4, 6), np.float32)}, DTypeError, "c: expected bfloat16 as d, got float32"),
        "c's shape": ({"c": full((4, 7))}, ProblemError, r"c: expected \[M, N\] = \[4, 6\] as d, got \[4, 7\]"),
        "place": ({"on": "gpu"}, ProblemError, "on: expected 'cuda', 'host' or 'emulator', got 'gpu'"),
        "host arrays on cuda": ({"on": "cuda"}, ProblemError, "on: 'cuda' needs arrays on a GPU, got arrays in host memory"),
        "plan of another output": (
            {"plan": plan(64, 64, epilogue="direct"), "on": "emulator"}, PlanError, "is for d of float32, got bfloat16",
        ),
        "plan that does not fit": (
            {"plan": plan(128, 128, 40), "on": "emulator"}, PlanError, "needs .* bytes of shared memory, NVIDIA H200 has 232448",
        ),
    }  # fmt: skip


BAD = bad_calls()


@on
@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_and_nothing_written(on, name):
    changes, error, message = BAD[name]
    a, b = ones(4, 6, 256)
    call = {"a": a, "b": b, "d": full((4, 6)), "c": None, "on": on, **changes}
    before = call["d"].copy()
    with pytest.raises(error, match=message) as caught:
        api.fp8_gemm_nt(**call)
    assert_bits_equal(call["d"], before)
    if issubclass(error, ProblemError):
        assert isinstance(caught.value, ValueError)
        assert isinstance(caught.value, TypeError) == issubclass(error, DTypeError)


@on
def test_overlap_is_refused(on):
    a, b = ones(4, 6, 256)
    memory = a[0].view(np.uint8)
    d = memory.reshape(-1)[:48].view(BF16).reshape(4, 6)
    with pytest.raises(ProblemError, match="d: expected memory of its own, got memory that overlaps a"):
        api.fp8_gemm_nt((a[0], a[1]), b, d, on=on)
    assert (memory == 0x38).all()


@on
def test_F10_scales_are_checked_by_default_and_zero_is_legal(on):
    (a, sfa), b = ones(4, 6, 256)
    sfa[1, 0] = 0
    assert api.fp8_gemm_nt((a, sfa), b, full((4, 6), np.float32), on=on)[:2].tolist() == [[256] * 6, [128] * 6]
    sfa[1, 0] = np.inf
    with pytest.raises(ProblemError, match=r"sfa: .* got inf at \[1, 0\]"):
        api.fp8_gemm_nt((a, sfa), b, on=on)
    with np.errstate(all="raise"):
        d = api.fp8_gemm_nt((a, sfa), b, full((4, 6), np.float32), on=on, check=False)
    assert (d[0] == 256).all() and np.isinf(d[1]).all(), "unchecked, it spoils its own rows only"


@pytest.mark.parametrize("name", ["a100", "l40s", "rtx-5090"])
def test_other_gpus_than_hopper_take_the_portable_kernel(name, monkeypatch):
    monkeypatch.setattr(Device, "current", classmethod(lambda cls: Device.named(name)))
    d = full((5, 20))
    assert (api.fp8_gemm_nt(*ones(5, 20, 200), d, on="emulator").astype(float) == 200).all()
    text = str(api.explain(*ones(5, 20, 200), d))
    assert "sm80_gemm" in text and Device.named(name).name in text
    assert ("widen" in api.explain(*ones(5, 20, 200), d).choice.plan.name) == (name == "a100")


@pytest.mark.parametrize("changes", [{"cc": (7, 5), "name": "NVIDIA T4"}, {"cc": (7, 0), "name": "NVIDIA V100"}])
def test_an_architecture_without_a_kernel(changes, monkeypatch):
    device = dataclasses.replace(H200, **changes)
    monkeypatch.setattr(Device, "current", classmethod(lambda cls: device))
    d = full((4, 6))
    with pytest.raises(UnsupportedError, match=changes["name"]) as caught:
        api.fp8_gemm_nt(*ones(4, 6, 256), d, on="emulator")
    assert set(caught.value.reasons) == {k.NAME for k in KERNELS}
    assert (d == -7).all()
    assert (api.fp8_gemm_nt(*ones(4, 6, 256), d, on="host") == 256).all(), "the host needs no kernel"


@pytest.mark.parametrize("chosen", [plan(16, 32), plan(64, 64, epilogue="warp"), plan(16, 16, share="A")], ids=lambda p: p.name)
def test_a_callers_plan_is_used(chosen, monkeypatch):
    from dgnumba import emu

    seen = []
    real = emu.run
    monkeypatch.setattr(emu, "run", lambda *a, **k: (seen.append(k["smem"]), real(*a, **k)))
    assert (api.fp8_gemm_nt(*ones(20, 40, 130), on="emulator", plan=chosen).astype(float) == 130).all()
    kernel = next(k for k in KERNELS if k.NAME == chosen.kernel)
    assert seen == [kernel.smem(chosen).launch_bytes]


# Other libraries


def test_torch_tensors_on_the_cpu():
    torch = pytest.importorskip("torch")
    a, sfa = torch.ones(4, 256).to(torch.float8_e4m3fn), torch.ones(4, 2)
    b, sfb = torch.ones(6, 256).to(torch.float8_e4m3fn), torch.ones(1, 2)
    for dtype in (torch.bfloat16, torch.float32):
        d = torch.full((4, 6), -7.0, dtype=dtype)
        for place in BOTH:
            assert api.fp8_gemm_nt((a, sfa), (b, sfb), d, on=place) is d
            assert (d == 256).all()
    assert (np.asarray(api.fp8_gemm_nt((a, sfa), (b, sfb))) == 256).all()
    with pytest.raises(DTypeError, match="a: expected float8_e4m3fn"):
        api.fp8_gemm_nt((a.to(torch.float32), sfa), (b, sfb))


def test_jax_arrays_on_the_cpu():
    jnp = pytest.importorskip("jax.numpy")
    a = (jnp.ones((4, 256), jnp.float8_e4m3fn), jnp.ones((4, 2), jnp.float32))
    b = (jnp.ones((6, 256), jnp.float8_e4m3fn), jnp.ones((1, 2), jnp.float32))
    assert (api.fp8_gemm_nt(a, b) == 256).all()
    with pytest.raises(ProblemError, match="d: expected an array that can be written"):
        api.fp8_gemm_nt(a, b, jnp.zeros((4, 6), jnp.float32))


# explain


def test_explain_prints_the_whole_chain(rng):
    case = exact_problem(rng, 100, 300, 500)
    text = str(api.explain(case.a, case.b))
    heads = [line.split()[0] for line in text.splitlines() if not line.startswith(" ")]
    assert ["operands", "lay", "problem", "plan", "why", "smem", "registers"] == heads
    for part in (
        "a float8_e4m3fn [100, 500], one scale per 1x128",
        "b float8_e4m3fn [300, 500], one scale per 128x128",
        "d bfloat16 [100, 300]",
        "a: byte strides [500, 1] (TMA: 1 element, a multiple of 16) copied to [512, 1]",
        "sfa: row-major [100, 4] turned to MN-major",
        "d: byte strides [600, 2]; computed in a padded buffer of [608, 2], then copied",
        "0.03 GFLOP",
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


def test_explain_of_an_addend_says_how_it_is_added():
    text = str(api.explain(*ones(16, 128, 512), full((16, 128)), full((16, 128))))
    assert "c: the product is made in a float32 buffer" in text


def test_explain_of_a_callers_plan():
    text = str(api.explain(*ones(70, 70, 512), plan=plan(64, 32, share="B")))
    assert "tile 64x32x128, 3 stages, clusters of 2 sharing B, tma epilogue" in text
    with pytest.raises(PlanError, match="needs BLOCK_N"):
        api.explain(*ones(70, 70, 512), plan=plan(64, 30))


def test_a_plan_by_its_name():
    text = str(api.explain(*ones(70, 70, 512), plan="64x32x128 s3 c2B tma"))
    assert "tile 64x32x128, 3 stages, clusters of 2 sharing B, tma epilogue; plan='64x32x128 s3 c2B tma'" in text
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


def test_dtypes_used_here_are_rows():
    assert {"float8_e4m3fn", "bfloat16", "float32"} <= set(DTYPES)
