"""Launches whose parameters are fixed (`driver.BoundLaunch`), against a fake driver."""

import ctypes
import gc
import struct
from concurrent.futures import ThreadPoolExecutor

import pytest
from launch.test_driver import SPEC, launcher

from dgnumba import driver
from dgnumba.driver import LaunchShape, MapEncoder
from dgnumba.errors import LaunchError


def test_a_bound_launch_passes_the_same_every_time_from_any_thread(fake_driver):
    encoder = MapEncoder(SPEC)
    make = launcher(fake_driver, ["u32", "b8[128]", "u64"], [4, 128, 8])
    fake_driver.pause = 1e-4
    bound = [make.bind((i, i), (encoder(16 * i),)) for i in range(4)]

    def work(thread):
        fake_driver.current.device = 0
        for i in range(20):
            bound[(thread + i) % 4].queue(thread + 1)
            make((99, 99), (encoder(16 * 99),), thread + 1)  # which has memory of its own

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    found = [(struct.unpack("<I", v[0])[0], struct.unpack_from("<Q", v[1])[0] // 16, struct.unpack("<Q", v[2])[0])
             for v in (done.values for done in fake_driver.launches)]  # fmt: skip
    assert sorted(found) == sorted([(i, i, i) for i in range(4)] * 20 + [(99, 99, 99)] * 80)
    assert {done.stream for done in fake_driver.launches} == {1, 2, 3, 4}


def test_a_bound_launch_keeps_its_maps_and_asks_the_driver_for_nothing_else(fake_driver):
    bound = launcher(fake_driver, ["b8[128]"], [128]).bind((), (MapEncoder(SPEC)(16),))
    gc.collect()
    bound.queue(5)
    fake_driver.calls.clear()
    bound.queue(5)
    assert fake_driver.calls == ["cuLaunchKernelEx"]
    assert [struct.unpack_from("<Q", done.values[0])[0] for done in fake_driver.launches] == [16, 16]


def test_F32_a_bound_launch_goes_to_its_own_device_and_comes_back(fake_driver):
    launcher(fake_driver, ["u32"], [4], device=1).bind((1,), ())(5)
    assert fake_driver.launches[0].device == 1
    assert driver.current_device() == 0


def test_what_does_not_fit_is_not_bound_and_a_refusal_says_what(fake_driver):
    make = launcher(fake_driver, ["u32"], [4])
    for scalars, maps in (((1, 2), ()), ((1,), (MapEncoder(SPEC)(16),))):
        with pytest.raises((struct.error, ValueError)):
            make.bind(scalars, maps)
    fake_driver.refuse["cuLaunchKernelEx"] = fake_driver.real.CUresult.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
    with pytest.raises(LaunchError, match=r"launching k on device 0, grid \(132, 1, 1\).*200000"):
        make.bind((1,), ()).queue(5)


def test_a_launch_without_attributes_is_what_cuLaunchKernel_takes(fake_driver):
    """Function, grid, block, dynamic shared memory, stream, the parameters' addresses, nothing extra."""
    bound = launcher(fake_driver, ["u32", "b8[128]"], [4, 128]).bind((7,), (MapEncoder(SPEC)(16),))
    function, *sizes, parameters, extra = bound.plain(5)
    bound.queue(5)
    (done,) = fake_driver.launches
    # the context's own handle of the kernel, which `queue` passes as it is
    assert function == done.function + 1000 * (1 + done.device)
    assert (sizes, extra) == ([*done.grid, *done.block, done.smem, 5], 0)
    read = [ctypes.string_at(at, size) for at, size in zip((ctypes.c_uint64 * 2).from_address(parameters), (4, 128), strict=True)]
    assert read == done.values and struct.unpack("<I", read[0]) == (7,)


def test_the_handle_is_the_primary_contexts_whichever_is_current(fake_driver):
    """One of the caller's own, of the same device, stays current, and is what `queue` launches in."""
    fake_driver.owns[500_000] = 0
    expected = launcher(fake_driver, ["u32"], [4]).bind((7,), ()).plain(5)[0]
    fake_driver.current.own = 500_000
    bound = launcher(fake_driver, ["u32"], [4]).bind((7,), ())
    assert driver.current_context() == 500_000
    assert bound.plain(5)[0] == expected + 1, "of the second kernel that was loaded"
    assert bound.context == 7000 == int(driver.context.primary(0))
    bound(5)
    assert (driver.current_context(), fake_driver.launches[0].device) == (500_000, 0)


@pytest.mark.parametrize("shape", [LaunchShape((4, 1, 1), (32, 1, 1), 0, (2, 1, 1)), LaunchShape((4, 1, 1), (32, 1, 1), pdl=True)])
def test_one_with_attributes_is_not(fake_driver, shape):
    assert launcher(fake_driver, ["u32"], [4], shape).bind((7,), ()).plain(5) is None
