"""Packed UE8M0 scales: forward, inverse, the forms that recipes ask for, K-grouped operands, 128x4 tiles; field cases F04, F14, F15."""

import doctest

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dgnumba.errors import DTypeError, ProblemError, UnsupportedError
from dgnumba.layouts import required, scale_tiles, scales, ue8m0
from dgnumba.layouts.required import (
    get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor,
    get_k_grouped_row_major_ue8m0_tensor,
    transform_k_grouped_sf_into_required_layout,
    transform_sf_into_required_layout,
)
from dgnumba.layouts.scale_tiles import TILES_128X4
from dgnumba.layouts.scales import (
    get_mn_major_tma_aligned_packed_ue8m0_tensor,
    get_mn_major_tma_aligned_tensor,
    get_row_major_ue8m0_tensor,
    pack_ue8m0_to_int,
    unpack_ue8m0_from_int,
)

PACKERS = [
    pack_ue8m0_to_int,
    get_mn_major_tma_aligned_packed_ue8m0_tensor,
    lambda sf: get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(sf, [128 * len(sf)], [128 * len(sf)], 128),
    lambda sf: transform_sf_into_required_layout(sf, sf.shape[0], 128 * sf.shape[1], (1, 128), arch=10),
]


def powers(shape):
    return hnp.arrays(np.int32, shape, elements=st.integers(-127, 127)).map(lambda e: np.ldexp(np.float32(1), e))


def element_strides(x):
    return tuple(s // x.dtype.itemsize for s in x.strides)


def test_F15_packing_puts_the_first_scale_in_the_low_byte():
    assert hex(pack_ue8m0_to_int(np.float32([1, 2, 0.5, 1]))[0]) == "0x7f7e807f"
    e8m0 = np.float32([1, 2, 0.5, 1]).astype(ml_dtypes.float8_e8m0fnu)
    assert hex(pack_ue8m0_to_int(e8m0)[0]) == "0x7f7e807f"
    assert get_mn_major_tma_aligned_packed_ue8m0_tensor(e8m0[None]).tolist() == [[0x7F7E807F]]


@pytest.mark.parametrize("bad", [1.5, 0.0, -1.0, np.nan, np.inf, -np.inf, 2.0**-128, 1.0000001, -0.0, 3e38])
@pytest.mark.parametrize("pack", PACKERS)
def test_F04_what_is_no_power_of_two_is_refused(pack, bad):
    sf = np.ones((4, 4), np.float32)
    sf[1, 2] = bad
    with pytest.raises(
        ProblemError, match=r"expected powers of two .* at \[[12], [12]\]; to round scales up, quantize with use_ue8m0=True"
    ):
        pack(sf)


def test_F04_a_nan_byte_is_refused():
    sf = np.full((1, 4), 255, np.uint8).view(ml_dtypes.float8_e8m0fnu)
    with pytest.raises(ProblemError, match="x: expected powers of two"):
        pack_ue8m0_to_int(sf)


def test_F15_float_scales_and_packed_scales_are_not_confused():
    packed = np.full((4, 4), 0x7F7F7F7F, np.int32)
    with pytest.raises(DTypeError, match=r"sf: expected float32 or float8_e8m0fnu scales, got int32; packed already\?"):
        get_mn_major_tma_aligned_packed_ue8m0_tensor(packed)
    with pytest.raises(DTypeError, match="sf: expected float32 scales, got int32"):
        get_mn_major_tma_aligned_tensor(packed)
    with pytest.raises(DTypeError, match=r"packed: expected int32, four UE8M0 scales in each, got float32; pack it first\?"):
        get_row_major_ue8m0_tensor(np.ones((4, 4), np.float32))
    with pytest.raises(DTypeError, match="sf: expected float32 scales, or int32 of four UE8M0 each, got float64"):
        transform_sf_into_required_layout(np.ones((4, 1)), 4, 128, (1, 128))


def test_every_byte_means_its_power_of_two():
    codes = np.arange(256, dtype=np.uint8)
    values = ue8m0.ue8m0_values(codes)
    assert values[:255].tolist() == [2.0 ** (b - 127) for b in range(255)] and np.isnan(values[255])
    assert np.array_equal(codes[:255], ue8m0.ue8m0_bytes(values[:255]))
    assert np.array_equal(codes.view(ml_dtypes.float8_e8m0fnu)[:255].astype(np.float32), values[:255])


def test_deepgemms_inverse_has_zero_for_byte_0():
    words = np.uint8([0, 1, 254, 255]).view(np.int32)
    assert unpack_ue8m0_from_int(words).tolist() == [0.0, 2.0**-126, 2.0**127, np.inf]


@given(powers(hnp.array_shapes(min_dims=2, max_dims=3, min_side=0, max_side=9)))
def test_packed_form_inverts(sf):
    packed = get_mn_major_tma_aligned_packed_ue8m0_tensor(sf)
    *groups, mn, k_blocks = sf.shape
    words = -(-k_blocks // 4)
    assert packed.dtype == np.int32 and packed.shape == (*groups, mn, words)
    back = get_row_major_ue8m0_tensor(packed, k_blocks)
    assert np.array_equal(sf, back) and back.flags.c_contiguous
    if sf.size:
        aligned = scales.get_tma_aligned_size(mn, 4)
        if mn > 1 and words > 1:
            assert element_strides(packed)[-2:] == (1, aligned)
        # one byte at a time, from the definition
        for index in np.ndindex(packed.shape):
            *at, row, w = index
            expected = 0
            for j in range(min(4, k_blocks - 4 * w)):
                expected |= int(np.frexp(sf[(*at, row, 4 * w + j)])[1] - 1 + 127) << 8 * j
            assert int(packed[index]) & 0xFFFFFFFF == expected


def test_F14_alignment_of_packed_scales_and_no_second_copy():
    sf = np.ones((5, 6), np.float32)
    once = get_mn_major_tma_aligned_packed_ue8m0_tensor(sf)
    assert element_strides(once) == (1, 8) and once.ctypes.data % 16 == 0
    twice = transform_sf_into_required_layout(once, 5, 768, (1, 128))
    assert twice.ctypes.data == once.ctypes.data and twice.strides == once.strides
    row_major = np.ascontiguousarray(once)
    assert element_strides(transform_sf_into_required_layout(row_major, 5, 768, (1, 128))) == (1, 8)


def test_the_picture_in_the_docstring():
    sf = 2.0 ** np.float32([[10 * r + c for c in range(6)] for r in range(5)])
    packed = get_mn_major_tma_aligned_packed_ue8m0_tensor(sf.astype(np.float32))
    memory = np.lib.stride_tricks.as_strided(packed, (2, 8), (32, 4))
    for half in range(2):
        for row in range(5):
            exponents = [10 * row + 4 * half + j + 127 if 4 * half + j < 6 else 0 for j in range(4)]
            assert memory[half, row].tobytes() == bytes(exponents)
    assert not memory[:, 5:].any()


@given(powers(st.tuples(st.integers(1, 40), st.integers(1, 6))), st.lists(st.integers(0, 9), min_size=1, max_size=4))
def test_gaps_of_a_prefix_sum_layout_become_zero(sf, sizes):
    ends, end = [], 0
    for n in sizes:
        end = -(-end // 8) * 8 + n
        ends.append(end)
    if ends[-1] > sf.shape[0]:
        with pytest.raises(ProblemError, match="psum_layout: expected ends that rise"):
            get_mn_major_tma_aligned_packed_ue8m0_tensor(sf, ends, m_alignment=8)
        return
    expected = get_mn_major_tma_aligned_packed_ue8m0_tensor(sf).copy()
    inside = np.zeros(len(sf), bool)
    first = 0
    for end in ends:
        inside[first:end] = True
        first = -(-end // 8) * 8
    expected[~inside] = 0
    poisoned = np.where(inside[:, None], sf, np.float32(np.nan))
    found = get_mn_major_tma_aligned_packed_ue8m0_tensor(poisoned, np.int32(ends), m_alignment=8)
    assert np.array_equal(expected, found)


@given(st.integers(1, 3).map(lambda n: 4 * n), st.lists(st.integers(0, 1200), min_size=1, max_size=5), st.sampled_from([32, 128]))
def test_k_grouped_packing_pads_every_group_to_words_of_its_own(mn, ks, gran_k):
    ks = [k // gran_k * gran_k for k in ks]
    counts = [k // gran_k for k in ks]
    rng = np.random.default_rng(sum(ks))
    sf = np.ldexp(np.float32(1), rng.integers(-127, 128, (sum(counts), mn))).astype(np.float32)
    packed = get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(sf, np.int32(ks), ks, gran_k)
    # group by group it is the packed form of the transpose
    parts, first = [np.zeros((0, mn), np.int32)], 0
    for count in counts:
        parts.append(get_mn_major_tma_aligned_packed_ue8m0_tensor(sf[first : first + count].T).T)
        first += count
    expected = np.concatenate(parts)
    assert packed.dtype == np.int32 and packed.flags.c_contiguous and np.array_equal(expected, packed)
    assert np.array_equal(sf, get_k_grouped_row_major_ue8m0_tensor(packed, ks, gran_k))


def test_k_grouped_prefix_sums_with_ks_and_with_an_upper_bound():
    ks = [300, 0, 128]  # ends: 300; 384 (empty, begins at the rounded end); 512
    ends = np.int32([300, 384, 512])
    sf = np.ldexp(np.float32(1), np.arange(16).reshape(4, 4))
    exact = get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(sf, ends, ks, 128, 128, True)
    assert exact.shape == (2, 4)
    bound = get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(sf, ends, None, 128, 128, True)
    assert bound.shape == (3, 4) and np.array_equal(exact, bound[:2]) and not bound[2:].any()
    assert np.array_equal(bound, get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(sf, ends, [], 128, 128, True))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"gran_k": 64}, "gran_k: expected 32 or 128, got 64"),
        ({"k_alignment": 48}, "k_alignment: expected a multiple of 32, got 48"),
        ({"sf": np.ones((3, 5), np.float32)}, "sf: expected .* mn in multiples of 4"),
        ({"sf": np.ones((2, 4), np.float32)}, r"sf: expected 3 rows for K \[256, 128\] at 128 a scale, got 2"),
        ({"ks_cpu": [256]}, "ks_cpu: expected 2 entries as in grouped_layout, got 1"),
        ({"ks_cpu": [256, 256]}, r"ks_cpu: expected the same as grouped_layout, \[256, 128\]"),
        ({"ks_cpu": None}, "ks_cpu: expected K of each group"),
        ({"grouped_layout": np.float32([256, 128])}, r"grouped_layout: expected int32 \[groups\], got float32"),
        ({"grouped_layout": [1] * 129}, "grouped_layout: expected at most 128 groups, got 129"),
        ({"grouped_layout": [256, 100], "use_psum_layout": True}, "grouped_layout: expected ends that rise"),
    ],
)
def test_k_grouped_refusals_name_the_argument(change, message):
    arguments = {"sf": np.ones((3, 4), np.float32), "grouped_layout": [256, 128], "ks_cpu": [256, 128], "gran_k": 128}
    with pytest.raises(ProblemError, match=message):
        get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(**{**arguments, **change})


def test_required_layouts_on_hopper():
    sf = np.float32(2) ** np.arange(10).reshape(5, 2).astype(np.float32)
    a = transform_sf_into_required_layout(sf, 5, 256, (1, 128, 128), is_sfa=True)
    assert element_strides(a) == (1, 8) and np.array_equal(sf, a)
    b = transform_sf_into_required_layout(sf[:2], 256, 256, (1, 128, 128), is_sfa=False)
    assert np.array_equal(sf[:2], b)
    turned = np.asfortranarray(sf[:2])
    assert transform_sf_into_required_layout(turned, 256, 256, (128, 128)) is turned
    assert transform_sf_into_required_layout(sf[::2][:2], 256, 256, (128, 128)).flags.c_contiguous
    grouped = transform_sf_into_required_layout(np.stack([sf, sf]), 5, 256, (1, 128), num_groups=2)
    assert element_strides(grouped) == (16, 1, 8)


def test_required_layouts_on_later_gpus():
    sf = np.float32([[1, 2, 4], [8, 16, 32]])
    packed = transform_sf_into_required_layout(sf, 130, 384, (128, 128), arch=10)
    assert packed.shape == (130, 1)
    assert set(packed[:128, 0].tolist()) == {0x0081807F} and set(packed[128:, 0].tolist()) == {0x00848382}
    fine = transform_sf_into_required_layout(sf, 2, 96, (1, 32), arch=10)
    assert fine[:, 0].tolist() == [0x0081807F, 0x00848382]
    kept = transform_sf_into_required_layout(sf, 2, 384, (1, 128), disable_ue8m0_cast=True, arch=10)
    assert kept.dtype == np.float32


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ((5, 256, (1, 128, 128)), ProblemError, "recipe: expected .* with is_sfa"),
        ((5, 256, (1, 128), None, True), ProblemError, "recipe: expected .* without"),
        ((6, 256, (1, 128)), ProblemError, r"sf: expected float32 \[6, 2\] for an operand of \[6, 256\] \(one per 1x128\), got \[5, 2\]"),
        ((2, 640, (1, 128)), ProblemError, r"transposed\?"),
        ((5, 64, (1, 32)), UnsupportedError, "recipe: no layout for float32 scales of 1x32 on sm_90"),
        ((5, 256, (1, 128), 1), ProblemError, r"sf: expected float32 \[1, 5, 2\]"),
    ],
)
def test_required_layout_refusals(arguments, error, message):
    with pytest.raises(error, match=message):
        transform_sf_into_required_layout(np.ones((5, 2), np.float32), *arguments)


def test_F11_a_scale_grid_is_never_stretched():
    with pytest.raises(
        ProblemError, match=r"sf: expected float32 \[2, 2\] for an operand of \[256, 256\] \(one per 128x128\), got \[1, 1\]"
    ):
        transform_sf_into_required_layout(np.ones((1, 1), np.float32), 256, 256, (128, 128))
    with pytest.raises(ProblemError, match=r"sf: expected float32 \[3, 1\] for an operand of \[384, 128\]"):
        transform_sf_into_required_layout(np.ones((4, 1), np.float32), 384, 128, (128, 128))


def test_required_k_grouped_layouts():
    sf = np.ldexp(np.float32(1), np.arange(12).reshape(3, 4))
    on_hopper = transform_k_grouped_sf_into_required_layout(sf.T, [384], [384], (1, 1, 128))
    assert np.array_equal(sf.T, on_hopper) and element_strides(on_hopper) == (1, 4)
    packed = transform_k_grouped_sf_into_required_layout(sf, [384], [384], (1, 1, 128), arch=10)
    assert np.array_equal(packed, transform_k_grouped_sf_into_required_layout(packed, [384], [384], (1, 1, 128), arch=10))
    with pytest.raises(ProblemError, match="recipe: expected"):
        transform_k_grouped_sf_into_required_layout(sf, [384], [384], (1, 128, 128))
    with pytest.raises(ProblemError, match=r"sf: expected packed int32 \[2 or more"):
        transform_k_grouped_sf_into_required_layout(packed, [384, 384], [384, 384], (1, 1, 128), arch=10)
    with pytest.raises(UnsupportedError, match="sf: no K-grouped layout for int32 scales on sm_90"):
        transform_k_grouped_sf_into_required_layout(packed, [384], [384], (1, 1, 128))


@given(hnp.arrays(np.uint8, hnp.array_shapes(min_dims=2, max_dims=3, min_side=0, max_side=150).filter(lambda s: np.prod(s) < 30000)))
def test_128x4_tiles_invert_and_follow_the_offset(sf):
    packed = TILES_128X4.pack(sf)
    assert packed.shape == TILES_128X4.packed_shape(sf.shape)
    assert np.array_equal(sf, TILES_128X4.unpack(packed, sf.shape))
    *_, rows, columns = sf.shape
    row, column = np.indices((rows, columns))
    at = TILES_128X4.offset(row, column, columns)
    assert np.array_equal(sf, packed[..., at])
    assert packed.astype(np.int64).sum() == sf.astype(np.int64).sum()  # the rest is zero


def test_128x4_tiles_keep_the_type_and_refuse_others():
    e4m3 = np.ones((3, 5), ml_dtypes.float8_e4m3fn)
    packed = TILES_128X4.pack(e4m3)
    assert packed.dtype == e4m3.dtype and packed.shape == (1024,)
    assert np.array_equal(e4m3, TILES_128X4.unpack(packed.reshape(2, 512), (3, 5)))
    with pytest.raises(DTypeError, match="sf: expected one-byte scales"):
        TILES_128X4.pack(np.ones((3, 5), np.float32))
    with pytest.raises(ProblemError, match=r"packed: expected \[512\] bytes for scales \[3, 4\]"):
        TILES_128X4.unpack(packed, (3, 4))
    with pytest.raises(ProblemError, match=r"sf: expected \[..., rows, k_blocks\]"):
        TILES_128X4.pack(np.ones(4, np.uint8))


@pytest.mark.parametrize("module", [required, scale_tiles, scales, ue8m0], ids=lambda m: m.__name__.rpartition(".")[2])
def test_examples_in_docstrings(module):
    assert doctest.testmod(module).failed == 0
