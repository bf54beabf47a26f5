"""Times given to an emulated run: waits end when what they wait for has happened, units work one thing at a time."""

import gzip
import json

import numpy as np
import pytest
from numba import cuda
from ptx import mma_kernel

import dgnumba
from dgnumba import emu, lab
from dgnumba.errors import ProblemError
from dgnumba.integers import u32
from dgnumba.lab.costs import kind_of, stage_of
from dgnumba.ptx import barrier, mbarrier, tma

COSTS = lab.Costs(
    op=10, register=1, macs=1024, drain=0, barrier=0, load_latency=500, load_bytes=16, store_latency=100, store_bytes=32,
)  # fmt: skip
LABELS = {4096: "full[0]", 4104: "full[1]"}


def two_loads(tmap):
    """Thread 0 loads two boxes; warp 1 waits for the first, then for the second."""
    if cuda.threadIdx.x == 0:
        mbarrier.init(u32(5120), u32(1))
        mbarrier.init(u32(5128), u32(1))
        barrier.fence_mbarrier_init()
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        mbarrier.arrive_expect_tx(u32(5120), u32(1024))
        tma.load_2d(u32(1024), tmap, u32(5120), u32(0), u32(0))
        mbarrier.arrive_expect_tx(u32(5128), u32(1024))
        tma.load_2d(u32(2048), tmap, u32(5128), u32(0), u32(8))
    if cuda.threadIdx.x >= 32:
        mbarrier.wait(u32(5120), u32(0))
        mbarrier.wait(u32(5128), u32(0))
    cuda.syncthreads()
    mbarrier.wait(u32(5120), u32(0))
    mbarrier.wait(u32(5128), u32(0))


def seen(policy="eager", blocks=None, grid=1, costs=COSTS):
    table = np.zeros((16, 128), np.uint8)
    arguments = (dgnumba.tensor_map(table, box=(128, 8)),)
    return lab.timeline(two_loads, grid, 64, arguments, smem=4112, labels=LABELS, policy=policy, blocks=blocks, costs=costs)


def test_loads_take_the_unit_one_after_the_other():
    first, second = seen().of("block 0 TMA")
    assert (first.kind, first.name, first.stage, first.amount) == ("load", "tma.load_2d full[0]", 0, 1024)
    assert (first.length, second.start, second.length) == (64, first.end, 64)


def test_a_wait_ends_when_its_load_has_come():
    timeline = seen()
    loads = timeline.of("block 0 TMA")
    waits = [s for s in timeline.of("block 0 warp 1", "wait") if s.name.startswith("mbarrier")]
    assert [w.name for w in waits] == ["mbarrier.wait full[0]", "mbarrier.wait full[1]"] * 2
    assert [w.end for w in waits[:2]] == [load.end for load in loads]
    assert [w.length for w in waits[2:]] == [10, 10]  # they have come long ago


def test_a_load_begins_its_latency_after_its_issue():
    timeline = seen()
    issued = timeline.of("block 0 warp 0", "load")
    assert [s.name for s in issued] == ["tma.load_2d full[0]", "tma.load_2d full[1]"]
    assert timeline.of("block 0 TMA")[0].start == issued[0].end + 500


def test_syncthreads_ends_for_all_when_the_last_has_come():
    timeline = seen()
    ends = {
        s.end for row in ("block 0 warp 0", "block 0 warp 1") for s in timeline.of(row) if s.name == "cuda.syncthreads" and s.start > 100
    }
    assert ends == {timeline.of("block 0 TMA")[1].end + 10}  # warp 1 comes there when its second load has come


def test_the_completion_policy_changes_no_time():
    assert seen("late") == seen("eager")


def test_blocks_begin_together_and_the_first_can_be_shown_alone():
    both = seen(grid=2)
    assert both.rows == ("block 0 TMA", "block 0 warp 0", "block 0 warp 1", "block 1 TMA", "block 1 warp 0", "block 1 warp 1")
    assert both.of("block 0 TMA")[0].start == both.of("block 1 TMA")[0].start
    assert seen(grid=2, blocks=1) == seen()


def call(m=128, n=64, k=384):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, k)).astype(np.float32) for rows in (m, n))
    return dgnumba.per_token_cast_to_fp8(a), dgnumba.per_block_cast_to_fp8(b)


@pytest.fixture(scope="module")
def gemm():
    return lab.trace_gemm(*call(), plan=dgnumba.GemmPlan("sm90_fp8_gemm_1d2d", 128, 64, 4))


def test_a_products_time_on_the_tensor_cores_is_its_multiply_adds(gemm):
    products = gemm.of("block 0 tensor core")
    assert sum(s.amount for s in products) == 128 * 64 * 384
    assert gemm.busy("block 0 tensor core") == pytest.approx(128 * 64 * 384 / 4096, rel=1e-12)
    assert {s.kind for s in products} == {"mma"}


def test_stages_follow_the_ring_through_load_product_and_promotion(gemm):
    for row, kind in (("block 0 TMA", "load"), ("block 0 tensor core", "mma"), ("block 0 warp 0", "promote")):
        assert list(dict.fromkeys(s.stage for s in gemm.of(row, kind))) == [0, 1, 2], (row, kind)
    for stage in range(3):
        loaded = max(s.end for s in gemm.of("block 0 TMA", "load") if s.stage == stage)
        product = next(s for s in gemm.of("block 0 tensor core") if s.stage == stage)
        promoted = next(s for s in gemm.of("block 0 warp 0", "promote") if s.stage == stage)
        assert loaded <= product.start < product.end <= promoted.start


def test_spans_of_one_row_never_overlap(gemm):
    for row in gemm.rows:
        spans = gemm.of(row)
        assert all(a.end <= b.start + 1e-9 for a, b in zip(spans, spans[1:])), row


def test_every_load_of_the_kernel_is_there(gemm):
    tiles = [s for s in gemm.of("block 0 TMA", "load")]
    assert sum(s.amount for s in tiles) == 3 * (128 * 128 + 64 * 128 + 128 * 4 + 16)
    assert len(tiles) == 4 * 3


def test_the_chrome_trace_holds_every_span_by_block_and_warp(gemm, tmp_path):
    trace = json.loads(gemm.save(tmp_path / "trace.json").read_text())
    assert json.loads(gzip.decompress(gemm.save(tmp_path / "trace.json.gz").read_bytes())) == trace
    spans = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert len(spans) == len(gemm.spans)
    names = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert {names[e["tid"]] for e in spans if e["cat"] == "promote"} == {f"warp {w}" for w in range(8)}
    assert {e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"} == {"block 0"}
    assert sum(e["dur"] for e in spans) == pytest.approx(sum(s.length for s in gemm.spans) / 1000)


def test_the_table_says_how_busy_a_row_was(gemm):
    busy = next(line for line in str(gemm).splitlines() if line.startswith("block 0 tensor core"))
    assert f"{100 * gemm.busy('block 0 tensor core') / gemm.length:.1f}%" in busy


def test_rows_can_be_chosen(gemm):
    assert gemm.only(["block 0 warp 3"]).rows == ("block 0 warp 3",)
    with pytest.raises(ProblemError, match="rows: expected some of block 0 TMA, .* got block 7"):
        gemm.only(["block 7"])


def test_copies_by_cp_async_have_a_row_and_are_waited_for():
    rng = np.random.default_rng(3)
    a, b, c = mma_kernel.operands(rng, "bfloat16")
    arguments = (mma_kernel.codes(a, "bfloat16"), mma_kernel.codes(b, "bfloat16"), c.astype(np.float32), np.zeros((16, 8), np.float32))
    timeline = lab.timeline(mma_kernel.make("bfloat16"), 1, 32, arguments, smem=1024, costs=COSTS)
    copies = timeline.of("block 0 cp.async")
    assert sum(s.amount for s in copies) == 32 * 16 + 16 * 16
    wait = next(s for s in timeline.of("block 0 warp 0", "wait") if s.name == "cp_async.wait")
    assert wait.end == copies[-1].end == copies[0].start + (32 * 16 + 16 * 16) / 16
    assert [s.name for s in timeline.of("block 0 warp 0", "mma")] == ["mma.m16n8k16_bf16"]


def test_kinds_and_stages_are_read_from_names():
    assert [kind_of(op) for op in ("mbarrier.wait", "mbarrier.arrive", "wgmma.mma_block", "wgmma.wait", "tma.load_2d", "convert.fma")] == [
        "wait", "barrier", "mma", "wait", "load", "other",
    ]  # fmt: skip
    assert (stage_of("full[12]"), stage_of("d")) == (12, -1)


def test_a_run_that_fails_leaves_what_there_was():
    def stuck():
        if cuda.threadIdx.x == 0:
            mbarrier.init(u32(1024), u32(1))
        cuda.syncthreads()
        mbarrier.wait(u32(1024), u32(0))

    recorder = lab.Recorder()
    with pytest.raises(dgnumba.errors.DeadlockError):
        emu.run(stuck, 1, 32, (), smem=64, observe=recorder)
    assert [s.name for s in recorder.timeline().of("block 0 warp 0")][-1] == "mbarrier.wait"


def test_cluster_barriers_and_multicast_meet_across_blocks():
    plan = dgnumba.GemmPlan("sm90_fp8_gemm_1d2d", 128, 32, 3, cluster=2, multicast="A", epilogue="tma")
    timeline = lab.trace_gemm(*call(n=64, k=256), plan=plan)
    assert [r for r in timeline.rows if r.endswith("TMA")] == ["block 0 TMA", "block 1 TMA"]
    half = 128 * 128 // 2
    assert [s.amount for s in timeline.of("block 1 TMA", "load")].count(half) == [
        s.amount for s in timeline.of("block 0 TMA", "load")
    ].count(half)
