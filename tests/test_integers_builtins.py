"""What Numba's own functions make of a u32 or u64: the same compiled and in the emulator. `test_integers.py` holds the operators."""

import itertools
import re

import numpy as np
import pytest

from dgnumba import emu
from dgnumba.emu.arrays import GlobalArray
from dgnumba.emu.rebind import Rebinder
from dgnumba.emu.source import Sites
from dgnumba.errors import CompileError
from dgnumba.integers import ADVICE, u32, u64

pytest.importorskip("numba_cuda")  # the compiled side

import on_cpu  # noqa: E402
from numba import cuda  # noqa: E402

from dgnumba import _numba  # noqa: E402
from dgnumba.launching import launch  # noqa: E402

EDGES = [0, 1, 2, 7, 8, 31, 32, 255, 256, 300, 2**16, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1, 2**32, 2**33 + 5, 2**63, 2**64 - 1]
TABLE_OF_8 = u32(5)


def indices(out, x, y):
    """Elements of an array: read, written, changed; by an index that is computed, mixed, or a constant from outside."""
    out[x % 4] = u64(y)
    out[4 + x % 4] = out[x % 4] + 1
    out[u32(8)] = out[y % 8]
    out[9] += x
    out[10 + (x & 1)] = y
    out[TABLE_OF_8 + 8] = out[TABLE_OF_8]


def cells(out, x, y):
    """Elements of narrower types, and of floats; two indices; a slice."""
    octets = cuda.local.array((2, 3), np.uint8)
    signed = cuda.local.array(4, np.int16)
    floats = cuda.local.array(4, np.float32)
    doubles = cuda.local.array(2, np.float64)
    octets[x % 2, y % 3] = x
    out[0] = octets[x % 2, y % 3]
    octets[x % 2, 1] = y
    out[1] = octets[x % 2, u64(1)]
    signed[y % 4] = x
    out[2] = signed[y % 4]
    floats[x % 4] = x
    out[3] = int(floats[x % 4] * np.float32(2.0**-10))
    doubles[1] = y
    out[4] = int(doubles[1] * 2.0**-10)
    for i in range(4):
        signed[i] = i
    out[5] = signed[x % 2 : 4][1]
    out[6] = len(signed[: x % 5])
    signed[1:3] = y
    out[7] = signed[1]
    floats[:] = y
    out[8] = int(floats[3] * np.float32(2.0**-10))


def loops(out, x, y):
    low, high = x & 7, y & 31
    down, up, steps = 0, 0, 0
    for i in range(low, high):
        up += i * 2 - 5
    for i in range(high, low, -1):
        down += i - 40
    for i in range(0, high, low + 1):
        steps += i
    for i in range(low):
        out[i] = i - 3
    out[8], out[9], out[10] = up, down, steps


def bits(out, x, y):
    out[0] = u64(~cuda.popc(x))
    out[1] = u64(~cuda.clz(x))
    out[2] = u64(~(cuda.popc(x) - cuda.popc(y)))
    out[3] = u64(~cuda.selp(x > y, x, y))
    out[4] = u64(~cuda.selp(x > 7, x, 3))
    out[5] = u64(~(cuda.selp(y == 1, -1, x) + 1))
    out[6] = cuda.selp(x, 5, 6)
    out[7] = u64(~cuda.selp(x != y, u64(x), y))
    out[8] = cuda.popc(255) + cuda.clz(1) + cuda.selp(x > y, 1, 2)


CASES = [(f, n, kind) for f, n in ((indices, 14), (cells, 9), (loops, 11), (bits, 9)) for kind in (u32, u64)]
IDS = [f"{f.__name__}-{kind.__name__}" for f, _, kind in CASES]


@pytest.mark.parametrize("function, count, kind", CASES, ids=IDS)
def test_compiled_equals_interpreted(function, count, kind, rng):
    run = on_cpu.compiled(function, kind, kind)
    in_the_emulator = Rebinder(Sites()).function(function)
    pairs = list(itertools.product(EDGES, EDGES)) + rng.integers(0, 2**64, (50, 2), np.uint64).tolist()
    for x, y in pairs:
        compiled, plain = np.zeros(count, np.uint64), np.zeros(count, np.uint64)
        run(compiled, kind(x), kind(y))
        with np.errstate(all="raise"):
            in_the_emulator(GlobalArray(plain, "out"), kind(x), kind(y))
        assert plain.tolist() == compiled.tolist(), f"{kind(x)!r}, {kind(y)!r}"


def test_selp_refuses_a_float_beside_u32():
    def kernel(out, x):
        out[0] = cuda.selp(x > 3, x, 2.5)

    with pytest.raises(CompileError, match=re.escape(ADVICE)):
        _numba.compile_ptx(kernel, (np.zeros(1), u32))
    with pytest.raises(TypeError, match="expected an integer, got float"):
        emu.run(kernel, 1, 1, (np.zeros(1), u32(4)))


# What needs a warp, or PTX: its meaning against the GPU, and on every machine that it compiles to what it should


def warp(out, x, y):
    lane = u32(cuda.laneid)
    mine = x + lane * 3
    out[lane, 0] = cuda.shfl_sync(u32(0xFFFFFFFF), mine, lane ^ 5) - 1
    out[lane, 1] = cuda.shfl_up_sync(0xFFFFFFFF, mine, u32(2)) - 1
    out[lane, 2] = cuda.shfl_down_sync(0xFFFFFFFF, mine, lane & 3) - 1
    out[lane, 3] = cuda.shfl_xor_sync(0xFFFFFFFF, mine, u32(16)) - 1
    out[lane, 4] = cuda.shfl_sync(0xFFFFFFFF, np.float32(lane), u32(3)) * np.float32(4)
    out[lane, 5] = u32(cuda.ballot_sync(u32(0xFFFFFFFF), mine & 1))
    out[lane, 6] = cuda.any_sync(u32(0xFFFFFFFF), lane >> 5) + 2 * cuda.all_sync(0xFFFFFFFF, lane + 1)
    out[lane, 7] = u32(cuda.match_any_sync(u32(0xFFFFFFFF), lane // 8))
    out[lane, 8] = cuda.ffs(mine) - 1
    out[lane, 9] = cuda.brev(mine) + 1
    out[lane, 10] = cuda.popc(mine) - 33
    out[lane, 11] = cuda.clz(mine) - 33
    cuda.syncwarp(u32(0xFFFFFFFF))
    cuda.nanosleep(u32(20))


WARP_COLUMNS = 12


def warp_of_u64(out, x, y):
    lane = u32(cuda.laneid)
    mine = x + u64(lane) * 0x100000003
    out[lane, 0] = cuda.shfl_sync(u64(0xFFFFFFFF), mine, u64(lane) ^ 5) - 1
    out[lane, 1] = cuda.shfl_xor_sync(0xFFFFFFFF, mine, 1) - 1
    out[lane, 2] = u32(cuda.ballot_sync(0xFFFFFFFF, mine >> 33))
    out[lane, 3] = u32(cuda.match_any_sync(0xFFFFFFFF, mine >> 34))
    out[lane, 4] = cuda.ffs(mine) - 1
    out[lane, 5] = cuda.brev(mine) + 1
    out[lane, 6] = cuda.popc(mine) - 65
    out[lane, 7] = cuda.clz(mine) - 65


def block(out, x, y):
    lane = u32(cuda.threadIdx.x)
    out[lane, 0] = cuda.syncthreads_count(lane & 4)
    out[lane, 1] = cuda.syncthreads_and(lane + 1)
    out[lane, 2] = cuda.syncthreads_or(lane >> 6)


def atomics(out, x, y):
    lane = u32(cuda.threadIdx.x)
    cuda.atomic.add(out, (u32(0), lane & 1), lane)
    cuda.atomic.max(out, (1, lane & 1), x)
    cuda.atomic.min(out, (2, 0), y)
    cuda.atomic.or_(out, (3, 0), u32(1) << lane)
    cuda.atomic.exch(out, (4, 0), x)
    cuda.atomic.cas(out, (5, 0), u32(0), y)


def tuples(out, x, y):
    lane = u32(cuda.threadIdx.x)
    values = (x, y, x ^ 7, y ^ 9)
    out[lane, 0] = values[lane % 4] - 1
    out[lane, 1] = (10, 20, 30)[lane % 3]
    out[lane, 2] = values[u32(2)]


def printed(out, x, y):
    print(x, (y, 1))


PTX = {
    warp: {"shfl.sync": 5, "popc.b32": 1, "clz.b32": 1, "brev.b32": 1, "vote.sync": 3, "match.any.sync.b32": 1},
    warp_of_u64: {"shfl.sync": 4, "popc.b64": 1, "clz.b64": 1, "brev.b64": 1, "vote.sync": 1, "match.any.sync.b64": 1},
    block: {"bar.red|barrier.red": 3},
    atomics: {r"atom\.": 6},
    tuples: {"rem.u|and.b|mul": 1},
    printed: {"vprintf": 1},
}


@pytest.mark.parametrize("function", PTX)
def test_functions_of_cuda_compile(function):
    kind = u64 if function is warp_of_u64 else u32
    ptx, _ = _numba.compile_ptx(function, (np.zeros((32, WARP_COLUMNS), np.int64), kind, kind), threads=32)
    body = ptx[ptx.index(".entry") :]
    found = {what: len(re.findall(what, body)) for what in PTX[function]}
    assert all(found[what] >= count for what, count in PTX[function].items()), found
    assert re.findall(r"\b(?:neg|popc|clz|abs)\.\w*(?:8|16)\b.*", body) == []  # nothing was cut to an int8 on the way


def emulated(function, args, dtype=np.int64):
    out = np.zeros((32, WARP_COLUMNS), dtype)
    emu.run(function, 1, 32, (out, *args))
    return out


def test_warp_functions_in_the_emulator():
    lane = np.arange(32)
    mine = (2**32 - 40 + 3 * lane) % 2**32
    out = emulated(warp, (u32(-40), u32(0)))
    source = {0: lane ^ 5, 1: np.where(lane < 2, lane, lane - 2), 2: np.where(lane + lane % 4 > 31, lane, lane + lane % 4), 3: lane ^ 16}
    for column, of in source.items():
        assert out[:, column].tolist() == ((mine[of] - 1) % 2**32).tolist()
    assert out[:, 4].tolist() == [12] * 32
    assert out[:, 5].tolist() == [sum(1 << i for i in range(32) if mine[i] & 1)] * 32
    assert out[:, 6].tolist() == [2] * 32
    assert out[:, 7].tolist() == [0xFF << i // 8 * 8 for i in range(32)]
    plain = [int(v) for v in mine]
    assert out[:, 8].tolist() == [((v & -v).bit_length() - 1) % 2**32 for v in plain]
    assert out[:, 9].tolist() == [(int(f"{v:032b}"[::-1], 2) + 1) % 2**32 for v in plain]
    assert out[:, 10].tolist() == [(v.bit_count() - 33) % 2**32 for v in plain]
    assert out[:, 11].tolist() == [(32 - v.bit_length() - 33) % 2**32 for v in plain]


def test_tuples_in_the_emulator():
    out = emulated(tuples, (u32(0), u32(300)))
    assert out[:, 0].tolist() == [2**32 - 1, 299, 6, (300 ^ 9) - 1] * 8
    assert out[:6, 1].tolist() == [10, 20, 30] * 2
    assert out[:, 2].tolist() == [7] * 32


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64])
def test_an_atomic_takes_its_operand_as_an_element(dtype):
    """As the GPU does: a u32 above 2**31 is a negative number to an int32."""
    out = emulated(atomics, (u32(2**32 - 2), u32(2**32 - 7)), dtype)
    element = lambda v: int(np.uint32(v).astype(dtype))  # noqa: E731
    assert out[0, :2].tolist() == [sum(range(0, 32, 2)), sum(range(1, 32, 2))]
    assert out[1, :2].tolist() == [max(0, element(2**32 - 2))] * 2
    assert int(out[2, 0]) == min(0, element(2**32 - 7))
    assert int(out[3, 0]) == element(2**32 - 1)
    assert int(out[4, 0]) == element(2**32 - 2)
    assert int(out[5, 0]) == element(2**32 - 7)


@pytest.mark.gpu
@pytest.mark.parametrize("function", [warp, warp_of_u64, block, atomics, tuples])
def test_the_gpu_agrees(function):
    import cupy

    kind = u64 if function is warp_of_u64 else u32
    for x, y in ((-40, 7), (0, 2**32 - 7), (2**31 - 20, 1), (2**63 - 5, 2)):
        for dtype in (np.int64, np.int32, np.uint32) if function is atomics else (np.int64,):
            out = cupy.zeros((32, WARP_COLUMNS), dtype)
            launch(cuda.jit(function), 1, 32, (out, kind(x), kind(y)))
            assert emulated(function, (kind(x), kind(y)), dtype).tolist() == out.get().tolist(), (x, y, dtype)
