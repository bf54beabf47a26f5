"""A small set of products for compute-sanitizer: every way to store, clusters, ragged edges, views; each checked against the oracle.

    compute-sanitizer --tool memcheck python tests/gpu/sanitizer_set.py
    compute-sanitizer --tool synccheck python tests/gpu/sanitizer_set.py

Each array is an allocation of its own, by cudaMalloc and without a pool, so that memcheck sees an access one byte outside of it.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import numpy as np  # noqa: E402
from cases import plan, resident, skinny, skinny_rs, swapped, with_all_stages  # noqa: E402

from dgnumba import api  # noqa: E402
from dgnumba.quant.reference import exact_integer_reference  # noqa: E402
from dgnumba.testing import assert_bits_equal, exact_problem  # noqa: E402

SET = [
    (plan(16, 16), 1, 1, 1),
    (plan(16, 144, share="A"), 17, 300, 257),
    (plan(32, 176), 33, 200, 130),
    (plan(64, 64, epilogue="warp"), 65, 72, 300),
    (plan(64, 128, epilogue="direct"), 65, 131, 300),
    (plan(128, 128, 4), 300, 260, 1000),
    (plan(128, 192, 4, share="B", epilogue="warp"), 300, 200, 500),
    (plan(256, 128, 3), 513, 130, 400),
    (plan(256, 128, share="A", epilogue="warp"), 513, 264, 400),
    (plan(256, 64, share="B", epilogue="direct"), 600, 65, 400),
    (plan(256, 128, share="A", epilogue="warp", rotate=True, overlap=True), 2000, 4096, 300),
    (plan(16, 16, rotate=True, overlap=True), 700, 900, 130),
    (swapped(8, 128, split=4), 5, 200, 1100),
    (swapped(64, 64, block_k=256), 60, 100, 1024),
    (swapped(48, 128, d_dtype="float32"), 40, 300, 700),
    (resident(16), 9, 40000, 512),
    (resident(64, held=10), 60, 200, 1280),
    (skinny(8, 2, 16), 1, 2112, 7168),
    (skinny(8, 4, 2, block_n=64), 7, 100, 640),
    (skinny_rs(8, 2, 4), 5, 2112, 7168),
    (skinny_rs(16, 3, 2, block_n=64), 16, 100, 640),
    (skinny_rs(32, 1, 2, block_n=32, d_dtype="float32"), 27, 100, 1280),
]


def main() -> int:
    import cupy

    from dgnumba.kernels import KERNELS

    cupy.cuda.set_allocator(None)
    known = {kernel.NAME for kernel in KERNELS}
    done = 0
    for number, (chosen, m, n, k) in enumerate(SET):
        if chosen.kernel not in known:
            continue
        chosen = with_all_stages(chosen) if chosen.num_stages < 3 and not chosen.warps else chosen
        case = exact_problem(np.random.default_rng(number), m, n, k, chosen.d_dtype)
        operands = [cupy.asarray(np.ascontiguousarray(x).view(np.uint8) if x.dtype.itemsize == 1 else x) for x in (*case.a, *case.b)]
        item = case.problem.d_dtype.itemsize
        d = cupy.full((m, n), 0, cupy.float32 if item == 4 else cupy.uint16)
        api.fp8_gemm_nt(operands[:2], operands[2:], d, plan=chosen)
        cupy.cuda.Device().synchronize()
        expected = exact_integer_reference(*case.a, *case.b, chosen.d_dtype)
        got = d.get()
        assert_bits_equal(got if item == 4 else got.view(expected.dtype), expected, f"{chosen.name} {m}x{n}x{k}")
        done += 1
    print(f"{done} products, all bit-equal to the oracle")
    return 0


if __name__ == "__main__":
    sys.exit(main())
