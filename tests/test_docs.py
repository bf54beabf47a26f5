"""The documents tell the truth: every Python block runs, in order, and prints what the text block after it shows (``...`` stands for anything).

A block under ``<!-- needs a GPU -->`` runs where there is one. The docstrings' examples run too.
"""

import contextlib
import doctest
import importlib
import io
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import dgnumba

ROOT = Path(__file__).parent.parent
AT_ROOT = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
DOCUMENTS = [*AT_ROOT, *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"(?:<!-- (?P<note>[^>\n]*) -->\n)?```(?P<kind>\w*)\n(?P<text>.*?)```", re.DOTALL)

EXAMPLES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted((ROOT / "dgnumba").rglob("*.py"))
    if re.search(r"^\s*>>> ", path.read_text(), re.MULTILINE)
]
"""Modules whose docstrings hold examples."""


@dataclass
class Block:
    note: str
    kind: str
    text: str
    line: int


def blocks(path):
    document = path.read_text()
    return [Block(m["note"] or "", m["kind"], m["text"], document.count("\n", 0, m.start("text"))) for m in BLOCK.finditer(document)]


def execute(path, block, names, text=None):
    """What the block prints. It is compiled where it stands, so that a traceback quotes the document."""
    printed = io.StringIO()
    code = compile("\n" * block.line + (text or block.text), str(path), "exec")
    with contextlib.redirect_stdout(printed):
        exec(code, names)
    return printed.getvalue()


def assert_shows(shown, printed):
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.OutputChecker().check_output(shown, printed, options), f"shown:\n{shown}\nprinted:\n{printed}"


def run_document(path, with_gpu):
    names = {"__name__": "document"}
    found = blocks(path)
    for block, after in zip(found, [*found[1:], Block("", "", "", 0)]):
        if block.kind == "python" and (with_gpu or block.note != "needs a GPU"):
            printed = execute(path, block, names)
            if after.kind == "text" and not after.note:
                assert_shows(after.text, printed)
    return names


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_documents_examples_run_and_print_what_it_shows(path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    run_document(path, with_gpu=False)


@pytest.mark.gpu
def test_the_readmes_examples_run_on_the_gpu():
    run_document(ROOT / "README.md", with_gpu=True)


def test_the_readme_quotes_the_emulator_on_the_missing_wait():
    path = ROOT / "README.md"
    names = run_document(path, with_gpu=False)
    block = next(b for b in blocks(path) if "def row_sums" in b.text)
    shown = next(b for b in blocks(path) if b.note == "the example without its wait")
    wait = "    mbarrier.wait(full, 0)\n"
    assert block.text.count(wait) == 1
    for policy in ("eager", "late"):
        broken = block.text.split("\ntable = ")[0].replace(wait, "    pass\n")
        execute(path, block, names, broken)
        arguments = (dgnumba.tensor_map(names["table"], box=(32, 32)), np.zeros(64, np.float32))
        with pytest.raises(dgnumba.errors.UninitializedError) as caught:
            dgnumba.emu.run(names["row_sums"], 2, 32, arguments, smem=names["TILE"] + 8, policy=policy)
        assert_shows(shown.text, f"{caught.value}\n".replace(str(path), path.name))


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_docstrings_examples_give_what_they_show(name):
    failed, tried = doctest.testmod(importlib.import_module(name), extraglobs={"np": np, "dgnumba": dgnumba})
    assert tried > 0
    assert failed == 0


def test_every_link_of_the_documents_at_the_root_leads_somewhere():
    """Those of the site are followed when it is built: `tools/site/build.py`."""
    dead = [
        f"{path.name}: {target}"
        for path in AT_ROOT
        for target in re.findall(r"\]\(([^)#]+)\)", path.read_text())
        if not target.startswith("http") and not (path.parent / target).exists()
    ]
    assert dead == []
