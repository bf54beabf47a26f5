"""Formats: the list, names with other groups, and combinations that make no sense."""

import pytest

from dgnumba.dtypes import DTYPES
from dgnumba.errors import DTypeError, ProblemError
from dgnumba.quant import FORMATS, MXFP4, MXFP8, NVFP4, Format, as_format, fp8_format, int4_format, mx_format, uint4_format


def test_the_list_knows_itself_by_name():
    assert {name: form.name for name, form in FORMATS.items()} == {name: name for name in FORMATS}
    assert all(as_format(name) is form and as_format(form) is form for name, form in FORMATS.items())


@pytest.mark.parametrize(
    "form, element, granularity, scale, rule",
    [
        (MXFP8, "float8_e4m3fn", (1, 32), "float8_e8m0fnu", "rceil"),
        (MXFP4, "float4_e2m1fn", (1, 32), "float8_e8m0fnu", "rceil"),
        (NVFP4, "float4_e2m1fn", (1, 16), "float8_e4m3fn", "amax"),
        (as_format("int8_row"), "int8", (1, 0), "float32", "amax"),
        (as_format("fp8_128x128"), "float8_e4m3fn", (128, 128), "float32", "amax"),
        (as_format("fp8_64x256"), "float8_e4m3fn", (64, 256), "float32", "amax"),
        (as_format("mxfp4_g64"), "float4_e2m1fn", (1, 64), "float8_e8m0fnu", "rceil"),
        (as_format("mxfp8_g16"), "float8_e4m3fn", (1, 16), "float8_e8m0fnu", "rceil"),
        (int4_format(48, "extremum/-8", "float16"), "int4", (1, 48), "float16", "extremum/-8"),
        (int4_format(-1), "int4", (1, 0), "float32", "amax/7"),
        (as_format("uint4_g24"), "uint4", (1, 24), "float32", "minmax"),
        (mx_format("float6_e3m2fn", "floor"), "float6_e3m2fn", (1, 32), "float8_e8m0fnu", "floor"),
    ],
)
def test_fields(form, element, granularity, scale, rule):
    assert (form.dtype.name, form.granularity, form.scale_dtype.name, form.rule) == (element, granularity, scale, rule)


def test_names():
    assert fp8_format(1, 0).name == "fp8_row" and fp8_format(0, 0).name == "fp8_tensor"
    assert fp8_format(2, 3, "float8_e5m2").name == "fp8_e5m2_2x3"
    assert mx_format("float6_e2m3fn").name == "mxfp6_e2m3" and mx_format("float8_e5m2").name == "mxfp8_e5m2"
    assert uint4_format(0).name == "uint4_row"
    assert repr(int4_format(-1)) == "Format(int4_row: int4, float32 scale by amax/7, one per 1xall)"


@pytest.mark.parametrize("name", ["int4", "fp8", "int4_g0", "int4_g-1", "fp8_0x128", "nvfp4_g32", "mxfp4_g", "", None, 4, "fp8_1x128 "])
def test_unknown_names_are_refused(name):
    with pytest.raises(ProblemError, match="format: expected one of fp8_1x128, .*, or a Format, got"):
        as_format(name)


@pytest.mark.parametrize("name", ["NVFP4", "Int4_G48", "FP8_1x64"])
def test_names_in_any_case(name):
    assert as_format(name) == as_format(name.lower())


@pytest.mark.parametrize("name, meant", [("nvpf4", "nvfp4"), ("int4-g128", "int4_g128"), ("mxpf8", "mxfp8")])
def test_a_misspelt_name_is_guessed(name, meant):
    with pytest.raises(ProblemError, match=f"got '{name}'; did you mean {meant}\\?"):
        as_format(name)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e8m0fnu", "uint8", "int32"])
def test_elements_that_no_quantizer_takes(dtype):
    with pytest.raises(DTypeError, match=f"dtype: expected a signed float of 4 to 8 bits, int4, uint4 or int8, got {dtype}"):
        Format("x", dtype, (1, 32))


@pytest.mark.parametrize(
    "dtype, scale, rule, message",
    [
        ("int4", "float32", "amax", "expected one of amax/7, amax/7.5, extremum/-8 for int4 with float32 scales, got amax"),
        ("int4", "float32", "minmax", "got minmax"),
        ("uint4", "float16", "amax/7", "expected one of minmax for uint4"),
        ("int8", "float32", "rceil", "expected one of amax for int8"),
        ("float8_e4m3fn", "float8_e8m0fnu", "amax", "expected one of rceil, floor, ceil, even"),
        ("float8_e4m3fn", "float32", "rceil", "expected one of amax"),
        ("float4_e2m1fn", "float8_e4m3fn", "floor", "expected one of amax for"),
    ],
)
def test_rules_that_do_not_go_with_their_types(dtype, scale, rule, message):
    with pytest.raises(ProblemError, match=message):
        Format("x", dtype, (1, 32), DTYPES[scale], rule)


@pytest.mark.parametrize(
    "dtype, scale", [("int4", "float8_e8m0fnu"), ("int4", "float8_e4m3fn"), ("float8_e4m3fn", "float64"), ("int8", "int8")]
)
def test_scale_types_that_are_none(dtype, scale):
    with pytest.raises(DTypeError, match=f"scale_dtype: expected float32, float16 or bfloat16 .*, got {scale}"):
        Format("x", dtype, (1, 32), scale)


@pytest.mark.parametrize("granularity", [(-1, 4), (1,), (1, 2, 3)])
def test_granularities_that_are_none(granularity):
    with pytest.raises(ProblemError, match="granularity: expected"):
        Format("x", "float8_e4m3fn", granularity)
