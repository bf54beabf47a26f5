"""Laying out: views of what complies with TMA, copies of the rest and of nothing else, each named."""

import ml_dtypes
import numpy as np
import pytest
from cases import plan
from hypothesis import given
from hypothesis import strategies as st

from dgnumba import api
from dgnumba.layouts.descriptors import TensorMap
from dgnumba.layouts.operands import complies, lay_out
from dgnumba.layouts.scales import get_mn_major_tma_aligned_tensor
from dgnumba.problem import check_fp8_gemm_nt
from dgnumba.testing import exact_problem

E4M3, BF16 = ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16
M, N, K = 24, 256, 512  # K / 128 is a multiple of 4: the rows of sfb are 16 bytes too


def aligned(shape, dtype, skip=0):
    """A zero array that begins `skip` bytes behind a multiple of 16."""
    dtype = np.dtype(dtype)
    flat = np.zeros(int(np.prod(shape)) * dtype.itemsize + 64, np.uint8)
    start = -flat.ctypes.data % 16 + skip
    return flat[start : start + int(np.prod(shape)) * dtype.itemsize].view(dtype).reshape(shape)


def good(m=M, n=N, k=K, d_dtype=BF16):
    blocks = -(-k // 128)
    sfa = get_mn_major_tma_aligned_tensor(np.arange(m * blocks, dtype=np.float32).reshape(m, blocks) + 1)
    sfb = aligned((-(-n // 128), blocks), np.float32)
    sfb[...] = np.arange(sfb.size).reshape(sfb.shape) + 1
    return {"a": aligned((m, k), E4M3), "sfa": sfa, "b": aligned((n, k), E4M3), "sfb": sfb, "d": aligned((m, n), d_dtype)}


def laid_out(x):
    return lay_out(check_fp8_gemm_nt((x["a"], x["sfa"]), (x["b"], x["sfb"]), x["d"]))


def shares(x, y):
    return x.ctypes.data == y.ctypes.data and x.strides == y.strides


@pytest.mark.parametrize("d_dtype", [BF16, np.float32])
def test_what_complies_is_not_copied(d_dtype):
    x = good(d_dtype=d_dtype)
    laid = laid_out(x)
    assert laid.copies == ()
    assert all(shares(getattr(laid, name), x[name]) for name in ("a", "sfa", "b", "sfb", "d"))
    assert laid.target is x["d"] and laid.d is x["d"]


SPOILED = {
    "columns": lambda x: x[:, ::2],
    "transposed": lambda x: np.asfortranarray(x),
    "rows reversed": lambda x: x[::-1],
    "one row repeated": lambda x: np.broadcast_to(x[:1], x.shape),
    "odd pitch": lambda x: np.pad(x, ((0, 0), (0, 1)))[:, : x.shape[1]],
    "an element in": lambda x: _shifted(x),
}


def _shifted(x):
    out = aligned(x.shape, x.dtype, skip=x.itemsize)
    out[...] = x
    return out


@pytest.mark.parametrize("name", ["a", "b", "sfb"])
@pytest.mark.parametrize("how", [h for h in SPOILED if h != "columns"])
def test_F13_F16_what_does_not_is_copied_alone_and_named(name, how, rng):
    x = good()
    if name == "sfb":
        x["sfb"][...] = rng.random(x["sfb"].shape)
    else:
        x[name].view(np.uint8)[...] = rng.integers(0, 0x70, x[name].shape)
    x[name] = SPOILED[how](x[name])
    laid = laid_out(x)
    got = getattr(laid, name)
    assert complies(got) and not shares(got, x[name])
    assert np.array_equal(got, x[name].view(np.uint8) if name != "sfb" else x[name])
    assert len(laid.copies) == 1 and laid.copies[0].startswith(f"{name}: byte strides {list(x[name].strides)}")


def test_F16_padded_rows_of_whole_16_bytes_are_no_reason_to_copy():
    x = good()
    wide = aligned((M, K + 48), E4M3)
    x["a"] = wide[:, 16 : 16 + K]
    laid = laid_out(x)
    assert laid.copies == () and shares(laid.a, x["a"].view(np.uint8))


def test_F14_row_major_scales_are_turned_and_aligned_ones_kept():
    x = good()
    x["sfa"] = np.ascontiguousarray(x["sfa"])
    laid = laid_out(x)
    assert np.array_equal(laid.sfa, x["sfa"]) and complies(laid.sfa.T)
    assert len(laid.copies) == 1 and laid.copies[0].startswith("sfa: row-major [24, 4] turned to MN-major")


@pytest.mark.parametrize(
    "make, why",
    [
        (lambda: aligned((N, M), BF16).T, "Fortran order"),
        (lambda: aligned((M, N + 1), BF16)[:, :N], "odd pitch"),
        (lambda: aligned((M, N), BF16, skip=2), "an element in"),
        (lambda: aligned((M, 2 * N), BF16)[:, ::2], "every second column"),
        (lambda: aligned((2 * M, N), BF16)[::-2], "rows reversed"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_F20_an_output_that_does_not_comply_is_made_beside(make, why):
    x = good()
    x["d"] = make()
    laid = laid_out(x)
    assert laid.target is x["d"] and complies(laid.d) and laid.d.shape == (M, N)
    assert not np.shares_memory(laid.d, x["d"])
    assert len(laid.copies) == 1 and laid.copies[0].startswith(f"d: byte strides {list(x['d'].strides)}; computed in a padded buffer")


@given(st.integers(1, 40), st.integers(1, 300), st.integers(1, 700), st.sampled_from([BF16, np.float32]))
def test_any_extents_can_be_addressed(m, n, k, d_dtype):
    """What is laid out makes legal tensor maps, holds the caller's values, and was copied only where a rule of TMA asks for it."""
    x = good(m, n, k, d_dtype)
    rng = np.random.default_rng(m * 1000003 + n * 1009 + k)
    x["a"].view(np.uint8)[...] = rng.integers(0, 0x70, (m, k))
    x["b"].view(np.uint8)[...] = rng.integers(0, 0x70, (n, k))
    laid = laid_out(x)
    for array, original in ((laid.a, x["a"].view(np.uint8)), (laid.b, x["b"].view(np.uint8)), (laid.sfa, x["sfa"]), (laid.sfb, x["sfb"])):
        assert np.array_equal(array, original)
    for array in (laid.a, laid.b, laid.sfa.T, laid.sfb, laid.d):
        assert complies(array)
        TensorMap.of(array, (16, 1))
    copied = {text.partition(":")[0] for text in laid.copies}
    blocks = -(-k // 128)
    pitch = n * np.dtype(d_dtype).itemsize
    assert copied == {name for name, is_odd in (("a", k % 16), ("b", k % 16), ("sfb", blocks % 4), ("d", pitch % 16)) if is_odd}


@pytest.mark.parametrize("n", [3, 20, 1170])
def test_a_store_by_tma_leaves_what_lies_behind_a_row(n):
    """TMA stores whole pieces of 16 bytes: rows of d that are no multiple of that, in a wider array, must be stored another way (seen on an H200)."""
    case = exact_problem(np.random.default_rng(0), 5, n, 130, "bfloat16")
    frame = np.full((5, n + 8 - n % 8), -7, case.problem.d_dtype.numpy)
    api.fp8_gemm_nt(case.a, case.b, frame[:, :n], on="emulator", plan=plan(64, 64))
    assert (frame[:, n:] == -7).all()
