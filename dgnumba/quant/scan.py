"""Which layers suffer most: quantize one at a time, and rank them by the damage."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ProblemError
from ..xp import as_array
from .cast import quantize
from .formats import Format
from .qtensor import QTensor
from .quality import Tally

Quantizer = Callable[[Any], QTensor]


@dataclass(frozen=True)
class LayerDamage:
    """What quantizing one layer, and no other, did.

    name    of the layer
    damage  how much worse the model is: by `evaluate`, or the relative error of the layer's output,
            or of the layer itself (`sensitivity`)
    tally   of its elements
    """

    name: str
    damage: float
    tally: Tally

    def __str__(self) -> str:
        return f"{self.name}: damage {self.damage:.4g}; {self.tally}"


def sensitivity(
    layers: Mapping[str, Any],
    quantizer: Format | str | Quantizer,
    *,
    activations: Mapping[str, Any] | None = None,
    evaluate: Callable[[Mapping[str, Any]], float] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[LayerDamage]:
    """Quantize one layer at a time and rank the layers by the damage, the worst first.

    Damage is what `evaluate` says, where it is given; else the relative error of the layer's output
    on its activations, ``|X (W - Q)^T| / |X W^T|``; else, where a layer has no activations, that of
    the layer itself, ``|W - Q| / |W|`` (all Frobenius norms).

    Args:
        layers: weights by name, ``[..., out, in]``, any float type, on the host.
        quantizer: a format or its name, or a function from a weight to a `QTensor`.
        activations: what came to a layer, by its name: ``[tokens, in]``; not every layer needs them.
        evaluate: a loss of the whole model, from all its weights: called once with `layers` as they
            are, then with each one replaced in turn by its dequantized float32 form. Damage is the
            difference; a loss that is NaN ranks worst.
        progress: called with layers done and layers to do.

    Raises:
        ProblemError: activations of a name that no layer has, or that do not fit the layer; a layer
            that cannot be quantized, which is named.

    >>> rng = np.random.default_rng(0)
    >>> smooth = rng.uniform(-1, 1, (8, 128)).astype(np.float32)
    >>> spiky = smooth.copy(); spiky[:, 3] = 40
    >>> [layer.name for layer in sensitivity({"smooth": smooth, "spiky": spiky}, "int4_g128")]
    ['spiky', 'smooth']
    """
    activations = activations or {}
    unknown = sorted(set(activations) - set(layers))
    if unknown:
        raise ProblemError(f"activations: expected names of layers, got {', '.join(unknown)}")
    make: Quantizer = (lambda x: quantize(x, quantizer)) if isinstance(quantizer, Format | str) else quantizer
    base = 0.0 if evaluate is None else float(evaluate(dict(layers)))
    found = []
    for done, (name, weight) in enumerate(layers.items(), 1):
        q = _quantized(name, weight, make)
        tally = Tally()
        tally.add(weight, q)
        if evaluate is not None:
            damage = float(evaluate({**layers, name: q.dequantize()})) - base
        elif name in activations:
            damage = _output_error(name, activations[name], weight, q)
        else:
            damage = math.nan if tally.poisoned else tally.relative_error
        found.append(LayerDamage(name, damage, tally))
        if progress is not None:
            progress(done, len(layers))
    return sorted(found, key=lambda layer: (not math.isnan(layer.damage), -layer.damage if not math.isnan(layer.damage) else 0.0))


def _quantized(name: str, weight: Any, make: Quantizer) -> QTensor:
    try:
        return make(weight)
    except ProblemError as error:
        raise type(error)(f"layers[{name!r}]: {error}") from error


def _output_error(name: str, activations: Any, weight: Any, q: QTensor) -> float:
    x, w = (np.asarray(as_array(a, "activations").array).astype(np.float64) for a in (activations, weight))
    if x.ndim != 2 or x.shape[1] != w.shape[-1]:
        raise ProblemError(f"activations[{name!r}]: expected [tokens, {w.shape[-1]}] for a weight {list(w.shape)}, got {list(x.shape)}")
    lost = np.linalg.norm(x @ np.swapaxes(w - q.dequantize("float64"), -1, -2))
    size = float(np.linalg.norm(x @ np.swapaxes(w, -1, -2)))
    return float(lost) / size if size else float(lost > 0)
