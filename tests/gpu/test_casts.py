"""Casts and moves of scales on a GPU: the bits of the host's functions, on every shape, type and memory form; and the streams that they run on."""

import functools

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numba import cuda

import dgnumba
from dgnumba import casts, emu, quant, scale_moves
from dgnumba.errors import ProblemError
from dgnumba.integers import u64
from dgnumba.launching import launch
from dgnumba.layouts import scales
from dgnumba.ptx import convert, packed

pytestmark = pytest.mark.gpu

SHAPES = [(1, 16), (1, 7168), (9, 48), (130, 544), (257, 541), (3, 1), (1000, 2112), (128, 20000)]


@pytest.fixture(scope="module")
def cupy():
    return pytest.importorskip("cupy")


def awkward(rng, shape, dtype, all_finite=False):
    """Random data with blocks that are zero, tiny, huge and, unless told otherwise, not finite."""
    x = (rng.standard_normal(shape) * np.exp2(rng.integers(-9, 10, shape))).astype(np.float32)
    rows, columns = shape
    x[0, : columns // 3] = 0
    x[-1] *= np.float32(1e-7)
    if columns > 20 and not all_finite:
        x[rows // 2, 3], x[rows // 2, columns - 1], x[rows // 3, columns // 2] = np.nan, np.inf, -np.inf
    with np.errstate(over="ignore"):
        return x.astype(dtype)


def same(expected, actual):
    """Host and device QTensor: the same bits in the same form; a NaN is a NaN."""
    data, scale = actual.data.get().view(np.uint8), actual.scale.get()
    wrong = data != expected.data.view(np.uint8)
    assert not wrong.any(), f"{int(wrong.sum())} codes differ, first at {np.argwhere(wrong)[0].tolist()}"
    assert np.array_equal(expected.scale, scale, equal_nan=scale.dtype.kind == "f")
    if min(scale.shape) > 1:
        assert actual.scale.strides == expected.scale.strides


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_per_token(cupy, shape, dtype, rng):
    x = awkward(rng, shape, dtype)
    held = cupy.asarray(x)
    for options in (
        {},
        {"use_ue8m0": True},
        {"mn_major": True},
        {"use_ue8m0": True, "use_packed_ue8m0": True, "mn_major": True},
        {"use_ue8m0": True, "use_packed_ue8m0": True, "gran_k": 32},
        {"gran_k": 512},
        {"gran_k": 48},
    ):
        if dtype is not np.float64 or not options.get("mn_major"):
            with np.errstate(all="ignore"):
                same(casts.per_token_cast_to_fp8(x, **options), casts.per_token_cast_to_fp8(held, **options))


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_per_block_and_per_channel(cupy, shape, dtype, rng):
    x = awkward(rng, shape, dtype)
    rows = -(-shape[0] // 128) * 128
    tall = awkward(rng, (rows, shape[1]), dtype)
    for use_ue8m0 in (False, True):
        with np.errstate(all="ignore"):
            same(quant.per_block_cast_to_fp8(x, use_ue8m0), casts.per_block_cast_to_fp8(cupy.asarray(x), use_ue8m0))
            same(quant.per_channel_cast_to_fp8(tall, use_ue8m0), casts.per_channel_cast_to_fp8(cupy.asarray(tall), use_ue8m0))
            same(quant.per_channel_cast_to_fp8(tall, use_ue8m0, 32), casts.per_channel_cast_to_fp8(cupy.asarray(tall), use_ue8m0, 32))


def test_every_float16(cupy):
    """All 65536 of them, against scales of every rounding."""
    bits = np.arange(1 << 16, dtype=np.uint16).reshape(-1, 128)
    for dtype in (np.float16, ml_dtypes.bfloat16):
        x = bits.view(dtype)
        with np.errstate(all="ignore"):
            same(quant.per_token_cast_to_fp8(x), casts.per_token_cast_to_fp8(cupy.asarray(x)))
            same(quant.per_token_cast_to_fp8(x, True), casts.per_token_cast_to_fp8(cupy.asarray(x), True))


def test_any_strides(cupy, rng):
    x = awkward(rng, (300, 640), np.float32)
    held = cupy.asarray(x)
    wide = cupy.zeros((300, 700), np.float32)
    wide[:, 1:641] = held
    for view in (wide[:, 1:641], held.T.copy().T, held[::-1, ::-1], held[:, ::2], held[::3], held[5:, 3:]):
        host = view.get()
        same(casts.per_token_cast_to_fp8(host), casts.per_token_cast_to_fp8(view))
        same(quant.per_block_cast_to_fp8(host), casts.per_block_cast_to_fp8(view))


def test_nothing_beside_the_outputs_is_written(cupy, rng):
    """A cast of a block of a larger array leaves that as it is, and gives the same bits every time."""
    whole = cupy.asarray(awkward(rng, (400, 1040), np.float32))
    before = whole.copy()
    first = casts.per_token_cast_to_fp8(whole[3:390, 16:1024])
    for _ in range(5):
        again = casts.per_token_cast_to_fp8(whole[3:390, 16:1024])
        assert bool((again.data == first.data).all()) and bool((again.scale.view(np.int32) == first.scale.view(np.int32)).all())
    assert bool((whole.view(np.int32) == before.view(np.int32)).all())


def as_host(q):
    """A device QTensor's parts in NumPy."""
    return [part.get().reshape(-1) for part in (q.data, q.scale, q.global_scale) if part is not None]


def same_bits(expected, actual):
    """Host and device QTensor: the same bits, but for a float32 NaN's payload."""
    parts = [part.reshape(-1) for part in (expected.data, expected.scale, expected.global_scale) if part is not None]
    for name, (x, y) in zip(("data", "scale", "global_scale"), zip(parts, as_host(actual), strict=True)):
        wrong = x.view(f"u{x.itemsize}") != y.view(f"u{y.itemsize}")
        if x.dtype == np.float32:
            wrong &= ~(np.isnan(x) & np.isnan(y))
        assert not wrong.any(), f"{name}: {int(wrong.sum())} elements differ, first at {np.argwhere(wrong)[0].tolist()}"
    assert actual.scale_dtype is expected.scale_dtype and actual.shape == expected.shape and actual.packing == expected.packing


FEW_BITS = ["mxfp8", "mxfp4", "nvfp4", "int4_g128", "int4_g16", "int4_row", "int8_row", "fp8_1x128", "fp8_row", "fp8_tensor"]


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_quantize(cupy, shape, dtype, rng):
    """Every format that a kernel casts to, one code a byte and two."""
    x = awkward(rng, shape, dtype)
    held = cupy.asarray(x)
    for name in FEW_BITS:
        is_packed = quant.as_format(name).dtype.bits == 4 and shape[1] % 2 == 0
        for packing in (None, "low_first") if is_packed else (None,):
            with np.errstate(all="ignore"):
                same_bits(casts.quantize(x, name, packing=packing), casts.quantize(held, name, packing=packing))


def to(name, rule=None, **options):
    """The cast to a format, by a rule."""
    form = quant.as_format(name)
    return functools.partial(casts.quantize, format=form.with_rule(rule) if rule else form, **options)


CASTS = {
    **{name: to(name) for name in FEW_BITS},
    **{f"{name} packed": to(name, packing="low_first") for name in ("mxfp4", "nvfp4", "int4_g32", "int4_row")},
    **{f"{name} {rule}": to(name, rule) for name in ("mxfp4", "mxfp8") for rule in ("floor", "even")},
    "int4_g64 amax/7.5": to("int4_g64", "amax/7.5"),
    "fp4": casts.per_token_cast_to_fp4,
    "fp4 packed ue8m0": functools.partial(casts.per_token_cast_to_fp4, use_ue8m0=True, gran_k=32, use_packed_ue8m0=True),
    "per_token fp8": casts.per_token_cast_to_fp8,
    "per_token fp8 packed ue8m0": functools.partial(casts.per_token_cast_to_fp8, use_ue8m0=True, use_packed_ue8m0=True),
    "per_block fp8": casts.per_block_cast_to_fp8,
}


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors], deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("name", CASTS)
def test_host_equals_device(cupy, name, data):
    """The property, over raw bytes and over floats of every magnitude, of any shape and type."""
    rows, columns = data.draw(st.integers(1, 40)), 2 * data.draw(st.integers(1, 600))
    dtype = data.draw(st.sampled_from([ml_dtypes.bfloat16, np.float16, np.float32]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    if data.draw(st.booleans()):
        x = rng.integers(0, 256, (rows, columns * np.dtype(dtype).itemsize), dtype=np.uint8).view(dtype)
    else:
        low = data.draw(st.integers(-140, 120))
        with np.errstate(over="ignore"):
            x = np.ldexp(rng.uniform(-1, 1, (rows, columns)), rng.integers(low, low + 9, (rows, columns))).astype(np.float32).astype(dtype)
    with np.errstate(all="ignore"):
        same_bits(CASTS[name](x), CASTS[name](cupy.asarray(x)))


@pytest.mark.parametrize("rule", ["rceil", "floor", "ceil", "even"])
def test_quantize_by_rule(cupy, rule, rng):
    x = np.ldexp(rng.uniform(-2, 2, (300, 640)), rng.integers(-150, 127, (300, 1))).astype(np.float32)
    for name in ("mxfp8", "mxfp4"):
        form = quant.as_format(name).with_rule(rule)
        same_bits(casts.quantize(x, form), casts.quantize(cupy.asarray(x), form))
    for name in ("nvfp4", "int4_g32", "int8_row"):
        same_bits(casts.quantize(x, name), casts.quantize(cupy.asarray(x), name))


def test_quantize_every_float16(cupy, rng):
    """All 65536 of them, shuffled anew, in blocks of every sort."""
    for dtype in (np.float16, ml_dtypes.bfloat16):
        for _ in range(5):
            x = rng.permutation(np.arange(1 << 16, dtype=np.uint16)).view(dtype).reshape(-1, 256)
            with np.errstate(all="ignore"):
                for name in ("mxfp4_g16", "mxfp4", "nvfp4", "int4_g16", "mxfp8"):
                    same_bits(quant.quantize(x, name), casts.quantize(cupy.asarray(x), name))


@pytest.mark.parametrize("whole", [0, 2.0**-117, 7.6e35, np.nan])
def test_no_block_has_a_scale_below_one_beyond_its_range(cupy, whole):
    q = casts.quantize(cupy.ones((3, 64), np.float32), "nvfp4", global_scale=cupy.asarray(np.float32(whole)))
    assert (q.scale.get().view(np.uint8) == 0x7F).all() and not q.data.get().any()


def test_quantize_below_a_given_scale(cupy, rng):
    x = rng.standard_normal((300, 640)).astype(np.float32)
    for whole in (np.float32(1e-4), np.float32(0.01)):
        same_bits(
            quant.quantize(x, "nvfp4", global_scale=np.asarray(whole)),
            casts.quantize(cupy.asarray(x), "nvfp4", global_scale=cupy.asarray(whole)),
        )


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32])
@pytest.mark.parametrize("shape", [s for s in SHAPES if s[1] % 2 == 0], ids=str)
def test_per_token_to_fp4(cupy, shape, dtype, rng):
    x = awkward(rng, shape, dtype)
    for options in ({}, {"use_ue8m0": True}, {"use_ue8m0": True, "use_packed_ue8m0": True, "gran_k": 32}, {"gran_k": 48}):
        with np.errstate(all="ignore"):
            same(quant.per_token_cast_to_fp4(x, **options), casts.per_token_cast_to_fp4(cupy.asarray(x), **options))


def test_quantize_large_and_repeated(cupy, rng):
    """A matrix of many CTAs, twice: the look for the maximum has one answer."""
    x = rng.standard_normal((4096, 7168)).astype(ml_dtypes.bfloat16)
    held = cupy.asarray(x)
    for name, packing in (("nvfp4", "low_first"), ("nvfp4", None), ("fp8_tensor", None)):
        first, again = (casts.quantize(held, name, packing=packing) for _ in range(2))
        assert all(np.array_equal(a.view(np.uint8), b.view(np.uint8)) for a, b in zip(as_host(first), as_host(again)))
        same_bits(casts.quantize(x, name, packing=packing), first)


def directed(x, y, z, sums, pairs, halves):
    i = cuda.grid(1)
    if i < x.size:
        sums[i] = convert.smaller(convert.fma_up(x[i], y[i], z[i]), convert.magnitude(z[i]))
        one, other = convert.f32_to_bits(x[i]), convert.f32_to_bits(y[i])
        pairs[i] = u64(packed.max_magnitude_bf16x2(one, other)) | u64(packed.permute_bytes(one, other, 0xB29F)) << 32
        halves[i] = u64(packed.max_magnitude_f16x2(one, other)) | u64(packed.merge_bits(one, other, 0x0FF0F00F)) << 32


def test_the_operations_are_their_emulation(cupy, rng):
    x, y, z = (rng.integers(0, 2**32, 20480, dtype=np.uint64).astype(np.uint32).view(np.float32) for _ in range(3))
    with np.errstate(all="ignore"):
        z[::2] = (x[::2].astype(np.float64) * y[::2]).astype(np.float32)  # where rounding up shows
        z[::4] *= -1
        outs = [np.zeros(x.size, t) for t in (np.float32, np.uint64, np.uint64)]
        found = [cupy.zeros(x.size, o.dtype) for o in outs]
        emu.run(directed, x.size // 128, 128, (x, y, z, *outs))
        launch(directed, x.size // 128, 128, (*map(cupy.asarray, (x, y, z)), *found))
    assert np.array_equal(outs[0], found[0].get(), equal_nan=True)
    assert np.array_equal(outs[1], found[1].get()) and np.array_equal(outs[2], found[2].get())


def cut_off(x, y, products, halves):
    i = cuda.grid(1)
    if i < x.size:
        products[i] = convert.multiply_to_zero(x[i], y[i])
        halves[i] = u64(convert.f32x2_to_f16x2_to_zero(x[i], y[i]))


def test_what_cuts_off_is_its_emulation(cupy, rng):
    """Random bits; float16's own range, its subnormals and its end; products that are subnormal."""
    x, y = (rng.integers(0, 2**32, 20480, dtype=np.uint64).astype(np.uint32) for _ in range(2))
    x[::2] = x[::2] & 0x9FFFFFFF | 0x20000000
    y[::4] = y[::4] & 0x8FFFFFFF | 0x38000000
    y[1::4] = np.uint32(0x387FFFFF)
    x[2::4] = (x[2::4] & 0x80FFFFFF) + 0x01000000
    x, y = x.view(np.float32), y.view(np.float32)
    outs = [np.zeros(x.size, np.float32), np.zeros(x.size, np.uint64)]
    found = [cupy.zeros(x.size, o.dtype) for o in outs]
    emu.run(cut_off, x.size // 128, 128, (x, y, *outs))
    launch(cut_off, x.size // 128, 128, (cupy.asarray(x), cupy.asarray(y), *found))
    number = ~np.isnan(outs[0])
    assert np.array_equal(number, ~np.isnan(found[0].get()))
    assert np.array_equal(outs[0].view(np.uint32)[number], found[0].get().view(np.uint32)[number])
    assert np.array_equal(outs[1], found[1].get())


def inverses(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = convert.reciprocal_of_normal(x[i])


@pytest.mark.parametrize("exponent", [-126, -1, 0, 125])
def test_the_reciprocal_of_every_mantissa(cupy, exponent):
    x = np.ldexp(np.arange(1 << 23, 1 << 24).astype(np.float32), exponent - 23).astype(np.float32)
    out = cupy.zeros(x.size, np.float32)
    launch(inverses, x.size // 256, 256, (cupy.asarray(x), out))
    assert np.array_equal(np.float32(1) / x, out.get())


def conversion(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = convert.f32x4_to_e4m3x4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3])


def test_the_conversion_is_its_emulation(cupy, rng):
    x = rng.integers(0, 2**32, 1 << 20, dtype=np.uint64).astype(np.uint32)
    x[::2] = (x[::2] & 0x80FFFFFF) | rng.integers(0x39, 0x45, x[::2].size).astype(np.uint32) << 24  # around e4m3's range
    x[::4] &= np.uint32(0xFFF80000)  # ties
    values = x.view(np.float32)
    out = cupy.zeros(values.size // 4, np.uint32)
    launch(conversion, out.size // 256, 256, (cupy.asarray(values), out))
    expected = dgnumba.quant.fp8.E4M3.encode(values)
    assert np.array_equal(expected, out.get().view(np.uint8))


@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (66, 12), (4096, 56), (4097, 57), (70, 1000), (20000, 4)], ids=str)
def test_moves(cupy, shape, rng):
    sf = np.ldexp(np.float32(1), rng.integers(-127, 128, shape)).astype(np.float32)
    held = cupy.asarray(sf)
    for view in (held, cupy.repeat(held, 2, axis=1)[:, ::2], held.T.copy().T):
        turned = scale_moves.get_mn_major_tma_aligned_tensor(view)
        assert np.array_equal(turned.get(), sf)
        if min(shape) > 1:
            assert turned.strides == scales.get_mn_major_tma_aligned_tensor(sf).strides
        assert np.array_equal(scale_moves.get_row_major_tensor(turned).get(), sf)
        packed = scale_moves.get_mn_major_tma_aligned_packed_ue8m0_tensor(view)
        assert np.array_equal(packed.get(), scales.get_mn_major_tma_aligned_packed_ue8m0_tensor(sf))
        for words in (packed, cupy.ascontiguousarray(packed)):
            assert np.array_equal(scale_moves.get_row_major_ue8m0_tensor(words, shape[1]).get(), sf)
            assert np.array_equal(scale_moves.unpacked(words, shape[1]).get(), sf)


def test_bad_scales_are_refused(cupy):
    sf = cupy.ones((300, 9), np.float32)
    sf[299, 8] = 1.5
    with pytest.raises(ProblemError, match=r"got 1.5 at \[299, 8\]"):
        scale_moves.get_mn_major_tma_aligned_packed_ue8m0_tensor(sf)


@pytest.mark.parametrize("m, n, k", [(128, 256, 640), (1, 2112, 7168), (4096, 4096, 7168)])
def test_the_product_takes_packed_scales(cupy, m, n, k, rng):
    x, w = (cupy.asarray(rng.standard_normal(s, np.float32)) for s in ((m, k), (n, k)))
    a, b = dgnumba.per_token_cast_to_fp8(x, True, mn_major=True), dgnumba.per_block_cast_to_fp8(w, True)
    expected = dgnumba.fp8_gemm_nt(a, b)
    packed_b = (b.data, scale_moves.get_mn_major_tma_aligned_packed_ue8m0_tensor(b.scale))
    for mn_major in (True, False):
        packed_a = dgnumba.per_token_cast_to_fp8(x, True, 128, True, mn_major=mn_major)
        found = dgnumba.fp8_gemm_nt(packed_a, packed_b)
        assert bool((found.view(np.uint16) == expected.view(np.uint16)).all())
    copies = dgnumba.explain(packed_a, packed_b).copies
    assert [c.partition(":")[0] for c in copies[:2]] == ["sfa", "sfb"] and "unpacked" in copies[0]


def test_streams(cupy, rng):
    """On CuPy's current stream, with the input made there just before."""
    x = cupy.asarray(rng.standard_normal((4096, 4096), np.float32))
    expected = casts.per_token_cast_to_fp8(x * 2)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        for _ in range(10):
            made = casts.per_token_cast_to_fp8(x * 2, mn_major=True)
            turned = scale_moves.get_mn_major_tma_aligned_tensor(expected.scale)
    stream.synchronize()
    assert bool((made.data == expected.data).all()) and bool((made.scale == expected.scale).all())
    assert bool((turned == expected.scale).all())


def test_torch_tensors(cupy, rng):
    torch = pytest.importorskip("torch")
    x = torch.randn(130, 544, device="cuda").to(torch.bfloat16)
    host = x.float().cpu().numpy().astype(ml_dtypes.bfloat16)
    same(quant.per_token_cast_to_fp8(host), casts.per_token_cast_to_fp8(x))
    same(quant.per_block_cast_to_fp8(host), casts.per_block_cast_to_fp8(x))
