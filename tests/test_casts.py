"""The casts of `dgnumba.casts`: the GPU's kernels, interpreted, give the codes and scales of the host's functions, bit for bit."""

import contextlib
import itertools

import fake_cupy
import ml_dtypes
import numpy as np
import pytest

import dgnumba
from dgnumba import casts, emu, quant, scale_moves
from dgnumba.device import Device
from dgnumba.errors import DTypeError, ProblemError
from dgnumba.layouts import scales

BF16 = ml_dtypes.bfloat16


def same(expected, actual):
    """Two QTensors with the same bits in the same memory form; a NaN is a NaN."""
    assert (actual.dtype, actual.granularity, actual.data.dtype, actual.data.shape) == (
        expected.dtype,
        expected.granularity,
        expected.data.dtype,
        expected.data.shape,
    )
    assert np.array_equal(expected.data.view(np.uint8), actual.data.view(np.uint8))
    assert actual.scale.dtype == expected.scale.dtype and actual.scale.shape == expected.scale.shape
    assert np.array_equal(expected.scale, actual.scale, equal_nan=expected.scale.dtype.kind == "f")
    if min(actual.scale.shape) > 1:
        assert actual.scale.strides == expected.scale.strides


def awkward(rng, shape, dtype):
    """Random data with blocks that are zero, tiny, huge, and not finite."""
    x = (rng.standard_normal(shape) * np.exp2(rng.integers(-9, 10, shape))).astype(np.float32)
    rows, columns = shape
    x[0, : columns // 3] = 0
    x[0, columns // 2] = -0.0
    x[-1] *= np.float32(1e-7)
    if columns > 20:
        x[rows // 2, 3], x[rows // 2, columns - 1] = np.nan, np.inf
        x[rows // 3, columns // 2] = -np.inf
    with np.errstate(over="ignore"):
        return x.astype(dtype)


TOKEN = {
    "float32": {},
    "ue8m0": {"use_ue8m0": True},
    "mn-major": {"mn_major": True},
    "packed": {"use_ue8m0": True, "use_packed_ue8m0": True},
    "mx packed mn-major": {"use_ue8m0": True, "use_packed_ue8m0": True, "gran_k": 32, "mn_major": True},
    "whole warp": {"gran_k": 512},
}


@pytest.mark.parametrize("options", TOKEN.values(), ids=TOKEN)
@pytest.mark.parametrize("dtype", [BF16, np.float16, np.float32])
def test_per_token(dtype, options, policy, rng):
    for shape in ((1, 16), (3, 544), (9, 48), (2, 541), (2, 1)):  # a warp more, rows of two CTAs, no multiple of 16
        x = awkward(rng, shape, dtype)
        with np.errstate(all="ignore"):
            same(casts.per_token_cast_to_fp8(x, **options), casts.per_token_cast_to_fp8(x, on="emulator", policy=policy, **options))


VIEWS = {
    "padded rows": lambda x: np.pad(x, ((0, 0), (0, 8)))[:, :-8],  # a pitch of 16-byte multiples
    "odd pitch": lambda x: np.pad(x, ((0, 0), (0, 1)))[:, :-1],
    "odd address": lambda x: np.pad(x, ((0, 0), (1, 15)))[:, 1:-15],
    "transposed": lambda x: np.ascontiguousarray(x.T).T,
    "every second": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "backward": lambda x: np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_any_strides(view, rng):
    x = view(awkward(rng, (3, 160), BF16))
    same(casts.per_token_cast_to_fp8(x), casts.per_token_cast_to_fp8(x, on="emulator"))


@pytest.mark.parametrize("use_ue8m0", [False, True])
@pytest.mark.parametrize("shape, dtype", [((130, 144), BF16), ((5, 131), np.float32)])  # four CTAs; the scalar way
def test_per_block(shape, dtype, use_ue8m0, rng):
    x = awkward(rng, shape, dtype)
    with np.errstate(all="ignore"):
        same(quant.per_block_cast_to_fp8(x, use_ue8m0), casts.per_block_cast_to_fp8(x, use_ue8m0, on="emulator"))


@pytest.mark.parametrize("shape, dtype, gran_k", [((128, 144), BF16, 128), ((64, 37), np.float32, 32), ((64, 16), np.float16, 64)])
def test_per_channel(shape, dtype, gran_k, rng):
    x = awkward(rng, shape, dtype)
    for use_ue8m0 in (False, True):
        with np.errstate(all="ignore"):
            same(quant.per_channel_cast_to_fp8(x, use_ue8m0, gran_k), casts.per_channel_cast_to_fp8(x, use_ue8m0, gran_k, on="emulator"))


def test_packed_scales_land_as_the_layout_says(rng):
    """Straight from the kernel, and by way of row-major scales: the same words in the same memory."""
    x = awkward(rng, (5, 640), np.float32)
    x[~np.isfinite(x)] = 1
    q = casts.per_token_cast_to_fp8(x, True, 128, True, mn_major=True, on="emulator")
    by_way = scales.get_mn_major_tma_aligned_packed_ue8m0_tensor(casts.per_token_cast_to_fp8(x, True).scale)
    assert q.scale.strides == by_way.strides == (4, 32)
    assert np.array_equal(by_way[:, 0], q.scale[:, 0]) and np.array_equal(by_way[:, 1] & 0xFF, q.scale[:, 1] & 0xFF)


def test_the_public_names_are_these():
    for name in casts.__all__:
        assert getattr(dgnumba, name) is getattr(casts, name)


def test_host_arrays_take_the_host_functions(rng):
    x = rng.standard_normal((130, 200))
    for cast, reference in itertools.zip_longest(
        (casts.per_token_cast_to_fp8, casts.per_block_cast_to_fp8), (quant.per_token_cast_to_fp8, quant.per_block_cast_to_fp8)
    ):
        same(reference(x), cast(x))
    same(quant.per_channel_cast_to_fp8(x[:128]), casts.per_channel_cast_to_fp8(x[:128]))


def test_what_no_kernel_takes_goes_the_host_way(rng):
    for x, group in (
        (rng.standard_normal((4, 64)), 32),
        (rng.standard_normal((4, 64)).astype(np.float32), 48),
        (np.zeros((0, 64), np.float32), 32),
    ):
        same(quant.per_token_cast_to_fp8(x, gran_k=group), casts.per_token_cast_to_fp8(x, gran_k=group, on="emulator"))


def test_refusals():
    x = np.ones((4, 64), np.float32)
    with pytest.raises(
        ProblemError, match="on: expected 'cuda' for arrays on a GPU or 'emulator' for host memory, got 'cuda' for x in host memory"
    ):
        casts.per_token_cast_to_fp8(x, on="cuda")
    for on in (None, "emulator"):
        with pytest.raises(ProblemError, match="use_packed_ue8m0: expected use_ue8m0 with it"):
            casts.per_token_cast_to_fp8(x, use_packed_ue8m0=True, on=on)
        with pytest.raises(ProblemError, match=r"x: expected rank 2, \[m, n\], got \[64\]"):
            casts.per_token_cast_to_fp8(x[0], on=on)
        with pytest.raises(DTypeError, match="x: expected float16"):
            casts.per_block_cast_to_fp8(x.astype(np.int32), on=on)
        with pytest.raises(ProblemError, match="x: expected rows in multiples of gran_k = 128, got 4"):
            casts.per_channel_cast_to_fp8(x, on=on)


def stand_in_gpu(monkeypatch, module):
    """Let `module` launch on arrays of a stand-in for CuPy, as on a GPU; the kernels run in the emulator."""
    launches = []

    @contextlib.contextmanager
    def queued(array, owner, stream):
        yield 7

    def launch(plan, rules, grid, args, arrays, device, stream, policy):
        launches.append(plan)
        assert stream == 7 and all(isinstance(x, fake_cupy.ndarray) for x in arrays)
        values = [kind(value) for kind, value in zip(rules.ARGTYPES, args, strict=True)]
        emu.run(rules.build(plan).kernel, grid, rules.threads(plan), values, arrays=[x._held for x in arrays])

    monkeypatch.setattr(
        module, "machine", lambda array, on, argument="x": Device.named("h200") if isinstance(array, fake_cupy.ndarray) else None
    )
    monkeypatch.setattr(module, "queued", queued)
    monkeypatch.setattr(module, "launch", launch)
    return launches


def test_arrays_of_a_gpu(monkeypatch, rng):
    """All that the casts do around their kernel stays within CuPy."""
    x = rng.standard_normal((5, 272)).astype(np.float32)
    with fake_cupy.installed():
        launches = stand_in_gpu(monkeypatch, casts)
        held = fake_cupy.ndarray.of(x)
        for options in TOKEN.values():
            q, expected = casts.per_token_cast_to_fp8(held, **options), casts.per_token_cast_to_fp8(x, **options)
            assert q.data.dtype == np.uint8 and np.array_equal(q.data.get(), expected.data.view(np.uint8))
            assert np.array_equal(q.scale.get(), expected.scale) and q.scale.strides == expected.scale.strides
        q, expected = casts.per_block_cast_to_fp8(held), quant.per_block_cast_to_fp8(x)
        assert np.array_equal(q.data.get(), expected.data.view(np.uint8)) and np.array_equal(q.scale.get(), expected.scale)
        assert len(launches) == len(TOKEN) + 1


def test_moves_of_a_gpu(monkeypatch, rng):
    sf = np.ldexp(np.float32(1), rng.integers(-127, 128, (6, 5))).astype(np.float32)
    with fake_cupy.installed():
        launches = stand_in_gpu(monkeypatch, scale_moves)
        held = fake_cupy.ndarray.of(sf)
        turned = scale_moves.get_mn_major_tma_aligned_tensor(held)
        assert np.array_equal(turned.get(), sf) and turned.strides == scales.get_mn_major_tma_aligned_tensor(sf).strides
        assert np.array_equal(scale_moves.get_row_major_tensor(turned).get(), sf)
        packed = scale_moves.get_mn_major_tma_aligned_packed_ue8m0_tensor(held)
        assert np.array_equal(packed.get(), scales.get_mn_major_tma_aligned_packed_ue8m0_tensor(sf))
        assert np.array_equal(scale_moves.get_row_major_ue8m0_tensor(packed, 5).get(), sf)
        assert [plan.move for plan in launches] == ["turn", "turn", "pack", "unpack"]
