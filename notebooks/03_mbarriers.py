# %% [markdown]
# # 03 Barriers that count bytes
#
# **Question: a copy engine writes into shared memory while your threads do something else. How does a thread learn that the data is there?**
#
# A `syncthreads` waits for threads. But no thread does the copying: one thread asks the TMA unit for a box of memory and goes on. Hopper's answer
# is the *mbarrier*: eight bytes of shared memory that count two things, arrivals of threads and bytes of copies. Its phase ends when both
# counts are zero. This notebook needs no GPU; where there is a Hopper GPU, the same cells run on it.

# %%
import numpy as np
from numba import cuda

import dgnumba
from dgnumba import emu, u32
from dgnumba.errors import EmulationError
from dgnumba.ptx import barrier, mbarrier, memory, tma
from dgnumba.testing import array_module, to_numpy

xp = array_module()  # NumPy: kernels run in the emulator; CuPy, where there is a Hopper GPU: they run there

# %% [markdown]
# ## One copy, one barrier
#
# Thread 0 initialises a barrier for **one** arrival, says how many bytes it will see, asks for the copy, and everybody waits for phase 0.

# %%
TILE = 32 * 32 * 4  # bytes of a box of 32 x 32 float32


@cuda.jit
def row_sums(tmap, out):
    smem = memory.shared_address(cuda.shared.array(0, np.uint8))
    full = smem + TILE  # the barrier's eight bytes lie behind the tile
    if cuda.threadIdx.x == 0:
        mbarrier.init(full, 1)
        barrier.fence_mbarrier_init()
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        mbarrier.arrive_expect_tx(full, TILE)  # the one arrival; and "4096 bytes are to come"
        tma.load_2d(smem, tmap, full, 0, cuda.blockIdx.x * 32)
    mbarrier.wait(full, 0)  # until phase 0 is over: one arrival, 4096 bytes
    row = smem + u32(cuda.threadIdx.x) * 128
    total = np.float32(0)
    for column in range(32):
        total += memory.load_shared_f32(row + column * 4)
    out[cuda.grid(1)] = total


table = xp.arange(64 * 32, dtype=xp.float32).reshape(64, 32)
sums = xp.zeros(64, xp.float32)
dgnumba.launch(row_sums, 2, 32, (dgnumba.tensor_map(table, box=(32, 32)), sums), smem=TILE + 8)
print("right:", np.array_equal(to_numpy(sums), to_numpy(table.sum(axis=1))))

# %% [markdown]
# ## Watch it
#
# In the emulator every event can be looked at. Below is what happens to the barrier, as the emulator tells it: thread 0 arrives, the copy is
# issued, it lands, the phase ends, the waiting threads go on.

# %%
trace = emu.Trace()
host_table, host_sums = np.arange(32 * 32, dtype=np.float32).reshape(32, 32), np.zeros(32, np.float32)
emu.run(row_sums, 1, 32, (dgnumba.tensor_map(host_table, box=(32, 32)), host_sums), smem=TILE + 8, observe=trace, policy="late")
for note in [n for n in trace.notes if n.op.startswith(("mbarrier", "tma"))][:12]:
    print(note)

# %% [markdown]
# ## What goes wrong, and what it looks like
#
# `policy="late"` lets a copy land as late as the rules allow, so that a forgotten wait cannot pass by luck. A GPU would give a wrong sum now
# and then; the emulator says who read what, on which line. Two more classics: a byte count that does not add up (the phase never ends) and a wait
# for the wrong parity (which passes at once, as phase *minus one* counts as over).


# %%
def variant(expected, parity, waits=True):
    """The same kernel with one number wrong, or without its wait."""

    @cuda.jit
    def kernel(tmap, out):
        smem = memory.shared_address(cuda.shared.array(0, np.uint8))
        full = smem + TILE
        if cuda.threadIdx.x == 0:
            mbarrier.init(full, 1)
            barrier.fence_mbarrier_init()
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            mbarrier.arrive_expect_tx(full, expected)
            tma.load_2d(smem, tmap, full, 0, cuda.blockIdx.x * 32)
        if waits:
            mbarrier.wait(full, parity)
        out[cuda.grid(1)] = memory.load_shared_f32(smem + u32(cuda.threadIdx.x) * 128)

    return kernel


def outcome(kernel):
    """What the emulator says, in one paragraph."""
    try:
        emu.run(kernel, 1, 32, (dgnumba.tensor_map(host_table, box=(32, 32)), host_sums), smem=TILE + 8, policy="late")
        return "nothing to report"
    except EmulationError as error:
        return str(error)


for name, kernel in [
    ("as it should be", variant(TILE, 0)),
    ("no wait", variant(TILE, 0, waits=False)),
    ("one row's bytes too many", variant(TILE + 128, 0)),
    ("wrong parity", variant(TILE, 1)),
]:
    print(f"--- {name}\n{outcome(kernel)}\n")

# %% [markdown]
# ## A ring
#
# One tile of memory is not enough: while the consumers read it, nothing can be loaded. So kernels keep a *ring* of stages, with two barriers each:
#
# * `full[stage]`: the data is there (producer's arrival + bytes),
# * `empty[stage]`: everybody has read it (consumers' arrivals).
#
# The stage is used again and again, so a barrier goes through phase 0, 1, 2, ... and only the phase's **parity** is kept. A position in the
# ring is therefore two numbers, stage and parity: here they are for ten tiles and three stages.

# %%
for tile in range(10):
    print(f"tile {tile}: stage {tile % 3}, parity {tile // 3 % 2}")

# %% [markdown]
# The consumer waits `full` with the parity; the producer waits `empty` with the parity **flipped**, because in the first round nobody has to free
# anything: waiting for parity 1 on a fresh barrier passes at once.
#
# ## Exercise
#
# Write `next_position(stage, phase)` for a ring of `STAGES = 3`: it gives the stage and the parity of the next tile. As given below it forgets
# something. Run the cell: `check()` runs a producer and a consumer warp with it in the emulator, over ten tiles.

# %%
STAGES = 3


def next_position(stage, phase):
    return (stage + 1) % STAGES, phase


# %%
def ring_kernel(step):
    """Ten rows of 32 float32 pass through a ring of three; warp 0 lets them come, warp 1 copies them out. Positions come from `step`."""
    ROW = 128

    @cuda.jit
    def kernel(tmap, out):
        smem = memory.shared_address(cuda.shared.array(0, np.uint8))
        full, empty = smem + STAGES * ROW, smem + STAGES * ROW + 8 * STAGES
        tid = u32(cuda.threadIdx.x)
        if tid == 0:
            for i in range(STAGES):
                mbarrier.init(full + i * 8, 1)
                mbarrier.init(empty + i * 8, 32)
            barrier.fence_mbarrier_init()
        cuda.syncthreads()
        stage, phase = u32(0), u32(0)
        if tid == 0:
            for tile in range(10):
                mbarrier.wait(empty + stage * 8, phase ^ 1)
                mbarrier.arrive_expect_tx(full + stage * 8, ROW)
                tma.load_2d(smem + stage * ROW, tmap, full + stage * 8, 0, u32(tile))
                stage, phase = step(stage, phase)
        if tid >= 32:
            for tile in range(10):
                mbarrier.wait(full + stage * 8, phase)
                out[tile, tid - 32] = memory.load_shared_f32(smem + stage * ROW + (tid - 32) * 4)
                mbarrier.arrive(empty + stage * 8)
                stage, phase = step(stage, phase)

    return kernel


def check():
    """Whether ten rows come through the ring with `next_position`, under both policies."""
    rows = np.arange(320, dtype=np.float32).reshape(10, 32)
    for policy in ("eager", "late"):
        out = np.zeros_like(rows)
        try:
            smem = STAGES * 128 + 16 * STAGES
            emu.run(ring_kernel(next_position), 1, 64, (dgnumba.tensor_map(rows, box=(32, 1)), out), smem=smem, policy=policy)
        except (EmulationError, TypeError, ValueError) as error:
            print(f"not yet: {error}")
            return False
        if not np.array_equal(rows, out):
            print(f"not yet: row {int(np.flatnonzero((rows != out).any(axis=1))[0])} came out wrong")
            return False
    print("right: ten rows through three stages")
    return True


check()
