"""What else multiplies by weights of 4 bits: each rival made ready for a problem, checked, and timed in turns with our calls.

    humming         humming-kernels (PyPI), its own choice of schedule for this M
    marlin_fp16     IST-DASLab/marlin, through a module `marlin_rival` (pack, mul), without its L2 hint, with which ptxas 12.9 to 13.3 assembles its
                    kernel for M <= 16 wrongly (IST-DASLab/marlin issue 44); marlin_fp16_l2_hint: unmodified, M > 16
    torch_int4      torch's `_weight_int4pack_mm`
    gemlite         gemlite (PyPI), with the schedule that its authors found for an H100 at the nearest N x K, as tuning takes minutes
    quack           QuACK (PyPI) by its own choice of tiles, through a module `quack_rival` (W4) that holds its kernels, compiled ahead for these
                    M, N, K, as its compiler needs 90 MB: bfloat16, e4m3 with groups' scales after the product, and with them in the weights

A rival is imported where it can be; one that is missing, fails, or computes something else prints one line and is left out, as is one that
breaks its CUDA context: each is checked in a process of its own before anything is measured (int4_ready.py). Weights are random
codes with random scales for each group of 128, in the rival's own form; a result is compared with the float32 product of what the rival's
operands stand for. Activations are quantized beforehand. What is counted: kernels with the names that a rival gives.
"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

FARTHEST = 0.02
"""Relative distance (of Frobenius norms) from the float32 product at which a result is another product's."""


@dataclass(frozen=True)
class Rival:
    """A rival's product, ready: `call` returns ``[M, N]``; kernels with one of `kernels` in their names count ("": all but copies and fills);
    `expected` gives the product in float32.
    """

    call: Callable[[], Any]
    kernels: tuple[str, ...]
    expected: Callable[[], Any]
    farthest: float = FARTHEST

    def distance(self) -> float:
        """How far the result lies from the float32 product, relatively. Raises AssertionError where it is another product's."""
        exact = self.expected()
        distance = float((self.call().float() - exact).norm() / exact.norm())
        assert distance < self.farthest, f"its result is {distance:.3g} from the product of its own operands"
        return distance


Ready = Callable[[int], Rival]
"""From M to the rival."""

Maker = Callable[[int, int, int], Ready]
"""From N, K and the group to the rival with its weights."""


def _codes(n: int, k: int, group: int, dtype: torch.dtype) -> tuple[Any, Any, Any]:
    """Random codes 0 to 15 ``[N, K]``, scales ``[N, K/group]``, and the weights that they stand for, ``(code - 8) * scale``."""
    codes = torch.randint(0, 16, (n, k), dtype=torch.uint8, device="cuda")
    scales = (torch.rand(n, k // group, device="cuda") * 0.02 + 0.01).to(dtype)
    return codes, scales, (codes.float() - 8).view(n, -1, group).mul_(scales.float()[..., None]).view(n, k)


def _quantized(x: Any, group: int, limit: float, is_int8: bool) -> tuple[Any, Any]:
    """Activations ``[M, K]`` as int8 or e4m3, and their scales, float32 ``[M, K/group]``."""
    grouped = x.float().view(x.shape[0], -1, group)
    scales = grouped.abs().amax(dim=2) / limit
    q = grouped / scales[..., None]
    return (q.round().to(torch.int8) if is_int8 else q.to(torch.float8_e4m3fn)).view(x.shape), scales


def _widened(q: Any, scales: Any) -> Any:
    """What `_quantized` activations stand for, in float32."""
    return (q.float().view(*scales.shape, -1) * scales[..., None]).view(q.shape)


@dataclass(frozen=True)
class Humming:
    """humming-kernels' maker of a rival with activations of `kind`: bfloat16, float16, float8e4m3 or int8.

    input_group: columns that share a scale of the activations; 0: one scale a row. m_major: those scales with M innermost, which its kernel
    takes by TMA. has_integer_scales: the groups' scales as integers, so that INT8 products stay integers.
    """

    kind: str
    input_group: int = 0
    m_major: bool = False
    has_integer_scales: bool = False

    @property
    def dtype(self) -> Any:
        """Of output, scales and what is quantized."""
        return torch.float16 if self.kind == "float16" else torch.bfloat16

    @property
    def limit(self) -> float | None:
        """The largest activation, quantized; None where they are not."""
        return {"float8e4m3": 448.0, "int8": 127.0}.get(self.kind)

    @property
    def compute(self) -> dict[str, Any]:
        """humming's `compute_config`."""
        return {"use_m_major_input_scale": True} if self.m_major else {}

    def schedule(self, config: Any, m: int) -> dict[str, Any]:
        """humming's own choice for this M, as a layer without `tuning_config` makes it; given by itself, only it is compiled."""
        from humming.tune import get_heuristics_config

        return dict(get_heuristics_config(config, shape_m=m, use_m_major_input_scale=self.m_major))

    def specs(self, n: int, k: int, group: int, ms: list[int]) -> list[dict[str, Any]]:
        """What humming compiles for these problems."""
        from humming.schema import HummingInputSchema, HummingWeightSchema
        from humming.transform import prepare_layer_config

        weights = HummingWeightSchema(b_dtype="int4", weight_scale_group_size=group, weight_scale_group_size_n=int(self.has_integer_scales))
        inputs = HummingInputSchema(a_dtype=self.kind, input_scale_group_size=self.input_group)
        config = prepare_layer_config(n, k, weights, inputs, torch_dtype=self.dtype)
        out: list[dict[str, Any]] = []
        for m in ms:
            spec = json.loads(config.to_str()) | self.compute | json.loads(json.dumps(self.schedule(config, m)))
            spec.pop("num_sms", None)
            if spec not in out:
                out.append(spec)
        return out

    def __call__(self, n: int, k: int, group: int) -> Ready:
        """The rival for these weights."""
        from humming.layer import HummingLayer

        weights = {"dtype": "int4", "group_size": group} | ({"group_size_n": 1} if self.has_integer_scales else {})
        inputs = {"dtype": self.kind} | ({"group_size": self.input_group} if self.input_group else {})
        layer = HummingLayer(shape_n=n, shape_k=k, weight_config=weights, input_config=inputs, torch_dtype=self.dtype).cuda()
        raw = {"weight": torch.randint(-(1 << 31), 1 << 31, (n, k // 8), dtype=torch.int32, device="cuda")}
        raw["weight_scale"] = (torch.rand(n, k // group, device="cuda") * 0.02 + 0.01).to(self.dtype)
        layer.load_from_tensors(raw)
        dense = layer.weight_schema.dequant_tensors(raw).float()
        layer.transform()

        def ready(m: int) -> Rival:
            x = torch.randn(m, k, device="cuda", dtype=self.dtype)
            q, by_row = (x, None) if self.limit is None else _quantized(x, self.input_group or k, self.limit, self.kind == "int8")
            options = {"compute_config": json.dumps(self.compute), "tuning_config": json.dumps(self.schedule(layer.humming_config, m))}
            scale = by_row
            if by_row is not None and self.m_major:
                scale = torch.ones(by_row.shape[1], -(-m // 4) * 4, device="cuda")
                scale[:, :m] = by_row.T
            exact = lambda: (x.float() if by_row is None else _widened(q, by_row)) @ dense.T  # noqa: E731
            return Rival(lambda: layer(q, input_scale=scale, **options), ("humming",), exact)

        return ready


@dataclass(frozen=True)
class Marlin:
    """The original Marlin's maker of a rival: float16 activations, groups of 128."""

    has_hint: bool = False

    def __call__(self, n: int, k: int, group: int) -> Ready:
        """The rival for these weights."""
        import marlin_rival

        assert group == 128, f"it has groups of 128, not of {group}"
        codes, scales, dense = _codes(n, k, group, torch.float16)
        packed, s = marlin_rival.pack(codes, scales)
        locks = torch.zeros(n // 128 * 16, dtype=torch.int32, device="cuda")

        def ready(m: int) -> Rival:
            x, out = torch.randn(m, k, device="cuda", dtype=torch.float16), torch.empty(m, n, device="cuda", dtype=torch.float16)
            call = lambda: marlin_rival.mul(x, packed, out, s, locks, hint=self.has_hint)  # noqa: E731
            return Rival(call, ("Marlin",), lambda: x.float() @ dense.T)

        return ready


def torch_int4(n: int, k: int, group: int) -> Ready:
    """torch's tinygemm, with eight k tiles inside, the most that it has."""
    codes, scales, dense = _codes(n, k, group, torch.bfloat16)
    packed = torch._convert_weight_to_int4pack(codes[:, ::2] << 4 | codes[:, 1::2], 8)
    scales_and_zeros = torch.stack((scales, torch.zeros_like(scales)), dim=-1).transpose(0, 1).contiguous()

    def at(m: int) -> Rival:
        x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        call = lambda: torch._weight_int4pack_mm(x, packed, group, scales_and_zeros)  # noqa: E731
        return Rival(call, ("tinygemm",), lambda: x.float() @ dense.T)

    return at


@dataclass(frozen=True)
class Gemlite:
    """gemlite's maker of a rival: bfloat16 activations, or e4m3 with one scale a row.

    With e4m3 it rounds each weight, scaled, to e4m3: its result is allowed what that costs. (With int8 it takes no groups.)
    """

    is_fp8: bool = False

    def __call__(self, n: int, k: int, group: int) -> Ready:
        """The rival for these weights."""
        from gemlite import DType, GemLiteLinear
        from gemlite.core import GEMLITE_TRITON_MAPPING

        codes, scales, dense = _codes(n, k, group, torch.bfloat16)
        kinds = {"input_dtype": DType.FP8 if self.is_fp8 else DType.BF16, "output_dtype": DType.BF16}
        layer = GemLiteLinear(4, group_size=group, in_features=k, out_features=n, scaled_activations=self.is_fp8, **kinds)
        layer.pack(codes, scales, zeros=8, bias=None)

        def ready(m: int) -> Rival:
            kind = "GEMV_REVSPLITK" if m == 1 else "GEMM_SPLITK" if m <= 64 else "GEMM"
            type_id = (DType.FP8 if self.is_fp8 else DType.FP16).value * 100 + 4
            _nearest_schedule(kind, m, n, k, group, layer.elements_per_sample, type_id)
            x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
            q, by_row = _quantized(x, k, 448.0, False) if self.is_fp8 else (x, None)
            tensors, meta = layer.get_tensor_args()[:3], layer.get_meta_args()
            # what its layer calls once the activations are quantized
            call = lambda: GEMLITE_TRITON_MAPPING[kind].forward(q, *tensors, by_row, *meta[1:-1], bool(meta[1]), type_id, meta_scale=0.0)  # noqa: E731
            exact = lambda: (x.float() if by_row is None else _widened(q, by_row)) @ dense.T  # noqa: E731
            return Rival(call, ("gemm_", "gemv_"), exact, 0.05 if self.is_fp8 else FARTHEST)

        return ready


def _nearest_schedule(kind: str, m: int, n: int, k: int, group: int, packed: int, type_id: int) -> None:
    """Give gemlite, for a problem that its database lacks, the entry of the nearest one in float16 on an H100."""
    import gemlite.core

    with open(Path(gemlite.core.__file__).parent / "configs" / "h100.json") as stream:
        known = {ast.literal_eval(key): value for key, value in json.load(stream)[kind].items()}
    alike = [key for key in known if key[3:] == (group, packed, 104)]
    nearest = min(alike, key=lambda key: (abs(math.log(key[0] / m)), abs(math.log(key[1] / n)) + abs(math.log(key[2] / k))))
    entries = gemlite.core.GEMLITE_TRITON_CONFIG_CACHE.setdefault(kind, {})
    entries[str((m, n, k, group, packed, type_id))] = known[nearest]


@dataclass(frozen=True)
class Quack:
    """QuACK's maker of a rival: int4 with bfloat16, int4sm (sign and magnitude) with e4m3 and one scale a row, or int4smf, which rounds each
    weight, scaled, to e4m3, and is allowed what that costs.
    """

    form: str

    def __call__(self, n: int, k: int, group: int) -> Ready:
        """The rival for these weights."""
        import quack_rival

        assert group == 128, f"it has groups of 128 here, not of {group}"
        packed = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device="cuda")
        scales = (torch.rand(n, k // group, device="cuda") * 0.02 + 0.01).to(torch.bfloat16)
        codes = torch.stack((packed & 15, packed >> 4), dim=-1).view(n, k)
        is_fp8 = self.form != "int4"
        values = (codes & 7).float() * (1 - (codes >> 3) * 2.0) if is_fp8 else codes.float() - 8
        dense = values.view(n, -1, group).mul_(scales.float()[..., None]).view(n, k)
        weights = quack_rival.W4(self.form, n, k, packed, scales)

        def ready(m: int) -> Rival:
            x, out = (torch.randn(m, extent, device="cuda").bfloat16() for extent in (k, n))
            q, by_row = _quantized(x, k, 448.0, False) if is_fp8 else (x, None)
            function, arguments = weights.prepared(q, out, by_row)
            exact = lambda: (x.float() if by_row is None else _widened(q, by_row)) @ dense.T  # noqa: E731

            def call() -> Any:
                function(*arguments)
                return out

            return Rival(call, ("cutlass",), exact, 0.05 if self.form == "int4smf" else FARTHEST)

        return ready


W4A8: dict[str, Maker] = {
    "humming_fp8_1x128": Humming("float8e4m3", 128),
    "humming_fp8_1x128_m_major": Humming("float8e4m3", 128, m_major=True),
    "humming_fp8_row": Humming("float8e4m3"),
    "humming_int8": Humming("int8"),
    "humming_int8_integer_scales": Humming("int8", has_integer_scales=True),
    "gemlite_fp8_row": Gemlite(is_fp8=True),
    "quack_fp8_row": Quack("int4sm"),
    "quack_fp8_row_folded": Quack("int4smf"),
}
RIVALS: dict[str, dict[str, Maker]] = {
    "bfloat16": {
        "humming": Humming("bfloat16"),
        "marlin_fp16": Marlin(),
        "marlin_fp16_l2_hint": Marlin(has_hint=True),
        "torch_int4": torch_int4,
        "gemlite": Gemlite(),
        "quack": Quack("int4"),
    },
    "float16": {"humming_fp16": Humming("float16"), "marlin_fp16": Marlin(), "marlin_fp16_l2_hint": Marlin(has_hint=True)},
    "float8_e4m3fn": W4A8,
    "float8_e4m3fn_row": W4A8,
    "int8": W4A8,
}
"""By the activations of our call. Rivals with 8 bits stand beside all of ours: the best of them counts."""
