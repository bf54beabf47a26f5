"""Plans built for a launch that begins early read nothing but weights that nobody writes before they wait for the grid before, and let the next begin
behind their loads."""

import dataclasses
from collections import Counter, defaultdict
from types import SimpleNamespace
from unittest.mock import patch

import mutation
import numpy as np
import pytest
from cases import KERNEL_OF, SWAPPED, addend, emulate, expected_of, plan, portable, resident, skinny, skinny_rs, swapped
from kernels.int4_products import H200, INT4, PORTABLE_INT4, Int4Product

from dgnumba import emu
from dgnumba.device import Device
from dgnumba.errors import PlanError
from dgnumba.int4_plan import validate_int4
from dgnumba.kernels import INT4_KERNELS, KERNELS
from dgnumba.kernels.spec import choices_named, launched
from dgnumba.layouts.descriptors import TensorMap
from dgnumba.plan import validate
from dgnumba.prepared import extent_of
from dgnumba.problem import GemmProblem
from dgnumba.testing import assert_bits_equal

WAIT, LET = "thread.griddepcontrol_wait", "thread.griddepcontrol_launch_dependents"


class Watch(emu.Observer):
    """What each thread did, in order: waited, let the next grid begin, loaded weights, or came to global memory for something else.

    asked  how often each piece of the weights, and of the scales of the dense kernels' weights, was loaded
    """

    def __init__(self):
        self.events = defaultdict(list)
        self.weights = ()
        self.asked = Counter()

    def run(self, kernel, grid, threads, args, **more):
        """In the place of `emu.run`; the weights are the second operand's tensor map, or what its address, or that of the records, points at."""
        is_dense = not isinstance(args[0], TensorMap) or isinstance(args[3], TensorMap)
        self.weights = [place_of(operand, more["arrays"]) for operand in ((args[1], args[3]) if is_dense else (args[2],))]
        emu_run(kernel, grid, threads, args, observe=self, **more)

    def note(self, note):
        if note.kind == "op" and note.op in (WAIT, LET):
            for index in note.threads:
                self.events[note.block, index].append(note.op)

    def _tell(self, thread, address, nbytes):
        found = [(i, address - place.start, nbytes) for i, place in enumerate(self.weights) if address in place]
        self.events[thread.cta.block_idx, thread.index].append("load" if found else "other")
        self.asked.update(found)

    def move(self, move):
        self._tell(move.thread, move.in_tensor.__array_interface__["data"][0] if move.in_tensor.size else 0, move.in_tensor.size)

    def access(self, access):
        if access.space == "global":
            self._tell(access.thread, access.address if access.kind == "read" else 0, access.nbytes)


def place_of(operand, arrays):
    """The addresses of an operand's array."""
    array = operand.array if isinstance(operand, TensorMap) else next(x for x in arrays if x.__array_interface__["data"][0] == int(operand))
    first = array.__array_interface__["data"][0]
    return range(first, first + extent_of(array))


emu_run = emu.run


def check_order(watch, first=0):
    """Who comes to global memory has waited, but for the first loads of weights; in each block a thread that loads weights lets the next grid begin,
    once, behind the last of them.

    first  how many loads of weights a thread that has so many makes before it waits; one that has fewer makes them all
    """
    letting = set()
    for (block, _), names in watch.events.items():
        assert names.count(WAIT) == 1 and names[: names.index(WAIT)] == ["load"] * min(first, names.count("load")), names
        if LET in names:
            assert names.count(LET) == 1 and "load" not in names[names.index(LET) :], names
            if "load" in names:
                letting.add(block)
    assert letting == {block for block, _ in watch.events}


DENSE_CASES = [
    (swapped(8, 64, 3, pdl=True), 5, 130, 700),
    (swapped(8, 128, 2, split=2, block_k=256, pdl=True), 5, 100, 1536),
    (swapped(16, 64, 2, block_k=512, pdl=True), 20, 40, 1536),
    (resident(8, pdl=True), 5, 130, 512),
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


FIRST_CASES = [
    (6, swapped(8, 64, 3, pdl=True), 5, 20, 700, 132),
    (6, swapped(8, 64, 3, pdl=True), 5, 130, 200, 1),  # two stages a tile: the ring's first round takes in a second tile
    (20, swapped(8, 64, 10, pdl=True), 5, 130, 200, 2),  # and here all that there is
    (4, swapped(8, 64, 2, split=2, block_k=256, pdl=True, row_scales=True), 5, 60, 1280, 132),
    (4, swapped(8, 64, 2, block_k=512, pdl=True, with_c=True), 12, 40, 1536, 1),
    (12, resident(8, 2, 3, pdl=True), 5, 330, 512, 1),  # two stages a tile: of two warpgroups' rings, into a second round of tiles
    (12, resident(8, 2, 5, pdl=True), 5, 180, 512, 1),  # and here all that there is: in the second round one warpgroup has a tile
    (4, resident(8, 3, 4, pdl=True), 5, 60, 512, 132),  # two warpgroups have no tile
    (10, skinny(8, 2, 2, pdl=True), 5, 20, 640, 132),
    (20, skinny(8, 4, 2, block_n=32, pdl=True), 5, 20, 1152, 132),
    (15, skinny(8, 3, 2, pdl=True), 5, 16, 640, 132),  # one warp has two blocks, the other three
    (5, skinny_rs(8, 1, 1, pdl=True), 3, 16, 1024, 132),
    (10, skinny_rs(8, 2, 1, block_n=32, pdl=True, row_scales=True), 3, 20, 768, 132),
    (15, skinny_rs(16, 3, 1, block_n=64, split=2, pdl=True, with_c=True), 9, 40, 896, 132),
]
"""Each with how many loads of weights a thread makes at first: of B and its scales by stage; or of four pieces of 16 bytes, and a scale."""


@pytest.mark.parametrize(
    "first, chosen, m, n, k, num_sms", FIRST_CASES, ids=lambda x: x.name.replace(" ", "-") if hasattr(x, "name") else str(x)
)
def test_first_weights_are_asked_for_before_the_wait(first, chosen, m, n, k, num_sms, policy):
    """And nothing else is; nothing is asked for twice; the bits are those of the plan without."""
    watch, without = Watch(), Watch()
    for seen, plan_of_it in ((without, chosen), (watch, dataclasses.replace(chosen, weights_first=True))):
        with patch.object(emu, "run", seen.run):
            d, case = emulate(plan_of_it, m, n, k, policy=policy, num_sms=num_sms)
        assert_bits_equal(d, expected_of(case, addend(case, 0) if chosen.with_c else None))
    check_order(without)
    check_order(watch, first)
    assert watch.asked == without.asked


WAITS = [
    m
    for m in mutation.mutants()
    if m.call == WAIT
    and m.module in ("sm90_fp8_gemm_1d2d_swap_ab", "sm90_fp8_gemm_1d2d_resident", "sm90_fp8_gemv_1d2d", "sm90_fp8_gemv_1d2d_rs")
]


def test_each_wait_of_the_kernels_is_among_them():
    assert Counter((m.module.rpartition("1d2d")[2], m.function) for m in WAITS) == {
        ("_swap_ab", "kernel"): 2, ("_resident", "kernel"): 2, ("", "kernel"): 1, ("", "sums"): 1, ("_rs", "kernel"): 1, ("_rs", "sums"): 1
    }  # fmt: skip


@pytest.mark.parametrize("mutant", WAITS, ids=str)
def test_a_wait_that_is_missing_is_noticed(mutant):
    """No result can show it, as the emulator runs one grid after another: the order does, of a plan with first weights or of one without."""
    first, chosen = {
        ("sm90_fp8_gemm_1d2d_swap_ab", "kernel"): (6, swapped(8, 64, 3, pdl=True, weights_first=True)),
        ("sm90_fp8_gemm_1d2d_resident", "kernel"): (4, resident(8, 2, 3, pdl=True, weights_first=True)),
        ("sm90_fp8_gemv_1d2d", "kernel"): (0, skinny(8, 2, 2, pdl=True)),
        ("sm90_fp8_gemv_1d2d", "sums"): (10, skinny(8, 2, 2, pdl=True, weights_first=True)),
        ("sm90_fp8_gemv_1d2d_rs", "kernel"): (0, skinny_rs(8, 1, 1, pdl=True)),
        ("sm90_fp8_gemv_1d2d_rs", "sums"): (5, skinny_rs(8, 1, 1, pdl=True, weights_first=True)),
    }[mutant.module, mutant.function]
    module, watch = mutation.kernel_in(mutation.room_of(mutant), mutant.module), Watch()
    with patch.object(emu, "run", watch.run):
        emulate(chosen, 3, 16, 512, kernel=SimpleNamespace(build=module.build))
    assert any(WAIT not in names for names in watch.events.values())
    with pytest.raises((AssertionError, ValueError)):
        check_order(watch, first)


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


@pytest.mark.parametrize(
    "names",
    [
        [WAIT, "load", "load", "load", LET],
        ["load", WAIT, "load", "load", LET],
        ["load", "load", "load", WAIT, LET],
        ["load", "load", "other", WAIT, "load", LET],
        ["load", "load", LET, WAIT, "load"],
        ["load", "load", WAIT, WAIT, "load", LET],
        ["other", WAIT],
    ],
    ids=lambda names: "-".join(name.rpartition("_")[2] for name in names),
)
def test_nor_is_that_of_first_weights(names):
    watch = Watch()
    watch.events.update({(0, 0): ["load", "load", WAIT, "other", "load", LET, "other"], (0, 1): [WAIT, "other"], (0, 2): ["load", WAIT]})
    check_order(watch, 2)
    watch.events[0, 3] = names
    with pytest.raises(AssertionError):
        check_order(watch, 2)


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
    assert can == {
        "sm90_fp8_gemm_1d2d_resident",
        "sm90_fp8_gemm_1d2d_swap_ab",
        "sm90_fp8_gemv_1d2d",
        "sm90_fp8_gemv_1d2d_rs",
        "sm90_int4_gemm",
        "sm90_int4_gemv",
    }
    assert all(kernel.WAITS for kernel in (*KERNELS, *INT4_KERNELS) if kernel.LAUNCHES_DEPENDENTS)
    for chosen in (plan(64, 64), portable("float8_e4m3fn", 128, 128), swapped(8, 64), resident(8), skinny(8), skinny_rs(8)):
        kernel = KERNEL_OF[chosen.kernel]
        assert launched(chosen, kernel, False) == chosen
        assert launched(chosen, kernel, True) == dataclasses.replace(chosen, pdl=kernel.LAUNCHES_DEPENDENTS)
        assert launched(chosen, kernel, False, True) == chosen
        deep = kernel.first_stages(chosen) if kernel.WEIGHTS_FIRST else chosen.num_stages
        is_first = dataclasses.replace(chosen, pdl=kernel.LAUNCHES_DEPENDENTS, weights_first=kernel.WEIGHTS_FIRST, num_stages=deep)
        assert launched(chosen, kernel, True, True) == is_first
    assert {kernel.NAME for kernel in KERNELS if kernel.WEIGHTS_FIRST} == {kernel.NAME for kernel in KERNELS if kernel.LAUNCHES_DEPENDENTS}


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


def test_no_caller_names_weights_first():
    """Only the name of what is launched says it; who promises that nobody writes the weights does so by `set_pdl`."""
    for chosen in (swapped(8, 64, pdl=True, weights_first=True), skinny(8, 2, 4, pdl=True, weights_first=True)):
        assert chosen.name == dataclasses.replace(chosen, weights_first=False).name + " weights_first" and chosen.label == chosen.name
        for name in (chosen.name, f"{chosen.kernel} {chosen.name}"):
            with pytest.raises(PlanError, match="expected BLOCK_MxBLOCK_NxBLOCK_K"):
                choices_named(name)
        words = (
            r"not the plan's to say that nobody writes the weights \(weights_first=True\): set_pdl\(True, constant_weights=True\) says so"
        )
        with pytest.raises(PlanError, match=words):
            validate(chosen, GemmProblem(8, 64, 512), H200)
