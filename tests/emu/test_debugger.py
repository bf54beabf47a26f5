"""pdb in an emulated thread: a kernel's breakpoint(), and a stepped run's pdb()."""

import io
import sys

import numpy as np
import pytest
from numba import cuda

from dgnumba import emu


def with_breakpoint(x):
    i = cuda.threadIdx.x
    if i == 1:
        breakpoint()
    y = helper(i)
    cuda.syncthreads()
    x[i] = y


def helper(i):
    z = i + 1
    return z * z


FIRST = with_breakpoint.__code__.co_firstlineno


def console(monkeypatch, *commands):
    """Let these commands be typed; what is printed comes back."""
    printed = io.StringIO()
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{c}\n" for c in commands)))
    monkeypatch.setattr(sys, "stdout", printed)
    return printed


def shown(printed):
    """The lines that pdb was at, in order, as (function, line from the kernel's first)."""
    heads = [line for line in printed.getvalue().splitlines() if "> " in line and ".py(" in line]
    return [(line.rsplit(")", 2)[1].split("(")[0] or line, int(line.split(".py(")[1].split(")")[0]) - FIRST) for line in heads]


def run():
    x = np.zeros(4, np.int64)
    emu.run(with_breakpoint, 1, 4, (x,))
    return x


def test_a_breakpoint_steps_the_kernels_own_lines_over_barriers(monkeypatch):
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)
    printed = console(monkeypatch, "p i", "n", "n", "p y", "c")
    x = run()
    text = printed.getvalue()
    first = 3 if sys.version_info >= (3, 13) else 4  # since then pdb stops at the breakpoint itself
    assert [line for _, line in shown(printed)] == [first, first + 1, first + 2]
    assert "(thread 1 of block (0, 0, 0)) 1" in text
    assert "dgnumba" not in text.replace(__file__, "")
    np.testing.assert_array_equal([1, 4, 9, 16], x)


def test_s_steps_into_the_kernels_functions_and_into_nothing_else(monkeypatch):
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)
    printed = console(monkeypatch, *["s"] * 12, "c")
    run()
    assert {name for name, _ in shown(printed)} <= {"with_breakpoint", "helper"}
    assert ("helper", 11) in shown(printed)


def test_threads_and_barriers_are_commands(monkeypatch):
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)
    printed = console(monkeypatch, "threads", "barriers", "w", "c")
    run()
    assert "thread 0: syncthreads [1 of 4 threads there], test_debugger.py" in printed.getvalue()
    assert "threads 2-3: not begun" in printed.getvalue()


def test_breakpoints_can_be_switched_off(monkeypatch):
    monkeypatch.setenv("PYTHONBREAKPOINT", "0")
    printed = console(monkeypatch)
    np.testing.assert_array_equal([1, 4, 9, 16], run())
    assert printed.getvalue() == ""


def plain(x):
    i = cuda.threadIdx.x
    y = helper(i)
    cuda.syncthreads()
    x[i] = y


PLAIN = plain.__code__.co_firstlineno


def test_a_stepped_run_opens_pdb_at_every_stop(monkeypatch):
    printed = console(monkeypatch, "p i", "c", "p i", "c", "p i", "c")
    x = np.zeros(3, np.int64)
    with emu.step(plain, 1, 3, (x,), at="cuda.syncthreads", pdb=True) as state:
        assert state.is_over
    numbers = [line.split(") ")[-1] for line in printed.getvalue().splitlines() if line.startswith("(thread") and line[-1].isdigit()]
    assert numbers == ["0", "1", "2"]
    np.testing.assert_array_equal([1, 4, 9], x)


def test_pdb_steps_a_stopped_run_line_by_line_and_hands_it_back(monkeypatch):
    printed = console(monkeypatch, "n", "s", "n", "r", "n", "n", "p y", "c")
    x = np.zeros(3, np.int64)
    with emu.step(plain, 1, 3, (x,), who=1, at=PLAIN + 1) as state:
        state.pdb()
        assert state.is_over
    lines = [line + FIRST - PLAIN for _, line in shown(printed)]
    assert lines[:3] == [1, 2, helper.__code__.co_firstlineno + 1 - PLAIN]
    assert lines[-1] == 4
    np.testing.assert_array_equal([1, 4, 9], x)


def test_q_gives_a_stepped_run_up(monkeypatch):
    console(monkeypatch, "q")
    x = np.zeros(3, np.int64)
    with emu.step(plain, 1, 3, (x,)) as state:
        state.pdb()
        assert state.is_over
    np.testing.assert_array_equal([0, 0, 0], x)


def test_a_breakpoint_is_a_stop_of_a_stepped_run():
    with emu.step(with_breakpoint, 1, 4, (np.zeros(4, np.int64),), at="x[i] = y", who=3) as state:
        assert (state.thread().index, state.thread().line) == (1, FIRST + 3)
        assert (state.run().thread().index, state.thread().line) == (3, FIRST + 6)


@pytest.mark.parametrize("command", ["u", "d", "l", "bt", "p q"])
def test_pdbs_other_commands_work(monkeypatch, command):
    printed = console(monkeypatch, command, "c")
    with emu.step(plain, 1, 3, (np.zeros(3, np.int64),), who=1, at="helper(i)") as state:
        state.pdb()
    assert "Traceback" not in printed.getvalue()
