"""The casts on CuPy give the host's bits: on a stand-in for it everywhere, on a GPU where there is one."""

import numpy as np
import pytest
from fake_cupy import installed, ndarray
from quant.every_format import DEEPGEMM, EVERY_FORMAT, name_of

from dgnumba.quant import MXFP8, NVFP4, cast, element_bound, per_custom_dims_cast_to_fp8, quantize, report
from dgnumba.testing import assert_bits_equal

every_format = pytest.mark.parametrize("form", EVERY_FORMAT, ids=name_of)


def sample(shape=(9, 70)):
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(shape) * np.exp2(rng.integers(-30, 30, (*shape[:-1], 1)))).astype(np.float32)
    x[..., 0, :], x[..., 1, 3], x[..., 2, 5] = 0, np.nan, np.inf
    return x


def bits(x):
    """A host array as a device array module holds it."""
    return x if x.dtype.isbuiltin == 1 else x.view(f"u{x.dtype.itemsize}")


def assert_same(device, host, back):
    assert_bits_equal(back(device.codes), host.codes, "codes")
    assert_bits_equal(back(device.scale).view(host.scale.dtype), host.scale, "scale")
    assert (device.dtype, device.granularity, device.scale_dtype) == (host.dtype, host.granularity, host.scale_dtype)
    for name in ("zero_point", "global_scale"):
        one, other = getattr(device, name), getattr(host, name)
        assert (one is None) == (other is None)
        if other is not None:
            assert_bits_equal(back(one), np.asarray(other), name)


@pytest.fixture
def stand_in():
    with installed():
        yield ndarray.of


def got(x):
    return x.get()


@every_format
def test_stand_in_quantize(form, stand_in, monkeypatch):
    for x in (sample(), sample((2, 9, 40)), sample()[:, :0]):
        monkeypatch.setattr(cast, "_CHUNK_DEVICE", 100)
        q, host = quantize(stand_in(x), form), quantize(x, form)
        assert_same(q, host, got)
        assert_bits_equal(got(q.dequantize()), host.dequantize(), "values")


@pytest.mark.parametrize("form", ["fp8_1x128", "int4_g32", "uint4_g16", "mxfp4", "nvfp4"])
def test_stand_in_options(form, stand_in):
    x = np.nan_to_num(sample((4, 64)), nan=1, posinf=2)
    host = quantize(x, form, rounding="stochastic", seed=9)
    assert_same(quantize(stand_in(x), form, rounding="stochastic", seed=9), host, got)
    whole = {} if host.global_scale is None else {"global_scale": host.global_scale}
    given = quantize(stand_in(x), form, scale=stand_in(bits(host.scale)) if form == "fp8_1x128" else stand_in(host.scales), **whole)
    assert_same(given, quantize(x, form), got)
    found, plain = quantize(stand_in(x), form, search=True), quantize(stand_in(x), form)
    assert report(x, found).total.squared_error <= report(x, plain).total.squared_error


@pytest.mark.parametrize("name", DEEPGEMM)
def test_stand_in_deepgemm(name, stand_in):
    x = sample((128, 256))
    for part in (x, x[:, :250]):
        assert_same(DEEPGEMM[name](stand_in(part)), DEEPGEMM[name](part), got)


@pytest.mark.parametrize("dims", [(0,), (1, 2), ()])
def test_stand_in_custom_dims(dims, stand_in):
    x = sample((3, 8, 20))
    (data, scale), host = per_custom_dims_cast_to_fp8(stand_in(x), dims), per_custom_dims_cast_to_fp8(x, dims)
    assert_bits_equal(got(data).view(host[0].dtype), host[0], "data")
    assert_bits_equal(got(scale), host[1], "scale")


def test_stand_in_bound_and_report(stand_in):
    x = np.nan_to_num(sample(), nan=1, posinf=2)
    for form in ("mxfp8", "nvfp4", "uint4_g16"):
        q, host = quantize(stand_in(x), form), quantize(x, form)
        assert_bits_equal(got(element_bound(stand_in(x), q)), element_bound(x, host), "bound")
        assert report(stand_in(x), q).as_dict()["total"] == report(x, host).as_dict()["total"]


@pytest.mark.gpu
@every_format
def test_gpu_quantize(form):
    import cupy

    for x in (sample(), sample((300, 520)), sample((2, 9, 40))):
        for q, host in (
            (quantize(cupy.asarray(x), form), quantize(x, form)),
            (quantize(cupy.asarray(x), form, rounding="stochastic", seed=3), quantize(x, form, rounding="stochastic", seed=3)),
        ):
            assert_same(q, host, cupy.asnumpy)
            assert_bits_equal(cupy.asnumpy(q.dequantize()), host.dequantize(), "values")


@pytest.mark.gpu
@pytest.mark.parametrize("name", DEEPGEMM)
def test_gpu_deepgemm(name):
    import cupy

    x = sample((256, 512))
    assert_same(DEEPGEMM[name](cupy.asarray(x)), DEEPGEMM[name](x), cupy.asnumpy)


@pytest.mark.gpu
def test_F38_gpu_subnormals():
    """CuPy's own kernels flush no subnormals, so that the device equals the host here too."""
    import cupy

    x = np.float32([[1e-40] * 32, [1e-38] * 32, [2.0**-149] * 32])
    x[1, 3] = 1.0
    for form in (MXFP8, NVFP4, "int8_row", "fp8_row"):
        assert_same(quantize(cupy.asarray(x), form), quantize(x, form), cupy.asnumpy)
