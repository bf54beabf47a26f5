"""What every room's tests share: the seed of a run, the emulator's completion policies, and a GPU or a skip."""

from __future__ import annotations

import functools
import os
import secrets
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

SEED = int(os.environ.get("DGNUMBA_TEST_SEED") or secrets.randbelow(2**32))
"""Of this run: printed in its head, and set by DGNUMBA_TEST_SEED to repeat one."""

os.environ["DGNUMBA_TEST_SEED"] = str(SEED)  # the workers of pytest-xdist are children: they take the same

# No deadline: on a loaded machine it fails tests that are right.
settings.register_profile("dgnumba", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dgnumba")


def pytest_report_header() -> str:
    """The seed, for whoever has to repeat the run."""
    return f"dgnumba: DGNUMBA_TEST_SEED={SEED}"


@functools.cache
def _no_gpu() -> str | None:
    """Why no test can run on a GPU here; None when they can."""
    try:
        import cupy
    except ImportError as error:
        return f"CuPy cannot be imported: {error}"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"the CUDA runtime finds no GPU: {error}"
    return None if count else "no GPU"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked `gpu` where there is none."""
    if item.get_closest_marker("gpu") is not None and (why := _no_gpu()) is not None:
        pytest.skip(f"needs a GPU: {why}")


@pytest.fixture
def device() -> Any:
    """The current GPU as a `dgnumba.device.Device`; the test is skipped where there is none."""
    if (why := _no_gpu()) is not None:
        pytest.skip(f"needs a GPU: {why}")
    from dgnumba.device import Device

    return Device.current()


@pytest.fixture(params=["eager", "late"])
def policy(request: pytest.FixtureRequest) -> str:
    """Both completion policies of the emulator: the test runs under each."""
    return str(request.param)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers of the test's own, from the run's seed and the test's name; a failing test prints the seed."""
    name = request.node.nodeid.partition("::")[2]
    print(f"DGNUMBA_TEST_SEED={SEED}")
    return np.random.default_rng([SEED, zlib.crc32(name.encode())])
