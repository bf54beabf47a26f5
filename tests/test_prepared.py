"""The quick way takes what the whole way has taken, and nothing that only looks like it."""

import gc
import sys
import weakref
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import dgnumba
from dgnumba import config, prepared
from dgnumba.dtypes import DTYPES
from dgnumba.errors import ProblemError
from dgnumba.prepare import PreparedGemm
from dgnumba.streams import LEGACY


class Array:
    """What `quick` looks at in a CuPy array."""

    made = 0

    def __init__(self, shape, dtype, strides=None, address=None, device=0):
        held = np.empty(shape, dtype)
        Array.made += 1
        self.shape, self.strides, self.dtype, self.itemsize = shape, strides or held.strides, held.dtype, held.itemsize
        self.data = SimpleNamespace(ptr=address or 4096 * Array.made, device_id=device)

    ndim = property(lambda self: len(self.shape))

    def __len__(self):
        return self.shape[0]


class Bound:
    """A launch that records: what it passes, the stream, and whether the GPU was taken to be current."""

    has_attributes = True
    context = 7000  # of GPU 0

    def __init__(self, launches, values):
        self.launches, self.values = launches, values

    def plain(self, stream):
        return None if self.has_attributes else (self, stream)

    def queue(self, stream):
        self.launches.append((self.values, stream, "queued"))

    def __call__(self, stream):
        self.launches.append((self.values, stream, "entered"))


@pytest.fixture
def cupy(monkeypatch):
    """As much of CuPy as `quick` asks; `cupy.device` is the thread's current GPU, `cupy.own` a context there that is not the primary one."""
    cupy = ModuleType("cupy")
    cupy.ndarray, cupy.device, cupy.stream, cupy.own = Array, 0, 0, None
    question = SimpleNamespace(ctxGetDevice=lambda: cupy.device, ctxGetCurrent=lambda: cupy.own or 7000 + cupy.device)
    cupy.cuda = SimpleNamespace(get_current_stream=lambda device: SimpleNamespace(ptr=cupy.stream), driver=question)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    return cupy


@pytest.fixture
def operands(monkeypatch, cupy):
    """Two QTensors, their arrays on a stand-in for a GPU with a call of this form remembered, d, and the launches."""
    monkeypatch.setattr(prepared, "_quick", {})
    monkeypatch.setattr(prepared, "_weights", {})
    a, b = dgnumba.per_token_cast_to_fp8(np.ones((4, 128), np.float32)), dgnumba.per_block_cast_to_fp8(np.ones((16, 128), np.float32))
    held = ((4, 128), np.uint8), ((4, 1), np.float32), ((16, 128), np.uint8), ((1, 1), np.float32), ((4, 16), np.float32)
    arrays = [Array(*x) for x in held]
    launches = []
    prepared.remember(tuple(arrays), recorder(launches), laid_out(arrays), config.current())
    return a, b, arrays, launches


def recorder(launches):
    """A `PreparedLaunch` that passes d, sfb and 7."""
    launch = prepared.PreparedLaunch.__new__(prepared.PreparedLaunch)
    launch.encoders, launch.sources, launch.pointers, launch.rest = (), (), ("d", "sfb"), [7]
    launch.launcher = SimpleNamespace(bind=lambda values, maps: Bound(launches, values))
    return launch


def laid_out(arrays):
    return SimpleNamespace(**dict(zip(("a", "sfa", "b", "sfb", "d"), arrays)), copies=())


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
    d = Array((4, 16), np.float32, address=x.data.ptr + 16)
    assert not prepared.quick((x, sfx), (y, sfy), d, None)
    assert not launches


def test_what_is_passed_is_made_once_for_each_place(operands):
    _, _, (x, sfx, y, sfy, d), launches = operands
    for at in (d.data.ptr, d.data.ptr + 4096, d.data.ptr):
        assert prepared.quick((x, sfx), (y, sfy), Array((4, 16), np.float32, address=at), None)
    first, other, again = (values for values, _, _ in launches)
    assert first is again and first[0] + 4096 == other[0]


def test_places_are_not_kept_without_end(operands, monkeypatch):
    """Neither of one form nor of all together: then the whole way is gone once, and calls are known again."""
    _, _, (x, sfx, y, sfy, d), launches = operands
    (call,) = next(iter(prepared._quick.values())).values()
    monkeypatch.setattr(prepared, "_placed", 0)
    monkeypatch.setattr(prepared, "_PLACES", 3)
    for i in range(1, 9):
        assert prepared.quick((x, sfx), (y, sfy), Array((4, 16), np.float32, address=4096 * 1000 * i), None)
        assert len(call._kept) <= 3
    monkeypatch.setattr(prepared, "_ALL_PLACES", 9)
    for i in range(9, 11):
        assert prepared.quick((x, sfx), (y, sfy), Array((4, 16), np.float32, address=4096 * 1000 * i), None)
    assert [values[0] for values, _, _ in launches] == [4096 * 1000 * i for i in range(1, 11)]
    assert not prepared._quick and prepared.quick((x, sfx), (y, sfy), d, None) is None


def test_the_same_arrays_are_launched_alike_again(operands):
    _, _, (x, sfx, y, sfy, d), launches = operands
    for _ in range(4):
        assert prepared.quick((x, sfx), (y, sfy), d, None)
    assert launches == [([d.data.ptr, sfy.data.ptr, 7], LEGACY, "queued")] * 4


@pytest.mark.parametrize("which", range(5))
@pytest.mark.parametrize("reshaped", [lambda n, k: (n * k,), lambda n, k: (1, n * k), lambda n, k: (n, 1, k)], ids=["1", "2", "3"])
def test_an_array_that_was_reshaped_in_place_is_looked_at_again(operands, which, reshaped):
    _, _, arrays, launches = operands
    x, sfx, y, sfy, d = arrays
    for _ in range(3):
        assert prepared.quick((x, sfx), (y, sfy), d, None)
    shape, strides = arrays[which].shape, arrays[which].strides
    arrays[which].shape = reshaped(*shape)
    arrays[which].strides = np.empty(reshaped(*shape), arrays[which].dtype).strides
    is_same = reshaped(*shape) == shape  # one scale in one row
    assert (prepared.quick((x, sfx), (y, sfy), d, None) is d) == is_same and len(launches) == 3 + is_same
    arrays[which].shape, arrays[which].strides = shape, strides
    assert prepared.quick((x, sfx), (y, sfy), d, None) and launches[-1] == launches[0]


@pytest.mark.parametrize("which", range(5))
def test_another_array_in_the_place_of_one_is_looked_at(operands, which):
    _, _, arrays, launches = operands
    x, sfx, y, sfy, d = arrays
    for _ in range(3):
        assert prepared.quick((x, sfx), (y, sfy), d, None)
    shape, dtype = arrays[which].shape, arrays[which].dtype
    others = [
        Array((shape[0], shape[1] + 1), dtype),
        Array(shape, np.float16),
        Array(shape, dtype, (640, 1)),
        Array(shape, dtype, device=1),
        Array(shape, dtype, address=4096 * 1000 + 8),
    ]
    for other in others:
        x, sfx, y, sfy, d = (*arrays[:which], other, *arrays[which + 1 :])
        assert not prepared.quick((x, sfx), (y, sfy), d, None) and len(launches) == 3
    x, sfx, y, sfy, d = (*arrays[:which], Array(shape, dtype), *arrays[which + 1 :])
    assert prepared.quick((x, sfx), (y, sfy), d, None)
    assert launches[-1] == ([d.data.ptr, sfy.data.ptr, 7], LEGACY, "queued")


def test_weights_are_never_taken_for_others_whose_identity_they_had(operands):
    """`id` of an array that is gone may come again."""
    _, _, (x, sfx, y, sfy, d), launches = operands
    for _ in range(3):
        assert prepared.quick((x, sfx), (y, sfy), d, None)
    (seen,) = prepared._weights.values()
    wider, alike, scales = Array((32, 128), np.uint8), Array((16, 128), np.uint8), Array((1, 1), np.float32)
    prepared._weights.update({id(wider): seen, id(alike): seen})
    assert not prepared.quick((x, sfx), (wider, sfy), d, None)
    assert prepared.quick((x, sfx), (alike, scales), d, None)
    assert launches[-1][0] == [d.data.ptr, scales.data.ptr, 7]


def test_no_array_is_kept_alive(operands):
    _, _, arrays, _ = operands
    x, sfx, y, sfy, d = arrays
    for _ in range(3):
        assert prepared.quick((x, sfx), (y, sfy), d, None)
    alive = [weakref.ref(array) for array in arrays]
    arrays.clear()
    del x, sfx, y, sfy, d
    gc.collect()
    assert [ref() for ref in alive] == [None] * 5


def test_other_settings_and_forgotten_choices_go_the_whole_way(operands):
    _, _, (x, sfx, y, sfy, d), _ = operands
    for _ in range(3):
        assert prepared.quick((x, sfx), (y, sfy), d, None)
    for constant_weights in (False, True):
        config.set_pdl(True, constant_weights=constant_weights)
        try:
            assert not prepared.quick((x, sfx), (y, sfy), d, None)
        finally:
            config.set_pdl(False)
    assert prepared.quick((x, sfx), (y, sfy), d, None)
    prepared.forget_choices()
    assert not prepared.quick((x, sfx), (y, sfy), d, None)


def test_the_stream_is_asked_for_every_call(operands, cupy):
    _, _, (x, sfx, y, sfy, d), launches = operands
    for cupy.stream in (0x70, 0, 0x90):
        assert prepared.quick((x, sfx), (y, sfy), d, None)
    assert prepared.quick((x, sfx), (y, sfy), d, 0x50)
    assert [stream for _, stream, _ in launches] == [0x70, LEGACY, 0x90, 0x50]


def test_F32_the_gpu_is_made_current_where_it_is_not(operands, cupy):
    _, _, (x, sfx, y, sfy, d), launches = operands
    for cupy.device in (0, 1, 0):
        assert prepared.quick((x, sfx), (y, sfy), d, None)

    def no_context():
        raise RuntimeError("CUDA_ERROR_INVALID_CONTEXT")

    prepared.forget_choices()
    cupy.cuda.driver.ctxGetCurrent = no_context
    prepared.remember((x, sfx, y, sfy, d), recorder(launches), laid_out([x, sfx, y, sfy, d]), config.current())
    assert prepared.quick((x, sfx), (y, sfy), d, None)
    assert [how for _, _, how in launches] == ["queued", "entered", "queued", "entered"]


def test_F32_in_a_context_of_the_callers_own_the_function_of_the_primary_one_is_not_used(operands, cupy, monkeypatch):
    """A green context, say: the kernel is launched there by the handle that holds everywhere."""
    _, _, (x, sfx, y, sfy, d), launches = operands
    cupy.cuda.driver.launchKernel = lambda bound, stream: launches.append((bound.values, stream, "by CuPy"))
    monkeypatch.setattr(Bound, "has_attributes", False)
    for cupy.own in (None, 9000, None):
        assert prepared.quick((x, sfx), (y, sfy), d, None)
    assert [how for _, _, how in launches] == ["by CuPy", "entered", "by CuPy"]


def test_cupys_launch_is_used_where_there_are_no_attributes_and_ours_where_it_fails(operands, cupy, monkeypatch):
    _, _, (x, sfx, y, sfy, d), launches = operands

    def launch_kernel(bound, stream):
        if stream == 0x666:
            raise RuntimeError("CUDA_ERROR_INVALID_HANDLE")
        bound.launches.append((bound.values, stream, "by CuPy"))

    cupy.cuda.driver.launchKernel = launch_kernel
    for has_attributes, at in ((True, 1 << 20), (False, 1 << 21)):
        monkeypatch.setattr(Bound, "has_attributes", has_attributes)
        for cupy.stream in (0x70, 0x666, 0x70):
            assert prepared.quick((x, sfx), (y, sfy), Array((4, 16), np.float32, address=at), None)
    assert [(stream, how) for _, stream, how in launches] == [
        (0x70, "queued"), (0x666, "queued"), (0x70, "queued"), (0x70, "by CuPy"), (0x666, "queued"), (0x70, "by CuPy"),
    ]  # fmt: skip


def test_a_new_output_is_made_where_the_call_is_known(operands, cupy, monkeypatch):
    _, _, (x, sfx, y, sfy, d), launches = operands
    monkeypatch.setattr(prepared, "_held", {})
    monkeypatch.setattr(prepared, "carrier", lambda dtype, like: np.dtype(np.uint16))
    assert prepared.quick_new((x, sfx), (y, sfy), None) is None, "the call that is known writes float32"
    bits = Array((4, 16), np.uint16)
    prepared.remember((x, sfx, y, sfy, bits), recorder(launches), laid_out([x, sfx, y, sfy, bits]), config.current())
    made = prepared.quick_new((x, sfx), (y, sfy), None)
    assert (type(made), made.shape, made.dtype) == (Array, (4, 16), np.uint16)
    assert launches == [([made.data.ptr, sfy.data.ptr, 7], LEGACY, "queued")]
    cupy.device = 1  # where a new array would be made
    assert prepared.quick_new((x, sfx), (y, sfy), None) is None
    assert prepared.quick_new((x, sfx, x), (y, sfy), None) is None and prepared.quick_new(x, (y, sfy), None) is None
    assert len(launches) == 1


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
    call = prepared.QuickCall(recorder(launches), laid_out(arrays), 0)
    multiply = PreparedGemm(call, tuple(map(prepared.form, arrays)), (), None)
    for _ in range(3):
        assert multiply((x, sfx), (y, sfy), d) is d
    x.shape = (1, 1)  # which is not seen: the array is the same
    multiply((x, sfx), (y, sfy), d)
    assert launches == [([d.data.ptr, sfy.data.ptr, 7], LEGACY, "queued")] * 4
    moved = Array((4, 16), np.float32, address=1 << 20)
    multiply((x, sfx), (y, sfy), moved)
    assert launches[-1][0][0] == 1 << 20
    with pytest.raises(ProblemError, match=r"the form that was prepared, .*, d float32 \[4, 16\], got .*, d float16 \[4, 16\]"):
        multiply((x, sfx), (y, sfy), Array((4, 16), np.float16))
    assert len(launches) == 5


@pytest.mark.parametrize("given", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("made_for", ["float8_e4m3fn", "float8_e5m2"])
def test_a_prepared_product_is_of_the_types_that_it_was_made_for(operands, made_for, given):
    """CuPy holds both types as bytes: only the QTensor says which. A pair's bytes are e4m3."""
    a, b, arrays, launches = operands
    x, sfx, y, sfy, d = arrays
    call = prepared.QuickCall(recorder(launches), laid_out(arrays), 0)
    multiply = PreparedGemm(call, tuple(map(prepared.form, arrays)), (), None, (DTYPES[made_for], DTYPES["float8_e4m3fn"]))
    left, right = Quantized(a, x, sfx, dtype=DTYPES[given]), Quantized(b, y, sfy)
    for operand, dtype in ((left, given), ((x, sfx), "float8_e4m3fn")):
        count = len(launches)
        if dtype == made_for:
            assert multiply(operand, right, d) is d and len(launches) == count + 1
        else:
            with pytest.raises(ProblemError, match=f"a: expected .*{made_for}.* as prepared, got"):
                multiply(operand, right, d)
            assert len(launches) == count
    left = Quantized(a, x, sfx, dtype=DTYPES[made_for])
    with pytest.raises(ProblemError, match="b: expected float8_e4m3fn with float32 scales per .* as prepared, got"):
        multiply(left, Quantized(b, y, sfy, global_scale=np.float32(2)), d)


@pytest.mark.parametrize("bad", [None, np.ones((4, 200)), 3, ("a", "pair", "and more")], ids=lambda x: type(x).__name__)
def test_a_prepared_product_refuses_what_is_no_operand(bad):
    a, b, d = product()
    multiply = dgnumba.prepare_fp8_gemm_nt(a, b, d)
    with pytest.raises(ProblemError, match="a: expected a QTensor or a pair"):
        multiply(bad, b, d)
    with pytest.raises(ProblemError, match="b: expected a QTensor or a pair"):
        multiply(a, bad, d)
    assert not d.any()
