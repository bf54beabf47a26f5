"""The same words from independent implementations; each group is skipped where its package is not installed (extra `oracles`)."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import module

from dgnumba.layouts import int4
from dgnumba.layouts.scale_tiles import TILES_128X4

pytestmark = pytest.mark.filterwarnings("ignore")


def codes_of(seed, shape):
    return np.random.default_rng(seed).integers(-8, 8, shape, dtype=np.int8)


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(1, 40))
def test_compressed_tensors(seed, n, k):
    torch = module("torch")
    helpers = module("compressed_tensors.compressors.pack_quantized.helpers")
    codes = codes_of(seed, (n, k))
    theirs = helpers.pack_to_int32(torch.from_numpy(codes), 4, packed_dim=1)
    assert np.array_equal(theirs.numpy(), int4.COMPRESSED_TENSORS.pack(codes))
    back = helpers.unpack_from_int32(torch.from_numpy(int4.COMPRESSED_TENSORS.pack(codes)), 4, torch.Size((n, k)))
    assert np.array_equal(back.numpy(), int4.COMPRESSED_TENSORS.unpack(theirs.numpy(), (n, k), signed=True))
    zeros = helpers.pack_to_int32(torch.from_numpy(codes), 4, packed_dim=0)
    assert np.array_equal(zeros.numpy(), int4.COMPRESSED_TENSORS.pack_zeros(codes))


@pytest.mark.parametrize("dtype, code", [("int4", "INT4"), ("uint4", "UINT4"), ("float4_e2m1fn", "FLOAT4E2M1")])
@pytest.mark.parametrize("shape", [(3, 5), (2, 8)])
def test_onnx(dtype, code, shape, rng):
    helper = module("onnx.numpy_helper")
    nibs = rng.integers(0, 16, shape, dtype=np.uint8)
    typed = {
        "int4": int4.as_signed(nibs).astype(ml_dtypes.int4),
        "uint4": nibs.astype(ml_dtypes.uint4),
        "float4_e2m1fn": nibs.view(ml_dtypes.float4_e2m1fn),
    }[dtype]
    tensor = helper.from_array(typed)
    assert tensor.raw_data == int4.ONNX.pack(typed).tobytes()
    assert np.array_equal(nibs, int4.ONNX.unpack(np.frombuffer(tensor.raw_data, np.uint8), shape))


@pytest.mark.parametrize("name", ["Q4_0", "MXFP4"])
def test_gguf(name, rng):
    quants = module("gguf")
    kind = getattr(quants.GGMLQuantizationType, name)
    x = (rng.standard_normal((3, 96)) * 4).astype(np.float32)
    records = quants.quantize(x, kind)
    codes, scale = getattr(int4, name).unpack(records, signed=name == "Q4_0")
    assert np.array_equal(records, getattr(int4, name).pack(codes, scale))
    values = codes.astype(np.float32) if name == "Q4_0" else codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    ours = values * np.repeat(scale.astype(np.float32), 32, axis=-1)
    assert np.array_equal(quants.dequantize(records, kind), ours)


def test_bitsandbytes(rng):
    torch, functional = module("torch"), module("bitsandbytes.functional")
    x = torch.from_numpy(rng.standard_normal((4, 64), dtype=np.float32))
    packed, state = functional.quantize_4bit(x, blocksize=64, quant_type="nf4")
    nibs = int4.BITSANDBYTES.unpack(packed.numpy(), (4, 64))
    assert np.array_equal(packed.numpy(), int4.BITSANDBYTES.pack(nibs))
    ours = state.code.numpy()[nibs] * state.absmax.numpy()[:, None]
    assert np.array_equal(functional.dequantize_4bit(packed, state).numpy(), ours)


def test_torchao_nibbles(rng):
    torch, ops = module("torch"), module("torchao.prototype.mx_formats.kernels")
    nibs = rng.integers(0, 16, (4, 6), dtype=np.uint8)
    theirs = ops.pack_uint4(torch.from_numpy(nibs)).numpy()
    assert np.array_equal(theirs, int4.TORCHAO.pack(nibs))
    assert np.array_equal(nibs, int4.TORCHAO.unpack(theirs))


@pytest.mark.parametrize("shape", [(128, 4), (256, 12), (130, 5), (1, 1)])
def test_torchao_scale_tiles(shape, rng):
    torch, utils = module("torch"), module("torchao.prototype.mx_formats.utils")
    sf = rng.integers(0, 256, shape, dtype=np.uint8)
    assert np.array_equal(utils.to_blocked(torch.from_numpy(sf)).numpy(), TILES_128X4.pack(sf))


def test_hqq(rng):
    torch, bitpack = module("torch"), module("hqq.core.bitpack")
    nibs = rng.integers(0, 16, (6, 5), dtype=np.uint8)
    packed = bitpack.BitPack.pack_4bit_u8(torch.from_numpy(nibs)).numpy()
    assert np.array_equal(packed, int4.HQQ.pack(nibs))


def test_nvfp4_of_compressed_tensors(rng):
    torch = module("torch")
    helpers = module("compressed_tensors.compressors.nvfp4.helpers")
    nibs = rng.integers(0, 16, (3, 32), dtype=np.uint8)
    nibs[nibs == 8] = 0  # NOTE: theirs has no -0
    values = nibs.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    packed = helpers.pack_fp4_to_uint8(torch.from_numpy(values)).numpy()
    assert np.array_equal(packed, int4.LOW_FIRST.pack(nibs))
