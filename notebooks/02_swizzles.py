# %% [markdown]
# # 02 Swizzles and bank conflicts
#
# **Question: why do fast kernels store row 3, chunk 2 of a tile at chunk 1 instead?**
#
# Shared memory has 32 banks of 4 bytes: byte address `a` is in bank `a / 4 % 32`. In one cycle each bank gives one word. Eight lanes that each fetch 16 bytes
# are served in one go if their eight chunks cover all 32 banks, and in eight goes if all chunks are in the same four. A tile whose rows are 128 bytes
# long is the worst case for whoever reads a *column* of it, which is what a matrix product does. The cure costs one XOR.

# %%
import matplotlib.pyplot as plt
import numpy as np
from numba import cuda

import dgnumba
from dgnumba import emu, u32
from dgnumba.layouts import swizzle
from dgnumba.ptx import barrier, mbarrier, memory, tma
from dgnumba.testing import array_module, to_numpy

xp = array_module()

# %% [markdown]
# ## The problem, in numbers
#
# Eight rows of 128 bytes, eight chunks of 16 bytes in each. How many goes does it take to read chunk `c` of all eight rows?


# %%
def ways(addresses):
    """Goes that shared memory needs for 16-byte reads at these addresses, eight of them at a time."""
    groups = np.asarray(addresses) // 16 % 8  # which four banks each chunk is in
    return int(np.bincount(groups, minlength=8).max())


rows = np.arange(8)
for chunk in (0, 3):
    plain = rows * 128 + chunk * 16
    swizzled = swizzle.swizzle(plain, 128)
    print(f"chunk {chunk} of rows 0-7: {ways(plain)} goes as they are, {ways(swizzled)} swizzled")

# %% [markdown]
# ## The pattern
#
# The 128-byte swizzle puts chunk `c` of row `r` at `c ^ (r % 8)`: the XOR only permutes the chunks *within* a row, so nothing grows, and every column of
# chunks meets every bank once. The colour is the chunk's column before swizzling.

# %%
fig, axes = plt.subplots(1, 4, figsize=(10, 2.8))
for axis, mode in zip(axes, (0, 32, 64, 128)):
    address = np.arange(16)[:, None] * 128 + np.arange(8) * 16
    where = swizzle.swizzle(address, mode)
    picture = np.zeros((16, 8), int)
    picture[where // 128, where % 128 // 16] = np.broadcast_to(np.arange(8), (16, 8))
    axis.imshow(picture, cmap="turbo", aspect="auto")
    for row, column in np.ndindex(8, 8):
        axis.text(column, row, picture[row, column], ha="center", va="center", fontsize=6, color="white")
    axis.set(title=f"swizzle {mode}", xlabel="chunk in memory", xticks=range(8), yticks=[])
axes[0].set_ylabel("128 bytes of memory")
fig.tight_layout()

# %% [markdown]
# All three are one rule: bits 4 and up of the byte address are XORed with bits 7 and up. With 64 bytes to a row, a line of memory holds two rows, so two
# neighbours have the same pattern; with 32 bytes, four.
#
# ## Who swizzles
#
# Nobody in the kernel does. The TMA unit writes the tile swizzled (a flag of the tensor map), the tensor core reads it swizzled (a field of its descriptor).
# A thread that reads such a tile by itself must ask the same map. Below a TMA load writes a swizzled tile, and each of 32 lanes reads
# one chunk of column `c`: swizzled, plainly (which gives the wrong data), and from an unswizzled tile.

# %%
ROWS, TILE = 32, 32 * 128


@cuda.jit
def read_column(tmap, out, chunk, mode):
    smem = memory.shared_address(cuda.shared.array(0, np.uint8))
    full = smem + TILE
    lane = u32(cuda.threadIdx.x)
    if lane == 0:
        mbarrier.init(full, 1)
        barrier.fence_mbarrier_init()
        mbarrier.arrive_expect_tx(full, TILE)
        tma.load_2d(smem, tmap, full, 0, 0)
    cuda.syncthreads()
    mbarrier.wait(full, 0)
    at = lane * 128 + u32(chunk) * 16
    if mode == 128:
        at = at ^ (((at >> 7) & 7) << 4)
    words = memory.load_shared_v4(smem + at)
    for i in range(4):
        out[lane, i] = words[i]


table = xp.arange(ROWS * 32, dtype=xp.uint32).reshape(ROWS, 32)
wanted = to_numpy(table)[:, 4 * 5 : 4 * 6]
for map_mode, read_mode in ((128, 128), (128, 0), (0, 0)):
    out = xp.zeros((ROWS, 4), xp.uint32)
    tmap = dgnumba.tensor_map(table, box=(32, ROWS), swizzle=map_mode)
    dgnumba.launch(read_column, 1, 32, (tmap, out, 5, read_mode), smem=TILE + 8)
    print(
        f"tile written with swizzle {map_mode:3d}, read with {read_mode:3d}: {'right' if np.array_equal(to_numpy(out), wanted) else 'WRONG DATA'}"
    )

# %% [markdown]
# ## Let the emulator count
#
# You need not compute conflicts by hand: `emu.check` runs any kernel and lists every place that touches shared memory, with how many goes it took
# against how many it needed.

# %%
host = to_numpy(table)
for mode in (0, 128):
    report = emu.check(
        read_column, 1, 32, (dgnumba.tensor_map(host, box=(32, ROWS), swizzle=mode), np.zeros((ROWS, 4), np.uint32), 5, mode), smem=TILE + 8
    )
    for access in report.shared:
        print(
            f"swizzle {mode:3d}: {access.source.strip():50s} {access.wavefronts} goes for {access.requests} requests: {access.ways:g} ways"
        )

# %% [markdown]
# ## Exercise
#
# A tile has rows of **64 bytes** (four chunks). Write `place(row, chunk)`, the byte address of a chunk, with a swizzle of your own or the hardware's:
# any eight consecutive rows (beginning at a multiple of eight) must give their chunk `c` in one go, every chunk must stay within its own row's 64
# bytes... and no two may meet. As given it is not swizzled.


# %%
def place(row, chunk):
    return row * 64 + chunk * 16


# %%
def check():
    """Whether `place` is a bijection that keeps rows together and reads every column of chunks without a conflict."""
    address = np.array([[int(place(row, chunk)) for chunk in range(4)] for row in range(32)])
    if not np.array_equal(np.sort(address.ravel()), np.arange(0, 32 * 64, 16)):
        print("not yet: two chunks meet, or one lies outside the tile")
        return False
    if not (address // 64 == np.arange(32)[:, None]).all():
        print("not yet: a chunk left its row")
        return False
    for first in range(0, 32, 8):
        for chunk in range(4):
            goes = ways(address[first : first + 8, chunk])
            if goes > 1:
                print(f"not yet: chunk {chunk} of rows {first}-{first + 7} takes {goes} goes")
                return False
    hardware = np.array([[swizzle.chunk_address(row, chunk, 64) for chunk in range(4)] for row in range(32)])
    print("right: one go for every column" + (", and it is the hardware's own pattern" if np.array_equal(address, hardware) else ""))
    return True


check()
