"""What a report says, and that a check leaves things as it should."""

import json

import numpy as np
import pytest
from numba import cuda
from one_barrier import TILE, ready_barrier

from dgnumba import emu
from dgnumba.errors import DeadlockError, EmulationError, UnknownNameError
from dgnumba.integers import u32, u64
from dgnumba.layouts import swizzle
from dgnumba.layouts.descriptors import TensorMap
from dgnumba.ptx import matrix, memory, op

from . import barrier_faults, faults  # noqa: F401  which plant them
from .planted import BOX, FAULTS
from .planted import load as load_box


def aligned(count, dtype=np.float32):
    """Zeros that begin at a multiple of 512 bytes, as an allocation on a GPU does."""
    raw = np.zeros(count * np.dtype(dtype).itemsize + 512, np.uint8)
    first = -raw.ctypes.data % 512
    return raw[first:][: count * np.dtype(dtype).itemsize].view(dtype)


def only(rows, op_name):
    (row,) = [row for row in rows if row.op == op_name]
    return row


# Bank conflicts


@pytest.mark.parametrize("stride, ways", [(1, 1), (2, 2), (3, 1), (4, 4), (8, 8), (16, 16), (32, 32), (33, 1), (0, 1)])
def test_bank_conflicts_of_words(stride, ways):
    """32 lanes, `stride` words apart: they meet in 32 / gcd(stride, 32) banks; one word is no conflict."""

    def kernel():
        memory.store_shared_f32(TILE + u32(cuda.threadIdx.x) * (4 * stride), np.float32(1))

    report = emu.check(kernel, 1, 32 if stride else 1, (), smem=8192, policies=("eager",))
    row = only(report.shared, "memory.store_shared_f32")
    assert (row.requests, row.wavefronts, row.ideal, row.ways, row.worst) == (1, ways, 1, ways, ways)
    assert row.is_store and row.address == TILE and row.lanes == tuple(range(32 if stride else 1))


def test_lanes_that_read_one_word_are_served_together():
    def kernel():
        if cuda.threadIdx.x == 0:
            memory.store_shared_f32(TILE, np.float32(1))
        cuda.syncthreads()
        memory.load_shared_f32(TILE)

    row = only(emu.check(kernel, 1, 64, (), smem=8192).shared, "memory.load_shared_f32")
    assert (row.requests, row.wavefronts, row.ideal) == (2, 2, 2)


@pytest.mark.parametrize("pitch, ways", [(16, 1), (128, 8), (144, 1), (64, 4), (32, 2)])
def test_bank_conflicts_of_16_byte_accesses(pitch, ways):
    """A quarter warp at a time: eight lanes, `pitch` bytes apart, of which 128 / gcd(pitch, 128) chunks of banks differ."""

    def kernel():
        memory.store_shared_v4_f32(TILE + u32(cuda.threadIdx.x) * pitch, *(np.float32(1),) * 4)

    row = only(emu.check(kernel, 1, 32, (), smem=8192, policies=("eager",)).shared, "memory.store_shared_v4_f32")
    assert (row.wavefronts, row.ideal) == (4 * ways, 4)


@pytest.mark.parametrize("mode, ways", [(128, 1), (0, 8)])
def test_a_swizzle_takes_the_conflicts_out_of_stmatrix(mode, ways):
    """Rows of 128 bytes: the eight rows of a matrix begin in one bank, and with the swizzle in eight."""

    def kernel():
        lane = u32(cuda.threadIdx.x)
        row = lane % 16
        chunk = (lane // 16) ^ (row % 8 if mode else 0)
        matrix.stmatrix_x4(TILE + row * 128 + chunk * 16, u32(0), u32(0), u32(0), u32(0))

    assert swizzle.row_phase(9, 128) == 1
    row = only(emu.check(kernel, 1, 32, (), smem=8192, policies=("eager",)).shared, "matrix.stmatrix_x4")
    assert (row.requests, row.wavefronts, row.ideal) == (1, 4 * ways, 4)


def test_requests_are_told_apart_by_their_coming():
    """A column is read by each lane four times in one line: four requests, of which one conflicts."""

    def kernel(out):
        t = cuda.threadIdx.x
        tile = cuda.shared.array((4, 32), np.float32)
        for row in range(4):
            tile[row, t] = np.float32(1)
        cuda.syncthreads()
        total = np.float32(0)
        for row in range(4):
            total += tile[row, t if row else 0]
        for row in range(4):
            total += tile[t % 4, row]
        out[t] = total

    report = emu.check(kernel, 1, 32, (aligned(32),), policies=("eager",))
    assert sorted((row.requests, row.ways) for row in report.shared) == [(4, 1.0), (4, 1.0), (4, 4.0)]
    assert report.shared[0].ways == 4 and "tile[t % 4, row]" in report.shared[0].source
    with pytest.raises(AssertionError, match="bank conflicts of 4 ways"):
        report.expect(bank_ways=1)
    assert report.expect(bank_ways=4) is report


# Sectors


@pytest.mark.parametrize("stride, offset, sectors", [(1, 0, 4), (1, 1, 5), (2, 0, 8), (8, 0, 32), (32, 0, 32), (0, 0, 1)])
def test_sectors_of_a_request(stride, offset, sectors):
    """32 lanes of four bytes: 4 sectors of 32 bytes when they lie together."""

    def kernel(x, out):
        t = cuda.threadIdx.x
        out[t] = x[t * stride + offset]

    report = emu.check(kernel, 1, 32, (aligned(1100), aligned(32)), policies=("eager",))
    load, store = sorted(report.global_memory, key=lambda row: row.is_store)
    assert (load.requests, load.sectors, load.per_request, load.ideal) == (1, sectors, sectors, 4 if stride else 1)
    assert (store.sectors, store.excess, store.nbytes) == (4, 1, 128)
    if sectors > 4:
        with pytest.raises(AssertionError, match="times the sectors needed"):
            report.expect(sectors=1)
    else:
        report.expect(sectors=1)


def test_lanes_left_out_by_a_predicate_keep_requests_together():
    """Lane 0 stores each time, the others the second time only: the second request has 32 lanes."""

    def kernel(out):
        t = u32(cuda.threadIdx.x)
        at = memory.global_address(out) + u64(t) * 4
        for i in range(2):
            memory.store_global_f32_if((t == 0) | (i == 1), at, np.float32(1))

    (row,) = emu.check(kernel, 1, 32, (aligned(32),), policies=("eager",)).global_memory
    assert (row.requests, row.sectors, row.ideal) == (2, 1 + 4, 1 + 4)


# Boxes


def test_a_box_wholly_outside_is_a_warning():
    def kernel(tmap):
        ready_barrier()
        if cuda.threadIdx.x == 0:
            from_barrier(tmap)

    data = np.ones((8, 16), np.float32)
    report = emu.check(kernel, 1, 32, (TensorMap.of(data, (16, 8)),), smem=8192)
    assert report.is_clean and [f.kind for f in report.warnings] == ["box-outside"]
    (finding,) = report.warnings
    assert "1 of 3 boxes lie wholly outside their tensor, the last at (0, -8): all of it reads as zeros" in finding.message
    (row,) = report.boxes
    assert (row.boxes, row.nbytes, row.outside, row.wholly_outside, row.coordinates) == (3, 3 * BOX, BOX + BOX // 2, 1, (0, -8))
    report.expect()


def from_barrier(tmap):
    from dgnumba.ptx import mbarrier, tma

    for phase, row in enumerate((0, 4, -8)):
        mbarrier.arrive_expect_tx(u32(1024), u32(BOX))
        tma.load_2d(TILE, tmap, u32(1024), u32(0), u32(row))
        mbarrier.wait(u32(1024), u32(phase % 2))


# The report


def test_a_result_that_depends_on_when_work_completes_is_an_error():
    @op("mbarrier.test_wait.parity.shared::cta.b64 {out}, [{bar}], {parity};")
    def test_wait(bar: u32, parity: u32) -> u32:
        """mbarrier.test_wait - whether the phase is complete, without waiting."""
        return u32(emu.cta().mbarrier(bar).test(parity))

    def kernel(tmap, out):
        ready_barrier()
        load_box(tmap)
        if cuda.threadIdx.x == 0:
            out[0] = test_wait(u32(1024), u32(0))
        cuda.syncthreads()
        from dgnumba.ptx import mbarrier

        mbarrier.wait(u32(1024), u32(0))

    args = (TensorMap.of(np.ones((8, 16), np.float32), (16, 8)), np.zeros(2, np.int32))
    report = emu.check(kernel, 1, 32, args, smem=8192)
    assert [(f.kind, f.severity) for f in report.findings] == [("policy", "error")]
    assert "array 1 of shape (2,): 1 elements differ between the eager and the late policy" in report.errors[0].message


def test_arrays_are_put_back_before_each_run():
    def kernel(x):
        x[cuda.threadIdx.x] += np.float32(1)

    x = np.arange(32, dtype=np.float32)
    assert emu.check(kernel, 1, 32, (x,)).is_clean
    assert x.tolist() == list(range(1, 33))


def test_a_report_is_data():
    report = FAULTS["race_between_threads"].check(is_right=False)
    data = json.loads(json.dumps(report.as_dict()))
    assert data["is_clean"] is False and data["policies"] == ["eager", "late"] and data["kernel"] == "kernel"
    finding = data["findings"][0]
    assert (finding["kind"], finding["threads"], finding["block"], finding["address"]) == ("race", [32], [0, 0, 0], 2048)
    assert data["shared"][0]["op"] == "memory.store_shared_f32"


def test_a_report_is_readable():
    text = str(FAULTS["race_between_threads"].check(is_right=False))
    for words in (
        "kernel: 2 error(s), checked under eager and late",
        "error race: shared memory at tile @0x800: read of 4 bytes races with the write by thread 0 of block (0, 0, 0)",
        "at thread 32 of block (0, 0, 0)",
        "in memory.load_shared_f32 at faults.py:",
        "under the late policy",
        "shared memory",
    ):
        assert words in text
    assert "kernel: clean" in str(FAULTS["race_between_threads"].check(is_right=True))


def test_the_first_error_can_be_raised():
    with pytest.raises(DeadlockError) as caught:
        FAULTS["fewer_arrivals_than_counted"].check(is_right=False).raise_if_wrong()
    assert caught.value.kind == "deadlock"
    FAULTS["fewer_arrivals_than_counted"].check(is_right=True).raise_if_wrong()
    with pytest.raises(AssertionError, match="error deadlock: deadlock: threads 0-31"):
        FAULTS["fewer_arrivals_than_counted"].check(is_right=False).expect()


def test_an_exception_of_python_is_a_finding_with_its_line():
    def kernel(x):
        x[0] = 1 // (cuda.threadIdx.x - 5)

    report = emu.check(kernel, 1, 32, (np.zeros(1),), policies=("late",))
    (finding,) = [f for f in report.errors if f.kind == "exception"] or report.errors
    assert finding.kind in ("exception", "global-race")
    report = emu.check(kernel, 1, 1, (np.zeros(1),), policies=("late",))
    assert report.is_clean

    def divides(x):
        x[cuda.threadIdx.x] = 1 // (cuda.threadIdx.x - 5)

    (finding,) = emu.check(divides, 1, 32, (np.zeros(32),), policies=("late",)).errors
    assert (finding.kind, finding.threads) == ("exception", (5,))
    assert "ZeroDivisionError" in finding.message and "// (cuda.threadIdx.x - 5)" in finding.source


def test_arguments_that_cannot_be_run_are_refused():
    def kernel(x):
        pass

    with pytest.raises(EmulationError, match="kernel takes 1 arguments"):
        emu.check(kernel, 1, 32, ())
    with pytest.raises(EmulationError, match="policy: expected"):
        emu.check(kernel, 1, 32, (np.zeros(1),), policies=("soon",))
    with pytest.raises(EmulationError, match="policies: expected at least one"):
        emu.check(kernel, 1, 32, (np.zeros(1),), policies=())
    with pytest.raises(EmulationError, match="a CTA has at most"):
        emu.check(kernel, 1, 32, (np.zeros(1),), smem=1 << 20)


# The wait-for graph


def test_a_deadlock_names_the_circle():
    from dgnumba.ptx import mbarrier

    full, empty = u32(1024), u32(1032)

    def kernel():
        t = cuda.threadIdx.x
        if t == 0:
            mbarrier.init(full, 1)
            mbarrier.init(empty, 64)
        cuda.syncthreads()
        if t == 64:
            for i in range(4):
                mbarrier.wait(empty, u32(i % 2 ^ 1))
                mbarrier.arrive(full)
        elif t < 64:
            for i in range(4):
                mbarrier.wait(full, u32(i % 2))
                if t != 5 or i != 1:
                    mbarrier.arrive(empty)

    with pytest.raises(
        DeadlockError, match="a circle: threads 0-63 of block .0, 0, 0. -> thread 64 of block .0, 0, 0. -> threads 0-63"
    ) as caught:
        emu.run(kernel, 1, 96, (), smem=64)
    graph = caught.value.graph
    assert [(node.threads, node.has_exited) for node in graph.nodes] == [
        (tuple(range(64)), False),
        ((64,), False),
        (tuple(range(65, 96)), True),
    ]
    assert graph.cycle == graph.nodes[:2]
    assert {(i, j) for i, j, _ in graph.edges} == {(0, 1), (1, 0)}
    assert "waits for [0]: thread 5 of block (0, 0, 0) would have to come" in str(graph)
    assert "cycle: [0] -> [1] -> [0]" in str(graph)
    assert caught.value.line and "mbarrier.wait(full" in caught.value.source


def test_a_deadlock_without_a_circle_says_what_nobody_does():
    def kernel():
        if cuda.threadIdx.x < 32:
            barrier_sync()

    def barrier_sync():
        from dgnumba.ptx import barrier

        barrier.sync(u32(1), u32(64))

    with pytest.raises(DeadlockError) as caught:
        emu.run(kernel, 1, 64, ())
    graph = caught.value.graph
    assert graph.cycle == () and [node.has_exited for node in graph.nodes] == [False, True]
    assert [(i, j) for i, j, _ in graph.edges] == [(0, 1)]


# Global memory


@pytest.mark.parametrize("is_fenced", [True, False])
def test_blocks_are_ordered_by_an_atomic_behind_a_fence(is_fenced):
    """The last block to come adds up what all have written."""

    def kernel(parts, ticket, total):
        b, t = cuda.blockIdx.x, cuda.threadIdx.x
        if t == 0:
            parts[b] = b + 1
            if is_fenced:
                cuda.threadfence()
            if cuda.atomic.add(ticket, 0, 1) == cuda.gridDim.x - 1:
                for i in range(cuda.gridDim.x):
                    total[0] += parts[i]

    args = np.zeros(4, np.int32), np.zeros(1, np.int32), np.zeros(1, np.int32)
    report = emu.check(kernel, 4, 32, args)
    if is_fenced:
        assert report.is_clean and args[2][0] == 10, str(report)
    else:
        assert {f.kind for f in report.errors} == {"global-race"} and "parts" in report.errors[0].message


def test_atomics_of_all_blocks_on_one_element_are_no_race():
    def kernel(counts):
        cuda.atomic.add(counts, cuda.threadIdx.x % 4, 1)

    counts = np.zeros(4, np.int32)
    assert emu.check(kernel, 3, 32, (counts,)).is_clean
    assert counts.tolist() == [24] * 4


def test_names_that_the_emulator_does_not_know():
    def atomic(x):
        cuda.atomic.fetch(x, 0, 1)

    def shared(x):
        cuda.shared.memory(3)

    def array(x):
        x.copy_to_host()

    for kernel, says in ((atomic, "cuda.atomic.fetch"), (shared, "cuda.shared.memory"), (array, "x.copy_to_host")):
        with pytest.raises(UnknownNameError, match=says):
            emu.run(kernel, 1, 32, (np.zeros(1, np.int32),))
    with pytest.raises(UnknownNameError, match="declared with dgnumba.ptx.op"):
        emu.run(atomic, 1, 32, (np.zeros(1, np.int32),))
