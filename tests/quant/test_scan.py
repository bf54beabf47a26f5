"""sensitivity: the damage by hand, each way of saying it, and the order."""

import math

import numpy as np
import pytest

from dgnumba.errors import DTypeError, ProblemError
from dgnumba.quant import quantize, sensitivity


def layers():
    rng = np.random.default_rng(0)
    spiky = rng.uniform(-1, 1, (8, 128)).astype(np.float32)
    spiky[:, 3] = 40
    return {"smooth": rng.uniform(-1, 1, (16, 64)).astype(np.float32), "spiky": spiky, "zero": np.zeros((4, 64), np.float32)}


def test_the_layer_itself():
    found = sensitivity(layers(), "int4_row")
    assert [layer.name for layer in found] == ["spiky", "smooth", "zero"]
    for layer in found:
        w = layers()[layer.name].astype(np.float64)
        lost = np.linalg.norm(quantize(layers()[layer.name], "int4_row").dequantize("float64") - w)
        assert layer.damage == pytest.approx(lost / max(np.linalg.norm(w), 1e-300), rel=1e-12)
        assert layer.tally.elements == w.size and layer.name in str(layer)


def test_the_output_where_there_are_activations():
    weights = layers()
    x = np.random.default_rng(1).standard_normal((20, 128)).astype(np.float32)
    x[:, 3] = 0  # the spike is never looked at: what remains is rounded to nothing
    found = {layer.name: layer.damage for layer in sensitivity(weights, "int4_row", activations={"spiky": x})}
    w, q = weights["spiky"].astype(np.float64), quantize(weights["spiky"], "int4_row").dequantize("float64")
    assert found["spiky"] == pytest.approx(np.linalg.norm(x @ (w - q).T) / np.linalg.norm(x @ w.T), rel=1e-12)
    assert found["spiky"] > 0.9
    assert found["smooth"] == {layer.name: layer.damage for layer in sensitivity(weights, "int4_row")}["smooth"]


def test_a_loss_of_the_whole_model():
    weights, seen, steps = layers(), [], []

    def loss(model):
        changed = [name for name in model if not np.array_equal(model[name], layers()[name])]
        seen.append(changed)
        return 10.0 + {"smooth": 5.0, "spiky": math.nan}.get(changed[0] if changed else "", 0.0)

    found = sensitivity(weights, "int4_row", evaluate=loss, progress=lambda *step: steps.append(step))
    assert seen == [[], ["smooth"], ["spiky"], []] and steps == [(1, 3), (2, 3), (3, 3)]
    assert [layer.name for layer in found] == ["spiky", "smooth", "zero"]  # NaN is worst
    assert [layer.damage for layer in found][1:] == [5.0, 0.0]
    assert all(np.array_equal(weights[name], layers()[name]) for name in weights)


def test_a_function_is_a_quantizer_and_a_poisoned_layer_is_worst():
    weights = layers()
    weights["smooth"][0, 0] = np.inf
    found = sensitivity(weights, lambda x: quantize(x, "mxfp4", search=True))
    assert found[0].name == "smooth" and math.isnan(found[0].damage)


def test_refusals_name_the_layer():
    with pytest.raises(ProblemError, match="activations: expected names of layers, got other"):
        sensitivity(layers(), "mxfp4", activations={"other": np.ones((1, 1))})
    with pytest.raises(ProblemError, match=r"activations\['smooth'\]: expected \[tokens, 64\] for a weight \[16, 64\], got \[2, 63\]"):
        sensitivity(layers(), "mxfp4", activations={"smooth": np.ones((2, 63))})
    with pytest.raises(ProblemError, match=r"layers\['bias'\]: x: expected rank 2 or more"):
        sensitivity({"bias": np.ones(3, np.float32)}, "mxfp4")
    with pytest.raises(DTypeError, match=r"layers\['ids'\]: x: expected float16"):
        sensitivity({"ids": np.ones((3, 3), int)}, "mxfp4")
    assert sensitivity({}, "mxfp4") == []
