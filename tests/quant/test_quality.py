"""report and Tally: the numbers by hand, in parts and whole, as data, table and picture."""

import json
import math

import numpy as np
import pytest
from quant.every_format import EVERY_FORMAT, name_of

from dgnumba.errors import ProblemError, UnsupportedError
from dgnumba.quant import QTensor, Tally, element_bound, per_token_cast_to_fp4, quality, quantize, report


def sample(shape=(40, 200), seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def tally_of(x, q):
    tally = Tally()
    tally.add(x, q)
    return tally


def test_by_hand():
    x = np.float32([[1.0, 2.25, 100.0, 0.0]])
    q = QTensor(np.uint8([[1, 2, 7, 0]]), np.float32([[1, 10]]), "int4", (1, 2))  # 1, 2, 70, 0
    found = report(x, q)
    total = found.total
    assert (total.elements, total.poisoned, total.outside, total.clipped) == (4, 0, 0, 1)
    assert total.squares == 1 + 2.25**2 + 100**2 and total.squared_error == 0.25**2 + 30**2 and total.largest_error == 30
    assert total.mse == total.squared_error / 4
    assert total.sqnr_db == pytest.approx(10 * np.log10(total.squares / total.squared_error), rel=1e-12)
    assert total.relative_error == pytest.approx(np.sqrt(total.squared_error / total.squares), rel=1e-12)
    assert found.rms_error.tolist() == [[np.sqrt(0.25**2 / 2), np.sqrt(30**2 / 2)]]
    assert found.largest_error.tolist() == [[0.25, 30]] and found.clipped.tolist() == [[0, 1]]
    assert found.bound_used[0, 0] == pytest.approx(0.5, rel=1e-5) and found.bound_used[0, 1] == pytest.approx(1, rel=1e-5)
    assert np.flatnonzero(found.histogram).tolist() == [0, 24, 49] and found.histogram.sum() == 4
    assert found.codes.tolist() == [1, 1, 1, 0, 0, 0, 0, 1] + [0] * 8
    assert found.levels.tolist() == [*range(8), *range(-8, 0)]


@pytest.mark.parametrize("form", EVERY_FORMAT, ids=name_of)
def test_blocks_and_parts_agree_with_the_whole(form, monkeypatch):
    x = sample()
    q = quantize(x, form)
    whole = report(x, q)
    assert whole.total.outside == 0 and 0.9 < whole.total.bound_used <= 1
    assert whole.total.largest_error == whole.largest_error.max() == np.abs(q.dequantize("float64") - x).max()
    assert whole.total.bound_used == whole.bound_used.max() and whole.total.clipped == whole.clipped.sum()
    assert whole.sqnr_db.shape == q.scales.shape
    monkeypatch.setattr(quality, "_SLAB", 600)
    parts = report(x, q)
    assert parts.total.squared_error == pytest.approx(whole.total.squared_error, rel=1e-12)
    assert np.allclose(parts.rms_error, whole.rms_error, rtol=1e-12, atol=0)
    assert np.array_equal(parts.histogram, whole.histogram) and np.array_equal(parts.codes, whole.codes)


def test_tallies_add_up():
    x = sample((60, 64))
    q = quantize(x, "int4_g32")
    parts = [tally_of(x[r : r + 20], q.rows(r, r + 20)) for r in (0, 20, 40)]
    total, whole = sum(parts, Tally()), tally_of(x, q)
    assert (total.elements, total.clipped, total.largest_error, total.bound_used) == (
        whole.elements,
        whole.clipped,
        whole.largest_error,
        whole.bound_used,
    )
    assert total.squared_error == pytest.approx(whole.squared_error, rel=1e-12)


def test_a_stack_and_packed_data_and_act_order():
    x = sample((2, 6, 40))
    found = report(x, quantize(x, "mxfp4"))
    assert found.sqnr_db.shape == (2, 6, 2)
    assert found.total.squared_error == pytest.approx(
        sum(report(x[i], quantize(x[i], "mxfp4")).total.squared_error for i in (0, 1)), rel=1e-12
    )
    assert report(x[0], per_token_cast_to_fp4(x[0], gran_k=20)).total.outside == 0
    q = QTensor(np.ones((1, 4), np.uint8), np.float32([[1, 10]]), "int4", (1, 2), g_idx=np.int32([0, 1, 0, 1]))
    found = report(np.float32([[1, 10, 1.5, 10]]), q)
    assert found.largest_error.tolist() == [[0.5, 0]] and found.rms_error.tolist() == [[np.sqrt(0.125), 0]]


def test_nothing_and_no_error():
    empty = report(np.zeros((0, 8), np.float32), quantize(np.zeros((0, 8), np.float32), "int8_row"))
    assert empty.total.elements == 0 and empty.total.sqnr_db == np.inf and empty.total.mse == 0 and empty.total.relative_error == 0
    zero = report(np.zeros((2, 8), np.float32), quantize(np.zeros((2, 8), np.float32), "int8_row"))
    assert (zero.sqnr_db == np.inf).all() and zero.total.bound_used == 0
    assert zero.as_dict()["blocks"]["sqnr_db"] == [[None], [None]] and zero.as_dict()["total"]["sqnr_db"] is None


def test_what_is_not_finite_is_counted_apart():
    x = sample((4, 64))
    x[1, 3] = np.inf
    found = report(x, quantize(x, "fp8_1x64"))
    assert found.total.poisoned == 64 and found.total.outside == 0 and np.isfinite(found.total.squares)
    assert "64 not finite" in str(found.total)
    assert found.histogram.sum() == 4 * 64 - 64


def test_outside_shows_a_cast_that_does_not_round_to_nearest():
    x = sample()
    q = quantize(x, "int8_row")
    off = QTensor((q.codes.view(np.int8) // 2 * 2), q.scale, q.dtype, q.granularity)
    assert tally_of(x, off).outside > 1000 and "OUTSIDE" in str(tally_of(x, off))
    error, bound = np.abs(off.dequantize("float64") - x), element_bound(x, off)
    assert tally_of(x, off).outside == (error > bound).sum()


def test_what_float32_does_not_hold_is_counted():
    x = np.float32([[3.4e38] * 32, [1.0] * 32])
    q = quantize(x, "mxfp4")
    assert q.dequantize("float64")[0, 0] == 2.0**128 and np.isinf(q.dequantize()[0]).all() and np.isfinite(q.dequantize()[1]).all()
    total = report(x, q).total
    assert (total.overflowed, total.outside, total.poisoned) == (32, 0, 0) and "32 beyond float32" in str(total)
    assert report(x / 2, quantize(x / 2, "mxfp4")).total.overflowed == 0


def test_as_data_and_table():
    x = sample()
    x[7, 100:120] *= 50
    found = report(x, quantize(x, "int4_g64"))
    data = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert data["total"]["elements"] == 8000 and data["blocks"]["clipped"] == found.clipped.tolist()
    lines = found.table(rows=3).splitlines()
    assert len(lines) == 6 and lines[0] == found.format and lines[1] == str(found.total)
    worst = [int(i) for i in np.unravel_index(found.sqnr_db.argmin(), found.sqnr_db.shape)]
    assert lines[3].startswith(f"{worst!s:>16} {found.sqnr_db.min():>9.2f} ")
    assert found.table(rows=0).count("\n") == 2


def test_another_shape_is_refused():
    with pytest.raises(ProblemError, match=r"x: expected \[40, 200\] as q, got \[200, 40\]"):
        report(sample((200, 40)), quantize(sample(), "int8_row"))


def test_plot(tmp_path):
    pytest.importorskip("matplotlib")
    for x, form in ((sample(), "mxfp4"), (sample((2, 6, 40)), "int8_row")):
        figure = report(x, quantize(x, form)).plot(tmp_path / "report.png")
        assert len(figure.axes) == 4 and (tmp_path / "report.png").stat().st_size > 5000


def test_plot_without_matplotlib(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(UnsupportedError, match="plot: needs matplotlib"):
        report(sample(), quantize(sample(), "mxfp4")).plot()


@pytest.mark.parametrize("value", [np.inf, np.nan, 1e39], ids=["inf", "nan", "beyond float32"])
def test_of_nothing_finite_no_ratio_is_told(value):
    """Not an infinite one, which says that no number has changed."""
    x = np.full((2, 128), value)
    total = report(x, quantize(x, "nvfp4")).total
    assert total.poisoned == total.elements and math.isnan(total.sqnr_db)
    assert "SQNR nan dB" in str(total)
