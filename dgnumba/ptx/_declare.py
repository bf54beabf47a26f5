"""How an instruction is declared: once, with its PTX, its types, its meaning in Python and its contract.

    @op("mbarrier.arrive.shared::cta.b64 _, [{bar}];")
    def arrive(bar: u32) -> None:
        '''mbarrier.arrive - ...'''
        cta().mbarrier(bar).arrive()

The decorator says what the device executes, the body says what the instruction means, the docstring is the contract. The decorated
name stays an ordinary function: met by Numba it becomes the asm, called by Python (in the emulator) it runs its body.

An argument's annotation is its kind: `u32`, `u64`, `f32`, `bool`; `Imm` (a constant, known at compile time); `Fragment` (a tuple of
float32 registers of any length, `Fragment(4)`: of four); `Registers` (a tuple of u32); `TensorMapArg`; `ArrayArg`. A result is a scalar kind, None,
`Registers(4)`, `Registers(lambda sizes: sizes["fragment"] // 2)` (sizes of the list arguments, values of the immediates), or, with
`tied="acc"`, that argument's own registers, updated.

`@unrolled` declares an operation made of others: its body runs in both worlds (`dgnumba._numba.tracer`), so its loops over
registers are unrolled at compile time.
"""

import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import _numba, emu
from ..integers import u32, u64

f32 = np.float32

THREAD, WARP, WARPGROUP = "thread", "warp", "warpgroup"


class Imm:
    """An integer constant in the instruction."""


class Fragment:
    """A tuple of float32 registers: what the tensor core adds into."""

    def __init__(self, count: Any) -> None:
        self.count = count


class Registers:
    """A tuple of u32 registers."""

    def __init__(self, count: Any) -> None:
        self.count = count


class TensorMapArg:
    """A tensor map that is a kernel parameter."""


class ArrayArg:
    """A Numba array."""


_KIND = {u32: "u32", u64: "u64", f32: "f32", bool: "bool", Imm: "imm", Fragment: "fragment", Registers: "registers",
         TensorMapArg: "tensor_map", ArrayArg: "array"}  # fmt: skip
_KIND_TEXT = {"u32": "a u32", "u64": "a u64", "f32": "a float32", "bool": "a bool", "imm": "an integer constant",
              "fragment": "a tuple of float32 registers", "registers": "a tuple of u32 registers",
              "tensor_map": "a tensor map that is a kernel parameter", "array": "an array"}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Operation:
    """One declared instruction: neutral data, which `dgnumba._numba` materialises and the tests walk."""

    name: str
    text: str | None
    params: tuple[tuple[str, str], ...]
    result: Any
    tied_index: int | None
    scope: str
    pure: bool
    body: Callable[..., Any]
    function: Callable[..., Any] = field(repr=False)
    counts: dict[str, int] = field(default_factory=dict)  # of the list arguments whose length is fixed

    @property
    def parameters_text(self) -> str:
        return ", ".join(f"{name}: {kind}" for name, kind in self.params)

    def kind_text(self, name: str) -> str:
        """What argument `name` must be."""
        text = _KIND_TEXT[dict(self.params)[name]]
        return text.replace("a tuple of", f"a tuple of {self.counts[name]}") if name in self.counts else text


OPS: dict[str, Operation] = {}


def _declare(
    body: Callable[..., Any], text: str | None, *, scope: str = THREAD, pure: bool = False, tied: str | None = None, name: str | None = None,
    emulate: Callable[..., Any] | None = None,
) -> Callable[..., Any]:  # fmt: skip
    signature = inspect.signature(body, eval_str=True)
    params = tuple(
        (p.name, _KIND[p.annotation if isinstance(p.annotation, type) else type(p.annotation)]) for p in signature.parameters.values()
    )
    counts = {p.name: p.annotation.count for p in signature.parameters.values() if isinstance(getattr(p.annotation, "count", None), int)}
    result = signature.return_annotation
    tied_index = [n for n, _ in params].index(tied) if tied else None
    if tied:
        result = "same"
    elif isinstance(result, (Fragment, Registers)):
        result = (_KIND[type(result)], result.count)
    elif result is not None:
        result = _KIND[result]
    full = name or f"{body.__module__.rsplit('.', 1)[-1]}.{body.__name__}"

    def call(*args: Any) -> Any:
        if _numba.is_lowering():
            return body(*args) if text is None else _numba.emit(operation, args)
        if text is None:
            return emu.compose(full, emulate or body, args)
        if pure and scope is THREAD:
            return body(*args)
        return emu.perform(full, scope, body, args)

    call.__name__, call.__qualname__, call.__module__ = body.__name__, body.__qualname__, body.__module__
    call.__doc__ = body.__doc__ and textwrap.dedent(body.__doc__)
    call.__wrapped__ = body  # type: ignore[attr-defined]
    operation = Operation(full, text, params, result, tied_index, scope, pure, body, call, counts)
    call.operation = operation  # type: ignore[attr-defined]
    call.__emu_op__ = full  # type: ignore[attr-defined]  # the emulator leaves it as it is
    OPS.setdefault(full, operation)
    _numba.register_operation(operation)
    return call


def op(text: str, *, scope: str = THREAD, pure: bool = False, tied: str | None = None, name: str | None = None) -> Callable[..., Any]:
    """Declare an instruction.

    text   PTX with `{argument}` for operands, `{out}` for the result; literal braces doubled, as in str.format
    scope  who executes it together: THREAD; WARP or WARPGROUP: in the emulator those threads meet, and the body runs once with a list of
           every argument (one entry a lane) and returns the list of results
    pure   the result depends on the arguments alone: the compiler may move or drop it
    tied   the argument whose registers the result is
    """
    return lambda body: _declare(body, text, scope=scope, pure=pure, tied=tied, name=name)


def unrolled(
    body: Callable[..., Any] | None = None, *, tied: str | None = None, emulate: Callable[..., Any] | None = None, name: str | None = None
) -> Callable[..., Any]:
    """Declare an operation made of others; see the module's docstring.

    emulate   what the emulator runs in the body's place: the same, vectorised (a test holds the two together)
    """
    if body is None:
        return lambda b: _declare(b, None, tied=tied, emulate=emulate, name=name)
    return _declare(body, None, tied=tied, emulate=emulate, name=name)


def select(condition: Any, x: Any, y: Any) -> Any:
    """`x` where `condition` holds, else `y`: the branch-free choice, for the bodies of unrolled operations."""
    if _numba.is_lowering():
        return _numba.select_register(condition, x, y)
    return x if condition else y
