"""dtypes: every code of every small type, and the integer encoder against ml_dtypes."""

import copy
import dataclasses
import pickle

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgnumba.dtypes import DTYPES, as_dtype
from dgnumba.errors import DTypeError, ProblemError

SMALL = [name for name, row in DTYPES.items() if row.is_float and row.is_signed and row.bits <= 16]
INTEGERS = ["int4", "uint4", "int8", "uint8"]


def all_codes(dtype):
    return np.arange(1 << dtype.bits).astype(f"u{dtype.itemsize}")


def by_ml_dtypes(x, dtype):
    """The oracle: clamp (and for integers round), then the cast of ml_dtypes (or NumPy)."""
    with np.errstate(invalid="ignore", over="ignore"):
        x = x if dtype.is_float else np.rint(x)
        clamped = np.clip(x, np.float32(dtype.min), np.float32(dtype.max))
        codes = clamped.astype(dtype.numpy).view(f"u{dtype.itemsize}")
    return codes & ((1 << dtype.bits) - 1) if dtype.bits < 8 else codes


def assert_encodes_as_ml_dtypes(x, dtype):
    expected, actual = by_ml_dtypes(x, dtype), dtype.encode(x)
    nan = np.isnan(x)
    wrong = np.flatnonzero((expected != actual) & ~nan)
    assert wrong.size == 0, (x[wrong[0]].hex(), hex(expected[wrong[0]]), hex(actual[wrong[0]]))
    of_nan = dtype.decode(actual[nan])
    assert np.isnan(of_nan).all() if dtype.has_nan else not of_nan.any()


@pytest.mark.parametrize("name", DTYPES)
def test_rows_agree_with_numpy(name):
    row = DTYPES[name]
    assert row.name == row.numpy.name == name
    assert row.itemsize * 8 == max(row.bits, 8)
    info = ml_dtypes.finfo(row.numpy) if row.is_float else ml_dtypes.iinfo(row.numpy)
    assert (row.min, row.max) == ((float(info.min), float(info.max)) if row.is_float else (info.min, info.max))
    assert row.is_signed == (info.min < 0)
    if row.is_float and row.is_signed:
        assert (row.exponent, row.mantissa) == (
            info.iexp if info.iexp > 0 else info.nexp,
            info.nmant,
        )
        assert row.min_normal == float(info.smallest_normal)
        assert row.min_subnormal == float(info.smallest_subnormal)
        assert row.unit_roundoff == float(info.eps) / 2


def test_format_facts_of_fp8():
    e4m3, e5m2 = DTYPES["float8_e4m3fn"], DTYPES["float8_e5m2"]
    assert (e4m3.bias, e4m3.max, e4m3.max_code, e4m3.nan_code) == (7, 448.0, 0x7E, 0x7F)
    assert (e4m3.min_normal, e4m3.min_subnormal) == (2.0**-6, 2.0**-9)
    assert (e5m2.bias, e5m2.max, e5m2.max_code) == (15, 57344.0, 0x7B)
    assert (e4m3.ptx, e4m3.tma, e4m3.unit_roundoff) == ("e4m3", "UINT8", 2.0**-4)


@pytest.mark.parametrize("name", [*SMALL, *INTEGERS, "float8_e8m0fnu"])
def test_decode_every_code(name):
    row = DTYPES[name]
    codes = all_codes(row)
    expected = codes.view(row.numpy).astype(np.float32)
    actual = row.decode(codes)
    number = ~np.isnan(expected)
    assert np.array_equal(number, ~np.isnan(actual))
    assert np.array_equal(expected[number].view(np.uint32), actual[number].view(np.uint32))


def test_F08_only_two_codes_of_e4m3_are_nan():
    row = DTYPES["float8_e4m3fn"]
    assert np.flatnonzero(np.isnan(row.decode(all_codes(row)))).tolist() == [127, 255]


@pytest.mark.parametrize("name", [*SMALL, *INTEGERS])
def test_encode_inverts_decode(name):
    row = DTYPES[name]
    codes = all_codes(row)
    values = row.decode(codes)
    finite = np.isfinite(values)
    assert np.array_equal(codes[finite], row.encode(values[finite]))
    noise = np.random.default_rng(0).integers(0, 1 << 32, codes.shape, dtype=np.uint32)
    assert np.array_equal(codes[finite], row.encode(values[finite], random=noise[finite]))


@pytest.mark.parametrize("name", SMALL)
def test_encode_at_every_half_way_point_and_beside_it(name):
    row = DTYPES[name]
    positive = np.arange(row.max_code + 1)
    values = row.decode(positive).astype(np.float64)
    half = ((values[:-1] + values[1:]) / 2).astype(np.float32)
    assert np.array_equal((values[:-1] + values[1:]) / 2, half)  # half-way points are float32
    # Above the largest: the point from which a wider format would round up, and all the way out.
    top = np.float32(row.max) * np.float32([1.0, 1.03, 1.0714286, 1.5])[: 4 if row.bits <= 8 else 1]
    points = np.concatenate([half, values.astype(np.float32), top])
    near = [points, np.nextafter(points, np.float32(np.inf)), np.nextafter(points, -np.float32(1))]
    for x in near:
        assert_encodes_as_ml_dtypes(x, row)
        assert_encodes_as_ml_dtypes(-x, row)


@pytest.mark.parametrize("name", SMALL)
def test_encode_random_bit_patterns(name):
    row = DTYPES[name]
    rng = np.random.default_rng(1)
    x = rng.integers(0, 1 << 32, 3_000_000, dtype=np.uint32).view(np.float32)
    assert_encodes_as_ml_dtypes(x, row)
    # Uniform bits seldom fall in the range of a small type: again over its binades.
    top = min(np.log2(row.max) + 1, 127.9)
    spread = np.exp2(rng.uniform(-row.bias - row.mantissa - 2, top, 1_000_000))
    spread *= rng.choice([-1, 1], spread.shape)
    assert_encodes_as_ml_dtypes(spread.astype(np.float32), row)


@given(st.lists(st.floats(width=32), min_size=1))
def test_encode_any_float(values):
    for name in [*SMALL, *INTEGERS]:
        assert_encodes_as_ml_dtypes(np.float32(values), DTYPES[name])


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_round_to_even_and_clamp(name):
    row = DTYPES[name]
    x = np.arange(row.min - 3, row.max + 3, 0.25, dtype=np.float32)
    assert_encodes_as_ml_dtypes(x, row)
    assert row.decode(row.encode(np.float32([np.inf, -np.inf, np.nan, -0.0]))).tolist() == [row.max, row.min, 0, 0]


def test_F26_int4_clamps_where_a_cast_wraps():
    codes = DTYPES["int4"].encode(np.float32([8, -9, 300, -8, -1, 1.5, 7.9]))
    assert DTYPES["int4"].decode(codes).tolist() == [7, -8, 7, -8, -1, 2, 7]
    assert codes[3:5].tolist() == [0x8, 0xF]  # the nibble alone, no sign extension


def test_e2m1_rounds_ties_to_even_and_has_no_nan():
    x = np.float32([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 100.0, np.inf, np.nan, -0.0, -5.0])
    codes = DTYPES["float4_e2m1fn"].encode(x)
    assert DTYPES["float4_e2m1fn"].decode(codes).tolist() == [0, 1, 1, 2, 2, 4, 4, 6, 6, 0, 0, -4]
    assert codes.tolist()[-2:] == [0x8, 0xE]


@pytest.mark.parametrize("name", ["float8_e4m3fnuz", "float8_e5m2fnuz"])
def test_fnuz_types_spend_minus_zero_on_nan(name):
    row = DTYPES[name]
    x = np.float32([np.nan, -np.nan, -0.0, -(2.0**-30), np.inf, -np.inf])
    assert row.encode(x).tolist() == [0x80, 0x80, 0, 0, 0x7F, 0xFF]
    assert row.encode(x, saturate_inf=False).tolist() == [0x80, 0x80, 0, 0, 0x80, 0x80]


def test_exactness_facts():
    """peers-formats-bounds.md 2.7: which types hold which."""
    integers = np.arange(-15.0, 16.0, dtype=np.float32)
    for values, wide in [
        (integers, ["float8_e4m3fn", "bfloat16", "float16", "int8"]),
        (DTYPES["float4_e2m1fn"].decode(np.arange(16)), ["float8_e4m3fn"]),
        (DTYPES["float8_e4m3fn"].decode(np.arange(127)), ["float16", "bfloat16"]),
        (DTYPES["float8_e5m2"].decode(np.arange(124)), ["float16", "bfloat16"]),
    ]:
        for name in wide:
            assert np.array_equal(DTYPES[name].decode(DTYPES[name].encode(values)), values)
    ramp = DTYPES["float8_e4m3fn"].decode(np.arange(16))
    assert np.array_equal(ramp, np.arange(16) * np.float32(2.0**-9))  # a nibble, read as e4m3, times 2^9


def stochastic(row, x, word):
    return row.decode(row.encode(x, random=np.full(x.shape, word, np.uint32)))


@pytest.mark.parametrize("part", [2.0**-9, 0.25, 0.5, 0.75])
@pytest.mark.parametrize("name", [*SMALL, *INTEGERS])
def test_stochastic_rounding_goes_up_below_the_share_of_the_distance(name, part):
    row = DTYPES[name]
    values = row.decode(np.arange(min(row.max_code if row.is_float else int(row.max), 300) + 1))
    low, high = values[:-1], values[1:]
    x = low + np.float32(part) * (high - low)  # exact
    threshold = int(part * 2**32)
    for word in (0, threshold - 256, threshold, 2**32 - 1):  # integers: steps of 2^-24
        assert np.array_equal(np.where(word < threshold, high, low), stochastic(row, x, word))
    if row.is_float:  # the distance from zero counts
        assert np.array_equal(-high, stochastic(row, -x, threshold - 1))
        assert np.array_equal(-low, stochastic(row, -x, threshold) + 0.0)
    elif row.is_signed:  # the distance from the next lower one
        assert np.array_equal(-low, stochastic(row, -x, 2**32 - threshold - 256) + 0.0)
        assert np.array_equal(-high, stochastic(row, -x, 2**32 - threshold))


def test_stochastic_rounding_of_what_is_far_below_the_smallest():
    x = np.float32([2.0**-9 * 2.0**-20, 2.0**-149])
    e4m3 = DTYPES["float8_e4m3fn"]
    assert stochastic(e4m3, x, 2**12 - 1).tolist() == [2.0**-9, 0]
    assert stochastic(e4m3, x, 2**12).tolist() == [0, 0]


def test_F03_encode_saturates_where_a_cast_gives_nan():
    x = np.float32([447, 448, 449, 464, 465, 1000, 1e30, -1000, np.inf, -np.inf])
    codes = DTYPES["float8_e4m3fn"].encode(x)
    assert codes.tolist() == [0x7E] * 7 + [0xFE, 0x7E, 0xFE]


def test_infinity_can_be_kept():
    x = np.float32([np.inf, -np.inf, 1e30])
    assert DTYPES["float8_e4m3fn"].encode(x, saturate_inf=False).tolist() == [0x7F, 0xFF, 0x7E]
    assert DTYPES["float8_e5m2"].encode(x, saturate_inf=False).tolist() == [0x7C, 0xFC, 0x7B]


def test_F08_signed_zero_tiny_negatives_and_subnormal_codes():
    x = [-0.0, 0.0, -1e-12, 2**-9, 2**-10, 1.0001 * 2**-10, 1.5 * 2**-10, 7.5 * 2**-9]
    x = np.float32([*x, 2**-6, 4.25, 4.75])
    codes = DTYPES["float8_e4m3fn"].encode(x)
    assert bytes(codes) == bytes.fromhex("80 00 80 01 00 01 01 08 08 48 4A")


def test_encode_keeps_shape_and_takes_any_strides():
    row = DTYPES["float8_e4m3fn"]
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    assert np.array_equal(row.encode(x).T, row.encode(x.T))
    assert row.encode(np.float32(1.0)).shape == ()
    assert row.encode(x[:0]).shape == (0, 6)


def test_as_dtype_by_any_name():
    row = DTYPES["bfloat16"]
    for x in (row, "bfloat16", ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16)):
        assert as_dtype(x) is row

    class TorchDtype:
        def __str__(self):
            return "torch.float8_e4m3fn"

    assert as_dtype(TorchDtype()) is DTYPES["float8_e4m3fn"]
    assert as_dtype(np.uint8) is DTYPES["uint8"]


@pytest.mark.parametrize("x", ["float7", "V1", np.dtype("V1"), np.complex64, None, object()])
def test_as_dtype_refuses(x):
    with pytest.raises(DTypeError, match="dtype: expected one of") as caught:
        as_dtype(x)
    assert isinstance(caught.value, (ProblemError, ValueError, TypeError))


@pytest.mark.parametrize("name", ["float32", "int32", "float64", "float8_e8m0fnu"])
def test_encode_refuses_what_is_no_small_float(name):
    with pytest.raises(DTypeError, match="encode: expected a float type of 16 bits or fewer"):
        DTYPES[name].encode(np.zeros(1, np.float32))


def test_rows_can_be_keys_and_read_as_their_names():
    assert len({row: 1 for row in DTYPES.values()}) == len(DTYPES)
    assert repr(DTYPES["float8_e4m3fn"]) == "float8_e4m3fn"


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_a_type_stays_itself_in_another_process_and_in_a_copy(dtype):
    """`is` tells types apart; a QTensor that another process made is as good as one's own."""
    assert pickle.loads(pickle.dumps(dtype)) is dtype and copy.deepcopy(dtype) is dtype


def test_a_type_that_another_version_pickled_is_refused_by_name():
    with pytest.raises(DTypeError, match="dtype: expected one of .*; got float3_e1m1fn"):
        pickle.loads(pickle.dumps(dataclasses.replace(DTYPES["float4_e2m1fn"], name="float3_e1m1fn")))
