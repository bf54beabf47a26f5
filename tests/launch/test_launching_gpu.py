"""`dgnumba.launching` on a GPU: order, devices, threads, capture, both assemblers."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dgnumba import assemble, driver
from dgnumba import launching as launch
from dgnumba.errors import LaunchError
from dgnumba.integers import u32

pytestmark = pytest.mark.gpu

N = 1 << 20


@pytest.fixture(scope="module")
def cp():
    return pytest.importorskip("cupy")


@pytest.fixture(scope="module")
def axpy():
    cuda = pytest.importorskip("numba.cuda")

    @cuda.jit
    def kernel(x, y, n, factor):
        i = cuda.grid(1)
        if i < n:
            y[i] = y[i] + factor * x[i]

    def run(x, y, factor, n=None, **options):
        n = n or x.size
        args = (x, y, u32(n), np.float32(factor))
        launch.launch(kernel, -(-n // 256), 256, args, **options)

    return run


def test_a_kernel_computes(cp, axpy, fresh_cache):
    x, y = cp.arange(N, dtype="f4"), cp.ones(N, "f4")
    axpy(x, y, 2)
    assert np.array_equal(cp.asnumpy(y), 1 + 2 * np.arange(N, dtype="f4"))


def test_the_drivers_own_assembler_gives_the_same(cp, axpy, fresh_cache, monkeypatch):
    monkeypatch.setattr(assemble, "_find", lambda: None)
    monkeypatch.setattr(launch, "_programs", {})
    monkeypatch.setattr(launch, "_launchers", {})
    x, y = cp.arange(N, dtype="f4"), cp.ones(N, "f4")
    axpy(x, y, 2)
    (program,) = launch._programs.values()
    assert program.cubin.is_ptx
    assert np.array_equal(cp.asnumpy(y), 1 + 2 * np.arange(N, dtype="f4"))


def test_strided_arrays_are_read_as_they_lie(cp, axpy):
    base = cp.arange(2 * N, dtype="f4")
    y = cp.zeros(2 * N, "f4")
    axpy(base[::2], y[::-2], 1)
    expected = np.zeros(2 * N, "f4")
    expected[::-2] = np.arange(2 * N, dtype="f4")[::2]
    assert np.array_equal(cp.asnumpy(y), expected)


def test_F33_a_kernel_runs_after_what_its_stream_has_before_it(cp, axpy):
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        for turn in range(50):
            x = cp.full(16 * N, turn, "f4")
            for _ in range(4):
                x = cp.sqrt(x * x)  # keeps the stream busy, and the memory pool turning
            y = cp.zeros(16 * N, "f4")
            axpy(x, y, 1)
            del x
            other = cp.full(16 * N, -1, "f4")
            assert float(y.sum(dtype="f8")) == 16 * N * turn, turn
            del other


def test_torch_tensors_run_on_torchs_stream(cp, axpy):
    torch = pytest.importorskip("torch")
    with torch.cuda.stream(torch.cuda.Stream()):
        for turn in range(20):
            x = torch.full((16 * N,), float(turn), device="cuda")
            for _ in range(4):
                x = x.square().sqrt()
            y = torch.zeros(16 * N, device="cuda")
            axpy(x, y, 1, n=16 * N)
            assert y.double().sum().item() == 16 * N * turn


def test_F34_a_launch_is_captured_and_replayed(cp, axpy):
    x, y = cp.ones(N, "f4"), cp.zeros(N, "f4")
    axpy(x, y, 1)  # compiles and loads
    stream = cp.cuda.Stream(non_blocking=True)
    cp.cuda.Device().synchronize()
    y[...] = 0
    cp.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        for _ in range(3):
            axpy(x, y, 1)
        graph = stream.end_capture()
        for _ in range(5):
            graph.launch(stream)
    stream.synchronize()
    assert np.array_equal(cp.asnumpy(y), np.full(N, 15, "f4"))


def test_threads_with_streams_of_their_own_do_not_mix_up(cp, axpy):
    start = threading.Barrier(8)

    def work(number):
        start.wait()
        with cp.cuda.Stream(non_blocking=True) as stream:
            x, y = cp.full(N, number, "f4"), cp.zeros(N, "f4")
            for _ in range(50):
                axpy(x, y, 1)
            stream.synchronize()
            return np.array_equal(cp.asnumpy(y), np.full(N, 50 * number, "f4"))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [True] * 8


def test_a_thread_that_never_used_cuda_can_launch(cp, axpy):
    x, y = cp.ones(N, "f4"), cp.zeros(N, "f4")
    stream = cp.cuda.Stream(non_blocking=True)
    cp.cuda.Device().synchronize()
    thread = threading.Thread(target=axpy, args=(x, y, 3), kwargs={"stream": stream})
    thread.start()
    thread.join()
    stream.synchronize()
    assert np.array_equal(cp.asnumpy(y), np.full(N, 3, "f4"))


def test_F32_arrays_on_the_second_gpu(cp, axpy):
    if cp.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two GPUs")
    with cp.cuda.Device(1):
        x, y = cp.ones(N, "f4"), cp.zeros(N, "f4")
    with cp.cuda.Device(0):
        axpy(x, y, 3)
        assert cp.cuda.runtime.getDevice() == 0
    with cp.cuda.Device(1):
        assert np.array_equal(cp.asnumpy(y), np.full(N, 3, "f4"))


def test_more_shared_memory_than_there_is_says_so(cp, axpy):
    with pytest.raises(LaunchError, match="300000 bytes of shared memory"):
        axpy(cp.ones(4, "f4"), cp.ones(4, "f4"), 1, smem=300000)


def test_a_tensor_map_that_the_driver_encodes_is_128_bytes_of_it(cp):
    array = cp.zeros((256, 128), "u1")
    encoded = launch.encoded(launch.tensor_map(array, (128, 64), swizzle=128))
    assert len(bytes(encoded)) == 128
    assert bytes(encoded) != bytes(128)
    other = launch.encoded(launch.tensor_map(cp.zeros((256, 128), "u1"), (128, 64), swizzle=128))
    assert bytes(encoded) != bytes(other)


def test_the_device_is_described(cp, device):
    properties = cp.cuda.runtime.getDeviceProperties(device.index)
    assert device.num_sms == properties["multiProcessorCount"]
    assert device.l2_bytes == properties["l2CacheSize"]
    assert device.smem_per_block == properties["sharedMemPerBlockOptin"]
    assert driver.version() >= (12, 0)
