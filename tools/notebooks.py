"""The notebooks: `# %%` scripts in notebooks/, each paired with an .ipynb without outputs.

    python tools/notebooks.py sync     write the .ipynb of each script
    python tools/notebooks.py check    say whether they are paired
    python tools/notebooks.py run      execute each, try the right and the wrong answers to its exercise; keep it in build/notebooks

An exercise is a function that the reader completes and a function `check()` that says whether it is right. `notebooks/answers/NN_name.py` holds
answers, one a cell: `# %% right` ones, which `check()` must take, and `# %% wrong: why` ones, which it must refuse; as given it must refuse too.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jupytext
import nbformat

ROOT = Path(__file__).parent.parent
NOTEBOOKS, EXECUTED = ROOT / "notebooks", ROOT / "build" / "notebooks"
LIMIT = 60  # seconds of one processor a notebook: a busy machine makes none fail
KERNEL = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}, "language_info": {"name": "python"}}
_ANSWER = re.compile(r"^# %% (right|wrong)\b:?(.*)$", re.MULTILINE)


def scripts(names: list[str]) -> list[Path]:
    """The scripts whose names begin with one of `names`; without any, all."""
    found = sorted(NOTEBOOKS.glob("[0-9]*.py"))
    return [path for path in found if not names or path.stem.startswith(tuple(names))]


def paired(script: Path) -> str:
    """The text of a script's .ipynb: no outputs, cells numbered, so that it depends on the script alone."""
    notebook = jupytext.read(script)
    notebook.metadata = nbformat.from_dict(KERNEL)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number:02d}"
        cell["metadata"] = {key: value for key, value in cell["metadata"].items() if key == "tags"}
    return str(nbformat.writes(notebook)).rstrip() + "\n"


def sync(paths: list[Path]) -> int:
    """Write each .ipynb."""
    for path in paths:
        path.with_suffix(".ipynb").write_text(paired(path))
    return 0


def check(paths: list[Path]) -> int:
    """How many are not what their script says."""
    bad = [p for p in paths if not p.with_suffix(".ipynb").exists() or p.with_suffix(".ipynb").read_text() != paired(p)]
    for path in bad:
        print(f"{path.name}: the .ipynb is not its pair: python tools/notebooks.py sync")
    return len(bad)


def answers(script: Path) -> Iterator[tuple[bool, str, str]]:
    """(is it right, what it is, its code) for each answer to a notebook's exercise."""
    path = NOTEBOOKS / "answers" / script.name
    text = path.read_text()
    found = list(_ANSWER.finditer(text))
    if {match[1] for match in found} != {"right", "wrong"}:
        raise ValueError(f"{path}: expected answers of both kinds, '# %% right' and '# %% wrong', got {[m[0] for m in found]}")
    for match, after in zip(found, [*found[1:], None]):
        yield match[1] == "right", match[2].strip(), text[match.end() : after.start() if after else None]


COMPILE = """
import dgnumba
from dgnumba import _numba, assemble, launching

def _launch_and_compile(kernel, grid, block, args, **options):
    types = tuple(_numba.argtype(arg, i) for i, arg in enumerate(args))
    threads = block if isinstance(block, int) else int(__import__("math").prod(block))
    assemble.ptxas(_numba.compile_ptx(kernel, types, threads=threads)[0])
    return launching.launch(kernel, grid, block, args, **options)

dgnumba.launch = _launch_and_compile
"""
"""Where there is no GPU: compile what is launched, since the same cells must run where there is one."""


def execute(script: Path, compiles: bool = False) -> int:
    """Run one notebook and its answers; say what failed. Returns the number of failures."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    notebook = jupytext.read(script)
    notebook.metadata = nbformat.from_dict(KERNEL)
    client = NotebookClient(notebook, timeout=LIMIT * 5, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}})
    client.create_kernel_manager().transport = "ipc"  # no other user of the machine can listen
    begin = time.monotonic()
    failures = []
    try:
        with client.setup_kernel(env=_environment()):
            if compiles:
                _beside(client, COMPILE)
            for index, cell in enumerate(notebook.cells):
                client.execute_cell(cell, index)
            took = float(_beside(client, "import time as _time\nprint(_time.process_time())").outputs[0].text)
            waited = time.monotonic() - begin
            failures = list(_tried(client, script))
    except CellExecutionError as error:
        print(f"{script.name}: {error}")
        return 1
    if took > LIMIT:
        failures.append(f"took {took:.0f} s of a processor, more than {LIMIT}")
    EXECUTED.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, EXECUTED / f"{script.stem}.ipynb")
    tried = time.monotonic() - begin - waited
    print(
        f"{script.name:24s} {took:5.1f} s of a processor in {waited:5.1f} s, {tried:4.1f} s for answers",
        *failures,
        sep="\n    ",
        flush=True,
    )
    return len(failures)


def _tried(client: Any, script: Path) -> Iterator[str]:
    """What is wrong with the verdicts of a notebook's `check()`."""
    for is_right, name, code in [(False, "as given", "pass"), *answers(script)]:
        try:
            _beside(client, f"{code}\n_verdict = check()\nassert _verdict is {is_right}, f'check() said {{_verdict}}'")
        except Exception as error:  # the cell's own error, whatever it is
            yield f"an answer that is {'right' if is_right else 'wrong'} ({name}): {str(error).strip().splitlines()[-1]}"


def _beside(client: Any, code: str) -> Any:
    """Execute a cell that is not the notebook's; gives it with its outputs."""
    cell = nbformat.v4.new_code_cell(code)
    client.nb.cells.append(cell)
    try:
        client.execute_cell(cell, len(client.nb.cells) - 1)
    finally:
        client.nb.cells.pop()
    return cell


def _environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {
        "PYTHONPATH": path,
        "PYTHONWARNINGS": "error::RuntimeWarning",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    }


def run(paths: list[Path], compiles: bool = False) -> int:
    """Execute each."""
    return sum(execute(path, compiles) for path in paths)


def main() -> None:
    """Do what is asked of all notebooks, or of those named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["sync", "check", "run"])
    parser.add_argument("names", nargs="*", help="beginnings of names, as 02")
    parser.add_argument("--compile", action="store_true", help="run: also compile each kernel for a GPU; needs ptxas")
    options = parser.parse_intermixed_args()
    paths = scripts(options.names)
    if not paths:
        sys.exit(f"notebooks: expected one that begins with {' or '.join(options.names) or 'a number'}, got none")
    if options.what == "run":
        sys.exit(min(run(paths, options.compile), 1))
    sys.exit(min({"sync": sync, "check": check}[options.what](paths), 1))


if __name__ == "__main__":
    main()
