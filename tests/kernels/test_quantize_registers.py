"""What a thread of a cast to few bits does with its registers: the operation's own body, and the emulator's short way, are the definition."""

import ml_dtypes
import numpy as np
import pytest
from kernels.test_cast_registers import in_a_thread
from numba import cuda
from numpy.testing import assert_array_equal

from dgnumba import emu
from dgnumba.dtypes import DTYPES
from dgnumba.integers import u32, u64
from dgnumba.kernels import quantize_registers
from dgnumba.kernels.quantize_scales import scale_for
from dgnumba.ptx import convert, packed
from dgnumba.quant.chunk import E2M1_THRESHOLDS
from dgnumba.quant.scale import LEAST_GIVEN, MOST_GIVEN

ITEMSIZE = {"bfloat16": 2, "float16": 2, "float32": 4}
E2M1 = DTYPES["float4_e2m1fn"]


def words_of(values, dtype):
    return tuple(u32(w) for w in np.asarray(values, np.float32).astype(DTYPES[dtype].numpy).view(np.uint32))


def elements(rng, top, count=32):
    """Magnitudes up to `top` of every size, half-way points and their neighbours, zeros of both signs."""
    x = (rng.uniform(-1, 1, count) * np.exp2(rng.integers(-6, 1, count)) * top).astype(np.float32)
    half = np.float32(E2M1_THRESHOLDS)
    near = np.concatenate([half, np.nextafter(half, np.float32(9)), np.nextafter(half, np.float32(0)), [0.0, -0.0, 1e-42, 6.0]])
    near = near[near <= top]
    x[rng.permutation(count)[: count // 2]] = rng.choice(near, count // 2) * rng.choice([-1, 1], count // 2)
    return x.astype(np.float32)


def expected(words, dtype, element, inverses, packed, ties_to_zero):
    held = np.array(words, np.uint32).view(DTYPES[dtype].numpy).astype(np.float32).reshape(len(inverses), -1)
    y = held * np.array(inverses, np.float32)[:, None]
    if ties_to_zero:
        code = sum(np.abs(y) > np.float32(t) for t in E2M1_THRESHOLDS)
        codes = (code | ((y < 0) & (code > 0)) << 3).astype(np.uint8).ravel()
    else:
        codes = DTYPES[element].encode(y).ravel()
    codes = (codes[::2] | codes[1::2] << 4).astype(np.uint8) if packed else codes
    return codes.view(np.uint32).tolist()


CASES = [("float4_e2m1fn", packed, ties) for packed in (False, True) for ties in (False, True)]
CASES += [("int4", False, False), ("int4", True, False), ("int8", False, False)]


@pytest.mark.parametrize("element, packed, ties_to_zero", CASES)
@pytest.mark.parametrize("dtype", ITEMSIZE)
def test_encode(dtype, element, packed, ties_to_zero, rng):
    top = {"float4_e2m1fn": 6.0, "int4": 7.0, "int8": 127.0}[element]
    for clips in (False, True):
        encode = quantize_registers.encode_for(dtype, element, packed=packed, ties_to_zero=ties_to_zero, clips=clips)
        for inverses in ((np.float32(1), np.float32(0.37)), (np.float32(0.5),)):
            words = words_of(elements(rng, top if not clips else 3 * top if element == "float4_e2m1fn" else top + 0.5), dtype)
            want = expected(words, dtype, element, inverses, packed, ties_to_zero)
            assert [int(w) for w in encode(words, inverses)] == want
            assert [int(w) for w in in_a_thread(lambda e=encode, w=words, i=inverses: e.operation.body(w, i))] == want


@pytest.mark.parametrize("ties_to_zero", [False, True])
def test_beside_every_half_way_point(ties_to_zero):
    """The nearest float32 on both sides of each, in every place of a word; inf and NaN where they are clipped."""
    encode = quantize_registers.encode_for("float32", "float4_e2m1fn", packed=True, ties_to_zero=ties_to_zero)
    around = np.float32(E2M1_THRESHOLDS).view(np.uint32)[:, None] + np.arange(-4, 5, dtype=np.int64).astype(np.uint32)
    for sign in (0, 1 << 31):
        for turn in range(8):
            x = np.roll(np.resize((around | np.uint32(sign)).ravel().view(np.float32), 64), turn)
            words = words_of(x, "float32")
            want = expected(words, "float32", "float4_e2m1fn", (np.float32(1),), True, ties_to_zero)
            assert [int(w) for w in in_a_thread(lambda w=words: encode.operation.body(w, (np.float32(1),)))] == want
    clipped = quantize_registers.encode_for("float32", "float4_e2m1fn", packed=True, ties_to_zero=ties_to_zero, clips=True)
    words = words_of([np.inf, -np.inf, np.nan, 3e38, -7.5, 7, 6, -0.0], "float32")
    code = int(in_a_thread(lambda: clipped.operation.body(words, (np.float32(1),)))[0])
    assert code == (0x077F70F7 if ties_to_zero else 0x877F70F7)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("clips", [False, True])
def test_encode_in_pairs(packed, clips, rng):
    """bfloat16 times a power of two, two at once: every bfloat16 near a half-way point, and of every exponent."""
    encode = quantize_registers.encode_for("bfloat16", "float4_e2m1fn", packed=packed, clips=clips, by_powers=True)
    for exponent in (-127, -100, -1, 0, 1, 90, 126):
        inverse = np.ldexp(np.float32(1), -exponent).astype(np.float32)
        x = elements(rng, 12.0 if clips else 6.0, 64).astype(ml_dtypes.bfloat16).astype(np.float64)
        with np.errstate(over="ignore"):
            x = np.ldexp(x, exponent).astype(np.float32)
        x = np.where(np.isfinite(x), x, 0)
        words = words_of(x, "bfloat16")
        want = expected(words, "bfloat16", "float4_e2m1fn", (inverse,), packed, False)
        assert [int(w) for w in encode(words, (inverse,))] == want
        assert [int(w) for w in in_a_thread(lambda w=words, i=inverse: encode.operation.body(w, (i,)))] == want


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("element, packed, ties_to_zero", CASES)
@pytest.mark.parametrize("dtype", ITEMSIZE)
def test_of_a_nan_all_codes_are_0(dtype, element, packed, ties_to_zero, clips, rng):
    """Also beside elements that are not finite themselves, as where the scale became NaN by them."""
    x = elements(rng, 6.0)
    x[[0, 3, 5, 10]] = np.nan, np.inf, -np.inf, -np.nan
    words = words_of(x, dtype)
    for by_powers in (False, True) if element == "float4_e2m1fn" and not ties_to_zero else (False,):
        encode = quantize_registers.encode_for(dtype, element, packed=packed, ties_to_zero=ties_to_zero, clips=clips, by_powers=by_powers)
        for function in (encode, encode.operation.body):
            with np.errstate(invalid="ignore"):
                found = in_a_thread(lambda f=function: f(words, (np.float32(np.nan), np.float32(1))))
            assert not any(found[: len(found) // 2]) and any(found[len(found) // 2 :])


@pytest.mark.parametrize("dtype", ITEMSIZE)
def test_amax(dtype, rng):
    amax = quantize_registers.amax_for(dtype, 2)
    for poison in (None, np.inf, -np.inf, np.nan):
        x = rng.standard_normal(32).astype(np.float32)
        if poison is not None:
            x[21] = poison
        words = words_of(x, dtype)
        held = np.abs(x.astype(DTYPES[dtype].numpy).astype(np.float32)).reshape(2, 16).max(axis=1)
        for function in (amax, amax.operation.body):
            np.testing.assert_array_equal(np.array(function(words), np.float32), held)


@pytest.mark.parametrize("is_given", [False, True])
def test_scales_below_one_of_the_tensor(is_given, rng):
    """Of every size that a tensor's scale may have: (amax / 6 / whole) to nearest from 2^-6 on, else up; ties, the ends, what is not finite."""
    scale_of, e4m3 = scale_for("nvfp4", "float4_e2m1fn", is_given), DTYPES["float8_e4m3fn"]
    values = e4m3.decode(np.arange(127)).astype(np.float64)

    def scales(amax, whole, codes, inverses):
        i = cuda.threadIdx.x
        code, inverses[i] = scale_of(amax[i], whole)
        codes[i] = u64(code)

    for exponent in (-116, -101, -100, -60, -1, 0, 7, 100, 116, 117, 118):
        if not is_given and not -100 <= exponent <= 116:
            continue  # which no tensor has
        whole = np.float32(np.ldexp(rng.choice([1.0, 1.25, rng.uniform(1, 2)]), exponent))
        sizes = np.concatenate(
            [(values[:-1] + values[1:]) / 2, values, [2.0**-12, 440, *rng.uniform(0, 448, 20), *rng.uniform(0, 0.02, 20)]]
        )
        with np.errstate(all="ignore"):
            amax = (sizes * 6 * np.float64(whole)).astype(np.float32)
            amax = np.concatenate(
                [amax, np.nextafter(amax, np.float32(0)), [0, 1e-45, 2.0**-126, *([np.inf, np.nan, 3e38] if is_given else [])]]
            )
            amax = np.minimum(amax.astype(np.float32), np.float32(np.inf if is_given else 2700 * np.float64(whole)))
            size = np.maximum(amax / np.float32(6) / whole, np.float32(2.0**-9))
            rounded = np.where(size < 2.0**-6, np.ceil(size * 512) / 512, e4m3.decode(e4m3.encode(size))).astype(np.float32)
            inverse = np.float32(1) / (rounded * whole)
            codes = e4m3.encode(rounded).astype(np.uint32)
            inverse[~np.isfinite(amax)], codes[~np.isfinite(amax)] = np.nan, 0x7F
            found, found_inverse = np.zeros(amax.size, np.uint64), np.zeros(amax.size, np.float32)
            emu.run(scales, 1, amax.size, (amax, whole, found, found_inverse))
        assert_array_equal(found, codes)
        assert_array_equal(found_inverse, inverse)


def test_below_a_given_scale_beyond_its_range_no_block_has_one():
    """It cannot be refused where only the GPU can read it. The ends themselves are in the range."""
    scale_of = scale_for("nvfp4", "float4_e2m1fn", True)

    def scales(whole, codes, inverses):
        i = cuda.threadIdx.x
        code, inverses[i] = scale_of(np.float32(1), whole[i])
        codes[i] = u64(code)

    ends = np.array([LEAST_GIVEN, MOST_GIVEN])
    assert np.float32(448) * MOST_GIVEN < np.inf
    beyond = [np.nextafter(ends[0], np.float32(0)), np.nextafter(ends[1], np.float32(np.inf)), 0, -1, np.inf, np.nan]
    whole = np.array([*ends, *beyond], np.float32)
    codes, inverses = np.zeros(whole.size, np.uint64), np.zeros(whole.size, np.float32)
    with np.errstate(all="ignore"):
        emu.run(scales, 1, whole.size, (whole, codes, inverses))
    assert_array_equal(codes == 0x7F, [False] * 2 + [True] * 6)
    assert_array_equal(np.isnan(inverses), [False] * 2 + [True] * 6)


def test_operations_round_as_they_say(rng):
    x, y, z = (rng.standard_normal(200).astype(np.float32) for _ in range(3))
    for a, b, c in zip(x, y, z):
        exact = np.longdouble(a) * np.longdouble(b) + np.longdouble(c)
        up = convert.fma_up(a, b, c)
        assert up >= exact > np.nextafter(up, np.float32(-np.inf))
    for a, b in zip(np.concatenate([x, x * np.float32(2.0**-140), [0.0, -0.0]]).astype(np.float32), np.resize(y, 402)):
        exact, cut = np.float64(a) * np.float64(b), convert.multiply_to_zero(a, b)
        assert abs(cut) <= abs(exact) and np.signbit(cut) == np.signbit(exact)
        assert abs(exact) < abs(np.float64(np.nextafter(cut, np.float32(np.copysign(np.inf, exact)))))
        halves = np.array([convert.f32x2_to_f16x2_to_zero(a, b)], np.uint32).view(np.float16)
        for half, value in zip(halves, (a, b)):
            assert abs(np.float32(half)) <= abs(value) < abs(np.float32(np.nextafter(half, np.float16(np.copysign(np.inf, value)))))
            assert np.signbit(half) == np.signbit(value)
    assert convert.f32x2_to_f16x2_to_zero(np.float32(1e6), np.float32(-np.inf)) == 0xFC007BFF
    assert convert.f32x2_to_f16x2_to_zero(np.float32(np.nan), np.float32(65535)) == 0x7BFF7FFF
    assert convert.multiply_to_zero(np.float32(3e38), np.float32(-2)) == np.finfo(np.float32).min
    pairs = rng.integers(0, 1 << 32, (200, 3), dtype=np.uint64).astype(np.uint32)
    with np.errstate(all="ignore"):
        halves = pairs.view(ml_dtypes.bfloat16).astype(np.float64).reshape(200, 3, 2)
        for (a, b, c), values in zip(pairs, halves):
            found = np.uint32(packed.fma_bf16x2(u32(a), u32(b), u32(c)))
            for half, (i, j, k) in zip(np.array([found]).view(ml_dtypes.bfloat16).astype(np.float64), values.T):
                want = np.longdouble(i) * np.longdouble(j) + np.longdouble(k)
                assert half == want or abs(half - want) <= abs(want) * 2.0**-8 + 2.0**-134 or not np.isfinite(half)
    assert packed.permute_bytes(u32(0x33221180), u32(0x77665544), 0x8740) == 0xFF774480
    assert packed.merge_bits(u32(0x12345678), u32(0x9ABCDEF0), 0x0FF0F00F) == 0x923C5EF8
    assert np.signbit(convert.smaller(np.float32(0.0), np.float32(-0.0))) and convert.smaller(np.float32(np.nan), np.float32(2)) == 2
    assert packed.smaller_bf16x2(u32(0x7FC03F80), u32(0x40004000)) == 0x40003F80
    assert packed.max_magnitude_bf16x2(u32(0x3F803F80), u32(0xC0007FC0)) == 0x40007FFF
    assert packed.max_magnitude_f16x2(u32(0x3C003C00), u32(0xC0003800)) == 0x40003C00
