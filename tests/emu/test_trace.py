"""What an onlooker is told."""

from numba import cuda

from dgnumba import emu
from dgnumba.integers import u32
from dgnumba.ptx import mbarrier, thread


def kernel():
    if cuda.threadIdx.x == 0:
        mbarrier.init(u32(1024), 1)
    cuda.syncthreads()
    if cuda.threadIdx.x == 1:
        mbarrier.arrive(u32(1024))
    mbarrier.wait(u32(1024), u32(0))
    thread.syncwarp()


def trace():
    notes = emu.Trace()
    emu.run(kernel, 2, 32, (), smem=64, observe=notes)
    return notes


def test_a_trace_is_the_same_every_time() -> None:
    assert [str(n) for n in trace().notes] == [str(n) for n in trace().notes]


def test_operations_are_counted_with_their_threads_and_lines() -> None:
    notes = trace()
    assert notes.count()["thread.syncwarp"] == 2  # one a block: its lanes come together
    together = [n for n in notes.notes if n.op == "thread.syncwarp" and n.kind == "op"]
    assert [n.threads for n in together] == [tuple(range(32))] * 2
    assert [n.block for n in together] == [(0, 0, 0), (1, 0, 0)]
    assert together[0].line == kernel.__code__.co_firstlineno + 7


def test_what_one_thread_waited_for() -> None:
    waits = [n for n in trace().of(0) if n.kind == "block"]
    assert [n.op for n in waits] == ["cuda.syncthreads", "mbarrier.wait"]
    assert "thread 0 of block (0, 0, 0)" in str(waits[0])


def test_every_operation_of_a_thread_is_noted() -> None:
    of_thread_1 = [n.op for n in trace().of(1) if n.kind == "op"]
    assert of_thread_1 == ["cuda.syncthreads", "mbarrier.arrive", "mbarrier.wait", "thread.syncwarp"]
