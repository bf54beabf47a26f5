"""int4 with one scale for each group of K: AWQ, GPTQ and compressed-tensors, each with the words of `layouts.int4`.

AWQ and GPTQ are read as uint4 with zero points, compressed-tensors as int4; the same value is held
in each of them, ``(code - zero) * scale``, so that from one to another nothing is rounded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import ProblemError
from ..layouts.int4 import AWQ, COMPRESSED_TENSORS, GPTQ_V1, GPTQ_V2, groups
from ..quant import QTensor
from .layer import LayerFormat, Part, Scheme, matrix
from .settings import Settings
from .tensors import TensorInfo, TensorSource

_GROUPS = tuple(1 << i for i in range(4, 16))
_HALF = ("float16", "bfloat16", "float32")


def group_size(k: int, count: int, settings: Settings) -> int:
    """Columns of a group, from what the config says, else the one power of two that makes `count` groups of `k`.

    NOTE: not ``k / count``: the last group may be short (K 192 in groups of 128 are 2, not 2 of 96).
    """
    if settings.group is not None:
        if groups.count(k, settings.group) != count:
            raise ProblemError(f"scales: expected {groups.count(k, settings.group)} groups of {settings.group} for K = {k}, got {count}")
        return k if settings.group == -1 else min(settings.group, k)
    if count == 1:
        return k
    found = [g for g in _GROUPS if -(-k // g) == count]
    if len(found) != 1:
        raise ProblemError(
            f"scales: expected a config or group= that says how many columns share one; {count} groups of K = {k} fit no power of two"
        )
    return found[0]


def scale_type(info: TensorInfo) -> str:
    """The type of the scales, if it is one that scales of groups have."""
    if info.dtype not in _HALF:
        raise ProblemError(f"scales: expected {', '.join(_HALF)}, got {info}")
    return info.dtype


def int_scheme(scheme: Scheme, dtype: str, needs_zero: bool, takes_g_idx: bool) -> Scheme | None:
    """`scheme` with the elements that a format holds, or None if it is no int4 of groups."""
    is_grouped = scheme.dtype in ("int4", "uint4") and scheme.granularity[0] == 1 and not scheme.has_global_scale
    if not is_grouped or scheme.scale_dtype not in _HALF or (scheme.has_g_idx and not takes_g_idx):
        return None
    # uint4 without zero points is as int4 would be with -8 for each: it has them
    has_zero = needs_zero or scheme.has_zero_point or scheme.dtype != dtype
    return Scheme(dtype, scheme.granularity, scheme.scale_dtype, has_zero, scheme.has_g_idx)


def as_uint4(q: QTensor) -> tuple[Any, Any]:
    """(codes, zero points), 0 to 15, of a QTensor of int4 or uint4."""
    offset = 8 if q.dtype.name == "int4" else 0
    zero = np.zeros(q.scale.shape, np.int16) if q.zero_point is None else q.zero_point.astype(np.int16)
    return q.codes ^ offset, (zero + offset).astype(np.uint8)


def _check_groups(k: int, scheme: Scheme, name: str) -> None:
    """Refuse a short last group, which the format's loaders do not take. GPTQ's do: AutoGPTQ rounds the count of groups up."""
    group = scheme.granularity[1]
    if k % group:
        raise ProblemError(
            f"group: expected one that divides K = {k} for {name}, whose loaders take no short last group, got {group}; "
            f"{math.gcd(k, group)} does, or -1 for whole rows"
        )


class _Transposed(LayerFormat):
    """AWQ and GPTQ: tensors ``[K, N]``, three of the same names."""

    marks = (".qweight", ".qzeros", ".scales")
    optional = (".g_idx",)
    takes_g_idx = False
    layout: Any

    def parts(self, shape: tuple[int, ...], scheme: Scheme) -> tuple[Part, ...]:
        """Words of codes and of zero points, scales."""
        n, k = matrix(shape, self.name)
        if n % 8:
            raise ProblemError(f"shape: expected N in multiples of 8 for {self.name}, got {[n, k]}")
        count = -(-k // scheme.granularity[1])
        return (
            self.weight_part(n, k),
            Part(".qzeros", "int32", (count, n // 8), 1, 8),
            Part(".scales", scheme.scale_dtype, (count, n), 1),
        )

    def weight_part(self, n: int, k: int) -> Part:
        """The words of the codes."""
        raise NotImplementedError

    def as_stored(self, scheme: Scheme) -> Scheme | None:
        """uint4 with zero points."""
        return int_scheme(scheme, "uint4", True, self.takes_g_idx)

    def decode(self, held: Mapping[str, Any], scheme: Scheme, shape: tuple[int, int]) -> QTensor:
        """uint4 ``[N, K]`` with zero points, and GPTQ's g_idx where it is not in order."""
        codes = self.layout.unpack(held[".qweight"], shape)
        zeros = self.layout.unpack_zeros(held[".qzeros"], shape[0])
        scale = np.ascontiguousarray(held[".scales"].T)
        g_idx = held.get(".g_idx") if scheme.has_g_idx else None
        return QTensor(codes, scale, "uint4", scheme.granularity, zero_point=zeros, g_idx=g_idx)  # type: ignore[arg-type]

    def encode(self, q: QTensor) -> dict[str, Any]:
        """Words, scales ``[groups, N]``, and g_idx."""
        codes, zeros = as_uint4(q)
        made = {".qweight": self.layout.pack(codes), ".qzeros": self.layout.pack_zeros(zeros), ".scales": q.scale.T}
        in_order = groups.in_order(q.shape[1], max(q.granularity[1], 1))
        return {**made, ".g_idx": in_order if q.g_idx is None else q.g_idx.astype(np.int32)}


class AwqFormat(_Transposed):
    """AWQ (gemm): ``.qweight`` int32 ``[K, N/8]``, ``.qzeros`` int32 ``[groups, N/8]``, ``.scales`` float16 ``[groups, N]``."""

    name = "awq"
    layout = AWQ

    def is_mine(self, infos: Mapping[str, TensorInfo]) -> bool:
        """Words run along N: eight columns of scales to one of words; without any, GPTQ has a g_idx."""
        weight, scales = infos[".qweight"].shape, infos[".scales"].shape
        return len(weight) == len(scales) == 2 and weight[1] * 8 == scales[1] and (scales[1] > 0 or ".g_idx" not in infos)

    def describe(
        self, name: str, infos: Mapping[str, TensorInfo], source: TensorSource, settings: Settings
    ) -> tuple[tuple[int, ...], Scheme]:
        """Shape from the words."""
        (k, words), (count, _) = infos[".qweight"].shape, infos[".scales"].shape
        return (words * 8, k), Scheme("uint4", (1, group_size(k, count, settings)), scale_type(infos[".scales"]), True)

    def check_written(self, shape: tuple[int, ...], scheme: Scheme) -> None:
        """Whole groups, or AutoAWQ asserts."""
        _check_groups(shape[-1], scheme, self.name)

    def weight_part(self, n: int, k: int) -> Part:
        """``[K, N/8]``."""
        return Part(".qweight", "int32", (k, n // 8), 1, 8)

    def config(self, scheme: Scheme) -> dict[str, Any]:
        """As AutoAWQ's."""
        return {"quant_method": "awq", "bits": 4, "group_size": scheme.granularity[1], "zero_point": True, "version": "gemm"}


class GptqFormat(_Transposed):
    """GPTQ: ``.qweight`` int32 ``[K/8, N]``, ``.qzeros``, ``.scales`` as in AWQ but not interleaved, ``.g_idx`` int32 ``[K]``.

    Version 1 stores zero points minus one; which version a file is stands in its config only.
    """

    takes_g_idx = True

    def __init__(self, version: int) -> None:
        self.version = version
        self.layout = GPTQ_V1 if version == 1 else GPTQ_V2
        self.name = "gptq" if version == 1 else "gptq-v2"  # type: ignore[misc]

    def is_mine(self, infos: Mapping[str, TensorInfo]) -> bool:
        """Words run along K: as many columns as the scales have."""
        weight, scales = infos[".qweight"].shape, infos[".scales"].shape
        return len(weight) == len(scales) == 2 and weight[1] == scales[1] and (scales[1] > 0 or ".g_idx" in infos)

    def describe(
        self, name: str, infos: Mapping[str, TensorInfo], source: TensorSource, settings: Settings
    ) -> tuple[tuple[int, ...], Scheme]:
        """Shape from the words; whether there is an act order from g_idx itself."""
        (words, n), (count, _) = infos[".qweight"].shape, infos[".scales"].shape
        k = words * 8
        has_g_idx = False
        if not settings.trusts_version:
            self._refuse_the_other_version(source.read(name + ".qzeros"))
        group = group_size(k, count, settings)
        if ".g_idx" in infos:
            g_idx = groups.checked(source.read(name + ".g_idx"), k, count)
            has_g_idx = not groups.is_in_order(g_idx, group)
        return (n, k), Scheme("uint4", (1, group), scale_type(infos[".scales"]), True, has_g_idx)

    def _refuse_the_other_version(self, qzeros: Any) -> None:
        """Symmetric weights show which version they are of: every zero point is 8."""
        other = GPTQ_V2 if self.version == 1 else GPTQ_V1
        symmetric = other.pack_zeros(np.full((8, 1), 8))[0, 0]
        if qzeros.size and qzeros.dtype == np.int32 and (qzeros == symmetric).all():
            raise ProblemError(
                f".qzeros: expected zero points of GPTQ v{self.version}, as the config says or for want of one, got "
                f"{int(symmetric) & 0xFFFFFFFF:#x} throughout, which symmetric weights have in v{3 - self.version}; "
                "say which with gptq_version (--gptq)"
            )

    def weight_part(self, n: int, k: int) -> Part:
        """``[K/8, N]``."""
        if k % 8:
            raise ProblemError(f"shape: expected K in multiples of 8 for {self.name}, got {[n, k]}")
        return Part(".qweight", "int32", (k // 8, n), 1)

    def parts(self, shape: tuple[int, ...], scheme: Scheme) -> tuple[Part, ...]:
        """g_idx too: it is written always, as AutoGPTQ does, and read where the columns are not in order."""
        return (*super().parts(shape, scheme), Part(".g_idx", "int32", (shape[1],), None, may_lack=True))

    def ignored(self, modules: Sequence[str]) -> dict[str, Any]:
        """As GPTQModel says it, and vLLM reads it: patterns of names, each to be skipped."""
        return {"dynamic": {f"-:^{re.escape(name)}$": {} for name in modules}}

    def config(self, scheme: Scheme) -> dict[str, Any]:
        """As AutoGPTQ's and GPTQModel's; ``sym`` is set by who knows that every zero point is 8."""
        tag = "gptq" if self.version == 1 else "gptq_v2"
        found = {"quant_method": "gptq", "bits": 4, "group_size": scheme.granularity[1], "desc_act": scheme.has_g_idx}
        return {**found, "sym": False, "checkpoint_format": tag}


class CompressedTensorsFormat(LayerFormat):
    """compressed-tensors ``pack-quantized``, 4 bits.

    ``.weight_packed`` int32 ``[N, K/8]``, ``.weight_scale`` ``[N, groups]``, ``.weight_shape`` (N, K);
    with zero points ``.weight_zero_point`` int32 ``[N/8, groups]``, with act order ``.weight_g_idx``.
    """

    name = "compressed-tensors"
    marks = (".weight_packed", ".weight_scale", ".weight_shape")
    optional = (".weight_zero_point", ".weight_g_idx")

    def is_mine(self, infos: Mapping[str, TensorInfo]) -> bool:
        """The packed FP4 formats have no ``.weight_shape``."""
        return infos[".weight_packed"].dtype == "int32"

    def describe(
        self, name: str, infos: Mapping[str, TensorInfo], source: TensorSource, settings: Settings
    ) -> tuple[tuple[int, ...], Scheme]:
        """Shape as stored; 8 bits show in the number of words."""
        stored = source.read(name + ".weight_shape").tolist()
        words, scale = infos[".weight_packed"].shape, infos[".weight_scale"].shape
        if len(stored) != 2 or len(words) != 2 or len(scale) != 2:
            raise ProblemError(
                f".weight_packed: expected a matrix and its scales, got shape {stored}, words {list(words)}, scales {list(scale)}"
            )
        n, k = (int(x) for x in stored)
        if words[1] == -(-k // 4) != -(-k // 8):
            raise ProblemError(f".weight_packed: expected 4 bits, eight to a word, got {words[1]} words for K = {k}: 8 bits?")
        has_g_idx = ".weight_g_idx" in infos
        group = group_size(k, scale[1], settings)
        if has_g_idx:
            has_g_idx = not groups.is_in_order(groups.checked(source.read(name + ".weight_g_idx"), k, scale[1]), group)
        return (n, k), Scheme("int4", (1, group), scale_type(infos[".weight_scale"]), ".weight_zero_point" in infos, has_g_idx)

    def parts(self, shape: tuple[int, ...], scheme: Scheme) -> tuple[Part, ...]:
        """Zero points and g_idx only where there are some."""
        n, k = matrix(shape, self.name)
        count = -(-k // scheme.granularity[1])
        found = [
            Part(".weight_packed", "int32", (n, -(-k // 8))),
            Part(".weight_scale", scheme.scale_dtype, (n, count)),
            Part(".weight_shape", "int64", (2,), None, aliases=("int32",)),
        ]
        if scheme.has_zero_point:
            found.append(Part(".weight_zero_point", "int32", (-(-n // 8), count), 0, 8))
        if scheme.has_g_idx:
            found.append(Part(".weight_g_idx", "int32", (k,), None))
        return tuple(found)

    def as_stored(self, scheme: Scheme) -> Scheme | None:
        """int4, with zero points if they are not all the middle."""
        return int_scheme(scheme, "int4", False, True)

    def decode(self, held: Mapping[str, Any], scheme: Scheme, shape: tuple[int, int]) -> QTensor:
        """int4 ``[N, K]``."""
        codes = COMPRESSED_TENSORS.unpack(held[".weight_packed"], shape)
        zeros = held.get(".weight_zero_point")
        if zeros is not None:
            zeros = (COMPRESSED_TENSORS.unpack_zeros(zeros, shape[0]) ^ 8).astype(np.int8) - np.int8(8)
        g_idx = held.get(".weight_g_idx")
        return QTensor(codes, held[".weight_scale"], "int4", scheme.granularity, zero_point=zeros, g_idx=g_idx)  # type: ignore[arg-type]

    def encode(self, q: QTensor) -> dict[str, Any]:
        """All parts; the writer takes those that the scheme has."""
        codes, zeros = as_uint4(q)
        return {
            ".weight_packed": COMPRESSED_TENSORS.pack(codes ^ 8),
            ".weight_scale": q.scale,
            ".weight_zero_point": COMPRESSED_TENSORS.pack_zeros(zeros ^ 8),
            ".weight_g_idx": q.g_idx,
        }

    def whole(self, part: Part, made: Mapping[str, Any], shape: tuple[int, ...]) -> Any:
        """The shape is the whole layer's, whatever slab is written."""
        return np.array(shape, part.dtype) if part.suffix == ".weight_shape" else made[part.suffix]

    def ignored(self, modules: Sequence[str]) -> dict[str, Any]:
        """Under "ignore"."""
        return {"ignore": list(modules)}

    def check_written(self, shape: tuple[int, ...], scheme: Scheme) -> None:
        """Whole groups, or compressed-tensors raises."""
        _check_groups(shape[-1], scheme, self.name)

    def config(self, scheme: Scheme) -> dict[str, Any]:
        """As llm-compressor's."""
        is_whole = scheme.granularity[1] == -1
        weights = {
            "num_bits": 4,
            "type": "int",
            "strategy": "channel" if is_whole else "group",
            "group_size": None if is_whole else scheme.granularity[1],
            "symmetric": not scheme.has_zero_point,
        }
        group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
        return {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "quantization_status": "compressed",
            "config_groups": {"group_0": group},
        }


AWQ_FORMAT = AwqFormat()
GPTQ_FORMAT, GPTQ_V2_FORMAT = GptqFormat(1), GptqFormat(2)
COMPRESSED_TENSORS_FORMAT = CompressedTensorsFormat()
