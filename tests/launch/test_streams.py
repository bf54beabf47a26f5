"""CuPy arrays that were made on another library's stream are ordered for CuPy's."""

import pytest

from dgnumba import streams

TORCHS, CUPYS = 0x90, 0x70


@pytest.mark.parametrize("cupys, waits", [(CUPYS, [(CUPYS, TORCHS)]), (0, [(0, TORCHS)]), (TORCHS, [])])
def test_cupys_stream_waits_for_the_others(fake_cupy, cupys, waits):
    fake_cupy.streams[0] = cupys
    streams.joined(0, TORCHS)
    assert fake_cupy.waits == waits


def test_default_streams_are_one(fake_cupy):
    streams.joined(0, streams.LEGACY)
    assert fake_cupy.waits == []


def test_a_capture_does_not_take_cupys_stream_in(fake_cupy):
    fake_cupy.capturing.add(TORCHS)
    streams.joined(0, TORCHS)
    assert fake_cupy.waits == []


def test_another_librarys_stream_is_not_destroyed_with_cupys_object_for_it(fake_cupy):
    """Where CuPy has no `ExternalStream` any more, the protocol's way."""
    handles = []
    fake_cupy.cuda.Stream.from_external = lambda stream: handles.append(stream.__cuda_stream__()) or fake_cupy.cuda.Stream.null
    del fake_cupy.cuda.ExternalStream
    with streams.ordered(0, TORCHS):
        pass
    assert handles == [(0, TORCHS)]
