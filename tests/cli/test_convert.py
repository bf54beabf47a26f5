"""``dgnumba convert`` and ``dgnumba quantize``: what they print, write and refuse."""

import json

import ml_dtypes
import numpy as np
import pytest
from layers_by_hand import awq, fp8_block
from safetensors_by_hand import file_bytes, parse

from dgnumba.checkpoint import read_layer


@pytest.fixture
def model(tmp_path):
    """A checkpoint of two float weights, an embedding and a norm."""
    rng = np.random.default_rng(0)
    tensors = {f"layers.{i}.weight": (rng.standard_normal((64, 128)) * 0.02).astype(ml_dtypes.bfloat16) for i in range(2)}
    tensors |= {"embed.weight": np.ones((8, 128), np.float16), "norm.weight": np.ones(128, np.float32)}
    path = tmp_path / "model.safetensors"
    path.write_bytes(file_bytes(tensors, {"format": "pt"}))
    return path


def test_quantize_reports_every_weight(run, model, tmp_path):
    code, out, err = run("quantize", model, tmp_path / "q.safetensors", "--to", "awq", "--report", tmp_path / "r.json")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["layer", "from", "to", "shape", "SQNR", "dB", "largest", "error", "of", "bound", "clipped"]
    assert [line.split()[:4] for line in lines[1:3]] == [
        ["layers.0", "bfloat16", "awq", "64x128"],
        ["layers.1", "bfloat16", "awq", "64x128"],
    ]
    assert lines[3].startswith(f"{tmp_path}/q.safetensors: ") and lines[3].endswith(", was 35.3 kB")
    assert json.loads(lines[4].removeprefix('for config.json: "quantization_config": '))["quant_method"] == "awq"
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["bytes_before"] == 35328 and [layer["name"] for layer in report["layers"]] == ["layers.0", "layers.1"]
    assert report["layers"][0]["kind"] == "quantized" and report["layers"][0]["outside"] == 0 and 15 < report["layers"][0]["sqnr_db"] < 25
    assert read_layer(tmp_path / "q.safetensors", "layers.1").shape == (64, 128)
    assert {"embed.weight", "norm.weight"} < set(parse(tmp_path / "q.safetensors")[0])


def test_convert_says_what_is_exact(run, model, tmp_path):
    run("quantize", model, tmp_path / "q.safetensors", "--to", "compressed-tensors", "--group", 32, "--zero-points")
    code, out, err = run("convert", tmp_path / "q.safetensors", tmp_path / "c.safetensors", "--to", "gptq")
    assert (code, err) == (0, "")
    assert out.splitlines()[1].split() == ["layers.0", "compressed-tensors", "gptq", "64x128", "exact"]
    before, after = (read_layer(tmp_path / f"{name}.safetensors", "layers.0").dequantize() for name in "qc")
    assert np.array_equal(before, after)


def test_options_reach_the_quantizer(run, model, tmp_path):
    out = tmp_path / "q.safetensors"
    run("quantize", model, out, "--to", "fp8-block", "--ue8m0")
    scales = parse(out)[0]["layers.0.weight_scale_inv"]
    assert np.array_equal(np.frexp(scales)[0], np.full_like(scales, 0.5))
    run("quantize", model, out, "--to", "mxfp4", "--rule", "floor", "--search", "--include", "*0.weight", "--exclude", "nothing")
    assert "layers.0.weight_packed" in parse(out)[0] and "layers.1.weight" in parse(out)[0]
    code, _, err = run("quantize", model, out, "--to", "mxfp4", "--rule", "amax/7")
    assert code == 2 and "rule: expected one of" in err


def test_options_that_say_nothing_are_refused(run, model, tmp_path):
    for arguments, message in (
        (("--to", "mxfp4", "--group", 64), "group: expected none for mxfp4, which takes search, rule, got 64"),
        (
            ("--to", "awq", "--ue8m0"),
            "use_ue8m0: expected none for awq, which takes group, zero_points, search, scale_dtype, rule, got True",
        ),
        (("--to", "fp8-block", "--no-zero-points"), "zero_points: expected none for fp8-block, which takes search, use_ue8m0, got False"),
        (("--to", "nvfp4", "--rule", "floor"), "rule: expected none for nvfp4, which takes search, got floor"),
    ):
        code, out, err = run("quantize", model, tmp_path / "q.safetensors", *arguments)
        assert (code, out) == (2, "") and message in err
    assert not (tmp_path / "q.safetensors").exists()


def test_a_layer_that_did_not_survive_is_shown(run, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(file_bytes({"a.weight": np.full((8, 128), 1e-9, np.float32)}))
    code, out, _ = run("quantize", path, tmp_path / "q.safetensors", "--to", "awq", "--report", tmp_path / "r.json")
    flags = json.loads((tmp_path / "r.json").read_text())["layers"][0]["flags"]
    assert code == 0 and len(flags) == 2 and all(f"LOOK AT a: {flag}" in out.splitlines() for flag in flags)


def test_what_is_kept_is_told_with_the_reason(run, tmp_path, rng):
    path = tmp_path / "model.safetensors"
    path.write_bytes(file_bytes({"a.weight": np.ones((8, 128), np.float32), "b.weight": np.ones((9, 128), np.float32)}))
    code, out, _ = run("quantize", path, tmp_path / "q.safetensors", "--to", "awq")
    assert code == 0
    assert "kept b.weight: shape: expected N in multiples of 8 for awq, got [9, 128]" in out


def test_the_group_of_the_source_can_be_said(run, tmp_path, rng):
    tensors, values = awq(rng, k=192, group=96)
    path, out = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    path.write_bytes(file_bytes(tensors))
    assert run("convert", path, out, "--to", "float32", "--source-group", 96)[0] == 0
    assert np.array_equal(values.astype(np.float32), parse(out)[0]["l.weight"])


@pytest.mark.parametrize(
    "content, arguments, message",
    [
        (b"", ("convert", "--to", "awq"), "expected a safetensors file, got 0 bytes"),
        (None, ("convert", "--to", "awq"), "No such file or directory"),
        ("awq", ("convert", "--to", "int3"), "to: expected one of fp8-block"),
        ("awq", ("quantize", "--to", "awq"), "got none among 3 tensors; quantized layers are for dgnumba convert"),
        ("awq", ("convert", "--to", "gptq", "--report", "none/r.json"), "report: expected a file in a folder that is there, got none"),
        ("awq", ("quantize", "--to", "awq", "--report", "none/r.json"), "report: expected a file in a folder that is there, got none"),
        ("cut", ("convert", "--to", "bfloat16"), "cut short?"),
        ("nan", ("convert", "--to", "awq"), "l: expected finite weights, got nan at [0, 0]"),
    ],
)
def test_refusals_are_one_line_and_leave_no_file(content, arguments, message, run, tmp_path):
    path, out, rng = tmp_path / "in.safetensors", tmp_path / "out.safetensors", np.random.default_rng(0)
    made = file_bytes(awq(rng)[0])
    if content == "nan":
        tensors, _ = fp8_block(rng, n=128, k=256)
        tensors["l.weight"].view(np.uint8)[0, 0] = 0x7F
        made = file_bytes(tensors)
    if content is not None:
        path.write_bytes({"awq": made, "nan": made, "cut": made[:-1]}.get(content, content))
    code, printed, err = run(arguments[0], path, out, *arguments[1:])
    assert code == 2 and printed == "" and message in err and err.startswith("dgnumba: ") and err.count("\n") == 1
    assert not out.exists()
