"""Random legal problems for the GPU, their float64 reference and bound computed there, and plans compiled beforehand by all cores."""

from __future__ import annotations

import concurrent.futures
import itertools
import multiprocessing
import os

import numpy as np
from cases import H200, KERNEL_OF

from dgnumba import launching
from dgnumba.dtypes import DTYPES
from dgnumba.kernels import KERNELS
from dgnumba.problem import GemmProblem
from dgnumba.quant.reference import TAU_WGMMA
from dgnumba.testing import random_extent

E4M3, BF16, F32 = DTYPES["float8_e4m3fn"], DTYPES["bfloat16"], DTYPES["float32"]
U = F32.unit_roundoff
LARGEST = 4096


def all_plans(device=H200):
    """Every plan that any kernel has for problems up to `LARGEST`, in a fixed order."""
    out = {}
    for m in (8, 16, 24, 32, 48, 64, 96, 128, LARGEST):
        for d_dtype in ("bfloat16", "float32"):
            problem = GemmProblem(m, LARGEST, LARGEST, d_dtype=d_dtype)
            for kernel in KERNELS:
                if kernel.supports(problem, device) is None:
                    out.update(dict.fromkeys(_plans_of(kernel, problem, device)))
    # of very few rows N and K decide the plan
    for n, k, d_dtype in itertools.product((64, 2112, LARGEST), (128, 512, 2048, LARGEST), ("bfloat16", "float32")):
        for name in ("sm90_fp8_gemv_1d2d", "sm90_fp8_gemv_1d2d_rs"):
            out.update(dict.fromkeys(_plans_of(KERNEL_OF[name], GemmProblem(8, n, k, d_dtype=d_dtype), device)))
    out.update(dict.fromkeys(split_plans(device)))
    return list(out)


def split_plans(device=H200):
    """Every plan for up to 16 rows whose clusters share a tile's K, of shapes that between them have all numbers of warps and CTAs."""
    shapes = ((576, 7168), (2112, 7168), (1024, LARGEST), (512, 512), (2048, 2048), (256, 7168))
    out = {}
    for m, (n, k), d_dtype in itertools.product((8, 16), shapes, ("bfloat16", "float32")):
        found = _plans_of(KERNEL_OF["sm90_fp8_gemv_1d2d"], GemmProblem(m, n, k, d_dtype=d_dtype), device)
        out.update(dict.fromkeys(plan for plan in found if plan.cluster > 1))
    return list(out)


def _plans_of(kernel, problem, device):
    """Its candidates, and those that it has for who asks for them only."""
    return getattr(kernel, "buildable", kernel.candidates)(problem, device)


def _compile(plan, arch):
    """In a process of its own: compile a plan into the cache on disk."""
    built = KERNEL_OF[plan.kernel].build(plan)
    launching.compiled(plan, lambda: (built.kernel, built.argtypes), arch=arch, **built.bounds)


def warm(plans, arch="sm_90a"):
    """Fill the cache on disk, with all cores."""
    context = multiprocessing.get_context("spawn")  # the parent may hold a CUDA context
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        list(pool.map(_compile, plans, [arch] * len(plans), chunksize=2))


class RoundRobin:
    """Gives the plans in turn, each with a problem that it can take."""

    def __init__(self, plans):
        self.used = dict.fromkeys(plans, 0)

    def next_with(self, rng):
        """A plan, and a random problem of its output type; the extents are moved to what the plan takes."""
        chosen = min(self.used, key=self.used.__getitem__)
        kernel = KERNEL_OF[chosen.kernel]
        m, n, k = extents(rng)
        tries = [(m, n, k), (m % 65, n, k), (m, n // 8 * 8, k), (m, n, k // 128 * 128), (m % 65, n, max(k // 128, 32) * 128)]
        tries += [(1 + m % rows, n, max(k // blocks // 128, 1) * blocks * 128) for blocks in (1, 4) for rows in (16, 8)]
        for shape in tries:
            problem = GemmProblem(*shape, d_dtype=chosen.d_dtype)
            if kernel.supports(problem, H200) is None and kernel.refusal(chosen, problem) is None:
                if 0 in shape:  # nothing runs: the plan's turn is still to come
                    return None, problem
                self.used[chosen] += 1
                return chosen, problem
        raise AssertionError(f"no problem for {chosen.name}")


def extents(rng):
    """m, n, k from 0 to 4096, odd values and tails among them."""
    return tuple(random_extent(rng, LARGEST) for _ in range(3))


def operands(cupy, rng, m, n, k, kind):
    """`(a, sfa), (b, sfb)` on the GPU: `kind` "any" has all finite codes and scales of 2^-20 to 2^4, "exact" small integers and powers of two."""
    blocks = -(-k // 128)
    draw = cupy.random.default_rng(int(rng.integers(2**31)))
    out = []
    for rows, scale_rows in ((m, m), (n, -(-n // 128))):
        if kind == "any":
            codes = draw.integers(0, 256, (rows, k), dtype=cupy.uint8)
            codes[(codes & 0x7F) == 0x7F] = 0
            scale = cupy.exp2(draw.random((scale_rows, blocks), dtype=cupy.float32) * 24 - 20)
        else:
            table = cupy.asarray(np.arange(-4, 5).astype(np.float32).astype(E4M3.numpy).view(np.uint8))
            codes = table[draw.integers(0, 9, (rows, k), dtype=cupy.uint8)]
            scale = cupy.exp2(draw.integers(-1, 2, (scale_rows, blocks)).astype(cupy.float32))
        pitch = k + int(rng.choice([0, 0, 16, -k % 16, 7]))  # as it is, wider, padded for TMA, odd
        held = cupy.zeros((rows, pitch), cupy.uint8)
        held[:, :k] = codes
        out.append((held[:, :k], scale.astype(cupy.float32)))
    return out


def output(cupy, rng, m, n, d_dtype):
    """`(d, frame)`: an output filled with the sentinel, inside a frame of it that must stay."""
    dtype = cupy.float32 if d_dtype is F32 else cupy.uint16
    item = np.dtype(dtype).itemsize
    per = 16 // item
    width = n + int(rng.choice([0, -n % per, per, 1]))
    frame = cupy.full((m + 1, width), SENTINEL[item], dtype)
    return frame[:m, :n], frame


SENTINEL = {4: np.float32(-7), 2: np.uint16(0xC0E0)}  # -7


def reference(cupy, a, sfa, b, sfb):
    """The product, the sum of its terms' magnitudes, and that sum as the tensor core aligns them (`quant.reference.as_aligned`), float64."""
    values = cupy.asarray(E4M3.decode(np.arange(256)).astype(np.float64))
    k = a.shape[1]
    sfa_columns = cupy.repeat(sfa.astype(cupy.float64), 128, axis=1)[:, :k]
    sfb_rows = cupy.repeat(cupy.repeat(sfb.astype(cupy.float64), 128, axis=0)[: b.shape[0]], 128, axis=1)[:, :k]
    aligned = cupy.where(values == 0, 0, cupy.maximum(cupy.abs(values), E4M3.min_normal))
    tables = (values, cupy.abs(values), aligned)
    return tuple((table[a] * sfa_columns) @ (table[b] * sfb_rows).T for table in tables)


def bound(cupy, oracle, size, aligned, k, d_dtype):
    """`quant.reference.error_bound`, from what `reference` gives; for scales whose products do not overflow."""
    blocks = -(-k // 128)
    error = TAU_WGMMA * aligned + (blocks + 3) * U * size
    tiny = F32.min_subnormal / 2 * (blocks + 1 + k * E4M3.max**2) + d_dtype.min_subnormal / 2
    unit = 0.0 if d_dtype is F32 else d_dtype.unit_roundoff
    out = error + unit * (cupy.abs(oracle) + error) + tiny
    out[size + out >= min(d_dtype.max, F32.max)] = np.inf
    return out


def as_float64(cupy, d):
    """An output as float64, from float32 or the bits of bfloat16."""
    if d.dtype == cupy.float32:
        return d.astype(cupy.float64)
    return (d.astype(cupy.uint32) << 16).view(cupy.float32).astype(cupy.float64)


def bits_of(cupy, oracle, d_dtype):
    """The bits that an exact result has: float32 as uint32, or bfloat16 (nearest even) as uint16."""
    word = oracle.astype(cupy.float32).view(cupy.uint32)
    if d_dtype is F32:
        return word
    return ((word + 0x7FFF + ((word >> 16) & 1)) >> 16).astype(cupy.uint16)


def describe(cupy):
    """What ran this, for a result's record."""
    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
    versions = {name: __import__("importlib.metadata", fromlist=["version"]).version(name) for name in ("numba", "numba-cuda", "numpy")}
    return {
        "gpu": properties["name"].decode(),
        "driver": cupy.cuda.runtime.driverGetVersion(),
        "versions": {**versions, "cupy": cupy.__version__},
    }
