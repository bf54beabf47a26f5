"""Which ceiling binds, in one sentence, from numbers made for it."""

import pytest

from dgnumba.profile import Measured, verdict

PEAKS = {"peak_flops": 1e15, "peak_bytes": 4e12}


def measured(us, tensor, memory, launch_us=2.0):
    """A call of `us` that reaches these shares of the ceilings."""
    return Measured(us, tensor * 1e15 * us * 1e-6, memory * 4e12 * us * 1e-6, launch_us=launch_us, **PEAKS)


@pytest.mark.parametrize(
    ("call", "waves", "words"),
    [
        (measured(100, 0.93, 0.20), 3.9, "The tensor cores bind: 93 %"),
        (measured(30, 0.10, 0.85), 1.0, "Memory binds: 85 %"),
        (measured(100, 0.90, 0.88), 4.0, "Both bind: the tensor cores are at 90 % of their ceiling and memory at 88 %"),
        (measured(6, 0.20, 0.40, launch_us=3.0), 1.0, "latency does: an empty kernel takes 50 % of this time"),
        (measured(20, 0.30, 0.30), 0.25, "the number of tiles does: 75 % of the multiprocessors have none"),
        (measured(100, 0.55, 0.30), 1.1, "the last round of tiles does: 45 % of the multiprocessors' time has no tile"),
        (measured(100, 0.60, 0.30), 4.0, "what lies between them does"),
    ],
)
def test_what_binds(call, waves, words):
    said = verdict(call, waves=waves)
    assert words in said
    assert said.count(".") == 1 and said.endswith(".")


def test_rates_are_those_of_the_units():
    call = Measured(us=100, flops=1.2e11, bytes=8e7, launch_us=2, **PEAKS)
    assert (call.tflops, call.gbytes) == pytest.approx((1200, 800), rel=1e-12)
    assert (call.tensor_share, call.memory_share, call.launch_share) == pytest.approx((1.2, 0.2, 0.02), rel=1e-12)


@pytest.mark.parametrize(("memory", "words"), [(0.9, "Memory binds: 90 %"), (0.3, "Memory does not bind: 30 %")])
def test_without_a_ceiling_of_products_only_memory_is_judged(memory, words):
    call = Measured(us=10, flops=1e9, bytes=memory * 4e12 * 1e-5, peak_flops=None, peak_bytes=4e12, launch_us=2)
    assert verdict(call, waves=1.0).startswith(words)
    assert call.tensor_share is None
