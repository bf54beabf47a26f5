"""Random problems, and exact ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..dtypes import DTYPES
from ..problem import GemmProblem, scale_shape
from ..quant.qtensor import QTensor

E4M3 = DTYPES["float8_e4m3fn"]


@dataclass(frozen=True, eq=False)
class Case:
    """A problem and operands for it."""

    problem: GemmProblem
    a: QTensor
    b: QTensor


def random_extent(rng: np.random.Generator, largest: int) -> int:
    """An extent from 0 to `largest`: often small, odd, or one beside a multiple of 64."""
    kind = rng.integers(4)
    if kind == 0:
        return int(rng.integers(0, min(largest, 40) + 1))
    if kind == 1:
        near = 64 * int(rng.integers(0, largest // 64 + 1)) + int(rng.integers(-1, 2))
        return min(max(near, 0), largest)
    return int(np.exp(rng.uniform(0.0, np.log(largest + 1)))) if kind == 2 else int(rng.integers(largest + 1))


def random_problem(rng: np.random.Generator, largest: int = 4096) -> Case:
    """A legal 1x128 by 128x128 problem: any extents up to `largest`, any finite codes, either output.

    Codes are random bytes, so all of e4m3 but NaN comes up. Scales spread over 2^-20 to 2^4.
    """
    m, n, k = (random_extent(rng, largest) for _ in range(3))
    out = "bfloat16" if rng.integers(2) else "float32"
    return _case(rng, (m, n, k), out, finite_codes, random_scales)


def exact_problem(rng: np.random.Generator, m: int, n: int, k: int, out_dtype: str = "bfloat16") -> Case:
    """A problem in the exact zone: every right implementation gives the same bits.

    Codes are the integers -4 to 4, so a block of K sums to at most 2048 in magnitude; scales are
    0.5, 1 or 2 and differ from block to block, so that one taken from the wrong place shows. Up to
    K = 65536 every sum is exact in float32, in any order of the blocks.
    """
    return _case(rng, (m, n, k), out_dtype, small_integers, power_of_two_scales)


def finite_codes(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Random e4m3 codes without NaN."""
    codes = rng.integers(0, 256, shape, dtype=np.uint8)
    codes[(codes & 0x7F) == E4M3.nan_code] = 0
    return codes.view(E4M3.numpy)


def small_integers(rng: np.random.Generator, shape: tuple[int, ...], largest: int = 4) -> Any:
    """Random integers from -largest to largest, as e4m3."""
    return rng.integers(-largest, largest + 1, shape).astype(np.float32).astype(E4M3.numpy)


def random_scales(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Random positive float32 scales, evenly over the binades from 2^-20 to 2^4."""
    return np.exp2(rng.uniform(-20.0, 4.0, shape)).astype(np.float32)


def power_of_two_scales(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Random float32 scales of 0.5, 1 and 2."""
    return np.exp2(rng.integers(-1, 2, shape)).astype(np.float32)


def _case(rng: np.random.Generator, extents: tuple[int, int, int], out: str, codes: Any, scales: Any) -> Case:
    problem = GemmProblem(*extents, d_dtype=DTYPES[out])
    operands = []
    for rows, granularity in ((problem.m, (1, 128)), (problem.n, (128, 128))):
        shape = (rows, problem.k)
        scale = scales(rng, scale_shape(shape, granularity))
        operands.append(QTensor(codes(rng, shape), scale, E4M3, granularity))
    return Case(problem, *operands)
