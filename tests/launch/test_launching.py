"""`dgnumba.launching` against a fake driver and a fake CuPy: what is compiled, passed, and where."""

import struct
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from dgnumba import cache, driver
from dgnumba import launching as launch
from dgnumba.arguments import Arguments
from dgnumba.assemble import Cubin, find_ptxas
from dgnumba.driver import LaunchShape
from dgnumba.errors import DTypeError, ProblemError
from dgnumba.integers import u32, u64
from dgnumba.layouts.descriptors import TensorMap

ARRAY_1D = ["u64"] * 7
SIZES = {"u64": 8, "u32": 4, "u8": 1, "b16": 2, "f32": 4, "f64": 8, "b8[128]": 128}


def kernel(a):
    pass


@pytest.fixture
def compiler(monkeypatch, fake_driver, fake_cupy, fresh_cache):
    """Numba and ptxas replaced: `compiler.parameters` is what the next kernel takes."""

    class Compiler(SimpleNamespace):
        def takes(self, *parameters):
            self.parameters = parameters
            fake_driver.sizes = [SIZES[p] for p in parameters]

        def compile_ptx(self, function, argtypes, *, arch, threads, min_ctas):
            time.sleep(self.seconds)
            self.compiled.append((function, argtypes, arch, threads))
            return "ptx", "k"

        def assemble(self, ptx, arch):
            return Cubin(b"\x7fELF", "k", tuple(self.parameters))

    made = Compiler(compiled=[], seconds=0.0)
    made.takes(*ARRAY_1D)
    monkeypatch.setattr(launch._numba, "compile_ptx", made.compile_ptx)
    monkeypatch.setattr(launch, "assemble", made.assemble)
    return made


def words(launched):
    return [struct.unpack("<Q", v.ljust(8, b"\0"))[0] for v in launched.values if len(v) <= 8]


# -- what is passed


def test_an_array_goes_as_numba_passes_it(compiler, fake_cupy, fake_driver):
    array = fake_cupy.ndarray(0x1000, (6,), np.float32)
    launch.launch(kernel, 2, 64, [array])
    (done,) = fake_driver.launches
    assert words(done) == [0, 0, 6, 4, 0x1000, 6, 4]
    assert (done.grid, done.block, done.smem) == ((2, 1, 1), (64, 1, 1), 0)


def test_a_matrix_with_negative_strides_goes_with_them(compiler, fake_cupy, fake_driver):
    compiler.takes(*["u64"] * 9)
    array = fake_cupy.ndarray(0x1000, (3, 5), np.float64, strides=(-40, 8))
    launch.launch(kernel, 1, 32, [array])
    assert words(fake_driver.launches[0]) == [0, 0, 15, 8, 0x1000, 3, 5, 2**64 - 40, 8]


def test_scalars_go_by_their_own_width(compiler, fake_cupy, fake_driver):
    compiler.takes("u32", "u64", "u64", "u8", "f64", "f32", "u32", "u8", "b16", "f64")
    args = [
        u32(2**32 - 1), u64(2**64 - 1), -1, True, 1.5, np.float32(2.5), np.int32(-2),
        np.bool_(True), np.float16(1), np.float64(-0.0),
    ]  # fmt: skip
    launch.launch(kernel, 1, 32, args, on="cuda")
    assert fake_driver.launches[0].values == [
        struct.pack("<I", 2**32 - 1),
        struct.pack("<Q", 2**64 - 1),
        struct.pack("<q", -1),
        b"\x01",
        struct.pack("<d", 1.5),
        struct.pack("<f", 2.5),
        struct.pack("<i", -2),
        b"\x01",
        struct.pack("<e", 1),
        struct.pack("<d", -0.0),
    ]


def test_tensor_maps_and_arrays_keep_their_order(compiler, fake_cupy, fake_driver):
    compiler.takes("b8[128]", *ARRAY_1D, "b8[128]", "u32")
    a = fake_cupy.ndarray(0x1000, (64, 128), np.uint8)
    b = fake_cupy.ndarray(0x2000, (64, 128), np.uint8)
    d = fake_cupy.ndarray(0x3000, (6,), np.float32)
    maps = [launch.tensor_map(x, (128, 64), swizzle=128) for x in (a, b)]
    launch.launch(kernel, 1, 32, [maps[0], d, maps[1], u32(7)])
    values = fake_driver.launches[0].values
    assert struct.unpack_from("<Q", values[0]) == (0x1000,)
    assert struct.unpack_from("<Q", values[8]) == (0x2000,)
    assert values[5] == struct.pack("<Q", 0x3000)
    assert values[9] == struct.pack("<I", 7)


def test_grid_block_cluster_and_smem_arrive(compiler, fake_cupy, fake_driver):
    array = fake_cupy.ndarray(0x1000, (6,))
    launch.launch(kernel, (4, 3), (32, 2, 2), [array], smem=200000, cluster=2, pdl=True)
    (done,) = fake_driver.launches
    assert (done.grid, done.block, done.smem) == ((4, 3, 1), (32, 2, 2), 200000)
    assert [a[1] for a in done.attributes] == [2, 1]
    assert compiler.compiled[0][3] == 128


# -- what is compiled, and how often


def test_F37_sizes_addresses_and_values_compile_nothing_new(compiler, fake_cupy, fake_driver):
    compiler.takes(*ARRAY_1D, "u32")
    for m in range(1, 41):
        launch.launch(kernel, m, 32, [fake_cupy.ndarray(16 * m, (m,)), u32(m)])
    assert len(compiler.compiled) == 1
    assert len(fake_driver.loaded) == 1
    assert [words(done)[5] for done in fake_driver.launches] == list(range(1, 41))


def test_F37_layouts_and_types_compile_one_each(compiler, fake_cupy):
    compiler.takes(*["u64"] * 9)
    for strides, dtype in [(None, "f4"), ((4, 12), "f4"), ((400, 8), "f4"), (None, "f8")] * 2:
        array = fake_cupy.ndarray(16, (3, 2), np.dtype(dtype), strides=strides)
        launch.launch(kernel, 1, 32, [array])
    kinds = [str(argtypes[0]) for _, argtypes, _, _ in compiler.compiled]
    assert kinds == [
        "array(float32, 2d, C)",
        "array(float32, 2d, F)",
        "array(float32, 2d, A)",
        "array(float64, 2d, C)",
    ]


def test_threads_of_a_cta_are_compiled_in(compiler, fake_cupy):
    for block in (32, (32,), (32, 1, 1), (16, 2), 64):
        launch.launch(kernel, 1, block, [fake_cupy.ndarray(16, (3,))])
    assert [threads for *_, threads in compiler.compiled] == [32, 64]


def test_F35_four_threads_make_the_first_call_together(compiler, fake_cupy, fake_driver):
    compiler.seconds = 0.1
    start = threading.Barrier(4)

    def call(i):
        fake_driver.current.device = 0
        start.wait()
        launch.launch(kernel, 1, 32, [fake_cupy.ndarray(16 * i, (i + 1,))])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(call, range(4)))
    assert len(compiler.compiled) == 1
    assert len(fake_driver.loaded) == 1
    assert sorted(words(done)[4] for done in fake_driver.launches) == [0, 16, 32, 48]


def test_another_process_finds_the_kernel_on_disk(compiler, fake_cupy, monkeypatch):
    array = fake_cupy.ndarray(16, (3,))
    launch.launch(kernel, 1, 32, [array])
    for module, name in ((launch, "_programs"), (launch, "_launchers"), (cache, "_shared")):
        monkeypatch.setattr(module, name, {})
    launch.launch(kernel, 1, 32, [array])
    assert len(compiler.compiled) == 1
    assert cache.info()["kernels"] == 1


def test_a_plan_stands_for_a_kernel_that_is_not_built_when_it_is_cached(compiler, monkeypatch):
    built = []

    def build():
        built.append(1)
        return kernel, ()

    first = launch.program(("gemm", 128), build)
    assert launch.program(("gemm", 128), build) is first
    assert launch.program(("gemm", 64), build) is not first
    monkeypatch.setattr(launch, "_programs", {})
    monkeypatch.setattr(cache, "_shared", {})
    assert launch.program(("gemm", 128), build).cubin == first.cubin
    assert len(built) == 2


def test_compiling_needs_no_driver(compiler, fake_driver):
    launch.compiled("plan", lambda: (kernel, ()), threads=384)
    assert fake_driver.calls == []
    assert compiler.compiled == [(kernel, (), "sm_90a", 384)]


def test_debug_prints_ptx_and_report(compiler, monkeypatch, capsys):
    monkeypatch.setattr(launch, "assemble", lambda ptx, arch: Cubin(b"\x7fELF", "k", log="LOG"))
    for level in ("", "1", "2", "3"):
        monkeypatch.setenv("DGNUMBA_DEBUG", level)
        launch.compiled(("plan", level), lambda: (kernel, ()))
    assert capsys.readouterr().err.split() == ["ptx", "ptx", "LOG"]


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


# -- with the real compiler


@pytest.mark.skipif(find_ptxas() is None, reason="no ptxas on this machine")
def test_a_real_kernel_takes_what_is_passed(fake_cupy, fake_driver, fresh_cache, monkeypatch):
    cuda = pytest.importorskip("numba.cuda")

    @cuda.jit
    def scale(a, n, factor, whole, flag, small):
        i = cuda.grid(1)
        if i < n and flag:
            a[i, 0] = a[i, 0] * factor + whole * small

    array = fake_cupy.ndarray(0x1000, (6, 2), np.float32)
    args = [array, u32(6), 1.5, 3, True, np.float32(0.5)]
    fake_driver.sizes = [8] * 9 + [4, 8, 8, 1, 4]
    launch.launch(scale, 1, 32, args)
    (program,) = launch._programs.values()
    assert program.cubin.parameters == (*["u64"] * 9, "u32", "f64", "u64", "u8", "f32")
    assert program.cubin.spill_stores == 0
    assert fake_driver.loaded == [program.cubin.code]
    assert words(fake_driver.launches[0])[4] == 0x1000
    launch.launch(scale, 1, 32, args)
    assert len(fake_driver.loaded) == 1


def test_arguments_are_read_once_and_stay_alive(fake_cupy):
    array = fake_cupy.ndarray(0x1000, (6,))
    call = Arguments([array, u32(1)])
    assert call.owners == [array]
    assert call.device == 0
    assert len(call.scalars) == 8
    assert LaunchShape((1, 1, 1), (32, 1, 1)).threads == 32
