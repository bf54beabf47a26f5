"""Every operation's docstring is its contract: the fixed keys are there and agree with the declaration."""

import inspect
import re

import pytest
from ptx import instructions
from ptx.instructions import CALLABLE, FAMILIES, MADE_TO_MEASURE, OPERATIONS, keys

from dgnumba.layouts import lanes

ASYNCHRONOUS = re.compile(r"^(tma\.(load|store)|wgmma\.mma|cp_async\.copy|epilogue\.store_tile)")


def test_the_registry_holds_every_family():
    assert {name.split(".")[0] for name in OPERATIONS} >= set(FAMILIES)
    assert {
        "wgmma.mma",
        "wgmma.mma_rs",
        "wgmma.mma_rs_f16",
        "fragment.load",
        "fragment.products",
        "epilogue.store_panels",
    } <= MADE_TO_MEASURE
    assert len(CALLABLE) >= 50


def test_every_public_function_of_a_family_is_an_operation_or_makes_one():
    for family, module in FAMILIES.items():
        for name, member in vars(module).items():
            if inspect.isfunction(member) and member.__module__ == module.__name__ and not name.startswith("_"):
                assert f"{family}.{name}" in CALLABLE or name.endswith("_for") or name in ("column_scales", "fma_pairs"), f"{family}.{name}"


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_docstring_has_its_keys(name):
    operation = OPERATIONS[name]
    head = operation.function.__doc__.strip().splitlines()[0]
    mnemonic, dash, meaning = head.partition(" - ")
    assert dash and mnemonic and meaning.endswith("."), head
    found = keys(operation)
    expected = {"PTX", "Scope", "Args", "Returns", "Emulates"}
    if operation.scope != "thread" and any(kind != "imm" for _, kind in operation.params):
        expected.add("Lanes")
    if ASYNCHRONOUS.match(name):
        expected.add("Async")
    assert expected - set(found) == set()
    assert set(found) - {*expected, "Lanes", "Orders", "Async"} == set()


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_docstring_agrees_with_the_declaration(name):
    operation, found = OPERATIONS[name], keys(OPERATIONS[name])
    mnemonic = operation.function.__doc__.strip().split()[0].split("...")[0].rstrip(",")
    if operation.text is not None:
        parts = ".*".join(map(re.escape, mnemonic.split(".")))  # in order, others between: stmatrix.x1 is stmatrix.sync.aligned.m8n8.x1
        assert re.search(parts, operation.text), f"{mnemonic} is not in {operation.text}"
    assert found["Scope"].split()[0].rstrip(";") == operation.scope or operation.text is None
    assert (found["Returns"].strip() == "nothing") == (operation.result is None)
    if operation.params:
        for parameter, _ in operation.params:
            listed = re.search(rf"\b{parameter}\b", found["Args"])
            ranged = re.match(r"([a-z])(\d)$", parameter) and ".." in found["Args"]
            assert listed or ranged, f"{parameter} is not in Args"
    else:
        assert found["Args"].strip() == "none"


@pytest.mark.parametrize("name", [n for n, o in OPERATIONS.items() if "layouts.lanes" in keys(o).get("Lanes", "")])
def test_lane_maps_that_are_named_exist(name):
    maps = {
        "wgmma_accumulator": lanes.wgmma_accumulator(8),
        "wgmma_a_fp8": lanes.wgmma_a_fp8(),
        "matrix_8x8": lanes.matrix_8x8(),
        "token_quads": lanes.token_quads(),
        "mma_accumulator": lanes.mma_accumulator(),
        "mma_a": lanes.mma_a(8),
        "mma_b": lanes.mma_b(8),
    }
    for cited in re.findall(r"layouts\.lanes\.(\w+)", keys(OPERATIONS[name])["Lanes"]):
        assert maps[cited.lower()].name == cited.upper()


def test_parsing_of_keys_is_no_rubber_stamp():
    assert keys(OPERATIONS["tma.load_2d"])["Scope"].strip() == "thread"
    assert keys(OPERATIONS["wgmma.mma"])["Async"].startswith("joins a group")
    assert instructions.needs(OPERATIONS["tma.load_2d"]) == 90
    assert instructions.needs(OPERATIONS["convert.fma"]) == 0
