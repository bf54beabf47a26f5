"""What each operation becomes: its instruction in the PTX of a kernel, taken by ptxas."""

import re

import pytest
from ptx.instructions import ARGTYPES, CALLABLE, kernel_of, needs

from dgnumba import _numba
from dgnumba.assemble import find_ptxas, ptxas
from dgnumba.errors import CompileError
from dgnumba.ptx import tma

pytestmark = pytest.mark.skipif(not _numba.HAVE_NUMBA_CUDA or find_ptxas() is None, reason="needs numba-cuda and ptxas")

R, RD, F, P = r"%r\d+", r"%rd\d+", r"%f\d+", r"\w+"
_TENSOR = r"cp\.async\.bulk\.tensor\.{d}\.shared::cluster\.global\.mbarrier::complete_tx::bytes"
_TO_GLOBAL = r"cp\.async\.bulk\.tensor\.{d}\.global\.shared::cta\.bulk_group"
_IF_FIRST = rf"setp\.ne\.b32 p, {R}, 0; "
_IF = _IF_FIRST + "@p "
_MMA = (
    r"mma\.sync\.aligned\.m16n8k{k}\.row\.col\.{acc}\.{t}\.{t}\.{acc} "
    rf"{{{{{{r}}, {{r}}, {{r}}, {{r}}}}}}, {{{{{R}, {R}, {R}, {R}}}}}, {{{{{R}, {R}}}}}, {{{{{{r}}, {{r}}, {{r}}, {{r}}}}}};"
)
_RECORD = (
    r"mov\.u32 lane, %laneid; setp\.eq\.u32 p, lane, 0; setp\.ne\.and\.b32 q, dgnumba_records_left, 0, p; mov\.u64 now, %{clock}; "
    rf"mov\.b64 tag, {{{{0, {R}}}}}; @q st\.global\.v2\.b64 \[dgnumba_record_at\], {{{{now, tag}}}}; "
    r"@q add\.u64 dgnumba_record_at, dgnumba_record_at, 16; @q sub\.u32 dgnumba_records_left, dgnumba_records_left, 1;"
)

# Written from the PTX ISA, not from the declarations; `{r}` etc. are registers.
GOLDEN = {
    "barrier.arrive": rf"bar\.arrive {R}, {R};",
    "barrier.cluster_arrive": r"barrier\.cluster\.arrive\.release;",
    "barrier.cluster_wait": r"barrier\.cluster\.wait\.acquire;",
    "barrier.fence_mbarrier_init": r"fence\.mbarrier_init\.release\.cluster;",
    "barrier.fence_proxy_async": r"fence\.proxy\.async\.shared::cta;",
    "barrier.sync": rf"bar\.sync {R}, {R};",
    "clock.begin": r"\.reg \.b64 dgnumba_record_at; \.reg \.b32 dgnumba_records_left; "
    rf"mov\.b64 dgnumba_record_at, {RD}; mov\.b32 dgnumba_records_left, {R};",
    "clock.clock64": rf"mov\.u64 {RD}, %clock64;",
    "clock.globaltimer": rf"mov\.u64 {RD}, %globaltimer;",
    "clock.record": _RECORD.format(clock="clock64"),
    "clock.record_of": _RECORD.format(clock="clock64"),
    "clock.record_time": _RECORD.format(clock="globaltimer"),
    "clock.smid": rf"mov\.u32 {R}, %smid;",
    "convert.add": rf"add\.rn\.f32 {F}, {F}, {F};",
    "convert.bf16x2_to_f32x2": rf"shl\.b32 t, {R}, 16; mov\.b32 {F}, t; and\.b32 t, {R}, 0xffff0000; mov\.b32 {F}, t;",
    "convert.bits_to_f32": rf"mov\.b32 {F}, {R};",
    "convert.divide": rf"div\.rn\.f32 {F}, {F}, {F};",
    "convert.e4m3x4_to_f16x4": rf"mov\.b32 scale, 0x5c005c00; prmt\.b32 t, {R}, 0, 0x1404; .*? mul\.rn\.f16x2 t, t, scale; or\.b32 {R}, t, nan; "
    rf"prmt\.b32 t, {R}, 0, 0x3424; .*? mul\.rn\.f16x2 t, t, scale; or\.b32 {R}, t, nan;",
    "convert.f16x2_to_f32x2": rf"mov\.b32 {{low, high}}, {R}; cvt\.f32\.f16 {F}, low; cvt\.f32\.f16 {F}, high;",
    "convert.f32_to_bits": rf"mov\.b32 {R}, {F};",
    "convert.f32x2_to_bf16x2": rf"cvt\.rn\.bf16x2\.f32 {R}, {F}, {F};",
    "convert.f32x2_to_f16x2": rf"cvt\.rn\.f16x2\.f32 {R}, {F}, {F};",
    "convert.f32x2_to_f16x2_to_zero": rf"cvt\.rz\.f16x2\.f32 {R}, {F}, {F};",
    "convert.f32x4_to_e4m3x4": rf"cvt\.rn\.satfinite\.e4m3x2\.f32 low, {F}, {F}; cvt\.rn\.satfinite\.e4m3x2\.f32 high, {F}, {F}; "
    rf"mov\.b32 {R}, {{low, high}};",
    "convert.fma": rf"fma\.rn\.f32 {F}, {F}, {F}, {F};",
    "packed.fma_f16x2": rf"fma\.rn\.f16x2 {R}, {R}, {R}, {R};",
    "packed.fma_bf16x2": rf"fma\.rn\.bf16x2 {R}, {R}, {R}, {R};",
    "convert.fma_up": rf"fma\.rp\.f32 {F}, {F}, {F}, {F};",
    "convert.forget": r"// forget",
    "unpack.e4m3x2_to_f32x2": rf"cvt\.u16\.u32 pair, {R}; cvt\.rn\.f16x2\.e4m3x2 wide, pair; ",
    "convert.cvt_e4m3x4_to_f16x4": rf"mov\.b32 {{low, high}}, {R}; cvt\.rn\.f16x2\.e4m3x2 {R}, low; cvt\.rn\.f16x2\.e4m3x2 {R}, high; ",
    "convert.shr_s32": rf"shr\.s32 {R}, {R}, 4;",
    "fragment.shift_s32": rf"shr\.s32 {R}, {R}, 4;",
    "convert.s32_to_f32": rf"cvt\.rn\.f32\.s32 {F}, {R};",
    "activation.silu": rf"mul\.rn\.f32 t, {F}, 0fBFB8AA3B; ex2\.approx\.ftz\.f32 e, t; add\.rn\.f32 e, e, 0f3F800000; div\.rn\.f32 {F}, {F}, e;",
    "convert.magnitude": rf"abs\.f32 {F}, {F};",
    "convert.max_magnitude": rf"abs\.f32 t, {F}; max\.NaN\.f32 {F}, {F}, t;",
    "convert.multiply_to_zero": rf"mul\.rz\.f32 {F}, {F}, {F};",
    "packed.max_magnitude_bf16x2": rf"abs\.bf16x2 t, {R}; max\.NaN\.bf16x2 {R}, {R}, t;",
    "packed.max_magnitude_f16x2": rf"abs\.f16x2 t, {R}; max\.NaN\.f16x2 {R}, {R}, t;",
    "packed.merge_bits": rf"lop3\.b32 {R}, {R}, {R}, \d+, 0xe4;",
    "packed.multiply_bf16x2": rf"mul\.rn\.bf16x2 {R}, {R}, {R};",
    "packed.multiply_f16x2": rf"mul\.rn\.f16x2 {R}, {R}, {R};",
    "packed.permute_bytes": rf"prmt\.b32 {R}, {R}, {R}, \d+;",
    "convert.reciprocal": rf"rcp\.rn\.f32 {F}, {F};",
    "convert.reciprocal_of_normal": rf"rcp\.approx\.ftz\.f32 about, {F}; neg\.f32 left, {F}; fma\.rn\.f32 left, left, about, 0f3F800000; "
    rf"fma\.rn\.f32 {F}, about, left, about;",
    "packed.smaller_bf16x2": rf"min\.bf16x2 {R}, {R}, {R};",
    "convert.smaller": rf"min\.f32 {F}, {F}, {F};",
    "cp_async.commit": r"cp\.async\.commit_group;",
    "cp_async.copy_4": rf"cp\.async\.ca\.shared\.global\.L2::128B \[{R}\], \[{RD}\], 4;",
    "cp_async.mbarrier_arrive_noinc": rf"cp\.async\.mbarrier\.arrive\.noinc\.shared::cta\.b64 \[{R}\];",
    "cp_async.copy_16": rf"cp\.async\.cg\.shared\.global\.L2::128B \[{R}\], \[{RD}\], 16;",
    "cp_async.copy_16_zfill": rf"cp\.async\.cg\.shared\.global\.L2::128B \[{R}\], \[{RD}\], 16, {R};",
    "cp_async.wait": r"cp\.async\.wait_group 1;",
    "fragment.promote": rf"fma\.rn\.f32 {F}, {F}, {F}, {F};",
    "fragment.promote_columns": rf"mul\.(?:rn\.)?f32 {F}, {F}, {F};",
    "fragment.bits": rf"mov\.b32 {R}, {F};",
    "memory.load_cluster_u32": rf"ld\.shared::cluster\.b32 {R}, \[{R}\];",
    "fragment.promote_f16x2": rf"fma\.rn\.f16x2 {R}, {R}, {R}, {R};",
    "fragment.scaled_f16x2_bits": rf"(?s)cvt\.f32\.f16 {F}, low; cvt\.f32\.f16 {F}, high;.*?mul\.(?:rn\.)?f32 {F}, {F}, {F};",
    "fragment.promote_both": rf"mul\.(?:rn\.)?f32 {F}, {F}, {F};",
    "fragment.promote_s32": rf"cvt\.rn\.f32\.s32 {F}, {R};",
    "fragment.undefined": r"",
    "fragment.part": r"",
    "fragment.join": r"",
    "fragment.zero_s32": r"",
    "fragment.undefined_s32": r"",
    "fragment.zero": r"",
    "fragment.zero_u32": r"",
    "matrix.ldmatrix_x2": rf"ldmatrix\.sync\.aligned\.m8n8\.x2\.shared\.b16 {{{R}, {R}}}, \[{R}\];",
    "matrix.ldmatrix_x2_trans": rf"ldmatrix\.sync\.aligned\.m8n8\.x2\.trans\.shared\.b16 {{{R}, {R}}}, \[{R}\];",
    "matrix.ldmatrix_x4": rf"ldmatrix\.sync\.aligned\.m8n8\.x4\.shared\.b16 {{{R}, {R}, {R}, {R}}}, \[{R}\];",
    "matrix.ldmatrix_x4_trans": rf"ldmatrix\.sync\.aligned\.m8n8\.x4\.trans\.shared\.b16 {{{R}, {R}, {R}, {R}}}, \[{R}\];",
    "matrix.stmatrix_x1": rf"stmatrix\.sync\.aligned\.m8n8\.x1\.shared\.b16 \[{R}\], {{{R}}};",
    "matrix.stmatrix_x2": rf"stmatrix\.sync\.aligned\.m8n8\.x2\.shared\.b16 \[{R}\], {{{R}, {R}}};",
    "matrix.stmatrix_x2_trans": rf"stmatrix\.sync\.aligned\.m8n8\.x2\.trans\.shared\.b16 \[{R}\], {{{R}, {R}}};",
    "matrix.stmatrix_x4_trans": rf"stmatrix\.sync\.aligned\.m8n8\.x4\.trans\.shared\.b16 \[{R}\], {{{R}, {R}, {R}, {R}}};",
    "matrix.stmatrix_x4": rf"stmatrix\.sync\.aligned\.m8n8\.x4\.shared\.b16 \[{R}\], {{{R}, {R}, {R}, {R}}};",
    "transpose.movmatrix": rf"movmatrix\.sync\.aligned\.m8n8\.trans\.b16 {R}, {R};",
    "transpose.quads": rf"(?s)movmatrix\.sync\.aligned\.m8n8\.trans\.b16 {R}, {R};.*?shfl\.sync\.bfly\.b32 {R}, {R}, 1, 31, 0xffffffff;",
    "transpose.shfl_bfly": rf"shfl\.sync\.bfly\.b32 {R}, {R}, 1, 31, 0xffffffff;",
    "transpose.store_global_v2_if": rf"setp\.ne\.b32 p, {R}, 0; @p st\.global\.v2\.b32 \[{RD}\], {{{R}, {R}}};",
    "mbarrier.arrive": rf"mbarrier\.arrive\.shared::cta\.b64 _, \[{R}\];",
    "mbarrier.arrive_cluster_if": rf"setp\.ne\.b32 p, {R}, 0; @p mapa\.shared::cluster\.u32 remote, {R}, {R}; "
    r"@p mbarrier\.arrive\.shared::cluster\.b64 _, \[remote\];",
    "mbarrier.arrive_expect_tx": rf"mbarrier\.arrive\.expect_tx\.shared::cta\.b64 _, \[{R}\], {R};",
    "mbarrier.arrive_if": rf"{_IF}mbarrier\.arrive\.shared::cta\.b64 _, \[{R}\];",
    "mbarrier.expect_tx": rf"mbarrier\.expect_tx\.relaxed\.cta\.shared::cta\.b64 \[{R}\], {R};",
    "mbarrier.init": rf"mbarrier\.init\.shared::cta\.b64 \[{R}\], {R};",
    "mbarrier.wait": rf"mbarrier\.try_wait\.parity\.shared::cta\.b64 p, \[{R}\], {R}; @p bra \w+; bra \w+;",
    "memory.global_address": rf"mov\.b64 {RD}, {RD};",
    "memory.load_global_f32": rf"ld\.global\.f32 {F}, \[{RD}\];",
    "memory.load_cluster_f32": rf"ld\.shared::cluster\.f32 {F}, \[{R}\];",
    "memory.load_shared_v2_f32": rf"ld\.shared\.v2\.f32 {{{F}, {F}}}, \[{R}\];",
    "memory.store_global_bf16_if": rf"setp\.ne\.b32 p, {R}, 0; cvt\.rn\.bf16\.f32 half, {F}; @p st\.global\.b16 \[{RD}\], half;",
    "memory.load_global_u16_if": rf"{_IF_FIRST}.reg \.b16 half; mov\.b16 half, 0; @p ld\.global\.b16 half, \[{RD}\]; cvt\.u32\.u16 {R}, half;",
    "memory.load_global_u32_if": rf"{_IF_FIRST}mov\.b32 {R}, 0; @p ld\.global\.b32 {R}, \[{RD}\];",
    "memory.load_global_v4": rf"ld\.global\.nc\.v4\.b32 {{{R}, {R}, {R}, {R}}}, \[{RD}\];",
    "memory.load_global_v4_once": rf"ld\.global\.nc\.L1::no_allocate\.L2::128B\.v4\.b32 {{{R}, {R}, {R}, {R}}}, \[{RD}\];",
    "memory.load_global_v2_f32_if": rf"{_IF_FIRST}(mov\.b32 {F}, 0; ){{2}}@p ld\.global\.v2\.f32 {{{F}, {F}}}, \[{RD}\];",
    "memory.load_global_v4_if": rf"{_IF_FIRST}(mov\.b32 {R}, 0; ){{4}}@p ld\.global\.v4\.b32 {{{R}, {R}, {R}, {R}}}, \[{RD}\];",
    "memory.load_shared_f32": rf"ld\.shared\.f32 {F}, \[{R}\];",
    "memory.load_shared_u16": rf"ld\.shared\.b16 half, \[{R}\]; cvt\.u32\.u16 {R}, half;",
    "memory.load_shared_u32": rf"ld\.shared\.b32 {R}, \[{R}\];",
    "memory.load_shared_v4": rf"ld\.shared\.v4\.b32 {{{R}, {R}, {R}, {R}}}, \[{R}\];",
    "memory.load_shared_v4_f32": rf"ld\.shared\.v4\.f32 {{{F}, {F}, {F}, {F}}}, \[{R}\];",
    "memory.shared_address": rf"cvta\.to\.shared\.u64 t, {RD}; cvt\.u32\.u64 {R}, t;",
    "memory.store_global_f16_if": rf"setp\.ne\.b32 p, {R}, 0; cvt\.rn\.f16\.f32 half, {F}; @p st\.global\.b16 \[{RD}\], half;",
    "memory.store_global_f32_if": rf"{_IF}st\.global\.f32 \[{RD}\], {F};",
    "memory.store_global_u32_if": rf"{_IF}st\.global\.b32 \[{RD}\], {R};",
    "memory.store_global_u8_if": rf"{_IF_FIRST}.reg \.b16 byte; cvt\.u16\.u32 byte, {R}; @p st\.global\.b8 \[{RD}\], byte;",
    "memory.store_global_v2_f32_if": rf"{_IF}st\.global\.v2\.f32 \[{RD}\], {{{F}, {F}}};",
    "memory.store_global_v4_if": rf"{_IF}st\.global\.v4\.b32 \[{RD}\], {{{R}, {R}, {R}, {R}}};",
    "memory.store_shared_f32": rf"st\.shared\.f32 \[{R}\], {F};",
    "memory.store_shared_v4_f32": rf"st\.shared\.v4\.f32 \[{R}\], {{{F}, {F}, {F}, {F}}};",
    "memory.store_shared_u32": rf"st\.shared\.b32 \[{R}\], {R};",
    "mma.m16n8k16_bf16": _MMA.format(k=16, acc="f32", t="bf16", r=F),
    "mma.m16n8k16_f16": _MMA.format(k=16, acc="f32", t="f16", r=F),
    "mma.m16n8k32_e4m3": _MMA.format(k=32, acc="f32", t="e4m3", r=F),
    "mma.m16n8k32_s8": _MMA.format(k=32, acc="s32", t="s8", r=R),
    "mma.m16n8k64_s4": _MMA.format(k=64, acc="s32", t="s4", r=R),
    "prefetch.bulk": rf"cp\.async\.bulk\.prefetch\.L2\.global \[{RD}\], {R};",
    "prefetch.line": rf"prefetch\.global\.L2 \[{RD}\];",
    "prefetch.load_global_v4_once": rf"ld\.global\.L1::no_allocate\.L2::128B\.v4\.b32 {{{R}, {R}, {R}, {R}}}, \[{RD}\];",
    "prefetch.tensor_2d": rf"cp\.async\.bulk\.prefetch\.tensor\.2d\.L2\.global\.tile \[{RD}, {{{R}, {R}}}\];",
    "prefetch.tensor_3d": rf"cp\.async\.bulk\.prefetch\.tensor\.3d\.L2\.global\.tile \[{RD}, {{{R}, {R}, {R}}}\];",
    "st_async.store_f32": rf"st\.async\.weak\.shared::cluster\.mbarrier::complete_tx::bytes\.f32 \[{R}\], {F}, \[{R}\];",
    "thread.redux_max": rf"redux\.sync\.max\.u32 {R}, {R}, 0xffffffff;",
    "thread.cluster_ctarank": rf"mov\.u32 {R}, %cluster_ctarank;",
    "thread.griddepcontrol_launch_dependents": r"griddepcontrol\.launch_dependents;",
    "thread.griddepcontrol_wait": r"griddepcontrol\.wait;",
    "thread.lane_idx": rf"mov\.u32 {R}, %laneid;",
    "thread.mapa": rf"mapa\.shared::cluster\.u32 {R}, {R}, {R};",
    "thread.setmaxnreg_dec": r"setmaxnreg\.dec\.sync\.aligned\.u32 40;",
    "thread.setmaxnreg_inc": r"setmaxnreg\.inc\.sync\.aligned\.u32 232;",
    "thread.nanosleep": r"nanosleep\.u32 \d+;",
    "thread.syncwarp": r"bar\.warp\.sync 0xffffffff;",
    "thread.uniform": rf"shfl\.sync\.idx\.b32 {R}, {R}, 0, 31, 0xffffffff;",
    "tma.commit": r"cp\.async\.bulk\.commit_group;",
    "tma.load_2d": _TENSOR.format(d="2d") + rf" \[{R}\], \[{RD}, {{{R}, {R}}}\], \[{R}\];",
    "tma.load_2d_multicast": rf"cvt\.u16\.u32 mask, {R}; " + _TENSOR.format(d="2d")
    + rf"\.multicast::cluster \[{R}\], \[{RD}, {{{R}, {R}}}\], \[{R}\], mask;",
    "tma.load_3d": _TENSOR.format(d="3d") + rf" \[{R}\], \[{RD}, {{{R}, {R}, {R}}}\], \[{R}\];",
    "tma.load_3d_multicast": rf"cvt\.u16\.u32 mask, {R}; " + _TENSOR.format(d="3d")
    + rf"\.multicast::cluster \[{R}\], \[{RD}, {{{R}, {R}, {R}}}\], \[{R}\], mask;",
    "tma.load_bytes": rf"cp\.async\.bulk\.shared::cluster\.global\.mbarrier::complete_tx::bytes \[{R}\], \[{RD}\], {R}, \[{R}\];",
    "tma.prefetch": rf"prefetch\.tensormap \[{RD}\];",
    "tma.store_2d": _TO_GLOBAL.format(d="2d") + rf" \[{RD}, {{{R}, {R}}}\], \[{R}\];",
    "tma.store_2d_if": _IF + _TO_GLOBAL.format(d="2d") + rf" \[{RD}, {{{R}, {R}}}\], \[{R}\];",
    "tma.store_3d": _TO_GLOBAL.format(d="3d") + rf" \[{RD}, {{{R}, {R}, {R}}}\], \[{R}\];",
    "tma.wait": r"cp\.async\.bulk\.wait_group 0;",
    "tma.wait_read": r"cp\.async\.bulk\.wait_group\.read 0;",
    "unpack.e2m1x8_to_bf16x8": rf"lop3\.b32 t, y, 0x80008000, t, 234; fma\.rn\.bf16x2 {R}, t, power, none;",
    "unpack.e2m1x8_to_f16x8": rf"lop3\.b32 t, y, 0x80008000, t, 234; fma\.rn\.f16x2 {R}, t, power, none;",
    "unpack.hold": rf"// hold {{{R}, {R}, {R}, {R}}}",
    "unpack.pin": rf"setp\.eq\.u32 p, {R}, 0xffffffff; @p st\.shared\.v4\.b32 \[{R}\], {{{R}, {R}, {R}, {R}}};",
    "unpack.bf16x2_of_zero_point": rf"mul\.lo\.u32 z, {R}, 0x10001; mov\.b32 scale, 0xff00ff00; mov\.b32 none, 0x80008000; "
    + rf"fma\.rn\.bf16x2 {R}, z, scale, none;",
    "unpack.signs4x8_to_e4m3x8": rf"and\.b32 s, {R}, 0x01010101; and\.b32 t, {R}, 0x0f0f0f0f; mad\.lo\.u32 {R}, s, 129, t;",
    "unpack.signs4x8_to_u4x8": rf"and\.b32 s, {R}, 0x11111111; mul\.lo\.u32 s, s, 15; lop3\.b32 {R}, t, 0x77777777, s, 0x59;",
    "unpack.u4x8_to_bf16x8_over_64": rf"and\.b32 t0, {R}, 0x000f000f; fma\.rn\.bf16x2 {R}, t0, low, {R};",
    "unpack.u4x8_to_s8x8_times_16": rf"lop3\.b32 {R}, {R}, 0x80808080, 0xf0f0f0f0, 0x28; shl\.b32 w, {R}, 4;",
    "unpack.u4x8_by_table": rf"prmt\.b32 x, {R}, {R}, i; prmt\.b32 y, {R}, {R}, i; prmt\.b32 m, {R}, 0, 0xba98; lop3\.b32 {R}, m, y, x, 0xca;",
    "unpack.u4x8_to_bf16x8": rf"lop3\.b32 t0, {R}, 0x000f000f, 0x43004300, 234; fma\.rn\.bf16x2 {R}, t0, one, {R};",
    "unpack.u4x8_to_f16x8": rf"lop3\.b32 t1, {R}, 0x00f000f0, 0x54005400, 234; add\.rn\.f16x2 {R}, t1, {R};",
    "unpack.u4x8_to_s8x8": rf"and\.b32 a, {R}, 0x0f0f0f0f; add\.u32 a, a, {R}; xor\.b32 {R}, a, 0x80808080;",
    "wgmma.wait_s32": r"wgmma\.wait_group\.sync\.aligned 1;",
    "wgmma.commit": r"wgmma\.commit_group\.sync\.aligned;",
    "wgmma.fence": r"wgmma\.fence\.sync\.aligned;",
    "wgmma.wait": r"wgmma\.wait_group\.sync\.aligned 1;",
}  # fmt: skip


def compiled(names, arch, threads=128):
    ptx, entry = _numba.compile_ptx(kernel_of(names), ARGTYPES, arch=arch, threads=threads)
    return re.sub(r"[ \t]+", " ", ptx), entry


@pytest.fixture(scope="module")
def everything():
    """PTX and cubin of one kernel that calls all operations."""
    ptx, entry = compiled(CALLABLE, "sm_90a")
    return ptx, entry, ptxas(ptx, "sm_90a")


def test_every_operation_has_its_golden_text():
    assert set(GOLDEN) == set(CALLABLE)


@pytest.mark.parametrize("name", GOLDEN)
def test_the_instruction_is_in_the_ptx(everything, name):
    ptx, _, _ = everything
    assert re.search(GOLDEN[name], ptx), f"{name}: {GOLDEN[name]}"


def test_ptxas_takes_them_all(everything):
    ptx, entry, cubin = everything
    assert cubin.code.startswith(b"\x7fELF") and cubin.entry == entry
    assert cubin.local_bytes == 0 and "call" not in re.sub(r"//.*", "", ptx)


def test_the_tensor_map_is_a_grid_constant_parameter(everything):
    ptx, entry, cubin = everything
    assert cubin.parameters[0] == "b8[128]"
    assert f".param .align 64 .b8 {entry}_param_0[128]" in ptx
    assert f"mov.b64 t, {entry}_param_0; cvta.param.u64" in ptx
    assert "__TENSOR_MAP_" not in ptx
    assert not re.search(rf"ld\.param\S* [^;]*{re.escape(entry)}_param_0\b", ptx), "the map's address, and nothing else of it, is taken"


def test_each_tensor_map_is_its_own_parameter():
    def kernel(x, first, y, second):
        tma.prefetch(second)
        tma.prefetch(first)

    tmap, array = ARGTYPES[:2]
    ptx, entry = _numba.compile_ptx(kernel, (array, tmap, array, tmap))
    order = re.findall(rf"mov\.b64 t, {re.escape(entry)}_param_(\d+);", ptx)
    assert order == ["15", "7"], "an array of one dimension is seven parameters"


def test_effects_are_neither_dropped_nor_merged():
    """Two equal operations with an effect stay two; a pure one whose result nobody uses may go."""
    ptx, _ = compiled(["mbarrier.arrive", "mbarrier.arrive", "tma.wait", "tma.wait", "wgmma.fence", "wgmma.fence"], "sm_90a")
    for text in ("mbarrier.arrive", "tma.wait", "wgmma.fence"):
        assert len(re.findall(GOLDEN[text], ptx)) == 2, text


AMPERE = [name for name, operation in CALLABLE.items() if needs(operation) <= 80]


def test_sm_80_operations_assemble_for_sm_80():
    assert {"mbarrier.init", "mbarrier.arrive", "convert.f32x2_to_bf16x2", "memory.load_shared_v4", "thread.uniform"} <= set(AMPERE)
    names = [name for name in AMPERE if "wgmma" not in name]
    kernel = kernel_of(names)
    ptx, _ = _numba.compile_ptx(kernel, ARGTYPES, arch="sm_80", threads=128)
    assert re.search(r"^\.target sm_80$", ptx, re.MULTILINE)
    assert ptxas(ptx, "sm_80").local_bytes == 0


@pytest.mark.parametrize("name", [n for n in CALLABLE if needs(CALLABLE[n]) == 90])
def test_what_says_sm_90_does_not_assemble_for_sm_80(name):
    ptx, _ = _numba.compile_ptx(kernel_of([name]), ARGTYPES, arch="sm_80", threads=128)
    with pytest.raises(CompileError, match="ptxas refused"):
        ptxas(ptx, "sm_80")
