"""Running kernels: indices, arguments, helpers, and what is refused before anything runs."""

import collections
import math
import types

import numpy as np
import pytest
from numba import cuda
from numba.cuda.extending import intrinsic

from dgnumba import emu
from dgnumba.errors import EmulationError, OutOfBoundsError
from dgnumba.integers import u32, u64

POLICIES = ["eager", "late"]


@cuda.jit
def fill_2d(out):
    i, j = cuda.grid(2)
    if i < out.shape[0] and j < out.shape[1]:
        out[i, j] = i * 100 + j


def test_jitted_kernel_runs_unchanged_over_a_ragged_grid() -> None:
    out = np.full((5, 7), -1, np.int32)
    emu.run(fill_2d, (2, 2), (4, 4), (out,))
    np.testing.assert_array_equal(out, np.add.outer(np.arange(5) * 100, np.arange(7)))


def test_indices_and_extents_of_three_dimensions() -> None:
    def kernel(out):
        t, b, n, g = cuda.threadIdx, cuda.blockIdx, cuda.blockDim, cuda.gridDim
        i = ((b.z * g.y + b.y) * g.x + b.x) * n.x * n.y * n.z + (t.z * n.y + t.y) * n.x + t.x
        out[i] += 1
        x, y, z = cuda.grid(3)
        assert (x, y, z) == (b.x * n.x + t.x, b.y * n.y + t.y, b.z * n.z + t.z)
        assert cuda.gridsize(3) == (g.x * n.x, g.y * n.y, g.z * n.z)
        assert cuda.laneid == (t.z * n.y + t.y) * n.x + t.x and cuda.warpsize == 32

    out = np.zeros(3 * 2 * 2 * 2 * 3 * 4, np.int64)
    emu.run(kernel, (3, 2, 2), (2, 3, 4), (out,))
    np.testing.assert_array_equal(out, np.ones_like(out))


def test_arguments_keep_their_meaning() -> None:
    seen = []

    def kernel(array, integer, wide, plain, real, single, flag):
        seen.append((array.shape, array.dtype, type(integer), type(wide), type(plain), type(real), type(single), flag))

    emu.run(kernel, 1, 1, (np.zeros((2, 3), np.float16), u32(7), u64(8), np.int16(9), 1.5, np.float32(2), np.True_))
    assert seen == [((2, 3), np.dtype("float16"), u32, u64, int, float, np.float32, True)]


def test_elements_are_what_a_kernel_computes_with() -> None:
    seen = []

    def kernel(a8, f32, f64, flag):
        seen.append([type(x[0]) for x in (a8, f32, f64, flag)])
        a8[1] = a8[0] + 200  # 100 + 200 wraps to 44, and no warning is raised
        f32[1] = f32[0] * np.float32(2)

    arrays = (np.array([100, 0], np.uint8), np.array([3e38, 0], np.float32), np.zeros(2), np.array([True]))
    emu.run(kernel, 1, 1, arrays)
    assert seen == [[int, np.float32, float, bool]]
    assert arrays[0].tolist() == [100, 44]
    assert arrays[1][1] == np.inf


def double(x):
    return x + x


@cuda.jit(device=True)
def lane_of(index):
    return index % cuda.warpsize


def even(n):
    return True if n == 0 else odd(n - 1)


def odd(n):
    return False if n == 0 else even(n - 1)


Ops = collections.namedtuple("Ops", "first second")
OPS = Ops(double, (lane_of, 3))
helpers = types.ModuleType("helpers_of_a_user")
helpers.thread_index = lambda: cuda.threadIdx.x  # type: ignore[attr-defined]


def test_helpers_are_reached_through_globals_closures_tuples_modules_and_each_other() -> None:
    scale = 10

    def scaled(x):
        return x * scale

    @cuda.jit
    def kernel(out):
        i = helpers.thread_index()
        lane, three = OPS.second
        out[i] = scaled(OPS.first(lane(i))) + three + even(i) + max(0, *[math.floor(j) for j in (0.5, 1.5)])

    out = np.zeros(40, np.int64)
    emu.run(kernel, 1, 40, (out,))
    np.testing.assert_array_equal(out, [20 * (i % 32) + 3 + (i % 2 == 0) + 1 for i in range(40)])


def test_the_kernel_itself_is_left_as_it_was() -> None:
    before = fill_2d.py_func.__globals__["cuda"]
    emu.run(fill_2d, 1, 1, (np.zeros((1, 1)),))
    assert fill_2d.py_func.__globals__["cuda"] is before is cuda


def test_names_imported_from_cuda_are_emulated() -> None:
    from numba.cuda import syncthreads, threadIdx

    def kernel(out):
        syncthreads()
        out[threadIdx.x] = 1

    out = np.zeros(3)
    emu.run(kernel, 1, 3, (out,))
    assert out.tolist() == [1, 1, 1]


def test_unknown_cuda_name_says_so() -> None:
    def kernel():
        cuda.atomics_of_the_future()

    with pytest.raises(EmulationError, match=r"cuda\.atomics_of_the_future: not emulated.*dgnumba\.ptx\.op"):
        emu.run(kernel, 1, 1, ())


@intrinsic
def only_compiled(typingctx, x):
    return x(x), lambda context, builder, sig, args: args[0]


def test_intrinsic_without_a_meaning_says_so() -> None:
    def kernel():
        only_compiled(1)

    with pytest.raises(EmulationError, match="only_compiled: what only Numba compiles has no meaning in Python; declare it"):
        emu.run(kernel, 1, 1, ())


def test_libdevice_is_refused_rather_than_none() -> None:
    from numba.cuda import libdevice
    from numba.cuda.libdevice import sinf

    for kernel in (lambda: libdevice.expf(1.0), lambda: sinf(1.0)):
        with pytest.raises(EmulationError, match=r"libdevice\.(expf|sinf): what only Numba compiles has no meaning in Python"):
            emu.run(kernel, 1, 1, ())


def test_operations_outside_a_kernel_say_so() -> None:
    with pytest.raises(EmulationError, match="only inside a kernel"):
        emu.cta()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block": 1025}, "block: expected 1 to 1024 threads"),
        ({"block": 0}, "block: expected 1 to 1024 threads"),
        ({"grid": (1, 2, 3, 4)}, "grid: expected one to three extents"),
        ({"grid": 3, "cluster": 2}, r"grid: expected a multiple of the cluster \(2, 1, 1\)"),
        ({"cluster": 32, "grid": 32}, "cluster: expected 1 to 16 CTAs"),
        ({"policy": "lazy"}, "policy: expected 'eager' or 'late', got 'lazy'"),
        ({"smem": 232_449}, "smem: a CTA has at most 232448 bytes"),
        ({"args": (1, 2)}, r"args: kernel takes 1 arguments \(x\), got 2"),
    ],
)
def test_bad_launches_are_refused(change: dict, message: str) -> None:
    def kernel(x):
        raise AssertionError

    launch = {"grid": 1, "block": 1, "args": (1,)} | change
    positional = [launch.pop(name) for name in ("grid", "block", "args")]
    with pytest.raises(EmulationError, match=message):
        emu.run(kernel, *positional, **launch)


def test_an_empty_grid_runs_nothing() -> None:
    emu.run(fill_2d, 0, 32, (np.zeros((1, 1)),))


def test_an_ordinary_error_keeps_its_type_and_says_which_thread() -> None:
    def kernel(x):
        if cuda.threadIdx.x == 5:
            return x.no_such_attribute

    with pytest.raises(AttributeError) as caught:
        emu.run(kernel, 1, 8, (1,))
    assert "emulated thread 5 of block (0, 0, 0)" in caught.value.__notes__[0]
    assert "test_run.py:" in caught.value.__notes__[0]


def test_clusters_number_their_blocks() -> None:
    seen = []

    def kernel():
        if cuda.threadIdx.x == 0:
            seen.append((emu.cta().rank, cuda.blockIdx.x, cuda.blockIdx.y))

    emu.run(kernel, (4, 2), 32, (), cluster=(2, 2))
    assert seen == [(0, 0, 0), (1, 1, 0), (2, 0, 1), (3, 1, 1), (0, 2, 0), (1, 3, 0), (2, 2, 1), (3, 3, 1)]


def test_global_out_of_bounds_names_array_index_thread_and_line() -> None:
    def kernel(values):
        values[cuda.threadIdx.x] = 1

    with pytest.raises(OutOfBoundsError) as caught:
        emu.run(kernel, 1, 5, (np.zeros(4),))
    text = str(caught.value)
    assert "values[4]: out of bounds for shape (4,) of float64" in text
    assert "at thread 4 of block (0, 0, 0)" in text
    assert "test_run.py:" in text and "values[cuda.threadIdx.x] = 1" in text


def test_write_to_a_read_only_array_is_refused() -> None:
    array = np.zeros(4)
    array.flags.writeable = False

    def kernel(values):
        values[0] = 1

    with pytest.raises(OutOfBoundsError, match="write to a read-only array"):
        emu.run(kernel, 1, 1, (array,))
