# %% [markdown]
# # 10 Your own kernel
#
# **Question: how do you write a kernel that nobody has written yet, with an instruction that nobody has wrapped yet, and trust it before it meets a GPU?**
#
# The task: a matrix of 8-bit integers times a vector of 8-bit integers, exactly, with `dp4a` (four multiply-adds in one instruction) and a sum over the warp in one `redux.sync`.
# Neither is in `dgnumba.ptx`. You declare them, write the kernel, have it checked, measure its accesses, and improve it; at the end it is your turn.

# %%
import numpy as np
from numba import cuda

import dgnumba
from dgnumba import emu, u32
from dgnumba.ptx import op, thread
from dgnumba.testing import array_module, to_numpy

xp = array_module()

# %% [markdown]
# ## An instruction is one function
#
# The decorator is the PTX, with a hole for each operand. The body is what it *means*, and what the emulator runs. The docstring is the contract: for whom, what, and from which source.


# %%
def signed_bytes(word):
    """The four bytes of a word as numbers from -128 to 127."""
    return np.array([int(word)], np.uint32).view(np.int8).astype(np.int64)


@op("dp4a.s32.s32 {out}, {a}, {b}, {c};", pure=True)
def dp4a(a: u32, b: u32, c: u32) -> u32:
    """dp4a.s32.s32 - c plus the dot product of four signed bytes, wrapping at 32 bits.

    PTX:       ISA 9.0, "dp4a"; sm_61+
    Scope:     thread
    Args:      a, b  u32, each four signed bytes
               c     u32
    Returns:   u32
    Emulates:  exactly
    """
    return u32((int(c) + int(signed_bytes(a) @ signed_bytes(b))) & 0xFFFFFFFF)


# %% [markdown]
# `redux.sync` is executed by a *warp*: with `scope="warp"` the emulator brings the lanes together, calls the body once with a list of every argument, and hands each lane its own item of what it
# returns. A warp that comes incomplete is an error, not a wrong sum.


# %%
@op("redux.sync.add.s32 {out}, {value}, 0xffffffff;", scope="warp")
def warp_sum(value: u32) -> u32:
    """redux.sync.add.s32 - the sum of `value` over the warp, in every lane, wrapping at 32 bits.

    PTX:       ISA 9.0, "redux.sync"; sm_80+
    Scope:     warp
    Args:      value  u32
    Returns:   u32
    Lanes:     every lane gets the sum
    Emulates:  exactly
    """
    total = u32(sum(map(int, value)) & 0xFFFFFFFF)
    return [total] * len(value)


# %% [markdown]
# ## First try
#
# A warp for each row; lane `l` takes the words `l * (words / 32) ...`: a contiguous piece of the row for each lane.

# %%
WARPS = 4


@cuda.jit
def by_pieces(w, x, out):
    lane, row = thread.lane_idx(), u32(cuda.blockIdx.x) * WARPS + u32(cuda.threadIdx.x) // 32
    words = u32(x.shape[0]) // 32
    total = u32(0)
    i = u32(0)
    while i < words:
        at = lane * words + i
        total = dp4a(u32(w[row, at]), u32(x[at]), total)
        i += 1
    total = warp_sum(total)
    if lane == 0:
        out[row] = total


rng = np.random.default_rng(0)
ROWS, COLUMNS = 16, 1024
weight, vector = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((ROWS, COLUMNS), (COLUMNS,)))
want = weight.astype(np.int64) @ vector.astype(np.int64)


def launched(kernel):
    """Whether every sum is right, where the arrays are."""
    out = xp.zeros(ROWS, xp.uint32)
    dgnumba.launch(kernel, ROWS // WARPS, 32 * WARPS, (xp.asarray(weight.view(np.uint32)), xp.asarray(vector.view(np.uint32)), out))
    return np.array_equal(to_numpy(out).view(np.int32), want)


print("right:", launched(by_pieces))

# %% [markdown]
# ## Right is not enough
#
# `emu.check` looks for what does not show in the result, and counts what the memory system has to do:


# %%
def aligned(array):
    """The array at a multiple of 128 bytes, as a GPU's allocator gives it."""
    room = np.empty(array.nbytes + 128, np.uint8)
    first = -room.ctypes.data % 128
    room[first : first + array.nbytes] = array.view(np.uint8).ravel()
    return room[first : first + array.nbytes].view(np.uint32).reshape(*array.shape[:-1], -1)


def examine(kernel):
    """The report."""
    return emu.check(kernel, ROWS // WARPS, 32 * WARPS, (aligned(weight), aligned(vector), np.zeros(ROWS, np.uint32)))


report = examine(by_pieces)
print("clean:", report.is_clean)
for access in report.global_memory:
    print(f"{access.excess:4.1f} times the sectors that its bytes need: {access.source.strip()}")

# %% [markdown]
# Neighbouring lanes read 32 bytes apart, so each word costs a sector of 32 bytes, of which 4 are used: eight times the traffic. The cure is to let neighbours take neighbours: lane `l` takes words
# `l, l + 32, l + 64, ...`.


# %%
@cuda.jit
def interleaved(w, x, out):
    lane, row = thread.lane_idx(), u32(cuda.blockIdx.x) * WARPS + u32(cuda.threadIdx.x) // 32
    total = u32(0)
    at = lane
    while at < u32(x.shape[0]):
        total = dp4a(u32(w[row, at]), u32(x[at]), total)
        at += 32
    total = warp_sum(total)
    if lane == 0:
        out[row] = total


print("right:", launched(interleaved))
for access in examine(interleaved).global_memory:
    print(f"{access.excess:4.1f} times the sectors that its bytes need: {access.source.strip()}")

# %% [markdown]
# ## What a mistake would look like
#
# A collective inside a branch that not all lanes take: a GPU hangs, or gives anything.


# %%
@cuda.jit
def diverged(w, x, out):
    lane = thread.lane_idx()
    total = dp4a(u32(w[0, lane]), u32(x[lane]), u32(0))
    if lane < 16:
        total = warp_sum(total)
    out[lane] = total


for finding in emu.check(diverged, 1, 32, (aligned(weight), aligned(vector), np.zeros(32, np.uint32))).errors[:1]:
    print(finding)

# %% [markdown]
# ## In a test
#
# With the package installed, pytest has a fixture that is all of this in a line: `emu_check(kernel, grid, block, args, sectors=1.5)` fails on any error and on a place that touches more than 1.5 times the
# sectors it needs. On a machine with a GPU, compare the device with the body on random bits as well: that is how each operation of `dgnumba.ptx` is held to its emulation.
#
# ## Exercise
#
# Declare `bfe.u32`, the bit-field extract: bits `position` to `position + length - 1` of `a`, moved down to bit 0. Complete the body. The PTX manual says: position and length are taken from
# the low 8 bits of their operands; bits beyond bit 31 are 0; a length of 0 gives 0. The usual case is easy; `check()` asks for the unusual ones too.


# %%
@op("bfe.u32 {out}, {a}, {position}, {length};", pure=True)
def bfe(a: u32, position: u32, length: u32) -> u32:
    """bfe.u32 - a bit field of `a`, moved down.

    PTX:       ISA 9.0, "bfe"; sm_20+
    Scope:     thread
    Args:      a         u32
               position  u32, of the lowest bit
               length    u32, in bits
    Returns:   u32
    Emulates:  exactly
    """
    return (a >> position) & ((u32(1) << length) - 1)


# %%
@cuda.jit
def extract(a, position, length, out):
    i = cuda.grid(1)
    out[i] = bfe(u32(a[i]), u32(position[i]), u32(length[i]))


def check():
    """Whether the body of `bfe` is what the instruction does, inside and outside of the usual ranges."""
    draw = np.random.default_rng(4)
    a = draw.integers(0, 2**32, 128, dtype=np.uint32)
    position, length = draw.integers(0, 40, 128, dtype=np.uint32), draw.integers(0, 40, 128, dtype=np.uint32)
    position[::16] += 256  # the low 8 bits count
    length[5::16] += 512
    bits = [[(int(x) >> i) & 1 if i < 32 else 0 for i in range(300)] for x in a]
    want = [
        sum(b << i for i, b in enumerate(row[p & 255 : (p & 255) + (n & 255)]))
        for row, p, n in zip(bits, map(int, position), map(int, length))
    ]
    out = np.zeros(128, np.uint32)
    emu.run(extract, 1, 128, (a, position, length, out))
    for i in range(128):
        if int(out[i]) != want[i] & 0xFFFFFFFF:
            print(f"not yet: bfe({int(a[i]):#x}, {int(position[i])}, {int(length[i])}): expected {want[i]:#x}, got {int(out[i]):#x}")
            return False
    print("right: your instruction means what the hardware does")
    return True


check()
