# %% [markdown]
# # 04 TMA: one thread copies a box
#
# **Question: 256 threads that copy a tile compute 256 addresses, check 256 bounds and hold the data in registers on its way. Can one instruction do it?**
#
# On Hopper a *tensor map* describes a matrix once: address, extents, strides, the box that one copy moves, the swizzle. Then a single thread says "the box at
# column x, row y, to this shared address, and tell that barrier". The unit computes addresses, fills with zeros what lies outside the matrix,
# swizzles, and adds the bytes to the barrier.

# %%
import numpy as np
from numba import cuda

import dgnumba
from dgnumba import emu, u32
from dgnumba.errors import DGNumbaError, EmulationError
from dgnumba.ptx import barrier, mbarrier, memory, tma
from dgnumba.testing import array_module, to_numpy

xp = array_module()

# %% [markdown]
# ## A box, also over the edge
#
# The matrix is 40 x 20 (float32); the box is 16 columns x 32 rows. The box at (16, 32) hangs over both edges. Note the order: coordinates and
# boxes are *innermost first*, (column, row).

# %%
BOX = 16 * 32 * 4


@cuda.jit
def fetch(tmap, out, x, y):
    smem = memory.shared_address(cuda.shared.array(0, np.uint8))
    full = smem + BOX
    lane = u32(cuda.threadIdx.x)
    if lane == 0:
        mbarrier.init(full, 1)
        barrier.fence_mbarrier_init()
        mbarrier.arrive_expect_tx(full, BOX)  # all bytes of the box, also those outside the matrix
        tma.load_2d(smem, tmap, full, u32(x), u32(y))
    cuda.syncthreads()
    mbarrier.wait(full, 0)
    for column in range(16):
        out[lane, column] = memory.load_shared_f32(smem + lane * 64 + column * 4)


matrix = xp.arange(40 * 20, dtype=xp.float32).reshape(40, 20) + 1
tmap = dgnumba.tensor_map(matrix, box=(16, 32))
for x, y in ((0, 0), (16, 32)):
    out = xp.full((32, 16), -1, xp.float32)
    dgnumba.launch(fetch, 1, 32, (tmap, out, x, y), smem=BOX + 8)
    seen = to_numpy(out)
    print(
        f"box at column {x}, row {y}: {np.count_nonzero(seen)} elements of the matrix, {np.count_nonzero(seen == 0)} zeros; corner\n{seen[:2, :5]}"
    )

# %% [markdown]
# ## Rules, and how they are told
#
# What can be checked when the map is made is refused there, with what was expected and what came. What depends on the coordinates is found when the kernel
# runs: on the GPU as an "illegal instruction", in the emulator in words.

# %%
for name, make in {
    "a box row of 12 bytes": lambda: dgnumba.tensor_map(matrix, box=(3, 32)),
    "rows of the matrix 4 bytes off": lambda: dgnumba.tensor_map(matrix[:, :19].copy(), box=(16, 32)),
    "a box row longer than its swizzle": lambda: dgnumba.tensor_map(matrix, box=(16, 32), swizzle=32),
}.items():
    try:
        make()
    except DGNumbaError as error:
        print(f"{name}: {error}")

host = to_numpy(matrix)
for name, x, smem in (("an odd column", 1, BOX + 8), ("too little shared memory", 0, BOX - 64)):
    try:
        emu.run(fetch, 1, 32, (dgnumba.tensor_map(host, box=(16, 32)), np.zeros((32, 16), np.float32), x, 0), smem=smem)
        print(f"{name}: nothing to report")
    except EmulationError as error:
        print(f"{name}: {str(error).splitlines()[0]}")

# %% [markdown]
# ## The way back
#
# A store goes the same way, but no barrier counts it: the thread that issued it commits a *group* and waits for it. And a trap: what threads wrote to shared
# memory by ordinary stores is seen by the TMA unit only after a *proxy fence* by every writer, and a barrier. Here it is; then the same without the fence.


# %%
def doubler(with_fence):
    @cuda.jit
    def kernel(source, target):
        smem = memory.shared_address(cuda.shared.array(0, np.uint8))
        full = smem + BOX
        lane = u32(cuda.threadIdx.x)
        if lane == 0:
            mbarrier.init(full, 1)
            barrier.fence_mbarrier_init()
            mbarrier.arrive_expect_tx(full, BOX)
            tma.load_2d(smem, source, full, 0, 0)
        cuda.syncthreads()
        mbarrier.wait(full, 0)
        for column in range(16):
            at = smem + lane * 64 + column * 4
            memory.store_shared_f32(at, memory.load_shared_f32(at) * np.float32(2))
        if with_fence:
            barrier.fence_proxy_async()
        cuda.syncthreads()
        if lane == 0:
            tma.store_2d(target, smem, 0, 0)
            tma.commit()
            tma.wait(0)

    return kernel


target = xp.zeros((40, 20), xp.float32)
dgnumba.launch(doubler(True), 1, 32, (tmap, dgnumba.tensor_map(target, box=(16, 32))), smem=BOX + 8)
print(
    "doubled:",
    np.array_equal(to_numpy(target)[:32, :16], 2 * host[:32, :16]),
    "| outside the box untouched:",
    not to_numpy(target)[32:].any(),
)
try:
    maps = [dgnumba.tensor_map(x, box=(16, 32)) for x in (host, np.zeros((40, 20), np.float32))]
    emu.run(doubler(False), 1, 32, tuple(maps), smem=BOX + 8)
except EmulationError as error:
    print("without the fence:", str(error).splitlines()[0])

# %% [markdown]
# ## Exercise
#
# `row_max` is to give the largest element of each row of a matrix of any width. It walks over boxes of 16 columns; the last may hang over the edge,
# where the unit fills in zeros... which is wrong for a row of negative numbers. Complete `keeps(x, column, width)`: whether element `column` of the box
# at `x` counts. (It is called in the kernel: plain arithmetic and comparisons only.)


# %%
def keeps(x, column, width):
    return True


# %%
def row_max_kernel(keeps):
    @cuda.jit
    def kernel(tmap, out, width):
        smem = memory.shared_address(cuda.shared.array(0, np.uint8))
        full = smem + BOX
        lane = u32(cuda.threadIdx.x)
        if lane == 0:
            mbarrier.init(full, 1)
            barrier.fence_mbarrier_init()
        cuda.syncthreads()
        best = np.float32(-np.inf)
        x, parity = u32(0), u32(0)
        while x < u32(width):
            if lane == 0:
                mbarrier.arrive_expect_tx(full, BOX)
                tma.load_2d(smem, tmap, full, x, 0)
            mbarrier.wait(full, parity)
            for column in range(16):
                if keeps(x, u32(column), u32(width)):
                    best = max(best, memory.load_shared_f32(smem + lane * 64 + column * 4))
            cuda.syncthreads()
            x, parity = x + 16, parity ^ 1
        out[lane] = best

    return kernel


def check():
    """Whether the maxima are right, for widths that fill the boxes and widths that do not, of negative numbers too."""
    draw = np.random.default_rng(3)
    for width in (16, 20, 44, 4):
        numbers = -np.abs(draw.standard_normal((32, width)).astype(np.float32)) - 1
        out = np.zeros(32, np.float32)
        try:
            emu.run(row_max_kernel(keeps), 1, 32, (dgnumba.tensor_map(numbers, box=(16, 32)), out, width), smem=BOX + 8, policy="late")
        except (EmulationError, TypeError, ValueError) as error:
            print(f"not yet: {error}")
            return False
        if not np.array_equal(out, numbers.max(axis=1)):
            row = int(np.flatnonzero(out != numbers.max(axis=1))[0])
            print(f"not yet: {width} columns: expected {numbers.max(axis=1)[row]:.3f} for row {row}, got {out[row]:.3f}")
            return False
    print("right: the zeros outside count for nothing")
    return True


check()
