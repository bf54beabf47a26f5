"""What the INT4 benchmark does when a call breaks its process; torch, CuPy and the GPU are played."""

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

BENCH = Path(__file__).parent.parent.parent / "bench"


@pytest.fixture
def bench(monkeypatch):
    """`bench_int4`, imported without a GPU, and forgotten again."""
    monkeypatch.syspath_prepend(str(BENCH))
    for name in ("torch", "torch.profiler", "cupy"):
        monkeypatch.setitem(sys.modules, name, MagicMock())
    before = set(sys.modules)
    yield importlib.import_module("bench_int4")
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "").parent == BENCH:
            del sys.modules[name]


class Broken:
    """A process in which every call breaks while it does this."""

    def __init__(self, doing):
        self.doing, self.is_closed = doing, False

    def __call__(self, function, *arguments, timeout):
        raise RuntimeError("its process ended with -6")

    def close(self):
        self.is_closed = True


class Whole(Broken):
    def __call__(self, function, *arguments, timeout):
        return ["a row"], arguments[-1]


@pytest.mark.parametrize(
    "doing, without", [("humming_int8", ["humming_int8"]), ("our_fp8", ["our_fp8"]), ("bfloat16 0", []), ("int8 12", []), ("", [])]
)
def test_a_rival_that_breaks_is_left_out_and_ours_never(bench, monkeypatch, doing, without):
    """Left out, ours would be missing at every later N x K: no rows at all."""
    notes, first, second = SimpleNamespace(without=[]), Broken(doing), Whole("")
    monkeypatch.setattr(bench, "Apart", lambda *args: second)
    args = SimpleNamespace(timeout=1, sweep=True)
    assert bench.measured(first, 64, 128, args, {}, notes) == (["a row"], notes)
    assert notes.without == without and first.is_closed and second.is_closed
    monkeypatch.setattr(bench, "Apart", lambda *args: Broken(doing))
    assert bench.measured(Broken(doing), 64, 128, args, {}, notes) == ([], notes), "what breaks twice has none"


def test_rows_take_the_place_of_those_of_the_same_problem_alone(bench, tmp_path):
    """Groups of 64 are another problem than groups of 128; FP8 stays last."""
    out, args, notes = tmp_path / "rows.json", SimpleNamespace(sweep=False), SimpleNamespace(copied=1.0, read=1.0)

    def row(us, **changes):
        return {
            "bench": "int4_gemm_nt:w4a8",
            "m": 1,
            "n": 64,
            "k": 128,
            "activation": "int8",
            "format": "int4_g128 float16",
            "us": us,
        } | changes

    fp8 = row(2.0, activation="float8_e4m3fn")
    bench.store([fp8, row(1.0)], out, args, {}, notes)
    bench.store([row(3.0, format="int4_g64 float16")], out, args, {}, notes)
    assert json.loads(out.read_text()) == [row(1.0), row(3.0, format="int4_g64 float16"), fp8]
    bench.store([row(4.0)], out, args, {}, notes)
    assert json.loads(out.read_text()) == [row(3.0, format="int4_g64 float16"), row(4.0), fp8]
