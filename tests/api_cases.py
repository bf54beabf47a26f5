"""Calls of fp8_gemm_nt that the tests of the API share: legal ones of ones, and one bad one of each kind."""

import ml_dtypes
import numpy as np
import pytest
from cases import plan

from dgnumba.errors import DTypeError, PlanError, ProblemError

E4M3, BF16 = ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16
BOTH = ["host", "emulator"]
on = pytest.mark.parametrize("on", BOTH)


def ones(m, n, k, sfa=1.0, sfb=1.0):
    """Operands of which every code is 1.0: `((a, sfa), (b, sfb))`."""
    blocks = -(-k // 128)
    a, b = np.full((m, k), 0x38, np.uint8).view(E4M3), np.full((n, k), 0x38, np.uint8).view(E4M3)
    sfa = np.broadcast_to(np.float32(sfa), (m, blocks)).copy()
    sfb = np.broadcast_to(np.float32(sfb), (-(-n // 128), blocks)).copy()
    return (a, sfa), (b, sfb)


def full(shape, dtype=BF16, value=-7):
    return np.full(shape, value, dtype)


def bad_calls():
    """Name -> (changes to a legal call, error, message): one of each kind; `test_problem` has them all."""
    a, sfa, b, sfb = (x for pair in ones(4, 6, 256) for x in pair)
    nan = sfa.copy()
    nan[2, 1] = np.nan
    negative = sfb.copy()
    negative[0, 0] = -1
    read_only = full((4, 6))
    read_only.flags.writeable = False
    return {
        "no pair": ({"a": a}, DTypeError, r"a: expected a QTensor or a pair \(data, scale\), got float8_e4m3fn \[4, 256\]"),
        "dtype": ({"a": (a.astype(np.float32), sfa)}, DTypeError, "a: expected float8_e4m3fn .*, got float32"),
        "rank": ({"b": (b[0], sfb)}, ProblemError, r"b: expected rank 2, \[N, K\], got \[256\]"),
        "shape": ({"b": (b[:, :100], sfb)}, ProblemError, r"b: expected \[N, 256\] \(K = 256 as in a\), got \[6, 100\]"),
        "scale shape": ({"a": (a, sfa.T.copy())}, ProblemError, r"sfa: expected float32 \[4, 2\] .*, got float32 \[2, 4\]; transposed\?"),
        "scale dtype": ({"b": (b, sfb.astype(np.float64))}, DTypeError, "sfb: expected float32 scales, or int32 of four UE8M0 each, got float64"),
        "NaN scale": ({"a": (a, nan)}, ProblemError, r"sfa: expected finite scales of 0 or more, got nan at \[2, 1\]"),
        "negative scale": ({"b": (b, negative)}, ProblemError, r"sfb: expected finite scales of 0 or more, got -1 at \[0, 0\]"),
        "output shape": ({"d": full((6, 4))}, ProblemError, r"d: expected \[M, N\] = \[4, 6\], got \[6, 4\]; transposed\?"),
        "output dtype": ({"d": full((4, 6), np.int16)}, DTypeError, "d: expected bfloat16 .* or float32, got int16"),
        "read-only output": ({"d": read_only}, ProblemError, "d: expected an array that can be written, got a read-only one"),
        "c's dtype": ({"c": full((4, 6), np.float32)}, DTypeError, "c: expected bfloat16 as d, got float32"),
        "c's shape": ({"c": full((4, 7))}, ProblemError, r"c: expected \[M, N\] = \[4, 6\] as d, got \[4, 7\]"),
        "place": ({"on": "gpu"}, ProblemError, "on: expected 'cuda', 'host' or 'emulator', got 'gpu'"),
        "host arrays on cuda": ({"on": "cuda"}, ProblemError, "on: 'cuda' needs arrays on a GPU, got arrays in host memory"),
        "plan of another output": (
            {"plan": plan(64, 64, epilogue="direct"), "on": "emulator"}, PlanError, "is for d of float32, got bfloat16",
        ),
        "plan that does not fit": (
            {"plan": plan(128, 128, 40), "on": "emulator"}, PlanError, "needs .* bytes of shared memory, NVIDIA H200 has 232448",
        ),
    }  # fmt: skip


BAD = bad_calls()
