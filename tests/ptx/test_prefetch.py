"""Prefetches into L2 move nothing that a kernel could see; what they are asked for must be what a load could ask for. A load ahead of time is one."""

import numpy as np
import pytest

from dgnumba import emu
from dgnumba.errors import OutOfBoundsError
from dgnumba.integers import u32, u64
from dgnumba.layouts.descriptors import TensorMap
from dgnumba.ptx import prefetch


class Heard(emu.Observer):
    """Whatever moves or is read or written."""

    def __init__(self):
        self.records = []

    def access(self, access):
        self.records.append(access)

    def transfer(self, transfer):
        self.records.append(transfer)

    def move(self, move):
        self.records.append(move)


def run(kernel, *args, arrays=()):
    heard = Heard()
    emu.run(kernel, 1, 1, args, smem=1024, arrays=arrays, observe=heard)
    assert heard.records == []


def box_2d(tmap, x, y):
    prefetch.tensor_2d(tmap, x, y)


def box_3d(tmap, x, y, z):
    prefetch.tensor_3d(tmap, x, y, z)


def span(address, nbytes):
    prefetch.bulk(address, nbytes)


def one_line(address):
    prefetch.line(address)


@pytest.fixture
def data(rng):
    """256 bytes at a multiple of 128 that stay as they are."""
    around = rng.integers(0, 256, 512, dtype=np.uint8)
    array = around[-around.ctypes.data % 128 :][:256]
    before = array.copy()
    yield array
    assert (array == before).all()


@pytest.mark.parametrize("x, y", [(0, 0), (16, 3), (48, 6), (64, 0), (1 << 20, 5), (-16, -1), (0, 1 << 20)])
def test_of_what_lies_outside_the_tensor_nothing_is_brought(data, x, y):
    """A box inside, over every edge, and wholly outside: no fault of any."""
    two = TensorMap.of(data.reshape(4, 64), (32, 2))
    run(box_2d, two, u32(x), u32(y))
    three = TensorMap.of(data.reshape(2, 2, 64), (32, 2, 1))
    run(box_3d, three, u32(x), u32(y % 3), u32(y))


def test_coordinates_are_a_loads(data):
    two, three = TensorMap.of(data.reshape(4, 64), (32, 2)), TensorMap.of(data.reshape(2, 2, 64), (32, 2, 1))
    for kernel, args in ((box_2d, (two, u32(8), u32(0))), (box_3d, (three, u32(8), u32(0), u32(0)))):
        with pytest.raises(OutOfBoundsError, match="innermost coordinate that is a multiple of 16 bytes .16 of uint8., got 8"):
            run(kernel, *args)
    with pytest.raises(OutOfBoundsError, match="expected 3 coordinates for its 3 dimensions, got 2"):
        run(box_2d, three, u32(0), u32(0))


@pytest.mark.parametrize("first, nbytes", [(0, 256), (240, 16), (16, 0)])
def test_a_span_of_an_array(data, first, nbytes):
    run(span, u64(data.ctypes.data + first), u32(nbytes), arrays=[data])


@pytest.mark.parametrize(
    "first, nbytes, words",
    [
        (8, 16, "prefetch.bulk: expected src to be a multiple of 16"),
        (0, 8, "prefetch.bulk: expected nbytes to be a multiple of 16, got 0x8"),
        (0, 272, "272 bytes from there are in no array of the launch"),
        (-16, 16, "16 bytes from there are in no array of the launch; it is 16 bytes before"),
        (256, 16, "16 bytes from there are in no array of the launch"),
    ],
)
def test_a_span_that_no_load_could_ask_for(data, first, nbytes, words):
    with pytest.raises(OutOfBoundsError, match=words):
        run(span, u64(data.ctypes.data + first), u32(nbytes), arrays=[data])


def test_a_line(data):
    for first in (0, 1, 255):
        run(one_line, u64(data.ctypes.data + first), arrays=[data])
    for first in (-1, 256):
        with pytest.raises(OutOfBoundsError, match="1 bytes from there are in no array of the launch"):
            run(one_line, u64(data.ctypes.data + first), arrays=[data])


def sixteen_bytes(out, address):
    words = prefetch.load_global_v4_once(address)
    for i in range(4):
        out[i] = words[i]


def test_a_load_is_one(data):
    out = np.zeros(4, np.uint32)
    emu.run(sixteen_bytes, 1, 1, (out, u64(data.ctypes.data + 32)), arrays=[data])
    assert out.tobytes() == data[32:48].tobytes()
    with pytest.raises(OutOfBoundsError, match="16 bytes from there are in no array of the launch"):
        emu.run(sixteen_bytes, 1, 1, (out, u64(data.ctypes.data + 256)), arrays=[data])
