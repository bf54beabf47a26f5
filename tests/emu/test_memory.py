"""Shared memory: what is refused, and that the right twin of each is not."""

import numpy as np
import pytest
from numba import cuda

from dgnumba import emu
from dgnumba.errors import BarrierError, OutOfBoundsError, RaceError, UninitializedError
from dgnumba.integers import u32, u64
from dgnumba.ptx import barrier, mbarrier, memory


def launch(kernel, threads=64, **more):
    out = np.zeros(threads, np.int64)
    emu.run(kernel, 1, threads, (out,), smem=1024, **more)
    return out


def test_a_read_that_no_barrier_orders_after_the_write_is_a_race() -> None:
    def right(out):
        shared = cuda.shared.array(64, np.int32)
        t = cuda.threadIdx.x
        shared[t] = t
        cuda.syncthreads()
        out[t] = shared[63 - t]

    def wrong(out):
        shared = cuda.shared.array(64, np.int32)
        t = cuda.threadIdx.x
        shared[t] = t
        cuda.syncwarp()  # orders a warp, and thread 63 - t is in the other one
        out[t] = shared[63 - t]

    np.testing.assert_array_equal(launch(right), 63 - np.arange(64))
    with pytest.raises((RaceError, UninitializedError)):
        launch(wrong)


def test_race_names_both_threads_both_lines_and_the_address() -> None:
    def kernel(out):
        shared = cuda.shared.array(0, np.int32)
        if cuda.threadIdx.x == 3:
            shared[5] = 1
        if cuda.threadIdx.x == 40:
            out[0] = shared[5]

    with pytest.raises(RaceError) as caught:
        launch(kernel, labels={16: "words"})
    text = str(caught.value)
    assert "shared memory at words + 4 @0x414: read of 4 bytes races with the write by thread 3 of block (0, 0, 0)" in text
    assert "shared[5] = 1" in text and "out[0] = shared[5]" in text
    assert "at thread 40 of block (0, 0, 0)" in text
    assert "no barrier orders the two" in text


@pytest.mark.parametrize("is_ordered", [True, False])
def test_overwriting_what_others_still_read_is_a_race(is_ordered: bool) -> None:
    def kernel(out):
        shared = cuda.shared.array(1, np.int32)
        t = cuda.threadIdx.x
        for i in range(3):
            if t == 0:
                shared[0] = i
            cuda.syncthreads()
            out[t] += shared[0]
            if is_ordered:
                cuda.syncthreads()

    if is_ordered:
        np.testing.assert_array_equal(launch(kernel), np.full(64, 3))
    else:
        with pytest.raises(RaceError, match="write of 4 bytes races with the read by thread"):
            launch(kernel)


def test_two_writers_are_a_race_unless_both_are_atomic() -> None:
    def atomic(out):
        shared = cuda.shared.array(1, np.int32)
        if cuda.threadIdx.x == 0:
            shared[0] = 0
        cuda.syncthreads()
        cuda.atomic.add(shared, 0, 1)
        cuda.syncthreads()
        out[cuda.threadIdx.x] = shared[0]

    def plain(out):
        shared = cuda.shared.array(1, np.int32)
        shared[0] = 1

    np.testing.assert_array_equal(launch(atomic), np.full(64, 64))
    with pytest.raises(RaceError, match="write of 4 bytes races with the write by thread 0"):
        launch(plain)


def test_neighbouring_bytes_do_not_race() -> None:
    def kernel(out):
        octets = cuda.shared.array(64, np.uint8)
        t = cuda.threadIdx.x
        octets[t] = t
        out[t] = octets[t]

    np.testing.assert_array_equal(launch(kernel), np.arange(64))


def test_a_half_that_another_thread_writes_races_with_the_whole_word() -> None:
    def kernel(out):
        t = cuda.threadIdx.x
        halves, words = cuda.shared.array(0, np.uint16), cuda.shared.array(0, np.uint32)
        if t < 2:
            halves[t] = 1
        if t == 0:
            out[0] = words[0]

    with pytest.raises((RaceError, UninitializedError)):
        launch(kernel)


def test_lanes_of_a_warp_need_syncwarp() -> None:
    def kernel(is_ordered):
        def body(out):
            shared = cuda.shared.array(32, np.int32)
            t = cuda.threadIdx.x
            shared[t] = t
            if is_ordered:
                cuda.syncwarp()
            else:
                cuda.shfl_sync(0xFFFFFFFF, t, 0)  # brings the lanes together, but promises nothing about memory
            out[t] = shared[31 - t]

        return body

    np.testing.assert_array_equal(launch(kernel(True), 32), 31 - np.arange(32))
    with pytest.raises(RaceError):
        launch(kernel(False), 32)


def test_reading_what_nothing_wrote() -> None:
    def kernel(out):
        shared = cuda.shared.array(0, np.float32)
        shared[0] = 1
        memory.load_shared_v4(memory.shared_address(shared))

    with pytest.raises(UninitializedError, match="shared memory at 0x404: read of 16 bytes, of which nothing wrote this one"):
        launch(kernel, 1)


@pytest.mark.parametrize("address", [0, 1020, 1024 + 1024, 1024 + 1023, 1 << 23])
def test_addresses_outside_the_block(address: int) -> None:
    def kernel(out):
        memory.store_shared_u32(u32(address), u32(1))

    with pytest.raises(OutOfBoundsError, match=r"4 bytes from there are not in this CTA's shared memory \(dynamic \[0x400, 0x800\)"):
        launch(kernel, 1)


def test_misaligned_access() -> None:
    def kernel(out):
        memory.store_shared_u32(u32(1026), u32(1))

    with pytest.raises(OutOfBoundsError, match="shared address 0x402: expected a multiple of 4 for 4 bytes"):
        launch(kernel, 1)


def test_base_can_be_less_aligned_than_tma_needs() -> None:
    def kernel(out):
        out[0] = memory.shared_address(cuda.shared.array(0, np.uint8))

    assert launch(kernel, 1)[0] == 1024
    assert launch(kernel, 1, smem_base=1040)[0] == 1040


def test_index_out_of_bounds_and_negative_index() -> None:
    def kernel(index):
        def body(out):
            shared = cuda.shared.array((2, 3), np.int32)
            shared[1, index] = 5
            out[0] = shared[1, 2]

        return body

    assert launch(kernel(-1), 1)[0] == 5
    with pytest.raises(OutOfBoundsError, match=r"shared array\[\(1, 3\)\]: out of bounds for shape \(2, 3\) of int32"):
        launch(kernel(3), 1)


def test_too_many_static_arrays() -> None:
    def kernel(out):
        cuda.shared.array(60_000, np.float32)

    with pytest.raises(OutOfBoundsError, match="shared arrays: 241024 bytes in this CTA, at most 232448 fit"):
        launch(kernel, 1)


def test_an_mbarriers_bytes_are_no_data() -> None:
    def read(out):
        mbarrier.init(u32(1024), u32(1))
        memory.load_shared_u32(u32(1028))

    def write(out):
        mbarrier.init(u32(1024), u32(1))
        memory.store_shared_u32(u32(1024), u32(1))

    for kernel, access in ((read, "read"), (write, "write")):
        with pytest.raises(BarrierError, match=f"{access} of 4 bytes in which an mbarrier lies"):
            launch(kernel, 1)


def test_a_named_barrier_orders_its_threads_only() -> None:
    def kernel(threads):
        def body(out):
            shared = cuda.shared.array(96, np.int32)
            t = cuda.threadIdx.x
            shared[t] = t
            if t < threads:
                barrier.sync(u32(1), u32(threads))
            if t < 64:
                out[t] = shared[63 - t]
            elif threads == 64:
                out[t] = shared[64]

        return body

    with pytest.raises((RaceError, UninitializedError)):
        launch(kernel(64), 96)
    assert launch(kernel(96), 96)[0] == 63


def test_global_addresses_are_checked() -> None:
    data = np.zeros(8, np.float32)

    def run(offset):
        def kernel(values, out):
            out[0] = memory.load_global_f32(memory.global_address(values) + offset)

        out = np.zeros(1)
        emu.run(kernel, 1, 1, (data, out))
        return out[0]

    data[7] = 3
    assert run(28) == 3
    with pytest.raises(OutOfBoundsError, match=r"4 bytes from there are in no array of the launch; .*(values|out) \[0x"):
        run(32)
    with pytest.raises(OutOfBoundsError, match="expected a multiple of 4"):
        run(2)


def test_arrays_reached_by_address_alone_are_named_at_the_launch() -> None:
    hidden = np.full(4, 5, np.float32)
    address = hidden.__array_interface__["data"][0]

    def kernel(pointer, out):
        out[0] = memory.load_global_f32(pointer)

    out = np.zeros(1)
    emu.run(kernel, 1, 1, (u64(address), out), arrays=[hidden])
    assert out[0] == 5
    with pytest.raises(OutOfBoundsError):
        emu.run(kernel, 1, 1, (u64(address), out))


def test_strided_and_reversed_arrays_are_whole_ranges() -> None:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)

    def kernel(view, out):
        out[0] = memory.load_global_f32(memory.global_address(view))
        out[1] = view[1, 1]

    out = np.zeros(2)
    emu.run(kernel, 1, 1, (base[::-2, ::2], out))
    assert out.tolist() == [18, 8]
