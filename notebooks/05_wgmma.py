# %% [markdown]
# # 05 wgmma: one instruction, 64 x N x 32
#
# **Question: what does a thread hold when 128 threads together multiply a 64 x 32 tile by an N x 32 tile, and when may it look?**
#
# `wgmma` is Hopper's matrix instruction. Four warps issue it together; both operands are read from shared memory (A may be in registers); the accumulators lie
# in the registers of all 128 threads, and the instruction is *asynchronous*: it is merely started.

# %%
import numpy as np
from numba import cuda

import dgnumba
from dgnumba import emu, lab, u32
from dgnumba.dtypes import DTYPES
from dgnumba.errors import EmulationError
from dgnumba.layouts import lanes
from dgnumba.layouts.descriptors import SmemDescriptor, low_word
from dgnumba.ptx import barrier, fragment, mbarrier, memory, thread, tma, wgmma
from dgnumba.testing import array_module, to_numpy

xp = array_module()

# %% [markdown]
# ## Who holds what
#
# The 64 x N result is spread over the threads: register `4j + {0, 1}` of a thread is two neighbours in row `16 warp + lane / 4`, and `4j + {2, 3}` the same columns
# eight rows below. The map is in `layouts.lanes`, and the emulator, the kernels and this picture all ask it. `T6:3` is register 3 of thread 6:

# %%
lab.fragment_map("wgmma_accumulator", 16).draw()

# %% [markdown]
# ## The descriptor
#
# The instruction gets no pointer but a *descriptor* of each operand: where the tile begins, how far apart groups of eight rows are, and how it is swizzled.
# Only the low word depends on the address, and stepping 32 bytes along K is adding 2 to it.

# %%
operand = SmemDescriptor(swizzle=128)
print(f"high word {operand.high:#010x}: eight rows are {operand.stride} bytes apart, swizzle {operand.swizzle}")
whole = operand.high << 32 | int(getattr(low_word, "py_func", low_word)(u32(0x2000)))
print("decoded (address, stride, swizzle):", SmemDescriptor.decode(whole))

# %% [markdown]
# ## The smallest FP8 product
#
# One warpgroup, A [64, 128] and B [16, 128] in e4m3. TMA brings both, swizzled; four `wgmma` walk along K; then fence, commit, wait, and each thread writes what
# it holds to where the map says. The rules of order:
#
# 1. `wgmma.fence` before the first one, since the accumulators were touched (set to zero);
# 2. `commit` closes a group; 3. `wait(acc, 0)` gives back the accumulators, and **only its result may be read**.

# %%
N = 16
A_BYTES, B_BYTES = 64 * 128, N * 128
mma = wgmma.mma_for("float8_e4m3fn", "float8_e4m3fn", a=operand, b=operand)


def product_kernel(waits=True, fences=True):
    """The kernel; or without its wait, or without its fence."""

    @cuda.jit
    def kernel(tmap_a, tmap_b, out):
        smem = memory.shared_address(cuda.shared.array(0, np.uint8))
        full = smem + A_BYTES + B_BYTES
        tid = u32(cuda.threadIdx.x)
        if tid == 0:
            mbarrier.init(full, 1)
            barrier.fence_mbarrier_init()
            mbarrier.arrive_expect_tx(full, A_BYTES + B_BYTES)
            tma.load_2d(smem, tmap_a, full, 0, 0)
            tma.load_2d(smem + A_BYTES, tmap_b, full, 0, 0)
        cuda.syncthreads()
        mbarrier.wait(full, 0)
        desc_a, desc_b = low_word(smem), low_word(smem + A_BYTES)
        acc = fragment.zero(8)  # N / 2 registers
        if fences:
            wgmma.fence()
        acc = mma(acc, desc_a, desc_b, 1)
        acc = mma(acc, desc_a + 2, desc_b + 2, 1)
        acc = mma(acc, desc_a + 4, desc_b + 4, 1)
        acc = mma(acc, desc_a + 6, desc_b + 6, 1)
        wgmma.commit()
        if waits:
            acc = wgmma.wait(acc, 0)
        row, column = tid // 32 * 16 + thread.lane_idx() // 4, tid % 4 * 2
        out[row, column], out[row, column + 1] = acc[0], acc[1]
        out[row + 8, column], out[row + 8, column + 1] = acc[2], acc[3]
        out[row, column + 8], out[row, column + 9] = acc[4], acc[5]
        out[row + 8, column + 8], out[row + 8, column + 9] = acc[6], acc[7]

    return kernel


rng = np.random.default_rng(0)
# whole numbers that e4m3 holds exactly, so the sum has one right answer
a = rng.integers(-4, 5, (64, 128)).astype(np.float32)
b = rng.integers(-4, 5, (N, 128)).astype(np.float32)
codes = [DTYPES["float8_e4m3fn"].encode(x).view(np.uint8) for x in (a, b)]
boxes = [(128, 64), (128, N)]


def maps(arrays):
    return [dgnumba.tensor_map(array, box=box, swizzle=128) for array, box in zip(arrays, boxes)]


out = xp.zeros((64, N), xp.float32)
dgnumba.launch(product_kernel(), 1, 128, (*maps([xp.asarray(c) for c in codes]), out), smem=A_BYTES + B_BYTES + 8)
print("right:", np.array_equal(to_numpy(out), a @ b.T))

# %% [markdown]
# ## What the emulator says to the two classic mistakes

# %%
for name, kernel in (("no wait", product_kernel(waits=False)), ("no fence", product_kernel(fences=False))):
    try:
        emu.run(kernel, 1, 128, (*maps(codes), np.zeros((64, N), np.float32)), smem=A_BYTES + B_BYTES + 8)
        print(f"{name}: nothing to report")
    except EmulationError as error:
        print(f"{name}: {error}\n")

# %% [markdown]
# On a GPU the first gives numbers that are wrong now and then, or makes `ptxas` serialise every `wgmma` of the kernel, which costs half of the speed. That is why `wait`
# takes the accumulators and gives them back: what is read later is *its* value, and no compiler can move a read above it.
#
# ## Exercise
#
# Complete `holder(row, column)` for any N: which thread (0 to 127) and which of its registers hold element (row, column) of the 64 x N accumulator? The rule is above,
# the wrong answer below is where a row-major layout would put it.


# %%
def holder(row, column):
    return row * 2 + column // 8 % 2, column % 8


# %%
def check():
    """Whether `holder` agrees with the map that the hardware, kernels and emulator use."""
    for n in (8, 16, 128):
        held = lanes.wgmma_accumulator(n)
        for row, column in ((0, 0), (0, 1), (8, 0), (0, 2), (16, 5), (63, n - 1), (37, n // 2 + 3)):
            thread, register = (int(x) for x in holder(row, column))
            if not (0 <= thread < 128 and 0 <= register < n // 2):
                print(f"not yet: N = {n}: there is no register {register} of thread {thread}")
                return False
            there = int(held.row[thread, register]), int(held.col[thread, register])
            if there != (row, column):
                print(f"not yet: N = {n}: register {register} of thread {thread} is element {there}, not ({row}, {column})")
                return False
    print("right: you know where everything is")
    return True


check()
