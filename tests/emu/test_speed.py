"""How long the emulator takes for the real kernel: processor time, so that a loaded machine does not matter much."""

import sys
import time
from pathlib import Path

import pytest

from dgnumba import lab

BENCH = str(Path(__file__).parents[2] / "bench")

sys.path.insert(0, BENCH)  # its scripts are no package
from bench_emulator import TARGETS, operands  # noqa: E402

sys.path.remove(BENCH)


@pytest.mark.full
@pytest.mark.parametrize("shape", TARGETS, ids=str)
def test_the_fp8_kernel_is_stepped_in_the_time_it_may_take(shape):
    call = lab.emulated(*operands(*shape))
    lab.emulated(*operands(16, 32, 128)).run()
    begin = time.process_time()
    call.run()
    assert time.process_time() - begin <= TARGETS[shape]
