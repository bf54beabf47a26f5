"""A product made ready once and run many times: what a layer does with its weights."""

from __future__ import annotations

import sys
from typing import Any

from . import config, launching
from .api import _choose, _lay_out, fp8_gemm_nt
from .device import Device
from .dtypes import DType
from .errors import ProblemError
from .kernels import GemmPlan
from .prepared import PlacedCall, QuickCall, prepared
from .problem import E4M3, check_fp8_gemm_nt, is_plain


class PreparedGemm:
    """``f(a, b, d)``: `fp8_gemm_nt` for operands of the form that it was made for; see `prepare_fp8_gemm_nt`.

    The last operands are remembered: handed over again, the same arrays are not looked at again. They are kept alive as long as `f`, or until others
    come. Changing an array's shape in place between two calls is not seen.

    copies  what each call has to copy, in words; empty for what is launched as it lies
    """

    __slots__ = ("_call", "_dtypes", "_expected", "_last", "_plan", "_takes_pairs", "copies")

    def __init__(
        self, call: QuickCall | None, expected: tuple[Any, ...], copies: tuple[str, ...], plan: GemmPlan | str | None,
        dtypes: tuple[DType, DType] = (E4M3, E4M3),
    ) -> None:  # fmt: skip
        self.copies = copies
        self._call, self._expected, self._plan, self._dtypes = call, expected, plan, dtypes
        # bytes on a GPU that nobody names are e4m3
        self._takes_pairs = call is None or dtypes == (E4M3, E4M3)
        # arrays and what is launched for them in one tuple: a thread sees both of one call
        self._last: tuple[Any, ...] = (None,) * 6

    def __call__(self, a: Any, b: Any, d: Any, *, stream: Any = None) -> Any:
        """Queue the product. Raises `ProblemError` for operands of another form; nothing has been written then."""
        if not (self._takes_pairs and type(a) is tuple and type(b) is tuple):
            self._check_types(a, b, d)
        (a_data, sfa), (b_data, sfb) = a, b
        la, lsfa, lb, lsfb, ld, placed = self._last
        if not (a_data is la and sfa is lsfa and b_data is lb and sfb is lsfb and d is ld):
            placed = self._look_at((a_data, sfa, b_data, sfb, d))
        if placed is None:
            return fp8_gemm_nt(a, b, d, plan=self._plan, stream=stream)
        placed.run(stream)
        return d

    def _check_types(self, a: Any, b: Any, d: Any) -> None:
        """What arrays of a GPU do not say: a QTensor's type, and what it has beside data and scales."""
        for name, operand, dtype, granularity in (("a", a, self._dtypes[0], (1, 128)), ("b", b, self._dtypes[1], (128, 128))):
            if hasattr(operand, "granularity"):
                if self._call is not None and not is_plain(operand, granularity, dtype):
                    raise ProblemError(f"{name}: expected {dtype} with float32 scales per {granularity} as prepared, got {operand!r}")
            elif not (isinstance(operand, tuple | list) and len(operand) == 2):
                check_fp8_gemm_nt(a, b, d, None, check=False)  # which says what is wrong
                raise ProblemError(f"{name}: expected a QTensor or a pair (data, scale), got {type(operand).__name__}")
            elif self._call is not None and dtype is not E4M3:
                raise ProblemError(f"{name}: expected a QTensor of {dtype} as prepared, got a pair, whose bytes are {E4M3}")

    def _look_at(self, arrays: tuple[Any, ...]) -> PlacedCall | None:
        call = self._call
        for x, last, expected in zip(arrays, self._last, self._expected):
            if x is not last and _form(x, call is not None) != expected:
                found = tuple(_form(x, call is not None) for x in arrays)
                raise ProblemError(f"a, b, d: expected arrays of the form that was prepared, {_words(self._expected)}, got {_words(found)}")
        placed = None
        if call is not None:
            a, sfa, b, sfb, d = arrays
            placed = call.placed((a.data.ptr, sfa.data.ptr, b.data.ptr, sfb.data.ptr, d.data.ptr))
        self._last = (*arrays, placed)
        return placed


def prepare_fp8_gemm_nt(a: Any, b: Any, d: Any, *, plan: GemmPlan | str | None = None) -> PreparedGemm:
    """Make `fp8_gemm_nt` ready for operands of this form: check, choose the plan, compile, describe. Multiplies nothing.

    Args:
        a, b, d, plan: as of `fp8_gemm_nt`; `d` must be given. Of the arrays only form and place count, not what is in them.

    `set_num_sms`, `set_pdl` and `set_batch_invariant` are heeded as they stand now, not as they stand when the call is made.

    Returns:
        ``f(a, b, d, stream=None)``, for operands of the same shapes, strides, dtypes and GPU, at any addresses. On a GPU, for CuPy arrays that
        need no copy, a call is a launch and little more; any other arrays go the way of `fp8_gemm_nt`, and ``f.copies`` says what is copied.

    Raises:
        As `fp8_gemm_nt`.

    >>> import numpy as np, dgnumba
    >>> a, b = dgnumba.per_token_cast_to_fp8(np.ones((2, 256), np.float32)), dgnumba.per_block_cast_to_fp8(np.ones((3, 256), np.float32))
    >>> d = np.empty((2, 3), np.float32)
    >>> multiply = dgnumba.prepare_fp8_gemm_nt(a, b, d)
    >>> multiply(a, b, d).round()
    array([[256., 256., 256.],
           [256., 256., 256.]], dtype=float32)
    """
    if d is None:
        raise ProblemError("d: expected the output's array, got None: a prepared product writes where it is told")
    operands = check_fp8_gemm_nt(a, b, d, None, check=False)
    arrays = (*a, *b, d)
    index = operands.device
    if index is None or operands.problem.is_empty or operands.problem.k == 0:
        return PreparedGemm(None, tuple(_form(x, False) for x in arrays), (), plan)
    settings, device, handle = config.current(), Device.numbered(index), launching.stream_of(arrays, index)
    with launching.ordered(index, handle):
        choice = _choose(operands, plan, device, settings)
        laid = _lay_out(operands, choice.plan, handle)
        launch = prepared(choice, laid, settings.limited(device), settings.pdl, settings.constant_weights)
    is_cupys = all(type(x) is sys.modules["cupy"].ndarray for x in arrays)
    call = QuickCall(launch, laid, index) if is_cupys and not laid.copies else None
    types = operands.problem.a_dtype, operands.problem.b_dtype
    return PreparedGemm(call, tuple(_form(x, call is not None) for x in arrays), laid.copies, plan, types)


def _form(x: Any, is_cupys: bool) -> tuple[Any, ...]:
    """What must be the same again."""
    if is_cupys and type(x) is sys.modules["cupy"].ndarray:
        return x.shape, x.strides, x.dtype, x.data.device_id
    return tuple(x.shape), None, x.dtype, None


def _words(forms: tuple[tuple[Any, ...], ...]) -> str:
    return ", ".join(f"{name} {dtype} {list(shape)}" for name, (shape, _, dtype, _) in zip(("a", "sfa", "b", "sfb", "d"), forms))


__all__ = ["PreparedGemm", "prepare_fp8_gemm_nt"]
