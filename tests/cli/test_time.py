"""How a call's work is timed, on a GPU that is played: what the host takes to prepare the call does not count."""

import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

from dgnumba.cli import gpu

WORK, READ = 20e-6, gpu._FLUSH_BYTES / 4.3e12  # seconds, an H200's


class PlayedGpu:
    """Work queued at a moment of the host begins when it is queued, or when what was queued before has ended."""

    def __init__(self, a_read=READ):
        self.free_at, self.reads, self.a_read = 0.0, 0, a_read
        self.float32 = np.float32
        stream = SimpleNamespace(synchronize=self.wait)
        self.cuda = SimpleNamespace(Event=self.event, get_elapsed_time=lambda a, b: (b.at - a.at) * 1e3, get_current_stream=lambda: stream)

    def zeros(self, size, dtype):
        return SimpleNamespace(sum=self.read)

    def read(self):
        self.reads += 1
        self.queue(self.a_read)

    def queue(self, seconds):
        self.free_at = max(self.free_at, time.perf_counter()) + seconds

    def wait(self):
        time.sleep(max(0.0, self.free_at - time.perf_counter()))

    def event(self):
        made = SimpleNamespace(at=0.0, synchronize=self.wait)
        made.record = lambda: setattr(made, "at", max(self.free_at, time.perf_counter()))
        return made


@pytest.mark.parametrize("host, a_read", [(0.0, READ), (2e-3, READ), (2e-3, READ / 5)])
def test_what_the_host_takes_is_covered(monkeypatch, host, a_read):
    """However fast the GPU reads."""
    played = PlayedGpu(a_read)
    monkeypatch.setitem(sys.modules, "cupy", played)

    def call():
        time.sleep(host)
        played.queue(WORK)

    assert gpu.seconds(call, 5) == pytest.approx(WORK, rel=0.01)
    assert played.reads >= 6 * max(1, host / a_read)


def test_without_a_flush_the_host_counts(monkeypatch):
    played = PlayedGpu()
    monkeypatch.setitem(sys.modules, "cupy", played)

    def call():
        time.sleep(2e-3)
        played.queue(WORK)

    assert gpu.seconds(call, 3, flush=False) > 2e-3 and played.reads == 0
