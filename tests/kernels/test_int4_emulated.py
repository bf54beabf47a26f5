"""The kernel for weights of 4 bits, stepped in the emulator, gives the host's bits: every activation and format, awkward extents, both policies."""

import int4_cases as cases
import numpy as np
import pytest
from kernels.int4_products import H200, INT4, Int4Product

BF16, F16, E4M3, BY_ROW, INT8 = "bfloat16", "float16", "float8_e4m3fn", "float8_e4m3fn_row", "int8"

TAILS = [
    Int4Product(BF16, "int4_g128", 8, 150, 520, (8, 64, 1, 3, 1), 2, tail=2),  # a tile each, then one for both
    Int4Product(INT8, "int4_g64", 18, 140, 500, (16, 64, 1, 2, 1), 4, "bfloat16", True, True, tail=2),  # two tiles for two pairs
    Int4Product(INT8, "int4_row", 9, 300, 400, (16, 64, 1, 2, 1), 4, "int32", tail=2),  # one tile for the first of two pairs
    Int4Product(BY_ROW, "int4_g128", 8, 440, 256, (8, 64, 1, 2, 1), 4, tail=2),  # three tiles left: too many to share
    Int4Product(F16, "uint4_g64", 9, 40, 512, (16, 64, 2, 2, 1), 4, fold=True, tail=2),  # one tile in all
]
"""CTAs that take whole tiles, and share those of the last round where these are few."""

HALVES = [
    Int4Product(BY_ROW, "int4_g128", 190, 70, 300, (192, 64, 1, 2, 1)),  # past the last token of the second half
    Int4Product(
        E4M3, "int4_g128", 197, 66, 500, (192, 128, 2, 2, 1), 1
    ),  # scales of each half's tokens; two records a stage; two tiles of one CTA
    Int4Product(INT8, "int4_g128", 250, 70, 300, (256, 64, 1, 2, 2), 132, "bfloat16", True, True),  # a split
    Int4Product(BF16, "uint4_g128", 180, 64, 256, (192, 64, 1, 2, 1)),  # two blocks of 128 bytes a record, integer zero points
    Int4Product(E4M3, "uint4_g128", 140, 40, 384, (256, 64, 1, 2, 1)),  # tables of zero points, a half with few tokens
    Int4Product(F16, "int4_g128", 130, 70, 256, (192, 64, 1, 2, 1), 2, tail=2),  # one tile for each CTA of a pair
]
"""More than 128 tokens: a record is multiplied by halves of them."""

CASES = [
    Int4Product(BF16, "int4_g128", 1, 1, 1, (8, 64, 1, 2, 1)),  # one element
    Int4Product(BF16, "int4_g128", 9, 66, 520, (8, 64, 1, 3, 1), 1),  # four tiles of one CTA, the ring goes round
    Int4Product(F16, "uint4_g64", 9, 70, 384, (16, 64, 1, 2, 1)),  # integer zero points
    Int4Product(BF16, "uint4_g16", 8, 64, 256, (8, 64, 2, 2, 1)),  # sixteen accumulators of a stage
    Int4Product(F16, "int4_g32", 5, 140, 256, (8, 128, 2, 2, 1), 1),  # two warpgroups, the last tile of the stream twice
    Int4Product(BF16, "float_zeros_g64", 6, 64, 200, (8, 64, 1, 2, 1)),  # sums of tokens, a K tail
    Int4Product(F16, "act_order_g32", 8, 60, 256, (8, 64, 1, 2, 1)),
    Int4Product(BF16, "int4_row", 25, 65, 512, (32, 64, 4, 2, 1)),  # four records a stage
    Int4Product(BF16, "mxfp4", 4, 64, 256, (8, 64, 1, 2, 2)),  # UE8M0, two CTAs add up
    Int4Product(F16, "mxfp4", 4, 64, 128, (8, 64, 1, 2, 1)),
    Int4Product(BF16, "nvfp4", 7, 66, 130, (8, 64, 1, 2, 1)),  # e4m3 scales and one for all
    Int4Product(BF16, "int4_g128", 30, 250, 256, (32, 256, 1, 2, 2)),  # four warpgroups
    Int4Product(F16, "int4_g64", 8, 64, 512, (8, 64, 1, 2, 4)),  # four CTAs
    Int4Product(E4M3, "int4_g128", 3, 70, 300, (8, 64, 1, 2, 1)),
    Int4Product(E4M3, "uint4_g64", 20, 64, 512, (24, 64, 2, 2, 2)),  # tables of zero points
    Int4Product(E4M3, "uint4_g16", 8, 64, 256, (8, 64, 1, 2, 1)),  # groups of half a step
    Int4Product(E4M3, "nvfp4", 5, 64, 128, (8, 64, 1, 2, 1)),
    Int4Product(E4M3, "mxfp4", 5, 64, 128, (8, 64, 1, 2, 1)),
    Int4Product(E4M3, "float_zeros_g64", 8, 64, 256, (8, 64, 1, 2, 1)),
    Int4Product(INT8, "int4_g64", 33, 140, 400, (48, 128, 1, 3, 1), 1),
    Int4Product(INT8, "uint4_g64", 6, 64, 512, (8, 64, 2, 2, 2)),
    Int4Product(INT8, "uint4_g16", 8, 64, 128, (8, 64, 1, 2, 1)),
    Int4Product("int4", "int4_g32", 10, 64, 256, (16, 64, 2, 2, 1)),
    Int4Product(INT8, "float_zeros_g64", 8, 64, 128, (8, 64, 1, 2, 1)),
    Int4Product(INT8, "int4_row", 9, 70, 400, (16, 64, 1, 2, 1), 1),  # one scale a row: integers over all of K
    Int4Product("int4", "int4_row", 9, 70, 512, (16, 64, 2, 2, 2), 132, "bfloat16", True, True),
    Int4Product("int4", "int4_row", 9, 70, 300, (16, 64, 1, 2, 1), 132, "int32"),
    Int4Product(INT8, "int4_row", 20, 64, 512, (24, 64, 1, 2, 4), 132, "int32"),
    Int4Product(BF16, "int4_g128", 12, 70, 256, (16, 64, 1, 2, 1), 132, "bfloat16", True, True),
    Int4Product(F16, "int4_g128", 12, 70, 256, (16, 64, 1, 2, 2), 132, "float16", True, True),
    Int4Product(INT8, "int4_g128", 12, 70, 256, (16, 64, 1, 2, 1), 132, "float32", True, True),
    Int4Product(F16, "int4_g128", 9, 70, 256, (16, 64, 1, 2, 1), 132, "float16", False, True, True),
    Int4Product(E4M3, "int4_g128", 9, 40, 256, (16, 64, 1, 2, 2), 132, "bfloat16", False, False, True),
    Int4Product(BY_ROW, "int4_g64", 11, 70, 300, (16, 64, 1, 2, 1), 132, "float32", True),
    Int4Product(BY_ROW, "uint4_g128", 20, 140, 500, (24, 128, 2, 2, 2), 132),  # tables of zero points, a split
    Int4Product(BF16, "int4_g128", 9, 140, 520, (16, 128, 1, 3, 1), 1, pdl=True),  # built to let the grid behind it begin
    Int4Product(BF16, "int4_g128", 9, 70, 520, (16, 64, 1, 3, 1), 1, fold=True),  # scales folded into the weights; the ring goes round
    Int4Product(F16, "uint4_g64", 9, 70, 512, (16, 64, 2, 2, 2), fold=True),
    Int4Product(BF16, "uint4_g16", 20, 140, 256, (24, 128, 2, 2, 1), 1, "bfloat16", True, True, fold=True),
    Int4Product(F16, "int4_g32", 5, 64, 512, (8, 64, 4, 2, 1), fold=True),
    Int4Product(BF16, "mxfp4", 4, 64, 256, (8, 64, 1, 2, 2), fold=True),
    Int4Product(BF16, "nvfp4", 7, 66, 130, (8, 64, 1, 2, 1), fold=True),
    Int4Product(F16, "int4_row", 9, 40, 256, (16, 64, 1, 2, 1), 132, "float16", has_gate=True, fold=True),
    *TAILS,
    *HALVES,
]


@pytest.mark.parametrize("case", CASES[: -len(HALVES) : 2], ids=str)
def test_awkward_products(case):
    """Every second, under one policy each, by turns: the full run takes all under both."""
    case.run(INT4, ("eager", "late")[CASES.index(case) // 2 % 2])


@pytest.mark.parametrize("case", TAILS, ids=str)
def test_the_last_round_shared(case):
    case.run(INT4, ("late", "eager")[TAILS.index(case) % 2])


@pytest.mark.parametrize("case", HALVES, ids=str)
def test_halves_of_the_tokens(case):
    case.run(INT4, ("late", "eager")[HALVES.index(case) % 2])


@pytest.mark.full
@pytest.mark.parametrize("case", CASES, ids=str)
def test_awkward_products_under_both_policies(case, policy, rng):
    case.run(INT4, policy, int(rng.integers(2**31)))


def test_the_cases_are_a_spread():
    pairs = {(c.kind, c.variant) for c in CASES}
    assert {k for k, _ in pairs} == set(cases.ACTIVATIONS)
    assert {v for k, v in pairs if k in (BF16, F16)} >= set(cases.VARIANTS) - {"uint4_g128", "int4_g256"}
    assert {c.tile[0] for c in CASES} >= {8, 16, 24, 32, 48} and {c.tile[4] for c in CASES} == {1, 2, 4}
    assert {c.out for c in CASES} == {*cases.D_DTYPES, "int32"}


@pytest.mark.full
def test_random_products(policy, rng):
    """Random plans on random problems."""
    done = 0
    while done < 40:
        kind, variant = cases.ACTIVATIONS[rng.integers(len(cases.ACTIVATIONS))], cases.VARIANTS[rng.integers(len(cases.VARIANTS))]
        m, n, k = int(rng.integers(1, 70)), int(rng.integers(1, 300)), int(rng.integers(1, 20)) * 32
        if not cases.goes(kind, variant):
            continue
        product = Int4Product(kind, variant, m, n, k, (8, 64, 1, 2, 1), int(rng.integers(1, 4)))
        problem = product.operands(np.random.default_rng(0))[0].problem
        plans = INT4.candidates(problem, H200)
        chosen = plans[rng.integers(len(plans))]
        tile = (chosen.block_m, chosen.block_n, chosen.records, min(chosen.num_stages, 3), chosen.split)
        tail = int(rng.integers(1, 3)) if chosen.split == 1 and chosen.records * 256 <= k and chosen.block_n <= 128 else 1
        Int4Product(kind, variant, m, n, k, tile, product.num_sms, fold=chosen.fold, tail=tail).run(INT4, policy, int(rng.integers(2**31)))
        done += 1
