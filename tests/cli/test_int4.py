"""``dgnumba gemm --format`` and ``dgnumba bench int4``."""

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

import dgnumba
from dgnumba.checkpoint import write_layers
from dgnumba.cli import gpu
from dgnumba.quant import quantize
from dgnumba.testing import assert_bits_equal

M, N, K = 9, 70, 256


@pytest.fixture(autouse=True)
def on_a_machine_without_a_gpu(monkeypatch):
    monkeypatch.setattr(gpu, "missing", lambda: "none is here")


@pytest.fixture
def inputs(tmp_path, rng):
    x, w = rng.standard_normal((M, K)).astype(np.float32), rng.standard_normal((N, K)).astype(np.float32)
    np.save(tmp_path / "a.npy", x)
    save_file({"w": w}, tmp_path / "b.safetensors")
    return (tmp_path / "a.npy", f"{tmp_path}/b.safetensors:w"), x, w


@pytest.mark.parametrize(
    "form, kind", [("int4_g128", "bfloat16"), ("uint4_g64", "fp8"), ("nvfp4", "float16"), ("int4_row", "int8"), ("mxfp4", "fp8_row")]
)
def test_files_are_quantized_multiplied_and_checked(run, inputs, tmp_path, form, kind):
    files, x, w = inputs
    code, out, err = run("gemm", *files, "--format", form, "--activation", kind, "-o", tmp_path / "d.npy")
    assert (code, err) == (0, "")
    assert f"right: all {M * N} elements within their error bound" in out and f"the price of {form}" in out
    a = {"bfloat16": lambda: x.astype(ml_dtypes.bfloat16), "float16": lambda: x.astype(np.float16), "int8": lambda: quantize(x, "int8_row"),
         "fp8_row": lambda: quantize(x, "fp8_row"), "fp8": lambda: dgnumba.per_token_cast_to_fp8(x)}[kind]()  # fmt: skip
    assert_bits_equal(np.load(tmp_path / "d.npy"), dgnumba.int4_gemm_nt(a, quantize(w, form), out_dtype="float32"))


@pytest.mark.parametrize("form", ["gptq", "compressed-tensors", "mxfp4"])
def test_a_layer_of_a_checkpoint_says_its_own_format(run, inputs, tmp_path, form):
    files, x, w = inputs
    weights = w[:64]
    write_layers(tmp_path / "model.safetensors", {"up": quantize(weights, "mxfp4" if form == "mxfp4" else "int4_g128")}, form)
    code, out, err = run("gemm", files[0], f"{tmp_path}/model.safetensors:up", "--format", "layer", "-o", tmp_path / "d.npy")
    assert (code, err) == (0, "")
    assert f"right: all {M * 64} elements" in out and "price" not in out
    q = dgnumba.checkpoint.read_layer(tmp_path / "model.safetensors", "up")
    assert_bits_equal(np.load(tmp_path / "d.npy"), dgnumba.int4_gemm_nt(x.astype(ml_dtypes.bfloat16), q, out_dtype="float32"))


def test_the_emulator_makes_the_same_product(run, inputs, tmp_path):
    files, x, w = inputs
    code, out, _ = run("gemm", *files, "--format", "int4_g128", "--on", "emulator", "--activation", "int8")
    assert code == 0 and "right: all" in out


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--format", "int8_row"), "format: expected one of 4 bits"),
        (("--format", "layer"), "name: expected a quantized layer"),
        (("--format", "int4_g128", "--sfa", "x.npy"), "expected none beside --format"),
        (("--format", "int4_g48"), "one per 1x48"),
    ],
)
def test_what_does_not_fit_is_one_line(run, inputs, arguments, message):
    files, _, _ = inputs
    code, _, err = run("gemm", *files, *arguments)
    assert code == 2 and message in err and len(err.strip().splitlines()) <= 3


def test_what_float16_cannot_hold_is_no_activation(run, inputs, tmp_path):
    files, x, _ = inputs
    x[3, 5] = 70000
    np.save(tmp_path / "large.npy", x)
    code, _, err = run("gemm", tmp_path / "large.npy", files[1], "--format", "int4_g128", "--activation", "float16")
    assert code == 2 and "A: expected finite numbers of float16, got 70000 at [3, 5]" in err
    assert run("gemm", tmp_path / "large.npy", files[1], "--format", "int4_g128", "--activation", "bfloat16")[0] == 0


def test_a_wrong_product_ends_with_one(run, inputs, monkeypatch):
    from dgnumba.cli import int4

    monkeypatch.setattr(int4, "multiply", lambda *args: (np.zeros((M, N), np.float32), 1.0))
    code, out, _ = run("gemm", *inputs[0], "--format", "int4_g128")
    assert code == 1 and "WRONG" in out


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("int4",), "expected a GPU"),
        (("int4", "--format", "fp8_row"), "expected one of 4 bits"),
        (("int4", "--format", "nope"), "dgnumba: format: expected one of"),
        (("int4", "4x4"), "expected MxNxK"),
        (("8x64x128", "--format", "mxfp4"), "format: expected none without the word int4, got mxfp4"),
        (("8x64x128", "--activation", "fp8"), "activation: expected none without the word int4, got fp8"),
    ],
)
def test_bench_int4_refuses(run, arguments, message):
    code, _, err = run("bench", *arguments)
    assert code == 2 and message in err
