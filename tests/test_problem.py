"""GemmProblem and the checks of fp8_gemm_nt: what is taken, what is refused, and in what words."""

import dataclasses
import re

import ml_dtypes
import numpy as np
import pytest

from dgnumba.dtypes import DTYPES
from dgnumba.errors import DTypeError, ProblemError
from dgnumba.problem import GemmProblem, check_fp8_gemm_nt, scale_shape
from dgnumba.quant import QTensor, per_block_cast_to_fp8, per_token_cast_to_fp8

M, N, K = 6, 200, 300
E4M3, BF16 = ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16


def good():
    """Arguments of a legal call, by name; a test spoils one."""
    return {
        "a": np.full((M, K), 0x38, np.uint8).view(E4M3),
        "sfa": np.ones((M, 3), np.float32),
        "b": np.full((N, K), 0x38, np.uint8).view(E4M3),
        "sfb": np.ones((2, 3), np.float32),
        "d": np.full((M, N), -7, BF16),
        "c": None,
    }


def check(check=None, **changes):
    x = {**good(), **changes}
    return check_fp8_gemm_nt((x["a"], x["sfa"]), (x["b"], x["sfb"]), x["d"], x["c"], check)


def refused(error, match, **changes):
    """The call is refused in these words, and nothing is written."""
    x = {**good(), **changes}
    before = np.array(x["d"])
    with pytest.raises(error, match=match) as caught:
        check(**changes)
    assert np.array_equal(before, np.asarray(x["d"]))
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, TypeError) == (error is DTypeError)


def test_problem_of_a_legal_call():
    x = good()
    operands = check(**x)
    assert operands.problem == GemmProblem(M, N, K)
    assert operands.device is None and operands.c is None
    assert operands.d is x["d"] and operands.sfa is x["sfa"]
    assert operands.a.dtype == np.uint8 and np.shares_memory(operands.a, x["a"])


def test_problem_defaults_and_figures():
    p = GemmProblem(4096, 7168, 2048)
    assert (p.a_dtype, p.d_dtype) == (DTYPES["float8_e4m3fn"], DTYPES["bfloat16"])
    assert (p.gran_a, p.gran_b, p.with_c, p.groups) == ((1, 128), (128, 128), False, 1)
    assert p.flops == 2 * 4096 * 7168 * 2048
    scales = 4 * (4096 * 16 + 56 * 16)
    assert p.bytes == 4096 * 2048 + 7168 * 2048 + scales + 2 * 4096 * 7168
    assert dataclasses.replace(p, with_c=True).bytes - p.bytes == 2 * 4096 * 7168
    assert GemmProblem(1, 1, 1, d_dtype="float32").d_dtype is DTYPES["float32"]
    assert {p: 1}[GemmProblem(4096, 7168, 2048)] == 1
    assert GemmProblem(0, 8, 128).is_empty and not GemmProblem(1, 8, 0).is_empty


def test_F21_sizes_pass_2_to_the_31():
    assert GemmProblem(524289, 1, 4096).flops == 2 * 524289 * 4096
    assert GemmProblem(7168, 1, 300000).bytes > 2**31


@pytest.mark.parametrize(
    "changes, match",
    [
        ({"m": -1}, "expected m, n, k of 0 or more .*, got -1, 1, 1 and 1"),
        ({"groups": 0}, "groups of 1 or more, got 1, 1, 1 and 0"),
        ({"gran_a": (0, 128)}, r"gran_a, gran_b: expected .*, got \(0, 128\)"),
        ({"a_dtype": "float7"}, "dtype: expected one of"),
    ],
)
def test_problem_refuses(changes, match):
    with pytest.raises(ProblemError, match=match):
        GemmProblem(**{"m": 1, "n": 1, "k": 1, **changes})


def test_scale_shape_rounds_up():
    assert scale_shape((300, 1000), (1, 128)) == (300, 8)
    assert scale_shape((5, 0, 129), (128, 128)) == (5, 0, 2)


def test_takes_qtensors_pairs_and_lists():
    x = np.random.default_rng(0).standard_normal((M, K)).astype(np.float32)
    w = np.random.default_rng(1).standard_normal((N, K)).astype(np.float32)
    a, b = per_token_cast_to_fp8(x), per_block_cast_to_fp8(w)
    for pair in (a, tuple(a), list(a)):
        operands = check_fp8_gemm_nt(pair, b)
        assert operands.sfa is a.scale and operands.sfb is b.scale


@pytest.mark.parametrize("out", ["bfloat16", "float16", "float32", DTYPES["float32"]])
def test_allocates_the_output(out):
    x = good()
    operands = check_fp8_gemm_nt((x["a"], x["sfa"]), (x["b"], x["sfb"]), out_dtype=out)
    assert operands.d.shape == (M, N)
    assert operands.d.dtype == operands.problem.d_dtype.numpy


def test_allocates_only_what_kernels_write():
    x = good()
    with pytest.raises(DTypeError, match="out_dtype: expected bfloat16, float16 or float32, got float64"):
        check_fp8_gemm_nt((x["a"], x["sfa"]), (x["b"], x["sfb"]), out_dtype="float64")


def test_F36_codes_as_ml_dtypes_or_bytes():
    plain = check()
    as_bytes = check(a=good()["a"].view(np.uint8), b=good()["b"].view(np.uint8))
    assert np.array_equal(plain.a, as_bytes.a) and plain.problem == as_bytes.problem


@pytest.mark.parametrize("name", ["a", "b"])
def test_F36_other_types_of_one_byte_are_refused(name, tmp_path):
    codes = good()[name]
    np.save(tmp_path / "codes.npy", codes)
    loaded = np.load(tmp_path / "codes.npy")
    expected = rf"{name}: expected float8_e4m3fn \(or its bytes as uint8\) or float8_e5m2, got "
    view = r"; if these are e4m3 codes, view them so: \.view\(ml_dtypes\.float8_e4m3fn\)"
    refused(DTypeError, expected + r"\|V1" + view, **{name: loaded})
    refused(DTypeError, expected + "int8" + view, **{name: codes.view(np.int8)})
    fnuz = codes.view(ml_dtypes.float8_e4m3fnuz)
    refused(DTypeError, expected + "float8_e4m3fnuz; quantize to e4m3 or e5m2", **{name: fnuz})
    refused(DTypeError, expected + "float32; quantize first", **{name: codes.astype(np.float32)})
    refused(DTypeError, expected + "bfloat16; quantize first", **{name: codes.astype(BF16)})
    refused(DTypeError, expected + "int64$", **{name: codes.astype(np.int64)})


@pytest.mark.parametrize("a", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("b", ["float8_e4m3fn", "float8_e5m2"])
def test_e5m2_on_either_side(a, b):
    """By the array's own type, or by the QTensor's where the array holds bytes; the codes travel as bytes either way."""
    x = good()
    typed = check(a=x["a"].view(a), b=x["b"].view(b))
    assert (typed.problem.a_dtype, typed.problem.b_dtype) == (DTYPES[a], DTYPES[b])
    assert np.array_equal(typed.a, x["a"].view(np.uint8)) and typed.b.dtype == np.uint8
    said = check_fp8_gemm_nt(
        QTensor(x["a"].view(np.uint8), x["sfa"], a, (1, 128)), QTensor(x["b"].view(np.uint8), x["sfb"], b, (128, 128)), x["d"]
    )
    assert said.problem == typed.problem


CASTS = {"a": "per_token_cast_to_fp8", "b": "per_block_cast_to_fp8"}


@pytest.mark.parametrize("name", ["a", "b"])
def test_refuses_what_is_no_pair(name):
    x = good()
    pairs = {"a": (x["a"], x["sfa"]), "b": (x["b"], x["sfb"])}
    expected = rf"{name}: expected a QTensor or a pair \(data, scale\), got "
    for bad, got in [
        (x[name], rf"float8_e4m3fn \[\d+, 300\]; its scales are missing: \({name}, sf{name}\)"),
        (np.zeros((2, K), np.float32), rf"float32 \[2, 300\]; quantize it: {CASTS[name]}\({name}\)"),
        (np.zeros((2, K), BF16), rf"bfloat16 \[2, 300\]; quantize it: {CASTS[name]}\({name}\)"),
        (np.zeros((2, K), np.uint8), r"uint8 \[2, 300\]"),  # would unpack into two rows
        (pairs[name] + (1,), "tuple of 3"),
        (None, "NoneType"),
        ("ab", "str"),
    ]:
        with pytest.raises(DTypeError, match=expected + got):
            check_fp8_gemm_nt(**{**pairs, name: bad})
    with pytest.raises(DTypeError, match=rf"sf{name}: expected an array .* got list"):
        check_fp8_gemm_nt(**{**pairs, name: (x[name], [[1.0]])})


@pytest.mark.parametrize(
    "changes, match",
    [
        ({"a": np.zeros(K, np.uint8)}, r"a: expected rank 2, \[M, K\], got \[300\]"),
        (
            {"b": np.zeros((1, N, K), np.uint8)},
            r"b: expected rank 2, \[N, K\], got \[1, 200, 300\]",
        ),
        (
            {"b": np.zeros((K, N), np.uint8)},
            r"b: expected \[N, 300\] \(K = 300 as in a\), got \[300, 200\]; transposed\?",
        ),
        ({"b": np.zeros((N, 299), np.uint8)}, r"b: expected \[N, 300\] .*, got \[200, 299\]$"),
        (
            {"sfa": np.ones((3, M), np.float32)},
            r"sfa: expected float32 \[6, 3\] for a \[6, 300\] \(one per 128 of K\), "
            r"got float32 \[3, 6\]; transposed\?",
        ),
        (
            {"sfb": np.ones((3, 2), np.float32)},
            r"sfb: expected float32 \[2, 3\] for b \[200, 300\] \(one per block of 128x128\), "
            r"got float32 \[3, 2\]; transposed\?",
        ),
        ({"sfb": np.ones((N, 3), np.float32)}, "got .*; these are one per row: quantize b with"),
        ({"sfa": np.ones((1, 3), np.float32)}, "got .*; these are one per block: quantize a with"),
        ({"sfb": np.ones((1, 1), np.float32)}, r"expected float32 \[2, 3\] .*float32 \[1, 1\]$"),
        ({"sfa": np.ones(18, np.float32)}, r"sfa: .* got float32 \[18\]"),
        ({"d": np.zeros((N, M), BF16)}, r"d: expected \[M, N\] = \[6, 200\], .*; transposed\?"),
        ({"d": np.zeros((M, N + 1), BF16)}, r"d: expected \[M, N\] = \[6, 200\], got \[6, 201\]$"),
        ({"c": np.zeros((N, M), BF16)}, r"c: expected \[M, N\] = \[6, 200\] as d, .*transposed\?"),
    ],
)
def test_refuses_shapes(changes, match):
    refused(ProblemError, match, **changes)


def test_F11_joined_weights_have_too_many_scale_rows():
    b = np.zeros((384, K), np.uint8)
    refused(
        ProblemError,
        r"sfb: expected float32 \[3, 3\] for b \[384, 300\]",
        b=b,
        sfb=np.ones((4, 3), np.float32),
        d=np.zeros((M, 384), BF16),
    )


def test_refuses_other_granularities():
    a = per_token_cast_to_fp8(np.ones((M, K), np.float32))
    with pytest.raises(ProblemError, match="b: expected a scale for each 128x128, got 1x128"):
        check_fp8_gemm_nt(a, a)
    b = per_block_cast_to_fp8(np.ones((M, K), np.float32))
    with pytest.raises(ProblemError, match="a: expected a scale for each 1x128, got 128x128"):
        check_fp8_gemm_nt(b, b)
    fine = per_token_cast_to_fp8(np.ones((M, K), np.float32), gran_k=32)
    with pytest.raises(ProblemError, match="a: expected a scale for each 1x128, got 1x32"):
        check_fp8_gemm_nt(fine, b)


@pytest.mark.parametrize("name", ["sfa", "sfb"])
def test_F15_only_float32_or_packed_scales(name):
    expected = f"{name}: expected float32 scales, or int32 of four UE8M0 each, got "
    scale = good()[name]
    refused(DTypeError, expected + r"uint32; .*view them so: \.view\('int32'\)", **{name: scale.astype(np.uint32)})
    rows, blocks = scale.shape
    words = -(-blocks // 4)
    wrong = np.zeros((rows, words + 1), np.int32)
    refused(
        ProblemError,
        rf"{name}: expected int32 \[{rows}, {words}\] .*four UE8M0 to a word.*, got int32 \[{rows}, {words + 1}\]",
        **{name: wrong},
    )
    nan = np.full((rows, words), 0x7F7F7FFF, np.int32)
    refused(ProblemError, rf"{name}: expected finite UE8M0 scales, got byte 255, a NaN, at \[0, 0\]", **{name: nan})
    e8m0 = scale.astype(ml_dtypes.float8_e8m0fnu)
    convert = r"; convert with \.astype\('float32'\)"
    refused(DTypeError, expected + "float8_e8m0fnu" + convert, **{name: e8m0})
    refused(DTypeError, expected + "float64" + convert, **{name: scale.astype(np.float64)})


@pytest.mark.parametrize("name", ["sfa", "sfb"])
@pytest.mark.parametrize("bad", [-3.4028235e38, np.nan, np.inf, -1.0])
def test_F10_bad_scales_are_seen_when_checked(name, bad):
    scale = good()[name]
    scale[1, 2] = bad
    match = re.escape(f"{name}: expected finite scales of 0 or more, got {bad:g} at [1, 2] (1 such")
    refused(ProblemError, match, **{name: scale})
    refused(ProblemError, match, **{name: scale, "check": True})
    assert getattr(check(**{name: scale, "check": False}), name) is scale


@pytest.mark.parametrize("legal", [0.0, -0.0, 1e-45, 3.4028235e38])
def test_F10_zero_is_a_legal_scale(legal):
    sfa = good()["sfa"]
    sfa[0, 0] = legal
    assert check(sfa=sfa, check=True).sfa is sfa


def test_refuses_output_types():
    expected = r"d: expected bfloat16 \(or its bits as uint16\), float16 or float32, got "
    refused(DTypeError, expected + "int16", d=np.zeros((M, N), np.int16))
    refused(DTypeError, expected + "float64", d=np.zeros((M, N)))
    with pytest.raises(DTypeError, match=r"d: expected an array .* got list"):
        check(d=[[0.0]])
    assert check(d=np.zeros((M, N), np.uint16)).problem.d_dtype is DTYPES["bfloat16"]
    assert check(d=np.zeros((M, N), np.float16)).problem.d_dtype is DTYPES["float16"]
    assert check(d=np.zeros((M, N), np.float32)).problem.d_dtype is DTYPES["float32"]


def test_F22_c_must_be_like_d():
    refused(DTypeError, "c: expected bfloat16 as d, got float16", c=np.zeros((M, N), np.float16))
    refused(DTypeError, "c: expected bfloat16 as d, got float32", c=np.zeros((M, N), np.float32))
    refused(DTypeError, "c: expected bfloat16 .*, got int32", c=np.zeros((M, N), np.int32))
    c = np.zeros((M, N), BF16)
    operands = check(c=c)
    assert operands.c is c and operands.problem.with_c


def test_read_only_output():
    d = good()["d"]
    d.flags.writeable = False
    refused(ProblemError, "d: expected an array that can be written, got a read-only one", d=d)


def test_read_only_inputs_are_taken():
    x = good()
    for name in ("a", "sfa", "b", "sfb"):
        x[name].flags.writeable = False
    assert check(**x).problem == GemmProblem(M, N, K)


@pytest.mark.parametrize("name", ["a", "sfa", "b", "sfb"])
def test_overlapping_output(name):
    pool = np.zeros(1 << 20, np.uint8)
    x = good()
    d = pool[: 2 * M * N].view(BF16).reshape(M, N)
    part = pool[2 * M * N - 8 :][: x[name].nbytes].view(x[name].dtype).reshape(x[name].shape)
    match = f"d: expected memory of its own, got memory that overlaps {name}$"
    refused(ProblemError, match, d=d, **{name: part}, check=False)
    beside = pool[2 * M * N :][: x[name].nbytes].view(x[name].dtype).reshape(x[name].shape)
    assert check(d=d, **{name: beside}, check=False).d is d


def test_output_columns_beside_what_is_read():
    frame = np.zeros((M, 2 * N), BF16)
    operands = check(d=frame[:, :N], c=frame[:, N:])
    assert operands.problem.with_c


def test_F22_c_may_be_d_but_not_half_of_it():
    frame = np.zeros((M + 1, N), BF16)
    d = frame[:M]
    assert check(d=d, c=frame[:M]).problem.with_c
    match = "overlaps c in another place"
    refused(ProblemError, match, d=d, c=frame[1:])
    refused(ProblemError, match, d=d, c=d[::-1])


def test_output_that_overlaps_itself():
    row = np.zeros(N + M, BF16)
    d = np.lib.stride_tricks.as_strided(row, (M, N), (2, 2))
    refused(ProblemError, r"d: expected elements of their own memory, got byte strides \[2, 2\]", d=d)
    d = np.lib.stride_tricks.as_strided(row, (M, N), (0, 2))
    refused(ProblemError, r"got byte strides \[0, 2\]", d=d)


def test_F13_F20_any_strides_are_taken():
    x = good()
    d = np.zeros((N, M), BF16).T
    a = np.zeros((2 * M, K), np.uint8)[::-2]
    operands = check(a=a, sfa=np.asfortranarray(x["sfa"]), b=np.asfortranarray(x["b"]), d=d)
    assert operands.d is d and operands.a.strides == (-2 * K, 1)


@pytest.mark.parametrize("m, n, k", [(0, 8, 128), (8, 0, 128), (8, 8, 0), (0, 0, 0)])
def test_F17_empty_extents_are_legal(m, n, k):
    kb = -(-k // 128)
    operands = check_fp8_gemm_nt(
        (np.zeros((m, k), np.uint8), np.ones((m, kb), np.float32)),
        (np.zeros((n, k), np.uint8), np.ones((-(-n // 128), kb), np.float32)),
    )
    assert operands.problem == GemmProblem(m, n, k) and operands.d.shape == (m, n)


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "float8_e4m3fnuz"},  # bytes, which alone would pass for e4m3
        {"dtype": "int8"},
        {"zero_point": np.zeros((2, 1), np.uint8)},
        {"global_scale": np.float32(2)},
        {"g_idx": np.zeros(128, np.int32)},
        {"scale": np.ones((2, 1), np.float16)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_qtensor_that_is_more_than_fp8_and_float32_scales_is_refused(change):
    parts = {"data": np.zeros((2, 128), np.uint8), "scale": np.ones((2, 1), np.float32), "dtype": "float8_e4m3fn", "granularity": (1, 128)}
    b = QTensor(np.zeros((128, 128), np.uint8), np.ones((1, 1), np.float32), "float8_e4m3fn", (128, 128))
    check_fp8_gemm_nt(QTensor(**parts), b)
    with pytest.raises(DTypeError, match=r"a: expected a QTensor of float8_e4m3fn or float8_e5m2 with float32 scales alone, got QTensor\("):
        check_fp8_gemm_nt(QTensor(**{**parts, **change}), b)


def test_weights_of_4_bits_are_shown_to_their_own_product():
    data, scale = np.zeros((2, 64), np.uint8), np.ones((2, 1), np.float32)
    a = QTensor(np.zeros((2, 128), np.uint8), scale, "float8_e4m3fn", (1, 128))
    with pytest.raises(DTypeError, match=r"b: expected a QTensor of .*; for weights of 4 bits: int4_gemm_nt\(a, b\), explain_int4\(a, b\)"):
        check_fp8_gemm_nt(a, QTensor(data, scale, "int4", (1, 128)))
