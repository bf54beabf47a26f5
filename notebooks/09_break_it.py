# %% [markdown]
# # 09 Break it yourself
#
# **Question: your kernel hangs, or is wrong once in a thousand runs. How do you find the line?**
#
# A complete little FP8 kernel (producer, ring, `wgmma`, TMA store) stands below, with nine switches. Each is a mistake that people make. You will see what the lab says to
# each, then stop the kernel in the middle and look into it; and in the exercise find out which mistake is in which mystery kernel.

# %%
import numpy as np
from numba import cuda

import dgnumba
from dgnumba import emu, u32
from dgnumba.layouts.descriptors import SmemDescriptor, low_word
from dgnumba.ptx import barrier, fragment, mbarrier, memory, tma, wgmma
from dgnumba.testing import array_module, exact_problem, to_numpy

xp = array_module()

MISTAKES = [
    "nobody waits for full",
    "the stage is released before the products are done",
    "the producer waits for the wrong parity",
    "only A's bytes are expected",
    "the accumulators are read before the wait",
    "no fence before the first product",
    "no proxy fence before the store",
    "no barrier between writing the tile and storing it",
    "B's descriptor has another swizzle than its tensor map",
]

# %% [markdown]
# ## The kernel
#
# D [64, 16] = A [64, K] @ B [16, K].T, one CTA: thread 128 is the producer, threads 0 to 127 multiply, and thread 0 stores the tile. Scales are left out.

# %%
STAGES, A_BYTES, B_BYTES, D_BYTES = 2, 64 * 128, 16 * 128, 64 * 16 * 4
A, B = 0, STAGES * A_BYTES
D = STAGES * (A_BYTES + B_BYTES)
FULL = D + D_BYTES
EMPTY = FULL + 8 * STAGES
SMEM = EMPTY + 8 * STAGES
LABELS = (
    {A: "a", B: "b", D: "d"} | {FULL + 8 * s: f"full[{s}]" for s in range(STAGES)} | {EMPTY + 8 * s: f"empty[{s}]" for s in range(STAGES)}
)


def kernel_with(mistake=None):
    """The kernel; with one of `MISTAKES` in it, or none."""
    made = [mistake == name for name in MISTAKES]
    NO_WAIT, EARLY_RELEASE, PARITY, FEW_BYTES, EARLY_READ, NO_FENCE, NO_PROXY_FENCE, NO_BARRIER, _ = made
    EXPECTED = A_BYTES if FEW_BYTES else A_BYTES + B_BYTES
    FIRST_EMPTY = 0 if PARITY else 1
    mma = wgmma.mma_block_for("float8_e4m3fn", "float8_e4m3fn", a=SmemDescriptor(128), b=SmemDescriptor(64 if made[8] else 128))

    @cuda.jit(device=True)
    def producer(smem, tmap_a, tmap_b, k_blocks):
        kb = u32(0)
        while kb < k_blocks:
            slot, parity = kb % STAGES, kb // STAGES & 1
            full = smem + FULL + slot * 8
            mbarrier.wait(smem + EMPTY + slot * 8, parity ^ FIRST_EMPTY)
            mbarrier.arrive_expect_tx(full, EXPECTED)
            tma.load_2d(smem + A + slot * A_BYTES, tmap_a, full, kb * 128, 0)
            tma.load_2d(smem + B + slot * B_BYTES, tmap_b, full, kb * 128, 0)
            kb += 1

    @cuda.jit(device=True)
    def consumer(smem, tmap_d, k_blocks, tid):
        acc, total = fragment.zero(8), fragment.zero(8)
        kb = u32(0)
        while kb < k_blocks:
            slot, parity = kb % STAGES, kb // STAGES & 1
            if not NO_WAIT:
                mbarrier.wait(smem + FULL + slot * 8, parity)
            if not NO_FENCE:
                wgmma.fence()
            acc = mma(acc, low_word(smem + A + slot * A_BYTES), low_word(smem + B + slot * B_BYTES))
            wgmma.commit()
            if EARLY_RELEASE:
                mbarrier.arrive_if(tid % 32 == 0, smem + EMPTY + slot * 8)
            if EARLY_READ:
                total = fragment.promote(total, acc, (np.float32(1), np.float32(1)))
            acc = wgmma.wait(acc, 0)
            if not EARLY_RELEASE:
                mbarrier.arrive_if(tid % 32 == 0, smem + EMPTY + slot * 8)
            if not EARLY_READ:
                total = fragment.promote(total, acc, (np.float32(1), np.float32(1)))
            kb += 1
        at = smem + D + (tid // 32 * 16 + tid % 32 // 4) * 64 + tid % 4 * 8
        memory.store_shared_f32(at, total[0])
        memory.store_shared_f32(at + 4, total[1])
        memory.store_shared_f32(at + 512, total[2])
        memory.store_shared_f32(at + 516, total[3])
        memory.store_shared_f32(at + 32, total[4])
        memory.store_shared_f32(at + 36, total[5])
        memory.store_shared_f32(at + 544, total[6])
        memory.store_shared_f32(at + 548, total[7])
        if not NO_PROXY_FENCE:
            barrier.fence_proxy_async()
        if not NO_BARRIER:
            barrier.sync(1, 128)
        if tid == 0:
            tma.store_2d(tmap_d, smem + D, 0, 0)
            tma.commit()
            tma.wait(0)

    @cuda.jit
    def kernel(tmap_a, tmap_b, tmap_d, k):
        smem = (memory.shared_address(cuda.shared.array(0, np.uint8)) + 1023) // 1024 * 1024
        tid = u32(cuda.threadIdx.x)
        if tid == 0:
            for stage in range(STAGES):
                mbarrier.init(smem + FULL + stage * 8, 1)
                mbarrier.init(smem + EMPTY + stage * 8, 4)
            barrier.fence_mbarrier_init()
        cuda.syncthreads()
        if tid < 128:
            consumer(smem, tmap_d, u32(k) // 128, tid)
        elif tid == 128:
            producer(smem, tmap_a, tmap_b, u32(k) // 128)

    return kernel


def call(arrays, out):
    """Arguments: A and B as bytes, D."""
    a, b = arrays
    maps = dgnumba.tensor_map(a, box=(128, 64), swizzle=128), dgnumba.tensor_map(b, box=(128, 16), swizzle=128)
    return *maps, dgnumba.tensor_map(out, box=(16, 64)), a.shape[1]


K = 512
case = exact_problem(np.random.default_rng(0), 64, 16, K, "float32")
host = [q.data.view(np.uint8) for q in (case.a, case.b)]
want = case.a.data.astype(np.float32) @ case.b.data.astype(np.float32).T

out = xp.zeros((64, 16), xp.float32)
dgnumba.launch(kernel_with(), 1, 160, call([xp.asarray(x) for x in host], out), smem=SMEM + 1024)
print("right:", np.array_equal(to_numpy(out), want))

# %% [markdown]
# ## What the lab says
#
# `emu.check` runs a kernel under both completion policies with every check on, and gives a report. For the right kernel it is clean; the tables of accesses come with it.


# %%
def examine(kernel):
    """The report of a kernel."""
    return emu.check(kernel, 1, 160, call(host, np.zeros((64, 16), np.float32)), smem=SMEM + 1024, labels=LABELS)


clean = examine(kernel_with())
print(clean)

# %% [markdown]
# Look at the last table: the epilogue's stores have bank conflicts, as rows of 64 bytes put rows 0, 2, 4, 6 of a warp into the same banks. Slow, not wrong.
#
# Now each mistake. Read a few of the messages with the kernel beside you: most name both sides.

# %%
reports = {mistake: examine(kernel_with(mistake)) for mistake in MISTAKES}
for mistake in MISTAKES[:5]:
    print(f"--- {mistake}\n{reports[mistake].errors[0]}\n")
print(f"{sum(not report.is_clean for report in reports.values())} of {len(MISTAKES)} mistakes are found")

# %% [markdown]
# ## Stop, and look
#
# A report says where it broke; `emu.step` lets you walk there. Here the kernel stops when thread 37 comes to its third `wgmma.wait`: its variables, the barriers, the tile in
# shared memory with the swizzle undone, and the accumulators of all 128 threads put back into a matrix.

# %%
options = {"smem": SMEM + 1024, "labels": LABELS}
with emu.step(kernel_with(), 1, 160, call(host, np.zeros((64, 16), np.float32)), who=37, at="wgmma.wait", **options) as state:
    state.run()
    state.run()
    here = state.thread()
    print("stopped at line", here.line, "with", {name: here.locals[name] for name in ("kb", "slot", "parity")})
    for bar in state.barriers:
        print(" ", bar)
    tile = state.smem.view(np.uint8, (64, 128), at="a", swizzle=128)
    print("A's tile is columns 256 to 383 of A:", np.array_equal(tile, host[0][:, 256:384]))
    total = state.fragment("total")
    done = case.a.data[:, :256].astype(np.float32) @ case.b.data[:, :256].astype(np.float32).T
    print("`total` is the product over the first two blocks:", np.array_equal(total, done))

# %% [markdown]
# In a terminal or a notebook, `breakpoint()` in a kernel opens the ordinary debugger in that emulated thread.
#
# ## Exercise
#
# Four mystery kernels, each with one of `MISTAKES`. Examine them (`print(examine(mystery(0)))`) and write down which is which: number of the mystery to the index in `MISTAKES`.

# %%
_SECRET = np.random.default_rng(2026).permutation(len(MISTAKES))[:4]


def mystery(number):
    """A kernel with a mistake."""
    return kernel_with(MISTAKES[_SECRET[number]])


diagnosis = {0: None, 1: None, 2: None, 3: None}


# %%
def check():
    """Whether `diagnosis` is right; says which are not, and what the lab says to those."""
    wrong = [number for number in range(4) if diagnosis.get(number) != _SECRET[number]]
    for number in wrong[:1]:
        print(f"not yet: mystery {number} is not {diagnosis.get(number)!r}. The lab says:\n{examine(mystery(number)).errors[0]}")
    if not wrong:
        print("right: all four found")
    return not wrong


check()
