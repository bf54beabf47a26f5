"""A small warp-specialised kernel, D = A @ B.T in FP8 with TMA, mbarriers, wgmma and a TMA store, from which any one step can be left out.

`leave_out` names the step. One CTA, or a cluster of two that share A by multicast; each CTA works off `tiles` through a ring of two stages.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numba import cuda

from dgnumba import emu
from dgnumba.integers import u32
from dgnumba.layouts.descriptors import SmemDescriptor, TensorMap, low_word
from dgnumba.ptx import barrier, fragment, mbarrier, memory, thread, tma, wgmma

M, N, K_BLOCKS, STAGES = 64, 8, 3, 2
A_BYTES, B_BYTES, D_BYTES = M * 128, N * 128, M * N * 4
A, B, D = 0, STAGES * A_BYTES, STAGES * (A_BYTES + B_BYTES)
FULL = D + D_BYTES
EMPTY = FULL + 8 * STAGES
SMEM = EMPTY + 8 * STAGES
LABELS = (
    {A: "a", B: "b", D: "d"} | {FULL + 8 * s: f"full[{s}]" for s in range(STAGES)} | {EMPTY + 8 * s: f"empty[{s}]" for s in range(STAGES)}
)

mma = wgmma.mma_for("float8_e4m3fn", "float8_e4m3fn", a=SmemDescriptor(swizzle=128), b=SmemDescriptor(swizzle=128))

STEPS = [
    "init_full", "init_empty", "fence_mbarrier_init", "sync_start", "wait_empty", "expect", "load_a", "load_b", "wait_full",
    "fence_wgmma", "commit_wgmma", "wait_wgmma", "arrive_empty", "wait_store", "sync_before_d", "fence_proxy", "sync_after_d", "commit_store",
    "wait_last_store",
]  # fmt: skip
CLUSTER_STEPS = ["sync_end"]


def build(
    leave_out: str = "", cluster: int = 1, tiles: int = 2, more_bytes: int = 0, fewer_arrivals: int = 0, parity: int = 0, stage_off: int = 0
) -> Any:
    """The kernel without the step `leave_out`, or with a number in it that is wrong: what is expected, counted, or waited for."""
    has = {step: step != leave_out for step in STEPS + CLUSTER_STEPS}
    assert leave_out in has or not leave_out
    INIT_FULL, INIT_EMPTY, FENCE_INIT, SYNC_START = (has[s] for s in ("init_full", "init_empty", "fence_mbarrier_init", "sync_start"))
    WAIT_EMPTY, EXPECT, LOAD_A, LOAD_B, WAIT_FULL = (has[s] for s in ("wait_empty", "expect", "load_a", "load_b", "wait_full"))
    FENCE, COMMIT, WAIT, ARRIVE = (has[s] for s in ("fence_wgmma", "commit_wgmma", "wait_wgmma", "arrive_empty"))
    WAIT_STORE, SYNC_BEFORE, FENCE_PROXY, SYNC_AFTER = (has[s] for s in ("wait_store", "sync_before_d", "fence_proxy", "sync_after_d"))
    COMMIT_STORE, WAIT_LAST, SYNC_END = (has[s] for s in ("commit_store", "wait_last_store", "sync_end"))
    CLUSTER, TILES = cluster, tiles

    def produce(smem, tmap_a, tmap_b):  # type: ignore[no-untyped-def]
        rank = thread.cluster_ctarank()
        count = u32(0)
        for tile in range(TILES):
            for k in range(K_BLOCKS):
                stage = count % STAGES
                full = smem + FULL + stage * 8
                if WAIT_EMPTY:
                    mbarrier.wait(smem + EMPTY + stage * 8, (count // STAGES & 1) ^ 1)
                if EXPECT:
                    mbarrier.arrive_expect_tx(full, A_BYTES + B_BYTES + more_bytes)
                if LOAD_A:
                    if CLUSTER == 2:
                        half = A_BYTES // 2
                        tma.load_2d_multicast(smem + A + stage * A_BYTES + rank * half, tmap_a, full, u32(k * 128), rank * (M // 2), u32(3))
                    else:
                        tma.load_2d(smem + A + stage * A_BYTES, tmap_a, full, u32(k * 128), u32(0))
                if LOAD_B:
                    tma.load_2d(smem + B + stage * B_BYTES, tmap_b, full, u32(k * 128), (rank * TILES + tile) * N)
                count += 1

    def release(smem, stage):  # type: ignore[no-untyped-def]
        lane = thread.lane_idx()
        if CLUSTER == 2:
            mbarrier.arrive_cluster_if(lane < 2, smem + EMPTY + stage * 8, lane)
        else:
            mbarrier.arrive_if(lane == 0, smem + EMPTY + stage * 8)

    def consume(smem, tmap_d):  # type: ignore[no-untyped-def]
        rank = thread.cluster_ctarank()
        tid = u32(cuda.threadIdx.x)
        count = u32(0)
        acc = fragment.zero(N // 2)
        for tile in range(TILES):
            for k in range(K_BLOCKS):
                stage = count % STAGES
                if WAIT_FULL:
                    mbarrier.wait(smem + FULL + stage * 8, (count // STAGES & 1) ^ parity)
                from_stage = (stage + stage_off) % STAGES
                desc_a, desc_b = low_word(smem + A + from_stage * A_BYTES), low_word(smem + B + from_stage * B_BYTES)
                if FENCE:
                    wgmma.fence()
                for step in range(4):
                    acc = mma(acc, desc_a + 2 * step, desc_b + 2 * step, int(k + step > 0))
                if COMMIT:
                    wgmma.commit()
                if WAIT:
                    acc = wgmma.wait(acc, 0)
                if ARRIVE:
                    release(smem, stage)
                count += 1
            if WAIT_STORE:
                tma.wait_read(0)
            if SYNC_BEFORE:
                barrier.sync(u32(1), u32(128))
            row = tid // 32 * 16 + tid % 32 // 4
            for i in range(N // 2):
                at = smem + D + ((row + i % 4 // 2 * 8) * N + i // 4 * 8 + tid % 4 * 2 + i % 2) * 4
                memory.store_shared_f32(at, acc[i])
            if FENCE_PROXY:
                barrier.fence_proxy_async()
            if SYNC_AFTER:
                barrier.sync(u32(1), u32(128))
            if tid == 0:
                tma.store_2d(tmap_d, smem + D, (rank * TILES + tile) * N, u32(0))
                if COMMIT_STORE:
                    tma.commit()
        if WAIT_LAST:
            tma.wait_read(0)

    @cuda.jit
    def kernel(tmap_a, tmap_b, tmap_d):  # type: ignore[no-untyped-def]
        smem = memory.shared_address(cuda.shared.array(0, np.uint8))
        if cuda.threadIdx.x == 0:
            for stage in range(STAGES):
                if INIT_FULL:
                    mbarrier.init(smem + FULL + stage * 8, 1)
                if INIT_EMPTY:
                    mbarrier.init(smem + EMPTY + stage * 8, 4 * CLUSTER - fewer_arrivals)
            if FENCE_INIT:
                barrier.fence_mbarrier_init()
        if SYNC_START:
            if CLUSTER == 2:
                barrier.cluster_arrive()
                barrier.cluster_wait()
            else:
                cuda.syncthreads()
        if cuda.threadIdx.x < 128:
            consume(smem, tmap_d)
        elif cuda.threadIdx.x == 128:
            produce(smem, tmap_a, tmap_b)
        if CLUSTER == 2:
            if SYNC_END:
                barrier.cluster_arrive()
                barrier.cluster_wait()

    return kernel


def run(leave_out: str = "", cluster: int = 1, policy: str = "eager", tiles: int = 2, **wrong: int) -> tuple[np.ndarray, np.ndarray]:
    """Run it on small random integers; returns what it gave and what is right."""
    rng = np.random.default_rng(7)
    columns = N * tiles * cluster
    a, b = (rng.integers(-4, 5, (rows, 128 * K_BLOCKS)).astype(np.float32) for rows in (M, columns))
    a8, b8 = (x.astype(ml_dtypes.float8_e4m3fn) for x in (a, b))
    d = np.full((M, columns), -7, np.float32)
    maps = (
        TensorMap.of(a8, (128, M // cluster), swizzle=128),
        TensorMap.of(b8, (128, N), swizzle=128),
        TensorMap.of(d, (N, M)),
    )
    emu.run(build(leave_out, cluster, tiles, **wrong), cluster, 160, maps, smem=SMEM, cluster=cluster, policy=policy, labels=LABELS)
    return d, a @ b.T
