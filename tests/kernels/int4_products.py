"""Small products with weights of 4 bits, on plans that the tests choose; for emulation, and with calls taken out of the kernel."""

from __future__ import annotations

import dataclasses

import int4_cases as cases
import numpy as np

import dgnumba
from dgnumba import emu
from dgnumba.device import Device
from dgnumba.int4_operands import ARRAYS, check_int4_gemm_nt, lay_out
from dgnumba.kernels import INT4_KERNELS
from dgnumba.kernels.int4_spec import Int4Plan
from dgnumba.testing import assert_bits_equal

H200 = Device.named("h200")
INT4_KERNEL_OF = {kernel.NAME: kernel for kernel in INT4_KERNELS}
INT4, PORTABLE_INT4 = INT4_KERNEL_OF["sm90_int4_gemm"], INT4_KERNEL_OF["sm80_int4_gemm"]
INT4_GEMV = INT4_KERNEL_OF["sm90_int4_gemv"]


@dataclasses.dataclass(frozen=True)
class Int4Product:
    """A product and the tile that makes it.

    tile      block_m, block_n, records of a stage, stages, split
    num_sms   of the GPU that is played: few make a CTA take several tiles
    """

    kind: str
    variant: str
    m: int
    n: int
    k: int
    tile: tuple[int, int, int, int, int]
    num_sms: int = 132
    out: str = "float32"
    with_bias: bool = False
    with_c: bool = False
    has_gate: bool = False
    kernel: str = INT4.NAME
    widen: bool = False
    pdl: bool = False
    fold: bool = False
    tail: int = 1
    f16_sums: bool = False
    large_first: bool = False
    quads: bool = False

    @property
    def rules(self):
        """Of its kernel."""
        return INT4_KERNEL_OF[self.kernel]

    def __str__(self) -> str:
        fused = (
            "-bias" * self.with_bias
            + "-c" * self.with_c
            + "-gate" * self.has_gate
            + "-pdl" * self.pdl
            + "-fold" * self.fold
            + "-f16sums" * self.f16_sums
            + "-tail" * (self.tail > 1)
            + "-large-first" * self.large_first
            + "-quads" * self.quads
        )
        return f"{self.kind}-{self.variant}-{self.m}x{self.n}x{self.k}-{'x'.join(map(str, self.tile))}-{self.out}{fused}"

    def operands(self, rng):
        """Checked operands whose sums are exact, and what the host makes of them."""
        a, q = cases.exact_problem(rng, self.kind, self.variant, self.m, self.n, self.k)
        if self.f16_sums:
            a = cases.few(rng, a)
        if self.large_first:
            a, q = cases.large_first(a, q)
        gate = None
        if self.has_gate:
            q, gate = cases.gate_pair(rng, self.variant, self.n, self.k)
        w = dgnumba.prepare_int4_weights(q, cases.prepared_for(self.kind), gate=gate)
        dtype = cases.D_DTYPES.get(self.out, np.dtype(np.int32))
        bias = rng.integers(-8, 9, self.n).astype(np.float32) if self.with_bias else None
        c = rng.integers(-8, 9, (self.m, self.n)).astype(dtype) if self.with_c else None
        expected = dgnumba.int4_gemm_nt(a, w, None, c, bias=bias, out_dtype=self.out, on="host")
        return check_int4_gemm_nt(a, w, np.full((self.m, self.n), -7, dtype), c, bias), expected

    def plan(self, problem) -> Int4Plan:
        """The plan with this tile."""
        block_m, block_n, records, num_stages, split = self.tile
        choices = {"block_m": block_m, "block_n": block_n, "records": records, "num_stages": num_stages, "split": split}
        choices |= {name: getattr(self, name) for name in ("widen", "pdl", "fold", "tail", "f16_sums", "quads")}
        return Int4Plan.of(problem, self.kernel, **choices)

    def run(self, module, policy: str, seed: int = 0) -> None:
        """Step the kernel that a module builds, and compare with the host's bits."""
        rules = getattr(module, "rules", self.rules)
        operands, expected = self.operands(np.random.default_rng(seed))
        chosen, laid = self.plan(operands.problem), lay_out(operands)
        assert rules.refusal(chosen, operands.problem) is None, rules.refusal(chosen, operands.problem)
        built = module.build(chosen)
        grid = rules.grid(chosen, operands.problem, dataclasses.replace(H200, num_sms=self.num_sms))
        arrays = [x for x in (getattr(laid, name) for name in ARRAYS) if x is not None]
        emu.run(built.kernel, grid, built.threads, rules.bind(chosen, laid), smem=built.smem.launch_bytes, cluster=built.cluster, policy=policy,
                labels=built.smem.labels, arrays=arrays)  # fmt: skip
        if self.has_gate:
            wide = expected.astype(np.float64)
            dgnumba.testing.assert_within(laid.d, wide, cases.gate_slack(self.out, wide, laid.c), str(self))
        else:
            assert_bits_equal(laid.d, expected, str(self))
