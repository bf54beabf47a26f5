"""Real input that comes with the package: one layer of a language model, and activations for it. `NOTICE` names sources and licences."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import as_file, files
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class Layer:
    """A linear layer without its bias, and what came to it: ``activations @ weight.T`` is its output.

    name         of the weight in its model
    activations  float16 [tokens, in]
    weight       float16 [out, in]
    """

    name: str
    activations: Any
    weight: Any


def demo_layer() -> Layer:
    """The first feed-forward weight of all-MiniLM-L6-v2, and the activations of sentences of a novel.

    >>> layer = demo_layer()
    >>> layer.activations.shape, layer.weight.shape
    ((1431, 384), (1536, 384))
    """
    with as_file(files(__name__) / "layer.npz") as path, np.load(path, allow_pickle=False) as arrays:
        return Layer("all-MiniLM-L6-v2, encoder.layer.0.intermediate.dense", arrays["activations"], arrays["weight"])
