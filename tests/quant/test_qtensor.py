"""QTensor: unpacks, dequantizes by the definition, refuses what does not fit."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgnumba.dtypes import DTYPES
from dgnumba.errors import DTypeError, ProblemError
from dgnumba.quant.qtensor import QTensor, expand
from dgnumba.testing import finite_codes, random_scales

E4M3 = DTYPES["float8_e4m3fn"]


def make(shape, scale_shape, granularity=(128, 128), dtype="float8_e4m3fn"):
    return QTensor(np.full(shape, 0x38, np.uint8), np.ones(scale_shape, np.float32), dtype, granularity)


def test_unpacks_as_a_pair():
    q = make((300, 128), (3, 1))
    data, scale = q
    assert data is q.data and scale is q.scale and len(q) == 2
    assert q[0] is data and q[1] is scale
    assert repr(q) == "QTensor(float8_e4m3fn [300, 128], scale float32 [3, 1], one per 128x128)"
    assert q.shape == (300, 128)


def test_F11_a_partial_last_block_has_its_own_scale():
    q = QTensor(np.full((300, 128), 0x38, np.uint8), np.float32([[1], [2], [4]]), E4M3, (128, 128))
    assert q.dequantize()[[127, 128, 255, 256, 299], 0].tolist() == [1, 2, 2, 4, 4]


@pytest.mark.parametrize(
    "shape, scale, expected",
    [
        (
            (384, 128),
            (4, 1),
            r"^scale: expected float32 \[3, 1\] .* got float32 \[4, 1\]$",
        ),  # joined weights
        ((256, 256), (1, 1), r"expected float32 \[2, 2\] .* got float32 \[1, 1\]$"),  # broadcast
        ((256, 128), (1, 2), r"got float32 \[1, 2\]; transposed\?$"),
        ((3, 256, 128), (3, 1, 2), r"expected float32 \[3, 2, 1\] .*; transposed\?$"),  # a stack
    ],
)
def test_F11_scales_must_fit(shape, scale, expected):
    with pytest.raises(ProblemError, match=expected):
        make(shape, scale)


def test_refuses_wrong_types_and_ranks():
    codes, scale = np.zeros((4, 4), np.uint8), np.ones((1, 1), np.float32)
    with pytest.raises(DTypeError, match=r"data: expected float8_e4m3fn or its codes .* got int8"):
        QTensor(codes.view(np.int8), scale, E4M3, (128, 128))
    with pytest.raises(DTypeError, match="got float8_e5m2"):
        QTensor(codes.view(ml_dtypes.float8_e5m2), scale, E4M3, (128, 128))
    with pytest.raises(DTypeError, match="scale: expected float32 or a float type of 8 or 16 bits, got float64"):
        QTensor(codes, scale.astype(float), E4M3, (128, 128))
    with pytest.raises(ProblemError, match="data: expected rank 2 or more"):
        QTensor(codes[0], scale, E4M3, (128, 128))
    with pytest.raises(ProblemError, match="granularity: expected 1 or more"):
        QTensor(codes, scale, E4M3, (0, 128))
    with pytest.raises(DTypeError, match="dtype: expected float32 or float64, got bfloat16"):
        make((4, 4), (1, 1)).dequantize("bfloat16")


@given(st.integers(0, 9), st.integers(0, 9), st.integers(1, 5), st.integers(1, 5))
def test_dequantize_by_the_definition(rows, columns, gm, gk):
    rng = np.random.default_rng(rows * 10 + columns)
    codes = finite_codes(rng, (2, rows, columns))
    scale = random_scales(rng, (2, -(-rows // gm), -(-columns // gk)))
    q = QTensor(codes, scale, E4M3, (gm, gk))
    exact = q.dequantize("float64")
    for g, r, c in np.ndindex(exact.shape):
        expected = float(codes[g, r, c]) * float(scale[g, r // gm, c // gk])
        assert expected == exact[g, r, c]
    assert np.array_equal(exact.astype(np.float32), q.dequantize())
    assert q.dequantize().dtype == np.float32 and exact.dtype == np.float64


def test_expand_repeats_over_blocks_and_cuts():
    scale = np.float32([[1, 2], [3, 4]])
    assert expand(scale, (2, 3), (3, 4)).tolist() == [[1, 1, 1, 2], [1, 1, 1, 2], [3, 3, 3, 4]]


def test_other_types_decode_too():
    q = QTensor(np.array([[0x3C, 0x7B]], np.uint8), np.ones((1, 1), np.float32), "float8_e5m2", (1, 2))
    assert q.dequantize().tolist() == [[1.0, 57344.0]]


def dequantized_by_hand(q):
    """The formula of the class, element by element in Python's floats."""
    values, (gm, gk) = np.zeros(q.shape), q.granularity
    elements, scales = q.dtype.decode(q.codes), q.scales
    for *g, r, c in np.ndindex(*q.shape):
        block = (*g, r // gm, c // gk if q.g_idx is None else int(q.g_idx[c]))
        zero = 0.0 if q.zero_point is None else float(q.zero_point[block])
        whole = 1.0 if q.global_scale is None else float(np.broadcast_to(q.global_scale, q.shape[:-2])[tuple(g)])
        values[(*g, r, c)] = (float(elements[(*g, r, c)]) - zero) * float(scales[block]) * whole
    return values


SCALES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float8_e4m3fn": ml_dtypes.float8_e4m3fn}


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int8", "float4_e2m1fn", "float6_e2m3fn", "float8_e5m2fnuz"])
@pytest.mark.parametrize("scale", [*SCALES, "float8_e8m0fnu"])
def test_every_element_and_scale_type(dtype, scale):
    rng, row = np.random.default_rng(0), DTYPES[dtype]
    codes = rng.integers(0, row.max_code if row.is_float else 1 << row.bits, (5, 7), dtype=np.uint8)
    scales = rng.integers(120, 130, (3, 2), dtype=np.uint8).view(DTYPES["float8_e8m0fnu"].numpy)
    scales = scales if scale not in SCALES else rng.uniform(0.5, 4, (3, 2)).astype(SCALES[scale])
    q = QTensor(codes.view(row.numpy), scales, dtype, (2, 4))
    assert np.array_equal(dequantized_by_hand(q), q.dequantize("float64"))
    assert np.array_equal(q.dequantize("float64").astype(np.float32), q.dequantize())
    assert (q.scale_dtype.name, q.scales.dtype) == (scale, np.float32)
    raw = QTensor(codes, scales.view(f"u{scales.itemsize}"), dtype, (2, 4), scale_dtype=scale)
    assert np.array_equal(q.dequantize(), raw.dequantize())


@pytest.mark.parametrize("kind", [np.uint8, np.int32, np.float32, ml_dtypes.uint4, ml_dtypes.bfloat16])
def test_zero_points_of_any_type_are_taken_off(kind):
    codes = np.arange(16, dtype=np.uint8).reshape(2, 8)
    zero = np.array([[0, 15], [8, 7]]).astype(kind)
    q = QTensor(codes.view(ml_dtypes.uint4), np.float16([[1, 2], [0.5, 4]]), "uint4", (1, 4), zero_point=zero)
    assert np.array_equal(dequantized_by_hand(q), q.dequantize("float64"))
    assert q.dequantize()[1].tolist() == [0, 0.5, 1, 1.5, 20, 24, 28, 32]
    assert "zero points" in repr(q)


def test_a_float_zero_point_as_of_hqq():
    q = QTensor(np.uint8([[3]]), np.float32([[2]]), "uint4", (1, 1), zero_point=np.float32([[0.25]]))
    assert q.dequantize().tolist() == [[5.5]]


def test_a_global_scale_multiplies_and_is_rounded_with_the_scale():
    codes, scale = np.uint8([[7, 2]]), np.float32([[3.0]]).astype(ml_dtypes.float8_e4m3fn)
    third = np.float32(1 / 3)
    q = QTensor(codes, scale, "float4_e2m1fn", (1, 2), global_scale=third)
    assert q.block_scales.tolist() == [[np.float32(3 * float(third))]] and q.scales.tolist() == [[3.0]]
    assert q.dequantize("float64").tolist() == [[18 * float(third), 3 * float(third)]]
    assert q.dequantize().tolist() == [[6.0, 1.0]]
    inverse = QTensor(codes, scale, "float4_e2m1fn", (1, 2), global_scale=1 / 3)  # float64 stays
    assert inverse.global_scale.dtype == np.float64 and inverse.dequantize("float64").tolist() == [[6.0, 1.0]]


def test_each_matrix_of_a_stack_has_its_global_scale():
    q = QTensor(np.full((2, 1, 2), 2, np.uint8), np.ones((2, 1, 1), np.float32), "float4_e2m1fn", (1, 2), global_scale=np.float32([2, 4]))
    assert q.dequantize().tolist() == [[[2, 2]], [[4, 4]]]
    assert q.matrix((1,)).dequantize().tolist() == [[4, 4]] and q.matrix((1,)).shape == (1, 2)


def test_F27_act_order_takes_each_columns_own_group():
    codes = np.ones((1, 4), np.uint8)
    q = QTensor(codes, np.float32([[1, 10]]), "int4", (1, 2), g_idx=np.int32([0, 1, 0, 1]))
    assert q.dequantize().tolist() == [[1, 10, 1, 10]]
    for bad, message in (
        ([0, 1, 2, 0], "groups 0 to 1, got 0 to 2"),
        ([0, -1, 0, 0], "got -1 to 0"),
        ([0, 1], r"integers \[4\], one a column"),
    ):
        with pytest.raises(ProblemError, match=f"g_idx: expected .*{message}"):
            QTensor(codes, np.float32([[1, 10]]), "int4", (1, 2), g_idx=np.int32(bad))


def test_F26_a_code_of_four_bits_stands_alone_in_its_byte():
    extended = np.int8([[-8, -1, 7, 1]]).view(np.uint8)  # sign-extended bytes from elsewhere
    q = QTensor(extended, np.ones((1, 1), np.float32), "int4", (1, 4))
    assert q.codes.tolist() == [[8, 15, 7, 1]] and q.dequantize().tolist() == [[-8, -1, 7, 1]]
    own = np.array([[-8, -1, 7, 1]], ml_dtypes.int4)
    assert QTensor(own, np.ones((1, 1), np.float32), "int4", (1, 4)).codes.tolist() == [[8, 15, 7, 1]]


def test_packed_data():
    q = QTensor(np.uint8([[0x21, 0x43], [0xFF, 0x80]]), np.float32([[1], [2]]), "int4", (1, 3), packing="low_first", extents=(2, 3))
    assert q.shape == (2, 3) and q.codes.tolist() == [[1, 2, 3], [15, 15, 0]]
    assert q.dequantize().tolist() == [[1, 2, 3], [-2, -2, 0]]
    assert repr(q) == "QTensor(int4 [2, 3] packed low_first, scale float32 [2, 1], one per 1x3)"
    plain = q.unpacked()
    assert plain.packing is None and plain.unpacked() is plain and np.array_equal(plain.codes, q.codes)
    assert q.rows(1, 2).dequantize().tolist() == [[-2, -2, 0]]
    with pytest.raises(ProblemError, match="packing: expected one of .*low_first.*, got nibbles"):
        QTensor(q.data, q.scale, "int4", (1, 3), packing="nibbles", extents=(2, 3)).dequantize()
    with pytest.raises(ProblemError, match="extents: expected the logical shape of data packed as low_first"):
        QTensor(q.data, q.scale, "int4", (1, 3), packing="low_first")
    with pytest.raises(DTypeError, match="dtype: expected a type of 4 bits for data packed"):
        QTensor(q.data, q.scale, "int8", (1, 3), packing="low_first", extents=(2, 3))


def test_packed_scales():
    words = np.uint8([[127, 128, 126, 127], [129, 0, 0, 0]]).reshape(1, 8).view(np.int32)
    q = QTensor(np.ones((1, 10), np.uint8), words, "int8", (1, 2))
    assert q.scales.tolist() == [[1, 2, 0.5, 1, 4]] and q.dequantize()[0, ::2].tolist() == [1, 2, 0.5, 1, 4]
    with pytest.raises(ProblemError, match=r"scale: expected int32 \[1, 2\] .*four to an int32\), got int32 \[1, 1\]"):
        QTensor(np.ones((1, 10), np.uint8), words[:, :1].copy(), "int8", (1, 2))


def test_rows_in_whole_blocks_or_within_one():
    rng = np.random.default_rng(0)
    q = QTensor(finite_codes(rng, (10, 6)), random_scales(rng, (3, 2)), E4M3, (4, 3), zero_point=np.ones((3, 2), np.float32))
    values = q.dequantize()
    for first, stop in ((0, 4), (4, 10), (0, 10), (8, 10), (5, 7), (4, 4), (10, 10)):
        assert np.array_equal(values[first:stop], q.rows(first, stop).dequantize())
    for first, stop in ((2, 6), (0, 6), (3, 10), (-4, 4), (4, 11), (5, 4)):
        with pytest.raises(ProblemError, match="rows: expected 0 to 10, from block to block of 4 rows or within one"):
            q.rows(first, stop)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"zero_point": np.zeros((1, 1), np.uint8)}, r"zero_point: expected \[2, 2\], one for each block"),
        ({"zero_point": np.zeros((2, 2), bool)}, "zero_point: expected integers or floats, got bool"),
        ({"global_scale": np.float32([1, 2])}, r"global_scale: expected float32 or float64, one or \[\]"),
        ({"global_scale": np.int32(1)}, "global_scale: expected float32 or float64"),
        ({"scale_dtype": "float16"}, "scale: expected float16 or its codes as uint16, got float32"),
        ({"scale_dtype": "int8"}, "scale: expected float32 or a float type of 8 or 16 bits, got int8"),
        ({"scale_dtype": "float4_e2m1fn"}, "got float4_e2m1fn"),
    ],
)
def test_refuses_what_does_not_fit_beside(change, message):
    with pytest.raises(ProblemError, match=message):
        QTensor(np.zeros((2, 4), np.uint8), np.ones((2, 2), np.float32), "int8", (1, 2), **change)


def test_F36_what_npy_makes_of_e4m3_is_refused_by_name():
    void = np.zeros((2, 4), "V1")  # np.load of an e4m3 array
    with pytest.raises(TypeError, match=r"data: expected float8_e4m3fn or its codes as uint8, got \|V1"):
        QTensor(void, np.ones((1, 1), np.float32), E4M3, (2, 4))
    q = QTensor(void.view(np.uint8), np.ones((1, 1), np.float32), E4M3, (2, 4))
    assert q.dequantize().shape == (2, 4)
    with pytest.raises(TypeError, match="scale: expected float32 or its codes as uint32, got float64"):
        QTensor(q.codes, np.ones((1, 1)), E4M3, (2, 4), scale_dtype="float32")
