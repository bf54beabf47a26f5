"""The documentation's tools: links are followed, every operation has its page, a notebook's pair and its answers are held to."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tools" / "site"), str(ROOT / "tools")]

import docstrings  # noqa: E402
import documents  # noqa: E402
import links  # noqa: E402
import operations  # noqa: E402
from ptx.instructions import OPERATIONS  # noqa: E402

import dgnumba  # noqa: E402


def test_a_link_that_leads_nowhere_is_dead(tmp_path):
    (tmp_path / "a.html").write_text('<a href="b.html#there">1</a> <a href="b.html#not">2</a> <a href="c.html">3</a> <img src="p.png">')
    (tmp_path / "b.html").write_text('<h1 id="there"></h1> <a href="https://example.org/x">4</a> <a href="../outside.html">5</a>')
    (tmp_path / "p.png").write_bytes(b"")
    assert links.dead(tmp_path) == ["a.html: b.html#not", "a.html: c.html", "b.html: ../outside.html"]


def test_every_operation_has_its_section_with_text_body_and_contract():
    pages = {path: text for path, _, text in operations.pages()}
    index = pages["reference/operations/index.md"]
    for name, operation in operations.operations().items():
        page = pages[f"reference/operations/{name.split('.')[0]}.md"]
        section = page.split(f"\n## {name}\n")[1].split("\n## ")[0]
        mnemonic, meaning, keys = operations.contract(operation)
        assert f"`{name}`" in index and meaning.split()[-1] in section and keys["Scope"].split()[0] in section
        assert "**In the emulator**" in section
        if operation.text is not None:
            assert operations._ptx(operation.text) in section


def test_every_operation_is_declared_where_only_the_site_is_built():
    """In a process of its own: in this one the tests have made every factory's operation already."""
    code = "import operations; print(*operations.operations())"
    path = os.pathsep.join([str(ROOT / "tools" / "site"), str(ROOT)])
    found = subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=True)
    assert set(OPERATIONS) - set(found.stdout.split()) == set(), "a factory that tools/site/operations.py does not call"


def test_the_text_of_an_operation_is_shown_as_ptx():
    shown = operations._ptx(dgnumba.ptx.OPS["mbarrier.arrive_if"].text)
    assert shown.splitlines()[0] == "{ .reg .pred p;" and "{condition}" in shown and shown.endswith("}")


def test_every_public_name_is_on_a_page():
    pages = "".join(text for _, _, text in documents.reference())
    names = [name for name in dgnumba.__all__ if name not in documents.ROOMS and name != "ptx"]
    assert [name for name in names if f":: dgnumba.{name}\n" not in pages] == []
    assert [room for room in documents.ROOMS if f"# dgnumba.{room}" not in pages] == []


def test_every_command_and_format_is_on_its_page():
    pages = {path: text for path, _, text in documents.reference()}
    from dgnumba.cli import COMMANDS
    from dgnumba.dtypes import DTYPES

    assert all(f"## dgnumba {name}" in pages["reference/command-line.md"] for name in COMMANDS)
    assert all(f"| `{name}` |" in pages["reference/formats.md"] for name in DTYPES)


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("Plain |x| and `a | b`.", "Plain \\|x\\| and `a | b`."),
        ("a     b\nc     d", ".. code-block:: text\n\n   a     b\n   c     d"),
        ("Args:\n    x: a  thing", "Args:\n    x: a  thing"),
        ("A picture::\n\n    x  y", "A picture::\n\n    x  y"),
        ("One line  with a gap\nand one without.", "One line  with a gap\nand one without."),
    ],
)
def test_columns_stay_columns(text, rest):
    assert docstrings.as_rest(text) == rest


class TestNotebooks:
    @pytest.fixture
    def notebooks(self, monkeypatch, tmp_path):
        pytest.importorskip("jupytext", reason="the notebooks' tools are not installed")
        import notebooks

        (tmp_path / "answers").mkdir()
        monkeypatch.setattr(notebooks, "NOTEBOOKS", tmp_path)
        monkeypatch.setattr(notebooks, "EXECUTED", tmp_path / "executed")
        return notebooks

    def test_a_pair_depends_on_the_script_alone_and_is_checked(self, notebooks, tmp_path):
        script = tmp_path / "00_a.py"
        script.write_text("# %% [markdown]\n# # A\n\n# %%\nx = 1\n")
        assert notebooks.check([script]) == 1
        notebooks.sync([script])
        assert notebooks.check([script]) == 0
        script.write_text(script.read_text() + "y = 2\n")
        assert notebooks.check([script]) == 1

    def test_answers_must_be_of_both_kinds(self, notebooks, tmp_path):
        script, answers = tmp_path / "00_a.py", tmp_path / "answers" / "00_a.py"
        answers.write_text("# %% right\nx = 1\n# %% wrong: two\nx = 2\n")
        assert list(notebooks.answers(script)) == [(True, "", "\nx = 1\n"), (False, "two", "\nx = 2\n")]
        answers.write_text("# %% right\nx = 1\n")
        with pytest.raises(ValueError, match="of both kinds"):
            list(notebooks.answers(script))

    def test_a_check_that_takes_a_wrong_answer_fails_the_run(self, notebooks, tmp_path, capsys):
        pytest.importorskip("nbclient", reason="the notebooks' tools are not installed")
        script, answers = tmp_path / "00_a.py", tmp_path / "answers" / "00_a.py"
        script.write_text("# %% [markdown]\n# # A\n\n# %%\nx = 0\n\n\ndef check():\n    return x > 0\n")
        answers.write_text("# %% right\nx = 1\n# %% wrong: two\nx = 2\n")
        assert notebooks.execute(script) == 1
        assert "an answer that is wrong (two)" in capsys.readouterr().out
