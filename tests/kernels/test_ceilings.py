"""The kernels that measure the ceilings do the work that they are timed for, and compile to nothing else."""

import numpy as np
import pytest

from dgnumba import _numba, emu
from dgnumba.assemble import find_ptxas, ptxas
from dgnumba.dtypes import DTYPES
from dgnumba.integers import u32
from dgnumba.kernels import sm90_ceilings as ceilings
from dgnumba.layouts.lanes import wgmma_accumulator
from dgnumba.layouts.swizzle import swizzle

compiled = pytest.mark.skipif(not _numba.HAVE_NUMBA_CUDA or find_ptxas() is None, reason="needs numba-cuda and ptxas")


def test_the_tensor_kernel_multiplies_its_operands(rng):
    values = rng.integers(-2, 3, (384, 128)).astype(np.float32)
    operands = np.zeros(384 * 128, np.uint8)
    operands[swizzle(np.arange(operands.size), 128)] = DTYPES["float8_e4m3fn"].encode(values).view(np.uint8).ravel()
    out = np.zeros((1, ceilings.THREADS), np.float32)
    emu.run(ceilings.tensor_kernel(), 1, ceilings.THREADS, (operands.view(np.uint32), out, u32(1)), smem=ceilings.SMEM_BYTES)
    d = 2 * values[:128] @ values[128:].T  # eight steps of 32 pass twice over the 128 of K
    held = wgmma_accumulator(256)
    assert out[0].tolist() == [d[64 * w + held.row[t, 0], held.col[t, 0]] for w in range(2) for t in range(128)]
    assert ceilings.FLOPS_PER_ROUND == 2 * 2 * 128 * 256 * 128


def test_the_reading_kernel_reads_every_word_once(rng):
    ctas, rounds = 2, 3
    data = rng.integers(0, 2**32, ctas * ceilings.THREADS * rounds * ceilings.READ_BYTES // 4, dtype=np.uint32)
    out = np.zeros(ctas * ceilings.THREADS, np.uint32)
    emu.run(ceilings.read_kernel(), ctas, ceilings.THREADS, (data, out, u32(rounds)))
    assert np.bitwise_xor.reduce(out) == np.bitwise_xor.reduce(data)
    data[rng.integers(data.size)] ^= 1
    changed = np.zeros_like(out)
    emu.run(ceilings.read_kernel(), ctas, ceilings.THREADS, (data, changed, u32(rounds)))
    assert np.count_nonzero(changed != out) == 1


def assembled(kernel, *args):
    ptx, _ = _numba.compile_ptx(kernel, tuple(_numba.argtype(a, i) for i, a in enumerate(args)), threads=ceilings.THREADS)
    return ptx, ptxas(ptx)


@compiled
def test_the_tensor_kernel_compiles_to_products_without_loads():
    ptx, cubin = assembled(ceilings.tensor_kernel(), np.zeros(1, np.uint32), np.zeros((1, 1), np.float32), u32(1))
    assert ptx.count("wgmma.mma_async") == ceilings.PRODUCTS
    assert (cubin.spill_stores, cubin.local_bytes, cubin.warnings) == (0, 0, ())


@compiled
def test_the_reading_kernel_compiles_to_loads_of_16_bytes():
    ptx, cubin = assembled(ceilings.read_kernel(), np.zeros(1, np.uint32), np.zeros(1, np.uint32), u32(1))
    loads = ptx.count("ld.global.v4.b32")
    assert loads > 0 and loads % (ceilings.READ_BYTES // 16) == 0  # NVVM unrolls the rounds
    assert ptx.count("ld.global") == loads
    assert (cubin.spill_stores, cubin.local_bytes) == (0, 0)
