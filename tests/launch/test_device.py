"""`dgnumba.device`: what a plan knows of a GPU, live and offline."""

from types import SimpleNamespace

import numpy as np
import pytest

from dgnumba import driver
from dgnumba.device import KNOWN, Device, current_index, index_of
from dgnumba.driver import context
from dgnumba.errors import LaunchError, ProblemError


@pytest.fixture
def no_driver(monkeypatch):
    def fail():
        raise LaunchError("no driver")

    monkeypatch.setattr(context, "_api", None)
    monkeypatch.setattr(context, "_start", fail)


def test_without_a_gpu_plans_are_made_for_an_h200(no_driver):
    device = Device.current()
    assert device is KNOWN["h200"]
    assert (device.cc, device.arch, device.num_sms) == ((9, 0), "sm_90a", 132)
    assert device.smem_per_block == 232448
    assert device.memory_bandwidth == 4.8e12
    assert device.index is None
    assert Device.of(np.zeros(3)) is device


def test_a_device_is_named_without_regard_to_case():
    assert Device.named("H100") is KNOWN["h100"]
    with pytest.raises(ProblemError, match="device: expected one of h200, .*; got b200"):
        Device.named("b200")
    with pytest.raises(ProblemError, match="; got 5"):
        Device.named(5)


@pytest.mark.parametrize("cc, arch", [((9, 0), "sm_90a"), ((8, 0), "sm_80"), ((10, 0), "sm_100a")])
def test_the_architecture_follows_from_the_capability(cc, arch):
    assert Device("x", cc).arch == arch


def test_the_same_gpu_twice_takes_the_same_plans():
    assert Device("x", index=0) == Device("x", index=1)
    assert hash(Device("x", index=0)) == hash(Device("x", index=1))
    assert Device("x") != Device("x", num_sms=78)


def test_a_live_device_is_read_once(fake_driver):
    device = Device.numbered(1)
    assert device == KNOWN["h200"]
    assert device.index == 1
    calls = len(fake_driver.calls)
    assert Device.numbered(1) is device
    assert len(fake_driver.calls) == calls


def test_an_unknown_gpu_has_the_bandwidth_of_its_clock_and_bus(fake_driver):
    fake_driver.properties |= {"MEMORY_CLOCK_RATE": 1000000, "GLOBAL_MEMORY_BUS_WIDTH": 1024}
    fake_driver.cuDeviceGetName = lambda length, index: (0, b"NVIDIA X\0")
    assert Device.numbered(0).memory_bandwidth == 1e9 * 2 * 1024 / 8


def test_F32_the_device_is_the_arrays_not_the_current_one(fake_cupy):
    array = fake_cupy.ndarray(16, (2, 2), device=1)
    assert Device.of(array).index == 1
    assert current_index() == 0


def test_current_is_cupys_where_cupy_is_in_use(fake_driver, fake_cupy):
    fake_driver.current.device = 1
    assert Device.current().index == 1


def test_a_thread_that_has_no_device_yet_has_the_first(fake_driver):
    fake_driver.current.device = None
    assert current_index() == 0


def test_index_of_asks_dlpack_then_the_address(fake_driver):
    class Torch:
        def __dlpack_device__(self):
            return (2, 1)

    class JaxOnCpu:
        device = SimpleNamespace(id=0)

        def __dlpack_device__(self):
            return (1, 0)

    class Bare:
        def __init__(self, address):
            self.__cuda_array_interface__ = {"data": (address, False)}

    fake_driver.pointers = {0x1000: 1}
    assert index_of(Torch()) == 1
    assert index_of(JaxOnCpu()) is None
    assert index_of(Bare(0x1000)) == 1
    assert index_of(Bare(0)) == 0
    assert index_of(np.zeros(2)) is None
    assert index_of(3) is None


def test_no_driver_counts_as_no_device(no_driver):
    assert driver.device_count() == 0
    assert current_index() is None
