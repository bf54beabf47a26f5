"""While a kernel is compiled, Python does not look for cycles; before and after that it does as it did."""

import gc
import os
import threading

import pytest

from dgnumba import launching


@pytest.fixture(params=[True, False], ids=["on", "off"])
def is_on(request):
    """Whether the collector runs when the test begins."""
    before = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if before else gc.disable)()


def test_the_collector_is_as_it_was_after_a_compilation(compiler, is_on):
    seen = []
    launching.compiled("k", lambda: seen.append(gc.isenabled()) or (None, ()))
    assert (seen, gc.isenabled()) == ([False], is_on)
    launching.compiled("k", lambda: pytest.fail("is in the cache"))
    assert gc.isenabled() == is_on


def test_and_after_one_that_fails(compiler, is_on):
    def build():
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        launching.compiled("k", build)
    assert gc.isenabled() == is_on


def test_the_last_of_several_threads_turns_it_on(is_on):
    inside, leave = threading.Event(), threading.Event()

    def other():
        with launching._uncollected:
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with launching._uncollected:
        thread.start()
        assert inside.wait(10) and not gc.isenabled()
    assert not gc.isenabled(), "the other is still compiling"
    leave.set()
    thread.join()
    assert gc.isenabled() == is_on


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_forked_meanwhile_collects(is_on):
    with launching._uncollected:
        child = os.fork()
        if child == 0:
            os._exit(0 if gc.isenabled() == is_on else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert not gc.isenabled()
    assert gc.isenabled() == is_on
