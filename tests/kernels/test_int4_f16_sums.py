"""Sums in float16, stepped in the emulator: the host's bits where they are exact, a model's where they are rounded, and the bound of the rest."""

import dataclasses

import int4_cases as cases
import numpy as np
import pytest
from kernels.int4_products import H200, INT4, Int4Product

import dgnumba
from dgnumba import emu
from dgnumba.emu.tensor_core import multiply_add_f16
from dgnumba.int4_operands import ARRAYS, check_int4_gemm_nt, lay_out
from dgnumba.int4_plan import validate_int4
from dgnumba.int4_problem import Int4Problem
from dgnumba.kernels.int4_spec import Int4Plan
from dgnumba.quant import quantize
from dgnumba.testing import assert_bits_equal, assert_within

BY_ROW = "float8_e4m3fn_row"


def product(m, n, k, tile, *more, variant="int4_g128", **choices):
    return Int4Product(BY_ROW, variant, m, n, k, tile, *more, f16_sums=True, **choices)


CASES = [
    product(9, 67, 1200, (8, 64, 1, 3, 1), 1),  # ten records: a sum of eight and one of two; two tiles of one CTA, the ring goes round
    product(1, 1, 1, (8, 64, 1, 2, 1)),  # one element
    product(7, 33, 2560, (8, 64, 4, 2, 1)),  # two stages a sum, five in all
    product(13, 65, 2000, (16, 64, 2, 2, 1), 1),  # eight stages of two records
    product(33, 63, 2100, (48, 64, 1, 2, 2)),  # a split: nine records and eight
    product(20, 130, 1100, (24, 128, 1, 2, 1), 1, "bfloat16", True, True),  # two warpgroups
    product(9, 40, 640, (16, 64, 1, 2, 4), variant="int4_g32"),  # four accumulators a record; partial sums of four
    product(30, 129, 1536, (32, 128, 4, 2, 2), 132, "bfloat16"),
    product(9, 70, 300, (16, 64, 1, 2, 1), 132, "bfloat16", has_gate=True),
    product(9, 70, 900, (16, 64, 1, 2, 1), 1, "float16", True, variant="int4_g64"),
    product(140, 40, 1100, (192, 64, 1, 2, 1)),  # of more than 128 tokens, at once
    product(17, 71, 1111, (64, 64, 1, 2, 1), variant="int4_row"),
    product(150, 90, 256, (256, 128, 1, 2, 2)),  # partial sums of more bytes than the ring's
    product(70, 64, 1152, (96, 128, 1, 2, 1)),
    product(8, 150, 1200, (8, 64, 1, 3, 1), 2, tail=2),  # a tile each, then one for both: sums of eight and two, of five and of five
    product(100, 66, 500, (128, 128, 2, 2, 1), 1),
    product(18, 140, 640, (16, 64, 1, 2, 1), 4, "bfloat16", True, True, tail=2),  # two tiles for two pairs
    product(150, 50, 500, (256, 64, 1, 2, 1)),
    product(9, 300, 512, (16, 64, 2, 2, 1), 4, tail=2),  # one tile for the first of two pairs
    product(8, 440, 256, (8, 64, 1, 2, 1), 4, tail=2),  # three tiles left: too many to share
]


@pytest.mark.parametrize("case", CASES[::2], ids=str)
def test_exact_sums_have_the_hosts_bits(case):
    """Every second, under one policy each, by turns: the full run takes all under both."""
    case.run(INT4, ("eager", "late")[CASES.index(case) // 2 % 2])


@pytest.mark.parametrize("records, block_n", [(1, 64), (4, 128)])
def test_sums_of_eight_records_are_kept_beside_a_large_total(records, block_n):
    """2048 + 8, though 2048 + 1 is 2048."""
    case = product(3, 9, 2048, (8, block_n, records, 2, 1), large_first=True)
    expected = case.operands(np.random.default_rng(0))[1]
    assert len(np.unique(expected / (2048 + 8))) <= 3, "but for the scales of tokens"
    case.run(INT4, "late")


@pytest.mark.full
@pytest.mark.parametrize("case", CASES, ids=str)
def test_exact_sums_under_both_policies(case, policy, rng):
    case.run(INT4, policy, int(rng.integers(2**31)))


def test_the_cases_are_a_spread():
    tiles = [case.tile for case in CASES]
    assert {tile[0] for tile in tiles} == {8, 16, 24, 32, 48, 64, 96, 128, 192, 256}
    assert [{tile[i] for tile in tiles} for i in (1, 2, 4)] == [{64, 128}, {1, 2, 4}, {1, 2, 4}]
    assert any(case.m % 8 and case.n % 2 and case.k % 2 for case in CASES)


def test_a_ring_smaller_than_what_takes_its_place():
    """The rest of the partial sums lies behind the ring, before the barriers."""
    case = next(case for case in CASES if case.tile == (256, 128, 1, 2, 2))
    mapped = INT4.smem(case.plan(case.operands(np.random.default_rng(0))[0].problem))
    assert mapped["partial"].nbytes == 256 * 128 * 4 > mapped["w"].end and mapped["rest"].nbytes > 0
    assert mapped["partial"].offset == mapped["a"].offset and mapped["partial"].end <= mapped["full"].offset


@pytest.mark.parametrize("form", [{}, {"a_dtype": "int8"}, {"a_dtype": "float8_e4m3fn"},
                                  {"a_dtype": "float8_e4m3fn", "a_by_row": True, "w_dtype": "uint4", "zeros": "integer"}])  # fmt: skip
def test_other_types_are_refused_whatever_the_problem_says(form):
    problem = Int4Problem(64, 256, 512, **form, may_sum_f16=True)
    plan = Int4Plan.of(problem, INT4.NAME, block_m=64, block_n=64, num_stages=2, f16_sums=True)
    assert "e4m3 by rows beside int4" in INT4.refusal(plan, problem)


def emulated(a, w, tile, policy, num_sms=132, tail=1):
    """D, in float32, of a plan with this tile that sums in float16."""
    operands = check_int4_gemm_nt(a, w, np.full((a.shape[0], w.n), np.nan, np.float32))
    block_m, block_n, records, num_stages, split = tile
    choices = {"block_m": block_m, "block_n": block_n, "records": records, "num_stages": num_stages, "split": split, "tail": tail}
    plan = Int4Plan.of(operands.problem, INT4.NAME, **choices, f16_sums=True)
    assert validate_int4(plan, operands.problem, H200).plan == plan
    laid, built = lay_out(operands), INT4.build(plan)
    grid = INT4.grid(plan, operands.problem, dataclasses.replace(H200, num_sms=num_sms))
    arrays = [x for x in (getattr(laid, name) for name in ARRAYS) if x is not None]
    emu.run(built.kernel, grid, built.threads, INT4.bind(plan, laid), smem=built.smem.launch_bytes, cluster=built.cluster, policy=policy,
            labels=built.smem.labels, arrays=arrays)  # fmt: skip
    return np.asarray(laid.d)


def halves(x):
    return x.astype(np.float16)


def fma_f16(a, b, c):
    """Of float16: the product is exact in float64; so is the sum, but where the addend is the result."""
    with np.errstate(over="ignore"):
        return halves(a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64))


def sums_by_model(codes_of_a, small, scales, group, ratio, shares):
    """What a tile's sums are, in float32: one for each share of the records, as CTAs have them.

    codes_of_a  float32 [M, K], the values of A's codes; K a multiple of 128
    small       float32 [N, K], codes less 8
    scales      float32 [N, K / group]
    shares      ranges of records, a CTA's each
    """
    found = []
    for first, last in shares:
        total = held = np.zeros((len(small), len(codes_of_a)), np.float16)
        for record in range(first, last):
            for column in range(record * 128, record * 128 + 128, group):
                acc = None
                for step in range(column, column + group, 32):
                    at = slice(step, min(step + 32, column + group))
                    acc = multiply_add_f16(acc, small[:, at] * np.float32(2.0**-8), codes_of_a[:, at], -6, -6)
                scale = halves(scales[:, column // group, None] * np.float32(ratio))
                held = fma_f16(acc, scale, held)
            if record % 8 == 7:  # by its place in K, whoever begins where
                total, held = halves(total.astype(np.float32) + held.astype(np.float32)), np.zeros_like(held)
        total = halves(total.astype(np.float32) + held.astype(np.float32))
        found.append(total.T.astype(np.float32) * np.float32(2.0**8 / ratio))
    return found


def random_problem(rng, m, n, k, group):
    """Activations and weights as quantizers give them."""
    a = quantize(rng.standard_normal((m, k)).astype(np.float32) * np.exp(rng.standard_normal((m, 1))).astype(np.float32), "fp8_row")
    return a, cases.weights(rng, f"int4_g{group}", n, k)


@pytest.mark.parametrize(
    "m, n, k, group, tile, num_sms, tail, shares",
    [
        (11, 67, 1280, 128, (16, 64, 1, 3, 1), 1, 1, [(0, 10)]),
        (40, 64, 1280, 32, (48, 128, 2, 2, 1), 132, 1, [(0, 10)]),
        (9, 50, 1536, 64, (16, 64, 4, 2, 2), 132, 1, [(0, 4), (4, 12)]),
        (6, 60, 2432, 128, (8, 64, 1, 2, 1), 4, 2, [(0, 9), (9, 19)]),
        (130, 64, 1152, 128, (192, 64, 1, 2, 1), 132, 1, [(0, 9)]),
    ],
)
def test_rounded_sums_have_the_models_bits(m, n, k, group, tile, num_sms, tail, shares, rng):
    """Random numbers: the tensor core's four steps, promotion, sums of eight records, their total; shares of a cluster in the order of its ranks."""
    a, q = random_problem(rng, m, n, k, group)
    w = dgnumba.prepare_int4_weights(q, "float8_e4m3fn")
    ratio = w.f16_ratio(a.dtype)
    values = a.dtype.decode(a.codes).astype(np.float32)
    small = (q.codes.astype(np.int32) ^ 8).astype(np.float32) - 8
    small = np.where(small < -8, small + 16, small).astype(np.float32)
    parts = sums_by_model(values, small, q.scales.astype(np.float32), group, ratio, shares)
    expected = parts[0] if len(parts) == 1 else parts[0] + parts[1]
    expected = expected * np.asarray(a.scale, np.float32).reshape(-1, 1)
    found = emulated(a, w, tile, ("eager", "late")[len(shares) - 1], num_sms, tail)
    assert_bits_equal(found, expected)


@pytest.mark.parametrize("group, split, is_positive", [(128, 1, False), (32, 2, True)])
def test_random_sums_are_within_their_bound(group, split, is_positive, rng):
    """Of any signs, and of one, where the magnitudes that bounds grow with are those of the result."""
    m, n, k = 9, 33, 1408
    a, q = random_problem(rng, m, n, k, group)
    if is_positive:
        a, q = dataclasses.replace(a, data=np.abs(a.data.astype(np.float32)).astype(a.data.dtype)), positive(q)
    w = dgnumba.prepare_int4_weights(q, "float8_e4m3fn")
    found, oracle = emulated(a, w, (16, 64, 1, 2, split), "eager"), dgnumba.int4_gemm_reference(a, q)[0]
    bound = dgnumba.int4_error_bound(a, q, "float32", f16_sums=True)
    assert_within(found, oracle, bound, "in float16")
    host = dgnumba.int4_gemm_nt(a, w, out_dtype="float32", on="host")
    assert_within(host, oracle, dgnumba.int4_error_bound(a, q, "float32", f16_sums=False), "the host, in float32")
    error = np.abs(found - oracle)
    assert np.median(error) > 20 * np.median(np.abs(host - oracle)), "what is emulated is rounded to float16"
    assert np.median(error / np.abs(oracle)) < (2.0**-9 if is_positive else 2.0**-7), "and no more than bfloat16 rounds, in the mean"


@pytest.mark.full
def test_the_largest_numbers_stay_finite(rng):
    """Every activation 448, every code -8, scales just below a power of two; of one record more than the larger ratio allows."""
    m, n, k = 3, 9, 33 * 128
    a, q = random_problem(rng, m, n, k, 128)
    a = dataclasses.replace(a, data=np.full((m, k), 448, a.dtype.numpy), scale=np.ones_like(a.scale))
    scale = np.full((n, k // 128), np.nextafter(np.float32(1), np.float32(0)))
    q = dataclasses.replace(
        q, data=np.full((n, k), -8, np.int8).view(np.uint8) & 15, scale=scale, scale_dtype=None, packing=None, extents=()
    )
    w = dgnumba.prepare_int4_weights(q, "float8_e4m3fn")
    assert w.f16_ratio(a.dtype) == 0.5
    found, oracle = emulated(a, w, (8, 64, 1, 2, 1), "late"), dgnumba.int4_gemm_reference(a, q)[0]
    assert oracle.max() < -(2**23) and np.isfinite(found).all()
    assert_within(found, oracle, dgnumba.int4_error_bound(a, q, "float32", f16_sums=True), "in float16")


def positive(q):
    """Codes of 1 to 7."""
    return dataclasses.replace(q, data=(q.codes % 7 + 1).astype(np.uint8), packing=None, extents=())
