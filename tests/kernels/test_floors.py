"""The kernels that only read and write read all, write all, and compile to nothing else."""

import numpy as np
import pytest

from dgnumba import _numba, emu
from dgnumba.assemble import find_ptxas, ptxas
from dgnumba.integers import u32
from dgnumba.kernels import sm90_floors as floors
from dgnumba.layouts.descriptors import TensorMap

compiled = pytest.mark.skipif(not _numba.HAVE_NUMBA_CUDA or find_ptxas() is None, reason="needs numba-cuda and ptxas")
BYTES, BOX = floors.Ring(3, 64, nbytes=1024), floors.Ring(2, 64, blocks=2)


def read(kernel, data, ctas, threads, pieces, stores, each):
    """What the kernel writes where nothing was."""
    d = np.full((stores, 4), 0xFFFFFFFF, np.uint32)
    emu.run(kernel, ctas, threads, (data, d, u32(pieces), u32(stores), u32(each)))
    return d


@pytest.mark.parametrize("unroll", [1, 3])
def test_every_word_is_read_once(rng, unroll):
    data = rng.integers(0, 2**31, (1000, 4), dtype=np.uint32)
    d = read(floors.load_kernel(unroll), data, 2, 64, len(data), 128, 0)
    assert (d == d[:, :1]).all()
    assert np.bitwise_xor.reduce(d[:, 0]) == np.bitwise_xor.reduce(data, axis=None)


@pytest.mark.parametrize(("pieces", "stores", "each"), [(500, 300, 1), (500, 700, 0), (500, 2000, 2), (130, 5, 3)])
def test_every_piece_is_written(rng, pieces, stores, each):
    data = rng.integers(0, 2**31, (pieces, 4), dtype=np.uint32)
    assert (read(floors.load_kernel(2), data, 2, 64, pieces, stores, each) < 2**31).all()


@pytest.mark.parametrize("ring", [BYTES, BOX], ids=["bulk", "tma"])
def test_the_ring_reads_each_chunk_and_writes_every_piece(rng, ring, policy):
    n, k, ctas = 192, 512, 2
    data = rng.integers(0, 2**7, (n, k), dtype=np.uint8)
    across = k // (ring.blocks * 128) if ring.blocks else 1
    chunks = data.size // ring.chunk_bytes
    source = TensorMap("uint8", (128, n, k // 128), (k, 128), (128, 64, ring.blocks), 128, data) if ring.blocks else data
    each = 2
    d = np.full((chunks * each * ring.threads - 7, 4), 0xFFFFFFFF, np.uint32)
    args = source, d, u32(chunks), u32(across), u32(len(d)), u32(each)
    emu.run(floors.ring_kernel(ring), ctas, ring.threads, args, smem=ring.smem_bytes, policy=policy)
    assert (d == d[:, :1]).all()
    words = data.view(np.uint32)
    for cta in range(ctas):
        found = 0
        for chunk in range(cta, chunks, ctas):
            if ring.blocks:  # the first row of a swizzled box is as it lies
                row = words[chunk // across * 64, chunk % across * ring.blocks * 32 :]
            else:
                row = words.ravel()[chunk * ring.chunk_bytes // 4 :]
            found ^= int(row[5])
            assert d[chunk * each * ring.threads + 5, 0] == found


@compiled
@pytest.mark.parametrize("unroll", [4, 16])
def test_loads_compile_to_16_bytes_without_spill(unroll):
    args = np.zeros((1, 4), np.uint32), np.zeros((1, 4), np.uint32), u32(1), u32(1), u32(1)
    ptx, _ = _numba.compile_ptx(floors.load_kernel(unroll), tuple(_numba.argtype(a, i) for i, a in enumerate(args)), threads=512)
    cubin = ptxas(ptx)
    assert ptx.count("ld.global") == ptx.count("ld.global.v4.b32") == unroll
    assert (cubin.spill_stores, cubin.local_bytes, cubin.warnings) == (0, 0, ())
