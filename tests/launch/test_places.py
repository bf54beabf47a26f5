"""`dgnumba.launching` against a fake driver and a fake CuPy: on which GPU, in which order, and what is refused; field cases F16 and F32 to F34."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from launch.fake_kernels import kernel

from dgnumba import driver
from dgnumba import launching as launch
from dgnumba.errors import DTypeError, ProblemError
from dgnumba.layouts.descriptors import TensorMap

# -- F34: the steady state


def test_F34_the_steady_state_loads_allocates_and_waits_for_nothing(compiler, fake_cupy, fake_driver):
    array = fake_cupy.ndarray(16, (3,))
    launch.launch(kernel, 1, 32, [array])
    fake_driver.calls.clear()
    launch.launch(kernel, 1, 32, [fake_cupy.ndarray(32, (5,))])
    assert fake_driver.calls == ["cuCtxGetDevice", "cuLaunchKernelEx"]


def test_an_encoder_does_not_keep_an_array_alive(compiler, fake_cupy, fake_driver):
    import gc
    import weakref

    compiler.takes("b8[128]")
    array = fake_cupy.ndarray(0x1000, (64, 128), np.uint8)
    launch.launch(kernel, 1, 32, [launch.tensor_map(array, (128, 64))])
    ref = weakref.ref(array)
    del array
    gc.collect()
    assert ref() is None


# -- F32: devices


def test_F32_arrays_on_another_gpu_run_there_and_the_current_one_stays(compiler, fake_cupy, fake_driver):
    fake_cupy.streams[1] = 77
    launch.launch(kernel, 1, 32, [fake_cupy.ndarray(16, (3,), device=1)])
    assert (fake_driver.launches[0].device, fake_driver.launches[0].stream) == (1, 77)
    assert driver.current_device() == 0


def test_F32_one_program_serves_both_gpus(compiler, fake_cupy, fake_driver):
    for index in (0, 1, 0, 1):
        launch.launch(kernel, 1, 32, [fake_cupy.ndarray(16, (3,), device=index)])
    assert [done.device for done in fake_driver.launches] == [0, 1, 0, 1]
    assert len(compiler.compiled) == len(fake_driver.loaded) == 1


def test_F32_arrays_of_two_gpus_are_refused(compiler, fake_cupy, fake_driver):
    arrays = [fake_cupy.ndarray(16, (3,), device=index) for index in (0, 0, 1)]
    with pytest.raises(ProblemError, match=r"got args\[0\] on GPU 0, args\[2\] on GPU 1"):
        launch.launch(kernel, 1, 32, arrays)
    tensor_map = launch.tensor_map(fake_cupy.ndarray(16, (4, 64), device=1), (4, 4))
    with pytest.raises(ProblemError, match=r"args\[1\] on GPU 1"):
        launch.launch(kernel, 1, 32, [arrays[0], tensor_map])
    assert fake_driver.launches == []


# -- F33: streams


def test_F33_work_goes_to_cupys_current_stream(compiler, fake_cupy, fake_driver):
    array = fake_cupy.ndarray(16, (3,))
    for handle in (0, 5, 6):
        fake_cupy.streams[0] = handle
        launch.launch(kernel, 1, 32, [array])
    assert [done.stream for done in fake_driver.launches] == [1, 5, 6]


class WithProtocol:
    def __cuda_stream__(self):
        return (0, 42)


@pytest.mark.parametrize(
    "stream, handle",
    [
        (42, 42),
        (0, 1),
        (2, 2),
        (WithProtocol(), 42),
        (SimpleNamespace(ptr=42), 42),
        (SimpleNamespace(cuda_stream=42), 42),
    ],
)
def test_F33_a_stream_that_is_passed_is_used(compiler, fake_cupy, fake_driver, stream, handle):
    launch.launch(kernel, 1, 32, [fake_cupy.ndarray(16, (3,))], stream=stream)
    assert fake_driver.launches[0].stream == handle


@pytest.mark.parametrize("stream", ["5", object(), -1])
def test_what_is_no_stream_is_refused(compiler, fake_cupy, fake_driver, stream):
    with pytest.raises(ProblemError, match="stream: expected a handle or an object"):
        launch.launch(kernel, 1, 32, [fake_cupy.ndarray(16, (3,))], stream=stream)
    assert fake_driver.launches == []


@pytest.fixture
def torch(monkeypatch):
    made = ModuleType("torch")

    class Tensor:
        pass

    Tensor.__module__ = "torch"
    made.Tensor, made.stream = Tensor, 0
    made.cuda = SimpleNamespace(current_stream=lambda index: SimpleNamespace(cuda_stream=made.stream))
    monkeypatch.setitem(sys.modules, "torch", made)
    return made


def test_torch_tensors_come_with_their_stream(fake_cupy, torch):
    fake_cupy.streams[0], torch.stream = 5, 9
    assert launch.stream_of([torch.Tensor()], 0) == 9
    assert launch.stream_of([fake_cupy.ndarray(16, (3,))], 0) == 5
    assert launch.stream_of([], 0) == 5


def test_the_default_streams_of_torch_and_cupy_are_one(fake_cupy, torch):
    assert launch.stream_of([torch.Tensor(), fake_cupy.ndarray(16, (3,))], 0) == 1


def test_arrays_of_different_streams_need_a_choice(fake_cupy, torch):
    torch.stream = 9
    arrays = [torch.Tensor(), fake_cupy.ndarray(16, (3,))]
    with pytest.raises(ProblemError, match=r"torch's 0x9, .*'s 0x1\): pass stream="):
        launch.stream_of(arrays, 0)
    assert launch.stream_of(arrays, 0, 9) == 9


def test_an_array_names_its_stream_through_its_interface(fake_driver):
    def array(stream):
        return SimpleNamespace(__cuda_array_interface__={"data": (16, False), "stream": stream})

    assert launch.stream_of([array(8), array(None)], 0) == 8
    assert launch.stream_of([array(None)], 0) == 1


def test_temporaries_are_made_on_the_launchs_device_and_stream(fake_cupy):
    for stream in (7, 1):
        with launch.ordered(1, stream):
            pass
    assert fake_cupy.entered == [
        ("device", 1), ("stream", 7), ("end", 7), ("end", 1),
        ("device", 1), ("stream", 0), ("end", 0), ("end", 1),
    ]  # fmt: skip


# -- where it runs, and what is refused


@pytest.fixture
def emulator(monkeypatch):
    ran = []
    emu = SimpleNamespace(run=lambda *args, **options: ran.append((args, options)))
    monkeypatch.setitem(sys.modules, "dgnumba.emu", emu)
    monkeypatch.setattr("dgnumba.emu", emu, raising=False)
    return ran


@pytest.mark.parametrize("on", [None, "emulator"])
def test_numpy_arrays_run_in_the_emulator(emulator, on):
    array = np.zeros(3)
    launch.launch(kernel, (2, 2), 32, [array, 5], smem=99, cluster=2, on=on)
    ((args, options),) = emulator
    assert args == (kernel, (2, 2, 1), (32, 1, 1), (array, 5))
    assert options == {"smem": 99, "cluster": (2, 1, 1)}


def test_the_emulator_refuses_shapes_that_the_gpu_would(emulator):
    with pytest.raises(ProblemError, match="grid: expected a multiple of the cluster"):
        launch.launch(kernel, 3, 32, [np.zeros(3)], cluster=2)
    assert emulator == []


def test_arrays_in_the_wrong_memory_are_refused(compiler, emulator, fake_cupy, fake_driver):
    on_gpu, on_host = fake_cupy.ndarray(16, (3,)), np.zeros(3)
    with pytest.raises(ProblemError, match=r"args\[1\]: expected an array on a GPU, got ndarray"):
        launch.launch(kernel, 1, 32, [on_gpu, on_host])
    with pytest.raises(ProblemError, match=r"args\[0\]: expected host memory for the emulator"):
        launch.launch(kernel, 1, 32, [on_gpu], on="emulator")
    with pytest.raises(ProblemError, match=r"args\[0\]: expected a tensor map of an array on a"):
        launch.launch(kernel, 1, 32, [TensorMap.of(np.zeros((4, 8), "f4"), (4, 4))], on="cuda")
    assert (fake_driver.launches, emulator) == ([], [])


def test_F16_a_tensor_map_of_misaligned_memory_is_refused(compiler, fake_cupy, fake_driver):
    array = fake_cupy.ndarray(0x1001, (64, 128), np.uint8)
    with pytest.raises(ProblemError, match=r"args\[0\].*multiple of 16 bytes, got 1 bytes beyond"):
        launch.launch(kernel, 1, 32, [launch.tensor_map(array, (128, 64))])
    assert fake_driver.launches == []


@pytest.mark.parametrize("arg", [1j, "text", None, [1, 2], np.complex64(1)])
def test_what_no_kernel_takes_is_refused_by_place(compiler, arg):
    with pytest.raises(DTypeError, match=r"args\[0\]: expected"):
        launch.launch(kernel, 1, 32, [arg], on="cuda")


@pytest.mark.parametrize("on", ["host", "gpu", 1])
def test_other_places_are_refused(on):
    with pytest.raises(ProblemError, match="on: expected 'cuda' or 'emulator', got"):
        launch.launch(kernel, 1, 32, [np.zeros(3)], on=on)


@pytest.mark.parametrize("grid", [(), (1, 2, 3, 4)])
def test_a_grid_has_one_to_three_numbers(grid):
    with pytest.raises(ProblemError, match="grid: expected one to three numbers"):
        launch.launch(kernel, grid, 32, [np.zeros(3)])


def test_tensor_maps_say_the_element_type_that_the_array_cannot(fake_cupy):
    array = fake_cupy.ndarray(16, (64, 128), np.uint8)
    assert launch.tensor_map(array, (128, 64)).dtype == "uint8"
    assert launch.tensor_map(array, (128, 64), dtype="float8_e4m3fn").dtype == "float8_e4m3fn"
