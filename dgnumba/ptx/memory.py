"""Loads and stores by address, in shared memory (u32 addresses) and global memory (u64)."""

import ml_dtypes
import numpy as np

from ..emu import cta
from ._declare import ArrayArg, Fragment, Registers, f32, op, u32, u64


def _words(data: bytes) -> tuple[u32, ...]:
    return tuple(u32(word) for word in np.frombuffer(data, np.uint32))


def _bytes(*words: int) -> bytes:
    return b"".join(int(word).to_bytes(4, "little") for word in words)


@op("{{ .reg .b64 t; cvta.to.shared.u64 t, {array}; cvt.u32.u64 {out}, t; }}", pure=True)
def shared_address(array: ArrayArg) -> u32:
    """cvta.to.shared - the shared address of a `cuda.shared.array`; size 0 is the launch's dynamic block.

    PTX:       ISA 9.0, "cvta"; sm_20+
    Scope:     thread
    Args:      array  a shared array
    Returns:   u32
    Emulates:  exactly
    """
    return u32(array.address)


@op("mov.b64 {out}, {array};", pure=True)
def global_address(array: ArrayArg) -> u64:
    """mov.b64 - the address of a global array's first element.

    PTX:       ISA 9.0, "mov"
    Scope:     thread
    Args:      array  an array that is a kernel argument
    Returns:   u64
    Emulates:  exactly
    """
    return u64(array.address)


@op("ld.shared.f32 {out}, [{address}];")
def load_shared_f32(address: u32) -> f32:
    """ld.shared.f32 - load a float32.

    PTX:       ISA 9.0, "ld"
    Scope:     thread
    Args:      address  u32  shared address, 4-byte aligned
    Returns:   float32
    Emulates:  exactly
    """
    return np.frombuffer(cta().smem.load(address, 4), np.float32)[0]


@op("ld.shared.b32 {out}, [{address}];")
def load_shared_u32(address: u32) -> u32:
    """ld.shared.b32 - load 32 bits.

    PTX:       ISA 9.0, "ld"
    Scope:     thread
    Args:      address  u32  shared address, 4-byte aligned
    Returns:   u32
    Emulates:  exactly
    """
    return u32(int.from_bytes(cta().smem.load(address, 4), "little"))


@op("{{ .reg .b16 half; ld.shared.b16 half, [{address}]; cvt.u32.u16 {out}, half; }}")
def load_shared_u16(address: u32) -> u32:
    """ld.shared.b16 - load 16 bits.

    PTX:       ISA 9.0, "ld"
    Scope:     thread
    Args:      address  u32  shared address, 2-byte aligned
    Returns:   u32
    Emulates:  exactly
    """
    return u32(int.from_bytes(cta().smem.load(address, 2), "little"))


@op("ld.shared.v4.b32 {out}, [{address}];")
def load_shared_v4(address: u32) -> Registers(4):
    """ld.shared.v4.b32 - load 16 bytes.

    PTX:       ISA 9.0, "ld"
    Scope:     thread
    Args:      address  u32  shared address, 16-byte aligned
    Returns:   four u32
    Emulates:  exactly
    """
    return _words(cta().smem.load(address, 16))


@op("st.shared.b32 [{address}], {value};")
def store_shared_u32(address: u32, value: u32) -> None:
    """st.shared.b32 - store 32 bits.

    PTX:       ISA 9.0, "st"
    Scope:     thread
    Args:      address  u32  shared address, 4-byte aligned
               value    u32
    Returns:   nothing
    Emulates:  exactly
    """
    cta().smem.store(address, _bytes(value))


@op("st.shared.f32 [{address}], {value};")
def store_shared_f32(address: u32, value: f32) -> None:
    """st.shared.f32 - store a float32.

    PTX:       ISA 9.0, "st"
    Scope:     thread
    Args:      address  u32  shared address, 4-byte aligned
               value    float32
    Returns:   nothing
    Emulates:  exactly
    """
    cta().smem.store(address, np.float32(value).tobytes())


@op("ld.global.f32 {out}, [{address}];")
def load_global_f32(address: u64) -> f32:
    """ld.global.f32 - load a float32.

    PTX:       ISA 9.0, "ld"
    Scope:     thread
    Args:      address  u64  global address, 4-byte aligned
    Returns:   float32
    Emulates:  exactly
    """
    return np.frombuffer(cta().gmem.load(address, 4), np.float32)[0]


@op("ld.global.nc.v4.b32 {out}, [{address}];")
def load_global_v4(address: u64) -> Registers(4):
    """ld.global.nc.v4.b32 - load 16 bytes that nothing writes while the kernel runs; they may stay in L1 for the next who reads them.

    PTX:       ISA 9.0, "ld.global.nc"
    Scope:     thread
    Args:      address  u64  global address, 16-byte aligned
    Returns:   four u32
    Emulates:  exactly
    """
    return _words(cta().gmem.load(address, 16))


@op("ld.global.nc.L1::no_allocate.L2::128B.v4.b32 {out}, [{address}];")
def load_global_v4_once(address: u64) -> Registers(4):
    """ld.global.nc.L1::no_allocate.v4.b32 - `load_global_v4` of what is read once: it takes no room in L1.

    PTX:       ISA 9.0, "ld.global.nc", ".level::eviction_priority", ".level::prefetch_size"
    Scope:     thread
    Args:      address  u64  global address, 16-byte aligned
    Returns:   four u32
    Emulates:  exactly
    """
    return _words(cta().gmem.load(address, 16))


@op("{{ .reg .pred p; setp.ne.b32 p, {condition}, 0; @p st.global.v2.f32 [{address}], {{{x}, {y}}}; }}")
def store_global_v2_f32_if(condition: bool, address: u64, x: f32, y: f32) -> None:
    """st.global.v2.f32 - store two float32 where `condition` holds, without a branch.

    PTX:       ISA 9.0, "st"
    Scope:     thread
    Args:      condition  bool
               address    u64  global address, 8-byte aligned
               x, y       float32
    Returns:   nothing
    Emulates:  exactly
    """
    if condition:
        cta().gmem.store(address, np.array([x, y], np.float32).tobytes())


@op("{{ .reg .pred p; setp.ne.b32 p, {condition}, 0; @p st.global.f32 [{address}], {value}; }}")
def store_global_f32_if(condition: bool, address: u64, value: f32) -> None:
    """st.global.f32 - store a float32 where `condition` holds, without a branch.

    PTX:       ISA 9.0, "st"
    Scope:     thread
    Args:      condition  bool
               address    u64  global address, 4-byte aligned
               value      float32
    Returns:   nothing
    Emulates:  exactly
    """
    if condition:
        cta().gmem.store(address, np.float32(value).tobytes())


@op("{{ .reg .pred p; setp.ne.b32 p, {condition}, 0; @p st.global.v4.b32 [{address}], {values}; }}")
def store_global_v4_if(condition: bool, address: u64, values: Registers(4)) -> None:
    """st.global.v4.b32 - store 16 bytes where `condition` holds, without a branch.

    PTX:       ISA 9.0, "st"
    Scope:     thread
    Args:      condition  bool
               address    u64  global address, 16-byte aligned
               values     four u32
    Returns:   nothing
    Emulates:  exactly
    """
    if condition:
        cta().gmem.store(address, _bytes(*values))


@op("ld.shared.v2.f32 {out}, [{address}];")
def load_shared_v2_f32(address: u32) -> Fragment(2):
    """ld.shared.v2.f32 - load two float32.

    PTX:       ISA 9.0, "ld"
    Scope:     thread
    Args:      address  u32  shared address, 8-byte aligned
    Returns:   two float32
    Emulates:  exactly
    """
    return np.frombuffer(cta().smem.load(address, 8), np.float32)


@op("ld.shared::cluster.f32 {out}, [{address}];")
def load_cluster_f32(address: u32) -> f32:
    """ld.shared::cluster.f32 - load a float32 from the shared memory of a CTA of the cluster.

    PTX:       ISA 9.0, "ld", ".shared::cluster"; sm_90+
    Scope:     thread
    Args:      address  u32  shared::cluster address (`thread.mapa`), 4-byte aligned
    Returns:   float32
    Emulates:  exactly
    """
    return np.frombuffer(cta().smem.load(address, 4), np.float32)[0]


@op("ld.shared::cluster.b32 {out}, [{address}];")
def load_cluster_u32(address: u32) -> u32:
    """ld.shared::cluster.b32 - load 32 bits from the shared memory of a CTA of the cluster.

    PTX:       ISA 9.0, "ld", ".shared::cluster"; sm_90+
    Scope:     thread
    Args:      address  u32  shared::cluster address (`thread.mapa`), 4-byte aligned
    Returns:   u32
    Emulates:  exactly
    """
    return u32(int.from_bytes(cta().smem.load(address, 4), "little"))


@op("{{ .reg .pred p; .reg .b16 half; setp.ne.b32 p, {condition}, 0; cvt.rn.bf16.f32 half, {value}; @p st.global.b16 [{address}], half; }}")
def store_global_bf16_if(condition: bool, address: u64, value: f32) -> None:
    """cvt.rn.bf16.f32, st.global.b16 - store a float32 as bfloat16 where `condition` holds, without a branch.

    PTX:       ISA 9.0, "cvt", "st"
    Scope:     thread
    Args:      condition  bool
               address    u64  global address, 2-byte aligned
               value      float32
    Returns:   nothing
    Emulates:  exactly; a NaN becomes the canonical one
    """
    if condition:
        cta().gmem.store(address, np.float32(value).astype(ml_dtypes.bfloat16).tobytes())


@op("{{ .reg .pred p; .reg .b16 half; setp.ne.b32 p, {condition}, 0; cvt.rn.f16.f32 half, {value}; @p st.global.b16 [{address}], half; }}")
def store_global_f16_if(condition: bool, address: u64, value: f32) -> None:
    """cvt.rn.f16.f32, st.global.b16 - store a float32 as float16 where `condition` holds, without a branch; too large is infinite.

    PTX:       ISA 9.0, "cvt", "st"
    Scope:     thread
    Args:      condition  bool
               address    u64  global address, 2-byte aligned
               value      float32
    Returns:   nothing
    Emulates:  exactly; a NaN becomes the canonical one
    """
    if condition:
        with np.errstate(over="ignore", under="ignore"):
            cta().gmem.store(address, np.float32(value).astype(np.float16).tobytes())


_IF = "{{ .reg .pred p; setp.ne.b32 p, {condition}, 0; "


@op(_IF + "mov.b32 {out[0]}, 0; mov.b32 {out[1]}, 0; @p ld.global.v2.f32 {out}, [{address}]; }}")
def load_global_v2_f32_if(condition: bool, address: u64) -> Fragment(2):
    """ld.global.v2.f32 - load two float32 where `condition` holds, without a branch; else two zeros.

    PTX:       ISA 9.0, "ld"
    Scope:     thread
    Args:      condition  bool
               address    u64  global address, 8-byte aligned
    Returns:   two float32
    Emulates:  exactly
    """
    return np.frombuffer(cta().gmem.load(address, 8), np.float32) if condition else np.zeros(2, np.float32)


@op(_IF + "mov.b32 {out[0]}, 0; mov.b32 {out[1]}, 0; mov.b32 {out[2]}, 0; mov.b32 {out[3]}, 0; @p ld.global.v4.b32 {out}, [{address}]; }}")
def load_global_v4_if(condition: bool, address: u64) -> Registers(4):
    """ld.global.v4.b32 - load 16 bytes where `condition` holds, without a branch; else four zeros.

    PTX:       ISA 9.0, "ld"
    Scope:     thread
    Args:      condition  bool
               address    u64  global address, 16-byte aligned
    Returns:   four u32
    Emulates:  exactly
    """
    if not condition:
        return (u32(0),) * 4
    return _words(cta().gmem.load(address, 16))


@op(_IF + "mov.b32 {out}, 0; @p ld.global.b32 {out}, [{address}]; }}")
def load_global_u32_if(condition: bool, address: u64) -> u32:
    """ld.global.b32 - load 32 bits where `condition` holds, without a branch; else zero.

    PTX:       ISA 9.0, "ld"
    Scope:     thread
    Args:      condition  bool
               address    u64  global address, 4-byte aligned
    Returns:   u32
    Emulates:  exactly
    """
    return u32(int.from_bytes(cta().gmem.load(address, 4), "little")) if condition else u32(0)


@op(_IF + ".reg .b16 half; mov.b16 half, 0; @p ld.global.b16 half, [{address}]; cvt.u32.u16 {out}, half; }}")
def load_global_u16_if(condition: bool, address: u64) -> u32:
    """ld.global.b16 - load 16 bits where `condition` holds, without a branch; else zero.

    PTX:       ISA 9.0, "ld"
    Scope:     thread
    Args:      condition  bool
               address    u64  global address, 2-byte aligned
    Returns:   u32
    Emulates:  exactly
    """
    return u32(int.from_bytes(cta().gmem.load(address, 2), "little")) if condition else u32(0)


@op(_IF + "@p st.global.b32 [{address}], {value}; }}")
def store_global_u32_if(condition: bool, address: u64, value: u32) -> None:
    """st.global.b32 - store 32 bits where `condition` holds, without a branch.

    PTX:       ISA 9.0, "st"
    Scope:     thread
    Args:      condition  bool
               address    u64  global address, 4-byte aligned
               value      u32
    Returns:   nothing
    Emulates:  exactly
    """
    if condition:
        cta().gmem.store(address, _bytes(value))


@op(_IF + ".reg .b16 byte; cvt.u16.u32 byte, {value}; @p st.global.b8 [{address}], byte; }}")
def store_global_u8_if(condition: bool, address: u64, value: u32) -> None:
    """st.global.b8 - store the low 8 bits where `condition` holds, without a branch.

    PTX:       ISA 9.0, "st"
    Scope:     thread
    Args:      condition  bool
               address    u64  global address
               value      u32  of which bits 0-7 are stored
    Returns:   nothing
    Emulates:  exactly
    """
    if condition:
        cta().gmem.store(address, bytes([int(value) & 0xFF]))


@op("st.shared.v4.f32 [{address}], {{{x0}, {x1}, {x2}, {x3}}};")
def store_shared_v4_f32(address: u32, x0: f32, x1: f32, x2: f32, x3: f32) -> None:
    """st.shared.v4.f32 - store four float32.

    PTX:       ISA 9.0, "st"
    Scope:     thread
    Args:      address         u32  shared address, 16-byte aligned
               x0, x1, x2, x3  float32
    Returns:   nothing
    Emulates:  exactly
    """
    cta().smem.store(address, np.array([x0, x1, x2, x3], np.float32).tobytes())


@op("ld.shared.v4.f32 {out}, [{address}];")
def load_shared_v4_f32(address: u32) -> Fragment(4):
    """ld.shared.v4.f32 - load four float32.

    PTX:       ISA 9.0, "ld"
    Scope:     thread
    Args:      address  u32  shared address, 16-byte aligned
    Returns:   four float32
    Emulates:  exactly
    """
    return np.frombuffer(cta().smem.load(address, 16), np.float32)
