"""`int4_gemm_nt` and `explain_int4`: the call, its refusals, and the host path against the float64 oracle."""

import dataclasses

import int4_cases as cases
import ml_dtypes
import numpy as np
import pytest

import dgnumba
from dgnumba import Int4Plan, config, explain_int4, int4_gemm_nt, prepare_int4_weights
from dgnumba.device import Device
from dgnumba.errors import DTypeError, PlanError, ProblemError, UnsupportedError
from dgnumba.int4_plan import choose_int4, int4_kernel_named, validate_int4
from dgnumba.int4_problem import Int4Problem
from dgnumba.quant import quantize
from dgnumba.testing import assert_bits_equal, assert_within, random_extent

BF16 = ml_dtypes.bfloat16


@pytest.mark.parametrize("kind", cases.ACTIVATIONS)
@pytest.mark.parametrize("variant", cases.VARIANTS)
def test_the_host_path_is_within_the_bound(kind, variant, rng):
    """Odd extents, a K tail, a group that does not divide K; INT8 and INT4 are within the roundings of the scales alone."""
    if not cases.goes(kind, variant):
        pytest.skip("no kernel takes it")
    m, n, k = 7, 75, 288 if variant.startswith("act") else 331
    a, q = cases.activations(rng, kind, m, k), cases.weights(rng, variant, n, k)
    expected, bound = dgnumba.int4_gemm_reference(a, q)[0], dgnumba.int4_error_bound
    for out in cases.D_DTYPES:
        d = int4_gemm_nt(a, q, out_dtype=out)
        assert d.dtype == cases.D_DTYPES[out]
        assert_within(d, expected, bound(a, q, out, fold=False), f"{kind} {variant} {out}")


@pytest.mark.parametrize("kind", cases.INTEGERS)
def test_integer_activations_are_exact_over_random_problems(kind, rng):
    """M from 0 to 300, every format, tails everywhere: the INT64 oracle's bits."""
    for i in range(24):
        variant = [v for v in cases.FORMATS if not v.endswith("fp4")][i % 8]
        m, n, k = random_extent(rng, 300), random_extent(rng, 200), max(1, random_extent(rng, 1000))
        a, q = cases.exact(rng, cases.activations(rng, kind, m, k), cases.weights(rng, variant, n, k))
        codes = a.dtype.decode(a.codes).astype(np.int64)
        zero = 0 if q.zero_point is None else q.spread(q.zeros()).astype(np.int64)
        weights = q.dtype.decode(q.codes).astype(np.int64) - zero
        # scales of 0.5, 1 and 2: in units of a quarter everything is an integer
        twice = (2 * q.spread(q.block_scales)).astype(np.int64)
        exact = (codes @ (weights * twice).T) * (2 * a.scale).astype(np.int64)
        assert_bits_equal(int4_gemm_nt(a, q, out_dtype="float32"), (exact / 4).astype(np.float32), f"{kind} {variant} {m}x{n}x{k}")


@pytest.mark.parametrize("kind", cases.INTEGERS)
def test_an_int32_output_is_the_sums_of_codes(kind, rng):
    for m, n, k in ((0, 4, 64), (5, 70, 331), (130, 33, 1000)):
        a, q = cases.activations(rng, kind, m, k), cases.weights(rng, "int4_row", n, k)
        codes, weights = (x.dtype.decode(x.codes).astype(np.int64) for x in (a, q))
        assert_bits_equal(int4_gemm_nt(a, q, out_dtype="int32"), (codes @ weights.T).astype(np.int32))


@pytest.mark.parametrize("out", cases.D_DTYPES)
def test_bias_addend_and_gate(out, rng):
    m, n, k = 6, 41, 200
    a, q = cases.exact_problem(rng, "float16", "int4_g64", m, n, k)
    bias, c = rng.standard_normal(n).astype(np.float32), rng.standard_normal((m, n)).astype(cases.D_DTYPES[out])
    kind = cases.D_DTYPES[out]
    left = dgnumba.int4_gemm_reference(a, q)[0]
    d = int4_gemm_nt(a, q, None, c, bias=bias, out_dtype=out)
    assert_bits_equal(d, ((left.astype(np.float32) + bias) + c.astype(np.float32)).astype(kind))
    pair = cases.gate_pair(rng, "int4_g64", n, k)
    left, right = (dgnumba.int4_gemm_reference(a, w)[0] for w in pair)
    w = prepare_int4_weights(pair[0], "float16", gate=pair[1])
    gated = left / (1 + np.exp(-left)) * right
    expected = gated + c.astype(np.float64)
    slack = cases.gate_slack(out, expected, c) + 2.0**-20 * np.abs(gated)
    assert_within(int4_gemm_nt(a, w, None, c, out_dtype=out), expected, slack)


def test_a_given_output_is_written_and_returned(rng):
    a, q = cases.exact_problem(rng, "bfloat16", "int4_g128", 5, 70, 256)
    expected = int4_gemm_nt(a, q, out_dtype="float32")
    wide = np.full((5, 3, 70), -1, np.float32)
    d = wide[:, 1]
    assert int4_gemm_nt(a, q, d) is d
    assert_bits_equal(np.ascontiguousarray(d), expected)
    assert (wide[:, ::2] == -1).all()
    turned, turned_bits = np.zeros((70, 5), np.float32).T, np.zeros((70, 5), np.uint16).T
    for on in ("host", "emulator"):
        turned[...], turned_bits[...] = 0, 0
        assert_bits_equal(np.ascontiguousarray(int4_gemm_nt(a, q, turned, on=on)), expected)
        int4_gemm_nt(a, q, turned_bits, on=on)
        assert_bits_equal(np.ascontiguousarray(turned_bits).view(BF16), expected.astype(BF16), on)
    bits = np.zeros((5, 70), np.uint16)
    int4_gemm_nt(a.view(np.uint16), q, bits)
    assert_bits_equal(bits.view(BF16), expected.astype(BF16))


def test_the_emulator_takes_a_call_as_it_is(rng):
    """Rows that TMA cannot read, K that is no multiple of anything: copied, padded, and right."""
    a, q = cases.exact_problem(rng, "float16", "uint4_g64", 3, 10, 77)
    spaced = np.zeros((3, 154), np.float16)
    spaced[:, ::2] = a
    assert_bits_equal(int4_gemm_nt(spaced[:, ::2], q, on="emulator"), int4_gemm_nt(a, q))


def a_byte_in(x):
    """The same array, each element a byte beyond where it should begin."""
    held = np.zeros(x.nbytes + 16, np.uint8)
    out = held[-held.ctypes.data % 16 + 1 :][: x.nbytes].view(x.dtype).reshape(x.shape)
    out[...] = x
    return out


@pytest.mark.parametrize("kind", ["float16", "int8"])
def test_arrays_that_are_not_aligned_are_copied(kind, rng):
    a, q = cases.exact_problem(rng, kind, "int4_g128", 3, 10, 128)
    bias, c = rng.integers(-8, 9, 10).astype(np.float32), rng.integers(-8, 9, (3, 10)).astype(np.float32)
    expected = int4_gemm_nt(a, q, np.zeros((3, 10), np.float32), c, bias=bias)
    moved = a_byte_in(a) if kind == "float16" else dataclasses.replace(a, data=a_byte_in(a.data), scale=a_byte_in(a.scale))
    for on in ("host", "emulator"):
        d = a_byte_in(np.zeros((3, 10), np.float32))
        assert_bits_equal(int4_gemm_nt(moved, q, d, a_byte_in(c), bias=a_byte_in(bias), on=on) + 0, expected)
    assert "d: byte strides" in str(explain_int4(moved, q, d))


@pytest.mark.parametrize("m, n, k", [(0, 5, 64), (3, 0, 64), (4, 6, 0)])
def test_empty_extents(m, n, k):
    q = dgnumba.QTensor(np.zeros((n, k), np.uint8), np.zeros((n, -(-k // 64)), np.float32), "int4", (1, 64))
    for on in ("host", "emulator"):
        d = int4_gemm_nt(np.zeros((m, k), np.float16), q, np.full((m, n), 3, np.float16), on=on)
        assert d.shape == (m, n) and (d == (3 if k else 0)).all()


@pytest.mark.parametrize("kind", cases.ACTIVATIONS)
@pytest.mark.parametrize("m, n, k", [(0, 5, 64), (3, 0, 64), (4, 6, 0)])
def test_empty_extents_with_all_that_is_added(kind, m, n, k):
    """A batch of no tokens beside a gate; no K: the bias and C are all there is, in any mixture of bfloat16 and its bits."""
    a = cases.activations(np.random.default_rng(0), kind, m, k)
    q, bias = quantize(np.zeros((n, k), np.float32), "int4_row"), np.arange(n, dtype=np.float32)
    c = np.full((m, n), 2, BF16)
    gated = prepare_int4_weights(q, cases.prepared_for(kind), gate=q)
    for on in ("host", "emulator"):
        bits = np.full((m, n), 3, np.uint16)
        int4_gemm_nt(a, q, bits, c, bias=bias, on=on)
        assert_bits_equal(bits.view(BF16), (c.astype(np.float32) + (bias if m else 0)).astype(BF16))
        assert_bits_equal(int4_gemm_nt(a, gated, np.full((m, n), 3, BF16), c.view(np.uint16), on=on), c)
        if kind in cases.INTEGERS:
            assert (int4_gemm_nt(a, q, out_dtype="int32", on=on) == 0).all()


def call(**changes):
    """A call that is right, but for what is changed."""
    q = quantize(np.ones((8, 128), np.float32), "int4_g64")
    args = {"a": np.ones((4, 128), BF16), "w": q, "d": None, "c": None} | changes
    return int4_gemm_nt(args.pop("a"), args.pop("w"), args.pop("d"), args.pop("c"), **args)


Q = quantize(np.ones((8, 128), np.float32), "int4_g64")
ROW, INT8 = quantize(np.ones((8, 128), np.float32), "int4_row"), quantize(np.ones((4, 128), np.float32), "int8_row")
FP8 = dgnumba.per_token_cast_to_fp8(np.ones((4, 128), np.float32))


def fp8(form):
    return quantize(np.ones((4, 128), np.float32), form)


@pytest.mark.parametrize(
    "error, match, changes",
    [
        (DTypeError, "a: expected bfloat16", {"a": np.ones((4, 128), np.float32)}),
        (DTypeError, "quantize first", {"a": np.ones((4, 128), np.int8)}),
        (ProblemError, "a: expected rank 2", {"a": np.ones(128, np.float16)}),
        (ProblemError, r"a: expected \[M, 128\]", {"a": np.ones((4, 64), np.float16)}),
        (ProblemError, "transposed", {"a": np.ones((128, 4), np.float16)}),
        (DTypeError, "a: expected a QTensor of float8_e4m3fn, int8 or int4", {"a": quantize(np.ones((4, 128), np.float32), "mxfp4")}),
        (ProblemError, "each 1x128 of float8_e4m3fn, or for each row, got one per 1x64", {"a": fp8("fp8_1x64")}),
        (
            ProblemError,
            "or for each row, got one per 4x128; quantize with per_token_cast_to_fp8, or with fp8_row",
            {"a": fp8("fp8_tensor")},
        ),
        (ProblemError, "each row of int4", {"a": quantize(np.ones((4, 128), np.float32), "int4_g64")}),
        (ProblemError, "data and scales alone", {"a": dataclasses.replace(FP8, global_scale=np.float32(2))}),
        (DTypeError, "w: expected Int4Weights or a QTensor", {"w": np.ones((8, 128), np.uint8)}),
        (DTypeError, "w: expected int4, uint4", {"w": quantize(np.ones((8, 128), np.float32), "int8_row")}),
        (DTypeError, "prepared for float8_e4m3fn, as a is", {"a": FP8, "w": prepare_int4_weights(Q, "int8")}),
        (DTypeError, "prepared for bfloat16, as a is", {"w": prepare_int4_weights(Q, "float8_e4m3fn")}),
        (ProblemError, "prepare them anew", {"w": dataclasses.replace(prepare_int4_weights(Q), layout="rows32")}),
        (ProblemError, "expected a stream of uint8", {"w": dataclasses.replace(prepare_int4_weights(Q), group=128)}),
        (ProblemError, "d: expected", {"d": np.zeros((8, 4), np.float16)}),
        (DTypeError, "d: expected bfloat16", {"d": np.zeros((4, 8), np.int8)}),
        (
            DTypeError,
            r"d: expected int32 \(out_dtype too\) only for int8 or int4 beside .*, got a of bfloat16",
            {"d": np.zeros((4, 8), np.int32)},
        ),
        (ProblemError, "sums of codes alone", {"a": INT8, "w": ROW, "bias": np.zeros(8, np.float32), "out_dtype": "int32"}),
        (DTypeError, "c: expected float32 as d", {"d": np.zeros((4, 8), np.float32), "c": np.zeros((4, 8), np.float16)}),
        (ProblemError, "c: expected", {"c": np.zeros((8, 4), BF16)}),
        (ProblemError, "bias: expected", {"bias": np.zeros(7, np.float32)}),
        (DTypeError, "bias: expected", {"bias": np.zeros(8, np.int32)}),
        (ProblemError, "bias: expected none beside a gate", {"w": prepare_int4_weights(Q, gate=Q), "bias": np.zeros(8, np.float32)}),
        (DTypeError, "out_dtype: expected", {"out_dtype": "float64"}),
        (ProblemError, "on: expected", {"on": "gpu"}),
        (ProblemError, "needs arrays on a GPU", {"on": "cuda"}),
        (ProblemError, "sfa: expected finite", {"a": dataclasses.replace(FP8, scale=np.full_like(FP8.scale, np.nan))}),
    ],
)
def test_bad_input_is_refused(error, match, changes):
    with pytest.raises(error, match=match):
        call(**changes)


def test_nothing_is_written_before_a_refusal():
    d = np.full((4, 8), 5, np.float32)
    with pytest.raises(ProblemError):
        call(d=d, bias=np.zeros(3, np.float32))
    assert (d == 5).all()
    shared = np.zeros((8, 128), BF16)
    with pytest.raises(ProblemError, match="overlaps a"):
        call(a=shared[:4], d=shared[:4, :8])


def test_the_oracle_takes_what_the_call_takes(rng):
    """bfloat16 as bits too; prepared weights have no values to show."""
    a, q = cases.exact_problem(rng, "bfloat16", "int4_g64", 3, 10, 128)
    bits = a.view(np.uint16)
    assert (dgnumba.int4_gemm_reference(bits, q)[0] == dgnumba.int4_gemm_reference(a, q)[0]).all()
    assert (dgnumba.int4_error_bound(bits, q) == dgnumba.int4_error_bound(a, q)).all()
    for oracle in (dgnumba.int4_gemm_reference, dgnumba.int4_error_bound):
        with pytest.raises(DTypeError, match="w: expected the QTensor, got Int4Weights"):
            oracle(a, prepare_int4_weights(q))
        with pytest.raises(ProblemError, match=r"a: expected \[M, 128\] \(K of w\), got \[3, 100\]"):
            oracle(a[:, :100], q)


def test_integers_beside_fp4_have_no_kernel():
    with pytest.raises(UnsupportedError, match="beside floats only"):
        choose_int4(Int4Problem(4, 64, 128, "int8", "float4_e2m1fn", group=32, scale_dtype="float8_e8m0fnu"), Device.named("h200"))


def test_plans_of_the_callers_own():
    problem, device = Int4Problem(16, 256, 512), Device.named("h200")
    chosen = choose_int4(problem, device).plan
    assert validate_int4(chosen, problem, device).plan == chosen
    for change, match in (
        ({"block_m": 12}, "BLOCK_M of"),
        ({"block_n": 96}, "BLOCK_N of"),
        ({"records": 3}, "records a stage"),
        ({"split": 3}, "a split over"),
        ({"group": 64}, "is for group 64, got 128"),
        ({"num_stages": 1}, "two stages"),
        ({"num_stages": 400}, "bytes of shared memory"),
        ({"block_m": 128, "records": 4}, "fewer records for more tokens"),
        ({"block_n": 256, "block_m": 128, "records": 1}, "fewer records for more tokens"),
    ):
        with pytest.raises(PlanError, match=match):
            validate_int4(dataclasses.replace(chosen, **change), problem, device)
    fine = Int4Problem(64, 256, 512, group=32)
    with pytest.raises(PlanError, match="accumulators of all groups"):
        validate_int4(Int4Plan.of(fine, "sm90_int4_gemm", block_m=64, block_n=256, num_stages=2), fine, device)
    with pytest.raises(PlanError, match="plan: expected an Int4Plan, got str"):
        validate_int4("16x64 s4", problem, device)
    with pytest.raises(PlanError, match="kernel: expected one of sm90_int4_gemm"):
        int4_kernel_named("marlin")
    with pytest.raises(PlanError, match="whole stages"):
        validate_int4(dataclasses.replace(chosen, records=2), Int4Problem(16, 256, 384), device)


def test_explain_says_what_was_done(rng):
    a, q = cases.exact_problem(rng, "bfloat16", "uint4_g64", 9, 70, 200)
    text = str(explain_int4(a, q))
    for part in ("a bfloat16 [9, 200]", "prepared in this call", "copied to rows of whole 128 bytes", "N 70 padded to 128", "K 200 padded to 256",
                 "sm90_int4_gemm", "us expected", "registers", "integer zero points"):  # fmt: skip
        assert part in text, part
    ready = prepare_int4_weights(quantize(np.ones((64, 128), np.float32), "int4_g128"))
    assert "nothing to copy" in str(explain_int4(np.ones((8, 128), BF16), ready))
    assert "16x64" in str(explain_int4(a, q, plan=Int4Plan.of(explain_int4(a, q).operands.problem, "sm90_int4_gemm", block_m=16, block_n=64,
                                                              num_stages=2)))  # fmt: skip
    with pytest.raises(ProblemError, match="nothing to explain"):
        explain_int4(a[:0], q)


# Settings


def test_plans_keep_to_the_multiprocessors_that_they_may_use(monkeypatch):
    monkeypatch.setattr(Device, "current", classmethod(lambda cls: Device.named("h200")))
    a, w = np.ones((256, 512), np.float16), prepare_int4_weights(quantize(np.ones((4096, 512), np.float32), "int4_g128"), "float16")
    assert "on 132 multiprocessors" in str(explain_int4(a, w))
    monkeypatch.setattr(config, "_settings", config.Settings(num_sms=20))
    explained = explain_int4(a, w)
    assert "on 20 multiprocessors" in str(explained)
    assert explained.choice.kernel.grid(explained.choice.plan, explained.operands.problem, explained.device) <= 20


def test_a_row_has_the_same_bits_whatever_m_is(monkeypatch, rng):
    """K long enough to be split: with the switch on every M gives the first row's bits; without it a split adds in another order."""
    w = prepare_int4_weights(quantize(rng.standard_normal((64, 2048)).astype(np.float32), "int4_g128"), "float16")
    a = rng.standard_normal((20, 2048)).astype(np.float16)

    def product(m, **more):
        return dgnumba.int4_gemm_nt(a[:m], w, out_dtype="float32", on="emulator", **more)

    split = Int4Plan("sm90_int4_gemm", 8, 64, 2, split=2, a_dtype="float16", d_dtype="float32", scale_dtype="float32")
    other = product(1, plan=split)
    monkeypatch.setattr(config, "_settings", config.Settings(batch_invariant=True))
    alone = product(1)
    for m in (9, 20):
        assert_bits_equal(product(m)[:1], alone)
    for changes in ({"block_m": 16}, {"block_n": 128}, {"records": 4}):
        assert_bits_equal(product(7, plan=dataclasses.replace(split, split=1, **changes))[:1], alone)
    with pytest.raises(PlanError, match="batch invariance is on"):
        product(1, plan=split)
    assert not np.array_equal(other, alone)
    problem = Int4Problem(16, 576, 7168)
    assert choose_int4(problem, Device.named("h200")).plan.split > 1 == choose_int4(problem, Device.named("h200"), True).plan.split
