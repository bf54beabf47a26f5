"""What is to be multiplied: `GemmProblem`, and the checks that turn a caller's arguments into `Operands`.

    D[m,n] = C[m,n] + sum over k of A[m,k] * SFA[m, k // 128] * B[n,k] * SFB[n // 128, k // 128]

Everything that can be refused is refused here, before anything is allocated or written; a message
names the argument, what was expected and what came.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from .dtypes import DTYPES, DType, as_dtype
from .errors import DTypeError, ProblemError
from .xp import (
    ArrayView,
    as_array,
    device_of,
    empty,
    namespace,
    overlaps_itself,
    same_place,
    share_memory,
    view_bytes,
)

E4M3, E5M2 = DTYPES["float8_e4m3fn"], DTYPES["float8_e5m2"]
BF16, F16, F32 = DTYPES["bfloat16"], DTYPES["float16"], DTYPES["float32"]
U8, U16, I32 = DTYPES["uint8"], DTYPES["uint16"], DTYPES["int32"]
_CAST = {"a": "per_token_cast_to_fp8", "b": "per_block_cast_to_fp8"}
PACKED_SCALES = 4
"""UE8M0 scales in an int32 (`layouts.ue8m0`)."""


@dataclass(frozen=True)
class GemmProblem:
    """Extents, element types and scale granularity of ``D [m,n] = C + A [m,k] @ B [n,k].T``, without the arrays.

    A granularity ``(gm, gk)`` says that one scale serves a block of gm rows by gk columns, None that there are no scales; `row_scales`,
    that A's scales may be read as they lie: row-major, in rows of whole 16 bytes. Element types may be given by name. Raises
    `ProblemError` for a negative extent.
    """

    m: int
    n: int
    k: int
    a_dtype: DType = E4M3
    b_dtype: DType = E4M3
    d_dtype: DType = BF16
    gran_a: tuple[int, int] | None = (1, 128)
    gran_b: tuple[int, int] | None = (128, 128)
    with_c: bool = False
    groups: int = 1
    row_scales: bool = False

    def __post_init__(self) -> None:
        for name in ("a_dtype", "b_dtype", "d_dtype"):
            dtype = getattr(self, name)
            if not isinstance(dtype, DType):
                object.__setattr__(self, name, as_dtype(dtype))
        if min(self.m, self.n, self.k) < 0 or self.groups < 1:
            raise ProblemError(f"expected m, n, k of 0 or more and groups of 1 or more, got {self.m}, {self.n}, {self.k} and {self.groups}")
        if min(*(self.gran_a or (1, 1)), *(self.gran_b or (1, 1))) < 1:
            raise ProblemError(f"gran_a, gran_b: expected (rows, columns) of 1 or more, got {self.gran_a}, {self.gran_b}")

    @property
    def flops(self) -> int:
        """Multiplications and additions of the product, scales not counted."""
        return 2 * self.groups * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        """Bytes that must move at least once: both operands, their scales, the output, and C."""
        m, n, k = self.m, self.n, self.k
        sfa = math.prod(scale_shape((m, k), self.gran_a)) if self.gran_a else 0
        sfb = math.prod(scale_shape((n, k), self.gran_b)) if self.gran_b else 0
        operands = m * k * self.a_dtype.bits // 8 + n * k * self.b_dtype.bits // 8 + 4 * (sfa + sfb)
        return self.groups * (operands + m * n * self.d_dtype.itemsize * (2 if self.with_c else 1))

    @property
    def is_empty(self) -> bool:
        """Whether D has no element."""
        return self.m == 0 or self.n == 0


@dataclass(frozen=True, eq=False)
class Operands:
    """The arrays of one checked call, NumPy or CuPy, and the problem that they make.

    `a` and `b` are uint8 codes; `d` and `c` are of `problem.d_dtype`, or its bits as uint16 where
    the array module lacks bfloat16. `sfa` and `sfb` are float32, or int32 words of four UE8M0
    scales along K. Strides are the caller's.
    """

    problem: GemmProblem
    a: Any
    sfa: Any
    b: Any
    sfb: Any
    d: Any
    c: Any
    device: int | None
    """The GPU that holds all of them; None for host memory."""


def scale_shape(shape: tuple[int, ...], granularity: tuple[int, int]) -> tuple[int, ...]:
    """Shape of the scales of a matrix (or a stack of them): its last two extents over the granularity, rounded up.

    >>> scale_shape((300, 1000), (128, 128))
    (3, 8)
    """
    *groups, rows, columns = shape
    return (*groups, -(-rows // granularity[0]), -(-columns // granularity[1]))


def check_fp8_gemm_nt(
    a: Any,
    b: Any,
    d: Any = None,
    c: Any = None,
    check: bool | None = None,
    out_dtype: DType | str = BF16,
    defer: bool = False,
) -> Operands:
    """Check the arguments of ``d = c + a @ b.T``, 1x128 scales on `a`, 128x128 on `b`.

    Args:
        a: `QTensor`, or pair of data ``[M,K]`` (e4m3 or e5m2; uint8 is the bytes of e4m3) and float32 scales
            ``[M, ceil(K/128)]``, or int32 ``[M, ceil(K/512)]``: UE8M0, four to a word.
        b: the same with data ``[N,K]`` and scales ``[ceil(N/128), ceil(K/128)]`` (int32: ceil(K/512)).
        d: output ``[M,N]``, bfloat16 (or its bits as uint16), float16 or float32, any strides; None:
            a new one of `out_dtype`.
        c: None, or an array of `d`'s shape and type; it may be `d` itself.
        check: whether to look at every scale for NaN, infinity and negative values. None: on the
            host yes, on the GPU no, where it costs a pass over them and a synchronisation. A zero
            scale is legal; its block adds nothing.
        out_dtype: element type of a new `d`.
        defer: on a GPU, leave to `settle` what has to be in a stream's order.

    Raises:
        ProblemError: wrong rank, shape, device, a bad scale, or an output that is read-only or
            overlaps what is read.
        DTypeError: wrong element type, or no array.
        UnsupportedError: an array is on a GPU, and CuPy cannot be imported.
    """
    a_data, sfa = _operand("a", a)
    b_data, sfb = _operand("b", b)
    m, k = _extents("a", a_data, "[M, K]")
    n, _ = _extents("b", b_data, "[N, K]", k=k)
    gran_a, gran_b = (1, 128), (128, 128)
    _check_granularity("a", a, gran_a)
    _check_granularity("b", b, gran_b)
    _check_scale_shape("a", a_data, sfa, gran_a, "one per 128 of K")
    _check_scale_shape("b", b_data, sfb, gran_b, "one per block of 128x128")
    out = None if d is None else _output("d", d, (m, n))
    d_dtype = _out_dtype(out_dtype) if out is None else _float_dtype(out)
    add = None if c is None else _addend(c, (m, n), d_dtype)
    device = same_device(("a", a_data), ("sfa", sfa), ("b", b_data), ("sfb", sfb), ("d", out), ("c", add))
    if out is not None:
        check_overlap(out, (("a", a_data), ("sfa", sfa), ("b", b_data), ("sfb", sfb)), add)
    problem = GemmProblem(m, n, k, cast(DType, a_data.dtype), cast(DType, b_data.dtype), d_dtype, gran_a, gran_b, add is not None)
    operands = Operands(
        problem,
        a_data.array,
        sfa.array,
        b_data.array,
        sfb.array,
        None if out is None else out.array,
        None if add is None else add.array,
        device,
    )
    return operands if defer and device is not None else settle(operands, check)


def settle(operands: Operands, check: bool | None) -> Operands:
    """Look at the scales as `check` says, and make the `d` that was not given: on a GPU, on CuPy's current stream."""
    if check if check is not None else operands.device is None:
        _check_scales("sfa", operands.sfa)
        _check_scales("sfb", operands.sfb)
    if operands.d is not None:
        return operands
    problem = operands.problem
    return replace(operands, d=empty((problem.m, problem.n), problem.d_dtype, operands.a))


def _operand(name: str, pair: Any) -> tuple[ArrayView, ArrayView]:
    """Data (as uint8 codes, with the type that they are of) and scales of one argument: types checked, shapes not yet."""
    is_pair = isinstance(pair, (tuple, list)) and len(pair) == 2
    if not is_pair and not hasattr(pair, "granularity"):
        got = f"{type(pair).__name__} of {len(pair)}" if isinstance(pair, (tuple, list)) else describe(pair)
        raise DTypeError(f"{name}: expected a QTensor or a pair (data, scale), got {got}" + _pair_hint(name, pair))
    if not is_pair and not _is_plain_fp8(pair, (E4M3, E5M2)):
        hint = "; for weights of 4 bits: int4_gemm_nt(a, b), explain_int4(a, b)" if pair.dtype.bits == 4 else ""
        raise DTypeError(f"{name}: expected a QTensor of {E4M3} or {E5M2} with float32 scales alone, got {pair}{hint}")
    row = E4M3 if is_pair else pair.dtype
    data, scale = pair
    data, scale = as_array(data, name), as_array(scale, f"sf{name}")
    if data.dtype is not E4M3 and data.dtype is not E5M2 and data.dtype is not U8:
        raise DTypeError(f"{name}: expected {E4M3} (or its bytes as uint8) or {E5M2}, got {data.dtype_name}" + _dtype_hint(data.dtype_name))
    data = data._replace(dtype=row) if data.dtype is U8 else data._replace(array=view_bytes(data.array))
    if scale.dtype is not F32 and scale.dtype is not I32:
        got = scale.dtype_name + _scale_hint(scale.dtype_name)
        raise DTypeError(f"sf{name}: expected float32 scales, or int32 of four UE8M0 each, got {got}")
    return data, scale


def is_plain(q: Any, granularity: tuple[int, int], dtype: DType = E4M3) -> bool:
    """Whether a QTensor is taken as its bytes and scales alone: those bytes, in an array that cannot say more, are e4m3, or known to be `dtype`."""
    return _is_plain_fp8(q, (dtype,)) and tuple(q.granularity) == granularity


def _is_plain_fp8(q: Any, dtypes: tuple[DType, ...]) -> bool:
    """Whether data of these types and scales are all of a QTensor."""
    is_known = q.scale_dtype is F32 or q.scale.dtype == np.int32
    is_all = q.zero_point is None and q.global_scale is None and q.g_idx is None and q.packing is None
    return is_all and is_known and q.dtype in dtypes


def _dtype_hint(name: str) -> str:
    if name in ("int8", "|V1", "|S1", "bool"):
        return f"; if these are e4m3 codes, view them so: .view(ml_dtypes.{E4M3}) or .view('uint8')"
    if name.startswith(("float8", "float4")):
        return "; quantize to e4m3 or e5m2, no kernel takes this type here"
    if name.startswith(("float", "bfloat")):
        return "; quantize first, as with per_token_cast_to_fp8 or per_block_cast_to_fp8"
    return ""


def _scale_hint(name: str) -> str:
    if name == "uint32":
        return "; if these are packed UE8M0 scales, view them so: .view('int32')"
    if name == "float8_e8m0fnu":
        return "; convert with .astype('float32')"
    if name.startswith(("float", "bfloat")):
        return "; convert with .astype('float32')"
    return ""


def _pair_hint(name: str, x: Any) -> str:
    dtype = str(getattr(x, "dtype", "")).rpartition(".")[2]  # torch's begin with "torch."
    if dtype in ("float16", "bfloat16", "float32", "float64"):
        return f"; quantize it: {_CAST[name]}({name})"
    return f"; its scales are missing: ({name}, sf{name})" if dtype in (E4M3.name, E5M2.name) else ""


def describe(x: Any) -> str:
    """What an argument is, for messages: its type and shape."""
    shape = getattr(x, "shape", None)
    return type(x).__name__ if shape is None else f"{getattr(x, 'dtype', type(x).__name__)} {list(shape)}"


def _extents(name: str, data: ArrayView, expected: str, k: int | None = None) -> tuple[int, int]:
    shape = data.array.shape
    if len(shape) != 2:
        raise ProblemError(f"{name}: expected rank 2, {expected}, got {list(shape)}")
    if k is not None and shape[1] != k:
        hint = "; transposed?" if shape[0] == k else ""
        raise ProblemError(f"{name}: expected [N, {k}] (K = {k} as in a), got {list(shape)}{hint}")
    return shape[0], shape[1]


def _check_granularity(name: str, operand: Any, expected: tuple[int, int]) -> None:
    got = getattr(operand, "granularity", expected)
    if tuple(got) != expected:
        raise ProblemError(
            f"{name}: expected a scale for each {expected[0]}x{expected[1]}, got {got[0]}x{got[1]}"
            + f"; quantize {name} with {_CAST[name]}"
        )


def _check_scale_shape(name: str, data: ArrayView, scale: ArrayView, granularity: tuple[int, int], each: str) -> None:
    shape, got = data.array.shape, scale.array.shape
    expected = scale_shape(shape, granularity)
    if scale.dtype is I32:
        expected = (*expected[:-1], -(-expected[-1] // PACKED_SCALES))
        each = f"four UE8M0 to a word, {each}"
    if got == expected:
        return
    hint = ""
    if got == expected[::-1]:
        hint = "; transposed?"
    elif got == scale_shape(shape, (1, 128)):
        hint = "; these are one per row: quantize b with per_block_cast_to_fp8"
    elif got == scale_shape(shape, (128, 128)):
        hint = "; these are one per block: quantize a with per_token_cast_to_fp8"
    kind = scale.dtype_name
    raise ProblemError(f"sf{name}: expected {kind} {list(expected)} for {name} {list(shape)} ({each}), got {kind} {list(got)}{hint}")


def _output(name: str, x: Any, shape: tuple[int, int]) -> ArrayView:
    view = as_array(x, name)
    _float_dtype(view)
    return check_output(name, view, shape)


def check_output(name: str, view: ArrayView, shape: tuple[int, int]) -> ArrayView:
    """An array that can be written to as ``[M, N]``; its type is another's business."""
    if view.array.shape != shape:
        hint = "; transposed?" if view.array.shape == shape[::-1] else ""
        raise ProblemError(f"{name}: expected [M, N] = {list(shape)}, got {list(view.array.shape)}{hint}")
    if not view.writable:
        raise ProblemError(f"{name}: expected an array that can be written, got a read-only one")
    if overlaps_itself(view.array):
        raise ProblemError(f"{name}: expected elements of their own memory, got byte strides {list(view.array.strides)} for {list(shape)}")
    return view


def _out_dtype(x: DType | str) -> DType:
    dtype = as_dtype(x)
    if dtype not in (BF16, F16, F32):
        raise DTypeError(f"out_dtype: expected bfloat16, float16 or float32, got {dtype}")
    return dtype


def _float_dtype(view: ArrayView, name: str = "d") -> DType:
    if view.dtype is U16:
        return BF16
    if view.dtype is BF16 or view.dtype is F16 or view.dtype is F32:
        return view.dtype
    raise DTypeError(f"{name}: expected bfloat16 (or its bits as uint16), float16 or float32, got {view.dtype_name}")


def _addend(c: Any, shape: tuple[int, int], d_dtype: DType) -> ArrayView:
    view = as_array(c, "c")
    if _float_dtype(view, "c") is not d_dtype:
        raise DTypeError(f"c: expected {d_dtype} as d, got {view.dtype_name}")
    if view.array.shape != shape:
        hint = "; transposed?" if view.array.shape == shape[::-1] else ""
        raise ProblemError(f"c: expected [M, N] = {list(shape)} as d, got {list(view.array.shape)}{hint}")
    return view


def same_device(*views: tuple[str, ArrayView | None]) -> int | None:
    """The GPU that holds all of the named arrays, None for the host; raises where they lie apart."""
    first, device = views[0][0], views[0][1].device if views[0][1] else None
    for name, view in views:
        if view is not None and view.device != device:
            raise ProblemError(f"{name}: expected memory of {_place(device)} as {first}, got {_place(view.device)}")
    return device


def _place(device: int | None) -> str:
    return "the host" if device is None else f"GPU {device}"


def check_overlap(d: ArrayView, read: tuple[tuple[str, ArrayView], ...], c: ArrayView | None) -> None:
    """Raise where an output shares memory with what is read; it may be `c` itself."""
    for name, view in read:
        if share_memory(d.array, view.array):
            raise ProblemError(f"d: expected memory of its own, got memory that overlaps {name}")
    if c is not None and share_memory(d.array, c.array) and not same_place(d.array, c.array):
        raise ProblemError("d: expected memory of its own or c itself, got memory that overlaps c in another place")


def _check_scales(name: str, scale: Any) -> None:
    if scale.dtype == np.int32:
        _check_packed(name, scale)
        return
    with device_of(scale), np.errstate(invalid="ignore"):
        good = (scale >= 0) & (scale <= F32.max)
        if bool(good.all()):
            return
        where = tuple(int(axis[0]) for axis in namespace(scale).nonzero(~good))
        raise ProblemError(
            f"{name}: expected finite scales of 0 or more, got {float(scale[where]):g} "
            f"at {list(where)} ({int((~good).sum())} such of {scale.size})"
        )


def _check_packed(name: str, words: Any) -> None:
    """Byte 255 is UE8M0's NaN; every other is a finite power of two."""
    with device_of(words):
        for byte in range(PACKED_SCALES):
            bad = words >> 8 * byte & 255 == 255
            if bool(bad.any()):
                row, word = (int(axis[0]) for axis in namespace(words).nonzero(bad))
                raise ProblemError(f"{name}: expected finite UE8M0 scales, got byte 255, a NaN, at {[row, PACKED_SCALES * word + byte]}")
