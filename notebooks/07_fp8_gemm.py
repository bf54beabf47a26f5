# %% [markdown]
# # 07 The FP8 GEMM, step by step
#
# **Question: a matrix product is three nested loops. Why is the fast one three hundred lines, and what does each of them buy?**
#
# Six kernels that all compute the same thing, each a little closer to the hardware, and at the end the real one. Every one is a whole kernel that runs here in the
# emulator and, unchanged, on a Hopper GPU; the last section has the price of each step on an H200.
#
# The task: `D[m, n] = sum over kb of (A[m, kb] . B[n, kb]) * SFA[m, kb] * SFB[n / 128, kb]`, where `kb` runs over blocks of 128 of K, A and B are e4m3, and D is float32 here.

# %% tags=["kernel"]
import numpy as np
from numba import cuda

import dgnumba
from dgnumba import u32, u64
from dgnumba.dtypes import DTYPES
from dgnumba.kernels.epilogue import store_float32_for
from dgnumba.layouts.descriptors import SmemDescriptor, low_word
from dgnumba.ptx import barrier, cp_async, fragment, mbarrier, memory, thread, tma, wgmma

DECODED = DTYPES["float8_e4m3fn"].decode(np.arange(256, dtype=np.uint8)).astype(np.float32)  # code -> value


# %%
import json
import time
from pathlib import Path

import matplotlib.pyplot as plt

from dgnumba import emu, lab
from dgnumba.device import Device
from dgnumba.plan import choose
from dgnumba.problem import GemmProblem
from dgnumba.testing import array_module, exact_problem, to_numpy

xp = array_module()


class Task:
    """Operands of which every right kernel gives the same bits, and the answer."""

    def __init__(self, m, n, k):
        case = exact_problem(np.random.default_rng(7), m, n, k, "float32")
        self.m, self.n, self.k = m, n, k
        self.want = np.empty((m, n), np.float32)
        dgnumba.fp8_gemm_nt(case.a, case.b, self.want)
        self.a, self.b = xp.asarray(case.a.data.view(np.uint8)), xp.asarray(case.b.data.view(np.uint8))
        self.sfa, self.sfb = xp.asarray(np.ascontiguousarray(case.a.scale.T)), xp.asarray(case.b.scale)
        self.decoded, self.out = xp.asarray(DECODED), xp.full((m, n), np.nan, xp.float32)


def run(step, task):
    """Launch a step on a task; say whether every bit is right."""
    begin = time.perf_counter()
    kernel, grid, block, args, options = step(task)
    dgnumba.launch(kernel, grid, block, args, **options)
    right = np.array_equal(to_numpy(task.out), task.want)
    print(
        f"{step.__name__:16s} {task.m} x {task.n} x {task.k}: {'every bit right' if right else 'WRONG'}, {time.perf_counter() - begin:.1f} s here"
    )


# %% [markdown]
# ## 1 Three loops
#
# One thread, one element. It is right, and it reads every byte of A once for each column of D, from global memory, through a table that decodes FP8.


# %% tags=["kernel"]
@cuda.jit
def naive_kernel(a, sfa, b, sfb, decoded, out):
    n, m = cuda.grid(2)
    total = np.float32(0)
    for kb in range(a.shape[1] // 128):
        acc = np.float32(0)
        for k in range(kb * 128, kb * 128 + 128):
            acc += decoded[a[m, k]] * decoded[b[n, k]]
        total += acc * (sfa[kb, m] * sfb[n // 128, kb])
    out[m, n] = total


def naive(task):
    """Kernel, grid, block, arguments, options."""
    return naive_kernel, (task.n // 16, task.m // 16), (16, 16), (task.a, task.sfa, task.b, task.sfb, task.decoded, task.out), {}


# %%
run(naive, Task(16, 16, 256))

# %% [markdown]
# ## 2 Shared memory
#
# A tile of 16 x 16 outputs needs 16 rows of A and of B. 256 threads bring them once, decoded, and read them 16 times from shared memory. The rows of B's tile are one
# element longer than needed: without that, 16 neighbours would read a column from the same bank.


# %% tags=["kernel"]
@cuda.jit
def shared_kernel(a, sfa, b, sfb, decoded, out):
    tile_a = cuda.shared.array((16, 32), np.float32)
    tile_b = cuda.shared.array((16, 33), np.float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    n, m = cuda.grid(2)
    first_n, first_m = cuda.blockIdx.x * 16, cuda.blockIdx.y * 16
    total = np.float32(0)
    for kb in range(a.shape[1] // 128):
        acc = np.float32(0)
        for k in range(kb * 128, kb * 128 + 128, 32):
            for column in range(x, 32, 16):
                tile_a[y, column] = decoded[a[first_m + y, k + column]]
                tile_b[y, column] = decoded[b[first_n + y, k + column]]
            cuda.syncthreads()
            for i in range(32):
                acc += tile_a[y, i] * tile_b[x, i]
            cuda.syncthreads()
        total += acc * (sfa[kb, m] * sfb[n // 128, kb])
    out[m, n] = total


def shared(task):
    """Kernel, grid, block, arguments, options."""
    return shared_kernel, (task.n // 16, task.m // 16), (16, 16), (task.a, task.sfa, task.b, task.sfb, task.decoded, task.out), {}


# %%
run(shared, Task(16, 16, 128))

# %% [markdown]
# ## 3 Tensor cores
#
# One `wgmma` does 64 x 64 x 32 multiply-adds. A warpgroup owns a 64 x 64 tile; its 128 threads copy A and B, 16 bytes at a time, to where the 128-byte swizzle wants
# them. Two things are new: the *proxy fence*, since ordinary copies wrote what the tensor core will read; and *promotion*: four `wgmma` sum 128 of K, then
# `total += acc * scales` in float32.


# %% tags=["kernel"]
BLOCK, DEPTH = 64, 128
TILE_BYTES = BLOCK * DEPTH  # one operand's tile, a byte an element
OPERAND = SmemDescriptor(swizzle=128)
multiply_64 = wgmma.mma_block_for("float8_e4m3fn", "float8_e4m3fn", a=OPERAND, b=OPERAND)
store_64 = store_float32_for(64)
row_scales = fragment.segment_scales_for(64)


@cuda.jit(device=True)
def copy_tile(smem, source, pitch, tid):
    """64 rows of 128 bytes, four chunks of 16 a thread, swizzled."""
    for i in range(4):
        chunk = tid + i * 128
        at = (chunk // 8) * 128 + ((chunk % 8 ^ chunk // 8 % 8) << 4)
        cp_async.copy_16(smem + at, source + u64(chunk // 8) * pitch + u64(chunk % 8) * 16)


@cuda.jit
def tensor_kernel(a, sfa, b, sfb, out, n, k):
    smem = (memory.shared_address(cuda.shared.array(0, np.uint8)) + 1023) // 1024 * 1024
    tid = u32(cuda.threadIdx.x)
    m_idx, n_idx = u32(cuda.blockIdx.y) * BLOCK, u32(cuda.blockIdx.x) * BLOCK
    row = m_idx + tid // 32 * 16 + tid % 32 // 4
    acc, total = fragment.zero(32), fragment.zero(32)
    from_a = memory.global_address(a) + u64(m_idx) * u64(k)
    from_b = memory.global_address(b) + u64(n_idx) * u64(k)
    for kb in range(k // DEPTH):
        copy_tile(smem, from_a + u64(kb * DEPTH), u64(k), tid)
        copy_tile(smem + TILE_BYTES, from_b + u64(kb * DEPTH), u64(k), tid)
        cp_async.commit()
        cp_async.wait(0)
        barrier.fence_proxy_async()
        cuda.syncthreads()
        wgmma.fence()
        acc = multiply_64(acc, low_word(smem), low_word(smem + TILE_BYTES))
        wgmma.commit()
        acc = wgmma.wait(acc, 0)
        scale_b = sfb[n_idx // 128, kb]
        total = fragment.promote(total, acc, (sfa[kb, row] * scale_b, sfa[kb, row + 8] * scale_b))
        cuda.syncthreads()
    column = n_idx + tid % 4 * 2
    address = memory.global_address(out) + (u64(row) * u64(n) + u64(column)) * 4
    store_64(total, address, u64(n) * 4, row, row + 64, column, u32(n))


def tensor_cores(task):
    """Kernel, grid, block, arguments, options."""
    args = (task.a, task.sfa, task.b, task.sfb, task.out, task.n, task.k)
    return tensor_kernel, (task.n // BLOCK, task.m // BLOCK), 128, args, {"smem": 2 * TILE_BYTES + 1024}


# %%
run(tensor_cores, Task(64, 64, 256))

# %% [markdown]
# ## 4 TMA
#
# Instead of a thousand addresses computed by 128 threads: thread 0 says "this box". The unit swizzles; an mbarrier tells when all bytes are there. The proxy fence is gone,
# as TMA and `wgmma` are of the same proxy. Still, one waits for the other: load, multiply, load, multiply.


# %% tags=["kernel"]
@cuda.jit
def tma_kernel(tmap_a, sfa, tmap_b, sfb, out, n, k):
    smem = (memory.shared_address(cuda.shared.array(0, np.uint8)) + 1023) // 1024 * 1024
    full = smem + 2 * TILE_BYTES
    tid = u32(cuda.threadIdx.x)
    m_idx, n_idx = u32(cuda.blockIdx.y) * BLOCK, u32(cuda.blockIdx.x) * BLOCK
    row = m_idx + tid // 32 * 16 + tid % 32 // 4
    if tid == 0:
        mbarrier.init(full, 1)
        barrier.fence_mbarrier_init()
    cuda.syncthreads()
    acc, total = fragment.zero(32), fragment.zero(32)
    for kb in range(k // DEPTH):
        if tid == 0:
            mbarrier.arrive_expect_tx(full, 2 * TILE_BYTES)
            tma.load_2d(smem, tmap_a, full, u32(kb) * DEPTH, m_idx)
            tma.load_2d(smem + TILE_BYTES, tmap_b, full, u32(kb) * DEPTH, n_idx)
        mbarrier.wait(full, u32(kb) & 1)
        wgmma.fence()
        acc = multiply_64(acc, low_word(smem), low_word(smem + TILE_BYTES))
        wgmma.commit()
        acc = wgmma.wait(acc, 0)
        scale_b = sfb[n_idx // 128, kb]
        total = fragment.promote(total, acc, (sfa[kb, row] * scale_b, sfa[kb, row + 8] * scale_b))
        cuda.syncthreads()
    column = n_idx + tid % 4 * 2
    address = memory.global_address(out) + (u64(row) * u64(n) + u64(column)) * 4
    store_64(total, address, u64(n) * 4, row, row + 64, column, u32(n))


def maps(task, rows_a, rows_b):
    """Tensor maps of A and B: boxes of so many rows and 128 of K, swizzled."""
    return [dgnumba.tensor_map(x, box=(DEPTH, rows), swizzle=128) for x, rows in ((task.a, rows_a), (task.b, rows_b))]


def by_tma(task):
    """Kernel, grid, block, arguments, options."""
    tmap_a, tmap_b = maps(task, BLOCK, BLOCK)
    args = (tmap_a, task.sfa, tmap_b, task.sfb, task.out, task.n, task.k)
    return tma_kernel, (task.n // BLOCK, task.m // BLOCK), 128, args, {"smem": 2 * TILE_BYTES + 1024 + 8}


# %%
run(by_tma, Task(64, 64, 256))

# %% [markdown]
# ## 5 A ring of stages
#
# Four tiles of shared memory instead of one: while block `kb` is multiplied, the next three are on their way. Thread 0 refills a stage as soon as everybody has done with it.


# %% tags=["kernel"]
STAGES = 4
STAGE_BYTES = 2 * TILE_BYTES


@cuda.jit(device=True)
def load_stage(smem, tmap_a, tmap_b, m_idx, n_idx, kb):
    stage = smem + kb % STAGES * STAGE_BYTES
    full = smem + STAGES * STAGE_BYTES + kb % STAGES * 8
    mbarrier.arrive_expect_tx(full, STAGE_BYTES)
    tma.load_2d(stage, tmap_a, full, kb * DEPTH, m_idx)
    tma.load_2d(stage + TILE_BYTES, tmap_b, full, kb * DEPTH, n_idx)


@cuda.jit
def ring_kernel(tmap_a, sfa, tmap_b, sfb, out, n, k):
    smem = (memory.shared_address(cuda.shared.array(0, np.uint8)) + 1023) // 1024 * 1024
    tid = u32(cuda.threadIdx.x)
    m_idx, n_idx = u32(cuda.blockIdx.y) * BLOCK, u32(cuda.blockIdx.x) * BLOCK
    row = m_idx + tid // 32 * 16 + tid % 32 // 4
    k_blocks = u32(k) // DEPTH
    if tid == 0:
        for stage in range(STAGES):
            mbarrier.init(smem + STAGES * STAGE_BYTES + stage * 8, 1)
        barrier.fence_mbarrier_init()
        for kb in range(STAGES):
            if u32(kb) < k_blocks:
                load_stage(smem, tmap_a, tmap_b, m_idx, n_idx, u32(kb))
    cuda.syncthreads()
    acc, total = fragment.zero(32), fragment.zero(32)
    kb = u32(0)
    while kb < k_blocks:
        tile = smem + kb % STAGES * STAGE_BYTES
        mbarrier.wait(smem + STAGES * STAGE_BYTES + kb % STAGES * 8, kb // STAGES & 1)
        wgmma.fence()
        acc = multiply_64(acc, low_word(tile), low_word(tile + TILE_BYTES))
        wgmma.commit()
        acc = wgmma.wait(acc, 0)
        scale_b = sfb[n_idx // 128, kb]
        total = fragment.promote(total, acc, (sfa[kb, row] * scale_b, sfa[kb, row + 8] * scale_b))
        cuda.syncthreads()
        if tid == 0 and kb + STAGES < k_blocks:
            load_stage(smem, tmap_a, tmap_b, m_idx, n_idx, kb + STAGES)
        kb += 1
    column = n_idx + tid % 4 * 2
    address = memory.global_address(out) + (u64(row) * u64(n) + u64(column)) * 4
    store_64(total, address, u64(n) * 4, row, row + 64, column, u32(n))


def ring(task):
    """Kernel, grid, block, arguments, options."""
    tmap_a, tmap_b = maps(task, BLOCK, BLOCK)
    args = (tmap_a, task.sfa, tmap_b, task.sfb, task.out, task.n, task.k)
    return ring_kernel, (task.n // BLOCK, task.m // BLOCK), 128, args, {"smem": STAGES * STAGE_BYTES + 1024 + 8 * STAGES}


# %%
run(ring, Task(64, 64, 768))

# %% [markdown]
# ## 6 Warps with jobs
#
# In step 5 all 128 threads stop twice a block of K. Now one thread of a third warpgroup, the *producer*, does nothing but load; two *consumer* warpgroups have 64 rows each of a
# 128 x 128 tile, and never meet: they wait on `full`, and tell the producer on `empty`, one arrival a warp. While one promotes, the other's products run. The producer
# gives its registers to the consumers (`setmaxnreg`).


# %% tags=["kernel"]
WIDE = 128
WIDE_BYTES = WIDE * DEPTH
RING_BYTES = 2 * WIDE_BYTES
FULL, EMPTY = STAGES * RING_BYTES, STAGES * RING_BYTES + 8 * STAGES
multiply_128 = wgmma.mma_block_for("float8_e4m3fn", "float8_e4m3fn", a=OPERAND, b=OPERAND)
store_128 = store_float32_for(128)


@cuda.jit(device=True)
def producer(smem, tmap_a, tmap_b, m_idx, n_idx, k_blocks):
    kb = u32(0)
    while kb < k_blocks:
        slot, parity = kb % STAGES, kb // STAGES & 1
        mbarrier.wait(smem + EMPTY + slot * 8, parity ^ 1)
        full = smem + FULL + slot * 8
        mbarrier.arrive_expect_tx(full, RING_BYTES)
        tma.load_2d(smem + slot * RING_BYTES, tmap_a, full, kb * DEPTH, m_idx)
        tma.load_2d(smem + slot * RING_BYTES + WIDE_BYTES, tmap_b, full, kb * DEPTH, n_idx)
        kb += 1


@cuda.jit(device=True)
def consumer(smem, sfa, sfb, out, n, m_idx, n_idx, k_blocks, tid):
    row = m_idx + tid // 32 * 16 + tid % 32 // 4
    acc, total = fragment.zero(64), fragment.zero(64)
    kb = u32(0)
    while kb < k_blocks:
        slot, parity = kb % STAGES, kb // STAGES & 1
        tile_a = smem + slot * RING_BYTES + tid // 128 * (64 * DEPTH)
        mbarrier.wait(smem + FULL + slot * 8, parity)
        wgmma.fence()
        acc = multiply_128(acc, low_word(tile_a), low_word(smem + slot * RING_BYTES + WIDE_BYTES))
        wgmma.commit()
        scale_b = sfb[n_idx // 128, kb]
        scale_0, scale_8 = sfa[kb, row] * scale_b, sfa[kb, row + 8] * scale_b
        acc = wgmma.wait(acc, 0)
        mbarrier.arrive_if(tid % 32 == 0, smem + EMPTY + slot * 8)
        total = fragment.promote(total, acc, (scale_0, scale_8))
        kb += 1
    column = n_idx + tid % 4 * 2
    address = memory.global_address(out) + (u64(row) * u64(n) + u64(column)) * 4
    store_128(total, address, u64(n) * 4, row, row + 64, column, u32(n))


@cuda.jit
def roles_kernel(tmap_a, sfa, tmap_b, sfb, out, n, k):
    smem = (memory.shared_address(cuda.shared.array(0, np.uint8)) + 1023) // 1024 * 1024
    tid = u32(cuda.threadIdx.x)
    m_idx, n_idx = u32(cuda.blockIdx.y) * WIDE, u32(cuda.blockIdx.x) * WIDE
    if tid == 0:
        for stage in range(STAGES):
            mbarrier.init(smem + FULL + stage * 8, 1)
            mbarrier.init(smem + EMPTY + stage * 8, 8)  # one arrival for each of eight consumer warps
        barrier.fence_mbarrier_init()
    cuda.syncthreads()
    if tid >= 256:
        thread.setmaxnreg_dec(40)
        if tid == 256:
            producer(smem, tmap_a, tmap_b, m_idx, n_idx, u32(k) // DEPTH)
    else:
        thread.setmaxnreg_inc(232)
        consumer(smem, sfa, sfb, out, n, m_idx, n_idx, u32(k) // DEPTH, tid)


def roles(task):
    """Kernel, grid, block, arguments, options."""
    tmap_a, tmap_b = maps(task, WIDE, WIDE)
    args = (tmap_a, task.sfa, tmap_b, task.sfb, task.out, task.n, task.k)
    return roles_kernel, (task.n // WIDE, task.m // WIDE), 384, args, {"smem": STAGES * RING_BYTES + 16 * STAGES + 1024}


STEPS = [naive, shared, tensor_cores, by_tma, ring, roles]


# %%
run(roles, Task(128, 128, 640))

# %% [markdown]
# ## 7 The real one
#
# What is left between step 6 and `dgnumba/kernels/sm90_fp8_gemm_1d2d.py`: CTAs that stay and take tile after tile, in an order that shares operands in L2; two waves of 64 rows a warpgroup, or
# tiles of 192 columns; scales by TMA with their stage; the next stage awaited under the last product; the tile stored through shared memory by TMA, in bfloat16, while the next one begins;
# pairs of CTAs that share an operand; any M, N, K. And a planner that chooses among some hundreds of such kernels. Here it is on the task of step 6:

# %%
task = Task(128, 128, 640)
case = exact_problem(np.random.default_rng(7), 128, 128, 640, "float32")
real = np.empty((128, 128), np.float32)
dgnumba.fp8_gemm_nt(case.a, case.b, real, on="emulator")
print("every bit right:", np.array_equal(real, task.want))
problem = GemmProblem(4096, 4096, 7168)
plan = choose(problem, Device.current()).plan
print("the plan for 4096 x 4096 x 7168:", plan.name)

# %% [markdown]
# In which order its tiles are taken: those of one round (a colour) lie together, so that they share rows of A and B in L2.

# %%
lab.tile_raster(plan, problem.m, problem.n, problem.k).draw()

# %% [markdown]
# And where it stands under the ceilings, by the planner's estimate. `dgnumba profile 4096x4096x7168` measures it on a GPU.

# %%
lab.roofline(problem, plan).draw()

# %% [markdown]
# ## What each step buys on an H200
#
# `python bench/bench_steps.py` takes the kernels from the cells above, checks every bit, and times them at one size on a GPU. What it recorded:

# %%
stored = [path for path in (Path("bench/results/steps_h200.json"), Path("../bench/results/steps_h200.json")) if path.exists()]
rows = json.loads(stored[0].read_text()) if stored else []
if not rows:
    print("not measured yet: python bench/bench_steps.py, on a machine with a Hopper GPU, writes bench/results/steps_h200.json")
else:
    first = rows[0]
    print(
        f"{first['gpu']}, {first['date']}, M, N, K = {first['m']}, {first['n']}, {first['k']}; L2 flushed by reading, median of {first['method']['runs']}"
    )
    for before, row in zip([None, *rows], rows):
        gain = f"{before['us'] / row['us']:6.1f} times the step before" if before else ""
        print(f"{row['step']} {row['name']:16s} {row['us']:12.1f} us {row['tflops']:8.1f} TFLOP/s {gain}")
    plt.figure(figsize=(9, 2.6))
    plt.bar([f"{row['step']} {row['name']}" for row in rows], [row["tflops"] for row in rows])
    plt.yscale("log")
    plt.ylabel("TFLOP/s")
    plt.tight_layout()

# %% [markdown]
# ## Exercise
#
# In step 5 a stage is refilled *after* its block was multiplied. How many blocks of K are on their way, at the most, while block `kb` is being multiplied? Complete `in_flight(kb, k_blocks)` for
# the ring kernel: the loads that thread 0 has issued and that have not been waited for when the products of block `kb` are issued. `check()` counts them in the emulator.


# %%
def in_flight(kb, k_blocks):
    return STAGES


# %%
def counted(k_blocks):
    """For each block: loads issued before its products, less those that were waited for by then."""
    task = Task.__new__(Task)
    case = exact_problem(np.random.default_rng(1), 64, 64, 128 * k_blocks, "float32")
    task.m, task.n, task.k = 64, 64, 128 * k_blocks
    task.a, task.b = case.a.data.view(np.uint8), case.b.data.view(np.uint8)
    task.sfa, task.sfb, task.out = np.ascontiguousarray(case.a.scale.T), case.b.scale, np.zeros((64, 64), np.float32)
    trace = emu.Trace()
    kernel, grid, block, args, options = ring(task)
    emu.run(kernel, grid, block, args, **options, observe=trace)
    loads, found = 0, []
    for note in trace.notes:
        if note.kind == "op" and note.op == "tma.load_2d":
            loads += 1
        if note.kind == "op" and note.op == "wgmma.mma_block":
            found.append(loads // 2 - len(found) - 1)
    return found


def check():
    """Whether `in_flight` says what the emulator counts, for short and long K."""
    for k_blocks in (1, 3, 4, 7):
        want = counted(k_blocks)
        mine = [int(in_flight(kb, k_blocks)) for kb in range(k_blocks)]
        if mine != want:
            kb = next(i for i in range(k_blocks) if mine[i] != want[i])
            print(f"not yet: of {k_blocks} blocks, at the products of block {kb}: expected {want[kb]} on their way, got {mine[kb]}")
            return False
    print("right: one stage is being read, the others are filling")
    return True


check()
