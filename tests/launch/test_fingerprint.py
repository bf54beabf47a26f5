"""`dgnumba.fingerprint`: whatever a kernel is made of changes its digest, and nothing else does."""

import enum
import functools
import math
import subprocess
import sys
import textwrap
from collections import namedtuple
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import pytest

from dgnumba.fingerprint import fingerprint
from dgnumba.integers import u32, u64


def module(source, **names):
    """A module of a user's, from its source; `names` are put in before."""
    made = ModuleType("user_code")
    vars(made).update(names)
    exec(compile(textwrap.dedent(source), "user_code.py", "exec"), vars(made))
    sys.modules["user_code"] = made
    return made


KERNEL = """
STEP = 2
LIMITS = (1, 2.5)
TABLE = np.arange(4, dtype=np.int32)

def deep(x):
    return x * 3

def helper(x):
    return deep(x) + STEP

def kernel(a, n=1):
    for i in range(LIMITS[0], n):
        a[i] = helper(a[i]) + TABLE[0] + other.CONSTANT + math.sqrt(4.0)
"""


def other(constant=1, unused=0):
    return module(f"CONSTANT = {constant}\nUNUSED = {unused}")


def of(source, constant=1, unused=0):
    made = module(source, np=np, math=math, other=other(constant, unused))
    return fingerprint(made.kernel)


def test_the_same_code_has_the_same_digest():
    assert of(KERNEL) == of(KERNEL)
    assert of(KERNEL) is not None


@pytest.mark.parametrize(
    "old, new",
    [
        ("x * 3", "x * 4"),  # a constant two calls away
        ("x * 3", "x + 3"),  # an operation two calls away
        ("STEP = 2", "STEP = 3"),
        ("STEP = 2", "STEP = 2.0"),
        ("STEP = 2", "STEP = -2"),
        ("STEP = 2", "STEP = True"),
        ("(1, 2.5)", "(1, 2.25)"),
        ("(1, 2.5)", "(1, 2.5, 3)"),
        ("arange(4", "arange(5"),
        ("np.int32", "np.int64"),
        ("n=1", "n=2"),
        ("sqrt", "exp"),
        ("math.sqrt(4.0)", "np.sqrt(4.0)"),
        ("range(LIMITS[0], n)", "range(n, LIMITS[0])"),
        ("deep(x) + STEP", "deep(x) + deep(STEP)"),
    ],
)
def test_a_change_anywhere_it_reaches_changes_the_digest(old, new):
    assert old in KERNEL
    assert of(KERNEL.replace(old, new)) not in (of(KERNEL), None)


def test_a_constant_of_another_module_counts_if_it_is_used():
    assert of(KERNEL, constant=2) != of(KERNEL)
    assert of(KERNEL, unused=1) == of(KERNEL)


def test_the_place_in_the_file_does_not_count():
    assert of("\n\n\n" + KERNEL) == of(KERNEL)
    assert of(KERNEL.replace("    for", "    # a comment\n\n    for")) == of(KERNEL)


def test_what_the_kernel_does_not_reach_does_not_count():
    assert of(KERNEL + "\nELSE = 5\ndef unused():\n    return ELSE\n") == of(KERNEL)


def closure(value):
    def kernel(a):
        a[0] = value

    return fingerprint(kernel)


Point = namedtuple("Point", "x y")
Tniop = namedtuple("Tniop", "y x")


class Color(enum.IntEnum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True)
class Plan:
    block: int
    stages: int = 3


VALUES = [
    *(0, 1, -1, True, False, None, 0.0, -0.0, 1.0, math.inf, math.nan, 1j, "1", b"1", ..., 2**70),
    *(u32(1), u64(1), np.int32(1), np.uint32(1), np.float32(1), np.float64(1), np.float32(-0.0)),
    *((), (1,), (1, 1), [1], (1, (1,)), {1}, frozenset({1}), {1: 2}, {2: 1}, range(1), range(2)),
    *(np.zeros(2), np.zeros(3), np.zeros((1, 2)), np.zeros(2, np.float32), np.ones(2)),
    *(np.dtype("f4"), np.float32, np.add, len, math.sqrt, np, math, int, str.join),
    *(Point(1, 2), Point(2, 1), Point, Tniop, Color.RED, Color.BLUE, Color),
    *(Plan(1), Plan(2), Plan(1, 4), Plan, functools.partial(max, 1), functools.partial(min, 1)),
    *(lambda: 1, lambda: 2, lambda x: 1, lambda *x: 1, lambda x=1: 1, slice(1), slice(2)),
]


def test_values_that_a_kernel_freezes_are_all_told_apart():
    digests = [closure(value) for value in VALUES]
    assert None not in digests
    seen = {}
    for value, digest in zip(VALUES, digests, strict=True):
        assert digest not in seen, f"{value!r} and {seen[digest]!r} have one digest"
        seen[digest] = value


def test_equal_values_have_equal_digests_whoever_made_them():
    assert closure((1, 2)) == closure(tuple([1, 2]))
    assert closure(float("nan")) == closure(float("nan"))
    assert closure({"a", "b", "c"}) == closure({"c", "b", "a"})
    assert closure(Plan(5)) == closure(Plan(5))


@pytest.mark.parametrize("value", [object(), (i for i in ()), open, iter([])])
def test_what_cannot_be_described_makes_a_kernel_unfit_for_disk(value):
    described = closure(value)
    assert (described is None) == (value is not open)


def test_an_array_of_objects_cannot_be_described():
    assert closure(np.array([object()])) is None


def test_recursive_functions_and_structures_end():
    source = "def kernel(n):\n    return kernel(n - 1) if n else 0\n"
    assert fingerprint(module(source).kernel) == fingerprint(module(source).kernel)
    ring = []
    ring.append(ring)
    assert closure(ring) is not None


def test_mutual_recursion_sees_a_change_in_the_other():
    source = "def kernel(n):\n    return other(n)\ndef other(n):\n    return kernel(n - 1)\n"
    changed = source.replace("n - 1", "n - 2")
    assert fingerprint(module(source).kernel) != fingerprint(module(changed).kernel)


def test_code_in_code_counts():
    source = "def kernel(n):\n    return (lambda x: x + 1)(n)\n"
    changed = source.replace("x + 1", "x + 2")
    assert fingerprint(module(source).kernel) != fingerprint(module(changed).kernel)


def test_a_method_of_a_users_class_counts():
    source = "class C:\n    def f(self):\n        return 1\nc = C()\ndef kernel():\n    return c.f()\n"
    changed = source.replace("return 1", "return 2")
    digests = fingerprint(module(source).kernel), fingerprint(module(changed).kernel)
    assert digests[0] is not None
    assert digests[0] != digests[1]


def test_an_empty_closure_cell_is_no_obstacle():
    def outer():
        def kernel():
            return later

        digest = fingerprint(kernel)
        later = 1
        return digest, fingerprint(kernel)

    before, after = outer()
    assert None is not before != after


IN_ANOTHER_PROCESS = """
import numpy as np
from dgnumba.fingerprint import fingerprint
NAMES = {"alpha", "beta", "gamma", "delta"}
TABLE = {"a": (1, 2), "b": frozenset({"x", "y", "z"})}
def helper(x): return x in NAMES
def kernel(a): return helper(a) and TABLE["a"] and a in {"p", "q", "r"} and np.float32(1)
print(fingerprint(kernel))
"""


def test_the_digest_is_the_same_in_every_process():
    digests = set()
    for seed in ("0", "1", "2"):
        env = {"PYTHONHASHSEED": seed, "PATH": "", "PYTHONPATH": ":".join(sys.path)}
        run = subprocess.run([sys.executable, "-c", IN_ANOTHER_PROCESS], capture_output=True, text=True, env=env)
        assert run.returncode == 0, run.stderr
        digests.add(run.stdout.strip())
    assert len(digests) == 1
    assert len(digests.pop()) == 64


# -- what Numba makes of functions


def jitted():
    cuda = pytest.importorskip("numba.cuda")

    def build(source, **options):
        made = module(source, cuda=cuda, options=options)
        return fingerprint(made.kernel)

    return build


DECORATED = """
@cuda.jit(device=True, **options)
def helper(x):
    return x + 1

@cuda.jit
def kernel(a):
    a[cuda.threadIdx.x] = helper(a[0])
"""


def test_a_decorated_kernel_and_its_decorated_helper_are_seen_through():
    build = jitted()
    assert build(DECORATED) == build(DECORATED)
    assert build(DECORATED) is not None
    assert build(DECORATED.replace("x + 1", "x + 2")) != build(DECORATED)


def test_a_helpers_options_count():
    build = jitted()
    assert build(DECORATED, fastmath=True) not in (build(DECORATED), None)


def test_an_intrinsic_counts_by_its_code():
    cuda = pytest.importorskip("numba.cuda")
    intrinsic = pytest.importorskip("numba.cuda.extending").intrinsic
    source = """
    @intrinsic
    def op(typingctx):
        def codegen(context, builder, signature, args):
            return 1
        return None, codegen
    def kernel():
        op()
    """
    first = fingerprint(module(source, cuda=cuda, intrinsic=intrinsic).kernel)
    changed = source.replace("return 1", "return 2")
    second = fingerprint(module(changed, cuda=cuda, intrinsic=intrinsic).kernel)
    assert first is not None
    assert first != second


def test_numba_types_are_told_apart():
    types = pytest.importorskip("numba.cuda").types
    kinds = [types.float32, types.float64, types.uint8, types.Array(types.float32, 1, "C")]
    digests = [closure(kind) for kind in kinds]
    assert None not in digests
    assert len(set(digests)) == len(kinds)


def test_an_operation_declared_by_a_user_counts_by_its_text():
    declare = pytest.importorskip("dgnumba.ptx._declare")

    def build(text):
        @declare.op(text, name=f"test.{abs(hash(text))}")
        def operation(x: u32) -> u32:
            """A test's own."""
            return x

        def kernel(a):
            a[0] = operation(a[0])

        return fingerprint(kernel)

    first, second = build("add.u32 {out}, {x}, 1;"), build("add.u32 {out}, {x}, 2;")
    assert first is not None
    assert first != second
