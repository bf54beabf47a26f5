"""Our docstrings for Sphinx: aligned columns and drawings keep their columns."""

from __future__ import annotations

import re
import textwrap
from typing import Any

_COLUMNS = re.compile(r"\S {2,}\S")
_SECTION = re.compile(r"(Args|Returns|Raises|Attributes|Yields|Example|Examples):")
_RULE = re.compile(r"=+( +=+)+\s*$")


def as_rest(text: str) -> str:
    r"""A docstring in which each run of lines that is set in columns is a code block.

    >>> print(as_rest("What it takes.\n\nm     rows\nname  words"))
    What it takes.
    <BLANKLINE>
    .. code-block:: text
    <BLANKLINE>
       m     rows
       name  words
    """
    out = []
    inside = False  # of a section, or of a block that "::" begins
    for paragraph in re.split(r"\n[ \t]*\n", text.strip("\n")):
        lines = paragraph.split("\n")
        inside = inside and lines[0].startswith(" ")
        is_section = _SECTION.match(lines[0]) is not None
        if inside or ">>>" in paragraph or any(map(_RULE.match, lines)):
            out.append(paragraph)
        else:
            out.append(paragraph if is_section else _paragraph(lines))
        inside = inside or is_section or paragraph.endswith("::")
    return "\n\n".join(out)


def _paragraph(lines: list[str]) -> str:
    """Its first lines as prose, what is set in columns after them, or drawn, as a code block."""
    begin = next((i for i, line in enumerate(lines) if _COLUMNS.search(line) or line.startswith("    ")), None)
    if begin is None or not all(_COLUMNS.search(line) or line.startswith(" ") for line in lines[begin:]):
        return "\n".join(map(_prose, lines))
    drawn = textwrap.dedent("\n".join(lines[begin:]))
    block = "\n".join([".. code-block:: text", "", *(f"   {line}" for line in drawn.split("\n"))])
    return "\n\n".join(["\n".join(map(_prose, lines[:begin])), block] if begin else [block])


def _prose(line: str) -> str:
    """A line in which ``|x|`` is a magnitude, where it is not code."""
    return "`".join(part if i % 2 else part.replace("|", "\\|") for i, part in enumerate(line.split("`")))


def _process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = [*as_rest("\n".join(lines)).split("\n"), ""]


def setup(app: Any) -> dict[str, Any]:
    """Called by Sphinx: ours first, then napoleon's."""
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-docstring", _process, priority=100)
    return {"parallel_read_safe": True}
