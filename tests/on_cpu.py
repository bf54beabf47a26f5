"""Run what Numba-CUDA makes of a function, on this machine's own processor.

The typing and the lowering under test are those of a kernel, down to LLVM's intermediate code; there the code is taken and handed to LLVM's
just-in-time compiler for the host. So the compiled meaning of an integer expression can be compared with Python's where there is no GPU. Only
functions without PTX in them can run so.
"""

import ctypes

import llvmlite.binding as llvm
import numpy as np
from numba.cuda import compiler, types

from dgnumba._numba import compile as kernel_compiler

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()

OUT = types.Array(types.uint64, 1, "C")
_engines = []  # an engine owns its code


def llvm_text(function, *argtypes):
    """LLVM's intermediate code of `function(out, *args)` for a GPU, `out` an array of uint64, under the name "probe"."""
    signature = (OUT, *(kernel_compiler.argtype(a) for a in argtypes))
    with kernel_compiler._compute_capability((9, 0)):
        result = compiler.compile_cuda(function, types.void, signature, cc=(9, 0), abi="c", abi_info={"abi_name": "probe"})
    return result._asdict()["library"].get_llvm_str()


def compiled(function, *argtypes):
    """`function(out, *args)` as an ordinary callable: out an array of uint64, the arguments integers of the widths of `argtypes`."""
    text = llvm_text(function, *argtypes)
    if " asm " in text:
        raise ValueError("a function with PTX in it cannot run on this machine's processor")
    module = llvm.parse_assembly("\n".join(line for line in text.splitlines() if not line.startswith("target ")))
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    _engines.append(engine)
    widths = [_width(kernel_compiler.argtype(a)) for a in argtypes]
    array = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
    call = ctypes.CFUNCTYPE(ctypes.c_void_p, *array, *widths)(engine.get_function_address("probe"))

    def run(out, *args):
        assert out.dtype == np.uint64 and out.ndim == 1
        values = [width(int(a)).value for width, a in zip(widths, args)]
        call(None, None, out.size, 8, out.ctypes.data, out.size, 8, *values)

    return run


def _width(ty):
    if isinstance(ty, types.Integer):
        return getattr(ctypes, f"c_{'' if ty.signed else 'u'}int{ty.bitwidth}")
    return {32: ctypes.c_uint32, 64: ctypes.c_uint64}[ty.bits]
