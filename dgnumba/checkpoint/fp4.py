"""FP4 (e2m1), two codes to a byte, low nibble first: MXFP4 with UE8M0 scales for 32, NVFP4 with e4m3 scales for 16 and one for the tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from ..errors import ProblemError
from ..layouts.int4 import LOW_FIRST
from ..quant import QTensor
from .layer import LayerFormat, Part, Scheme, matrix
from .settings import Settings
from .tensors import TensorInfo, TensorSource

E2M1, E8M0, E4M3 = "float4_e2m1fn", "float8_e8m0fnu", "float8_e4m3fn"
MX_GROUP, NV_GROUP = 32, 16

MX_SCHEME = Scheme(E2M1, (1, MX_GROUP), E8M0)
NV_SCHEME = Scheme(E2M1, (1, NV_GROUP), E4M3, has_global_scale=True)


def _in_groups(k: int, group: int, name: str) -> int:
    if k % group:
        raise ProblemError(f"shape: expected K in multiples of {group} for {name}, got K = {k}")
    return k // group


def _mx(codes: Any, scale: Any) -> QTensor:
    return QTensor(codes, scale.view(ml_dtypes.float8_e8m0fnu), E2M1, (1, MX_GROUP))  # type: ignore[arg-type]


class Mxfp4(LayerFormat):
    """compressed-tensors ``mxfp4-pack-quantized``: ``.weight_packed`` uint8 ``[N, K/2]``, ``.weight_scale`` ``[N, K/32]`` of UE8M0 bytes."""

    name = "mxfp4"
    marks = (".weight_packed", ".weight_scale")
    optional = (".weight_global_scale",)

    def is_mine(self, infos: Mapping[str, TensorInfo]) -> bool:
        """NVFP4 has a global scale beside."""
        return infos[".weight_packed"].dtype == "uint8" and ".weight_global_scale" not in infos

    def describe(
        self, name: str, infos: Mapping[str, TensorInfo], source: TensorSource, settings: Settings
    ) -> tuple[tuple[int, ...], Scheme]:
        """Shape from the bytes."""
        return _from_pairs(infos[".weight_packed"]), MX_SCHEME

    def parts(self, shape: tuple[int, ...], scheme: Scheme) -> tuple[Part, ...]:
        """Bytes and scales."""
        n, k = matrix(shape, self.name)
        count = _in_groups(k, MX_GROUP, self.name)
        return (Part(".weight_packed", "uint8", (n, k // 2)), Part(".weight_scale", "uint8", (n, count), aliases=(E8M0,)))

    def as_stored(self, scheme: Scheme) -> Scheme | None:
        """MXFP4."""
        return scheme if scheme == MX_SCHEME else None

    def decode(self, held: Mapping[str, Any], scheme: Scheme, shape: tuple[int, int]) -> QTensor:
        """e2m1 ``[N, K]``."""
        return _mx(LOW_FIRST.unpack(held[".weight_packed"], shape), held[".weight_scale"])

    def encode(self, q: QTensor) -> dict[str, Any]:
        """Bytes of pairs and of scales."""
        return {".weight_packed": LOW_FIRST.pack(q.codes), ".weight_scale": q.scale.view(np.uint8)}

    def ignored(self, modules: Sequence[str]) -> dict[str, Any]:
        """Under "ignore"."""
        return {"ignore": list(modules)}

    def config(self, scheme: Scheme) -> dict[str, Any]:
        """As llm-compressor's."""
        return _config("mxfp4-pack-quantized", {"strategy": "group", "group_size": MX_GROUP, "scale_dtype": "torch.uint8"})


class Mxfp4Stack(LayerFormat):
    """gpt-oss: ``_blocks`` uint8 ``[E, N, K/32, 16]`` and ``_scales`` uint8 ``[E, N, K/32]`` of a stack of E experts."""

    name = "mxfp4-stack"
    marks = ("_blocks", "_scales")

    def is_mine(self, infos: Mapping[str, TensorInfo]) -> bool:
        """By its rank; the names alone are common ones."""
        return infos["_blocks"].dtype == "uint8" and len(infos["_blocks"].shape) == 4

    def describe(
        self, name: str, infos: Mapping[str, TensorInfo], source: TensorSource, settings: Settings
    ) -> tuple[tuple[int, ...], Scheme]:
        """Shape from the blocks."""
        *lead, count, _ = infos["_blocks"].shape
        return (*lead, count * MX_GROUP), MX_SCHEME

    def parts(self, shape: tuple[int, ...], scheme: Scheme) -> tuple[Part, ...]:
        """Cut along the rows of all experts."""
        if len(shape) != 3:
            raise ProblemError(f"shape: expected a stack [E, N, K] for {self.name}, got {list(shape)}")
        e, n, k = shape
        count = _in_groups(k, MX_GROUP, self.name)
        return (
            Part("_blocks", "uint8", (e, n, count, MX_GROUP // 2), view=(e * n, count, MX_GROUP // 2)),
            Part("_scales", "uint8", (e, n, count), view=(e * n, count), aliases=(E8M0,)),
        )

    def as_stored(self, scheme: Scheme) -> Scheme | None:
        """MXFP4."""
        return scheme if scheme == MX_SCHEME else None

    def decode(self, held: Mapping[str, Any], scheme: Scheme, shape: tuple[int, int]) -> QTensor:
        """e2m1, the experts' rows one after another."""
        pairs = held["_blocks"].reshape(shape[0], shape[1] // 2)
        return _mx(LOW_FIRST.unpack(pairs, shape), held["_scales"])

    def encode(self, q: QTensor) -> dict[str, Any]:
        """Bytes of pairs, 16 a block, and of scales."""
        n, k = q.shape
        blocks = LOW_FIRST.pack(q.codes).reshape(n, k // MX_GROUP, MX_GROUP // 2)
        return {"_blocks": blocks, "_scales": q.scale.view(np.uint8)}

    def config(self, scheme: Scheme) -> dict[str, Any]:
        """As gpt-oss's."""
        return {"quant_method": "mxfp4"}


class Nvfp4(LayerFormat):
    """compressed-tensors ``nvfp4-pack-quantized``.

    ``.weight_packed`` uint8 ``[N, K/2]``, ``.weight_scale`` e4m3 ``[N, K/16]``, ``.weight_global_scale`` float32 ``[1]``.

    The global scale there is what to **divide** by. Its inverse is kept in float64, so that it
    comes back to the same float32.
    """

    name = "nvfp4"
    marks = (".weight_packed", ".weight_scale", ".weight_global_scale")
    data, whole_suffix = ".weight_packed", ".weight_global_scale"
    whole_shape: tuple[int, ...] = (1,)

    def is_mine(self, infos: Mapping[str, TensorInfo]) -> bool:
        """Bytes, not words."""
        return infos[self.data].dtype == "uint8"

    def describe(
        self, name: str, infos: Mapping[str, TensorInfo], source: TensorSource, settings: Settings
    ) -> tuple[tuple[int, ...], Scheme]:
        """Shape from the bytes."""
        return _from_pairs(infos[self.data]), NV_SCHEME

    def parts(self, shape: tuple[int, ...], scheme: Scheme) -> tuple[Part, ...]:
        """Bytes, block scales, and the tensor's."""
        n, k = matrix(shape, self.name)
        count = _in_groups(k, NV_GROUP, self.name)
        return (
            Part(self.data, "uint8", (n, k // 2)),
            Part(".weight_scale", E4M3, (n, count)),
            Part(self.whole_suffix, "float32", self.whole_shape, None),
        )

    def as_stored(self, scheme: Scheme) -> Scheme | None:
        """NVFP4."""
        return scheme if scheme == NV_SCHEME else None

    def decode(self, held: Mapping[str, Any], scheme: Scheme, shape: tuple[int, int]) -> QTensor:
        """e2m1 ``[N, K]`` with a global scale to multiply with."""
        codes = LOW_FIRST.unpack(held[self.data], shape)
        whole = self.multiplier(held[self.whole_suffix].reshape(()))
        return QTensor(codes, held[".weight_scale"], E2M1, (1, NV_GROUP), global_scale=whole)  # type: ignore[arg-type]

    def encode(self, q: QTensor) -> dict[str, Any]:
        """Bytes of pairs, block scales, and the tensor's as stored."""
        stored = np.asarray(self.stored(q.global_scale), np.float32).reshape(self.whole_shape)
        return {self.data: LOW_FIRST.pack(q.codes), ".weight_scale": q.scale, self.whole_suffix: stored}

    def multiplier(self, stored: Any) -> Any:
        """What to multiply with, of what is stored."""
        with np.errstate(divide="ignore"):
            return np.float64(1) / np.float64(stored)

    def stored(self, multiplier: Any) -> Any:
        """What is stored, of what to multiply with."""
        with np.errstate(divide="ignore"):
            return np.float32(np.float64(1) / np.float64(multiplier))

    def ignored(self, modules: Sequence[str]) -> dict[str, Any]:
        """Under "ignore"."""
        return {"ignore": list(modules)}

    def config(self, scheme: Scheme) -> dict[str, Any]:
        """As llm-compressor's."""
        return _config("nvfp4-pack-quantized", {"strategy": "tensor_group", "group_size": NV_GROUP})


class Nvfp4ModelOpt(Nvfp4):
    """ModelOpt's NVFP4: ``.weight`` uint8 ``[N, K/2]``, ``.weight_scale`` e4m3 ``[N, K/16]``, ``.weight_scale_2``, which is what to multiply with."""

    name = "nvfp4-modelopt"
    marks = (".weight_scale_2", ".weight_scale", ".weight")
    data, whole_suffix = ".weight", ".weight_scale_2"
    whole_shape = ()

    def multiplier(self, stored: Any) -> Any:
        """The same."""
        return np.float32(stored)

    def stored(self, multiplier: Any) -> Any:
        """The same, in float32."""
        return np.float32(multiplier)

    def ignored(self, modules: Sequence[str]) -> dict[str, Any]:
        """Under "ignore"."""
        return {"ignore": list(modules)}

    def config(self, scheme: Scheme) -> dict[str, Any]:
        """As ModelOpt's."""
        return {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": NV_GROUP}


def _from_pairs(info: TensorInfo) -> tuple[int, int]:
    if len(info.shape) != 2:
        raise ProblemError(f"packed weight: expected uint8 [N, K/2], got {info}")
    return info.shape[0], info.shape[1] * 2


def _config(form: str, weights: dict[str, Any]) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "symmetric": True, **weights}, "input_activations": None}
    return {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed", "config_groups": {"group_0": group}}


MXFP4_FORMAT, MXFP4_STACK_FORMAT = Mxfp4(), Mxfp4Stack()
NVFP4_FORMAT, NVFP4_MODELOPT_FORMAT = Nvfp4(), Nvfp4ModelOpt()
