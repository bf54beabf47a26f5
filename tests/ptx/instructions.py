"""Every operation of `dgnumba.ptx`, and a kernel that calls any choice of them with arguments of the right kind."""

import re

import numpy as np

from dgnumba import ptx
from dgnumba.integers import u32, u64
from dgnumba.kernels import GemmPlan, sm90_fp8_gemm_1d2d
from dgnumba.layouts.descriptors import SmemDescriptor, TensorMap
from dgnumba.ptx import matrix, mma, wgmma

FAMILIES = {
    name: getattr(ptx, name)
    for name in (
        "activation",
        "barrier",
        "clock",
        "convert",
        "cp_async",
        "fragment",
        "matrix",
        "mbarrier",
        "memory",
        "mma",
        "packed",
        "prefetch",
        "st_async",
        "thread",
        "tma",
        "transpose",
        "unpack",
        "wgmma",
    )
}

# The operations that are made to measure: one of each is enough to look at.
MMA = wgmma.mma_for("float8_e4m3fn", "float8_e4m3fn", a=SmemDescriptor(), b=SmemDescriptor())
MMA_RS = wgmma.mma_rs_for("float8_e4m3fn", "float8_e4m3fn", b=SmemDescriptor())
MMA_RS_F16 = wgmma.mma_rs_f16_for("float8_e4m3fn", "float8_e4m3fn", b=SmemDescriptor())
MMA_RS_S8 = wgmma.mma_rs_s8_for(b=SmemDescriptor())
MMA_TILE = mma.tile_for("bfloat16", 2, 4)
LOAD_TILES = matrix.load_tiles_for(2, 2048)
for epilogue, d_dtype in (("tma", "bfloat16"), ("warp", "bfloat16"), ("direct", "float32")):
    sm90_fp8_gemm_1d2d.build(GemmPlan("sm90_fp8_gemm_1d2d", 64, 64, 4, epilogue=epilogue, d_dtype=d_dtype))

OPERATIONS = {name: o for name, o in sorted(ptx.OPS.items()) if o.body.__module__.startswith("dgnumba.")}
"""Name -> declaration of all that the package declares; tests declare operations of their own, which are not meant."""

MADE_TO_MEASURE = {name for name in OPERATIONS if getattr(FAMILIES.get(name.split(".")[0]), name.split(".")[1], None) is None}
"""What a factory returns, so that a kernel cannot name it as `family.operation`."""

CALLABLE = {name: o for name, o in OPERATIONS.items() if name not in MADE_TO_MEASURE}

IMMEDIATE = {
    "thread.setmaxnreg_dec": "40",
    "thread.setmaxnreg_inc": "232",
    "convert.shr_s32": "4",
    "fragment.shift_s32": "4",
    "fragment.zero": "8",
    "fragment.zero_u32": "8",
    "fragment.undefined": "8",
    "fragment.part": "4",
    "fragment.zero_s32": "4",
    "fragment.undefined_s32": "4",
    "wgmma.wait_s32": "1",
    "wgmma.wait": "1",
    "cp_async.wait": "1",
    "transpose.shfl_bfly": "1",
}

GOOD = {
    "u32": ("a", "b", "i0", "i1", "i2", "i3", "i4", "i5"),
    "u64": ("q", "q"),
    "f32": ("f0", "f1", "f2", "f3"),
    "bool": ("(a < b)",),
    "fragment": ("frag", "frag", "frag", "frag2"),
    "registers": ("regs", "regs"),
    "registers 2": ("regs2",),
    "registers 4": ("regs", "regs"),
    "fragment 2": ("frag2",),
    "fragment 4": ("frag4",),
    "tensor_map": ("tmap",),
    "array": ("array",),
}

BETTER = {"fragment.promote_s32": {"total": "frag4", "rows": "frag2"}, "fragment.promote_both": {"rows": "frag2"}}
"""Where the lengths of two lists go together."""

SINKS = {
    "u32": "    memory.store_shared_u32(sink, {r})",
    "u64": "    memory.store_global_f32_if(a < b, {r}, f0)",
    "f32": "    memory.store_shared_f32(sink, {r})",
    "bool": "    memory.store_shared_u32(sink, u32({r}))",
    "registers": "    memory.store_shared_u32(sink, {r}[0] ^ {r}[1])",
    "fragment": "    memory.store_shared_f32(sink, {r}[0] + {r}[1])",
}

ARRAY = np.zeros(16, np.float32)
TMAP = TensorMap.of(np.zeros((64, 64, 64), np.uint8), (16, 8, 2))
ARGTYPES = (TMAP, ARRAY, u32, u32, u32, u64, np.float32(0))


def arguments(operation, **spoiled):
    """The text of a call's arguments: of the right kind, but for those named in `spoiled`."""
    left = {kind: list(names) for kind, names in GOOD.items()}
    out = []
    for name, kind in operation.params:
        kind = f"{kind} {operation.counts[name]}" if name in operation.counts else kind
        good = IMMEDIATE.get(operation.name, "0") if kind == "imm" else left[kind].pop(0)
        out.append(spoiled.get(name, BETTER.get(operation.name, {}).get(name, good)))
    return ", ".join(out)


def kernel_of(names, **spoiled):
    """A kernel `(tmap, array, a, b, sink, q, f)` that calls these operations one after another and keeps what they return."""
    lines = ["def kernel(tmap, array, a, b, sink, q, f0):"]
    lines += [f"    i{i} = a + {16 * i + 16}" for i in range(6)]
    lines += ["    f1 = memory.load_shared_f32(a)", "    f2 = memory.load_shared_f32(b)", "    f3 = memory.load_shared_f32(a + 4)"]
    lines += [
        "    regs = memory.load_shared_v4(a)",
        "    regs2 = regs[:2]",
        "    frag4 = memory.load_shared_v4_f32(b)",
        "    frag = fragment.promote(fragment.zero(8), fragment.zero(8), (f0, f1))",
        "    frag2 = memory.load_shared_v2_f32(a)",
    ]
    for number, name in enumerate(names):
        operation = CALLABLE[name]
        call = f"{name}({arguments(operation, **spoiled)})"
        kind = operation.result if isinstance(operation.result, str) else operation.result and operation.result[0]
        lines.append(f"    {call}" if kind is None else f"    r{number} = {call}")
        if kind == "same":
            kind = operation.params[operation.tied_index][1]
        if kind is not None:
            lines.append(SINKS[kind].format(r=f"r{number}"))
    namespace = {**FAMILIES, "u32": u32, "u64": u64, "np": np}
    exec("\n".join(lines), namespace)
    return namespace["kernel"]


def keys(operation):
    """The keys of an operation's docstring: name -> text."""
    _, _, rest = operation.function.__doc__.strip().partition("\n")
    found = re.split(r"^\s*([A-Z][a-z]+|PTX):\s+", rest, flags=re.MULTILINE)
    return dict(zip(found[1::2], found[2::2]))


def needs(operation):
    """The least architecture of an operation, as a number: 80, 90."""
    found = re.search(r"sm_(\d+)", keys(operation)["PTX"])
    return int(found.group(1)) if found else 0
