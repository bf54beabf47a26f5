"""`dgnumba.tune` on a GPU: plausible times of every plan, the fastest kept, and taken by the next call."""

import pytest

import dgnumba
from dgnumba import policy
from dgnumba.device import Device
from dgnumba.problem import GemmProblem

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy")


def test_what_is_measured_is_taken(device, tmp_path, monkeypatch):
    monkeypatch.setenv("DGNUMBA_CACHE_DIR", str(tmp_path))
    policy.forget()
    shapes = [(16, 512, 1024), (300, 1024, 2048)]
    found = dgnumba.tune(shapes, candidates=3, rounds=5)
    for row, (m, n, k) in zip(found, shapes):
        # not less than memory needs, nor a hundred times the model
        floor = row.problem.bytes / device.memory_bandwidth * 1e6
        assert all(floor < us < 300 for us in (row.us, *(us for _, us in row.others)))
        assert row.us <= min(us for _, us in row.others)
        assert policy.choose(GemmProblem(m, n, k), Device.current()).plan == row.plan
        x = cupy.random.standard_normal((m, k), dtype=cupy.float32)
        w = cupy.random.standard_normal((n, k), dtype=cupy.float32)
        a, b = dgnumba.per_token_cast_to_fp8(x), dgnumba.per_block_cast_to_fp8(w)
        assert dgnumba.explain(a, b).choice.measured == row
        dgnumba.fp8_gemm_nt(a, b)
    policy.forget()
