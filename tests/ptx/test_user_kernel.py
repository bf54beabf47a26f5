"""A kernel that a user wrote, with a helper of theirs and an operation of ours: compiled without a GPU, and emulated, from one source."""

import re
from typing import NamedTuple

import numpy as np
import pytest
from numba import cuda

from dgnumba import _numba, emu
from dgnumba.assemble import find_ptxas, ptxas
from dgnumba.errors import EmulationError
from dgnumba.integers import u32, u64
from dgnumba.launching import launch
from dgnumba.ptx import convert, f32, memory, op, thread

with_compiler = pytest.mark.skipif(not _numba.HAVE_NUMBA_CUDA or find_ptxas() is None, reason="needs numba-cuda and ptxas")

THREADS = 64
RING = 3


class Position(NamedTuple):
    stage: u32
    phase: u32


@cuda.jit(device=True)
def advance(position):
    stage = position.stage + 1
    phase = position.phase
    if stage == RING:
        stage = u32(0)
        phase ^= 1
    return Position(stage, phase)


@cuda.jit(device=True)
def halve(x, y):
    return convert.fma(np.float32(0.5), x, y)


@cuda.jit
def user_kernel(x, out, positions):
    """out[i] = bf16 pair of (x[i] / 2 + x[j]) for this thread and its mirror; positions: a walk round a ring."""
    i = cuda.threadIdx.x
    shared = cuda.shared.array(THREADS, np.float32)
    shared[i] = x[i]
    cuda.syncthreads()
    mirrored = shared[THREADS - 1 - i]
    out[i] = u64(convert.f32x2_to_bf16x2(halve(x[i], mirrored), mirrored))
    if i == 0:
        position = Position(u32(0), u32(0))
        for step in range(7):
            positions[step] = u64(position.stage * 10 + position.phase)
            position = advance(position)
    if thread.lane_idx() == 31:
        out[THREADS + i // 32] = u64(thread.lane_idx())


def expected(x):
    import ml_dtypes

    mirrored = x[::-1]
    low = (np.float32(0.5) * x.astype(np.float64) + mirrored).astype(np.float32)
    pair = np.stack([low, mirrored], axis=1).astype(ml_dtypes.bfloat16)
    return np.concatenate([np.ascontiguousarray(pair).view(np.uint32)[:, 0], [31, 31]])


def arguments(rng):
    return rng.standard_normal(THREADS).astype(np.float32), np.zeros(THREADS + 2, np.uint64), np.zeros(7, np.uint64)


def test_it_is_emulated(policy, rng):
    x, out, positions = arguments(rng)
    with np.errstate(all="raise"):
        emu.run(user_kernel, 1, THREADS, (x, out, positions), policy=policy)
    assert expected(x).tolist() == out.tolist()
    assert [0, 10, 20, 1, 11, 21, 0] == positions.tolist()


def test_launch_takes_numpy_arrays_to_the_emulator(rng):
    x, out, positions = arguments(rng)
    launch(user_kernel, 1, THREADS, (x, out, positions))
    assert expected(x).tolist() == out.tolist()


@with_compiler
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_it_compiles_without_a_gpu(arch, rng):
    ptx, entry = _numba.compile_ptx(user_kernel, arguments(rng), arch=arch, threads=THREADS)
    assert f".target {arch}" in ptx and "cvt.rn.bf16x2.f32" in ptx and "%laneid" in ptx
    body = re.sub(r"//.*", "", ptx[ptx.index(".entry") :])
    assert "call" not in body, "helpers are inlined"
    assert not re.search(r"\.f64", body)
    cubin = ptxas(ptx, arch)
    assert (cubin.entry, cubin.local_bytes, cubin.smem_bytes) == (entry, 0, 4 * THREADS)


@with_compiler
def test_the_compiler_leaves_no_stand_in_behind(rng):
    """The device that compiling offline asks for is there for that moment only."""
    from numba.cuda import dispatcher

    before = dispatcher.get_current_device
    _numba.compile_ptx(user_kernel, arguments(rng))
    assert dispatcher.get_current_device is before


# An operation that a user declares


@op("add.rn.f32 {out}, {x}, {y};", pure=True)
def plus(x: f32, y: f32) -> f32:
    """add.rn.f32 - x + y.

    PTX:       ISA 9.0, "add"
    Scope:     thread
    Args:      x, y  float32
    Returns:   float32
    Emulates:  exactly
    """
    return f32(x + y)


@cuda.jit
def with_plus(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = plus(x[i], np.float32(1))


def test_an_operation_of_the_users_own():
    x, out = np.arange(70, dtype=np.float32), np.zeros(70, np.float32)
    emu.run(with_plus, 3, 32, (x, out))
    assert (x + 1).tolist() == out.tolist()
    if _numba.HAVE_NUMBA_CUDA:
        assert "add.rn.f32" in _numba.compile_ptx(with_plus, (x, out), arch="sm_80")[0]


def test_an_operation_outside_a_kernel_says_so():
    with pytest.raises(EmulationError, match="only inside a kernel"):
        memory.store_shared_u32(u32(0), u32(1))


def test_pure_operations_can_be_called_anywhere():
    assert convert.fma(np.float32(2), np.float32(3), np.float32(4)) == 10
    assert convert.f32x2_to_bf16x2(np.float32(1), np.float32(2)) == 0x4000_3F80
    assert convert.f32x2_to_f16x2(np.float32(1e6), np.float32(-1)) == 0xBC00_7C00
