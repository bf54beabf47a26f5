"""Every planted fault is reported with thread, source line and address; and its right twin is clean."""

import pytest
from emu.checks import barrier_faults, faults  # noqa: F401  which plant them
from emu.checks.planted import FAULTS

NAMES = sorted(FAULTS)
WITHOUT_A_LINE = {"wgmma_without_a_commit", "load_left_behind"}
"""What is found when a thread, or the block, ends."""


@pytest.mark.parametrize("name", NAMES)
def test_a_planted_fault_is_reported(name):
    fault = FAULTS[name]
    report = fault.check(is_right=False)
    assert not report.is_clean
    for finding in report.errors:
        assert (finding.kind, finding.severity) == (fault.kind, "error"), str(finding)
        assert fault.says in finding.message
        if fault.address is not None:
            assert finding.address == fault.address
        if name in WITHOUT_A_LINE:
            continue
        assert finding.source.endswith("# here"), str(finding)
        assert finding.file.endswith("faults.py") and finding.line > 0 and finding.op
        assert finding.block is not None and (fault.who in finding.threads if fault.who is not None else finding.threads)


@pytest.mark.parametrize("name", NAMES)
def test_its_right_twin_is_clean(name):
    report = FAULTS[name].check(is_right=True)
    assert report.findings == (), str(report)
