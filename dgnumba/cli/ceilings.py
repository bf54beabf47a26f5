"""What this GPU gives at most, measured now: products without loads, reads without products, and an empty launch."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import launching
from ..device import Device
from ..dtypes import DTYPES
from ..integers import u32
from ..kernels import sm90_ceilings as kernels
from . import gpu

ROUNDS = 2000  # a millisecond or so: long enough that the clock has settled where products hold it
READ_ROUNDS = 64
RUNS = 5


def tensor() -> float | None:
    """Floating-point operations a second of FP8 products whose operands stay in shared memory, on random data; None if the GPU is not Hopper's."""
    import cupy

    device = Device.current()
    if device.cc != (9, 0):
        return None
    values = np.random.default_rng(0).standard_normal(kernels.OPERAND_WORDS * 4)
    operands = cupy.asarray(DTYPES["float8_e4m3fn"].encode(values.astype(np.float32)).view(np.uint32))
    out = cupy.zeros((device.num_sms, kernels.THREADS), cupy.float32)
    kernel = kernels.tensor_kernel()

    def call() -> None:
        launching.launch(kernel, device.num_sms, kernels.THREADS, (operands, out, u32(ROUNDS)), smem=kernels.SMEM_BYTES)

    return device.num_sms * ROUNDS * kernels.FLOPS_PER_ROUND / gpu.seconds(call, RUNS, flush=False)


def memory() -> float:
    """Bytes a second of reading memory that is in no cache."""
    import cupy

    device = Device.current()
    ctas = 8 * device.num_sms
    nbytes = ctas * kernels.THREADS * kernels.READ_BYTES * READ_ROUNDS
    data, out = cupy.zeros(nbytes // 4, cupy.uint32), cupy.zeros(ctas * kernels.THREADS, cupy.uint32)
    kernel = kernels.read_kernel()
    return nbytes / gpu.seconds(lambda: launching.launch(kernel, ctas, kernels.THREADS, (data, out, u32(READ_ROUNDS))), RUNS)


def launch() -> float:
    """Seconds of a kernel that reads nothing and stores one word a thread of one CTA."""
    import cupy

    data, out = cupy.zeros(1, cupy.uint32), cupy.zeros(kernels.THREADS, cupy.uint32)
    kernel: Any = kernels.read_kernel()
    return gpu.seconds(lambda: launching.launch(kernel, 1, kernels.THREADS, (data, out, u32(0))), RUNS)
