"""Pages written from the package: its public names, the command line, number formats; and the documents at the root of the repository."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from typer.testing import CliRunner

import dgnumba
from dgnumba.cli import COMMANDS, app
from dgnumba.dtypes import DTYPES
from dgnumba.kernels import KERNELS
from dgnumba.quant import FORMATS

ROOT = Path(__file__).parents[2]

Page = tuple[str, str, str]
"""Path below docs/, title, Markdown."""

ROOMS = {
    "emu": "The emulator: run, step and check any kernel on a CPU.",
    "lab": "What a kernel does, as data and as pictures.",
    "layouts": "Where a byte lies: swizzles, fragments, descriptors, scales, 4-bit orders.",
    "quant": "Arrays in, quantized tensors out, and what their product must be.",
    "checkpoint": "Quantized layers in files.",
    "profile": "What a product's kernel is made of, and which ceiling it meets; `dgnumba profile` prints it.",
    "testing": "For tests and benches.",
    "errors": "What is raised, and when.",
}
LAYOUTS = ("swizzle", "lanes", "smem", "descriptors", "tiles", "scales", "ue8m0", "int4")
DECLARE = ("op", "unrolled", "select", "Imm", "Fragment", "Registers", "TensorMapArg")


def reference() -> Iterator[Page]:
    """The generated pages of the reference, but for the operations."""
    names = [name for name in dgnumba.__all__ if name not in ROOMS and name != "ptx"]
    yield "reference/api.md", "dgnumba", _names("dgnumba", "What `import dgnumba` gives.", [f"dgnumba.{name}" for name in names])
    for room, about in ROOMS.items():
        module = importlib.import_module(f"dgnumba.{room}")
        found = [f"dgnumba.{room}.{name}" for name in _public(module)]
        if room == "layouts":
            found = [f"dgnumba.layouts.{name}" for name in LAYOUTS]
        yield f"reference/{room}.md", f"dgnumba.{room}", _names(f"dgnumba.{room}", about, found)
    declared = "Declare an instruction of your own, for the GPU and the emulator at once; see [how](../howto/operation.md)."
    yield "reference/declare.md", "dgnumba.ptx: declare", _names("Declaring operations", declared, [f"dgnumba.ptx.{n}" for n in DECLARE])
    yield "reference/kernels.md", "Kernels", _kernels()
    yield "reference/command-line.md", "Command line", _command_line()
    yield "reference/formats.md", "Number formats", _formats()


HOUSE = {
    "contributing": ("Contributing", "CONTRIBUTING.md"),
    "changelog": ("Changelog", "CHANGELOG.md"),
    "figures": ("Figures", "bench/results/README.md"),
    "notes": ("What was tried", "bench/NOTES.md"),
}
"""Page of the explanation -> its title, and the document that it is."""


def of_the_house() -> Iterator[Page]:
    """Documents that stand elsewhere in the repository."""
    for page, (title, document) in HOUSE.items():
        yield f"explanation/{page}.md", title, _turned((ROOT / document).read_text())


def pictures() -> Iterator[tuple[str, bytes]]:
    """(path below docs/, content) of the pictures in them."""
    for document in (document for _, document in HOUSE.values()):
        for name in re.findall(r"!\[[^\]]*\]\((\w+\.svg)\)", (ROOT / document).read_text()):
            yield f"explanation/{name}", (ROOT / document).with_name(name).read_bytes()


def _public(module: ModuleType) -> list[str]:
    declared = getattr(module, "__all__", None)
    own = [
        n for n, v in vars(module).items() if not n.startswith("_") and getattr(v, "__module__", "") == getattr(module, "__name__", None)
    ]
    return [
        name
        for name in (own if declared is None else declared)
        if callable(getattr(module, name)) or inspect.ismodule(getattr(module, name))
    ]


def _names(title: str, about: str, identifiers: list[str]) -> str:
    return "\n".join([f"# {title}", "", about, "", *(_auto(identifier) for identifier in identifiers)])


def _auto(identifier: str) -> str:
    """The directive that shows one public thing; what is public in two places has its entry in the index at the first."""
    module, _, name = identifier.rpartition(".")
    value = getattr(importlib.import_module(module), name)
    kind = "module" if inspect.ismodule(value) else "class" if inspect.isclass(value) else "function"
    if inspect.isclass(value) and issubclass(value, BaseException):
        kind = "exception"
    head = [f"## {identifier}", ""] if kind == "module" else []
    again = ["   :no-index:"] if name in dgnumba.__all__ and module != "dgnumba" else []
    return "\n".join([*head, "```{eval-rst}", f".. auto{kind}:: {identifier}", *again, "```", ""])


def _kernels() -> str:
    lines = [
        "# Kernels",
        "",
        "Each is one file that reads from top to bottom; this is the form at its head. `dgnumba.explain` says which one a call takes.",
        "",
    ]
    for kernel in KERNELS:
        module = importlib.import_module(f"dgnumba.kernels.{kernel.NAME}")
        formula, _, form = (module.__doc__ or "").strip().partition("\n\n")
        lines += [f"## {kernel.NAME}", "", f"`{' '.join(formula.split())}`", "", "```text", form, "```", ""]
    return "\n".join([*lines, "## Plans", "", _auto("dgnumba.kernels.GemmPlan"), _auto("dgnumba.kernels.spec.KernelSpec")])


def _command_line() -> str:
    lines = ["# Command line", "", "Exit codes: 0 done; 1 a result that is wrong; 2 refused, with one plain line that says why.", ""]
    runner = CliRunner()
    for name in sorted(COMMANDS):
        said = runner.invoke(app, [name, "--help"], prog_name="dgnumba", env={"COLUMNS": "110", "TERMINAL_WIDTH": "110"}).output
        lines += [f"## dgnumba {name}", "", "```text", said.strip(), "```", ""]
    return "\n".join(lines)


def _formats() -> str:
    lines = [
        "# Number formats",
        "",
        "One row of `dgnumba.dtypes.DTYPES` each; encoding and decoding follow from the fields.",
        "",
        "| dtype | bits | exponent, mantissa bits | largest | PTX |",
        "|---|---|---|---|---|",
    ]
    for name, row in DTYPES.items():
        fields = f"{row.exponent}, {row.mantissa}" if row.is_float else "integer"
        lines.append(f"| `{name}` | {row.bits} | {fields} | {float(row.max):g} | {f'`{row.ptx}`' if row.ptx else '-'} |")
    lines += ["", "## Block-scaled formats", "", "Names that `dgnumba.quantize` takes; a `quant.Format` of your own is taken too.", ""]
    lines += ["| name | element | granularity | scale |", "|---|---|---|---|"]
    for name, kind in FORMATS.items():
        lines.append(f"| `{name}` | `{kind.dtype}` | {_blocks(kind.granularity)} | `{kind.scale_dtype}`, {kind.rule} |")
    return "\n".join([*lines, ""])


def _blocks(granularity: tuple[int, int]) -> str:
    return " x ".join(str(n) if n else "all" for n in granularity)


def _turned(text: str) -> str:
    """A document with its links turned to where the site has what they lead to."""
    here = {Path(document).name: page for page, (_, document) in HOUSE.items() if Path(document).name != "README.md"}

    def turn(match: re.Match[str]) -> str:
        name = Path(match[1]).name
        return match[0] if name.endswith(".svg") else f"]({here[name]}.md)" if name in here else "](../index.md)"

    return re.sub(r"\]\((?!https?:|#)([^)]+)\)", turn, text)
