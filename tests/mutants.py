"""Small runs of every kernel, which between them come to every branch: what `mutation` runs mutants on.

A trial runs the kernel that a module builds, in the emulator, and compares with the host's numbers. The module has the kernel's names, and its
rules as `rules`: it may be the kernel's own, or one with a fault in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from cases import (
    DENSE,
    H200,
    PORTABLE,
    RESIDENT,
    SKINNY,
    SKINNY_RS,
    SWAPPED,
    addend,
    expected_of,
    plan,
    portable,
    resident,
    run_plan,
    skinny,
    skinny_rs,
    swapped,
)
from kernels.int4_products import INT4, INT4_GEMV, PORTABLE_INT4, Int4Product
from mutants_casts import BackToRows, Below, Cast, Few, LookForAmax, Move, PackOfBad, RowCast

from dgnumba import emu
from dgnumba.kernels import GemmPlan
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
        Product(plan(16, 16, row_scales=True), 17, 18, 660, 1),
        Product(plan(256, 16, row_scales=True), 257, 16, 520, 1),
        Product(plan(16, 16), 17, 18, 640, 1),  # an odd count of blocks of K
        Product(plan(16, 160), 17, 18, 500, 1),  # accumulators that take no turns: too wide
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
        # the ring's first round ends within a tile, with the second, and behind all
        Product(swapped(8, 64, 3, pdl=True, weights_first=True), 8, 130, 600, 1),
        Product(swapped(8, 64, 4, pdl=True, weights_first=True), 8, 130, 200, 1),
        Product(swapped(8, 64, 4, pdl=True, weights_first=True), 5, 67, 200, 132),
        Product(swapped(8, 64, block_k=256, pdl=True, weights_first=True), 8, 130, 768, 1),
        Product(swapped(8, 64, split=8), 8, 64, 1024, 132),  # half of the CTAs have no sums to add
    ],
    RESIDENT.NAME: [
        Product(resident(8), 5, 270, 512, 1),
        Product(resident(8, held=10), 8, 320, 1280, 1),
        Product(resident(16, block_k=512, held=8), 9, 200, 640, 1),
        Product(resident(24, 3, 3, held=6), 17, 72, 768, 132),
        Product(resident(8, with_c=True), 7, 264, 256, 1, margin=0),
        # the ring's first round ends within a tile, with the second, and behind all
        Product(resident(8, 2, 3, pdl=True, weights_first=True), 8, 330, 512, 1),
        Product(resident(8, 2, 4, pdl=True, weights_first=True), 8, 330, 512, 1),
        Product(resident(8, 2, 5, pdl=True, weights_first=True), 5, 180, 512, 1),
        Product(resident(8, 3, 4, pdl=True, weights_first=True), 5, 60, 512, 132),
    ],
    SKINNY.NAME: [
        Product(skinny(8, 2, 2), 5, 50, 640, 132),
        Product(skinny(16, 1, 1, block_n=32), 9, 40, 256, 132),
        Product(skinny(8, 4, 1), 3, 16, 1280, 132),
        # every number of blocks of K from none for a warp to a second round of all that are on their way
        Several(tuple(Product(skinny(8, 4, 1), 3, 16, 128 * blocks, 132) for blocks in range(1, 8))),
        Product(skinny(8, 1, 2), 3, 16, 128, 132),
        Several(tuple(Product(skinny(8, 4, 1, pdl=True, weights_first=True), 3, 16, 128 * blocks, 132) for blocks in range(1, 8))),
        Product(skinny(8, 1, 2, pdl=True, weights_first=True), 3, 16, 128, 132),
        # sums that are sent: as many as threads, or twice and four times as many; CTAs without a block of K
        Product(skinny(8, 1, 2, split=2), 3, 16, 512, 132),
        Product(skinny(16, 2, 1, block_n=32, split=4, d_dtype="float32"), 9, 40, 640, 132),
        Product(skinny(8, 1, 1, split=8), 8, 20, 384, 132),
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
        Several(tuple(Product(skinny_rs(16, 3, 1, block_n=64, pdl=True, weights_first=True), 3, 16, 128 * n, 132) for n in range(1, 6))),
        Product(skinny_rs(16, 1, 2, block_n=64, pdl=True, weights_first=True), 3, 16, 128, 132),
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
        Int4Product("float16", "uint4_g64", 8, 64, 1024, (8, 64, 4, 2, 1), 1, fold=True),
        Int4Product("bfloat16", "mxfp4", 8, 70, 256, (8, 64, 1, 2, 1), 1, fold=True),
        Int4Product("float8_e4m3fn", "int4_g128", 8, 70, 200, (8, 64, 1, 2, 1), 1),
        Int4Product("float8_e4m3fn", "nvfp4", 8, 70, 200, (8, 64, 1, 2, 1), 1),
        Int4Product("bfloat16", "int4_g128", 8, 150, 512, (8, 64, 1, 2, 1), 2, tail=2),
        Int4Product("bfloat16", "int4_g128", 8, 380, 256, (8, 64, 1, 2, 1), 4, tail=2),
        Int4Product("int8", "int4_g128", 8, 390, 256, (8, 64, 1, 2, 1), 4, tail=2),
        Int4Product("float8_e4m3fn", "int4_g128", 150, 40, 300, (192, 64, 1, 2, 1), 1),
        Int4Product("int8", "int4_g128", 150, 90, 512, (192, 128, 1, 2, 2)),
        # a sum of eight records and one of two, the ring again and again; shared by two CTAs; two records a stage
        Int4Product("float8_e4m3fn_row", "int4_g128", 8, 70, 1200, (8, 64, 1, 2, 1), 1, f16_sums=True),
        Int4Product("float8_e4m3fn_row", "int4_g128", 8, 90, 512, (8, 128, 1, 2, 2), f16_sums=True),
        Int4Product("float8_e4m3fn_row", "int4_g64", 8, 64, 1280, (8, 64, 2, 2, 1), 1, f16_sums=True),
        Int4Product("float8_e4m3fn_row", "int4_g128", 3, 9, 2048, (8, 64, 1, 2, 1), f16_sums=True, large_first=True),
        # four columns of D stored together, by one CTA and by two
        Int4Product("float8_e4m3fn_row", "int4_g128", 9, 72, 200, (8, 64, 1, 2, 1), 1, "bfloat16", quads=True),
        Int4Product("bfloat16", "int4_g128", 13, 68, 256, (16, 64, 1, 2, 2), out="float16", with_bias=True, quads=True),
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
    INT4_GEMV.NAME: [
        Int4Product("bfloat16", "int4_row", 8, 40, 1200, (8, 32, 4, 2, 1), kernel=INT4_GEMV.NAME, pdl=True),
        Int4Product("float16", "uint4_g64", 7, 70, 700, (8, 16, 4, 1, 1), with_bias=True, with_c=True, kernel=INT4_GEMV.NAME),
        Int4Product("bfloat16", "int4_g128", 5, 20, 1800, (8, 16, 4, 3, 1), kernel=INT4_GEMV.NAME),
        Int4Product("float16", "int4_g128", 8, 20, 2600, (8, 32, 4, 4, 1), kernel=INT4_GEMV.NAME),
        Int4Product("float8_e4m3fn", "uint4_g64", 7, 20, 1100, (8, 16, 4, 2, 1), kernel=INT4_GEMV.NAME),
        Int4Product("int8", "uint4_g64", 8, 20, 1100, (8, 16, 4, 2, 1), kernel=INT4_GEMV.NAME),
        Int4Product("int8", "int4_row", 5, 20, 700, (8, 16, 4, 1, 1), out="int32", kernel=INT4_GEMV.NAME),
        # a warp's records end where a slot of its has not been used
        Int4Product("float16", "int4_g128", 3, 16, 384, (8, 16, 4, 1, 1), kernel=INT4_GEMV.NAME),
        Int4Product("float16", "int4_g128", 3, 16, 512, (8, 16, 4, 2, 1), kernel=INT4_GEMV.NAME),
        Int4Product("float16", "int4_g128", 3, 16, 1024, (8, 16, 4, 3, 1), kernel=INT4_GEMV.NAME),
        Int4Product("float16", "int4_g128", 3, 16, 1536, (8, 16, 4, 4, 1), kernel=INT4_GEMV.NAME),
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
