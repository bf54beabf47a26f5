"""The layouts on arrays of a GPU (a stand-in as strict as CuPy): the same words, by the same code, no copy to the host."""

import fake_cupy
import numpy as np
import pytest

from dgnumba.layouts import int4
from dgnumba.layouts.int4 import groups
from dgnumba.layouts.required import (
    get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor,
    get_k_grouped_row_major_ue8m0_tensor,
    transform_sf_into_required_layout,
)
from dgnumba.layouts.scale_tiles import TILES_128X4
from dgnumba.layouts.scales import (
    get_mn_major_tma_aligned_packed_ue8m0_tensor,
    get_row_major_ue8m0_tensor,
    pack_ue8m0_to_int,
    unpack_ue8m0_from_int,
)


@pytest.fixture(autouse=True)
def cupy():
    with fake_cupy.installed() as module:
        yield module


def on_device(x):
    return fake_cupy.ndarray.of(x.copy(order="K"))


def same(host, device):
    assert isinstance(device, fake_cupy.ndarray)
    assert host.dtype == device.dtype and np.array_equal(host, device.get())


@pytest.mark.parametrize("layout", int4.PACKINGS.values(), ids=lambda p: p.name)
def test_4_bit_layouts(layout, rng):
    codes = rng.integers(0, 16, (64, 128), dtype=np.uint8)
    words = layout.pack(codes)
    same(words, layout.pack(on_device(codes)))
    same(codes, layout.unpack(on_device(words), codes.shape))
    same(int4.as_signed(codes), layout.unpack(on_device(words), codes.shape, signed=True))


@pytest.mark.parametrize("layout", [int4.AWQ, int4.GPTQ_V1, int4.GPTQ_V2, int4.COMPRESSED_TENSORS], ids=lambda p: p.name)
def test_zero_points(layout, rng):
    zeros = rng.integers(0, 16, (16, 3), dtype=np.uint8)
    words = layout.pack_zeros(zeros)
    same(words, layout.pack_zeros(on_device(zeros)))
    same(zeros, layout.unpack_zeros(on_device(words), 16))


@pytest.mark.parametrize("group_count", [1, 3])
def test_marlin_scales(group_count, rng):
    scales = rng.random((64, group_count)).astype(np.float16)
    packed = int4.MARLIN.pack_scales(scales)
    same(packed, int4.MARLIN.pack_scales(on_device(scales)))
    same(scales, int4.MARLIN.unpack_scales(on_device(packed)))


def test_gguf_records(rng):
    codes = rng.integers(0, 16, (3, 64), dtype=np.uint8)
    for record, scale in ((int4.Q4_0, rng.random((3, 2)).astype(np.float16)), (int4.MXFP4, rng.integers(0, 255, (3, 2), dtype=np.uint8))):
        records = record.pack(codes, scale)
        same(records, record.pack(on_device(codes), on_device(scale)))
        found, scales = record.unpack(on_device(records))
        same(codes, found)
        same(scale, scales)


def test_groups():
    g_idx = np.int32([1, 0, 2, 1, 0])
    order = groups.by_group(on_device(g_idx))
    same(groups.by_group(g_idx), order)
    same(groups.inverse(groups.by_group(g_idx)), groups.inverse(order))
    same(g_idx, groups.checked(on_device(g_idx), 5, 3))
    assert not groups.is_in_order(on_device(g_idx), 2) and groups.is_in_order(on_device(groups.in_order(5, 2)), 2)


def test_packed_scales(rng):
    sf = np.ldexp(np.float32(1), rng.integers(-127, 128, (12, 6))).astype(np.float32)
    packed = get_mn_major_tma_aligned_packed_ue8m0_tensor(sf)
    found = get_mn_major_tma_aligned_packed_ue8m0_tensor(on_device(sf))
    same(packed, found)
    assert found.strides == packed.strides
    same(sf, get_row_major_ue8m0_tensor(found, 6))
    same(packed, get_mn_major_tma_aligned_packed_ue8m0_tensor(on_device(sf), on_device(np.int32([12]))))
    words = pack_ue8m0_to_int(sf[:, :4])
    same(words, pack_ue8m0_to_int(on_device(sf[:, :4])))
    same(unpack_ue8m0_from_int(words), unpack_ue8m0_from_int(on_device(words)))
    same(
        transform_sf_into_required_layout(sf, 24, 192, (2, 32), arch=10),
        transform_sf_into_required_layout(on_device(sf), 24, 192, (2, 32), arch=10),
    )


def test_k_grouped_scales(rng):
    sf = np.ldexp(np.float32(1), rng.integers(-100, 100, (8, 4))).astype(np.float32)
    packed = get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(sf, [384, 640], [384, 640], 128)
    found = get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(on_device(sf), on_device(np.int32([384, 640])), [384, 640], 128)
    same(packed, found)
    same(sf, get_k_grouped_row_major_ue8m0_tensor(found, [384, 640], 128))


def test_scale_tiles(rng):
    sf = rng.integers(0, 256, (130, 5), dtype=np.uint8)
    packed = TILES_128X4.pack(sf)
    same(packed, TILES_128X4.pack(on_device(sf)))
    same(sf, TILES_128X4.unpack(on_device(packed), sf.shape))
