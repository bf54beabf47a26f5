"""What breaks in a process of its own is told, and costs that process alone."""

import os
import sys
import time
from pathlib import Path

import pytest

BENCH = str(Path(__file__).parent.parent.parent / "bench")
sys.path.insert(0, BENCH)  # its scripts import each other as scripts do
import apart  # noqa: E402

sys.path.remove(BENCH)


def double(x):
    apart.doing("doubling")
    result = 2 * x
    apart.doing("")
    return result


def fail(message):
    apart.doing("failing")
    raise ValueError(message)


def end(code):
    apart.doing("ending")
    os._exit(code)


def hang():
    apart.doing("hanging")
    time.sleep(600)


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(BENCH)  # for the processes, which take this one's path


@pytest.fixture
def process():
    made = apart.Apart()
    yield made
    made.close()


def test_results_and_faults_come_back_and_name_what_was_done(process):
    assert process(double, 4, timeout=60) == 8 and process.doing == ""
    with pytest.raises(RuntimeError, match="^ValueError: expected a, got b$"):
        process(fail, "expected a,\n  got b Search for `x' in y", timeout=60)
    assert process.doing == "failing"
    assert process(double, 5, timeout=60) == 10
    with pytest.raises(RuntimeError, match="ended with 7"):
        process(end, 7, timeout=60)
    assert process.doing == "ending"
    with pytest.raises(RuntimeError, match="ended with 7"):
        process(double, 5, timeout=60)


def test_a_process_that_hangs_is_ended():
    process = apart.Apart(double, 1)
    with pytest.raises(RuntimeError, match=r"not done after 0\.5 s"):
        process(hang, timeout=0.5)
    assert process.doing == "hanging"
    with pytest.raises(RuntimeError, match="ended with -9"):
        process(double, 5, timeout=60)


def test_a_process_that_cannot_start_says_so():
    process = apart.Apart(end, 5)
    with pytest.raises(RuntimeError, match="ended with 5"):
        process(double, 5, timeout=60)
    process.close()
