"""Plans built for a launch that begins early read nothing before they wait for the grid before, and let the next begin behind their loads."""

import dataclasses
from collections import defaultdict
from unittest.mock import patch

import numpy as np
import pytest
from cases import KERNEL_OF, SWAPPED, emulate, expected_of, plan, portable, skinny, skinny_rs, swapped
from kernels.int4_products import H200, INT4, PORTABLE_INT4, Int4Product

from dgnumba import emu
from dgnumba.device import Device
from dgnumba.errors import PlanError
from dgnumba.int4_plan import validate_int4
from dgnumba.kernels import INT4_KERNELS, KERNELS
from dgnumba.kernels.spec import choices_named, launched
from dgnumba.layouts.descriptors import TensorMap
from dgnumba.plan import validate
from dgnumba.problem import GemmProblem
from dgnumba.testing import assert_bits_equal

WAIT, LET = "thread.griddepcontrol_wait", "thread.griddepcontrol_launch_dependents"


class Watch(emu.Observer):
    """What each thread did, in order: waited, let the next grid begin, loaded weights, or came to global memory for something else."""

    def __init__(self):
        self.events = defaultdict(list)
        self.weights = range(0)

    def run(self, kernel, grid, threads, args, **more):
        """In the place of `emu.run`; the weights are the second operand's tensor map, or what its address, or that of the records, points at."""
        operand = args[1] if not isinstance(args[0], TensorMap) or len(args) == 11 else args[2]
        if isinstance(operand, TensorMap):
            array = operand.array
        else:
            array = next(x for x in more["arrays"] if x.__array_interface__["data"][0] == int(operand))
        first = array.__array_interface__["data"][0]
        self.weights = range(first, first + array.nbytes)
        emu_run(kernel, grid, threads, args, observe=self, **more)

    def note(self, note):
        if note.kind == "op" and note.op in (WAIT, LET):
            for index in note.threads:
                self.events[note.block, index].append(note.op)

    def _tell(self, thread, is_load):
        self.events[thread.cta.block_idx, thread.index].append("load" if is_load else "other")

    def move(self, move):
        self._tell(move.thread, move.in_tensor.size and move.in_tensor.__array_interface__["data"][0] in self.weights)

    def access(self, access):
        if access.space == "global":
            self._tell(access.thread, access.kind == "read" and access.address in self.weights)


emu_run = emu.run


def check_order(watch):
    """Who comes to global memory has waited; in each block a thread that loads weights lets the next grid begin, once, behind the last of them."""
    letting = set()
    for (block, _), names in watch.events.items():
        assert names.count(WAIT) == 1 and names[0] == WAIT, names
        if LET in names:
            assert names.count(LET) == 1 and "load" not in names[names.index(LET) :], names
            if "load" in names:
                letting.add(block)
    assert letting == {block for block, _ in watch.events}


DENSE_CASES = [
    (swapped(8, 64, 3, pdl=True), 5, 130, 700),
    (swapped(8, 128, 2, split=2, block_k=256, pdl=True), 5, 100, 1536),
    (swapped(16, 64, 2, block_k=512, pdl=True), 20, 40, 1536),
    (skinny(8, 2, 2, pdl=True), 5, 50, 1024),
    (skinny(8, 4, 2, block_n=32, pdl=True), 5, 50, 640),
    (skinny_rs(8, 1, 2, pdl=True), 3, 20, 1536),
    (skinny_rs(16, 3, 1, block_n=64, split=2, pdl=True), 9, 40, 640),
]


@pytest.mark.parametrize("chosen, m, n, k", DENSE_CASES, ids=lambda x: x.name.replace(" ", "-") if hasattr(x, "name") else str(x))
def test_the_next_grid_begins_behind_the_loads(chosen, m, n, k, policy):
    watch = Watch()
    with patch.object(emu, "run", watch.run):
        d, case = emulate(chosen, m, n, k, policy=policy)
    assert_bits_equal(d, expected_of(case))
    check_order(watch)


@pytest.mark.parametrize("tile, n, k", [((8, 64, 1, 3, 1), 70, 640), ((8, 128, 2, 2, 2), 70, 1280)])
def test_the_next_grid_begins_behind_the_records(tile, n, k, policy):
    watch = Watch()
    with patch.object(emu, "run", watch.run):
        Int4Product("bfloat16", "int4_g128", 8, n, k, tile, pdl=True).run(INT4, policy)
    check_order(watch)


@pytest.mark.parametrize(
    "names",
    [
        ["load", WAIT, LET],
        ["other", WAIT, "load", LET],
        [WAIT, LET, "load"],
        [LET, WAIT, "load"],
        [WAIT, "load", LET, LET],
        [WAIT, "load"],
        [WAIT, LET],
        [WAIT, WAIT, "load", LET],
    ],
    ids=lambda names: "-".join(name.rpartition("_")[2] for name in names),
)
def test_the_check_is_no_rubber_stamp(names):
    watch = Watch()
    watch.events[0, 0] = [WAIT, "load", "other", LET, "other"]
    check_order(watch)
    watch.events[1, 0] = names
    with pytest.raises(AssertionError):
        check_order(watch)


def test_without_it_nobody_is_let_begin(policy):
    """Such a plan is built as if there were no such word."""
    watch = Watch()
    with patch.object(emu, "run", watch.run):
        emulate(swapped(8, 64), 5, 70, 300, policy=policy)
        emulate(skinny(8, 1, 2), 5, 20, 256, policy=policy)
    assert {name for names in watch.events.values() for name in names} == {WAIT, "load", "other"}


# Which plans have it


def test_a_launch_with_pdl_builds_it_where_the_kernel_can():
    can = {kernel.NAME for kernel in (*KERNELS, *INT4_KERNELS) if kernel.LAUNCHES_DEPENDENTS}
    assert can == {"sm90_fp8_gemm_1d2d_swap_ab", "sm90_fp8_gemv_1d2d", "sm90_fp8_gemv_1d2d_rs", "sm90_int4_gemm", "sm90_int4_gemv"}
    assert all(kernel.WAITS for kernel in (*KERNELS, *INT4_KERNELS) if kernel.LAUNCHES_DEPENDENTS)
    for chosen in (plan(64, 64), portable("float8_e4m3fn", 128, 128), swapped(8, 64), skinny(8), skinny_rs(8)):
        kernel = KERNEL_OF[chosen.kernel]
        assert launched(chosen, kernel, False) == chosen
        assert launched(chosen, kernel, True) == dataclasses.replace(chosen, pdl=kernel.LAUNCHES_DEPENDENTS)


def test_a_plan_that_says_it_is_refused_where_the_kernel_cannot():
    problem = GemmProblem(8, 64, 512)
    for chosen, device in ((plan(64, 64, pdl=True), H200), (portable("float8_e4m3fn", 128, 128, pdl=True), Device.named("l40s"))):
        with pytest.raises(PlanError, match="lets no grid behind it begin early, as pdl=True says"):
            validate(chosen, problem, device)
    assert validate(swapped(8, 64, pdl=True), problem, H200).kernel is SWAPPED
    product = Int4Product("bfloat16", "int4_g128", 8, 64, 256, (8, 64, 1, 2, 1), pdl=True)
    problem = product.operands(np.random.default_rng(0))[0].problem
    assert validate_int4(product.plan(problem), problem, H200).kernel is INT4
    with pytest.raises(PlanError, match="lets no grid behind it begin early, as pdl=True says"):
        validate_int4(dataclasses.replace(product.plan(problem), kernel=PORTABLE_INT4.NAME, num_stages=3), problem, H200)


def test_no_name_says_it():
    """A plan is chosen, measured and named without it; only the launch knows."""
    chosen = swapped(8, 64)
    assert dataclasses.replace(chosen, pdl=True).name == chosen.name
    with pytest.raises(PlanError, match="expected BLOCK_MxBLOCK_NxBLOCK_K"):
        choices_named("8x64x128 s4 registers pdl")
