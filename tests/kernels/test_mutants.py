"""Each barrier, fence, wait, expect, arrive and commit taken out of the kernels' source, one at a time: the emulator reports every one."""

import ast
import re
from types import SimpleNamespace

import pytest
from cases import DENSE, KERNEL_OF
from mutants import TRIALS, Site, execute, kernels_of, modules, mutated, read_source, sites, verdict

SURVIVORS = {
    "tma.prefetch": "a hint: it moves a descriptor into a cache and orders nothing",
    "thread.setmaxnreg_dec": "the emulator counts no registers",
    "thread.setmaxnreg_inc": "the emulator counts no registers",
    "thread.griddepcontrol_wait": "orders grids; the emulator runs one grid after another, and nothing is launched dependent yet",
    "epilogue.store_rows: thread.syncwarp 1": "the next panel's stmatrix.sync.aligned meets the warp, which the emulator takes for order",
    "sm90_int4_gemm.produce: thread.syncwarp 0": "bar.arrive behind it meets the warp, which the emulator takes for order",
    "sm90_fp8_gemm_1d2d_swap_ab.kernel: thread.syncwarp 0": "bar.arrive behind it meets the warp, which the emulator takes for order",
}
"""What may be taken out unnoticed, and why: a call wherever it stands, or one site. Nothing else may."""

SITES = sites()
ALLOWED = [s for s in SITES if s.call in SURVIVORS or str(s) in SURVIVORS]
EXPECTED = [s for s in SITES if s not in ALLOWED]


def check_reported(site, policy):
    what, words = verdict(site, policy)
    assert what == "reported", f"{site}: {what} under the {policy} policy. {words}"


@pytest.mark.parametrize("site", EXPECTED, ids=str)
def test_a_missing_call_is_reported(site):
    """Under one policy each, by turns: the full run takes both."""
    check_reported(site, ("eager", "late")[EXPECTED.index(site) % 2])


@pytest.mark.full
@pytest.mark.parametrize("site", EXPECTED, ids=str)
def test_every_missing_call_is_reported(site, policy):
    check_reported(site, policy)


@pytest.mark.full
@pytest.mark.parametrize("site", ALLOWED, ids=str)
def test_the_survivors_survive(site, policy):
    """The list is not a hiding place: without such a call the result is right and nothing is reported."""
    what, words = verdict(site, policy)
    assert what == "unnoticed", f"{site}: {what}. {words}"


def test_every_survivor_is_still_in_the_source():
    assert {name for s in ALLOWED for name in (s.call, str(s))} >= set(SURVIVORS)


def test_all_synchronising_calls_are_sites():
    """Counted by eye: no call of these families escapes, however it is written."""
    pattern = re.compile(
        r"^[^#\n]*?\b(?:barrier\.(?!_)\w+|mbarrier\.\w+|wgmma\.(?:fence|commit|wait(?:_s32)?)|cp_async\.(?:commit|wait)|tma\.(?:commit|wait\w*|prefetch)|cuda\.sync\w+|thread\.(?:sync\w+|setmax\w+|griddep\w+))\("
    )
    total = 0
    for module in modules():
        text = re.sub(r'""".*?"""', "", read_source(module)[0], flags=re.DOTALL)
        total += sum(bool(pattern.match(line)) for line in text.splitlines())
    assert total == len([s for s in SITES if not s.leaves and not s.partner])
    assert len(SITES) >= 40


def test_every_kernel_has_trials_and_every_site_a_kernel():
    assert set(TRIALS) >= set(KERNEL_OF)
    for name in TRIALS:
        assert any(kernel.__name__.endswith("." + name) for s in EXPECTED for kernel in kernels_of(s)), name
    assert all(kernels_of(s) for s in SITES)
    assert {"epilogue"} <= {s.module for s in SITES}


def test_taking_nothing_out_changes_nothing():
    """The machinery itself: a module executed anew without a change gives the oracle's bits, so that a report comes from the missing call."""
    for name, trials in TRIALS.items():
        source, file = read_source(name)
        anew = SimpleNamespace(**execute(name, ast.parse(source), file, {}))
        trials[0].run(anew, "late")


def test_a_site_that_is_not_there_is_refused():
    with pytest.raises(AssertionError, match="is not in the source"):
        mutated(DENSE, Site("sm90_fp8_gemm_1d2d", "kernel", "cuda.syncthreads", 99))
