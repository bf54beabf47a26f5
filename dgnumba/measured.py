"""Plans that `dgnumba tune` measured: rows of a table, from and to JSON, and the lookup that `plan.choose` makes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import Any

from ._version import __version__
from .device import Device
from .errors import ProblemError
from .kernels import GemmPlan
from .problem import GemmProblem

_PLAN_FIELDS = {field.name for field in fields(GemmPlan)}
_REQUIRED = {field.name for field in fields(GemmPlan) if field.default is MISSING}


@dataclass(frozen=True)
class Measured:
    """The fastest plan of those measured for a problem on a GPU.

    gpu      the driver's name for the GPU
    us       median time, in microseconds
    others   (plan, microseconds) of the rest, the fastest first
    method   how it was measured, in words
    version  of dgnumba: another one has other kernels, and takes no notice of the row
    """

    gpu: str
    problem: GemmProblem
    plan: GemmPlan
    us: float
    others: tuple[tuple[GemmPlan, float], ...] = ()
    method: str = ""
    version: str = __version__

    def to_json(self) -> dict[str, Any]:
        """The row as JSON has it."""
        p = self.problem
        return {
            "gpu": self.gpu, "dgnumba": self.version, "m": p.m, "n": p.n, "k": p.k, "a_dtype": p.a_dtype.name, "b_dtype": p.b_dtype.name,
            "d_dtype": p.d_dtype.name, "gran_a": p.gran_a and list(p.gran_a), "gran_b": p.gran_b and list(p.gran_b),
            "plan": asdict(self.plan), "us": self.us,
            "others": [[asdict(plan), us] for plan, us in self.others], "method": self.method,
        }  # fmt: skip

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Measured:
        """The row of what `to_json` made. Raises `ProblemError` for anything else."""
        try:
            names = ("m", "n", "k", "a_dtype", "b_dtype", "d_dtype")
            problem = GemmProblem(**{name: row[name] for name in names}, gran_a=_pair(row["gran_a"]), gran_b=_pair(row["gran_b"]))
            others = tuple((_plan(plan), float(us)) for plan, us in row["others"])
            return cls(str(row["gpu"]), problem, _plan(row["plan"]), float(row["us"]), others, str(row["method"]), str(row["dgnumba"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ProblemError(f"row: expected one that `dgnumba tune` wrote, got {row} ({type(error).__name__}: {error})") from error


def _pair(granularity: list[int] | None) -> tuple[int, int] | None:
    if granularity is None:
        return None
    rows, columns = granularity
    return rows, columns


def _plan(row: Mapping[str, Any]) -> GemmPlan:
    # one written before there was a field is as that field's default has it
    if not _REQUIRED <= set(row) <= _PLAN_FIELDS:
        raise ValueError(f"plan: expected the fields {', '.join(sorted(_PLAN_FIELDS))}, got {', '.join(sorted(row))}")
    return GemmPlan(**row)


class Table:
    """Measured plans by GPU and problem; of two rows for one the last. Unchanging, and a key of caches by identity."""

    def __init__(self, rows: Iterable[Measured] = ()) -> None:
        self._rows = {_key(row.gpu, row.problem): row for row in rows if row.version == __version__}

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self) -> tuple[Measured, ...]:
        """All that count for this version of dgnumba."""
        return tuple(self._rows.values())

    def get(self, problem: GemmProblem, device: Device) -> Measured | None:
        """What was measured for a problem on a GPU of this name, or None."""
        return self._rows.get(_key(device.name, problem))


def _key(gpu: str, problem: GemmProblem) -> tuple[str, GemmProblem]:
    # what C costs is not the plan's
    return gpu, replace(problem, with_c=False, row_scales=False)


__all__ = ["Measured", "Table"]
