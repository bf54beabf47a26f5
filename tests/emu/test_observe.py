"""What an observer hears, and that nobody who does not listen is told."""

import numpy as np
from numba import cuda

import dgnumba
from dgnumba import emu
from dgnumba.integers import u32
from dgnumba.ptx import barrier, mbarrier, memory, tma


class Accesses(emu.Observer):
    def __init__(self):
        self.seen = []

    def access(self, access):
        self.seen.append((access.space, access.kind, access.address, access.nbytes, access.thread.index, access.site.line))


class Transfers(emu.Observer):
    def __init__(self):
        self.seen = []

    def transfer(self, transfer):
        self.seen.append((transfer.op, transfer.kind, transfer.region.address, transfer.region.nbytes, transfer.thread.index))


def through_shared(x, y):
    tile = cuda.shared.array(32, np.float32)
    i = cuda.threadIdx.x
    tile[i] = x[i]
    cuda.syncthreads()
    y[i, 0] = tile[31 - i]


def first_line(kernel):
    return kernel.__code__.co_firstlineno


def test_every_access_of_a_thread_is_told_with_its_address_and_line():
    x, y = np.arange(32, dtype=np.float32), np.zeros((32, 3), np.float32)
    observer = Accesses()
    emu.run(through_shared, 1, 32, (x, y), observe=observer)
    of_thread_5 = [a for a in observer.seen if a[4] == 5]
    at_x, at_y, line = x.ctypes.data, y.ctypes.data, first_line(through_shared)
    tile = min(a[2] for a in observer.seen if a[0] == "shared")
    assert of_thread_5 == [
        ("global", "read", at_x + 20, 4, 5, line + 3),
        ("shared", "write", tile + 20, 4, 5, line + 3),
        ("shared", "read", tile + 104, 4, 5, line + 5),
        ("global", "write", at_y + 60, 4, 5, line + 5),
    ]
    assert len(observer.seen) == 4 * 32


def count(x, total):
    cuda.atomic.add(total, 0, x[cuda.threadIdx.x])


def test_an_atomic_operation_is_one_access():
    observer = Accesses()
    total = np.zeros(1, np.int32)
    emu.run(count, 1, 4, (np.arange(4, dtype=np.int32), total), observe=observer)
    assert [a[1] for a in observer.seen] == ["read", "atomic"] * 4
    assert total[0] == 6


def copy_row(x):
    x[0] = x[1]


def test_a_copied_row_is_an_access_for_each_element():
    observer = Accesses()
    x = np.arange(6, dtype=np.int16).reshape(2, 3)
    emu.run(copy_row, 1, 1, (x,), observe=observer)
    assert [a[2] - x.ctypes.data for a in observer.seen if a[1] == "write"] == [0, 2, 4]


def by_address(at):
    memory.store_global_f32_if(True, at, memory.load_global_f32(at + 4))


def test_accesses_by_address_are_told():
    observer = Accesses()
    x = np.zeros(2, np.float32)
    emu.run(by_address, 1, 1, (dgnumba.u64(x.ctypes.data),), arrays=(x,), observe=observer)
    assert [a[1:4] for a in observer.seen] == [("read", x.ctypes.data + 4, 4), ("write", x.ctypes.data, 4)]


def load_box(tmap):
    if cuda.threadIdx.x == 0:
        mbarrier.init(u32(2048), u32(1))
        barrier.fence_mbarrier_init()
        mbarrier.arrive_expect_tx(u32(2048), u32(1024))
        tma.load_2d(u32(1024), tmap, u32(2048), u32(0), u32(0))
    cuda.syncthreads()
    mbarrier.wait(u32(2048), u32(0))


def run_load_box(observe):
    table = np.zeros((8, 128), np.uint8)
    emu.run(load_box, 1, 32, (dgnumba.tensor_map(table, box=(128, 8)),), smem=2048, observe=observe)


def test_an_asynchronous_copy_is_a_transfer():
    observer = Transfers()
    run_load_box(observer)
    assert observer.seen == [("tma.load_2d", "write", 1024, 1024, 0)]


def test_notes_carry_the_barriers_phase_and_the_bytes():
    notes = emu.Trace()
    run_load_box(notes)
    kinds = ("arrive", "issue", "land", "pass")
    about = [(n.kind, n.op, n.phase, n.amount) for n in notes.notes if n.kind in kinds and 0 in (n.threads or (0,))]
    assert about == [
        ("arrive", "mbarrier.arrive_expect_tx", 0, 0),
        ("issue", "tma.load_2d", 0, 1024),
        ("land", "tma.load_2d", 0, 1024),
        ("arrive", "cuda.syncthreads", 0, 0),
        ("pass", "cuda.syncthreads", 0, 0),
        ("pass", "mbarrier.wait", 0, 0),
    ]


def test_several_may_look_on_at_once():
    one, other, notes = Transfers(), Transfers(), emu.Trace()
    run_load_box([one, other, notes])
    assert one.seen == other.seen == [("tma.load_2d", "write", 1024, 1024, 0)]
    assert notes.count("land") == {"tma.load_2d": 1}


def test_an_observer_that_overrides_nothing_is_not_asked():
    assert emu.observe.Hearers.of(emu.Observer()) == (None,) * len(emu.observe.Hearers._fields)
