"""The whole chain against packages that we did not write: their quantizer and their packing in, their dequantized weights times A out.

Each is skipped where its package is not installed (extra `oracles`). A and the scales are such that every sum is exact.
"""

import numpy as np
import pytest
from oracles import module

import dgnumba
from dgnumba.dtypes import DTYPES
from dgnumba.layouts import int4
from dgnumba.testing import assert_bits_equal

pytestmark = pytest.mark.filterwarnings("ignore")

N, K, GROUP = 40, 128, 32
KINDS = ("bfloat16", "float16")


def chain(rng, q, their_weights):
    """`int4_gemm_nt` on `q`, and the product with the weights as the other package has them, bit for bit; with both 16-bit types and INT8."""
    a = rng.integers(-4, 5, (7, K))
    expected = (a.astype(np.float64) @ np.asarray(their_weights, np.float64).T).astype(np.float32)
    for kind in KINDS:
        typed = a.astype(DTYPES[kind].numpy)
        assert_bits_equal(dgnumba.int4_gemm_nt(typed, q, out_dtype="float32"), expected, kind)
    if q.dtype.name != "float4_e2m1fn":
        whole = dgnumba.QTensor(a.astype(np.int8), np.ones((7, 1), np.float32), "int8", (1, K))
        assert_bits_equal(dgnumba.int4_gemm_nt(whole, q, out_dtype="float32"), expected, "int8")


def scales(rng, shape=(N, K // GROUP)):
    return np.exp2(rng.integers(-2, 3, shape)).astype(np.float32)


@pytest.mark.parametrize("dtype", ["int4", "uint4"])
def test_onnx_words_and_its_own_dequantizer(dtype, rng):
    onnx = module("onnx")
    numpy_helper, reference, helper = module("onnx.numpy_helper"), module("onnx.reference"), module("onnx.helper")
    kind = DTYPES[dtype]
    codes, scale = rng.integers(0, 16, (N, K)).astype(np.uint8), scales(rng)
    zeros = rng.integers(0, 16, scale.shape).astype(np.uint8)
    values = int4.as_signed(codes) if dtype == "int4" else codes
    marks = int4.as_signed(zeros) if dtype == "int4" else zeros
    x, z = (numpy_helper.from_array(v.astype(kind.numpy), name) for v, name in ((values, "x"), (marks, "z")))
    node = helper.make_node("DequantizeLinear", ["x", "s", "z"], ["y"], axis=1, block_size=GROUP)
    graph = helper.make_graph([node], "g", [], [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [N, K])],
                              [x, numpy_helper.from_array(scale, "s"), z])  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    theirs = reference.ReferenceEvaluator(model).run(None, {})[0]
    words = np.frombuffer(x.raw_data, np.uint8)
    chain(rng, dgnumba.QTensor(words, scale, dtype, (1, GROUP), zero_point=marks, packing="onnx", extents=(N, K)), theirs)


def test_compressed_tensors_words(rng):
    torch = module("torch")
    helpers = module("compressed_tensors.compressors.pack_quantized.helpers")
    codes, scale = rng.integers(-8, 8, (N, K)).astype(np.int8), scales(rng)
    words = helpers.pack_to_int32(torch.from_numpy(codes), 4, packed_dim=1)
    theirs = helpers.unpack_from_int32(words, 4, torch.Size((N, K))).numpy() * np.repeat(scale, GROUP, axis=1)
    chain(rng, dgnumba.QTensor(words.numpy(), scale, "int4", (1, GROUP), packing="compressed_tensors", extents=(N, K)), theirs)


@pytest.mark.parametrize("name", ["Q4_0", "MXFP4"])
def test_gguf_records(name, rng):
    quants = module("gguf")
    kind = getattr(quants.GGMLQuantizationType, name)
    extremum = np.repeat(np.exp2(rng.integers(-2, 3, (N, K // 32))) * 8, 32, axis=1)
    x = (rng.uniform(-0.9, 0.9, (N, K)) * extremum).astype(np.float32)
    x[:, ::32] = -extremum[:, ::32]
    records = quants.quantize(x, kind)
    codes, scale = getattr(int4, name).unpack(records, signed=name == "Q4_0")
    dtype = "int4" if name == "Q4_0" else "float4_e2m1fn"
    q = dgnumba.QTensor(codes.view(np.uint8), scale.astype(np.float32), dtype, (1, 32))
    chain(rng, q, quants.dequantize(records, kind))


def test_torchao_quantizer_and_nibbles(rng):
    torch, quant = module("torch"), module("torchao.quantization.quant_primitives")
    kernels = module("torchao.prototype.mx_formats.kernels")
    x = torch.from_numpy((rng.integers(-7, 8, (N, K)) * np.repeat(scales(rng), GROUP, axis=1)).astype(np.float32))
    arguments = dict(block_size=(1, GROUP), target_dtype=torch.int32, quant_min=0, quant_max=15)
    scale, zero = quant.choose_qparams_affine(x, quant.MappingType.ASYMMETRIC, **arguments)
    scale = torch.exp2(torch.round(torch.log2(scale)))  # a power of two, so that sums are exact
    codes = quant.quantize_affine(x, (1, GROUP), scale, zero, torch.int32, 0, 15).to(torch.uint8)
    theirs = quant.dequantize_affine(codes.to(torch.int32), (1, GROUP), scale, zero, torch.int32, 0, 15).numpy()
    words = kernels.pack_uint4(codes).numpy()
    zeros = zero.reshape(N, -1).numpy().astype(np.uint8)
    q = dgnumba.QTensor(words, scale.reshape(N, -1).numpy(), "uint4", (1, GROUP), zero_point=zeros, packing="torchao", extents=(N, K))
    chain(rng, q, theirs)


def test_hqq_rows(rng):
    torch, bitpack = module("torch"), module("hqq.core.bitpack")
    codes, scale = rng.integers(0, 16, (N, K)).astype(np.uint8), scales(rng)
    words = bitpack.BitPack.pack_4bit_u8(torch.from_numpy(codes))
    theirs = (bitpack.BitPack.unpack_4bit_u8(words, dtype=torch.uint8).numpy().astype(np.float32) - 8) * np.repeat(scale, GROUP, axis=1)
    zeros = np.full(scale.shape, 8.0, np.float32)  # floats, as hqq's are
    chain(rng, dgnumba.QTensor(words.numpy(), scale, "uint4", (1, GROUP), zero_point=zeros, packing="hqq", extents=(N, K)), theirs)
