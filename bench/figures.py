"""What the recorded figures say: families of shapes, ratios to rivals, aims not reached. Pure functions of the rows, for `report` and `plot`.

A row is one object of `bench/results/h200.json`: bench, m, n, k, us, rivals {name: us}, method, bits_equal, plan, gpu, date, versions,
command. Casts have dtype, variant, gb_s, copy_gb_s and share; a product may have floor_us, activation and format.

A ratio is a rival's time over ours, so that more than 1 means that dgnumba is faster; a mean is the geometric one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]

DEEPGEMM, CUBLASLT, BEST = "deepgemm", "cublaslt_unscaled", "the best rival"
NAMES = {
    "deepgemm": "DeepGEMM",
    "cublaslt_unscaled": "cuBLASLt without scales",
    "cublas_bf16": "cuBLAS BF16",
    "torch_compile": "torch.compile",
    "cublas_int8": "cuBLAS INT8",
    "torch_int4": "torch's INT4",
    "marlin_fp16": "Marlin, FP16 without L2 hint",
    "marlin_fp16_l2_hint": "Marlin, FP16",
    "humming": "Humming",
    "humming_fp16": "Humming, FP16",
    "humming_fp8_1x128": "Humming, FP8 1x128",
    "humming_fp8_1x128_m_major": "Humming, FP8 1x128 M-major scales",
    "humming_fp8_row": "Humming, FP8 scale a row",
    "humming_int8": "Humming, INT8",
    "humming_int8_integer_scales": "Humming, INT8 integer scales",
    "gemlite": "GemLite",
    "gemlite_fp8_row": "GemLite, FP8 scale a row",
    "quack": "QuACK",
    "quack_fp8_row": "QuACK, FP8 scale a row",
    "quack_fp8_row_folded": "QuACK, FP8 scale a row, weights rounded to FP8",
}
"""Rivals by the name that a row gives them, where a reader knows another: a library, and after a comma which of its functions."""

TYPES = {
    "bfloat16": "BF16",
    "float16": "FP16",
    "float8_e4m3fn": "FP8",
    "float8_e4m3fn_row": "FP8 (a scale a row)",
    "int8": "INT8",
    "int4": "INT4",
}
"""Types of activations as a reader knows them."""

MANY, MANY_TOKENS = 256, ", many tokens"
"""Products with weights of 4 bits for more tokens than that are a family of their own, whose key ends so: no bar is set for them."""

CASTS = (16384, 16384)
"""Rows and columns of the casts that stand for the others: too many for L2."""

Peak = tuple[float, float]
PEAKS: dict[str, Peak] = {"NVIDIA H200": (1979.0, 4.8)}
"""TFLOP/s of dense FP8, and TB/s of memory. Source: NVIDIA's H200 data sheet, SXM (3,958 TFLOP/s of FP8 with sparsity, half of it without)."""


def name(rival: str) -> str:
    """A rival as a reader knows it."""
    return NAMES.get(rival, rival)


def rivals_of(rows: Iterable[Row]) -> list[str]:
    """The rivals in order of appearance; other calls of our own, which a row may hold for comparison, are none."""
    return [r for r in dict.fromkeys(r for row in rows for r in row.get("rivals") or {}) if not r.startswith(("dgnumba", "our_"))]


def flush_of(row: Row) -> str:
    """How L2 was emptied before each call: "memset", "read", or "" where it was not."""
    return str((row.get("method") or {}).get("flush", ""))


def is_product(row: Row) -> bool:
    """Whether a matrix product was measured."""
    return "gemm" in row["bench"] and all(key in row for key in "mnk")


def kind(row: Row) -> str:
    """The function that was measured, and with what operands where it takes several: `int4_gemm_nt:w4a16`, or "int4_gemm_nt, bfloat16"."""
    return ", ".join(str(row[key]) for key in ("bench", "activation", "format") if row.get(key))


def tflops(row: Row) -> float:
    """TFLOP/s of a product."""
    return float(2e-6 * row["m"] * row["n"] * row["k"] / row["us"])


def is_cast(row: Row) -> bool:
    """Whether something was measured beside a copy of as many bytes."""
    return "share" in row and not is_product(row)


def ratio(row: Row, rival: str = BEST) -> float | None:
    """The rival's time over ours; of the fastest of its rivals by default. None where it was not measured."""
    wanted = rivals_of([row]) if rival == BEST else [rival]
    times = [us for other, us in (row.get("rivals") or {}).items() if us and other in wanted]
    return min(times) / row["us"] if times else None


def share(row: Row) -> float:
    """Of a cast: a copy's time over ours, the copy being of as many bytes in the same run."""
    return float(row["share"])


def shape(row: Row) -> str:
    """M x N x K, or rows x columns."""
    return " x ".join(str(row[key]) for key in ("m", "n", "k") if row.get(key) is not None)


def nbytes(row: Row) -> float:
    """Bytes that an FP8 product must move at least once: codes and float32 scales (1x128, 128x128) of A and B, D in bfloat16."""
    m, n, k = row["m"], row["n"], row["k"]
    blocks = math.ceil(k / 128)
    return float(m * k + 4 * m * blocks + n * k + 4 * math.ceil(n / 128) * blocks + 2 * m * n)


def intensity(row: Row) -> float:
    """FLOP for each of these bytes."""
    return float(2 * row["m"] * row["n"] * row["k"] / nbytes(row))


@dataclass(frozen=True)
class Ratio:
    """The ratios of some rows: how many, their geometric mean, the least, and of which row that is."""

    count: int
    mean: float
    least: float
    where: str


def ratios(rows: Iterable[Row], measure: Callable[[Row], float | None] = ratio) -> Ratio | None:
    """The ratios of those rows that have one; None where none has."""
    found = [(value, row) for row in rows if (value := measure(row)) is not None]
    if not found:
        return None
    least, where = min(found, key=lambda pair: pair[0])
    return Ratio(len(found), math.exp(sum(math.log(value) for value, _ in found) / len(found)), least, shape(where))


@dataclass(frozen=True)
class Family:
    """Rows that are summed up together."""

    key: str
    title: str
    rows: tuple[Row, ...]

    def against(self, rival: str) -> Ratio | None:
        """Ratios to a rival, or to `BEST`."""
        return ratios(self.rows, lambda row: ratio(row, rival))


def counted(rows: Iterable[Row]) -> list[Row]:
    """The products, each once: where one was measured with L2 flushed both ways, by reading, which leaves no dirty lines to be written back."""
    products = [row for row in rows if is_product(row)]
    by_reading = {(kind(row), shape(row)) for row in products if flush_of(row) == "read"}
    return [row for row in products if flush_of(row) == "read" or (kind(row), shape(row)) not in by_reading]


def _key(row: Row) -> str:
    """Which family a counted product belongs to."""
    if row["bench"] != "fp8_gemm_nt":
        activation = f", {row['activation']}" if row.get("activation") else ""
        return f"{row['bench']}{activation}{MANY_TOKENS if row['m'] > MANY else ''}"
    if flush_of(row) == "read":
        return "few" if row["m"] <= 16 else "some"
    return "large" if row["m"] == 4096 or row["m"] == row["n"] == row["k"] else "middle"


TITLES = {
    "large": "large",
    "few": "decode, up to 16 tokens",
    "some": "decode, 32 to 128 tokens",
    "middle": "other sizes",
}
"""Families of `fp8_gemm_nt`; any other function is one."""


def families(rows: Iterable[Row]) -> list[Family]:
    """All products by family: large ones, decode, all others of `fp8_gemm_nt`; then one for each other function that was measured."""
    found: dict[str, list[Row]] = {key: [] for key in TITLES}
    for row in counted(rows):
        found.setdefault(_key(row), []).append(row)
    return [Family(key, _title(key, members), tuple(members)) for key, members in found.items() if members]


def _title(key: str, rows: list[Row]) -> str:
    ms = ", ".join(map(str, sorted({row["m"] for row in rows})))
    if key in TITLES:
        return f"{TITLES[key]} (M {ms})"
    others = ", ".join(dict.fromkeys(name(rival).split(", ")[0] for rival in rivals_of(rows)))
    _, _, weights = rows[0]["bench"].partition(":")
    what = (
        f"{weights.upper()}, {TYPES.get(rows[0].get('activation'), 'any')} activations" if weights else f"`{key.removesuffix(MANY_TOKENS)}`"
    )
    return f"{what} (M {ms})" + (f", beside {others}" if others else "")


@dataclass(frozen=True)
class Aim:
    """What we want the families whose key begins so to reach: `kind` is "mean" or "least"."""

    family: str
    rival: str
    kind: str
    value: float


AIMS = [
    Aim("large", DEEPGEMM, "mean", 1.005),
    Aim("large", DEEPGEMM, "least", 0.99),
    Aim("large", CUBLASLT, "mean", 1.0),
    Aim("few", BEST, "mean", 1.2),
    Aim("few", BEST, "least", 0.97),
    Aim("some", BEST, "mean", 1.03),
    Aim("some", BEST, "least", 0.95),
    Aim("middle", DEEPGEMM, "mean", 1.0),
    Aim("middle", DEEPGEMM, "least", 0.93),
    Aim("int4_gemm_nt", BEST, "mean", 1.1),
    Aim("int4_gemm_nt", BEST, "least", 0.97),
]
HOST_AIMS = {"host_call": 12.0, "host_prepared": 7.0, "first_call empty": 2.5e6, "first_call filled": 0.15e6}
"""Microseconds of the host, by `host_key`."""


def host_key(row: Row) -> str:
    """What of the host was measured."""
    return " ".join(str(row[key]) for key in ("bench", "variant", "cache") if row.get(key))


def missed(rows: Iterable[Row]) -> list[str]:
    """The aims that the rows do not reach, each in words; what was not measured is not listed."""
    rows = list(rows)
    out = []
    barred = [family for family in families(rows) if not family.key.endswith(MANY_TOKENS)]
    for family, aim in ((f, aim) for f in barred for aim in AIMS if f.key.startswith(aim.family)):
        reached = family.against(aim.rival)
        if reached is not None and getattr(reached, aim.kind) < aim.value:
            what = "geometric mean" if aim.kind == "mean" else f"least ({reached.where})"
            out.append(f"{family.title}, {what} against {name(aim.rival)}: {getattr(reached, aim.kind):.3f}, aim {aim.value:g}")
    for key, aim_us in HOST_AIMS.items():
        us = max((row["us"] for row in rows if host_key(row) == key), default=0.0)
        if us > aim_us:
            out.append(f"{HOST_TITLES[key]}: {duration(us)}, aim {duration(aim_us)}")
    return out


HOST_TITLES = {
    "host_call": "a call of `fp8_gemm_nt`",
    "host_prepared": "a prepared call",
    "first_call empty": "the first call of a process, nothing compiled yet",
    "first_call filled": "the first call of a process, kernel in the cache on disk",
}


def duration(us: float) -> str:
    """A duration in its unit: microseconds, or seconds."""
    return f"{us / 1e6:.2f} s" if us >= 1e4 else f"{microseconds(us)} us"


def microseconds(us: float) -> str:
    """Microseconds in three digits or more."""
    return f"{us:.1f}" if us < 100 else f"{us:.0f}"
