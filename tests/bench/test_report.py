"""README, the page of figures and the plot show the recorded measurements, and nothing else."""

import copy
import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

sys.path.insert(0, str(ROOT / "bench"))  # its scripts import each other as scripts do
import figures  # noqa: E402
import plot  # noqa: E402
import report  # noqa: E402

sys.path.remove(str(ROOT / "bench"))

ROW = {
    "bench": "fp8_gemm_nt", "m": 4096, "n": 7168, "k": 2048, "us": 90.0, "tflops": 1336.2,
    "rivals": {"deepgemm": 99.0, "cublaslt_unscaled": 81.0}, "bits_equal": True, "plan": "256x128x128 s4 tma",
    "method": {"flush": "memset", "timer": "cupti", "runs": 3}, "gpu": "NVIDIA H200", "date": "2026-11-29",
    "versions": {"numba": "0.68.0"}, "command": "python bench/bench_gemm.py --family large",
}  # fmt: skip
CAST = {
    "bench": "per_token_cast_to_fp8", "variant": "mn_major", "dtype": "bfloat16", "m": 16384, "n": 16384, "us": 200.0, "gb_s": 4000.0,
    "copy_gb_s": 4300.0, "share": 0.93, "rivals": {"torch": 2000.0}, "method": {"flush": "read", "timer": "cupti"}, "gpu": "NVIDIA H200",
    "date": "2026-11-29", "versions": {"numba": "0.68.0"}, "command": "python bench/bench_casts.py",
}  # fmt: skip
CALL = {key: ROW[key] for key in ("gpu", "date", "versions", "command")} | {"method": {"timer": "wall clock"}}
HOST = [
    CALL | {"bench": "host_call", "m": 16, "n": 7168, "k": 2048, "us": 17.1, "rivals": {"deepgemm": 27.6}},
    CALL | {"bench": "host_prepared", "m": 16, "n": 7168, "k": 2048, "us": 6.5, "rivals": {}},
    CALL | {"bench": "first_call", "cache": "empty", "us": 2145903, "rivals": {"deepgemm": 3831715}},
]


def decode(m, flush, us, n=576, **rivals):
    return ROW | {"m": m, "n": n, "us": us, "rivals": rivals, "method": ROW["method"] | {"flush": flush}}


def recorded():
    return json.loads(report.RESULTS.read_text())


def test_a_ratio_is_the_rivals_time_over_ours_and_the_best_rival_is_the_fastest():
    assert figures.ratio(ROW, "deepgemm") == 1.1
    assert figures.ratio(ROW) == figures.ratio(ROW, "cublaslt_unscaled") == 0.9
    assert figures.ratio(ROW | {"rivals": {"deepgemm": 99.0}}) == 1.1
    assert figures.ratio(ROW, "marlin") is None
    assert figures.ratio(ROW | {"rivals": {}}) is None


def test_another_call_of_ours_is_no_rival():
    row = ROW | {"rivals": {"dgnumba_fp8": 10.0, "our_fp8": 10.0, "marlin": 180.0}}
    assert figures.rivals_of([row]) == ["marlin"]
    assert figures.ratio(row) == 2.0


def test_a_mean_is_geometric_and_the_least_names_its_shape():
    rows = [decode(m, "read", 10.0, deepgemm=us) for m, us in ((1, 40.0), (8, 5.0), (16, 10.0))]
    found = figures.ratios(rows)
    assert (found.count, found.least, found.where) == (3, 0.5, "8 x 576 x 2048")
    assert found.mean == pytest.approx(2 ** (1 / 3), rel=1e-15)
    assert figures.ratios([ROW | {"rivals": {}}]) is None


def test_a_shape_measured_with_both_flushes_counts_once_by_reading():
    rows = [decode(8, "memset", 12.0, deepgemm=12.0), decode(8, "read", 10.0, deepgemm=15.0), decode(17, "memset", 9.0, deepgemm=9.0)]
    assert figures.counted(rows) == [rows[1], rows[2]]


def test_each_product_is_in_one_family():
    rows = [
        ROW, ROW | {"m": 8192, "n": 8192, "k": 8192}, ROW | {"m": 8192}, decode(16, "read", 1.0), decode(32, "read", 1.0), decode(17, "memset", 1.0),
        ROW | {"bench": "int4_gemm_nt:w4a16", "m": 16, "rivals": {"marlin": 99.0, "humming": 95.0}},
        ROW | {"bench": "int4_gemm_nt", "m": 16, "activation": "int8", "format": "int4_g128 float16"},
    ]  # fmt: skip
    found = {family.key: [(row["m"], row["n"]) for row in family.rows] for family in figures.families([*rows, CAST, *HOST])}
    assert found == {
        "large": [(4096, 7168), (8192, 8192)],
        "few": [(16, 576)],
        "some": [(32, 576)],
        "middle": [(8192, 7168), (17, 576)],
        "int4_gemm_nt:w4a16": [(16, 7168)],
        "int4_gemm_nt, int8": [(16, 7168)],
    }


def test_the_readme_has_large_products_families_casts_and_the_host():
    int4 = ROW | {
        "bench": "int4_gemm_nt:w4a16",
        "m": 16,
        "us": 10.0,
        "rivals": {"marlin_fp16": 12.0, "marlin_fp16_l2_hint": 12.5, "humming": 11.0},
    }
    text = report.short([ROW, decode(8, "read", 10.0, deepgemm=15.0, cublaslt_unscaled=12.0), int4, CAST, *HOST])
    assert "One NVIDIA H200, 2026-11-29" in text
    assert "(`python bench/bench_casts.py` and `python bench/bench_gemm.py`)" in text.replace("\n", " ")
    assert "| 4096 x 7168 x 2048 | 90.0 | 1336 | 99.0 (1.10) | 81.0 (0.90) |" in text
    assert "| decode, up to 16 tokens (M 8) | 1 | 1.50 | 1.50 | 1.20 | 1.20 |" in text
    assert "| W4A16, any activations (M 16), beside Marlin, Humming | 1 | - | - | 1.10 | 1.10 |" in text
    assert "beside a copy of as many bytes | 1 | - | - | 0.93 | 0.93 |" in text
    assert "| a call of `fp8_gemm_nt`, 16 x 7168 x 2048 | 17.1 us | 27.6 us |" in text
    assert "| a prepared call, 16 x 7168 x 2048 | 6.5 us | - |" in text
    assert "| the first call of a process, nothing compiled yet | 2.15 s | 3.83 s |" in text


def test_the_readmes_part_does_not_grow_with_the_shapes():
    more = [ROW | {"m": m, "n": n} for m in range(129, 1000, 8) for n in (64, 128)]
    assert len(report.short([ROW, *more]).splitlines()) - len(report.short([ROW, more[0]]).splitlines()) < 10


def test_an_aim_is_named_until_it_is_reached():
    slow, fast = decode(8, "read", 10.0, deepgemm=11.96), decode(8, "read", 10.0, deepgemm=12.0)
    assert figures.missed([slow]) == ["decode, up to 16 tokens (M 8), geometric mean against the best rival: 1.196, aim 1.2"]
    assert figures.missed([fast]) == []
    int4 = ROW | {"bench": "int4_gemm_nt:w4a16", "m": 16, "us": 10.0, "rivals": {"marlin_fp16": 10.9}}
    assert figures.missed([int4]) == ["W4A16, any activations (M 16), beside Marlin, geometric mean against the best rival: 1.090, aim 1.1"]
    assert figures.missed(HOST) == ["a call of `fp8_gemm_nt`: 17.1 us, aim 12.0 us"]
    assert "Not reached yet:" in report.short([ROW, slow])
    assert "All that we aimed at is reached." in report.short([fast])


def test_different_bits_are_put_down_to_a_split_of_k_only_where_the_plan_splits_it():
    other = ROW | {"n": 576, "bits_equal": False}
    assert report.equal_bits([ROW]) == "1 of the 1 products compared with DeepGEMM's equal them in every bit."
    assert "split K" in report.equal_bits([ROW, other | {"plan": "32x64x512 s4 c8K registers"}])
    assert "split K" not in report.equal_bits([ROW, other | {"plan": "256x128x128 s4 c2A warp"}])


def test_a_product_with_a_floor_shows_it_and_without_tflops_gets_them():
    row = {key: value for key, value in ROW.items() if key != "tflops"} | {"bench": "int4_gemm_nt", "activation": "int8", "floor_us": 33.25}
    page = report.full([row])
    assert "### `int4_gemm_nt, int8`, L2 flushed by a memset" in page
    assert "| 4096 x 7168 x 2048 | 90.0 | 1336 | 33.2 | 99.0 (1.10) | 81.0 (0.90) | yes | 256x128x128 s4 tma |" in page


def test_the_page_has_every_row():
    rows = recorded()
    page = report.full(rows)
    lines = [line for line in page.partition("## Products")[2].splitlines() if line.startswith("| ") and not line.startswith("| :--")]
    heads = sum(line.startswith(("| M x N x K", "| function", "| time of the host")) for line in lines)
    files = page.partition("## The other files")[2].count("\n| ") - 1
    assert len(lines) - heads - files - 1 == len(rows)
    assert all(f"`{row['command']}`" in page for row in rows)
    variants = [row for row in rows if row.get("variant")]
    assert variants and all(f"| `{row['bench']}` | {row['variant']} | {row['dtype']} |" in page for row in variants)


def test_the_pages_links_lead_somewhere():
    targets = re.findall(r"\]\(([^)#]+)\)", report.TABLES.read_text())
    assert report.PLOT.name in targets
    assert [t for t in targets if not (report.TABLES.parent / t).exists()] == []
    named = re.findall(r"^\| `([^`]+)` \|", report.FILES, re.MULTILINE)
    assert named and [name for name in named if not (report.TABLES.parent / name).exists()] == []


def test_only_what_stands_between_the_marks_changes():
    readme = f"before\n{report.BEGIN}old\n{report.END}\nafter\n"
    once = report.filled(readme, [ROW])
    assert once == f"before\n{report.BEGIN}{report.short([ROW])}{report.END}\nafter\n"
    assert report.filled(once, [ROW]) == once


def test_what_is_committed_is_of_the_recorded_figures():
    assert report.stale(recorded()) == []


def test_check_finds_a_figure_that_changed(monkeypatch, tmp_path, capsys):
    rows = copy.deepcopy(recorded())
    large = next(row for row in rows if row["bench"] == "fp8_gemm_nt" and row["m"] == 4096)
    large["us"] *= 2
    assert report.stale(rows) == [report.README, report.TABLES, report.PLOT]
    (tmp_path / "h200.json").write_text(json.dumps(rows))
    monkeypatch.setattr(report, "RESULTS", tmp_path / "h200.json")
    assert report.main(["--check"]) == 1
    assert capsys.readouterr().out.count("run python bench/report.py") == 3


def test_without_matplotlib_the_tables_are_written_and_it_is_said(monkeypatch, tmp_path, capsys):
    for name in ("README", "TABLES", "PLOT"):
        monkeypatch.setattr(report, name, tmp_path / name)
    monkeypatch.setattr(report, "ROOT", tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    report.README.write_text(f"{report.BEGIN}old\n{report.END}\n")
    assert report.main([]) == 0
    assert "PLOT: not drawn, which needs matplotlib: python -m pip install matplotlib" in capsys.readouterr().out
    assert report.stale(recorded()) == [report.PLOT]


def test_intensity_counts_codes_scales_and_output_once():
    row = ROW | {"m": 128, "n": 256, "k": 512}
    assert figures.nbytes(row) == 128 * 512 + 4 * 128 * 4 + 256 * 512 + 4 * 2 * 4 + 2 * 128 * 256
    assert figures.intensity(row) == 2 * 128 * 256 * 512 / figures.nbytes(row)


def test_no_product_is_above_a_ceiling():
    for row in plot.shown(recorded()):
        tflops, tb_s = figures.PEAKS[row["gpu"]]
        for us in (row["us"], *row["rivals"].values()):
            work = 2e-6 * row["m"] * row["n"] * row["k"]
            assert work / us < min(tflops, figures.intensity(row) * tb_s)


def test_the_plot_is_drawn_with_the_same_bytes_each_time(tmp_path):
    pytest.importorskip("matplotlib")
    rows = recorded()
    for name in ("one.svg", "two.svg"):
        plot.draw(rows, tmp_path / name)
    drawn = (tmp_path / "one.svg").read_text()
    assert drawn == (tmp_path / "two.svg").read_text()
    assert plot.digest(rows) in drawn and "<dc:date>" not in drawn
    marks = sum(1 + len(row["rivals"]) for row in plot.shown(rows)) + len(plot.shown(rows))
    assert drawn.count("<use ") > marks  # a mark for each time and each ratio, and the axes'
