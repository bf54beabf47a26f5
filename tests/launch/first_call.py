"""A process's first `fp8_gemm_nt` on a GPU that is not there, and the same call again: prints the modules that the first imported, and what the
driver was asked.

python tests/launch/first_call.py M N K [row-major]      (A's scales MN-major, or row-major; DGNUMBA_CACHE_DIR names the cache)
"""

import json
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

BEFORE = set(sys.modules)
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

import fake_cupy  # noqa: E402
import numpy as np  # noqa: E402
from conftest import FakeDriver  # noqa: E402
from cuda.bindings import driver as real  # noqa: E402

from dgnumba.driver import context  # noqa: E402


def install():
    """A driver and a CuPy; the driver."""
    driver = FakeDriver(real)
    driver.current.device = 0
    context._api = driver
    cupy = fake_cupy.build()
    cupy.ndarray.data = property(lambda self: SimpleNamespace(ptr=self._held.ctypes.data, device_id=0))
    cupy.cuda.get_current_stream = lambda index=-1: SimpleNamespace(ptr=0)
    cupy.cuda.Device = lambda index: nullcontext()
    cupy.cuda.Stream = SimpleNamespace(null=nullcontext())
    sys.modules["cupy"] = cupy
    return driver


def operands(m, n, k, is_row_major):
    """a, b and d, at multiples of 16 bytes, with B's scales as the kernel reads them."""

    def array(shape, dtype):
        memory = np.zeros(int(np.prod(shape)) * np.dtype(dtype).itemsize + 16, np.uint8)
        begin = -memory.ctypes.data % 16
        return memory[begin : begin + memory.size - 16].view(dtype).reshape(shape)

    m4, k_blocks = -(-m // 4) * 4, -(-k // 128)
    sfa = array((m, k_blocks), np.float32) if is_row_major else array((k_blocks, m4), np.float32)[:, :m].T
    sfb = array((-(-n // 128), -(-k_blocks // 4) * 4), np.float32)[:, :k_blocks]
    held = array((m, k), np.uint8), sfa, array((n, k), np.uint8), sfb, array((m, n), np.float32)
    a, sfa, b, sfb, d = map(fake_cupy.ndarray.of, held)
    return (a, sfa), (b, sfb), d


def main():
    m, n, k = map(int, sys.argv[1:4])
    driver = install()
    a, b, d = operands(m, n, k, sys.argv[4:] == ["row-major"])
    began = time.process_time()
    import dgnumba

    dgnumba.fp8_gemm_nt(a, b, d)
    took = time.process_time() - began
    facts = {
        "modules": sorted(set(sys.modules) - BEFORE),
        "cpu_s": took,
        "launches": [(launch.grid, launch.block, launch.smem) for launch in driver.launches],
        "code": [code[:4].hex() for code in driver.loaded],
    }
    checked, check = [], dgnumba.api.check_fp8_gemm_nt
    dgnumba.api.check_fp8_gemm_nt = lambda *args, **more: checked.append(None) or check(*args, **more)
    dgnumba.fp8_gemm_nt(a, b, d)
    facts["again"] = {"launches": len(driver.launches) - len(facts["launches"]), "is_quick": not checked}
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
