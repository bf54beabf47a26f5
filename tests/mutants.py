"""Small runs of every kernel, which between them come to every branch: what `mutation` runs mutants on.

A trial runs the kernel that a module builds, in the emulator, and compares with the host's numbers. The module has the kernel's names, and its
rules as `rules`: it may be the kernel's own, or one with a fault in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import ml_dtypes
import numpy as np
from cases import (
    DENSE,
    H200,
    PORTABLE,
    SKINNY,
    SKINNY_RS,
    SWAPPED,
    addend,
    expected_of,
    plan,
    portable,
    run_plan,
    skinny,
    skinny_rs,
    swapped,
)
from kernels.int4_products import INT4, PORTABLE_INT4, Int4Product

from dgnumba import casts, emu, quant, scale_moves
from dgnumba.errors import ProblemError
from dgnumba.kernels import GemmPlan, smxx_cast_rules, smxx_layout_rules, smxx_quantize_rules
from dgnumba.kernels.smxx_quantize_rules import AmaxPlan, QuantizePlan
from dgnumba.layouts import scales
from dgnumba.layouts.operands import LaidOut
from dgnumba.problem import GemmProblem
from dgnumba.quant.scale import LEAST_GIVEN, MOST_GIVEN
from dgnumba.testing import assert_bits_equal, exact_problem


@dataclass(frozen=True)
class Product:
    """A small product: a plan on a problem, and the multiprocessors of the GPU that is played; few, so that ring and staging are used again.

    margin  columns of the caller's array behind D, or a few more; 0: D is all of it, and nothing may be read behind it either
    """

    chosen: GemmPlan
    m: int
    n: int
    k: int
    num_sms: int
    margin: int = 16

    def run(self, module: Any, policy: str) -> None:
        """Run it on a kernel's module and compare with the oracle."""
        case = exact_problem(np.random.default_rng(0), self.m, self.n, self.k, self.chosen.d_dtype)
        around = np.full((self.m, -(-self.n // 16) * 16 + self.margin if self.margin else self.n), -7, case.problem.d_dtype.numpy)
        d = around[:, : self.n]  # a part of a wider array of the caller's
        c = addend(case, 0) if self.chosen.with_c else None
        if c is not None:
            d[...] = c
        run_plan(module, self.chosen, case, d, policy, self.num_sms, getattr(module, "rules", None))
        assert (around[:, self.n :] == -7).all(), "columns behind D were written"
        assert_bits_equal(d, expected_of(case, c), self.chosen.name)


@dataclass(frozen=True)
class Integers:
    """A product of int8 without scales, to int32, on the portable kernel."""

    chosen: GemmPlan
    m: int
    n: int
    k: int

    def run(self, module: Any, policy: str) -> None:
        """Run it on a kernel's module and compare with the integers."""
        rng = np.random.default_rng(0)
        a, b = (rng.integers(-128, 128, (rows, -(-self.k // 16) * 16)).astype(np.int8) for rows in (self.m, self.n))
        around = np.full((self.m, self.n + 8), -7, np.int32)
        problem = GemmProblem(self.m, self.n, self.k, "int8", "int8", "int32", None, None)
        laid = LaidOut(problem, a.view(np.uint8), None, b.view(np.uint8), None, around[:, : self.n], around[:, : self.n], None, ())
        built, rules = module.build(self.chosen), getattr(module, "rules", PORTABLE)
        emu.run(
            built.kernel, rules.grid(self.chosen, problem, H200), built.threads, rules.bind(self.chosen, laid),
            smem=built.smem.launch_bytes, policy=policy, arrays=[laid.a, laid.b, around],
        )  # fmt: skip
        expected = a[:, : self.k].astype(np.int32) @ b[:, : self.k].astype(np.int32).T
        assert_bits_equal(around[:, : self.n].copy(), expected, self.chosen.name)
        assert (around[:, self.n :] == -7).all(), "columns behind D were written"


@dataclass(frozen=True)
class Several:
    """Trials one after another."""

    trials: tuple[Any, ...]

    def run(self, module: Any, policy: str) -> None:
        """Run them all."""
        for trial in self.trials:
            trial.run(module, policy)


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


TRIALS = {
    DENSE.NAME: [
        Product(plan(16, 16), 17, 18, 500, 1),
        Product(plan(16, 16, share="A"), 16, 80, 400, 2),
        Product(plan(16, 16, epilogue="direct"), 17, 19, 500, 1),
        Product(plan(256, 16), 257, 16, 520, 1),
        Product(plan(16, 16, rotate=True), 17, 18, 500, 1),
        Product(plan(256, 16, rotate=True, overlap=True), 257, 16, 520, 1),
        Product(plan(64, 64, epilogue="warp"), 65, 136, 130, 1),
        Product(plan(64, 128, epilogue="warp"), 65, 136, 130, 1),
        Product(plan(16, 48, epilogue="direct"), 33, 147, 300, 2),
        Product(plan(32, 32), 33, 32, 300, 1),
        Product(plan(16, 16, with_c=True), 33, 40, 300, 1, margin=0),
    ],
    SWAPPED.NAME: [
        Product(swapped(8, 64), 8, 130, 500, 1),
        Product(swapped(8, 64, split=2), 8, 64, 900, 132),
        Product(swapped(8, 64, block_k=256), 8, 130, 1024, 1),
        Product(swapped(8, 64, block_k=512), 8, 130, 2048, 1),
        Product(swapped(8, 64), 5, 67, 300, 132),
        Product(swapped(8, 64, split=2), 5, 67, 400, 132),
        Product(swapped(8, 64), 5, 72, 300, 132),
        Product(swapped(8, 64, split=2), 5, 72, 400, 132),
        Product(swapped(8, 64, block_k=256, row_scales=True), 9, 64, 1152, 1),
        Product(swapped(8, 64, split=2, with_c=True, row_scales=True), 9, 72, 640, 132, margin=0),
        Product(swapped(8, 64, with_c=True), 9, 72, 640, 132, margin=0),
    ],
    SKINNY.NAME: [
        Product(skinny(8, 2, 2), 5, 50, 640, 132),
        Product(skinny(16, 1, 1, block_n=32), 9, 40, 256, 132),
        Product(skinny(8, 4, 1), 3, 16, 1280, 132),
        # every number of blocks of K from none for a warp to a second round of all that are on their way
        Several(tuple(Product(skinny(8, 4, 1), 3, 16, 128 * blocks, 132) for blocks in range(1, 8))),
        Product(skinny(8, 1, 2), 3, 16, 128, 132),
    ],
    SKINNY_RS.NAME: [
        Product(skinny_rs(16, 1, 2, block_n=64), 9, 70, 640, 132),
        Product(skinny_rs(16, 1, 1, block_n=32), 13, 40, 768, 132),
        Product(skinny_rs(8, 1, 1), 3, 20, 1024, 132),
        Product(skinny_rs(16, 3, 1, block_n=64, with_c=True), 13, 70, 1280, 132),
        # every number of steps from none for a warpgroup to a second round of all that are on their way
        Several(tuple(Product(skinny_rs(16, 3, 1, block_n=64), 3, 16, 128 * steps, 132) for steps in range(1, 6))),
        Product(skinny_rs(16, 1, 2, block_n=64), 3, 16, 128, 132),
        Product(skinny_rs(16, 1, 4, block_n=64), 3, 16, 1024, 132),
        Product(skinny_rs(16, 1, 1, block_n=64, split=2), 9, 70, 640, 132),
    ],
    PORTABLE.NAME: [
        Product(portable("float8_e4m3fn", 16, 64), 16, 60, 640, 132),
        Product(portable("float8_e4m3fn", 16, 64, 4), 16, 60, 100, 132),
        Product(portable("float8_e4m3fn", 16, 64), 13, 57, 200, 132),
        Product(portable("float8_e4m3fn", 16, 64), 13, 40, 200, 132),
        Product(portable("float8_e4m3fn", 16, 64, d_dtype="float32"), 13, 40, 200, 132),
        Integers(portable("int8", 16, 64), 13, 40, 301),
    ],
    INT4.NAME: [
        Int4Product("bfloat16", "int4_g128", 8, 130, 500, (8, 64, 1, 2, 1), 1),
        Int4Product("bfloat16", "int4_g128", 8, 64, 512, (8, 64, 2, 2, 2)),
        Int4Product("float8_e4m3fn", "uint4_g64", 8, 70, 500, (8, 64, 1, 2, 1), 1),
        Int4Product("int8", "int4_g64", 8, 70, 500, (8, 64, 1, 2, 1), 1),
        Int4Product("int8", "int4_row", 8, 70, 512, (8, 64, 2, 2, 1), 1, "int32"),
        Int4Product("int8", "int4_g64", 5, 67, 200, (8, 64, 1, 2, 1), with_bias=True, with_c=True),
        Int4Product("bfloat16", "int4_g128", 8, 130, 256, (8, 128, 1, 2, 1), 1),
    ],
    PORTABLE_INT4.NAME: [
        Int4Product("bfloat16", "int4_row", 8, 20, 600, (8, 64, 1, 3, 1), kernel=PORTABLE_INT4.NAME),
        Int4Product("float8_e4m3fn", "uint4_g64", 8, 20, 200, (8, 64, 1, 3, 1), kernel=PORTABLE_INT4.NAME),
        Int4Product("bfloat16", "int4_row", 8, 20, 100, (8, 64, 1, 4, 1), kernel=PORTABLE_INT4.NAME),
        Int4Product("bfloat16", "int4_g128", 7, 21, 130, (8, 64, 1, 3, 1), with_bias=True, with_c=True, kernel=PORTABLE_INT4.NAME),
        Int4Product("int8", "int4_g64", 5, 67, 200, (8, 64, 1, 3, 1), kernel=PORTABLE_INT4.NAME),
        Int4Product("bfloat16", "int4_g64", 5, 67, 200, (8, 64, 1, 3, 1), out="bfloat16", with_c=True, kernel=PORTABLE_INT4.NAME),
        Int4Product("int8", "int4_row", 5, 67, 200, (8, 64, 1, 3, 1), kernel=PORTABLE_INT4.NAME),
        Int4Product("int8", "int4_row", 5, 130, 200, (8, 128, 1, 3, 1), kernel=PORTABLE_INT4.NAME),
    ],
    "smxx_cast": [
        Cast("token", (9, 208)),
        Cast("token", (9, 201), "bfloat16"),
        Cast("token", (2, 201)),
        Cast("token", (3, 288), options=(("use_ue8m0", True), ("use_packed_ue8m0", True), ("gran_k", 32)), special=np.inf),
        Cast("channel", (32, 144), options=(("gran_k", 32),)),
        Cast("channel", (64, 137), "bfloat16", (("gran_k", 64),)),
        Cast("block", (130, 144)),
        Cast("token", (2, 256)),
        Cast("token", (2, 256), options=(("use_ue8m0", True), ("use_packed_ue8m0", True), ("gran_k", 32))),
    ],
    "smxx_layout": [
        Move("turn", (66, 12)),
        Move("turn", (5, 7), 2),
        Move("pack", (66, 12)),
        Move("pack", (5, 7), 2),
        Move("unpack", (8, 7)),
        Move("unpack", (6, 5), 2),
        Move("unpack rows", (7, 6)),
        BackToRows((5, 7)),
        BackToRows((8, 8)),
        # rows and columns of every remainder by four
        Several(tuple(Move(move, (5, n), 2) for move in ("turn", "pack") for n in (5, 6, 8))),
        Several(tuple(Move("unpack", (n, 5), 2) for n in (5, 7, 8))),
        Several(tuple(Move("unpack rows", (n, 5), 2) for n in (5, 6, 8))),
        Several(tuple(BackToRows(shape) for shape in ((5, 5), (5, 6), (5, 8), (6, 5), (7, 5), (8, 5)))),
        PackOfBad(np.inf),
        PackOfBad(1.5),
    ],
    "smxx_quantize": [
        RowCast(),
        LookForAmax(),
        Few("mxfp4", (9, 96)),
        Few("mxfp4", (3, 70), "bfloat16", np.inf),
        Few("nvfp4", (3, 96)),
        Few("nvfp4", (2, 50), special=np.inf),
        Few("mxfp8", (3, 41), special=np.inf),
        Few("fp8_tensor", (3, 41)),
        Few("int4_g128", (3, 200), "bfloat16"),
        Few("fp4 words", (3, 300)),
        Few("fp4", (2, 160), special=np.inf),
        Few("int4_g128", (2, 130), special=np.inf),
        Few("mxfp4", (1, 32), special=6 * 2.0**-127, is_alone=True),
        Few("mxfp8", (1, 32), special=448 * 2.0**-127, is_alone=True),
        Few("nvfp4", (9, 48), "bfloat16"),
        Few("fp4 words", (2, 160)),
        Few("fp4 words", (2, 160), special=np.inf),
        Few("fp4 words", (2, 256)),
        Few("int4_g128", (2, 256)),
        *(
            Below(end)
            for end in (LEAST_GIVEN, np.nextafter(LEAST_GIVEN, np.float32(0)), MOST_GIVEN, np.nextafter(MOST_GIVEN, np.float32(1e38)))
        ),
    ],
}
"""A kernel's module -> small runs of it that between them come to every branch."""
