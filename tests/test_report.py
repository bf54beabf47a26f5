"""`report.verify` finds every wrong element, names the first, and measures what it says it measures."""

import ml_dtypes
import numpy as np
import pytest

import dgnumba
from dgnumba import report
from dgnumba.errors import ProblemError
from dgnumba.testing import random_problem


@pytest.fixture
def small_tiles(monkeypatch):
    monkeypatch.setattr(report, "TILE_M", 32)
    monkeypatch.setattr(report, "TILE_N", 128)


def product(rng, m, n, k, dtype):
    x, w = rng.standard_normal((m, k), np.float32), rng.standard_normal((n, k), np.float32)
    a, b = dgnumba.per_token_cast_to_fp8(x), dgnumba.per_block_cast_to_fp8(w)
    return (x, w), a, b, dgnumba.fp8_gemm_nt(a, b, np.empty((m, n), dtype))


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_a_right_product_is_right(rng, small_tiles, dtype):
    _, a, b, d = product(rng, 70, 300, 200, dtype)
    verdict = report.verify(a, b, d, on="host")
    assert verdict.is_right
    assert (verdict.elements, verdict.outside, verdict.first_outside, verdict.quantization) == (70 * 300, 0, None, None)
    assert 0 < verdict.bound_used <= 1


def test_every_wrong_element_is_counted_and_the_first_named(rng, small_tiles):
    _, a, b, d = product(rng, 70, 300, 200, np.float32)
    d[69, 299], d[40, 130], d[3, 200] = np.nan, np.inf, d[3, 200] + 1
    verdict = report.verify(a, b, d, on="host")
    assert (verdict.is_right, verdict.outside, verdict.first_outside) == (False, 3, (3, 200))
    assert str(verdict) == "WRONG: 3 of 21000 elements are outside their error bound, first at [3, 200]"


def test_the_tiles_give_what_one_tile_gives(rng, monkeypatch):
    originals, a, b, d = product(rng, 70, 300, 200, np.float32)
    whole = report.verify(a, b, d, on="host", originals=originals)
    monkeypatch.setattr(report, "TILE_M", 32)
    monkeypatch.setattr(report, "TILE_N", 128)
    tiled = report.verify(a, b, d, on="host", originals=originals)
    assert (whole.outside, whole.elements) == (tiled.outside, tiled.elements)
    assert whole.largest_error == pytest.approx(tiled.largest_error, rel=1e-6)  # float64 sums in another order
    assert whole.quantization == pytest.approx(tiled.quantization, rel=1e-9)


def test_the_price_of_quantization_is_the_relative_error_of_the_whole_product(rng):
    (x, w), a, b, d = product(rng, 64, 128, 256, np.float32)
    exact = x.astype(np.float64) @ w.astype(np.float64).T
    verdict = report.verify(a, b, d, on="host", originals=(x, w))
    assert verdict.quantization == pytest.approx(np.linalg.norm(d - exact) / np.linalg.norm(exact), rel=1e-9)


def test_a_nan_must_be_where_the_oracle_has_one(rng):
    _, a, b, d = product(rng, 4, 8, 128, np.float32)
    a.codes[1, 5] = 0x7F
    assert report.verify(a, b, d, on="host").outside == 8
    d[1] = np.nan
    assert report.verify(a, b, d, on="host").is_right


def test_random_problems_are_right(rng):
    for _ in range(20):
        case = random_problem(rng, largest=300)
        d = np.empty((case.problem.m, case.problem.n), case.problem.d_dtype.numpy)
        dgnumba.fp8_gemm_nt(case.a, case.b, d)
        verdict = report.verify(case.a, case.b, d, on="host")
        assert verdict.is_right, (case.problem, verdict)


def test_progress_ends_at_the_last_element(rng, small_tiles):
    _, a, b, d = product(rng, 70, 300, 200, np.float32)
    seen = []
    report.verify(a, b, d, on="host", progress=lambda done, total: seen.append((done, total)))
    assert len(seen) == 3 * 3
    assert seen[-1] == (70 * 300, 70 * 300)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_an_empty_product_is_right():
    a = dgnumba.per_token_cast_to_fp8(np.ones((0, 128), np.float32))
    b = dgnumba.per_block_cast_to_fp8(np.ones((5, 128), np.float32))
    assert report.verify(a, b, np.empty((0, 5), np.float32), on="host").is_right


def test_a_product_of_another_shape_is_refused(rng):
    _, a, b, d = product(rng, 4, 8, 128, np.float32)
    with pytest.raises(ProblemError, match=r"d: expected \[M, N\] = \[4, 8\], got \[8, 4\]"):
        report.verify(a, b, d.T, on="host")


def test_what_may_overflow_is_not_called_right():
    a, b = np.full((2, 128), 3e38, np.float32), np.ones((3, 128), np.float32)
    q, w = dgnumba.per_token_cast_to_fp8(a), dgnumba.per_block_cast_to_fp8(b)
    verdict = report.verify(q, w, np.full((2, 3), np.inf, np.float32), on="host")
    assert verdict.unbounded == 6 and str(verdict).startswith("UNCHECKED: 6 of 6 elements may overflow")
