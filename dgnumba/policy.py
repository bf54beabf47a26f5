"""What decides a call's plan beside problem and device: the plans that were measured here, and how many plans a layer may have.

`choose` is `plan.choose` with both. The measured plans lie beside the compiled kernels, in ``tuned.json``, and are read once.
"""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections.abc import Iterable
from pathlib import Path

from . import cache
from . import plan as planning
from .device import Device
from .errors import ProblemError
from .measured import Measured, Table
from .problem import GemmProblem

FILE = "tuned.json"
_SCHEMA = 1
_most: list[int | None] = []
_table: list[Table] = []


def choose(problem: GemmProblem, device: Device, batch_invariant: bool = False) -> planning.Choice:
    """The plan of a call; see `plan.choose`. What was measured counts on GPUs that are there."""
    return planning.choose(problem, device, table() if device.index is not None else None, plans_per_layer(), batch_invariant)


def path() -> Path | None:
    """Where measured plans are kept; None where the user has no home to keep them in."""
    folder = cache.directory()
    return folder / FILE if folder is not None else None


def table() -> Table:
    """The measured plans of this machine's user; read once, until `forget`."""
    if not _table:
        _table.append(_read(path()))
    return _table[0]


def _read(file: Path | None) -> Table:
    try:
        return Table(rows(file))
    except (ProblemError, OSError) as error:
        warnings.warn(f"measured plans are not taken: {error}; remove the file, or measure again", RuntimeWarning, stacklevel=3)
        return Table()


def rows(file: Path | None) -> list[Measured]:
    """The rows of a file, those of other versions too; none where there is no file. Raises `ProblemError` for a file that is none of ours."""
    if file is None or not file.exists():
        return []
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if found["schema"] != _SCHEMA:
            raise ProblemError(f"{file}: expected schema {_SCHEMA}, got {found['schema']}")
        return [Measured.from_json(row) for row in found["rows"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ProblemError(f"{file}: expected what `dgnumba tune` writes ({error})") from error


def save(new: Iterable[Measured]) -> Path:
    """Add rows to the file, each in the place of an older one for the same GPU, problem and version; where they are.

    Raises:
        ProblemError: there is no directory to keep them in, or the file is none of ours. OSError: it cannot be written.
    """
    file = path()
    if file is None:
        raise ProblemError("tune: expected a directory to keep the choice in, got none; set DGNUMBA_CACHE_DIR")
    kept = {(row.gpu, row.problem, row.version): row for row in (*rows(file), *new)}
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{FILE}.")
    try:
        with open(handle, "w", encoding="utf-8") as target:
            json.dump({"schema": _SCHEMA, "rows": [row.to_json() for row in kept.values()]}, target, indent=1)
        os.replace(name, file)
    except BaseException:
        os.unlink(name)
        raise
    forget()
    return file


def plans_per_layer() -> int | None:
    """Of how many plans a layer's calls choose, whatever their number of tokens; None: of all."""
    if not _most:
        text = os.environ.get("DGNUMBA_PLANS_PER_LAYER", "")
        if text and not (text.isdecimal() and int(text) > 0):
            raise ProblemError(f"DGNUMBA_PLANS_PER_LAYER: expected a number from 1, got {text!r}")
        _most.append(int(text) if text else None)
    return _most[0]


def set_plans_per_layer(most: int | None) -> None:
    """Hold each layer (N, K) to `most` compiled kernels for all numbers of tokens; None, as at the start: as many as are fastest somewhere.

    Fewer kernels are compiled, and shipped. Calls with some numbers of tokens take longer, by the model of `cost` up to 11 % in the mean with five,
    and row-major scales of A are turned to MN-major at every M. ``DGNUMBA_PLANS_PER_LAYER`` says the same for a process. Plans that were
    measured are taken anyway.

    Raises:
        ProblemError: not a number from 1.
    """
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
        raise ProblemError(f"most: expected None or a number from 1, got {most!r}")
    _most[:] = [most]
    _forget_calls()


def forget() -> None:
    """Read the measured plans again when they are next asked for."""
    _table.clear()
    _forget_calls()


def _forget_calls() -> None:
    from . import prepared

    prepared.forget_choices()


__all__ = ["choose", "path", "plans_per_layer", "rows", "save", "set_plans_per_layer", "table"]
