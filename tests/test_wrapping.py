"""Unsigned integers that remember what they would be had they not wrapped."""

import operator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgnumba.integers import u32, u64
from dgnumba.wrapping import EXACT, WRAPPING, exact_of, tell_used, watching

EDGES = [0, 1, 2, 3, 7, 31, 32, 33, 1000, 2**16, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1]
numbers = st.sampled_from(EDGES) | st.integers(0, 2**32 - 1)


@pytest.fixture
def watch():
    used = []
    with watching(lambda name: name, lambda number, is_index: used.append((number, is_index))):
        yield used


def apply(name, x, y):
    return getattr(operator, f"__{name}__")(x, y)


@given(
    x=numbers,
    y=numbers,
    z=numbers,
    first=st.sampled_from(WRAPPING),
    second=st.sampled_from(sorted(EXACT)),
    kind=st.sampled_from([u32, u64]),
)
def test_values_are_the_same_and_the_exact_ones_are_exact(x, y, z, first, second, kind):
    """Two operators on end: the value as without watching, and the integer that Python's unbounded ones give."""
    y = y % 40 if first == "lshift" else y
    z = z % 40 if second in ("lshift", "rshift") else max(z, 1) if second in ("floordiv", "mod") else z
    plain = apply(second, apply(first, kind(x), kind(y)), kind(z))
    exact_first = EXACT[first](x, y) if not (first == "lshift" and y >= kind.bits) else 0
    exact = EXACT[second](exact_first, z) if not (second in ("lshift", "rshift") and z >= kind.bits) else int(plain)
    with watching(lambda name: None, lambda number, is_index: None):
        for right in (kind(z), z):
            got = apply(second, apply(first, kind(x), kind(y)), right)
            assert got == plain and type(got).__name__ == kind.__name__
            if exact_of(got) is not None:
                assert exact_of(got) == exact and exact != int.__index__(got)
            elif exact_first == int(apply(first, kind(x), kind(y))) % 2**kind.bits:
                assert exact % 2**kind.bits == int.__index__(got)


def test_what_comes_back_into_range_is_an_ordinary_number(watch):
    below = u32(5) - 7
    assert (below, exact_of(below)) == (2**32 - 2, -2)
    for back in (below + 3, below + u32(3), 3 + below, u32(3) + below, np.int64(3) + below, below & 1, below % 1, 0 * below):
        assert exact_of(back) is None and type(back) is u32
    assert exact_of(below & 7) is None and below & 7 == 6
    assert exact_of(-u32(5) + 5) is None and exact_of(~u32(5) & 0xFF) is None
    assert exact_of(-u32(0)) is None and exact_of(u32(1) << 31) is None and exact_of(u32(1) << 32) is None


def test_division_of_what_wrapped_differs(watch):
    area = u32(70000) * 70000
    assert exact_of(area) == 4_900_000_000 and area == 4_900_000_000 - 2**32
    assert exact_of(area // 70000) == 70000 and area // 70000 == 8643
    assert exact_of(area >> 4) == 4_900_000_000 >> 4


def test_widening_keeps_what_the_narrow_number_lost(watch):
    row = u32(1 << 20) * (1 << 12)
    for wide in (u64(row), row + u64(0), u64(0) + row, u64(row) * 2 // 2):
        assert wide == 0 and exact_of(wide) == 1 << 32 and type(wide).__name__ == "u64"
    assert exact_of(u64(1 << 20) * (1 << 12)) is None


def test_comparisons_and_floats_are_those_of_the_wrapped_number(watch):
    below = u32(1) - 2
    assert (
        below > 3
        and below == 2**32 - 1
        and below != 0
        and 3 < below
        and u32(3) < below
        and u64(3) < below
        and hash(below) == hash(2**32 - 1)
    )
    assert below**2 == u32(2**32 - 1) ** 2 and repr(below) == "u32(4294967295)" and min(below, u32(4)) == 4
    with pytest.raises(TypeError, match="add of u32 and float"):
        below + 1.5


def test_whoever_makes_an_address_of_it_is_told(watch):
    below = u32(0) - 4
    assert int(below) == 2**32 - 4 and watch == [(below, False)]
    assert tell_used((below, 3)) == (below, 3) and watch[1:] == [(below, True)]
    assert below.origin == "sub" and (below + 1).origin == "sub"


def test_outside_nothing_is_remembered():
    with watching(lambda name: None, lambda number, is_index: None):
        pass
    assert exact_of(u32(0) - 1) is None and type(u32(0) - 1) is u32
    with pytest.raises(ValueError, match="in between"), watching(lambda name: None, lambda number, is_index: None):
        raise ValueError("in between")
    assert type(u32(0) - 1) is u32


def test_one_watcher_at_a_time(watch):
    with pytest.raises(RuntimeError, match="watched already"), watching(lambda name: None, lambda number, is_index: None):
        pass
