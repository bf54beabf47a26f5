"""``dgnumba cache``: the compiled kernels on disk."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from .show import console, size


class Action(StrEnum):
    """What to do."""

    info = "info"
    clear = "clear"


def cache(action: Annotated[Action, typer.Argument(help="info: where they are and how many; clear: remove them")] = Action.info) -> None:
    """Say where compiled kernels are kept, or remove them."""
    from .. import cache as kernels

    facts = kernels.info()
    if not facts["usable"]:
        console().print(f"{facts['directory'] or 'no directory'}: not usable, kernels are kept in memory only")
    elif action is Action.clear:
        console().print(f"{facts['directory']}: {kernels.clear()} kernels removed")
    else:
        console().print(f"{facts['directory']}: {facts['kernels']} kernels, {size(facts['bytes'])}")
