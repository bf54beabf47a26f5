"""Kernels with one synchronising call taken out of their source.

A site is one such call in one function of `dgnumba.kernels`. `mutated` executes the module's source anew with that call gone: as a
statement it becomes `pass`; where its value is used its first argument takes its place. Nothing on disk and nothing that is imported changes.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

import numpy as np
from cases import DENSE, PORTABLE, SKINNY, SWAPPED, plan, portable, run_plan, skinny, swapped
from kernels.int4_products import INT4, PORTABLE_INT4, Int4Product

import dgnumba.kernels
from dgnumba import emu, quant
from dgnumba.errors import EmulationError
from dgnumba.kernels import GemmPlan, smxx_cast_rules, smxx_layout_rules, smxx_quantize_rules
from dgnumba.kernels.smxx_cast_rules import BuiltCast, CastPlan
from dgnumba.kernels.smxx_layout_rules import LayoutPlan
from dgnumba.kernels.smxx_quantize_rules import AmaxPlan, QuantizePlan
from dgnumba.problem import scale_shape
from dgnumba.quant.reference import exact_integer_reference
from dgnumba.testing import assert_bits_equal, exact_problem

SYNCHRONISING = {
    "barrier.*", "mbarrier.init", "mbarrier.wait", "mbarrier.arrive", "mbarrier.arrive_if", "mbarrier.arrive_cluster_if", "mbarrier.arrive_expect_tx",
    "mbarrier.expect_tx", "tma.commit", "tma.wait", "tma.wait_read", "tma.prefetch", "wgmma.fence", "wgmma.commit", "wgmma.wait", "wgmma.wait_s32",
    "cp_async.commit", "cp_async.wait", "cuda.syncthreads", "cuda.syncwarp", "thread.syncwarp", "thread.griddepcontrol_wait",
    "thread.griddepcontrol_launch_dependents", "thread.setmaxnreg_dec", "thread.setmaxnreg_inc",
}  # fmt: skip

HALVES = {"mbarrier.arrive_expect_tx": ("mbarrier.arrive", "mbarrier.expect_tx")}
"""Two things in one call: each is also taken out alone, by leaving the other."""

PAIRS = {"barrier.cluster_arrive": "barrier.cluster_wait"}
"""One thing in two calls: they are also taken out together."""


@dataclass(frozen=True)
class Site:
    """One call to take out.

    module    of `dgnumba.kernels`
    function  innermost function around it
    call      what is called
    ordinal   which of the equal calls of that function, from 0
    leaves    the call that stays in its place, if any
    partner   the call of the same ordinal that goes with it, if any
    """

    module: str
    function: str
    call: str
    ordinal: int
    leaves: str = ""
    partner: str = ""

    def __str__(self) -> str:
        left = f" leaving {self.leaves.split('.')[1]}" if self.leaves else f" with {self.partner.split('.')[1]}" if self.partner else ""
        return f"{self.module}.{self.function}: {self.call} {self.ordinal}{left}"


MEASURING = {"sm90_ceilings"}
"""Kernels that keep a pipe busy to be timed: what they compute is not looked at."""


def modules() -> list[str]:
    """The modules of the kernels' room whose results count."""
    return sorted({m.name for m in pkgutil.iter_modules(dgnumba.kernels.__path__)} - MEASURING)


def read_source(module: str) -> tuple[str, str]:
    file = importlib.import_module(f"dgnumba.kernels.{module}").__file__
    with open(file, encoding="utf-8") as stream:
        return stream.read(), file


def _name(call: ast.Call) -> str:
    function = call.func
    return f"{function.value.id}.{function.attr}" if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) else ""


def _is_synchronising(name: str) -> bool:
    return name in SYNCHRONISING or name.partition(".")[0] + ".*" in SYNCHRONISING


class _Walk(ast.NodeTransformer):
    """Lists the sites of a module; and, told one, takes it out."""

    def __init__(self, module: str, target: Site | None = None) -> None:
        self.module, self.target = module, target
        self.found: list[Site] = []
        self.taken = 0
        self._functions = ["module"]
        self._counts: dict[tuple[str, str], int] = {}

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self._functions.append(node.name)
        self.generic_visit(node)
        self._functions.pop()
        return node

    def _site(self, call: ast.Call) -> Site | None:
        name = _name(call)
        if not _is_synchronising(name):
            return None
        key = (self._functions[-1], name)
        ordinal = self._counts.get(key, 0)
        self._counts[key] = ordinal + 1
        site = Site(self.module, *key, ordinal)
        self.found += [site, *(Site(self.module, *key, ordinal, left) for left in HALVES.get(name, ()))]
        if name in PAIRS:
            self.found.append(Site(self.module, *key, ordinal, partner=PAIRS[name]))
        return site

    def _is_target(self, site: Site | None) -> bool:
        t = self.target
        return (
            t is not None
            and site is not None
            and (t.function, t.ordinal) == (site.function, site.ordinal)
            and site.call in (t.call, t.partner)
        )

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if not isinstance(node.value, ast.Call):
            return self.generic_visit(node)
        site = self._site(node.value)
        if not self._is_target(site):
            node.value.args = [self.visit(a) for a in node.value.args]
            return node
        self.taken += 1
        if not self.target.leaves:
            return ast.copy_location(ast.Pass(), node)
        return ast.copy_location(ast.Expr(self._remaining(node.value)), node)

    def _remaining(self, call: ast.Call) -> ast.Call:
        family, name = self.target.leaves.split(".")
        left = ast.Attribute(ast.Name(family, ast.Load()), name, ast.Load())
        keep = 1 if name == "arrive" else 2
        return ast.fix_missing_locations(ast.copy_location(ast.Call(left, call.args[:keep], []), call))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        site = self._site(node)
        self.generic_visit(node)
        if not self._is_target(site):
            return node
        self.taken += 1
        return node.args[0]


def sites() -> list[Site]:
    """Every synchronising call of the kernels, in the order of the source."""
    out: list[Site] = []
    for module in modules():
        walk = _Walk(module)
        walk.visit(ast.parse(read_source(module)[0]))
        out += walk.found
    return out


def execute(module: str, tree: ast.Module, file: str, replaced: dict[str, object]) -> dict[str, object]:
    name = f"dgnumba.kernels.{module}"
    namespace: dict[str, object] = {"__name__": name, "__package__": "dgnumba.kernels", "__file__": file}
    exec(compile(ast.fix_missing_locations(tree), file, "exec", dont_inherit=True), namespace)
    real = importlib.import_module(name)
    for key, value in replaced.items():
        if key in namespace and not key.startswith("__") and hasattr(real, key):
            namespace[key] = value
    return namespace


def mutated(kernel: ModuleType, site: Site) -> SimpleNamespace:
    """A kernel's module as it would be without the call at `site`, wherever in the room that is."""
    source, file = read_source(site.module)
    walk = _Walk(site.module, site)
    tree = walk.visit(ast.parse(source))
    assert walk.taken == (2 if site.partner else 1), f"{site} is not in the source"
    own = kernel.__name__.rsplit(".", 1)[1]
    changed = execute(site.module, tree, file, {})
    if site.module != own:
        original = vars(importlib.import_module(f"dgnumba.kernels.{site.module}"))
        imported = {
            k: v
            for k, v in changed.items()
            if callable(v) and getattr(original.get(k), "__module__", None) == f"dgnumba.kernels.{site.module}"
        }
        source, file = read_source(own)
        changed = execute(own, ast.parse(source), file, imported)
    return SimpleNamespace(**changed)


@dataclass(frozen=True)
class Product:
    """A small product: a plan on a problem, and the multiprocessors of the GPU that is played; few, so that ring and staging are used again."""

    chosen: GemmPlan
    m: int
    n: int
    k: int
    num_sms: int

    def is_likely(self, site: Site) -> bool:
        """Whether it comes to the site, as far as one can tell without running it."""
        uses = {"store_rows": self.chosen.epilogue == "warp", "rotated_loop": self.chosen.rotate, "plain_loop": not self.chosen.rotate}
        return uses.get(site.function, True) and ("cluster" not in site.call or self.chosen.cluster > 1)

    def run(self, module: SimpleNamespace, policy: str) -> None:
        """Run it on a kernel's module and compare with the oracle."""
        case = exact_problem(np.random.default_rng(0), self.m, self.n, self.k, self.chosen.d_dtype)
        d = np.full((self.m, self.n), -7, case.problem.d_dtype.numpy)
        run_plan(module, self.chosen, case, d, policy, self.num_sms)
        assert_bits_equal(d, exact_integer_reference(*case.a, *case.b, self.chosen.d_dtype), self.chosen.name)


@dataclass(frozen=True)
class Cast:
    """A small cast to FP8: one scale for each block of `shape`, of 128 x 128 float32."""

    blocks: str
    shape: tuple[int, int]

    def is_likely(self, site: Site) -> bool:
        """As in `Product`; the three kernels of the casts have one name."""
        return True

    def run(self, module: SimpleNamespace, policy: str) -> None:
        """Run it on the module of the cast kernels and compare with the host's."""
        x = np.random.default_rng(0).standard_normal((128, 128)).astype(np.float32)
        q, scale = np.zeros(x.shape, np.uint8), np.zeros(scale_shape(x.shape, self.shape), np.float32)
        chosen = CastPlan(self.blocks, "float32")
        args = (x, *x.strides, q, scale, *scale.strides, *x.shape)
        run_by_address(module, smxx_cast_rules, chosen, args, policy)
        expected = getattr(quant, f"per_{self.blocks}_cast_to_fp8")(x)
        assert_bits_equal(scale, expected.scale, self.blocks)
        assert_bits_equal(q, expected.codes, self.blocks)


@dataclass(frozen=True)
class Turn:
    """Scales turned to MN-major."""

    def is_likely(self, site: Site) -> bool:
        """As in `Product`."""
        return True

    def run(self, module: SimpleNamespace, policy: str) -> None:
        """Run it on the module of the moves of scales."""
        scales = np.random.default_rng(0).random((64, 64)).astype(np.float32)
        turned = np.zeros((64, 64), np.float32)
        args = (scales, *scales.strides, turned, turned.strides[0], 0, *scales.shape)
        run_by_address(module, smxx_layout_rules, LayoutPlan("turn"), args, policy)
        assert_bits_equal(turned, np.ascontiguousarray(scales.T))


@dataclass(frozen=True)
class RowCast:
    """Two rows to int8, a CTA one after the other."""

    def is_likely(self, site: Site) -> bool:
        """As in `Product`; the kernels of a room have one name."""
        return site.ordinal < 2

    def run(self, module: SimpleNamespace, policy: str) -> None:
        """Run it on the module of the casts to few bits and compare with the host's."""
        x = np.random.default_rng(0).standard_normal((2, 1024)).astype(np.float32)
        q, scale, chosen = np.zeros(x.shape, np.uint8), np.zeros((2, 1), np.float32), QuantizePlan("int8", "float32", "row", 64)
        run_kernel(module.build(chosen), (1, 1), (x, *x.strides, q, scale, *scale.strides, *x.shape, 0, 0), policy)
        expected = quant.quantize(x, "int8_row")
        assert_bits_equal(scale, expected.scale, "row")
        assert_bits_equal(q, expected.codes, "row")


@dataclass(frozen=True)
class LookForAmax:
    """The largest magnitude of a small matrix."""

    def is_likely(self, site: Site) -> bool:
        """As in `Product`."""
        return True

    def run(self, module: SimpleNamespace, policy: str) -> None:
        """Run it on the module of the casts to few bits."""
        x = np.random.default_rng(0).standard_normal((34, 48)).astype(np.float32)
        partials, chosen = np.ones(smxx_quantize_rules.PARTIALS, np.float32), AmaxPlan("float32", True)
        grid = smxx_quantize_rules.amax_grid(*x.shape)
        run_kernel(module.build_amax(chosen), grid, (x, *x.strides, 0, partials, 0, 0, *x.shape, 0, 0), policy)
        assert_bits_equal(partials.max(), np.abs(x).max())


def run_kernel(built: BuiltCast, grid: tuple[int, int], args: tuple, policy: str) -> None:
    """Step a kernel that takes arrays as addresses."""
    arrays = [a for a in args if isinstance(a, np.ndarray)]
    values = [kind(a.ctypes.data if isinstance(a, np.ndarray) else a) for kind, a in zip(built.argtypes, args, strict=True)]
    emu.run(built.kernel, grid, built.threads, values, policy=policy, arrays=arrays)


def run_by_address(module: SimpleNamespace, rules: ModuleType, chosen: object, args: tuple, policy: str) -> None:
    """Step the kernel that `module` builds of a plan, which takes arrays as addresses."""
    run_kernel(module.build(chosen), rules.grid(chosen, *args[-2:]), args, policy)


TRIALS = {
    DENSE.NAME: [
        Product(plan(16, 16), 17, 33, 600, 1),
        Product(plan(16, 16, share="A"), 16, 80, 400, 2),
        Product(plan(16, 16, epilogue="direct"), 17, 33, 600, 1),
        Product(plan(256, 16), 257, 16, 520, 1),
        Product(plan(16, 16, rotate=True), 17, 33, 600, 1),
        Product(plan(256, 16, rotate=True, overlap=True), 257, 32, 520, 1),
        Product(plan(64, 64, epilogue="warp"), 65, 136, 130, 1),
    ],
    SWAPPED.NAME: [
        Product(swapped(8, 64), 8, 130, 500, 1),
        Product(swapped(8, 64, split=2), 8, 64, 900, 132),
        Product(swapped(8, 64, block_k=256), 8, 130, 1024, 1),
        Product(swapped(8, 64, block_k=512), 8, 130, 2048, 1),
    ],
    SKINNY.NAME: [Product(skinny(8, 2, 2), 5, 50, 640, 132), Product(skinny(16, 1, 1, block_n=32), 9, 40, 256, 132)],
    PORTABLE.NAME: [
        Product(portable("float8_e4m3fn", 16, 64), 16, 60, 640, 132),
        Product(portable("float8_e4m3fn", 16, 64, 4), 16, 60, 100, 132),
    ],
    INT4.NAME: [
        Int4Product("bfloat16", "int4_g128", 8, 130, 500, (8, 64, 1, 2, 1), 1),
        Int4Product("bfloat16", "int4_g128", 8, 64, 512, (8, 64, 2, 2, 2)),
        Int4Product("float8_e4m3fn", "uint4_g64", 8, 70, 500, (8, 64, 1, 2, 1), 1),
        Int4Product("int8", "int4_g64", 8, 70, 500, (8, 64, 1, 2, 1), 1),
        Int4Product("int8", "int4_row", 8, 70, 512, (8, 64, 2, 2, 1), 1, "int32"),
    ],
    PORTABLE_INT4.NAME: [
        Int4Product("bfloat16", "int4_row", 8, 20, 600, (8, 64, 1, 3, 1), kernel=PORTABLE_INT4.NAME),
        Int4Product("float8_e4m3fn", "uint4_g64", 8, 20, 200, (8, 64, 1, 3, 1), kernel=PORTABLE_INT4.NAME),
        Int4Product("bfloat16", "int4_row", 8, 20, 100, (8, 64, 1, 4, 1), kernel=PORTABLE_INT4.NAME),
    ],
    "smxx_cast": [Cast("block", (128, 128)), Cast("channel", (128, 1)), Cast("token", (1, 128))],
    "smxx_layout": [Turn()],
    "smxx_quantize": [RowCast(), LookForAmax()],
}
"""A kernel's module -> small runs of it that between them come to every branch."""


def kernels_of(site: Site) -> list[ModuleType]:
    """The kernels that the site is a part of: its own module, or those that import from it."""
    kernels = [importlib.import_module(f"dgnumba.kernels.{name}") for name in TRIALS]
    own = f"dgnumba.kernels.{site.module}"
    if site.module in TRIALS:
        return [k for k in kernels if k.__name__ == own]
    return [k for k in kernels if any(getattr(v, "__module__", None) == own for v in vars(k).values() if callable(v))]


def verdict(site: Site, policy: str) -> tuple[str, str]:
    """What the emulator says of the kernel without this call: ("reported", its words), ("wrong result", ...) or ("unnoticed", "")."""
    worst = ("unnoticed", "")
    for kernel in kernels_of(site):
        module = mutated(kernel, site)
        trials = TRIALS[kernel.__name__.rsplit(".", 1)[1]]
        for trial in sorted(trials, key=lambda t: not t.is_likely(site)):
            try:
                trial.run(module, policy)
            except EmulationError as error:
                return "reported", f"{type(error).__name__}: {error}"
            except AssertionError as error:
                worst = ("wrong result", f"{trial}: {error}")
    return worst
