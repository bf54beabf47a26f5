"""A driver, a CuPy and a torch to test against on a machine that has none of them.

`FakeDriver` has the types and constants of the real `cuda.bindings.driver`, and functions that
record what they are asked and do what the driver does with it: a launch reads the parameter block
through its pointers, a tensor map is written to the address that it is given.
"""

import ctypes
import struct
import sys
import threading
import time
import warnings
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from launch.fake_kernels import ARRAY_1D, SIZES

from dgnumba import arguments, cache, device, launching
from dgnumba.assemble import Cubin
from dgnumba.driver import context

ENCODE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_uint64,
    *[ctypes.c_void_p] * 4, *[ctypes.c_int] * 4,
)  # fmt: skip


class FakeDriver:
    """Two GPUs; thread by thread a current one. `calls` lists the names of the functions called."""

    def __init__(self, real):
        self.real = real
        self.calls, self.launches, self.loaded, self.attributes, self.maps = [], [], [], {}, []
        self.refuse = {}
        self.sizes = []
        self.pointers = {}
        self.owns = {}  # the device of each context that is not a primary one, by its handle
        self.current = threading.local()
        self.pause = 0.0
        self._encode = ENCODE(self._encode_tiled)
        self.properties = {
            "COMPUTE_CAPABILITY_MAJOR": 9, "COMPUTE_CAPABILITY_MINOR": 0,
            "MULTIPROCESSOR_COUNT": 132, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448,
            "L2_CACHE_SIZE": 60 * 2**20, "MEMORY_CLOCK_RATE": 3201000,
            "GLOBAL_MEMORY_BUS_WIDTH": 6144,
        }  # fmt: skip

    def __getattr__(self, name):
        return getattr(self.real, name)

    def _done(self, name, *values):
        self.calls.append(name)
        status = self.refuse.get(name, self.real.CUresult.CUDA_SUCCESS)
        return (status, *values) if not status else (status, *[None] * len(values))

    def cuInit(self, flags):
        return self._done("cuInit")

    def cuGetErrorString(self, status):
        return (self.real.CUresult.CUDA_SUCCESS, b"what the driver says")

    def cuDeviceGetCount(self):
        return self._done("cuDeviceGetCount", 2)

    def cuDeviceGetName(self, length, index):
        return self._done("cuDeviceGetName", b"NVIDIA H200".ljust(length, b"\0"))

    def cuDeviceGetAttribute(self, key, index):
        tail = key.name.removeprefix("CU_DEVICE_ATTRIBUTE_")
        return self._done("cuDeviceGetAttribute", self.properties[tail])

    def cuCtxGetDevice(self):
        index = getattr(self.current, "device", None)
        if index is None:
            self.calls.append("cuCtxGetDevice")
            return (self.real.CUresult.CUDA_ERROR_INVALID_CONTEXT, None)
        return self._done("cuCtxGetDevice", self.real.CUdevice(index))

    def cuCtxGetCurrent(self):
        index = getattr(self.current, "device", None)
        own = getattr(self.current, "own", None)  # a context beside the primary one, of the device that is current
        return self._done("cuCtxGetCurrent", self.real.CUcontext(own or (0 if index is None else 7000 + index)))

    def cuDevicePrimaryCtxRetain(self, index):
        return self._done("cuDevicePrimaryCtxRetain", self.real.CUcontext(7000 + index))

    def cuCtxSetCurrent(self, chosen):
        known = self.owns.get(int(chosen))
        self.current.own, self.current.device = (int(chosen), known) if known is not None else (None, int(chosen) - 7000)
        return self._done("cuCtxSetCurrent")

    def cuPointerGetAttribute(self, key, address):
        return self._done("cuPointerGetAttribute", self.pointers.get(address, 0))

    def cuLibraryLoadData(self, code, keys, values, count, *rest):
        self.loaded.append(code)
        if "cuLibraryLoadData" in self.refuse and keys:
            values[0][:12] = b"line 7: oops"
        return self._done("cuLibraryLoadData", len(self.loaded))

    def cuLibraryGetKernel(self, library, name):
        return self._done("cuLibraryGetKernel", self.real.CUkernel(1000 + library))

    def cuKernelGetFunction(self, kernel):
        where = getattr(self.current, "own", None) or 1000 * (1 + self.current.device)
        return self._done("cuKernelGetFunction", self.real.CUfunction(int(kernel) + where))

    def cuKernelSetAttribute(self, key, value, kernel, index):
        self.attributes[key.name, index] = value
        return self._done("cuKernelSetAttribute")

    def cuGetProcAddress(self, name, version, flags):
        assert name == b"cuTensorMapEncodeTiled"
        address = ctypes.cast(self._encode, ctypes.c_void_p).value
        return self._done("cuGetProcAddress", address, 0)

    def _encode_tiled(self, target, dtype, rank, address, dims, strides, box, steps, *modes):
        assert target % 64 == 0
        read = lambda kind, where, n: tuple((kind * n).from_address(where))  # noqa: E731
        self.maps.append(
            SimpleNamespace(
                dtype=dtype,
                address=address,
                dims=read(ctypes.c_uint64, dims, rank),
                strides=read(ctypes.c_uint64, strides, rank - 1),
                box=read(ctypes.c_uint32, box, rank),
                steps=read(ctypes.c_uint32, steps, rank),
                modes=modes,
            )
        )
        data = struct.pack("<QQ", address, len(self.maps)).ljust(128, b"m")
        ctypes.memmove(target, data, 128)
        return int(self.refuse.get("cuTensorMapEncodeTiled", 0))

    def cuLaunchKernelEx(self, config, function, address, extra):
        pointers = (ctypes.c_uint64 * len(self.sizes)).from_address(address)
        assert all(pointer % 8 == 0 for pointer in pointers)
        read = lambda: [  # noqa: E731
            ctypes.string_at(*each) for each in zip(pointers, self.sizes, strict=True)
        ]
        values = read()
        if self.pause:
            time.sleep(self.pause)  # the driver works without the interpreter's lock
            assert read() == values, "the parameters changed while the driver read them"
        self.launches.append(
            SimpleNamespace(
                values=values,
                function=int(function),
                grid=(config.gridDimX, config.gridDimY, config.gridDimZ),
                block=(config.blockDimX, config.blockDimY, config.blockDimZ),
                smem=config.sharedMemBytes,
                stream=int(config.hStream),
                attributes=[(a.id, a.value.clusterDim.x, a.value.clusterDim.y) for a in config.attrs],
                device=getattr(self.current, "device", None),
                thread=threading.get_ident(),
            )
        )
        return self._done("cuLaunchKernelEx")


class FakeArray:
    """What a kernel launch reads of a CuPy array."""

    def __init__(self, address, shape, dtype=np.float32, device=0, strides=None):
        host = np.empty(shape, dtype)
        self.shape, self.dtype, self.ndim, self.size = shape, host.dtype, host.ndim, host.size
        self.itemsize = host.itemsize
        self.strides = strides or host.strides
        self.flags = SimpleNamespace(
            c_contiguous=self.strides == host.strides,
            f_contiguous=self.strides == np.empty(shape, dtype, "F").strides,
        )
        self.data = SimpleNamespace(ptr=address)
        self.device = SimpleNamespace(id=device)

    def __dlpack_device__(self):
        return (2, self.device.id)


@pytest.fixture
def fake_driver(monkeypatch):
    """The package on a machine with two fake H200, device 0 current in this thread."""
    real = pytest.importorskip("cuda.bindings.driver")
    fake = FakeDriver(real)
    fake.current.device = 0
    monkeypatch.setattr(context, "_api", fake)
    monkeypatch.setattr(context, "_primary", {})
    for module, name in (
        (launching, "_programs"),
        (launching, "_launchers"),
        (arguments, "_encoders"),
    ):
        monkeypatch.setattr(module, name, {})
    device._read.cache_clear()
    yield fake
    device._read.cache_clear()


@pytest.fixture
def fake_cupy(monkeypatch, fake_driver):
    """A CuPy whose arrays are `FakeArray`; `streams[device]` is the handle of its current stream."""
    cupy = ModuleType("cupy")
    cupy.ndarray = FakeArray
    cupy.streams = {0: 0, 1: 0}
    cupy.entered, cupy.waits, cupy.capturing = [], [], set()

    def current(index=-1):
        handle = cupy.streams[max(index, 0)]
        return SimpleNamespace(ptr=handle, wait_event=lambda event: cupy.waits.append((handle, event.stream)))

    class Scope(SimpleNamespace):
        def __enter__(self):
            cupy.entered.append((self.kind, self.value))

        def __exit__(self, *exc):
            cupy.entered.append(("end", self.value))

        def is_capturing(self):
            return self.value in cupy.capturing

    class BaseStream(Scope):
        def __init__(self, handle, device):
            super().__init__(kind="stream", value=handle)

    class ExternalStream(BaseStream):
        def __init__(self, handle, device):
            warnings.warn("ExternalStream is deprecated", DeprecationWarning, stacklevel=2)  # as CuPy 14's does
            super().__init__(handle, device)

    class Event:
        def __init__(self, disable_timing):
            self.stream = None

        def record(self, stream):
            self.stream = stream.value

    cupy.cuda = SimpleNamespace(
        get_current_stream=current,
        Event=Event,
        runtime=SimpleNamespace(getDevice=lambda: fake_driver.current.device),
        Device=lambda index: Scope(kind="device", value=index),
        ExternalStream=ExternalStream,
        Stream=SimpleNamespace(null=Scope(kind="stream", value=0)),
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    return cupy


@pytest.fixture
def fresh_cache(monkeypatch, tmp_path):
    """An empty cache directory, and no warning given yet; sources count as unchanged."""
    monkeypatch.setenv("DGNUMBA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_shared", {})
    monkeypatch.setattr(cache, "_warned", False)
    monkeypatch.setattr(cache, "_sources", lambda: "sources")
    return tmp_path / "cache"


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
    monkeypatch.setattr(launching._numba, "compile_ptx", made.compile_ptx)
    monkeypatch.setattr(launching, "assemble", made.assemble)
    return made
