"""Scale layout: forward, inverse, the offset map, and the field case about it."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgnumba.errors import DTypeError, ProblemError
from dgnumba.layouts.scales import (
    get_mn_major_tma_aligned_tensor,
    get_row_major_tensor,
    get_tma_aligned_size,
    scale_offset,
)


def element_strides(x):
    return tuple(s // x.dtype.itemsize for s in x.strides)


def memory_of(x):
    """The floats of an aligned array as they lie in memory, padding included."""
    mn_aligned = element_strides(x)[-1]
    shape = (*x.shape[:-2], x.shape[-1], mn_aligned)
    return np.lib.stride_tricks.as_strided(x, shape, (*x.strides[:-2], x.strides[-1], 4)).ravel()


def test_F14_aligned_row_counts():
    sizes = [get_tma_aligned_size(m, 4) for m in (0, 1, 2, 3, 4, 5, 8, 9)]
    assert sizes == [0, 4, 4, 4, 4, 8, 8, 12]
    assert [get_tma_aligned_size(5, size) for size in (1, 2, 8, 16)] == [16, 8, 6, 5]


@pytest.mark.parametrize("size", [0, 3, 32, -4])
def test_aligned_size_refuses_odd_elements(size):
    with pytest.raises(ProblemError, match="element_size: expected a divisor of 16"):
        get_tma_aligned_size(5, size)


@pytest.mark.parametrize("m, aligned", [(1, 4), (2, 4), (3, 4), (4, 4), (5, 8), (8, 8), (9, 12)])
def test_F14_strides_values_and_no_second_copy(m, aligned):
    sf = np.arange(m * 3, dtype=np.float32).reshape(m, 3)
    once = get_mn_major_tma_aligned_tensor(sf)
    assert element_strides(once) == (1, aligned)
    assert np.array_equal(sf, once)
    assert once.ctypes.data % 16 == 0
    twice = get_mn_major_tma_aligned_tensor(once)
    assert twice.ctypes.data == once.ctypes.data and twice.strides == once.strides
    # A batch axis of 1 changes nothing, whatever its stride.
    batch = np.lib.stride_tricks.as_strided(once, (1, m, 3), (12345, *once.strides))
    assert get_mn_major_tma_aligned_tensor(batch).ctypes.data == once.ctypes.data


def test_the_picture_in_the_docstring():
    sf = np.float32([[10 * r + c for c in range(3)] for r in range(5)])
    memory = memory_of(get_mn_major_tma_aligned_tensor(sf))
    columns = [[0, 10, 20, 30, 40], [1, 11, 21, 31, 41], [2, 12, 22, 32, 42]]
    assert memory.reshape(3, 8).tolist() == [[*column, 0, 0, 0] for column in columns]


@given(st.integers(1, 3), st.integers(0, 20), st.integers(0, 5), st.integers(0, 3))
def test_forward_inverse_and_offsets(groups, mn, k_blocks, layout):
    sf = np.random.default_rng(mn).random((groups, mn, k_blocks), np.float32)
    if layout == 1:
        sf = np.asfortranarray(sf)
    elif layout == 2:
        sf = sf[::-1, ::-1]
    elif layout == 3:
        sf = sf[0]
    out = get_mn_major_tma_aligned_tensor(sf)
    assert out.shape == sf.shape and np.array_equal(sf, out)
    back = get_row_major_tensor(out)
    assert back.flags.c_contiguous and np.array_equal(sf, back)
    if sf.size:
        aligned = get_tma_aligned_size(mn, 4)
        memory = memory_of(out)
        for index in np.ndindex(sf.shape):
            *group, row, kb = index
            start = (group[0] if group else 0) * aligned * k_blocks
            assert sf[index] == memory[start + scale_offset(row, kb, aligned)]


def test_one_block_of_k_needs_no_copy_and_one_row_does():
    column = np.arange(8, dtype=np.float32).reshape(8, 1)
    out = get_mn_major_tma_aligned_tensor(column)
    assert out.ctypes.data == column.ctypes.data and element_strides(out) == (1, 8)
    row = np.arange(3, dtype=np.float32).reshape(1, 3)
    assert element_strides(get_mn_major_tma_aligned_tensor(row)) == (1, 4)


def test_misaligned_memory_is_copied():
    frame = np.zeros(4 * 3 + 5, np.float32)
    start = next(i for i in range(1, 5) if frame[i:].ctypes.data % 16)
    crooked = np.lib.stride_tricks.as_strided(frame[start:], (4, 3), (4, 16))
    out = get_mn_major_tma_aligned_tensor(crooked)
    assert out.ctypes.data % 16 == 0 and out.ctypes.data != crooked.ctypes.data


@pytest.mark.parametrize("dtype", [np.float64, np.int32, ml_dtypes.float8_e8m0fnu])
def test_refuses_other_types(dtype):
    with pytest.raises(DTypeError, match=f"sf: expected float32 scales, got {np.dtype(dtype)}"):
        get_mn_major_tma_aligned_tensor(np.ones((4, 2)).astype(dtype))


@pytest.mark.parametrize("shape", [(4,), (1, 1, 4, 2)])
def test_refuses_other_ranks(shape):
    with pytest.raises(ProblemError, match=r"sf: expected \[mn, k_blocks\] or"):
        get_mn_major_tma_aligned_tensor(np.ones(shape, np.float32))
