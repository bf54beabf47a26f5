"""Registers that wgmma works on: values of one thread that may be in flight."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..errors import AsyncError
from .async_ops import AsyncOp
from .machine import thread


class Fragment:
    """One thread's accumulators: float32 registers (uint32: the bits of int32), in flight while a wgmma that has not been waited for writes them.

    Everything but wgmma reads them as a sequence, or all at once with `values`; both count as a touch, after which wgmma.fence must come
    before the next wgmma that uses them.
    """

    __slots__ = ("_values", "_op", "_fences")

    def __init__(self, values: Any, op: AsyncOp | None = None, fences: int | None = None) -> None:
        is_ready = isinstance(values, np.ndarray) and values.dtype in (np.float32, np.uint32)
        self._values = values if is_ready else np.array(values, np.float32)
        self._op = op  # the wgmma that writes them, until the value that the wait returns takes over
        self._fences = thread().fences if fences is None else fences  # wgmma.fences executed when they were last touched

    @property
    def values(self) -> np.ndarray:
        """The registers, read by something that is not a wgmma."""
        if self._op is not None:
            state = "use what wgmma.wait returned, not what was given to it" if self._op.is_awaited else "wgmma.wait must come first"
            raise AsyncError(f"accumulators of {self._op.name} used while in flight: {state}", kind="in-flight")
        self._fences = thread().fences
        return self._values

    def for_wgmma(self, owner: Any) -> np.ndarray:
        """The registers of `owner`, taken by a wgmma as accumulators: they may be in flight, but not touched since the last fence."""
        if self._op is None and self._fences >= owner.fences:
            raise AsyncError("accumulators used by a wgmma after an access of them: wgmma.fence must come between", kind="in-flight")
        return self._values

    def settled(self) -> Fragment:
        """What a wait returns for them: if it has waited for their wgmma a new value, ready; the old one stays in flight, as on the GPU."""
        return Fragment(self._values, fences=0) if self._op is not None and self._op.is_awaited else self

    def peek(self) -> np.ndarray:
        """The registers as they are, looked at from outside: no access of the kernel. In flight under the late policy they are NaN."""
        return self._values

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: Any) -> Any:
        return self.values[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __repr__(self) -> str:
        return f"Fragment({len(self)} registers{', in flight' if self._op else ''})"
