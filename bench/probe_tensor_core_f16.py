"""Does the emulator's tensor core agree with the hardware's, bit for bit, where accumulators are float16? About 20 seconds on an H200.

    python bench/probe_tensor_core_f16.py --out bench/results/tensor_core_h200.json

A CTA of one warpgroup for each tile of A[64, 128] @ B[128, 128].T, A in registers, B in shared memory: one wgmma of k = 32 from nothing, one
added to random float16, and four, one behind the other. In the file rows of float32 accumulators (`probe_tensor_core.py`) stay as they are.
"""

from __future__ import annotations

import argparse
import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numba import cuda
from recorded import command

from dgnumba.device import Device
from dgnumba.dtypes import DTYPES
from dgnumba.emu.tensor_core import multiply_add_f16
from dgnumba.integers import u32, u64
from dgnumba.launching import launch, tensor_map
from dgnumba.layouts.descriptors import SmemDescriptor, TensorMap, low_word
from dgnumba.layouts.lanes import wgmma_a_fp8, wgmma_accumulator
from dgnumba.ptx import Imm, Registers, barrier, mbarrier, memory, tma, unrolled, wgmma

E4M3 = DTYPES["float8_e4m3fn"]
ROWS, COLUMNS, K = 64, 128, 128
WORDS = 16  # registers of a thread that hold its part of A
PAIRS = COLUMNS // 4  # and of its accumulators
BYTES = COLUMNS * K
WAYS = {"one step": (1, 0), "one step, added": (1, 1), "four steps": (4, 0)}
"""What is multiplied -> steps of k = 32, and whether the first is added to what the accumulators hold."""


def kernel_of(steps: int, first: int) -> Callable[..., None]:
    """A kernel `(tmap_b, a, start, out)`, a CTA of 128 threads for each tile."""
    mma = wgmma.mma_rs_f16_for("float8_e4m3fn", "float8_e4m3fn", b=SmemDescriptor(swizzle=128))

    @unrolled
    def load(address: u64, count: Imm) -> Registers(lambda sizes: sizes["count"]):
        return tuple(memory.load_global_u32_if(True, address + 4 * i) for i in range(count))

    @unrolled
    def store(registers: Registers, address: u64) -> None:
        for i in range(len(registers)):
            memory.store_global_u32_if(True, address + 4 * i, registers[i])

    @unrolled(tied="acc")
    def products(acc: Registers, frags: Registers, desc: u32) -> Registers:
        wgmma.fence()
        for step in range(steps):
            acc = mma(acc, frags[4 * step : 4 * step + 4], desc + 2 * step, max(first, min(step, 1)))
        wgmma.commit()
        return wgmma.wait_s32(acc, 0)

    def kernel(tmap_b: Any, a: Any, start: Any, out: Any) -> None:
        smem = (memory.shared_address(cuda.shared.array(0, np.uint8)) + 1023) // 1024 * 1024
        tid, tile = u32(cuda.threadIdx.x), u32(cuda.blockIdx.x)
        if tid == 0:
            mbarrier.init(smem + BYTES, 1)
            barrier.fence_mbarrier_init()
        cuda.syncthreads()
        if tid == 0:
            mbarrier.arrive_expect_tx(smem + BYTES, BYTES)
            tma.load_2d(smem, tmap_b, smem + BYTES, u32(0), tile * COLUMNS)
        thread = u64(tile) * 128 + tid
        frags = load(memory.global_address(a) + thread * (4 * WORDS), WORDS)
        acc = load(memory.global_address(start) + thread * (4 * PAIRS), PAIRS)
        mbarrier.wait(smem + BYTES, 0)
        store(products(acc, frags, low_word(smem)), memory.global_address(out) + thread * (4 * PAIRS))

    return kernel


def registers_of_a(codes: np.ndarray) -> np.ndarray:
    """uint32 [128, 16]: what each thread holds of codes [64, 128]."""
    parts = [np.ascontiguousarray(wgmma_a_fp8().gather(np.ascontiguousarray(codes[:, k : k + 32]))) for k in range(0, K, 32)]
    return np.hstack([part.view(np.uint32) for part in parts])


def on_hardware(a: np.ndarray, b: np.ndarray, start: np.ndarray, steps: int, first: int, on_gpu: bool = True) -> np.ndarray:
    """float16 [tiles, 64, 128] of codes [tiles, 64, 128] and [tiles, 128, 128]; in the emulator where there is no GPU."""
    lanes = wgmma_accumulator(COLUMNS)
    words = np.stack([registers_of_a(codes) for codes in a])
    held = np.stack([np.ascontiguousarray(lanes.gather(tile)).view(np.uint32) for tile in start])
    flat, out = np.ascontiguousarray(b.reshape(-1, K)), np.zeros_like(held)
    args: list[Any] = [words, held, out]
    if on_gpu:
        import cupy

        flat, *args = [cupy.asarray(x) for x in (flat, *args)]
    tmap = (tensor_map if on_gpu else TensorMap.of)(flat, (K, COLUMNS), swizzle=128)
    launch(kernel_of(steps, first), len(a), 128, [tmap, *args], smem=1024 + BYTES + 8)
    found = args[-1].get() if on_gpu else out
    return np.stack([lanes.scatter(np.ascontiguousarray(tile).view(np.float16)) for tile in found])


def by_model(a: np.ndarray, b: np.ndarray, start: np.ndarray, steps: int, first: int) -> np.ndarray:
    """The same, by `emu.tensor_core`."""
    x, y = (np.asarray(E4M3.decode(codes), np.float32) for codes in (a, b))
    acc = start if first else None
    for k in range(0, 32 * steps, 32):
        acc = multiply_add_f16(acc, x[:, k : k + 32], y[:, k : k + 32], 1 - E4M3.bias, 1 - E4M3.bias)
    return np.asarray(acc, np.float16)


def encode(x: np.ndarray) -> np.ndarray:
    """Codes of the nearest numbers of e4m3."""
    return np.asarray(E4M3.encode(np.clip(x, -448, 448).astype(np.float32)), np.uint8)


def any_code(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Any finite ones."""
    out = rng.integers(0, 256, shape).astype(np.uint8)
    return np.where(out & 0x7F == 0x7F, out ^ 1, out).astype(np.uint8)


def data(kind: str, tiles: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes of A and B, and what products are added to."""
    of_a, of_b = (tiles, ROWS, K), (tiles, COLUMNS, K)
    if kind == "int4 over 256":  # as the kernel multiplies them
        a, b, size = encode(rng.integers(-8, 8, of_a) / 256), encode(rng.standard_normal(of_b) * 100), 30
    elif kind == "normal":
        a, b, size = encode(rng.standard_normal(of_a) / 5), encode(rng.standard_normal(of_b) * 100), 100
    elif kind == "one sign":
        a, b, size = encode(rng.uniform(0, 0.9, of_a)), encode(rng.uniform(0, 448, of_b)), 9000
    elif kind == "any code of small numbers":
        a, b, size = any_code(rng, of_a) & 0xBF, any_code(rng, of_b) & 0xBF, 1
    else:  # most sums leave the range
        a, b, size = any_code(rng, of_a), any_code(rng, of_b), 20000
    return a, b, np.clip(rng.standard_normal((tiles, ROWS, COLUMNS)) * size, -65504, 65504).astype(np.float16)


KINDS = ("int4 over 256", "normal", "one sign", "any code of small numbers", "any finite code")


def probe(kind: str, tiles: int, rng: np.random.Generator, on_gpu: bool = True) -> list[dict[str, Any]]:
    """A row for each way: how many bits disagree, and the first few that do."""
    a, b, start = data(kind, tiles, rng)
    rows = []
    for way, (steps, first) in WAYS.items():
        got = on_hardware(a, b, start, steps, first, on_gpu)
        want = np.stack([by_model(*tile, steps, first) for tile in zip(a, b, start)])
        bad = np.argwhere(got.view(np.uint16) != want.view(np.uint16))
        examples = [
            {"a": a[t, r, : 32 * steps].tolist(), "b": b[t, c, : 32 * steps].tolist(), "start": float(start[t, r, c]) * first,
             "gpu": float(got[t, r, c]), "model": float(want[t, r, c])}
            for t, r, c in bad[:4]
        ]  # fmt: skip
        rows.append({"accumulators": "float16", "data": kind, "way": way, "tiles": tiles, "elements": got.size,
                     "infinite": int(np.isinf(want).sum()), "unequal": len(bad), "examples": examples})  # fmt: skip
        print(kind, way, tiles, "tiles", got.size, "elements,", len(bad), "unequal", flush=True)
    return rows


def main() -> None:
    """Probe, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tiles", type=int, default=24)
    options = parser.parse_args()
    rng = np.random.default_rng(2026)
    rows = [row for kind in KINDS for row in probe(kind, options.tiles, rng)]
    if options.out:
        head = {"gpu": Device.current().name, "date": datetime.date.today().isoformat(), "command": command()}
        others = json.loads(options.out.read_text()) if options.out.exists() else []
        others = [row for row in others if row.get("accumulators") != "float16"]
        options.out.write_text(json.dumps([*others, *(head | row for row in rows)], indent=1) + "\n")


if __name__ == "__main__":
    main()
