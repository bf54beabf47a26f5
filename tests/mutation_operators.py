"""The mutation operators: small faults in a kernel's source, of the kinds that people make.

======================  ==========================================================================================================
drop barrier            `cuda.syncthreads`, `syncwarp`, named and cluster barriers: gone; of a pair that arrives and waits, both
drop fence              `fence_proxy_async`, `fence_mbarrier_init`, `wgmma.fence`: gone
drop wait               a wait for an mbarrier, for copies or for products: gone
drop arrive             an arrival at a barrier: gone; of `arrive_expect_tx` the arrival alone too
drop expect             of `arrive_expect_tx` the expectation alone
drop commit             a group is not closed
drop init               an mbarrier is not initialised
drop predicate          an ``if`` of a run-time condition always taken; the condition of an `..._if` operation true; of ``a & b`` one side
stage count             `NUM_STAGES` one more, one less
stage                   the index of a stage one more
phase                   a parity the other way round; a round that does not turn it
arrivals                an mbarrier's count, or a named barrier's threads, one (or a warp) more or less
bytes                   a transaction of 16 bytes more or less
wait count              a wait that leaves one group more in flight
edge                    ``<`` and ``<=``, ``>`` and ``>=`` exchanged; an offset in a segment (``x % 128``) one more or less
box                     an extent of a TMA box one more or less
swizzle                 a swizzle exchanged for another one; a swizzling exclusive-or left out
wrong proxy             a fence of the asynchronous proxy, or of an mbarrier's init, replaced by one of the generic proxy
late fence              a fence exchanged with the barrier that follows it
======================  ==========================================================================================================

They apply to what runs on the device, and to what makes tensor maps and descriptors. Not among them: hints (`tma.prefetch`) and the sizing
of register files (`setmaxnreg`), which no execution can show.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from typing import NamedTuple

DROPPED = {
    "drop barrier": (
        "cuda.syncthreads", "cuda.syncwarp", "thread.syncwarp", "barrier.sync", "barrier.arrive", "barrier.cluster_arrive", "barrier.cluster_wait",
    ),
    "drop fence": ("barrier.fence_proxy_async", "barrier.fence_mbarrier_init", "wgmma.fence"),
    "drop wait": (
        "mbarrier.wait", "tma.wait", "tma.wait_read", "wgmma.wait", "wgmma.wait_s32", "cp_async.wait", "thread.griddepcontrol_wait",
    ),
    "drop arrive": (
        "mbarrier.arrive", "mbarrier.arrive_if", "mbarrier.arrive_cluster_if", "mbarrier.arrive_expect_tx", "cp_async.mbarrier_arrive_noinc",
    ),
    "drop expect": ("mbarrier.expect_tx",),
    "drop commit": ("tma.commit", "wgmma.commit", "cp_async.commit"),
    "drop init": ("mbarrier.init",),
}  # fmt: skip
OPERATOR_OF = {call: operator for operator, calls in DROPPED.items() for call in calls}
PAIRS = {"barrier.cluster_arrive": "barrier.cluster_wait"}
WAIT_COUNTS = ("tma.wait", "tma.wait_read", "wgmma.wait", "wgmma.wait_s32", "cp_async.wait")
FENCES = ("barrier.fence_proxy_async", "barrier.fence_mbarrier_init")
BARRIERS = ("cuda.syncthreads", "barrier.sync", "barrier.cluster_arrive")
OTHER_EDGE = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
OTHER_SWIZZLE = {128: 64, 64: 32, 32: 128, 0: 128}
DEVICE = ("device_function", "unrolled", "cuda.jit")
FAMILIES = ("barrier", "convert", "cp_async", "matrix", "mbarrier", "memory", "thread", "tma", "transpose", "wgmma")

Path = tuple[tuple[str, int | None], ...]
Change = Callable[[ast.AST], ast.AST]


class Found(NamedTuple):
    """One mutation: which operator, on what, in which function; how to make it.

    line  where the statement begins; 0 if it does not run on the device
    """

    operator: str
    text: str
    function: str
    call: str
    path: Path
    change: Change
    line: int


def name_of(node: ast.AST) -> str:
    """``barrier.sync`` of a call of it, or of the name itself; ""."""
    node = node.func if isinstance(node, ast.Call) else node
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def is_device(node: ast.FunctionDef) -> bool:
    """Whether a function runs on the device: it says so, or, as a part of an unrolled operation, executes operations itself."""
    if node.name == "kernel" or any(name_of(d) in DEVICE for d in node.decorator_list):
        return True
    names = [name_of(n).split(".") for n in own_nodes(node) if isinstance(n, ast.Call)]
    return any(len(n) == 2 and n[0] in FAMILIES and not n[1].endswith("_for") for n in names)


def can_branch(node: ast.FunctionDef) -> bool:
    """Whether its ``if`` may be one of run time: in unrolled operations, and their parts, registers are selected, and ``if`` is the compiler's."""
    return node.name == "kernel" or any(name_of(d) in ("device_function", "cuda.jit") for d in node.decorator_list)


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All that is in a function, but not in those inside it."""
    for _, _, child in children(node):
        if not isinstance(child, ast.FunctionDef):
            yield child
            yield from own_nodes(child)


def is_run_time(node: ast.AST, own: frozenset[str]) -> bool:
    """Whether a condition is known only when the kernel runs: it names something of the function's own, or the thread."""
    return any(isinstance(n, ast.Name) and n.id in own for n in ast.walk(node))


def own_names(node: ast.FunctionDef) -> frozenset[str]:
    """The parameters and variables of a function, and who knows the thread."""
    stored = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return frozenset(stored | {a.arg for a in node.args.args} | {"cuda", "thread"})


def plus(node: ast.AST, number: int) -> ast.AST:
    return ast.BinOp(copy.deepcopy(node), ast.Add() if number > 0 else ast.Sub(), ast.Constant(abs(number)))


def argument(n: int, change: Change) -> Change:
    """The change of a call's n-th argument."""

    def changed(call: ast.AST) -> ast.AST:
        call.args[n] = change(call.args[n])
        return call

    return changed


def always(text: str) -> Change:
    return lambda node: expression(text)


def left(node: ast.AST) -> ast.AST:
    return node.left


def right(node: ast.AST) -> ast.AST:
    return node.right


def dropped(node: ast.AST) -> ast.AST:
    """A statement that is a call becomes ``pass``; where its value is used its first argument takes its place."""
    return ast.Pass() if isinstance(node, ast.Expr) else node.args[0]


def of_call(call: ast.Call, is_statement: bool) -> Iterator[tuple[str, str, Change]]:
    """(operator, what, change) of a call itself: as a statement, the change is of the statement."""
    name = name_of(call)
    on_call = (lambda change: lambda stmt: ast.Expr(change(stmt.value))) if is_statement else (lambda change: change)
    if name in OPERATOR_OF:
        yield OPERATOR_OF[name], name, dropped
    if name == "mbarrier.arrive_expect_tx":
        yield "drop expect", name, on_call(lambda c: expression(f"mbarrier.arrive({ast.unparse(c.args[0])})"))
        yield (
            "drop arrive",
            f"{name}, keeping expect_tx",
            on_call(lambda c: expression(f"mbarrier.expect_tx({ast.unparse(c.args[0])}, {ast.unparse(c.args[1])})")),
        )
        for n in (16, -16):
            yield "bytes", f"{name} {n:+d}", on_call(argument(1, lambda a, n=n: plus(a, n)))
    if name == "mbarrier.init":
        for n in (1, -1):
            yield "arrivals", f"{name} {n:+d}", on_call(argument(1, lambda a, n=n: plus(a, n)))
    if name in ("barrier.sync", "barrier.arrive"):
        for n in (32, -32):
            yield "arrivals", f"{name} {n:+d}", on_call(argument(1, lambda a, n=n: plus(a, n)))
    if name in WAIT_COUNTS:
        yield "wait count", f"{name} +1", on_call(argument(len(call.args) - 1, lambda a: plus(a, 1)))
    if name in FENCES:
        yield "wrong proxy", name, on_call(always("cuda.threadfence_block()"))
    if name.endswith("_if") and ast.unparse(call.args[0]) != "True":
        yield "drop predicate", name, on_call(argument(0, always("True")))
    if name == "mbarrier.wait":
        yield (
            "phase",
            name,
            on_call(argument(1, lambda a: a.left if isinstance(a, ast.BinOp) else ast.BinOp(a, ast.BitXor(), ast.Constant(1)))),
        )
    if name == "Slot" and len(call.args) == 2 and ast.unparse(call.args[1]) == "u32(0)":
        yield "phase", "the first Slot", on_call(argument(1, always("u32(1)")))


def of_expression(node: ast.AST, own: frozenset[str]) -> Iterator[tuple[str, str, Change]]:
    """(operator, what, change) of what is no call."""
    text = ast.unparse(node)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in OTHER_EDGE and is_run_time(node, own):
        yield "edge", text, lambda n: ast.Compare(n.left, [OTHER_EDGE[type(n.ops[0])]()], n.comparators)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd) and all(has_comparison(side) for side in (node.left, node.right)):
        yield "drop predicate", f"{text} -> right", right
        yield "drop predicate", f"{text} -> left", left
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitXor):
        if ast.unparse(node.right) == "1":
            yield "phase", text, left
        else:
            yield "swizzle", text, left
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and ast.unparse(node.right) == "128":
        for n in (1, -1):
            yield "edge", f"{text} {n:+d}", lambda m, n=n: plus(m, n)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and ast.unparse(node.left) in ("slot.stage", "stage"):
        yield "stage", text, lambda m: ast.BinOp(plus(m.left, 1), ast.Mult(), m.right)
    if isinstance(node, ast.Name) and node.id in ("NUM_STAGES", "num_stages") and isinstance(node.ctx, ast.Load):
        for n in (1, -1):
            yield "stage count", f"{node.id} {n:+d}", lambda m, n=n: plus(m, n)
    if isinstance(node, ast.IfExp) and is_run_time(node.test, own):
        yield "drop predicate", text, lambda n: n.body


def has_comparison(node: ast.AST) -> bool:
    return any(isinstance(n, ast.Compare) for n in ast.walk(node))


def of_map(node: ast.AST) -> Iterator[tuple[str, str, Change]]:
    """(operator, what, change) of a call that makes a tensor map or a descriptor."""
    name = name_of(node)
    if name == "TensorMap.of" and isinstance(node.args[1], ast.Tuple):
        for i, extent in enumerate(node.args[1].elts):
            for n in (1, -1):
                yield "box", f"{ast.unparse(node.args[0])}: {ast.unparse(extent)} {n:+d}", lambda c, i=i, n=n: with_extent(c, i, n)
    for keyword in node.keywords if isinstance(node, ast.Call) else ():
        if keyword.arg == "swizzle":
            what = f"{name}({ast.unparse(node.args[0]) + ', ' if node.args else ''}swizzle={ast.unparse(keyword.value)})"
            yield "swizzle", what, with_swizzle


def with_extent(call: ast.AST, i: int, n: int) -> ast.AST:
    call.args[1].elts[i] = plus(call.args[1].elts[i], n)
    return call


def with_swizzle(call: ast.AST) -> ast.AST:
    for keyword in call.keywords:
        if keyword.arg == "swizzle":
            now = keyword.value
            keyword.value = (
                ast.Constant(OTHER_SWIZZLE[now.value]) if isinstance(now, ast.Constant) else ast.BinOp(now, ast.FloorDiv(), ast.Constant(2))
            )
    return call


def children(node: ast.AST) -> Iterator[tuple[str, int | None, ast.AST]]:
    for field, value in ast.iter_fields(node):
        if isinstance(value, ast.AST):
            yield field, None, value
        elif isinstance(value, list):
            yield from ((field, i, item) for i, item in enumerate(value) if isinstance(item, ast.AST))


def find(tree: ast.Module) -> list[Found]:
    """Every mutation of a module, in the order of the source."""
    out: list[Found] = []

    def add(operator: str, text: str, path: Path, change: Change, call: str = "") -> None:
        out.append(Found(operator, text, function[-1], call, path, change, line[-1]))

    def visit(node: ast.AST, path: Path, on_device: bool) -> None:
        line.append(node.lineno if isinstance(node, ast.stmt) and on_device else line[-1])
        visit_at_line(node, path, on_device)
        line.pop()

    def visit_at_line(node: ast.AST, path: Path, on_device: bool) -> None:
        if isinstance(node, ast.FunctionDef):
            line[-1] = 0
            function.append(node.name)
            own.append(own_names(node))
            branches.append(can_branch(node))
            for field, i, child in children(node):
                if field == "body":
                    visit(child, (*path, (field, i)), on_device or is_device(node))
            function.pop()
            own.pop()
            branches.pop()
            return
        if isinstance(node, ast.Call):
            for operator, text, change in of_map(node):
                add(operator, text, path, change, name_of(node))
        if on_device:
            of_device(node, path)
        for field, i, child in children(node):
            if field == "test" and on_device and not branches[-1]:
                continue  # a condition of the compiler's
            is_call_statement = isinstance(node, ast.Expr) and isinstance(child, ast.Call)
            if is_call_statement and on_device:
                for f, j, inner in children(child):
                    visit(inner, (*path, (field, i), (f, j)), True)
            else:
                visit(child, (*path, (field, i)), on_device)

    def of_device(node: ast.AST, path: Path) -> None:
        if isinstance(node, ast.If) and branches[-1] and is_run_time(node.test, own[-1]):
            add("drop predicate", f"if {ast.unparse(node.test)}", (*path, ("test", None)), always("True"))
        call = node.value if isinstance(node, ast.Expr) else node
        if isinstance(call, ast.Call):
            for operator, text, change in of_call(call, isinstance(node, ast.Expr)):
                add(operator, text, path, change, name_of(call))
        elif not isinstance(node, ast.stmt):
            for operator, text, change in of_expression(node, own[-1]):
                if isinstance(node, ast.IfExp) and not branches[-1]:
                    continue
                add(operator, text, path, change)
        for field in ("body", "orelse"):
            of_block(getattr(node, field, None), field, path, node)

    def of_block(block: object, field: str, path: Path, node: ast.AST) -> None:
        if not isinstance(block, list):
            return
        names = [name_of(s.value) if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call) else "" for s in block]
        for i, (one, other) in enumerate(zip(names, names[1:])):
            if one in FENCES and other in BARRIERS:
                add("late fence", f"{one} behind {other}", path, lambda n, f=field, i=i: exchanged(n, f, i), one)
            if one in PAIRS and other == PAIRS[one]:
                add("drop barrier", f"{one} and {other}", path, lambda n, f=field, i=i: without_two(n, f, i), one)

    function, own, line, branches = ["module"], [frozenset[str]()], [0], [False]
    for field, i, child in children(tree):
        visit(child, ((field, i),), False)
    # blocks that are a function's own body
    for path, node, names in functions_of(tree):
        if is_device(node):
            function[:] = names
            line[:] = [node.body[-1].lineno]
            of_block(node.body, "body", path, node)
    return out


def functions_of(tree: ast.AST) -> Iterator[tuple[Path, ast.FunctionDef, list[str]]]:
    def walk(node: ast.AST, path: Path, names: list[str]) -> Iterator[tuple[Path, ast.FunctionDef, list[str]]]:
        for field, i, child in children(node):
            inner = [*names, child.name] if isinstance(child, ast.FunctionDef) else names
            if isinstance(child, ast.FunctionDef):
                yield (*path, (field, i)), child, inner
            yield from walk(child, (*path, (field, i)), inner)

    yield from walk(tree, (), ["module"])


def instrumented(tree: ast.Module, hit: str) -> ast.Module:
    """A copy of the module that calls ``hit(line)`` before every statement that runs on the device."""
    tree = copy.deepcopy(tree)

    def visit(node: ast.AST, on_device: bool) -> None:
        on_device = on_device or isinstance(node, ast.FunctionDef) and is_device(node)
        for _, _, child in children(node):
            visit(child, on_device)
        for field in ("body", "orelse"):
            block = getattr(node, field, None)
            if on_device and isinstance(block, list) and isinstance(node, ast.stmt):
                first = isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None
                told = [item for s in block[first:] for item in (ast.parse(f"{hit}({s.lineno})").body[0], s)]
                setattr(node, field, [*block[:first], *told])

    visit(tree, False)
    return ast.fix_missing_locations(tree)


def exchanged(node: ast.AST, field: str, i: int) -> ast.AST:
    block = getattr(node, field)
    block[i], block[i + 1] = block[i + 1], block[i]
    return node


def without_two(node: ast.AST, field: str, i: int) -> ast.AST:
    getattr(node, field)[i : i + 2] = [ast.Pass()]
    return node


def apply(tree: ast.Module, found: Found) -> ast.Module:
    """A copy of the module with the mutation made."""
    tree = copy.deepcopy(tree)
    node: ast.AST = tree
    for field, i in found.path[:-1]:
        node = getattr(node, field) if i is None else getattr(node, field)[i]
    field, i = found.path[-1]
    old = getattr(node, field) if i is None else getattr(node, field)[i]
    new = ast.copy_location(found.change(old), old)
    if i is None:
        setattr(node, field, new)
    else:
        getattr(node, field)[i] = new
    return ast.fix_missing_locations(tree)
