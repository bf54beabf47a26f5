"""The house, as CONTRIBUTING.md draws it: imports point down, Numba's internals and CuPy have their rooms, files stay readable."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "dgnumba"
SOURCES = sorted(PACKAGE.rglob("*.py"))

LAYERS = [
    {"_version", "arithmetic", "data", "dtypes", "errors", "integers", "store", "wrapping"},
    {"_numba", "driver", "xp"},
    {"config", "device", "int4_problem", "layouts", "problem"},
    {"emu"},
    {"ptx", "quant"},
    {"checkpoint", "kernels"},
    {"cost", "cost_gemv", "int4_operands", "int4_plan", "layer_plans", "measured", "plan"},
    {"archive", "arguments", "assemble", "cache", "fingerprint", "launching", "streams"},
    {"ahead", "casts", "emulated", "int4_prepared", "onepass", "policy", "prepared", "scale_moves", "tuning", "tuning_plot"},
    {"api", "int4"},
    {"lab", "prepare"},
    {"__init__", "__main__", "cli", "profile", "pytest_plugin", "report", "testing"},
]
"""Rooms (a folder, or a module) from the ground up: one may import its own floor and those below."""

FLOOR = {room: floor for floor, rooms in enumerate(LAYERS) for room in rooms}

PUBLIC_NUMBA = {"numba", "numba.cuda", "numba.njit", "numba.prange"}
"""What the rooms beside `_numba` may know of Numba: its public names."""

MAX_LINES = 400
MAX_FUNCTION = 60

NESTED = {"build"}
"""Functions that hold other functions (a kernel's roles), which are counted one by one."""


def room_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


ROOMS = {room_of(path) for path in SOURCES}


def imports(path):
    """Every module that a file imports, anywhere in it, by its full name: (line, name)."""
    here = ("dgnumba", *path.relative_to(PACKAGE).with_suffix("").parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            # ``from .. import launch`` names a room, ``from ..launch import f`` does not
            named = module in ("dgnumba", "numba", "numba.cuda")
            yield from ((node.lineno, f"{module}.{alias.name}" if named else module) for alias in node.names)


def rooms_imported(path):
    for line, name in imports(path):
        parts = name.split(".")
        if parts[0] == "dgnumba":
            yield line, parts[1] if len(parts) > 1 and parts[1] in ROOMS else "__init__"


def name_of(path):
    return str(path.relative_to(PACKAGE))


def test_every_room_has_a_floor():
    assert {room_of(path) for path in SOURCES} - set(FLOOR) == set()


def test_imports_point_down_only():
    up = [
        f"{name_of(path)}:{line} imports {room}"
        for path in SOURCES
        for line, room in rooms_imported(path)
        if FLOOR.get(room, 0) > FLOOR.get(room_of(path), 0)
    ]
    assert up == []


def is_below(name, package):
    return name == package or name.startswith(package + ".")


def importers(*packages):
    """Rooms that import one of these packages."""
    return {room_of(path) for path in SOURCES for _, name in imports(path) if any(is_below(name, p) for p in packages)}


def test_numbas_internals_are_known_to_one_room():
    internals = {
        room_of(path)
        for path in SOURCES
        for _, name in imports(path)
        if is_below(name, "llvmlite") or is_below(name, "numba_cuda") or (is_below(name, "numba") and name not in PUBLIC_NUMBA)
    }
    assert internals == {"_numba"}


def test_numba_itself_is_met_by_kernels_and_host_loops_only():
    assert importers("numba.cuda") - {"_numba", "kernels"} == set()
    assert importers("numba") - {"_numba", "kernels", "quant"} == set()


def test_cupy_is_known_to_the_room_of_arrays_and_to_the_command_line():
    assert importers("cupy") - {"xp", "cli"} == set()


def test_the_driver_is_known_to_its_room():
    assert importers("cuda.bindings") == {"driver"}


def test_no_other_framework_is_needed():
    """torch and DeepGEMM are rivals that `dgnumba bench` measures, where they are."""
    assert importers("torch", "jax", "deep_gemm", "triton", "cutlass") - {"cli"} == set()


def test_kernels_import_what_a_kernel_may():
    allowed = {"_numba", "device", "dtypes", "errors", "int4_problem", "integers", "kernels", "layouts", "problem", "ptx", "xp"}
    found = {room for path in SOURCES if room_of(path) == "kernels" for _, room in rooms_imported(path)}
    assert found - allowed == set()


def test_calls_and_rules_load_no_compiler():
    """A process that finds its kernels in the cache must not pay for Numba."""
    rules = [f"dgnumba.kernels.{path.stem}" for path in sorted((PACKAGE / "kernels").glob("*_rules.py"))]
    assert rules
    names = ["dgnumba.api", "dgnumba.casts", "dgnumba.scale_moves", *rules]
    # numba-cuda's .pth file may have loaded something before
    code = f"import sys; before = set(sys.modules); import {', '.join(names)}; print(*sorted(set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent).stdout.split()
    assert set(names) <= set(loaded)
    assert [m for m in loaded if m.partition(".")[0] in ("numba", "numba_cuda", "llvmlite") or m == "dgnumba.ptx"] == []


def test_the_emulator_knows_no_instruction_and_quant_no_kernel():
    found = {room: {r for path in SOURCES if room_of(path) == room for _, r in rooms_imported(path)} for room in ("emu", "quant")}
    assert found["emu"] & {"ptx", "kernels"} == set()
    assert found["quant"] & {"ptx", "kernels", "emu"} == set()


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_file_stays_readable(path):
    lines = len(path.read_text().splitlines())
    assert lines <= MAX_LINES


def functions(path):
    """(name, lines of its own) of each function; what is nested in a `NESTED` one counts for itself."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            inner = [n for n in ast.walk(node) if isinstance(n, ast.FunctionDef) and n is not node]
            size = node.end_lineno - node.lineno + 1
            if node.name in NESTED or any(n.name == "kernel" for n in inner):
                direct = [n for n in node.body if isinstance(n, ast.FunctionDef)]
                size -= sum(n.end_lineno - n.lineno + 1 for n in direct)
            yield node.name, size


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_function_stays_readable(path):
    assert [(name, size) for name, size in functions(path) if size > MAX_FUNCTION] == []
