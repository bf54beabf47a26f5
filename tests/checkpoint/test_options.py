"""Options that a format does not take, groups that loaders do not take, and layers that did not survive: refused, or pointed at."""

import ml_dtypes
import numpy as np
import pytest
from layers_by_hand import IN_WHOLE_GROUPS, compressed_tensors, fp8_block, gptq, mxfp4
from safetensors_by_hand import parse

from dgnumba.checkpoint import FORMATS, Options, convert, quantize_checkpoint, read_layer
from dgnumba.errors import ProblemError, guess

INT4 = ("awq", "gptq", "gptq-v2", "compressed-tensors")
VALUES = {"group": 64, "zero_points": False, "search": True, "use_ue8m0": True, "scale_dtype": "bfloat16", "rule": "rceil"}
TAKEN = {"fp8-block": {"search", "use_ue8m0"}, "nvfp4": {"search"}, "nvfp4-modelopt": {"search"}}
TAKEN |= dict.fromkeys(("mxfp4", "mxfp4-stack"), {"search", "rule"}) | dict.fromkeys(INT4, set(VALUES) - {"use_ue8m0"})


def floats(rng, n=16, k=256):
    return {"l.weight": rng.standard_normal((n, k)).astype(np.float32)}


@pytest.mark.parametrize("option", VALUES)
@pytest.mark.parametrize("to", sorted(set(FORMATS) - {"mxfp4-stack"}))
def test_what_a_format_does_not_take_is_refused_by_name(to, option, save, rng, tmp_path):
    path, out = save(floats(rng)), tmp_path / "out.safetensors"
    value = "amax/7.5" if option == "rule" and to in INT4 else VALUES[option]
    options = Options(**{option: value}, **({"zero_points": False} if option == "rule" and to == "awq" else {}))
    if option in TAKEN[to]:
        assert quantize_checkpoint(path, out, to, options=options).reports[0].kind == "quantized"
        return
    with pytest.raises(ProblemError, match=f"{option}: expected none for {to}, which takes .*, got {value}"):
        quantize_checkpoint(path, out, to, options=options)
    assert not out.exists()


@pytest.mark.parametrize("option", VALUES)
def test_floats_take_none(option, save, rng, tmp_path):
    with pytest.raises(ProblemError, match=f"{option}: expected none for bfloat16, which takes no options, got"):
        convert(save(mxfp4(rng)[0]), tmp_path / "out.safetensors", "bfloat16", options=Options(**{option: VALUES[option]}))


def test_rules_go_with_elements(save, rng, tmp_path):
    path, out = save(floats(rng)), tmp_path / "out.safetensors"
    for to, options, message in (
        (
            "awq",
            Options(rule="amax/7"),
            r"rule: expected none with zero points, got amax/7; awq has them unless zero_points \(--no-zero-points\)",
        ),
        ("gptq", Options(rule="amax/7", zero_points=True), "rule: expected none with zero points, got amax/7$"),
        ("gptq", Options(rule="floor"), "rule: expected one of amax/7, amax/7.5, extremum/-8 for int4 .*, got floor"),
        ("mxfp4", Options(rule="amax/7"), "rule: expected one of rceil, floor, ceil, even for float4_e2m1fn .*, got amax/7"),
    ):
        with pytest.raises(ProblemError, match=message):
            quantize_checkpoint(path, out, to, options=options)
    assert not out.exists()


@pytest.mark.parametrize("options", [{"search": True}, {"rule": "amax/7.5"}])
def test_options_of_new_layers_are_refused_where_there_is_none(options, save, rng, tmp_path):
    path, out = save(compressed_tensors(rng, n=16, group=64, zero_points=False)[0]), tmp_path / "out.safetensors"
    with pytest.raises(ProblemError, match=f"{next(iter(options))}: expected none, as every layer keeps its values in gptq"):
        convert(path, out, "gptq", options=Options(**options))
    assert convert(path, out, "gptq", options=Options(group=32, **options)).reports[0].kind == "quantized"


def test_layers_are_made_anew_where_they_are_not_as_asked(save, rng, tmp_path):
    out = tmp_path / "out.safetensors"
    path = save(compressed_tensors(rng, n=16, group=64)[0])
    for options, kind in (
        ({}, "exact"),
        ({"zero_points": True}, "exact"),
        ({"zero_points": False}, "quantized"),
        ({"scale_dtype": "float16"}, "quantized"),
    ):
        assert convert(path, out, "compressed-tensors", options=Options(**options)).reports[0].kind == kind
        q = read_layer(out, "l")
        assert q.granularity == (1, 64)  # as it was
        assert (q.zero_point is not None) == options.get("zero_points", not options.get("scale_dtype"))
        assert q.scale_dtype.name == options.get("scale_dtype", "bfloat16")


def test_what_the_source_has_not_cannot_be_said_of_it(save, rng, tmp_path):
    out = tmp_path / "out.safetensors"
    path = save(fp8_block(rng)[0])
    for options, message in (
        ({"group": 64}, "group: expected none for a source of fp8-block, whose groups are fixed, got 64"),
        ({"gptq_version": 2}, "gptq_version: expected none for a source of fp8-block, got 2"),
    ):
        with pytest.raises(ProblemError, match=message):
            convert(path, out, "float32", **options)
        with pytest.raises(ProblemError, match=message):
            read_layer(path, "l", **options)
    assert read_layer(save(gptq(rng)[0], "g"), "l", group=128, gptq_version=1).shape == (16, 192)


@pytest.mark.parametrize("to", ["awq", "compressed-tensors"])
def test_F27_a_short_last_group_is_written_for_gptq_alone(to, save, rng, tmp_path):
    out = tmp_path / "out.safetensors"
    message = f"group: expected one that divides K = 192 for {to}, whose loaders take no short last group, got 128; 64 does"
    short = save(gptq(rng)[0], "short")
    with pytest.raises(ProblemError, match=f"l: {message}"):
        convert(short, out, to)
    with pytest.raises(ProblemError, match=f"expected weights that {to} can hold, got 1 that it cannot, for instance: {message}"):
        quantize_checkpoint(save(floats(rng, k=192)), out, to)
    assert not out.exists()
    assert convert(short, out, to, options=Options(group=64)).reports[0].kind == "quantized"
    assert quantize_checkpoint(save(floats(rng, k=192)), out, "gptq").reports[0].kind == "quantized"
    assert parse(out)[0]["l.g_idx"].tolist() == [k // 128 for k in range(192)]


@pytest.mark.parametrize("name", ["AWQ", "Nvfp4", "GPTQ-v2"])
def test_formats_in_any_case(name, save, rng, tmp_path):
    assert quantize_checkpoint(save(floats(rng)), tmp_path / "out.safetensors", name).reports[0].after == name.lower()


def test_a_misspelt_format_is_guessed(save, rng, tmp_path):
    path, out = save(IN_WHOLE_GROUPS["awq"](rng)[0]), tmp_path / "out.safetensors"
    assert convert(path, out, "BFloat16").reports[0].kind == "dequantized"
    for name, meant in (("compressed_tensors", "compressed-tensors"), ("bf16", "bfloat16"), ("gptqv2", "gptq-v2")):
        with pytest.raises(ProblemError, match=f"to: expected one of fp8-block, .*, got {name}; did you mean {meant}"):
            convert(path, out, name)
    assert guess("qqqq", FORMATS) == ""


@pytest.mark.parametrize(
    "size, to, flags",
    [
        (1.0, "awq", []),
        (
            1e-9,
            "awq",
            [
                "32 of 32 scales lie below float16's normal range, 6.1e-05, and are coarse",
                "SQNR 0.00 dB: the error is half the layer or more",
            ],
        ),
        (3e6, "gptq", ["32 of 32 scales are the largest float16, 65504, and what lies beyond is clipped", "SQNR"]),
        (1e-9, "compressed-tensors", []),  # bfloat16, as the weight
        (3e6, "nvfp4", []),
    ],
)
def test_a_layer_that_did_not_survive_is_pointed_at(size, to, flags, save, rng, tmp_path):
    w = (rng.uniform(0.5, 1, (16, 256)) * rng.choice([-1, 1], (16, 256)) * size).astype(ml_dtypes.bfloat16)
    path, out = save({"l.weight": w}), tmp_path / "out.safetensors"
    report = quantize_checkpoint(path, out, to).reports[0]
    assert len(report.flags) == len(flags) and all(found.startswith(flag) for found, flag in zip(report.flags, flags))
    assert report.as_dict()["flags"] == list(report.flags)
    unmeasured = quantize_checkpoint(path, out, to, options=Options(measure=False)).reports[0]
    assert list(unmeasured.flags) == [flag for flag in report.flags if "scales" in flag]


def test_blocks_of_zeros_are_not_pointed_at(save, rng, tmp_path):
    w = floats(rng)["l.weight"]
    w[:, :128] = 0
    assert quantize_checkpoint(save({"l.weight": w}), tmp_path / "out.safetensors", "awq").reports[0].flags == ()


def test_floats_that_vanish_in_float16_are_pointed_at(save, rng, tmp_path):
    tensors, _ = fp8_block(rng)
    tensors["l.weight_scale_inv"][...] = 2.0**-36
    report = convert(save(tensors), tmp_path / "out.safetensors", "float16").reports[0]
    assert len(report.flags) == 1 and report.flags[0].startswith("SQNR")


def test_values_beyond_float32_are_refused_where_float32_is_made_of_them(save, rng, tmp_path):
    """MXFP4 of elements near 3.4e38 is 4 times 2^126, which float64 holds."""
    x = np.full((16, 64), 3.4e38, np.float32)
    report = quantize_checkpoint(save({"l.weight": x}), tmp_path / "q.safetensors", "mxfp4").reports[0]
    assert report.flags == ("1024 values are beyond float32",) and report.tally.overflowed == 1024 and report.tally.outside == 0
    for to in ("float32", "nvfp4"):
        with pytest.raises(ProblemError, match=r"l: expected values that float32 holds, got 3.40282e\+38 at \[0, 0\]"):
            convert(tmp_path / "q.safetensors", tmp_path / "out.safetensors", to)
