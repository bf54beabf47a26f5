"""check_quantizer: every quantizer of the package passes; one with a fault of each kind does not, and the fault is named."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quant.every_format import DEEPGEMM, EVERY_FORMAT, name_of

from dgnumba.errors import DTypeError, ProblemError
from dgnumba.quant import QTensor, quantize
from dgnumba.testing import PROPERTIES, check_quantizer


def sample(shape=(10, 80), seed=0):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * np.exp2(rng.integers(-6, 7, (*shape[:-1], 1)))).astype(np.float32)


@pytest.mark.parametrize("form", EVERY_FORMAT, ids=name_of)
@pytest.mark.parametrize("shape", [(10, 80), (2, 3, 33), (1, 1)])
def test_every_format_passes(form, shape):
    found = check_quantizer(lambda x: quantize(x, form), sample(shape))
    assert {"pure", "strides", "scales", "bound", "nearest", "zero", "poison", "power_of_two", "monotone"} <= set(found.properties)
    assert set(found.properties) | set(found.skipped) == set(PROPERTIES) and found.tally.outside == 0


@pytest.mark.parametrize("name", DEEPGEMM)
def test_deepgemms_casts_pass(name):
    # DeepGEMM's e2m1 has no NaN, and its power-of-two scales have none either: NaN is 0 there.
    properties = [p for p in PROPERTIES if p != "poison" or name != "per_token_fp4_ue8m0"]
    found = check_quantizer(DEEPGEMM[name], sample((128, 256)), properties)
    assert {"bound", "nearest", "sign", "monotone"} <= set(found.properties)
    assert str(found).startswith("holds: pure, strides") and "SQNR" in str(found)


# Any finite float32, and values of one magnitude with ties among them: both find what the other does not.
ANY = st.floats(width=32, allow_nan=False, allow_infinity=False)
TIES = st.integers(-64, 64).map(lambda n: n / 8)
SIDES = st.tuples(st.integers(1, 5), st.integers(1, 24))


@st.composite
def matrices(draw):
    rows, columns = draw(SIDES)
    values = draw(st.sampled_from([ANY, TIES]))
    return np.float32(draw(st.lists(st.lists(values, min_size=columns, max_size=columns), min_size=rows, max_size=rows)))


def check_any(x, form):
    check_quantizer(lambda x: quantize(x, form), x)


@settings(max_examples=150)
@given(matrices(), st.sampled_from(EVERY_FORMAT))
def test_any_matrix(x, form):
    check_any(x, form)


@settings(max_examples=100)
@given(st.binary(min_size=4, max_size=160), st.sampled_from(EVERY_FORMAT))
def test_any_bytes(data, form):
    """Raw bytes as float32: NaN, infinity and subnormals come up; the finite remain, the others are checked beside them."""
    x = np.frombuffer(data[: len(data) // 4 * 4], np.float32).reshape(1, -1)
    check_any(np.where(np.isfinite(x), x, np.float32(0)), form)


@pytest.mark.full
@pytest.mark.parametrize("form", EVERY_FORMAT, ids=name_of)
def test_any_matrix_of_each_format(form):
    settings(max_examples=300)(given(matrices())(lambda x: check_any(x, form)))()


@pytest.mark.full
@pytest.mark.parametrize("form", EVERY_FORMAT, ids=name_of)
def test_any_bytes_of_each_format(form):
    @settings(max_examples=200)
    @given(st.binary(min_size=4, max_size=400))
    def check(data):
        test_any_bytes.hypothesis.inner_test(data, form)

    check()


def mxfp8(x):
    return quantize(x, "mxfp8")


def altered(x, change):
    """mxfp8's QTensor, its codes (a copy) put through `change` first."""
    q = mxfp8(x)
    codes = q.codes.copy()
    change(codes)
    return replace(q, data=codes)


def writes_to_its_input(x):
    if x.flags.writeable:
        x[0, 0] += 1
    return mxfp8(x)


CALLS = itertools.count()


def changes_from_call_to_call(x):
    return quantize(x, "mxfp8", rounding="stochastic", seed=next(CALLS))


def reads_memory_in_order(x):
    """Takes the memory behind a view for the view, where it can."""
    memory = x if x.base is None or not isinstance(x.base, np.ndarray) else x.base.ravel()[: x.size].reshape(x.shape)
    return mxfp8(memory)


def has_a_scale_of_zero(x):
    q = mxfp8(x)
    is_zero = np.abs(x).reshape(x.shape[0], -1, 32).max(axis=-1) == 0
    return QTensor(q.data, np.where(is_zero, np.float32(0), q.scales), q.dtype, q.granularity)


def rounds_toward_zero(x):
    return altered(x, lambda codes: np.subtract(codes, 1, out=codes, where=(codes & 0x7F) > 8))


def makes_nan_of_zeros(x):
    return altered(x, lambda codes: codes.__setitem__(x == 0, 0x7F))


def makes_numbers_of_nan(x):
    return mxfp8(np.nan_to_num(x, nan=0.0, posinf=1.0, neginf=1.0))


def spoils_the_neighbours(x):
    return mxfp8(x if np.isfinite(x).all() else np.full_like(x, np.nan))


def rounds_half_up(x):
    scale = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    codes = np.floor(x / scale + np.float32(0.5)).astype(np.int8)
    return QTensor(codes, scale, "int8", (1, x.shape[1]))


def flushes_below_eight(x):
    return mxfp8(np.where(np.abs(x) < 8, np.float32(0), x))


def gives_the_largest_of_a_row_the_least_code(x):
    return altered(x, lambda codes: codes.__setitem__((np.arange(len(x)), x.argmax(axis=1)), 0))


def treats_the_first_row_apart(x):
    return altered(x, lambda codes: codes.__setitem__(0, 0))


def shrinks(x):
    return mxfp8(x * np.float32(0.75))


@pytest.mark.parametrize(
    "name, fault, message",
    [
        ("pure", writes_to_its_input, "pure: x after the call"),
        ("pure", changes_from_call_to_call, "pure: called again: codes"),
        ("strides", reads_memory_in_order, "strides: gaps|strides: reversed"),
        ("scales", has_a_scale_of_zero, r"scales: expected finite scales, not 0, got 0.0 at \[3, 0\]"),
        ("bound", rounds_toward_zero, "bound: values: .* out of bound"),
        ("nearest", rounds_toward_zero, "nearest: errors: .* out of bound"),
        ("zero", makes_nan_of_zeros, "zero: values of zeros"),
        ("zero", has_a_scale_of_zero, "zero: expected finite scales, not 0, of zeros"),
        ("poison", makes_numbers_of_nan, "poison: expected nan at .* to be refused or to show, got"),
        ("poison", spoils_the_neighbours, "poison: blocks without the nan"),
        ("sign", rounds_half_up, "sign: values of -x"),
        ("power_of_two", flushes_below_eight, "power_of_two: values of 16 x"),
        ("monotone", gives_the_largest_of_a_row_the_least_code, "monotone: the element at .* is not less than that at"),
        ("rows", treats_the_first_row_apart, "rows: values of the rows in reverse"),
        ("idempotent", shrinks, "idempotent: values of the values"),
    ],
)
def test_each_property_finds_its_fault_alone(name, fault, message):
    x = np.random.default_rng(0).integers(-63, 64, (4, 64)).astype(np.float32)
    x[:, 0], x[3] = 63.5, 0.0
    x[:3, 1:] *= np.float32(0.25)  # ties, after a division by 63.5 / 127
    if fault is rounds_half_up:
        x = x[:3]
    with pytest.raises(AssertionError, match=f"^{message}"):
        check_quantizer(fault, x, [name])
    check_quantizer(mxfp8, x, [name])


def test_every_property_has_a_fault_above():
    (marks,) = [mark for mark in test_each_property_finds_its_fault_alone.pytestmark if mark.name == "parametrize"]
    assert {name for name, *_ in marks.args[1]} == set(PROPERTIES)


def test_shape_is_looked_at_first():
    with pytest.raises(AssertionError, match=r"^shape: expected \[10, 80\], got \[80, 10\]"):
        check_quantizer(lambda x: quantize(x.T, "mxfp8"), sample())


def test_a_chosen_property_alone():
    found = check_quantizer(lambda x: quantize(x, "mxfp4"), sample(), ["bound", "sign"])
    assert found.properties == ("bound", "sign") and found.skipped == ()
    assert check_quantizer(lambda x: quantize(x, "uint4_g32"), sample(), ["sign"]).skipped == ("sign",)


def test_a_quantizer_may_refuse_what_is_not_finite():
    def refuses(x):
        if not np.isfinite(x).all():
            raise ProblemError("x: expected finite numbers")
        return mxfp8(x)

    assert "poison" in check_quantizer(refuses, sample()).properties


def test_refusals():
    x = sample()
    with pytest.raises(ProblemError, match="properties: expected some of pure, .*, got speed"):
        check_quantizer(mxfp8, x, ["speed"])
    with pytest.raises(DTypeError, match="x: expected a NumPy array, got list"):
        check_quantizer(mxfp8, x.tolist())
    x[0, 0] = np.nan
    with pytest.raises(ProblemError, match="x: expected finite numbers"):
        check_quantizer(mxfp8, x)
