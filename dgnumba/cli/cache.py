"""``dgnumba cache``: the compiled kernels on disk."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ..errors import ProblemError
from . import files
from .show import console, size


class Action(StrEnum):
    """What to do."""

    info = "info"
    clear = "clear"
    export = "export"
    import_ = "import"


def cache(
    action: Annotated[
        Action, typer.Argument(help="info: where they are and how many; clear: remove them; export, import: to and from one file")
    ] = Action.info,
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="of export and import: a .tar.gz")] = None,
) -> None:
    """Say where compiled kernels are kept, remove them, or ship them."""
    from .. import archive
    from .. import cache as kernels

    if (file is not None) != (action in (Action.export, Action.import_)):
        raise ProblemError(f"file: expected one with export and import, and none with info and clear, got {action} {file or 'alone'}")
    if action is Action.export:
        files.expect_folder("file", file)
    facts = kernels.info()
    if not facts["usable"]:
        console().print(f"{facts['directory'] or 'no directory'}: not usable, kernels are kept in memory only")
        if file is not None:
            raise typer.Exit(1)
    elif action is Action.clear:
        console().print(f"{facts['directory']}: {kernels.clear()} kernels removed")
    elif action is Action.export and file is not None:
        console().print(f"{file}: {archive.export(file)} kernels of {facts['directory']}, {size(file.stat().st_size)}")
    elif file is not None:
        new, known = archive.load(file)
        console().print(f"{facts['directory']}: {new} kernels of {file} are new, {known} were there")
    else:
        console().print(f"{facts['directory']}: {facts['kernels']} kernels, {size(facts['bytes'])}")
