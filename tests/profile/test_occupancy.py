"""CTAs of a multiprocessor, by hand: 65,536 registers in four parts, 228 KB of shared memory, 64 warps, 32 CTAs."""

import pytest

from dgnumba.device import Device
from dgnumba.errors import UnsupportedError
from dgnumba.profile import occupancy

H200 = Device.named("h200")


@pytest.mark.parametrize(
    ("threads", "registers", "smem", "ctas", "limit"),
    [
        (384, 168, 217520, 1, "shared memory"),  # the FP8 kernel; registers alone: 3 warps in each of four parts are 12, one CTA
        (384, 168, 0, 1, "registers"),
        (128, 255, 1024, 2, "registers"),  # 8192 a warp: two in each part of 16384
        (128, 64, 56 * 1024, 4, "shared memory"),  # 57 KB with what the system keeps: 4 in 228
        (1024, 32, 0, 2, "registers"),  # 16 warps of 1024 registers in each part
        (32, 16, 0, 32, "CTAs"),
        (256, 16, 0, 8, "warps"),
    ],
)
def test_what_runs_out_first(threads, registers, smem, ctas, limit):
    found = occupancy(H200, threads=threads, registers=registers, smem_bytes=smem)
    assert (found.ctas, found.limit) == (ctas, limit)
    assert found.warps == ctas * threads // 32


def test_other_gpus_have_other_limits():
    ctas = {cc: occupancy(Device("GPU", cc=cc), threads=32, registers=16, smem_bytes=0).ctas for cc in ((8, 0), (8, 6), (8, 9), (9, 0))}
    assert ctas == {(8, 0): 32, (8, 6): 16, (8, 9): 24, (9, 0): 32}
    assert occupancy(Device("GPU", cc=(8, 6)), threads=128, registers=64, smem_bytes=48 * 1024).ctas == 2  # 49 KB each in 100


def test_a_gpu_whose_limits_are_not_known_is_refused():
    with pytest.raises(UnsupportedError, match="expected a GPU of compute capability 8.0, .* got Volta of 7.0"):
        occupancy(Device("Volta", cc=(7, 0)), threads=128, registers=64, smem_bytes=0)
