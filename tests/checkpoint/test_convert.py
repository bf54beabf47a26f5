"""Conversions: lossless where the target holds the same values, as `quant.quantize` elsewhere; reports that add up; no half file."""

import json
import os

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layers_by_hand import IN_WHOLE_GROUPS as MAKE
from layers_by_hand import awq, compressed_tensors, fp8_block, gptq, mxfp4, mxfp4_stack, nvfp4
from safetensors_by_hand import file_bytes, parse, same_bits

from dgnumba.checkpoint import FORMATS, Options, convert, quantize_checkpoint, read_layer, steps
from dgnumba.errors import ProblemError
from dgnumba.quant import as_format, element_bound, quantize

INT4 = ("awq", "gptq", "gptq-v2", "compressed-tensors")
WEIGHTS = tuple(name for name in FORMATS if name != "mxfp4-stack")
V2 = {"quantization_config": json.dumps({"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"})}


@pytest.fixture
def small_slabs(monkeypatch):
    """Slabs of 128 rows, so that small layers have several."""
    monkeypatch.setattr(steps, "SLAB_ELEMENTS", 1)


def weights(rng, n=264, k=256, dtype="bfloat16"):
    return (rng.standard_normal((n, k)) * 0.05).astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))


@pytest.mark.parametrize("to", INT4)
@pytest.mark.parametrize("source", INT4)
def test_between_int4_formats_nothing_is_rounded(source, to, save, rng, tmp_path, small_slabs):
    tensors, values = MAKE[source](rng, n=264)
    path, out = save(tensors, metadata=V2 if source == "gptq-v2" else None), tmp_path / "out.safetensors"
    done = convert(path, out, to)
    assert [(r.name, r.before, r.after, r.kind, r.shape) for r in done.reports] == [("l", source, to, "exact", (264, 192))]
    assert np.array_equal(values, read_layer(out, "l").dequantize("float64"))
    assert done.nbytes_after == sum(x.nbytes for x in parse(out)[0].values())


@pytest.mark.parametrize("source, to", [("mxfp4", "mxfp4"), ("mxfp4-stack", "mxfp4-stack"), ("nvfp4", "nvfp4"), ("nvfp4-modelopt", "nvfp4-modelopt"),
                                        ("fp8-block", "fp8-block"), *((name, name) for name in INT4)])  # fmt: skip
def test_to_its_own_format_a_layer_stays_to_the_byte(source, to, save, rng, tmp_path, small_slabs):
    tensors, _ = MAKE[source](rng)
    convert(save(tensors, metadata=V2 if source == "gptq-v2" else None), tmp_path / "out.safetensors", to)
    found, _ = parse(tmp_path / "out.safetensors")
    assert [key for key, x in tensors.items() if not same_bits(np.asarray(x), found[key])] == [] and len(found) == len(tensors)


def test_between_the_two_of_nvfp4_only_the_global_scale_may_be_rounded(save, rng, tmp_path):
    tensors, values = nvfp4(rng)
    done = convert(save(tensors), tmp_path / "out.safetensors", "nvfp4-modelopt")
    found = read_layer(tmp_path / "out.safetensors", "l")
    assert np.abs(found.dequantize("float64") - values).max() <= np.abs(values).max() * 2**-24
    assert found.global_scale == np.float32(1 / np.float64(tensors["l.weight_global_scale"][0]))
    tensors["l.weight_global_scale"] = np.float32([1024])
    exact = convert(save(tensors), tmp_path / "out.safetensors", "nvfp4-modelopt")
    assert done.reports[0].kind == "exact but for the rounding of its global scale" and exact.reports[0].kind == "exact"
    assert read_layer(tmp_path / "out.safetensors", "l").global_scale == np.float32(2**-10)


@pytest.mark.parametrize("make", [gptq, compressed_tensors])
def test_F27_act_order_goes_where_it_can_be_held_and_is_undone_elsewhere(make, save, rng, tmp_path):
    tensors, values = make(rng, n=16, k=256, act_order=True)
    out = tmp_path / "out.safetensors"
    for to, kind in (("gptq-v2", "exact"), ("compressed-tensors", "exact"), ("awq", "quantized")):
        done = convert(save(tensors), out, to)
        assert done.reports[0].kind == kind
        found = read_layer(out, "l")
        if kind == "exact":
            assert np.array_equal(values, found.dequantize("float64"))
        else:
            x = read_layer(save(tensors), "l").dequantize()
            assert np.array_equal(quantize(x, as_format("uint4_g128")).codes.shape, found.codes.shape)
            assert (np.abs(found.dequantize("float64") - x) <= element_bound(x, found)).all()


def expected_of(to, x):
    """What `quant.quantize` makes of a whole weight, for each format's defaults."""
    if to in INT4:
        from dataclasses import replace

        from dgnumba.dtypes import DTYPES

        scale = "bfloat16" if to == "compressed-tensors" else "float16"
        return quantize(x, replace(as_format("uint4_g128" if to == "awq" else "int4_g128"), scale_dtype=DTYPES[scale]))
    if to.startswith("nvfp4"):
        whole = np.float32(np.abs(x).max() / np.float32(2688))
        if to == "nvfp4":
            whole = np.float64(1) / np.float64(np.float32(np.float64(1) / np.float64(whole)))
        return quantize(x, "nvfp4", global_scale=np.asarray(whole))
    return quantize(x, "mxfp4" if to == "mxfp4" else "fp8_128x128")


@pytest.mark.parametrize("to", WEIGHTS)
def test_floats_become_what_quantize_makes_of_the_whole(to, save, rng, tmp_path, small_slabs):
    w = weights(rng)
    done = quantize_checkpoint(save({"l.weight": w, "l.bias": np.ones(3, np.float32)}), tmp_path / "out.safetensors", to)
    x = w.astype(np.float32)
    found, expected = read_layer(tmp_path / "out.safetensors", "l"), expected_of(to, x)
    assert np.array_equal(expected.dequantize("float64"), found.dequantize("float64"))
    assert parse(tmp_path / "out.safetensors")[0]["l.bias"].tolist() == [1, 1, 1]
    # and the report says what it is
    (report,) = done.reports
    error = np.abs(found.dequantize("float64") - x)
    assert (report.name, report.before, report.after, report.kind, report.shape) == ("l", "bfloat16", to, "quantized", w.shape)
    assert report.tally.largest_error == error.max() and report.tally.elements == w.size
    assert np.isclose(report.tally.sqnr_db, 10 * np.log10((x.astype(np.float64) ** 2).sum() / (error**2).sum()), rtol=1e-12)
    assert np.isclose(report.tally.bound_used, (error / element_bound(x, found)).max(), rtol=1e-12) and report.tally.bound_used <= 1
    assert report.tally.outside == 0
    assert report.nbytes_before == w.nbytes and report.nbytes_after == done.nbytes_after - 12


@pytest.mark.parametrize("to", WEIGHTS)
@pytest.mark.parametrize("source", ["fp8-block", "mxfp4", "nvfp4"])
def test_layers_are_quantized_anew_from_their_values(source, to, save, rng, tmp_path, small_slabs):
    tensors, values = MAKE[source](rng, n=264, k=256)
    done = convert(save(tensors), tmp_path / "out.safetensors", to)
    found = read_layer(tmp_path / "out.safetensors", "l")
    if source.split("-")[0] == to.split("-")[0]:
        assert done.reports[0].kind.startswith("exact")
        return
    x = values.astype(np.float32)
    assert done.reports[0].kind == "quantized"
    assert (np.abs(found.dequantize("float64") - x) <= element_bound(x, found)).all()
    assert done.reports[0].tally.outside == 0


@settings(max_examples=10)
@given(seed=st.integers(0, 2**32 - 1), to=st.sampled_from(WEIGHTS), scale=st.sampled_from([1e-6, 1.0, 1e4]), search=st.booleans())
def test_every_element_is_within_the_bound_of_what_is_stored(seed, to, scale, search):
    import tempfile
    from pathlib import Path

    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((rng.integers(1, 5) * 8, rng.integers(1, 5) * 32)) * scale).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "in.safetensors", Path(folder) / "out.safetensors"
        path.write_bytes(file_bytes({"l.weight": x}))
        options = Options(32 if to in INT4 else None, search=search, scale_dtype="bfloat16" if to in INT4 else None)
        quantize_checkpoint(path, out, to, options=options)
        q = read_layer(out, "l")
    assert (np.abs(q.dequantize("float64") - x) <= element_bound(x, q)).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("source", ["fp8-block", "awq", "compressed-tensors", "mxfp4-stack", "nvfp4"])
def test_to_floats_values_are_rounded_from_float32(source, dtype, save, rng, tmp_path, small_slabs):
    tensors, values = MAKE[source](rng)
    done = convert(save(tensors), tmp_path / "out.safetensors", dtype)
    found, metadata = parse(tmp_path / "out.safetensors")
    (name,) = found
    assert name == ("l" if source == "mxfp4-stack" else "l.weight") and found[name].shape == values.shape
    exact = read_layer(save(tensors), "l").dequantize() if source == "nvfp4" else values.astype(np.float32)  # nvfp4: s * g is rounded first
    expected = exact.astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))
    assert same_bits(expected, found[name])
    assert done.reports[0].kind == "dequantized" and done.config is None and "quantization_config" not in metadata


def test_a_value_too_large_for_float16_is_refused(save, rng, tmp_path):
    tensors, _ = fp8_block(rng)
    tensors["l.weight_scale_inv"][...] = 2.0**9
    with pytest.raises(ProblemError, match="l: expected values up to 65504 for float16, got"):
        convert(save(tensors), tmp_path / "out.safetensors", "float16")
    assert not (tmp_path / "out.safetensors").exists()


def test_F05_the_data_is_divided_by_the_scale_that_is_stored(save, tmp_path):
    x = np.full((128, 128), 0.5, np.float32)
    x[0, 0] = 1.0
    quantize_checkpoint(save({"l.weight": x}), tmp_path / "out.safetensors", "fp8-block", options=Options(use_ue8m0=True))
    found, _ = parse(tmp_path / "out.safetensors")
    assert found["l.weight_scale_inv"].tolist() == [[2.0**-8]]
    assert found["l.weight"].view(np.uint8)[0, :2].tolist() == [0x78, 0x70]
    assert np.array_equal(x, read_layer(tmp_path / "out.safetensors", "l").dequantize())


@pytest.mark.parametrize("to, word", [("gptq", 0x77777777), ("gptq-v2", 0x88888888)])
def test_symmetric_gptq_has_the_zero_points_that_kernels_look_for(to, word, save, rng, tmp_path):
    quantize_checkpoint(save({"l.weight": weights(rng)}), tmp_path / "out.safetensors", to)
    found, metadata = parse(tmp_path / "out.safetensors")
    assert set(found["l.qzeros"].view(np.uint32).ravel().tolist()) == {word}
    assert json.loads(metadata["quantization_config"])["checkpoint_format"] == to.replace("-", "_")
    assert found["l.g_idx"].tolist() == [k // 128 for k in range(256)]


def test_options_of_int4(save, rng, tmp_path):
    path, out = save({"l.weight": weights(rng, dtype="float32")}), tmp_path / "out.safetensors"
    quantize_checkpoint(path, out, "compressed-tensors", options=Options(group=32, zero_points=True, scale_dtype="bfloat16"))
    q = read_layer(out, "l")
    assert q.granularity == (1, 32) and q.zero_point is not None and q.scale.dtype == ml_dtypes.bfloat16
    quantize_checkpoint(path, out, "awq", options=Options(group=-1, zero_points=False))
    q = read_layer(out, "l")
    assert q.granularity == (1, 256) and set(q.zero_point.ravel().tolist()) == {8}
    convert(out, tmp_path / "again.safetensors", "gptq", options=Options(group=64))
    assert read_layer(tmp_path / "again.safetensors", "l").granularity == (1, 64)
    plain = quantize_checkpoint(path, out, "gptq").reports[0].tally.squared_error
    assert quantize_checkpoint(path, out, "gptq", options=Options(search=True)).reports[0].tally.squared_error < plain
    assert quantize_checkpoint(path, out, "gptq", options=Options(rule="amax/7.5")).reports[0].tally.squared_error < plain


def test_what_is_not_measured_is_written_all_the_same(save, rng, tmp_path):
    path = save({"l.weight": weights(rng)})
    measured = quantize_checkpoint(path, tmp_path / "a.safetensors", "awq")
    quick = quantize_checkpoint(path, tmp_path / "b.safetensors", "awq", options=Options(measure=False))
    assert measured.reports[0].tally is not None and quick.reports[0].tally is None
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


@pytest.mark.parametrize("options", [{"group": 0}, {"group": -2}, {"scale_dtype": "float64"}])
def test_options_that_mean_nothing_are_refused(options):
    with pytest.raises(ProblemError, match=f"{next(iter(options))}: expected"):
        Options(**options)
    with pytest.raises(ProblemError, match="rule: expected one of"):
        quantize(np.ones((1, 8), np.float32), as_format("mxfp4").with_rule("amax/7"))


def test_which_weights_are_quantized(save, rng, tmp_path):
    tensors = {
        "model.embed_tokens.weight": weights(rng, 16, 128), "model.layers.0.q_proj.weight": weights(rng, 16, 128),
        "model.layers.0.odd.weight": weights(rng, 9, 128), "model.layers.0.norm.weight": weights(rng, 1, 128)[0],
        "model.layers.0.mlp.gate.weight": weights(rng, 16, 128), "model.layers.0.conv.weight": weights(rng, 16, 128).reshape(2, 8, 128),
        "lm_head.weight": weights(rng, 16, 128), "counts.weight": np.ones((8, 128), np.int32),
    }  # fmt: skip
    path, out = save(tensors), tmp_path / "out.safetensors"
    done = quantize_checkpoint(path, out, "awq")
    assert [(r.name, r.kind) for r in done.reports] == [("model.layers.0.q_proj", "quantized"), ("model.layers.0.odd.weight", "kept")]
    assert done.reports[1].why == "shape: expected N in multiples of 8 for awq, got [9, 128]"
    found, _ = parse(out)
    assert [key for key, x in tensors.items() if key in found and not same_bits(x, found[key])] == []
    assert set(found) == set(tensors) - {"model.layers.0.q_proj.weight"} | {
        f"model.layers.0.q_proj.{x}" for x in ("qweight", "qzeros", "scales")
    }
    done = quantize_checkpoint(path, out, "awq", include=["lm_head*", "*embed*"], exclude=["*embed*"])
    assert [r.name for r in done.reports] == ["lm_head"]
    with pytest.raises(ProblemError, match="expected float matrices named like nothing, got none among 8 tensors"):
        quantize_checkpoint(path, out, "awq", include=["nothing"])
    with pytest.raises(
        ProblemError, match="expected weights that awq can hold, got 1 that it cannot, for instance: shape: expected N in multiples of 8"
    ):
        quantize_checkpoint(path, out, "awq", include=["*odd.weight"])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("to", ["fp8-block", "awq", "nvfp4"])
def test_what_is_not_finite_is_refused_by_name_and_place(to, bad, save, rng, tmp_path, small_slabs):
    w = weights(rng, dtype="float32")
    w[200, 7] = bad
    with pytest.raises(ProblemError, match=rf"l: expected finite weights, got {bad} at \[200, 7\]"):
        quantize_checkpoint(save({"l.weight": w}), tmp_path / "out.safetensors", to)
    assert sorted(os.listdir(tmp_path)) == ["in.safetensors"]


@pytest.mark.parametrize("to", WEIGHTS)
@pytest.mark.parametrize("n", [0, 8, 128])
def test_F01_zero_weights_and_no_rows(to, n, save, tmp_path):
    quantize_checkpoint(save({"l.weight": np.zeros((n, 64), np.float16)}), tmp_path / "out.safetensors", to)
    q = read_layer(tmp_path / "out.safetensors", "l", group=64 if n == 0 and to in INT4 else None)
    assert q.shape == (n, 64)
    assert not q.dequantize().any() and not np.isnan(q.dequantize()).any()


def test_a_layer_that_the_target_cannot_hold_is_named(save, rng, tmp_path):
    tensors, _ = compressed_tensors(rng, name="model.l", n=12, group=64)
    with pytest.raises(ProblemError, match=r"^model.l: shape: expected N in multiples of 8 for awq, got \[12, 192\]"):
        convert(save(tensors), tmp_path / "out.safetensors", "awq")
    with pytest.raises(ProblemError, match=r"^model.s: shape: expected a matrix \[N, K\] for fp8-block, got \[3, 10, 96\]"):
        convert(save(mxfp4_stack(rng, name="model.s")[0]), tmp_path / "out.safetensors", "fp8-block")
    assert not (tmp_path / "out.safetensors").exists()


def test_progress_ends_at_what_there_is_to_do_and_metadata_goes_along(save, rng, tmp_path, small_slabs):
    tensors = {**fp8_block(rng, name="a")[0], **mxfp4(rng, name="b")[0], "bias": np.ones(1000, np.float32)}
    seen = []
    out = tmp_path / "out.safetensors"
    path = save(tensors, metadata={"format": "pt", "author": "me", "quantization_config": "{}", "gptq_bits": "4"})
    done = convert(path, out, "bfloat16", progress=lambda *now: seen.append(now))
    assert [n for n, _, _ in seen] == sorted(n for n, _, _ in seen)
    assert seen[-1][:2] == (done.nbytes_after, done.nbytes_after) and {name for *_, name in seen} == {"a.weight", "b.weight", "bias"}
    assert parse(out)[1] == {"format": "pt", "author": "me"}


def test_an_interrupted_conversion_leaves_nothing_and_the_old_file(save, rng, tmp_path):
    out = tmp_path / "out.safetensors"
    path = save(MAKE["awq"](rng)[0])

    def stop(*now):
        raise KeyboardInterrupt

    for before in (None, b"old"):
        if before:
            out.write_bytes(before)
        with pytest.raises(KeyboardInterrupt):
            convert(path, out, "gptq", progress=stop)
        assert sorted(os.listdir(tmp_path)) == (["in.safetensors", "out.safetensors"] if before else ["in.safetensors"])
        assert before is None or out.read_bytes() == before


def test_where_not_to_write(save, rng, tmp_path):
    path = save(awq(rng)[0])
    with pytest.raises(ProblemError, match="out: expected another file than the source"):
        convert(path, path, "gptq")
    with pytest.raises(ProblemError, match="out: expected a file .safetensors, got .*out.npy"):
        convert(path, tmp_path / "out.npy", "gptq")
    with pytest.raises(ProblemError, match="to: expected one of fp8-block, .*, float16, got int3"):
        convert(path, tmp_path / "out.safetensors", "int3")
    with pytest.raises(ProblemError, match="expected quantized layers .* got none among 1 tensors"):
        convert(save({"x.weight": np.ones((8, 8), np.float32)}, "plain"), tmp_path / "out.safetensors", "awq")


def test_scales_in_another_shard_are_found_through_the_index(save, rng, tmp_path):
    tensors, values = fp8_block(rng)
    save({"l.weight": tensors["l.weight"]}, "one")
    save({"l.weight_scale_inv": tensors["l.weight_scale_inv"]}, "two")
    (tmp_path / "m.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"l.weight": "one.safetensors", "l.weight_scale_inv": "two.safetensors"}})
    )
    with pytest.raises(ProblemError, match="l.weight: expected l.weight_scale_inv, .* give the index or the folder"):
        convert(tmp_path / "one.safetensors", tmp_path / "x.safetensors", "float32")
    folder = tmp_path / "out"
    folder.mkdir()
    convert(tmp_path, folder / "x.safetensors", "float32")
    assert np.array_equal(values.astype(np.float32), parse(folder / "x.safetensors")[0]["l.weight"])


def test_layers_of_different_schemes_get_no_config_of_one(save, rng, tmp_path):
    tensors = {**awq(rng, name="a", k=256, group=64)[0], **awq(rng, name="b", k=256, group=128)[0]}
    done = convert(save(tensors), tmp_path / "out.safetensors", "gptq")
    assert done.config is None and [r.kind for r in done.reports] == ["exact", "exact"]
    done = convert(save(tensors), tmp_path / "out.safetensors", "gptq", options=Options(group=64))
    assert done.config["group_size"] == 64 and [r.kind for r in done.reports] == ["exact", "quantized"]
