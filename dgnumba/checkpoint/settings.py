"""What a checkpoint says of its quantization outside its tensors: in config.json, in the files of the quantizers, in a file's metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import ProblemError, UnsupportedError

METADATA_KEY = "quantization_config"
"""Of a file's metadata: the same JSON object as in a config.json, as text."""

_FILES = ("config.json", "quantize_config.json", "quant_config.json")


@dataclass(frozen=True)
class Settings:
    """What the shapes of the tensors do not tell.

    Attributes:
        group: columns that share a scale, -1 for all of K; None: to be found from the shapes, where
            only a power of two fits.
        block: rows and columns that share a scale of FP8 blocks.
        gptq_version: 1 where zero points are stored minus one, 2 where as they are.
        trusts_version: whether the caller said so; configs have been wrong about it.
    """

    group: int | None = None
    block: tuple[int, int] = (128, 128)
    gptq_version: int = 1
    trusts_version: bool = False

    def with_overrides(self, group: int | None = None, gptq_version: int | None = None) -> Settings:
        """The same, but for what is given."""
        found = self if group is None else replace(self, group=group)
        return found if gptq_version is None else replace(found, gptq_version=gptq_version, trusts_version=True)


def settings_of(path: Path, metadata: Mapping[str, str]) -> Settings:
    """The settings of a checkpoint: from its files' metadata, else from the config files beside it.

    Raises:
        UnsupportedError: what says that it holds something else than this package reads (8 bits, a
            layout for other kernels). ProblemError: a config that is no JSON object.
    """
    if METADATA_KEY in metadata:
        return _parsed(_json(metadata[METADATA_KEY], f"{path}: metadata {METADATA_KEY}"), str(path))
    legacy = {key.removeprefix("gptq_"): value for key, value in metadata.items() if key.startswith("gptq_")}
    if legacy:
        return _parsed({"quant_method": "gptq", **legacy}, str(path))
    folder = path if path.is_dir() else path.parent
    for name in _FILES:
        file = folder / name
        if file.is_file():
            config = _json(file.read_text(), str(file))
            found = config.get("quantization_config", config if name != "config.json" else None)
            if found is not None:
                return _parsed(found, str(file))
    return Settings()


def _json(text: str, where: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ProblemError(f"{where}: expected JSON, got {error}") from error
    if not isinstance(found, dict):
        raise ProblemError(f"{where}: expected a JSON object, got {type(found).__name__}")
    return found


def _parsed(config: Mapping[str, Any], where: str) -> Settings:
    method = str(config.get("quant_method", "")).lower()
    if method == "compressed-tensors":
        return _compressed_tensors(config, where)
    bits = int(config.get("bits", config.get("w_bit", 4)))
    if method in ("gptq", "awq", "") and bits != 4:
        raise UnsupportedError(f"{where}: expected 4 bits, got {bits}")
    form = str(config.get("checkpoint_format", config.get("version", "")) or "").lower()
    if form not in ("", "gptq", "gptq_v2", "gemm"):
        raise UnsupportedError(f"{where}: expected a checkpoint_format of gptq or gptq_v2, or awq's version gemm, got {form}")
    block = config.get("weight_block_size") or (128, 128)
    group = config.get("group_size", config.get("q_group_size"))
    if len(block) != 2 or min(int(n) for n in block) < 1:
        raise ProblemError(f"{where}: expected a weight_block_size of two extents, got {block}")
    return Settings(None if group is None else int(group), (int(block[0]), int(block[1])), 2 if form == "gptq_v2" else 1)


def _compressed_tensors(config: Mapping[str, Any], where: str) -> Settings:
    """All groups of layers must be quantized alike, since nothing here matches names to groups."""
    groups = config.get("config_groups") or {}
    sizes = set()
    for scheme in groups.values():
        weights = scheme.get("weights") or {}
        size = weights.get("group_size")
        sizes.add(-1 if size is None and weights.get("strategy") == "channel" else size)
    if len(sizes) > 1:
        raise UnsupportedError(f"{where}: expected one group size for all layers, got {sorted(map(str, sizes))}; say which with group=")
    size = next(iter(sizes), None)
    return Settings(group=None if size is None else int(size))
