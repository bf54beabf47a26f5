"""Calls on a GPU as users make them: streams, graphs, other libraries' arrays, the wrong device, addends, views, refusals."""

import threading

import numpy as np
import pytest
from gpu.problems import operands

from dgnumba import api
from dgnumba.errors import DGNumbaError, ProblemError
from dgnumba.quant.reference import exact_integer_reference
from dgnumba.testing import assert_bits_equal

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def cupy():
    return pytest.importorskip("cupy")


def exact(cupy, rng, m, n, k, out="float32"):
    """Operands on the GPU and the one right result on the host."""
    a, b = operands(cupy, rng, m, n, k, "exact")
    expected = exact_integer_reference(*[x.get() for x in (*a, *b)], out)
    return a, b, expected


def bits(d):
    """An output on the host, bfloat16 as uint16."""
    host = d.get()
    return host.view(np.uint16) if host.dtype.itemsize == 2 else host


def check(d, expected):
    assert_bits_equal(bits(d), expected.view(np.uint16) if expected.dtype.itemsize == 2 else expected)


def test_no_d_gives_a_new_bfloat16_one(cupy, rng):
    a, b, expected = exact(cupy, rng, 33, 70, 300, "bfloat16")
    d = api.fp8_gemm_nt(a, b)
    assert d.shape == (33, 70) and d.device.id == a[0].device.id
    check(d, expected)


@pytest.mark.parametrize("m, n, k", [(0, 8, 128), (8, 0, 128), (8, 8, 0), (0, 0, 0)])
def test_F17_nothing_to_do(cupy, m, n, k):
    blocks = -(-k // 128)
    a = (cupy.zeros((m, k), cupy.uint8), cupy.ones((m, blocks), cupy.float32))
    b = (cupy.zeros((n, k), cupy.uint8), cupy.ones((-(-n // 128), blocks), cupy.float32))
    d = cupy.full((m, n), 5, cupy.float32)
    assert api.fp8_gemm_nt(a, b, d) is d
    assert (d == 0).all()
    c = cupy.full((m, n), 5, cupy.float32)
    assert (api.fp8_gemm_nt(a, b, d, c) == 5).all()
    assert (api.fp8_gemm_nt(a, b, c, c) == 5).all()


@pytest.mark.parametrize("out", ["float32", "bfloat16"])
def test_F22_an_addend(cupy, rng, out):
    a, b, product = exact(cupy, rng, 130, 150, 300)
    dtype = cupy.float32 if out == "float32" else cupy.uint16
    values = rng.integers(-8, 9, (130, 150)).astype(np.float32)
    held = values if out == "float32" else (values.view(np.uint32) >> 16).astype(np.uint16)
    expected = exact_integer_reference(*[x.get() for x in (*a, *b)], "float32") + values
    if out == "bfloat16":
        import ml_dtypes

        expected = expected.astype(ml_dtypes.bfloat16)
    c = cupy.asarray(held)
    check(api.fp8_gemm_nt(a, b, cupy.zeros((130, 150), dtype), c), expected)
    assert (c.get() == held).all()
    check(api.fp8_gemm_nt(a, b, c, c), expected)
    assert product.shape == expected.shape


@pytest.mark.parametrize("view", ["fortran", "reversed", "strided", "shifted"])
def test_F13_F16_F20_views(cupy, rng, view):
    a, b, expected = exact(cupy, rng, 20, 40, 260)

    def seen(x):
        if view == "fortran":
            return cupy.asfortranarray(x)
        if view == "reversed":
            return cupy.ascontiguousarray(x[::-1])[::-1]
        if view == "strided":
            return cupy.repeat(x, 2, axis=1)[:, ::2]
        flat = cupy.zeros(x.size + 1, x.dtype)
        flat[1:] = x.ravel()
        return flat[1:].reshape(x.shape)

    d = seen(cupy.zeros((20, 40), cupy.float32))
    api.fp8_gemm_nt([seen(x) for x in a], [seen(x) for x in b], d)
    check(cupy.ascontiguousarray(d), expected)


# Streams


def test_F33_the_callers_stream_is_used_and_temporaries_live(cupy, rng):
    """A slow producer, the product with scales that need a copy, then other allocations; fifty times, in a non-blocking stream."""
    a, b, expected = exact(cupy, rng, 200, 300, 500)
    slow = cupy.ones((4000, 4000), cupy.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    source = a[0].copy()
    work = cupy.zeros_like(source)
    cupy.cuda.Device().synchronize()
    with stream:
        results = []
        for _ in range(50):
            work[...] = 0
            slow @ slow
            work[...] = source
            d = cupy.zeros((200, 300), cupy.float32)
            api.fp8_gemm_nt((work, a[1]), b, d)
            cupy.full(a[1].shape, cupy.nan, cupy.float32)
            results.append(d.copy())
    stream.synchronize()
    for d in results:
        check(d, expected)


def test_F33_a_stream_that_is_passed(cupy, rng):
    a, b, expected = exact(cupy, rng, 100, 100, 300)
    slow = cupy.ones((6000, 6000), cupy.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        work = cupy.zeros_like(a[0])
        slow @ slow
        work[...] = a[0]
    d = api.fp8_gemm_nt((work, a[1]), b, cupy.zeros((100, 100), cupy.float32), stream=stream)
    stream.synchronize()
    check(d, expected)


def test_F34_a_graph_replays_on_new_values(cupy, rng):
    (a, sfa), b, expected = exact(cupy, rng, 150, 200, 384)
    twin, other_b, other = exact(cupy, rng, 150, 200, 384)
    held = [cupy.ascontiguousarray(x) for x in (a, sfa, *b)]
    held[1] = cupy.asfortranarray(cupy.zeros((152, 3), cupy.float32))[:150]
    held[1][...] = sfa
    d = cupy.zeros((150, 200), cupy.float32)
    call = lambda: api.fp8_gemm_nt(held[:2], held[2:], d)  # noqa: E731
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        call()
        stream.synchronize()
        stream.begin_capture()
        call()
        graph = stream.end_capture()
        d[...] = 0
        graph.launch(stream)
        stream.synchronize()
        check(d, expected)
        for to, new in zip(held, (*twin, *other_b)):
            to[...] = new
        graph.launch(stream)
        stream.synchronize()
    check(d, other)


def test_F35_four_threads_make_a_first_call_together(cupy, rng):
    from cases import plan

    problems = [exact(cupy, rng, 40 + i, 50, 200) for i in range(4)]
    results, barrier = {}, threading.Barrier(4)

    def work(i):
        barrier.wait()
        a, b, _ = problems[i]
        results[i] = api.fp8_gemm_nt(a, b, cupy.zeros((40 + i, 50), cupy.float32), plan=plan(32, 48, 4, d_dtype="float32", band=6))
        cupy.cuda.get_current_stream().synchronize()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for i, (_, _, expected) in enumerate(problems):
        check(results[i], expected)


# Devices


def test_F32_arrays_on_another_gpu(cupy, rng):
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("one GPU")
    with cupy.cuda.Device(1):
        a, b, expected = exact(cupy, rng, 60, 70, 300)
        d = cupy.zeros((60, 70), cupy.float32)
    with cupy.cuda.Device(0):
        api.fp8_gemm_nt(a, b, d)
        assert cupy.cuda.Device().id == 0
        on_zero = [cupy.asarray(x.get()) for x in a]
    with cupy.cuda.Device(1):
        cupy.cuda.Device().synchronize()
        check(d, expected)
        before = d.copy()
    with pytest.raises(ProblemError, match="expected memory of GPU 0 as a, got GPU 1"):
        api.fp8_gemm_nt(on_zero, b, d)
    with cupy.cuda.Device(1):
        assert (d == before).all()


def test_mixed_host_and_gpu_is_refused(cupy, rng):
    a, b, _ = exact(cupy, rng, 6, 7, 130)
    d = cupy.full((6, 7), -7, cupy.float32)
    with pytest.raises(ProblemError, match="sfb: expected memory of GPU 0 as a, got the host"):
        api.fp8_gemm_nt(a, (b[0], b[1].get()), d)
    with pytest.raises(ProblemError, match="'host' needs arrays in host memory"):
        api.fp8_gemm_nt(a, b, d, on="host")
    with pytest.raises(ProblemError, match="'emulator' needs arrays in host memory"):
        api.fp8_gemm_nt(a, b, d, on="emulator")
    assert (d == -7).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_F10_scales_are_checked_when_asked(cupy, rng, bad):
    (a, sfa), b, _ = exact(cupy, rng, 6, 7, 130)
    sfa[2, 1] = bad
    d = cupy.full((6, 7), -7, cupy.float32)
    with pytest.raises(ProblemError, match=r"sfa: expected finite scales .* at \[2, 1\]"):
        api.fp8_gemm_nt((a, sfa), b, d, check=True)
    assert (d == -7).all()
    api.fp8_gemm_nt((a, sfa), b, d)
    assert not (d == -7).all()


def test_a_zero_scale_drops_its_block(cupy, rng):
    (a, sfa), b, _ = exact(cupy, rng, 6, 7, 260)
    sfa[:, 1] = 0
    d = api.fp8_gemm_nt((a, sfa), b, cupy.zeros((6, 7), cupy.float32), check=True)
    check(d, exact_integer_reference(*[x.get() for x in (a, sfa, *b)]))


def test_overlapping_output_is_refused(cupy, rng):
    a, b, _ = exact(cupy, rng, 16, 16, 256)
    codes = cupy.ascontiguousarray(a[0])
    d = codes.ravel()[:1024].view(cupy.float32).reshape(16, 16)
    before = codes.copy()
    with pytest.raises(ProblemError, match="d: expected memory of its own, got memory that overlaps a"):
        api.fp8_gemm_nt((codes, a[1]), b, d)
    assert (codes == before).all()


# Other libraries


def test_torch_tensors(cupy, rng):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    a, b, expected = exact(cupy, rng, 100, 200, 300, "bfloat16")

    def tensor(x, dtype=None):
        out = torch.from_numpy(np.ascontiguousarray(x.get())).cuda()
        return out if dtype is None else out.view(dtype)

    ta, tb = (tensor(a[0], torch.float8_e4m3fn), tensor(a[1])), (tensor(b[0], torch.float8_e4m3fn), tensor(b[1]))
    d = torch.full((100, 200), -7.0, dtype=torch.bfloat16, device="cuda")
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        slow = torch.ones(6000, 6000, device="cuda")
        late = torch.zeros_like(ta[0].view(torch.uint8))
        slow @ slow
        late.copy_(ta[0].view(torch.uint8))
        assert api.fp8_gemm_nt((late.view(torch.float8_e4m3fn), ta[1]), tb, d) is d
        copy = d.clone()
    stream.synchronize()
    assert_bits_equal(copy.view(torch.int16).cpu().numpy().view(np.uint16), expected.view(np.uint16))
    # rows of a wider tensor, and a transposed output
    wide = torch.full((100, 256), -7.0, dtype=torch.bfloat16, device="cuda")
    api.fp8_gemm_nt(ta, tb, wide[:, :200])
    torch.cuda.synchronize()
    assert_bits_equal(wide[:, :200].contiguous().view(torch.int16).cpu().numpy().view(np.uint16), expected.view(np.uint16))
    assert (wide[:, 200:] == -7).all()


def test_jax_arrays(cupy, rng):
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("jax sees no GPU")
    a, b, expected = exact(cupy, rng, 100, 200, 300)
    ja, jb = [jax.numpy.asarray(x.get()) for x in a], [jax.numpy.asarray(x.get()) for x in b]
    d = api.fp8_gemm_nt(ja, jb, cupy.zeros((100, 200), cupy.float32))
    cupy.cuda.Device().synchronize()
    check(d, expected)
    with pytest.raises(ProblemError, match="d: expected an array that can be written"):
        api.fp8_gemm_nt(ja, jb, jax.numpy.zeros((100, 200), jax.numpy.float32))


def test_a_callers_bad_plan_is_refused(cupy, rng):
    from cases import plan

    a, b, _ = exact(cupy, rng, 16, 16, 256)
    d = cupy.full((16, 16), -7, cupy.float32)
    with pytest.raises(DGNumbaError, match="plan"):
        api.fp8_gemm_nt(a, b, d, plan=plan(16, 16))
    assert (d == -7).all()


def test_explain_names_the_gpu(cupy, rng):
    a, b, _ = exact(cupy, rng, 16, 160, 256)
    name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    assert name in str(api.explain(a, b))


def test_F37_new_sizes_compile_nothing(cupy, rng, monkeypatch):
    """After one call, other M of the same plan use the same kernel."""
    from dgnumba import launching

    seen = []
    real = launching.compiled
    monkeypatch.setattr(launching, "compiled", lambda *a, **k: (seen.append(a[0]), real(*a, **k))[1])
    for m in range(1, 41):
        a, b, expected = exact(cupy, rng, m, 64, 256)
        check(api.fp8_gemm_nt(a, b, cupy.zeros((m, 64), cupy.float32)), expected)
    assert len(seen) == len(set(seen)) <= 8
