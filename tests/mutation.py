"""Mutation test of the kernels: each operator of `mutation_operators` at each place, and who notices.

    PYTHONPATH=. python tests/mutation.py --out bench/results/mutation.json       # all of them, on two processes; about half an hour
    ... --again bench/results/mutation.json --out ...                             # those that are new in the source, or were not noticed

A mutant is the kernel's module executed anew from the changed source; nothing on disk and nothing that is imported changes. It runs the small
problems of `mutants.TRIALS`, those likely to come to the place first, under both completion policies, until somebody notices:

lab         the emulator, or one of its checks, reports it
tests       nothing is reported, but the result differs from the oracle's, or the host refuses the launch
equivalent  nobody notices, and EQUIVALENT says why there is nothing to notice
unnoticed   nobody notices
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import fnmatch
import functools
import importlib
import json
import pkgutil
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import mutation_operators
from mutation_operators import apply, find, instrumented

import dgnumba.kernels
from dgnumba import emu
from dgnumba.errors import DGNumbaError, EmulationError

LAB, TESTS, EQUIVALENT_, UNNOTICED = "lab", "tests", "equivalent", "unnoticed"
COMPILED_ONLY = {"cast_registers._code", "quantize_registers._integer_word"}
"""Parts that the emulator does not run: their operations have vectorised twins for it, which tests/kernels/test_cast_registers.py holds to them."""
WORST_BASE = 1024 + 16
WAYS = {
    "smxx_layout.py": 2,
    "sm80_int4_gemm.py": 2,
    "sm90_int4_gemv.py": 2,
}  # of bank conflicts that a kernel has; INT4's look up tables by what is in the weights
SECONDS = 120  # after which a mutant that does not end is taken for noticed: no test waits longer
RESULTS = Path(__file__).parent.parent / "bench" / "results" / "mutation.json"


@dataclass(frozen=True)
class Mutant:
    """One operator at one place.

    module    of `dgnumba.kernels`
    function  innermost function around the place
    operator  a name of the table in `mutation_operators`
    text      what it is applied to
    call      the operation that it is applied to, or ""
    ordinal   which of the equal ones of that function, from 0
    """

    module: str
    function: str
    operator: str
    text: str
    call: str
    ordinal: int

    def __str__(self) -> str:
        return f"{self.module}.{self.function}: {self.operator}: {self.text} #{self.ordinal}"


def modules() -> list[str]:
    """The modules of the kernels' room that hold kernels, or parts of them, or make their tensor maps."""
    names = sorted(m.name for m in pkgutil.iter_modules(dgnumba.kernels.__path__))
    return [name for name in names if kernels_of(name)]


@functools.cache
def source_of(module: str) -> tuple[ast.Module, str]:
    file = importlib.util.find_spec(f"dgnumba.kernels.{module}").origin
    return ast.parse(Path(file).read_text(encoding="utf-8")), file


@functools.cache
def _found(module: str) -> dict[Mutant, Any]:
    out: dict[Mutant, Any] = {}
    counts: Counter[tuple[str, str, str]] = Counter()
    for found in find(source_of(module)[0]):
        key = found.function, found.operator, found.text
        out[Mutant(module, *key, found.call, counts[key])] = found
        counts[key] += 1
    return out


def mutants() -> list[Mutant]:
    """All of them, in the order of the sources."""
    return [mutant for module in modules() for mutant in _found(module) if f"{module}.{mutant.function}" not in COMPILED_ONLY]


# A kernel with a mutated part


@functools.cache
def imported_by(module: str) -> frozenset[str]:
    """The modules of the room that a module imports."""
    tree, _ = source_of(module)
    names = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.level == 1 and n.module}
    names |= {a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.level == 1 and not n.module for a in n.names}
    return frozenset(names)


def depends(module: str, on: str) -> bool:
    """Whether a module of the room imports another, at any remove."""
    seen: set[str] = set()
    todo = {module}
    while todo:
        seen |= todo
        todo = {m for name in todo for m in imported_by(name) if importlib.util.find_spec(f"dgnumba.kernels.{m}")} - seen
    return on in seen


@functools.cache
def kernels_of(module: str) -> tuple[str, ...]:
    """The kernels with trials that a module is a part of."""
    from mutants import TRIALS

    return tuple(name for name in TRIALS if any(depends(part, module) for part in parts_of(name)))


def parts_of(kernel: str) -> list[str]:
    """A kernel's own module, and that of its rules."""
    return [name for name in (kernel, f"{kernel}_rules") if importlib.util.find_spec(f"dgnumba.kernels.{name}")]


class _Room:
    """The room with some modules changed: what depends on them is executed anew, on first use; all else is what is imported."""

    def __init__(self, changed: dict[str, ast.Module], **more: Any) -> None:
        self._changed, self._more = changed, more
        self._executed: dict[str, dict[str, Any]] = {}

    def _is_changed(self, module: str) -> bool:
        return any(depends(module, name) for name in self._changed)

    def namespace(self, module: str) -> dict[str, Any]:
        if not self._is_changed(module):
            return vars(importlib.import_module(f"dgnumba.kernels.{module}"))
        if module not in self._executed:
            self._executed[module] = self._execute(module)
        return self._executed[module]

    def _execute(self, module: str) -> dict[str, Any]:
        tree, file = source_of(module)
        name = f"dgnumba.kernels.{module}"
        namespace: dict[str, Any] = {"__name__": name, "__package__": "dgnumba.kernels", "__file__": file, **self._more}
        exec(compile(self._changed.get(module, tree), file, "exec", dont_inherit=True), namespace)
        for node in tree.body:  # what it imported from changed modules
            if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module and self._is_changed(node.module):
                changed = self.namespace(node.module)
                namespace.update({alias.asname or alias.name: changed[alias.name] for alias in node.names})
        return namespace


def room_of(mutant: Mutant | None) -> _Room:
    """The room with the mutant in it; None: with a module executed anew from its unchanged source."""
    if mutant is None:
        return _Room({"pipeline": source_of("pipeline")[0]})
    found = _found(mutant.module).get(mutant)
    assert found is not None, f"{mutant} is not in the source"
    return _Room({mutant.module: apply(source_of(mutant.module)[0], found)})


def kernel_in(room: _Room, kernel: str) -> SimpleNamespace:
    """A kernel's module there, with its rules as `rules`."""
    rules = room.namespace(f"{kernel}_rules") if f"{kernel}_rules" in parts_of(kernel) else {}
    return SimpleNamespace(**{**room.namespace(kernel), "rules": SimpleNamespace(**rules)})


# The verdict


@dataclass(frozen=True)
class Attempt:
    """One way to look at a mutant: the kernel, the number of its trial, the policy, and whether every check is on."""

    kernel: str
    trial: int
    policy: str
    is_checked: bool


@dataclass(frozen=True)
class Verdict:
    """Who noticed: `by` as in the module's docstring, in which words, by which attempt, and in how many seconds."""

    by: str
    words: str
    attempt: Attempt | None = None
    seconds: float = 0.0


def checked_run(*args: Any, policy: str = "eager", **options: Any) -> None:
    """`emu.run` with every check on, and the dynamic block where alignment to 1024 costs the most: what reaches past its end has no room."""
    report = emu.check(*args, policies=(policy,), smem_base=WORST_BASE, **options)
    report.raise_if_wrong()
    for row in report.shared:
        if row.worst > WAYS.get(Path(row.file).name, 1):
            raise EmulationError(f"bank conflicts of {row.worst:g} ways at {row.text}", kind="bank-conflict", address=row.address)


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Raise TimeoutError when it takes too long."""

    def give_up(number: int, frame: Any) -> None:
        raise TimeoutError(f"does not end within {SECONDS} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def made(attempt: Attempt, module: SimpleNamespace) -> tuple[str, str]:
    """What comes of an attempt: ("", "") if nobody notices anything."""
    from mutants import TRIALS

    trial = TRIALS[attempt.kernel][attempt.trial]
    try:
        with patch.object(emu, "run", checked_run if attempt.is_checked else emu.run), limited():
            trial.run(module, attempt.policy)
    except EmulationError as error:
        return LAB, f"{type(error).__name__}: {error.problem}"
    except (AssertionError, TimeoutError, DGNumbaError) as error:
        return TESTS, f"{type(error).__name__}: {error}"
    except Exception as error:
        by = LAB if isinstance(getattr(error, "emulated", None), EmulationError) else TESTS
        return by, f"{type(error).__name__}: {error}"
    return "", ""


PASSES = (("late", False), ("eager", True))
"""As a launch runs; and, where nothing is seen, under the other policy with every check on, which takes longer."""


def attempts(mutant: Mutant, kernel: str) -> Iterator[Attempt]:
    """What to try: the trials that come to the place, the shortest first."""
    line = _found(mutant.module)[mutant].line
    trials = [i for i in by_length(kernel) if not line or (mutant.module, line) in lines_of(kernel, i)[0]]
    for policy, is_checked in PASSES:
        yield from (Attempt(kernel, i, policy, is_checked) for i in trials)


@functools.cache
def lines_of(kernel: str, trial: int) -> tuple[frozenset[tuple[str, int]], float]:
    """The lines, each with its module, to which a trial comes on the device, and how many seconds it takes."""
    hit: set[tuple[str, int]] = set()
    tell = {}
    for module in modules():
        tell[f"_hit_{module}"] = functools.partial(lambda module, line: hit.add((module, line)), module)
        tell[f"_hit_{module}"].__emu_op__ = "hit"  # so that the emulator leaves it as it is
    room = _Room({module: instrumented(source_of(module)[0], f"_hit_{module}") for module in modules()}, **tell)
    begin = time.process_time()
    noticed = made(Attempt(kernel, trial, "late", False), kernel_in(room, kernel))
    assert noticed == ("", ""), f"trial {trial} of {kernel}: {noticed}"
    return frozenset(hit), time.process_time() - begin


@functools.cache
def by_length(kernel: str) -> tuple[int, ...]:
    """The trials of a kernel, the shortest first."""
    from mutants import TRIALS

    return tuple(sorted(range(len(TRIALS[kernel])), key=lambda i: lines_of(kernel, i)[1]))


def verdict(mutant: Mutant, first: Attempt | None = None) -> Verdict:
    """Who notices a mutant; `first` has noticed it before."""
    begin = time.monotonic()
    room = room_of(mutant)
    kernels = kernels_of(mutant.module) if first is None else (first.kernel, *kernels_of(mutant.module))
    for kernel in kernels:
        try:
            module = kernel_in(room, kernel)
        except (AssertionError, DGNumbaError) as error:
            return Verdict(TESTS, f"{type(error).__name__}: {error}", None, time.monotonic() - begin)
        for attempt in [first] if first is not None else attempts(mutant, kernel):
            by, words = made(attempt, module)
            if by == TESTS and not attempt.is_checked:  # does the lab see it too?
                checked = replace(attempt, is_checked=True)
                more = made(checked, module)
                by, words, attempt = (*more, checked) if more[0] == LAB else (by, words, attempt)
            if by:
                return Verdict(by, words[:400], attempt, time.monotonic() - begin)
        first = None
    reason = reason_of(mutant)
    return Verdict(EQUIVALENT_ if reason else UNNOTICED, reason or "", None, time.monotonic() - begin)


def reason_of(mutant: Mutant) -> str | None:
    """Why it cannot be told from the original, if the list says so."""
    from mutation_equivalent import EQUIVALENT

    return next((reason for pattern, reason in EQUIVALENT.items() if matches(str(mutant), pattern)), None)


def matches(name: str, pattern: str) -> bool:
    """Whether a name is what a pattern says, in which only `*` has a meaning."""
    return fnmatch.fnmatchcase(name, pattern.replace("[", "[[]").replace("?", "[?]"))


def operators_text() -> str:
    """The table of operators."""
    text: str = mutation_operators.__doc__
    return text.split("======\n")[1]


# All of them


def spread(names: list[str], count: int) -> list[str]:
    """`count` of them, evenly spaced."""
    return [names[i * len(names) // count] for i in range(count)] if len(names) > count else names


def _one(mutant: Mutant) -> tuple[Mutant, Verdict]:
    return mutant, verdict(mutant)


def table(rows: dict[str, dict[str, Any]]) -> str:
    """The numbers as the README has them."""
    operators: dict[str, Counter[str]] = {}
    for row in rows.values():
        operators.setdefault(row["operator"], Counter())[row["by"]] += 1
    order = (LAB, TESTS, EQUIVALENT_, UNNOTICED)
    lines = ["| operator | mutants | reported by the lab | wrong result only | equivalent | unnoticed |", "|---|---|---|---|---|---|"]
    for name, counts in [*sorted(operators.items()), ("all", sum(operators.values(), Counter()))]:
        lines.append(f"| {name} | {sum(counts.values())} | " + " | ".join(str(counts[by]) for by in order) + " |")
    return "\n".join(lines)


def main() -> None:
    """Judge all mutants, or those whose names hold a text, and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="mutants whose name holds this text")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--again", type=Path, help="numbers of an earlier run, of which all but the unnoticed are kept")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    kept = json.loads(options.again.read_text(encoding="utf-8"))["mutants"] if options.again else {}
    kept = {name: row for name, row in kept.items() if row["by"] != UNNOTICED}
    every = mutants()
    chosen = [m for m in every if options.only in str(m) and str(m) not in kept]
    for kernel in {kernel for m in chosen for kernel in kernels_of(m.module)}:
        by_length(kernel)  # once, before the processes part
    rows: dict[str, dict[str, Any]] = {}
    with ProcessPoolExecutor(options.jobs) as pool:
        for mutant, said in pool.map(_one, chosen, chunksize=1):
            how = {} if said.attempt is None else asdict(said.attempt)
            rows[str(mutant)] = {"operator": mutant.operator, "by": said.by, "words": re.sub(r"0x[0-9a-f]{7,}", "0x...", said.words), **how}
            print(f"{said.seconds:6.1f} s  {said.by:10s}  {mutant}  {said.words[:160]!r}", flush=True)
    rows = {str(m): rows.get(str(m)) or kept[str(m)] for m in every if str(m) in rows or str(m) in kept}
    print(table(rows))
    if options.out:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
        kept_in = RESULTS.relative_to(RESULTS.parents[2])  # as a reader gives it, wherever this run wrote to
        command = "PYTHONPATH=. python tests/mutation.py " + f"--again {kept_in} " * bool(options.again) + f"--out {kept_in}"
        data = {"command": command, "commit": commit, "count": dict(Counter(r["by"] for r in rows.values())), "mutants": rows}
        options.out.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
