"""What a config.json has to say of a file that was written: what loaders would otherwise misread."""

import json
import re

import numpy as np
import pytest

from dgnumba.checkpoint import Options, TensorSource, quantize_checkpoint
from dgnumba.checkpoint.settings import METADATA_KEY
from dgnumba.checkpoint.writer import TensorSpec, TensorWriter

SHAPES = {"model.a.weight": (128, 256), "model.b.weight": (128, 512), "model.gate.weight": (8, 256), "lm_head.weight": (64, 256)}


@pytest.fixture
def floats(tmp_path, rng):
    tensors = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    tensors["model.norm.weight"] = np.ones(256, np.float32)
    path = tmp_path / "floats.safetensors"
    with TensorWriter(path, [TensorSpec.of(name, "float32", x.shape) for name, x in tensors.items()], {}) as writer:
        for name, x in tensors.items():
            writer.write(name, x)
    return path


def written(path):
    with TensorSource(path) as source:
        text = source.metadata.get(METADATA_KEY)
    return None if text is None else json.loads(text)


@pytest.mark.parametrize(
    "to, key",
    [
        ("fp8-block", "modules_to_not_convert"),
        ("awq", "modules_to_not_convert"),
        ("compressed-tensors", "ignore"),
        ("mxfp4", "ignore"),
        ("nvfp4", "ignore"),
        ("nvfp4-modelopt", "ignore"),
    ],
)
def test_matrices_that_were_left_are_named(floats, tmp_path, to, key):
    """lm_head and the router would otherwise be looked for in packed form; a norm is no matrix."""
    done = quantize_checkpoint(floats, tmp_path / "out.safetensors", to)
    assert sorted(done.config[key]) == ["lm_head", "model.gate"]
    assert written(done.path) == done.config


@pytest.mark.parametrize("to", ["gptq", "gptq-v2"])
def test_gptq_skips_by_patterns_of_names(floats, tmp_path, to):
    """As GPTQModel and vLLM match them: from the name's beginning, each with "-:" before it."""
    done = quantize_checkpoint(floats, tmp_path / "out.safetensors", to)
    patterns = list(done.config["dynamic"])
    assert written(done.path) == done.config and set(map(str, done.config["dynamic"].values())) == {"{}"}
    skipped = [name for name in ("lm_head", "model.gate", "model.a", "modelxgate", "model.gate_proj") if is_skipped(name, patterns)]
    assert skipped == ["lm_head", "model.gate"]


def is_skipped(name, patterns):
    return any(re.match(pattern.removeprefix("-:"), name) for pattern in patterns if pattern.startswith("-:"))


def test_nothing_is_named_where_nothing_was_left(floats, tmp_path):
    done = quantize_checkpoint(floats, tmp_path / "out.safetensors", "fp8-block", exclude=())
    assert "modules_to_not_convert" not in done.config


@pytest.mark.parametrize("zero_points, expected", [(None, True), (False, True), (True, False)])
def test_gptq_says_whether_it_is_symmetric(floats, tmp_path, zero_points, expected):
    done = quantize_checkpoint(floats, tmp_path / "out.safetensors", "gptq", options=Options(zero_points=zero_points))
    assert done.config["sym"] is expected


def test_groups_of_whole_rows_are_one_config_whatever_their_length(floats, tmp_path):
    gptq = quantize_checkpoint(floats, tmp_path / "gptq.safetensors", "gptq", options=Options(group=-1))
    assert gptq.config["group_size"] == -1
    packed = quantize_checkpoint(floats, tmp_path / "packed.safetensors", "compressed-tensors", options=Options(group=-1))
    weights = packed.config["config_groups"]["group_0"]["weights"]
    assert (weights["strategy"], weights["group_size"]) == ("channel", None)


def test_no_config_says_what_is_not_so(floats, tmp_path):
    """Groups of 384, cut to K where it is less, are of two sizes."""
    done = quantize_checkpoint(floats, tmp_path / "out.safetensors", "gptq", options=Options(group=384))
    assert done.config is None and written(done.path) is None
