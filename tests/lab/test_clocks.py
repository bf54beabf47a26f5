"""The watched variant of a kernel: made of its own code, gives the same product, compiles without a spill, and writes down what happened."""

import numpy as np
import pytest
from lab.test_timeline import call
from numba import cuda

import dgnumba
from dgnumba import _numba, lab, launching
from dgnumba.assemble import find_ptxas
from dgnumba.errors import ProblemError
from dgnumba.integers import u32, u64
from dgnumba.kernels.watched import END, START, TIME
from dgnumba.lab.instrument import FIRST, Instrument
from dgnumba.ptx import barrier, thread

needs_ptxas = pytest.mark.skipif(not _numba.HAVE_NUMBA_CUDA or find_ptxas() is None, reason="needs numba-cuda and ptxas")


@pytest.fixture(scope="module")
def watched():
    a, b = call()
    d = np.zeros((128, 64), np.float32)
    return a, b, d, lab.watch_gemm(a, b, d)


def test_watching_changes_no_bit_of_the_product(watched):
    a, b, d, _ = watched
    np.testing.assert_array_equal(dgnumba.fp8_gemm_nt(a, b, np.zeros_like(d), on="emulator"), d)


def test_the_records_are_the_emulators_own_account(watched):
    a, b, _, timeline = watched
    other = lab.trace_gemm(a, b, np.zeros((128, 64), np.float32))
    for row in timeline.rows:
        kinds = ("load", "promote") if row == "block 0 warp 10" else ("promote", "mma")
        for kind in kinds:
            expected = [
                (s.name.split(" ")[0], s.stage) for s in other.of(row, kind) if s.name.split(" ")[0] not in ("wgmma.fence", "wgmma.commit")
            ]
            assert [(s.name.split(" ")[0], s.stage) for s in timeline.of(row, kind)] == expected, (row, kind)
        barriers = [s.name for s in other.of(row, "wait") if s.name.startswith("mbarrier")]
        assert [s.name for s in timeline.of(row, "wait") if s.name.startswith("mbarrier")] == barriers


def test_the_kernels_own_functions_are_left_as_they_are():
    from dgnumba.kernels import sm90_fp8_gemm_1d2d as file

    before = (file.mbarrier.wait, file.mbarrier)
    Instrument().kernel(file.build(dgnumba.GemmPlan("sm90_fp8_gemm_1d2d", 64, 32, 3)).kernel)
    assert (file.mbarrier.wait, file.mbarrier) == before


def test_records_beyond_the_room_are_lost_and_touch_nothing():
    a, b = call()
    d = np.zeros((128, 64), np.float32)
    timeline = lab.watch_gemm(a, b, d, room=16)
    assert 0 < len(timeline.of("block 0 warp 0")) <= 7
    assert timeline.source == "the emulator's order; 5 warps had room for the first 16 records only"
    np.testing.assert_array_equal(dgnumba.fp8_gemm_nt(a, b, np.zeros_like(d), on="emulator"), d)


def test_chosen_operations_alone_are_watched():
    timeline = lab.watch_gemm(*call(), watched=("tma.load_2d",))
    assert {s.name.split(" ")[0] for s in timeline.spans} == {"tma.load_2d"}


def test_blocks_are_set_against_each_other_by_the_global_timer():
    seen = lab.Watched.of(dgnumba.GemmPlan("sm90_fp8_gemm_1d2d", 64, 32, 3), ("mbarrier.wait",))
    at = FIRST + 2 * seen.instrument.names.index("mbarrier.wait")
    records = np.zeros((2, seen.warps, 8, 2), np.uint64)
    for block, (timer, clock) in enumerate(((1_000_000, 5_000_000), (1_100_000, 70_000_000))):
        ticks = [(timer, TIME), (clock, START), (clock + 1000, at), (clock + 1400, at + 1), (clock + 200_000, END), (timer + 100_000, TIME)]
        records[block, :, : len(ticks)] = ticks
    timeline = seen.timeline(records, None, "cycles", "by hand")
    assert [(s.start, s.end) for s in timeline.of("block 0 warp 0")] == [(1000, 1400)]
    assert [(s.start, s.end) for s in timeline.of("block 1 warp 0")] == [(201_000, 201_400)]  # 100 us later at 2 cycles a nanosecond


@needs_ptxas
@pytest.mark.parametrize(
    "plan",
    [
        dgnumba.GemmPlan("sm90_fp8_gemm_1d2d", 128, 128, 5),
        pytest.param(
            dgnumba.GemmPlan("sm90_fp8_gemm_1d2d", 256, 128, 4, cluster=2, multicast="A", epilogue="warp", rotate=True, overlap=True),
            marks=pytest.mark.full,
        ),
        dgnumba.GemmPlan("sm90_fp8_gemm_1d2d_swap_ab", 16, 64, 8, epilogue="direct"),
    ],
    ids=lambda plan: plan.name,
)
def test_the_variant_compiles_without_a_spill_and_with_its_products_in_flight(plan):
    cubin = lab.Watched.of(plan).compiled()
    assert (cubin.spill_stores, cubin.spill_loads, cubin.local_bytes) == (0, 0, 0)
    assert "C75" not in cubin.log


def user_kernel(x):
    i = cuda.threadIdx.y * 8 + cuda.threadIdx.x
    thread.griddepcontrol_wait()
    x[cuda.blockIdx.y, i] = i
    barrier.sync(u32(1), u32(64))


def test_any_kernel_can_be_watched_in_any_grid():
    x = np.zeros((2, 64), np.int32)
    timeline = lab.watch(user_kernel, (1, 2), (8, 8), (x,), blocks=None)
    assert timeline.rows == ("block 0 warp 0", "block 0 warp 1", "block 1 warp 0", "block 1 warp 1")
    assert [s.name for s in timeline.of("block 1 warp 1")] == ["thread.griddepcontrol_wait", "barrier.sync"]
    np.testing.assert_array_equal([list(range(64))] * 2, x)


@needs_ptxas
def test_a_watched_kernel_of_a_user_compiles_and_is_known_to_the_cache():
    kernel = Instrument().kernel(user_kernel)
    argtypes = tuple(_numba.argtype(v) for v in (np.zeros((2, 64), np.int32), u64, u32))
    cubin = launching.compiled(kernel, lambda: (kernel, argtypes), threads=64, argtypes=argtypes)
    assert cubin.spill_stores == 0


def test_timelines_are_drawn_beside_one_another(watched):
    pytest.importorskip("matplotlib")
    a, b, _, timeline = watched
    figure = lab.beside(timeline, lab.trace_gemm(a, b, np.zeros((128, 64), np.float32), blocks=1))
    first, second = figure.axes
    assert [t.get_text() for t in first.get_yticklabels()] == [t.get_text() for t in second.get_yticklabels()] == list(timeline.rows)
    with pytest.raises(ProblemError, match="expected timelines with rows in common"):
        lab.beside(timeline, lab.Timeline((lab.Span("block 9 TMA", 0, 1, "load", "x"),)))


def test_arrays_and_place_must_fit():
    with pytest.raises(ProblemError, match="on: expected emulator for these arguments, or None, got 'cuda'"):
        lab.watch(user_kernel, (1, 2), (8, 8), (np.zeros((2, 64), np.int32),), on="cuda")
    with pytest.raises(ProblemError, match="on: 'cuda' needs arrays on a GPU"):
        lab.watch_gemm(*call(), on="cuda")


@pytest.mark.gpu
def test_the_gpus_records_are_those_of_the_emulator():
    import cupy

    a, b = call()
    at = [dgnumba.QTensor(cupy.asarray(x.codes), cupy.asarray(x.scale), x.dtype, x.granularity) for x in (a, b)]
    plan = dgnumba.GemmPlan("sm90_fp8_gemm_1d2d", 128, 64, 4)
    on_gpu, emulated = lab.watch_gemm(*at, plan=plan), lab.watch_gemm(a, b, plan=plan)
    assert on_gpu.rows == emulated.rows
    for row in on_gpu.rows:
        assert [(s.name, s.stage) for s in on_gpu.of(row)] == [(s.name, s.stage) for s in emulated.of(row)]
