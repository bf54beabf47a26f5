"""`dgnumba.launching` against a fake driver and a fake CuPy: what is compiled, passed, and where."""

import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from launch.fake_kernels import ARRAY_1D, kernel, words

from dgnumba import cache
from dgnumba import launching as launch
from dgnumba.arguments import Arguments
from dgnumba.assemble import Cubin, find_ptxas
from dgnumba.driver import LaunchShape
from dgnumba.errors import DTypeError, ProblemError
from dgnumba.integers import u32, u64

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


def test_maps_that_differ_in_their_l2_promotion_are_two(compiler, fake_cupy, fake_driver):
    compiler.takes("b8[128]", "b8[128]")
    array = fake_cupy.ndarray(0x1000, (64, 128), np.uint8)
    launch.launch(kernel, 1, 32, [launch.tensor_map(array, (128, 64), l2_promotion=nbytes) for nbytes in (256, 128)])
    assert [asked.modes[2] for asked in fake_driver.maps] == [3, 2]


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


@pytest.mark.parametrize(
    "array, box, more, error, message",
    [
        (np.zeros((4, 32), np.float32), (32, 4), {"dtype": "float31"}, DTypeError, "dtype: expected one of .*; got float31"),
        (np.zeros((4, 32), np.complex64), (32, 4), {}, DTypeError, "dtype: expected one of .*; got complex64"),
        (np.zeros((4, 32), np.float32), 32, {}, ProblemError, "a box entry each"),
    ],
)
def test_what_is_no_tensor_map_is_refused(array, box, more, error, message):
    with pytest.raises(error, match=message):
        launch.tensor_map(array, box, **more)
