"""The shared-memory map: regions in order, aligned, apart."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgnumba.layouts.smem import SmemMap

part = st.tuples(st.integers(0, 5000), st.integers(0, 16), st.sampled_from([1, 8, 16, 128, 1024]))


@given(st.lists(part, min_size=1, max_size=8))
def test_regions_are_aligned_apart_and_inside(parts):
    named = [(f"r{i}", *p) for i, p in enumerate(parts)]
    smem = SmemMap.of(*named)
    for region, (name, nbytes, stages, alignment) in zip(smem, named, strict=True):
        assert (region.name, region.nbytes, region.stages) == (name, nbytes, stages)
        assert region.offset % alignment == 0
        assert smem[name] is region
    for before, after in itertools.pairwise(smem):
        assert before.end <= after.offset < before.end + named[list(smem).index(after)][3]
    assert smem.launch_bytes == max(r.end for r in smem) + 1024


def test_of_a_known_map():
    smem = SmemMap.of(("d", 100, 1, 1024), ("a", 2048, 3, 1024), ("full", 8, 3, 8), base_alignment=128)
    assert [(r.offset, r.end) for r in smem] == [(0, 100), (1024, 7168), (7168, 7192)]
    assert smem.launch_bytes == 7192 + 128
    assert str(smem).splitlines() == ["      0  d              1 x 100 B", "   1024  a              3 x 2048 B", "   7168  full           3 x 8 B",
                                      "   7320  bytes asked for at launch"]  # fmt: skip


def test_a_name_that_is_not_there():
    with pytest.raises((KeyError, StopIteration)):
        SmemMap.of(("d", 100, 1, 16))["e"]
