"""The quick way on a GPU: taken where it may be, with the right result, and not where an array has changed."""

import threading

import numpy as np
import pytest
from gpu.problems import operands

from dgnumba import api, config, prepare_fp8_gemm_nt
from dgnumba.driver import context
from dgnumba.errors import ProblemError
from dgnumba.layouts.scales import get_mn_major_tma_aligned_tensor
from dgnumba.quant.reference import exact_integer_reference
from dgnumba.testing import assert_bits_equal

pytestmark = pytest.mark.gpu

M, N, K = 40, 256, 512


@pytest.fixture(scope="module")
def cupy():
    return pytest.importorskip("cupy")


@pytest.fixture
def problem(cupy, rng):
    """Makes operands that need no copy, and their product in float32."""

    def make():
        a, b = ((cupy.ascontiguousarray(x), scale) for x, scale in operands(cupy, rng, M, N, K, "exact"))
        expected = exact_integer_reference(*[x.get() for x in (*a, *b)], "float32")
        return (a[0], get_mn_major_tma_aligned_tensor(a[1])), b, expected

    return make


@pytest.fixture
def quickly(monkeypatch):
    """From where it is called on, no call may go the whole way."""

    def whole_way(*args, **options):
        raise AssertionError("the whole way")

    return lambda: monkeypatch.setattr(api, "check_fp8_gemm_nt", whole_way)


def test_the_same_arrays_and_others_of_their_form(cupy, problem, quickly):
    (a, b, expected), (a2, b2, expected2) = problem(), problem()
    d, d2 = cupy.empty((M, N), cupy.float32), cupy.empty((M, N), cupy.float32)
    api.fp8_gemm_nt(a, b, d)
    quickly()
    for _ in range(4):
        d.fill(np.nan)
        api.fp8_gemm_nt(a, b, d)
        assert_bits_equal(d.get(), expected)
    for _ in range(3):
        d2.fill(np.nan)
        api.fp8_gemm_nt(a2, b2, d2)
        assert_bits_equal(d2.get(), expected2)
    a[0][...], a[1][...] = a2[0], a2[1]  # new values in the same arrays
    api.fp8_gemm_nt(a, b2, d)
    assert_bits_equal(d.get(), expected2)


@pytest.mark.parametrize("m", [8, 300])
def test_row_major_scales(cupy, rng, m, quickly):
    """By the kernel for few rows and by the dense one: nothing is turned, so nothing is made anew, and the call is one launch."""
    problems = []
    for _ in range(2):
        a, b = ((cupy.ascontiguousarray(x), scale) for x, scale in operands(cupy, rng, m, N, K, "exact"))
        problems.append((a, b, exact_integer_reference(*[x.get() for x in (*a, *b)], "float32")))
    d = cupy.empty((m, N), cupy.float32)
    (a, b, _), (a2, _, _) = problems
    explained = api.explain(a, b, d)
    assert explained.choice.plan.row_scales and explained.copies == ()
    multiply = prepare_fp8_gemm_nt(a, b, d)
    api.fp8_gemm_nt(a, b, d)
    quickly()
    for call in (api.fp8_gemm_nt, multiply):
        for a, b, expected in problems * 2:
            d.fill(np.nan)
            call(a, b, d)
            assert_bits_equal(d.get(), expected)
    assert a2[1].strides == (K // 128 * 4, 4), "as the casts give them"


def test_a_new_output(cupy, problem, quickly):
    a, b, _ = problem()
    first = api.fp8_gemm_nt(a, b)
    quickly()
    again = [api.fp8_gemm_nt(a, b) for _ in range(3)]
    assert len({x.data.ptr for x in (first, *again)}) == 4
    for d in again:
        assert d.dtype == first.dtype and d.shape == (M, N)
        assert_bits_equal(d.view(cupy.uint16).get(), first.view(cupy.uint16).get())


def test_an_array_reshaped_in_place_is_seen(cupy, problem):
    a, b, expected = problem()
    d = cupy.empty((M, N), cupy.float32)
    for _ in range(4):
        api.fp8_gemm_nt(a, b, d)
    a[0].shape = (M // 2, 2 * K)
    with pytest.raises(ProblemError, match="b: expected .* as in a"):
        api.fp8_gemm_nt(a, b, d)
    a[0].shape = (M, K)
    d.shape = (N, M)
    with pytest.raises(ProblemError, match="d: expected"):
        api.fp8_gemm_nt(a, b, d)
    d.shape = (M, N)
    d.fill(np.nan)
    api.fp8_gemm_nt(a, b, d)
    assert_bits_equal(d.get(), expected)


def test_what_cannot_change_of_a_cupy_array(cupy):
    """What `prepared.quick` rests on: of the same array only the shape can be set, and rows that are as many again have their strides again."""
    x = cupy.empty((8, 6), cupy.float32)
    turned, cut = x.T, x[:, :4]
    for array in (x, turned, cut):
        for name, value in (("data", x.data), ("dtype", np.dtype(np.int32)), ("strides", (4, 4))):
            with pytest.raises(AttributeError):
                setattr(array, name, value)
        with pytest.raises(AttributeError):
            array.data.ptr = 16
        shape, strides, at = array.shape, array.strides, array.data.ptr
        for other in ((*shape, 1), (1, *shape), (shape[0] // 2, 2, shape[1])):
            array.shape = other
            array.shape = shape
            assert (array.shape, array.strides, array.data.ptr) == (shape, strides, at)


def test_a_thread_without_a_context(cupy, problem, quickly):
    a, b, expected = problem()
    d = cupy.empty((M, N), cupy.float32)
    multiply = prepare_fp8_gemm_nt(a, b, d)
    api.fp8_gemm_nt(a, b, d)
    quickly()
    found = []

    def work(call):
        found.append(context.current_device())
        call(a, b, d)
        cupy.cuda.Stream.null.synchronize()

    for call in (api.fp8_gemm_nt, api.fp8_gemm_nt, multiply):
        d.fill(np.nan)
        cupy.cuda.Stream.null.synchronize()
        thread = threading.Thread(target=work, args=(call,))
        thread.start()
        thread.join()
        assert_bits_equal(d.get(), expected)
    assert found == [None] * 3


def test_F34_a_graph_of_quick_and_prepared_calls(cupy, problem, quickly):
    a, b, _ = problem()
    d, d2 = cupy.empty((M, N), cupy.float32), cupy.empty((M, N), cupy.float32)
    multiply = prepare_fp8_gemm_nt(a, b, d2)
    api.fp8_gemm_nt(a, b, d)
    quickly()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        api.fp8_gemm_nt(a, b, d)
        multiply(a, b, d2)
        graph = stream.end_capture()
    other, _, _ = problem()
    expected = exact_integer_reference(*[x.get() for x in (*other, *b)], "float32")
    for _ in range(300):  # parameter memory of other launches, before the graph runs
        api.fp8_gemm_nt(other, b, cupy.empty((M, N), cupy.float32))
    a[0][...], a[1][...] = other[0], other[1]
    d.fill(np.nan)
    d2.fill(np.nan)
    cupy.cuda.Stream.null.synchronize()
    graph.launch(stream)
    stream.synchronize()
    assert_bits_equal(d.get(), expected)
    assert_bits_equal(d2.get(), expected)


def test_settings_are_heeded(cupy, problem):
    a, b, expected = problem()
    d = cupy.empty((M, N), cupy.float32)
    for _ in range(3):
        api.fp8_gemm_nt(a, b, d)
    try:
        config.set_num_sms(8)
        config.set_pdl(True)
        for _ in range(4):
            d.fill(np.nan)
            api.fp8_gemm_nt(a, b, d)
            assert_bits_equal(d.get(), expected)
    finally:
        config.set_num_sms(None)
        config.set_pdl(False)
