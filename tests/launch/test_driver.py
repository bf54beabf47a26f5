"""`dgnumba.driver` against a driver that records: contexts, loading, tensor maps, launches."""

import ctypes
import dataclasses
import random
import struct
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dgnumba import driver
from dgnumba.driver import Kernel, Launcher, LaunchShape, MapEncoder, context
from dgnumba.driver.explain import EXPLANATIONS
from dgnumba.driver.launcher import KEPT
from dgnumba.driver.tensor_map import broken_rules
from dgnumba.errors import LaunchError, ProblemError
from dgnumba.layouts.descriptors import TensorMap

CUBIN = b"\x7fELF cubin"
SHAPE = LaunchShape((132, 1, 1), (384, 1, 1), 200000)
SPEC = TensorMap("float8_e4m3fn", (7168, 4096), (7168,), (128, 64), 128)


def test_F35_importing_the_package_starts_no_cuda():
    script = "import dgnumba.launching, dgnumba.cache, dgnumba.device;from dgnumba.driver import context; print(context._api)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.stdout == "None\n", run.stderr


def test_every_explained_status_is_one_of_the_drivers(fake_driver):
    known = {status.name for status in fake_driver.real.CUresult}
    assert set(EXPLANATIONS) - known == set()


@pytest.mark.skipif(driver.device_count() > 0, reason="this machine has a GPU")
def test_a_machine_without_a_driver_says_so(monkeypatch):
    pytest.importorskip("cuda.bindings.driver")
    monkeypatch.setattr(context, "_api", None)
    with pytest.raises(LaunchError, match="no NVIDIA driver|CUDA_ERROR"):
        driver.api()
    assert driver.device_count() == 0


def test_missing_bindings_name_the_cure(monkeypatch):
    monkeypatch.setattr(context, "_api", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(LaunchError, match="pip install 'dgnumba"):
        driver.api()


def test_a_failure_says_what_was_done_the_drivers_words_and_ours(fake_driver):
    status = fake_driver.real.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    fake_driver.refuse["cuDeviceGetCount"] = status
    with pytest.raises(LaunchError) as caught:
        driver.check(fake_driver.cuDeviceGetCount(), "counting")
    assert str(caught.value).startswith("counting: what the driver says; a kernel, this one")
    assert caught.value.code == "CUDA_ERROR_ILLEGAL_ADDRESS, 700"


# -- contexts


def test_F32_the_callers_device_is_current_again_afterwards(fake_driver):
    with driver.on_device(1):
        assert driver.current_device() == 1
    assert driver.current_device() == 0


def test_F32_also_after_an_exception(fake_driver):
    with pytest.raises(KeyError), driver.on_device(1):
        raise KeyError
    assert driver.current_device() == 0


def test_the_right_device_costs_one_question(fake_driver):
    with driver.on_device(0):
        pass
    assert fake_driver.calls == ["cuCtxGetDevice"]


def test_a_thread_without_a_context_gets_the_devices_own_and_keeps_it(fake_driver):
    def work():
        with driver.on_device(1):
            pass
        return driver.current_device()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(work).result() == 1


def test_a_primary_context_is_retained_once(fake_driver):
    for _ in range(3):
        with driver.on_device(1):
            pass
    assert fake_driver.calls.count("cuDevicePrimaryCtxRetain") == 1


# -- code


def test_a_cubin_is_loaded_as_it_is_and_ptx_with_its_end(fake_driver):
    Kernel(CUBIN, "k")
    Kernel(b".version 9.0", "k")
    assert fake_driver.loaded == [CUBIN, b".version 9.0\0"]


def test_ptx_that_the_driver_refuses_shows_its_log(fake_driver):
    refusal = fake_driver.real.CUresult.CUDA_ERROR_INVALID_PTX
    fake_driver.refuse["cuLibraryLoadData"] = refusal
    with pytest.raises(LaunchError, match="loading k\nline 7: oops"):
        Kernel(b".version 9.0", "k")


def test_shared_memory_is_asked_for_by_device_and_only_when_it_grows(fake_driver):
    kernel = Kernel(CUBIN, "k")
    for smem in (0, 200000, 100000, 200000):
        kernel.prepare(0, smem, 1)
    kernel.prepare(1, 1000, 16)
    name = "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"
    cluster = "CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED"
    assert fake_driver.attributes == {(name, 0): 200000, (name, 1): 1000, (cluster, 1): 1}
    assert fake_driver.calls.count("cuKernelSetAttribute") == 4


# -- tensor maps


def test_a_tensor_map_says_to_the_driver_what_it_says(fake_driver):
    made = MapEncoder(SPEC)(0x10000)
    (asked,) = fake_driver.maps
    assert asked.address == 0x10000
    assert (asked.dims, asked.strides, asked.box) == ((7168, 4096), (7168,), (128, 64))
    assert asked.steps == (1, 1)
    # UINT8; not interleaved, 128-byte swizzle, 256-byte L2 promotion, zeros outside (cuda.h)
    assert (asked.dtype, asked.modes) == (0, (0, 3, 3, 0))
    assert struct.unpack_from("<QQ", bytes(made)) == (0x10000, 1)


@pytest.mark.parametrize(
    "dtype, number",
    [("float16", 6), ("float32", 7), ("bfloat16", 9), ("int32", 3), ("float8_e5m2", 0)],
)
def test_element_types_go_by_the_drivers_numbers(fake_driver, dtype, number):
    MapEncoder(TensorMap(dtype, (64,), (), (16,), 0))(16)
    assert (fake_driver.maps[0].dtype, fake_driver.maps[0].modes[1]) == (number, 0)


@pytest.mark.parametrize("nbytes, number", [(0, 0), (64, 1), (128, 2), (256, 3)])
def test_l2_promotions_go_by_the_drivers_numbers(fake_driver, nbytes, number):
    MapEncoder(dataclasses.replace(SPEC, l2_promotion=nbytes))(16)
    assert fake_driver.maps[0].modes == (0, 3, number, 0)


def test_a_tensor_map_is_encoded_once_for_an_address(fake_driver):
    encoder = MapEncoder(SPEC)
    first, other = encoder(16), encoder(32)
    assert encoder(16) is first
    assert other is not first
    assert len(fake_driver.maps) == 2


def test_a_kept_map_outlives_the_table_it_was_kept_in(fake_driver, monkeypatch):
    monkeypatch.setattr("dgnumba.driver.tensor_map.KEPT", 2)
    encoder = MapEncoder(SPEC)
    first = encoder(16)
    for address in range(32, 320, 16):
        encoder(address)
    assert struct.unpack_from("<Q", bytes(first)) == (16,)
    assert len(encoder._kept) <= 2


def test_F16_a_refused_map_names_the_rule_that_it_breaks(fake_driver):
    fake_driver.refuse["cuTensorMapEncodeTiled"] = fake_driver.real.CUresult.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(LaunchError, match=r"address 0x10001 is no multiple of 16"):
        MapEncoder(SPEC)(0x10001)


def test_every_rule_of_tma_is_told_apart():
    def rules(dims=(64,), strides=(), box=(16,), swizzle=0, address=0):
        class Spec:
            dtype = "float32"

        Spec.dims, Spec.strides, Spec.box, Spec.swizzle = dims, strides, box, swizzle
        return broken_rules(Spec, address)

    assert rules() == []
    assert rules(dims=(64, 2), strides=(20,), box=(16, 1)) == ["strides (20,) are not all multiples of 16 bytes"]
    assert rules(box=(260,)) == ["the box (260,) is not within 1..256"]
    assert rules(box=(3,)) == ["a box row of 12 bytes is no multiple of 16"]
    assert rules(swizzle=32) == ["a box row of 64 bytes is wider than the swizzle"]
    assert rules(dims=(0,)) == ["extents (0,) exceed 1..2^32"]


# -- launches


def launcher(fake, parameters, sizes, shape=SHAPE, device=0):
    fake.sizes = sizes
    return Launcher(Kernel(CUBIN, "k"), device, parameters, shape)


def test_every_parameter_arrives_in_its_own_place(fake_driver):
    fake_driver.sizes = [128, 8, 4, 128, 4, 8, 1, 2, 24]
    parameters = ["b8[128]", "u64", "u32", "b8[128]", "f32", "f64", "u8", "b16", "b8[24]"]
    maps = (MapEncoder(SPEC)(16), MapEncoder(SPEC)(32))
    scalars = (2**64 - 1, 7, 1.5, -0.0, 1, 65535, b"x" * 24)
    queue = launcher(fake_driver, parameters, fake_driver.sizes)
    queue(scalars, maps, 9)
    (done,) = fake_driver.launches
    assert done.values == [
        bytes(maps[0]),
        struct.pack("<Q", 2**64 - 1),
        struct.pack("<I", 7),
        bytes(maps[1]),
        struct.pack("<f", 1.5),
        struct.pack("<d", -0.0),
        b"\x01",
        b"\xff\xff",
        b"x" * 24,
    ]
    assert (done.grid, done.block, done.smem, done.stream) == (
        (132, 1, 1),
        (384, 1, 1),
        200000,
        9,
    )
    assert done.attributes == []


def test_random_parameter_lists_arrive(fake_driver):
    rng = random.Random(1)
    kinds = {"u64": ("<Q", 64), "u32": ("<I", 32), "u16": ("<H", 16), "u8": ("<B", 8)}
    for _ in range(50):
        chosen = [rng.choice([*kinds, "b8[128]"]) for _ in range(rng.randint(0, 30))]
        encoder = MapEncoder(SPEC)
        scalars, maps, expected, sizes = [], [], [], []
        for kind in chosen:
            if kind in kinds:
                code, bits = kinds[kind]
                scalars.append(rng.getrandbits(bits))
                expected.append(struct.pack(code, scalars[-1]))
                sizes.append(bits // 8)
            else:
                maps.append(encoder(16 * len(maps)))
                expected.append(bytes(maps[-1]))
                sizes.append(128)
        launcher(fake_driver, chosen, sizes)(scalars, tuple(maps), 1)
        assert fake_driver.launches[-1].values == expected


def test_clusters_and_dependent_launch_are_attributes(fake_driver):
    ids = fake_driver.real.CUlaunchAttributeID
    shape = LaunchShape((4, 2, 1), (32, 1, 1), 0, (2, 1, 1), True)
    launcher(fake_driver, [], [], shape)((), (), 1)
    assert fake_driver.launches[0].attributes == [
        (ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, 2, 1),
        (ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, 1, 0),
    ]


def test_F34_a_launch_in_steady_state_asks_the_driver_for_nothing_else(fake_driver):
    encoder = MapEncoder(SPEC)
    queue = launcher(fake_driver, ["b8[128]", "u32"], [128, 4])
    queue((1,), (encoder(16),), 5)
    fake_driver.calls.clear()
    queue((2,), (encoder(16),), 5)
    assert fake_driver.calls == ["cuCtxGetDevice", "cuLaunchKernelEx"]


def test_F32_a_launch_goes_to_its_own_device_and_comes_back(fake_driver):
    launcher(fake_driver, ["u32"], [4], device=1)((1,), (), 5)
    assert fake_driver.launches[0].device == 1
    assert driver.current_device() == 0


def test_a_thread_without_a_context_can_launch(fake_driver):
    queue = launcher(fake_driver, ["u32"], [4], device=1)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(queue, (1,), (), 5).result()
    assert fake_driver.launches[0].device == 1


def test_no_thread_sees_another_threads_parameters(fake_driver):
    encoder = MapEncoder(SPEC)
    queue = launcher(fake_driver, ["u32", "b8[128]", "u64"], [4, 128, 8])
    fake_driver.pause = 1e-4

    def work(thread):
        fake_driver.current.device = 0
        for i in range(40):
            number = thread * 1000 + i
            queue((number, number), (encoder(16 * number),), 5)
        return threading.get_ident()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert len(fake_driver.launches) == 8 * 40
    for done in fake_driver.launches:
        number = struct.unpack("<I", done.values[0])[0]
        address = struct.unpack_from("<Q", done.values[1])[0]
        assert (struct.unpack("<Q", done.values[2])[0], address) == (number, 16 * number)


def test_a_launch_from_inside_a_launch_has_its_own_parameters(fake_driver):
    """As a garbage collector's callback, or a signal handler, may do."""
    queue = launcher(fake_driver, ["u32"], [4])
    real = fake_driver.cuLaunchKernelEx
    inner = []

    def reenter(*args):
        if not inner:
            inner.append(True)
            queue((2,), (), 5)
        return real(*args)

    queue._queue = reenter
    queue((1,), (), 5)
    assert [done.values for done in fake_driver.launches] == [[b"\2\0\0\0"], [b"\1\0\0\0"]]


def test_streams_are_told_apart_and_not_kept_without_end(fake_driver):
    queue = launcher(fake_driver, ["u32"], [4])
    for stream in range(1, 2 * KEPT):
        queue((1,), (), stream)
    assert [done.stream for done in fake_driver.launches] == list(range(1, 2 * KEPT))
    assert len(queue._configs) <= KEPT


@pytest.mark.parametrize("scalars, maps", [((1, 2), ()), ((), ()), ((1,), "one"), ((-1,), ()), (("x",), ())])
def test_arguments_that_do_not_fit_queue_nothing(fake_driver, scalars, maps):
    queue = launcher(fake_driver, ["u32"], [4])
    with pytest.raises((struct.error, ValueError)):
        queue(scalars, (MapEncoder(SPEC)(16),) if maps else (), 5)
    assert fake_driver.launches == []
    queue((1,), (), 5)
    assert len(fake_driver.launches) == 1


def test_a_refused_launch_raises_with_its_shape(fake_driver):
    queue = launcher(fake_driver, ["u32"], [4])
    refusal = fake_driver.real.CUresult.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
    fake_driver.refuse["cuLaunchKernelEx"] = refusal
    with pytest.raises(LaunchError, match=r"launching k on device 0, grid \(132, 1, 1\).*200000"):
        queue((1,), (), 5)


@pytest.mark.parametrize(
    "shape, message",
    [
        (((0, 1, 1), (32, 1, 1)), "grid: expected 1 to"),
        (((1, 65536, 1), (32, 1, 1)), "grid: expected 1 to"),
        (((1, 1, 1), (1025, 1, 1)), "block: expected 1 to 1024"),
        (((1, 1, 1), (0, 1, 1)), "block: expected 1 to 1024"),
        (((1, 1, 1), (1, 1, 65)), "block: expected 1 to 1024"),
        (((1, 1, 1), (32, 1, 1), 0, (17, 1, 1)), "cluster: expected 1 to 16"),
        (((3, 1, 1), (32, 1, 1), 0, (2, 1, 1)), "grid: expected a multiple of the cluster"),
        (((1, 1, 1), (32, 1, 1), -1), "smem: expected 0"),
    ],
)
def test_impossible_shapes_are_refused_by_name(shape, message):
    with pytest.raises(ProblemError, match=message):
        LaunchShape(*shape)


def test_F21_a_grid_of_more_than_65535_goes_in_x():
    assert LaunchShape((65536 * 128, 1, 1), (32, 1, 1)).grid[0] == 8388608


def test_the_layout_of_a_launch_configuration_is_the_headers(fake_driver):
    """Offsets of CUlaunchConfig_st as cuda.h declares it: guards against a change of the bindings."""
    config = launcher(fake_driver, [], [], SHAPE)._config(77)
    data = ctypes.string_at(config.getPtr(), 56)
    assert struct.unpack("<7I4xQQI4x", data) == (132, 1, 1, 384, 1, 1, 200000, 77, 0, 0)
