"""A stepped run stops where it was told, shows what is there, and goes on to the result that it would have had."""

import sys

import ml_dtypes
import numpy as np
import pytest
from emu import numba_examples
from emu import pipeline_kernel as pipeline
from numba import cuda
from ptx import mma_kernel

from dgnumba import emu
from dgnumba.errors import DeadlockError, EmulationError, UninitializedError
from dgnumba.layouts import lanes
from dgnumba.layouts.descriptors import TensorMap


def reverse(x):
    tile = cuda.shared.array(64, np.float32)
    i = cuda.threadIdx.x
    tile[i] = twice(x[i])
    cuda.syncthreads()
    x[i] = tile[63 - i]


def twice(value):
    doubled = value + value
    return doubled


FIRST = reverse.__code__.co_firstlineno
EXPECTED = 2 * np.arange(64, dtype=np.float32)[::-1]


def step_reverse(**options):
    x = np.arange(64, dtype=np.float32)
    return x, emu.step(reverse, 1, 64, (x,), **options)


def test_the_first_stop_is_the_first_line_and_finish_gives_the_result() -> None:
    x, state = step_reverse()
    with state:
        assert (state.thread().index, state.thread().line, state.thread().function) == (0, FIRST + 1, "reverse")
        assert state.finish().is_over
    np.testing.assert_array_equal(EXPECTED, x)


def test_lines_are_stepped_into_functions_of_the_kernel_and_over_barriers() -> None:
    _, state = step_reverse(who=5)
    with state:
        lines = []
        while not state.is_over and len(lines) < 20:
            lines.append(state.thread().line - FIRST)
            state.step()
    assert lines == [1, 2, 3, 9, 10, 4, 5]
    assert twice.__code__.co_firstlineno == FIRST + 8


def test_operations_stop_before_they_are_executed_with_the_others_where_they_are() -> None:
    _, state = step_reverse(who=40, at="cuda.syncthreads")
    with state:
        here = state.thread()
        assert (here.index, here.warp, here.lane, here.op) == (40, 1, 8, "cuda.syncthreads")
        assert here.locals["i"] == 40
        assert state.thread(0).state == "syncthreads [40 of 64 threads there]"
        assert state.thread(41).state == "not begun"
        assert state.thread(41).locals == {}
        assert "about to execute cuda.syncthreads" in str(state)
        assert "->" in str(state)


@pytest.mark.parametrize("at", [FIRST + 5, f"test_stepping.py:{FIRST + 5}", "x[i] = tile[63 - i]"])
def test_a_line_is_named_by_number_file_or_text(at) -> None:
    _, state = step_reverse(who="warp 1", at=at)
    with state:
        seen = []
        while not state.is_over:
            assert (state.thread().warp, state.thread().line) == (1, FIRST + 5)
            seen.append(state.thread().index)
            state.run()
    assert sorted(seen) == list(range(32, 64))


def test_a_role_is_a_function_of_the_kernel() -> None:
    _, state = step_reverse(who="twice")
    with state:
        assert state.thread().function == "twice"
        assert [f.f_code.co_name for f in state.thread().frames] == ["reverse", "twice"]


def test_a_predicate_of_a_thread_chooses() -> None:
    _, state = step_reverse(who=lambda t: t.locals.get("i") == 17, at="cuda.syncthreads")
    with state:
        assert state.thread().index == 17


def test_until_and_to_tile_wait_for_a_variable() -> None:
    with emu.step(persistent, 1, 32, (np.zeros(8, np.float32),), who=3, at="tile = 0") as state:
        state.step()
        assert state.thread().locals["tile"] == 0
        state.to_tile()
        assert state.thread().locals["tile"] == 2
        state.until(lambda t: t.locals["tile"] == 6)
        assert state.thread().locals["tile"] == 6
        assert state.thread().index == 3
        assert state.until(lambda t: False).is_over


def test_the_next_tile_is_found_from_within_a_function_that_has_none() -> None:
    with emu.step(persistent, 1, 32, (np.zeros(8, np.float32),), who=0, at="x[tile] = 1") as state:
        assert (state.thread().function, state.thread().variable("tile")) == ("mark", 0)
        assert state.to_tile().thread().variable("tile") == 2


def mark(x, tile):
    x[tile] = 1


def persistent(x):
    tile = 0
    while tile < 8:
        if cuda.threadIdx.x == 0:
            mark(x, tile)
        tile += 2


def test_blocks_are_chosen_by_their_index() -> None:
    with emu.step(persistent, 3, 32, (np.zeros(8, np.float32),), cta=2) as state:
        assert state.thread().block == (2, 0, 0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"who": "producer"}, r"who: expected .*\(reverse, twice\).* got 'producer'"),
        ({"at": 3}, "at: expected an operation as .* or a line of the kernel that holds code, got 3"),
        ({"at": "no such text"}, "got 'no such text'"),
        ({"at": "other.py:3"}, "the kernel has code in test_stepping.py, none in other.py"),
        ({"at": "mbarrier.wait"}, "nothing came to who=None, at='mbarrier.wait'"),
        ({"who": 64}, "nothing came to who=64"),
        ({"together": "grid"}, "together: expected None, 'warp', 'warpgroup' or 'block', got 'grid'"),
    ],
)
def test_a_stop_that_cannot_be_says_why(words, message) -> None:
    with pytest.raises(EmulationError, match=message):
        step_reverse(**words)


def test_a_run_that_is_left_is_given_up() -> None:
    x, state = step_reverse(who=40, at="cuda.syncthreads")
    with state:
        pass
    assert state.is_over
    np.testing.assert_array_equal(np.arange(64), x)
    with pytest.raises(EmulationError, match="no thread is stopped"):
        state.thread()
    with pytest.raises(EmulationError, match="has run to its end"):
        state.run()


def test_a_fault_of_the_kernel_is_raised_where_the_run_goes_on() -> None:
    def faulty(x):
        tile = cuda.shared.array(4, np.float32)
        x[0] = tile[0]

    with emu.step(faulty, 1, 1, (np.zeros(1, np.float32),)) as state, pytest.raises(UninitializedError):
        state.finish()
    assert state.is_over


def test_the_tracing_of_the_caller_is_left_as_it_was() -> None:
    seen = []

    def tracer(frame, event, arg):
        seen.append(frame.f_code.co_name)
        return None

    before = sys.gettrace()
    try:
        sys.settrace(tracer)
        _, state = step_reverse(who=3, at="cuda.syncthreads")
        assert sys.gettrace() is tracer
        state.step()
        inside = sys.gettrace()
        state.close()
    finally:
        sys.settrace(before)
    assert inside is tracer
    assert "reverse" not in seen


def test_those_who_stop_together_stop_once_when_all_have_come() -> None:
    _, state = step_reverse(at="tile[i] = twice", together="warp")
    with state:
        seen = []
        while not state.is_over:
            warp = state.thread().warp
            seen.append((warp, sorted(t.line - FIRST for t in state.threads if t.warp == warp)))
            state.run()
    assert seen == [(0, [3] * 32), (1, [3] * 32)]


def test_a_block_stops_together_at_an_operation() -> None:
    x, state = step_reverse(at="cuda.syncthreads", together="block")
    with state:
        assert {t.op for t in state.threads} == {"cuda.syncthreads"}
        state.run()
        assert state.is_over
    np.testing.assert_array_equal(EXPECTED, x)


def test_together_does_not_wait_for_threads_that_cannot_come() -> None:
    def halves(x):
        if cuda.threadIdx.x < 16:
            x[cuda.threadIdx.x] = 1
        cuda.syncthreads()

    with emu.step(halves, 1, 64, (np.zeros(16, np.float32),), at="= 1", together="block") as state:
        assert sum(t.line == halves.__code__.co_firstlineno + 2 for t in state.threads) == 16
        assert state.thread(40).state == "syncthreads [48 of 64 threads there]"
        assert state.run().is_over


# The pipeline of TMA, mbarriers and wgmma


def step_pipeline(policy="eager", leave_out="", **options):
    rng = np.random.default_rng(7)
    a, b = (rng.integers(-4, 5, (rows, 128 * pipeline.K_BLOCKS)).astype(np.float32) for rows in (pipeline.M, 2 * pipeline.N))
    d = np.full((pipeline.M, 2 * pipeline.N), -7, np.float32)
    maps = (
        TensorMap.of(a.astype(ml_dtypes.float8_e4m3fn), (128, pipeline.M), swizzle=128),
        TensorMap.of(b.astype(ml_dtypes.float8_e4m3fn), (128, pipeline.N), swizzle=128),
        TensorMap.of(d, (pipeline.N, pipeline.M)),
    )
    kernel = pipeline.build(leave_out)
    return a, b, d, emu.step(kernel, 1, 160, maps, smem=pipeline.SMEM, labels=pipeline.LABELS, policy=policy, **options)


def test_shared_memory_is_shown_with_its_swizzle_undone_and_its_writer() -> None:
    a, _, _, state = step_pipeline(who="consume", at="wgmma.commit")
    with state:
        tile = state.smem.view("float8_e4m3fn", (pipeline.M, 128), at="a", swizzle=128)
        np.testing.assert_array_equal(a[:, :128], tile.astype(np.float32))
        raw = state.smem.view(np.uint8, (pipeline.M, 128), at="a")
        assert not np.array_equal(raw, tile.view(np.uint8))
        assert state.smem.writer("a").startswith("the asynchronous tma.load_2d that thread 128")
        assert state.smem.writer("d") == "nothing"
        assert state.smem.written[: pipeline.A_BYTES].all()
        assert not state.smem.written[pipeline.D : pipeline.D + pipeline.D_BYTES].any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"at": "c"}, "at: expected an offset or one of the labels a, b, d, full.0., .* got 'c'"),
        ({"swizzle": 16}, "swizzle: expected one of"),
        ({"at": 10**6}, "are not in the"),
        ({"at": 512, "swizzle": 128}, "needs a multiple of 1024"),
    ],
)
def test_a_view_that_cannot_be_says_why(arguments, message) -> None:
    _, _, _, state = step_pipeline(who="consume")
    with state, pytest.raises(EmulationError, match=message):
        state.smem.view(np.uint8, (8, 128), **arguments)


def test_a_fragment_is_the_matrix_that_it_is_part_of() -> None:
    a, b, d, state = step_pipeline(who="consume", at="tma.wait_read")
    with state:
        np.testing.assert_array_equal((a @ b.T)[:, : pipeline.N], state.fragment("acc"))
        with pytest.raises(EmulationError, match="has a variable 'total' of registers"):
            state.fragment("total")
        state.finish()
    np.testing.assert_array_equal(a @ b.T, d)


def test_late_products_are_not_there_before_their_wait() -> None:
    a, b, _, state = step_pipeline("late", who=127, at="wgmma.wait")
    with state:
        assert np.isnan(state.fragment("acc")).all()
        state.to_op("mbarrier.*")
        np.testing.assert_array_equal(a[:, :128] @ b[: pipeline.N, :128].T, state.fragment("acc"))


def test_barriers_show_what_they_lack_and_who_waits() -> None:
    _, _, _, state = step_pipeline("late", who="produce", at="tma.load_2d")
    with state:
        full = next(b for b in state.barriers if b.name.startswith("full[0]"))
        nbytes = pipeline.A_BYTES + pipeline.B_BYTES
        assert (full.count, full.pending, full.tx, full.phase) == (1, 0, nbytes, 0)
        assert full.waiting == tuple(range(128))
        assert str(full) == f"{full.name}: phase 0, 0 of 1 arrivals missing, {nbytes} bytes to come; 128 threads wait"


def test_to_barrier_stops_at_what_concerns_barriers() -> None:
    _, _, _, state = step_pipeline(who="produce")
    with state:
        ops = [state.to_barrier().thread().op for _ in range(3)]
    assert ops == ["mbarrier.wait", "mbarrier.arrive_expect_tx", "mbarrier.wait"]


def test_the_next_tile_is_found_from_within_a_role() -> None:
    _, _, _, state = step_pipeline(who="consume", at="wgmma.commit")
    with state:
        assert (state.thread().variable("tile"), state.thread().variable("no such")) == (0, None)
        state.to_tile()
        assert (state.thread().locals["tile"], int(state.thread().locals["count"])) == (1, pipeline.K_BLOCKS)


def test_a_deadlock_is_reported_from_the_stop_before_it() -> None:
    with pytest.raises(DeadlockError), step_pipeline(leave_out="expect", who="produce", at="mbarrier.wait")[3] as state:
        state.finish()


# Kernels that are not ours


def test_numbas_own_matrix_product_is_stepped_unchanged() -> None:
    a, b, c = numba_examples.matmul_arguments()
    with emu.step(numba_examples.fast_matmul, (2, 2), (16, 16), (a, b, c), who=17, at="cuda.syncthreads") as state:
        assert (state.thread().locals["tx"], state.thread().locals["ty"]) == (1, 1)
        state.run()
        np.testing.assert_array_equal(a[:16, :16], state.array("sA"))
        np.testing.assert_array_equal(a, state.array("A"))
        with pytest.raises(EmulationError, match="array: expected one of A, B, C, sA, sB, got 'tmp'"):
            state.array("tmp")
        partial = sum(a[1, j] * b[j, 1] for j in range(16))
        assert state.thread().locals["tmp"] == partial
        state.finish()
    np.testing.assert_array_equal(a @ b, c)


def test_numbas_own_reduction_is_stepped_unchanged() -> None:
    data = np.arange(64, dtype=np.int32)
    with emu.step(numba_examples.array_sum, 1, 64, (data,), who=0, at="s *= 2") as state:
        assert state.thread().locals["s"] == 1
        state.finish()
    assert data[0] == 64 * 63 // 2


def test_a_users_mma_kernel_is_stepped_unchanged() -> None:
    rng = np.random.default_rng(3)
    a, b, c = mma_kernel.operands(rng, "bfloat16")
    d = np.zeros((16, 8), np.float32)
    arguments = (mma_kernel.codes(a, "bfloat16"), mma_kernel.codes(b, "bfloat16"), c.astype(np.float32), d)
    with emu.step(mma_kernel.make("bfloat16"), 1, 32, arguments, smem=1024, who=5, at="mma.*") as state:
        held = state.thread().locals["frag_a"]
        row = (int(held[0]) & 0xFFFF) << 16  # lane 5 holds row 1, columns 2 and 3
        assert np.uint32(row).view(np.float32) == a[1, 2]
        state.run(at="d[row, col], d[row, col + 1]", together="warp")
        np.testing.assert_array_equal(a @ b.T + c, state.fragment("acc", lanes.mma_accumulator()))
        state.finish()
    np.testing.assert_array_equal(a @ b.T + c, d)
