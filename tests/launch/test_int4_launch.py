"""What `int4_gemm_nt` launches is what the kernel was built for: its cluster, its threads, its shared memory."""

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


@pytest.mark.parametrize("kernel", [INT4_GEMV, PORTABLE_INT4], ids=lambda kernel: kernel.NAME)
@pytest.mark.parametrize("choices", [{"split": 2}, {"tail": 2}, {"tail": 3}], ids=str)
def test_a_cluster_is_refused_where_the_kernel_has_none(kernel, choices, rng):
    problem = check_int4_gemm_nt(*cases.exact_problem(rng, "bfloat16", "int4_g128", 3, 20, 256), out_dtype="float32").problem
    plan = kernel.candidates(problem, H200)[0]
    with pytest.raises(PlanError, match="no split"):
        validate_int4(dataclasses.replace(plan, **choices), problem, H200)
