"""FP8 with one scale for each block, as DeepSeek's checkpoints hold it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ProblemError
from ..quant import QTensor
from .layer import LayerFormat, Part, Scheme, matrix
from .settings import Settings
from .tensors import TensorInfo, TensorSource

E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
SCALES = ("float32", "bfloat16", "float8_e8m0fnu")


class Fp8Block(LayerFormat):
    """DeepSeek's: ``.weight`` e4m3 ``[N, K]`` and ``.weight_scale_inv`` float32 ``[N/128, K/128]``, which is what to multiply with.

    The last block may be short. How large blocks are is never taken from the shapes: it is what
    the config says, else 128x128.
    """

    name = "fp8-block"
    marks = (".weight_scale_inv", ".weight")

    def is_mine(self, infos: Mapping[str, TensorInfo]) -> bool:
        """Both tensors have names that no other format has together."""
        return True

    def describe(
        self, name: str, infos: Mapping[str, TensorInfo], source: TensorSource, settings: Settings
    ) -> tuple[tuple[int, ...], Scheme]:
        """Shape of the weight; the scales' type is as stored."""
        weight, scale = infos[".weight"], infos[".weight_scale_inv"]
        if weight.dtype not in (E4M3, E5M2) or len(weight.shape) != 2:
            raise ProblemError(f".weight: expected {E4M3} [N, K] beside .weight_scale_inv, got {weight}")
        if scale.dtype not in SCALES:
            raise ProblemError(f".weight_scale_inv: expected {', '.join(SCALES)}, got {scale}")
        return weight.shape, Scheme(weight.dtype, settings.block, scale.dtype)

    def parts(self, shape: tuple[int, ...], scheme: Scheme) -> tuple[Part, ...]:
        """Weight and scales."""
        n, k = matrix(shape, self.name)
        gm, gk = scheme.granularity
        if 128 % gm:
            raise ProblemError(f"block: expected rows that divide 128, got {gm}x{gk}")
        grid = (-(-n // gm), -(-k // gk))
        return (
            Part(".weight", scheme.dtype, (n, k)),
            Part(".weight_scale_inv", scheme.scale_dtype, grid, per=gm),
        )

    def as_stored(self, scheme: Scheme) -> Scheme | None:
        """FP8 in blocks, with nothing beside its scales."""
        gm, _ = scheme.granularity
        is_plain = not (scheme.has_zero_point or scheme.has_g_idx or scheme.has_global_scale)
        return scheme if scheme.dtype in (E4M3, E5M2) and is_plain and gm > 1 and 128 % gm == 0 else None

    def decode(self, held: Mapping[str, Any], scheme: Scheme, shape: tuple[int, int]) -> QTensor:
        """Rows as they are."""
        return QTensor(held[".weight"], held[".weight_scale_inv"], scheme.dtype, scheme.granularity)  # type: ignore[arg-type]

    def encode(self, q: QTensor) -> dict[str, Any]:
        """Codes and scales as they are."""
        return {".weight": q.codes, ".weight_scale_inv": q.scale}

    def config(self, scheme: Scheme) -> dict[str, Any]:
        """As DeepSeek-V3's."""
        found: dict[str, Any] = {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": list(scheme.granularity),
        }
        return {**found, "scale_fmt": "ue8m0"} if scheme.scale_dtype == "float8_e8m0fnu" else found


FP8_BLOCK = Fp8Block()
