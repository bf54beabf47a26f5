"""fp8_gemm_nt as a user meets it: the same numbers on the host and in the emulator, legal oddities, the kernel that a GPU gets, others' arrays."""

import dataclasses
import threading

import numpy as np
import pytest
from api_cases import BF16, BOTH, E4M3, full, on, ones
from cases import H200, plan
from hypothesis import given, settings
from hypothesis import strategies as st

from dgnumba import api
from dgnumba.device import Device
from dgnumba.dtypes import DTYPES
from dgnumba.errors import DTypeError, EmulationError, ProblemError, UnsupportedError
from dgnumba.kernels import KERNELS
from dgnumba.quant import per_block_cast_to_fp8, per_token_cast_to_fp8
from dgnumba.quant.reference import error_bound, exact_integer_reference, gemm_reference
from dgnumba.testing import assert_bits_equal, assert_within, exact_problem

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
    assert (api.fp8_gemm_nt(a, b, np.zeros((3, 5), np.uint16), full((3, 5), value=2.5), on=on) == 0x4020).all()
    assert (api.fp8_gemm_nt(a, b, full((3, 5)), bits, on=on) == 2.5).all()


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
def test_F22_one_row_is_itself_under_any_pitch(on):
    """Of one row the pitch says nothing: x[0][None] has none, x[:1] the whole array's."""
    held = full((3, 64), value=2)
    one, other = held[:1], held[0][None]
    assert one.strides != other.strides
    assert (api.fp8_gemm_nt(*ones(1, 64, 256), one, other, on=on) == 258).all() and (held[1:] == 2).all()


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


# The kernel that is taken


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


def test_dtypes_used_here_are_rows():
    assert {"float8_e4m3fn", "bfloat16", "float32"} <= set(DTYPES)
