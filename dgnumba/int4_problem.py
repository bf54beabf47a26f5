"""What `int4_gemm_nt` is asked for, without the arrays."""

from __future__ import annotations

from dataclasses import dataclass

from .dtypes import DTYPES, DType, as_dtype
from .errors import ProblemError
from .layouts.int4.stream import COLUMNS, ROWS, Record, Zeros, order_for

BF16, INT4, F16 = DTYPES["bfloat16"], DTYPES["int4"], DTYPES["float16"]
E4M3, INT8 = DTYPES["float8_e4m3fn"], DTYPES["int8"]


def fold_error(a_dtype: DType, w_dtype: DType, scale_dtype: DType, zeros: Zeros = "none") -> float:
    """By how much of itself a weight of 4 bits is off at most when it is multiplied by its scale in A's type; 0 where nothing is rounded.

    The unit roundoff u for a product with more significant bits than the type has, and before it u for a scale with more:
    int4 has 3 bits (-8 is a power of two), int4 or uint4 less a zero point 4, e2m1 2.

    >>> [fold_error(BF16, INT4, DTYPES[scale]) for scale in ("float8_e8m0fnu", "bfloat16")]
    [0.0, 0.00390625]
    """
    width = 2 if w_dtype is DTYPES["float4_e2m1fn"] else 3 if w_dtype is INT4 and zeros == "none" else 4
    of_scale, kept = scale_dtype.mantissa + 1, a_dtype.mantissa + 1
    u = a_dtype.unit_roundoff
    off = (1 + u * (of_scale > kept)) * (1 + u * (min(of_scale, kept) + width > kept)) - 1
    return float(off)


@dataclass(frozen=True)
class Int4Problem:
    """Extents and types of ``D [m,n] = A [m,k] @ W [n,k].T`` for weights of 4 bits, and what is done to it on its way out.

    Element types may be given by name. Raises `ProblemError` for a negative extent.

    Attributes:
        m, n, k: extents; n of the output.
        a_dtype: bfloat16, float16, float8_e4m3fn (with a float32 scale for each 1x128, or `a_by_row`) or int8 (with one for each row).
        w_dtype: int4, uint4 or float4_e2m1fn.
        d_dtype: bfloat16, float16, float32, or int32: the sums of codes themselves.
        group: columns that share a scale of the weights in a record: 16, 32, 64 or 128.
        scale_dtype: of those scales.
        zeros: zero points: "none", "integer" or "float".
        has_gate: D = silu(A @ W.T) * (A @ G.T), rows of W and G interleaved.
        with_bias, with_c: a row that is added, a matrix that is added.
        with_alpha: whether all is multiplied by one number, as of NVFP4.
        is_whole: int8 beside weights with one scale a row: the sum over all of K is an integer.
        a_by_row: float8_e4m3fn with one float32 scale for each row, as a token's.
        may_fold: weights times their scales are in the range of A's type, 16 bits (`Int4Weights.folds_into`): a plan may multiply them
            before the product.
        may_sum_f16: scales, and K, leave the sums of a row in the range of float16 (`Int4Weights.f16_ratio`): a plan may make them so.
        d_has_quads: D's rows begin at multiples of 8 bytes: where n is a multiple of 4, a plan may store four columns together, of 16 bits each.
    """

    m: int
    n: int
    k: int
    a_dtype: DType = BF16
    w_dtype: DType = INT4
    d_dtype: DType = BF16
    group: int = 128
    scale_dtype: DType = F16
    zeros: Zeros = "none"
    has_gate: bool = False
    with_bias: bool = False
    with_c: bool = False
    with_alpha: bool = False
    is_whole: bool = False
    a_by_row: bool = False
    may_fold: bool = False
    may_sum_f16: bool = False
    d_has_quads: bool = True

    def __post_init__(self) -> None:
        for name in ("a_dtype", "w_dtype", "d_dtype", "scale_dtype"):
            object.__setattr__(self, name, as_dtype(getattr(self, name)))
        if min(self.m, self.n, self.k) < 0:
            raise ProblemError(f"expected m, n, k of 0 or more, got {self.m}, {self.n} and {self.k}")
        if self.a_by_row and self.a_dtype is not E4M3:
            raise ProblemError(f"a_by_row: expected False for {self.a_dtype}: it tells two sorts of scales of {E4M3} apart, got True")

    @property
    def has_block_scales(self) -> bool:
        """Whether A has a scale for each 1x128: sums of 128 columns are multiplied by them."""
        return self.a_dtype is E4M3 and not self.a_by_row

    @property
    def has_token_scales(self) -> bool:
        """Whether A has a scale for each row: finished sums are multiplied by it."""
        return self.a_dtype is INT8 or self.a_by_row

    @property
    def record(self) -> Record:
        """The form of a record of weights."""
        return Record(order_for(self.a_dtype, self.w_dtype, self.zeros), self.group, self.scale_dtype.itemsize, self.zeros)

    @property
    def fold_error(self) -> float:
        """By how much of itself a weight may be off that a plan folds its scale into: roundings of the scale and of the product."""
        return fold_error(self.a_dtype, self.w_dtype, self.scale_dtype, self.zeros)

    @property
    def rows(self) -> int:
        """Rows of the stream: of W, or of W and the gate in runs of eight."""
        return -(-self.n // 8) * 16 if self.has_gate else self.n

    @property
    def tiles(self) -> int:
        """Tiles of 64 rows in the stream."""
        return -(-self.rows // ROWS)

    @property
    def records(self) -> int:
        """Records along K."""
        return max(1, -(-self.k // COLUMNS))

    @property
    def weight_bytes(self) -> int:
        """Bytes of the stream."""
        return self.tiles * self.records * self.record.nbytes

    @property
    def flops(self) -> int:
        """Multiplications and additions of the product."""
        return 2 * self.m * (2 if self.has_gate else 1) * self.n * self.k

    @property
    def bytes(self) -> int:
        """Bytes that must move at least once."""
        return self.weight_bytes + self.m * self.k * self.a_dtype.itemsize + self.m * self.n * self.d_dtype.itemsize * (1 + self.with_c)

    @property
    def is_empty(self) -> bool:
        """Whether D has no element."""
        return self.m == 0 or self.n == 0
