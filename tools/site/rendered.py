"""The notebooks as pages, with what they printed and drew when `tools/notebooks.py run` executed them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import jupytext
import nbformat
from nbconvert import MarkdownExporter

ROOT = Path(__file__).parents[2]
NOTEBOOKS, EXECUTED = ROOT / "notebooks", ROOT / "build" / "notebooks"
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def titles() -> Iterator[tuple[str, str]]:
    """(path below the pages, title) of each notebook, in order."""
    for script in sorted(NOTEBOOKS.glob("[0-9]*.py")):
        found = re.search(r"^# # (.+)$", script.read_text(), re.MULTILINE)
        if found is None:
            raise ValueError(f"{script}: expected a heading '# # Title' in its first cell, got none")
        yield f"tutorial/{script.stem}.md", found[1]


def files() -> Iterator[tuple[str, str | bytes]]:
    """(path below the pages, content) of each page and of each picture on it."""
    for script in sorted(NOTEBOOKS.glob("[0-9]*.py")):
        body, resources = MarkdownExporter().from_notebook_node(_executed(script))
        pictures = {name: content for name, content in resources["outputs"].items()}
        for name, content in pictures.items():
            yield f"tutorial/{script.stem}_{name}", content
            body = body.replace(f"({name})", f"({script.stem}_{name})")
        source = f"This page is `notebooks/{script.name}`, as it ran where this site was built. Open `notebooks/{script.stem}.ipynb` to run it yourself."
        yield f"tutorial/{script.stem}.md", f"{_ESCAPES.sub('', body)}\n---\n\n{source}\n"


def _executed(script: Path) -> nbformat.NotebookNode:
    """The notebook with its outputs; what was executed must be what is written now."""
    written = jupytext.read(script)
    path = EXECUTED / f"{script.stem}.ipynb"
    if path.exists():
        ran = nbformat.read(path, as_version=4)
        if [cell.source for cell in ran.cells] == [cell.source for cell in written.cells]:
            return ran
    sys.exit(f"{script.name}: not executed as it is now: python tools/notebooks.py run {script.stem[:2]}")
