"""Arrays from everywhere; and the code above, on a stand-in for CuPy, gives the host's bits."""

import subprocess
import sys
import types
from typing import ClassVar

import ml_dtypes
import numpy as np
import pytest
from fake_cupy import Device, installed, ndarray

from dgnumba import xp
from dgnumba.dtypes import DTYPES
from dgnumba.errors import DTypeError, ProblemError, UnsupportedError
from dgnumba.layouts.scales import get_mn_major_tma_aligned_tensor, get_row_major_tensor
from dgnumba.problem import check_fp8_gemm_nt
from dgnumba.quant import per_block_cast_to_fp8, per_channel_cast_to_fp8, per_token_cast_to_fp8

E4M3, BF16 = ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16
KEPT = ["float8_e4m3fn", "float8_e5m2", "bfloat16", "float16", "float32", "uint8", "int32"]


@pytest.fixture
def cupy():
    with installed() as module:
        yield module


def on_device(x, device=0):
    """A NumPy array as the stand-in holds it; types that CuPy lacks as their bits."""
    bits = x if x.dtype.isbuiltin == 1 else x.view(f"u{x.dtype.itemsize}")
    return ndarray.of(bits, device)


def test_import_needs_neither_cupy_nor_torch_nor_jax():
    code = "import sys, dgnumba.quant, dgnumba.testing, dgnumba.layouts.scales; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    ).stdout.split()
    assert not {"cupy", "torch", "jax", "cuda"} & set(loaded)


@pytest.mark.parametrize("name", KEPT)
def test_numpy_arrays_are_seen_as_they_are(name):
    x = np.zeros((2, 3), DTYPES[name].numpy)
    view = xp.as_array(x)
    assert view.array is x and view[1:] == (DTYPES[name], None, True, x.dtype)
    assert view.dtype_name == name
    assert xp.namespace(x) is np and not xp.is_device_array(x)
    x.flags.writeable = False
    assert not xp.as_array(x).writable


def test_types_without_a_row_keep_their_name():
    view = xp.as_array(np.zeros(2, "V1"))
    assert (view.dtype, view.dtype_name) == (None, "|V1")
    assert xp.as_array(np.zeros(2, complex)).dtype is None


@pytest.mark.parametrize("x", [[1.0], 1.0, None, "a", (1, 2), np.float32(1)])
def test_what_is_no_array_is_refused(x):
    with pytest.raises(DTypeError, match=r"sfa: expected an array .NumPy, CuPy, torch, JAX"):
        xp.as_array(x, "sfa")


def test_view_bytes():
    x = np.zeros((4, 6), E4M3)
    for part in (x, x.T, x[::2, 1::2]):
        view = xp.view_bytes(part)
        assert (view.dtype, view.shape, view.strides) == (np.uint8, part.shape, part.strides)
        assert np.shares_memory(view, x)
    codes = np.zeros(3, np.uint8)
    assert xp.view_bytes(codes) is codes
    with pytest.raises(DTypeError, match="view_bytes: expected elements of one byte, got float32"):
        xp.view_bytes(np.zeros(3, np.float32))


class OnGpu:
    """Device memory of some other library, without CuPy to see it."""

    __cuda_array_interface__: ClassVar = {
        "data": (16, False),
        "shape": (4, 4),
        "typestr": "<f4",
        "version": 3,
    }


def test_device_arrays_without_cupy_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert xp.is_device_array(OnGpu())
    with pytest.raises(UnsupportedError, match=r"a: is on a GPU, which needs CuPy, .*dgnumba\[cuda13\]"):
        xp.as_array(OnGpu(), "a")
    with pytest.raises(UnsupportedError, match="needs CuPy"):
        xp.namespace(OnGpu())
    with pytest.raises(UnsupportedError, match="a: is on a GPU"):
        check_fp8_gemm_nt((OnGpu(), OnGpu()), (OnGpu(), OnGpu()))


def test_dlpack_on_the_host():
    class Plain:
        held = np.arange(6, dtype=np.float32)

        def __dlpack__(self, **options):
            return self.held.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.held.__dlpack_device__()

    view = xp.as_array(Plain())
    assert np.shares_memory(view.array, Plain.held) and view.device is None
    assert view.dtype is DTYPES["float32"]


@pytest.mark.parametrize("name", KEPT)
def test_torch_tensors_on_the_host(name):
    torch = pytest.importorskip("torch")
    tensor = torch.ones((3, 4)).to(getattr(torch, name))
    view = xp.as_array(tensor)
    assert (view.dtype, view.dtype_name, view.device, view.writable) == (
        DTYPES[name],
        name,
        None,
        True,
    )
    assert view.array.dtype == DTYPES[name].numpy and (view.array == 1).all()
    assert view.array.ctypes.data == tensor.data_ptr()
    turned = xp.as_array(tensor.T).array
    assert turned.strides == view.array.T.strides


def test_torch_tensors_that_are_refused():
    torch = pytest.importorskip("torch")
    with pytest.raises(DTypeError, match=r"a: expected a dense torch tensor on cpu or cuda, got .* on meta"):
        xp.as_array(torch.zeros(2, device="meta"), "a")
    with pytest.raises(DTypeError, match=r"got torch.sparse_coo"):
        xp.as_array(torch.zeros(2, 2).to_sparse())
    assert xp.as_array(torch.zeros(2, requires_grad=True)).array.tolist() == [0, 0]


def test_torch_operands_and_output_on_the_host():
    torch = pytest.importorskip("torch")
    a, b = (
        torch.ones((3, 200)).to(torch.float8_e4m3fn),
        torch.ones((5, 200)).to(torch.float8_e4m3fn),
    )
    d = torch.zeros((3, 5), dtype=torch.bfloat16)
    operands = check_fp8_gemm_nt((a, torch.ones(3, 2)), (b, torch.ones(1, 2)), d)
    operands.d[...] = 7
    assert (d == 7).all()
    q = per_token_cast_to_fp8(torch.ones((2, 130), dtype=torch.bfloat16))
    assert (q.dequantize() == 1).all()


@pytest.mark.parametrize("name", KEPT)
def test_jax_arrays_on_the_host(name):
    jax = pytest.importorskip("jax")
    x = jax.numpy.ones((3, 4), DTYPES[name].numpy)
    view = xp.as_array(x)
    assert (view.dtype, view.dtype_name, view.device) == (DTYPES[name], name, None)
    assert (view.array == 1).all()
    assert not view.writable  # JAX arrays never change
    operands = (x.astype("uint8"), jax.numpy.ones((3, 1)))
    with pytest.raises(ProblemError, match="d: expected an array that can be written"):
        check_fp8_gemm_nt(operands, (x.astype("uint8"), jax.numpy.ones((1, 1))), jax.numpy.zeros((3, 3)))


# From here on: the stand-in.


def test_cupy_arrays_are_seen_as_they_are(cupy):
    x = on_device(np.zeros((2, 3), np.float32), device=1)
    view = xp.as_array(x)
    assert (view.array is x, view.device, view.writable) == (True, 1, True)
    assert xp.is_device_array(x) and xp.namespace(x) is cupy
    with xp.device_of(x):
        assert Device.current == 1
    assert Device.current == 0


def test_new_arrays_beside_a_cupy_array(cupy):
    like = on_device(np.zeros(1, np.float32), device=1)
    for name, carried in [
        ("bfloat16", "uint16"),
        ("float8_e4m3fn", "uint8"),
        ("float32", "float32"),
    ]:
        new = xp.empty((2, 3), DTYPES[name], like)
        assert (new.dtype.name, new.device.id, new.shape) == (carried, 1, (2, 3))


@pytest.mark.parametrize("name, carried", [("bfloat16", "uint16"), ("float8_e4m3fn", "uint8"), ("float32", "float32")])
def test_torch_tensors_on_a_gpu_are_views_of_their_bits(cupy, monkeypatch, name, carried):
    held = np.arange(12, dtype=np.float32).reshape(3, 4).astype(DTYPES[name].numpy)

    class Tensor:
        layout = dtype = None
        shape = (4, 3)
        device = types.SimpleNamespace(type="cuda", index=1)
        data_ptr = staticmethod(lambda: held.ctypes.data)
        stride = staticmethod(lambda: (1, 4))
        element_size = staticmethod(lambda: held.dtype.itemsize)
        __dlpack_device__ = staticmethod(lambda: (2, 1))

        def detach(self):
            return self

    strided = object()
    Tensor.layout, Tensor.dtype = strided, f"torch.{name}"
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(Tensor=Tensor, strided=strided))
    tensor = Tensor()
    view = xp.as_array(tensor)
    assert (view.dtype, view.dtype_name, view.device, view.writable) == (
        DTYPES[name],
        name,
        1,
        True,
    )
    assert (view.array.dtype.name, view.array.shape) == (carried, (4, 3))
    assert xp.address(view.array) == held.ctypes.data and view.array.owner is tensor
    assert np.array_equal(view.array.get(), held.T.view(carried))


def test_jax_arrays_on_a_gpu_are_waited_for_and_read_only(cupy, monkeypatch):
    held = np.ones((3, 4), BF16)
    waited = []

    class Array:
        shape, dtype = held.shape, held.dtype
        block_until_ready = staticmethod(lambda: waited.append(1))
        unsafe_buffer_pointer = staticmethod(lambda: held.ctypes.data)
        __dlpack_device__ = staticmethod(lambda: (2, 0))

    monkeypatch.setitem(sys.modules, "jax", types.SimpleNamespace(Array=Array))
    view = xp.as_array(Array())
    assert (view.dtype, view.device, view.writable, waited) == (DTYPES["bfloat16"], 0, False, [1])
    assert view.array.dtype == np.uint16 and xp.address(view.array) == held.ctypes.data


@pytest.mark.parametrize("cast", [per_token_cast_to_fp8, per_channel_cast_to_fp8, per_block_cast_to_fp8])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("use_ue8m0", [False, True])
def test_casts_on_a_gpu_give_the_hosts_bits(cupy, cast, dtype, use_ue8m0):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((256, 200)) * np.exp2(rng.integers(-30, 30, (256, 1)).astype(float))
    x = np.clip(x, -6e4, 6e4).astype(dtype)
    x[3, 5], x[200, 190], x[9] = np.inf, np.nan, 0
    host, device = cast(x, use_ue8m0), cast(on_device(x, 1), use_ue8m0)
    assert (device.data.dtype, device.data.device.id, device.dtype) == (np.uint8, 1, host.dtype)
    nan = np.isnan(host.data.astype(np.float32))
    codes = device.data.get()
    assert np.array_equal(codes[~nan], host.codes[~nan]) and ((codes[nan] & 0x7F) == 0x7F).all()
    assert np.array_equal(device.scale.get(), host.scale, equal_nan=True)
    values = device.dequantize()
    assert values.device.id == 1
    assert np.array_equal(values.get(), host.dequantize(), equal_nan=True)
    assert Device.current == 0


def test_F14_scale_layout_on_a_gpu(cupy):
    sf = np.arange(15, dtype=np.float32).reshape(5, 3)
    out = get_mn_major_tma_aligned_tensor(on_device(sf, 1))
    assert (out.strides, out.device.id) == ((4, 32), 1)
    assert np.array_equal(out.get(), sf)
    assert get_mn_major_tma_aligned_tensor(out) is out
    assert np.array_equal(get_row_major_tensor(out).get(), sf)
    column = on_device(np.ones((8, 1), np.float32))
    assert xp.address(get_mn_major_tma_aligned_tensor(column)) == xp.address(column)


def operands_on_device(device=0):
    return {
        "a": on_device(np.zeros((4, 256), np.uint8), device),
        "sfa": on_device(np.ones((4, 2), np.float32), device),
        "b": on_device(np.zeros((6, 256), np.uint8), device),
        "sfb": on_device(np.ones((1, 2), np.float32), device),
        "d": on_device(np.zeros((4, 6), np.uint16), device),
    }


def check(check=None, c=None, **x):
    return check_fp8_gemm_nt((x["a"], x["sfa"]), (x["b"], x["sfb"]), x["d"], c, check)


def test_checks_on_a_gpu(cupy):
    x = operands_on_device(1)
    operands = check(**x)
    assert operands.device == 1 and operands.d is x["d"]
    assert operands.problem.d_dtype is DTYPES["bfloat16"]
    new = check(**{**x, "d": None})
    assert (new.d.dtype, new.d.device.id) == (np.uint16, 1)


@pytest.mark.parametrize("name", ["sfa", "b", "sfb", "d"])
@pytest.mark.parametrize("other, place", [(None, "the host"), (0, "GPU 0")])
def test_mixed_devices_are_refused(cupy, name, other, place):
    x = operands_on_device(1)
    x[name] = x[name].get() if other is None else on_device(x[name].get(), other)
    with pytest.raises(ProblemError, match=f"{name}: expected memory of GPU 1 as a, got {place}"):
        check(**x)


def test_F10_scales_on_a_gpu_are_looked_at_only_when_asked(cupy):
    x = operands_on_device(1)
    x["sfb"]._held[0, 1] = np.nan
    assert check(**x).device == 1
    with pytest.raises(ProblemError, match=r"sfb: expected finite scales .* got nan at \[0, 1\]"):
        check(check=True, **x)
    assert Device.current == 0


def test_overlap_on_a_gpu(cupy):
    pool = np.zeros(4096, np.uint8)
    x = operands_on_device()
    x["d"] = on_device(pool[:48].view(np.uint16).reshape(4, 6))
    x["a"] = on_device(pool[40 : 40 + 1024].reshape(4, 256))
    with pytest.raises(ProblemError, match=r"d: expected memory of its own, got .* overlaps a"):
        check(**x)
    x["a"] = on_device(pool[48 : 48 + 1024].reshape(4, 256))
    assert check(**x).d is x["d"]
    assert check(c=x["d"], **x).c is x["d"]
