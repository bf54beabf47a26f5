"""Casts of a NumPy array on the host beside ml_dtypes' own: what a quantizer must not be slower than.

    python bench/bench_host_casts.py

The rival is the least that any cast by ml_dtypes does: the largest magnitude of each group of 128, and `x.astype` of the element type, without
the scaling in between. Calls take turns; the best of `--rounds` of each. No GPU.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from dgnumba import quant

GROUP = 128


def by_ml_dtypes(x: Any, dtype: Any) -> tuple[Any, Any]:
    """Group maxima, and codes of what is not even scaled."""
    return np.abs(x).reshape(len(x), -1, GROUP).max(axis=2), x.astype(dtype)


def cases() -> dict[str, tuple[Callable[[Any], Any], Any]]:
    """Name -> ours, and the type that the rival casts to."""
    fp8, int4 = ml_dtypes.float8_e4m3fn, ml_dtypes.int4
    return {
        "per_token_cast_to_fp8": (quant.per_token_cast_to_fp8, fp8),
        "per_block_cast_to_fp8": (quant.per_block_cast_to_fp8, fp8),
        "quantize int4_g128": (lambda x: quant.quantize(x, "int4_g128"), int4),
        "quantize mxfp8": (lambda x: quant.quantize(x, "mxfp8"), fp8),
        "quantize mxfp4": (lambda x: quant.quantize(x, "mxfp4"), ml_dtypes.float4_e2m1fn),
    }


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    x = rng.standard_normal((options.size, options.size), np.float32)
    print(
        f"{options.size} x {options.size} float32, best of {options.rounds}, {len(os.sched_getaffinity(0))} cores, {platform.processor()}"
    )
    slower = 0
    for dtype in (np.float32, ml_dtypes.bfloat16):
        held = x.astype(dtype)
        for name, (ours, element) in cases().items():
            best = {"ours": float("inf"), "ml_dtypes": float("inf")}
            for turn in range(options.rounds + 1):
                for which, call in (("ours", ours), ("ml_dtypes", lambda x, element=element: by_ml_dtypes(x, element))):
                    begin = time.perf_counter()
                    call(held)
                    if turn:  # the first compiles
                        best[which] = min(best[which], time.perf_counter() - begin)
            slower += best["ours"] > best["ml_dtypes"]
            times = ", ".join(f"{which} {seconds * 1e3:.0f} ms" for which, seconds in best.items())
            print(f"{name:24} {np.dtype(dtype).name:9} {times}: {best['ml_dtypes'] / best['ours']:.2f}x", flush=True)
    return slower


if __name__ == "__main__":
    raise SystemExit(main())
