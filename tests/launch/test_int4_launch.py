"""What `int4_gemm_nt` launches is what the kernel was built for: its cluster, its threads, its shared memory; with these weights' own numbers."""

import dataclasses

import int4_cases as cases
import numpy as np
import pytest
from kernels.int4_products import H200, INT4, INT4_GEMV, PORTABLE_INT4

from dgnumba import int4_prepared
from dgnumba.errors import PlanError
from dgnumba.int4_operands import check_int4_gemm_nt, lay_out
from dgnumba.int4_plan import validate_int4
from dgnumba.kernels.int4_spec import Int4Plan
from dgnumba.quant import prepare_int4_weights


@pytest.mark.parametrize("choices", [{}, {"split": 2}, {"split": 4}, {"tail": 2}], ids=str)
def test_a_launch_has_the_shape_of_the_kernel(choices, rng, monkeypatch):
    a, q = cases.exact_problem(rng, "bfloat16", "int4_g128", 8, 150, 1024)
    operands = check_int4_gemm_nt(a, q, np.zeros((8, 150), np.float32))
    plan = Int4Plan.of(operands.problem, INT4.NAME, block_m=8, block_n=64, num_stages=2, **choices)
    asked = []

    class Launcher:
        def launcher(self, index, shape):
            asked.append(shape)
            raise InterruptedError

    monkeypatch.setattr(int4_prepared, "program", lambda *_: Launcher())
    device = dataclasses.replace(H200, index=0, num_sms=4)
    with pytest.raises(InterruptedError):
        int4_prepared.Launch(validate_int4(plan, operands.problem, device), lay_out(operands), device)
    (shape,), built = asked, INT4.build(plan)
    assert shape.cluster == (built.cluster, 1, 1) and shape.grid[0] % built.cluster == 0
    assert (shape.block, shape.smem) == ((built.threads, 1, 1), built.smem.launch_bytes)


def test_each_weights_bring_their_own_ratio_and_global_scale(rng, monkeypatch):
    """One launch serves all of a form, a quick call one weights object: neither takes the numbers of what was multiplied before."""
    queued = []

    class Launcher:
        def launcher(self, index, shape):
            return lambda scalars, maps, stream: queued.append(scalars)

    monkeypatch.setattr(int4_prepared, "program", lambda *_: Launcher())
    monkeypatch.setattr(int4_prepared.launching, "encoder", lambda _: lambda at: at)
    monkeypatch.setattr(int4_prepared, "_launches", {})
    a, q = cases.exact_problem(rng, "float8_e4m3fn_row", "int4_g128", 40, 64, 256)
    device, laid, launches = dataclasses.replace(H200, index=0), [], []
    for factor, alpha in ((1.0, 0.5), (2.0**-9, 4.0), (2.0**30, 1.0)):
        w = prepare_int4_weights(
            dataclasses.replace(q, scale=q.scale * np.float32(factor), global_scale=np.float32(alpha)), "float8_e4m3fn"
        )
        operands = check_int4_gemm_nt(a, w)
        plan = Int4Plan.of(operands.problem, INT4.NAME, block_m=48, block_n=64, num_stages=2, f16_sums=True)
        laid.append((lay_out(operands), w.f16_ratio(operands.problem.a_dtype), alpha))
        launches.append(int4_prepared.prepared(validate_int4(plan, operands.problem, device), laid[-1][0], device))
    assert launches[0] is launches[1] is launches[2] and len({ratio for _, ratio, _ in laid}) == 3
    quick = [int4_prepared.QuickCall(launches[0], one) for one, _, _ in laid]
    for i in (0, 1, 2, 1, 0):
        one, ratio, alpha = laid[i]
        launches[0](one, 0)
        assert quick[i](*(4096 << j for j in range(4, 8)), 0)
        for name, expected in (("ratio", ratio), ("alpha", alpha)):
            found = [np.uint32(scalars[INT4.SCALARS.index(name)]).view(np.float32) for scalars in queued]
            assert found == [expected, expected]
        queued.clear()


@pytest.mark.parametrize("quads", [True, False])
def test_a_quick_call_looks_where_d_lies(quads, rng, monkeypatch):
    """Where the kernel stores 8 bytes at a time D must lie at multiples of 8; where it does not, D may lie anywhere."""
    queued = []

    class Launcher:
        def launcher(self, index, shape):
            return lambda scalars, maps, stream: queued.append(scalars[INT4.SCALARS.index("d")])

    monkeypatch.setattr(int4_prepared, "program", lambda *_: Launcher())
    monkeypatch.setattr(int4_prepared.launching, "encoder", lambda _: lambda at: at)
    operands = check_int4_gemm_nt(*cases.exact_problem(rng, "bfloat16", "int4_g128", 40, 64, 256), np.zeros((40, 64), np.float16))
    plan = Int4Plan.of(operands.problem, INT4.NAME, block_m=48, block_n=64, num_stages=2, quads=quads)
    device, laid = dataclasses.replace(H200, index=0), lay_out(operands)
    call = int4_prepared.QuickCall(int4_prepared.Launch(validate_int4(plan, operands.problem, device), laid, device), laid)
    taken = [call(1 << 20, 0, 1 << 21, (1 << 22) + shift, 0) for shift in (0, 2, 4, 8, 12)]
    assert taken == ([True, False, False, True, False] if quads else [True] * 5)
    assert queued == [(1 << 22) + shift for shift, is_taken in zip((0, 2, 4, 8, 12), taken) if is_taken]


@pytest.mark.parametrize("kernel", [INT4_GEMV, PORTABLE_INT4], ids=lambda kernel: kernel.NAME)
@pytest.mark.parametrize("choices", [{"split": 2}, {"tail": 2}, {"tail": 3}], ids=str)
def test_a_cluster_is_refused_where_the_kernel_has_none(kernel, choices, rng):
    problem = check_int4_gemm_nt(*cases.exact_problem(rng, "bfloat16", "int4_g128", 3, 20, 256), out_dtype="float32").problem
    plan = kernel.candidates(problem, H200)[0]
    with pytest.raises(PlanError, match="no split"):
        validate_int4(dataclasses.replace(plan, **choices), problem, H200)
