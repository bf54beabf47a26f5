"""Layers by name: find them in a checkpoint, read one, write some."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DTypeError, ProblemError, guess
from ..quant import QTensor
from .fp4 import MXFP4_FORMAT, MXFP4_STACK_FORMAT, NVFP4_FORMAT, NVFP4_MODELOPT_FORMAT
from .fp8 import FP8_BLOCK
from .int4 import AWQ_FORMAT, COMPRESSED_TENSORS_FORMAT, GPTQ_FORMAT, GPTQ_V2_FORMAT
from .layer import Layer, LayerFormat, Scheme
from .settings import METADATA_KEY, Settings, settings_of
from .tensors import TensorSource
from .writer import TensorSpec, TensorWriter

FORMATS: dict[str, LayerFormat] = {
    form.name: form
    for form in (
        FP8_BLOCK,
        AWQ_FORMAT,
        GPTQ_FORMAT,
        GPTQ_V2_FORMAT,
        COMPRESSED_TENSORS_FORMAT,
        MXFP4_FORMAT,
        MXFP4_STACK_FORMAT,
        NVFP4_FORMAT,
        NVFP4_MODELOPT_FORMAT,
    )
}
"""Every checkpoint format, by its name."""


def format_named(name: str) -> LayerFormat:
    """The format of this name, in whatever case.

    Raises:
        ProblemError: none of `FORMATS`.
    """
    if name.lower() not in FORMATS:
        raise ProblemError(f"format: expected one of {', '.join(FORMATS)}, got {name}{guess(name, FORMATS)}")
    return FORMATS[name.lower()]


def find_layers(source: TensorSource, settings: Settings | None = None) -> dict[str, Layer]:
    """Every quantized layer of a checkpoint, by name; its tensors' names without what its format adds.

    Raises:
        ProblemError: a layer whose tensors do not fit its format, or FP8 weights without scales.
    """
    settings = settings_of(source.path, source.metadata) if settings is None else settings
    layers: dict[str, Layer] = {}
    for form in FORMATS.values():
        if form in (GPTQ_FORMAT, GPTQ_V2_FORMAT) and form.version != settings.gptq_version:
            continue
        for layer in form.find(source, settings):
            layers[layer.name] = layer
    _refuse_orphans(source, layers)
    return layers


def read_layer(where: str | Path, name: str, *, group: int | None = None, gptq_version: int | None = None) -> QTensor:
    """One quantized layer of a checkpoint.

    Args:
        where: a .safetensors file, a .safetensors.index.json, or a folder with one of them.
        name: the layer's, as ``model.layers.0.mlp.up_proj``.
        group: columns that share a scale (-1: all), where no config says it and the shapes do not.
        gptq_version: 1 or 2, against what the config says.

    Returns:
        Of the format's own element and scale types, so that `write_layers` makes the same bytes of it.

    Raises:
        ProblemError: no such layer, or tensors that do not fit; a broken file.
    """
    with TensorSource(where) as source:
        settings = settings_of(source.path, source.metadata).with_overrides(group, gptq_version)
        layers = find_layers(source, settings)
        if name not in layers:
            few = ", ".join(list(layers)[:4]) or "none"
            raise ProblemError(f"name: expected a quantized layer of {where} ({few}{', ...' if len(layers) > 4 else ''}), got {name}")
        layer = layers[name]
        check_overrides([layer], group, gptq_version)
        q = layer.read(source)
    return q if len(layer.shape) == 2 else _stacked(q, layer.shape)


def check_overrides(layers: Iterable[Layer], group: int | None, gptq_version: int | None) -> None:
    """Refuse to be told of a source what none of its layers has.

    Raises:
        ProblemError: columns of a group where no layer is of int4 groups, or a GPTQ version where none is GPTQ.
    """
    names = sorted({layer.format.name for layer in layers})
    if group is not None and not any(layer.scheme.dtype in ("int4", "uint4") for layer in layers):
        raise ProblemError(f"group: expected none for a source of {', '.join(names)}, whose groups are fixed, got {group}")
    if gptq_version is not None and not any(name.startswith("gptq") for name in names):
        raise ProblemError(f"gptq_version: expected none for a source of {', '.join(names)}, got {gptq_version}")


def write_layers(
    where: str | Path,
    layers: Mapping[str, QTensor],
    format: str,
    *,
    tensors: Mapping[str, Any] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write quantized layers, and other tensors, to a .safetensors file, which is there only when it is whole.

    Args:
        where: the file; replaced if there is one.
        layers: by name; each of a scheme that the format holds.
        format: one of `FORMATS`.
        tensors: others, NumPy arrays by their full name.
        metadata: strings for the header, beside the ``quantization_config`` that is put there.

    Raises:
        DTypeError: a layer that is no QTensor. ProblemError: one that the format cannot hold, and why.
    """
    form = format_named(format)
    schemes, specs, extra = {}, [], dict(tensors or {})
    for name, q in layers.items():
        if not isinstance(q, QTensor):
            raise DTypeError(f"layers: expected a QTensor for {name}, got {type(q).__name__}")
        schemes[name] = stored_scheme(form, scheme_of(q), name)
        form.check_written(q.shape, schemes[name])
        specs += form.specs(name, q.shape, schemes[name])
    specs += [TensorSpec.of(name, np.asarray(x).dtype.name, np.shape(x)) for name, x in extra.items()]
    with TensorWriter(where, specs, {"format": "pt", **config_metadata(config_of(form, schemes.values())), **(metadata or {})}) as writer:
        for name, q in layers.items():
            flat = q if len(q.shape) == 2 else _flattened(q)
            form.write(writer, name, q.shape, schemes[name], flat, slice(0, flat.shape[0]))
        for name, x in extra.items():
            writer.write(name, np.asarray(x).reshape(np.shape(x) or (1,)))


def scheme_of(q: QTensor) -> Scheme:
    """How a QTensor is quantized."""
    rows, k = q.granularity
    g_idx = q.g_idx is not None
    return Scheme(
        q.dtype.name, (rows, min(k, max(q.shape[-1], 1))), q.scale_dtype.name, q.zero_point is not None, g_idx, q.global_scale is not None
    )


def stored_scheme(form: LayerFormat, scheme: Scheme, name: str) -> Scheme:
    """`scheme` as `form` holds it.

    Raises:
        ProblemError: it does not.
    """
    found = form.as_stored(scheme)
    if found is None:
        beside = [
            what
            for what, has in (
                ("zero points", scheme.has_zero_point),
                ("g_idx", scheme.has_g_idx),
                ("a global scale", scheme.has_global_scale),
            )
            if has
        ]
        rows, columns = scheme.granularity
        what = f"{scheme.dtype} with {scheme.scale_dtype} scales per {rows}x{columns}" + "".join(f", {b}" for b in beside)
        raise ProblemError(f"{name}: {form.name} cannot hold {what}")
    return found


def config_metadata(config: dict[str, Any] | None) -> dict[str, str]:
    """The ``quantization_config`` for a file's metadata; nothing where no one config says it."""
    return {} if config is None else {METADATA_KEY: json.dumps(config)}


def config_of(form: LayerFormat, schemes: Iterable[Scheme]) -> dict[str, Any] | None:
    """What a config.json says of layers of these schemes; None where they differ."""
    distinct = {json.dumps(form.config(scheme)) for scheme in schemes}
    return dict(json.loads(distinct.pop())) if len(distinct) == 1 else None


def _stacked(q: QTensor, shape: tuple[int, ...]) -> QTensor:
    *lead, n, k = shape
    return QTensor(q.data.reshape(shape), q.scale.reshape(*lead, n, -1), q.dtype, q.granularity)


def _flattened(q: QTensor) -> QTensor:
    *_, k = q.shape
    return QTensor(q.data.reshape(-1, k), q.scale.reshape(-1, q.scale.shape[-1]), q.dtype, q.granularity)


def _refuse_orphans(source: TensorSource, layers: Mapping[str, Layer]) -> None:
    """A part of a layer without the rest is no tensor to be passed by."""
    owned = {tensor for layer in layers.values() for tensor in layer.tensors}
    for name, info in source.items():
        if name in owned:
            continue
        if name.endswith((".qweight", ".weight_packed", ".weight_scale_inv", ".weight_scale_2")):
            raise ProblemError(
                f"{name}: expected the tensors of a whole layer beside it, got some of them only; in another shard? give the index or the folder"
            )
        if name.endswith(".weight") and info.dtype.startswith("float8") and len(info.shape) == 2:
            base = name.removesuffix(".weight")
            beside = [n for n in (f"{base}.weight_scale", f"{base}.input_scale") if n in source]
            hint = (
                f"got {beside[0]}, a format that is not read here" if beside else "got none; in another shard? give the index or the folder"
            )
            raise ProblemError(f"{name}: expected {base}.weight_scale_inv, one scale for each block of FP8, {hint}")
