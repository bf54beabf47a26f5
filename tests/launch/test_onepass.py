"""The launch of a cast on a (fake) GPU: the kernel is compiled once, and its parameters, grid and stream arrive."""

import struct

import pytest

from dgnumba import _numba, onepass
from dgnumba.assemble import find_ptxas
from dgnumba.device import Device
from dgnumba.errors import ProblemError
from dgnumba.kernels import smxx_cast_rules
from dgnumba.kernels.smxx_cast_rules import CastPlan

pytestmark = pytest.mark.skipif(not _numba.HAVE_NUMBA_CUDA or find_ptxas() is None, reason="needs numba-cuda and ptxas")


def test_parameters_grid_and_stream_arrive(fake_driver, fake_cupy, fresh_cache):
    plan = CastPlan("token", "bfloat16")
    fake_driver.sizes = [8] * 7 + [4] * 2
    x = fake_cupy.ndarray(0x1000, (20, 1024))
    for stream, used in ((None, 0x70), (0x99, 0x99)):
        fake_cupy.streams[0] = 0x70
        with onepass.queued(x, x, stream) as handle:
            args = [0x1000, -2048, 2, 0x2000, 0x3000, 32, 4, 20, 1024]
            onepass.launch(plan, smxx_cast_rules, smxx_cast_rules.grid(plan, 20, 1024), args, (x,), Device.numbered(0), handle, "eager")
        done = fake_driver.launches[-1]
        assert (done.grid, done.block, done.smem, done.stream) == ((2, 3, 1), (256, 1, 1), 0, used)
        values = [struct.unpack("<Q", v.ljust(8, b"\0"))[0] for v in done.values]
        assert values == [0x1000, 2**64 - 2048, 2, 0x2000, 0x3000, 32, 4, 20, 1024]
    assert len(fake_driver.loaded) == 1


def test_on_has_to_fit_to_where_the_array_is(fake_driver, fake_cupy):
    x = fake_cupy.ndarray(0x1000, (20, 1024), device=1)
    assert onepass.machine(x, None).index == onepass.machine(x, "cuda").index == 1
    with pytest.raises(
        ProblemError, match="on: expected 'cuda' for arrays on a GPU or 'emulator' for host memory, got 'emulator' for x in GPU 1"
    ):
        onepass.machine(x, "emulator")
