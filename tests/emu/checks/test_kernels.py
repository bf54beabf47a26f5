"""Kernels of ours, and kernels that are not ours, under every check."""

import time

import numpy as np
import pytest
from cases import DENSE, plan
from emu.numba_examples import array_sum, fast_matmul, matmul_arguments
from mutants import TRIALS, Product
from ptx.mma_kernel import FLOATS, make, operands, run_arguments

from dgnumba import emu

EVERY = [(kernel, i) for kernel, trials in TRIALS.items() for i in range(len(trials))]
SOME = [(kernel, 0) for kernel in TRIALS]

EXPLAINED = {
    ("box-outside", "tma.load_2d"): "a cluster's tiles are made even in number: the one too many lies outside",
    ("box-outside", "tma.load_2d_multicast"): "as tma.load_2d",
    (
        "box-outside",
        "tma.store_2d_if",
    ): "as tma.load_2d; and the rows of a large tile that lie below a small M are not told apart from others",
}
"""Warnings that a kernel of ours may have, and why."""

CONFLICTS = {
    "smxx_layout.py": (2, "a warp turns two rows of 16 pieces of four columns: 32 words of which two fall on each of 16 banks"),
}
"""File -> most ways of a bank conflict, and why they are left."""


def reports_of(kernel, number, monkeypatch):
    """What the checks say of each launch of a trial, whose result is compared with the host's."""
    import importlib

    found = []

    def check(*args, policy, **options):
        found.append(emu.check(*args, **options))

    monkeypatch.setattr(emu, "run", check)
    TRIALS[kernel][number].run(importlib.import_module(f"dgnumba.kernels.{kernel}"), "late")
    return found


def check_clean(report):
    assert report.is_clean, str(report)
    assert {(f.kind, f.op) for f in report.warnings} <= set(EXPLAINED), str(report)
    for row in report.shared:
        allowed, _ = CONFLICTS.get(row.file.rsplit("/", 1)[1], (1, ""))
        assert row.worst <= allowed, f"{row.text}: {row.worst} ways\n{report}"


@pytest.mark.parametrize("kernel, number", SOME)
def test_a_kernel_of_ours_is_clean(kernel, number, monkeypatch):
    for report in reports_of(kernel, number, monkeypatch):
        check_clean(report)


@pytest.mark.full
@pytest.mark.parametrize("kernel, number", EVERY)
def test_every_kernel_of_ours_is_clean(kernel, number, monkeypatch):
    reports = reports_of(kernel, number, monkeypatch)
    assert reports
    for report in reports:
        check_clean(report)


def test_numbas_matrix_multiplication_with_shared_memory(emu_check):
    """Numba's documentation, as it is printed there: sB[j, tx] is read without a conflict, sA[ty, j] by lanes of two rows of 64 bytes."""
    a, b, c = matmul_arguments()
    report = emu_check(fast_matmul, (2, 2), (16, 16), (a, b, c), bank_ways=1)
    np.testing.assert_array_equal(c, a @ b)
    assert [row.ways for row in report.shared] == [1.0] * len(report.shared) and len(report.shared) >= 4
    assert {row.is_store for row in report.global_memory} == {True, False}


def test_numbas_reduction_in_shared_memory():
    """Numba's documentation: its strides leave lanes idle, but a warp's 32 words never meet in a bank."""
    data = np.arange(64, dtype=np.int32)
    report = emu.check(array_sum, 1, 64, (data,))
    assert report.is_clean and data[0] == 64 * 63 // 2
    assert {row.worst for row in report.shared} == {1.0} and any("shr[tid + s]" in row.source for row in report.shared)


def test_a_forgotten_barrier_in_numbas_example_is_found():
    """The same with its second syncthreads gone: tiles are overwritten while others read them."""
    import ast
    import inspect
    import textwrap

    import emu.numba_examples as examples

    tree = ast.parse(textwrap.dedent(inspect.getsource(fast_matmul.py_func)))
    (loop,) = [node for node in ast.walk(tree) if isinstance(node, ast.For) and "bpg" in ast.unparse(node.iter)]
    loop.body = loop.body[:-1]
    tree.body[0].decorator_list = []
    names = dict(vars(examples))
    exec(compile(ast.fix_missing_locations(tree), examples.__file__, "exec", dont_inherit=True), names)
    report = __import__("dgnumba").emu.check(names["fast_matmul"], (2, 2), (16, 16), matmul_arguments())
    assert {finding.kind for finding in report.errors} == {"race"}
    assert "read" in report.errors[0].message and report.errors[0].line


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_a_users_mma_kernel(dtype, emu_check):
    """A kernel by cp.async, ldmatrix and mma.sync that knows nothing of the lab."""
    a, b, c = operands(np.random.default_rng(0), dtype)
    args = run_arguments(a, b, c, dtype)
    report = emu_check(make(dtype), 1, 32, args, smem=1024)
    expected = (a.astype(np.int64) @ b.T.astype(np.int64) + c).astype(np.float32 if dtype in FLOATS else np.int64)
    np.testing.assert_array_equal(args[3].astype(expected.dtype), expected.astype(args[3].dtype).astype(expected.dtype))
    assert {row.op for row in report.shared} >= {"matrix.ldmatrix_x4", "matrix.ldmatrix_x2"}


@pytest.mark.full
@pytest.mark.parametrize("policy", ["eager", "late"])
def test_all_checks_take_at_most_three_times_as_long(policy, monkeypatch):
    """A tile of 128 x 128 x 512 of the real kernel, in processor time; the best of three."""
    from dgnumba.kernels import sm90_fp8_gemm_1d2d

    product = Product(plan(128, 128), 128, 128, 512, 1)
    assert product.chosen.kernel == DENSE.NAME
    plain = emu.run

    def check(*args, policy, **options):
        emu.check(*args, policies=(policy,), **options).raise_if_wrong()

    def seconds(run):
        monkeypatch.setattr(emu, "run", run)
        begin = time.process_time()
        product.run(sm90_fp8_gemm_1d2d, policy)
        return time.process_time() - begin

    seconds(plain)
    assert min(seconds(check) for _ in range(3)) <= 3 * min(seconds(plain) for _ in range(3))
