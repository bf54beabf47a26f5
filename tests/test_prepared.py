"""The quick way takes what the whole way has taken, and nothing that only looks like it."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import dgnumba
from dgnumba import config, prepared
from dgnumba.dtypes import DTYPES
from dgnumba.errors import ProblemError
from dgnumba.prepare import PreparedGemm


class Array:
    """What `quick` looks at in a CuPy array."""

    def __init__(self, held, address):
        self.shape, self.strides, self.dtype, self.itemsize = held.shape, held.strides, held.dtype, held.itemsize
        self.data = SimpleNamespace(ptr=address, device_id=0)


@pytest.fixture
def operands(monkeypatch):
    """Two QTensors, their arrays on a stand-in for a GPU with a call of this form remembered, d, and the launches."""
    cupy = ModuleType("cupy")
    cupy.ndarray = Array
    cupy.cuda = SimpleNamespace(get_current_stream=lambda device: SimpleNamespace(ptr=0))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    a, b = dgnumba.per_token_cast_to_fp8(np.ones((4, 128), np.float32)), dgnumba.per_block_cast_to_fp8(np.ones((16, 128), np.float32))
    held = (a.data.view(np.uint8), a.scale, b.data.view(np.uint8), b.scale, np.zeros((4, 16), np.float32))
    arrays = [Array(x, 4096 * (i + 1)) for i, x in enumerate(held)]
    launches = []
    launch = prepared.PreparedLaunch.__new__(prepared.PreparedLaunch)
    launch.encoders, launch.sources, launch.pointers, launch.rest = (), (), ("d", "sfb"), [7]
    launch.launcher = lambda *args: launches.append(args)
    call = prepared.QuickCall(launch, SimpleNamespace(**dict(zip(("a", "sfa", "b", "sfb", "d"), held))))
    monkeypatch.setattr(prepared, "_quick", {(prepared.form(*arrays), config.current()): call})
    return a, b, arrays, launches


class Quantized:
    """A QTensor whose arrays are on the GPU."""

    def __init__(self, q, data, scale, **changes):
        self.data, self.scale = data, scale
        for name in "dtype scale_dtype granularity zero_point global_scale g_idx packing".split():
            setattr(self, name, changes.get(name, getattr(q, name)))

    def __iter__(self):
        return iter((self.data, self.scale))


def test_pairs_and_plain_qtensors_are_taken(operands):
    a, b, (x, sfx, y, sfy, d), launches = operands
    assert prepared.quick((x, sfx), (y, sfy), d, None)
    assert prepared.quick(Quantized(a, x, sfx), Quantized(b, y, sfy), d, None)
    assert [values for values, _, _ in launches] == [[d.data.ptr, sfy.data.ptr, 7]] * 2


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": DTYPES["float8_e5m2"]},
        {"global_scale": np.float32(2)},
        {"zero_point": np.zeros((4, 1), np.uint8)},
        {"g_idx": np.zeros(128, np.int32)},
        {"granularity": (2, 128)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_qtensor_that_means_more_than_its_bytes_is_not_taken(operands, changes):
    a, b, (x, sfx, y, sfy, d), launches = operands
    assert not prepared.quick(Quantized(a, x, sfx, **changes), (y, sfy), d, None)
    assert not launches


def test_three_arrays_or_one_are_not_taken(operands):
    _, _, (x, sfx, y, sfy, d), launches = operands
    assert not prepared.quick((x, sfx, x), (y, sfy), d, None)
    assert not prepared.quick(x, (y, sfy), d, None)
    assert not launches


def test_an_output_over_an_operand_is_not_taken(operands):
    _, _, (x, sfx, y, sfy, d), launches = operands
    d.data.ptr = x.data.ptr + 16
    assert not prepared.quick((x, sfx), (y, sfy), d, None)
    assert not launches


def test_what_is_passed_is_made_once_for_each_place(operands):
    _, _, (x, sfx, y, sfy, d), launches = operands
    for at in (d.data.ptr, d.data.ptr + 4096, d.data.ptr):
        d.data.ptr = at
        assert prepared.quick((x, sfx), (y, sfy), d, None)
    first, other, again = (values for values, _, _ in launches)
    assert first is again and first[0] + 4096 == other[0]


# prepare_fp8_gemm_nt


def product(d_dtype=np.float32):
    rng = np.random.default_rng(0)
    a = dgnumba.per_token_cast_to_fp8(rng.standard_normal((4, 200)).astype(np.float32))
    b = dgnumba.per_block_cast_to_fp8(rng.standard_normal((16, 200)).astype(np.float32))
    return a, b, np.zeros((4, 16), d_dtype)


def test_a_prepared_product_is_the_product():
    a, b, d = product()
    multiply = dgnumba.prepare_fp8_gemm_nt(a, b, d)
    assert not d.any(), "preparing writes nothing"
    assert multiply(a, b, d) is d
    other = np.zeros_like(d)
    dgnumba.fp8_gemm_nt(a, b, other)
    assert (d == other).all()
    again = np.zeros_like(d)
    assert multiply(tuple(a), tuple(b), again) is again and (again == other).all(), "other arrays of the same form"


def test_a_prepared_product_refuses_another_form_before_it_writes():
    a, b, d = product()
    multiply = dgnumba.prepare_fp8_gemm_nt(a, b, d)
    wider = np.zeros((4, 17), np.float32)
    with pytest.raises(
        ProblemError, match=r"expected arrays of the form that was prepared, a .*, d float32 \[4, 16\], got .*, d float32 \[4, 17\]"
    ):
        multiply(a, b, wider)
    with pytest.raises(ProblemError, match="d: expected the output's array, got None"):
        dgnumba.prepare_fp8_gemm_nt(a, b, None)
    assert not wider.any()


def test_a_prepared_launch_looks_at_the_same_arrays_once(operands):
    _, _, arrays, launches = operands
    x, sfx, y, sfy, d = arrays
    (call,) = prepared._quick.values()
    multiply = PreparedGemm(call, prepared.form(*arrays), (), None)
    for _ in range(3):
        assert multiply((x, sfx), (y, sfy), d) is d
    x.shape = (1, 1)  # which is not seen: the array is the same
    multiply((x, sfx), (y, sfy), d)
    assert len(launches) == 4 and all(values[0] == d.data.ptr for values, _, _ in launches)
    moved = Array(np.zeros((4, 16), np.float32), 1 << 20)
    with pytest.raises(ProblemError, match="the form that was prepared"):
        multiply((x, sfx), (y, sfy), moved)
    x.shape = (4, 128)
    multiply((x, sfx), (y, sfy), moved)
    assert launches[-1][0][0] == 1 << 20
