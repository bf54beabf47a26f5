"""Where the lowering of an `@unrolled` operation in progress stands. Knows nothing of Numba, so that asking costs no import of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _State(threading.local):
    site: tuple[Any, Any] | None = None


_state = _State()


@contextmanager
def lowering(context: Any, builder: Any) -> Iterator[None]:
    """While this is open, calling a `dgnumba.ptx` operation emits it at the place of `builder`, an LLVM `IRBuilder`."""
    outer = _state.site
    _state.site = (context, builder)
    try:
        yield
    finally:
        _state.site = outer


def site() -> tuple[Any, Any] | None:
    """(context, builder) of the lowering in progress in this thread, or None outside one."""
    return _state.site


def is_lowering() -> bool:
    """Whether an operation called now is to be emitted, because the compiler is lowering one that is made of it."""
    return _state.site is not None
