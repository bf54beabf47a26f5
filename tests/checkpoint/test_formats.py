"""Every checkpoint format, read from files made by hand, and written back to the same bytes; field cases F11, F25 and F27."""

import json

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layers_by_hand import IN_WHOLE_GROUPS, MAKE, awq, compressed_tensors, fp8_block, gptq, mxfp4, nvfp4, words
from safetensors_by_hand import parse, same_bits

from dgnumba.checkpoint import FORMATS, TensorSource, find_layers, read_layer, write_layers
from dgnumba.errors import DTypeError, ProblemError, UnsupportedError
from dgnumba.quant import QTensor, quantize

CONFIG = {"gptq-v2": {"quantization_config": json.dumps({"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"})}}

by_format = pytest.mark.parametrize("name", FORMATS)


@by_format
def test_a_layer_has_the_values_that_its_format_says(name, save, rng):
    tensors, values = MAKE[name](rng)
    q = read_layer(save({**tensors, "l.bias": np.zeros(3, np.float32)}, metadata=CONFIG.get(name)), "l")
    assert q.shape == values.shape
    assert np.array_equal(values, q.dequantize("float64"))


@by_format
def test_a_layer_is_written_back_to_the_same_bytes(name, save, rng, tmp_path):
    tensors, _ = IN_WHOLE_GROUPS[name](rng)
    q = read_layer(save(tensors, metadata=CONFIG.get(name)), "l")
    out = tmp_path / "out.safetensors"
    write_layers(out, {"l": q}, name, tensors={"l.bias": np.arange(3, dtype=np.float16)})
    found, metadata = parse(out)
    assert set(found) == {*tensors, "l.bias"}
    assert [key for key, x in tensors.items() if not same_bits(np.asarray(x), found[key])] == []
    assert found["l.bias"].tolist() == [0, 1, 2]
    assert json.loads(metadata["quantization_config"])["quant_method"]
    # and what was written says of itself all that reading it takes
    assert np.array_equal(q.dequantize("float64"), read_layer(out, "l").dequantize("float64"))


@by_format
@settings(max_examples=8)
@given(seed=st.integers(0, 2**32 - 1))
def test_rows_in_slabs_are_the_rows_of_the_whole(name, seed):
    import tempfile
    from pathlib import Path

    from safetensors_by_hand import file_bytes

    tensors, values = MAKE[name](np.random.default_rng(seed), **({"n": 264} if name != "fp8-block" else {}))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.safetensors"
        path.write_bytes(file_bytes(tensors, CONFIG.get(name)))
        with TensorSource(path) as source:
            layer = find_layers(source)["l"]
            flat = values.reshape(-1, values.shape[-1])
            slabs = list(layer.slabs(1))
            assert [rows.start for rows in slabs] == list(range(0, len(flat), 128))
            for rows in slabs:
                assert np.array_equal(flat[rows], layer.read(source, rows).dequantize("float64"))


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("version", [1, 2])
def test_F27_gptq_with_a_short_last_group_and_act_order(version, act_order, save, rng):
    tensors, values = gptq(rng, version=version, act_order=act_order)
    q = read_layer(save(tensors), "l", gptq_version=version)
    assert q.granularity == (1, 128) and (q.g_idx is not None) == act_order
    assert np.array_equal(values, q.dequantize("float64"))


def test_F27_a_g_idx_in_order_says_nothing_and_one_out_of_range_is_refused(save, rng):
    tensors, values = gptq(rng)
    assert read_layer(save(tensors), "l").g_idx is None
    without, _ = gptq(np.random.default_rng(1), with_g_idx=False)
    assert read_layer(save(without, "without"), "l").g_idx is None
    tensors["l.g_idx"] = tensors["l.g_idx"] - 1  # NOTE: -1 would quietly be the last group
    with pytest.raises(ProblemError, match="l: g_idx: expected groups from 0 to 1, got -1 to 0"):
        read_layer(save(tensors), "l")


def test_F27_compressed_tensors_with_act_order_and_odd_extents(save, rng, tmp_path):
    tensors, values = compressed_tensors(rng, n=11, k=200, group=64, act_order=True)
    q = read_layer(save(tensors), "l")
    assert np.array_equal(values, q.dequantize("float64"))
    tensors, values = compressed_tensors(rng, n=11, k=200, group=40, zero_points=False)
    q = read_layer(save(tensors), "l", group=40)
    assert q.zero_point is None and np.array_equal(values, q.dequantize("float64"))
    write_layers(tmp_path / "out.safetensors", {"l": q}, "compressed-tensors")
    assert set(parse(tmp_path / "out.safetensors")[0]) == set(tensors)


def test_F25_zero_points_are_interleaved_in_awq_and_not_in_gptq(save):
    ramp = np.arange(8)[None]
    nothing = {"l.scales": np.ones((1, 8), np.float16)}
    interleaved = np.uint32([[0x75316420]]).view(np.int32)
    q = read_layer(save({"l.qweight": np.zeros((8, 1), np.int32), "l.qzeros": interleaved, **nothing}), "l")
    assert q.zero_point.ravel().tolist() == list(range(8))
    q = read_layer(save({"l.qweight": np.zeros((1, 8), np.int32), "l.qzeros": words(ramp), **nothing}), "l", gptq_version=2)
    assert q.zero_point.ravel().tolist() == list(range(8))
    q = read_layer(save({"l.qweight": np.zeros((1, 8), np.int32), "l.qzeros": words(ramp), **nothing}), "l", gptq_version=1)
    assert q.zero_point.ravel().tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


def test_F11_the_last_block_may_be_short(save):
    weight = np.ones((300, 128), np.float32).astype(ml_dtypes.float8_e4m3fn)
    q = read_layer(save({"l.weight": weight, "l.weight_scale_inv": np.float32([[1], [2], [4]])}), "l")
    assert q.dequantize()[[127, 128, 255, 256, 299], 0].tolist() == [1, 2, 2, 4, 4]


@pytest.mark.parametrize("shape, rows", [((384, 128), 4), ((256, 256), 1)])
def test_F11_a_scale_grid_that_does_not_fit_is_refused_and_never_stretched(shape, rows, save):
    weight = np.ones(shape, np.float32).astype(ml_dtypes.float8_e4m3fn)
    path = save({"l.weight": weight, "l.weight_scale_inv": np.ones((rows, 1), np.float32)})
    expected = [-(-n // 128) for n in shape]
    with pytest.raises(
        ProblemError, match=rf"l.weight_scale_inv: expected float32 \[{expected[0]}, {expected[1]}\] .* got float32 \[{rows}, 1\]"
    ):
        read_layer(path, "l")


def test_F11_other_blocks_only_where_the_config_says_so(save, tmp_path):
    weight = np.ones((128, 128), np.float32).astype(ml_dtypes.float8_e4m3fn)
    path = save({"l.weight": weight, "l.weight_scale_inv": np.float32([[1, 2], [3, 4]])})
    with pytest.raises(ProblemError, match=r"expected float32 \[1, 1\]"):
        read_layer(path, "l")
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]}}))
    assert read_layer(path, "l").dequantize()[::64, ::64].tolist() == [[1, 2], [3, 4]]


def test_F11_the_group_is_not_k_over_the_number_of_groups(save, rng):
    tensors, values = awq(rng, k=192, group=128)  # two groups, of 128 and of 64, and not two of 96
    q = read_layer(save(tensors), "l")
    assert q.granularity == (1, 128) and np.array_equal(values, q.dequantize("float64"))
    tensors, values = awq(rng, k=192, group=96)
    assert not np.array_equal(values, read_layer(save(tensors), "l").dequantize("float64"))
    assert np.array_equal(values, read_layer(save(tensors), "l", group=96).dequantize("float64"))
    tensors, _ = awq(rng, k=192, group=48)
    with pytest.raises(ProblemError, match="l: scales: expected 2 groups of 128 for K = 192, got 4"):
        read_layer(save(tensors), "l", group=128)
    tensors, _ = awq(rng, k=160, group=48)
    assert read_layer(save(tensors), "l", group=48).granularity == (1, 48)
    tensors, _ = awq(rng, k=160, group=32)
    tensors["l.scales"] = np.concatenate([tensors["l.scales"], tensors["l.scales"][:2]])
    with pytest.raises(ProblemError, match="7 groups of K = 160 fit no power of two"):
        read_layer(save(tensors), "l")


@pytest.mark.parametrize("group, granularity", [(-1, 192), (192, 192)])
def test_F27_one_group_for_all_of_k(group, granularity, save, rng):
    tensors, values = gptq(rng, group=192)
    q = read_layer(save(tensors), "l", group=group)
    assert q.granularity == (1, granularity) and np.array_equal(values, q.dequantize("float64"))
    assert read_layer(save(tensors), "l").granularity == (1, 192)


def test_fp8_scales_of_other_types(save, rng):
    for scale in ("float8_e8m0fnu", "bfloat16"):
        tensors, values = fp8_block(rng, scale=scale)
        q = read_layer(save(tensors), "l")
        assert q.scale_dtype.name == scale and np.array_equal(values, q.dequantize("float64"))
    tensors["l.weight_scale_inv"] = tensors["l.weight_scale_inv"].astype(np.float64)
    with pytest.raises(ProblemError, match="l: .weight_scale_inv: expected float32, bfloat16, float8_e8m0fnu, got float64"):
        read_layer(save(tensors), "l")


@pytest.mark.parametrize("scale", [1.0, 3.0, 7.0, 0.1, 1e-3, 2688 / 3.7])
def test_the_inverse_global_scale_of_nvfp4_survives(scale, save, rng, tmp_path):
    tensors, _ = nvfp4(rng)
    tensors["l.weight_global_scale"] = np.float32([scale])
    q = read_layer(save(tensors), "l")
    assert float(q.global_scale) == 1 / float(np.float32(scale))
    write_layers(tmp_path / "out.safetensors", {"l": q}, "nvfp4")
    assert same_bits(parse(tmp_path / "out.safetensors")[0]["l.weight_global_scale"], np.float32([scale]))


def test_layers_are_found_among_others(save, rng):
    tensors = {}
    for name, make in MAKE.items():
        if name not in ("gptq-v2", "nvfp4-modelopt"):
            tensors |= make(rng, name=f"model.{name}")[0]
    tensors |= {"model.norm.weight": np.ones(4, np.float32), "model.embed.weight": np.ones((4, 4), np.float32)}
    with TensorSource(save(tensors)) as source:
        layers = find_layers(source)
    assert {layer.name: layer.format.name for layer in layers.values()} == {
        f"model.{name}": name for name in MAKE if name not in ("gptq-v2", "nvfp4-modelopt")
    }


def without(tensors, *names):
    return {key: x for key, x in tensors.items() if key not in names}


@pytest.mark.parametrize(
    "make, change, message",
    [
        (awq, lambda t: without(t, "l.scales"), "l.qweight: expected the tensors of a whole layer beside it"),
        (awq, lambda t: {**t, "l.qzeros": t["l.qzeros"][:1]}, r"l.qzeros: expected int32 \[2, 2\] .* got int32 \[1, 2\]"),
        (awq, lambda t: {**t, "l.qweight": t["l.qweight"].astype(np.int64)}, r"l.qweight: expected int32 \[192, 2\] .* got int64"),
        (awq, lambda t: {**t, "l.scales": t["l.scales"].astype(np.float64)}, "l: scales: expected float16, bfloat16, float32, got float64"),
        (gptq, lambda t: {**t, "l.g_idx": t["l.g_idx"][:5]}, r"l: g_idx: expected \[192\]"),
        (fp8_block, lambda t: without(t, "l.weight_scale_inv"), "l.weight: expected l.weight_scale_inv, .* in another shard"),
        (fp8_block, lambda t: without(t, "l.weight"), "l.weight_scale_inv: expected the tensors of a whole layer"),
        (
            lambda rng: ({**without(fp8_block(rng)[0], "l.weight_scale_inv"), "l.weight_scale": np.float32(1)}, None), dict,
            "l.weight: expected l.weight_scale_inv, .* got l.weight_scale, a format that is not read here",
        ),
        (fp8_block, lambda t: {**t, "l.weight": t["l.weight"].astype(np.float16)}, r"l: .weight: expected float8_e4m3fn \[N, K\]"),
        (compressed_tensors, lambda t: {**t, "l.weight_shape": np.array([12, 96])}, "eight to a word, got 24 words for K = 96: 8 bits?"),
        (compressed_tensors, lambda t: {**t, "l.weight_scale": np.concatenate([t["l.weight_scale"]] * 4, 1)}, "l: scales: expected a config"),
        (compressed_tensors, lambda t: {**t, "l.weight_shape": np.array([12, 500])}, r"l.weight_packed: expected int32 \[12, 63\]"),
        (compressed_tensors, lambda t: {**t, "l.weight_shape": np.array([12])}, "l: .weight_packed: expected a matrix"),
        (mxfp4, lambda t: {**t, "l.weight_scale": t["l.weight_scale"][:, :2]}, r"l.weight_scale: expected uint8 \[10, 3\] .* got uint8 \[10, 2\]"),
        (nvfp4, lambda t: {**t, "l.weight_scale": t["l.weight_scale"].view(np.uint8)}, "l.weight_scale: expected float8_e4m3fn"),
        (nvfp4, lambda t: {**t, "l.weight_packed": t["l.weight_packed"][:, :12]}, "l: shape: expected K in multiples of 16 for nvfp4, got K = 24"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_name(make, change, message, save, rng):
    tensors, _ = make(rng)
    with pytest.raises(ProblemError, match=message):
        read_layer(save(change(tensors)), "l")


def test_a_layer_that_is_not_there(save, rng):
    with pytest.raises(ProblemError, match=r"name: expected a quantized layer of .* \(l\), got m"):
        read_layer(save(awq(rng)[0]), "m")
    with pytest.raises(ProblemError, match=r"\(none\), got m"):
        read_layer(save({"x": np.ones(2, np.float32)}), "m")


@pytest.mark.parametrize(
    "q, name, message",
    [
        (quantize(np.ones((8, 64), np.float32), "mxfp4"), "awq", "l: awq cannot hold float4_e2m1fn with float8_e8m0fnu scales per 1x32"),
        (quantize(np.ones((8, 64), np.float32), "nvfp4"), "mxfp4", "l: mxfp4 cannot hold .*, a global scale"),
        (quantize(np.ones((8, 64), np.float32), "fp8_1x128"), "fp8-block", "l: fp8-block cannot hold float8_e4m3fn with float32 scales per 1x64"),
        (quantize(np.ones((12, 64), np.float32), "int4_g32"), "awq", r"expected N in multiples of 8 for awq, got \[12, 64\]"),
        (
            QTensor(np.zeros((8, 16), np.uint8), np.ones((8, 2), np.float16), "uint4", (1, 8), g_idx=np.int32([0, 1] * 8)),
            "awq", "l: awq cannot hold uint4 .*, g_idx",
        ),
    ],
)  # fmt: skip
def test_a_format_says_what_it_cannot_hold(q, name, message, tmp_path):
    with pytest.raises(ProblemError, match=message):
        write_layers(tmp_path / "out.safetensors", {"l": q}, name)
    assert not (tmp_path / "out.safetensors").exists()


def test_an_unknown_format_is_refused(tmp_path):
    with pytest.raises(ProblemError, match="format: expected one of fp8-block, awq, .*, got gguf"):
        write_layers(tmp_path / "out.safetensors", {}, "gguf")


@pytest.mark.parametrize(
    "config, error, message",
    [
        ({"quant_method": "gptq", "bits": 8}, UnsupportedError, "expected 4 bits, got 8"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, UnsupportedError, "expected a checkpoint_format of gptq or gptq_v2"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, UnsupportedError, "or awq's version gemm, got gemv"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, ProblemError, "expected a weight_block_size of two extents"),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"group_size": 32}}, "b": {"weights": {"group_size": 64}}}},
            UnsupportedError, "expected one group size for all layers, got \\['32', '64'\\]",
        ),
    ],
)  # fmt: skip
def test_a_config_that_says_something_else_is_refused(config, error, message, save, tmp_path):
    path = save({"x": np.ones(2, np.float32)})
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": config}))
    with pytest.raises(error, match=message):
        read_layer(path, "l")


@pytest.mark.parametrize("version, word", [(1, 0x88888888), (2, 0x77777777)])
def test_symmetric_gptq_of_the_other_version_than_its_tag_is_refused_unless_it_is_said(version, word, save, rng):
    tensors, _ = gptq(rng, version=version)
    tensors["l.qzeros"] = np.full(tensors["l.qzeros"].shape, word, np.uint32).view(np.int32)
    path = save(tensors, metadata=CONFIG["gptq-v2"] if version == 2 else None)
    with pytest.raises(
        ProblemError, match=f"l: .qzeros: expected zero points of GPTQ v{version}, .* got {word:#x} throughout, .* in v{3 - version}"
    ):
        read_layer(path, "l")
    assert set(read_layer(path, "l", gptq_version=3 - version).zero_point.ravel().tolist()) == {8}
    assert set(read_layer(path, "l", gptq_version=version).zero_point.ravel().tolist()) == {9 if version == 1 else 7}


@pytest.mark.parametrize("text", ["[1]", "{", '"a"'])
def test_a_config_that_is_no_json_object_is_refused(text, save, tmp_path):
    path = save({"x": np.ones(2, np.float32)})
    (tmp_path / "quantize_config.json").write_text(text)
    with pytest.raises(ProblemError, match="quantize_config.json: expected"):
        read_layer(path, "l")


@pytest.mark.parametrize(
    "metadata, files",
    [
        ({"gptq_checkpoint_format": "gptq_v2", "gptq_bits": "4", "gptq_group_size": "96"}, {}),
        ({}, {"quantize_config.json": {"bits": 4, "group_size": 96, "checkpoint_format": "gptq_v2"}}),
        (
            {},
            {"config.json": {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 96, "checkpoint_format": "gptq_v2"}}},
        ),
        ({}, {"config.json": {"model_type": "x"}, "quantize_config.json": {"bits": 4, "group_size": 96, "checkpoint_format": "gptq_v2"}}),
    ],
)
def test_settings_are_found_where_quantizers_put_them(metadata, files, save, rng, tmp_path):
    tensors, values = gptq(rng, version=2, group=96)
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    q = read_layer(save(tensors, metadata=metadata or None), "l")
    assert q.granularity == (1, 96) and np.array_equal(values, q.dequantize("float64"))


def test_a_layer_that_is_none_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(DTypeError, match="layers: expected a QTensor for l, got ndarray"):
        write_layers(tmp_path / "out.safetensors", {"l": np.zeros((4, 128), np.float32)}, "awq")
    assert not list(tmp_path.iterdir())
