"""For the tests of your own kernels: the pytest fixture `emu_check`.

pytest finds it in an installed dgnumba by itself (entry point ``pytest11``); elsewhere say ``pytest -p dgnumba.pytest_plugin``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .emu import Report


@pytest.fixture
def emu_check() -> Callable[..., Report]:
    """Call it as `dgnumba.emu.check`: the test fails if the report has an error; `bank_ways` and `sectors` are those of `Report.expect`.

    ::

        def test_my_kernel(emu_check):
            report = emu_check(kernel, grid, block, args, smem=1024, bank_ways=1, sectors=1.5)
    """

    def checked(*args: Any, bank_ways: float | None = None, sectors: float | None = None, **options: Any) -> Report:
        from .emu import check  # a session that does not ask for the fixture need not load the emulator

        __tracebackhide__ = True
        return check(*args, **options).expect(bank_ways=bank_ways, sectors=sectors)

    return checked
