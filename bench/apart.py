"""A process of its own for what may break a CUDA context, end its process or hang: a fault costs that process, and no other measurement."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

START = 120.0
"""Seconds within which a process must have imported what it needs."""

_note: Any = None
"""In such a process: memory shared with the one that started it."""


def doing(what: str) -> None:
    """Say what is about to be called, so that one knows where a process broke."""
    if _note is not None:
        _note.value = what.encode()[:63]


def one_line(error: BaseException) -> str:
    """An error in one line, without the advice that CUDA's errors carry."""
    return f"{type(error).__name__}: {' '.join(str(error).split('Search for `')[0].split())[:300]}"


class Apart:
    """A process that calls functions, one after the other; at once `first`, whose result nobody needs."""

    def __init__(self, first: Callable[..., Any] | None = None, *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._shared = context.Array("c", 64)
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._shared, first, arguments), daemon=True)
        self._process.start()
        theirs.close()
        self._is_ready = False

    @property
    def doing(self) -> str:
        """What the process last said that it does; "" where it does nothing in particular."""
        return str(self._shared.value.decode())

    def __call__(self, function: Callable[..., Any], *arguments: Any, timeout: float) -> Any:
        """A function's result, function and arguments being picklable.

        Raises RuntimeError where the function raises, where the process ends, or where it takes more than `timeout` seconds, the start of the
        process aside; then it is ended.
        """
        try:
            if not self._is_ready:
                self._received(START)
                self._is_ready = True
            self._pipe.send((function, arguments))
            result, fault = self._received(timeout)
        except (EOFError, OSError):
            self._process.join(5)
            raise RuntimeError(f"its process ended with {self._process.exitcode}") from None
        if fault:
            raise RuntimeError(fault)
        return result

    def _received(self, timeout: float) -> Any:
        if not self._pipe.poll(timeout):
            self.close()
            raise RuntimeError(f"not done after {timeout:g} s")
        return self._pipe.recv()

    def close(self) -> None:
        """End the process; by force, as one with a broken context may hang or complain at length."""
        self._process.kill()
        self._process.join()


def _serve(pipe: Any, note: Any, first: Callable[..., Any] | None, arguments: tuple[Any, ...]) -> None:
    """In the process: call what comes until nothing more comes."""
    global _note
    _note = note
    if first is not None:
        first(*arguments)
    pipe.send("ready")
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((function(*arguments), ""))
        except Exception as error:  # told by the other side
            pipe.send((None, one_line(error)))
