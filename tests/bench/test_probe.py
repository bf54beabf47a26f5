"""The probe of float16 accumulators lays operands out as the tensor core takes them: in the emulator it finds the model itself."""

import sys
from pathlib import Path

import numpy as np
import pytest

BENCH = str(Path(__file__).parent.parent.parent / "bench")
sys.path.insert(0, BENCH)
import probe_tensor_core_f16 as probing  # noqa: E402

sys.path.remove(BENCH)


@pytest.mark.parametrize("kind", ["normal", "any finite code"])
def test_the_model_is_found_in_the_emulator(kind, rng):
    rows = probing.probe(kind, 2, rng, on_gpu=False)
    assert [row["way"] for row in rows] == list(probing.WAYS)
    assert all(row["unequal"] == 0 and row["examples"] == [] and row["elements"] == 2 * 64 * 128 for row in rows)
    assert all(row["accumulators"] == "float16" for row in rows)
    assert all((row["infinite"] > 0) == (kind == "any finite code") for row in rows)


def test_a_difference_is_counted_and_kept(rng, monkeypatch):
    """One bit of one element of the second tile."""
    plain = probing.by_model

    def off(a, b, start, steps, first):
        found = plain(a, b, start, steps, first)
        found.view(np.uint16)[3, 5] ^= (a == tiles[0][1]).all()
        return found

    tiles = probing.data("normal", 2, np.random.default_rng(4))
    monkeypatch.setattr(probing, "by_model", off)
    rows = probing.probe("normal", 2, np.random.default_rng(4), on_gpu=False)
    assert [row["unequal"] for row in rows] == [1, 1, 1]
    assert all(
        len(row["examples"]) == 1 and row["examples"][0]["a"] == tiles[0][1, 3, : len(row["examples"][0]["a"])].tolist() for row in rows
    )
