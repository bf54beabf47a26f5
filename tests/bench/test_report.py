"""The README's table is made of the recorded figures, and of nothing else."""

import importlib.util
import json
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

_spec = importlib.util.spec_from_file_location("bench_report", ROOT / "bench" / "report.py")
report = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(report)

ROW = {
    "bench": "fp8_gemm_nt", "m": 4096, "n": 7168, "k": 2048, "us": 90.04, "tflops": 1335.6, "rivals": {"deepgemm": 91.2, "cublas": 126.0},
    "bits_equal": True, "gpu": "NVIDIA H200", "date": "2026-11-29",
}  # fmt: skip


def test_a_row_shows_our_time_and_each_rivals_and_their_ratio():
    text = report.table([ROW, ROW | {"k": 16384, "us": 640.0, "rivals": {"deepgemm": 651.0}, "bits_equal": None}])
    assert "| 4096 x 7168 x 2048 | 90.0 | 1336 | 91.2 (1.01) | 126 (1.40) | yes |" in text
    assert "| 4096 x 7168 x 16384 | 640 | 1336 | 651 (1.02) | - | - |" in text
    assert "NVIDIA H200, 2026-11-29" in text


def test_each_function_has_a_table():
    text = report.table([ROW, ROW | {"bench": "bf16_gemm_nt"}, ROW])
    assert text.count("| M x N x K |") == 2
    assert text.count("| 4096 x 7168 x 2048 |") == 3


def test_only_what_stands_between_the_marks_changes():
    readme = f"before\n{report.BEGIN}old\n{report.END}\nafter\n"
    assert report.filled(readme, []) == f"before\n{report.BEGIN}No figures are recorded yet.\n{report.END}\nafter\n"
    once = report.filled(readme, [ROW])
    assert report.filled(once, [ROW]) == once


def test_the_readme_shows_the_recorded_figures():
    rows = json.loads(report.RESULTS.read_text()) if report.RESULTS.exists() else []
    readme = report.README.read_text()
    assert report.filled(readme, rows) == readme
