"""Plans built for a launch that begins early ask L2 for their first weights, and for nothing else, before they wait for the grid before them."""

import dataclasses
from collections import defaultdict
from unittest.mock import patch

import numpy as np
import pytest
from cases import KERNEL_OF, SWAPPED, emulate, expected_of, plan, portable, skinny, skinny_rs, swapped
from kernels.int4_products import H200, INT4, PORTABLE_INT4, Int4Product

from dgnumba import emu, ptx
from dgnumba.device import Device
from dgnumba.errors import OutOfBoundsError, PlanError
from dgnumba.int4_plan import validate_int4
from dgnumba.kernels import INT4_KERNELS, KERNELS
from dgnumba.kernels.spec import choices_named, launched
from dgnumba.layouts.descriptors import TensorMap
from dgnumba.plan import validate
from dgnumba.problem import GemmProblem
from dgnumba.ptx._emulate import Box
from dgnumba.testing import assert_bits_equal

SECTOR = 32
"""Bytes that a prefetch of a line brings at the least."""
WAIT, LET = "thread.griddepcontrol_wait", "thread.griddepcontrol_launch_dependents"


def addresses(view):
    """Of all bytes of a view."""
    offsets = np.zeros(1, np.int64)
    for extent, stride in zip(view.shape, view.strides):
        offsets = (offsets[:, None] + np.arange(extent) * stride).ravel()
    return offsets + view.__array_interface__["data"][0]


def span(first, nbytes):
    """Addresses from `first` on."""
    return int(first) + np.arange(int(nbytes))


def joined(parts):
    """Addresses of all parts, each once, in order."""
    return np.unique(np.concatenate(parts)).tolist() if parts else []


class Watch(emu.Observer):
    """What each thread asked L2 for and loaded, in order: (what, bytes of the weights)."""

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

    def tell(self, what, thread, touched=None):
        """Keep an event of a thread."""
        self.events[thread.cta.block_idx, thread.index].append((what, touched))

    def note(self, note):
        if note.kind == "op" and note.op in (WAIT, LET):
            for index in note.threads:
                self.events[note.block, index].append((note.op, None))

    def move(self, move):
        if move.in_tensor.size and move.in_tensor.__array_interface__["data"][0] in self.weights:
            self.tell("load", move.thread, addresses(move.in_tensor))
        else:
            self.tell("other", move.thread)

    def access(self, access):
        if access.space == "global" and access.kind == "read" and access.address in self.weights:
            self.tell("load", access.thread, span(access.address, access.nbytes))
        elif access.space == "global":
            self.tell("other", access.thread)

    def operations(self):
        """The operations of `ptx.prefetch`, which tell what they are asked for."""
        told = {
            "tensor_2d": lambda tmap, *at: addresses(Box(tmap, at, is_store=False).in_tensor),
            "tensor_3d": lambda tmap, *at: addresses(Box(tmap, at, is_store=False).in_tensor),
            "bulk": span,
            "line": lambda address: span(address, SECTOR),
        }
        return {name: self._telling(getattr(ptx.prefetch, name), touched) for name, touched in told.items()}

    def _telling(self, operation, touched):
        def call(*args):
            operation(*args)
            self.tell("prefetch", emu.thread(), touched(*args))

        call.__emu_op__ = operation.__emu_op__
        return call


emu_run = emu.run

DENSE_CASES = [
    # (plan, m, n, k, loads of weights that a thread does before it waits for room)
    (swapped(8, 64, 3, pdl=True), 5, 130, 700, 3),
    (swapped(8, 64, 4, pdl=True), 5, 70, 300, 4),  # the ring has more stages than K
    (swapped(8, 128, 2, split=2, block_k=256, pdl=True), 5, 100, 1536, 2),
    (swapped(16, 64, 2, block_k=512, pdl=True), 20, 40, 1536, 2),  # two tiles of tokens ask for the same weights
    (skinny(8, 2, 2, pdl=True), 5, 50, 1024, 8),
    (skinny(8, 4, 2, block_n=32, pdl=True), 5, 50, 640, 16),
    (skinny_rs(8, 1, 2, pdl=True), 3, 20, 1536, 4),
    (skinny_rs(16, 3, 1, block_n=64, split=2, pdl=True), 9, 40, 640, 12),
]


def check_order(watch):
    """No thread reads before it waits, or lets the next grid begin before it has loaded its weights; some of each block do."""
    letting = set()
    for (block, _), events in watch.events.items():
        names = [what for what, _ in events]
        assert names.count(WAIT) == 1, names
        before, behind = names[: names.index(WAIT)], names[names.index(WAIT) + 1 :]
        assert set(before) <= {"prefetch"} and "prefetch" not in behind
        if LET in behind:
            assert "load" not in behind[behind.index(LET) :]
            letting.add(block)
    assert letting == {block for block, _ in watch.events}


def check_weights(watch, count):
    """What each block asks for is what its threads' first `count` loads of weights bring."""
    asked, loaded = defaultdict(list), defaultdict(list)
    for (block, _), events in watch.events.items():
        asked[block] += [touched for what, touched in events if what == "prefetch"]
        loaded[block] += [touched for what, touched in events if what == "load"][:count]
    assert all(asked.values())
    assert {block: joined(parts) for block, parts in asked.items()} == {block: joined(parts) for block, parts in loaded.items()}


@pytest.mark.parametrize("chosen, m, n, k, count", DENSE_CASES, ids=lambda x: x.name.replace(" ", "-") if hasattr(x, "name") else str(x))
def test_the_first_weights_are_asked_for_before_the_wait(chosen, m, n, k, count, policy):
    watch = Watch()
    with patch.object(emu, "run", watch.run), patch.multiple(ptx.prefetch, **watch.operations()):
        d, case = emulate(chosen, m, n, k, policy=policy)
    assert_bits_equal(d, expected_of(case))
    check_order(watch)
    check_weights(watch, count)


@pytest.mark.parametrize(
    "tile, n, k, count", [((8, 64, 1, 3, 1), 70, 640, 3), ((8, 128, 2, 2, 2), 70, 1280, 4), ((8, 64, 1, 4, 1), 64, 256, 4)]
)
def test_the_first_records_are_asked_for_before_the_wait(tile, n, k, count, policy):
    watch = Watch()
    with patch.object(emu, "run", watch.run), patch.multiple(ptx.prefetch, **watch.operations()):
        Int4Product("bfloat16", "int4_g128", 8, n, k, tile, pdl=True).run(INT4, policy)
    check_order(watch)
    check_weights(watch, count)


def off_by(operation, shift):
    """An operation of `ptx.prefetch` whose last argument is off by so much."""

    def call(*args):
        operation(*args[:-1], args[-1] + shift)

    call.__emu_op__ = operation.__emu_op__
    return call


@pytest.mark.parametrize("name, block_k", [("tensor_2d", 128), ("tensor_3d", 256)])
def test_a_fault_beyond_the_tensor_is_none(name, block_k, policy):
    """The hardware brings what lies inside; that the prefetch is of no use is not wrong."""
    with patch.object(ptx.prefetch, name, off_by(getattr(ptx.prefetch, name), 1 << 20)):
        d, case = emulate(swapped(8, 64, block_k=block_k, pdl=True), 5, 70, 512, policy=policy)
    assert_bits_equal(d, expected_of(case))


@pytest.mark.parametrize("chosen", [skinny(8, 1, 2, pdl=True), skinny_rs(16, 1, 1, block_n=64, pdl=True)], ids=lambda p: p.kernel)
def test_a_fault_in_an_address_is_one(chosen, policy):
    with patch.object(ptx.prefetch, "line", off_by(ptx.prefetch.line, 1 << 20)):
        with pytest.raises(OutOfBoundsError, match="1 bytes from there are in no array of the launch"):
            emulate(chosen, 5, 20, 256, policy=policy)


def test_a_fault_in_a_size_is_one(policy):
    with patch.object(ptx.prefetch, "bulk", off_by(ptx.prefetch.bulk, 1 << 20)):
        with pytest.raises(OutOfBoundsError, match="bytes from there are in no array of the launch"):
            Int4Product("bfloat16", "int4_g128", 8, 64, 256, (8, 64, 1, 2, 1), pdl=True).run(INT4, policy)


def test_without_it_nothing_is_asked_for(policy):
    """Neither prefetches nor a word to the next grid: such a plan is built as if there were none."""
    watch = Watch()
    with patch.object(emu, "run", watch.run), patch.multiple(ptx.prefetch, **watch.operations()):
        emulate(swapped(8, 64), 5, 70, 300, policy=policy)
        emulate(skinny(8, 1, 2), 5, 20, 256, policy=policy)
    assert {what for events in watch.events.values() for what, _ in events} == {WAIT, "load", "other"}


# Which plans have it


def test_a_launch_with_pdl_builds_it_where_the_kernel_can():
    can = {kernel.NAME for kernel in (*KERNELS, *INT4_KERNELS) if kernel.PREFETCHES}
    assert can == {"sm90_fp8_gemm_1d2d_swap_ab", "sm90_fp8_gemv_1d2d", "sm90_fp8_gemv_1d2d_rs", "sm90_int4_gemm"}
    assert all(kernel.WAITS for kernel in (*KERNELS, *INT4_KERNELS) if kernel.PREFETCHES)
    for chosen in (plan(64, 64), portable("float8_e4m3fn", 128, 128), swapped(8, 64), skinny(8), skinny_rs(8)):
        kernel = KERNEL_OF[chosen.kernel]
        assert launched(chosen, kernel, False) == chosen
        assert launched(chosen, kernel, True) == dataclasses.replace(chosen, pdl=kernel.PREFETCHES)


def test_a_plan_that_says_it_is_refused_where_the_kernel_cannot():
    problem = GemmProblem(8, 64, 512)
    for chosen, device in ((plan(64, 64, pdl=True), H200), (portable("float8_e4m3fn", 128, 128, pdl=True), Device.named("l40s"))):
        with pytest.raises(PlanError, match="prefetches no weights, as pdl=True says"):
            validate(chosen, problem, device)
    assert validate(swapped(8, 64, pdl=True), problem, H200).kernel is SWAPPED
    product = Int4Product("bfloat16", "int4_g128", 8, 64, 256, (8, 64, 1, 2, 1), pdl=True)
    problem = product.operands(np.random.default_rng(0))[0].problem
    assert validate_int4(product.plan(problem), problem, H200).kernel is INT4
    with pytest.raises(PlanError, match="prefetches no weights, as pdl=True says"):
        validate_int4(dataclasses.replace(product.plan(problem), kernel=PORTABLE_INT4.NAME, num_stages=3), problem, H200)


def test_no_name_says_it():
    """A plan is chosen, measured and named without it; only the launch knows."""
    chosen = swapped(8, 64)
    assert dataclasses.replace(chosen, pdl=True).name == chosen.name
    with pytest.raises(PlanError, match="expected BLOCK_MxBLOCK_NxBLOCK_K"):
        choices_named("8x64x128 s4 registers pdl")
