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


def test_a_region_of_no_bytes_takes_no_label():
    """Nothing lies there: what begins at the same place does."""
    smem = SmemMap.of(("w", 100, 1, 16), ("sfa", 0, 2, 128), ("tables", 0, 1, 16), ("full", 8, 2, 8))
    assert smem["sfa"].offset == smem["full"].offset == 128
    assert smem.labels == {0: "w[0]", 128: "full[0]", 136: "full[1]"}


def test_a_name_that_is_not_there():
    with pytest.raises((KeyError, StopIteration)):
        SmemMap.of(("d", 100, 1, 16))["e"]


RING = ("a", 2048, 3, 1024), ("w", 100, 3, 128), ("rest", 0, 1, 16), ("full", 8, 3, 8)


def test_a_region_in_the_place_of_others():
    """From where the first of them begins; what lay there keeps its name, and no byte more is asked for."""
    plain = SmemMap.of(*RING)
    over = plain.over("partial", 5000, "a")
    assert list(over)[:-1] == list(plain) and (over["partial"].offset, over["partial"].end, over["partial"].stages) == (0, 5000, 1)
    assert over.launch_bytes == plain.launch_bytes and over.base_alignment == plain.base_alignment
    assert over.labels[0] == "a[0]" and over.labels == plain.labels
    behind = plain.over("partial", 64, "w")
    assert behind["partial"].offset == behind["w"].offset == 6144 and behind.labels[6144] == "w[0]"
    assert plain.over("none", 0, "a").launch_bytes == plain.launch_bytes
    assert str(over).splitlines()[-2] == "      0  partial        1 x 5000 B"


def test_a_region_that_reaches_past_the_others():
    plain = SmemMap.of(*RING)
    room = plain["full"].end
    assert plain.over("partial", room, "a").launch_bytes == plain.launch_bytes
    with pytest.raises(ValueError, match=f"partial: expected at most {room} bytes from a on, got {room + 1}"):
        plain.over("partial", room + 1, "a")
    with pytest.raises(ValueError, match=f"partial: expected at most {room - 6144} bytes from w on, got {room}"):
        plain.over("partial", room, "w")
    with pytest.raises((KeyError, StopIteration)):
        plain.over("partial", 8, "b")
