"""Small casts and moves of scales for the mutation test; as the products of `mutants`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import ml_dtypes
import numpy as np

from dgnumba import casts, emu, quant, scale_moves
from dgnumba.errors import ProblemError
from dgnumba.kernels import smxx_cast_rules, smxx_layout_rules, smxx_quantize_rules
from dgnumba.kernels.smxx_quantize_rules import AmaxPlan, QuantizePlan
from dgnumba.layouts import scales
from dgnumba.quant.scale import LEAST_GIVEN, MOST_GIVEN
from dgnumba.testing import assert_bits_equal


@contextmanager
def built_by(module: Any, rules: Any) -> Iterator[None]:
    """Let the calls inside build their kernels with `module`."""
    with patch.object(rules, "build", lambda plan: (module.build_amax if isinstance(plan, AmaxPlan) else module.build)(plan)):
        yield


@dataclass(frozen=True)
class Cast:
    """Small casts to FP8 of one kind of block.

    blocks   "token", "block" or "channel"
    shape    of x
    dtype    of x
    options  of the cast
    """

    blocks: str
    shape: tuple[int, int]
    dtype: str = "float32"
    options: tuple[tuple[str, Any], ...] = ()
    special: float = 0.0

    def run(self, module: Any, policy: str) -> None:
        """Cast in the emulator and compare with the host."""
        x = np.random.default_rng(0).standard_normal(self.shape).astype(np.float32)
        x[-1, 0] = self.special or x[-1, 0]
        x = x.astype(getattr(ml_dtypes, self.dtype, self.dtype))
        name, options = f"per_{self.blocks}_cast_to_fp8", dict(self.options)
        with built_by(module, smxx_cast_rules):
            got = getattr(casts, name)(x, **options, on="emulator", policy=policy)
        expected = getattr(quant, name)(x, **options)
        assert_bits_equal(got.scale, expected.scale, self.blocks)
        assert_bits_equal(np.asarray(got.data).view(np.uint8), np.asarray(expected.data).view(np.uint8), self.blocks)


@dataclass(frozen=True)
class Move:
    """Scales turned to MN-major, packed, or unpacked.

    move    "turn", "pack", "unpack" (to MN-major) or "unpack rows"
    shape   of the float32 scales
    stride  elements between those of a row of the input: other than 1 is read one by one
    """

    move: str
    shape: tuple[int, int]
    stride: int = 1

    def run(self, module: Any, policy: str) -> None:
        """Move in the emulator and compare with the host: the values, and the zeros of the padding."""
        rng = np.random.default_rng(0)
        sf = np.ldexp(np.float32(1), rng.integers(-127, 128, self.shape)).astype(np.float32)
        if self.move.startswith("unpack"):
            words = scales.get_mn_major_tma_aligned_packed_ue8m0_tensor(sf)
            words = words if self.stride == 1 else np.ascontiguousarray(words)
            call = scale_moves.unpacked
            args, expected = (words, self.shape[1]), sf
            options: dict[str, Any] = {"mn_major": self.move == "unpack"}
        else:
            wide = np.repeat(sf, self.stride, axis=1)[:, :: self.stride]
            turned = self.move == "turn"
            call = scale_moves.get_mn_major_tma_aligned_tensor if turned else scale_moves.get_mn_major_tma_aligned_packed_ue8m0_tensor
            args, expected = (wide,), sf if turned else scales.get_mn_major_tma_aligned_packed_ue8m0_tensor(sf)
            options = {}
        with built_by(module, smxx_layout_rules):
            got = call(*args, **options, on="emulator", policy=policy)
        assert_bits_equal(np.ascontiguousarray(got), np.ascontiguousarray(expected), self.move)
        if got.base is not None and got.strides[0] == 4 and got.base.ndim == 2:
            assert not got.base[:, self.shape[0] :].any(), "padding is not zero"


@dataclass(frozen=True)
class BackToRows:
    """MN-major scales turned back to rows."""

    shape: tuple[int, int]

    def run(self, module: Any, policy: str) -> None:
        """As in `Move`."""
        sf = np.random.default_rng(0).random(self.shape, dtype=np.float32)
        with built_by(module, smxx_layout_rules):
            got = scale_moves.get_row_major_tensor(scales.get_mn_major_tma_aligned_tensor(sf), on="emulator", policy=policy)
        assert_bits_equal(got, sf, "rows")


@dataclass(frozen=True)
class RowCast:
    """Two rows to int8, a CTA one after the other."""

    def run(self, module: Any, policy: str) -> None:
        """Run it on the module of the casts to few bits and compare with the host's."""
        x = np.random.default_rng(0).standard_normal((2, 1024)).astype(np.float32)
        q, scale, chosen = np.zeros(x.shape, np.uint8), np.zeros((2, 1), np.float32), QuantizePlan("int8", "float32", "row", 64)
        run_kernel(module.build(chosen), (1, 1), (x, *x.strides, q, scale, *scale.strides, *x.shape, 0, 0), policy)
        expected = quant.quantize(x, "int8_row")
        assert_bits_equal(scale, expected.scale, "row")
        assert_bits_equal(q, expected.codes, "row")


@dataclass(frozen=True)
class LookForAmax:
    """The largest magnitude of a small matrix."""

    def run(self, module: Any, policy: str) -> None:
        """Run it on the module of the casts to few bits."""
        x = np.random.default_rng(0).standard_normal((34, 48)).astype(np.float32)
        partials, chosen = np.full(smxx_quantize_rules.PARTIALS, 1e30, np.float32), AmaxPlan("float32", True)
        grid = smxx_quantize_rules.amax_grid(*x.shape)
        run_kernel(module.build_amax(chosen), grid, (x, *x.strides, 0, partials, 0, 0, *x.shape, 0, 0), policy)
        assert_bits_equal(partials.max(), np.abs(x).max())


@dataclass(frozen=True)
class PackOfBad:
    """Scales of which one is no power of two: refused."""

    value: float

    def run(self, module: Any, policy: str) -> None:
        """As in `Move`."""
        sf = np.ones((5, 6), np.float32)
        sf[4, 5] = self.value
        refused = False
        with built_by(module, smxx_layout_rules):
            try:
                scale_moves.get_mn_major_tma_aligned_packed_ue8m0_tensor(sf, on="emulator", policy=policy)
            except ProblemError:
                refused = True
        assert refused, f"{self.value} is packed"


@dataclass(frozen=True)
class Few:
    """Small casts to few bits, by the format's name ("fp4": DeepGEMM's, "fp4 words": with packed scales).

    special   stands at one place of x; if it `is_alone` all else is zero
    """

    format: str
    shape: tuple[int, int]
    dtype: str = "float32"
    special: float = 0.0
    is_alone: bool = False

    def run(self, module: Any, policy: str) -> None:
        """Cast in the emulator and compare with the host."""
        x = np.random.default_rng(0).standard_normal(self.shape).astype(np.float32)
        x *= not self.is_alone
        x[-1, 0] = self.special or x[-1, 0]
        x = x.astype(getattr(ml_dtypes, self.dtype, self.dtype))
        words = self.format == "fp4 words"
        with built_by(module, smxx_quantize_rules):
            if self.format.startswith("fp4"):
                got = casts.per_token_cast_to_fp4(x, words, 32, words, on="emulator", policy=policy)
            else:
                got = casts.quantize(x, self.format, on="emulator", policy=policy)
        expected = quant.per_token_cast_to_fp4(x, words, 32, words) if self.format.startswith("fp4") else quant.quantize(x, self.format)
        assert_bits_equal(np.asarray(got.scale).view(np.uint8), np.asarray(expected.scale).view(np.uint8), self.format)
        assert_bits_equal(np.asarray(got.data).view(np.uint8), np.asarray(expected.data).view(np.uint8), self.format)
        if expected.global_scale is not None:
            assert_bits_equal(np.asarray(got.global_scale), np.asarray(expected.global_scale), self.format)


@dataclass(frozen=True)
class Below:
    """A cast to NVFP4 below a given scale of the tensor, at an end of its range or beyond it, as a GPU meets it, where nobody has looked at it."""

    whole: np.float32

    def run(self, module: Any, policy: str) -> None:
        """Cast in the emulator and compare with the host, or with no scales at all."""
        x, given = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32), np.asarray(self.whole)
        with built_by(module, smxx_quantize_rules), patch.object(casts, "check_global_scale"):
            got = casts.quantize(x, "nvfp4", global_scale=given, on="emulator", policy=policy)
        if LEAST_GIVEN <= self.whole <= MOST_GIVEN:
            expected = quant.quantize(x, "nvfp4", global_scale=given)
            scales, codes = np.asarray(expected.scale).view(np.uint8), np.asarray(expected.data).view(np.uint8)
        else:
            scales, codes = np.full(got.scale.shape, 0x7F, np.uint8), np.zeros(got.data.shape, np.uint8)
        assert_bits_equal(np.asarray(got.scale).view(np.uint8), scales, f"scales below {self.whole}")
        assert_bits_equal(np.asarray(got.data).view(np.uint8), codes, f"codes below {self.whole}")


def run_kernel(built: Any, grid: tuple[int, int], args: tuple[Any, ...], policy: str) -> None:
    """Step a kernel that takes arrays as addresses."""
    arrays = [a for a in args if isinstance(a, np.ndarray)]
    values = [kind(a.ctypes.data if isinstance(a, np.ndarray) else a) for kind, a in zip(built.argtypes, args, strict=True)]
    emu.run(built.kernel, grid, built.threads, values, policy=policy, arrays=arrays)
