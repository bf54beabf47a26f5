"""Layers as other packages read them; each group is skipped where its package is not installed (extra `oracles`)."""

import ml_dtypes
import numpy as np
import pytest
from layers_by_hand import compressed_tensors, mxfp4, mxfp4_stack, nvfp4
from oracles import module

from dgnumba.checkpoint import quantize_checkpoint, read_layer

pytestmark = pytest.mark.filterwarnings("ignore")


def as_torch(x):
    """A NumPy array as a torch tensor, also of the types that only torch and ml_dtypes know."""
    torch, x = module("torch"), np.ascontiguousarray(x)
    if x.dtype.name in ("bfloat16", "float8_e4m3fn"):
        return torch.from_numpy(x.view(f"u{x.dtype.itemsize}").copy()).view(getattr(torch, x.dtype.name)).reshape(x.shape)
    return torch.from_numpy(x.copy())


def decompressed(compressor, tensors, scheme):
    """The weight that compressed-tensors makes of a layer, float32."""
    state = {key.removeprefix("l."): as_torch(x) for key, x in tensors.items()}
    return compressor.decompress(state, scheme)["weight"].float().numpy()


def scheme_of(**weights):
    quantization = module("compressed_tensors.quantization")
    return quantization.QuantizationScheme(targets=["Linear"], weights=quantization.QuantizationArgs(**weights))


@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize("n, k, group", [(16, 128, 32), (11, 64, 64), (24, 256, 128)])
def test_compressed_tensors_reads_the_same_weight(zero_points, n, k, group, save, rng):
    base = module("compressed_tensors.compressors.pack_quantized.base")
    tensors, _ = compressed_tensors(rng, n=n, k=k, group=group, zero_points=zero_points)
    scheme = scheme_of(num_bits=4, type="int", strategy="group", group_size=group, symmetric=not zero_points)
    theirs = decompressed(base.PackedQuantizationCompressor, tensors, scheme)
    ours = read_layer(save(tensors), "l").dequantize()
    # their product is in bfloat16, the type of the scales
    assert np.array_equal(theirs, ours.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_compressed_tensors_reads_the_same_nvfp4_weight(save, rng):
    base = module("compressed_tensors.compressors.nvfp4.base")
    tensors, _ = nvfp4(rng)
    scheme = scheme_of(num_bits=4, type="float", strategy="tensor_group", group_size=16, symmetric=True)
    torch = module("torch")
    state = {key.removeprefix("l."): as_torch(x) for key, x in tensors.items()}
    # theirs in float32: bfloat16 is only its default for what it gives back
    unpacked = module("compressed_tensors.compressors.nvfp4.helpers").unpack_fp4_from_uint8(state["weight_packed"], 10, 96, torch.float32)
    dequantize = module("compressed_tensors.quantization.lifecycle.forward").dequantize
    theirs = dequantize(
        unpacked, state["weight_scale"].float(), args=scheme.weights, global_scale=state["weight_global_scale"], dtype=torch.float32
    )
    assert base.NVFP4PackedCompressor.decompress(state, scheme)["weight"].shape == (10, 96)
    ours = read_layer(save(tensors), "l").dequantize()
    # scale / G in float32 there, scale * (1 / G) rounded once here: a rounding apart at most
    assert (np.abs(theirs.numpy() - ours) <= np.abs(ours) * 2**-22).all()


def test_compressed_tensors_reads_the_same_mxfp4_weight(save, rng):
    base = module("compressed_tensors.compressors.mxfp4.base")
    tensors, values = mxfp4(rng)
    scheme = scheme_of(num_bits=4, type="float", strategy="group", group_size=32, symmetric=True)
    assert np.array_equal(decompressed(base.MXFP4PackedCompressor, tensors, scheme), values.astype(np.float32))
    assert np.array_equal(read_layer(save(tensors), "l").dequantize("float64"), values)


def test_transformers_reads_the_same_stack_of_experts(save, rng):
    mxfp4_module = module("transformers.integrations.mxfp4")
    torch = module("torch")
    tensors, values = mxfp4_stack(rng)
    convert = getattr(mxfp4_module, "convert_moe_packed_tensors", None)
    if convert is None:
        pytest.skip("this transformers has no convert_moe_packed_tensors")
    theirs = convert(as_torch(tensors["l_blocks"]), as_torch(tensors["l_scales"]), dtype=torch.float32)
    ours = read_layer(save(tensors), "l").dequantize()
    assert np.array_equal(theirs.numpy().transpose(0, 2, 1), ours)  # theirs is [E, K, N]
    assert np.array_equal(values.astype(np.float32), ours)


def test_compressed_tensors_reads_what_is_quantized_here(save, rng, tmp_path):
    base = module("compressed_tensors.compressors.pack_quantized.base")
    weight = (rng.standard_normal((32, 256)) * 0.02).astype(ml_dtypes.bfloat16)
    quantize_checkpoint(save({"l.weight": weight}), tmp_path / "out.safetensors", "compressed-tensors")
    from safetensors_by_hand import parse

    tensors, _ = parse(tmp_path / "out.safetensors")
    scheme = scheme_of(num_bits=4, type="int", strategy="group", group_size=128, symmetric=True)
    theirs = decompressed(base.PackedQuantizationCompressor, tensors, scheme)
    ours = read_layer(tmp_path / "out.safetensors", "l").dequantize()
    assert np.array_equal(theirs, ours.astype(ml_dtypes.bfloat16).astype(np.float32))
