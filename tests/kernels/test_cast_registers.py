"""What a thread of a cast does with its registers: the emulator's short way and the operation's own body are one, and both are the definition."""

import numpy as np
import pytest

from dgnumba import emu
from dgnumba.arithmetic import fma
from dgnumba.dtypes import DTYPES
from dgnumba.integers import u32
from dgnumba.kernels import cast_registers
from dgnumba.kernels.quantize_scales import normal_quotient_for, quotient_for
from dgnumba.ptx import convert

E4M3 = DTYPES["float8_e4m3fn"]


def in_a_thread(function):
    """What `function()` gives when a thread of the emulator calls it."""
    out = []

    def kernel():
        out.append(function())

    emu.run(kernel, 1, 1, ())
    return out[0]


def words_of(values, dtype):
    return tuple(u32(w) for w in np.asarray(values, np.float32).astype(DTYPES[dtype].numpy).view(np.uint32))


def awkward(rng, count):
    """Floats of e4m3's range and beyond: ties, subnormals, zeros of both signs, what is not finite."""
    x = (rng.standard_normal(count) * np.exp2(rng.integers(-12, 11, count))).astype(np.float32)
    codes = E4M3.decode(rng.integers(0, 256, count).astype(np.uint8))
    x[::3] = codes[::3]
    x[1::7] = ((codes[:-1].astype(np.float64) + codes[1:]) / 2).astype(np.float32)[::7][: len(x[1::7])]
    x[:8] = 0.0, -0.0, np.inf, -np.inf, np.nan, 448.0, 464.0, 2.0**-10
    return x


@pytest.mark.parametrize("dtype", cast_registers.ITEMSIZE)
@pytest.mark.parametrize("is_native", [True, False])
def test_encode(dtype, is_native, rng):
    encode = cast_registers.encode_for(dtype, is_native)
    for inverses in ((np.float32(1),), (np.float32(0.3),), tuple(np.exp2(rng.integers(-4, 5, 16)).astype(np.float32))):
        x = awkward(rng, 64)
        words = words_of(x, dtype)
        twin = encode(words, inverses)
        body = in_a_thread(lambda words=words, inverses=inverses: encode.operation.body(words, inverses))
        assert [int(w) for w in twin] == [int(w) for w in body]
        with np.errstate(all="ignore"):
            y = x.astype(DTYPES[dtype].numpy).astype(np.float32).reshape(-1, len(inverses)) * np.array(inverses)
        expected = E4M3.encode(y.reshape(-1), saturate_inf=is_native)
        assert expected.tolist() == np.array(twin, np.uint32).view(np.uint8).tolist()


def test_code_by_arithmetic_is_the_rounding_of_every_sixteenth_binade_step(rng):
    """All values of 12 bits of mantissa around e4m3's binades: every tie, and its neighbours."""
    words = (np.arange(0x3A000000, 0x44000000, 1 << 19, dtype=np.int64)[:, None] + np.array([-1, 0, 1])).reshape(-1).astype(np.uint32)
    values = np.concatenate([words.view(np.float32), -words.view(np.float32)])
    found = [int(cast_registers._code(v)) for v in values]
    assert E4M3.encode(values, saturate_inf=False).tolist() == found


@pytest.mark.parametrize("dtype", cast_registers.ITEMSIZE)
def test_amax(dtype, rng):
    amax, columns = cast_registers.amax_for(dtype), cast_registers.column_amax_for(dtype)
    for poison in (None, np.inf, np.nan):
        x = rng.standard_normal(64).astype(np.float32)
        if poison is not None:
            x[37] = poison
        words = words_of(x, dtype)
        held = np.abs(x.astype(DTYPES[dtype].numpy).astype(np.float32))
        for function in (amax, amax.operation.body):
            np.testing.assert_array_equal(function(words), held.max())
        for function in (columns, columns.operation.body):
            np.testing.assert_array_equal(function(words), held.reshape(4, 16).max(axis=0))


def test_the_conversion_puts_the_first_in_the_low_byte():
    word = convert.f32x4_to_e4m3x4(np.float32(1), np.float32(2), np.float32(-4), np.float32(1e9))
    assert hex(word) == hex(0x7E_C8_40_38)


def test_a_nan_is_the_larger():
    assert np.isnan(convert.max_magnitude(np.float32(np.nan), np.float32(1))) and np.isnan(
        convert.max_magnitude(np.float32(1), np.float32(np.nan))
    )
    assert convert.max_magnitude(np.float32(1), np.float32(-2)) == 2


def test_poison_is_found_by_the_inverse():
    clean, poisoned = np.float32(2.0**-126), np.float32(2.0**-127)
    assert not in_a_thread(lambda: cast_registers.is_any_poisoned((clean, clean)))
    assert in_a_thread(lambda: cast_registers.is_any_poisoned((clean, poisoned)))


def quotients(divisor, x):
    """x / divisor, and as the kernels find it, without a division."""
    inverse = np.float32(1) / np.float32(divisor)
    about = x * inverse
    return x / np.float32(divisor), fma(fma(about, np.full_like(x, -divisor), x), np.full_like(x, inverse), about)


def of_mantissas(mantissas):
    return (mantissas.astype(np.uint32) | np.uint32(0x3F800000)).view(np.float32)


def near_the_last_binade(divisor, steps):
    """Float32 by the number of their steps from divisor * 2^-126 on: below it too."""
    return (np.float32(divisor * 2.0**-126).view(np.uint32).astype(np.int64) + steps).astype(np.uint32).view(np.float32)


DIVISORS = [6.0, 7.0, 7.5, 127.0, 448.0, 2688.0]
TO_THE_LAST = [6.0, 7.0, 127.0, 448.0, 2688.0]  # of 7.5 the remainder may be an odd number of 2^-150


@pytest.mark.parametrize("divisor", DIVISORS)
def test_a_quotient_without_a_division_is_the_true_one(divisor, rng):
    """Of some mantissas, as the device function gives it too; the full run takes all."""
    mantissas = np.concatenate([rng.integers(0, 1 << 23, 100_000), np.arange(2000), (1 << 23) - 1 - np.arange(2000)])
    expected, found = quotients(divisor, of_mantissas(mantissas))
    assert np.array_equal(expected, found)
    quotient = quotient_for(divisor)
    for x in (expected[:300] * np.float32(divisor)).tolist() + [0.0, 1e-40, 2.0**-126, 2.0**-101, 3.4e38, np.inf, np.nan]:
        with np.errstate(all="ignore"):
            assert np.array_equal(np.float32(x) / np.float32(divisor), quotient(np.float32(x)), equal_nan=True)


@pytest.mark.parametrize("divisor", TO_THE_LAST)
def test_a_quotient_of_the_last_normal_binade_is_the_true_one(divisor, rng):
    """And of less 2^-126 or less; of infinity and NaN it is NaN."""
    steps = np.concatenate([rng.integers(-(1 << 23), 1 << 24, 50_000), np.arange(-1000, 1000)])
    expected, found = quotients(divisor, near_the_last_binade(divisor, steps))
    assert np.array_equal(np.maximum(expected, np.float32(2.0**-126)), np.maximum(found, np.float32(2.0**-126)))
    quotient = normal_quotient_for(divisor)
    with np.errstate(all="ignore"):
        for x in near_the_last_binade(divisor, steps[-1500:-500:10]).tolist() + [3.4e38, 1.0, 1e-45, 0.0]:
            true = np.float32(x) / np.float32(divisor)
            assert max(true, 2.0**-126) == max(quotient(np.float32(x)), 2.0**-126)
        assert np.isnan(quotient(np.float32(np.inf))) and np.isnan(quotient(np.float32(np.nan)))


@pytest.mark.full
@pytest.mark.parametrize("divisor", DIVISORS)
def test_a_quotient_of_every_mantissa_is_the_true_one(divisor):
    for part in np.array_split(np.arange(-(1 << 23), 1 << 24), 16) if divisor in TO_THE_LAST else ():
        expected, found = quotients(divisor, near_the_last_binade(divisor, part))
        assert np.array_equal(np.maximum(expected, np.float32(2.0**-126)), np.maximum(found, np.float32(2.0**-126)))
    for part in np.array_split(np.arange(1 << 23), 8):
        expected, found = quotients(divisor, of_mantissas(part))
        assert np.array_equal(expected, found)
