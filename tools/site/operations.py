"""The reference of operations, written from the declarations in `dgnumba.ptx.OPS`: what the device executes, what it means, the contract."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dgnumba import kernels, ptx
from dgnumba.kernels import GemmPlan, sm90_fp8_gemm_1d2d
from dgnumba.layouts.descriptors import SmemDescriptor

ROOT = Path(__file__).parents[2]
SOURCE = "https://docs.nvidia.com/cuda/parallel-thread-execution/"
HEADINGS = {
    "Args": "Arguments",
    "Returns": "Returns",
    "Orders": "Orders",
    "Lanes": "Lanes",
    "Async": "Asynchronous",
    "Emulates": "Emulates",
}
_KEY = re.compile(r"^(\w+):\s*(.*)")


EXAMPLES: dict[str, Any] = {
    "a": SmemDescriptor(), "b": SmemDescriptor(), "a_dtype": "float8_e4m3fn", "b_dtype": "float8_e4m3fn", "dtype": "bfloat16",
    "block_n": 64, "count": 2, "m_tiles": 2, "n_tiles": 4, "pitch": 2048, "tokens": 8,
}  # fmt: skip
"""What a factory is called with, by the name of its parameter, so that one of the operations that it makes is declared."""


def operations() -> dict[str, Any]:
    """Name -> declaration, those that factories make included (one of each)."""
    for family in (member for member in vars(ptx).values() if inspect.ismodule(member)):
        for name, factory in vars(family).items():
            if name.endswith("_for") and not name.startswith("_") and factory.__module__ == family.__name__:
                needed = [p.name for p in inspect.signature(factory).parameters.values() if p.default is p.empty]
                unknown = [parameter for parameter in needed if parameter not in EXAMPLES]
                if unknown:
                    raise ValueError(
                        f"{factory.__module__}.{name}: expected an example of each parameter in EXAMPLES, got none of {', '.join(unknown)}"
                    )
                factory(**{parameter: EXAMPLES[parameter] for parameter in needed})
    for module in pkgutil.iter_modules(kernels.__path__):
        importlib.import_module(f"{kernels.__name__}.{module.name}")
    for epilogue, d_dtype in (("tma", "bfloat16"), ("warp", "bfloat16"), ("direct", "float32")):
        sm90_fp8_gemm_1d2d.build(GemmPlan("sm90_fp8_gemm_1d2d", 64, 64, 4, epilogue=epilogue, d_dtype=d_dtype))
    # without a docstring it is a user's, or one that was made to watch a kernel
    return {name: o for name, o in sorted(ptx.OPS.items()) if o.body.__module__.startswith("dgnumba.") and o.function.__doc__}


def pages() -> Iterator[tuple[str, str, str]]:
    """(path below docs/, title, Markdown): the index, then a page for each family."""
    found = operations()
    families: dict[str, list[Any]] = {}
    for name, operation in found.items():
        families.setdefault(name.split(".")[0], []).append(operation)
    yield "reference/operations/index.md", "Operations", _index(families)
    for family, members in families.items():
        yield f"reference/operations/{family}.md", f"ptx.{family}", _family(family, members)


def contract(operation: Any) -> tuple[str, str, dict[str, str]]:
    """(mnemonic, meaning, {key: text}) of an operation's docstring."""
    lines = inspect.cleandoc(operation.function.__doc__).splitlines()
    mnemonic, _, meaning = lines[0].partition(" - ")
    keys: dict[str, list[str]] = {}
    current: list[str] = []
    for line in lines[1:]:
        found = _KEY.match(line)
        if found:
            current = keys.setdefault(found[1], [])
            line = found[2]
        current.append(line.strip() if found else line.removeprefix(" " * 11))
    return mnemonic, meaning, {key: "\n".join(text).strip() for key, text in keys.items()}


def _index(families: dict[str, list[Any]]) -> str:
    lines = [
        "# Operations",
        "",
        "Every instruction that `dgnumba.ptx` gives to a `@cuda.jit` kernel. Each is declared once: its PTX, its meaning in Python (which is what the",
        "emulator runs), and its contract; these pages are written from the declarations. Import families, not operations:",
        "`from dgnumba.ptx import mbarrier`. How to add one of your own: [Declare an operation](../../howto/operation.md).",
        "",
    ]
    for family, members in families.items():
        lines += [
            f"## [ptx.{family}]({family}.md)",
            "",
            f"{_first_paragraph(family)}",
            "",
            "| operation | what it does | scope |",
            "|---|---|---|",
        ]
        for operation in members:
            _, meaning, _ = contract(operation)
            lines.append(f"| [`{operation.name}`]({family}.md#{_anchor(operation)}) | {_cell(meaning)} | {operation.scope} |")
        lines.append("")
    return "\n".join([*lines, "```{toctree}", ":hidden:", *families, "```", ""])


def _family(family: str, members: list[Any]) -> str:
    lines = [f"# ptx.{family}", "", _first_paragraph(family), ""]
    for operation in members:
        lines += _operation(operation)
    return "\n".join(lines)


def _operation(operation: Any) -> Iterator[str]:
    mnemonic, meaning, keys = contract(operation)
    yield f"({_anchor(operation)})=\n## {operation.name}"
    yield f"\n```python\n{_signature(operation)}\n```\n"
    yield f"`{mnemonic}`: {meaning[:1].upper() + meaning[1:]}\n"
    if not _is_callable(operation):
        yield f"Made to measure: by {_makers(operation)}.\n"
    yield f"| | |\n|---|---|\n| Source | [PTX]({SOURCE}) {_cell(keys['PTX'])} |\n| Scope | {_cell(keys['Scope'])} |"
    yield f"| Compiler | {'may move or drop it: the result depends on the arguments alone' if operation.pure else 'keeps it where it is'} |\n"
    for key, heading in HEADINGS.items():
        text = keys.get(key)
        if text is None or text == "none":
            continue
        if key == "Args" or "\n" in text:
            yield f"**{heading}**\n\n```text\n{textwrap.dedent(text)}\n```\n"
        else:
            yield f"**{heading}**: {text}\n"
    if operation.text is None:
        yield "**On the device**: made of the operations in its body, its loops over registers unrolled.\n"
    else:
        yield f"**On the device**\n\n```text\n{_ptx(operation.text)}\n```\n"
    yield f"**In the emulator** (the body, from {_place(operation)})\n\n{_body(operation)}\n"


def _anchor(operation: Any) -> str:
    return str(operation.name.replace(".", "-"))


def _is_callable(operation: Any) -> bool:
    family, name = operation.name.split(".")
    return hasattr(getattr(ptx, family, None), name)


def _makers(operation: Any) -> str:
    outer = operation.body.__qualname__.split(".<locals>")[0]
    return f"`{operation.body.__module__}.{outer}`"


def _signature(operation: Any) -> str:
    result = {"same": "the same registers", None: "None"}.get(operation.result if not isinstance(operation.result, tuple) else "", None)
    if result is None:
        result = operation.result[0] if isinstance(operation.result, tuple) else operation.result
    return f"{operation.name}({operation.parameters_text}) -> {result}"


def _ptx(text: str) -> str:
    """The template as it stands in the PTX: one statement a line."""
    text = text.replace("{{", "\x00").replace("}}", "\x01")
    statements = re.sub(r";\s*(?=\S)", ";\n", text)
    return statements.replace("\x00", "{").replace("\x01", "}")


def _place(operation: Any) -> str:
    file = Path(inspect.getsourcefile(operation.body) or "").resolve().relative_to(ROOT)
    return f"`{file}`"


def _body(operation: Any) -> str:
    """The body's code without its docstring."""
    source = textwrap.dedent(inspect.getsource(operation.body))
    function = next(node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef))
    kept = function.body[1:] if ast.get_docstring(function) else function.body
    if not kept:
        return "```python\npass  # nothing to do in the emulator\n```"
    lines = source.splitlines()[kept[0].lineno - 1 : function.end_lineno]
    return f"```python\n{textwrap.dedent(chr(10).join(lines))}\n```"


def _first_paragraph(family: str) -> str:
    module = getattr(ptx, family, None)
    if module is None:
        from dgnumba.kernels import epilogue as module  # noqa: PLC0415  (the one family that a kernel's file declares)
    return " ".join((module.__doc__ or "").strip().split("\n\n")[0].split())


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


__all__ = ["contract", "operations", "pages"]
