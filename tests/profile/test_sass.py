"""Machine code by class: opcodes, loops in both tools' words, and a compiled kernel."""

from collections import Counter

import pytest

from dgnumba import _numba, launching
from dgnumba.assemble import Cubin, find_ptxas, find_tool
from dgnumba.errors import CompileError
from dgnumba.kernels import GemmPlan
from dgnumba.kernels import sm90_fp8_gemm_1d2d_rules as dense
from dgnumba.profile import disassemble, mix, mix_of
from dgnumba.profile.sass import REST, class_of

NVDISASM = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   FADD R1, R1, R2 ;
.L_x_2:
        /*0020*/                   QGMMA.64x128x32.F32.E4M3.E4M3 R24, gdesc[UR16], R24 ;
        /*0030*/              @!P2 BRA `(.L_x_2) ;
        /*0040*/              @!UP2 UIADD3 UR1, UR1, 0x1, URZ ;
        /*0050*/               @P1 BRA `(.L_x_1) ;
        /*0060*/                   LDL.64 R2, [R1] ;
        /*0070*/                   BRA `(.L_x_9) ;
"""
CUOBJDUMP = """
        /*0000*/                   HGMMA.64x8x16.F32 R24, gdesc[UR16], R24 ;    /* 0x00000a00ff017b82 */
                                                                                /* 0x000fe20000000800 */
        /*0010*/                   FFMA R1, R1, R2, R3 ;
        /*0020*/              @P0  BRA 0x0 ;
        /*0030*/                   BRA 0x30 ;
"""


@pytest.mark.parametrize(
    ("opcode", "name"),
    [
        ("QGMMA", "tensor cores"), ("HMMA", "tensor cores"), ("IMMA", "tensor cores"), ("UTMALDG", "TMA"), ("UTMACMDFLUSH", "TMA"),
        ("SYNCS", "barriers and waits"), ("WARPGROUP", "barriers and waits"), ("LDL", "spills"), ("LDS", "shared memory"),
        ("LDSM", "shared memory"), ("STG", "global memory"), ("F2FP", "conversions"), ("FFMA", "float"), ("FMUL", "float"), ("SHFL", "shuffles"),
        ("BRA", "control"), ("IMAD", REST), ("CS2R", REST), ("UIADD3", REST), ("LEA", REST), ("STORM", REST),
    ],
)  # fmt: skip
def test_an_opcode_has_its_class(opcode, name):
    assert class_of(opcode) == name


def test_the_innermost_loop_with_products_is_found():
    found = mix(NVDISASM)
    assert found.total == Counter({REST: 2, "control": 3, "float": 1, "tensor cores": 1, "spills": 1})
    assert found.loop == Counter({"tensor cores": 1, "control": 1})


def test_cuobjdump_names_addresses():
    assert mix(CUOBJDUMP).loop == Counter({"tensor cores": 1, "float": 1, "control": 1})


def test_code_without_products_has_no_loop():
    assert mix("/*0000*/ FADD R1, R1, R2 ;\n/*0010*/ BRA 0x0 ;").loop == Counter()


@pytest.mark.skipif(not _numba.HAVE_NUMBA_CUDA or find_ptxas() is None or find_tool("nvdisasm") is None, reason="needs ptxas and nvdisasm")
def test_a_kernel_multiplies_and_promotes_in_its_loop():
    plan = GemmPlan(dense.NAME, 64, 64, 4)
    built = dense.build(plan)
    found = mix_of(launching.compiled(plan, lambda: (built.kernel, built.argtypes), **built.bounds))
    assert dense.alternates(plan)
    assert found.loop["tensor cores"] == 2 * 4  # four steps of 32 make a block of 128, and a pass has two, whose accumulators take turns
    assert found.loop["float"] >= 2 * 32  # one fma for each of the 32 accumulators of a thread
    assert found.total["spills"] == 0


def test_ptx_is_no_machine_code():
    with pytest.raises(CompileError, match="expected machine code, got PTX"):
        disassemble(Cubin(b".version 9.0", "kernel"))


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setattr("dgnumba.profile.sass.find_tool", lambda name: None)
    with pytest.raises(CompileError, match="nvdisasm or cuobjdump, got neither"):
        disassemble(Cubin(b"\x7fELF", "kernel"))
