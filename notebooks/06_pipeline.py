# %% [markdown]
# # 06 The pipeline
#
# **Question: a multiprocessor can load, multiply and add at the same time. What does a kernel have to do so that all three happen?**
#
# It gives its warps *jobs*. One thread only loads; the others only multiply and promote; a ring of stages lies between them. In this notebook you look at the real
# FP8 kernel's timeline, take stages away from it, and break its protocol.

# %%
import matplotlib.pyplot as plt
import numpy as np
from numba import cuda

import dgnumba
from dgnumba import emu, lab, u32
from dgnumba.errors import EmulationError
from dgnumba.ptx import barrier, mbarrier, memory, tma
from dgnumba.testing import array_module, to_numpy

xp = array_module()

# %% [markdown]
# ## The real kernel at work
#
# One tile of 64 x 64, eight blocks of K, a ring of four stages. The emulator knows who did what and what had to wait for what; the *times* are estimates, from the same
# figures as the planner's (an H200's trace can be laid beside it: `dgnumba trace --on cuda`). Colours are stages, pale is waiting, hatched is promotion.

# %%
rng = np.random.default_rng(0)
a = dgnumba.per_token_cast_to_fp8(rng.standard_normal((64, 8 * 128), np.float32))
b = dgnumba.per_block_cast_to_fp8(rng.standard_normal((64, 8 * 128), np.float32))


def traced(num_stages):
    """The timeline of the kernel with so many stages."""
    return lab.trace_gemm(a, b, plan=dgnumba.GemmPlan("sm90_fp8_gemm_1d2d", 64, 64, num_stages))


four = traced(4)
print(four)
four.draw()

# %% [markdown]
# Read it from the left: warp 6 is the producer. It asks for four stages at once and must then wait, since the ring is full. The copies arrive one after the other, the tensor core takes each as it
# comes, and the warps promote. When a stage is free the producer asks again, and that load needs its *latency*: the white gap in the tensor core's row.
#
# ## How many stages are enough
#
# Enough that a load's latency is covered by the products of the stages before. Take some away, add some:

# %%
stages = (3, 4, 8)
lines = {count: four if count == 4 else traced(count) for count in stages}
for count, line in lines.items():
    print(
        f"{count:2d} stages: {line.length:6.0f} cycles, the tensor core is busy {line.busy('block 0 tensor core') / line.length:.0%} of them"
    )
plt.figure(figsize=(6, 2.4))
plt.plot(stages, [lines[count].length for count in stages], "o-")
plt.xlabel("stages")
plt.ylabel("cycles, estimated")
plt.ylim(0)
plt.tight_layout()

# %% [markdown]
# Shared memory sets the limit: a 64 x 64 tile has stages of 16 KB, a 128 x 192 tile of 40 KB, and there are 227 KB. That is why large tiles, which load less for each product, have fewer stages, and why the
# planner weighs the two.
#
# ## The protocol, small
#
# The same ring without tensor cores: a producer thread lets rows come, consumer warps add each row up. Every rule of the protocol is one line, and can be left out.

# %%
ROW = 128  # bytes of a row: 32 float32
STAGES = 3


def ring_kernel(consumer_warps, empty_count, waits_empty=True, releases_late=True):
    """Rows of 32 float32 to `consumer_warps` warps, each of which adds every row to what it has."""

    @cuda.jit
    def kernel(tmap, out, rows):
        smem = memory.shared_address(cuda.shared.array(0, np.uint8))
        full, empty = smem + STAGES * ROW, smem + STAGES * ROW + 8 * STAGES
        tid = u32(cuda.threadIdx.x)
        if tid == 0:
            for i in range(STAGES):
                mbarrier.init(full + i * 8, 1)
                mbarrier.init(empty + i * 8, empty_count)
            barrier.fence_mbarrier_init()
        cuda.syncthreads()
        if tid == 0:
            row = u32(0)
            while row < u32(rows):
                stage, parity = row % STAGES, row // STAGES & 1
                if waits_empty:
                    mbarrier.wait(empty + stage * 8, parity ^ 1)
                mbarrier.arrive_expect_tx(full + stage * 8, ROW)
                tma.load_2d(smem + stage * ROW, tmap, full + stage * 8, 0, row)
                row += 1
        if tid >= 32:
            total = np.float32(0)
            row = u32(0)
            while row < u32(rows):
                stage, parity = row % STAGES, row // STAGES & 1
                mbarrier.wait(full + stage * 8, parity)
                if not releases_late:
                    mbarrier.arrive_if(tid % 32 == 0, empty + stage * 8)
                total += memory.load_shared_f32(smem + stage * ROW + tid % 32 * 4)
                if releases_late:
                    cuda.syncwarp()
                    mbarrier.arrive_if(tid % 32 == 0, empty + stage * 8)
                row += 1
            out[tid - 32] = total

    return kernel


def launched(warps, kernel, rows=10):
    """Run it where the arrays are: whether every warp has the column sums."""
    table = xp.arange(rows * 32, dtype=xp.float32).reshape(rows, 32)
    out = xp.zeros(32 * warps, xp.float32)
    dgnumba.launch(kernel, 1, 32 + 32 * warps, (dgnumba.tensor_map(table, box=(32, 1)), out, rows), smem=STAGES * ROW + 16 * STAGES)
    return np.array_equal(to_numpy(out).reshape(warps, 32), np.tile(to_numpy(table).sum(axis=0), (warps, 1)))


print("two consumer warps, right:", launched(2, ring_kernel(2, empty_count=2)))

# %% [markdown]
# And what happens without each rule (in the emulator, under both policies; on a GPU you would get wrong sums now and then, or wait for ever):


# %%
def outcome(kernel, warps, rows=10):
    """The first complaint, or None."""
    table = np.arange(rows * 32, dtype=np.float32).reshape(rows, 32)
    for policy in ("eager", "late"):
        out = np.zeros(32 * warps, np.float32)
        maps = (dgnumba.tensor_map(table, box=(32, 1)), out, rows)
        try:
            emu.run(kernel, 1, 32 + 32 * warps, maps, smem=STAGES * ROW + 16 * STAGES, policy=policy)
        except EmulationError as error:
            return str(error).splitlines()[0]
        if not np.array_equal(out.reshape(warps, 32), np.tile(table.sum(axis=0), (warps, 1))):
            return "the sums are wrong"
    return None


for name, kernel in [
    ("as it should be", ring_kernel(2, 2)),
    ("the producer does not wait for empty", ring_kernel(2, 2, waits_empty=False)),
    ("a warp releases the stage before it has read it", ring_kernel(2, 2, releases_late=False)),
    ("empty counts three arrivals, two come", ring_kernel(2, 3)),
]:
    print(f"--- {name}\n{outcome(kernel, 2) or 'nothing to report'}\n")

# %% [markdown]
# ## Exercise
#
# In a *cluster* CTAs share what they load: each producer writes half of an operand into the shared memory of both. So a stage is free only when the consumers of **every** CTA that gets the data
# have read it, and each consumer warp tells each of those producers once. Complete `empty_arrivals(consumer_warps, cluster)`: how many arrivals end a phase of `empty`?
# `check()` compares with what the real kernel needs, and runs the ring above with your count where the cluster is 1.


# %%
def empty_arrivals(consumer_warps, cluster):
    return 1


# %%
def check():
    """Whether the ring runs with the count, for one to four warps, and the clusters' counts are those of the kernel."""
    for warps in (1, 2, 3):
        complaint = outcome(ring_kernel(warps, int(empty_arrivals(warps, 1))), warps)
        if complaint:
            print(f"not yet: {warps} consumer warps, {empty_arrivals(warps, 1)} arrivals: {complaint}")
            return False
    for warps, cluster, reason in ((8, 2, "8 warps in each of 2 CTAs read what a producer writes"), (4, 2, "4 warps in each of 2 CTAs")):
        if empty_arrivals(warps, cluster) != warps * cluster:
            print(f"not yet: {reason}: {empty_arrivals(warps, cluster)} arrivals are not what ends the phase")
            return False
    print("right: one arrival from each consumer warp of each CTA that reads the stage")
    return True


check()
