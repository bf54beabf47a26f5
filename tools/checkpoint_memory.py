"""Convert a synthetic checkpoint and say how much memory that took: ``python tools/checkpoint_memory.py --gb 4 --to awq fp8-block bfloat16``.

Makes a .safetensors file of bfloat16 weights (one tensor of a quarter of it, which is then larger
than a slab by far), quantizes it, converts what came out, each in a process of its own, and prints
seconds and peak resident memory (``ru_maxrss``). Exits with 1 where a process took more than --limit.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ml_dtypes
import numpy as np

from dgnumba.checkpoint import TensorSpec, TensorWriter

COLUMNS = 8192
PIECE = 1 << 26
"""Bytes of random weights that are written again and again."""


def make(path: Path, nbytes: int) -> None:
    """A checkpoint of about so many bytes: an embedding of a quarter of it, and layers."""
    rows = nbytes // 2 // COLUMNS
    shapes = {"model.embed_tokens.weight": rows // 4 // 128 * 128}
    layers = max(1, rows * 3 // 4 // 16384)
    shapes |= {f"model.layers.{i}.mlp.up_proj.weight": rows * 3 // 4 // layers // 128 * 128 for i in range(layers)}
    piece = (np.random.default_rng(0).standard_normal(PIECE // 2, np.float32) * 0.02).astype(ml_dtypes.bfloat16).tobytes()
    with TensorWriter(path, [TensorSpec(name, "BF16", (n, COLUMNS)) for name, n in shapes.items()]) as writer:
        for name, n in shapes.items():
            for start in range(0, n * COLUMNS * 2, PIECE):
                writer.write_bytes(name, start, piece[: n * COLUMNS * 2 - start])


_MEASURED = """
import os, subprocess, sys
child = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(child.pid, 0)
print(os.waitstatus_to_exitcode(status), usage.ru_maxrss)
"""
# NOTE: by a small process between: on Linux a peak begins with what the parent had, which exec does not take back.


def measure(*arguments: str) -> tuple[float, float]:
    """(seconds, peak MB) of a command line of dgnumba, in a process of its own."""
    begin = time.perf_counter()
    command = [sys.executable, "-c", _MEASURED, sys.executable, "-m", "dgnumba", *arguments]
    code, peak = map(int, subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.split())
    if code:
        raise SystemExit(f"dgnumba {' '.join(arguments)}: exit status {code}")
    return time.perf_counter() - begin, peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=4.0, help="of the checkpoint")
    parser.add_argument("--limit", type=float, default=1000.0, help="MB that a process may take")
    parser.add_argument(
        "--to", nargs="+", default=["fp8-block", "awq", "bfloat16"], help="a format to quantize to, then formats to convert that to"
    )
    parser.add_argument("--folder", type=Path, help="where the files go; by default that of temporary files")
    chosen = parser.parse_args()
    worst = 0.0
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        before = Path(folder) / "0.safetensors"
        make(before, int(chosen.gb * 1e9))
        for number, form in enumerate(chosen.to, 1):
            after = Path(folder) / f"{number}.safetensors"
            command = "quantize" if number == 1 else "convert"
            embeddings = ["--exclude", "nothing"] if number == 1 else []
            size = before.stat().st_size / 1e9
            seconds, peak = measure(command, str(before), str(after), "--to", form, *embeddings)
            print(
                f"{command} to {form}: {size:.2f} GB -> {after.stat().st_size / 1e9:.2f} GB, {seconds:.0f} s, peak {peak:.0f} MB",
                flush=True,
            )
            worst = max(worst, peak)
            before.unlink()
            before = after
    return int(worst > chosen.limit)


if __name__ == "__main__":
    sys.exit(main())
