"""For tests and benches: random problems, exact ones, comparisons that say where they failed, and the properties of a quantizer."""

from .compare import assert_bits_equal, assert_within, calc_diff
from .here import array_module, to_numpy
from .problems import (
    Case,
    exact_problem,
    finite_codes,
    power_of_two_scales,
    random_extent,
    random_problem,
    random_scales,
    small_integers,
)
from .quantizers import PROPERTIES, Checked, check_quantizer

__all__ = [
    "PROPERTIES",
    "Case",
    "Checked",
    "array_module",
    "assert_bits_equal",
    "assert_within",
    "calc_diff",
    "check_quantizer",
    "exact_problem",
    "finite_codes",
    "power_of_two_scales",
    "random_extent",
    "random_problem",
    "random_scales",
    "small_integers",
    "to_numpy",
]
