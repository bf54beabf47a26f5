"""Random bits by position: the same in parts, unlike for near seeds, and even enough for rounding."""

import numpy as np
import pytest

from dgnumba.quant.random import random_bits


def test_parts_are_parts_of_the_whole():
    whole = random_bits(7, 0, (40, 50))
    assert whole.dtype == np.uint32
    assert np.array_equal(whole[10:20], random_bits(7, 500, (10, 50)))
    assert random_bits(7, 0, (0, 5)).shape == (0, 5)


def test_pinned():
    """A device cast must give these too."""
    assert random_bits(0, 0, (3,)).tolist() == PINNED_0
    assert random_bits(2**64 - 1, 2**32 - 1, (3,)).tolist() == PINNED_1


PINNED_0 = [1877095233, 2367590804, 29899002]
PINNED_1 = [2557578995, 3879946450, 1165519181]


@pytest.mark.parametrize("seed", [0, 1, 2, 2**63, 12345])
def test_bits_are_even_and_neighbours_are_independent(seed):
    n = 1 << 18
    bits = random_bits(seed, 0, (n,))
    for place in range(32):  # five standard deviations of a fair coin
        assert abs(((bits >> place) & 1).mean() - 0.5) < 2.5 / np.sqrt(n)
    unit = bits / 2.0**32 - 0.5
    others = random_bits(seed + 1, 0, (n,)) / 2.0**32 - 0.5
    for other in (*(np.roll(unit, shift) for shift in (1, 2, 3, 128, 4096)), others, others[::-1]):
        assert abs((unit * other).mean() * 12) < 5 / np.sqrt(n)
    assert len(set(bits[:4096].tolist()) & set(random_bits(seed + 1, 0, (4096,)).tolist())) < 3


def test_positions_beyond_32_bits_differ():
    low, high = random_bits(3, 0, (1000,)), random_bits(3, 2**32, (1000,))
    assert (low == high).mean() < 0.01
