"""On a GPU: output types, addends in one pass, e5m2, scales as they lie, settings, batch invariance; and many streams, threads, graphs, GPUs."""

import dataclasses
import threading

import ml_dtypes
import numpy as np
import pytest
from cases import plan, swapped
from gpu.problems import operands

import dgnumba
from dgnumba import api, config
from dgnumba.quant.reference import exact_integer_reference
from dgnumba.testing import assert_bits_equal

pytestmark = pytest.mark.gpu

OUT = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}
SHAPES = [(1, 4096, 2048), (7, 136, 900), (33, 70, 384), (64, 576, 7168), (200, 264, 640), (1000, 2112, 1536)]


@pytest.fixture(scope="module")
def cupy():
    return pytest.importorskip("cupy")


@pytest.fixture(autouse=True)
def settings():
    """Every test ends with the settings that it began with."""
    before = config.current()
    yield
    dgnumba.set_num_sms(before.num_sms)
    dgnumba.set_pdl(before.pdl)
    dgnumba.set_batch_invariant(before.batch_invariant)


def problem(cupy, rng, m, n, k):
    """Operands whose sums are exact, row-major scales and all; and their float32 product on the host."""
    a, b = operands(cupy, rng, m, n, k, "exact")
    a, b = [cupy.ascontiguousarray(x) for x in a], [cupy.ascontiguousarray(x) for x in b]
    return a, b, exact_integer_reference(*[x.get() for x in (*a, *b)], "float32", None)


def held(cupy, x):
    """A host array on the GPU; bfloat16 as its bits."""
    return cupy.asarray(x.view(np.uint16) if x.dtype == ml_dtypes.bfloat16 else x)


def check(d, expected):
    got = d.get()
    assert_bits_equal(got.view(expected.dtype) if got.dtype == np.uint16 else got, expected)


@pytest.mark.parametrize("out", OUT)
@pytest.mark.parametrize("m, n, k", SHAPES)
def test_outputs_and_addends(cupy, rng, m, n, k, out):
    """Without C, with it, and in place: one kernel each."""
    a, b, product = problem(cupy, rng, m, n, k)
    values = rng.integers(-8, 9, (m, n)).astype(OUT[out])
    with np.errstate(over="ignore"):
        plain, total = product.astype(OUT[out]), (product + values.astype(np.float32)).astype(OUT[out])
    d, c = held(cupy, np.full((m, n), -7, OUT[out])), held(cupy, values)
    check(api.fp8_gemm_nt(a, b, d), plain)
    check(api.fp8_gemm_nt(a, b, d, c), total)
    check(c, values)
    check(api.fp8_gemm_nt(a, b, c, c), total)


@pytest.mark.parametrize("out", ["bfloat16", "float16"])
@pytest.mark.parametrize("epilogue", ["tma", "warp", "registers"])
def test_too_large_is_infinite(cupy, out, epilogue):
    a, b = cupy.zeros((8, 256), cupy.uint8), cupy.zeros((64, 256), cupy.uint8)
    a[:, 0], b[:, 0] = 0x38, 0x38  # 1.0
    exact = np.float32([65504, 65519.996, 65520, 65536, 2.0**-24, 3 * 2.0**-25, 2.0**127, (2 - 2.0**-8) * 2.0**127])
    sfa = cupy.zeros((8, 2), cupy.float32)
    sfa[:, 0] = cupy.asarray(exact)
    chosen = swapped(8, 64, d_dtype=out) if epilogue == "registers" else plan(64, 64, d_dtype=out, epilogue=epilogue)
    d = held(cupy, np.zeros((8, 64), OUT[out]))
    with np.errstate(over="ignore"):
        check(
            api.fp8_gemm_nt((a, sfa), (b, cupy.ones((1, 2), cupy.float32)), d, plan=chosen),
            np.repeat(exact[:, None].astype(OUT[out]), 64, 1),
        )


@pytest.mark.parametrize("kinds", [("float8_e5m2", "float8_e4m3fn"), ("float8_e4m3fn", "float8_e5m2"), ("float8_e5m2", "float8_e5m2")])
@pytest.mark.parametrize("m, n, k", SHAPES[:4])
def test_e5m2(cupy, rng, kinds, m, n, k):
    """Bytes on CuPy whose type the QTensor says; then plain bytes in the same form, which are e4m3, and which no kept call may take for e5m2."""
    a, b, expected = problem(cupy, rng, m, n, k)
    pairs = []
    for (data, scale), kind, granularity in zip((a, b), kinds, ((1, 128), (128, 128))):
        values = data.get().view(ml_dtypes.float8_e4m3fn).astype(np.float32)  # -4 to 4 are numbers of both
        codes = cupy.asarray(values.astype(getattr(ml_dtypes, kind)).view(np.uint8))
        pairs.append(dgnumba.QTensor(codes, scale, kind, granularity))
    for _ in range(2):
        check(api.fp8_gemm_nt(*pairs, cupy.zeros((m, n), cupy.float32)), expected)
        check(api.fp8_gemm_nt(a, b, cupy.zeros((m, n), cupy.float32)), expected)


@pytest.mark.parametrize("m", [1, 5, 16, 64])
@pytest.mark.parametrize("block_k, split", [(128, 1), (128, 4), (256, 1), (512, 2)])
def test_scales_read_as_they_lie(cupy, rng, m, block_k, split):
    block_m = next(b for b in (8, 16, 32, 64) if b >= m)
    if block_m * block_k > 32 * 512:
        pytest.skip("more accumulators than registers")
    a, b, expected = problem(cupy, rng, m, 200, 2048)
    chosen = swapped(block_m, 64, 3, split=split, block_k=block_k, d_dtype="float32", row_scales=True)
    check(api.fp8_gemm_nt(a, b, cupy.zeros((m, 200), cupy.float32), plan=chosen), expected)


@pytest.mark.parametrize(
    "chosen",
    [
        plan(16, 64, 8, d_dtype="float32"),
        plan(32, 64, 8, d_dtype="float16"),
        plan(64, 48, 8, with_c=True),
        plan(128, 192, 4, share="B"),
        plan(256, 128, 4, share="A", epilogue="warp", rotate=True),
        plan(256, 64, 3, d_dtype="float32", with_c=True),
    ],
    ids=lambda p: f"{p.name}-{p.d_dtype}",
)
def test_the_dense_kernel_reads_scales_as_they_lie(cupy, rng, chosen):
    """Bit for bit what it makes of scales that were turned, on random data; rows of a wider array, K blocks no multiple of four."""
    m, n, k = 300, 520, 1200
    a, b = ([cupy.ascontiguousarray(x) for x in pair] for pair in operands(cupy, rng, m, n, k, "any"))
    wide = cupy.full((m, 16), np.nan, cupy.float32)
    wide[:, :10] = a[1]
    c = held(cupy, np.ones((m, n), OUT[chosen.d_dtype])) if chosen.with_c else None
    direct, turned = (held(cupy, np.zeros((m, n), OUT[chosen.d_dtype])) for _ in range(2))
    for d, row_scales in ((direct, True), (turned, False)):
        api.fp8_gemm_nt((a[0], wide[:, :10]), b, d, c, plan=dataclasses.replace(chosen, row_scales=row_scales))
    assert_bits_equal(direct.get(), turned.get())
    assert bool((direct != 0).any())


@pytest.mark.parametrize("pdl", [False, True])
@pytest.mark.parametrize("num_sms", [None, 33, 2])
def test_settings(cupy, rng, pdl, num_sms):
    """A chain of dependent products, each of which may begin before the last has ended; in a stream, and from a graph."""
    dgnumba.set_pdl(pdl)
    dgnumba.set_num_sms(num_sms)
    problems = []
    for m in (3, 130, 64):
        (a, sfa), b, expected = problem(cupy, rng, m, 256, 512)
        # a graph must not hold temporaries: nothing is laid out anew
        problems.append(((a, dgnumba.get_mn_major_tma_aligned_tensor(sfa)), b, expected))
    stream = cupy.cuda.Stream(non_blocking=True)
    outs = [cupy.zeros(expected.shape, cupy.float32) for _, _, expected in problems]

    def calls():
        for (a, b, _), d in zip(problems, outs):
            api.fp8_gemm_nt(a, b, d)
            api.fp8_gemm_nt(a, b, d, d)  # reads what the one before wrote

    cupy.cuda.Device().synchronize()
    with stream:
        for _ in range(20):
            calls()
        stream.synchronize()
        for (_, _, expected), d in zip(problems, outs):
            check(d, expected + expected)
            d[...] = 0
        stream.begin_capture()
        calls()
        graph = stream.end_capture()
        for _ in range(5):
            graph.launch(stream)
        stream.synchronize()
    for (_, _, expected), d in zip(problems, outs):
        check(d, expected + expected)


def test_a_row_has_the_same_bits_whatever_m_is(cupy, rng):
    """Random codes, not exact ones: every kernel and tile sums a row alike; and a split does not, or the switch would prove nothing."""
    n, k = 576, 7168
    (a, sfa), b = operands(cupy, rng, 4096, n, k, "any")
    a, sfa = cupy.ascontiguousarray(a), cupy.ascontiguousarray(sfa)

    def product(m, **more):
        return api.fp8_gemm_nt((a[:m], sfa[:m]), b, cupy.zeros((m, n), cupy.float32), **more).view(cupy.uint32)

    dgnumba.set_batch_invariant(True)
    whole = product(4096)
    for m in (1, 2, 8, 9, 16, 31, 33, 64, 65, 100, 128, 200, 777, 2048):
        assert bool((product(m) == whole[:m]).all()), m
    dgnumba.set_batch_invariant(False)
    split = product(8, plan=swapped(8, 64, 4, split=4, d_dtype="float32"))
    assert not bool((split == whole[:8]).all())


def test_many_streams_and_threads(cupy, rng):
    """Eight threads, each with its stream and its problems, kept calls and new ones, C and none, at once."""
    work = [[problem(cupy, rng, int(m), 200, 640) for m in rng.integers(1, 300, 3)] for _ in range(8)]
    addend = np.float32(3)
    faults, barrier = [], threading.Barrier(len(work))
    cupy.cuda.Device().synchronize()

    def run(i):
        try:
            stream = cupy.cuda.Stream(non_blocking=True)
            with stream:
                outs = [cupy.zeros(expected.shape, cupy.float32) for _, _, expected in work[i]]
                barrier.wait()
                for turn in range(30):
                    for (a, b, _), d in zip(work[i], outs):
                        if turn % 2:
                            d[...] = addend
                            api.fp8_gemm_nt(a, b, d, d)
                        else:
                            api.fp8_gemm_nt(a, b, d)
                stream.synchronize()
                for (_, _, expected), d in zip(work[i], outs):
                    check(d, expected + addend)
        except BaseException as fault:
            faults.append((i, fault))
            barrier.abort()

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(work))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert faults == []


def test_two_gpus_at_once(cupy, rng):
    """The same form on both, by turns and from two threads: each call runs where its arrays are, with that GPU's kept launch."""
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("one GPU")
    work = []
    for index in (0, 1):
        with cupy.cuda.Device(index):
            work.append((*problem(cupy, rng, 100, 200, 640), cupy.zeros((100, 200), cupy.float32)))
    for _ in range(3):
        for a, b, _, d in work:
            api.fp8_gemm_nt(a, b, d)
    faults = []

    def run(index):
        try:
            a, b, expected, d = work[index]
            for _ in range(50):
                api.fp8_gemm_nt(a, b, d)  # from whatever device is current in this thread
            with cupy.cuda.Device(index):
                cupy.cuda.Device().synchronize()
                check(d, expected)
        except BaseException as fault:
            faults.append((index, fault))

    threads = [threading.Thread(target=run, args=(i,)) for i in (0, 1)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert faults == []
