"""Does the emulator's tensor core agree with the hardware's, bit for bit? Random FP8 codes through one block of K on the GPU and through the model.

    python bench/probe_tensor_core.py --out bench/results/tensor_core_h200.json

Each tile is 64 x 128 elements of A[64, 128] @ B[128, 128].T with scales of 1 and float32 output: four wgmmas of k = 32 from zero. Three kinds
of data: every finite code alike, normal data as a quantizer gives it, and values of one sign. What disagrees is counted, and the first few
are kept.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import datetime
import json
import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
from recorded import command

import dgnumba
from dgnumba.dtypes import DTYPES
from dgnumba.emu.tensor_core import multiply_add

E4M3 = DTYPES["float8_e4m3fn"]


def codes(kind: str, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Random e4m3 codes."""
    if kind == "any finite code":
        out = rng.integers(0, 256, shape).astype(np.uint8)
        return np.where(out & 0x7F == 0x7F, out ^ 1, out).astype(np.uint8)
    x = rng.standard_normal(shape) if kind == "normal" else rng.uniform(0, 1, shape)
    return np.asarray(E4M3.encode((x / np.abs(x).max(1, keepdims=True) * 448).astype(np.float32)), np.uint8)


def model(pair: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """The emulator's answer for one tile."""
    a, b = (np.asarray(E4M3.decode(x), np.float32) for x in pair)
    acc = None
    for k in range(0, a.shape[1], 32):
        acc = multiply_add(acc, a[:, k : k + 32], b[:, k : k + 32], 1 - E4M3.bias, 1 - E4M3.bias)
    return np.asarray(acc, np.float32)


def main() -> None:
    """Probe, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--size", type=int, default=5376)
    options = parser.parse_args()
    import cupy

    rng = np.random.default_rng(2026)
    rows: list[dict[str, Any]] = []
    with concurrent.futures.ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        for kind in ("any finite code", "normal", "one sign"):
            a, b = codes(kind, (options.size, 128), rng), codes(kind, (options.size, 128), rng)
            ones_a, ones_b = cupy.ones((options.size, 1), cupy.float32), cupy.ones((options.size // 128, 1), cupy.float32)
            d = cupy.empty((options.size, options.size), cupy.float32)
            dgnumba.fp8_gemm_nt((cupy.asarray(a), ones_a), (cupy.asarray(b), ones_b), d)
            got = cupy.asnumpy(d)
            tiles = [(i, j) for i in range(0, options.size, 64) for j in range(0, options.size, 128)]
            answers = pool.map(model, [(a[i : i + 64], b[j : j + 128]) for i, j in tiles], chunksize=4)
            unequal, examples = 0, []
            for (i, j), want in zip(tiles, answers):
                have = got[i : i + 64, j : j + 128]
                bad = np.argwhere(have.view(np.uint32) != want.view(np.uint32))
                unequal += len(bad)
                for r, c in bad[: max(0, 4 - len(examples))]:
                    examples.append({"a": a[i + r].tolist(), "b": b[j + c].tolist(), "gpu": float(have[r, c]), "model": float(want[r, c])})
            rows.append({"data": kind, "tiles": len(tiles), "elements": got.size, "unequal": unequal, "examples": examples})
            print(kind, len(tiles), "tiles", got.size, "elements,", unequal, "unequal", flush=True)
    if options.out:
        gpu = dgnumba.Device.current().name
        head = {"gpu": gpu, "date": datetime.date.today().isoformat(), "command": command()}
        others = json.loads(options.out.read_text()) if options.out.exists() else []
        others = [row for row in others if row.get("accumulators") == "float16"]  # of probe_tensor_core_f16.py
        options.out.write_text(json.dumps([*(head | row for row in rows), *others], indent=1) + "\n")


if __name__ == "__main__":
    main()
